"""Determine the token usage of a model's reply, for the limits of users, and its id.

Providers tell it at the end of a reply, some only if the client asks for it. What is not told, for example
because the client has gone before the end, is estimated from the sizes of the request and the reply.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from toolfold.core.events import Usage
from toolfold.core.types import Json
from toolfold.models.provider_errors import ProviderError
from toolfold.models.reply import Reply, text_of
from toolfold.models.wire import EventParser, EventTooLong, Wire
from toolfold.selection.turn.token_counts import BYTES_PER_TOKEN
from toolfold.serving.proxy.forwarding import UpstreamResponse
from toolfold.serving.proxy.input_estimate import estimate_input_tokens

MAX_READ_BYTES = 16_000_000
"""Bytes of a forwarded reply that are read. Longer replies are passed on, and estimated."""


class ForwardedReply:
    """Reply that is forwarded unchanged and parsed for its token usage."""

    def __init__(self, wire: Wire, note_id: Callable[[str], None]) -> None:
        """Create a parser; `note_id` gets the id of a reply of the responses API before the client does."""
        self._wire, self._note_id = wire, note_id
        self._is_stream = False
        self._events, self._reader = EventParser(), wire.dialect.start_reply()
        self._body = bytearray()
        self._size = 0
        self.has_started = False
        """True if the provider has replied, and not with an error."""
        self.is_refused = False
        """True if the provider has replied with an error, which costs nothing."""
        self.is_whole = False
        """True if the reply was received to its end."""

    def observe(self, response: UpstreamResponse) -> UpstreamResponse:
        """Return the response with a body that is parsed for token usage while it is forwarded."""
        if response.status_code != 200:
            self.is_refused = True
            return response
        self.has_started = True
        kinds = [value for name, value in response.headers if name.lower() == b"content-type"]
        self._is_stream = any(value.lower().startswith(b"text/event-stream") for value in kinds)

        async def read() -> AsyncIterator[bytes]:
            async for part in response.read():
                self._feed(part)
                yield part
            self.is_whole = True
            if not self._is_stream:
                with contextlib.suppress(ValueError, RecursionError):
                    self._note_reply(json.loads(self._body))

        return replace(response, read=read)

    def finish(self) -> Reply:
        """Return the received part of the model's reply, as far as it could be parsed."""
        with contextlib.suppress(ProviderError, ValueError, TypeError, KeyError, AttributeError):
            if self._is_stream:
                return self._reader.finish(interrupted=not self.is_whole)
            if self._size <= MAX_READ_BYTES:
                return self._wire.dialect.read_reply(_read_as_chat(json.loads(self._body)))
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
                self._note_reply(content.get("response"))
                for _ in self._reader.feed(_read_as_chat(content)):
                    pass

    def _note_reply(self, response: Any) -> None:
        if isinstance(response, dict) and (reply_id := text_of(response.get("id"))):
            self._note_id(reply_id)


def find_usage(reply: Reply, request: bytes, content: Json | None, *, is_whole: bool) -> Usage:
    """Return the token usage of a reply, estimating counts that the provider did not report.

    `content` is the parsed request; None if it could not be parsed.
    """
    told = reply.usage
    output = told.output_tokens
    if not (is_whole and output):
        output = max(output, _estimate_output(reply))
    counted = told.input_tokens or estimate_input_tokens(request, content)
    return replace(told, input_tokens=counted, output_tokens=output)


def _read_as_chat(content: Json) -> Json:
    """Convert a text completion, or a chunk of one, to a chat completion; return other replies unchanged."""
    choices = content.get("choices")
    if not isinstance(choices, list) or not any(
        isinstance(each, dict) and "text" in each for each in choices
    ):
        return content
    text = "".join(str(each.get("text") or "") for each in choices if isinstance(each, dict))
    message = {"role": "assistant", "content": text}
    return {**content, "choices": [{"index": 0, "delta": message, "message": message}]}


def _estimate_output(reply: Reply) -> int:
    written = [reply.text, reply.unsent_thinking, *(str(call.arguments) for call in reply.calls)]
    return round(sum(len(each.encode("utf-8", "replace")) for each in written) / BYTES_PER_TOKEN)
