"""Detect whether this process was started by a tool call.

Every process that a runtime starts has two marks: an environment variable, and a hard limit on resident
memory (`RLIMIT_RSS`, which Linux stores but does not enforce). The variable is lost in `env -i`; the limit
is inherited by every descendant, whatever it does to its environment, session or parent, and only root can
raise it. In addition, ancestors that hold an open runtime are detected. Without /proc, the ancestors are
read with `ps`. Makes no decisions: callers refuse what a tool call may not do.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

__all__ = [
    "SERVER_MARK_KB",
    "Beacon",
    "command_limit",
    "find_tool_call",
    "has_tool_processes",
    "is_tool_process",
]

ENVIRONMENT_MARKS = ("TOOLFOLD_RUN", "TOOLFOLD_SERVER")
MIN_MARK_BYTES = 1 << 62
"""Limits of this size are set only by `tools/environments/shell/limits.sh` and MCP server processes."""
_COMMAND_MARK_KB = 1 << 52
SERVER_MARK_KB = _COMMAND_MARK_KB + (1 << 49)
"""Limit of MCP servers, above that of every command."""
MAX_ANCESTORS = 256
MAX_ENVIRON_BYTES = 1 << 22
MAX_DESCRIPTORS = 4_096
PS_TIMEOUT_S = 2.0
_BEACON = "toolfold-runtime"
_BEACON_TARGET = f"/memfd:{_BEACON}"
_PROC = Path("/proc")


class Beacon:
    """Open file descriptor that tells other processes that this process runs a Toolfold runtime."""

    def __init__(self) -> None:
        self._descriptor = -1
        if hasattr(os, "memfd_create"):
            with contextlib.suppress(OSError):
                self._descriptor = os.memfd_create(_BEACON)  # close-on-exec: not inherited by child programs

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def find_tool_call(pid: int | None = None) -> str:
    """Return evidence that a process was started by a tool call, even indirectly; empty if there is none.

    `pid` defaults to this process.
    """
    if pid is not None and pid != os.getpid():
        return _find_mark(pid)
    if mark := next((each for each in ENVIRONMENT_MARKS if os.environ.get(each)), ""):
        return f"{mark} is set in its environment"
    return _find_own_mark(os.getpid())


@functools.cache
def _find_own_mark(pid: int) -> str:
    """Return evidence that a tool call started this process; cached, because its ancestors may exit.

    `pid` distinguishes the process from those that it forks.
    """
    return _find_mark(pid)


def _find_mark(pid: int) -> str:
    chain = [_own_process(pid), *_iterate_ancestors(pid)]
    known = {each.pid for each in chain}
    for each in (*chain, *(each for each in _session_leaders(pid) if each.pid not in known)):
        if why := each.find_mark(is_self=each.pid == pid):
            return why
    return _unexplained_limit(chain)


def command_limit(client: str) -> int:
    """Return the memory limit by which processes started by this client's commands are recognised.

    `shell/limits.sh` sets the limit for each command.
    """
    return (_COMMAND_MARK_KB + int(client[:-4], 16)) * 1024


def has_tool_processes(client: str) -> bool:
    """Return True if any running process may have been started by a command of this client.

    A process can lower its limit but not raise it, so every lower limit counts, unless the process belongs
    to another runtime or to a login session in which the user's processes are limited.
    """
    return any(is_tool_process(client, pid) for pid in _all_pids() if pid != os.getpid())


def is_tool_process(client: str, pid: int) -> bool:
    """Return True if the process `pid` is running and may have been started by a tool call of this client."""
    limit = _hard_limit(pid, if_denied=0)
    if limit is None or limit > command_limit(client) or limit == _own_limit() or not _is_own_process(pid):
        return False
    if limit in (command_limit(client), _COMMAND_MARK_KB * 1024):
        return True
    process = _read_process(pid)
    return process is not None and _has_hidden_mark(replace(process, hard_limit=limit))


def _has_hidden_mark(process: _ProcessInfo) -> bool:
    """Return True if a tool call may have started a process that lacks the memory limit marking its origin.

    Commands are recognised by their memory limit, which a process can lower.
    """
    chain = [process]
    for each in _iterate_ancestors(process.pid):
        if each.pid == os.getpid():
            return True
        if each.hard_limit == _own_limit() and _has_beacon(each.pid):
            return False  # another runtime: without a lower limit, it was not started by a command
        chain.append(each)
    return bool(_unexplained_limit(chain))


@dataclass(frozen=True, slots=True)
class _ProcessInfo:
    """Properties of a process read from the operating system."""

    pid: int
    hard_limit: int | None
    owner: int | None
    parent: int
    text: str = ""
    """Command line of the process with its environment, if `ps` is the only source."""

    def find_mark(self, *, is_self: bool) -> str:
        who = "it" if is_self else f"process {self.pid}, one of its ancestors,"
        if self.hard_limit is not None and self.hard_limit >= MIN_MARK_BYTES:
            return f"{who} has the mark of a tool call (ulimit -Hm)"
        if self.pid != os.getpid() and (name := _marked_variable(self.pid, self.text)):
            return f"{who} has {name} in its environment"
        # A process's own runtime does not tell who started it.
        return f"{who} holds an open runtime" if not is_self and _has_beacon(self.pid) else ""


def _unexplained_limit(chain: list[_ProcessInfo]) -> str:
    """Return why a process's memory limit may hide that a tool call started it; empty if it does not.

    The limit is the user's own if a process of another user, such as sshd or login, started the session: a
    process that detached from its ancestors has no such ancestor either.
    """
    if chain[0].hard_limit is None:
        return ""
    own = chain[0].owner
    if any(each.owner not in (None, own) for each in chain[1:] if each.parent > 0):
        return ""
    return f"its limit on resident memory is {chain[0].hard_limit} bytes (ulimit -Hm), which may hide a mark"


def _own_process(pid: int) -> _ProcessInfo:
    """Return the properties of the process `pid`; for the current process, without reading /proc."""
    if pid != os.getpid():
        return _read_process(pid) or _ProcessInfo(pid, None, None, 0)
    return _ProcessInfo(pid, _own_limit(), os.getuid() if hasattr(os, "getuid") else None, os.getppid())


def _own_limit() -> int | None:
    """Return this process's hard limit on resident memory; None if unlimited or unknown."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    hard = resource.getrlimit(resource.RLIMIT_RSS)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def _iterate_ancestors(pid: int) -> Iterator[_ProcessInfo]:
    process = _read_process(pid)
    for _ in range(MAX_ANCESTORS):
        if process is None or process.parent <= 0:
            return
        process = _read_process(process.parent)
        if process is not None:
            yield process


def _session_leaders(pid: int) -> Iterator[_ProcessInfo]:
    """Yield the session leader of a process and the leader's ancestors."""
    with contextlib.suppress(OSError, AttributeError):  # Windows has no sessions
        leader = _read_process(os.getsid(pid))
        if leader is not None and leader.pid != pid:
            yield leader
            yield from _iterate_ancestors(leader.pid)


def _read_process(pid: int) -> _ProcessInfo | None:
    if not (_PROC / "self").exists():
        return _read_with_ps(pid)
    try:
        # The name is in parentheses and may contain others; state and parent follow it.
        parent = int((_PROC / str(pid) / "stat").read_bytes().rpartition(b") ")[2].split()[1])
        owner = (_PROC / str(pid)).stat().st_uid
    except (OSError, ValueError, IndexError):
        return None
    return _ProcessInfo(pid, _hard_limit(pid), owner, parent)


def _read_with_ps(pid: int) -> _ProcessInfo | None:
    import subprocess  # only where there is no /proc

    show_environment = "-E" if sys.platform == "darwin" else "e"
    command = ["ps", show_environment, "-ww", "-o", "ppid=,uid=,command=", "-p", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PS_TIMEOUT_S, check=False)  # noqa: S603
        parent, owner, *rest = done.stdout.decode(errors="replace").split(None, 2)
        return _ProcessInfo(pid, None, int(owner), int(parent), rest[0] if rest else "")
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def _hard_limit(pid: int, if_denied: int | None = None) -> int | None:
    """Return a process's hard limit on resident memory in bytes; None if unlimited or unreadable.

    `if_denied` is returned for a process whose limits may not be read.
    """
    try:
        lines = (_PROC / str(pid) / "limits").read_text("ascii", "replace").splitlines()
    except PermissionError:
        return if_denied
    except OSError:
        return None
    found = next((line.split() for line in lines if line.startswith("Max resident set")), [])
    return int(found[4]) if len(found) > 4 and found[4].isdecimal() else None


def _marked_variable(pid: int, text: str) -> str:
    if text:
        return next((name for name in ENVIRONMENT_MARKS if f" {name}=" in text), "")
    try:
        with (_PROC / str(pid) / "environ").open("rb") as stream:
            entries = stream.read(MAX_ENVIRON_BYTES).split(b"\0")
    except OSError:
        return ""
    set_names = {entry.partition(b"=")[0].decode(errors="replace") for entry in entries}
    return next((name for name in ENVIRONMENT_MARKS if name in set_names), "")


def _has_beacon(pid: int) -> bool:
    folder = f"{_PROC}/{pid}/fd"
    try:
        with os.scandir(folder) as entries:
            return any(
                _is_beacon(f"{folder}/{each.name}") for each in itertools.islice(entries, MAX_DESCRIPTORS)
            )
    except OSError:
        return False


def _is_beacon(descriptor: str) -> bool:
    try:
        return os.readlink(descriptor).startswith(_BEACON_TARGET)  # noqa: PTH115 - not a path
    except OSError:  # it was closed
        return False


def _all_pids() -> Iterator[int]:
    try:
        yield from (int(each.name) for each in _PROC.iterdir() if each.name.isdecimal())
    except OSError:
        return


def _is_own_process(pid: int) -> bool:
    """Return True if the process `pid` is running as this user; False for zombies.

    The owner of its directory in /proc does not tell: a process can make it root's.
    """
    try:
        lines = (_PROC / str(pid) / "status").read_text("ascii", "replace").splitlines()
    except OSError:
        return False
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    # A process whose first thread has ended is shown as a zombie too, but counts more threads.
    has_ended = fields.get("State", [""])[0] in ("Z", "X") and fields.get("Threads") in (["0"], ["1"])
    return str(os.getuid()) in fields.get("Uid", []) and not has_ended
