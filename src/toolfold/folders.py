"""Where Toolfold keeps its files: the folders of configuration, state and cache. Reads and creates none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

HOME_VARIABLE = "TOOLFOLD_HOME"


class Folders(NamedTuple):
    """The three folders; all of them are in one place if TOOLFOLD_HOME is set."""

    config: Path
    state: Path
    cache: Path


def locate_folders(environment: Mapping[str, str], current: Path) -> Folders:
    """Return the folders for this environment; a relative TOOLFOLD_HOME starts at `current`."""
    if home := environment.get(HOME_VARIABLE):
        folder = current / home
        return Folders(folder, folder / "state", folder / "cache")
    import platformdirs

    name = "toolfold"
    return Folders(
        platformdirs.user_config_path(name, appauthor=False),
        platformdirs.user_state_path(name, appauthor=False),
        platformdirs.user_cache_path(name, appauthor=False),
    )
