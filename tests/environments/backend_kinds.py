"""Kinds of backends that the contract tests run on. A new backend is added to `KINDS`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.environments import cloud_backends, server_backends
from toolfold.tools.environments import Backend, Environment
from toolfold.tools.environments.local import Local
from toolfold.tools.environments.sandbox import Sandbox

Options = dict[str, str]


@dataclass(frozen=True)
class Kind:
    """Kind of backend: how to prepare a machine, and how to connect to it from any process of this one."""

    name: str
    make: Callable[[Mapping[str, str]], Backend]
    prepared: Callable[[Path], AbstractContextManager[Options]]
    """Prepares and removes what `make` needs; skips the test with a reason if it is unavailable."""


@contextmanager
def local_options(tmp_path: Path) -> Iterator[Options]:
    home = tmp_path / "project"
    home.mkdir()
    yield {"home": str(home), "notes": str(tmp_path / "notes")}


def make_local(options: Mapping[str, str]) -> Backend:
    return Local(home=Path(options["home"]), state_dir=Path(options["notes"]), environment=os.environ)


def make_busybox(options: Mapping[str, str]) -> Backend:
    environment = {"PATH": options["path"], "HOME": options["home"]}
    return Local(home=Path(options["home"]), state_dir=Path(options["notes"]), environment=environment)


@contextmanager
def busybox_options(tmp_path: Path) -> Iterator[Options]:
    """Yield options for a target with the programs of a small container only."""
    program = shutil.which("busybox")
    if program is None:
        pytest.skip("busybox is not installed: `apt-get install busybox-static`")
    path = tmp_path / "bin"
    path.mkdir()
    subprocess.run([program, "--install", "-s", path], check=True)
    with local_options(tmp_path) as options:
        yield {**options, "path": str(path)}


def make_sandbox(options: Mapping[str, str]) -> Backend:
    return Sandbox(home=Path(options["home"]), state_dir=Path(options["notes"]), environment=os.environ)


@contextmanager
def sandbox_options(tmp_path: Path) -> Iterator[Options]:
    with local_options(tmp_path) as options:
        readiness = asyncio.run(make_sandbox(options).check())
        if not readiness.available:
            pytest.skip(f"{readiness.reason}. {readiness.advice}")
        yield options


class LeasedBackend(Local):
    lease_s = 4


def make_leased(options: Mapping[str, str]) -> Backend:
    return LeasedBackend(home=Path(options["home"]), state_dir=Path(options["notes"]), environment=os.environ)


LEASED = Kind("leased", make_leased, local_options)
KINDS: tuple[Kind, ...] = (
    Kind("local", make_local, local_options),
    Kind("busybox", make_busybox, busybox_options),
    Kind("sandbox", make_sandbox, sandbox_options),
    Kind("docker", server_backends.make_container, server_backends.docker_options),
    Kind("podman", server_backends.make_container, server_backends.podman_options),
    Kind("ssh", server_backends.make_ssh, server_backends.ssh_options),
    Kind("apptainer", server_backends.make_apptainer, server_backends.apptainer_options),
    Kind("modal", cloud_backends.make_modal, cloud_backends.prepare_sandbox("modal")),
    Kind("daytona", cloud_backends.make_daytona, cloud_backends.prepare_sandbox("daytona")),
)


def find_traces(token: str, *, variables: bool = True) -> list[str]:
    """Return the processes on this machine, containers included, that contain the token.

    Searches their arguments and, with `variables`, their environment.
    """
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            words = (folder / "cmdline").read_bytes()
            about = words + (folder / "environ").read_bytes() if variables else words
        except OSError:  # it has ended, or belongs to another user
            continue
        if token.encode() in about:
            found.append(f"{folder.name}: {words.decode(errors='replace')}")
    return found


async def client() -> None:
    """Run a command, or start a background process, in a separate client process that a test can kill."""
    name, options, how, command = sys.argv[1:]
    (kind,) = (kind for kind in (*KINDS, LEASED) if kind.name == name)
    environment = Environment(kind.make(json.loads(options)))
    if how == "background":
        print((await environment.start_process(command)).name, flush=True)
        await asyncio.Event().wait()
    await environment.run(command, listener=lambda text: print(text, end="", flush=True))


if __name__ == "__main__":
    asyncio.run(client())
