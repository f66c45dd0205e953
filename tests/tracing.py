"""Runs a program without network, and records the addresses it contacts and the files it writes.

`strace` records the system calls of the program and its children in an empty network namespace.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CALLS = "%network,%file"
PROBE_TIMEOUT_S = 30
# strace prints arguments when a call starts, so a line may be incomplete.
_CALL = re.compile(r"^\d+ +(?P<name>\w+)\((?P<rest>.*)$")
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_DIRECTORY = re.compile(r"^(?:AT_FDCWD|\d+)<([^>]*)>, $")
_CHANGES = frozenset(
    (
        *("mkdir", "mkdirat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", "creat"),
        *("link", "linkat", "symlink", "symlinkat", "mknod", "mknodat", "truncate", "mount"),
        *("chmod", "fchmodat", "chown", "lchown", "fchownat", "utimensat", "setxattr"),
    )
)
_WRITES = re.compile(r"\bO_(?:WRONLY|RDWR|CREAT|TRUNC|APPEND)\b")
_NAME_SERVICE = ("/etc/resolv.conf", "/etc/hosts")


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded behaviour of a program."""

    contacts: tuple[str, ...]
    """System calls that looked up a name, or addressed anything but a pipe between its own processes."""
    written: tuple[Path, ...]
    """Files that it created, changed, removed or opened for writing."""


def untraceable_reason() -> str:
    """Return why programs cannot be traced here; empty if they can."""
    for program in ("strace", "unshare"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    probe = trace_argv(["true"], Path("/dev/null"))
    done = subprocess.run(probe, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    return f"no namespaces or no tracing here: {done.stderr.strip()}" if done.returncode else ""


def trace_argv(argv: Sequence[str], record: Path) -> list[str]:
    """Return the command that runs a program without network and records its system calls."""
    strace = ("strace", "-f", "-y", "-q", "--seccomp-bpf", "-s", "4096", "-o", str(record))
    return ["unshare", "--map-root-user", "--net", *strace, "-e", f"trace={CALLS}", *argv]


def read_trace(record: Path) -> Trace:
    """Parse the system call record of a traced program."""
    contacts: list[str] = []
    written: dict[Path, None] = {}
    for line in record.read_text(errors="replace").splitlines():
        found = _CALL.match(line)
        if not found:
            continue
        name, rest = found["name"], found["rest"]
        if _is_contact(name, rest):
            contacts.append(f"{name}({rest}")
        if name in _CHANGES or (name.startswith("open") and _WRITES.search(_TEXT.sub("", rest))):
            written |= dict.fromkeys(_absolute_paths(rest))
    return Trace(tuple(contacts), tuple(written))


def _is_contact(name: str, rest: str) -> bool:
    if name.startswith("open"):
        return any(f'"{path}"' in rest for path in _NAME_SERVICE)
    return name in ("connect", "sendto", "sendmsg", "sendmmsg", "bind", "listen") and "sa_family=" in rest


def _absolute_paths(rest: str) -> Iterator[Path]:
    """Yield the paths among the arguments of a call, made absolute by the directories that strace adds."""
    end = 0
    for text in _TEXT.finditer(rest):
        folder = _DIRECTORY.search(rest[end : text.start()].lstrip(", "))
        yield Path(folder[1] if folder else "/") / text[1]
        end = text.end()
