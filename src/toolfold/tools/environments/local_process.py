"""Run a program on this machine from the event loop: a command, or a client such as docker or ssh.

Its output is read only as fast as the caller takes it, so that any amount passes in little memory. Its exit
is detected even if processes that it left running hold its output open.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from toolfold.core.errors import EnvironmentFailed
from toolfold.tools.environments.backend import TerminalSize

KILL_TIMEOUT_S = 10.0
"""How long to wait for a killed program: one blocked by a broken disk does not exit."""
_CHUNK_BYTES = 1 << 18
_MAX_ERROR_BYTES = 4_000

_Add = Callable[..., Any]
_Remove = Callable[[int], Any]


def terminal_wrapper(path: str) -> Sequence[str]:
    """Return the command prefix that gives a program control of the terminal it runs on."""
    return ("/bin/sh", "-c", 'tty=$0; exec "$@" <>"$tty" >&0 2>&0', path)


class LocalProcess:
    """Running program on this machine, with its streams and exit code. Implements `Channel`."""

    def __init__(
        self, process: subprocess.Popen[bytes], output_fd: int, input_fd: int, *, terminal: bool
    ) -> None:
        self._process, self._output_fd, self._input_fd, self._terminal = (
            process,
            output_fd,
            input_fd,
            terminal,
        )
        self._error = b""
        self._waiters: set[asyncio.Future[None]] = set()
        self._error_fd = process.stderr.fileno() if process.stderr else -1
        for descriptor in {output_fd, input_fd, self._error_fd} - {-1}:
            os.set_blocking(descriptor, False)
        if self._error_fd >= 0:
            asyncio.get_running_loop().add_reader(self._error_fd, self._read_errors)
        self._exit_task = asyncio.ensure_future(_wait_for_exit(process))

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        pty: TerminalSize | None = None,
        controls_terminal: bool = True,
        cwd: str | None = None,
    ) -> Self:
        """Start a program as the leader of a new process session, with pipes or on a terminal.

        Without `controls_terminal`, Ctrl-C does not reach it: a program inside of it will control the
        terminal.
        """
        try:
            if pty is None:
                return cls._start_on_pipes(argv, env, cwd)
            return cls._start_on_terminal(argv, env, pty, cwd, controls_terminal=controls_terminal)
        except OSError as error:
            raise EnvironmentFailed(
                f"Cannot start {argv[0]!r}: {error.strerror}.", advice="Check that it is installed."
            ) from None

    @classmethod
    def _start_on_pipes(cls, argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> Self:
        pipe = subprocess.PIPE
        process = subprocess.Popen(  # noqa: S603  (the purpose of this class)
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
        with contextlib.suppress(OSError, AttributeError):  # a larger pipe is only faster
            import fcntl

            fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)
        output_fd, input_fd = os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno())
        process.stdin.close()
        process.stdout.close()
        return cls(process, output_fd, input_fd, terminal=False)

    @classmethod
    def _start_on_terminal(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        pty: TerminalSize,
        cwd: str | None,
        *,
        controls_terminal: bool,
    ) -> Self:
        master, slave = os.openpty()
        try:
            _set_terminal_size(master, pty)
            process = subprocess.Popen(  # noqa: S603
                [*(terminal_wrapper(os.ttyname(slave)) if controls_terminal else ()), *argv],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env={"TERM": "xterm-256color", **env},
                cwd=cwd,
                start_new_session=True,
            )
        except BaseException:
            os.close(master)
            raise
        finally:
            os.close(slave)
        return cls(process, master, master, terminal=True)

    async def read(self) -> bytes:
        loop = asyncio.get_running_loop()
        while self._output_fd >= 0:
            try:
                return os.read(self._output_fd, _CHUNK_BYTES)
            except BlockingIOError:
                await self._wait_ready(self._output_fd, loop.add_reader, loop.remove_reader)
            except OSError as error:
                if error.errno == errno.EIO:  # all writers have closed the terminal
                    return b""
                raise
        return b""

    async def write(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        remaining = memoryview(data)
        while remaining and self._input_fd >= 0:
            try:
                remaining = remaining[os.write(self._input_fd, remaining[:_CHUNK_BYTES]) :]
            except BlockingIOError:
                await self._wait_ready(self._input_fd, loop.add_writer, loop.remove_writer)
            except OSError:
                return

    async def close_input(self) -> None:
        if not self._terminal and self._input_fd >= 0:
            os.close(self._input_fd)
            self._input_fd = -1

    async def wait(self) -> int:
        return await asyncio.shield(self._exit_task)

    def resize(self, size: TerminalSize) -> None:
        if self._terminal and self._output_fd >= 0:
            _set_terminal_size(self._output_fd, size)

    def error_text(self) -> str:
        if self._error_fd >= 0:
            self._read_errors()
        lines = self._error.decode(errors="replace").splitlines()
        return "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip()))

    async def close(self) -> None:
        """Kill the program itself if it still runs, but not the processes that it started."""
        self._close_descriptors()
        self._close_errors()
        if not self._exit_task.done():
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
        await asyncio.wait({self._exit_task}, timeout=KILL_TIMEOUT_S)

    def _close_descriptors(self) -> None:
        loop = asyncio.get_running_loop()
        for descriptor in {self._output_fd, self._input_fd} - {-1}:
            loop.remove_reader(descriptor)
            loop.remove_writer(descriptor)
            os.close(descriptor)
        self._output_fd = self._input_fd = -1
        for ready in self._waiters:
            _resolve_future(ready)

    async def _wait_ready(self, descriptor: int, add: _Add, remove: _Remove) -> None:
        """Wait until a file descriptor is ready, or until the `close` method closes it."""
        ready = _watch_descriptor(descriptor, add)
        self._waiters.add(ready)
        try:
            await ready
        finally:
            self._waiters.discard(ready)
            if descriptor in (self._output_fd, self._input_fd):
                remove(descriptor)

    def _read_errors(self) -> None:
        try:
            data = os.read(self._error_fd, _MAX_ERROR_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close_errors()
        self._error = (self._error + data)[-_MAX_ERROR_BYTES:]

    def _close_errors(self) -> None:
        if self._error_fd >= 0 and self._process.stderr:
            asyncio.get_running_loop().remove_reader(self._error_fd)
            self._process.stderr.close()
            self._error_fd = -1


def _watch_descriptor(descriptor: int, add: _Add) -> asyncio.Future[None]:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    add(descriptor, _resolve_future, ready)
    return ready


def _resolve_future(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _wait_for_exit(process: subprocess.Popen[bytes]) -> int:
    """Wait until a process exits, even if other processes keep its output open."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, or an old kernel
        code = await asyncio.to_thread(process.wait)
    else:
        loop = asyncio.get_running_loop()
        try:
            await _watch_descriptor(descriptor, loop.add_reader)
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        code = process.wait()
    return code if code >= 0 else 128 - code


def _set_terminal_size(descriptor: int, size: TerminalSize) -> None:
    import fcntl
    import termios

    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))
