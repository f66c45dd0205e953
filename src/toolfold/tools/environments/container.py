"""Specify a container and its owner, as arguments that docker and podman both accept.

Runs nothing itself: `docker.py` does.
"""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from toolfold.tools.environments.remote_commands import fingerprint

IDLE_MINUTES = 60
IDLE_MINUTES_WITHOUT_OWNER = 1
_LABEL = "dev.toolfold"
_FALLBACK_HOME = "/tmp"  # noqa: S108  (in the container: the image has no user with this number)
PLACE_LABEL, OWNER_LABEL, KEPT_LABEL = f"{_LABEL}.place", f"{_LABEL}.owner", f"{_LABEL}.kept"

# The init program of a container. Reaps orphaned processes, so that none stays a zombie, and exits after $1
# minutes without other processes: it and its `sleep` are always there.
_INIT_SCRIPT = """trap exit TERM INT
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
    """Directory of this machine that is mounted in a container."""

    source: str
    target: str
    writable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """Specification of a container: image, mounts, user, network access and resource limits.

    The container has no directories of this machine, capabilities or network access that are not listed.
    """

    image: str
    home: str = "/workspace"
    """Directory in which tasks start. docker creates it if the image lacks it, podman does not."""
    mounts: tuple[Mount, ...] = ()
    user: str = ""
    """User that runs commands, as `user:group`.

    If empty, the owner of the first writable mount, because root without capabilities may not write
    other users' files; without such a mount, the image's user.
    """
    network: bool = False
    memory: str = "4g"
    processes: int = 512
    cpus: float = 0
    """Maximum number of processors; 0 for all."""
    capabilities: tuple[str, ...] = ()
    """Linux capabilities that root keeps in the container; none by default."""
    options: tuple[str, ...] = ()
    """Further options for `docker run`, passed unchanged."""

    def identifier(self, key: str) -> str:
        """Return the identifier of a container: a hash of this specification and `key`."""
        return fingerprint([key, asdict(self)])

    def mount_owner(self) -> str:
        """Return the `user:group` to run commands as: the first writable mount's owner, or empty for root."""
        for mount in self.mounts:
            if mount.writable:
                status = Path(mount.source).stat()
                return f"{status.st_uid}:{status.st_gid}" if status.st_uid else ""
        return ""

    def run_arguments(
        self, *, name: str, labels: dict[str, str], persistent: bool, mount_owner: str = ""
    ) -> list[str]:
        """Return the arguments of `docker run`."""
        idle = IDLE_MINUTES if persistent else IDLE_MINUTES_WITHOUT_OWNER
        return [
            *("--detach", "--name", name),
            *(() if persistent else ("--rm",)),
            *(word for label, value in labels.items() for word in ("--label", f"{label}={value}")),
            *("--cap-drop", "ALL"),
            *(word for each in self.capabilities for word in ("--cap-add", each)),
            *("--security-opt", "no-new-privileges"),
            *("--pids-limit", str(self.processes)),
            *("--memory", self.memory, "--memory-swap", self.memory),
            *(("--cpus", str(self.cpus)) if self.cpus else ()),
            *(() if self.network else ("--network", "none")),
            *(("--user", self.user or mount_owner) if self.user or mount_owner else ()),
            *(("--env", f"HOME={_FALLBACK_HOME}") if mount_owner and not self.user else ()),
            *(word for mount in self.mounts for word in ("--volume", _volume_argument(mount))),
            *("--workdir", self.home),
            *self.options,
            *("--entrypoint", "sh", self.image, "-c", _INIT_SCRIPT, "toolfold", str(idle)),
        ]


def _volume_argument(mount: Mount) -> str:
    return f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'}"


def current_owner() -> str:
    """Return an identifier of this process with which other processes can check whether it still runs."""
    return f"{_machine_id()}.{_boot_id()}.{os.getpid()}.{_start_time(os.getpid())}"


def has_exited(owner: str) -> bool:
    """Return True if the process that owns a container has exited; False if that is unknown."""
    machine, _, rest = owner.partition(".")
    boot, _, process = rest.partition(".")
    pid, _, start_time = process.partition(".")
    if machine != _machine_id() or not pid.isdecimal():
        return False
    return boot != _boot_id() or start_time != _start_time(int(pid))


def _machine_id() -> str:
    try:
        text = Path("/etc/machine-id").read_text()
    except OSError:
        text = platform.node()
    return hashlib.sha256(text.strip().encode()).hexdigest()[:12]


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return "0"


def _start_time(pid: int) -> str:
    """Return the start time of a process; empty if no process has this id."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "0" if not Path("/proc/self").exists() and _is_running(pid) else ""
    return status.rpartition(")")[2].split()[19]


def _is_running(pid: int) -> bool:
    if os.name != "posix":  # on Windows, signal 0 is Ctrl-C
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
