"""A sandbox at Daytona, through its own SDK.

One that is kept is found again by its name; it stops when nobody has used it for a while, and the next
client starts it again with its files. One that is not goes with its client or, where that was killed, soon
after. Its programs are reached through terminals, the only streams of bytes that the SDK has.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from toolfold.environments.backend import Backend, Channel, Readiness, Size
from toolfold.environments.remote import likeness
from toolfold.environments.typed import Typed
from toolfold.environments.within import within
from toolfold.errors import EnvironmentFailed

if TYPE_CHECKING:
    import daytona

PROBE_SECONDS = 5.0
FIND_SECONDS = 30.0
CREATE_SECONDS = 900.0
USE_SECONDS = 60.0
CLOSE_SECONDS = 20.0
ACTIVE_SECONDS = 120.0
"""How often the sandbox is told that it is in use."""
LEASE_SECONDS = 60
IDLE_MINUTES_WITHOUT_OWNER = 5

_INSTALL = "Install it: pip install 'toolfold[daytona]'."
_KEY = "Set DAYTONA_API_KEY; Daytona's dashboard makes one."
# A program that is reached through a terminal has a folder with its own number in its name.
_TIDY = (
    "mkdir -p {home} {notes}; "
    'for each in {notes}/pipes.*; do [ -e "/proc/${{each##*.}}" ] || rm -rf "$each"; done'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaytonaSandbox:
    """How a sandbox is to be."""

    image: str = "debian:12"
    """The name of an image in a registry."""
    snapshot: str = ""
    """A snapshot to begin from instead; how much it may use was said when it was made."""
    home: str = ""
    """Where tasks begin; empty for the image's own working directory."""
    notes: str = "/tmp/.toolfold"  # noqa: S108  (of the sandbox; nobody else is in it)
    """Where our notes are kept."""
    network: bool = False
    cpus: int = 1
    memory: int = 2
    """GiB."""
    disk: int = 5
    """GiB."""
    idle_minutes: int = 60
    """After how long without a client it stops."""
    kept_minutes: int = 7 * 24 * 60
    """How long its files are kept after that."""

    def place(self, key: str) -> str:
        """The name of a sandbox like this one, for whoever uses this key."""
        return likeness([key, asdict(self)])


class Daytona(Backend):
    """Commands run in one sandbox."""

    name = "daytona"
    apart = True
    shared: Sequence[tuple[str, str]] = ()
    advice = "The next command starts it again, or another one where it was deleted."

    def __init__(
        self,
        sandbox: DaytonaSandbox,
        *,
        environment: Mapping[str, str],
        key: str = "",
        kept: bool = True,
        lease: int = LEASE_SECONDS,
    ) -> None:
        """A kept sandbox is shared by all who use its key and want the same."""
        self.lasting, self.lease = kept, lease
        self._wanted, self._environment = sandbox, environment
        self._name = f"toolfold-{sandbox.place(key if kept else secrets.token_hex(8))}"
        self._home = sandbox.home
        self._client: daytona.AsyncDaytona | None = None
        self._sandbox: daytona.AsyncSandbox | None = None
        self._staying: asyncio.Task[None] | None = None

    @property
    def folder(self) -> str:
        return self._wanted.notes

    @property
    def home(self) -> str:
        return self._home

    async def check(self) -> Readiness:
        if not importlib.util.find_spec("daytona"):
            return Readiness(False, "the package `daytona` is not installed", _INSTALL)
        client = None
        try:
            # Beside the loop: it takes a while, and meanwhile the clocks of the other places run.
            await asyncio.to_thread(importlib.import_module, "daytona")
            client = self._connected()
            await within(PROBE_SECONDS, self._found(client))
        except ImportError as error:
            return Readiness(False, f"the package `daytona` cannot be imported: {_said(error)}", _INSTALL)
        except TimeoutError:
            return Readiness(False, "Daytona does not answer", "Is the network there?")
        except Exception as error:
            return Readiness(False, _said(error), _why(error))
        finally:
            if client:
                await _closed(client)
        return Readiness(True)

    async def open(self) -> None:
        if not importlib.util.find_spec("daytona"):
            raise EnvironmentFailed("The package `daytona` is not installed.", advice=_INSTALL)
        try:
            self._client = self._client or self._connected()
            self._sandbox = await self._usable(self._client)
        except Exception as error:
            problem = f"Daytona has no sandbox for us: {_said(error)}."
            raise EnvironmentFailed(problem, advice=_why(error)) from None
        if self._staying is None or self._staying.done():
            self._staying = asyncio.create_task(self._stay())

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], pty: Size | None) -> Channel:
        if self._sandbox is None:
            raise EnvironmentFailed("daytona is closed.", advice="Open it again.")
        typed = Typed(terminal=pty is not None, lease=self.lease)
        try:
            line = await within(USE_SECONDS, _Line.open(self._sandbox, typed, env, pty or Size()))
            await typed.begin(line, self.folder, argv)
        except Exception as error:
            problem = f"daytona cannot start a program: {_said(error)}."
            raise EnvironmentFailed(problem, advice=self.advice) from None
        return typed

    async def close(self) -> None:
        if self._staying:
            self._staying.cancel()
        client, self._client = self._client, None
        sandbox, self._sandbox = self._sandbox, None
        with contextlib.suppress(Exception):  # it may be gone already, or out of reach
            if sandbox and not self.lasting:
                await within(CLOSE_SECONDS, sandbox.delete())
        if client:
            await _closed(client)

    async def remove(self) -> None:
        """Delete the sandbox, with all that is in it."""
        client = self._connected()
        try:
            if sandbox := await self._found(client):
                await within(CLOSE_SECONDS, sandbox.delete())
        finally:
            await _closed(client)

    def _connected(self) -> daytona.AsyncDaytona:
        import daytona

        known = self._environment
        return daytona.AsyncDaytona(
            daytona.DaytonaConfig(
                api_key=known.get("DAYTONA_API_KEY"),
                jwt_token=known.get("DAYTONA_JWT_TOKEN"),
                organization_id=known.get("DAYTONA_ORGANIZATION_ID"),
                api_url=known.get("DAYTONA_API_URL"),
                target=known.get("DAYTONA_TARGET"),
            )
        )

    async def _usable(self, client: daytona.AsyncDaytona) -> daytona.AsyncSandbox:
        import daytona

        sandbox = await self._found(client) or await self._created(client)
        if sandbox.state != daytona.SandboxState.STARTED:
            await within(CREATE_SECONDS, self._started(sandbox))
        self._home = self._wanted.home or await within(USE_SECONDS, sandbox.get_work_dir())
        folders = {"home": shlex.quote(self._home), "notes": shlex.quote(self.folder)}
        await within(USE_SECONDS, sandbox.process.exec(_TIDY.format(**folders)))
        return sandbox

    async def _created(self, client: daytona.AsyncDaytona) -> daytona.AsyncSandbox:
        import daytona

        try:
            return await within(CREATE_SECONDS, client.create(self._params(), timeout=CREATE_SECONDS))
        except daytona.DaytonaConflictError:  # another client was faster
            return await within(FIND_SECONDS, client.get(self._name))

    async def _found(self, client: daytona.AsyncDaytona) -> daytona.AsyncSandbox | None:
        import daytona

        try:
            sandbox = await within(FIND_SECONDS, client.get(self._name))
        except daytona.DaytonaNotFoundError:
            return None
        gone = (daytona.SandboxState.DESTROYED, daytona.SandboxState.DESTROYING)
        return None if sandbox.state in gone else sandbox

    async def _started(self, sandbox: daytona.AsyncSandbox) -> None:
        import daytona

        if sandbox.state in (daytona.SandboxState.STOPPED, daytona.SandboxState.ARCHIVED):
            await sandbox.start(timeout=CREATE_SECONDS)
        else:
            await sandbox.wait_for_sandbox_start(timeout=CREATE_SECONDS)

    def _params(self) -> daytona.CreateSandboxFromImageParams | daytona.CreateSandboxFromSnapshotParams:
        import daytona

        wanted = self._wanted
        common = {
            "name": self._name,
            "labels": {"made-by": "toolfold", "home": wanted.home},
            "network_block_all": not wanted.network,
            "auto_stop_interval": wanted.idle_minutes if self.lasting else IDLE_MINUTES_WITHOUT_OWNER,
            "auto_delete_interval": wanted.kept_minutes if self.lasting else 0,
        }
        if wanted.snapshot:
            return daytona.CreateSandboxFromSnapshotParams(snapshot=wanted.snapshot, **common)
        limits = daytona.Resources(cpu=wanted.cpus, memory=wanted.memory, disk=wanted.disk)
        return daytona.CreateSandboxFromImageParams(image=wanted.image, resources=limits, **common)

    async def _stay(self) -> None:
        """What happens in a terminal may not count as use."""
        while self._sandbox:
            await asyncio.sleep(ACTIVE_SECONDS)
            with contextlib.suppress(Exception):
                await within(USE_SECONDS, self._sandbox.refresh_activity())


class _Line:
    """A terminal in the sandbox."""

    def __init__(self, handle: daytona.handle.async_pty_handle.AsyncPtyHandle) -> None:
        self._handle = handle

    @classmethod
    async def open(
        cls, sandbox: daytona.AsyncSandbox, typed: Typed, env: Mapping[str, str], size: Size
    ) -> _Line:
        import daytona

        handle = await sandbox.process.create_pty_session(
            id=f"toolfold-{secrets.token_hex(8)}",
            on_data=typed.arrived,
            cwd="/",
            envs=dict(env),
            pty_size=daytona.PtySize(rows=size.rows, cols=size.columns),
        )
        return cls(handle)

    async def send(self, data: bytes) -> None:
        await self._handle.send_input(data)

    async def closed(self) -> tuple[int | None, str]:
        result = await self._handle.wait()
        return result.exit_code, result.error or ""

    async def resize(self, size: Size) -> None:
        import daytona

        await self._handle.resize(daytona.PtySize(rows=size.rows, cols=size.columns))

    async def hang_up(self) -> None:
        await self._handle.disconnect()


async def _closed(client: daytona.AsyncDaytona) -> None:
    with contextlib.suppress(Exception):
        await within(CLOSE_SECONDS, client.close())


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return (str(error) or type(error).__name__).strip().rstrip(".")


def _why(error: Exception) -> str:
    """What to do about it."""
    import daytona

    if isinstance(error, daytona.DaytonaAuthenticationError | daytona.DaytonaForbiddenError):
        return _KEY
    if isinstance(error, OSError | daytona.DaytonaConnectionError):
        return "Is the network there? The sandbox, if there is one, is as it was."
    return "Daytona's dashboard may tell more."
