"""Describe a client's configuration file: its title and the functions that read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolfold.core.types import Json
from toolfold.mcp.importing.entry_reader import EntryReader
from toolfold.mcp.importing.variables import Variables


@dataclass(frozen=True, slots=True)
class ImportContext:
    """Directories needed to read a client's configuration file.

    `project` is None if the file contains the user's own servers, not those of a project.
    """

    home: Path
    project: Path | None = None
    current: Path | None = None
    """The current project, even if the file is the user's."""


@dataclass(frozen=True, slots=True)
class ClientFormat:
    """Format of one client's configuration file."""

    title: str
    list_entries: Callable[[Json, ImportContext], Mapping[str, Any]]
    """Function that returns the server entries of a file by name."""
    read_entry: Callable[[EntryReader], None]
    """Function that reads one server entry."""
    build_variables: Callable[[Json, ImportContext], Variables] = lambda _document, _context: Variables()
    list_remarks: Callable[[Json, ImportContext], tuple[str, ...]] = lambda _document, _context: ()
    """Function that returns notes about the file as a whole."""
    has_history: bool = False


def get_mapping(document: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return the mapping at a path of keys in the document, or an empty mapping."""
    value: Any = document
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}
