"""Send JSON requests to a service over HTTP, with limits on time and size.

For models behind an API. The key is sent only to the given URL and appears in no error. Payload, meaning of
the answer and error handling are the caller's.
"""

from __future__ import annotations

import functools
import http.client
import io
import json
import re
import socket
import time
import urllib.error
import urllib.request
from typing import Any

__all__ = ["REQUEST_ERRORS", "JsonEndpoint", "redact_url"]

REQUEST_ERRORS = (OSError, ValueError, RecursionError, http.client.HTTPException)
"""Exceptions of a request; `TimeoutError` and `urllib.error.HTTPError` are OSErrors."""
_CHUNK_BYTES = 65_536
_URL_CREDENTIALS = re.compile(r"//[^/?#]*@")


class JsonEndpoint:
    """URL of an HTTP service with its API key and timeout."""

    def __init__(self, url: str, *, key: str = "", timeout: float) -> None:
        self._url, self._key, self._timeout = url, key.strip(), timeout

    def __call__(self, payload: Any, *, max_bytes: int) -> Any:
        """Post a payload and return the response of at most `max_bytes`. Raises one of REQUEST_ERRORS."""
        body, deadline = json.dumps(payload).encode(), time.monotonic() + self._timeout
        request = urllib.request.Request(self._url, body, self._headers())  # noqa: S310  (the opener accepts only http)
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return json.loads(_read_all(answer, max_bytes, deadline))
        except urllib.error.HTTPError as error:
            error.close()
            raise

    def _headers(self) -> dict[str, str]:
        """Return the request headers. Raises ValueError if the key is invalid, without quoting it."""
        headers = {"Content-Type": "application/json"}
        if _URL_CREDENTIALS.search(self._url):
            raise ValueError("the URL must not contain a user name or password")
        if not (self._key.isascii() and self._key.isprintable()):
            raise ValueError("the API key contains characters that are not allowed in a header")
        return {**headers, "Authorization": f"Bearer {self._key}"} if self._key else headers

    @functools.cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        """Return an HTTP(S) opener that follows no redirects, because they would forward the key."""
        opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.UnknownHandler(),
            _HttpHandler(),
            _HttpsHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
        ):
            opener.add_handler(handler)
        return opener


def redact_url(url: str) -> str:
    """Return a URL without credentials, query and fragment, for logs and file names."""
    return _URL_CREDENTIALS.sub("//", re.split("[?#]", url, maxsplit=1)[0])


def _read_all(answer: Any, max_bytes: int, deadline: float) -> bytes:
    """Return the whole response. Raises OSError if it is too long, TimeoutError after the deadline."""
    parts: list[bytes] = []
    while part := answer.read1(_CHUNK_BYTES):
        parts.append(part)
        max_bytes -= len(part)
        if max_bytes < 0:
            raise OSError("the answer is too long")
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return b"".join(parts)


class _DeadlineConnection(http.client.HTTPConnection):
    """HTTP connection with one time limit for the whole exchange.

    The usual limit restarts with every line received.
    """

    def __init__(self, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._deadline = time.monotonic() + (self.timeout or 0.0)
        self.response_class = self._response  # type: ignore[assignment]  # it is only called

    def connect(self) -> None:
        self.timeout = _remaining_time(self._deadline)
        super().connect()

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        self.sock.settimeout(_remaining_time(self._deadline))
        super().send(data)

    def _response(self, sock: socket.socket, *options: Any, **named: Any) -> http.client.HTTPResponse:
        response = http.client.HTTPResponse(sock, *options, **named)
        response.fp = io.BufferedReader(_DeadlineReader(response.fp.detach(), sock, self._deadline))
        return response


class _DeadlineHttpsConnection(_DeadlineConnection, http.client.HTTPSConnection):
    """HTTPS connection with one time limit for the whole exchange."""


class _DeadlineReader(io.RawIOBase):
    """Stream that reads from a socket until a deadline."""

    def __init__(self, received: io.RawIOBase, sock: socket.socket, deadline: float) -> None:
        self._stream, self._sock, self._deadline = received, sock, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        self._sock.settimeout(_remaining_time(self._deadline))
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _remaining_time(deadline: float) -> float:
    """Return the seconds until the deadline. Raises TimeoutError if it has passed."""
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("timed out")
    return remaining


class _HttpHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_DeadlineConnection, req)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_DeadlineHttpsConnection, req)
