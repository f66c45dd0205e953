"""Another machine, by the ssh client of this one: its settings, keys and agent are those the user has.

One connection is made and every program is started over it; a server that lets only so many run over one is
given another when it is full. Nobody is ever asked anything, and a host whose key is not known is no host of
ours. A connection ends when we do, however that comes.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolfold.environments.backend import Backend, Channel, Readiness, Size
from toolfold.environments.client import Client
from toolfold.environments.remote import Relay, asked, for_clients
from toolfold.errors import EnvironmentFailed

CONNECT_SECONDS = 20.0
PROBE_SECONDS = 8.0
GOODBYE_SECONDS = 2.0
NO_CODE = 255
LONGEST_HELLO = 1 << 20
MOST_PROGRAMS = 7
"""Over one connection. Servers take ten: it needs one itself, and what has just ended may still count."""

# Stays for as long as we hold its input: that is how the far side knows that we are there.
_HELLO = 'printf "hello %s\\n" "$HOME"; exec cat >/dev/null'
_ALONE = (
    "BatchMode=yes", "StrictHostKeyChecking=yes", "UpdateHostKeys=no", "ForwardAgent=no", "ForwardX11=no",
    "ClearAllForwardings=yes", "PermitLocalCommand=no", "RemoteCommand=none", "RequestTTY=no",
    "EscapeChar=none", "ServerAliveInterval=10", "ServerAliveCountMax=3", "LogLevel=ERROR",
    "ControlMaster=yes", "ControlPersist=no",
)  # fmt: skip
_SPECIAL = str.maketrans({"'": "'\\''", "\\": "'\\\\'"})
# A client that finds its connection gone must not make one of its own, which nobody would look after.
_OVER_IT = ("-F", "none", "-o", "ProxyCommand=false", "-o", "EscapeChar=none", "-o", "LogLevel=ERROR")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to, and as whom. What is empty is for the ssh client's own settings to say."""

    host: str
    port: int = 0
    user: str = ""
    identity: str = ""
    """A file with a private key."""
    known_hosts: str = ""
    """A file with the keys of hosts; the user's own where it is empty."""

    def words(self) -> list[str]:
        """What is said of it to the ssh client."""
        return [
            *(("-p", str(self.port)) if self.port else ()),
            *(("-l", self.user) if self.user else ()),
            *(("-i", self.identity, "-o", "IdentitiesOnly=yes") if self.identity else ()),
            *(("-o", f"UserKnownHostsFile={self.known_hosts}") if self.known_hosts else ()),
            *("--", self.host),
        ]


class Connection:
    """One way to the machine, held open from the moment it is made."""

    def __init__(self, address: Address, environment: Mapping[str, str]) -> None:
        # In a folder of ours alone: the list of processes shows the name before there is a socket, and our
        # programs would talk to whoever makes one there.
        self.socket = Path(tempfile.mkdtemp(prefix="toolfold-")) / "ssh"
        self.programs = 0
        self._address = address
        words = [*master(str(self.socket)), *address.words(), quoted(["sh", "-c", _HELLO])]
        self._client = Client.start(words, env=environment, cwd="/")
        self._ended = asyncio.ensure_future(self._client.wait())
        self._opening = asyncio.ensure_future(self._open())
        self._opening.add_done_callback(_heard)

    @property
    def lost(self) -> bool:
        return self._ended.done()

    async def home(self) -> str:
        """The user's home there, once we are there. Raises EnvironmentFailed."""
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        self._opening.cancel()
        await self._client.close_input()
        await asyncio.wait({self._ended}, timeout=GOODBYE_SECONDS)
        await self._client.close()
        shutil.rmtree(self.socket.parent, ignore_errors=True)

    def begun(self) -> None:
        self.programs += 1

    def ended(self, _: object = None) -> None:
        self.programs -= 1

    async def _open(self) -> str:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                home = await _hello(self._client)
        except TimeoutError:
            await self._client.close()
            raise failure(self._address, "it does not answer") from None
        if home is None:
            complaint = self._client.complaint() or "it runs no shell for us"
            await self._client.close()
            raise failure(self._address, complaint)
        return home


class Program(Relay):
    """A program on the other machine."""

    _connection: Connection

    def counts_for(self, connection: Connection) -> None:
        """It has begun there already, and is off it when it ends."""
        self._connection = connection
        self._ended.add_done_callback(connection.ended)

    async def wait(self) -> int:
        """The client says 255 when a signal ended the program and does not say which; mostly it is this."""
        code = await super().wait()
        killed = code == NO_CODE and not self._connection.lost and not self.complaint()
        return 128 + signal.SIGKILL if killed else code


class Ssh(Backend):
    """Commands run on another machine."""

    name = "ssh"
    apart = True
    advice = "The next command connects again. Is the network there, and the machine up?"
    lease = 60

    def __init__(
        self, address: Address, *, environment: Mapping[str, str], home: str = "", notes: str = ""
    ) -> None:
        """`home` and `notes` are folders there: where tasks begin, and one of ours."""
        self._address = address
        self._environment = for_clients(environment)
        self._home, self._notes = home, notes
        self._user_home = ""
        self._connections: list[Connection] = []
        self._lost: list[Connection] = []

    @property
    def folder(self) -> str:
        return self._notes or f"{self._user_home}/.cache/toolfold"

    @property
    def home(self) -> str:
        return self._home or self._user_home

    async def check(self) -> Readiness:
        if not shutil.which("ssh", path=self._environment["PATH"]):
            return Readiness(False, "ssh is not installed", "Install it: `apt-get install openssh-client`.")
        words = [*master("none"), *self._address.words(), "true"]
        answer = await asked(words, self._environment, within=PROBE_SECONDS)
        if answer.code == 0:
            return Readiness(True)
        failed = failure(self._address, answer.complaint)
        return Readiness(False, failed.problem, failed.advice)

    async def open(self) -> None:
        """Connect, unless we are connected."""
        connection = self._free()
        try:
            self._user_home = await connection.home()
        finally:
            connection.ended()

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], pty: Size | None) -> Channel:
        connection = self._free()
        command = quoted(["env", *(f"{name}={value}" for name, value in env.items()), *argv])
        words = ["ssh", *_OVER_IT, "-S", str(connection.socket), "-tt" if pty else "-T", "--"]
        try:
            await connection.home()
            program = Program.start(
                [*words, self._address.host, f"exec {command}"], env=self._environment, pty=pty, cwd="/"
            )
        except BaseException:
            connection.ended()
            raise
        program.counts_for(connection)
        return program

    async def close(self) -> None:
        closing = [*self._connections, *self._lost]
        self._connections, self._lost = [], []
        await asyncio.gather(*(connection.close() for connection in closing))

    def _free(self) -> Connection:
        """A connection, perhaps a new one, with one more program on it."""
        self._lost += [each for each in self._connections if each.lost]
        self._connections = [each for each in self._connections if not each.lost]
        free = [each for each in self._connections if each.programs < MOST_PROGRAMS]
        if not free:
            free = [Connection(self._address, self._environment)]
            self._connections += free
        free[0].begun()
        return free[0]


def master(socket: str) -> list[str]:
    """The client that holds a connection, for others to use by this socket."""
    options = (*_ALONE, f"ConnectTimeout={int(CONNECT_SECONDS)}", f"ControlPath={socket}")
    return ["ssh", *(word for option in options for word in ("-o", option))]


def _heard(opening: asyncio.Future[str]) -> None:
    """Whoever waited may have gone; what went wrong is not for the log then."""
    if not opening.cancelled():
        opening.exception()


async def _hello(client: Client) -> str | None:
    """The user's home there, in the last line of what is said first; None where nothing is."""
    heard = b""
    while not heard.endswith(b"\n"):
        data = await client.read()
        if not data:
            await client.wait()
        if not data or len(heard) > LONGEST_HELLO:
            return None
        heard += data
    hello, _, home = heard.decode(errors="surrogateescape").splitlines()[-1].partition(" ")
    return home if hello == "hello" else None


def quoted(argv: Sequence[str]) -> str:
    """As words for the user's shell there: any but csh, also one to which `\\` is special within quotes."""
    return " ".join(f"'{each.translate(_SPECIAL)}'" for each in argv)


def failure(address: Address, complaint: str) -> EnvironmentFailed:
    """What went wrong, and what to do about it."""
    said, host = complaint.lower(), address.host
    port = f"-p {address.port} " if address.port else ""
    if "identification has changed" in said:
        return EnvironmentFailed(
            f"{host} shows another host key than the one that is known: somebody may stand in its place.",
            advice="Ask whoever runs it whether its key has changed. If it has, remove the old one with"
            " `ssh-keygen -R` and add the new one.",
        )
    if "host key" in said:
        scan, known = f"ssh-keyscan {port}{host}", address.known_hosts or "~/.ssh/known_hosts"
        return EnvironmentFailed(
            f"The host key of {host} is not known.",
            advice=f"Compare what `{scan} | ssh-keygen -lf -` shows with what whoever runs it tells you, then"
            f" add it: `{scan} >>{known}`.",
        )
    if "permission denied" in said:
        return EnvironmentFailed(
            f"{host} does not let us in: {complaint}.",
            advice="Name the user and the key, or add the key to the ssh agent. Passwords are not asked for.",
        )
    return EnvironmentFailed(
        f"{host} cannot be reached: {complaint}.", advice=f"Try it by hand: `ssh {port}{host}`."
    )
