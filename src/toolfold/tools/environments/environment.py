"""Run commands and background processes, and transfer files, on any backend.

Holds what is the same for all backends. Does not judge commands: approval has done so before.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolfold.core.errors import CallError
from toolfold.tools.environments.backend import Backend, TerminalSize
from toolfold.tools.environments.command_output import Listener, OutputBuffer, decode_text
from toolfold.tools.environments.end_mark import NO_DIRECTORY_CODE
from toolfold.tools.environments.process_list import BackgroundProcess, ProcessTable
from toolfold.tools.environments.runner import CommandRunner, CommandSpec
from toolfold.tools.environments.running_command import RunningCommand, feed_and_drain
from toolfold.tools.environments.scripts import script_with_arguments

DEFAULT_TASK = "main"
OUTPUT_DRAIN_TIMEOUT_S = 5.0
"""How long to wait for the rest of the output after a command was terminated."""
FILE_TIMEOUT_S = 120.0
MAX_ERROR_TEXT_BYTES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentLimits:
    """Limits on time, output, files and background processes of an environment."""

    timeout_s: float = 120.0
    """Default time limit of a foreground command."""
    max_shown_bytes: int = 40_000
    """Maximum bytes of output in the result; the complete output is stored on disk."""
    max_stored_bytes: int = 200_000_000
    """Maximum bytes of output stored on disk: the first of a command, the last of a background process."""
    max_file_bytes: int = 50_000_000
    """Maximum size of a file that is read as a whole."""
    max_processes: int = 64
    """Maximum number of background processes that run at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Result of a foreground command: output, exit code, working directory and duration.

    A non-zero exit code raises no exception.
    """

    output: str
    exit_code: int | None
    """Exit code; None if the command was terminated by Toolfold."""
    directory: str
    """Working directory of the task after the command: where its next command starts."""
    duration_s: float
    timed_out: bool = False
    may_still_run: bool = False
    """True if processes of the command may still run although they should have been terminated."""
    output_file: Path | None = None
    """File with the complete output, if `output` contains only part of it."""
    total_bytes: int = 0
    lost_bytes: int = 0
    """Number of bytes that are neither in `output` nor in `output_file`."""


class Environment:
    """A machine, container or sandbox that runs commands. Must be used within one event loop."""

    def __init__(
        self,
        backend: Backend,
        *,
        output_dir: Path | None = None,
        variables: Mapping[str, str] | None = None,
        limits: EnvironmentLimits | None = None,
    ) -> None:
        """Store the backend and the settings; nothing is started yet.

        Long outputs are stored below `output_dir` on this machine; every command gets `variables`.
        """
        self.backend = backend
        self.limits = limits or EnvironmentLimits()
        self._output_dir = output_dir
        self._runner = CommandRunner(backend, dict(variables or {}), self.limits.max_stored_bytes)
        self._directories: dict[str, str] = {}
        self.processes = ProcessTable(self._runner, self.limits.max_processes)

    @property
    def client_id(self) -> str:
        """Return this client's identifier, which every command gets as an environment variable."""
        return self._runner.client_id

    async def open(self) -> None:
        """Connect to the machine or container now, not at the first use. Raises EnvironmentFailed."""
        await self._runner.ensure_guard()

    def working_directory(self, task: str = DEFAULT_TASK) -> str:
        """Return the working directory of the shell session `task` after its last finished command."""
        return self._directories.get(task) or self.backend.home

    async def run(
        self,
        command: str,
        *,
        task: str = DEFAULT_TASK,
        directory: str = "",
        stdin: bytes = b"",
        timeout_s: float | None = None,
        pty: TerminalSize | None = None,
        listener: Listener | None = None,
        output_dir: Path | None = None,
    ) -> CommandResult:
        """Run a command until it exits or times out; then all of its processes are terminated.

        It starts in the directory and with the exported variables that the last command of the task left. In
        another `directory` it starts there, and the directory of the task does not change. Raises CallError
        if it cannot start there. `stdin` is its complete input. `listener` receives its output as it arrives.
        """
        started_at = time.monotonic()
        running = await self.start(command, task=task, directory=directory, pty=pty)
        output = OutputBuffer(
            max_bytes=self.limits.max_shown_bytes,
            directory=output_dir or self._output_dir,
            max_file_bytes=self.limits.max_stored_bytes,
            listener=listener,
        )
        in_time = await self._wait_for_end(
            running, stdin, output, self.limits.timeout_s if timeout_s is None else timeout_s
        )
        reported = running.reported_exit
        if reported and reported.exit_code == NO_DIRECTORY_CODE:
            raise CallError(output.text().strip())
        if reported:
            self._directories[task] = reported.directory
        code = (
            reported.exit_code
            if reported
            else await self._runner.resolve_exit_code(running)
            if in_time
            else None
        )
        return CommandResult(
            output=output.text(),
            exit_code=code if in_time else None,
            directory=self.working_directory(task),
            duration_s=time.monotonic() - started_at,
            timed_out=not in_time,
            may_still_run=running.may_still_run,
            output_file=output.file,
            total_bytes=output.total_bytes,
            lost_bytes=output.lost_bytes,
        )

    async def start(
        self, command: str, *, task: str = DEFAULT_TASK, directory: str = "", pty: TerminalSize | None = None
    ) -> RunningCommand:
        """Start a command for interactive use. The caller must call `finish` afterwards."""
        return await self._runner.start(CommandSpec(text=command, task=task, directory=directory, pty=pty))

    async def interact(
        self,
        command: str,
        exchange: Callable[[RunningCommand], Awaitable[None]],
        *,
        task: str = DEFAULT_TASK,
        directory: str = "",
    ) -> int:
        """Run a command while `exchange` reads its output and writes its input, and return its exit code.

        When `exchange` returns or raises, all processes of the command are terminated. Its directory and
        variables do not carry over to the next command of the task. The exit code is NO_DIRECTORY_CODE if it
        cannot start in `directory`.
        """
        spec = CommandSpec(text=command, task=task, directory=directory, updates_task=False)
        running = await self._runner.start(spec)
        try:
            await exchange(running)
            reported = running.reported_exit
            return reported.exit_code if reported else await self._runner.resolve_exit_code(running)
        finally:
            await self._runner.finish(running, terminate=True)

    async def interrupt(self, running: RunningCommand, signal: str = "INT") -> bool:
        """Send a signal to a command and to all processes that it started."""
        return await self._runner.ask_guard(lambda guard: guard.send_signal(running.run_id, signal))

    async def finish(self, running: RunningCommand) -> None:
        """Terminate a command that was started by `start`, and all processes that the command started."""
        await self._runner.finish(running, terminate=True)

    async def read_file(
        self, path: str, *, task: str = DEFAULT_TASK, offset: int = 0, max_bytes: int | None = None
    ) -> bytes:
        """Return the bytes of a file in the environment, from `offset` on. Raises CallError if that fails.

        Without `max_bytes`, return the whole rest, and raise CallError if the file is too large for that.
        """
        limit = self.limits.max_file_bytes + 1 if max_bytes is None else max_bytes
        data = await self._run_file_script(
            "read_file", task, b"", path, str(offset + 1), str(limit), max_bytes=limit
        )
        if max_bytes is None and len(data) == limit:
            raise CallError(
                f"{path} is larger than {self.limits.max_file_bytes:,} bytes. Read only a part of the file."
            )
        return data

    async def write_file(self, path: str, data: bytes, *, task: str = DEFAULT_TASK) -> None:
        """Create or replace a file in the environment atomically; create missing parent directories.

        Raises CallError.
        """
        await self._run_file_script("write_file", task, data, path, str(len(data)), secrets.token_hex(8))

    async def start_process(
        self,
        command: str,
        *,
        task: str = DEFAULT_TASK,
        directory: str = "",
        pty: TerminalSize | None = None,
        watch_words: Sequence[str] = (),
    ) -> BackgroundProcess:
        """Start a background process without a time limit, by default in shell session `task`'s directory.

        `processes.take_notices` reports its end, and lines of its log that contain one of `watch_words`.
        """
        spec = CommandSpec(text=command, task=task, directory=directory, pty=pty, updates_task=False)
        return await self.processes.start(spec, watch_words)

    async def close(self) -> None:
        """Terminate all foreground commands and disconnect. Background processes keep running."""
        await self.processes.close()
        await self._runner.close()

    async def __aenter__(self) -> Environment:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _wait_for_end(
        self, running: RunningCommand, stdin: bytes, output: OutputBuffer, timeout_s: float
    ) -> bool:
        """Write a command's input and collect its output until it exits; return False after a timeout."""
        io_task = asyncio.create_task(feed_and_drain(running, stdin, output.append))
        try:
            await asyncio.wait({io_task}, timeout=timeout_s)
        finally:
            in_time = io_task.done()
            succeeded = in_time and io_task.exception() is None
            await self._runner.run_to_completion(
                self._release_command(running, io_task, terminate=not succeeded)
            )
            output.finish()
        if in_time:
            io_task.result()
        return in_time

    async def _release_command(
        self, running: RunningCommand, io_task: asyncio.Task[None], *, terminate: bool
    ) -> None:
        if terminate:
            running.may_still_run = not await self._runner.stop(running)
            if not running.may_still_run:
                await asyncio.wait({io_task}, timeout=OUTPUT_DRAIN_TIMEOUT_S)
        io_task.cancel()
        await self._runner.finish(running)

    async def _run_file_script(
        self, name: str, task: str, stdin: bytes, *arguments: str, max_bytes: int = 0
    ) -> bytes:
        command = CommandSpec(text=script_with_arguments(name, *arguments), task=task, updates_task=False)
        running = await self._runner.start(command)
        max_bytes += MAX_ERROR_TEXT_BYTES
        code, output = await self._runner.collect_output(running, stdin, FILE_TIMEOUT_S, max_bytes)
        if code:
            raise CallError(decode_text(output[:2_000]).strip() or f"{arguments[0]} could not be used")
        return output
