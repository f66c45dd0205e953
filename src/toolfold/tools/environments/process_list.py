"""Background processes, which keep running on the target machine when this client exits.

Each has a directory on the target with its description, log, input and finally its exit code. Any client of
the same target can therefore find it, also one that starts after the client that launched it has exited.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import re
import secrets
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from toolfold.core.errors import CallError, EnvironmentFailed, closest_names, did_you_mean, shorten
from toolfold.tools.environments.command_output import decode_text
from toolfold.tools.environments.guard import Guard, GuardLost
from toolfold.tools.environments.input_log import PARTIAL_WRITE, WRITTEN_ELSEWHERE, InputLog, InputLogs
from toolfold.tools.environments.runner import CommandRunner, CommandSpec
from toolfold.tools.environments.scripts import load_script

POLL_INTERVAL_S = 0.25
WRITE_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 10.0
MAX_SCANNED_BYTES = 1 << 20
"""Maximum bytes of new log output that are scanned for watch words at once; of more, only the end."""
MAX_NOTICE_LINES = 5
MAX_NOTICES = 500
MAX_NOTED_CHARS = 2_000
MAX_NOTICE_LINE_BYTES = 500
MAX_READ_BACK_BYTES = 16_000
"""Maximum bytes of input read back for display, if another runtime started the process."""

ProcessState = Literal["running", "ended", "lost"]

_LIST_LINE = re.compile(r"(\w+) (-|[0-9]{1,3}) ([0-9]{1,18}) ([0-9]{1,18})")
_PRINT_DESCRIPTIONS = """cd "$1/processes" || exit
for each in */about; do
  [ ! -e "$each" ] || { printf '%s ' "${each%/about}"; cat "$each"; }
done"""
_WRITE_INPUT = 'tee -a "$1/processes/$2/given" >"$1/processes/$2/in"'
_READ_INPUT = 'cd "$1/processes/$2" && [ ! -e given ] || { wc -c <given && tail -c "$3" given; }'
_CLOSE_INPUT = 'read -r holder <"$1/processes/$2/holder" && kill "$holder"'


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundProcess:
    """Description and state of a background process at one moment."""

    name: str
    command: str
    task: str = ""
    started_at: float = 0.0
    """Start time in Unix time, by the clock of the client that started the process."""
    watch_words: tuple[str, ...] = ()
    """Words that are reported when they appear in the output of the process."""
    state: ProcessState = "running"
    """State of the process; `lost` if its exit code is unknown, as after a restart of the target."""
    exit_code: int | None = None
    written_bytes: int = 0
    """Total size of the output in bytes."""
    dropped_bytes: int = 0
    """Number of bytes at the start of the output that are no longer stored in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessNotice:
    """Notice about a background process: it ended, or its log contains a watched word."""

    process: BackgroundProcess
    lines: tuple[str, ...] = ()
    """Log lines with a watched word; empty if the process has ended."""


class ProcessTable:
    """Table of the background processes on one machine or in one container or sandbox."""

    def __init__(self, runner: CommandRunner, max_running: int) -> None:
        self._runner, self._max_running = runner, max_running
        self._descriptions: dict[str, BackgroundProcess] = {}
        self._last_seen: dict[str, BackgroundProcess] = {}
        self._scanned_bytes: dict[str, int] = {}
        self._notices: list[ProcessNotice] = []
        self._input_logs = InputLogs()
        self._start_lock, self._poll_lock, self._write_lock = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self._watch_task: asyncio.Task[None] | None = None

    async def start(self, command: CommandSpec, watch_words: Sequence[str] = ()) -> BackgroundProcess:
        """Start a background process. Raises CallError if too many processes run or it cannot be started."""
        async with self._start_lock:
            running = [each for each in await self.list_all() if each.state == "running"]
            if len(running) >= self._max_running:
                raise CallError(
                    f"{len(running)} background processes are running, which is the limit."
                    " Kill one of them first."
                )
            process = BackgroundProcess(
                name=f"p{secrets.token_hex(4)}",
                command=shorten(command.text, MAX_NOTED_CHARS),
                task=command.task,
                started_at=time.time(),
                watch_words=tuple(watch_words),
            )
            log = InputLog(command.text, command.directory, pty=command.pty is not None)
            self._input_logs.start(process.name, log)
            has_begun = await self._launch_process(process, command)
        started = await self.get(process.name)
        if not has_begun and started.state != "running":
            raise CallError(await self._startup_error(started))
        self._ensure_watching()
        return started

    async def list_all(self) -> list[BackgroundProcess]:
        """Return all background processes, the oldest first."""
        processes = [self._parse_line(line) for line in await self._list_lines()]
        if any(each is None for each in processes):
            await self._load_descriptions()
            processes = [self._parse_line(line) for line in await self._list_lines()]
        known = [each for each in processes if each]
        self._last_seen.update({each.name: each for each in known if each.name not in self._last_seen})
        if any(each.state == "running" for each in known):
            self._ensure_watching()
        return sorted(known, key=lambda each: each.started_at)

    async def get(self, name: str) -> BackgroundProcess:
        """Return one background process. Raises CallError if it does not exist."""
        processes = {each.name: each for each in await self.list_all()}
        if name not in processes:
            raise CallError(
                f"There is no background process {name!r}.{did_you_mean(closest_names(name, processes))}"
            )
        return processes[name]

    async def wait(self, name: str, timeout_s: float) -> BackgroundProcess:
        """Wait until the process has ended or the timeout has passed, and return its state."""
        deadline = time.monotonic() + timeout_s
        process = await self.get(name)
        while process.state == "running" and (remaining := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(POLL_INTERVAL_S, remaining))
            process = await self.get(name)
        return process

    async def read_log(self, name: str, offset: int, max_bytes: int) -> bytes:
        """Return a part of the process's output, from `offset` or from the first byte still stored."""
        process = await self.get(name)
        path = f"{self._runner.backend.state_dir}/processes/{process.name}/log"
        offset = max(0, offset - process.dropped_bytes)
        code, data = await self._runner.run_script(
            load_script("read_file"), path, str(offset + 1), str(max_bytes)
        )
        if code:
            raise CallError(decode_text(data).strip())
        return data

    async def write(
        self, name: str, data: bytes, *, close: bool = False, revision: int | None = None
    ) -> None:
        """Write to the process's standard input; with `close`, close the input afterwards.

        Raises CallError if its input is no longer at this revision (see `input_log`).
        """
        await self._require_running(name)
        state_dir = self._runner.backend.state_dir
        async with self._write_lock:
            log = await self._load_input_log(name)
            if revision is not None and log.revision != revision:
                raise CallError(
                    f"The input of {name} has changed meanwhile: another call wrote to the "
                    "process. Check its output, then write again."
                )
            if data:
                await self._deliver_input(name, data, log)
        if close:
            await self._runner.run_script(_CLOSE_INPUT, state_dir, name)

    async def get_input_log(self, name: str) -> InputLog:
        """Return a copy of the log of the process's input. Raises CallError if there is no such process."""
        async with self._write_lock:
            return copy.deepcopy(await self._load_input_log(name))

    async def _deliver_input(self, name: str, data: bytes, log: InputLog) -> None:
        """Write to the process's input and log the write.

        If it may have arrived only in part, the log becomes incomplete.
        """
        delivered = False
        try:
            delivered = await self._run_with_timeout(
                WRITE_TIMEOUT_S, _WRITE_INPUT, self._runner.backend.state_dir, name, stdin=data
            )
        finally:
            if delivered:
                log.add_write(data)
            else:
                log.mark_incomplete(PARTIAL_WRITE)
        if not delivered:
            raise CallError(f"{name} does not read its input. At most a part of the text was written.")

    async def _load_input_log(self, name: str) -> InputLog:
        """Return the log of a process's input, marked as incomplete if other clients also wrote input."""
        process = await self.get(name)
        log = self._input_logs.get(name, process.command)
        size, text = await self._read_written_input(name)
        if log.incomplete_reason:
            log.revision += int(size != log.size)
            log.entries, log.size = [("write", text)], size
        elif size != log.size:
            log.mark_incomplete(WRITTEN_ELSEWHERE)
        return log

    async def _read_written_input(self, name: str) -> tuple[int, str]:
        """Return how many bytes all clients have written to the process's input, and the last bytes."""
        state_dir, max_bytes = self._runner.backend.state_dir, str(MAX_READ_BACK_BYTES)
        code, data = await self._runner.run_script(_READ_INPUT, state_dir, name, max_bytes)
        if code:
            raise CallError(decode_text(data).strip())
        count, _, rest = data.partition(b"\n")
        return int(count) if count.strip().isdigit() else 0, rest.decode("utf-8", "replace")

    async def send_signal(self, name: str, signal: str) -> None:
        """Send a signal (a name without SIG) to the process and all processes that it started."""
        process = await self._require_running(name)
        self._input_logs.get(name, process.command).add_signal(
            signal
        )  # logged first, so that no write comes between
        known = signal.isascii() and signal.isalnum()  # the guard splits its request into words
        if not known or not await self._runner.ask_guard(lambda guard: guard.signal_process(name, signal)):
            raise CallError(
                f"Cannot send {signal} to {name}: there is no such signal, or the process has just ended."
            )

    async def kill(self, name: str) -> BackgroundProcess:
        """Terminate the process and all processes that it started. Does nothing if it has ended."""
        process = await self.get(name)
        if process.state == "ended":
            return process
        if not await self._runner.ask_guard(lambda guard: guard.terminate_process(name)):
            raise CallError(f"Cannot kill {name}: at least one of its processes does not exit.")
        return await self.get(name)

    async def take_notices(self, task_prefix: str = "") -> list[ProcessNotice]:
        """Return and clear the pending notices of processes whose task names start with `task_prefix`."""
        if self._watch_task and not self._watch_task.done():
            with contextlib.suppress(EnvironmentFailed):
                await self._poll()
        taken = [each for each in self._notices if each.process.task.startswith(task_prefix)]
        self._notices = [each for each in self._notices if each not in taken][-MAX_NOTICES:]
        return taken

    async def close(self) -> None:
        """Stop watching the background processes, which keep running."""
        if self._watch_task:
            self._watch_task.cancel()
            await asyncio.wait({self._watch_task}, timeout=CLOSE_TIMEOUT_S)

    async def _startup_error(self, process: BackgroundProcess) -> str:
        output = decode_text(await self.read_log(process.name, 0, MAX_NOTED_CHARS)).strip()
        return output or f"The process could not be started: exit code {process.exit_code}."

    async def _launch_process(self, process: BackgroundProcess, command: CommandSpec) -> bool:
        """Start a background process; return False if its command certainly did not start."""
        guard = await self._runner.ensure_guard()
        description = json.dumps(
            {
                "command": process.command,
                "task": process.task,
                "started": process.started_at,
                "watched": process.watch_words,
            }
        )
        program = await self._runner.build_argv(
            guard, command, f"@{guard.tools.tasks_dir}/begun.{process.name}"
        )
        if command.pty:
            program = _wrap_in_terminal(guard, program)
        entry = self._runner.backend.entry_argv(guard.tools.tasks_dir, persistent=True, terminal=False)
        launch = [
            "sh",
            "-c",
            load_script("launch"),
            "sh",
            self._runner.backend.state_dir,
            process.name,
            description,
        ]
        await self._runner.launch_background([*launch, guard.tools.setsid, *entry, *program], process.name)
        self._descriptions[process.name] = self._last_seen[process.name] = process
        with contextlib.suppress(GuardLost):
            return await guard.wait_started(process.name)
        return True

    async def _require_running(self, name: str) -> BackgroundProcess:
        process = await self.get(name)
        if process.state != "running":
            raise CallError(f"{name} has already ended.")
        return process

    async def _run_with_timeout(self, timeout_s: float, text: str, *arguments: str, stdin: bytes) -> bool:
        try:
            code, _ = await self._runner.run_script(text, *arguments, stdin=stdin, timeout_s=timeout_s)
        except EnvironmentFailed:
            if not await self._runner.ask_guard(lambda guard: guard.responds()):
                raise
            return False
        return code == 0

    async def _list_lines(self) -> list[str]:
        return await self._runner.ask_guard(lambda guard: guard.list_processes())

    def _parse_line(self, line: str) -> BackgroundProcess | None:
        name, _, rest = line.partition(" ")
        description, match = self._descriptions.get(name), _LIST_LINE.fullmatch(rest)
        if description is None or match is None:
            return None
        state, code, size, dropped = match.groups()
        exit_code = None if code == "-" else int(code)
        return replace(
            description,
            state=_parse_state(state),
            exit_code=exit_code,
            written_bytes=int(size),
            dropped_bytes=int(dropped),
        )

    async def _load_descriptions(self) -> None:
        """Load the descriptions of background processes that other clients started."""
        _, data = await self._runner.run_script(_PRINT_DESCRIPTIONS, self._runner.backend.state_dir)
        for line in data.decode("utf-8", "replace").splitlines():
            name, _, description = line.partition(" ")
            self._descriptions.setdefault(name, _parse_description(name, description))

    def _ensure_watching(self) -> None:
        if self._watch_task is None or self._watch_task.done():
            self._watch_task = asyncio.create_task(self._watch_until_idle())

    async def _watch_until_idle(self) -> None:
        """Poll the background processes until none is running or the target is unreachable."""
        with contextlib.suppress(EnvironmentFailed):
            while await self._poll():  # noqa: ASYNC110  (the target sends no events)
                await asyncio.sleep(POLL_INTERVAL_S)

    async def _poll(self) -> bool:
        """Check the background processes and collect notices about them; return False if none runs."""
        async with self._poll_lock:
            processes = [each for line in await self._list_lines() if (each := self._parse_line(line))]
            for process in processes:
                before, self._last_seen[process.name] = self._last_seen.get(process.name, process), process
                await self._scan_log(process)
                if before.state == "running" and process.state != "running":
                    self._notices.append(ProcessNotice(process=process))
        return any(process.state == "running" for process in processes)

    async def _scan_log(self, process: BackgroundProcess) -> None:
        start = max(
            self._scanned_bytes.get(process.name, 0),
            process.written_bytes - MAX_SCANNED_BYTES,
            process.dropped_bytes,
        )
        if not process.watch_words or process.written_bytes <= start:
            return
        data = await self.read_log(process.name, start, process.written_bytes - start)
        lines = [line for line in data.split(b"\n") if _contains_any(line, process.watch_words)]
        if lines:
            shown_lines = tuple(
                decode_text(line[:MAX_NOTICE_LINE_BYTES]) for line in lines[:MAX_NOTICE_LINES]
            )
            self._notices.append(ProcessNotice(process=process, lines=shown_lines))
        # A watched word may still appear in an unfinished line.
        unfinished = data[data.rfind(b"\n") + 1 :]
        rescanned = 0 if unfinished in lines else min(len(unfinished), MAX_NOTICE_LINE_BYTES)
        self._scanned_bytes[process.name] = start + len(data) - rescanned


def _contains_any(line: bytes, words: Sequence[str]) -> bool:
    return any(word.encode() in line for word in words)


def _parse_state(word: str) -> ProcessState:
    return "ended" if word == "ended" else "running" if word == "running" else "lost"


def _wrap_in_terminal(guard: Guard, program: list[str]) -> list[str]:
    if not guard.tools.script:
        raise CallError(
            "A background process with a terminal needs the program `script` of util-linux, which is not"
            " installed where commands run. Install it, or start the process without pty."
        )
    return [guard.tools.script, "-qefc", shlex.join(program), "/dev/null"]


def _parse_description(name: str, description: str) -> BackgroundProcess:
    """Parse a process description file, which is untrusted because commands can modify it."""
    try:
        fields = json.loads(description)
        return BackgroundProcess(
            name=name,
            command=decode_text(str(fields["command"])[: MAX_NOTED_CHARS + 1].encode(errors="replace")),
            task=str(fields["task"]),
            started_at=float(fields["started"]),
            watch_words=tuple(map(str, fields["watched"])),
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return BackgroundProcess(name=name, command="(unreadable description)")
