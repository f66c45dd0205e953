"""Data types for findings about texts from MCP servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FindingKind = Literal["hidden", "addressed", "encoded", "annotation", "shadow"]


@dataclass(frozen=True, slots=True)
class ScanFinding:
    """One property of a tool or text that suggests an attack, described for a person."""

    kind: FindingKind
    where: str
    """The part of the tool that has the finding, such as `description` or `inputSchema.properties.path`."""
    excerpt: str
    """The suspicious text, with hidden characters escaped."""
    why: str
    grave: bool = True
    """True if the tool must wait for review; False if the finding is only reported."""

    doubtful: bool = False
    """True if the finding is based on wording alone, and rules and classifier disagree about it."""

    def requires_review(self, *, strict: bool = False) -> bool:
        """Return True if the tool needs a review; uncertain findings are considered only if `strict`."""
        return self.grave and (strict or not self.doubtful)

    def __str__(self) -> str:
        return f"{self.where}: {self.why}" + (f" ({self.excerpt})" if self.excerpt else "")
