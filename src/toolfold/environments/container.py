"""What a container is made of, and who made it: the words that docker and podman understand alike.

Talks to nobody: `docker.py` does.
"""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from toolfold.environments.remote import likeness

IDLE_MINUTES = 60
IDLE_MINUTES_WITHOUT_OWNER = 1
_LABEL = "dev.toolfold"
_HOMELESS = "/tmp"  # noqa: S108  (of the container: the image knows nobody of this number)
PLACE, OWNER, KEPT = f"{_LABEL}.place", f"{_LABEL}.owner", f"{_LABEL}.kept"

# The first program of a container. Waits for whatever is left to it, so that nothing stays half dead, and
# goes when it has been alone for so many minutes: itself and its sleep are the two that are always there.
_KEEPER = """trap exit TERM INT
alone=0
while [ "$alone" -lt "$1" ]; do
  sleep 60 &
  wait "$!"
  set -- "$1" /proc/[0-9]*
  alone=$((alone + 1))
  [ "$#" -le 2 ] || alone=0
  set -- "$1"
done"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder of this machine that is seen inside."""

    source: str
    target: str
    writable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """How a container is to be. All that is not said here is forbidden in it."""

    image: str
    home: str = "/workspace"
    """Where tasks begin. docker makes it where the image has no such folder, podman does not."""
    mounts: tuple[Mount, ...] = ()
    user: str = ""
    """Who runs commands, as `user:group`. Empty for whoever owns the first folder that may be written:
    without its rights, root may not write what is somebody else's. Without one, whom the image names."""
    network: bool = False
    memory: str = "4g"
    processes: int = 512
    cpus: float = 0
    """How many processors it may use; 0 for all."""
    capabilities: tuple[str, ...] = ()
    """Rights of the superuser that its root keeps; none by default."""
    options: tuple[str, ...] = ()
    """More words for `docker run`, as they are."""

    def place(self, key: str) -> str:
        """The name of a container like this one, for whoever uses this key."""
        return likeness([key, asdict(self)])

    def writer(self) -> str:
        """Whose the first folder is that may be written, where that is not root's."""
        for mount in self.mounts:
            if mount.writable:
                about = Path(mount.source).stat()
                return f"{about.st_uid}:{about.st_gid}" if about.st_uid else ""
        return ""

    def words(self, *, name: str, labels: dict[str, str], kept: bool, writer: str = "") -> list[str]:
        """What follows `docker run`."""
        idle = IDLE_MINUTES if kept else IDLE_MINUTES_WITHOUT_OWNER
        return [
            *("--detach", "--name", name),
            *(() if kept else ("--rm",)),
            *(word for label, value in labels.items() for word in ("--label", f"{label}={value}")),
            *("--cap-drop", "ALL"),
            *(word for each in self.capabilities for word in ("--cap-add", each)),
            *("--security-opt", "no-new-privileges"),
            *("--pids-limit", str(self.processes)),
            *("--memory", self.memory, "--memory-swap", self.memory),
            *(("--cpus", str(self.cpus)) if self.cpus else ()),
            *(() if self.network else ("--network", "none")),
            *(("--user", self.user or writer) if self.user or writer else ()),
            *(("--env", f"HOME={_HOMELESS}") if writer and not self.user else ()),
            *(word for mount in self.mounts for word in ("--volume", _volume(mount))),
            *("--workdir", self.home),
            *self.options,
            *("--entrypoint", "sh", self.image, "-c", _KEEPER, "toolfold", str(idle)),
        ]


def _volume(mount: Mount) -> str:
    return f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'}"


def owner() -> str:
    """This process, so that others can tell whether it is still there."""
    return f"{_machine()}.{_boot()}.{os.getpid()}.{_birth(os.getpid())}"


def is_gone(owner: str) -> bool:
    """Whether the process of this name is no more. Of one on another machine nobody here can tell."""
    machine, _, rest = owner.partition(".")
    boot, _, process = rest.partition(".")
    number, _, birth = process.partition(".")
    if machine != _machine() or not number.isdecimal():
        return False
    return boot != _boot() or birth != _birth(int(number))


def _machine() -> str:
    try:
        text = Path("/etc/machine-id").read_text()
    except OSError:
        text = platform.node()
    return hashlib.sha256(text.strip().encode()).hexdigest()[:12]


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return "0"


def _birth(number: int) -> str:
    """When a process began; empty where there is none of this number."""
    try:
        about = Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return "0" if not Path("/proc/self").exists() and _runs(number) else ""
    return about.rpartition(")")[2].split()[19]


def _runs(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
