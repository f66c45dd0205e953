"""Findings that `toolfold doctor` reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

COLOURS = {"ok": "green", "info": "blue", "warn": "yellow", "fail": "red"}
SYMBOLS = {"ok": "✓", "info": "·", "warn": "!", "fail": "✗"}

FindingLevel = Literal["ok", "info", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the report of `toolfold doctor`."""

    mark: FindingLevel
    about: str
    what: str
    next: str = ""
    """Advice on what to do, if any. Toolfold's own text, so it is not redacted when shown."""
