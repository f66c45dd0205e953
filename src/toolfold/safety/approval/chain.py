"""Decide about a tool call that needs approval, by a fixed sequence of checks before anyone is asked.

    hard floor → deny rules → session grants → allow-list → allowed tools → isolated site → mode → a person

A later step cannot override an earlier refusal, and no step is skipped: read `DecisionChain.decide` from
top to bottom. It asks nobody itself; None means that someone must be asked.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from shellverdict.verdict import Severity
from toolfold.core.types import Answer, Caller
from toolfold.safety.approval.allowed_kinds import (
    CONTROL_PREFIX,
    DESTRUCTIVE_PREFIX,
    DESTRUCTIVE_SERVER_PREFIX,
    PAID_PREFIX,
    FindingKinds,
)
from toolfold.safety.approval.allowed_tools import AllowedTools
from toolfold.safety.approval.allowlist import AllowList
from toolfold.safety.approval.call_analysis import (
    INSTRUCTION_RULE,
    SCHEDULE_RULE,
    SELF_PROTECTION,
    CallAnalysis,
    control_rule,
    declared_rule,
)
from toolfold.safety.approval.deny_rules import DenyRules
from toolfold.safety.approval.session_grants import SessionGrants

__all__ = ["DecidedBy", "Decision", "DecisionChain", "Mode", "can_be_allowlisted"]

Mode = Literal["manual", "smart", "off"]

_NOBODY = Caller()
_LASTING_RULES = frozenset({SCHEDULE_RULE, INSTRUCTION_RULE})
"""Rules about calls that affect what models do later."""
# Findings of these categories may hide anything; they need approval each time.
_OPAQUE_CATEGORIES = frozenset({"unreadable", "spoof"})
# Startup files need approval each time and in every mode: changing one can disable the protection itself.
_STARTUP_RULES = frozenset({"write-startup", "overwrite-startup"})


class DecidedBy(StrEnum):
    """The step of the approval process that made a decision."""

    NOTHING = "nothing found"
    BLOCKED = "hard floor"
    DENY = "deny rule"
    SESSION = "session grant"
    ALLOWLIST = "allow-list"
    ALLOWED_TOOL = "allowed tool"
    CLIENT = "client asks its user"
    ISOLATED = "isolated place"
    MODE = "mode off"
    SMART = "smart approval"
    PERSON = "person"
    CHAT = "person, by chat"
    NOBODY = "nobody to ask"
    TOOL_CALL = "nobody to ask (started by a tool call)"
    UNANSWERED = "client without an answer"
    TIME = "time limit"
    FAILED = "failed question"


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision about a tool call: whether it may run, who decided, and why."""

    allowed: bool
    decided_by: DecidedBy
    reason: str
    answer: Answer | None = None


class DecisionChain:
    """Chain of checks that decides about tool calls, if possible without asking anyone."""

    def __init__(
        self,
        *,
        mode: Mode = "manual",
        deny_rules: DenyRules | None = None,
        grants: SessionGrants | None = None,
        allowlist: AllowList | None = None,
        isolated: Collection[str] = (),
        clears: Severity = Severity.LOW,
        kinds: FindingKinds | None = None,
        allowed_tools: AllowedTools | None = None,
    ) -> None:
        """Create a decision chain.

        Findings of the `isolated` categories need no approval if a site confines the effects.
        """
        self.mode = mode
        self.deny_rules = deny_rules or DenyRules()
        self.grants = grants or SessionGrants()
        self.allowlist = allowlist or AllowList()
        self.allowed_tools = allowed_tools or AllowedTools()
        self._kinds = kinds or FindingKinds()
        self._isolated, self._clears = frozenset(isolated), clears

    def decide(self, analysis: CallAnalysis, session_id: str, caller: Caller = _NOBODY) -> Decision | None:
        """Return the decision about a call; None if a person or model must be asked."""
        verdict = analysis.verdict
        if verdict.blocked:
            return Decision(
                False, DecidedBy.BLOCKED, f"this is always blocked, even with approval: {verdict.reason}"
            )
        if entry := self.deny_rules.find(analysis):
            return Decision(False, DecidedBy.DENY, f"the setting approval.deny forbids this ({entry})")
        if not analysis.needs_approval:
            return Decision(True, DecidedBy.NOTHING, "")
        if self.grants.covers(session_id, analysis.grant_key):
            return Decision(True, DecidedBy.SESSION, "the same call was approved for this session")
        if _has_approvable_kind(analysis) and self.grants.covers_kind(session_id, self.kinds_of(analysis)):
            return Decision(True, DecidedBy.SESSION, "this kind was approved for this session")
        if any(self.allowlist.covers(each, analysis.rules) for each in analysis.allowlist_spellings):
            return Decision(True, DecidedBy.ALLOWLIST, "it is on the allow-list")
        if _can_be_allowlisted_as_kinds(analysis) and self._kinds.are_covered(
            analysis.rules, self.allowlist.patterns
        ):
            return Decision(True, DecidedBy.ALLOWLIST, "its kind is on the allow-list")
        if decision := self._decide_declared_effect(analysis, caller):
            return decision
        if self._is_confined(analysis):
            site = verdict.findings[0].confined_to
            return Decision(
                True, DecidedBy.ISOLATED, f"it only affects {site}, and approval.isolated allows that"
            )
        if self.mode == "off" and not (verdict.unread or _affects_protection(analysis)):
            return Decision(True, DecidedBy.MODE, "approval is switched off")
        return None

    def _decide_declared_effect(self, analysis: CallAnalysis, caller: Caller) -> Decision | None:
        """Decide about a call whose only findings are effects that its tool declares."""
        if not analysis.declared_effects:
            return None
        if entries := self.allowed_tools.find(analysis, caller.name):
            names = ", ".join(map(str, entries))
            return Decision(True, DecidedBy.ALLOWED_TOOL, f"the user allows it ({names})")
        if caller.asks_user and analysis.has_only_declared_effect:
            return Decision(True, DecidedBy.CLIENT, "gateway.trust_client_approval leaves it to the client")
        return None

    def kinds_of(self, analysis: CallAnalysis) -> tuple[str, ...]:
        """Return the kinds of findings (groups of danger rules) that apply to a call.

        All destructive tools of one MCP server are one kind; every class of devices is a kind of its own.
        """
        rules = list(analysis.rules)
        if analysis.devices and (control := control_rule(analysis.tool)) in rules:
            rules[rules.index(control)] = f"{control} for {analysis.devices}"
        if analysis.own_server and (declared := declared_rule(analysis.tool)) in rules:
            rules[rules.index(declared)] = f"{DESTRUCTIVE_SERVER_PREFIX}{analysis.own_server}"
        return self._kinds.kinds_of(rules)

    def _is_confined(self, analysis: CallAnalysis) -> bool:
        """Return True if a call needs no approval because a sandbox confines all its effects.

        The settings must allow this for the categories of all findings.
        """
        findings = analysis.verdict.findings
        is_confined = all(each.confined_to and each.category in self._isolated for each in findings)
        return is_confined and _is_described_by_rules(analysis)

    def can_be_cleared(self, analysis: CallAnalysis) -> bool:
        """Return True if a model may approve the call, so that no person needs to be asked."""
        worst = max((finding.severity for finding in analysis.verdict.findings), default=Severity.CRITICAL)
        return self.mode == "smart" and worst <= self._clears and _is_described_by_rules(analysis)

    def offered_answers(self, analysis: CallAnalysis) -> tuple[Answer, ...]:
        """Return the answers offered to a person for the call, such as once, for the session, or always."""
        offered = [Answer.ONCE]
        if analysis.grant_key and not analysis.verdict.unread:
            offered.append(Answer.SESSION)
        if _has_approvable_kind(analysis):
            offered.append(Answer.KIND)
        if _is_described_by_rules(analysis):
            if self.allowlist.is_writable and analysis.allowlist_entry:
                offered.append(Answer.ALWAYS)
            if self.allowlist.is_writable and _can_be_allowlisted_as_kinds(analysis):
                offered.append(Answer.ALWAYS_KIND)
        return (*offered, Answer.DENY)

    def remember(self, analysis: CallAnalysis, session_id: str, answer: Answer) -> None:
        """Store an approval that also applies to later calls. Raises ConfigError if it cannot be saved.

        "Always" adds no session grant: after the entry is removed, approval is needed again at once.
        """
        if answer is Answer.SESSION:
            self.grants.allow(session_id, analysis.grant_key)
        elif answer is Answer.KIND:
            self.grants.allow_kind(session_id, self.kinds_of(analysis))
        elif answer is Answer.ALWAYS:
            self.allowlist.add(analysis.allowlist_entry)
        elif answer is Answer.ALWAYS_KIND:
            self.allowlist.add(*self._kinds.allowlist_entries(analysis.rules))


def _is_described_by_rules(analysis: CallAnalysis) -> bool:
    """Return True if danger rules fully describe the call, and it changes no settings or startup files."""
    verdict = analysis.verdict
    is_opaque = verdict.unread or not _OPAQUE_CATEGORIES.isdisjoint(_categories_of(analysis))
    return bool(verdict.findings) and not is_opaque and not _affects_protection(analysis)


def _has_approvable_kind(analysis: CallAnalysis) -> bool:
    """Return True if a person may approve all calls of the same kind for a session.

    Jobs and instructions differ too much from each other, and some devices need approval each time.
    """
    if not _is_described_by_rules(analysis) or not _LASTING_RULES.isdisjoint(analysis.rules):
        return False
    return not analysis.needs_approval_each_time


def can_be_allowlisted(rule: str, category: str, severity: Severity) -> bool:
    """Return True if an allow-list entry may allow all calls that match a danger rule.

    There can be none for critical rules, for rules about commands that cannot be analyzed, and for rules that
    protect Toolfold or files that shells run at start.
    """
    is_protected = category in (SELF_PROTECTION, *_OPAQUE_CATEGORIES) or rule in _STARTUP_RULES
    is_declared = rule.startswith((DESTRUCTIVE_PREFIX, PAID_PREFIX, CONTROL_PREFIX)) or rule in _LASTING_RULES
    return not is_protected and severity < Severity.CRITICAL and not is_declared


def _can_be_allowlisted_as_kinds(analysis: CallAnalysis) -> bool:
    """Return True if an allow-list entry for a rule or a kind of finding may permit the call."""
    findings = analysis.verdict.findings
    return _is_described_by_rules(analysis) and all(
        can_be_allowlisted(each.rule, each.category, each.severity) for each in findings
    )


def _affects_protection(analysis: CallAnalysis) -> bool:
    """Return True if a call changes settings of Toolfold or another agent, or files that shells run."""
    return SELF_PROTECTION in _categories_of(analysis) or not _STARTUP_RULES.isdisjoint(analysis.rules)


def _categories_of(analysis: CallAnalysis) -> frozenset[str]:
    return frozenset(finding.category for finding in analysis.verdict.findings)
