"""Backend for cloud sandboxes of Modal, through its SDK.

A persistent sandbox is found again by its name, with everything installed and running in it, until it has
been unused for a while or its lifetime ends. A temporary one ends with its client or, if that was killed,
soon after. Credentials and the server address are left to the SDK.

The SDK can neither resize a terminal nor close what a killed client left open: a program in the sandbox does
the first, the guard, which exits after a silent period, the second.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import secrets
import shlex
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from toolfold.core.errors import EnvironmentFailed
from toolfold.tools.environments.backend import Backend, Channel, Readiness, TerminalSize
from toolfold.tools.environments.remote_commands import fingerprint
from toolfold.tools.environments.timeouts import call_with_timeout, consume_exception

if TYPE_CHECKING:
    import modal

PROBE_TIMEOUT_S = 5.0
FIND_TIMEOUT_S = 30.0
CREATE_TIMEOUT_S = 900.0
START_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 20.0
DRAIN_TIMEOUT_S = 1.0
DEFAULT_LEASE_S = 60
MAX_ARGUMENTS_BYTES = 60_000  # the SDK allows 64 KiB
_CHUNK_BYTES = 1 << 18
_MAX_ERROR_BYTES = 4_000

_INSTALL_ADVICE = "Install it: pip install 'toolfold[modal]'."
_TOKEN_ADVICE = "Run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET."  # noqa: S105

_RUN_STORED = 'text=$(cat "$0") && rm -f "$0" && eval "$text"'
# Finds the terminal by a variable in its program's environment. $0 the variable · $1 rows · $2 columns
_RESIZE_SCRIPT = """for each in /proc/[0-9]*; do
  case $({ tr '\\0' '\\n' <"$each/environ"; } 2>/dev/null) in *"$0"*) ;; *) continue ;; esac
  case $(readlink "$each/fd/0") in /dev/pts/*) stty rows "$1" cols "$2" <"$each/fd/0" && exit ;; esac
done"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModalSandboxSpec:
    """Specification of a Modal sandbox."""

    image: str = ""
    """Image name in a registry; empty for the SDK's own Debian with Python."""
    home: str = "/workspace"
    """Directory in which tasks start."""
    notes: str = "/tmp/.toolfold"  # noqa: S108  (in the sandbox, which has no other users)
    """Path of Toolfold's state directory in the sandbox."""
    network: bool = False
    cpus: float = 1.0
    """Maximum number of processors."""
    memory: int = 2_048
    """Maximum memory in MiB."""
    seconds: int = 86_400
    """Maximum lifetime of the sandbox in seconds."""
    idle_seconds: int = 3_600
    """Time without a client after which the sandbox ends."""

    def identifier(self, key: str) -> str:
        """Return the identifier by which an existing sandbox with this specification and `key` is found."""
        return fingerprint([key, asdict(self)])


class Modal(Backend):
    """Backend that runs commands in one Modal sandbox."""

    name = "modal"
    has_own_files = True
    shared_directories: Sequence[tuple[str, str]] = ()
    advice = "The next command reconnects to the sandbox, or creates a new one if it has ended."

    def __init__(
        self,
        spec: ModalSandboxSpec,
        *,
        app: str = "toolfold",
        key: str = "",
        persistent: bool = True,
        lease_s: int = DEFAULT_LEASE_S,
    ) -> None:
        """Store the specification of the sandbox; nothing is started yet.

        A persistent sandbox is shared by all clients with the same app, key and specification.
        """
        self.is_persistent, self.lease_s = persistent, lease_s
        self._spec, self._app = spec, app
        self._name = f"toolfold-{spec.identifier(key if persistent else secrets.token_hex(8))}"
        self._sandbox: modal.Sandbox | None = None

    @property
    def state_dir(self) -> str:
        return self._spec.notes

    @property
    def home(self) -> str:
        return self._spec.home

    async def check(self) -> Readiness:
        if not importlib.util.find_spec("modal"):
            return Readiness(False, "the package `modal` is not installed", _INSTALL_ADVICE)
        try:
            # In a thread: the import is slow, and other backends are being checked with timeouts.
            await asyncio.to_thread(importlib.import_module, "modal")
            await call_with_timeout(PROBE_TIMEOUT_S, _ping())
        except ImportError as error:
            return Readiness(
                False, f"the package `modal` cannot be imported: {_error_text(error)}", _INSTALL_ADVICE
            )
        except TimeoutError:
            return Readiness(False, "Modal does not respond", "Check the network connection.")
        except Exception as error:
            return Readiness(False, _error_text(error), _advise(error))
        return Readiness(True)

    async def open(self) -> None:
        if not importlib.util.find_spec("modal"):
            raise EnvironmentFailed("The package `modal` is not installed.", advice=_INSTALL_ADVICE)
        try:
            self._sandbox = await self._find_sandbox() or await call_with_timeout(
                CREATE_TIMEOUT_S, self._create_sandbox()
            )
        except Exception as error:
            raise EnvironmentFailed(
                f"Cannot open a Modal sandbox: {_error_text(error)}.", advice=_advise(error)
            ) from None

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], pty: TerminalSize | None
    ) -> Channel:
        try:
            program = await call_with_timeout(
                START_TIMEOUT_S, self._start_program(argv, env, terminal=pty is not None)
            )
        except Exception as error:
            raise EnvironmentFailed(
                f"Cannot start a program in the Modal sandbox: {_error_text(error)}.", advice=self.advice
            ) from None
        return _ModalProgram(self, program, env, terminal=pty is not None)

    async def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is None:
            return
        with contextlib.suppress(Exception):  # it may be gone already, or unreachable
            await call_with_timeout(CLOSE_TIMEOUT_S, self._release_sandbox(sandbox))

    async def remove(self) -> None:
        """Terminate the Modal sandbox with all its contents."""
        with contextlib.suppress(Exception):
            if sandbox := await self._find_sandbox():
                await call_with_timeout(CLOSE_TIMEOUT_S, sandbox.terminate.aio())

    async def resize(self, env: Mapping[str, str], size: TerminalSize) -> None:
        """Resize the terminal of a running program, identified by its environment variables `env`."""
        mark = " ".join(f"{name}={value}" for name, value in env.items())
        argv = ("sh", "-c", _RESIZE_SCRIPT, mark, str(size.rows), str(size.columns))
        with contextlib.suppress(Exception):  # the program has ended
            await call_with_timeout(START_TIMEOUT_S, self._run_program(argv))

    async def _run_program(self, argv: Sequence[str]) -> None:
        await (await self._start_program(argv, {}, terminal=False)).wait.aio()

    async def _release_sandbox(self, sandbox: modal.Sandbox) -> None:
        if not self.is_persistent:
            await sandbox.terminate.aio()
        await sandbox.detach.aio()

    async def _find_sandbox(self) -> modal.Sandbox | None:
        import modal

        try:
            return await call_with_timeout(FIND_TIMEOUT_S, self._get_sandbox())
        except modal.exception.NotFoundError:
            return None

    async def _get_sandbox(self) -> modal.Sandbox:
        import modal

        return await modal.Sandbox.from_name.aio(self._app, self._name, client=await _open_client())

    async def _create_sandbox(self) -> modal.Sandbox:
        import modal

        spec = self._spec
        image = modal.Image.from_registry(spec.image) if spec.image else modal.Image.debian_slim()
        client = await _open_client()
        lookup = modal.App.lookup.aio(self._app, create_if_missing=True, client=client)
        try:
            sandbox = await modal.Sandbox.create.aio(
                *("sleep", "infinity"),
                app=await call_with_timeout(FIND_TIMEOUT_S, lookup),
                name=self._name,
                tags={"made-by": "toolfold", "home": spec.home},
                image=image,
                timeout=spec.seconds,
                idle_timeout=spec.idle_seconds if self.is_persistent else DEFAULT_LEASE_S,
                cpu=(min(spec.cpus, 0.125), spec.cpus),
                memory=(min(spec.memory, 128), spec.memory),
                block_network=not spec.network,
                client=client,
            )
        except modal.exception.AlreadyExistsError:  # another client created it first
            existing = await self._find_sandbox()
            if existing is None:
                raise
            return existing
        await (await sandbox.exec.aio("mkdir", "-p", spec.home)).wait.aio()
        return sandbox

    async def _start_program(
        self, argv: Sequence[str], env: Mapping[str, str], *, terminal: bool
    ) -> modal.container_process.ContainerProcess[bytes]:
        if self._sandbox is None:
            raise EnvironmentFailed("The Modal backend is closed.", advice="Open it again.")
        if sum(map(len, map(str.encode, argv))) > MAX_ARGUMENTS_BYTES:
            argv = await self._store_arguments(self._sandbox, argv)
        variables: dict[str, str | None] = {**env, **({"TERM": "xterm-256color"} if terminal else {})}
        return await self._sandbox.exec.aio(*argv, env=variables, pty=terminal, text=False)

    async def _store_arguments(self, sandbox: modal.Sandbox, argv: Sequence[str]) -> Sequence[str]:
        """Store a program's arguments in a file and return a short command that runs the program."""
        path = f"{self.state_dir}/arguments.{secrets.token_hex(8)}"
        store = await sandbox.exec.aio("sh", "-c", 'umask 077; cat >"$0"', path, text=False)
        await _write_stdin(store, f"exec {shlex.join(argv)}".encode(), end=True)
        await store.wait.aio()
        return ("sh", "-c", _RUN_STORED, path)


class _ModalProgram:
    """Channel to a program in a Modal sandbox."""

    def __init__(
        self,
        backend: Modal,
        program: modal.container_process.ContainerProcess[bytes],
        env: Mapping[str, str],
        *,
        terminal: bool,
    ) -> None:
        self._backend, self._program, self._env, self._terminal = backend, program, env, terminal
        self._output: AsyncIterator[bytes] = program.stdout.__aiter__()
        self._error = b""
        self._lost_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._stdin_lock = asyncio.Lock()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._error_reader = self._run_in_background(self._read_errors())

    async def read(self) -> bytes:
        try:
            return await self._output.__anext__()
        except StopAsyncIteration:
            return b""
        except Exception as error:
            self._mark_lost(error)
            return b""

    async def write(self, data: bytes) -> None:
        remaining = memoryview(data)
        while remaining and await self._send_input(bytes(remaining[:_CHUNK_BYTES])):
            remaining = remaining[_CHUNK_BYTES:]

    async def close_input(self) -> None:
        if not self._terminal:
            await self._send_input(b"", end=True)

    async def _send_input(self, data: bytes, *, end: bool = False) -> bool:
        """Write input to the program; return False if the program no longer reads it."""
        write_task = self._run_in_background(self._write_input(data, end=end))
        await asyncio.wait({write_task})
        return not write_task.cancelled() and write_task.exception() is None

    async def _write_input(self, data: bytes, *, end: bool) -> None:
        async with self._stdin_lock:  # data added while the SDK sends would be lost or sent twice
            await _write_stdin(self._program, data, end=end)

    async def wait(self) -> int:
        exit_task = self._run_in_background(self._program.wait.aio())
        await asyncio.wait({exit_task, self._lost_code}, return_when=asyncio.FIRST_COMPLETED)
        if self._lost_code.done():  # the SDK would wait forever for a lost machine
            exit_task.cancel()
            return self._lost_code.result()
        try:
            code = int(exit_task.result())
        except Exception as error:
            self._mark_lost(error)
            return self._lost_code.result()
        await asyncio.wait({self._error_reader}, timeout=DRAIN_TIMEOUT_S)
        return code

    def resize(self, size: TerminalSize) -> None:
        if self._terminal:
            self._run_in_background(self._backend.resize(self._env, size))

    def error_text(self) -> str:
        lines = self._error.decode(errors="replace").splitlines()
        return "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip()))

    async def close(self) -> None:
        for work in (*self._tasks, self._lost_code):
            work.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=DRAIN_TIMEOUT_S)
        with contextlib.suppress(Exception):
            await call_with_timeout(DRAIN_TIMEOUT_S, self._program.stdout.aclose.aio())

    async def _read_errors(self) -> None:
        with contextlib.suppress(Exception):
            async for data in self._program.stderr:
                self._error = (self._error + data)[-_MAX_ERROR_BYTES:]

    def _mark_lost(self, error: Exception) -> None:
        self._error = (self._error + b"\n" + _error_text(error).encode())[-_MAX_ERROR_BYTES:]
        if not self._lost_code.done():
            self._lost_code.set_result(255)

    def _run_in_background(self, work: Awaitable[Any]) -> asyncio.Future[Any]:
        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(consume_exception)
        return task


async def _open_client() -> modal.Client:
    import modal

    return await modal.Client.from_env.aio()


async def _ping() -> None:
    await (await _open_client()).hello.aio()


async def _write_stdin(
    program: modal.container_process.ContainerProcess[bytes], data: bytes, *, end: bool = False
) -> None:
    if data:
        program.stdin.write(data)
    if end:
        program.stdin.write_eof()
    await program.stdin.drain.aio()


def _error_text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no response in time"
    return (str(error) or type(error).__name__).strip().rstrip(".")


def _advise(error: Exception) -> str:
    """Return advice for an error of the Modal SDK."""
    import modal

    if isinstance(error, modal.exception.AuthError):
        return _TOKEN_ADVICE
    if isinstance(error, ConnectionError | OSError | modal.exception.ConnectionError):
        return "Check the network connection. An existing sandbox keeps running."
    return "`modal app list` or Modal's dashboard may show the cause."
