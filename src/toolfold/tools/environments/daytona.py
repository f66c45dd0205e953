"""Backend for cloud sandboxes of Daytona, through its SDK.

A persistent sandbox is found again by its name; it stops when it has been unused for a while, and the next
client starts it again with its files. A temporary one is deleted with its client or, if that was killed,
soon after. Its programs are reached through terminals, the only byte streams that the SDK offers.
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

from toolfold.core.errors import EnvironmentFailed
from toolfold.tools.environments.backend import Backend, Channel, Readiness, TerminalSize
from toolfold.tools.environments.pty_transport import PtyChannel
from toolfold.tools.environments.remote_commands import fingerprint
from toolfold.tools.environments.timeouts import call_with_timeout

if TYPE_CHECKING:
    import daytona

PROBE_TIMEOUT_S = 5.0
FIND_TIMEOUT_S = 30.0
CREATE_TIMEOUT_S = 900.0
CALL_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 20.0
REFRESH_INTERVAL_S = 120.0
"""How often the sandbox is marked as in use."""
DEFAULT_LEASE_S = 60
IDLE_MINUTES_WITHOUT_OWNER = 5

_INSTALL_ADVICE = "Install it: pip install 'toolfold[daytona]'."
_KEY_ADVICE = "Set DAYTONA_API_KEY to a key from Daytona's dashboard."
# The helper of each program has a directory named after its process ID; remove those of dead processes.
_CLEAN_UP_SCRIPT = (
    "mkdir -p {home} {notes}; "
    'for each in {notes}/pipes.*; do [ -e "/proc/${{each##*.}}" ] || rm -rf "$each"; done'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaytonaSandboxSpec:
    """Specification of a Daytona sandbox."""

    image: str = "debian:12"
    """Name of a container image in a registry."""
    snapshot: str = ""
    """Snapshot to start from instead of an image; its resource limits cannot be changed."""
    home: str = ""
    """Directory in which tasks start; empty for the image's working directory."""
    notes: str = "/tmp/.toolfold"  # noqa: S108  (in the sandbox, which has no other users)
    """Path of Toolfold's state directory in the sandbox."""
    network: bool = False
    cpus: int = 1
    memory: int = 2
    """Memory in GiB."""
    disk: int = 5
    """Disk space in GiB."""
    idle_minutes: int = 60
    """Time without a client after which the sandbox stops."""
    kept_minutes: int = 7 * 24 * 60
    """Time after which a stopped sandbox is deleted."""

    def identifier(self, key: str) -> str:
        """Return the identifier of a sandbox: a hash of this specification and `key`."""
        return fingerprint([key, asdict(self)])


class Daytona(Backend):
    """Backend that runs commands in one Daytona sandbox."""

    name = "daytona"
    has_own_files = True
    shared_directories: Sequence[tuple[str, str]] = ()
    advice = "The next command restarts the sandbox, or creates a new one if it was deleted."

    def __init__(
        self,
        spec: DaytonaSandboxSpec,
        *,
        environment: Mapping[str, str],
        key: str = "",
        persistent: bool = True,
        lease_s: int = DEFAULT_LEASE_S,
    ) -> None:
        """Store the specification of the sandbox; nothing is started yet.

        A persistent sandbox is shared by all clients with the same key and specification.
        """
        self.is_persistent, self.lease_s = persistent, lease_s
        self._spec, self._environment = spec, environment
        self._name = f"toolfold-{spec.identifier(key if persistent else secrets.token_hex(8))}"
        self._home = spec.home
        self._client: daytona.AsyncDaytona | None = None
        self._sandbox: daytona.AsyncSandbox | None = None
        self._refresh_task: asyncio.Task[None] | None = None

    @property
    def state_dir(self) -> str:
        return self._spec.notes

    @property
    def home(self) -> str:
        return self._home

    async def check(self) -> Readiness:
        if not importlib.util.find_spec("daytona"):
            return Readiness(False, "the package `daytona` is not installed", _INSTALL_ADVICE)
        client = None
        try:
            # In a thread: the import is slow, and other backends are being checked with timeouts.
            await asyncio.to_thread(importlib.import_module, "daytona")
            client = self._open_client()
            await call_with_timeout(PROBE_TIMEOUT_S, self._find_sandbox(client))
        except ImportError as error:
            return Readiness(
                False, f"the package `daytona` cannot be imported: {_error_text(error)}", _INSTALL_ADVICE
            )
        except TimeoutError:
            return Readiness(False, "Daytona does not respond", "Check the network connection.")
        except Exception as error:
            return Readiness(False, _error_text(error), _advise(error))
        finally:
            if client:
                await _close_client(client)
        return Readiness(True)

    async def open(self) -> None:
        if not importlib.util.find_spec("daytona"):
            raise EnvironmentFailed("The package `daytona` is not installed.", advice=_INSTALL_ADVICE)
        try:
            self._client = self._client or self._open_client()
            self._sandbox = await self._prepare_sandbox(self._client)
        except Exception as error:
            problem = f"Cannot open a Daytona sandbox: {_error_text(error)}."
            raise EnvironmentFailed(problem, advice=_advise(error)) from None
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = asyncio.create_task(self._refresh_activity())

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], pty: TerminalSize | None
    ) -> Channel:
        if self._sandbox is None:
            raise EnvironmentFailed("The Daytona backend is closed.", advice="Open it again.")
        channel = PtyChannel(terminal=pty is not None, lease_s=self.lease_s)
        try:
            pty_handle = await call_with_timeout(
                CALL_TIMEOUT_S, _DaytonaPty.open(self._sandbox, channel, env, pty or TerminalSize())
            )
            await channel.start(pty_handle, self.state_dir, argv)
        except Exception as error:
            problem = f"Cannot start a program in the Daytona sandbox: {_error_text(error)}."
            raise EnvironmentFailed(problem, advice=self.advice) from None
        return channel

    async def close(self) -> None:
        if self._refresh_task:
            self._refresh_task.cancel()
        client, self._client = self._client, None
        sandbox, self._sandbox = self._sandbox, None
        with contextlib.suppress(Exception):  # it may be gone already, or unreachable
            if sandbox and not self.is_persistent:
                await call_with_timeout(CLOSE_TIMEOUT_S, sandbox.delete())
        if client:
            await _close_client(client)

    async def remove(self) -> None:
        """Delete the Daytona sandbox with all its contents."""
        client = self._open_client()
        try:
            if sandbox := await self._find_sandbox(client):
                await call_with_timeout(CLOSE_TIMEOUT_S, sandbox.delete())
        finally:
            await _close_client(client)

    def _open_client(self) -> daytona.AsyncDaytona:
        import daytona

        variables = self._environment
        return daytona.AsyncDaytona(
            daytona.DaytonaConfig(
                api_key=variables.get("DAYTONA_API_KEY"),
                jwt_token=variables.get("DAYTONA_JWT_TOKEN"),
                organization_id=variables.get("DAYTONA_ORGANIZATION_ID"),
                api_url=variables.get("DAYTONA_API_URL"),
                target=variables.get("DAYTONA_TARGET"),
            )
        )

    async def _prepare_sandbox(self, client: daytona.AsyncDaytona) -> daytona.AsyncSandbox:
        import daytona

        sandbox = await self._find_sandbox(client) or await self._create_sandbox(client)
        if sandbox.state != daytona.SandboxState.STARTED:
            await call_with_timeout(CREATE_TIMEOUT_S, self._wait_started(sandbox))
        self._home = self._spec.home or await call_with_timeout(CALL_TIMEOUT_S, sandbox.get_work_dir())
        folders = {"home": shlex.quote(self._home), "notes": shlex.quote(self.state_dir)}
        await call_with_timeout(CALL_TIMEOUT_S, sandbox.process.exec(_CLEAN_UP_SCRIPT.format(**folders)))
        return sandbox

    async def _create_sandbox(self, client: daytona.AsyncDaytona) -> daytona.AsyncSandbox:
        import daytona

        try:
            return await call_with_timeout(
                CREATE_TIMEOUT_S, client.create(self._creation_params(), timeout=CREATE_TIMEOUT_S)
            )
        except daytona.DaytonaConflictError:  # another client created it first
            return await call_with_timeout(FIND_TIMEOUT_S, client.get(self._name))

    async def _find_sandbox(self, client: daytona.AsyncDaytona) -> daytona.AsyncSandbox | None:
        import daytona

        try:
            sandbox = await call_with_timeout(FIND_TIMEOUT_S, client.get(self._name))
        except daytona.DaytonaNotFoundError:
            return None
        gone = (daytona.SandboxState.DESTROYED, daytona.SandboxState.DESTROYING)
        return None if sandbox.state in gone else sandbox

    async def _wait_started(self, sandbox: daytona.AsyncSandbox) -> None:
        import daytona

        if sandbox.state in (daytona.SandboxState.STOPPED, daytona.SandboxState.ARCHIVED):
            await sandbox.start(timeout=CREATE_TIMEOUT_S)
        else:
            await sandbox.wait_for_sandbox_start(timeout=CREATE_TIMEOUT_S)

    def _creation_params(
        self,
    ) -> daytona.CreateSandboxFromImageParams | daytona.CreateSandboxFromSnapshotParams:
        import daytona

        spec = self._spec
        common = {
            "name": self._name,
            "labels": {"made-by": "toolfold", "home": spec.home},
            "network_block_all": not spec.network,
            "auto_stop_interval": spec.idle_minutes if self.is_persistent else IDLE_MINUTES_WITHOUT_OWNER,
            "auto_delete_interval": spec.kept_minutes if self.is_persistent else 0,
        }
        if spec.snapshot:
            return daytona.CreateSandboxFromSnapshotParams(snapshot=spec.snapshot, **common)
        limits = daytona.Resources(cpu=spec.cpus, memory=spec.memory, disk=spec.disk)
        return daytona.CreateSandboxFromImageParams(image=spec.image, resources=limits, **common)

    async def _refresh_activity(self) -> None:
        """Mark the sandbox as in use at intervals, because Daytona may not count activity in a terminal."""
        while self._sandbox:
            await asyncio.sleep(REFRESH_INTERVAL_S)
            with contextlib.suppress(Exception):
                await call_with_timeout(CALL_TIMEOUT_S, self._sandbox.refresh_activity())


class _DaytonaPty:
    """Terminal in a Daytona sandbox."""

    def __init__(self, handle: daytona.handle.async_pty_handle.AsyncPtyHandle) -> None:
        self._handle = handle

    @classmethod
    async def open(
        cls, sandbox: daytona.AsyncSandbox, channel: PtyChannel, env: Mapping[str, str], size: TerminalSize
    ) -> _DaytonaPty:
        import daytona

        handle = await sandbox.process.create_pty_session(
            id=f"toolfold-{secrets.token_hex(8)}",
            on_data=channel.feed,
            cwd="/",
            envs=dict(env),
            pty_size=daytona.PtySize(rows=size.rows, cols=size.columns),
        )
        return cls(handle)

    async def send(self, data: bytes) -> None:
        await self._handle.send_input(data)

    async def wait_closed(self) -> tuple[int | None, str]:
        result = await self._handle.wait()
        return result.exit_code, result.error or ""

    async def resize(self, size: TerminalSize) -> None:
        import daytona

        await self._handle.resize(daytona.PtySize(rows=size.rows, cols=size.columns))

    async def disconnect(self) -> None:
        await self._handle.disconnect()


async def _close_client(client: daytona.AsyncDaytona) -> None:
    with contextlib.suppress(Exception):
        await call_with_timeout(CLOSE_TIMEOUT_S, client.close())


def _error_text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no response in time"
    return (str(error) or type(error).__name__).strip().rstrip(".")


def _advise(error: Exception) -> str:
    """Return advice for an error of the Daytona SDK."""
    import daytona

    if isinstance(error, daytona.DaytonaAuthenticationError | daytona.DaytonaForbiddenError):
        return _KEY_ADVICE
    if isinstance(error, OSError | daytona.DaytonaConnectionError):
        return "Check the network connection. An existing sandbox is unchanged."
    return "Daytona's dashboard may show the cause."
