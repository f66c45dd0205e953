"""Send HTTP requests to model providers and forward the content of their responses unchanged.

Reads nothing but headers. A response is passed on in the pieces in which it arrives, and the provider's
connection is closed when the client goes away.
"""

from __future__ import annotations

import hashlib
import re
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from toolfold.core.http_connections import (
    ConnectionPool,
    ExchangeFailed,
    Origin,
    limit_parts,
    require_valid_headers,
)
from toolfold.serving.gateway.http_sessions import Send
from toolfold.serving.proxy.inert_responses import select_safe_headers
from toolfold.serving.proxy.proxy_access import KEY_HEADERS
from toolfold.serving.proxy.upstreams import Headers, Upstream

if TYPE_CHECKING:
    import httpx2

CONNECT_TIMEOUT_S = 20.0
MAX_PROBLEM_CHARS = 300
_DEFAULT_PORTS = {"http": 80, "https": 443}
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_TARGET = re.compile(r"[!-~]+")
_FIELD_VALUE = re.compile(rb"[^\x00\r\n]*")

RequestBody = bytes | AsyncIterator[bytes] | None


class UpstreamFailed(Exception):
    """A provider sent no response, or its response ended early."""

    def __init__(self, problem: str, *, is_timeout: bool = False) -> None:
        super().__init__(problem)
        self.problem, self.is_timeout = problem, is_timeout


@dataclass(frozen=True, slots=True)
class UpstreamResponse:
    """A provider's response, before its body is read."""

    status_code: int
    headers: Headers
    read: Callable[[], AsyncIterator[bytes]]
    """Yields the body as it arrives, without decoding it.

    What it raises leaves the `async with` block of the request as UpstreamFailed.
    """


class UpstreamConnections:
    """Connections to all providers; cookies and redirects are ignored.

    A kept connection is used again only for the same owner and key: a second response, which the provider
    sends late, cannot reach another client.
    """

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._pool = ConnectionPool()
        self._http: httpx2.AsyncClient | None = None
        """Sends requests to providers that are reached through a forward proxy."""
        self._direct: dict[str, bool] = {}
        """Whether a provider is reached without a forward proxy, by scheme, host and port of its URL."""

    @asynccontextmanager
    async def send(
        self, upstream: Upstream, method: str, url: str, headers: Headers, body: RequestBody, *, owner: str
    ) -> AsyncIterator[UpstreamResponse]:
        """Send a request and yield its response; the body must be read inside the `async with` block.

        `owner` is the user or client whose request it is.
        Raises UpstreamFailed. The connection is closed at the end if the response was not read completely.
        """
        parts = urlsplit(url)
        if not self._is_direct(parts):
            async with self._send_by_proxy(upstream, method, url, headers, body) as response:
                yield response
            return
        origin = Origin(
            parts.hostname or "",
            parts.port or _DEFAULT_PORTS[parts.scheme],
            parts.scheme == "https",
            _hash_owner(owner, headers),
        )
        head, content = _render_request(method, parts, headers, body)
        try:
            connection = await self._pool.take(origin, min(CONNECT_TIMEOUT_S, upstream.timeout_s))
        except ExchangeFailed as error:
            raise _describe_failure(error, upstream, is_timeout=error.is_timeout) from None
        is_sent = False
        try:
            is_sent = await connection.send(head, content, upstream.timeout_s)
            received = await connection.receive(method, upstream.timeout_s)
            yield UpstreamResponse(received.status, received.headers, received.read)
        except ExchangeFailed as error:
            raise _describe_failure(error, upstream, is_timeout=error.is_timeout) from None
        finally:
            if is_sent:
                self._pool.give_back(origin, connection)
            else:
                connection.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def _is_direct(self, url: SplitResult) -> bool:
        """Return True for an HTTP URL without credentials for which the environment sets no proxy."""
        key = f"{url.scheme}://{url.netloc}"
        known = self._direct.get(key)
        if known is None:
            proxies = urllib.request.getproxies()
            is_proxied = bool({url.scheme, "all"} & proxies.keys())
            known = not is_proxied or bool(urllib.request.proxy_bypass(url.hostname or ""))
            known = known and url.scheme in _DEFAULT_PORTS and not url.username and url.netloc.isascii()
            self._direct[key] = known
        return known

    @asynccontextmanager
    async def _send_by_proxy(
        self, upstream: Upstream, method: str, url: str, headers: Headers, body: RequestBody
    ) -> AsyncIterator[UpstreamResponse]:
        import httpx2

        timeout = httpx2.Timeout(upstream.timeout_s, connect=min(CONNECT_TIMEOUT_S, upstream.timeout_s))
        try:
            request = httpx2.Request(
                method, url, headers=headers, content=body, extensions={"timeout": timeout.as_dict()}
            )
            response = await self._client().send(request, stream=True)
            try:
                require_valid_headers(response.headers.raw)
                yield UpstreamResponse(
                    response.status_code, response.headers.raw, lambda: limit_parts(response.aiter_raw())
                )
            finally:
                await response.aclose()
        except httpx2.InvalidURL as error:
            raise UpstreamFailed(f"The path or query of the request is not valid: {error}") from None
        except (httpx2.HTTPError, ExchangeFailed) as error:
            is_timeout = isinstance(error, httpx2.TimeoutException)
            raise _describe_failure(error, upstream, is_timeout=is_timeout) from None

    def _client(self) -> httpx2.AsyncClient:
        import httpx2

        if self._http is None:
            limits = httpx2.Limits(max_connections=self._max_connections, max_keepalive_connections=0)
            self._http = httpx2.AsyncClient(limits=limits, follow_redirects=False)
            # Clients share it; a provider's cookies for one must not reach another.
            self._http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        return self._http


def _hash_owner(owner: str, headers: Headers) -> str:
    """Return a checksum of who sends a request, and of the key it is sent with."""
    keys = [value for name, value in headers if name.decode("latin-1").lower() in KEY_HEADERS]
    return hashlib.blake2b(repr((owner, keys)).encode(), digest_size=16).hexdigest()


def _render_request(
    method: str, url: SplitResult, headers: Headers, body: RequestBody
) -> tuple[bytes, bytes | AsyncIterator[bytes]]:
    """Return the head and body of an HTTP request. Raises UpstreamFailed if it is invalid."""
    target = f"{url.path or '/'}{f'?{url.query}' if url.query else ''}"
    if _TARGET.fullmatch(target) is None or not method.isalpha():
        raise UpstreamFailed("The path or query of the request is not valid.")
    lines = [f"{method} {target} HTTP/1.1".encode(), b"host: " + url.netloc.encode()]
    for name, value in headers:
        if _FIELD_VALUE.fullmatch(value) is None:
            raise UpstreamFailed(f"The header {name.decode('latin-1')} is not valid.")
        lines.append(name + b": " + value)
    content: bytes | AsyncIterator[bytes] = b""
    if isinstance(body, bytes):
        content = body
        lines.append(b"content-length: %d" % len(body))
    elif body is None:
        if method in _METHODS_WITH_BODY:
            lines.append(b"content-length: 0")
    elif any(name.lower() == b"content-length" for name, _ in headers):
        content = body
    else:
        content = _add_chunks(body)
        lines.append(b"transfer-encoding: chunked")
    return b"\r\n".join([*lines, b"", b""]), content


async def _add_chunks(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the chunks of a body in HTTP's chunked transfer coding."""
    async for part in body:
        if part:
            yield b"%x\r\n%b\r\n" % (len(part), part)
    yield b"0\r\n\r\n"


async def relay_response(
    response: UpstreamResponse, send: Send, added: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Send a provider's response with added headers to the client. Raises UpstreamFailed if it ends early."""
    await send(
        {
            "type": "http.response.start",
            "status": response.status_code,
            "headers": [*select_response_headers(response), *added],
        }
    )
    async for part in response.read():
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def select_response_headers(response: UpstreamResponse) -> Headers:
    """Return the headers of a provider's response that are forwarded to the client."""
    return select_safe_headers(response.status_code, response.headers)


def _describe_failure(error: Exception, upstream: Upstream, *, is_timeout: bool) -> UpstreamFailed:
    if is_timeout:
        problem = f"The provider {upstream.provider!r} did not answer in time."
        return UpstreamFailed(problem, is_timeout=True)
    reason = " ".join(str(error).split())[:MAX_PROBLEM_CHARS] or type(error).__name__
    hint = (
        ". It gets the requests whose model matches no pattern of the setting proxy.upstreams, and those"
        " without a model; the pattern `*` sends all of them to another provider"
        if upstream.is_fallback
        else ""
    )
    return UpstreamFailed(f"The connection to the provider {upstream.provider!r} failed: {reason}{hint}")
