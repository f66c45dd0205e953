"""A program on this machine, run beside the event loop: by itself, or as the client of another place.

Its output is read only as fast as somebody takes it, so that any amount passes in little memory. That it
has ended is known when it has, also where something it left behind still holds its output open.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from toolfold.environments.backend import Size
from toolfold.errors import EnvironmentFailed

KILL_SECONDS = 10.0
"""How long we wait for a program that was killed: one that waits for a broken disk stays."""
_PIECE = 1 << 18
_COMPLAINT = 4_000

_Add = Callable[..., Any]
_Remove = Callable[[int], Any]


def on_terminal(path: str) -> Sequence[str]:
    """What to put before a program so that it controls a terminal: the first one that its session opens."""
    return ("/bin/sh", "-c", 'tty=$0; exec "$@" <>"$tty" >&0 2>&0', path)


class Client:
    """A running program, as a Channel."""

    def __init__(self, process: subprocess.Popen[bytes], source: int, sink: int, *, terminal: bool) -> None:
        self._process, self._source, self._sink, self._terminal = process, source, sink, terminal
        self._complaint = b""
        self._waiting: set[asyncio.Future[None]] = set()
        self._errors = process.stderr.fileno() if process.stderr else -1
        for descriptor in {source, sink, self._errors} - {-1}:
            os.set_blocking(descriptor, False)
        if self._errors >= 0:
            asyncio.get_running_loop().add_reader(self._errors, self._listen)
        self._ended = asyncio.ensure_future(_ended(process))

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        pty: Size | None = None,
        controls: bool = True,
        cwd: str | None = None,
    ) -> Self:
        """Start it as the leader of a session of its own, on pipes or on a terminal.

        Where it does not control the terminal, Ctrl-C is not for it: something inside of it will take it.
        """
        try:
            if pty is None:
                return cls._on_pipes(argv, env, cwd)
            return cls._on_terminal(argv, env, pty, cwd, controls=controls)
        except OSError as error:
            raise EnvironmentFailed(
                f"{argv[0]!r} could not be started: {error.strerror}.", advice="Is it installed?"
            ) from None

    @classmethod
    def _on_pipes(cls, argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> Self:
        pipe = subprocess.PIPE
        process = subprocess.Popen(  # noqa: S603  (running programs is what this is for)
            argv,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=dict(env),
            cwd=cwd,
            bufsize=0,
            start_new_session=True,
        )
        assert process.stdin is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        with contextlib.suppress(OSError, AttributeError):  # a larger pipe is a courtesy
            fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, _PIECE)
        source, sink = os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno())
        process.stdin.close()
        process.stdout.close()
        return cls(process, source, sink, terminal=False)

    @classmethod
    def _on_terminal(
        cls, argv: Sequence[str], env: Mapping[str, str], pty: Size, cwd: str | None, *, controls: bool
    ) -> Self:
        ours, theirs = os.openpty()
        try:
            _resize(ours, pty)
            process = subprocess.Popen(  # noqa: S603
                [*(on_terminal(os.ttyname(theirs)) if controls else ()), *argv],
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env={"TERM": "xterm-256color", **env},
                cwd=cwd,
                start_new_session=True,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return cls(process, ours, ours, terminal=True)

    async def read(self) -> bytes:
        loop = asyncio.get_running_loop()
        while self._source >= 0:
            try:
                return os.read(self._source, _PIECE)
            except BlockingIOError:
                await self._until(self._source, loop.add_reader, loop.remove_reader)
            except OSError as error:
                if error.errno == errno.EIO:  # a terminal that nobody has open any more
                    return b""
                raise
        return b""

    async def write(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        left = memoryview(data)
        while left and self._sink >= 0:
            try:
                left = left[os.write(self._sink, left[:_PIECE]) :]
            except BlockingIOError:
                await self._until(self._sink, loop.add_writer, loop.remove_writer)
            except OSError:
                return

    async def close_input(self) -> None:
        if not self._terminal and self._sink >= 0:
            os.close(self._sink)
            self._sink = -1

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def resize(self, size: Size) -> None:
        if self._terminal and self._source >= 0:
            _resize(self._source, size)

    def complaint(self) -> str:
        if self._errors >= 0:
            self._listen()
        lines = self._complaint.decode(errors="replace").splitlines()
        return "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip()))

    async def close(self) -> None:
        """Ends the program itself, if it has not ended yet, and nothing that it started."""
        self._close_descriptors()
        self._deafen()
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
        await asyncio.wait({self._ended}, timeout=KILL_SECONDS)

    def _close_descriptors(self) -> None:
        loop = asyncio.get_running_loop()
        for descriptor in {self._source, self._sink} - {-1}:
            loop.remove_reader(descriptor)
            loop.remove_writer(descriptor)
            os.close(descriptor)
        self._source = self._sink = -1
        for ready in self._waiting:
            _settle(ready)

    async def _until(self, descriptor: int, add: _Add, remove: _Remove) -> None:
        """Wait until a descriptor can be used, or is closed by us."""
        ready = _watched(descriptor, add)
        self._waiting.add(ready)
        try:
            await ready
        finally:
            self._waiting.discard(ready)
            if descriptor in (self._source, self._sink):
                remove(descriptor)

    def _listen(self) -> None:
        try:
            heard = os.read(self._errors, _COMPLAINT)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        if not heard:
            self._deafen()
        self._complaint = (self._complaint + heard)[-_COMPLAINT:]

    def _deafen(self) -> None:
        if self._errors >= 0 and self._process.stderr:
            asyncio.get_running_loop().remove_reader(self._errors)
            self._process.stderr.close()
            self._errors = -1


def _watched(descriptor: int, add: _Add) -> asyncio.Future[None]:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    add(descriptor, _settle, ready)
    return ready


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _ended(process: subprocess.Popen[bytes]) -> int:
    """Not asyncio's own way, which waits for the output to be closed as well."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, or a kernel without it
        code = await asyncio.to_thread(process.wait)
    else:
        loop = asyncio.get_running_loop()
        try:
            await _watched(descriptor, loop.add_reader)
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        code = process.wait()
    return code if code >= 0 else 128 - code


def _resize(descriptor: int, size: Size) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))
