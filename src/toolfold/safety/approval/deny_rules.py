"""The setting `approval.deny`: tool calls that are forbidden, so that nobody can approve them.

An entry is `tool:NAME`, `rule:NAME` or `category:NAME`, each a glob, or else a glob that is matched against
every single command of a command line, whatever wraps it and however it is spelled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate

from shellverdict.rules.program_syntax import ParsedArguments
from shellverdict.rules.rule import Rule, RunCondition
from shellverdict.rules.rule_patterns import MatchResult
from shellverdict.shell.runs import ProgramRun
from shellverdict.verdict import Severity
from toolfold.core.errors import ConfigError, closest_names, did_you_mean
from toolfold.safety.approval.call_analysis import CallAnalysis

__all__ = ["DenyRules"]

_DENY_PREFIX = "deny:"
_SEPARATORS = re.compile("[\n\r;|&(){}<>`\"'$]+")
_TARGETS = ("tool", "rule", "category")


@dataclass(frozen=True, slots=True, kw_only=True)
class _LineCondition(RunCondition):
    """Rule condition that matches the text of a whole command: its words joined by single spaces."""

    pattern: re.Pattern[str]

    def match(self, run: ProgramRun, arguments: ParsedArguments) -> MatchResult:  # noqa: ARG002  (matches the whole line)
        line = " ".join(word.display_text for word in run.argv)
        lines = (line, *(f"{wrapper} {line}" for wrapper in run.wrappers))
        return MatchResult.YES if any(map(self.pattern.fullmatch, lines)) else MatchResult.NO


class DenyRules:
    """The entries of `approval.deny`, and the danger rules made from the entries that forbid commands."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._named: list[tuple[str, str, re.Pattern[str]]] = []
        self._globs: list[tuple[str, re.Pattern[str]]] = []
        for entry in dict.fromkeys(each.strip() for each in entries):
            kind, _, glob = entry.partition(":")
            if kind in _TARGETS and glob:
                self._named.append((entry, kind, re.compile(translate(glob.strip()))))
            elif entry:
                self._globs.append((entry, _compile_glob(entry)))
        self.rules = tuple(_build_rule(entry, glob) for entry, glob in self._globs)

    def entries_for(self, kind: str) -> list[tuple[str, re.Pattern[str]]]:
        """Return the `approval.deny` entries of one kind (tool, rule or category), with their patterns."""
        return [(entry, pattern) for entry, each, pattern in self._named if each == kind]

    def check_names(self, rules: Iterable[Rule]) -> None:
        """Raise ConfigError if an entry of `approval.deny` names an unknown rule or category."""
        known = {"rule": {rule.name for rule in rules}, "category": {rule.category for rule in rules}}
        for kind, names in known.items():
            for entry, pattern in self.entries_for(kind):
                if not any(map(pattern.fullmatch, names)):
                    near = did_you_mean(closest_names(entry.partition(":")[2], names))
                    raise ConfigError(
                        f"approval.deny: no {kind} matches the entry {entry!r}.{near}",
                        key="approval.deny",
                    )

    def find(self, analysis: CallAnalysis) -> str:
        """Return the first entry of `approval.deny` that forbids the call, or an empty string."""
        findings = analysis.verdict.findings
        names = {
            "tool": set(analysis.tool.names),
            "rule": {finding.rule for finding in findings},
            "category": {finding.category for finding in findings},
        }
        for entry, kind, pattern in self._named:
            if any(pattern.fullmatch(name) for name in names[kind]):
                return entry
        denied = (
            name.removeprefix(_DENY_PREFIX) for name in sorted(names["rule"]) if name.startswith(_DENY_PREFIX)
        )
        return next(denied, "") or self._find_in_unparsed(analysis)

    def _find_in_unparsed(self, analysis: CallAnalysis) -> str:
        """Return the `approval.deny` entry that matches part of an unparsable command; empty if none does."""
        if not analysis.verdict.unread or not self._globs:
            return ""
        parts = {" ".join(part.split()) for part in _SEPARATORS.split(analysis.command)}
        return next((entry for entry, glob in self._globs if any(map(glob.fullmatch, parts))), "")


def _build_rule(entry: str, glob: re.Pattern[str]) -> Rule:
    return Rule(
        name=f"{_DENY_PREFIX}{entry}",
        category="denied",
        severity=Severity.CRITICAL,
        description="the setting approval.deny forbids this command",
        condition=_LineCondition(programs=(), always=True, pattern=glob),
    )


def _compile_glob(entry: str) -> re.Pattern[str]:
    """Compile a command glob of `approval.deny`, which also matches the command with further arguments."""
    words = " ".join(entry.split())
    with_arguments = "" if words.endswith("*") else f"|{translate(f'{words} *')}"
    return re.compile(translate(words) + with_arguments)
