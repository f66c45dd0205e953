"""Where a person's browser comes back to after a login: a listener on this machine, for one login.

Only a request for our own address, with the state we gave, is heard; anything else is answered and ignored,
so that nobody can end or take over a login. The same is read from an address a person pastes. Knows no token.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from toolfold.errors import shorten
from toolfold.visible import visible

HOST = "127.0.0.1"
PATH = "/callback"
_LONGEST_REQUEST = 32_768
_SECONDS_A_REQUEST = 10.0
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
class Returned:
    """The issuer's answer: a code, or an error."""

    code: str = ""
    issuer: str | None = None
    error: str = ""


def read_return(address: str, state: str) -> Returned:
    """The answer in an address. Raises ValueError where it is none, or one to another login."""
    try:
        asked = parse_qs(urlsplit(address.strip()).query, max_num_fields=50)
    except ValueError:
        raise ValueError("it is no address") from None
    if not secrets.compare_digest(_one(asked, "state").encode(), state.encode()):
        raise ValueError("it belongs to another login")
    issuer = _one(asked, "iss") or None
    if error := _one(asked, "error"):
        why = _one(asked, "error_description")
        return Returned(issuer=issuer, error=shorten(visible(f"{error}: {why}" if why else error), 300))
    if code := _one(asked, "code"):
        return Returned(code, issuer)
    raise ValueError("it has no answer in it")


class Listener:
    """Waits for one browser. `uri` is the address the issuer is to send it to."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._state: str | None = None
        self._answer: asyncio.Future[Returned] = asyncio.get_running_loop().create_future()
        self.port = 0

    @property
    def uri(self) -> str:
        """Our own address."""
        return f"http://{HOST}:{self.port}{PATH}"

    async def answer(self, state: str) -> Returned:
        """What the browser brings that comes with this state."""
        self._state = state
        return await self._answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        with contextlib.suppress(
            OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            async with asyncio.timeout(_SECONDS_A_REQUEST):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                writer.write(self._reply(head))
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()

    def _reply(self, head: str) -> bytes:
        first, *lines = head.split("\r\n")
        method, _, rest = first.partition(" ")
        target = rest.rpartition(" ")[0]
        # Another site's page could be sent here under a name of its own.
        hosts = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("host:")]
        if method != "GET" or hosts not in ([f"{HOST}:{self.port}"], [f"localhost:{self.port}"]):
            return _response(400, "Not here", "This address takes the answer of a login, and nothing else.")
        if urlsplit(target).path != PATH or self._state is None:
            return _response(
                404, "Nothing here", "This address takes the answer of a login, and nothing else."
            )
        try:
            answer = read_return(target, self._state)
        except ValueError as error:
            return _response(400, "Not this login", f"This answer is not taken: {error}.")
        if not self._answer.done():
            self._answer.set_result(answer)
        if answer.error:
            return _response(200, "Not logged in", f"{self._server}: {answer.error}")
        return _response(
            200, "Thank you", f"Toolfold goes on with {self._server}. You can close this window."
        )


@contextlib.asynccontextmanager
async def listening(server: str, port: int, *, before: int = 0) -> AsyncIterator[Listener]:
    """A listener at this port; for 0 at the one of `before` if that is free, or at any. Raises OSError."""
    listener = Listener(server)
    serving = await _served(listener, port) if port else await _somewhere(listener, before)
    listener.port = serving.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        serving.close()  # what is being answered ends by itself, within its time


async def _served(listener: Listener, port: int) -> asyncio.Server:
    return await asyncio.start_server(listener.serve, HOST, port, limit=_LONGEST_REQUEST)


async def _somewhere(listener: Listener, before: int) -> asyncio.Server:
    if before:
        with contextlib.suppress(OSError):
            return await _served(listener, before)
    return await _served(listener, 0)


def _one(asked: dict[str, list[str]], name: str) -> str:
    values = asked.get(name, [])
    return values[0] if len(values) == 1 else ""


def _response(status: int, title: str, text: str) -> bytes:
    body = _PAGE.format(title=html.escape(title), text=html.escape(text)).encode()
    first = f"HTTP/1.1 {status} {'OK' if status == 200 else 'Refused'}"
    head = "\r\n".join((first, *_HEADERS, f"Content-Length: {len(body)}", "", ""))
    return head.encode() + body
