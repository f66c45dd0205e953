"""Find the process that opened a connection, and determine whether a tool call started it.

A process of a tool that connects to the gateway could approve its own call. So the client's socket is looked
up among the sockets of this machine, and every process that holds it is checked. This is done only before
the user is asked. Knows addresses and processes, and nothing of HTTP and MCP.
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

from toolfold.core.tool_processes import find_tool_call
from toolfold.safety.approval.prompting import UntrustedClient

MAX_SOCKETS = 500_000
MAX_PROCESSES = 100_000
MAX_DESCRIPTORS = 1 << 20
"""Limit of file descriptors that are read per process."""
MAX_CACHED_ORIGINS = 256
_NO_SOCKET = "0"
_PROC = Path("/proc")

Address = tuple[str, int]
FdDirs = Callable[[Path], list[Path]]


class PeerOrigin(Enum):
    """Origin of a client's process: started by the user, by a tool call, or on another machine."""

    OTHER_MACHINE = "on another machine"
    USER = "not started by a tool call"
    TOOL_CALL = "started by a tool call"
    CLOSED = "connection closed by the client"
    UNKNOWN = "process cannot be determined"


@dataclass(frozen=True, slots=True)
class PeerConnection:
    """Addresses of both ends of a client's connection."""

    client: Address
    server: Address


class PeerProcesses:
    """Determines whether a tool call started a client's process, and caches the result per connection."""

    def __init__(self) -> None:
        self._lookup_lock = asyncio.Lock()
        self._origins: dict[tuple[PeerConnection, str], PeerOrigin] = {}

    async def require_user(self, client: Address | None, server: Address | None, *, has_token: bool) -> None:
        """Raise UntrustedClient if the client must not answer approval questions for the user."""
        origin = await self._find_origin(client, server)
        if origin is PeerOrigin.TOOL_CALL:
            raise UntrustedClient("the client was started by a tool call, so it cannot approve one", True)
        if origin is PeerOrigin.CLOSED:
            raise UntrustedClient("the client has closed the connection that its call was made on")
        if origin is PeerOrigin.UNKNOWN and not has_token:
            raise UntrustedClient(
                "it is unknown whether a tool call has started the client. If you trust it, create a token"
                " for it: `toolfold token add NAME`"
            )

    async def _find_origin(self, client: Address | None, server: Address | None) -> PeerOrigin:
        if not (client and server):
            return PeerOrigin.UNKNOWN  # the ASGI server of an application gives no addresses
        async with self._lookup_lock:
            return await asyncio.to_thread(self._look_up_origin, PeerConnection(client, server))

    def _look_up_origin(self, connection: PeerConnection) -> PeerOrigin:
        """Return the origin of the client's process; cached by the inode of its socket."""
        inode = find_socket(connection)
        if inode == _NO_SOCKET:
            return _origin_without_socket(connection)
        key = connection, inode
        if key not in self._origins:
            origin = find_origin(inode)
            if origin is PeerOrigin.UNKNOWN:
                return origin
            for oldest in list(self._origins)[: len(self._origins) - MAX_CACHED_ORIGINS + 1]:
                del self._origins[oldest]
            self._origins[key] = origin
        return self._origins[key]


def find_socket(connection: PeerConnection) -> str:
    """Return the inode of the client's socket; "0" if it is not on this machine or was closed."""
    try:
        clients, servers = _format_address(connection.client), _format_address(connection.server)
    except ValueError:
        return _NO_SOCKET
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), (_PROC / "net" / name).open(encoding="ascii") as lines:
            for line in itertools.islice(lines, MAX_SOCKETS):
                fields = line.split(None, 10)
                if len(fields) > 9 and fields[1] in clients and fields[2] in servers:
                    return fields[9]
    return _NO_SOCKET


def _format_address(address: Address) -> frozenset[str]:
    """Return an IP address and port in each notation that the tables of /proc/net may contain."""
    ip = ipaddress.ip_address(address[0])
    if ip.version == 6 and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    forms = [ip.packed] if ip.version == 6 else [ip.packed, b"\0" * 10 + b"\xff\xff" + ip.packed]
    return frozenset(f"{_swap_words(form).hex().upper()}:{address[1]:04X}" for form in forms)


def _swap_words(data: bytes) -> bytes:
    if sys.byteorder == "big":
        return data
    return b"".join(data[start : start + 4][::-1] for start in range(0, len(data), 4))


def _origin_without_socket(connection: PeerConnection) -> PeerOrigin:
    """Return the origin of a client whose socket was not found: another machine, closed or unknown.

    Only a remote address explains a missing socket. A local client that closed its connection to answer on
    another one is therefore not trusted.
    """
    try:
        ip = ipaddress.ip_address(connection.client[0])
    except ValueError:
        return PeerOrigin.UNKNOWN
    if not (ip.is_loopback or _is_local_address(ip)):
        return PeerOrigin.OTHER_MACHINE
    return PeerOrigin.CLOSED if (_PROC / "net" / "tcp").exists() else PeerOrigin.UNKNOWN


def _is_local_address(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return True if the IP address belongs to this machine."""
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


def find_origin(inode: str) -> PeerOrigin:
    """Return who started the processes that have a socket open: the user, a tool call, or unknown.

    USER only if none of them was started by a tool call.
    """
    found, unreadable = _find_holders(inode, _process_fd_dir)
    folders = _process_fd_dir if found else _thread_fd_dirs
    if not found:
        found, unreadable = _find_holders(inode, folders)
    # The descriptors of other users' processes cannot be read: any of those processes may hold the socket.
    if any(find_tool_call(pid) for pid in (found or unreadable)):
        return PeerOrigin.TOOL_CALL
    # A process that has ended meanwhile could not be checked, so look again for one that holds the socket.
    with contextlib.suppress(PermissionError):
        if any(_holds_socket(pid, inode, folders) for pid in found):
            return PeerOrigin.USER
    return PeerOrigin.UNKNOWN


def _find_holders(inode: str, folders: FdDirs) -> tuple[list[int], list[int]]:
    """Return the processes that have a socket open, and the processes whose descriptors are unreadable."""
    holders, unreadable = [], []
    for pid in _all_pids():
        try:
            if _holds_socket(pid, inode, folders):
                holders.append(pid)
        except PermissionError:
            unreadable.append(pid)
    return holders, unreadable


def _holds_socket(pid: int, inode: str, folders: FdDirs) -> bool:
    """Return True if a process has a socket open. Raises PermissionError without access to descriptors."""
    wanted = f"socket:[{inode}]"
    for folder in folders(_PROC / str(pid)):
        try:
            with os.scandir(folder) as entries:
                if any(
                    _read_link(each.path) == wanted for each in itertools.islice(entries, MAX_DESCRIPTORS)
                ):
                    return True
        except PermissionError:
            raise
        except OSError:  # the process has ended
            continue
    return False


def _read_link(path: str) -> str:
    """Return the target of a file descriptor link; empty if the descriptor was closed meanwhile."""
    try:
        return os.readlink(path)  # noqa: PTH115 - the target is not a path
    except FileNotFoundError:
        return ""


def _process_fd_dir(process: Path) -> list[Path]:
    return [process / "fd"]


def _thread_fd_dirs(process: Path) -> list[Path]:
    """Return the descriptor directory of each thread, because threads may have separate descriptors."""
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
