"""What the scanner reports. Plain data; knows no rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["hidden", "addressed", "encoded", "address", "annotation", "shadow"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason to look twice, in words for a person."""

    kind: Kind
    where: str
    """The part of the tool it stands in, such as `description` or `inputSchema.properties.path`."""
    excerpt: str
    """The passage, with characters nobody sees written out."""
    why: str
    grave: bool = True
    """Whether the tool should wait for a person; otherwise it is only told of."""

    doubtful: bool = False
    """Whether its wording alone speaks against it, and only one way of judging wording says so."""

    def holds(self, *, strict: bool = False) -> bool:
        """Whether the tool waits for a person; doubtful findings are a reason only where `strict`."""
        return self.grave and (strict or not self.doubtful)

    def __str__(self) -> str:
        return f"{self.where}: {self.why}" + (f" ({self.excerpt})" if self.excerpt else "")
