"""The exception for an invalid danger rule or an invalid entry in the table of programs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["RuleError", "shorten", "suggest_name"]


class RuleError(ValueError):
    """Raised for an invalid danger rule. The message names file, rule and key, and suggests a fix.

    `file` and `rule` are empty if they are not known, `key` if no single key is wrong.
    """

    def __init__(
        self, problem: str, *, key: str = "", hint: str = "", rule: str = "", file: str = ""
    ) -> None:
        self.problem, self.key, self.hint, self.rule, self.file = problem, key, hint, rule, file
        message = f"{file}: {problem}" if file else problem
        super().__init__(f"{message}\n  {hint}" if hint else message)

    def with_file(self, file: str) -> RuleError:
        """Return the same error with the name of the rule file added."""
        return RuleError(self.problem, key=self.key, hint=self.hint, rule=self.rule, file=file)


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return "did you mean X?" for the closest known name, or an empty string."""
    close = difflib.get_close_matches(shorten(name, 80), list(known), n=1)
    return f"did you mean {close[0]}?" if close else ""


def shorten(text: str, limit: int = 60) -> str:
    """Shorten text to at most `limit` characters for use in a message."""
    return text if len(text) <= limit else text[:limit] + "…"
