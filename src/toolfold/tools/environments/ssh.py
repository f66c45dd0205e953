"""Backend for another machine, through the local ssh client with the user's settings, keys and agent.

One connection is opened and shared by all programs; when a server's session limit is reached, another one is
opened. The client never prompts, and unknown host keys are rejected. Connections end with this process,
however it ends.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolfold.core.errors import EnvironmentFailed
from toolfold.tools.environments.backend import Backend, Channel, Readiness, TerminalSize
from toolfold.tools.environments.local_process import LocalProcess
from toolfold.tools.environments.remote_commands import ResizableProcess, client_variables, run_client
from toolfold.tools.environments.timeouts import consume_exception

CONNECT_TIMEOUT_S = 20.0
PROBE_TIMEOUT_S = 8.0
CLOSE_TIMEOUT_S = 2.0
UNKNOWN_EXIT_CODE = 255
EXIT_CODE_KILLED = 128 + 9  # SIGKILL on the remote system; Windows does not have the name
MAX_HELLO_BYTES = 1 << 20
MAX_PROGRAMS_PER_CONNECTION = 7
"""Servers allow ten by default: the connection itself needs one, and ended programs may still count."""

# Runs until its input is closed, so the connection ends when this client does.
_HELLO_SCRIPT = 'printf "hello %s\\n" "$HOME"; exec cat >/dev/null'
_MASTER_OPTIONS = (
    "BatchMode=yes", "StrictHostKeyChecking=yes", "UpdateHostKeys=no", "ForwardAgent=no", "ForwardX11=no",
    "ClearAllForwardings=yes", "PermitLocalCommand=no", "RemoteCommand=none", "RequestTTY=no",
    "EscapeChar=none", "ServerAliveInterval=10", "ServerAliveCountMax=3", "LogLevel=ERROR",
    "ControlMaster=yes", "ControlPersist=no",
)  # fmt: skip
_QUOTE_ESCAPES = str.maketrans({"'": "'\\''", "\\": "'\\\\'"})
# If the shared connection is gone, the client must fail instead of opening an unmanaged one of its own.
_SHARED_OPTIONS = ("-F", "none", "-o", "ProxyCommand=false", "-o", "EscapeChar=none", "-o", "LogLevel=ERROR")


@dataclass(frozen=True, slots=True, kw_only=True)
class SshAddress:
    """Address of an ssh server: host, port, user and keys. Empty values are taken from the ssh settings."""

    host: str
    port: int = 0
    user: str = ""
    identity: str = ""
    """Path of the private key file."""
    known_hosts: str = ""
    """File with host keys; empty for the user's own."""

    def arguments(self) -> list[str]:
        """Return the ssh client's arguments for this address."""
        return [
            *(("-p", str(self.port)) if self.port else ()),
            *(("-l", self.user) if self.user else ()),
            *(("-i", self.identity, "-o", "IdentitiesOnly=yes") if self.identity else ()),
            *(("-o", f"UserKnownHostsFile={self.known_hosts}") if self.known_hosts else ()),
            *("--", self.host),
        ]


class SshConnection:
    """Shared (master) ssh connection to the remote machine. Creating the object opens the connection."""

    def __init__(self, address: SshAddress, environment: Mapping[str, str]) -> None:
        # In a private directory: the process list shows the path before the socket exists, and another user
        # could create a socket there first.
        self.socket = Path(tempfile.mkdtemp(prefix="toolfold-")) / "ssh"
        self.programs = 0
        self._address = address
        argv = [*master_argv(str(self.socket)), *address.arguments(), quote_argv(["sh", "-c", _HELLO_SCRIPT])]
        self._client = LocalProcess.start(argv, env=environment, cwd="/")
        self._exit_task = asyncio.ensure_future(self._client.wait())
        self._open_task = asyncio.ensure_future(self._wait_for_home())
        self._open_task.add_done_callback(consume_exception)

    @property
    def is_lost(self) -> bool:
        return self._exit_task.done()

    async def home(self) -> str:
        """Wait for the connection and return the remote home directory. Raises EnvironmentFailed."""
        return await asyncio.shield(self._open_task)

    async def close(self) -> None:
        self._open_task.cancel()
        await self._client.close_input()
        await asyncio.wait({self._exit_task}, timeout=CLOSE_TIMEOUT_S)
        await self._client.close()
        shutil.rmtree(self.socket.parent, ignore_errors=True)

    def add_program(self) -> None:
        self.programs += 1

    def remove_program(self, _: object = None) -> None:
        self.programs -= 1

    async def _wait_for_home(self) -> str:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                home = await _read_hello(self._client)
        except TimeoutError:
            await self._client.close()
            raise connection_error(self._address, "no response") from None
        if home is None:
            error = self._client.error_text() or "it does not start a shell"
            await self._client.close()
            raise connection_error(self._address, error)
        return home


class SshProgram(ResizableProcess):
    """A program on the remote machine."""

    _connection: SshConnection

    def attach_to(self, connection: SshConnection) -> None:
        """Count this program towards the connection's limit of programs until it exits."""
        self._connection = connection
        self._exit_task.add_done_callback(connection.remove_program)

    async def wait(self) -> int:
        """Return the exit code of the remote program.

        The client reports 255 for any signal without naming it; SIGKILL is the most likely one.
        """
        code = await super().wait()
        killed = code == UNKNOWN_EXIT_CODE and not self._connection.is_lost and not self.error_text()
        return EXIT_CODE_KILLED if killed else code


class Ssh(Backend):
    """Backend that runs commands on another machine over ssh."""

    name = "ssh"
    has_own_files = True
    advice = "The next command reconnects. Check the network and that the machine is running."
    lease_s = 60

    def __init__(
        self, address: SshAddress, *, environment: Mapping[str, str], home: str = "", state_dir: str = ""
    ) -> None:
        """Store the address of the remote machine; nothing is started yet.

        `home` and `state_dir` are remote directories: where tasks start, and where Toolfold's files are.
        """
        self._address = address
        self._environment = client_variables(environment)
        self._home, self._state = home, state_dir
        self._user_home = ""
        self._connections: list[SshConnection] = []
        self._lost_connections: list[SshConnection] = []

    @property
    def state_dir(self) -> str:
        return self._state or f"{self._user_home}/.cache/toolfold"

    @property
    def home(self) -> str:
        return self._home or self._user_home

    async def check(self) -> Readiness:
        if not shutil.which("ssh", path=self._environment["PATH"]):
            return Readiness(
                False,
                "ssh is not installed",
                "Install it, for example with `apt-get install openssh-client`.",
            )
        argv = [*master_argv("none"), *self._address.arguments(), "true"]
        answer = await run_client(argv, self._environment, timeout_s=PROBE_TIMEOUT_S)
        if answer.code == 0:
            return Readiness(True)
        error = connection_error(self._address, answer.error_text)
        return Readiness(False, error.problem, error.advice)

    async def open(self) -> None:
        """Connect to the remote machine, unless connected already."""
        connection = self._free_connection()
        try:
            self._user_home = await connection.home()
        finally:
            connection.remove_program()

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], pty: TerminalSize | None
    ) -> Channel:
        connection = self._free_connection()
        command = quote_argv(["env", *(f"{name}={value}" for name, value in env.items()), *argv])
        options = ["ssh", *_SHARED_OPTIONS, "-S", str(connection.socket), "-tt" if pty else "-T", "--"]
        try:
            await connection.home()
            program = SshProgram.start(
                [*options, self._address.host, f"exec {command}"], env=self._environment, pty=pty, cwd="/"
            )
        except BaseException:
            connection.remove_program()
            raise
        program.attach_to(connection)
        return program

    async def close(self) -> None:
        closing = [*self._connections, *self._lost_connections]
        self._connections, self._lost_connections = [], []
        await asyncio.gather(*(connection.close() for connection in closing))

    def _free_connection(self) -> SshConnection:
        """Return a shared ssh connection with capacity for another program, and reserve that capacity."""
        self._lost_connections += [each for each in self._connections if each.is_lost]
        self._connections = [each for each in self._connections if not each.is_lost]
        free = [each for each in self._connections if each.programs < MAX_PROGRAMS_PER_CONNECTION]
        if not free:
            free = [SshConnection(self._address, self._environment)]
            self._connections += free
        free[0].add_program()
        return free[0]


def master_argv(socket: str) -> list[str]:
    """Return the arguments of the ssh client that holds the shared connection at this socket."""
    options = (*_MASTER_OPTIONS, f"ConnectTimeout={int(CONNECT_TIMEOUT_S)}", f"ControlPath={socket}")
    return ["ssh", *(word for option in options for word in ("-o", option))]


async def _read_hello(client: LocalProcess) -> str | None:
    """Return the remote home directory from the server's greeting; None if there is no greeting."""
    received = b""
    while not received.endswith(b"\n"):
        data = await client.read()
        if not data:
            await client.wait()
        if not data or len(received) > MAX_HELLO_BYTES:
            return None
        received += data
    hello, _, home = received.decode(errors="surrogateescape").splitlines()[-1].partition(" ")
    return home if hello == "hello" else None


def quote_argv(argv: Sequence[str]) -> str:
    """Quote arguments for the user's remote shell.

    Works for any shell but csh, also for those that treat a backslash in quotes specially.
    """
    return " ".join(f"'{each.translate(_QUOTE_ESCAPES)}'" for each in argv)


def connection_error(address: SshAddress, error: str) -> EnvironmentFailed:
    """Return an error with advice for an error message of the ssh client."""
    text, host = error.lower(), address.host
    port = f"-p {address.port} " if address.port else ""
    if "identification has changed" in text:
        return EnvironmentFailed(
            f"The host key of {host} has changed: another machine may be impersonating it.",
            advice="Ask its administrator whether the key was replaced. If so, remove the old one with"
            " `ssh-keygen -R` and add the new one.",
        )
    if "host key" in text:
        scan, known = f"ssh-keyscan {port}{host}", address.known_hosts or "~/.ssh/known_hosts"
        return EnvironmentFailed(
            f"The host key of {host} is not known.",
            advice=f"Compare the output of `{scan} | ssh-keygen -lf -` with the fingerprint from its"
            f" administrator, then add the key: `{scan} >>{known}`.",
        )
    if "permission denied" in text:
        return EnvironmentFailed(
            f"{host} rejected the login: {error}.",
            advice="Set terminal.ssh.user and terminal.ssh.identity, or add the key to the ssh agent."
            " Passwords are not supported.",
        )
    return EnvironmentFailed(
        f"{host} cannot be reached: {error}.", advice=f"Run `ssh {port}{host}` to see the cause."
    )
