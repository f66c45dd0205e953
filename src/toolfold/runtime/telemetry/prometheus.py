"""Count a runtime's events and render them in the Prometheus text format.

No label contains the name of a tool, client, session or model: the number of series is fixed, and the figures
tell nothing about content. Knows no HTTP.
"""

from __future__ import annotations

import bisect
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from toolfold.core.events import (
    ApprovalAnswered,
    Event,
    IndexUpdated,
    ModelReplied,
    SearchFailed,
    ToolFinished,
    ToolsSearched,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DURATION_LIMITS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_COUNTERS = {
    "toolfold_tool_calls_total": "Tool calls by outcome.",
    "toolfold_tool_searches_total": "Tool searches.",
    "toolfold_search_failures_total": "Searches that could not use the index in the database.",
    "toolfold_model_calls_total": "Replies of models.",
    "toolfold_model_tokens_total": "Tokens of model calls by type.",
    "toolfold_approval_answers_total": "Answers to approval questions by outcome.",
}
_GAUGES = {
    "toolfold_index_tools": "Tools in the search index.",
    "toolfold_ready": "1 if new requests can be sent to this replica, else 0.",
}
_OUTCOMES = {
    "toolfold_tool_calls_total": [f'outcome="{each}"' for each in ("ok", "error", "refused")],
    "toolfold_model_tokens_total": [f'type="{each}"' for each in ("input", "output")],
    "toolfold_approval_answers_total": [f'outcome="{each}"' for each in ("allowed", "refused")],
}


@dataclass(slots=True)
class _Durations:
    """A histogram of durations in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(DURATION_LIMITS_S) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(DURATION_LIMITS_S, seconds)] += 1
        self.total += seconds

    def render(self, name: str) -> list[str]:
        lines, below = [f"# TYPE {name} histogram"], 0
        for limit, count in zip((*map(str, DURATION_LIMITS_S), "+Inf"), self.counts, strict=True):
            below += count
            lines.append(f'{name}_bucket{{le="{limit}"}} {below}')
        return [*lines, f"{name}_sum {self.total:.6f}", f"{name}_count {below}"]


class PrometheusMetrics:
    """Event listener that counts the events of a runtime since it was opened. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter(
            {(name, label): 0 for name in _COUNTERS for label in _OUTCOMES.get(name, [""])}
        )
        self._durations = _Durations()
        self._indexed_tools = 0

    def __call__(self, event: Event) -> None:
        """Count an event of the runtime."""
        with self._lock:
            match event:
                case ToolFinished():
                    outcome = "refused" if event.refused else "ok" if event.ok else "error"
                    self._counts["toolfold_tool_calls_total", f'outcome="{outcome}"'] += 1
                    self._durations.add(event.duration_s)
                case ToolsSearched():
                    self._counts["toolfold_tool_searches_total", ""] += 1
                case SearchFailed():
                    self._counts["toolfold_search_failures_total", ""] += 1
                case ModelReplied():
                    self._counts["toolfold_model_calls_total", ""] += 1
                    tokens = "toolfold_model_tokens_total"
                    self._counts[tokens, 'type="input"'] += event.usage.input_tokens
                    self._counts[tokens, 'type="output"'] += event.usage.output_tokens
                case ApprovalAnswered():
                    outcome = "allowed" if event.allowed else "refused"
                    self._counts["toolfold_approval_answers_total", f'outcome="{outcome}"'] += 1
                case IndexUpdated():
                    self._indexed_tools = event.tools

    def render(self, *, is_ready: bool, limit_refusals: Mapping[str, int] | None = None) -> str:
        """Return all metrics in the Prometheus text format.

        `limit_refusals` tells how often each kind of limit of users was reached.
        """
        with self._lock:
            gauges = {"toolfold_index_tools": self._indexed_tools, "toolfold_ready": int(is_ready)}
            lines = [line for name, text in _COUNTERS.items() for line in self._render_counter(name, text)]
            lines += self._durations.render("toolfold_tool_call_duration_seconds")
        for name, text in _GAUGES.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {gauges[name]}"]
        if limit_refusals is not None:
            lines += _render_refusals(limit_refusals)
        return "\n".join(lines) + "\n"

    def _render_counter(self, name: str, text: str) -> list[str]:
        series = [
            f"{name}{{{label}}} {count}" if label else f"{name} {count}"
            for (counter, label), count in sorted(self._counts.items())
            if counter == name
        ]
        return [f"# HELP {name} {text}", f"# TYPE {name} counter", *series]


def _render_refusals(counts: Mapping[str, int]) -> list[str]:
    name = "toolfold_limit_refusals_total"
    return [
        f"# HELP {name} Requests that were refused because a limit of a user or team was reached.",
        f"# TYPE {name} counter",
        *(f'{name}{{limit="{limit}"}} {count}' for limit, count in sorted(counts.items())),
    ]
