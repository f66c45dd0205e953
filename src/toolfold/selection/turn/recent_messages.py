"""Extract the input of tool selection from a conversation: user texts and called tools.

Accepts histories in any provider's format. Input is untrusted and bounded; unknown parts are skipped.
Knows nothing of the tools that exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolfold.core.errors import CallError
from toolfold.core.naming import is_reserved
from toolfold.core.types import BRIDGE_CALL, ToolCall
from toolfold.models.dialect import is_notice_text
from toolfold.selection.retrieval.context import Context
from toolfold.selection.turn.bridge import unwrap
from toolfold.selection.turn.notes import CLOSING, OPENING

MAX_USER_TEXTS = 4
MAX_USED_TOOLS = 8
MAX_READ_MESSAGES = 5_000
MAX_CALL_MESSAGES = 400
MAX_MESSAGE_PARTS = 200
MAX_LATEST_CHARS = 1_000_000
MAX_EARLIER_CHARS = 4_000
MAX_TOOL_NAME_CHARS = 1_000
MAX_ARGUMENT_CHARS = 50_000

_ERROR_START = re.compile(r"\s*(?:\{\s*\"error\"|error\b|traceback \()", re.IGNORECASE)
_TEXT_TYPES = frozenset({"text", "input_text"})
_CALL_BLOCK_TYPES = frozenset({"tool_use", "function_call"})


@dataclass(frozen=True, slots=True)
class Conversation:
    """Conversation as used for tool selection: user texts and called tools."""

    user_texts: tuple[str, ...]
    """The user's texts, latest last."""
    used_tools: tuple[str, ...] = ()
    """The tools that were called, each once, latest last; for a bridge call the tool inside."""
    in_progress: bool = False
    """True if the model has called tools for the latest message, which therefore needs some."""

    def context(self) -> Context:
        """Return the earlier user texts and the called tools, latest first, as context of a search."""
        return Context(tuple(reversed(self.user_texts[:-1])), tuple(reversed(self.used_tools)))

    @classmethod
    def from_messages(cls, messages: str | Sequence[Mapping[str, Any]]) -> Conversation:
        """Parse a single message, or a history in the format of OpenAI chat, Responses or Anthropic."""
        if isinstance(messages, str):
            return cls((messages[:MAX_LATEST_CHARS],) if messages.strip() else ())
        if not isinstance(messages, Sequence) or isinstance(messages, (bytes, bytearray, memoryview)):
            return cls(())
        said: list[str] = []
        used: dict[str, None] = {}
        for message in _latest_first(messages, MAX_READ_MESSAGES):
            if text := _user_text(message, MAX_EARLIER_CHARS if said else MAX_LATEST_CHARS):
                said.append(text)
            if len(said) == MAX_USER_TEXTS:
                break
        for message in _latest_first(messages, MAX_CALL_MESSAGES):
            used.update(dict.fromkeys(name for name in _called_tools(message) if name not in used))
            if len(used) >= MAX_USED_TOOLS:
                break
        in_progress = any(next(_called_tools(each), None) for each in messages_since_user(messages))
        return cls(tuple(reversed(said)), tuple(reversed(list(used)[:MAX_USED_TOOLS])), in_progress)


def messages_since_user(messages: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    """Return the messages after the latest user message."""
    for place in range(len(messages) - 1, max(-1, len(messages) - 1 - MAX_CALL_MESSAGES), -1):
        if isinstance(messages[place], Mapping) and _user_text(messages[place], 1):
            return [each for each in messages[place + 1 :] if isinstance(each, Mapping)]
    return ()


def find_failed_ids(messages: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the ids of tool calls with failed results."""
    blocks = (block for message in messages for block in (message, *_as_sequence(message.get("content"))))
    return {
        str(block.get("tool_use_id") or block.get("tool_call_id") or block.get("call_id"))
        for block in blocks
        if isinstance(block, Mapping) and _is_failed_result(block)
    }


def _is_failed_result(block: Mapping[str, Any]) -> bool:
    """Return True if a tool result is marked as an error, or its text starts like an error message."""
    if block.get("is_error") is True or block.get("status") in ("incomplete", "failed"):
        return True
    text = block.get("output", block.get("content"))
    return isinstance(text, str) and _ERROR_START.match(text) is not None


def _latest_first(items: Sequence[Any], most: int) -> Iterator[Mapping[str, Any]]:
    for place in range(len(items) - 1, max(-1, len(items) - 1 - most), -1):
        if isinstance(item := items[place], Mapping):
            yield item


def _user_text(message: Mapping[str, Any], longest: int) -> str:
    """Return the user's text in a message; empty for other roles and for tool results."""
    if message.get("role") != "user":
        return ""
    content = message.get("content")
    texts: list[str] = []
    for part in (content,) if isinstance(content, str) else _as_sequence(content)[:MAX_MESSAGE_PARTS]:
        text = part.get("text") if isinstance(part, Mapping) and _type_of(part) in _TEXT_TYPES else part
        if (
            isinstance(text, str)
            and not is_notice_text(text)
            and (own := _strip_notes(text[:MAX_LATEST_CHARS])[:longest])
        ):
            texts.append(own)
            longest -= len(own)
        if longest <= 0:
            break
    return "\n".join(texts)


def _strip_notes(text: str) -> str:
    """Remove the notes about tools that Toolfold added to a user message."""
    before, *noted = text.split(OPENING)  # not a regular expression: quadratic on long texts
    own = "\n".join([before, *map(_after_note, noted)]).strip() if noted else text
    return own if own.strip() else ""


def _after_note(noted: str) -> str:
    """Return the text after the end mark of a note about tools; the whole text if there is no end mark."""
    _, closing, after = noted.partition(CLOSING)
    return after if closing else noted


def _called_tools(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the tools called by a message, directly or through `tool_call`, latest first."""
    if _type_of(message) in _CALL_BLOCK_TYPES:
        yield from _real_name(message.get("name"), message.get("arguments"))
    if message.get("role") != "assistant":
        return
    for call in _latest_first(_as_sequence(message.get("tool_calls")), MAX_MESSAGE_PARTS):
        if isinstance(function := call.get("function"), Mapping):
            yield from _real_name(function.get("name"), function.get("arguments"))
    if isinstance(function := message.get("function_call"), Mapping):
        yield from _real_name(function.get("name"), function.get("arguments"))
    for block in _latest_first(_as_sequence(message.get("content")), MAX_MESSAGE_PARTS):
        if _type_of(block) in _CALL_BLOCK_TYPES:
            yield from _real_name(block.get("name"), block.get("input"))


def _real_name(name: Any, arguments: Any) -> Iterator[str]:
    """Yield the name of the tool run by a call, directly or through `tool_call`; none for an invalid call."""
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_TOOL_NAME_CHARS:
        return
    if name == BRIDGE_CALL:
        if isinstance(arguments, str) and len(arguments) > MAX_ARGUMENT_CHARS:
            return
        try:
            name = unwrap(ToolCall(name, arguments)).name
        except CallError:  # malformed: nothing was run
            return
    if not is_reserved(name):
        yield name.strip()


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _type_of(part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    return kind if isinstance(kind, str) else ""
