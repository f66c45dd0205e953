"""The processes that `benchmarks/load.py` measures: replicas, database, disk, backend and other gateways.

Everything is in one directory and ends with the `with` block that created it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.postgres import PostgresServer, create_cluster

from measuring.processes import cpu_of, free_port
from toolfold.serving.gateway.client_tokens import SharedTokens
from toolfold.state.database import open_database

DIRECTORY = Path(__file__).parent
BACKEND = str(DIRECTORY / "load_backend.py")
MODEL = str(DIRECTORY / "model_upstream.py")
TOOLFOLD = str(Path(sys.executable).with_name("toolfold"))
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
MAX_IDLE_CPU_S = 0.05
DISK_MB = 700
DATABASE_SETTINGS = {  # fsync is off because the disk is in memory; all other settings are PostgreSQL's own
    "listen_addresses": "",
    "fsync": "off",
    "max_connections": "60",
    "max_wal_size": "128MB",
    "jit": "off",
}


@dataclass(slots=True)
class Process:
    """A program that can be killed and started again on the same port."""

    name: str
    argv: Sequence[str]
    port: int
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.env},
                start_new_session=True,
            )

    def wait_until_open(self) -> None:
        """Wait until the port accepts connections."""
        self._wait_for(self._is_open)

    def wait_until_ready(self) -> None:
        """Wait until `/readyz` answers with status 200."""
        self._wait_for(self._is_ready)

    def wait_until_idle(self) -> None:
        """Wait until the process has built its index and uses hardly any CPU; for START_TIMEOUT_S at most."""
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            before = cpu_of(self.pid)
            time.sleep(1.0)
            if cpu_of(self.pid) - before < MAX_IDLE_CPU_S:
                return

    def find_tracebacks(self) -> list[str]:
        """Return the last line of each traceback in the log, which names the exception."""
        blocks = self.log.read_text(errors="replace").split("Traceback (most recent call last):\n")[1:]
        return [_find_exception(each) for each in blocks]

    def memory_mb(self) -> float:
        """Return the resident memory; 0 if the process does not run."""
        try:
            text = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return 0.0
        return next((int(row.split()[1]) / 1024 for row in text.splitlines() if row.startswith("VmRSS")), 0.0)

    @property
    def pid(self) -> int:
        return self.running.pid if self.running else 0

    def kill(self) -> None:
        """End the process and its children at once."""
        if self.running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.running.pid, signal.SIGKILL)
            self.running.wait()

    def stop(self) -> None:
        if self.running is None:
            return
        self.running.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.running.wait(STOP_TIMEOUT_S)
        self.kill()

    def _is_open(self) -> bool:
        import socket

        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=2).close()
        except OSError:
            return False
        return True

    def _is_ready(self) -> bool:
        try:
            return bool(
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5).status == 200
            )
        except OSError:
            return False

    def _wait_for(self, condition: Any) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while not condition():
            if (self.running is None or self.running.poll() is not None) or time.monotonic() > end:
                raise SystemExit(f"{self.name} did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.1)


def _find_exception(traceback: str) -> str:
    """Return the first line that is not indented."""
    return next((line for line in traceback.splitlines() if not line.startswith(" ")), "")


class Disk:
    """The disk of replicas and database: a small file system in memory, which a test can fill.

    Without the right to mount one, a limit on the size of files is set for the replicas instead.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=755", "toolfold-load", str(directory)]
        self.is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0

    @property
    def kind(self) -> str:
        return "a file system of its own" if self.is_mounted else "a limit on the size of the replicas' files"

    def fill(self, replicas: Sequence[Process]) -> None:
        """Make all further writes to files fail."""
        if not self.is_mounted:
            for each in replicas:
                resource.prlimit(each.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            return
        with (self.directory / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"\0" * size):
                        pass

    def free(self, replicas: Sequence[Process]) -> None:
        """Free the space that `fill` has taken, so that writes succeed again."""
        (self.directory / "ballast").unlink(missing_ok=True)
        if not self.is_mounted:
            for each in replicas:
                unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                resource.prlimit(each.pid, resource.RLIMIT_FSIZE, unlimited)

    def unmount(self) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self.directory)], check=False)


@dataclass(slots=True)
class Site:
    """Replicas of the gateway with one database, and the MCP server and model provider behind them."""

    disk: Disk
    database: PostgresServer
    database_url: str
    backend: Process
    model: Process
    replicas: list[Process]
    tokens: list[str]
    outside: Path
    """Directory that is not on the disk that can be filled."""

    @property
    def journal(self) -> Path:
        return self.outside / "journal"

    async def restart_database(self, seconds: float) -> None:
        """Stop the database, and start it again after some seconds."""
        await asyncio.to_thread(self.database.stop)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.database.start)

    async def fill_disk(self, seconds: float) -> None:
        """Fill the disk for some seconds; restart the database if it has crashed."""
        self.disk.fill(self.replicas)
        await asyncio.sleep(seconds)
        self.disk.free(self.replicas)
        await asyncio.sleep(1.0)
        if self.database.process is None or self.database.process.poll() is not None:
            await asyncio.to_thread(self.database.start)

    async def kill_replica(self, replica: Process, seconds: float) -> None:
        """Kill a replica, and start it again after some seconds."""
        replica.kill()
        await asyncio.sleep(seconds)
        replica.start()
        await asyncio.to_thread(replica.wait_until_ready)


@contextmanager
def run_site(replicas: int, clients: int) -> Iterator[Site]:
    """Run replicas with a database, a backend and a model; `clients` is the number of access tokens."""
    outside = Path(tempfile.mkdtemp(prefix="toolfold-load-", dir="/tmp"))  # short: a socket's path is in it
    outside.chmod(0o755)
    (outside / "disk").mkdir()
    disk = Disk(outside / "disk")
    started: list[Process] = []
    database: PostgresServer | None = None
    try:
        folder = outside / "disk" / "pg"
        folder.mkdir()
        create_cluster(folder)
        database = PostgresServer(folder, settings=dict(DATABASE_SETTINGS))
        database.start()
        url = database.create_database()
        backend, model = _make_backend(outside), _make_model(outside)
        settings = _make_settings(url, backend.port, model.port)
        made = [_make_replica(outside, number, settings) for number in range(replicas)]
        for each in (backend, model):
            each.start()
            started.append(each)
            each.wait_until_open()
        tokens = _create_tokens(url, clients)
        for each in made:
            each.start()
            started.append(each)
        for each in made:
            each.wait_until_ready()
        yield Site(disk, database, url, backend, model, made, tokens, outside)
    finally:
        for each in reversed(started):
            each.stop()
        if database is not None:
            database.stop()
        disk.unmount()
        shutil.rmtree(outside, ignore_errors=True)


def _make_backend(folder: Path) -> Process:
    port = free_port()
    argv = [sys.executable, BACKEND, str(folder / "journal"), "--port", str(port)]
    return Process("backend", argv, port, folder / "backend.log")


def _make_model(folder: Path) -> Process:
    port = free_port()
    return Process("model", [sys.executable, MODEL, str(port)], port, folder / "model.log")


def _make_settings(url: str, backend: int, model: int) -> dict[str, Any]:
    provider = {"dialect": "openai", "base_url": f"http://127.0.0.1:{model}/v1"}
    return {
        "store": url,
        "mcp": {"servers": {"load": {"url": f"http://127.0.0.1:{backend}/mcp"}}, "wait_seconds": 60},
        "dashboard": {"history_content": True},  # so that entries can be compared with what clients sent
        "providers": {"openai": provider},
        "proxy": {"folding": "on", "native": "off"},
        "tools": {"selection": "hybrid"},
        "approval": {"allowed_tools": ["tool:mcp_load_erase"]},
    }


def _make_replica(outside: Path, number: int, settings: Mapping[str, Any]) -> Process:
    home = outside / "disk" / f"replica{number}"
    home.mkdir()
    (home / "config.yaml").write_text(json.dumps(settings))
    port = free_port()
    argv = [TOOLFOLD, "serve", "--port", str(port)]
    env = {"TOOLFOLD_HOME": str(home), "HOME": str(home)}
    return Process(f"replica {number + 1}", argv, port, outside / f"replica{number}.log", env)


def _create_tokens(url: str, clients: int) -> list[str]:
    """Create access tokens in the shared database and return them."""
    database = open_database(url)
    assert database is not None
    try:
        tokens = SharedTokens(database)
        return [tokens.add(f"client{number}", ["mcp-load"], may_use_keys=True) for number in range(clients)]
    finally:
        database.close()
