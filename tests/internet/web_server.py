"""A web server on this machine whose pages are functions of the request."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field


@dataclass
class Page:
    """Answer to a request."""

    body: bytes = b""
    media_type: str = "text/html; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Request:
    """Request that the server received."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


Route = Page | Callable[[Request], Page]


@dataclass
class WebServer:
    """Address of the server, its pages by path, and the requests so far."""

    port: int
    pages: dict[str, Route] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def paths(self) -> list[str]:
        """Return the paths of all requests without queries."""
        return [request.path.partition("?")[0] for request in self.requests]

    def answer(self, request: Request) -> Page:
        self.requests.append(request)
        route = self.pages.get(request.path.partition("?")[0], Page(b"not here", status=404))
        return route if isinstance(route, Page) else route(request)


@contextlib.contextmanager
def run_web_server(host: str = "127.0.0.1") -> Iterator[WebServer]:
    """Run a server until the end of the block."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            lower = {name.lower(): value for name, value in self.headers.items()}
            page = server.answer(Request(self.command, self.path, lower, self.rfile.read(size)))
            with contextlib.suppress(ConnectionError):  # the client has read enough
                self.send_response(page.status)
                self.send_header("Content-Type", page.media_type)
                self.send_header("Content-Length", str(len(page.body)))
                for name, value in page.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(page.body)

        # The names that the base class calls.
        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    listener = http.server.ThreadingHTTPServer((host, 0), Handler)
    listener.daemon_threads = True
    server = WebServer(listener.server_address[1])
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        listener.shutdown()
        thread.join()
        listener.server_close()
