"""HTTP/1.1 connections of clients, with limits on the resources that a connection uses.

The application gets a request as soon as its headers are complete, the rest is parsed in slices between which
other connections are served, a body of many tiny chunks is refused, and a request that gets its response
before it was read completely ends the connection. uvicorn's server starts and stops the connections.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.parse
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from toolfold.serving.gateway.http_requests import BadRequest, RequestHead, RequestReader
from toolfold.serving.gateway.http_responses import RequestCycle

log = logging.getLogger(__name__)

SLICE_BYTES = 16_384
"""Bytes that are parsed before other connections get their turn."""
BODY_SLICE_BYTES = 262_144
"""The same inside of a body of known length, which costs little to parse."""
LINGER_TIMEOUT_S = 2.0
"""Time for which a refused client may go on sending, so that it can read the response."""
MAX_LINGER_BYTES = 16_000_000

_MAX_SMALL_BODY_BYTES = 4_096  # parsed at once, without another turn of the loop


class LimitedProtocol(asyncio.Protocol):
    """HTTP connection of one client, with resource limits."""

    transport: asyncio.Transport
    flow: FlowControl

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self.loop = _loop or asyncio.get_running_loop()
        self.connections = cast("set[Any]", server_state.connections)
        self.cycle: RequestCycle | None = None
        """The last request whose headers were complete."""
        self._config, self._server_state, self._app_state = config, server_state, app_state
        self._address: dict[str, Any] = {}
        self._reader = RequestReader()
        self._next_slice: asyncio.Handle | None = None
        self._keep_alive_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._discarded: int | None = None
        """Number of bytes received since the connection was closed here; None if it is open."""
        self._is_refused = False
        self._head = b""
        """Head of a response that was not sent yet; it is sent in the next turn of the loop at the latest."""
        self._sending_head: asyncio.Handle | None = None
        self._received_before = self._unsent_before = b""

    def take_over(self, received: bytes, unsent: bytes) -> None:
        """Set the unprocessed input and the unsent output of a connection that was opened elsewhere.

        Once it is connected, the event loop may deliver what follows at any time.
        """
        self._received_before, self._unsent_before = received, unsent

    # Events of the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # of a TCP connection
        self.flow = FlowControl(self.transport)
        scheme = "https" if is_ssl(self.transport) else "http"
        server, client = get_local_addr(self.transport), get_remote_addr(self.transport)
        self._address = {"scheme": scheme, "server": server, "client": client}
        self.connections.add(self)
        if self._unsent_before:
            self.transport.write(self._unsent_before)
        if self._received_before:
            # Later: the event loop starts to read after this method and would ignore a pause until then.
            self._reader.buffer += self._received_before
            self._next_slice = self.loop.call_soon(self._parse_slice)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of asyncio
        self.connections.discard(self)
        for handle in (self._linger_timer, self._next_slice, self._keep_alive_timer, self._sending_head):
            if handle is not None:
                handle.cancel()
        if self.cycle is not None:
            self.cycle.disconnected |= not self.cycle.response_complete
            self.cycle.message_event.set()
        self.flow.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._discarded is not None:
            self._discard_bytes(len(data))
            return
        self._stop_keep_alive_timer()
        self._reader.buffer += data
        if self._next_slice is None:
            self._parse_slice()

    def pause_writing(self) -> None:
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self.flow.resume_writing()

    def shutdown(self) -> None:
        """Close the connection after the current response, because the server is stopping."""
        if self.cycle is None or self.cycle.response_complete:
            self.close()
        else:
            self.cycle.keep_alive = False

    # Requests

    @property
    def has_unread_data(self) -> bool:
        """Return True if the client has sent data that was not parsed yet."""
        return bool(self._reader.buffer)

    def on_parsed(self) -> None:
        """Hook called after a part of the received data was parsed."""

    def on_refused(self, problem: str) -> None:
        """Hook called before the response to a request that is not valid HTTP."""
        log.warning("an HTTP request was refused: %s", problem)

    def _parse_slice(self) -> None:
        self._next_slice = None
        if self.is_closing:
            return
        try:
            can_continue = self._parse_request()
        except BadRequest as problem:
            self._refuse_request(str(problem))
            return
        if can_continue:
            self._schedule_next_slice()
        elif self._is_full:
            self.flow.pause_reading()
        else:
            self.flow.resume_reading()
        self.on_parsed()

    def _parse_request(self) -> bool:
        """Parse the next part of the received data; return True if more can be parsed now."""
        reader = self._reader
        if reader.head is None:
            head = reader.read_head()
            if head is None:
                return False
            self._start_request(head)
            if reader.is_in_body and len(reader.buffer) > _MAX_SMALL_BODY_BYTES:
                return True  # after the application got the headers
        if reader.is_in_body:
            return self._parse_body()
        if self.cycle is not None and not self.cycle.keep_alive:
            reader.buffer.clear()  # nothing may follow the last request
        return False

    def _parse_body(self) -> bool:
        reader, cycle = self._reader, self.cycle
        assert reader.head is not None  # noqa: S101 - in its body
        assert cycle is not None  # noqa: S101 - started with the headers
        size = SLICE_BYTES if reader.head.body_length is None else BODY_SLICE_BYTES
        content, can_continue = reader.read_body(size)
        cycle.body += content
        if reader.is_complete:
            cycle.more_body = False
        if content or reader.is_complete:
            cycle.message_event.set()
        return can_continue

    def _start_request(self, head: RequestHead) -> None:
        self._stop_keep_alive_timer()
        self.cycle = cycle = RequestCycle(self, head, self._server_state.default_headers)
        if self._reader.is_complete:
            cycle.more_body = False
            cycle.message_event.set()
        task = self.loop.create_task(cycle.run(self._config.loaded_app, self._make_scope(head)))
        self._server_state.tasks.add(task)
        task.add_done_callback(self._server_state.tasks.discard)

    def _make_scope(self, head: RequestHead) -> dict[str, Any]:
        raw_path, _, query = head.target.partition(b"?")
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.3"},
            "http_version": head.version,
            "method": head.method,
            "root_path": "",
            "path": urllib.parse.unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": head.headers,
            "state": self._app_state.copy(),
            **self._address,
        }

    def _schedule_next_slice(self) -> None:
        """Parse the next part of the received data after other connections have been served."""
        self.flow.pause_reading()
        self._next_slice = self.loop.call_soon(self._parse_slice)

    @property
    def _is_full(self) -> bool:
        """Return True if the application must consume received data before more is read."""
        has_next_request = self._reader.is_complete and bool(self._reader.buffer)
        return has_next_request or (self.cycle is not None and len(self.cycle.body) > HIGH_WATER_LIMIT)

    def _refuse_request(self, problem: str) -> None:
        self.on_refused(problem)
        cycle, self._is_refused = self.cycle, True
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()
            return
        head = "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
        self.send(f"{head}content-length: {len(problem)}\r\nconnection: close\r\n\r\n{problem}".encode())
        self.close()
        if cycle is not None and not cycle.response_complete:  # the reader of the body gets a disconnect
            cycle.disconnected = True
            cycle.message_event.set()

    # Responses

    @property
    def is_closing(self) -> bool:
        """Return True if the connection was closed by the server or the client."""
        return self._discarded is not None or self.transport.is_closing()

    def send_head(self, head: bytes) -> None:
        self._head = head
        self._sending_head = self.loop.call_soon(self._flush_head)

    def send(self, data: bytes) -> None:
        if self._sending_head is not None:
            self._sending_head.cancel()
            data, self._head, self._sending_head = self._head + data, b"", None
        if not self.is_closing:
            self.transport.write(data)

    async def drain(self) -> None:
        if self.flow.write_paused:
            await self.flow.drain()

    def resume_reading(self) -> None:
        if self._next_slice is None and not (self._reader.is_complete and self._reader.buffer):
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        self._server_state.total_requests += 1
        if self.is_closing:
            return
        keeps_alive = self.cycle is not None and self.cycle.keep_alive
        if not keeps_alive or not self._reader.is_complete:  # the rest of the body is not needed
            self.close()
            return
        self._reader.start_next()
        self._stop_keep_alive_timer()
        self._keep_alive_timer = self.loop.call_later(self._config.timeout_keep_alive, self.close)
        if self._reader.buffer:  # the client has sent another request already
            self._schedule_next_slice()
        else:
            self.flow.resume_reading()

    def close(self) -> None:
        """Close the connection after sending buffered data; if the client is still sending, wait briefly."""
        self._flush_head()
        if self.is_closing or not (self._reader.is_in_body or self._is_refused):
            self.transport.close()
            return
        self._discarded = 0
        self._reader.buffer.clear()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._linger_timer = self.loop.call_later(LINGER_TIMEOUT_S, self.transport.abort)

    def _flush_head(self) -> None:
        if self._sending_head is not None:
            self.send(b"")

    def _discard_bytes(self, size: int) -> None:
        self._discarded = (self._discarded or 0) + size
        if self._discarded > MAX_LINGER_BYTES:
            self.transport.abort()

    def _stop_keep_alive_timer(self) -> None:
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()
            self._keep_alive_timer = None
