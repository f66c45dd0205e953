"""Shared parts of the fake clouds: sandboxes as directories, and programs that really run.

A program has the name of its sandbox in its environment, by which its descendants are found when the sandbox
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import secrets
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from toolfold.tools.environments import TerminalSize
from toolfold.tools.environments.local_process import terminal_wrapper

MARK = "FAKE_SANDBOX"
CHUNK_BYTES = 1 << 16


class Program:
    """Program in a sandbox. Each stream has one reader and is read only on demand."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], size: TerminalSize | None) -> None:
        self._terminal = size is not None
        self._out, self._err, self._in = -1, -1, -1
        theirs: tuple[int, int, int]
        if size:
            self._out, terminal = os.openpty()
            self._in, theirs = self._out, (terminal, terminal, terminal)
            _set_terminal_size(terminal, size)
            argv = [*terminal_wrapper(os.ttyname(terminal)), *argv]
        else:
            (stdin, self._in), (self._out, stdout), (self._err, stderr) = os.pipe(), os.pipe(), os.pipe()
            theirs = (stdin, stdout, stderr)
        self._process = subprocess.Popen(
            argv, stdin=theirs[0], stdout=theirs[1], stderr=theirs[2], env=dict(env), start_new_session=True
        )
        for descriptor in set(theirs):
            os.close(descriptor)
        self._ended = asyncio.ensure_future(_wait_for_exit(self._process))
        for descriptor in {self._out, self._err, self._in} - {-1}:
            os.set_blocking(descriptor, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def read(self, *, errors: bool = False) -> bytes:
        """Return the next bytes; empty at the end."""
        descriptor = self._err if errors else self._out
        while descriptor >= 0:
            try:
                return os.read(descriptor, CHUNK_BYTES)
            except BlockingIOError:
                await _wait_ready(descriptor, asyncio.get_running_loop().add_reader)
            except OSError as error:
                if error.errno == errno.EIO:
                    return b""
                raise
        return b""

    async def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left and self._in >= 0:
            try:
                left = left[os.write(self._in, left[:CHUNK_BYTES]) :]
            except BlockingIOError:
                await _wait_ready(self._in, asyncio.get_running_loop().add_writer)
            except OSError:
                return

    def close_input(self) -> None:
        if not self._terminal and self._in >= 0:
            os.close(self._in)
            self._in = -1

    def resize(self, size: TerminalSize) -> None:
        _set_terminal_size(self._out, size)

    async def wait(self) -> int:
        """Return the exit code of the program, or the negative number of the signal that ended it."""
        return await asyncio.shield(self._ended)


@dataclass
class Sandbox:
    """One sandbox with its programs."""

    identity: str
    name: str
    limits: Mapping[str, object]
    folder: Path
    programs: list[Program] = field(default_factory=list)

    def start(self, argv: Sequence[str], env: Mapping[str, str], size: TerminalSize | None) -> Program:
        given = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        own = {**given, "HOME": str(self.folder), MARK: self.identity, **env}
        program = Program(argv, own, size)
        self.programs.append(program)
        return program


class Sandboxes:
    """All sandboxes of one cloud; the limits of each are stored as a JSON file."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._running: dict[str, Sandbox] = {}

    def create(self, name: str, limits: Mapping[str, object]) -> str:
        identity = secrets.token_hex(8)
        home = self._folder / identity
        home.mkdir()
        (self._folder / f"{identity}.json").write_text(json.dumps({"name": name, **limits}))
        self._running[identity] = Sandbox(identity, name, limits, home)
        return identity

    def get(self, identity: str) -> Sandbox | None:
        return self._running.get(identity)

    def runs(self, identity: str) -> bool:
        return identity in self._running

    def named(self, name: str) -> str:
        """Return the ID of the sandbox with the given name; empty if there is none."""
        return next((each.identity for each in self._running.values() if each.name == name), "")

    def all(self) -> list[Sandbox]:
        return list(self._running.values())

    async def end(self, identity: str) -> None:
        if self._running.pop(identity, None) is None:
            return
        (self._folder / f"{identity}.json").unlink(missing_ok=True)
        while found := _find_processes(f"{MARK}={identity}"):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        for identity in list(self._running):
            await self.end(identity)


def _find_processes(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
    return found


async def _wait_ready(descriptor: int, add: Callable[..., object]) -> None:
    """Wait until a file descriptor is ready, using a duplicate of it.

    So a cancelled reader cannot remove the callback of a later one.
    """
    loop = asyncio.get_running_loop()
    copy = os.dup(descriptor)
    ready: asyncio.Future[None] = loop.create_future()
    add(copy, _resolve_future, ready)
    try:
        await ready
    finally:
        loop.remove_reader(copy)
        loop.remove_writer(copy)
        os.close(copy)


async def _wait_for_exit(process: subprocess.Popen[bytes]) -> int:
    descriptor = os.pidfd_open(process.pid)
    try:
        await _wait_ready(descriptor, asyncio.get_running_loop().add_reader)
    finally:
        os.close(descriptor)
    return process.wait()


def _resolve_future(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _set_terminal_size(descriptor: int, size: TerminalSize) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))
