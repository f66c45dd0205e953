"""A server as a process of ours: started in a group of its own, and ended with all that it started.

Beside it stands a watcher, a few lines of shell, that waits at the end of a pipe we hold. When the pipe
is closed, because we closed it or because we were killed, the watcher ends the group and whatever else
carries the server's mark. Knows nothing of what the server says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import stat
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from toolfold.provenance import SERVER_MARK_KB
from toolfold.redaction import Redaction
from toolfold.sources.mcp.faults import NotStarted

T = TypeVar("T")

GRACE_SECONDS = 2.0
LAST_WORDS_SECONDS = 1.0
"""How long they are read for when it has ended: whatever it started may hold them open for ever."""
LARGEST_LOG = 1_000_000
LONGEST_LINE = 4_000
MOST_LINES = 200
"""How many lines a second are kept; more are counted."""
_LAST_WORDS = 12

# The program replaces the shell, so that its pid, its exit code and its pipes are the ones we hold. The
# watcher is nobody's child. What left the group still carries the mark, which the watcher itself does not.
# The limit marks the server and all that it starts as ours: see `toolfold.provenance`.
_WATCHED = """
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


class Child:
    """A running server. `close` ends it, first by closing its input, then by force."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: int, log: ServerLog) -> None:
        self._process, self._lifeline, self._log = process, lifeline, log
        self._listening = asyncio.create_task(log.follow(_held(process.stderr)))

    @property
    def stdin(self) -> asyncio.StreamWriter:
        return _held(self._process.stdin)

    @property
    def stdout(self) -> asyncio.StreamReader:
        return _held(self._process.stdout)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self, seconds: float) -> str:
        """How it ended, if it does within the time: for an error that says why."""
        if await self._exits(seconds):
            await asyncio.wait({self._listening}, timeout=LAST_WORDS_SECONDS)
        words = self._log.last_words()
        return f"{_in_words(self._process.returncode)}." + (f" Its last words: {words}" if words else "")

    async def close(self, grace: float = GRACE_SECONDS) -> None:
        """End it and everything that it started: by closing its input and, after a while, by force."""
        with contextlib.suppress(OSError, RuntimeError):
            self.stdin.close()
        try:
            await self._exits(grace)
        finally:
            self._let_go()  # also when nobody waits any longer
        if not await self._exits(GRACE_SECONDS):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._exits(GRACE_SECONDS)
        self._listening.cancel()
        self._log.close()
        # A survivor may hold the pipes open; the transport must not wait for it.
        transport = getattr(self._process, "_transport", None)
        if transport is not None:
            transport.close()

    def _let_go(self) -> None:
        """Tell the watcher to end all that is left."""
        lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)

    async def _exits(self, seconds: float) -> bool:
        """Whether it ends within the time. asyncio's own wait would also wait for whoever holds its pipes."""
        until = time.monotonic() + seconds
        while self._process.returncode is None:
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.01)
        return True


async def start(
    server: str,
    command: str,
    args: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: Path | None,
    log: ServerLog,
) -> Child:
    """Start a server. Raises NotStarted with what to do about it."""
    program = _found(server, command, environment, cwd)
    hold, lifeline = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _WATCHED, "toolfold", str(hold), secrets.token_hex(12), str(SERVER_MARK_KB)),
            *(program, *args),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            cwd=cwd,
            pass_fds=[hold],
            start_new_session=True,
            limit=1 << 20,
        )
    except (OSError, ValueError) as error:
        os.close(lifeline)
        raise NotStarted(server, f"could not be started: {error}.", advice=_LOOK) from None
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        os.close(hold)
    return Child(process, lifeline, log)


_LOOK = "Look at its command, its arguments and its folder in the configuration."


def _found(server: str, command: str, environment: Mapping[str, str], cwd: Path | None) -> str:
    if cwd is not None and not cwd.is_dir():
        raise NotStarted(server, f"should start in {cwd}, and there is no such folder.", advice=_LOOK)
    given = os.path.expanduser(command)  # noqa: PTH111 - the name of a program is no path yet
    program = shutil.which(given, path=environment.get("PATH", os.defpath))
    if program is None and cwd is not None and (cwd / given).is_file():
        program = str(cwd / given)
    if program is None:
        advice = "Install it, give its full path, or put its folder on the PATH of the server's `env`."
        raise NotStarted(server, f"needs the program {command!r}, which is not there.", advice=advice)
    return program


def _in_words(code: int | None) -> str:
    if code is None:
        return "its process still runs"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"


def is_unread(stream: asyncio.StreamWriter) -> bool:
    """Whether some of what was written lies unread. Where that cannot be known, it does not."""
    if sys.platform != "linux":
        return False
    import fcntl
    import termios

    if (end := stream.get_extra_info("pipe")) is None:  # not every loop tells
        return False
    try:
        pipe = end.fileno()
        is_socket = stat.S_ISSOCK(os.fstat(pipe).st_mode)
        return any(fcntl.ioctl(pipe, termios.TIOCOUTQ if is_socket else termios.FIONREAD, bytes(4)))
    except (OSError, ValueError):  # it is closed
        return False


def _held(stream: T | None) -> T:
    assert stream is not None  # noqa: S101 - all three were asked for
    return stream


class ServerLog:
    """What a server writes beside its messages: kept on disk without secrets, never more than two files."""

    def __init__(self, file: Path, redact: Redaction) -> None:
        self._file, self.redact = file, redact
        self._words: deque[str] = deque(maxlen=_LAST_WORDS)
        self._descriptor = -1
        self._size = 0
        self._second = self._lines = 0

    async def follow(self, stream: asyncio.StreamReader) -> None:
        """Keep what the stream says, until it ends."""
        part = b""
        while chunk := await stream.read(1 << 16):
            *lines, part = (part + chunk).split(b"\n")
            for line in lines:
                self._hear(line)
            part = part[:LONGEST_LINE]  # an endless line is known by its start
            await asyncio.sleep(0)  # whoever talks without end must not keep the loop for itself
        self._hear(part)

    def note(self, text: str) -> None:
        """Keep one line. A log that cannot be written is no reason to fail a call."""
        self._hear(text.encode("utf-8", "replace"))

    def _hear(self, line: bytes) -> None:
        if line.strip() and not self._is_too_much():
            self._keep(self.redact(line[:LONGEST_LINE].decode("utf-8", "replace").rstrip()))

    def _keep(self, said: str) -> None:
        self._words.append(said)
        with contextlib.suppress(OSError):
            self._write(said + "\n")

    def _is_too_much(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            if self._lines > MOST_LINES:
                self._keep(f"({self._lines - MOST_LINES} more lines within a second were left out)")
            self._second, self._lines = second, 0
        self._lines += 1
        return self._lines > MOST_LINES

    def last_words(self, most: int = 400) -> str:
        """The end of what it said."""
        return " · ".join(self._words)[-most:]

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _write(self, text: str) -> None:
        if self._descriptor < 0:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            self._descriptor = os.open(self._file, flags, 0o600)
            self._size = os.fstat(self._descriptor).st_size
        written = text.encode("utf-8", "replace")
        if self._size + len(written) > LARGEST_LOG:
            self.close()
            self._file.replace(self._file.with_suffix(".log.1"))
            self._write(text)
            return
        os.write(self._descriptor, written)
        self._size += len(written)
