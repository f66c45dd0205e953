"""Make responses of providers harmless to browsers, which see them in the same origin as the dashboard.

A provider decides what its response contains, but not what a browser does with it. Only headers that programs
need are passed on, content that a browser could run or draw gets a type without meaning, and every response
forbids scripts. Requests by which a browser would open a response as a page, script or worker are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolfold.serving.gateway.http_sessions import Send
from toolfold.serving.gateway.request_bodies import RequestRefused

Headers = list[tuple[bytes, bytes]]

OPAQUE_TYPE = b"application/octet-stream"
SAFE_HEADERS: Headers = [
    (b"content-security-policy", b"sandbox; default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
_PASSED_NAMES = re.compile(
    rb"content-(?:length|encoding|range|disposition)|accept-ranges|etag|server|x-accel-buffering"
    rb"|retry-after(?:-ms)?|x-should-retry|cf-ray|(?:[a-z0-9-]+-)?(?:request|correlation|trace|generation)-?id"
    rb"|[a-z0-9-]*rate-?limit[a-z0-9-]*"
    rb"|(?:openai|anthropic|x-(?:openai|anthropic|codex|models|reasoning|groq|litellm|openrouter))-[a-z0-9-]+"
)
"""Names of headers that clients of model APIs read. No browser or reverse proxy does more than that."""
_PASSED_TYPES = re.compile(
    rb"(?:application/(?:(?:[a-z0-9.-]+\+)?json|jsonl|x-ndjson|octet-stream)|text/(?:event-stream|plain)"
    rb"|(?:audio|video)/[a-z0-9.-]+|image/(?:png|jpeg|webp|gif|avif))"
    rb"(?:[ \t]*;[ \t]*[a-z]+=\"?[a-z0-9_.:-]+\"?)*",
    re.IGNORECASE,
)
_FETCH_MODES = frozenset({"cors", "same-origin"})
_NO_CONTENT = frozenset({204, 304})


def select_safe_headers(status: int, headers: Headers) -> Headers:
    """Return those headers of a provider's response that are passed on, with names in lower case.

    Any content but JSON, event streams, plain text, sound, video and images becomes `OPAQUE_TYPE`.
    """
    lowered = [(name.lower(), value) for name, value in headers]
    types = [value for name, value in lowered if name == b"content-type"]
    passed = [each for each in lowered if _PASSED_NAMES.fullmatch(each[0])]
    if len(types) == 1 and _PASSED_TYPES.fullmatch(types[0].strip()):
        return [(b"content-type", types[0]), *passed]
    if not types and status in _NO_CONTENT:
        return passed
    return [(b"content-type", OPAQUE_TYPE), *passed]


def add_safe_headers(send: Send) -> Send:
    """Return an ASGI `send` function that adds `SAFE_HEADERS` to a response."""

    async def send_safely(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *SAFE_HEADERS]}
        await send(message)

    return send_safely


def require_program(headers: Mapping[str, str]) -> None:
    """Raise RequestRefused if a browser wants to show or run the response instead of giving it to a script.

    Browsers tell the purpose of a request in headers that scripts cannot set. Other programs send none.
    """
    purpose, mode = headers.get("sec-fetch-dest", "empty"), headers.get("sec-fetch-mode", "cors")
    if purpose != "empty" or mode not in _FETCH_MODES or "service-worker" in headers:
        raise RequestRefused(
            403, "The model API is for programs. It cannot be opened in a browser or loaded by a web page."
        )
