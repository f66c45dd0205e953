"""Tools that a command is brought for one run, besides those that are configured.

The options are the same in every command that has them. Nothing is registered here: some commands only
look at what they are brought, and a catalog may hold names that no runtime would take.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from toolfold.model import Tool

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def catalog_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--catalog` and `--sample`, alone or together."""
    command = click.option("--sample", is_flag=True, help="With the sample catalog as well.")(command)
    return click.option("--catalog", type=FILE, help="With the tools of this catalog file as well.")(command)


def brought(catalog: Path | None, sample: bool) -> list[Tool]:
    """The tools of both. Raises SourceError that names the line."""
    from toolfold.sources import load_catalog, sample_catalog

    return [*(load_catalog(catalog) if catalog else ()), *(sample_catalog() if sample else ())]
