"""Cloud backends for the contract tests: their real SDKs against fake servers.

Each server is a process on this machine that ends with the test process, together with its sandboxes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from toolfold.tools.environments.daytona import Daytona, DaytonaSandboxSpec
from toolfold.tools.environments.modal import Modal, ModalSandboxSpec

Options = dict[str, str]
CloudBackend = Modal | Daytona
LEASE = 30
"""Long enough for a busy machine; tests that wait for its end use a short one."""
SHORT_LEASE = {"lease": "6"}
WAIT_TIMEOUT_S = 60.0
TOKENS = {
    "modal": {"MODAL_TOKEN_ID": "ak-test", "MODAL_TOKEN_SECRET": "as-test"},
    "daytona": {"DAYTONA_API_KEY": "dtn-test"},
}


class CloudServers:
    """Fake cloud servers of one test process."""

    def __init__(self) -> None:
        self._urls: dict[str, str] = {}
        self._folders: dict[str, Path] = {}
        self._servers: dict[str, subprocess.Popen[str]] = {}
        self._stopping = contextlib.ExitStack()

    def url(self, name: str) -> str:
        """Return the URL of a cloud; start its server on first use."""
        if name not in self._urls:
            self._urls[name] = self._start(name)
        return self._urls[name]

    def list_running(self, name: str, options: Options) -> list[dict[str, object]]:
        """Return the limits of the running sandboxes that were created with the given options."""
        notes = (json.loads(note.read_text()) for note in self._folders[name].glob("*.json"))
        return [note for note in notes if options["home"] in note["home"]]

    @contextmanager
    def silenced(self, name: str) -> Iterator[None]:
        """Suspend the server: connections stay open, but nothing is answered."""
        self._servers[name].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._servers[name].send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._stopping.close()
        self._urls.clear()

    def _start(self, name: str) -> str:
        folder = self._stopping.enter_context(tempfile.TemporaryDirectory(prefix=f"toolfold-{name}-"))
        self._folders[name] = Path(folder)
        server = subprocess.Popen(
            [sys.executable, "-m", f"tests.environments.fake_{name}", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._servers[name] = server
        assert server.stdin is not None
        assert server.stdout is not None
        self._stopping.callback(server.stdout.close)
        self._stopping.callback(_stop_server, server)
        self._stopping.callback(server.stdin.close)
        return server.stdout.readline().strip()


def _stop_server(server: subprocess.Popen[str]) -> None:
    try:
        server.wait(WAIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


CLOUD_SERVERS = CloudServers()


class BackendMaker(Protocol):
    """Factory of a backend for a cloud sandbox."""

    def __call__(self, options: Mapping[str, str], *, kept: bool = True) -> CloudBackend: ...


def make_modal(options: Mapping[str, str], *, kept: bool = True) -> Modal:
    # The SDK reads its server URL and credentials only from environment variables.
    os.environ.update({"MODAL_SERVER_URL": options["url"], **TOKENS["modal"]})
    return Modal(
        _modal_spec(options), key=options["key"], persistent=kept, lease_s=int(options.get("lease", LEASE))
    )


def make_daytona(options: Mapping[str, str], *, kept: bool = True) -> Daytona:
    known = {"DAYTONA_API_URL": options["url"], **({} if options.get("unknown") else TOKENS["daytona"])}
    lease = int(options.get("lease", LEASE))
    return Daytona(
        _daytona_spec(options), environment=known, key=options["key"], persistent=kept, lease_s=lease
    )


def _modal_spec(options: Mapping[str, str]) -> ModalSandboxSpec:
    return ModalSandboxSpec(home=options["home"], notes=options["notes"])


def _daytona_spec(options: Mapping[str, str]) -> DaytonaSandboxSpec:
    return DaytonaSandboxSpec(home=options["home"], notes=options["notes"])


def sandbox_name(name: str, options: Mapping[str, str]) -> str:
    """Return the name of the sandbox at the cloud."""
    wanted = _modal_spec(options) if name == "modal" else _daytona_spec(options)
    return f"toolfold-{wanted.identifier(options['key'])}"


MAKERS: dict[str, BackendMaker] = {"modal": make_modal, "daytona": make_daytona}


def make_without_credentials(name: str, options: Mapping[str, str]) -> CloudBackend:
    """Return a backend in a process without credentials."""
    backend = MAKERS[name]({**options, "unknown": "yes"})
    for variables in TOKENS.values():
        for variable in variables:
            os.environ.pop(variable, None)
    os.environ["MODAL_CONFIG_PATH"] = os.devnull
    return backend


@contextmanager
def sandbox_options(name: str, tmp_path: Path) -> Iterator[Options]:
    """Yield options for a sandbox with a unique key. It ends with its server."""
    if not importlib.util.find_spec(name):
        pytest.skip(f"the package `{name}` is not installed: pip install 'toolfold[{name}]'")
    yield {
        "url": CLOUD_SERVERS.url(name),
        "key": secrets.token_hex(8),
        "home": str(tmp_path / "project"),
        "notes": str(tmp_path / "notes"),
    }


def prepare_sandbox(name: str) -> Callable[[Path], contextlib.AbstractContextManager[Options]]:
    return partial(sandbox_options, name)
