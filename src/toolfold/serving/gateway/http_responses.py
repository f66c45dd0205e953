"""Run an ASGI application for one HTTP request and write its response.

The client's version decides how the end of a response of unknown length is shown: by chunks, or for HTTP/1.0
by closing the connection.
"""

from __future__ import annotations

import asyncio
import http
import logging
from typing import Any, Protocol

from toolfold.serving.gateway.http_requests import FIELD_NAME, FIELD_VALUE, Headers, RequestHead

log = logging.getLogger(__name__)

_PHRASES = {each.value: each.phrase for each in http.HTTPStatus}
_FORBIDDEN_FRAMING = {204: (b"content-length", b"transfer-encoding"), 304: (b"transfer-encoding",)}
"""Headers about the body that a response of the status must not have, because it never has a body."""
_SERVER_ERROR = b"Internal Server Error"


class ResponseConnection(Protocol):
    """Connection to which a response is written."""

    @property
    def is_closing(self) -> bool: ...

    def send_head(self, head: bytes) -> None:
        """Send the head of a response, together with the start of the body if the body follows soon."""

    def send(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        """Wait until the client has read enough of the sent data."""

    def resume_reading(self) -> None:
        """Resume receiving the request's body."""

    def close(self) -> None: ...

    def on_response_complete(self) -> None: ...


class RequestCycle:
    """One request that is being received, and its response."""

    def __init__(self, connection: ResponseConnection, head: RequestHead, default_headers: Headers) -> None:
        self._connection, self._head, self._default_headers = connection, head, default_headers
        self.body = bytearray()
        """What was received and the application has not read yet."""
        self.more_body = True
        self.message_event = asyncio.Event()
        """Set if the application has something to receive."""
        self.disconnected = False
        self.keep_alive = head.is_kept_alive
        self.response_started = self.response_complete = False
        self._must_continue = head.expects_continue
        self._is_chunked = False
        self._missing: int | None = None
        """Bytes of the response's body that were declared and not sent; None if no length was declared."""

    async def run(self, app: Any, scope: dict[str, Any]) -> None:
        """Call the application; respond with status 500 if it raises an exception."""
        try:
            await app(scope, self.receive, self.send)
        except asyncio.CancelledError:  # the server stops
            await self._end_failed_response()
        except BaseException as error:
            log.error("the application failed to respond to an HTTP request", exc_info=error)
            await self._end_failed_response()
        else:
            if not self.response_complete and not self.disconnected:
                log.error("the application ended without a complete HTTP response")
                await self._end_failed_response()

    async def _end_failed_response(self) -> None:
        if self.response_started:
            self._connection.close()
            return
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(_SERVER_ERROR)).encode()),
            (b"connection", b"close"),
        ]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": _SERVER_ERROR})

    async def receive(self) -> dict[str, Any]:
        """ASGI `receive`: return the received part of the body, or a disconnect after the response."""
        if self._must_continue and not self._connection.is_closing:
            self._connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._must_continue = False
        if not self.disconnected and not self.response_complete:
            self._connection.resume_reading()
            await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Any) -> None:
        """ASGI `send`: write the head of the response or a part of its body."""
        await self._connection.drain()
        if self.disconnected:
            return
        expected = "http.response.body" if self.response_started else "http.response.start"
        if message["type"] != expected or self.response_complete:
            raise RuntimeError(f"unexpected ASGI message {message['type']}")
        if self.response_started:
            self._send_body(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            self._send_head(message["status"], [*self._default_headers, *message.get("headers", ())])

    def _send_head(self, status: int, given: Headers) -> None:
        headers = self._set_framing(status, [(name.lower(), value) for name, value in given])
        lines: list[bytes] = []
        for name, value in headers:
            if FIELD_NAME.fullmatch(name) is None or FIELD_VALUE.fullmatch(value) is None:
                raise RuntimeError("a header of the response is not valid")
            lines += name, b": ", value, b"\r\n"
        self.response_started, self._must_continue = True, False
        first = f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode()
        self._connection.send_head(b"".join((first, *lines, b"\r\n")))

    def _set_framing(self, status: int, headers: Headers) -> Headers:
        """Choose the response's framing (length, chunks or close), and return the headers for it."""
        values = dict(headers)
        self.keep_alive &= b"close" not in values.get(b"connection", b"").lower()
        has_body = self._head.method != "HEAD" and status not in (204, 304)
        if not has_body:
            self._missing = 0
            headers = [each for each in headers if each[0] not in _FORBIDDEN_FRAMING.get(status, ())]
        elif b"transfer-encoding" not in values and b"content-length" in values:
            self._missing = int(values[b"content-length"])
        else:
            headers = [each for each in headers if each[0] not in (b"content-length", b"transfer-encoding")]
            self._is_chunked = self._head.version == "1.1"
            self.keep_alive &= self._is_chunked
            if self._is_chunked:
                headers.append((b"transfer-encoding", b"chunked"))
        if not self.keep_alive:
            headers = [each for each in headers if each[0] != b"connection"]
            headers.append((b"connection", b"close"))
        return headers

    def _send_body(self, body: bytes, *, is_last: bool) -> None:
        if self._head.method == "HEAD":
            body = b""
        if self._missing is not None:
            self._missing -= len(body)
            if self._missing < 0 or (is_last and self._missing):
                raise RuntimeError("the length of the response body differs from its Content-Length header")
        elif self._is_chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"0\r\n\r\n" if is_last else b"")
        if body:
            self._connection.send(body)
        if is_last:
            self.response_complete = True
            self.body = bytearray()  # nobody will read it
            self.message_event.set()
            self._connection.on_response_complete()
