"""Build the environment that the configuration selects.

The only module that knows the backends by name. Each is imported on demand, since some need packages that
are not installed everywhere.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from toolfold.config import Config
from toolfold.core.errors import ConfigError
from toolfold.tools.environments.backend import Backend
from toolfold.tools.environments.environment import Environment, EnvironmentLimits

ENTRY_POINT_GROUP = "toolfold.backends"
"""Entry points of packages that provide a backend: functions from a Config to a Backend."""
PLUGIN_PREFIX = "plugin:"


def build_backend(config: Config, name: str) -> Backend:
    """Return the configured backend with this name. Raises ConfigError for an unknown name."""
    if name.startswith(PLUGIN_PREFIX):
        return _build_plugin(config, name.removeprefix(PLUGIN_PREFIX))
    if name not in BACKENDS:
        raise ConfigError(f"terminal.backend: unknown backend {name!r}", key="terminal.backend")
    return BACKENDS[name](config)


def backend_names() -> list[str]:
    """Return the names of the built-in backends and of those that installed packages provide."""
    provided = sorted({point.name for point in entry_points(group=ENTRY_POINT_GROUP)})
    return [*BACKENDS, *(f"{PLUGIN_PREFIX}{name}" for name in provided)]


def build_environment(config: Config, name: str = "") -> Environment:
    """Return the environment with this name, or the configured environment if no name is given."""
    settings = config.terminal
    named = {each: config.environment[each] for each in settings.environment if each in config.environment}
    return Environment(
        build_backend(config, name or settings.backend),
        output_dir=config.paths.state_dir / "results" / "terminal",
        variables=named,
        limits=EnvironmentLimits(
            timeout_s=min(settings.timeout_seconds, settings.max_timeout_seconds),
            max_shown_bytes=config.tools.result_max_chars // 2,  # JSON makes text longer
            max_processes=settings.max_processes,
        ),
    )


def _build_plugin(config: Config, name: str) -> Backend:
    """Build a backend of an installed package by calling its entry point with the configuration."""
    points = [point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name.lower() == name]
    if not points:
        raise ConfigError(
            f"terminal.backend: no installed package provides the backend {name!r}",
            key="terminal.backend",
            hint="install the package that provides the backend; `toolfold env list` shows "
            "the known backends",
        )
    try:
        backend = points[0].load()(config)
    except Exception as error:
        problem = (
            f"the backend {name!r} ({points[0].value}) cannot be loaded: {type(error).__name__}: {error}"
        )
        raise ConfigError(f"terminal.backend: {problem}", key="terminal.backend") from error
    if not isinstance(backend, Backend):
        problem = (
            f"{points[0].value} returned {type(backend).__name__}, not a toolfold.tools.environments Backend"
        )
        raise ConfigError(f"terminal.backend: {problem}", key="terminal.backend")
    return backend


def _build_local(config: Config) -> Backend:
    from toolfold.tools.environments.local import Local

    return Local(home=config.workspace, state_dir=_state_dir(config, "local"), environment=config.environment)


def _build_sandbox(config: Config) -> Backend:
    from toolfold.tools.environments.sandbox import Sandbox

    return Sandbox(
        home=config.workspace,
        state_dir=_state_dir(config, "sandbox"),
        environment=config.environment,
        network=config.terminal.network,
        writable=config.files.extra_roots,
        visible=config.terminal.sandbox.visible,
        hidden=config.own_paths,
    )


def _build_container(config: Config, program: str) -> Backend:
    from toolfold.tools.environments.container import ContainerSpec, Mount
    from toolfold.tools.environments.docker import Docker

    settings = config.terminal
    container = ContainerSpec(
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
        key=_project_key(config),
        persistent=settings.keep,
    )


def _build_ssh(config: Config) -> Backend:
    from toolfold.tools.environments.ssh import Ssh, SshAddress

    settings = config.terminal.ssh
    if not settings.host:
        raise ConfigError(
            "terminal.ssh.host is not set: the ssh backend needs a host",
            key="terminal.ssh.host",
            hint="set the host: toolfold config set terminal.ssh.host NAME",
        )
    address = SshAddress(
        host=settings.host,
        port=settings.port,
        user=settings.user,
        identity=settings.identity,
        known_hosts=settings.known_hosts,
    )
    return Ssh(address, environment=config.environment, home=settings.home)


def _build_apptainer(config: Config, program: str) -> Backend:
    from toolfold.tools.environments.apptainer import Apptainer, InstanceSpec

    instance = InstanceSpec(
        image=config.terminal.image or "docker://debian:stable-slim",
        work=str(_state_dir(config, program)),
        project=str(config.workspace),
        network=config.terminal.network,
    )
    return Apptainer(instance, environment=config.environment, program=program)


def _build_modal(config: Config) -> Backend:
    from toolfold.tools.environments.modal import Modal, ModalSandboxSpec

    settings = config.terminal
    sandbox = ModalSandboxSpec(
        image=settings.image,
        network=settings.network,
        cpus=settings.cpus or 1.0,
        memory=settings.memory_mb,
    )
    return Modal(sandbox, key=_project_key(config), persistent=settings.keep)


def _build_daytona(config: Config) -> Backend:
    from toolfold.tools.environments.daytona import Daytona, DaytonaSandboxSpec

    settings = config.terminal
    sandbox = DaytonaSandboxSpec(
        image=settings.image or "debian:12",
        network=settings.network,
        cpus=max(round(settings.cpus), 1),
        memory=max(settings.memory_mb // 1024, 1),
    )
    return Daytona(
        sandbox, environment=config.environment, key=_project_key(config), persistent=settings.keep
    )


BACKENDS: dict[str, Callable[[Config], Backend]] = {
    "local": _build_local,
    "sandbox": _build_sandbox,
    "docker": functools.partial(_build_container, program="docker"),
    "podman": functools.partial(_build_container, program="podman"),
    "ssh": _build_ssh,
    "apptainer": functools.partial(_build_apptainer, program="apptainer"),
    "singularity": functools.partial(_build_apptainer, program="singularity"),
    "modal": _build_modal,
    "daytona": _build_daytona,
}


def _state_dir(config: Config, name: str) -> Path:
    """Return the state directory of this project, in which its background processes are recorded."""
    return config.paths.state_dir / "environments" / f"{name}-{_project_key(config)}"


def _project_key(config: Config) -> str:
    return hashlib.sha256(str(config.workspace).encode(errors="replace")).hexdigest()[:12]
