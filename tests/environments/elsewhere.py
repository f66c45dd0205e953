"""The places of the contract that need a server, each with a room of its own for one test."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.environments.servers import SERVERS, Options
from toolfold.environments.apptainer import Apptainer, Instance
from toolfold.environments.container import Container
from toolfold.environments.docker import Docker
from toolfold.environments.ssh import Address, Ssh


def container(options: Mapping[str, str]) -> Docker:
    environment = {**os.environ, **options}
    return Docker(
        Container(image=options["image"]),
        environment=environment,
        program=options["program"],
        key=options["key"],
    )


def name_of(options: Mapping[str, str]) -> str:
    """What docker calls the container."""
    return f"toolfold-{Container(image=options['image']).place(options['key'])}"


@contextmanager
def docker(_tmp_path: Path) -> Iterator[Options]:
    with _own_containers(SERVERS.docker()) as options:
        yield options


@contextmanager
def podman(_tmp_path: Path) -> Iterator[Options]:
    with _own_containers(SERVERS.podman()) as options:
        yield options


@contextmanager
def _own_containers(server: Options) -> Iterator[Options]:
    """Kept containers that nobody else finds, and that are gone at the end."""
    options = {**server, "key": secrets.token_hex(8)}
    yield options
    subprocess.run(
        [options["program"], "rm", "-f", name_of(options)],
        env={**os.environ, **server},
        capture_output=True,
    )


def machine(options: Mapping[str, str]) -> Ssh:
    address = Address(
        host=options["host"],
        port=int(options["port"]),
        identity=options["identity"],
        known_hosts=options["known_hosts"],
    )
    return Ssh(address, environment=os.environ, home=options["home"], notes=options["notes"])


@contextmanager
def ssh(tmp_path: Path) -> Iterator[Options]:
    home = tmp_path / "project"
    home.mkdir()
    yield {**SERVERS.ssh(), "home": str(home), "notes": str(tmp_path / "notes")}


def wanted_instance(options: Mapping[str, str]) -> Instance:
    return Instance(image=options["image"], work=options["work"], project=options["project"])


def instance(options: Mapping[str, str]) -> Apptainer:
    environment = {**os.environ, **options}
    return Apptainer(wanted_instance(options), environment=environment, program=options["program"])


@contextmanager
def apptainer(tmp_path: Path) -> Iterator[Options]:
    server = SERVERS.apptainer()
    project = tmp_path / "project"
    project.mkdir()
    options = {**server, "work": str(tmp_path / "work"), "project": str(project)}
    yield options
    asyncio.run(instance(options).remove())
