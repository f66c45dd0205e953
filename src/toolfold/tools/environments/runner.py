"""Run programs through a backend, supervised by a guard process on the target machine.

Every program gets an identifier by which the guard finds all processes that belong to it. A target that was
lost is opened again for the next program.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import secrets
import shlex
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from toolfold.core.errors import EnvironmentFailed
from toolfold.tools.environments.backend import Backend, Channel, TerminalSize
from toolfold.tools.environments.end_mark import EndMarkParser
from toolfold.tools.environments.guard import Guard, GuardLost
from toolfold.tools.environments.running_command import RunningCommand, feed_and_drain

T = TypeVar("T")

SPAWN_TIMEOUT_S = 60.0
MAX_STOP_ATTEMPTS, STOP_WAIT_S = 8, 1.0
"""Attempts to terminate a command whose client program keeps running, and the wait after each."""
SCRIPT_TIMEOUT_S = 30.0
MAX_SCRIPT_OUTPUT_BYTES = 64_000_000
"""Maximum output of a helper script. A command may have replaced the programs that the script calls."""
MAX_ARGUMENT_BYTES = 60_000  # Linux allows 128 KiB per argument, and quoting makes text longer

# The command is evaluated here, so that the shell's error messages do not name a script of Toolfold.
_RUN_COMMAND = '__toolfold=$1; shift; . "$__toolfold"; eval "$__toolfold_text" 9>&-'
_STORE_INPUT = 'umask 077; cat >"$1"'
_STORE_COMMAND_TEXT = f'find "${{1%/*}}" -name "text.*" -mmin +60 -exec rm -f {{}} +; {_STORE_INPUT}'
_SCRIPT_PREAMBLE = """exec 2>&1
mark=$1
shift
trap 'code=$?; printf "\\036%s %s \\036%s" "$mark" "$code" "$mark"' EXIT
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """A command to run, with its shell session (`task`), working directory and terminal size."""

    text: str
    task: str
    directory: str = ""
    """Working directory of the command; empty for the current one of its task."""
    pty: TerminalSize | None = None
    updates_task: bool = True
    """True if the command's final directory and exported variables carry over to the task's next command."""


class CommandRunner:
    """Starts and terminates programs on one machine or in one container or sandbox."""

    def __init__(self, backend: Backend, variables: Mapping[str, str], max_log_bytes: int) -> None:
        self.backend = backend
        self._variables, self._max_log_bytes = variables, max_log_bytes
        self.client_id = secrets.token_hex(8)
        self._run_numbers = itertools.count(1)
        self._guard: Guard | None = None
        self._open_lock = asyncio.Lock()
        self._closed = False
        self._pending_work: set[asyncio.Task[object]] = set()

    async def ensure_guard(self) -> Guard:
        """Return the guard process; start a new one if there is none or it was lost."""
        async with self._open_lock:
            if self._closed:
                raise EnvironmentFailed(f"{self.backend.name} is closed.", advice="Open it again.")
            if self._guard is None or self._guard.is_lost:
                self._guard = await self._open_backend()
            return self._guard

    async def start(self, command: CommandSpec) -> RunningCommand:
        """Start a user's command in the foreground."""
        guard, end_mark = await self.ensure_guard(), EndMarkParser()
        argv = await self.build_argv(guard, command, end_mark.mark)
        terminal = command.pty is not None
        entry = self.backend.entry_argv(guard.tools.tasks_dir, persistent=False, terminal=terminal)
        return await self._start_program(guard, [*entry, *argv], end_mark, command.pty)

    async def build_argv(self, guard: Guard, command: CommandSpec, mark: str) -> list[str]:
        """Return the argument list that runs a command in the directory of its shell session (`task`).

        The program prints `mark` when it ends or, if `mark` is `@` and a path, creates that file when it
        starts.
        """
        size = command.pty
        shell = guard.tools.shell
        return [
            *(shell, "-c", _RUN_COMMAND, shell.rpartition("/")[2], f"{self.backend.state_dir}/shell/command"),
            await self._pass_text(guard, command.text),
            f"{guard.tools.tasks_dir}/{_task_file_name(command.task)}",
            guard.tools.shared_path("variables"),
            self.backend.home,
            command.directory,
            mark,
            *((str(size.rows), str(size.columns)) if size else ("", "")),
            "yes" if command.updates_task else "",
        ]

    async def launch_background(self, argv: Sequence[str], name: str) -> None:
        """Start a background process by running a helper script on the target machine."""
        channel = await self._spawn_program(argv, f"process.{name}.", None)
        try:
            async with asyncio.timeout(SCRIPT_TIMEOUT_S):
                code = await channel.wait()
            if code:
                raise self._lost_error(channel.error_text() or f"exit code {code}")
        except TimeoutError:
            raise self._lost_error("the process did not start in time") from None
        finally:
            await channel.close()

    async def run_script(
        self, text: str, *arguments: str, stdin: bytes = b"", timeout_s: float = SCRIPT_TIMEOUT_S
    ) -> tuple[int, bytes]:
        """Run a script of Toolfold in the environment, outside the sandbox; return exit code and output."""
        guard, end_mark = await self.ensure_guard(), EndMarkParser()
        argv = [guard.tools.shell, "-c", _SCRIPT_PREAMBLE + text, "sh", end_mark.mark, *arguments]
        return await self.collect_output(await self._start_program(guard, argv, end_mark), stdin, timeout_s)

    async def collect_output(
        self,
        running: RunningCommand,
        stdin: bytes,
        timeout_s: float,
        max_bytes: int = MAX_SCRIPT_OUTPUT_BYTES,
    ) -> tuple[int, bytes]:
        """Write a program's input; return its exit code and output after it exits.

        Raises EnvironmentFailed.
        """
        output = bytearray()

        def take(data: bytes) -> None:
            if len(output) + len(data) > max_bytes:
                raise self._lost_error(f"the program wrote more than {max_bytes:,} bytes")
            output.extend(data)

        try:
            async with asyncio.timeout(timeout_s):
                await feed_and_drain(running, stdin, take)
        except BaseException as error:
            await self.finish(running, terminate=True)
            if isinstance(error, TimeoutError):
                raise self._lost_error("no response in time") from None
            raise
        await self.finish(running)
        if running.reported_exit is None:
            raise self._lost_error(running.error_text())
        return running.reported_exit.exit_code, bytes(output)

    async def resolve_exit_code(self, running: RunningCommand) -> int:
        """Return the exit code of a command whose shell ended without reporting an exit code.

        The shell was killed, or replaced itself by `exec`.
        """
        code = await running.exit_code()
        if running.is_silent or self._guard is None or not await self._guard.responds():
            raise self._lost_error(running.error_text())
        await self.terminate_run(running.run_id)  # perhaps only the client program was killed
        return code

    async def finish(self, running: RunningCommand, *, terminate: bool = False) -> None:
        """Close the streams of a command; with `terminate`, first terminate all of its processes."""

        async def finish() -> None:
            if terminate:
                await self.stop(running)
            await running.close()

        await self.run_to_completion(finish())

    async def run_to_completion(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine to its end even if the caller is cancelled."""
        task = asyncio.create_task(work)
        self._pending_work.add(task)
        task.add_done_callback(self._pending_work.discard)
        await asyncio.shield(task)

    async def terminate_run(self, run: str) -> bool:
        """Terminate a command; return False if it did not end, or if the guard process is unreachable."""
        if self._is_silent:  # the guard terminates everything by itself then
            return False
        try:
            return await self.ask_guard(lambda guard: guard.terminate(run))
        except EnvironmentFailed:
            return False

    async def stop(self, running: RunningCommand) -> bool:
        """Terminate a command; retry until none of its processes is left. Return False if that fails.

        It may start only after the guard has looked for it.
        """
        for _ in range(MAX_STOP_ATTEMPTS):
            if not await self.terminate_run(running.run_id):
                return False
            if await running.wait_gone(STOP_WAIT_S):
                return True
        return False

    async def ask_guard(self, question: Callable[[Guard], Awaitable[T]]) -> T:
        """Send a request to the guard process, which is restarted if it was lost, and return the answer."""
        for _ in range(2):
            with contextlib.suppress(GuardLost):
                return await question(await self.ensure_guard())
            if self._is_silent:
                break
        raise self._lost_error("the guard process does not respond")

    @property
    def _is_silent(self) -> bool:
        return self._guard is not None and self._guard.silence.done()

    async def close(self) -> None:
        """Terminate all foreground commands and disconnect from the machine or container."""
        async with self._open_lock:
            self._closed = True
            guard, self._guard = self._guard, None
        if guard:
            await guard.shut_down()
        if self._pending_work:
            await asyncio.wait(self._pending_work, timeout=SCRIPT_TIMEOUT_S)
        await self.backend.close()

    async def _open_backend(self) -> Guard:
        if self._guard:
            await self._guard.shut_down()
        await self.backend.open()
        guard = await Guard.start(self.backend, self.client_id, self._max_log_bytes)
        if self._variables:
            await self._send_variables(guard)
        return guard

    async def _send_variables(self, guard: Guard) -> None:
        """Store the commands' environment variables on the target, through stdin to keep them private."""
        text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self._variables.items())
        end_mark = EndMarkParser()
        argv = [
            guard.tools.shell,
            "-c",
            _SCRIPT_PREAMBLE + _STORE_INPUT,
            "sh",
            end_mark.mark,
            guard.tools.shared_path("variables"),
        ]
        await self.collect_output(
            await self._start_program(guard, argv, end_mark), text.encode(), SCRIPT_TIMEOUT_S
        )

    async def _pass_text(self, guard: Guard, text: str) -> str:
        data = text.encode(errors="surrogateescape")
        if len(data) <= MAX_ARGUMENT_BYTES:
            return f"={text}"
        path = guard.tools.shared_path(f"text.{next(self._run_numbers)}")
        await self.run_script(_STORE_COMMAND_TEXT, path, stdin=data)
        return f"@{path}"

    async def _start_program(
        self, guard: Guard, argv: Sequence[str], end_mark: EndMarkParser, pty: TerminalSize | None = None
    ) -> RunningCommand:
        run_id = str(next(self._run_numbers))
        try:
            channel = await self._spawn_program(argv, f"{self.client_id}.{run_id}.", pty)
        except asyncio.CancelledError:  # it may have started all the same
            await self.run_to_completion(self.terminate_run(run_id))
            raise
        return RunningCommand(run_id, channel, end_mark, guard.silence)

    async def _spawn_program(self, argv: Sequence[str], run_id: str, pty: TerminalSize | None) -> Channel:
        try:
            async with asyncio.timeout(SPAWN_TIMEOUT_S):
                return await self.backend.spawn(argv, env={"TOOLFOLD_RUN": run_id}, pty=pty)
        except TimeoutError:
            raise self._lost_error("no response in time") from None

    def _lost_error(self, detail: str) -> EnvironmentFailed:
        problem = f"{self.backend.name} was lost while the command ran"
        return EnvironmentFailed(
            f"{problem}: {detail}." if detail else f"{problem}.", advice=self.backend.advice
        )


def _task_file_name(task: str) -> str:
    return hashlib.sha256(task.encode(errors="replace")).hexdigest()[:24]
