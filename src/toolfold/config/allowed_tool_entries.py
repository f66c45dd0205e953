"""Entries of `approval.allowed_tools`: tools whose declared effects need no approval.

    tool:NAME[:EFFECT] [client=NAME] [project=DIRECTORY]
    server:NAME[:EFFECT] [client=NAME] [project=DIRECTORY]

The project comes last and takes the rest of the line, since a path may contain blanks. Reads no file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from toolfold.config.field_types import check_text

__all__ = ["DECLARED_EFFECTS", "AllowedTool", "AllowedToolEntry"]

DECLARED_EFFECTS = ("destructive", "spend", "control")
"""Effects declared by tools that need approval, and that an entry can allow; the first is the default."""
MAX_ENTRY_CHARS = 5_000
_ENTRY = re.compile(
    r"(?P<target>tool|server):(?P<name>[^\s:]{1,256})(?::(?P<effect>[^\s:]*))?"
    r"(?: +client=(?P<client>[^\s]{1,256}))?(?: +project=(?P<project>/.*))?"
)
_FORM = (
    "tool:NAME or server:NAME, then optionally :destructive, :spend or :control, client=NAME and"
    " project=/DIRECTORY"
)


@dataclass(frozen=True, slots=True)
class AllowedTool:
    """One entry of `approval.allowed_tools`: a tool or server whose declared effect needs no approval."""

    target: str
    """Whether the entry allows one tool (`tool`) or all tools of an MCP server (`server`)."""
    name: str
    effect: str = DECLARED_EFFECTS[0]
    client: str = ""
    """The only gateway client to which the entry applies; empty for all."""
    project: str = ""
    """The only project in which the entry applies; empty for all."""

    @classmethod
    def parse(cls, entry: str) -> AllowedTool:
        """Parse an entry of `approval.allowed_tools`. Raises ValueError."""
        found = _ENTRY.fullmatch(entry.strip()) if len(entry) <= MAX_ENTRY_CHARS else None
        if found is None:
            raise ValueError(f"this is not a valid entry of approval.allowed_tools: write {_FORM}")
        effect = DECLARED_EFFECTS[0] if found["effect"] is None else found["effect"]
        if effect not in DECLARED_EFFECTS:
            raise ValueError(f"unknown effect {effect!r}; known effects: {', '.join(DECLARED_EFFECTS)}")
        return cls(found["target"], found["name"], effect, found["client"] or "", found["project"] or "")

    def __str__(self) -> str:
        client = f" client={self.client}" if self.client else ""
        project = f" project={self.project}" if self.project else ""
        return f"{self.target}:{self.name}:{self.effect}{client}{project}"

    def is_in_scope(self, client: str, project: Path) -> bool:
        """Return True if an `approval.allowed_tools` entry applies to this client and this project."""
        if self.client and self.client != client:
            return False
        return not self.project or Path(self.project).resolve() == project.resolve()


def _check_entry(entry: str) -> str:
    AllowedTool.parse(check_text(entry))
    return entry


AllowedToolEntry = Annotated[str, AfterValidator(_check_entry)]
