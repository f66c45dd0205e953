"""Limits on steps, tokens, time and cost of an agent for one message."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from toolfold.config.agent import AgentSettings
from toolfold.events import StopReason, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """Limits of an agent for one user message. A cost limit of 0 means no limit."""

    max_steps: int = 50
    max_tokens: int = 2_000_000
    max_seconds: float = 3_600.0
    max_cost: float = 5.0
    """Dollars."""

    @classmethod
    def from_settings(cls, settings: AgentSettings) -> AgentLimits:
        return cls(
            max_steps=settings.max_steps,
            max_tokens=settings.max_turn_tokens,
            max_seconds=settings.max_turn_seconds,
            max_cost=settings.max_turn_cost,
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
        )

    def _cost_left(self) -> float:
        if not self.limits.max_cost or self.cost is None:
            return self.limits.max_cost
        return max(0.0001, self.limits.max_cost - self.cost)  # zero would mean no limit
