"""Connect to the guard, a helper process on the target machine that terminates commands.

The guard reads requests from its standard input. When that is closed, because this client closed it or was
killed, it terminates all foreground commands of this client. Knows processes only by their identifiers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolfold.core.errors import EnvironmentFailed
from toolfold.tools.environments.backend import Backend, Channel
from toolfold.tools.environments.scripts import load_script, script_bundle

SPAWN_TIMEOUT_S = 60.0
START_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 10.0
TERMINATE_TIMEOUT_S = 60.0
CLOSE_INPUT_TIMEOUT_S = 2.0
HEARTBEATS_PER_LEASE = 4
"""Heartbeats sent per lease. The target counts as lost after this many without an answer."""
MAX_LINE_BYTES = 1 << 16
MAX_ANSWER_LINES = 10_000
"""Limits on the guard's output: a command may have found a way to write to it."""
GRACE_NAPS = 30  # of at least 30 ms: how long a program may take to exit after SIGTERM

_NO_VARIABLES: Mapping[str, str] = {}


class GuardLost(Exception):
    """Raised when the guard process, which terminates commands on the target machine, does not answer.

    It was killed, or the target is unreachable.
    """


@dataclass(frozen=True, slots=True)
class TargetTools:
    """Paths of programs and directories on the target machine; the path of a missing program is empty."""

    tasks_dir: str
    """Directory with the state of this client's tasks.

    Its parent holds files that commands may only read.
    """
    shell: str
    setsid: str
    script: str

    def shared_path(self, name: str) -> str:
        """Return the path of a file on the target machine that commands may read but not change."""
        return f"{self.tasks_dir.rpartition('/')[0]}/{name}"


class Guard:
    """Connection to a guard, the helper process on the target machine that terminates commands."""

    def __init__(self, channel: Channel, tools: TargetTools, unread: bytes, backend: Backend) -> None:
        self.tools = tools
        self._gate_name = backend.gate_name or "-"
        self._channel = channel
        self._numbers = itertools.count(1)
        self._pending: dict[str, tuple[asyncio.Future[int], list[str]]] = {}
        self._is_lost = False
        self._missed_beats = 0
        self.silence: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the target has been silent for so long that the guard terminates the commands there."""
        self._reader = asyncio.create_task(self._read_answers(unread))
        self._heartbeat = (
            asyncio.create_task(self._send_heartbeats(backend.lease_s / HEARTBEATS_PER_LEASE))
            if backend.lease_s
            else None
        )

    @classmethod
    async def start(cls, backend: Backend, client_id: str, max_log_bytes: int) -> Guard:
        """Start a guard process on the target machine. Raises EnvironmentFailed if that fails."""
        lease = str(backend.lease_s) if backend.lease_s else ""
        argv = [
            "sh",
            "-c",
            load_script("install"),
            "sh",
            backend.state_dir,
            client_id,
            lease,
            str(max_log_bytes),
        ]
        channel = await _spawn_guard(backend, argv)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await channel.write(script_bundle())
                tools, unread = await _read_ready_line(channel)
        except (TimeoutError, ValueError):
            raise await _start_error(backend, channel) from None
        except BaseException:
            await channel.close()
            raise
        return cls(channel, tools, unread, backend)

    @property
    def is_lost(self) -> bool:
        return self._is_lost

    async def terminate(self, run_id: str) -> bool:
        """Terminate a command and its descendants. Return False if one of the processes is still running."""
        return await self._request(f"end {run_id} {GRACE_NAPS} {self._gate_name}", TERMINATE_TIMEOUT_S) == 0

    async def send_signal(self, run_id: str, signal: str) -> bool:
        """Send a signal to a command and its descendants. Return False if none of them is running."""
        return await self._request(f"tell {run_id} {signal} {self._gate_name}", ANSWER_TIMEOUT_S) == 0

    async def wait_started(self, name: str) -> bool:
        """Wait until a background process has started; return False if its command could not be started."""
        return await self._request(f"begun {name}", START_TIMEOUT_S) == 0

    async def terminate_process(self, name: str) -> bool:
        """Terminate a background process and its descendants. Return False if one of them still runs."""
        return (
            await self._request(f"end-process {name} {GRACE_NAPS} {self._gate_name}", TERMINATE_TIMEOUT_S)
            == 0
        )

    async def signal_process(self, name: str, signal: str) -> bool:
        """Send a signal to a background process and its descendants. Return False if none of them runs."""
        return await self._request(f"tell-process {name} {signal} {self._gate_name}", ANSWER_TIMEOUT_S) == 0

    async def list_processes(self) -> list[str]:
        """Return one line per background process, in the format of `list_processes` in `shell/guard.sh`."""
        lines: list[str] = []
        await self._request("list", ANSWER_TIMEOUT_S, lines)
        return lines

    async def responds(self) -> bool:
        """Return True if the guard process responds in time."""
        try:
            await self._request("hello", ANSWER_TIMEOUT_S)
        except GuardLost:
            return False
        return True

    async def shut_down(self) -> None:
        """Make the guard process terminate the remaining commands and exit."""
        if self._heartbeat:
            self._heartbeat.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_INPUT_TIMEOUT_S):
                await self._channel.close_input()
        await asyncio.wait({self._reader}, timeout=self._shutdown_timeout())
        self._reader.cancel()
        await self._channel.close()

    def _shutdown_timeout(self) -> float:
        """Return how long to wait for the guard process to exit.

        Even a guard that was too slow to answer terminates everything with this client's identifier, so it
        must be done before new commands get that identifier.
        """
        if self.silence.done():
            return 0
        return ANSWER_TIMEOUT_S if self._is_lost else TERMINATE_TIMEOUT_S

    async def _request(self, command: str, timeout_s: float, lines: list[str] | None = None) -> int:
        if self._is_lost:
            raise GuardLost
        number = str(next(self._numbers))
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer, [] if lines is None else lines
        try:
            async with asyncio.timeout(timeout_s):
                await self._channel.write(f"{number} {command}\n".encode())
                return await answer
        except TimeoutError:
            self._is_lost = True  # a connection may be cut without an error
            raise GuardLost from None
        finally:
            del self._pending[number]

    async def _send_heartbeats(self, interval_s: float) -> None:
        """Send heartbeats to the guard, so that client and guard notice when the other has ended."""
        while not self._reader.done():
            await asyncio.sleep(interval_s)
            self._missed_beats += 1
            if self._missed_beats > HEARTBEATS_PER_LEASE:
                self._mark_lost()
                self.silence.set_result(None)
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._channel.write(b"0 beat\n")

    async def _read_answers(self, unread: bytes) -> None:
        while data := await self._channel.read():
            self._missed_beats = 0
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                self._handle_line(line.decode("utf-8", "replace"))
            if len(unread) > MAX_LINE_BYTES:
                break
        self._mark_lost()

    def _mark_lost(self) -> None:
        self._is_lost = True
        for answer, _ in self._pending.values():
            if not answer.done():
                answer.set_exception(GuardLost())

    def _handle_line(self, line: str) -> None:
        number, _, words = line.partition(" ")
        answer, lines = self._pending.get(number, (None, []))
        done, _, code = words.partition(" ")
        if done != "done":
            lines += [words] if len(lines) < MAX_ANSWER_LINES else []
        elif answer and not answer.done() and code.isdecimal() and len(code) < 4:
            answer.set_result(int(code))


async def _spawn_guard(backend: Backend, argv: Sequence[str]) -> Channel:
    try:
        async with asyncio.timeout(SPAWN_TIMEOUT_S):
            return await backend.spawn(argv, env=_NO_VARIABLES, pty=None)
    except TimeoutError:
        problem = f"{backend.name} cannot run commands: the target does not respond."
        raise EnvironmentFailed(problem, advice=backend.advice) from None


async def _start_error(backend: Backend, channel: Channel) -> EnvironmentFailed:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            await channel.wait()  # its error output may arrive after the end of its output
    problem = channel.error_text() or "the target does not respond"
    await channel.close()
    return EnvironmentFailed(f"{backend.name} cannot run commands: {problem}.", advice=backend.advice)


async def _read_ready_line(channel: Channel) -> tuple[TargetTools, bytes]:
    received = b""
    while b"\n" not in received:
        data = await channel.read()
        if not data or len(received) > MAX_LINE_BYTES:
            raise ValueError(
                "the process that starts commands on the backend exited early or printed too much"
            )
        received += data
    line, _, unread = received.partition(b"\n")
    ready, *tools = line.decode("utf-8", "replace").split(" ")
    if ready != "ready" or len(tools) != 4:
        raise ValueError("the process that starts commands on the backend printed an unexpected line")
    return TargetTools(*("" if each == "-" else each for each in tools)), unread
