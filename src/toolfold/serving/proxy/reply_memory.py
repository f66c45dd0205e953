"""Remember the provider's original replies, to repeat them exactly in later requests.

A client's history contains what the client saw: calls of its own tools, without the searches before them. The
provider caches the conversation as it was sent, so the remembered messages take the place of the client's.
What was forgotten stays as the client wrote it, which is valid, too.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from toolfold.core.types import Json
from toolfold.models.dialect import select_mappings
from toolfold.models.wire import Wire
from toolfold.serving.proxy.conversations import CACHE_MARK, identify_reply

MAX_REMEMBERED_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class RememberedReply:
    """A provider's complete reply, including tool searches hidden from the client."""

    call_ids: tuple[str, ...]
    """The calls that the client saw."""
    messages: tuple[Json, ...]
    """The searches, their results and the reply, as they were exchanged with the provider."""
    size: int


class ReplyMemory:
    """Remembered replies of all conversations, newest last, limited by their total size."""

    def __init__(self, max_bytes: int = MAX_REMEMBERED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._replies: OrderedDict[tuple[bytes, str], RememberedReply] = OrderedDict()

    def remember(
        self, conversation: bytes, call_ids: Sequence[str], text: str, messages: Sequence[Json]
    ) -> None:
        """Remember all messages of a reply, because the client receives only some of its calls and text.

        They are restored in this conversation only: they may contain results of tools that the proxy ran.
        """
        reply = RememberedReply(tuple(call_ids), tuple(messages), len(json.dumps(messages)))
        key = conversation, identify_reply(call_ids, text)
        with self._lock:
            self._bytes += reply.size - (self._replies.pop(key).size if key in self._replies else 0)
            self._replies[key] = reply
            while self._bytes > self._max_bytes:
                self._bytes -= self._replies.popitem(last=False)[1].size

    def restore(self, conversation: bytes, messages: Sequence[Json], wire: Wire) -> list[Json]:
        """Return a history with the client's versions of replies replaced by the provider's originals."""
        restored: list[Json] = []
        for is_reply, run in groupby(messages, wire.is_reply_message):
            group = list(run)
            restored += self._find(conversation, group, wire) or group if is_reply else group
        return restored

    def _find(self, conversation: bytes, group: Sequence[Json], wire: Wire) -> Sequence[Json]:
        """Return the remembered messages of one reply; an empty list if there are none."""
        call_ids = tuple(call_id for call_id, _ in wire.dialect.find_calls(group))
        text = "" if call_ids else "".join(map(wire.dialect.find_text, group))
        with self._lock:
            known = self._replies.get((conversation, identify_reply(call_ids, text)))
        if known is None or known.call_ids != call_ids:
            return ()
        return _carry_cache_mark(group, known.messages)


def _carry_cache_mark(group: Sequence[Json], messages: Sequence[Json]) -> Sequence[Json]:
    """Copy the cache marker of the client's messages to the messages that replace them."""
    blocks = [block for message in group for block in select_mappings(message.get("content"))]
    mark = next((block[CACHE_MARK] for block in reversed(blocks) if block.get(CACHE_MARK)), None)
    *first, last = messages
    content = last.get("content")
    if not mark or not isinstance(content, list) or not content:
        return messages
    return [*first, {**last, "content": [*content[:-1], {**content[-1], CACHE_MARK: mark}]}]
