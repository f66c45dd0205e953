"""Real servers for the tests: a dockerd, podman, an sshd and apptainer, private to one test process.

Each is started when it is first wanted and keeps everything below one temporary folder. `close` stops them
and leaves nothing: no process, no mount, no file. Where one cannot be had, the tests that want it skip and
say why.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

PATIENCE = 120.0
IMAGE = "toolfold-test"
ROOT = Path(__file__).parents[2]
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
Options = dict[str, str]


class Missing(Exception):
    """This server cannot be had here."""


class Servers:
    """All of them. One for each test process."""

    def __init__(self) -> None:
        self._ready: dict[str, Options | Missing] = {}
        self._stopping: list[Callable[[], object]] = []
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """Directly below the usual place for temporary files: the path of a socket must be short."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="toolfold-"))
        return self._folder

    def docker(self) -> Options:
        """A dockerd, and how to reach it."""
        return self._once("docker", self._start_docker)

    def podman(self) -> Options:
        """podman, with a store of its own."""
        return self._once("podman", self._start_podman)

    def ssh(self) -> Options:
        """An sshd on this machine, and how to log in to it."""
        return self._once("ssh", self._start_ssh)

    def apptainer(self) -> Options:
        """apptainer, with a root to begin from."""
        return self._once("apptainer", self._start_apptainer)

    def close(self) -> None:
        while self._stopping:
            self._stopping.pop()()
        if self._folder:
            _unmount_below(self._folder)
            shutil.rmtree(self._folder)
            self._folder = None
        self._ready.clear()

    def _once(self, name: str, start: Callable[[], Options]) -> Options:
        if name not in self._ready:
            try:
                self._ready[name] = start()
            except Missing as missing:
                self._ready[name] = missing
        found = self._ready[name]
        if isinstance(found, Missing):
            pytest.skip(f"{name}: {found}")
        return found

    def _start_docker(self) -> Options:
        _needs_root()
        daemon, client = _program("dockerd", "docker.io"), _docker_client()
        folder = self.folder / "docker"
        folder.mkdir()
        host = f"unix://{folder}/socket"
        command = [daemon, "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
        command += ["--pidfile", f"{folder}/pid", "-H", host]
        command += ["--bridge=none", "--iptables=false", "--ip-forward=false"]
        running = _started(command, folder / "log")
        self._stopping.append(lambda: _stop(running))
        environment = {**os.environ, "DOCKER_HOST": host}
        _until(lambda: _works([client, "version"], environment), running, folder / "log")
        self._import(client, environment)
        return {"program": client, "DOCKER_HOST": host, "image": IMAGE}

    def _start_podman(self) -> Options:
        _needs_root()
        program = _program("podman", "podman")
        _program("runc", "runc")
        folder = self.folder / "podman"
        folder.mkdir()
        (folder / "containers.conf").write_text(
            '[containers]\ndefault_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]\n'
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
            f'tmp_dir = "{folder}/tmp"\n'
        )
        (folder / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/data"\nrunroot = "{folder}/run"\n'
        )
        reach = {
            "CONTAINERS_CONF": f"{folder}/containers.conf",
            "CONTAINERS_STORAGE_CONF": f"{folder}/storage.conf",
        }
        environment = {**os.environ, **reach}
        self._stopping.append(
            lambda: subprocess.run([program, "rm", "-fat", "0"], env=environment, capture_output=True)
        )
        self._import(program, environment)
        return {"program": program, "image": f"localhost/{IMAGE}", **reach}

    def _start_ssh(self) -> Options:
        _needs_root()
        daemon, _ = _program("sshd", "openssh-server"), _program("ssh", "openssh-client")
        folder = self.folder / "ssh"
        folder.mkdir(mode=0o700)
        for name in ("host_key", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        shutil.copy(folder / "key.pub", folder / "authorized_keys")
        (folder / "home").mkdir()  # without what this machine's user has a shell do at its start
        port = _free_port()
        Path("/run/sshd").mkdir(exist_ok=True)
        (folder / "config").write_text(
            f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host_key\nPidFile {folder}/pid\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nPermitRootLogin prohibit-password\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\n"
            f"UseDNS no\nPrintMotd no\nSetEnv HOME={folder}/home\n"
        )
        running = _started([daemon, "-D", "-e", "-f", f"{folder}/config"], folder / "log")
        self._stopping.append(lambda: _stop(running))
        _until(lambda: _listens(port), running, folder / "log")
        public = (folder / "host_key.pub").read_text().split()
        known = folder / "known_hosts"
        known.write_text(f"[127.0.0.1]:{port} {public[0]} {public[1]}\n")
        return {
            "host": "127.0.0.1",
            "port": str(port),
            "identity": f"{folder}/key",
            "known_hosts": str(known),
            "server": str(running.pid),
        }

    def _start_apptainer(self) -> Options:
        _needs_root()
        ours = Path(sys.prefix, "test_tools/apptainer/usr/bin/apptainer")
        program = shutil.which("apptainer", path=_PATH) or (str(ours) if ours.exists() else None)
        if program is None:
            raise Missing("apptainer is not installed: `sh scripts/prepare_tests.sh`")
        folder = self.folder / "apptainer"
        folder.mkdir()
        _make_root(folder / "made")
        reach = {"APPTAINER_CONFIGDIR": f"{folder}/state", "APPTAINER_CACHEDIR": f"{folder}/cache"}
        environment = {**os.environ, **reach}
        for words in (
            ("build", "--sandbox", f"{folder}/root", f"{folder}/made"),
            ("exec", "--containall", f"{folder}/root", "true"),
        ):
            tried = subprocess.run([program, *words], env=environment, capture_output=True)
            if tried.returncode:
                raise Missing(f"it does not run: {tried.stderr.decode(errors='replace').strip()[-300:]}")
        self._stopping.append(
            lambda: subprocess.run(
                [program, "instance", "stop", "--all", "--force"], env=environment, capture_output=True
            )
        )
        return {"program": program, "image": f"{folder}/root", **reach}

    def _import(self, client: str, environment: dict[str, str]) -> None:
        root = self.folder / "image"
        if not root.exists():
            _make_root(root)
        packed = subprocess.run(["tar", "-C", root, "-c", "."], check=True, capture_output=True).stdout
        done = subprocess.run(
            [client, "import", "-", IMAGE], input=packed, env=environment, capture_output=True
        )
        if done.returncode:
            raise Missing(f"no image can be made: {done.stderr.decode(errors='replace').strip()[-300:]}")


SERVERS = Servers()


def _needs_root() -> None:
    if os.geteuid() != 0:
        raise Missing("starting it needs root")


def _program(name: str, package: str) -> str:
    found = shutil.which(name, path=_PATH)
    if found is None:
        raise Missing(f"{name} is not installed: `apt-get install {package}`")
    return found


def _docker_client() -> str:
    """The one that came with the daemon, where there is more than one."""
    beside = Path("/usr/bin/docker")
    return str(beside) if beside.exists() else _program("docker", "docker.io")


def _make_root(folder: Path) -> None:
    _program("busybox", "busybox-static")
    _program("bash-static", "bash-static")
    subprocess.run(["sh", ROOT / "scripts/test_servers/image.sh", folder], check=True)


def _started(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a server that ends when we do, however that comes."""
    with_us = [_program("setpriv", "util-linux"), "--pdeathsig", "TERM"]
    with log.open("wb") as output:
        return subprocess.Popen(
            [*with_us, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PATH": _PATH},
        )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a server and all that it started and has not let go of."""
    below = descendants(process.pid)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE)
    for number in (process.pid, *below):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    process.wait()


def descendants(number: int) -> list[int]:
    """The processes that a process has started, and those have."""
    found: list[int] = []
    for task in Path("/proc").glob(f"{number}/task/*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def _until(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            last = log.read_text(errors="replace").strip().splitlines()[-3:]
            raise Missing(f"it does not start: {' / '.join(last)}")
        time.sleep(0.05)


def _works(command: Sequence[str], environment: dict[str, str]) -> bool:
    return subprocess.run(command, env=environment, capture_output=True).returncode == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _unmount_below(folder: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed([each for each in mounts if each.startswith(f"{folder}/")]):
        subprocess.run(["umount", "-l", mount], capture_output=True)
