"""The approval gate: every call passes it before it runs.

`call_analysis` analyzes a call, `chain` makes the decisions that need nobody's answer, `smart` and
`prompting` ask, and `audit` records the decision. The call is refused if nobody can be asked, there is no
answer in time, the answer was not offered, the request fails, or the decision cannot be recorded.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from shellverdict.shell.words import Word
from toolfold.approval.audit import AuditLog
from toolfold.approval.call_analysis import CallAnalysis, CallAnalyzer
from toolfold.approval.chain import DecidedBy, Decision, DecisionChain
from toolfold.approval.kinds import describe_kind
from toolfold.approval.prompting import PendingQuestions, ask
from toolfold.approval.session_variables import SessionVariables
from toolfold.approval.smart import SmartApproval
from toolfold.errors import ConfigError, Refused
from toolfold.loops import EventLoops
from toolfold.model import (
    ANONYMOUS_CLIENT,
    MCP_SOURCE,
    Answer,
    ApprovalRequest,
    Approver,
    CallContext,
    Caller,
    Json,
    Tool,
)
from toolfold.provenance import find_tool_call

log = logging.getLogger(__name__)

__all__ = ["Approval", "ApprovalPreview"]

# Judging takes about 1 µs per character: longer text is judged in a thread so that it does not block the loop.
MAX_INLINE_CHARS = 4_096
# Tools that an application registers itself are unknown to `toolfold approvals allow`.
_KNOWN_TO_COMMAND_LINE = frozenset({"plugin", MCP_SOURCE})
_NO_ANSWER = frozenset({DecidedBy.NOBODY, DecidedBy.UNANSWERED, DecidedBy.TIME})


@dataclass(frozen=True, slots=True)
class ApprovalPreview:
    """The expected outcome for a command: its findings, and who would decide."""

    subject: CallAnalysis
    decision: Decision | None
    asked_party: str
    """Who would be asked if there is no decision without asking."""

    @property
    def runs_without_approval(self) -> bool:
        return self.decision is not None and self.decision.allowed

    @property
    def outcome(self) -> Literal["runs", "asked about", "refused"]:
        if self.decision is None:
            return "asked about"
        return "runs" if self.decision.allowed else "refused"

    @property
    def decided_by(self) -> str:
        return self.decision.decided_by.value if self.decision else self.asked_party

    @property
    def reason(self) -> str:
        return self.decision.reason if self.decision else self.subject.verdict.reason


class Approval:
    """The approval step of the dispatch pipeline."""

    def __init__(
        self,
        approver: Approver | None,
        loops: EventLoops,
        *,
        timeout: float = 300.0,
        subjects: CallAnalyzer | None = None,
        chain: DecisionChain | None = None,
        smart: SmartApproval | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self._approver, self._loops, self._timeout = approver, loops, timeout
        self._subjects = subjects or CallAnalyzer()
        self._chain = chain or DecisionChain()
        self._smart, self._audit = smart, audit
        self._questions, self._variables = PendingQuestions(), SessionVariables()
        # Determined once: it does not change, and the parent processes may exit later.
        self._started_by_tool_call = find_tool_call()
        self._asks_client = False

    def with_approver(self, approver: Approver) -> Approval:
        """Return a copy that asks another approver; grants, rules and the audit log are shared."""
        other = copy.copy(self)
        other._approver, other._questions = approver, PendingQuestions()
        other._asks_client = True
        return other

    def preview(self, command: str, *, cwd: str | None = None, tool: Tool | None = None) -> ApprovalPreview:
        """Return the outcome for a command in a new session. Nothing is run, asked or recorded.

        `tool` is the tool that would run it; it determines the execution site.
        """
        subject = self._subjects.analyze_command(command, cwd, tool)
        smart = self._smart is not None and self._chain.can_be_cleared(subject)
        asks = "smart approval, then a person" if smart else "a person"
        return ApprovalPreview(subject, self._chain.decide(subject, ""), asks)

    async def require(self, tool: Tool, args: Json, context: CallContext) -> None:
        """Return if the call may run; raise Refused otherwise."""
        task = (context.session_id, context.task_id or "", tool.name, str(args.get("task") or ""))
        subject = await self._analyze_call(tool, args, self._variables.get_variables(task))
        decision = self._chain.decide(subject, context.session_id, context.caller)
        if decision is None:
            decision = await self._ask_for_approval(subject, context)
        if decision.decided_by is DecidedBy.ISOLATED:
            log.info(
                "%s runs without approval (%s): %s", tool.name, ", ".join(subject.rules), decision.reason
            )
        if decision.decided_by is not DecidedBy.NOTHING:
            decision = self._record_decision(decision, subject, context)
        if not decision.allowed:
            raise Refused(_explain_refusal(subject, decision))
        self._variables.update(task, subject.verdict.leaves)

    async def _analyze_call(self, tool: Tool, args: Json, variables: Mapping[str, Word]) -> CallAnalysis:
        if _count_text(args) <= MAX_INLINE_CHARS:
            return self._subjects.analyze(tool, args, variables)
        return await self._loops.run_in_thread(lambda: self._subjects.analyze(tool, args, variables))

    async def _ask_for_approval(self, subject: CallAnalysis, context: CallContext) -> Decision:
        if self._started_by_tool_call:  # then the tool call itself could answer
            why = (
                f"approval is not possible if a tool call started the runtime ({self._started_by_tool_call})"
            )
            return Decision(False, DecidedBy.TOOL_CALL, f"{subject.verdict.reason}, and {why}")
        smart = self._smart
        if smart is not None and self._chain.can_be_cleared(subject) and await smart.is_cleared(subject):
            return Decision(True, DecidedBy.SMART, f"{smart.name} cleared it")
        ask_now = functools.partial(self._ask_person, subject, context)
        if not subject.key:
            return await ask_now()
        same_question = (context.session_id, subject.key)
        return await self._questions.ask_once(same_question, ask_now, seconds=self._timeout)

    async def _ask_person(self, subject: CallAnalysis, context: CallContext) -> Decision:
        session_id = context.session_id
        settle = functools.partial(self._chain.decide, subject, session_id, context.caller)
        if settled := settle():  # another call's answer may cover this one
            return settled
        kinds = tuple(map(describe_kind, self._chain.kinds_of(subject)))
        request = _build_request(subject, session_id, self._chain.offered_answers(subject), kinds)
        decision = await self._questions.ask_unless_decided(
            session_id,
            ask(self._approver, request, self._loops, self._timeout),
            settle,
        )
        if decision.allowed and decision.answer is not None:
            decision = self._remember_answer(decision, subject, session_id, decision.answer)
            self._questions.notify_waiting(session_id)
        return decision

    def _remember_answer(
        self, decision: Decision, subject: CallAnalysis, session_id: str, answer: Answer
    ) -> Decision:
        try:
            self._chain.remember(subject, session_id, answer)
        except ConfigError as error:  # approved, but the permanent entry could not be saved
            log.warning("the allow-list could not be written, so the approval applies only once: %s", error)
            return replace(decision, answer=Answer.ONCE)
        return decision

    def _record_decision(self, decision: Decision, subject: CallAnalysis, context: CallContext) -> Decision:
        if self._audit is None:
            return decision
        try:
            by = _answered_by(decision, context.caller) if self._asks_client else decision.decided_by.value
            self._audit.write(_build_entry(decision, subject, context, by))
        except OSError as error:
            log.exception("the decision about %r could not be recorded", subject.tool.name)
            if decision.allowed:
                return Decision(
                    False, DecidedBy.FAILED, f"the decision could not be recorded ({error.strerror})"
                )
        return decision


def _count_text(value: object, left: int = MAX_INLINE_CHARS + 1) -> int:
    """Count the characters to judge; stop when there are too many to judge them inline."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, (list, tuple, dict)):
        return 1
    total = 0
    for each in value.values() if isinstance(value, dict) else value:
        total += 1 + _count_text(each, left - total)
        if total >= left:
            break
    return total


def _explain_refusal(subject: CallAnalysis, decision: Decision) -> str:
    """Return the message for the model; it mentions a refusal only if someone refused."""
    name = subject.tool.name
    if decision.decided_by not in _NO_ANSWER:
        return f"{name!r} was refused: {decision.reason}. It was not run. Do not retry it unless the user asks you to."
    hint = ""
    if subject.has_only_declared_effect and subject.tool.source.kind in _KNOWN_TO_COMMAND_LINE:
        hint = f" Only the user can allow it, in a terminal: toolfold approvals allow {name}."
    return f"{name!r} was not run: {decision.reason}.{hint} Do not retry it unless the user asks you to."


def _build_request(
    subject: CallAnalysis, session_id: str, answers: tuple[Answer, ...], kinds: tuple[str, ...]
) -> ApprovalRequest:
    verdict = subject.verdict
    worst_first = sorted(verdict.findings, key=lambda finding: -finding.severity)
    reasons = dict.fromkeys(finding.reason for finding in worst_first)
    reasons.pop(verdict.reason, None)
    return ApprovalRequest(
        subject.tool,
        copy.deepcopy(subject.args),
        verdict.reason,
        session_id,
        command=subject.command,
        part=verdict.part,
        category=verdict.category,
        severity=verdict.severity.name.lower() if verdict.severity else "",
        also=tuple(reasons),
        rules=subject.rules,
        kinds=kinds,
        covers=subject.allowlist_entry or verdict.shape or subject.key,
        session_covers=(
            f"any call of {subject.tool.name}, with any arguments" if subject.grant_key != subject.key else ""
        ),
        answers=answers,
    )


def _answered_by(decision: Decision, caller: Caller) -> str:
    """Return who decided, for the log. A gateway client is named: only it knows if a person answered."""
    if decision.decided_by is not DecidedBy.PERSON or not caller.name:
        return decision.decided_by.value
    return "anonymous client" if caller.name == ANONYMOUS_CLIENT else f"client {caller.name}"


def _build_entry(decision: Decision, subject: CallAnalysis, context: CallContext, by: str) -> Json:
    verdict = subject.verdict
    return {
        "session": context.session_id,
        **({"client": context.caller.name} if context.caller.name else {}),
        "call": context.call_id,
        "tool": subject.tool.name,
        "command": subject.command or subject.key,
        "rules": subject.rules,
        "category": verdict.category,
        "severity": verdict.severity.name.lower() if verdict.severity else "",
        "reason": verdict.reason,
        "allowed": decision.allowed,
        "by": by,
        "answer": decision.answer.value if decision.answer else None,
        "why": decision.reason,
    }
