"""Options that add tools from a catalog file or the sample catalog to one run of a command.

The tools are not registered here: some commands only inspect them, and a catalog may contain names that the
registry would reject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from toolfold.core.types import Tool

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def catalog_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `--catalog` and `--sample` to a command."""
    command = click.option("--sample", is_flag=True, help="Add the tools of the sample catalog.")(command)
    return click.option("--catalog", type=FILE, help="Add the tools of this catalog file.")(command)


def load_extra_tools(catalog: Path | None, sample: bool) -> list[Tool]:
    """Return the tools of the catalog file and, if `sample` is set, of the sample catalog.

    Raises SourceError with the line number if the file is invalid.
    """
    from toolfold.tools.catalog import load_catalog, sample_catalog

    return [*(load_catalog(catalog) if catalog else ()), *(sample_catalog() if sample else ())]


@contextmanager
def sample_files() -> Iterator[tuple[Path, Path]]:
    """Yield the files of the sample catalog: its tools and its messages."""
    with as_file(files("toolfold").joinpath("tools/sample")) as directory:
        yield directory / "catalog.jsonl", directory / "queries.jsonl"
