"""Recognise values that are code, not secrets: shell commands and program expressions.

Code that runs must stay readable: people and models decide by it, and the log records it.
"""

from __future__ import annotations

import re

_SHELLS = r"(?:ba|z|da|k|fi)?sh|su"
# Positions where a shell runs a word as a command: at the start, after an operator, `eval` or `sh -c`.
_EXPANDED_AS_COMMAND = re.compile(
    r"(?:\A|[\n;`|]|&&|\$\(|(?<!\S)[({!]|\b(?:eval|exec|sudo|then|do|else|command|nohup|xargs)(?=\s)"
    rf"|\b(?:{_SHELLS})\s[^\n;|&]{{0,80}}?-[a-z]{{0,4}}c(?=\s))"
    r"[ \t]{0,8}[\"']?\$\{?(?P<name>[A-Za-z_][A-Za-z0-9_]{0,80})"
)
_ALIAS = re.compile(r"\balias[ \t]{1,8}(?:-[a-z]{1,4}[ \t]{1,8}){0,4}[A-Za-z_][\w.-]{0,80}=")
_ASSIGNMENT = re.compile(r"(?<![A-Za-z0-9_])(?P<name>[A-Za-z_][A-Za-z0-9_]{0,80})=")
_CALL = re.compile(r"os\.(?:environ\.get|getenv)|[a-z_]{1,64}(?:\.[a-z_]{1,64}){1,8}[(\[].*", re.DOTALL)
_PLACEHOLDER = re.compile(r"\?|%s|%\([a-z_]{1,64}\)s|\$\d{1,2}|\{\}")
_TEST_COUNT = re.compile(r"\d{1,3}")


def find_executed_values(text: str) -> frozenset[int]:
    """Return the start positions of alias and variable values that a shell runs as commands."""
    starts = {match.end() for match in _ALIAS.finditer(text)} if "alias" in text else set()
    names = {match["name"] for match in _EXPANDED_AS_COMMAND.finditer(text)} if "$" in text else set()
    if names:
        starts.update(match.end() for match in _ASSIGNMENT.finditer(text) if match["name"] in names)
    return frozenset(starts | {start + 1 for start in starts if text[start : start + 1] in ("'", '"')})


def is_expression(name: str, value: str) -> bool:
    """Return True if a value is code, such as a function call or a query placeholder, not a secret."""
    if _CALL.fullmatch(value) or _PLACEHOLDER.fullmatch(value):
        return True
    return name.lower() == "pass" and _TEST_COUNT.fullmatch(value) is not None
