"""Real servers for the tests: dockerd, podman, sshd and apptainer, private to one test process.

Each is started on first use and keeps its files below one temporary directory. `close` stops them and
removes all processes, mounts and files. If one is unavailable, its tests are skipped with the reason.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

WAIT_TIMEOUT_S = 120.0
IMAGE = "toolfold-test"
PYTHON_IMAGE = "toolfold-test-python"
ROOT = Path(__file__).parents[2]
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
Options = dict[str, str]


class ServerUnavailable(Exception):
    """A server that a test needs cannot run on this machine."""


class Servers:
    """All servers of one test process."""

    def __init__(self) -> None:
        self._ready: dict[str, Options | ServerUnavailable] = {}
        self._stopping: list[Callable[[], object]] = []
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """Directory directly below the system's temporary directory: socket paths must be short."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="toolfold-"))
        return self._folder

    def docker(self) -> Options:
        """Return options to connect to a dockerd."""
        return self._once("docker", self._start_docker)

    def podman(self) -> Options:
        """Return options for podman with a private store."""
        return self._once("podman", self._start_podman)

    def ssh(self) -> Options:
        """Return options to log in to an sshd on this machine."""
        return self._once("ssh", self._start_ssh)

    def apptainer(self) -> Options:
        """Return options for apptainer with a root file system."""
        return self._once("apptainer", self._start_apptainer)

    def docker_with_python(self) -> Options:
        """Return options for docker with an image that has Python."""
        options = self.docker()
        return self._once("docker_with_python", lambda: self._add_python_image(options))

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
            except ServerUnavailable as missing:
                self._ready[name] = missing
        found = self._ready[name]
        if isinstance(found, ServerUnavailable):
            pytest.skip(f"{name}: {found}")
        return found

    def _start_docker(self) -> Options:
        _require_root()
        daemon, client = _require_program("dockerd", "docker.io"), _docker_client()
        folder = self.folder / "docker"
        folder.mkdir()
        host = f"unix://{folder}/socket"
        command = [daemon, "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
        command += ["--pidfile", f"{folder}/pid", "-H", host]
        command += ["--bridge=none", "--iptables=false", "--ip-forward=false"]
        running = _start_process(command, folder / "log")
        self._stopping.append(lambda: _stop(running))
        environment = {**os.environ, "DOCKER_HOST": host}
        _wait_until(lambda: _succeeds([client, "version"], environment), running, folder / "log")
        self._import(client, environment)
        return {"program": client, "DOCKER_HOST": host, "image": IMAGE}

    def _start_podman(self) -> Options:
        _require_root()
        program = _require_program("podman", "podman")
        _require_program("runc", "runc")
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
        _require_root()
        daemon, _ = _require_program("sshd", "openssh-server"), _require_program("ssh", "openssh-client")
        folder = self.folder / "ssh"
        folder.mkdir(mode=0o700)
        for name in ("host_key", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        shutil.copy(folder / "key.pub", folder / "authorized_keys")
        (folder / "home").mkdir()  # without the user's shell startup files
        port = _free_port()
        Path("/run/sshd").mkdir(exist_ok=True)
        (folder / "config").write_text(
            f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host_key\nPidFile {folder}/pid\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nPermitRootLogin prohibit-password\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\n"
            f"UseDNS no\nPrintMotd no\nSetEnv HOME={folder}/home\n"
        )
        running = _start_process([daemon, "-D", "-e", "-f", f"{folder}/config"], folder / "log")
        self._stopping.append(lambda: _stop(running))
        _wait_until(lambda: _is_listening(port), running, folder / "log")
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
        _require_root()
        ours = Path(sys.prefix, "test_tools/apptainer/usr/bin/apptainer")
        program = shutil.which("apptainer", path=_PATH) or (str(ours) if ours.exists() else None)
        if program is None:
            raise ServerUnavailable("apptainer is not installed: `make test-tools`")
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
                raise ServerUnavailable(
                    f"it does not run: {tried.stderr.decode(errors='replace').strip()[-300:]}"
                )
        self._stopping.append(
            lambda: subprocess.run(
                [program, "instance", "stop", "--all", "--force"], env=environment, capture_output=True
            )
        )
        return {"program": program, "image": f"{folder}/root", **reach}

    def _add_python_image(self, options: Options) -> Options:
        root = self.folder / "python_image"
        _make_root(root)
        program, library = Path(sys.executable).resolve(), sysconfig.get_path("stdlib")
        script = ROOT / "scripts/test_servers/python_image.sh"
        subprocess.run(["sh", script, root, program, library], check=True)
        self._import(options["program"], {**os.environ, **options}, root=root, image=PYTHON_IMAGE)
        return {**options, "image": PYTHON_IMAGE}

    def _import(
        self, client: str, environment: dict[str, str], *, root: Path | None = None, image: str = IMAGE
    ) -> None:
        root = root or self.folder / "image"
        if not root.exists():
            _make_root(root)
        packed = subprocess.run(["tar", "-C", root, "-c", "."], check=True, capture_output=True).stdout
        done = subprocess.run(
            [client, "import", "-", image], input=packed, env=environment, capture_output=True
        )
        if done.returncode:
            raise ServerUnavailable(
                f"no image can be made: {done.stderr.decode(errors='replace').strip()[-300:]}"
            )


SERVERS = Servers()


def _require_root() -> None:
    if os.geteuid() != 0:
        raise ServerUnavailable("starting it needs root")


def _require_program(name: str, package: str) -> str:
    found = shutil.which(name, path=_PATH)
    if found is None:
        raise ServerUnavailable(f"{name} is not installed: `apt-get install {package}`")
    return found


def _docker_client() -> str:
    """Return the docker client that belongs to the daemon, if there are several."""
    beside = Path("/usr/bin/docker")
    return str(beside) if beside.exists() else _require_program("docker", "docker.io")


def _make_root(folder: Path) -> None:
    _require_program("busybox", "busybox-static")
    _require_program("bash-static", "bash-static")
    subprocess.run(["sh", ROOT / "scripts/test_servers/image.sh", folder], check=True)


def _start_process(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a server that ends with this process, however it ends."""
    with_us = [_require_program("setpriv", "util-linux"), "--pdeathsig", "TERM"]
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
    """Terminate a server and its descendants."""
    below = descendants(process.pid)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(WAIT_TIMEOUT_S)
    for number in (process.pid, *below):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    process.wait()


def descendants(number: int) -> list[int]:
    """Return the PIDs of all descendants of a process."""
    found: list[int] = []
    for task in Path("/proc").glob(f"{number}/task/*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def _wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + WAIT_TIMEOUT_S
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            last = log.read_text(errors="replace").strip().splitlines()[-3:]
            raise ServerUnavailable(f"it does not start: {' / '.join(last)}")
        time.sleep(0.05)


def _succeeds(command: Sequence[str], environment: dict[str, str]) -> bool:
    return subprocess.run(command, env=environment, capture_output=True).returncode == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _unmount_below(folder: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed([each for each in mounts if each.startswith(f"{folder}/")]):
        subprocess.run(["umount", "-l", mount], capture_output=True)
