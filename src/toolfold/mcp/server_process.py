"""Run a stdio server in its own process group, and terminate it with all its descendants.

A watcher, a few lines of shell, waits at the end of a pipe that this process holds. When the pipe closes,
because this process closed it or was killed, the watcher kills the group and every process that carries the
server's mark in its environment. Knows nothing about the messages of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol, cast

from toolfold.core.tool_processes import SERVER_MARK_KB
from toolfold.mcp.faults import NotStarted
from toolfold.mcp.process_tree import ProcessTree, WatchedGroup, WindowsJob, load_kernel32
from toolfold.safety.redaction import Redaction

EXIT_GRACE_S = 2.0
MAX_UNREAD_BYTES = 1 << 20
"""Output of a server that is read before it was processed; more waits in the pipe."""
CREATE_NEW_PROCESS_GROUP = 0x200
"""Windows flag: Ctrl-C at the terminal does not reach the server."""
STDERR_DRAIN_TIMEOUT_S = 1.0
"""Time to read stderr after the server has exited; a descendant may hold it open forever."""
MAX_LOG_BYTES = 1_000_000
MAX_LINE_BYTES = 4_000
MAX_LINES_PER_SECOND = 200
"""Log lines that are stored per second; more are only counted."""
_TAIL_LINES = 12

# The program replaces the shell, so that pid, exit code and pipes are those of the server. The watcher is
# detached. Processes that left the group still have the mark in their environment; the watcher has not.
# The resource limit identifies the server and its descendants: see `toolfold.core.tool_processes`.
_WATCHER_SCRIPT = """
leader=$$ hold=$1 mark=$2 limit=$3
shift 3
( (
  trap '' HUP INT TERM
  exec <"/dev/fd/$hold" >/dev/null 2>&1
  read -r _
  kill -KILL $(grep -lsF "TOOLFOLD_SERVER=$mark" /proc/[0-9]*/environ | grep -o '[0-9][0-9]*')
  kill -KILL -- "-$leader"
) & )
TOOLFOLD_SERVER=$mark
export TOOLFOLD_SERVER
{ ulimit -S -m "$limit" && ulimit -H -m "$limit"; } 2>/dev/null
exec "$@"
"""


class PipedProcess(Protocol):
    """Process with streams for standard input, output and error."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Return the exit code; None while the process is running."""

    def close_streams(self) -> None:
        """Close the three streams, even if a descendant of the process holds their other ends open."""


class ServerProcess:
    """A running stdio server. `close` terminates it."""

    def __init__(self, process: PipedProcess, tree: ProcessTree, log: ServerLog) -> None:
        self._process, self._tree, self._log = process, tree, log
        self.stdin, self.stdout = process.stdin, process.stdout
        self._stderr_task = asyncio.create_task(log.copy_stream(process.stderr))

    @property
    def pid(self) -> int:
        return self._process.pid

    async def describe_exit(self, seconds: float) -> str:
        """Wait for the server to exit, then describe its exit code and the end of its log."""
        if await self._wait_for_exit(seconds):
            await asyncio.wait({self._stderr_task}, timeout=STDERR_DRAIN_TIMEOUT_S)
        tail = self._log.tail()
        return f"{_describe_exit_code(self._process.poll())}." + (f" Last log lines: {tail}" if tail else "")

    async def close(self, grace: float = EXIT_GRACE_S) -> None:
        """Close the server's stdin, wait `grace` seconds, then kill it and all of its descendants."""
        with contextlib.suppress(OSError, RuntimeError):
            self.stdin.close()
        try:
            await self._wait_for_exit(grace)
        finally:
            self._tree.end()  # also if cancelled
        if not await self._wait_for_exit(EXIT_GRACE_S):
            self._tree.kill_group()
            await self._wait_for_exit(EXIT_GRACE_S)
        self._stderr_task.cancel()
        self._log.close()
        self._process.close_streams()

    async def _wait_for_exit(self, seconds: float) -> bool:
        """Return True if the server process exits in time."""
        until = time.monotonic() + seconds
        while self._process.poll() is None:
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.01)
        return True


async def start_server(
    server: str,
    command: str,
    args: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: Path | None,
    log: ServerLog,
) -> ServerProcess:
    """Start a stdio server. Raises NotStarted with advice."""
    program = _find_program(server, command, environment, cwd)
    if sys.platform == "win32":
        return await _start_in_job(server, [program, *args], environment, cwd, log)
    hold, lifeline = os.pipe()
    try:
        mark, limit = secrets.token_hex(12), str(SERVER_MARK_KB)
        watched = ["/bin/sh", "-c", _WATCHER_SCRIPT, "toolfold", str(hold), mark, limit, program, *args]
        process = await _PosixProcess.start(watched, environment=environment, cwd=cwd, hold=hold)
    except (OSError, ValueError) as error:
        os.close(lifeline)
        raise NotStarted(server, f"could not be started: {error}.", advice=_CHECK_COMMAND_ADVICE) from None
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        os.close(hold)
    return ServerProcess(process, WatchedGroup(process.pid, lifeline), log)


class _PosixProcess:
    """POSIX process in its own session, started without asyncio.

    Processes that asyncio starts with uvloop are forks of this process.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        stdin: asyncio.StreamWriter,
        stdout: tuple[asyncio.StreamReader, asyncio.ReadTransport],
        stderr: tuple[asyncio.StreamReader, asyncio.ReadTransport],
    ) -> None:
        self._process, self.pid, self.poll = process, process.pid, process.poll
        self.stdin, (self.stdout, self._output), (self.stderr, self._errors) = stdin, stdout, stderr

    @classmethod
    async def start(
        cls, command: Sequence[str], *, environment: Mapping[str, str], cwd: Path | None, hold: int
    ) -> _PosixProcess:
        """Start a program that inherits the file descriptor `hold`. Raises OSError or ValueError."""
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - waits only until the program has been loaded
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=dict(environment),
            cwd=cwd,
            pass_fds=[hold],
            start_new_session=True,
        )
        loop, opened = asyncio.get_running_loop(), contextlib.ExitStack()
        try:
            stdin, flow = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, process.stdin)
            opened.callback(stdin.abort)
            stdout = await _open_reader(process.stdout)
            opened.callback(stdout[1].close)
            stderr = await _open_reader(process.stderr)
            return cls(process, asyncio.StreamWriter(stdin, flow, None, loop), stdout, stderr)
        except BaseException:
            process.kill()
            opened.close()
            for pipe in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(OSError):  # uvloop has closed the one that it was connecting
                    cast("IO[bytes]", pipe).close()
            loop.run_in_executor(None, process.wait)
            raise

    def close_streams(self) -> None:
        self.stdin.close()
        if self.stdin.transport.get_write_buffer_size():  # nobody reads it
            self.stdin.transport.abort()
        self._output.close()
        self._errors.close()


async def _open_reader(pipe: IO[bytes] | None) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=MAX_UNREAD_BYTES)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader, transport


class _AsyncioProcess:
    """Process started by asyncio's event loop."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process, self.pid = process, process.pid
        self.stdin = cast("asyncio.StreamWriter", process.stdin)  # all three are pipes
        self.stdout = cast("asyncio.StreamReader", process.stdout)
        self.stderr = cast("asyncio.StreamReader", process.stderr)

    def poll(self) -> int | None:
        return self._process.returncode

    def close_streams(self) -> None:
        transport = getattr(self._process, "_transport", None)
        if transport is not None:
            transport.close()


async def _start_in_job(
    server: str, command: Sequence[str], environment: Mapping[str, str], cwd: Path | None, log: ServerLog
) -> ServerProcess:
    """Start a server on Windows, without a shell, in a job object."""
    process = None
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            cwd=cwd,
            creationflags=CREATE_NEW_PROCESS_GROUP,
            limit=MAX_UNREAD_BYTES,
        )
        return ServerProcess(_AsyncioProcess(process), WindowsJob(process.pid, load_kernel32()), log)
    except (OSError, ValueError) as error:
        if process is not None:
            process.kill()
        raise NotStarted(server, f"could not be started: {error}.", advice=_CHECK_COMMAND_ADVICE) from None


_CHECK_COMMAND_ADVICE = "Check its command, args and cwd in the configuration."


def _find_program(server: str, command: str, environment: Mapping[str, str], cwd: Path | None) -> str:
    if cwd is not None and not cwd.is_dir():
        raise NotStarted(
            server,
            f"cannot be started: its working directory {cwd} does not exist.",
            advice=_CHECK_COMMAND_ADVICE,
        )
    name = os.path.expanduser(command)  # noqa: PTH111 - may be a bare program name
    program = shutil.which(name, path=environment.get("PATH", os.defpath))
    if program is None and cwd is not None and (cwd / name).is_file():
        program = str(cwd / name)
    if program is None:
        advice = "Install it, give its full path, or add its directory to PATH in the server's `env`."
        raise NotStarted(server, f"cannot be started: the program {command!r} was not found.", advice=advice)
    return program


def _describe_exit_code(code: int | None) -> str:
    if code is None:
        return "its process is still running"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"


def has_unread_input(stream: asyncio.StreamWriter) -> bool:
    """Return True if a pipe contains unread data; False if that cannot be determined."""
    if sys.platform != "linux":
        return False
    import fcntl
    import termios

    if (end := stream.get_extra_info("pipe")) is None:
        return False
    try:
        pipe = end.fileno()
        is_socket = stat.S_ISSOCK(os.fstat(pipe).st_mode)
        return any(fcntl.ioctl(pipe, termios.TIOCOUTQ if is_socket else termios.FIONREAD, bytes(4)))
    except (OSError, ValueError):  # it is closed
        return False


class ServerLog:
    """Log file of a server's stderr, with secrets redacted; rotation keeps at most two files."""

    def __init__(self, file: Path, redact: Redaction) -> None:
        self._file, self.redact = file, redact
        self._recent_lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._descriptor = -1
        self._size = 0
        self._second = self._lines = 0

    async def copy_stream(self, stream: asyncio.StreamReader) -> None:
        """Write the lines of a stream to the log until the stream ends."""
        part = b""
        while chunk := await stream.read(1 << 16):
            *lines, part = (part + chunk).split(b"\n")
            for line in lines:
                self._add_line(line)
            part = part[:MAX_LINE_BYTES]  # keep only the start of an endless line
            await asyncio.sleep(0)  # yield, so that endless output does not block the loop
        self._add_line(part)

    def note(self, text: str) -> None:
        """Write one line to the log; errors while writing the file are ignored."""
        self._add_line(text.encode("utf-8", "replace"))

    def _add_line(self, line: bytes) -> None:
        if line.strip() and not self._is_over_rate_limit():
            self._store_line(self.redact(line[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip()))

    def _store_line(self, text: str) -> None:
        self._recent_lines.append(text)
        with contextlib.suppress(OSError):
            self._write(text + "\n")

    def _is_over_rate_limit(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            if self._lines > MAX_LINES_PER_SECOND:
                self._store_line(
                    f"({self._lines - MAX_LINES_PER_SECOND} more lines within one second were dropped)"
                )
            self._second, self._lines = second, 0
        self._lines += 1
        return self._lines > MAX_LINES_PER_SECOND

    def tail(self, max_chars: int = 400) -> str:
        """Return the end of the server's log."""
        return " · ".join(self._recent_lines)[-max_chars:]

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _write(self, text: str) -> None:
        if self._descriptor < 0:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
            self._descriptor = os.open(self._file, flags, 0o600)
            self._size = os.fstat(self._descriptor).st_size
        written = text.encode("utf-8", "replace")
        if self._size + len(written) > MAX_LOG_BYTES:
            self.close()
            self._file.replace(self._file.with_suffix(".log.1"))
            self._write(text)
            return
        os.write(self._descriptor, written)
        self._size += len(written)
