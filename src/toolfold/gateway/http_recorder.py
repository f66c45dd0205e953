"""Record answers to `tools/list` and similar requests, for clients that connect while a gateway loads.

Only answers to clients without a token are recorded, and only while clients need none. The requests that were
answered from the record of an earlier run are handled again in their order: sessions are opened under the ids
that their clients already have, and clients are notified if a list differs from the one that they got.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolfold.gateway.early_http import (
    MAX_BODY_BYTES,
    AnsweredRequest,
    EarlyHttpAnswers,
    HttpHandover,
    OpenConnection,
)
from toolfold.gateway.http_connections import make_connection
from toolfold.gateway.http_sessions import SESSION_SCOPE_KEY, Scope, Send
from toolfold.gateway.listing_record import RECORDED, HttpStart, ListingRequest, parse_request
from toolfold.gateway.listing_recorder import AnswerRecorder, format_result
from toolfold.gateway.request_bodies import Receive, replay_body
from toolfold.gateway.server import CLIENT_SCOPE_KEY, Gateway
from toolfold.gateway.tokens import ANONYMOUS

if TYPE_CHECKING:
    import uvicorn

log = logging.getLogger(__name__)

MAX_SESSIONS = 1_000
REPLAY_TIMEOUT_S = 10.0
"""Time in which the gateway must open a session again that an earlier answer has opened."""
_METHOD_NAMES = tuple(f'"{method}"'.encode() for method in RECORDED)

App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def _continue_connection(server: uvicorn.Server, opened: OpenConnection) -> None:
    connection = make_connection(server)
    connection.take_over(opened.received, opened.unsent)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, opened.socket)


class HttpListings:
    """Recorded answers to list requests of one HTTP gateway, with methods that load and update them."""

    def __init__(
        self,
        file: Path | None,
        http: HttpStart,
        early: EarlyHttpAnswers | None,
        needs_token: Callable[[], bool],
    ) -> None:
        self._file, self._http, self._early, self._needs_token = file, http, early, needs_token
        self._recorder: AnswerRecorder | None = None
        self._clients: dict[str, str] = {}
        """MCP session → digest of what its client declared."""
        self._handover = HttpHandover()
        self._repeating: set[asyncio.Task[None]] = set()

    def observe(self, app: App, gateway: Gateway) -> App:
        """Wrap the gateway's app so that its answers to list requests are recorded."""
        self._recorder = AnswerRecorder(self._file, gateway, self._http)

        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["method"] != "POST" or scope[CLIENT_SCOPE_KEY].name != ANONYMOUS:
                await app(scope, receive, send)
                return
            body = (await receive())["body"]
            request, response = _parse_body(body), _ResponseCopy(send)
            receive = replay_body(body, receive)
            if request is None or request.method not in RECORDED:
                await app(scope, receive, send)
                return
            await app(scope, receive, response.send)
            if not self._needs_token():
                self._record(request, scope, response)

        return handle

    async def repeat_answered(self, app: App) -> None:
        """Let the gateway process the requests that were answered from the record while it was loading."""
        if self._early is None:
            return
        self._handover = await asyncio.to_thread(self._early.stop)
        for each in self._handover.answered:
            if each.method in ("initialize", "notifications/initialized"):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REPLAY_TIMEOUT_S):
                        await self._repeat(app, each)
            else:
                task = asyncio.create_task(self._repeat(app, each))
                self._repeating.add(task)
                task.add_done_callback(self._repeating.discard)

    async def connect(self, server: uvicorn.Server) -> None:
        """Hand over to the web server the connections that clients opened while the gateway was loading."""
        for each in self._handover.connections:
            with contextlib.suppress(OSError):  # the client is gone
                await _continue_connection(server, each)

    async def close(self) -> None:
        """Stop processing requests that were answered from the record, and save unsaved answers."""
        for task in self._repeating:
            task.cancel()
        if self._repeating:
            await asyncio.wait(self._repeating)
        if self._recorder is not None:
            await self._recorder.close()

    def _record(self, request: ListingRequest, scope: Scope, response: _ResponseCopy) -> None:
        assert self._recorder is not None  # noqa: S101 - set before the first request
        message = response.find_message(request.id)
        session = _find_header(scope["headers"], b"mcp-session-id")
        if request.method == "initialize":
            session = _find_header(response.headers, b"mcp-session-id")
            if session:  # without one, later requests without a session are not of this client
                self._clients[session] = request.client
            while len(self._clients) > MAX_SESSIONS:
                self._clients.pop(next(iter(self._clients)))
        client = request.client or self._clients.get(session, "")
        if client and message is not None:
            self._recorder.record_result(client, request.method, format_result(message))

    async def _repeat(self, app: App, answered: AnsweredRequest) -> None:
        """Let the gateway process a request to which the client already got a recorded answer."""
        response = _ResponseCopy(None)
        try:
            await app(_make_scope(answered, self._http), _receive_body(answered.body), response.send)
        except Exception:
            log.exception("a %s request that has a recorded answer could not be processed", answered.method)
        request = _parse_body(answered.body)
        if request is not None and self._recorder is not None:
            message = response.find_message(request.id)
            result = None if message is None else format_result(message)
            self._recorder.compare_answer(request.method, result, answered.result)


class _ResponseCopy:
    """Collects the parts of an HTTP response; also forwards them if `send` is given."""

    def __init__(self, send: Send | None) -> None:
        self._send = send
        self.headers: list[tuple[bytes, bytes]] = []
        self._body = bytearray()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.headers = list(message["headers"])
        else:
            self._body += message.get("body", b"")
        if self._send is not None:
            await self._send(message)

    def find_message(self, request_id: int | str) -> dict[str, Any] | None:
        """Return the JSON-RPC response with this id from a body of JSON or server-sent events."""
        if _find_header(self.headers, b"content-type").startswith("text/event-stream"):
            texts = [bytes(line[5:]) for line in self._body.splitlines() if line.startswith(b"data:")]
        else:
            texts = [bytes(self._body)]
        for text in texts:
            with contextlib.suppress(ValueError):
                message = json.loads(text)
                if isinstance(message, dict) and message.get("id") == request_id and "method" not in message:
                    return message
        return None


def _parse_body(body: bytes) -> ListingRequest | None:
    """Parse a list request; return None for any other message."""
    if len(body) > MAX_BODY_BYTES or not any(name in body for name in _METHOD_NAMES):
        return None
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    return parse_request(message.get("method"), message.get("id"), message.get("params"))


def _find_header(headers: list[tuple[bytes, bytes]], name: bytes) -> str:
    return next((value.decode("latin-1") for each, value in headers if each.lower() == name), "")


def _make_scope(answered: AnsweredRequest, http: HttpStart) -> Scope:
    headers = [(name.encode(), value.encode()) for name, value in answered.headers.items()]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": http.path,
        "raw_path": http.path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": answered.peer,
        "server": (http.host, http.port),
        SESSION_SCOPE_KEY: answered.session_id if answered.method == "initialize" else "",
    }


def _receive_body(body: bytes) -> Receive:
    async def never() -> MutableMapping[str, Any]:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    return replay_body(body, never)
