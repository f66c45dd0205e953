"""The place that the configuration names, and every other one there is.

The only module that knows the backends by name; each is imported when it is wanted, since some need
packages that are not installed everywhere.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path

from toolfold.config import Config
from toolfold.environments.backend import Backend
from toolfold.environments.environment import Bounds, Environment
from toolfold.errors import ConfigError


def backend(config: Config, name: str) -> Backend:
    """The backend of this name, as the configuration describes it."""
    if name not in BACKENDS:
        raise ConfigError(f"terminal.backend: there is no {name!r} yet", key="terminal.backend")
    return BACKENDS[name](config)


def environment(config: Config, name: str = "") -> Environment:
    """The environment of this name, or the one that the configuration chooses."""
    settings = config.terminal
    named = {each: config.environment[each] for each in settings.environment if each in config.environment}
    return Environment(
        backend(config, name or settings.backend),
        outputs=config.paths.state_dir / "results" / "terminal",
        variables=named,
        bounds=Bounds(
            seconds=min(settings.timeout_seconds, settings.max_timeout_seconds),
            shown=config.tools.result_max_chars // 2,  # JSON makes text longer
            processes=settings.max_processes,
        ),
    )


def _local(config: Config) -> Backend:
    from toolfold.environments.local import Local

    return Local(home=config.workspace, notes=_notes(config, "local"), environment=config.environment)


def _sandbox(config: Config) -> Backend:
    from toolfold.environments.sandbox import Sandbox

    return Sandbox(
        home=config.workspace,
        notes=_notes(config, "sandbox"),
        environment=config.environment,
        network=config.terminal.network,
        writable=config.files.extra_roots,
        visible=config.terminal.sandbox.visible,
        hidden=(
            config.paths.config_dir,
            config.paths.state_dir,
            config.paths.cache_dir,
            config.paths.user_file,
            config.plugins_folder,
        ),
    )


def _container(config: Config, program: str) -> Backend:
    from toolfold.environments.container import Container, Mount
    from toolfold.environments.docker import Docker

    settings = config.terminal
    container = Container(
        image=settings.image or "debian:stable-slim",
        mounts=(Mount(source=str(config.workspace), target="/workspace"),),
        network=settings.network,
        memory=f"{settings.memory_mb}m",
        cpus=settings.cpus,
    )
    return Docker(
        container,
        environment=config.environment,
        program=program,
        key=_project(config),
        kept=settings.keep,
    )


def _ssh(config: Config) -> Backend:
    from toolfold.environments.ssh import Address, Ssh

    settings = config.terminal.ssh
    if not settings.host:
        raise ConfigError(
            "terminal.ssh.host: say which machine ssh goes to",
            key="terminal.ssh.host",
            hint="toolfold config set terminal.ssh.host NAME",
        )
    address = Address(
        host=settings.host,
        port=settings.port,
        user=settings.user,
        identity=settings.identity,
        known_hosts=settings.known_hosts,
    )
    return Ssh(address, environment=config.environment, home=settings.home)


def _apptainer(config: Config, program: str) -> Backend:
    from toolfold.environments.apptainer import Apptainer, Instance

    instance = Instance(
        image=config.terminal.image or "docker://debian:stable-slim",
        work=str(_notes(config, program)),
        project=str(config.workspace),
        network=config.terminal.network,
    )
    return Apptainer(instance, environment=config.environment, program=program)


def _modal(config: Config) -> Backend:
    from toolfold.environments.modal import Modal, ModalSandbox

    settings = config.terminal
    sandbox = ModalSandbox(
        image=settings.image,
        network=settings.network,
        cpus=settings.cpus or 1.0,
        memory=settings.memory_mb,
    )
    return Modal(sandbox, key=_project(config), kept=settings.keep)


def _daytona(config: Config) -> Backend:
    from toolfold.environments.daytona import Daytona, DaytonaSandbox

    settings = config.terminal
    sandbox = DaytonaSandbox(
        image=settings.image or "debian:12",
        network=settings.network,
        cpus=max(round(settings.cpus), 1),
        memory=max(settings.memory_mb // 1024, 1),
    )
    return Daytona(sandbox, environment=config.environment, key=_project(config), kept=settings.keep)


BACKENDS: dict[str, Callable[[Config], Backend]] = {
    "local": _local,
    "sandbox": _sandbox,
    "docker": functools.partial(_container, program="docker"),
    "podman": functools.partial(_container, program="podman"),
    "ssh": _ssh,
    "apptainer": functools.partial(_apptainer, program="apptainer"),
    "singularity": functools.partial(_apptainer, program="singularity"),
    "modal": _modal,
    "daytona": _daytona,
}


def _notes(config: Config, name: str) -> Path:
    """One for each project, so that its background processes are listed there and nowhere else."""
    return config.paths.state_dir / "environments" / f"{name}-{_project(config)}"


def _project(config: Config) -> str:
    return hashlib.sha256(str(config.workspace).encode(errors="replace")).hexdigest()[:12]
