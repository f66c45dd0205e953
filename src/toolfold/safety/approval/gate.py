"""The approval step that every tool call passes before it runs.

`call_analysis` analyzes a call, `chain` makes the decisions that need no answer, `smart` and
`prompting` ask, and `audit` records the decision. The call is refused if nobody can be asked, there is no
answer in time, the answer was not offered, the request fails, or the decision cannot be recorded.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import logging
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from shellverdict.shell.words import Word
from toolfold.core.errors import ConfigError, Refused
from toolfold.core.loops import MAX_CHECK_THREADS, EventLoops
from toolfold.core.tool_processes import find_tool_call
from toolfold.core.types import (
    ANONYMOUS_CLIENT,
    MCP_SOURCE,
    Answer,
    ApprovalRequest,
    Approver,
    CallContext,
    Caller,
    Effect,
    Json,
    Tool,
)
from toolfold.safety.approval.allowed_kinds import describe_kind
from toolfold.safety.approval.audit_log import DecisionLog
from toolfold.safety.approval.call_analysis import CallAnalysis, CallAnalyzer
from toolfold.safety.approval.chain import DecidedBy, Decision, DecisionChain
from toolfold.safety.approval.prompting import Chat, PendingQuestions, ask
from toolfold.safety.approval.session_variables import SessionVariables
from toolfold.safety.approval.smart import SmartApproval

log = logging.getLogger(__name__)

__all__ = ["Approval", "ApprovalPreview", "QuestionEvents"]

# Judging takes about 1 µs per character: longer text is judged in a thread, not in the event loop, and so are
# commands, because files that they run may be read.
MAX_INLINE_CHARS = 4_096
PRECHECK_TIMEOUT_S = 30.0
# Tools that an application registers itself are unknown to `toolfold approvals allow`.
_KNOWN_TO_COMMAND_LINE = frozenset({"builtin", "plugin", MCP_SOURCE})
_DO_NOT_RETRY = "Do not retry it unless the user asks you to."
_NO_ANSWER = frozenset({DecidedBy.NOBODY, DecidedBy.UNANSWERED, DecidedBy.TIME})


@dataclass(frozen=True, slots=True)
class ApprovalPreview:
    """Preview of the approval of a command: its findings, whether it needs approval, and who would decide."""

    analysis: CallAnalysis
    decision: Decision | None
    asked_party: str
    """Who would be asked for approval, a person or a model, if `decision` is None."""

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
        return self.decision.reason if self.decision else self.analysis.verdict.reason


class QuestionEvents(Protocol):
    """Interface for publishing an event for each approval question, and an event for its answer."""

    def ask_approval(self, request: ApprovalRequest, context: CallContext) -> None: ...

    def answer_approval(
        self,
        request: ApprovalRequest,
        context: CallContext,
        *,
        allowed: bool,
        answer: Answer | None,
        reason: str,
    ) -> None: ...


class Approval:
    """Approval of tool calls: decides whether a call may run, and asks a person or a model if necessary."""

    def __init__(
        self,
        approver: Approver | None,
        loops: EventLoops,
        *,
        timeout: float = 300.0,
        analyzer: CallAnalyzer | None = None,
        chain: DecisionChain | None = None,
        smart: SmartApproval | None = None,
        audit: DecisionLog | None = None,
        events: QuestionEvents | None = None,
        chat: Chat | None = None,
    ) -> None:
        self._approver, self._loops, self._timeout = approver, loops, timeout
        self._chat = chat
        self._analyzer = analyzer or CallAnalyzer()
        self._chain = chain or DecisionChain()
        self._smart, self._audit, self._events = smart, audit, events
        self._questions, self._variables = PendingQuestions(), SessionVariables()
        # Determined once: it does not change, and the parent processes may exit later.
        self._started_by_tool_call = find_tool_call()
        self._asks_client = False

    def use_own_servers(self, servers: Iterable[str]) -> None:
        """Update the set of MCP servers that the user configured, after servers were added or removed."""
        self._analyzer.own_servers = frozenset(servers)

    def include_changes_since(self, moment: float) -> None:
        """Judge files that a command runs if they changed after `moment`, the start of a resumed session."""
        self._analyzer.include_changes_since(moment)

    def with_approver(self, approver: Approver) -> Approval:
        """Return a copy of this `Approval` that asks the given approver.

        Session grants, rules and the audit log are shared with the original.
        """
        other = copy.copy(self)
        other._approver, other._questions = approver, PendingQuestions()
        other._asks_client = True
        return other

    def preview(self, command: str, *, cwd: str | None = None, tool: Tool | None = None) -> ApprovalPreview:
        """Predict whether a command needs approval in a new session, without running or recording anything.

        `tool` is the tool that would run it; it determines the execution site.
        """
        analysis = self._analyzer.analyze_command(command, cwd, tool)
        smart = self._smart is not None and self._chain.can_be_cleared(analysis)
        asks = "smart approval, then a person" if smart else "a person"
        return ApprovalPreview(analysis, self._chain.decide(analysis, ""), asks)

    async def require(self, tool: Tool, args: Json, context: CallContext) -> None:
        """Return if the tool call may run; raise Refused, or the tool's own CallError, if it may not."""
        task = (context.session_id, context.task_id or "", tool.name, str(args.get("task") or ""))
        analysis = await self._analyze_call(tool, args, self._variables.get_variables(task))
        decision = self._chain.decide(analysis, context.session_id, context.caller)
        if decision is None:
            await self._run_precheck(tool, args, context)
            decision = await self._ask_for_approval(analysis, context)
        if decision.decided_by is DecidedBy.ISOLATED:
            log.info(
                "the tool %s runs without approval, although rules for dangerous calls match (%s): %s",
                tool.name,
                ", ".join(analysis.rules),
                decision.reason,
            )
        if decision.decided_by is not DecidedBy.NOTHING:
            decision = await self._record_decision(decision, analysis, context)
        if not decision.allowed:
            raise Refused(_explain_refusal(analysis, decision))
        self._variables.update(task, analysis.verdict.leaves)
        self._analyzer.remember_changes(analysis)

    async def _analyze_call(self, tool: Tool, args: Json, variables: Mapping[str, Word]) -> CallAnalysis:
        if _count_text(args) <= MAX_INLINE_CHARS and Effect.EXECUTE not in tool.effects:
            return self._analyzer.analyze(tool, args, variables)
        return await self._loops.run_in_thread(lambda: self._analyzer.analyze(tool, args, variables))

    async def _run_precheck(self, tool: Tool, args: Json, context: CallContext) -> None:
        """Raise the tool's CallError if its handler would refuse the call even after approval."""
        if tool.precheck is not None:
            await self._loops.call_with_timeout(
                PRECHECK_TIMEOUT_S, tool.precheck, copy.deepcopy(args), context, max_threads=MAX_CHECK_THREADS
            )

    async def _ask_for_approval(self, analysis: CallAnalysis, context: CallContext) -> Decision:
        if self._started_by_tool_call:  # then the tool call itself could answer
            why = (
                f"approval is not possible if a tool call started the runtime ({self._started_by_tool_call})"
            )
            return Decision(False, DecidedBy.TOOL_CALL, f"{analysis.verdict.reason}, and {why}")
        smart = self._smart
        if smart is not None and self._chain.can_be_cleared(analysis) and await smart.is_cleared(analysis):
            return Decision(True, DecidedBy.SMART, f"{smart.name} cleared it")
        ask_person = functools.partial(self._ask_person, analysis, context)
        if not analysis.key:
            return await ask_person()
        same_question = (context.session_id, analysis.key)
        return await self._questions.ask_once(same_question, ask_person, seconds=self._timeout)

    async def _ask_person(self, analysis: CallAnalysis, context: CallContext) -> Decision:
        session_id = context.session_id
        decide = functools.partial(self._chain.decide, analysis, session_id, context.caller)
        if decided := decide():  # another call's answer may cover this one
            return decided
        kinds = tuple(map(describe_kind, self._chain.kinds_of(analysis)))
        request = _build_request(analysis, context, self._chain.offered_answers(analysis), kinds)
        asking = self._questions.ask_unless_decided(
            session_id,
            ask(self._approver, request, self._loops, self._timeout, self._chat),
            decide,
        )
        decision = await self._publish_question(asking, request, context)
        if decision.allowed and decision.answer is not None:
            decision = self._remember_answer(decision, analysis, session_id, decision.answer)
            self._questions.notify_waiting(session_id)
        return decision

    async def _publish_question(
        self, asking: Coroutine[Any, Any, Decision], request: ApprovalRequest, context: CallContext
    ) -> Decision:
        """Wait for a person's approval decision; publish an event for the question and one for the answer."""
        if self._events is None or (self._approver is None and self._chat is None):  # then nobody is asked
            return await asking
        self._events.ask_approval(request, context)
        report_answer = functools.partial(self._events.answer_approval, request, context)
        try:
            decision = await asking
        except asyncio.CancelledError:
            report_answer(allowed=False, answer=None, reason="the call was cancelled")
            raise
        report_answer(allowed=decision.allowed, answer=decision.answer, reason=decision.reason)
        return decision

    def _remember_answer(
        self, decision: Decision, analysis: CallAnalysis, session_id: str, answer: Answer
    ) -> Decision:
        try:
            self._chain.remember(analysis, session_id, answer)
        except ConfigError as error:  # approved, but the permanent entry could not be saved
            log.warning("the allow-list could not be written, so the approval applies only once: %s", error)
            return replace(decision, answer=Answer.ONCE)
        return decision

    async def _record_decision(
        self, decision: Decision, analysis: CallAnalysis, context: CallContext
    ) -> Decision:
        audit = self._audit
        if audit is None:
            return decision
        try:
            decided_by = (
                _answered_by(decision, context.caller) if self._asks_client else decision.decided_by.value
            )
            entry = _build_entry(decision, analysis, context, decided_by)
            if audit.is_remote:
                await self._loops.run_in_thread(lambda: audit.write(entry))
            else:
                audit.write(entry)
        except OSError as error:
            log.exception("the decision about %r could not be recorded", analysis.tool.name)
            if decision.allowed:
                return Decision(
                    False, DecidedBy.FAILED, f"the decision could not be recorded ({error.strerror or error})"
                )
        return decision


def _count_text(value: object, limit: int = MAX_INLINE_CHARS + 1) -> int:
    """Count the characters in a call's arguments; stop counting at `limit`.

    The count decides whether the call is judged in a thread, which long calls need.
    """
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, (list, tuple, dict)):
        return 1
    total = 0
    for each in value.values() if isinstance(value, dict) else value:
        total += 1 + _count_text(each, limit - total)
        if total >= limit:
            break
    return total


def _explain_refusal(analysis: CallAnalysis, decision: Decision) -> str:
    """Return the message that tells the model why a tool call was not approved."""
    name = analysis.tool.name
    if decision.decided_by not in _NO_ANSWER:
        return f"{name!r} was refused: {decision.reason}. It was not run. {_DO_NOT_RETRY}"
    hint = ""
    if analysis.declared_effects and analysis.tool.source.kind in _KNOWN_TO_COMMAND_LINE:
        targets = (name if each == "destructive" else f"{name}:{each}" for each in analysis.declared_effects)
        command = f"toolfold approvals allow {' '.join(sorted(targets))}"
        hint = f" Only the user can allow it, in a terminal: {command}."
    return f"{name!r} was not run: {decision.reason}.{hint} {_DO_NOT_RETRY}"


def _build_request(
    analysis: CallAnalysis, context: CallContext, answers: tuple[Answer, ...], kinds: tuple[str, ...]
) -> ApprovalRequest:
    verdict = analysis.verdict
    worst_first = sorted(verdict.findings, key=lambda finding: -finding.severity)
    reasons = dict.fromkeys(finding.reason for finding in worst_first)
    reasons.pop(verdict.reason, None)
    return ApprovalRequest(
        analysis.tool,
        copy.deepcopy(analysis.args),
        verdict.reason,
        context.session_id,
        command=analysis.command,
        part=verdict.part,
        category=verdict.category,
        severity=verdict.severity.name.lower() if verdict.severity else "",
        also=tuple(reasons),
        rules=analysis.rules,
        kinds=kinds,
        covers=analysis.allowlist_entry or verdict.shape or analysis.key,
        session_covers=(
            f"any call of {analysis.tool.name}, with any arguments"
            if analysis.grant_key != analysis.key
            else ""
        ),
        answers=answers,
        client=context.caller.name,
        user_id=context.caller.user_id,
    )


def _answered_by(decision: Decision, caller: Caller) -> str:
    """Return who made a decision, for the audit log: the client's name if a gateway client answered."""
    if decision.decided_by is not DecidedBy.PERSON or not caller.name:
        return decision.decided_by.value
    return "anonymous client" if caller.name == ANONYMOUS_CLIENT else f"client {caller.name}"


def _build_entry(decision: Decision, analysis: CallAnalysis, context: CallContext, decided_by: str) -> Json:
    verdict = analysis.verdict
    return {
        "session": context.session_id,
        **({"client": context.caller.name} if context.caller.name else {}),
        "call": context.call_id,
        "tool": analysis.tool.name,
        "command": analysis.command or analysis.key,
        "rules": analysis.rules,
        "category": verdict.category,
        "severity": verdict.severity.name.lower() if verdict.severity else "",
        "reason": verdict.reason,
        "allowed": decision.allowed,
        "by": decided_by,
        "answer": decision.answer.value if decision.answer else None,
        "why": decision.reason,
    }
