"""The places of the contract that are somebody's cloud: their real SDKs, against servers of our own.

Each server is one process on this machine that ends when the test process does, and its sandboxes with it.
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

from toolfold.environments.daytona import Daytona, DaytonaSandbox
from toolfold.environments.modal import Modal, ModalSandbox

Options = dict[str, str]
Made = Modal | Daytona
LEASE = 30
"""Long enough for a busy machine; where a test waits for its end, it asks for a short one."""
SHORT_LEASE = {"lease": "6"}
PATIENCE = 60.0
TOKENS = {
    "modal": {"MODAL_TOKEN_ID": "ak-test", "MODAL_TOKEN_SECRET": "as-test"},
    "daytona": {"DAYTONA_API_KEY": "dtn-test"},
}


class Clouds:
    """The servers of one test process."""

    def __init__(self) -> None:
        self._urls: dict[str, str] = {}
        self._folders: dict[str, Path] = {}
        self._servers: dict[str, subprocess.Popen[str]] = {}
        self._stopping = contextlib.ExitStack()

    def url(self, name: str) -> str:
        """Where the cloud of this name is; it is started when it is first asked for."""
        if name not in self._urls:
            self._urls[name] = self._start(name)
        return self._urls[name]

    def running(self, name: str, options: Options) -> list[dict[str, object]]:
        """The sandboxes that were made there with these options and run, each with its limits."""
        notes = (json.loads(note.read_text()) for note in self._folders[name].glob("*.json"))
        return [note for note in notes if options["home"] in note["home"]]

    @contextmanager
    def silent(self, name: str) -> Iterator[None]:
        """As where a network swallows everything: connections stay open, and nobody answers."""
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
        self._stopping.callback(_ended, server)
        self._stopping.callback(server.stdin.close)
        return server.stdout.readline().strip()


def _ended(server: subprocess.Popen[str]) -> None:
    try:
        server.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


CLOUDS = Clouds()


class Maker(Protocol):
    """Makes a backend for a sandbox."""

    def __call__(self, options: Mapping[str, str], *, kept: bool = True) -> Made: ...


def modal(options: Mapping[str, str], *, kept: bool = True) -> Modal:
    # The SDK takes what it needs from the environment of its process, and nothing else tells it its server.
    os.environ.update({"MODAL_SERVER_URL": options["url"], **TOKENS["modal"]})
    return Modal(_modal(options), key=options["key"], kept=kept, lease=int(options.get("lease", LEASE)))


def daytona(options: Mapping[str, str], *, kept: bool = True) -> Daytona:
    known = {"DAYTONA_API_URL": options["url"], **({} if options.get("unknown") else TOKENS["daytona"])}
    lease = int(options.get("lease", LEASE))
    return Daytona(_daytona(options), environment=known, key=options["key"], kept=kept, lease=lease)


def _modal(options: Mapping[str, str]) -> ModalSandbox:
    return ModalSandbox(home=options["home"], notes=options["notes"])


def _daytona(options: Mapping[str, str]) -> DaytonaSandbox:
    return DaytonaSandbox(home=options["home"], notes=options["notes"])


def name_of(name: str, options: Mapping[str, str]) -> str:
    """What the cloud calls the sandbox."""
    wanted = _modal(options) if name == "modal" else _daytona(options)
    return f"toolfold-{wanted.place(options['key'])}"


MAKERS: dict[str, Maker] = {"modal": modal, "daytona": daytona}


def without_credentials(name: str, options: Mapping[str, str]) -> Made:
    """A backend in a process that has never been given any."""
    backend = MAKERS[name]({**options, "unknown": "yes"})
    for variables in TOKENS.values():
        for variable in variables:
            os.environ.pop(variable, None)
    os.environ["MODAL_CONFIG_PATH"] = os.devnull
    return backend


@contextmanager
def sandbox(name: str, tmp_path: Path) -> Iterator[Options]:
    """What it takes to have a sandbox that nobody else finds. It ends with its server."""
    if not importlib.util.find_spec(name):
        pytest.skip(f"the package `{name}` is not installed: pip install 'toolfold[{name}]'")
    yield {
        "url": CLOUDS.url(name),
        "key": secrets.token_hex(8),
        "home": str(tmp_path / "project"),
        "notes": str(tmp_path / "notes"),
    }


def prepared(name: str) -> Callable[[Path], contextlib.AbstractContextManager[Options]]:
    return partial(sandbox, name)
