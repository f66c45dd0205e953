"""Read what people write in a chat: the interface, and requests with limits on time and size.

A reader is one file for each chat service. It returns who wrote a reply and its text, and knows nothing of
approval. Everything that a service returns is text of strangers.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import httpx2

__all__ = ["RepliesUnavailable", "Reply", "ReplyReader", "fetch", "parse_json"]

MAX_RESPONSE_BYTES = 2_000_000
REQUEST_TIMEOUT_S = 30.0


class RepliesUnavailable(Exception):
    """Raised if replies cannot be read. The message contains neither URLs nor text of the chat."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Text that somebody wrote in a chat, and who: a user, or the topic in which only that user can write."""

    sender: str
    text: str


class ReplyReader(Protocol):
    """Reads the replies in one chat."""

    pause_s: float
    """How long to wait between two reads."""

    async def read(self, client: httpx2.AsyncClient) -> list[Reply]:
        """Return the replies since the last call; the first call returns what was written before it."""
        ...


async def fetch(client: httpx2.AsyncClient, method: str, url: str, **options: Any) -> bytes:
    """Send a request and return the successful response. Raises RepliesUnavailable."""
    import httpx2

    try:
        async with (
            asyncio.timeout(REQUEST_TIMEOUT_S),
            # Uncompressed, because the limit is on what is received.
            client.stream(method, url, headers={"Accept-Encoding": "identity"}, **options) as response,
        ):
            if response.status_code != httpx2.codes.OK:
                raise RepliesUnavailable(f"the service answered with the status {response.status_code}")
            body = bytearray()
            async for part in response.aiter_raw():
                body += part
                if len(body) > MAX_RESPONSE_BYTES:
                    raise RepliesUnavailable(f"the response has more than {MAX_RESPONSE_BYTES:,} bytes")
            return bytes(body)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:  # their texts may contain the URL
        raise RepliesUnavailable(f"the request failed ({type(error).__name__})") from None


def parse_json(data: bytes) -> Any:
    """Return the JSON value in bytes; None if there is none. Invalid UTF-8 is replaced."""
    try:
        return json.loads(data.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
