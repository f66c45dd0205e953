"""What `toolfold doctor` reports: one finding for each thing it looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

COLOURS = {"ok": "green", "info": "blue", "warn": "yellow", "fail": "red"}
SIGNS = {"ok": "✓", "info": "·", "warn": "!", "fail": "✗"}

Mark = Literal["ok", "info", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of what was found."""

    mark: Mark
    about: str
    what: str
    next: str = ""
    """What to do about it, where there is something to do. Written by us: it is never redacted."""
