"""Reports tool calls on the event stream: real tools under their own names, searches as searches.

Secrets are removed and large values cut before anything is published.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from typing import Any

from toolfold.events import (
    ApprovalAnswered,
    ApprovalAsked,
    EventBus,
    ToolFinished,
    ToolProgressed,
    ToolsSearched,
    ToolStarted,
)
from toolfold.model import (
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
from toolfold.redaction import Redaction

MAX_ARGUMENT_CHARS = 2_000
MAX_RESULT_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class CallEvents:
    """Publishes what happens to the calls of one runtime."""

    redact: Redaction
    bus: EventBus = field(default_factory=EventBus)

    def start(self, tool: Tool, args: Json, context: CallContext) -> None:
        """Report that a call passed the checks on its arguments."""
        if tool.name in BRIDGE_NAMES or not self.bus.has_listeners:
            return
        self.bus.publish(
            ToolStarted(
                session_id=context.session_id,
                call_id=context.call_id,
                tool=tool.name,
                arguments={key: self._shorten(value) for key, value in args.items()},
                emoji=tool.emoji,
                toolset=tool.toolset,
            )
        )

    def ask_approval(self, request: ApprovalRequest, context: CallContext) -> None:
        """Report that a person is asked about a call."""
        if not self.bus.has_listeners:
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
        """Report the answer to a question, or that the question was withdrawn."""
        if not self.bus.has_listeners:
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

    def reporter(self, tool: Tool, context: CallContext) -> Progress:
        """Return the function by which a handler reports its progress."""
        return functools.partial(self._report_progress, tool.name, context.session_id, context.call_id)

    def _report_progress(
        self,
        tool: str,
        session_id: str,
        call_id: str,
        message: str = "",
        progress: float | None = None,
        total: float | None = None,
    ) -> None:
        self.bus.publish(
            ToolProgressed(
                session_id=session_id,
                call_id=call_id,
                tool=tool,
                message=self.redact(message[:MAX_RESULT_CHARS]),
                progress=progress,
                total=total,
            )
        )

    def finish(
        self, call: ToolCall, result: ToolResult, context: CallContext, *, refused: bool = False
    ) -> None:
        """Report that a call ended, or was answered without running."""
        if not self.bus.has_listeners:
            return
        if call.name in BRIDGE_NAMES:
            self._report_search(call, result, context)
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
            )
        )

    def _report_search(self, call: ToolCall, result: ToolResult, context: CallContext) -> None:
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
            )
        )

    def _shorten(self, value: Any) -> Any:
        if isinstance(value, (bool, int, float)) or value is None:
            return value
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
        cut = text if len(text) <= MAX_ARGUMENT_CHARS else text[:MAX_ARGUMENT_CHARS] + "…"
        return self.redact(cut)


def _read_mapping(value: Any) -> Json:
    if isinstance(value, str):
        try:
            value = read_json(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _read_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
