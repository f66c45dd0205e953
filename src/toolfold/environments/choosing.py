"""The place that the configuration names, and every other one there is.

The only module that knows the backends by name; each is imported when it is wanted, since some need
packages that are not installed everywhere.
"""

from __future__ import annotations

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
        hidden=(config.paths.config_dir, config.paths.state_dir),
    )


BACKENDS: dict[str, Callable[[Config], Backend]] = {"local": _local, "sandbox": _sandbox}


def _notes(config: Config, name: str) -> Path:
    """One for each project, so that its background processes are listed there and nowhere else."""
    project = hashlib.sha256(str(config.workspace).encode(errors="replace")).hexdigest()[:12]
    return config.paths.state_dir / "environments" / f"{name}-{project}"
