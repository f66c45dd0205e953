"""Send HTTP requests to model providers and pass their responses on, byte for byte.

Reads nothing but headers. A response is passed on in the pieces in which it arrives, and the provider's
connection is closed when the client goes away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING

from toolfold.gateway.http_sessions import Send
from toolfold.proxy.upstreams import HOP_HEADERS, Headers, Upstream

if TYPE_CHECKING:
    import httpx2

CONNECT_TIMEOUT_S = 20.0
MAX_IDLE_CONNECTIONS = 100
IDLE_CONNECTION_S = 30.0
MAX_PROBLEM_CHARS = 300
_OWN_RESPONSE_HEADERS = frozenset({*HOP_HEADERS, "date"})  # the server writes its own


class UpstreamFailed(Exception):
    """A provider gave no response, or its response ended early."""

    def __init__(self, problem: str, *, is_timeout: bool = False) -> None:
        super().__init__(problem)
        self.problem, self.is_timeout = problem, is_timeout


class UpstreamConnections:
    """Connections to all providers, used by all clients. Keeps no cookies and follows no redirects."""

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._http: httpx2.AsyncClient | None = None

    @asynccontextmanager
    async def send(
        self,
        upstream: Upstream,
        method: str,
        url: str,
        headers: Headers,
        body: bytes | AsyncIterator[bytes] | None,
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request and yield the response, whose body is read in the `async with` block.

        Raises UpstreamFailed. The connection is closed at the end if the response was not read completely.
        """
        import httpx2

        timeout = httpx2.Timeout(upstream.timeout_s, connect=min(CONNECT_TIMEOUT_S, upstream.timeout_s))
        try:
            request = httpx2.Request(
                method, url, headers=headers, content=body, extensions={"timeout": timeout.as_dict()}
            )
            response = await self._client().send(request, stream=True)
        except httpx2.InvalidURL as error:
            raise UpstreamFailed(f"The path or query of the request is not valid: {error}") from None
        except httpx2.HTTPError as error:
            raise _describe_failure(error, upstream) from None
        try:
            yield response
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close all connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def _client(self) -> httpx2.AsyncClient:
        import httpx2

        if self._http is None:
            limits = httpx2.Limits(
                max_connections=self._max_connections,
                max_keepalive_connections=MAX_IDLE_CONNECTIONS,
                keepalive_expiry=IDLE_CONNECTION_S,
            )
            self._http = httpx2.AsyncClient(limits=limits, follow_redirects=False)
            # Clients share the connections; a provider's cookies for one must not reach another.
            self._http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        return self._http


async def relay_response(
    response: httpx2.Response, upstream: Upstream, send: Send, added: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Pass a provider's response on, with added headers. Raises UpstreamFailed if it ends early."""
    await send(
        {
            "type": "http.response.start",
            "status": response.status_code,
            "headers": [*select_response_headers(response), *added],
        }
    )
    async for part in read_raw(response, upstream):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def read_raw(response: httpx2.Response, upstream: Upstream) -> AsyncIterator[bytes]:
    """Yield the body of a response as it arrives, without decoding it. Raises UpstreamFailed."""
    import httpx2

    try:
        async for part in response.aiter_raw():
            yield part
    except httpx2.HTTPError as error:
        raise _describe_failure(error, upstream) from None


def select_response_headers(response: httpx2.Response) -> Headers:
    """Return the headers of a provider's response that the client gets."""
    return [
        (name.lower(), value)
        for name, value in response.headers.raw
        if name.decode("latin-1").lower() not in _OWN_RESPONSE_HEADERS
    ]


def _describe_failure(error: httpx2.HTTPError, upstream: Upstream) -> UpstreamFailed:
    import httpx2

    if isinstance(error, httpx2.TimeoutException):
        problem = f"The provider {upstream.provider!r} did not answer in time."
        return UpstreamFailed(problem, is_timeout=True)
    reason = " ".join(str(error).split())[:MAX_PROBLEM_CHARS] or type(error).__name__
    return UpstreamFailed(f"The connection to the provider {upstream.provider!r} failed: {reason}")
