"""A real OpenAI-compatible `/v1/embeddings` on the loopback, for tests to break as they like."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

Answering = Callable[["Asked"], None]

MOST_HEADERS = 90  # there are clients that take no more of them


class Asked(BaseHTTPRequestHandler):
    """One request; what it is answered is the test's to say."""

    server: Server

    def do_POST(self) -> None:
        self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers), self.body))
        self.server.answering(self)

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers), None))
        self.send_error(405)

    def send(self, body: bytes, status: int = 200, *, length: int | None = None, location: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Silence."""


class Server(HTTPServer):
    """An OpenAI-compatible endpoint on the loopback that remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.answering: Answering = well
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/embeddings"

    @property
    def asked(self) -> list[list[str]]:
        """The texts of each request."""
        return [body["input"] for _, _, body in self.requests]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is part of several tests."""


def letters(text: str) -> list[float]:
    """A vector anyone can check: how many a's, b's and c's."""
    return [float(text.count(letter)) for letter in "abc"]


def by_letters(texts: Sequence[str]) -> list[list[float]]:
    return [letters(text) for text in texts]


def well(asked: Asked) -> None:
    rows = [{"index": n, "embedding": letters(text)} for n, text in enumerate(asked.body["input"])]
    asked.send(json.dumps({"object": "list", "data": rows}).encode())


def saying(answer: Any) -> Answering:
    """Answers everything with this: bytes as they are, anything else as JSON."""
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return lambda asked: asked.send(body)


def rows(*vectors: Any) -> dict[str, Any]:
    return {"data": [{"index": n, "embedding": vector} for n, vector in enumerate(vectors)]}


def taking(most: int, status: int) -> Answering:
    """Refuses more than so many texts at once."""
    return lambda asked: well(asked) if len(asked.body["input"]) <= most else asked.send(b"", status)


def fails(asked: Asked) -> None:
    asked.send(b"", 500)


def hang(asked: Asked) -> None:
    """Answers nothing for as long as the test runs."""
    asked.server.ended.wait(120)


def trickling_headers(sent: list[int]) -> Answering:
    """Sends one header after the other, and notes how many."""

    def trickle(asked: Asked) -> None:
        asked.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for number in range(MOST_HEADERS):
            if asked.server.ended.wait(0.2):
                break
            asked.wfile.write(b"X-%d: y\r\n" % number)
            sent.append(number)

    return trickle


def hang_up(asked: Asked) -> None:
    asked.close_connection = True


def hang_up_halfway(asked: Asked) -> None:
    asked.send(b'{"data": [{"embedding": [1', length=5_000)


def speak_something_else(asked: Asked) -> None:
    asked.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")


@contextmanager
def serving() -> Iterator[Server]:
    """A server that answers in a thread of its own until the test ends."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()
