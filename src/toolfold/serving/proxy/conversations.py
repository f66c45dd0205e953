"""Detect which requests belong to the same conversation, because clients send no conversation id.

Requests of a conversation start with the same message and, from the second on, with the same reply. So
conversations that start with the same message are told apart by the reply that each got to it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from toolfold.core.types import Json
from toolfold.models import is_instruction
from toolfold.models.wire import Wire

MAX_CONVERSATIONS = 10_000
CACHE_MARK = "cache_control"
"""Where clients of Anthropic mark the end of what the provider caches."""


class Conversations:
    """Known conversations of all clients, identified by their first message and reply. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_start: OrderedDict[bytes, bytes] = OrderedDict()
        """Checksum of the first message and the first reply → key of the conversation."""

    def find(self, client: str, messages: Sequence[Json], wire: Wire, *, is_counted: bool = False) -> bytes:
        """Return a key shared by all requests of a conversation; a new key for a new conversation.

        With `is_counted`, the request only counts tokens and starts no conversation.
        """
        groups = groupby(messages, wire.is_reply_message)
        reply = next((list(group) for is_reply, group in groups if is_reply), None)
        if reply is None:
            return _hash_start(client, messages, (), "") if is_counted else secrets.token_bytes(16)
        call_ids = [call_id for call_id, _ in wire.dialect.find_calls(reply)]
        text = "" if call_ids else "".join(map(wire.dialect.find_text, reply))
        start = _hash_start(client, messages, call_ids, text)
        with self._lock:
            return self._by_start.get(start, start)

    def note_reply(
        self, conversation: bytes, client: str, messages: Sequence[Json], call_ids: Sequence[str], text: str
    ) -> None:
        """Record the first reply of a conversation as the client sees it, to recognize later requests."""
        start = _hash_start(client, messages, call_ids, text)
        with self._lock:
            self._by_start[start] = conversation
            self._by_start.move_to_end(start)
            while len(self._by_start) > MAX_CONVERSATIONS:
                self._by_start.popitem(last=False)


def identify_reply(call_ids: Sequence[str], text: str) -> str:
    """Return a key for a reply: the id of its first tool call, or a hash of its text without spaces."""
    if call_ids:
        return call_ids[0]
    return hashlib.blake2b("".join(text.split()).encode(errors="replace"), digest_size=16).hexdigest()


def hash_json(value: Any) -> bytes:
    """Return a checksum of JSON data."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _hash_start(client: str, messages: Sequence[Json], call_ids: Sequence[str], text: str) -> bytes:
    """Return a checksum of a conversation's first message and reply, ignoring cache markers."""
    first = next((each for each in messages if not is_instruction(each)), None)
    return hash_json([client, first and _normalize_message(first), identify_reply(call_ids, text)])


def _normalize_message(message: Json) -> Json:
    """Return a message without cache markers and with its text as a content block, for comparison."""
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if isinstance(blocks, list):
        blocks = [_drop_mark(each) for each in blocks]
    return {**_drop_mark(message), "content": blocks}


def _drop_mark(value: Any) -> Any:
    return (
        {key: each for key, each in value.items() if key != CACHE_MARK} if isinstance(value, dict) else value
    )
