"""Pass messages between an MCP server and a gateway client during a tool call.

The gateway creates a relay for each call; the server's progress, log messages and requests are sent through
it. A relay belongs to the event loop that it was created in and may be used from any other. Knows neither
server nor transport.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toolfold.core.invisible_characters import remove_invisible
from toolfold.core.types import CallOrigin

if TYPE_CHECKING:
    from toolfold.mcp.elicitation import PromptHandler
    from toolfold.mcp.supervisor import ServerSupervisor


MAX_PENDING_REQUESTS = 8
"""Requests of one server that may wait for clients at the same time."""
MAX_PENDING_NOTIFICATIONS = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallRelay(CallOrigin):
    """Channel from an MCP server back to the gateway client that made a tool call."""

    client: str
    progress: Callable[[float, float | None, str | None], Coroutine[Any, Any, None]] | None = None
    log: Callable[[str, Any], Coroutine[Any, Any, None]] | None = None
    """Function that is called with the server's name and a log message."""
    elicit: Callable[[Any], Coroutine[Any, Any, Any]] | None = None
    sample: Callable[[Any], Coroutine[Any, Any, Any]] | None = None
    capabilities: dict[str, Any] | None = None
    """Capabilities that the client declared."""
    handles_input_requests: bool = False
    """True if the client itself answers input requests from servers."""
    input_responses: Any = None
    """The client's responses to the input requests of the previous attempt."""
    request_state: str | None = None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    pending: set[Any] = field(default_factory=set)
    """Notifications that are being sent to the client."""

    async def ask(self, send_request: Callable[[Any], Coroutine[Any, Any, Any]], params: Any) -> Any:
        """Send a server's request to the client, in the client's event loop, and return the response."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(send_request(params), self.loop))

    def send(self, work: Coroutine[Any, Any, None]) -> None:
        """Send a notification to the client without waiting; ignore errors if the client has disconnected.

        Dropped while too many notifications are pending.
        """
        if len(self.pending) >= MAX_PENDING_NOTIFICATIONS:
            work.close()
            return
        with contextlib.suppress(RuntimeError):
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
            self.pending.add(future)
            future.add_done_callback(self.pending.discard)
            future.add_done_callback(lambda done: done.cancelled() or done.exception())


def only_client_relay(relays: list[CallRelay]) -> CallRelay | None:
    """Return the relay of the only client with a call in progress; None if no client or several have one."""
    clients = {each.client for each in relays}
    return relays[-1] if len(clients) == 1 else None


def name_requesting_server(params: Any, server: str) -> Any:
    """Add the server's name to its message to the user, so that it cannot impersonate other senders."""
    return params.model_copy(
        update={"message": f"The server {server!r} asks: {remove_invisible(params.message)}"}
    )


class ServerRequestRouter:
    """Routes requests of an MCP server to the client that called it, or to the local prompt handler."""

    def __init__(self, server: ServerSupervisor, prompt_handler: PromptHandler) -> None:
        self._server, self._prompt_handler = server, prompt_handler
        self._pending_count = 0

    @property
    def is_asking(self) -> bool:
        return self._pending_count > 0

    async def elicit(self, context: Any, params: Any) -> Any:
        """Answer an elicitation request of the server."""
        from mcp_types import ElicitResult

        relay = only_client_relay(self._server.call_relays)
        if self._server.settings.elicitation == "ask" and relay is not None and relay.elicit is not None:
            if self._pending_count >= MAX_PENDING_REQUESTS:  # a person cannot answer a flood
                return ElicitResult(action="decline")
            return await self._ask_client(
                relay, relay.elicit, name_requesting_server(params, self._server.name)
            )
        if (callback := self._prompt_handler.elicitation_callback) is not None:
            return await callback(context, params)
        return ElicitResult(action="decline")

    async def sample(self, context: Any, params: Any) -> Any:
        """Answer a sampling request of the server."""
        relay = (
            only_client_relay(self._server.call_relays)
            if self._pending_count < MAX_PENDING_REQUESTS
            else None
        )
        if self._server.settings.sampling != "deny" and relay is not None and relay.sample is not None:
            return await self._ask_client(relay, relay.sample, params)
        if (callback := self._prompt_handler.sampling_callback) is not None:
            return await callback(context, params)
        from mcp_types import INVALID_REQUEST, ErrorData

        return ErrorData(code=INVALID_REQUEST, message="Sampling is not available.")

    async def log(self, params: Any) -> None:
        """Send the server's log message to the client that is calling it.

        If several clients are calling, it is dropped, because it may belong to any of them.
        """
        relay = only_client_relay(self._server.call_relays)
        if relay is not None and relay.log is not None:
            relay.send(relay.log(self._server.name, params))

    async def _ask_client(
        self, relay: CallRelay, send_request: Callable[[Any], Coroutine[Any, Any, Any]], params: Any
    ) -> Any:
        self._pending_count += 1
        try:
            return await relay.ask(send_request, params)
        finally:
            self._pending_count -= 1


class EventBroadcaster:
    """Delivers events to every subscriber. Events may be sent from any thread."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[str, str, Any], None]] = []

    def subscribe(self, listener: Callable[[str, str, Any], None]) -> None:
        self._listeners.append(listener)

    def broadcast(self, server: str, kind: str, detail: Any) -> None:
        for listener in tuple(self._listeners):
            listener(server, kind, detail)
