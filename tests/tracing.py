"""Run a program without a network, and see which addresses it would have reached and which files it wrote.

`strace` records its system calls, and those of all that it starts, in an empty network namespace.
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
# Arguments are written when a call begins, so that a line need not be complete.
_CALL = re.compile(r"^\d+ +(?P<name>\w+)\((?P<rest>.*)$")
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_FOLDER = re.compile(r"^(?:AT_FDCWD|\d+)<([^>]*)>, $")
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
    """What was seen of a program."""

    contacts: tuple[str, ...]
    """System calls that looked up a name, or addressed anything but a pipe between its own processes."""
    written: tuple[Path, ...]
    """Files that it created, changed, removed or opened for writing."""


def why_not_traceable() -> str:
    """Return why programs cannot be traced here, or nothing if they can."""
    for program in ("strace", "unshare"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    probe = traced(["true"], Path("/dev/null"))
    done = subprocess.run(probe, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    return f"no namespaces or no tracing here: {done.stderr.strip()}" if done.returncode else ""


def traced(argv: Sequence[str], record: Path) -> list[str]:
    """Return the command that runs a program without a network and records what it does."""
    strace = ("strace", "-f", "-y", "-q", "--seccomp-bpf", "-s", "4096", "-o", str(record))
    return ["unshare", "--map-root-user", "--net", *strace, "-e", f"trace={CALLS}", *argv]


def read_trace(record: Path) -> Trace:
    """Return what a record says."""
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
            written |= dict.fromkeys(_paths(rest))
    return Trace(tuple(contacts), tuple(written))


def _is_contact(name: str, rest: str) -> bool:
    if name.startswith("open"):
        return any(f'"{path}"' in rest for path in _NAME_SERVICE)
    return name in ("connect", "sendto", "sendmsg", "sendmmsg", "bind", "listen") and "sa_family=" in rest


def _paths(rest: str) -> Iterator[Path]:
    """Yield the paths among the arguments of a call, made absolute by the folders that strace adds."""
    end = 0
    for text in _TEXT.finditer(rest):
        folder = _FOLDER.search(rest[end : text.start()].lstrip(", "))
        yield Path(folder[1] if folder else "/") / text[1]
        end = text.end()
