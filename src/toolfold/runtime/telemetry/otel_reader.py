"""Convert events to OpenTelemetry spans and metrics with the semantic conventions for generative AI.

A turn of the agent is a span; its model calls and tool calls are children, and the turns of a sub-agent are
children of the call that delegated to it. Calls that a tool makes are children of its own call. Tool calls
without a turn, such as those of gateway clients, are spans of their own. Knows nothing of exporters: the
caller provides a tracer and a meter.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace
from opentelemetry.metrics import Meter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from toolfold.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ContextCompressed,
    Event,
    ModelReplied,
    ModelRetried,
    ToolFinished,
    ToolsSearched,
    ToolStarted,
    TurnFinished,
    TurnStarted,
)
from toolfold.runtime.telemetry.event_log import UNKNOWN_TOOL, remove_content

MAX_OPEN_SPANS = 10_000
"""Maximum number of open spans; above it the oldest is ended, because its end event was probably lost."""
DELEGATING_TOOL = "delegate_task"

_PROVIDERS = {"responses": "openai"}
"""Provider names of Toolfold that differ from those of the OpenTelemetry conventions, with the latter."""

Attributes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _OpenTurn:
    span: Span
    model: str
    provider: str


class OtelReader:
    """Event listener that produces OpenTelemetry spans and metrics. Thread-safe."""

    def __init__(self, tracer: Tracer, meter: Meter, *, include_content: bool = False) -> None:
        self._tracer, self._include_content = tracer, include_content
        self._lock = threading.Lock()
        self._turns: OrderedDict[str, _OpenTurn] = OrderedDict()
        self._calls: OrderedDict[tuple[str, str], tuple[str, Span]] = OrderedDict()
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", unit="{token}", description="Tokens of model calls."
        )
        self._model_seconds = meter.create_histogram(
            "gen_ai.client.operation.duration", unit="s", description="Duration of model calls."
        )
        self._cost = meter.create_counter(
            "toolfold.cost", unit="USD", description="Cost of model calls whose price is known."
        )
        self._tool_seconds = meter.create_histogram(
            "toolfold.tool.duration", unit="s", description="Duration of tool calls."
        )

    def __call__(self, event: Event) -> None:
        with self._lock:
            match event:
                case TurnStarted():
                    self._start_turn(event)
                case ModelReplied():
                    self._record_model_call(event)
                case ToolStarted():
                    self._start_call(event)
                case ToolFinished():
                    self._finish_call(event)
                case ApprovalAsked() | ApprovalAnswered():
                    _, span = self._calls.get((event.session_id, event.call_id), ("", None))
                    self._add_event(span, event)
                case ModelRetried() | ToolsSearched() | ContextCompressed():
                    turn = self._turns.get(event.session_id)
                    self._add_event(turn.span if turn else None, event)
                case TurnFinished():
                    self._finish_turn(event)

    def close(self) -> None:
        """End the spans of turns and tool calls that have not finished."""
        with self._lock:
            for _, span in self._calls.values():
                span.end()
            for turn in self._turns.values():
                turn.span.end()
            self._calls.clear()
            self._turns.clear()

    def _start_turn(self, event: TurnStarted) -> None:
        provider, _, model = event.model.partition(":")
        attributes: Attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "toolfold",
            "gen_ai.conversation.id": event.session_id,
            "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
            "gen_ai.request.model": model,
            "toolfold.turn": event.turn,
        }
        if self._include_content:
            attributes["gen_ai.input.messages"] = _as_messages("user", event.message)
        span = self._start_span(
            "invoke_agent toolfold", event.at, attributes, self._find_delegating_span(event.parent_session_id)
        )
        if previous := self._turns.pop(event.session_id, None):
            previous.span.end()
        self._turns[event.session_id] = _OpenTurn(span, model, attributes["gen_ai.provider.name"])
        if len(self._turns) > MAX_OPEN_SPANS:
            self._turns.popitem(last=False)[1].span.end()

    def _find_delegating_span(self, parent_session_id: str) -> Span | None:
        """Return the span of the tool call that started a sub-agent or, if none, of the parent's turn."""
        for (session_id, _), (tool, span) in reversed(self._calls.items()):
            if session_id == parent_session_id and tool == DELEGATING_TOOL:
                return span
        turn = self._turns.get(parent_session_id)
        return turn.span if turn else None

    def _finish_turn(self, event: TurnFinished) -> None:
        for key in [key for key in self._calls if key[0] == event.session_id]:
            _fail(self._calls[key][1], "cancelled")
            self._calls.pop(key)[1].end(_nanoseconds(event.at))
        turn = self._turns.pop(event.session_id, None)
        if turn is None:
            return
        turn.span.set_attributes(
            {
                "gen_ai.usage.input_tokens": event.usage.input_tokens,
                "gen_ai.usage.output_tokens": event.usage.output_tokens,
                "toolfold.stop_reason": event.reason,
                **({} if event.cost is None else {"toolfold.cost": event.cost}),
            }
        )
        if self._include_content:
            turn.span.set_attribute("gen_ai.output.messages", _as_messages("assistant", event.text))
        if event.reason == "error":
            _fail(turn.span, "error", event.error if self._include_content else "")
        turn.span.end(_nanoseconds(event.at))

    def _record_model_call(self, event: ModelReplied) -> None:
        turn = self._turns.get(event.session_id)
        provider = _PROVIDERS.get(event.provider, event.provider)
        shared: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": turn.model if turn and event.purpose == "answer" else event.model,
            "gen_ai.response.model": event.model,
        }
        usage = event.usage
        attributes = shared | {
            "gen_ai.conversation.id": event.session_id,
            "gen_ai.usage.input_tokens": usage.input_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
            "toolfold.purpose": event.purpose,
            **({} if event.cost is None else {"toolfold.cost": event.cost}),
        }
        started = event.at - event.duration_s
        span = self._start_span(
            f"chat {event.model}", started, attributes, turn.span if turn else None, SpanKind.CLIENT
        )
        span.end(_nanoseconds(event.at))
        self._tokens.record(usage.input_tokens, shared | {"gen_ai.token.type": "input"})
        self._tokens.record(usage.output_tokens, shared | {"gen_ai.token.type": "output"})
        self._model_seconds.record(event.duration_s, shared)
        if event.cost is not None:
            self._cost.add(event.cost, shared)

    def _start_call(self, event: ToolStarted) -> None:
        _, parent = self._calls.get((event.session_id, event.parent_id), ("", None))
        span = self._start_call_span(event.session_id, event.call_id, event.tool, event.at, parent)
        span.set_attribute("toolfold.toolset", event.toolset)
        if self._include_content:
            span.set_attribute("gen_ai.tool.call.arguments", json.dumps(event.arguments, default=str))
        self._calls[event.session_id, event.call_id] = event.tool, span
        if len(self._calls) > MAX_OPEN_SPANS:
            self._calls.popitem(last=False)[1][1].end()

    def _start_call_span(
        self, session_id: str, call_id: str, tool: str, at: float, parent: Span | None = None
    ) -> Span:
        """Start the span of a tool call, as a child of `parent` or, if it is None, of the session's turn."""
        turn = self._turns.get(session_id)
        attributes: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call_id,
            "gen_ai.conversation.id": session_id,
        }
        return self._start_span(
            f"execute_tool {tool}", at, attributes, parent or (turn.span if turn else None)
        )

    def _finish_call(self, event: ToolFinished) -> None:
        """End the span of a tool call; create the span if the call was refused before it started."""
        _, span = self._calls.pop((event.session_id, event.call_id), ("", None))
        if span is None:
            started = event.at - event.duration_s
            name = event.tool if event.registered or self._include_content else UNKNOWN_TOOL
            span = self._start_call_span(event.session_id, event.call_id, name, started)
        if self._include_content and event.ok:
            span.set_attribute("gen_ai.tool.call.result", event.result)
        problem = "" if event.ok else "refused" if event.refused else "tool_error"
        if problem:
            _fail(span, problem, event.error if self._include_content else "")
        span.end(_nanoseconds(event.at))
        name = event.tool if event.registered else UNKNOWN_TOOL  # each name would be a time series of its own
        attributes = {"gen_ai.tool.name": name, **({"error.type": problem} if problem else {})}
        self._tool_seconds.record(event.duration_s, attributes)

    def _start_span(
        self,
        name: str,
        at: float,
        attributes: Attributes,
        parent: Span | None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        # An empty context, not the current one: events may be published in any thread.
        context = trace.set_span_in_context(parent or trace.INVALID_SPAN)
        return self._tracer.start_span(
            name, context=context, kind=kind, attributes=attributes, start_time=_nanoseconds(at)
        )

    def _add_event(self, span: Span | None, event: Event) -> None:
        if span is None:
            return
        data = event.to_json() if self._include_content else remove_content(event.to_json())
        plain = {
            f"toolfold.{key}": value
            for key, value in data.items()
            if key not in ("type", "session_id", "call_id", "at") and value is not None
        }
        span.add_event(event.type, plain, _nanoseconds(event.at))


def _fail(span: Span, kind: str, message: str = "") -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, message or None))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000_000)


def _as_messages(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}], ensure_ascii=False)
