"""What was found in another program's files, as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolfold.model import Json

Client = Literal[
    "claude-desktop", "claude-code", "cursor", "vscode", "windsurf", "codex", "gemini", "opencode", "goose"
]
Scope = Literal["user", "project"]


@dataclass(frozen=True, slots=True)
class Place:
    """A file that may name servers. One of a project was perhaps written by a stranger."""

    client: Client
    scope: Scope
    file: Path


@dataclass(frozen=True, slots=True)
class Found:
    """A server in our words. `settings` holds what differs from our defaults, as our file would have it."""

    name: str
    """As the other program calls it."""
    place: Place
    settings: Json
    remarks: tuple[str, ...] = ()
    """What a person should know: what has no counterpart, what must be set by hand."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """An entry that cannot be ours, and why."""

    name: str
    place: Place
    why: str


@dataclass(frozen=True, slots=True)
class Answer:
    """All that one file gave. `problem` says why it gave nothing, where it could not be read."""

    place: Place
    found: tuple[Found, ...] = ()
    unusable: tuple[Unusable, ...] = ()
    problem: str = ""
    remarks: tuple[str, ...] = ()


class NotUsable(ValueError):
    """What is said about a server cannot be said in our settings. Written for people."""
