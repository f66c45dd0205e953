"""Group danger rules into kinds of findings (such as "recursive delete") that a person can allow together.

Kinds are defined in `kinds.toml`; a rule that is in none is a kind of its own. This module decides nothing:
the chain decides which findings can be allowed as a kind.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Final

__all__ = ["KIND_PREFIX", "PATTERN_PREFIXES", "RULE_PREFIX", "FindingKinds", "is_pattern"]

RULE_PREFIX: Final = "rule:"
KIND_PREFIX: Final = "kind:"
PATTERN_PREFIXES: Final = (RULE_PREFIX, KIND_PREFIX)
DESTRUCTIVE_PREFIX: Final = "destructive:"
"""Prefix of the rule name for a tool that declares itself destructive; the tool's name follows."""
PAID_PREFIX: Final = "paid:"
"""Prefix of the rule name for a tool that uses a paid service; the tool's name follows."""
CONTROL_PREFIX: Final = "devices:"
"""Prefix of the rule name for a tool that operates devices; the tool's name follows."""
DESTRUCTIVE_SERVER_PREFIX: Final = "destructive-server:"
"""Prefix of the kind for all declared destructive tools of a server; the server's name follows."""


class FindingKinds:
    """Kinds of findings: groups of danger rules that a person can allow together."""

    def __init__(self, groups: Mapping[str, Iterable[str]] | None = None) -> None:
        self._rules = {kind: tuple(rules) for kind, rules in (groups or {}).items()}
        self._kind_of = {rule: kind for kind, rules in self._rules.items() for rule in rules}

    @classmethod
    @functools.cache  # the file belongs to the package and does not change while it is in use
    def shipped(cls) -> FindingKinds:
        """Return the built-in kinds of findings; their file is read on the first call only."""
        text = files(__package__).joinpath("kinds.toml").read_text(encoding="utf-8")
        return cls({kind: table["rules"] for kind, table in tomllib.loads(text).items()})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._rules)

    def rules_of(self, kind: str) -> tuple[str, ...]:
        """Return the danger rules that belong to a kind of finding; empty if the kind is unknown."""
        return self._rules.get(kind, ())

    def kinds_of(self, rules: Iterable[str]) -> tuple[str, ...]:
        """Return the kinds of findings that the danger rules belong to, without duplicates."""
        return tuple(dict.fromkeys(self._kind_of.get(rule, rule) for rule in rules))

    def allowlist_entries(self, rules: Iterable[str]) -> tuple[str, ...]:
        """Return allow-list entries that cover the rules: each rule's kind of finding, or the rule itself."""
        return tuple(dict.fromkeys(self._covering_entries(rule)[0] for rule in rules))

    def are_covered(self, rules: Iterable[str], entries: Iterable[str]) -> bool:
        """Return True if the allow-list entries cover all `rules`; False if `rules` is empty."""
        listed = frozenset(entries)
        options = [self._covering_entries(rule) for rule in rules]
        return bool(options) and all(not listed.isdisjoint(each) for each in options)

    def _covering_entries(self, rule: str) -> tuple[str, ...]:
        """Return the allow-list entries that would cover a rule, the broadest first."""
        own = f"{RULE_PREFIX}{rule}"
        return (f"{KIND_PREFIX}{self._kind_of[rule]}", own) if rule in self._kind_of else (own,)


def is_pattern(entry: str) -> bool:
    """Return True if an allow-list entry names a rule or a kind of finding."""
    return entry.startswith(PATTERN_PREFIXES)


def describe_kind(kind: str) -> str:
    """Return the name of a kind of finding as readable text: "recursive delete"."""
    if kind.startswith(DESTRUCTIVE_PREFIX):
        return f"call of {kind.removeprefix(DESTRUCTIVE_PREFIX)}"
    if kind.startswith(PAID_PREFIX):
        return f"call of {kind.removeprefix(PAID_PREFIX)}, which costs money"
    if kind.startswith(CONTROL_PREFIX):
        return f"call of {kind.removeprefix(CONTROL_PREFIX)}, which operates devices"
    if kind.startswith(DESTRUCTIVE_SERVER_PREFIX):
        return f"call of {kind.removeprefix(DESTRUCTIVE_SERVER_PREFIX)} that can destroy data"
    return kind.replace("-", " ")
