"""Determine the token usage of a model's reply, for the limits of users.

Providers tell it at the end of a reply, some only if the client asks for it. What is not told, for example
because the client has gone before the end, is estimated from the sizes of the request and the reply.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace

from toolfold.events import Usage
from toolfold.providers.errors import ProviderError
from toolfold.providers.reply import Reply
from toolfold.providers.wire import EventParser, EventTooLong, Wire
from toolfold.proxy.forwarding import UpstreamResponse
from toolfold.turn.weights import BYTES_PER_TOKEN

MAX_READ_BYTES = 16_000_000
"""Bytes of a forwarded reply that are read. Longer replies are passed on, and estimated."""
MAX_ESTIMATED_BYTES = 4_000_000
"""Bytes of a request that are counted: as many as the largest context windows contain."""
_BASE64 = re.compile(rb"[A-Za-z0-9+/=]{1000,}")
"""An image or a document in a request, whose tokens do not follow from its bytes."""


class ForwardedReply:
    """Parser of a reply that is forwarded unchanged."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._is_stream = False
        self._events, self._reader = EventParser(), wire.dialect.start_reply()
        self._body = bytearray()
        self._size = 0
        self.has_started = False
        """True if the provider has replied, and not with an error."""
        self.is_whole = False
        """True if the reply was received to its end."""

    def observe(self, response: UpstreamResponse) -> UpstreamResponse:
        """Return the response with a body that is parsed for token usage while it is forwarded."""
        if response.status_code != 200:
            return response
        self.has_started = True
        kinds = [value for name, value in response.headers if name.lower() == b"content-type"]
        self._is_stream = any(value.startswith(b"text/event-stream") for value in kinds)

        async def read() -> AsyncIterator[bytes]:
            async for part in response.read():
                self._feed(part)
                yield part
            self.is_whole = True

        return replace(response, read=read)

    def finish(self) -> Reply:
        """Return the received part of the model's reply, as far as it could be parsed."""
        with contextlib.suppress(ProviderError, ValueError, TypeError, KeyError, AttributeError):
            if self._is_stream:
                return self._reader.finish(interrupted=not self.is_whole)
            if self._size <= MAX_READ_BYTES:
                return self._wire.dialect.read_reply(json.loads(self._body))
        return Reply(messages=())

    def _feed(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > MAX_READ_BYTES:
            self._body.clear()
        elif not self._is_stream:
            self._body += part
        else:
            with contextlib.suppress(ProviderError, EventTooLong, ValueError, TypeError, AttributeError):
                self._feed_events(part)

    def _feed_events(self, part: bytes) -> None:
        for event in self._events.feed(part):
            if (content := event.parse()) is not None:
                for _ in self._reader.feed(content):
                    pass


def find_usage(reply: Reply, request: bytes, *, is_whole: bool) -> Usage:
    """Return the token usage of a reply, estimating counts that the provider did not report."""
    told = reply.usage
    output = told.output_tokens
    if not (is_whole and output):
        output = max(output, _estimate_output(reply))
    return replace(told, input_tokens=told.input_tokens or _estimate_input(request), output_tokens=output)


def _estimate_input(request: bytes) -> int:
    counted = request[:MAX_ESTIMATED_BYTES]
    skipped = sum(len(found[0]) for found in _BASE64.finditer(counted))
    return round((len(counted) - skipped) / BYTES_PER_TOKEN)


def _estimate_output(reply: Reply) -> int:
    written = [reply.text, reply.unsent_thinking, *(str(call.arguments) for call in reply.calls)]
    return round(sum(len(each.encode("utf-8", "replace")) for each in written) / BYTES_PER_TOKEN)
