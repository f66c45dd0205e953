"""Answer list requests over HTTP with answers recorded in an earlier run, while the gateway is loading.

A thread accepts connections and answers the requests that the record covers, if a client without a token may
make them: the handshake, pings and lists, nothing else. Every other request, and every request that is not
written in the plainest form of HTTP/1.1, waits for the gateway: it gets all connections with what was
received on them, and handles the answered requests again (see `http_recorder`). Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolfold.gateway.http_requests import MAX_HEADER_BYTES, BadRequest, parse_head
from toolfold.gateway.listening import listen_on
from toolfold.gateway.listing_record import (
    Answers,
    HttpStart,
    ListingRecord,
    ListingRequest,
    parse_request,
)
from toolfold.gateway.request_origin import is_accepted_host, is_accepted_origin

MAX_BODY_BYTES = 100_000
"""Longer messages are not listing requests."""
MAX_CONNECTIONS = 64
"""Further connections wait until the gateway accepts them."""
MAX_ANSWERED = 500
_CHUNK_BYTES = 65_536
_HEADERS = frozenset(
    (
        *("host", "origin", "accept", "accept-encoding", "accept-language", "cache-control", "connection"),
        *("content-length", "content-type", "sec-fetch-mode", "user-agent"),
        *("mcp-method", "mcp-protocol-version", "mcp-session-id"),
    )
)
"""A request with any other header waits for the gateway."""
_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"

Headers = dict[str, str]


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """Request that was answered with a recorded answer, and that the gateway must still process."""

    headers: Headers
    body: bytes
    method: str
    result: str
    """The result that was sent, as JSON; empty for a notification."""
    session_id: str
    """The MCP session that the request opened or belongs to; empty in the newest revision."""
    peer: tuple[str, int]


@dataclass(frozen=True, slots=True)
class OpenConnection:
    """A client's connection with its unanswered input and unsent output."""

    socket: socket.socket
    received: bytes
    unsent: bytes


@dataclass(frozen=True, slots=True)
class HttpHandover:
    """State passed from the early-answer thread to the gateway once the gateway has loaded."""

    connections: list[OpenConnection] = field(default_factory=list)
    answered: list[AnsweredRequest] = field(default_factory=list)


class EarlyHttpAnswers:
    """Thread that answers list requests over HTTP while the gateway loads; call `stop` once it has loaded."""

    def __init__(self, record: ListingRecord, start: HttpStart) -> None:
        """Listen on the address in the record. Raises OSError or UnicodeError."""
        self.start = start
        self.listening = listen_on(start.host, start.port)
        self._conversation = _EarlyHttpConversation(record, start)
        self._connections: dict[int, _EarlyConnection] = {}
        self._wake_read, self._wake_write = os.pipe()
        self.listening.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._poll.register(self.listening.fileno(), select.POLLIN)
        self._thread = threading.Thread(target=self._serve, name="toolfold-early-answers", daemon=True)
        self._thread.start()

    def stop(self) -> HttpHandover:
        """Stop the thread, and return the state of all connections for the gateway to continue."""
        os.write(self._wake_write, b"\0")
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)
        open_ = [each.hand_over() for each in self._connections.values()]
        return HttpHandover(open_, self._conversation.answered)

    def _serve(self) -> None:
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._wake_read:
                    return
                if descriptor == self.listening.fileno():
                    self._accept()
                else:
                    self._continue(descriptor)

    def _accept(self) -> None:
        try:
            accepted, peer = self.listening.accept()
        except (BlockingIOError, ConnectionError):
            return  # the client is gone
        except OSError:  # such as a lack of file descriptors
            self._poll.unregister(self.listening.fileno())
            return
        accepted.setblocking(False)
        self._connections[accepted.fileno()] = _EarlyConnection(accepted, (peer[0], peer[1]))
        self._poll.register(accepted.fileno(), select.POLLIN)
        if len(self._connections) >= MAX_CONNECTIONS:
            self._poll.unregister(self.listening.fileno())

    def _continue(self, descriptor: int) -> None:
        connection = self._connections[descriptor]
        try:
            events = connection.exchange(self._conversation)
        except OSError:
            self._connections.pop(descriptor).socket.close()
            self._poll.unregister(descriptor)
            return
        if events:
            self._poll.modify(descriptor, events)
        else:
            self._poll.unregister(descriptor)


class _EarlyConnection:
    """Connection of one client to a gateway that is still loading."""

    def __init__(self, accepted: socket.socket, peer: tuple[str, int]) -> None:
        self.socket, self._peer = accepted, peer
        self._received, self._unsent = bytearray(), bytearray()
        self._is_waiting = False
        """True if the next request must be answered by the gateway."""

    def hand_over(self) -> OpenConnection:
        return OpenConnection(self.socket, bytes(self._received), bytes(self._unsent))

    def exchange(self, conversation: _EarlyHttpConversation) -> int:
        """Send and receive without blocking; return the events to poll for, or 0 to wait for the gateway.

        Raises OSError if the client is gone.
        """
        if not self._unsent and not self._is_waiting:
            self._receive(conversation)
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent[:_CHUNK_BYTES])]
        if self._unsent:
            return select.POLLOUT
        return 0 if self._is_waiting else select.POLLIN

    def _receive(self, conversation: _EarlyHttpConversation) -> None:
        with contextlib.suppress(BlockingIOError):
            chunk = self.socket.recv(_CHUNK_BYTES)
            if not chunk:
                raise ConnectionResetError
            self._received += chunk
        while not self._is_waiting and (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[: end + 4])
            found = _read_head(head, conversation.start.path) if end <= MAX_HEADER_BYTES else None
            if found is None:
                self._is_waiting = True
                return
            headers, size = found
            if len(self._received) < end + 4 + size:
                return
            body = bytes(self._received[end + 4 : end + 4 + size])
            response = conversation.answer(headers, body, self._peer)
            if response is None:
                self._is_waiting = True
                return
            del self._received[: end + 4 + size]
            self._unsent += response
        self._is_waiting |= len(self._received) > MAX_HEADER_BYTES + MAX_BODY_BYTES


def _read_head(head: bytes, path: str) -> tuple[Headers, int] | None:
    """Return headers and body length of a plain POST request to `path`; None for any other request."""
    try:
        request = parse_head(head)
    except BadRequest:
        return None
    if (request.method, request.target, request.version) != ("POST", path.encode(), "1.1"):
        return None
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
    is_plain = all(value.isascii() and value.isprintable() for value in headers.values())
    if len(headers) < len(request.headers) or not is_plain or not headers.keys() <= _HEADERS:
        return None
    size = request.body_length
    has_length = "content-length" in headers and size is not None and size <= MAX_BODY_BYTES
    return (headers, size) if has_length and size is not None else None


@dataclass(slots=True)
class _EarlySession:
    """MCP session that was opened with a recorded answer to `initialize`."""

    results: Answers
    version: str
    is_initialized: bool = False


class _EarlyHttpConversation:
    """Conversation with HTTP clients while the gateway loads: sessions, and answers from an earlier run."""

    def __init__(self, record: ListingRecord, start: HttpStart) -> None:
        self._record, self.start = record, start
        self._sessions: dict[str, _EarlySession] = {}
        self.answered: list[AnsweredRequest] = []

    def answer(self, headers: Headers, body: bytes, peer: tuple[str, int]) -> bytes | None:
        """Return the HTTP response to a request; None if the gateway must answer it."""
        if not self._is_admitted(headers) or len(self.answered) >= MAX_ANSWERED:
            return None
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            return None
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return None
        session_id = headers.get("mcp-session-id", "")
        if message.get("method") == "notifications/initialized" and "id" not in message:
            return self._finish_handshake(headers, body, session_id, peer)
        request = parse_request(message.get("method"), message.get("id"), message.get("params"))
        if request is None:
            return None
        result, session_id = self._find_result(request, message.get("params") or {}, headers)
        if result is None:
            return None
        self.answered.append(AnsweredRequest(headers, body, request.method, result, session_id, peer))
        content = f'{{"jsonrpc":"2.0","id":{json.dumps(request.id)},"result":{result}}}'.encode()
        return _format_response("200 OK", content, session_id)

    def _is_admitted(self, headers: Headers) -> bool:
        """Return True if the gateway would accept this request without a token."""
        start, origin = self.start, headers.get("origin")
        if start.token_file and os.path.lexists(start.token_file):
            return False
        accepted = [each.partition(";")[0].strip() for each in headers.get("accept", "").split(",")]
        return (
            is_accepted_host(headers.get("host", ""), start.hosts)
            and (origin is None or is_accepted_origin(origin, start.origins))
            and headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
            and {"application/json", "text/event-stream"} <= set(accepted)
            and headers.get("connection", "keep-alive").lower() == "keep-alive"
        )

    def _finish_handshake(
        self, headers: Headers, body: bytes, session_id: str, peer: tuple[str, int]
    ) -> bytes | None:
        session = self._sessions.get(session_id)
        if session is None or headers.get("mcp-protocol-version", session.version) != session.version:
            return None
        session.is_initialized = True
        method = "notifications/initialized"
        self.answered.append(AnsweredRequest(headers, body, method, "", session_id, peer))
        return _format_response("202 Accepted", b"", session_id)

    def _find_result(
        self, request: ListingRequest, params: Mapping[str, Any], headers: Headers
    ) -> tuple[str | None, str]:
        """Return the recorded result for a request and its MCP session; None if there is none."""
        version, session_id = headers.get("mcp-protocol-version"), headers.get("mcp-session-id", "")
        if request.method == "initialize":
            is_first = not session_id and "mcp-method" not in headers
            return self._open_session(request, version) if is_first else (None, "")
        if request.client:  # the newest revision has no handshake
            is_consistent = version == params["_meta"][_VERSION_KEY] and not session_id
            if not is_consistent or headers.get("mcp-method") != request.method:
                return None, ""
            return self._record.clients.get(request.client, {}).get(request.method), ""
        session = self._sessions.get(session_id)
        if session is None or (version or session.version) != session.version or "mcp-method" in headers:
            return None, ""
        if request.method == "ping":
            return "{}", session_id
        return (session.results.get(request.method) if session.is_initialized else None), session_id

    def _open_session(self, request: ListingRequest, version: str | None) -> tuple[str | None, str]:
        """Open an MCP session with the recorded answer to `initialize`; (None, "") if the version differs."""
        results = self._record.clients.get(request.client, {})
        result = results.get("initialize", "{}")
        negotiated = json.loads(result).get("protocolVersion")
        if not isinstance(negotiated, str) or (version or negotiated) != negotiated:
            return None, ""
        session_id = os.urandom(16).hex()
        self._sessions[session_id] = _EarlySession(results, negotiated)
        return result, session_id


def _format_response(status: str, content: bytes, session_id: str) -> bytes:
    kind = "content-type: application/json\r\n" if content else ""
    session = f"mcp-session-id: {session_id}\r\n" if session_id else ""
    head = f"HTTP/1.1 {status}\r\n{kind}{session}content-length: {len(content)}\r\n\r\n"
    return head.encode() + content
