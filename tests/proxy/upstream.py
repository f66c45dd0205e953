"""A model provider for tests: an HTTP server that records raw requests and sends prepared responses."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from toolfold.core.types import Json

WAIT_S = 60.0


@dataclass
class Received:
    """One request as the provider received it."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Json:
        content: Json = json.loads(self.body)
        return content

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


@dataclass
class Prepared:
    """A response to send: its parts one by one, each after the gate before it was opened."""

    parts: Sequence[bytes] = (b"{}",)
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    chunked: bool = False
    is_cut: bool = False
    """Close the connection before the response is complete."""
    start: threading.Event | None = None
    """What the provider waits for before it responds at all."""
    gate: threading.Event | None = None
    """What the provider waits for after the first part."""
    is_dropped: bool = False
    """Close the connection without a response."""
    waits_for_close: bool = False
    """Wait after the last part until the other side closes the connection."""


Answer = Callable[[Received], Prepared]


class Upstream:
    """Answers requests with prepared responses, or with what a function returns."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.prepared: list[Prepared] = []
        self.answer: Answer | None = None
        self.was_closed = threading.Event()
        """Set when the other side closed a connection during a response."""
        self.closes_after_response = False
        """Close each connection after one response, without saying so in a header."""
        self.has_closed = threading.Event()
        """Set when the provider itself has closed a connection after a response."""
        self.connections = 0
        """Number of connections that were made."""
        self.open_connections = 0
        self.url = ""
        self._lock = threading.Lock()

    def count_connection(self, *, is_opened: bool) -> None:
        with self._lock:
            self.connections += is_opened
            self.open_connections += 1 if is_opened else -1

    def respond(self, handler: BaseHTTPRequestHandler, request: Received) -> None:
        response = self.prepared.pop(0) if self.prepared else self._make_response(request)
        if response.start is not None:
            response.start.wait(WAIT_S)
        if response.is_dropped:
            handler.close_connection = True
            return
        handler.send_response(response.status)
        for name, value in response.headers.items():
            handler.send_header(name, value)
        if response.chunked:
            handler.send_header("transfer-encoding", "chunked")
        else:
            handler.send_header("content-length", str(sum(map(len, response.parts))))
        handler.end_headers()
        try:
            self._send_parts(handler, response)
        except OSError:
            self.was_closed.set()
            handler.close_connection = True
        handler.close_connection |= self.closes_after_response

    def _make_response(self, request: Received) -> Prepared:
        return self.answer(request) if self.answer else Prepared()

    def _send_parts(self, handler: BaseHTTPRequestHandler, response: Prepared) -> None:
        for number, part in enumerate(response.parts):
            if number == 1 and response.gate is not None:
                response.gate.wait(WAIT_S)
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part) if response.chunked else part)
            handler.wfile.flush()
        if response.waits_for_close and _wait_for_close(handler.connection):
            self.was_closed.set()
        if response.is_cut or response.waits_for_close:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
        elif response.chunked:
            handler.wfile.write(b"0\r\n\r\n")


def _wait_for_close(connection: socket.socket) -> bool:
    readable, _, _ = select.select([connection], [], [], WAIT_S)
    try:
        return bool(readable) and connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


@contextlib.contextmanager
def serve_upstream(tls: ssl.SSLContext | None = None) -> Iterator[Upstream]:
    """Serve a provider on a free port of this machine, over TLS if a context with a certificate is given."""
    upstream = Upstream()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            upstream.count_connection(is_opened=True)

        def finish(self) -> None:
            upstream.count_connection(is_opened=False)
            super().finish()

        def handle_request(self) -> None:
            body = self._read_body()
            request = Received(self.command, self.path, list(self.headers.items()), body)
            upstream.received.append(request)
            upstream.respond(self, request)

        do_POST = do_GET = do_DELETE = handle_request  # noqa: N815 - names of the base class

        def _read_body(self) -> bytes:
            if self.headers.get("transfer-encoding") == "chunked":
                parts = []
                while size := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)
            return self.rfile.read(int(self.headers.get("content-length", 0)))

        def log_message(self, *_: Any) -> None:
            """Keep the test output quiet."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Keep the test output quiet: the other side may reset a connection."""

        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            if upstream.closes_after_response:
                upstream.has_closed.set()

    http = Server(("127.0.0.1", 0), Handler)
    port = http.server_address[1]
    upstream.url = f"http://127.0.0.1:{port}" if tls is None else f"https://localhost:{port}"
    if tls is not None:
        http.socket = tls.wrap_socket(http.socket, server_side=True)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield upstream
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
