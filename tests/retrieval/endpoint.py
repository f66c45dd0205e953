"""OpenAI-compatible `/v1/embeddings` server on the loopback interface, with configurable faults."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

RequestHandler = Callable[["EmbeddingRequest"], None]

MAX_HEADERS = 90  # there are clients that take no more of them


class EmbeddingRequest(BaseHTTPRequestHandler):
    """One HTTP request; the server's handler writes the response."""

    server: Server

    def do_POST(self) -> None:
        self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers), self.body))
        self.server.handler(self)

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
        """Suppress logging."""


class Server(HTTPServer):
    """OpenAI-compatible endpoint that records its requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), EmbeddingRequest)
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.handler: RequestHandler = answer_normally
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/embeddings"

    @property
    def received_texts(self) -> list[list[str]]:
        """Texts of each request."""
        return [body["input"] for _, _, body in self.requests]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: several tests disconnect the client."""


def letters(text: str) -> list[float]:
    """Return a vector that is easy to check: how often a, b and c occur in the text."""
    return [float(text.count(letter)) for letter in "abc"]


def count_letters(texts: Sequence[str]) -> list[list[float]]:
    return [letters(text) for text in texts]


def answer_normally(request: EmbeddingRequest) -> None:
    rows = [{"index": n, "embedding": letters(text)} for n, text in enumerate(request.body["input"])]
    request.send(json.dumps({"object": "list", "data": rows}).encode())


def answer_with(answer: Any) -> RequestHandler:
    """Answer every request with the given bytes; any other value is sent as JSON."""
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return lambda request: request.send(body)


def rows(*vectors: Any) -> dict[str, Any]:
    return {"data": [{"index": n, "embedding": vector} for n, vector in enumerate(vectors)]}


def limit_batch(most: int, status: int) -> RequestHandler:
    """Reject requests with more than the given number of texts."""
    return lambda request: (
        answer_normally(request) if len(request.body["input"]) <= most else request.send(b"", status)
    )


def answer_500(request: EmbeddingRequest) -> None:
    request.send(b"", 500)


def hang(request: EmbeddingRequest) -> None:
    """Send nothing until the test ends."""
    request.server.ended.wait(120)


def trickling_headers(sent: list[int]) -> RequestHandler:
    """Send headers slowly, one after the other, and record each."""

    def trickle(request: EmbeddingRequest) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for number in range(MAX_HEADERS):
            if request.server.ended.wait(0.2):
                break
            request.wfile.write(b"X-%d: y\r\n" % number)
            sent.append(number)

    return trickle


def close_connection_early(request: EmbeddingRequest) -> None:
    request.close_connection = True


def close_connection_mid_body(request: EmbeddingRequest) -> None:
    request.send(b'{"data": [{"embedding": [1', length=5_000)


def answer_with_ssh_banner(request: EmbeddingRequest) -> None:
    request.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")


@contextmanager
def run_server() -> Iterator[Server]:
    """Run a server in its own thread until the test ends."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()
