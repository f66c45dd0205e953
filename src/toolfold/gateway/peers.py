"""Which process is at the other end of a connection, and whether a tool call has started it.

A tool's process that connects to a gateway could answer the question about its own call. So the sockets of
this machine are searched for the client's end, and every process that holds it is looked at. It is done only
when a question is about to be asked. Knows addresses and processes, and nothing of HTTP and MCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from toolfold.approval.asking import UntrustedClient
from toolfold.provenance import find_tool_call

MAX_SOCKETS = 500_000
MAX_PROCESSES = 100_000
MAX_DESCRIPTORS = 1 << 20
"""How many descriptors of one process are looked at."""
MAX_REMEMBERED = 256
_NO_SOCKET = "0"
_PROC = Path("/proc")

Address = tuple[str, int]
Folders = Callable[[Path], list[Path]]


class Origin(Enum):
    """What is known of a client's process."""

    OTHER_MACHINE = "it is on another machine"
    USER = "no tool call has started it"
    TOOL_CALL = "a tool call has started it"
    CLOSED = "its end of the connection is closed"
    UNKNOWN = "it cannot be told which process it is"


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection as the server sees it."""

    client: Address
    server: Address


class Peers:
    """The origins of clients, each looked up once per connection and one at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._known: dict[tuple[Connection, str], Origin] = {}

    async def require_user(self, client: Address | None, server: Address | None, *, has_token: bool) -> None:
        """Return where the client may answer for the user; raise UntrustedClient where it may not."""
        origin = await self._find(client, server)
        if origin is Origin.TOOL_CALL:
            raise UntrustedClient("a tool call has started the client, which cannot approve it", True)
        if origin is Origin.CLOSED:
            raise UntrustedClient("the client has closed the connection of its call")
        if origin is Origin.UNKNOWN and not has_token:
            raise UntrustedClient(
                "it cannot be told whether a tool call has started the client. If you trust it, make a token"
                " for it: `toolfold token add NAME`"
            )

    async def _find(self, client: Address | None, server: Address | None) -> Origin:
        if not (client and server):
            return Origin.UNKNOWN  # an application serves the gateway in another way
        async with self._turn:
            return await asyncio.to_thread(self._look_up, Connection(client, server))

    def _look_up(self, connection: Connection) -> Origin:
        """The origin, remembered by the client's socket: another connection has another."""
        inode = find_socket(connection)
        if inode == _NO_SOCKET:
            return _origin_without_socket(connection)
        key = connection, inode
        if key not in self._known:
            origin = find_origin(inode)
            if origin is Origin.UNKNOWN:
                return origin
            for oldest in list(self._known)[: len(self._known) - MAX_REMEMBERED + 1]:
                del self._known[oldest]
            self._known[key] = origin
        return self._known[key]


def find_socket(connection: Connection) -> str:
    """Return the inode of the client's socket; "0" where this machine has none, or it was closed."""
    try:
        clients, servers = _spell(connection.client), _spell(connection.server)
    except ValueError:
        return _NO_SOCKET
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), (_PROC / "net" / name).open(encoding="ascii") as lines:
            for line in itertools.islice(lines, MAX_SOCKETS):
                fields = line.split(None, 10)
                if len(fields) > 9 and fields[1] in clients and fields[2] in servers:
                    return fields[9]
    return _NO_SOCKET


def _spell(address: Address) -> frozenset[str]:
    """An address as /proc/net spells it: words of four bytes in the machine's order; IPv4 also as IPv6."""
    ip = ipaddress.ip_address(address[0])
    if ip.version == 6 and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    forms = [ip.packed] if ip.version == 6 else [ip.packed, b"\0" * 10 + b"\xff\xff" + ip.packed]
    return frozenset(f"{_swap_words(form).hex().upper()}:{address[1]:04X}" for form in forms)


def _swap_words(data: bytes) -> bytes:
    if sys.byteorder == "big":
        return data
    return b"".join(data[start : start + 4][::-1] for start in range(0, len(data), 4))


def _origin_without_socket(connection: Connection) -> Origin:
    """Only an address of another machine explains why its socket is not here.

    Who closes it and answers by another connection does not get around this.
    """
    try:
        ip = ipaddress.ip_address(connection.client[0])
    except ValueError:
        return Origin.UNKNOWN
    if not (ip.is_loopback or _is_own(ip)):
        return Origin.OTHER_MACHINE
    return Origin.CLOSED if (_PROC / "net" / "tcp").exists() else Origin.UNKNOWN


def _is_own(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address is one of this machine: no other can be bound to."""
    if ip.version == 6 and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    try:
        info = socket.getaddrinfo(str(ip), 0, family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(info[0][4])
    except OSError:
        return False
    return True


def find_origin(inode: str) -> Origin:
    """Return the origin of whoever holds a socket: every process that does must be free of marks."""
    found, unreadable = _find_holders(inode, _process_folder)
    folders = _process_folder if found else _thread_folders
    if not found:
        found, unreadable = _find_holders(inode, folders)
    # Processes of others, and those that forbid it, do not show what they hold: it may be any of them.
    if any(find_tool_call(pid) for pid in (found or unreadable)):
        return Origin.TOOL_CALL
    # One that has ended meanwhile had no mark to be found.
    with contextlib.suppress(PermissionError):
        if any(_holds(pid, inode, folders) for pid in found):
            return Origin.USER
    return Origin.UNKNOWN


def _find_holders(inode: str, folders: Folders) -> tuple[list[int], list[int]]:
    """The processes that hold a socket, and those that do not show what they hold."""
    holders, unreadable = [], []
    for pid in _all_pids():
        try:
            if _holds(pid, inode, folders):
                holders.append(pid)
        except PermissionError:
            unreadable.append(pid)
    return holders, unreadable


def _holds(pid: int, inode: str, folders: Folders) -> bool:
    """Whether a process holds a socket. Raises PermissionError where it does not show that."""
    wanted = f"socket:[{inode}]"
    for folder in folders(_PROC / str(pid)):
        try:
            with os.scandir(folder) as entries:
                if any(_link(each.path) == wanted for each in itertools.islice(entries, MAX_DESCRIPTORS)):
                    return True
        except PermissionError:
            raise
        except OSError:  # it has ended
            continue
    return False


def _link(path: str) -> str:
    """What a descriptor leads to; empty where it was closed meanwhile."""
    try:
        return os.readlink(path)  # noqa: PTH115 - it is no path
    except FileNotFoundError:
        return ""


def _process_folder(process: Path) -> list[Path]:
    return [process / "fd"]


def _thread_folders(process: Path) -> list[Path]:
    """Where the descriptors of each thread are listed: a thread may have its own."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [each / "fd" for each in (process / "task").iterdir()]
    return []


def _all_pids() -> list[int]:
    try:
        with os.scandir(_PROC) as entries:
            pids = (int(each.name) for each in entries if each.name.isdecimal())
            return list(itertools.islice(pids, MAX_PROCESSES))
    except OSError:
        return []
