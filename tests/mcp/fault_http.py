"""Small MCP server over HTTP with one deliberate fault. Standard library only.

    python fault_http.py [--fault NAME] [--port N]

`/mcp` is Streamable HTTP with sessions, `/sse` the older transport. Its tool `echo` returns its `text`. The
fault occurs when `echo` is called with the text `now`, or at the moment its name says. Prints its port.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STREAM, PLAIN = "text/event-stream", "application/json"
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
ECHO = {"name": "echo", "description": "Gives back the text it is given.", "inputSchema": SCHEMA}
NOTICE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}


class FaultHttpServer(ThreadingHTTPServer):
    """The server. `calls` counts the tool calls it received."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, fault: str = "", port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.fault, self.calls, self.cancelled = fault, 0, 0
        self.flood_size = 50_000
        self.connections = 0
        self.has_closed_connection = threading.Event()
        self.cookie = ""
        """The cookie that was sent with the last call."""
        self.sessions: set[str] = set()
        self.streams: dict[str, queue.Queue[bytes | None]] = {}
        self.closing = threading.Event()
        self._clients: list[socket.socket] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def url(self, way: str = "http") -> str:
        return f"http://127.0.0.1:{self.port}/{'sse' if way == 'sse' else 'mcp'}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self._clients.append(request)
        self.connections += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.has_closed_connection.set()

    def close_connections(self) -> None:
        """Close all connections and accept no more, like a process that exits."""
        self.closing.set()
        self.shutdown()
        self.server_close()
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


@contextlib.contextmanager
def serve_in_thread(fault: str = "", port: int = 0) -> Iterator[FaultHttpServer]:
    """Run the server in a thread of this process."""
    server = FaultHttpServer(fault, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.close_connections()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultHttpServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class has that name
        """Log nothing."""

    def do_GET(self) -> None:
        if self.path.startswith("/sse"):
            self.open_stream()
        else:
            self.reply(405)

    def do_DELETE(self) -> None:
        self.server.sessions.discard(self.headers.get("mcp-session-id", ""))
        self.reply(200)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        always = getattr(self, f"always_{self.name}", None)
        if always is not None:
            always()
        elif self.path.startswith("/messages"):
            self.take(message)
        else:
            self.hear(message)

    @property
    def name(self) -> str:
        return self.server.fault.replace("-", "_")

    def hear(self, message: dict[str, Any]) -> None:
        """Handle a message sent by Streamable HTTP; the answer is sent in the HTTP response."""
        method, id_ = message.get("method"), message.get("id")
        if id_ is None:
            self.server.cancelled += method == "notifications/cancelled"
            self.reply(202)
        elif method == "initialize":
            session = secrets.token_hex(8)
            self.server.sessions.add(session)
            self.answer(id_, hello(), {"mcp-session-id": session})
        elif method == "server/discover":
            self.send(error(id_, -32601, "no such method"), status=404)
        elif self.headers.get("mcp-session-id") not in self.server.sessions:
            self.reply(404)
        elif method == "tools/call":
            self.call(id_, message["params"]["arguments"].get("text", ""))
        else:
            self.answer(id_, {"tools": [ECHO]} if method == "tools/list" else {})

    def call(self, id_: Any, said: str) -> None:
        self.server.calls += 1
        self.server.cookie = self.headers.get("cookie", "")
        wrong: Callable[[Any], None] | None = getattr(self, f"do_{self.name}", None)
        if said == "now" and wrong is not None:
            wrong(id_)
        else:
            self.answer(id_, text(said))

    def reply(
        self, status: int, kind: str = "", body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.begin(status, kind, len(body), headers)
        self.wfile.write(body)

    def begin(self, status: int, kind: str, size: int | None, headers: dict[str, str] | None = None) -> None:
        """Send the head of a response; without a size it ends when the connection is closed."""
        self.send_response(status)
        if kind:
            self.send_header("content-type", kind)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if size is None:
            self.send_header("connection", "close")
            self.close_connection = True
        else:
            self.send_header("content-length", str(size))
        self.end_headers()

    def send(self, message: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.reply(status, PLAIN, json.dumps(message).encode(), headers)

    def answer(self, id_: Any, result: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self.send(answered(id_, result), headers=headers)

    # Faults of every request.

    def always_not_found(self) -> None:
        self.reply(404, "text/html", b"<h1>Not Found</h1>")

    def always_broken(self) -> None:
        self.reply(500, "text/html", b"<h1>Oops</h1>")

    def always_login(self) -> None:
        self.reply(401, headers={"www-authenticate": "Bearer"})

    def always_elsewhere(self) -> None:
        self.reply(307, headers={"location": "http://elsewhere.invalid/mcp"})

    def always_silent(self) -> None:
        self.server.closing.wait()

    def always_html(self) -> None:
        self.reply(200, "text/html", b"<h1>Welcome</h1>")

    # Faults of one call, over Streamable HTTP.

    def do_status_500(self, id_: Any) -> None:
        self.reply(500, "text/plain", b"oops")

    def do_status_404(self, id_: Any) -> None:
        self.send(error(id_, -32601, "no such tool"), status=404)

    def do_status_202(self, id_: Any) -> None:
        self.reply(202)

    def do_hang_before_headers(self, id_: Any) -> None:
        self.server.closing.wait()

    def do_hang_in_body(self, id_: Any) -> None:
        self.begin(200, PLAIN, 1_000)
        self.wfile.write(b'{"jsonrpc": "2.0", ')
        self.server.closing.wait()

    def do_cut_before_headers(self, id_: Any) -> None:
        self.close_connection = True

    def do_cut_in_body(self, id_: Any) -> None:
        self.begin(200, PLAIN, 1_000)
        self.wfile.write(b'{"jsonrpc": "2.0", ')
        self.close_connection = True

    def do_wrong_content_type(self, id_: Any) -> None:
        self.reply(200, "text/html", b"<h1>Hello</h1>")

    def do_broken_json(self, id_: Any) -> None:
        self.reply(200, PLAIN, b'{"jsonrpc": "2.0", "id": %d, "result": {' % id_)

    def do_wrong_id(self, id_: Any) -> None:
        self.answer(id_ + 1_000, text("to nobody"))

    def do_wrong_shape(self, id_: Any) -> None:
        self.answer(id_, {"content": "not a list"})

    def do_packed(self, id_: Any) -> None:
        self.reply(200, PLAIN, b"\x1f\x8b" + b"\0" * 100, {"content-encoding": "gzip"})

    def do_huge_body(self, id_: Any) -> None:
        self.begin(200, PLAIN, None)
        self.wfile.write(b'{"jsonrpc": "2.0", "id": %d, "result": "' % id_)
        for _ in range(200):
            self.wfile.write(b"x" * 1_000_000)

    def do_huge_event(self, id_: Any) -> None:
        self.begin(200, STREAM, None)
        self.wfile.write(b'data: {"jsonrpc": "2.0", "id": %d, "result": "' % id_)
        for _ in range(200):
            self.wfile.write(b"x" * 1_000_000)

    def do_stream_ends_early(self, id_: Any) -> None:
        self.begin(200, STREAM, None)
        self.wfile.write(event(NOTICE))

    def do_stream_of_garbage(self, id_: Any) -> None:
        self.begin(200, STREAM, None)
        self.wfile.write(b"data: %%% \xff\xfe {\n\n")

    def do_flood(self, id_: Any) -> None:
        self.begin(200, STREAM, None)
        self.wfile.write(
            event(NOTICE) * self.server.flood_size + event(answered(id_, text("after the flood")))
        )

    def do_stream(self, id_: Any) -> None:
        self.begin(200, STREAM, None)
        self.wfile.write(b": hello\n\n" + event(NOTICE) + event(answered(id_, text("streamed"))))

    def do_short_stream(self, id_: Any) -> None:
        """Send an event stream that ends after the response, and keep the connection open."""
        message = event(answered(id_, text("streamed")))
        self.send_response(200)
        self.send_header("content-type", STREAM)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(message), message))
        self.wfile.write(b"0\r\n\r\n")

    def do_endless_stream(self, id_: Any) -> None:
        """Send an event stream with the response, and never end it."""
        self.begin(200, STREAM, None)
        self.wfile.write(event(answered(id_, text("streamed"))))
        self.server.closing.wait()

    def do_moved(self, id_: Any) -> None:
        if self.path == "/moved":
            self.answer(id_, text("moved"))
        else:
            self.reply(308, headers={"location": "/moved"})

    def do_large_result(self, id_: Any) -> None:
        self.answer(id_, text("x" * 300_000))

    def do_cookie(self, id_: Any) -> None:
        self.answer(id_, text("baked"), {"set-cookie": "route=7"})

    def do_close_afterwards(self, id_: Any) -> None:
        """Close the connection after the response without announcing it."""
        self.answer(id_, text("closed"))
        self.close_connection = True

    def do_session_forgotten(self, id_: Any) -> None:
        self.server.calls -= 1
        self.server.sessions.clear()
        self.server.fault = ""
        self.reply(404)

    # The older transport: responses arrive over a separate event stream.

    def open_stream(self) -> None:
        if always := getattr(self, f"always_{self.name}", None):
            always()
            return
        key, waiting = secrets.token_hex(4), queue.Queue[bytes | None]()
        self.server.streams[key] = waiting
        self.begin(200, STREAM, None)
        if self.server.fault == "no-endpoint":
            self.server.closing.wait()
        self.wfile.write(b"event: endpoint\ndata: /messages?session=%s\n\n" % key.encode())
        while not self.server.closing.is_set():
            with contextlib.suppress(queue.Empty):
                if (said := waiting.get(timeout=0.05)) is None:
                    return
                self.wfile.write(said)

    def take(self, message: dict[str, Any]) -> None:
        stream = self.server.streams[self.path.rpartition("=")[2]]
        method, id_ = message.get("method"), message.get("id")
        said = (message.get("params") or {}).get("arguments", {}).get("text", "")
        if method == "tools/call" and self.server.fault == "post-refused" and said == "now":
            self.reply(500)
            return
        self.reply(202)
        if method == "tools/call":
            self.server.calls += 1
            wrong: Callable[[Any], bytes | None] | None = getattr(self, f"say_{self.name}", None)
            stream.put(wrong(id_) if wrong and said == "now" else event(answered(id_, text(said))))
        elif id_ is not None:
            stream.put(event(reply_to(method, id_)))

    def say_stream_ends_early(self, id_: Any) -> None:
        return None

    def say_broken_json(self, id_: Any) -> bytes:
        return b'data: {"jsonrpc": "2.0", "id": %d, "result": {\n\n' % id_

    def say_wrong_id(self, id_: Any) -> bytes:
        return event(answered(id_ + 1_000, text("to nobody")))

    def say_huge_event(self, id_: Any) -> bytes:
        return event(answered(id_, text("x" * 20_000_000)))

    def say_flood(self, id_: Any) -> bytes:
        return event(NOTICE) * self.server.flood_size + event(answered(id_, text("after the flood")))


def hello() -> dict[str, Any]:
    return {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "fault-http", "version": "1"},
    }


def reply_to(method: Any, id_: Any) -> dict[str, Any]:
    if method == "server/discover":
        return error(id_, -32601, "no such method")
    results = {"initialize": hello(), "tools/list": {"tools": [ECHO]}}
    return answered(id_, results.get(method, {}))


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def answered(id_: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "result": result}


def error(id_: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": message}}


def event(message: dict[str, Any]) -> bytes:
    return b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n"


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--fault", default="")
    options.add_argument("--port", type=int, default=0)
    given = options.parse_args()
    server = FaultHttpServer(given.fault, given.port)
    print(server.port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
