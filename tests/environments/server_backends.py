"""Backends for the contract tests that need a server, each with a private target per test."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.environments.servers import SERVERS, Options
from toolfold.tools.environments.apptainer import Apptainer, InstanceSpec
from toolfold.tools.environments.container import ContainerSpec
from toolfold.tools.environments.docker import Docker
from toolfold.tools.environments.ssh import Ssh, SshAddress


def make_container(options: Mapping[str, str]) -> Docker:
    environment = {**os.environ, **options}
    return Docker(
        ContainerSpec(image=options["image"]),
        environment=environment,
        program=options["program"],
        key=options["key"],
    )


def container_name(options: Mapping[str, str]) -> str:
    """Return docker's name of the container."""
    return f"toolfold-{ContainerSpec(image=options['image']).identifier(options['key'])}"


@contextmanager
def docker_options(_tmp_path: Path) -> Iterator[Options]:
    with _private_containers(SERVERS.docker()) as options:
        yield options


@contextmanager
def podman_options(_tmp_path: Path) -> Iterator[Options]:
    with _private_containers(SERVERS.podman()) as options:
        yield options


@contextmanager
def _private_containers(server: Options) -> Iterator[Options]:
    """Yield options for persistent containers with a unique key, and remove them at the end."""
    options = {**server, "key": secrets.token_hex(8)}
    yield options
    subprocess.run(
        [options["program"], "rm", "-f", container_name(options)],
        env={**os.environ, **server},
        capture_output=True,
    )


def make_ssh(options: Mapping[str, str]) -> Ssh:
    address = SshAddress(
        host=options["host"],
        port=int(options["port"]),
        identity=options["identity"],
        known_hosts=options["known_hosts"],
    )
    return Ssh(address, environment=os.environ, home=options["home"], state_dir=options["notes"])


@contextmanager
def ssh_options(tmp_path: Path) -> Iterator[Options]:
    home = tmp_path / "project"
    home.mkdir()
    yield {**SERVERS.ssh(), "home": str(home), "notes": str(tmp_path / "notes")}


def instance_spec(options: Mapping[str, str]) -> InstanceSpec:
    return InstanceSpec(image=options["image"], work=options["work"], project=options["project"])


def make_apptainer(options: Mapping[str, str]) -> Apptainer:
    environment = {**os.environ, **options}
    return Apptainer(instance_spec(options), environment=environment, program=options["program"])


@contextmanager
def apptainer_options(tmp_path: Path) -> Iterator[Options]:
    server = SERVERS.apptainer()
    project = tmp_path / "project"
    project.mkdir()
    options = {**server, "work": str(tmp_path / "work"), "project": str(project)}
    yield options
    asyncio.run(make_apptainer(options).remove())
