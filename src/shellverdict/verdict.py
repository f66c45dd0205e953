"""Define the result of judging a command: its effects, the findings and the verdict. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from shellverdict.shell.earlier_files import FileChanges
from shellverdict.shell.words import EMPTY, Word

__all__ = ["CommandEffect", "EffectKind", "Finding", "Severity", "Verdict"]


class EffectKind(StrEnum):
    """Kind of effect that a program has on its environment."""

    DELETE = "delete"
    OVERWRITE = "overwrite"  # the content of the target file is replaced or lost
    WRITE = "write"  # a file is created or appended to; dangerous for some paths only
    FORMAT = "format"  # a disk, a partition, a volume
    PERMISSIONS = "permissions"
    PRIVILEGE = "privilege"
    SERVICE = "service"
    PROCESS = "process"
    FORK_BOMB = "fork-bomb"
    RUN_UNREAD = "run-unread"  # runs code that was not analyzed; the traits name its origin
    REVERSE_SHELL = "reverse-shell"
    DISCLOSE = "disclose"  # a key, token or password is read
    EXFILTRATE = "exfiltrate"  # a key, token or password is sent to another machine
    DATABASE = "database"
    CLOUD = "cloud"
    SPOOF = "spoof"  # characters that disguise the command
    UNREADABLE = "unreadable"  # syntax or a word that could not be resolved


@dataclass(frozen=True, slots=True)
class CommandEffect:
    """One effect of a command. `traits` are keywords that rules match, such as `recursive` or `network`."""

    kind: EffectKind
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
    """Finding about a command: one match of a danger rule."""

    rule: str
    category: str
    severity: Severity
    reason: str
    span: tuple[int, int] = (0, 0)
    blocked: bool = False
    confined_to: str = ""
    """Name of the execution site (container, sandbox) to which the effect is confined; empty if it is not."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on a command: the findings about it. A command with findings needs approval before it runs.

    `blocked` cannot be overridden by any mode, grant or person. `shape` is a canonical spelling of the parsed
    command: two commands of the same shape do the same; it is empty if it is not fully known. `unread` is
    True if the command was too long or too complex to be analyzed completely.
    """

    command: str
    findings: tuple[Finding, ...] = ()
    shape: str = ""
    unread: bool = False
    leaves: Mapping[str, Word] = field(default_factory=dict, compare=False, repr=False)
    """Exported variables that the command would leave to the next command in the same terminal."""
    file_changes: FileChanges = field(default_factory=FileChanges, compare=False, repr=False)
    """Changes to files, as far as the command shows them."""

    @property
    def dangerous(self) -> bool:
        return bool(self.findings)

    @property
    def blocked(self) -> bool:
        return any(finding.blocked for finding in self.findings)

    @property
    def worst(self) -> Finding | None:
        """Return the most severe finding, blocking findings first; None if there are no findings."""
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
        """Return the part of the command that the most severe finding is about."""
        return self.command[slice(*self.worst.span)] if self.worst else ""
