"""Write a stored session as text: messages with their authors, tool calls and tool results."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from toolfold.cli.activity import clean_line, clean_text

if TYPE_CHECKING:
    from toolfold.core.types import Json, ToolCall
    from toolfold.state.store import MessageRecord, SessionRecord

MAX_SHOWN_RESULT_CHARS = 300
MAX_SHOWN_ARGUMENTS_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptEntry:
    """Entry of a transcript: a message, a tool call or a tool result."""

    role: str
    """user, assistant, thinking, call or result."""
    text: str
    turn: int
    tool: str = ""
    created: float = 0.0


def read_transcript(record: SessionRecord, messages: Sequence[MessageRecord]) -> list[TranscriptEntry]:
    """Return the messages, tool calls and results of a stored conversation, in their order."""
    from toolfold.agent.convert import read_calls, read_results
    from toolfold.models import get_dialect

    names = dict(get_dialect(record.dialect).find_calls([message.body for message in messages]))
    entries: list[TranscriptEntry] = []
    for message in messages:
        results = [("result", each.name, each.text) for each in read_results(message.body, names)]
        said = [(message.role, "", message.text)] if message.text.strip() and not results else []
        calls = [
            ("call", call.name, _arguments_text(call)) for call in map(_real_call, read_calls(message.body))
        ]
        entries += [
            TranscriptEntry(role=role, text=text, tool=tool, turn=message.turn, created=message.created)
            for role, tool, text in (*said, *calls, *results)
        ]
    return entries


def _real_call(call: ToolCall) -> ToolCall:
    """Return the inner call of a call to `tool_call`, which calls other tools; return other calls as is."""
    from toolfold.core.errors import CallError
    from toolfold.selection.turn import unwrap

    try:
        return unwrap(call)
    except CallError:
        return call


def _arguments_text(call: ToolCall) -> str:
    if isinstance(call.arguments, str):
        return call.arguments
    return json.dumps(call.arguments or {}, ensure_ascii=False)


def format_entry(entry: TranscriptEntry) -> str:
    """Return a transcript entry as text for a terminal; long tool results are shortened."""
    match entry.role:
        case "user":
            return "\n".join(f"> {line}" for line in clean_text(entry.text).strip().split("\n"))
        case "call":
            arguments = clean_line(entry.text, MAX_SHOWN_ARGUMENTS_CHARS)
            return f"  🔧 {clean_line(entry.tool, 80)} {arguments}"
        case "result":
            return f"     {clean_line(entry.text, MAX_SHOWN_RESULT_CHARS)}"
        case "notice":
            return f"({clean_text(entry.text).strip()})"
        case "thinking":
            return f"(interrupted reasoning) {clean_text(entry.text).strip()}"
    return clean_text(entry.text).strip()


def format_markdown(record: SessionRecord, entries: Sequence[TranscriptEntry]) -> str:
    """Return a conversation as a Markdown document, with whole tool results."""
    title = clean_line(record.title, 200) or f"Session {record.id}"
    lines = [
        f"# {title}",
        "",
        f"Session {record.id}, {record.model}, started {format_time(record.created)}.",
        "",
    ]
    for entry in entries:
        match entry.role:
            case "user":
                lines += ["## User", "", clean_text(entry.text).strip(), ""]
            case "call":
                lines += [f"Calls `{clean_line(entry.tool, 80)}`:", "", *_fence(entry.text, "json"), ""]
            case "result":
                lines += [f"Result of `{clean_line(entry.tool, 80)}`:", "", *_fence(entry.text), ""]
            case "notice":
                lines += [f"*{clean_text(entry.text).strip()}*", ""]
            case _:
                lines += ["## Assistant", "", clean_text(entry.text).strip(), ""]
    return "\n".join(lines)


def _fence(text: str, language: str = "") -> list[str]:
    """Return text as a Markdown code block that the text itself cannot end."""
    cleaned = clean_text(text)
    longest = max((len(run) for run in re.findall("`+", cleaned)), default=0)
    mark = "`" * max(3, longest + 1)
    return [f"{mark}{language}", cleaned, mark]


def describe_session(record: SessionRecord) -> Json:
    """Return a session's description as JSON data, without its system prompt and internal state."""
    return {
        "id": record.id,
        "title": record.title,
        "model": record.model,
        "turns": record.turns,
        "created": record.created,
        "updated": record.updated,
        "toolsets": None if record.toolsets is None else list(record.toolsets),
    }


def export_session(
    record: SessionRecord, messages: Sequence[MessageRecord], entries: Sequence[TranscriptEntry]
) -> Json:
    """Return everything about a session as JSON data: description, transcript and raw messages."""
    return {
        **describe_session(record),
        "system": record.system,
        "transcript": [asdict(entry) for entry in entries],
        "dialect": record.dialect,
        "messages": [{"turn": each.turn, "state": each.state, "message": each.body} for each in messages],
    }


def format_time(seconds: float) -> str:
    """Return a time as `2026-11-17 09:30` in the local time zone."""
    return f"{datetime.datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M}"
