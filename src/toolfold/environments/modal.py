"""A sandbox at Modal, through its own SDK.

One that is kept is found again by its name, with all that was installed in it and all that runs in it, until
nobody has used it for a while or its time is over. One that is not goes with its client or, where that was
killed, soon after. Credentials and the server's address are the SDK's own business.

The SDK can neither change the size of a terminal nor close what a killed client left open: the first is done
by a program in the sandbox, the second by the guard, which goes after some silence.
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

from toolfold.environments.backend import Backend, Channel, Readiness, Size
from toolfold.environments.remote import likeness
from toolfold.environments.within import heard, within
from toolfold.errors import EnvironmentFailed

if TYPE_CHECKING:
    import modal

PROBE_SECONDS = 5.0
FIND_SECONDS = 30.0
CREATE_SECONDS = 900.0
START_SECONDS = 60.0
CLOSE_SECONDS = 20.0
LAST_WORDS_SECONDS = 1.0
LEASE_SECONDS = 60
LONGEST_ARGUMENTS = 60_000  # the SDK takes 64 KiB
_PIECE = 1 << 18
_COMPLAINT = 4_000

_INSTALL = "Install it: pip install 'toolfold[modal]'."
_TOKEN = "Run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET."  # noqa: S105

_LONG = 'text=$(cat "$0") && rm -f "$0" && eval "$text"'
# The terminal is found by what its program carries in its environment. $0 the mark · $1 rows · $2 columns
_RESIZE = """for each in /proc/[0-9]*; do
  case $({ tr '\\0' '\\n' <"$each/environ"; } 2>/dev/null) in *"$0"*) ;; *) continue ;; esac
  case $(readlink "$each/fd/0") in /dev/pts/*) stty rows "$1" cols "$2" <"$each/fd/0" && exit ;; esac
done"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModalSandbox:
    """How a sandbox is to be."""

    image: str = ""
    """The name of an image in a registry; empty for the SDK's own Debian with Python."""
    home: str = "/workspace"
    """Where tasks begin."""
    notes: str = "/tmp/.toolfold"  # noqa: S108  (of the sandbox; nobody else is in it)
    """Where our notes are kept."""
    network: bool = False
    cpus: float = 1.0
    """How many processors it may use at most."""
    memory: int = 2_048
    """How many MiB it may use at most."""
    seconds: int = 86_400
    """How long it lives at most."""
    idle_seconds: int = 3_600
    """After how long without a client it goes."""

    def place(self, key: str) -> str:
        """The name of a sandbox like this one, for whoever uses this key."""
        return likeness([key, asdict(self)])


class Modal(Backend):
    """Commands run in one sandbox."""

    name = "modal"
    apart = True
    shared: Sequence[tuple[str, str]] = ()
    advice = "The next command finds the sandbox again, or has another one where it has ended with its files."

    def __init__(
        self,
        sandbox: ModalSandbox,
        *,
        app: str = "toolfold",
        key: str = "",
        kept: bool = True,
        lease: int = LEASE_SECONDS,
    ) -> None:
        """A kept sandbox is shared by all who use its key within the app and want the same."""
        self.lasting, self.lease = kept, lease
        self._wanted, self._app = sandbox, app
        self._name = f"toolfold-{sandbox.place(key if kept else secrets.token_hex(8))}"
        self._sandbox: modal.Sandbox | None = None

    @property
    def folder(self) -> str:
        return self._wanted.notes

    @property
    def home(self) -> str:
        return self._wanted.home

    async def check(self) -> Readiness:
        if not importlib.util.find_spec("modal"):
            return Readiness(False, "the package `modal` is not installed", _INSTALL)
        try:
            # Beside the loop: it takes a while, and meanwhile the clocks of the other places run.
            await asyncio.to_thread(importlib.import_module, "modal")
            await within(PROBE_SECONDS, _greeted())
        except ImportError as error:
            return Readiness(False, f"the package `modal` cannot be imported: {_said(error)}", _INSTALL)
        except TimeoutError:
            return Readiness(False, "Modal does not answer", "Is the network there?")
        except Exception as error:
            return Readiness(False, _said(error), _why(error))
        return Readiness(True)

    async def open(self) -> None:
        if not importlib.util.find_spec("modal"):
            raise EnvironmentFailed("The package `modal` is not installed.", advice=_INSTALL)
        try:
            self._sandbox = await self._found() or await within(CREATE_SECONDS, self._created())
        except Exception as error:
            raise EnvironmentFailed(
                f"Modal has no sandbox for us: {_said(error)}.", advice=_why(error)
            ) from None

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], pty: Size | None) -> Channel:
        try:
            program = await within(START_SECONDS, self._started(argv, env, terminal=pty is not None))
        except Exception as error:
            raise EnvironmentFailed(
                f"modal cannot start a program: {_said(error)}.", advice=self.advice
            ) from None
        return _Program(self, program, env, terminal=pty is not None)

    async def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is None:
            return
        with contextlib.suppress(Exception):  # it may be gone already, or out of reach
            await within(CLOSE_SECONDS, self._left(sandbox))

    async def remove(self) -> None:
        """End the sandbox, with all that is in it."""
        with contextlib.suppress(Exception):
            if sandbox := await self._found():
                await within(CLOSE_SECONDS, sandbox.terminate.aio())

    async def resize(self, env: Mapping[str, str], size: Size) -> None:
        """Change the size of the terminal of a program that was started with these variables."""
        mark = " ".join(f"{name}={value}" for name, value in env.items())
        words = ("sh", "-c", _RESIZE, mark, str(size.rows), str(size.columns))
        with contextlib.suppress(Exception):  # it has ended
            await within(START_SECONDS, self._run(words))

    async def _run(self, words: Sequence[str]) -> None:
        await (await self._started(words, {}, terminal=False)).wait.aio()

    async def _left(self, sandbox: modal.Sandbox) -> None:
        if not self.lasting:
            await sandbox.terminate.aio()
        await sandbox.detach.aio()

    async def _found(self) -> modal.Sandbox | None:
        import modal

        try:
            return await within(FIND_SECONDS, self._named())
        except modal.exception.NotFoundError:
            return None

    async def _named(self) -> modal.Sandbox:
        import modal

        return await modal.Sandbox.from_name.aio(self._app, self._name, client=await _client())

    async def _created(self) -> modal.Sandbox:
        import modal

        wanted = self._wanted
        image = modal.Image.from_registry(wanted.image) if wanted.image else modal.Image.debian_slim()
        client = await _client()
        lookup = modal.App.lookup.aio(self._app, create_if_missing=True, client=client)
        try:
            sandbox = await modal.Sandbox.create.aio(
                *("sleep", "infinity"),
                app=await within(FIND_SECONDS, lookup),
                name=self._name,
                tags={"made-by": "toolfold", "home": wanted.home},
                image=image,
                timeout=wanted.seconds,
                idle_timeout=wanted.idle_seconds if self.lasting else LEASE_SECONDS,
                cpu=(min(wanted.cpus, 0.125), wanted.cpus),
                memory=(min(wanted.memory, 128), wanted.memory),
                block_network=not wanted.network,
                client=client,
            )
        except modal.exception.AlreadyExistsError:  # another client was faster
            found = await self._found()
            if found is None:
                raise
            return found
        await (await sandbox.exec.aio("mkdir", "-p", wanted.home)).wait.aio()
        return sandbox

    async def _started(
        self, argv: Sequence[str], env: Mapping[str, str], *, terminal: bool
    ) -> modal.container_process.ContainerProcess[bytes]:
        if self._sandbox is None:
            raise EnvironmentFailed("modal is closed.", advice="Open it again.")
        if sum(map(len, map(str.encode, argv))) > LONGEST_ARGUMENTS:
            argv = await self._shortened(self._sandbox, argv)
        variables: dict[str, str | None] = {**env, **({"TERM": "xterm-256color"} if terminal else {})}
        return await self._sandbox.exec.aio(*argv, env=variables, pty=terminal, text=False)

    async def _shortened(self, sandbox: modal.Sandbox, argv: Sequence[str]) -> Sequence[str]:
        """The same program, from a file that holds its arguments."""
        note = f"{self.folder}/arguments.{secrets.token_hex(8)}"
        store = await sandbox.exec.aio("sh", "-c", 'umask 077; cat >"$0"', note, text=False)
        await _give(store, f"exec {shlex.join(argv)}".encode(), end=True)
        await store.wait.aio()
        return ("sh", "-c", _LONG, note)


class _Program:
    """A program in the sandbox, as a Channel."""

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
        self._complaint = b""
        self._lost: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._giving = asyncio.Lock()
        self._work: set[asyncio.Future[Any]] = set()
        self._listening = self._working(self._listen())

    async def read(self) -> bytes:
        try:
            return await self._output.__anext__()
        except StopAsyncIteration:
            return b""
        except Exception as error:
            self._lose(error)
            return b""

    async def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left and await self._given(bytes(left[:_PIECE])):
            left = left[_PIECE:]

    async def close_input(self) -> None:
        if not self._terminal:
            await self._given(b"", end=True)

    async def _given(self, data: bytes, *, end: bool = False) -> bool:
        """False where nobody reads it any more. Whoever gives it may be cancelled meanwhile, it goes on."""
        giving = self._working(self._give(data, end=end))
        await asyncio.wait({giving})
        return not giving.cancelled() and giving.exception() is None

    async def _give(self, data: bytes, *, end: bool) -> None:
        async with self._giving:  # what is added while the SDK sends would be lost, or sent twice
            await _give(self._program, data, end=end)

    async def wait(self) -> int:
        ending = self._working(self._program.wait.aio())
        await asyncio.wait({ending, self._lost}, return_when=asyncio.FIRST_COMPLETED)
        if self._lost.done():  # the SDK would wait for ever for a machine that is gone
            ending.cancel()
            return self._lost.result()
        try:
            code = int(ending.result())
        except Exception as error:
            self._lose(error)
            return self._lost.result()
        await asyncio.wait({self._listening}, timeout=LAST_WORDS_SECONDS)
        return code

    def resize(self, size: Size) -> None:
        if self._terminal:
            self._working(self._backend.resize(self._env, size))

    def complaint(self) -> str:
        lines = self._complaint.decode(errors="replace").splitlines()
        return "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip()))

    async def close(self) -> None:
        for work in (*self._work, self._lost):
            work.cancel()
        if self._work:
            await asyncio.wait(self._work, timeout=LAST_WORDS_SECONDS)
        with contextlib.suppress(Exception):
            await within(LAST_WORDS_SECONDS, self._program.stdout.aclose.aio())

    async def _listen(self) -> None:
        with contextlib.suppress(Exception):
            async for heard in self._program.stderr:
                self._complaint = (self._complaint + heard)[-_COMPLAINT:]

    def _lose(self, error: Exception) -> None:
        self._complaint = (self._complaint + b"\n" + _said(error).encode())[-_COMPLAINT:]
        if not self._lost.done():
            self._lost.set_result(255)

    def _working(self, work: Awaitable[Any]) -> asyncio.Future[Any]:
        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        task.add_done_callback(heard)
        return task


async def _client() -> modal.Client:
    import modal

    return await modal.Client.from_env.aio()


async def _greeted() -> None:
    await (await _client()).hello.aio()


async def _give(
    program: modal.container_process.ContainerProcess[bytes], data: bytes, *, end: bool = False
) -> None:
    if data:
        program.stdin.write(data)
    if end:
        program.stdin.write_eof()
    await program.stdin.drain.aio()


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return (str(error) or type(error).__name__).strip().rstrip(".")


def _why(error: Exception) -> str:
    """What to do about it."""
    import modal

    if isinstance(error, modal.exception.AuthError):
        return _TOKEN
    if isinstance(error, ConnectionError | OSError | modal.exception.ConnectionError):
        return "Is the network there? The sandbox, if there is one, runs on."
    return "`modal app list` and Modal's dashboard may tell more."
