"""Convert a message history between provider formats, to continue a session with another model.

Text, tool calls and results are kept; reasoning is left out, because only the provider that wrote it accepts
it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from toolfold.core.types import Json, ToolCall, ToolResult
from toolfold.models import Dialect
from toolfold.models.dialect import select_mappings
from toolfold.models.reply import text_of
from toolfold.state.store import MessageRecord


def convert_history(entries: Sequence[MessageRecord], old: Dialect, new: Dialect) -> list[MessageRecord]:
    """Convert the messages of a history from one provider's format to another's."""
    names = dict(old.find_calls([entry.body for entry in entries]))
    return [
        replace(entry, body=body, text=new.find_text(body))
        for entry in entries
        for body in _convert_message(entry, names, old, new)
    ]


def _convert_message(entry: MessageRecord, names: dict[str, str], old: Dialect, new: Dialect) -> list[Json]:
    if results := read_results(entry.body, names):
        return new.render_results(results)
    text = old.find_text(entry.body)
    if entry.role in ("user", "notice"):
        return [new.user_message(text)]
    calls = read_calls(entry.body)
    if calls:
        return new.render_calls(text, calls)
    return [new.assistant_message(text)] if text.strip() else []


def read_calls(message: Json) -> list[ToolCall]:
    """Extract the tool calls of an assistant message in any provider's format."""
    chat = [
        (
            call.get("id"),
            (call.get("function") or {}).get("name"),
            (call.get("function") or {}).get("arguments"),
        )
        for call in select_mappings(message.get("tool_calls"))
    ]
    blocks = [
        (block.get("id"), block.get("name"), block.get("input"))
        for block in select_mappings(message.get("content"))
        if block.get("type") == "tool_use"
    ]
    items = []
    if message.get("type") == "function_call":
        items = [(message.get("call_id"), message.get("name"), message.get("arguments"))]
    return [
        ToolCall(text_of(name), arguments, text_of(call_id))
        for call_id, name, arguments in (*chat, *blocks, *items)
    ]


def read_results(message: Json, names: dict[str, str]) -> list[ToolResult]:
    """Extract the tool results of a message in any provider's format, without images and other media."""
    found: list[tuple[str, object]] = []
    if message.get("role") == "tool":
        found.append((text_of(message.get("tool_call_id")), message.get("content")))
    if message.get("type") == "function_call_output":
        found.append((text_of(message.get("call_id")), message.get("output")))
    found += [
        (text_of(block.get("tool_use_id")), block.get("content"))
        for block in select_mappings(message.get("content"))
        if block.get("type") == "tool_result"
    ]
    return [
        ToolResult(call_id=call_id, name=names.get(call_id, ""), text=_result_text(content))
        for call_id, content in found
    ]


def _result_text(content: object) -> str:
    if isinstance(content, str):
        return content
    texts = [text_of(part.get("text")) for part in select_mappings(content)]
    return "\n".join(text for text in texts if text) or json.dumps(content, ensure_ascii=False, default=str)
