"""Data types for importing MCP servers: files, servers, rejected entries and results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolfold.core.types import Json

ClientName = Literal[
    "claude-desktop", "claude-code", "cursor", "vscode", "windsurf", "codex", "gemini", "opencode", "goose"
]
FileScope = Literal["user", "project"]


@dataclass(frozen=True, slots=True)
class ClientConfigFile:
    """Configuration file of a client; a file inside a project is untrusted."""

    client_name: ClientName
    scope: FileScope
    file: Path
    is_named: bool = False
    """True if the user named the file, so that the program it belongs to is only a guess."""


@dataclass(frozen=True, slots=True)
class ImportedServer:
    """An MCP server in Toolfold's settings format, with only the values that differ from defaults."""

    name: str
    """Name of the server in the client's file."""
    source: ClientConfigFile
    settings: Json
    remarks: tuple[str, ...] = ()
    """Notes for the user: keys that Toolfold does not support, values to set by hand."""


@dataclass(frozen=True, slots=True)
class RejectedEntry:
    """A server entry that cannot be imported, with the reason."""

    name: str
    source: ClientConfigFile
    reason: str


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Result of importing one configuration file; `problem` is the error if the file could not be read."""

    source: ClientConfigFile
    servers: tuple[ImportedServer, ...] = ()
    rejected: tuple[RejectedEntry, ...] = ()
    problem: str = ""
    remarks: tuple[str, ...] = ()


class RejectedEntryError(ValueError):
    """A server entry cannot be expressed in Toolfold's settings; the message is for the user."""
