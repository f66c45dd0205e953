"""Refuse model requests whose tokens cannot be counted, for users with a limit on tokens or cost.

Such a user may send only requests whose replies are counted, in a form that the provider cannot read
differently. Streams get an option with which the provider tells the usage; a client that did not ask for the
usage does not receive it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from toolfold.core.errors import shorten
from toolfold.core.types import Json
from toolfold.models.wire import COUNTING_WIRES, WIRES, EventParser, EventTooLong, ServerSentEvent
from toolfold.serving.gateway.http_sessions import Send
from toolfold.serving.gateway.request_bodies import RequestRefused
from toolfold.serving.proxy.json_bodies import has_json_type, read_pairs

PLAIN_PATHS = frozenset({"completions", "embeddings"})
"""Paths without tools whose replies are counted."""
COUNTED_PATHS = frozenset({*WIRES, *PLAIN_PATHS})
_FREE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_USAGE_ON_REQUEST = frozenset({"chat/completions", "completions"})
"""APIs whose streams contain the usage only if the request asks for it."""
_CHECKED_KEYS = frozenset({"model", "stream", "stream_options", "background"})
_WHY = "The tokens or cost that you may use are limited"


@dataclass(frozen=True, slots=True)
class CountedBody:
    """Body of a request whose reply's tokens can be counted."""

    body: bytes
    content: Json
    hides_usage: bool
    """True if the usage at the end of the stream must be hidden, because the client did not ask for it."""


def require_counted_path(method: str, path: str, *, has_body: bool) -> None:
    """Raise RequestRefused for a path that may cost money but whose usage the proxy cannot count."""
    if method == "POST" and (path in COUNTED_PATHS or path in COUNTING_WIRES):
        return
    if method in _FREE_METHODS and not (has_body and method != "DELETE"):
        return
    raise RequestRefused(
        403,
        f"{_WHY}, and the use of {method} {shorten('/v1/' + path)} is not counted. Use one of"
        f" {', '.join(f'/v1/{each}' for each in sorted(COUNTED_PATHS))}.",
    )


def prepare_counted_body(
    path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes, content: Json | None
) -> CountedBody:
    """Check that a reply's tokens can be counted, and request the token usage at the end of a stream.

    Raises RequestRefused. Slow for a large body.
    """
    if content is None or not has_json_type(headers):
        raise RequestRefused(
            400, f"{_WHY}, so the request must be an uncompressed JSON object with the type application/json."
        )
    keys = _list_keys(body)
    if any(count > 1 for count in Counter(each.casefold() for each in keys).values()) or any(
        each.casefold() in _CHECKED_KEYS and each not in _CHECKED_KEYS for each in keys
    ):
        raise RequestRefused(
            400, f"{_WHY}, and this request has a key twice or in capital letters. Send each key once."
        )
    if content.get("background"):
        raise RequestRefused(
            403, f"{_WHY}, and replies in the background are not counted. Send the request without it."
        )
    if path not in _USAGE_ON_REQUEST or not content.get("stream"):
        return CountedBody(body, content, hides_usage=False)
    options = content.get("stream_options")
    options = options if isinstance(options, dict) else {}
    if options.get("include_usage") is True:
        return CountedBody(body, content, hides_usage=False)
    content = {**content, "stream_options": {**options, "include_usage": True}}
    return CountedBody(json.dumps(content).encode(), content, hides_usage=True)


def _list_keys(body: bytes) -> list[str]:
    try:
        return [key for key, _ in read_pairs(body)]
    except (ValueError, RecursionError):
        raise RequestRefused(400, f"{_WHY}, and this request cannot be read.") from None


class UsageHider:
    """ASGI `send` function that removes stream events that contain only token usage."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._parser: EventParser | None = None

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            message = self._start(message)
        elif self._parser is not None:
            body = _select_events(self._parser, message.get("body", b""), message.get("more_body", False))
            message = {**message, "body": body}
            if not message["body"] and message.get("more_body"):
                return
        await self._send(message)

    def _start(self, message: Any) -> Any:
        headers = [(name.lower(), value) for name, value in message["headers"]]
        types = [value.lower() for name, value in headers if name == b"content-type"]
        if message["status"] != 200 or not any(each.startswith(b"text/event-stream") for each in types):
            return message
        self._parser = EventParser()
        return {**message, "headers": [each for each in headers if each[0] != b"content-length"]}


def _select_events(parser: EventParser, part: bytes, has_more: bool) -> bytes:
    """Return the events completed by this part of a stream, without events that contain only token usage."""
    kept = bytearray()
    try:
        for event in parser.feed(part):
            kept += b"" if _has_only_usage(event) else event.raw
    except EventTooLong:  # the event is passed on as it is
        has_more = False
    if not has_more:
        for event in parser.finish():
            kept += b"" if _has_only_usage(event) else event.raw
    return bytes(kept)


def _has_only_usage(event: ServerSentEvent) -> bool:
    if b'"usage"' not in event.raw:
        return False
    content = event.parse()
    return content is not None and content.get("choices") == [] and bool(content.get("usage"))
