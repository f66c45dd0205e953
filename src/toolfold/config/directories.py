"""Locate Toolfold's configuration, state and cache directories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

HOME_VARIABLE = "TOOLFOLD_HOME"


class StandardDirectories(NamedTuple):
    """Directories for configuration, state and cache; below TOOLFOLD_HOME if it is set."""

    config: Path
    state: Path
    cache: Path


def locate_directories(environment: Mapping[str, str], current: Path) -> StandardDirectories:
    """Return Toolfold's directories: below TOOLFOLD_HOME if it is set, otherwise the platform defaults.

    A relative TOOLFOLD_HOME is relative to `current`.
    """
    if home := environment.get(HOME_VARIABLE):
        folder = current / home
        return StandardDirectories(folder, folder / "state", folder / "cache")
    import platformdirs

    name = "toolfold"
    return StandardDirectories(
        platformdirs.user_config_path(name, appauthor=False),
        platformdirs.user_state_path(name, appauthor=False),
        platformdirs.user_cache_path(name, appauthor=False),
    )
