"""Exception of this package: a rule or a program entry that is invalid."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["RuleError", "shorten", "suggest_name"]


class RuleError(ValueError):
    """Invalid rule. The message names the rule and the key, and suggests a fix."""

    def __init__(self, problem: str, *, key: str = "", hint: str = "") -> None:
        self.problem, self.key, self.hint = problem, key, hint
        super().__init__(f"{problem}\n  {hint}" if hint else problem)


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return "did you mean X?" for the closest known name, or an empty string."""
    close = difflib.get_close_matches(shorten(name, 80), list(known), n=1)
    return f"did you mean {close[0]}?" if close else ""


def shorten(text: str, limit: int = 60) -> str:
    """Truncate text for use in a message."""
    return text if len(text) <= limit else text[:limit] + "…"
