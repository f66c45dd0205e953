"""What the judges say about a command: the effects seen in it, and the verdict. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from shellverdict.shell.words import EMPTY, Word

__all__ = ["Effect", "Finding", "Kind", "Severity", "Verdict"]


class Kind(StrEnum):
    """What a program does to the world, as far as its words tell."""

    DELETE = "delete"
    OVERWRITE = "overwrite"  # a file's content is replaced or lost; the target says which
    WRITE = "write"  # something is created or added to; only some places make that dangerous
    FORMAT = "format"  # a disk, a partition, a volume
    PERMISSIONS = "permissions"
    PRIVILEGE = "privilege"
    SERVICE = "service"
    PROCESS = "process"
    FORK_BOMB = "fork-bomb"
    RUN_UNREAD = "run-unread"  # code nobody has read is run; the traits say where it came from
    REVERSE_SHELL = "reverse-shell"
    DISCLOSE = "disclose"  # a key, a token, a password is read
    EXFILTRATE = "exfiltrate"  # and is sent away
    DATABASE = "database"
    CLOUD = "cloud"
    HISTORY = "history"
    PUBLISH = "publish"
    PACKAGE = "package"
    SPOOF = "spoof"  # characters that make a person see another command
    UNREADABLE = "unreadable"  # the grammar, or what a word stands for, could not be settled


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing a command would do. `traits` are plain words the rules ask for (`recursive`, `network`…)."""

    kind: Kind
    target: Word = EMPTY
    traits: frozenset[str] = frozenset()
    span: tuple[int, int] = (0, 0)
    detail: str = ""


class Severity(IntEnum):
    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule that met the command."""

    rule: str
    category: str
    severity: Severity
    reason: str
    span: tuple[int, int] = (0, 0)
    blocked: bool = False
    kept_in: str = ""
    """The place that keeps it in, where all that it touches is that place's own."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether somebody must see a command before it runs, and why.

    `blocked` is the hard floor: no mode, grant or person lifts it. `shape` is the command as parsed, spelled
    one way: two commands of one shape do the same; empty where it could not be settled. `unread` says that
    the command was too long or too tangled to be read in full.
    """

    command: str
    findings: tuple[Finding, ...] = ()
    shape: str = ""
    unread: bool = False
    leaves: Mapping[str, Word] = field(default_factory=dict, compare=False, repr=False)
    """The variables that a shell would hand on to the next command."""

    @property
    def dangerous(self) -> bool:
        return bool(self.findings)

    @property
    def blocked(self) -> bool:
        return any(finding.blocked for finding in self.findings)

    @property
    def worst(self) -> Finding | None:
        """The finding a person is told first."""
        return max(self.findings, key=lambda f: (f.blocked, f.severity), default=None)

    @property
    def category(self) -> str:
        return self.worst.category if self.worst else ""

    @property
    def severity(self) -> Severity | None:
        return self.worst.severity if self.worst else None

    @property
    def reason(self) -> str:
        return self.worst.reason if self.worst else ""

    @property
    def part(self) -> str:
        """The exact part of the command that the verdict is about."""
        return self.command[slice(*self.worst.span)] if self.worst else ""
