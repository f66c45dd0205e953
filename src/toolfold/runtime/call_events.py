"""Publish events about tool calls; a call through `tool_call` is reported with the inner tool's name.

Secrets are removed and large values cut before anything is published.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from toolfold.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    EventBus,
    ToolFinished,
    ToolProgressed,
    ToolsSearched,
    ToolStarted,
)
from toolfold.core.types import (
    BRIDGE_NAMES,
    Answer,
    ApprovalRequest,
    CallContext,
    Json,
    Progress,
    Tool,
    ToolCall,
    ToolResult,
    read_json,
)
from toolfold.safety.redaction import Redaction

MAX_ARGUMENT_CHARS = 2_000
MAX_RESULT_CHARS = 2_000
MIN_PROGRESS_INTERVAL_S = 0.1
"""The shortest time between two progress events of one call."""


@dataclass(frozen=True, slots=True)
class CallEvents:
    """Publishes events about the tool calls of one runtime: start, approval, progress and end."""

    redact: Redaction
    bus: EventBus = field(default_factory=EventBus)

    def start(self, tool: Tool, args: Json, context: CallContext) -> None:
        """Publish that a tool call has started, after its arguments were validated but before approval."""
        if tool.name in BRIDGE_NAMES or not self.bus.has_listeners_for(ToolStarted):
            return
        self.bus.publish(
            ToolStarted(
                session_id=context.session_id,
                call_id=context.call_id,
                tool=tool.name,
                arguments={key: self._shorten(value) for key, value in args.items()},
                emoji=tool.emoji,
                toolset=tool.toolset,
                parent_id=context.parents[-1] if context.parents else "",
                client=context.caller.name,
                user_id=context.caller.user_id,
            )
        )

    def ask_approval(self, request: ApprovalRequest, context: CallContext) -> None:
        """Publish that a person was asked to approve a tool call."""
        if not self.bus.has_listeners_for(ApprovalAsked):
            return
        redact = self.redact.with_secrets_from(request.command)  # reasons quote words of the command
        self.bus.publish(
            ApprovalAsked(
                session_id=context.session_id,
                call_id=context.call_id,
                tool=request.tool.name,
                reason=redact(request.reason),
                command=redact(request.command),
                severity=request.severity,
                answers=tuple(each.value for each in request.answers),
                client=context.caller.name,
                user_id=context.caller.user_id,
            )
        )

    def answer_approval(
        self,
        request: ApprovalRequest,
        context: CallContext,
        *,
        allowed: bool,
        answer: Answer | None,
        reason: str,
    ) -> None:
        """Publish the answer to an approval question, or that the question was withdrawn."""
        if not self.bus.has_listeners_for(ApprovalAnswered):
            return
        self.bus.publish(
            ApprovalAnswered(
                session_id=context.session_id,
                call_id=context.call_id,
                tool=request.tool.name,
                allowed=allowed,
                answer=answer.value if answer else "",
                reason=self.redact.with_secrets_from(request.command)(reason),
            )
        )

    @contextlib.contextmanager
    def follow_progress(self, tool: Tool, context: CallContext) -> Iterator[Progress]:
        """Yield a function that a tool's handler calls to report its progress, and publish the reports."""

        def publish(message: str, progress: float | None, total: float | None) -> None:
            if self.bus.has_listeners_for(ToolProgressed):
                self.bus.publish(
                    ToolProgressed(
                        session_id=context.session_id,
                        call_id=context.call_id,
                        tool=tool.name,
                        message=self.redact(str(message)[:MAX_RESULT_CHARS]),
                        progress=_finite_or_none(progress),
                        total=_finite_or_none(total),
                    )
                )

        limiter = ProgressLimiter(publish)
        try:
            yield limiter.report
        finally:
            limiter.close()

    def finish(
        self,
        call: ToolCall,
        result: ToolResult,
        context: CallContext,
        *,
        refused: bool = False,
        registered: bool = True,
    ) -> None:
        """Publish that a tool call has ended, even if the tool did not run."""
        if isinstance(call.name, str) and call.name in BRIDGE_NAMES:  # a model may send any JSON
            self._report_search(call, result, context)
            return
        if not self.bus.has_listeners_for(ToolFinished):
            return
        self.bus.publish(
            ToolFinished(
                session_id=context.session_id,
                call_id=call.id,
                tool=result.name,
                ok=result.ok,
                duration_s=result.milliseconds / 1000,
                result=self.redact(result.text[:MAX_RESULT_CHARS]) if result.ok else "",
                error=(result.error or "")[:MAX_RESULT_CHARS],
                refused=refused,
                registered=registered,
                client=context.caller.name,
                user_id=context.caller.user_id,
            )
        )

    def _report_search(self, call: ToolCall, result: ToolResult, context: CallContext) -> None:
        if not self.bus.has_listeners_for(ToolsSearched):
            return
        asked = _read_mapping(call.arguments)
        queries = [asked.get("query"), asked.get("name"), *_read_list(asked.get("queries"))]
        answer = _read_mapping(result.text)
        matches = [each.get("name") for each in _read_list(answer.get("matches")) if isinstance(each, dict)]
        self.bus.publish(
            ToolsSearched(
                session_id=context.session_id,
                call_id=call.id,
                queries=tuple(self.redact(each[:200]) for each in queries if isinstance(each, str)),
                found=tuple(name for name in matches if isinstance(name, str)),
                client=context.caller.name,
                user_id=context.caller.user_id,
            )
        )

    def _shorten(self, value: Any) -> Any:
        if isinstance(value, (bool, int, float)) or value is None:
            return value
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
        cut = text if len(text) <= MAX_ARGUMENT_CHARS else text[:MAX_ARGUMENT_CHARS] + "…"
        return self.redact(cut)


class ProgressLimiter:
    """Forwards at most one progress report per `MIN_PROGRESS_INTERVAL_S`.

    A report that comes too early is kept until the next one replaces it or the call ends, so that the last
    report is never lost. Reports after the end are ignored: a handler that timed out may still run.
    Thread-safe.
    """

    def __init__(
        self,
        publish: Callable[[str, float | None, float | None], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publish, self._clock, self._lock = publish, clock, threading.RLock()
        self._next_time = 0.0
        self._delayed: tuple[str, float | None, float | None] | None = None
        self._is_closed = False

    def report(self, message: str = "", progress: float | None = None, total: float | None = None) -> None:
        """Publish the progress of a call, delayed if another report was published just before."""
        with self._lock:  # held while publishing, so that nothing is published after the end
            if self._is_closed:
                return
            if self._clock() < self._next_time:
                self._delayed = message, progress, total
                return
            self._next_time, self._delayed = self._clock() + MIN_PROGRESS_INTERVAL_S, None
            self._publish(message, progress, total)

    def close(self) -> None:
        """Publish the delayed progress report, if any, and drop later reports."""
        with self._lock:
            self._is_closed = True
            if self._delayed is not None:
                self._publish(*self._delayed)


def _finite_or_none(number: float | None) -> float | None:
    """Return the number; None for infinity and NaN, which JSON cannot represent."""
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    return number if is_number and number is not None and math.isfinite(number) else None


def _read_mapping(value: Any) -> Json:
    if isinstance(value, str):
        try:
            value = read_json(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _read_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
