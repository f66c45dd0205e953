"""What is known of a program that keeps servers in a file: its name, and how its file is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolfold.model import Json
from toolfold.sources.mcp.importing.entry_reader import EntryReader
from toolfold.sources.mcp.importing.variables import Variables


@dataclass(frozen=True, slots=True)
class ImportContext:
    """Where a file stands. `project` is the folder its servers belong to; None for servers of everywhere."""

    home: Path
    project: Path | None = None
    current: Path | None = None
    """The project somebody is in, whomever the file belongs to."""


@dataclass(frozen=True, slots=True)
class ClientFormat:
    """One program."""

    title: str
    entries: Callable[[Json, ImportContext], Mapping[str, Any]]
    """The descriptions of servers in a file, by name."""
    read: Callable[[EntryReader], None]
    """Takes one description apart."""
    variables: Callable[[Json, ImportContext], Variables] = lambda _document, _around: Variables()
    remarks: Callable[[Json, ImportContext], tuple[str, ...]] = lambda _document, _around: ()
    """What is to be said of the file as a whole."""
    has_history: bool = False


def get_mapping(document: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """The map that lies there; an empty one where there is none."""
    held: Any = document
    for key in keys:
        held = held.get(key) if isinstance(held, Mapping) else None
    return held if isinstance(held, Mapping) else {}
