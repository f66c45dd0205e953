"""Limits of an agent for one message: steps, tokens, time, cost, and repeated failures of a call."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field, replace

from toolfold.config.agent_settings import AgentSettings
from toolfold.core.errors import CallError, shorten
from toolfold.core.events import StopReason, Usage
from toolfold.core.types import ToolCall, ToolResult, read_json
from toolfold.core.validation import parse_arguments
from toolfold.runtime.results import render
from toolfold.selection.turn import unwrap


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """Limits of an agent for one user message. A cost limit of 0 means no limit."""

    max_steps: int = 50
    max_tokens: int = 2_000_000
    max_seconds: float = 3_600.0
    max_cost: float = 5.0
    """Dollars."""
    max_repeated_failures: int = 4

    @classmethod
    def from_settings(cls, settings: AgentSettings) -> AgentLimits:
        return cls(
            max_steps=settings.max_steps,
            max_tokens=settings.max_turn_tokens,
            max_seconds=settings.max_turn_seconds,
            max_cost=settings.max_turn_cost,
            max_repeated_failures=settings.max_repeated_failures,
        )


@dataclass(slots=True)
class TurnBudget:
    """Budget of one turn: its limits, and the steps, tokens, time and cost used so far."""

    limits: AgentLimits
    usage: Usage = field(default_factory=Usage)
    cost: float | None = 0.0
    """Dollars; None once a model of unknown price was used."""
    steps: int = 0
    started: float = field(default_factory=time.monotonic)

    def add_call(self, usage: Usage, cost: float | None) -> None:
        """Count the tokens and the cost of one model call."""
        self.steps += 1
        self.usage += usage
        self.cost = None if cost is None or self.cost is None else self.cost + cost

    def add_delegated(self, usage: Usage, cost: float | None) -> None:
        """Count the tokens and the cost of a sub-agent."""
        self.usage += usage
        self.cost = None if cost is None or self.cost is None else self.cost + cost

    @property
    def seconds_left(self) -> float:
        return self.limits.max_seconds - (time.monotonic() - self.started)

    def exceeded(self) -> StopReason | None:
        """Return the exceeded limit (steps, tokens, time or cost); None if there is none."""
        if self.steps >= self.limits.max_steps:
            return "step_limit"
        if self.usage.total_tokens >= self.limits.max_tokens:
            return "token_limit"
        if self.limits.max_cost and self.cost is not None and self.cost >= self.limits.max_cost:
            return "cost_limit"
        return "time_limit" if self.seconds_left <= 0 else None

    def remaining(self, *, max_steps: int) -> AgentLimits:
        """Return the remaining steps, tokens, time and cost of the turn as limits for a sub-agent."""
        return AgentLimits(
            max_steps=max(1, min(max_steps, self.limits.max_steps)),
            max_tokens=max(1, self.limits.max_tokens - self.usage.total_tokens),
            max_seconds=max(1.0, self.seconds_left),
            max_cost=self._cost_left(),
            max_repeated_failures=self.limits.max_repeated_failures,
        )

    def _cost_left(self) -> float:
        if not self.limits.max_cost or self.cost is None:
            return self.limits.max_cost
        return max(0.0001, self.limits.max_cost - self.cost)  # zero would mean no limit


class FailureCounter:
    """Counts how often each tool call of a turn has failed with the same arguments."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._failures: Counter[str] = Counter()
        self.problem = ""
        """Why the turn must end; empty as long as no call has failed too often."""

    def add_result(self, call: ToolCall, result: ToolResult) -> ToolResult:
        """Count a failure, and return its result with a note for the model if the call has failed before."""
        key = _describe_call(call)
        if result.error is None:
            del self._failures[key]
            return result
        self._failures[key] += 1
        count = self._failures[key]
        if count >= self._limit:
            self.problem = f"the same call of {call.name} failed {count} times: {shorten(result.error, 300)}"
        return result if count < 2 else _add_note(result, self._write_note(count))

    def _write_note(self, count: int) -> str:
        last = " If it fails once more, your turn ends." if count == self._limit - 1 else ""
        return (
            f"This same call has failed {count} times and will fail again. Change its arguments, use another"
            f" tool, or tell the user what prevents it.{last}"
        )


def _describe_call(call: ToolCall) -> str:
    """Return a text that is equal for equal calls, also if one of them was made through `tool_call`."""
    try:
        real = unwrap(call)
        arguments = parse_arguments(real.name, real.arguments)
    except CallError:
        return f"{call.name} {call.arguments}"
    return f"{real.name} {json.dumps(arguments, sort_keys=True, default=str)}"


def _add_note(result: ToolResult, note: str) -> ToolResult:
    try:
        value = read_json(result.text)
    except ValueError:
        value = None
    text = render({**value, "repeated": note}) if isinstance(value, dict) else f"{result.text}\n\n{note}"
    return replace(result, text=text)
