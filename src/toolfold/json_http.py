"""JSON sent to a service, and JSON that comes back: over HTTP and nothing else, within a time and a size.

For models that others run. The key goes to the address that was given and nowhere else, and stands in no
error. What is asked, what an answer means, and what becomes of a failure is for the caller to say.
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
"""What an exchange may raise; of the first are `TimeoutError` and `urllib.error.HTTPError`."""
_CHUNK_BYTES = 65_536
_URL_CREDENTIALS = re.compile(r"//[^/?#]*@")


class JsonEndpoint:
    """One address, and how it is asked."""

    def __init__(self, url: str, *, key: str = "", timeout: float) -> None:
        self._url, self._key, self._timeout = url, key.strip(), timeout

    def __call__(self, payload: Any, *, max_bytes: int) -> Any:
        """What the service answers, if that has no more than `most` bytes. Raises FAILURES."""
        body, deadline = json.dumps(payload).encode(), time.monotonic() + self._timeout
        request = urllib.request.Request(self._url, body, self._headers())  # noqa: S310  (http only, below)
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return json.loads(_read_all(answer, max_bytes, deadline))
        except urllib.error.HTTPError as error:
            error.close()
            raise

    def _headers(self) -> dict[str, str]:
        """Raises ValueError before anything else can fail on a secret and quote it."""
        headers = {"Content-Type": "application/json"}
        if _URL_CREDENTIALS.search(self._url):
            raise ValueError("the address must not hold a user or a password")
        if not (self._key.isascii() and self._key.isprintable()):
            raise ValueError("the key has characters that a header cannot carry")
        return {**headers, "Authorization": f"Bearer {self._key}"} if self._key else headers

    @functools.cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        """HTTP and nothing else: a redirection would take the key along, a `file:` would read the disk."""
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
    """An address without what may be secret in it: logs and file names show it."""
    return _URL_CREDENTIALS.sub("//", re.split("[?#]", url, maxsplit=1)[0])


def _read_all(answer: Any, max_bytes: int, deadline: float) -> bytes:
    """All that is sent: not more than `most`, not later than the deadline. Raises OSError."""
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
    """Its time limit is that of the whole exchange: the usual one begins anew with every line received."""

    def __init__(self, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._deadline = time.monotonic() + (self.timeout or 0.0)
        self.response_class = self._response  # type: ignore[assignment]  # it is only ever called

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
    """The same, encrypted."""


class _DeadlineReader(io.RawIOBase):
    """What a socket receives until the deadline."""

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
    """Raises TimeoutError where nothing is."""
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
