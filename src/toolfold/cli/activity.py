"""Format the actions of an agent as lines of text: tool calls, searches, retries, tokens and cost.

Events carry text of models, tools and servers. Characters in it that could control a terminal or imitate
lines of Toolfold are removed here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from toolfold.core.events import (
    ContextCompressed,
    Event,
    ModelRetried,
    ToolFinished,
    ToolProgressed,
    ToolsSearched,
    ToolsSelected,
    ToolStarted,
    TurnFinished,
)
from toolfold.core.invisible_characters import remove_invisible

__all__ = [
    "ActivityLine",
    "CallLines",
    "clean_line",
    "clean_text",
    "format_call",
    "format_outcome",
    "format_progress",
    "format_seconds",
    "format_selection",
    "format_spending",
]

LineState = Literal["running", "done", "failed", "note"]

MAX_VALUE_CHARS = 60
MAX_CALL_CHARS = 160
MAX_ERROR_CHARS = 300
MAX_EMOJI_CHARS = 8
DEFAULT_EMOJI = "🔧"

_STOP_TEXTS: Mapping[str, str] = {
    "interrupted": "stopped",
    "step_limit": "stopped at the limit of model calls per message (--max-steps, agent.max_steps)",
    "token_limit": "stopped at the limit of tokens per message (--max-tokens, agent.max_turn_tokens)",
    "time_limit": "stopped at the time limit of the message (--max-seconds, agent.max_turn_seconds)",
    "cost_limit": "stopped at the cost limit of the message (--max-cost, agent.max_turn_cost)",
    "output_limit": "the answer is incomplete, cut at the model's output limit (agent.max_output_tokens)",
    "repeated_failure": "stopped because the model repeated a failing call (agent.max_repeated_failures)",
    "empty_reply": "the model gave no answer, also when it was asked again",
}


def clean_text(text: str) -> str:
    """Return text without characters that control a terminal, except line breaks and tabs."""
    return remove_invisible(text.replace("\r\n", "\n").replace("\r", "\n"))


def clean_line(text: str, max_chars: int) -> str:
    """Return text as one line of limited length, without characters that control a terminal."""
    line = " ".join(clean_text(text[: 4 * max_chars]).split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"


@dataclass(frozen=True, slots=True)
class ActivityLine:
    """One line about an action of the agent, such as a tool call."""

    text: str
    outcome: str = ""
    detail: str = ""
    """Details of the outcome of a call, such as an error message; may be long."""
    state: LineState = "note"
    by_sub_agent: bool = False

    def __str__(self) -> str:
        start = "↳ " if self.by_sub_agent else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"{start}{self.text} {self.outcome}".rstrip() + detail


class CallLines:
    """Converts the events of an agent turn to lines of text, such as one line for each tool call."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        # Call ids are unique only within a session.
        self._running: dict[tuple[str, str], ToolStarted] = {}
        self._progress: dict[tuple[str, str], str] = {}

    def is_own(self, event: Event) -> bool:
        """Return True if an event comes from the main agent, not from one of its sub-agents."""
        return event.session_id == self._session_id

    def read(self, event: Event) -> ActivityLine | None:
        """Return the line to print for an event of the agent; None for events that are not printed."""
        line = self._describe(event)
        return line if line is None or self.is_own(event) else replace(line, by_sub_agent=True)

    def list_running(self) -> list[ActivityLine]:
        """Return a line for each tool call that has started and not finished, with its time and progress."""
        return [
            ActivityLine(
                format_call(call),
                f"{format_seconds(max(0.0, time.time() - call.at))} {self._progress.get(key, '')}".rstrip(),
                state="running",
                by_sub_agent=not self.is_own(call),
            )
            for key, call in tuple(self._running.items())  # another thread adds and removes calls
        ]

    def stop_running(self) -> list[ActivityLine]:
        """Mark all running tool calls as stopped, and return a line to print for each of them."""
        stopped = [
            ActivityLine(format_call(call), "■ stopped", state="failed", by_sub_agent=not self.is_own(call))
            for call in self._running.values()
        ]
        self._running.clear()
        self._progress.clear()
        return stopped

    def _describe(self, event: Event) -> ActivityLine | None:
        match event:
            case ToolStarted():
                self._running[event.session_id, event.call_id] = event
            case ToolProgressed():
                self._progress[event.session_id, event.call_id] = format_progress(event)
            case ToolFinished():
                key = (event.session_id, event.call_id)
                started = self._running.pop(key, None)
                self._progress.pop(key, None)
                call = format_call(started) if started else f"{DEFAULT_EMOJI} {clean_line(event.tool, 80)}"
                error = clean_line(event.error, MAX_ERROR_CHARS)
                return ActivityLine(call, format_outcome(event), error, "done" if event.ok else "failed")
            case ToolsSearched():
                asked = clean_line(", ".join(event.queries), MAX_VALUE_CHARS)
                found = clean_line(", ".join(event.found[:5]), MAX_CALL_CHARS) or "nothing found"
                return ActivityLine(f'🔎 tool search "{asked}"', f"→ {found}", state="done")
            case ModelRetried():
                reason = clean_line(event.reason, MAX_ERROR_CHARS)
                attempt = f"⏳ the model call failed; next attempt in {event.delay_s:.0f} s"
                return ActivityLine(attempt, detail=reason)
            case ContextCompressed():
                sizes = f"{event.tokens_before:,} → {event.tokens_after:,} tokens"
                return ActivityLine(f"📦 older messages were summarised: {sizes}")
        return None


def format_progress(event: ToolProgressed) -> str:
    """Return the progress of a tool call, such as `40% copying files`."""
    share = f"{event.progress / event.total:.0%} " if event.progress is not None and event.total else ""
    return f"{share}{clean_line(event.message, MAX_VALUE_CHARS)}".rstrip()


def format_call(call: ToolStarted) -> str:
    """Return a tool call as `🔧 name(argument="value")`, shortened."""
    shown = ", ".join(
        f"{clean_line(key, 40)}={_format_value(value)}" for key, value in call.arguments.items()
    )
    emoji = clean_line(call.emoji, MAX_EMOJI_CHARS) or DEFAULT_EMOJI
    return f"{emoji} {clean_line(f'{call.tool}({shown})', MAX_CALL_CHARS)}"


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return f'"{clean_line(value, MAX_VALUE_CHARS)}"'
    return clean_line(json.dumps(value, ensure_ascii=False, default=str), MAX_VALUE_CHARS)


def format_outcome(call: ToolFinished) -> str:
    """Return the outcome of a tool call as text: `✓ 0.1 s`, `✗ 0.1 s` or `✗ refused`."""
    if call.refused:
        return "✗ refused"
    return f"{'✓' if call.ok else '✗'} {format_seconds(call.duration_s)}"


def format_seconds(seconds: float) -> str:
    """Return a duration as readable text: `0.12 s`, `4.2 s`, `2 min 5 s`."""
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"


def format_selection(selected: ToolsSelected) -> str:
    """Return the tools sent, with the reason, as text: `8 of 300 tools: … · 40,000 tokens saved`."""
    sent = len({*selected.shown, *selected.reasons})
    parts = [f"{sent:,} of {selected.available:,} tools sent"]
    if selected.tool_search:
        parts[0] += ", the others by tool search"
    if selected.why:
        parts[0] += f": {selected.why}"
    if selected.tokens_saved:
        parts.append(f"{selected.tokens_saved:,} tokens saved")
    return " · ".join(parts)


def format_spending(finished: TurnFinished, seconds: float) -> str:
    """Return a text with the tokens, cost and time of an agent turn, and why it stopped early, if it did."""
    usage = finished.usage
    parts = [f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"]
    if usage.cached_tokens:
        parts.append(f"{usage.cached_tokens:,} from the cache")
    if finished.cost:
        parts.append(f"${finished.cost:.4f}")
    parts.append(format_seconds(seconds))
    stopped = _STOP_TEXTS.get(finished.reason, "")
    return " · ".join([*([stopped] if stopped else []), *parts])
