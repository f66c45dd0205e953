"""The places that the contract is proved in. A new backend adds itself to `KINDS` and has to pass it all."""

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

from tests.environments import clouds, elsewhere
from toolfold.environments import Backend, Environment
from toolfold.environments.local import Local
from toolfold.environments.sandbox import Sandbox

Options = dict[str, str]


@dataclass(frozen=True)
class Kind:
    """One kind of place: how to have one, and how to reach it, from any process on this machine."""

    name: str
    make: Callable[[Mapping[str, str]], Backend]
    prepared: Callable[[Path], AbstractContextManager[Options]]
    """Sets up what `make` needs, and takes it down again; skips the test, with a reason, where it cannot."""


@contextmanager
def folders(tmp_path: Path) -> Iterator[Options]:
    home = tmp_path / "project"
    home.mkdir()
    yield {"home": str(home), "notes": str(tmp_path / "notes")}


def local(options: Mapping[str, str]) -> Backend:
    return Local(home=Path(options["home"]), notes=Path(options["notes"]), environment=os.environ)


def bare(options: Mapping[str, str]) -> Backend:
    environment = {"PATH": options["path"], "HOME": options["home"]}
    return Local(home=Path(options["home"]), notes=Path(options["notes"]), environment=environment)


@contextmanager
def busybox(tmp_path: Path) -> Iterator[Options]:
    """A place that has what a small container has, and nothing else."""
    program = shutil.which("busybox")
    if program is None:
        pytest.skip("busybox is not installed: `apt-get install busybox-static`")
    path = tmp_path / "bin"
    path.mkdir()
    subprocess.run([program, "--install", "-s", path], check=True)
    with folders(tmp_path) as options:
        yield {**options, "path": str(path)}


def sandbox(options: Mapping[str, str]) -> Backend:
    return Sandbox(home=Path(options["home"]), notes=Path(options["notes"]), environment=os.environ)


@contextmanager
def walled(tmp_path: Path) -> Iterator[Options]:
    with folders(tmp_path) as options:
        readiness = asyncio.run(sandbox(options).check())
        if not readiness.available:
            pytest.skip(f"{readiness.reason}. {readiness.advice}")
        yield options


class Leased(Local):
    lease = 4


def leased(options: Mapping[str, str]) -> Backend:
    return Leased(home=Path(options["home"]), notes=Path(options["notes"]), environment=os.environ)


LEASED = Kind("leased", leased, folders)
KINDS: tuple[Kind, ...] = (
    Kind("local", local, folders),
    Kind("busybox", bare, busybox),
    Kind("sandbox", sandbox, walled),
    Kind("docker", elsewhere.container, elsewhere.docker),
    Kind("podman", elsewhere.container, elsewhere.podman),
    Kind("ssh", elsewhere.machine, elsewhere.ssh),
    Kind("apptainer", elsewhere.instance, elsewhere.apptainer),
    Kind("modal", clouds.modal, clouds.prepared("modal")),
    Kind("daytona", clouds.daytona, clouds.prepared("daytona")),
)


def traces(token: str, *, variables: bool = True) -> list[str]:
    """What runs anywhere on this machine, containers and servers included, and has the token about it:

    among its words or, if wanted, its variables.
    """
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            words = (folder / "cmdline").read_bytes()
            about = words + (folder / "environ").read_bytes() if variables else words
        except OSError:  # it is gone, or somebody else's
            continue
        if token.encode() in about:
            found.append(f"{folder.name}: {words.decode(errors='replace')}")
    return found


async def client() -> None:
    """A client of its own, to be killed: runs one command in a place, or leaves one in the background."""
    name, options, how, command = sys.argv[1:]
    (kind,) = (kind for kind in (*KINDS, LEASED) if kind.name == name)
    environment = Environment(kind.make(json.loads(options)))
    if how == "background":
        print((await environment.start_process(command)).name, flush=True)
        await asyncio.Event().wait()
    await environment.run(command, listener=lambda text: print(text, end="", flush=True))


if __name__ == "__main__":
    asyncio.run(client())
