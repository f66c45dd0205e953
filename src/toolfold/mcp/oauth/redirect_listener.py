"""Local HTTP server that receives the redirect at the end of an OAuth login.

Accepts only requests to its own address with the expected state; anything else is answered and ignored, so
that no other page can end or hijack a login. The same parser reads a URL that a person pastes. Handles no
tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from toolfold.core.errors import shorten
from toolfold.core.invisible_characters import remove_invisible

HOST = "127.0.0.1"
PATH = "/callback"
_MAX_REQUEST_BYTES = 32_768
_REQUEST_TIMEOUT_S = 10.0
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Toolfold</title>
<body style="font:1.1em sans-serif;margin:4em auto;max-width:34em"><h1>{title}</h1><p>{text}</p></body>
"""
_HEADERS = (
    "Content-Type: text/html; charset=utf-8",
    "Connection: close",
    "Cache-Control: no-store",
    "Referrer-Policy: no-referrer",
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'",
)


@dataclass(frozen=True, slots=True)
class AuthorizationResponse:
    """Response of the OAuth authorization endpoint: a code or an error."""

    code: str = ""
    issuer: str | None = None
    error: str = ""


def parse_redirect(url: str, state: str) -> AuthorizationResponse:
    """Parse the authorization response in a redirect URL. Raises ValueError if URL or state is wrong."""
    try:
        query = parse_qs(urlsplit(url.strip()).query, max_num_fields=50)
    except ValueError:
        raise ValueError("it is not a valid URL") from None
    if not secrets.compare_digest(_single_value(query, "state").encode(), state.encode()):
        raise ValueError("the state in the redirect URL belongs to another login")
    issuer = _single_value(query, "iss") or None
    if error := _single_value(query, "error"):
        why = _single_value(query, "error_description")
        return AuthorizationResponse(
            issuer=issuer, error=shorten(remove_invisible(f"{error}: {why}" if why else error), 300)
        )
    if code := _single_value(query, "code"):
        return AuthorizationResponse(code, issuer)
    raise ValueError("the redirect URL contains neither a code nor an error")


class Redirect(Protocol):
    """Interface of an object that receives the redirect at the end of one OAuth login."""

    @property
    def uri(self) -> str:
        """Return the redirect URI."""

    async def wait_for_response(self, state: str) -> AuthorizationResponse:
        """Wait for the redirect with this OAuth `state`, and return the authorization response in it."""


class RedirectListener:
    """Listener that receives the redirect of one OAuth login; `uri` is the redirect URI."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._state: str | None = None
        self._response: asyncio.Future[AuthorizationResponse] = asyncio.get_running_loop().create_future()
        self.port = 0

    @property
    def uri(self) -> str:
        """Return the redirect URI."""
        return f"http://{HOST}:{self.port}{PATH}"

    async def wait_for_response(self, state: str) -> AuthorizationResponse:
        """Wait for the redirect with this OAuth `state`, and return the authorization response in it."""
        self._state = state
        return await self._response

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one HTTP connection."""
        with contextlib.suppress(
            OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                writer.write(self._handle_request(head))
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()

    def _handle_request(self, head: str) -> bytes:
        first, *lines = head.split("\r\n")
        method, _, rest = first.partition(" ")
        target = rest.rpartition(" ")[0]
        # Check the host: another site could reach this port through DNS rebinding.
        hosts = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("host:")]
        if method != "GET" or hosts not in ([f"{HOST}:{self.port}"], [f"localhost:{self.port}"]):
            return _build_page(400, "Bad request", "This address only receives the result of a login.")
        if urlsplit(target).path != PATH or self._state is None:
            return _build_page(404, "Not found", "This address only receives the result of a login.")
        try:
            response = parse_redirect(target, self._state)
        except ValueError as error:
            return _build_page(400, "Login rejected", f"This response was rejected: {error}.")
        if not self._response.done():
            self._response.set_result(response)
        if response.error:
            return _build_page(200, "Not logged in", f"{self._server}: {response.error}")
        return _build_page(
            200, "Logged in", f"Toolfold is now connecting to {self._server}. You can close this window."
        )


@contextlib.asynccontextmanager
async def open_listener(
    server: str, port: int, *, preferred_port: int = 0
) -> AsyncIterator[RedirectListener]:
    """Open a listener on `port` or, if `port` is 0, on `preferred_port` or any free port. Raises OSError."""
    listener = RedirectListener(server)
    http_server = (
        await _start_server(listener, port) if port else await _start_on_free_port(listener, preferred_port)
    )
    listener.port = http_server.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        http_server.close()  # open connections end by their own timeout


async def _start_server(listener: RedirectListener, port: int) -> asyncio.Server:
    return await asyncio.start_server(listener.serve, HOST, port, limit=_MAX_REQUEST_BYTES)


async def _start_on_free_port(listener: RedirectListener, preferred_port: int) -> asyncio.Server:
    if preferred_port:
        with contextlib.suppress(OSError):
            return await _start_server(listener, preferred_port)
    return await _start_server(listener, 0)


def _single_value(query: dict[str, list[str]], name: str) -> str:
    values = query.get(name, [])
    return values[0] if len(values) == 1 else ""


def _build_page(status: int, title: str, text: str) -> bytes:
    body = _PAGE.format(title=html.escape(title), text=html.escape(text)).encode()
    first = f"HTTP/1.1 {status} {'OK' if status == 200 else 'Refused'}"
    head = "\r\n".join((first, *_HEADERS, f"Content-Length: {len(body)}", "", ""))
    return head.encode() + body
