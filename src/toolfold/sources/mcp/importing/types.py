"""What was found in another program's files, as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolfold.model import Json

ClientName = Literal[
    "claude-desktop", "claude-code", "cursor", "vscode", "windsurf", "codex", "gemini", "opencode", "goose"
]
FileScope = Literal["user", "project"]


@dataclass(frozen=True, slots=True)
class ClientConfigFile:
    """A file that may name servers. One of a project was perhaps written by a stranger."""

    client_name: ClientName
    scope: FileScope
    file: Path


@dataclass(frozen=True, slots=True)
class ImportedServer:
    """A server in our words. `settings` holds what differs from our defaults, as our file would have it."""

    name: str
    """As the other program calls it."""
    source: ClientConfigFile
    settings: Json
    remarks: tuple[str, ...] = ()
    """What a person should know: what has no counterpart, what must be set by hand."""


@dataclass(frozen=True, slots=True)
class RejectedEntry:
    """An entry that cannot be ours, and why."""

    name: str
    source: ClientConfigFile
    reason: str


@dataclass(frozen=True, slots=True)
class ImportResult:
    """All that one file gave. `problem` says why it gave nothing, where it could not be read."""

    source: ClientConfigFile
    servers: tuple[ImportedServer, ...] = ()
    rejected: tuple[RejectedEntry, ...] = ()
    problem: str = ""
    remarks: tuple[str, ...] = ()


class RejectedEntryError(ValueError):
    """What is said about a server cannot be said in our settings. Written for people."""
