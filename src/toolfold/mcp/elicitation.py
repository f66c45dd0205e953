"""Answer elicitation and sampling requests of MCP servers: by policy, or by asking a person.

Fails closed: if no person can be asked, the capability is not declared; a timeout, an invalid reply, or a
request that cannot be displayed counts as refusal. A server has one request at a time before the person, and
few may wait. Requests and replies are never logged. Knows no connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolfold.config.servers_settings import McpServerSettings
from toolfold.core.errors import shorten
from toolfold.core.loops import MAX_CHECK_THREADS, CallTimeout, EventLoops
from toolfold.core.types import freeze
from toolfold.mcp.elicitation_requests import (
    ElicitationReply,
    ElicitationRequest,
    SamplingRequest,
    SamplingResult,
    parse_form,
    parse_url_request,
    validate_values,
)

if TYPE_CHECKING:
    import mcp_types
    from mcp.client.session import ElicitationFnT, SamplingFnT

log = logging.getLogger(__name__)

__all__ = ["InteractionCallbacks", "PromptHandler"]

Elicit = Callable[[ElicitationRequest], Any]
"""Asks a person. An ElicitationReply, the values of a form, or True for yes are accepted; all else is no."""
Sampler = Callable[[SamplingRequest], Any]
"""Asks the model. Returns a SamplingResult or a text."""

ANSWER_TIMEOUT_S = 300.0
MAX_QUEUED_REQUESTS = 4
MAX_ATTEMPTS = 3
MAX_SAMPLING_TOKENS = 8_192
MAX_SAMPLING_CHARS = 400_000
_INVALID_PARAMS = -32602
_INTERNAL_ERROR = -32603
_REFUSED_BY_PERSON = -1
_DECLINE, _CANCEL = ElicitationReply("decline"), ElicitationReply("cancel")


@dataclass(frozen=True, slots=True, kw_only=True)
class InteractionCallbacks:
    """Callbacks that ask a person or the model on behalf of a server; each of them may be None."""

    elicit: Elicit | None = None
    sampler: Sampler | None = None
    loops: EventLoops = dataclasses.field(default_factory=EventLoops)
    timeout_seconds: float = ANSWER_TIMEOUT_S

    def create_prompt_handler(self, server: str, settings: McpServerSettings) -> PromptHandler:
        """Return the object that answers elicitation and sampling requests of one server."""
        return PromptHandler(self, server, settings)


class PromptHandler:
    """Answers the elicitation and sampling requests of one server.

    `elicitation_callback` and `sampling_callback` are None if the capability is not declared to the server.
    """

    def __init__(self, callbacks: InteractionCallbacks, server: str, settings: McpServerSettings) -> None:
        self._callbacks, self._server, self._settings = callbacks, server, settings
        self._lock = asyncio.Lock()
        self._pending_count = 0

    @property
    def is_waiting(self) -> bool:
        """Return True while a reply from a person or the model is awaited; timeouts are then suspended."""
        return self._pending_count > 0

    @property
    def elicitation_callback(self) -> ElicitationFnT | None:
        """Return the SDK's callback for elicitation; None if elicitation is not declared to the server."""
        return (
            self._handle_elicitation
            if self._callbacks.elicit or self._settings.elicitation == "decline"
            else None
        )

    @property
    def sampling_callback(self) -> SamplingFnT | None:
        """Return the SDK's callback for sampling; None if sampling is not allowed or not possible."""
        allowed = {"allow": True, "ask": self._callbacks.elicit is not None, "deny": False}
        return self._handle_sampling if self._callbacks.sampler and allowed[self._settings.sampling] else None

    async def _handle_elicitation(
        self, context: Any, params: mcp_types.ElicitRequestParams
    ) -> mcp_types.ElicitResult | mcp_types.ErrorData:
        import mcp_types

        del context
        if self._settings.elicitation == "decline":
            return mcp_types.ElicitResult(action="decline")
        try:
            request = self._parse_elicitation(params)
        except ValueError as error:
            log.warning("refused an elicitation request of MCP server %r: %s", self._server, error)
            return mcp_types.ErrorData(
                code=_INVALID_PARAMS, message=f"The request was not shown to the user: {error}"
            )
        reply = await self._ask_user(request)
        log.info(
            "answer to an elicitation request of MCP server %r (%s): %s",
            self._server,
            request.mode,
            reply.action,
        )
        if reply.action == "accept" and request.mode == "form":
            return mcp_types.ElicitResult(action="accept", content=dict(reply.values))
        return mcp_types.ElicitResult(action=reply.action)

    async def _handle_sampling(
        self, context: Any, params: mcp_types.CreateMessageRequestParams
    ) -> mcp_types.CreateMessageResult | mcp_types.ErrorData:
        import mcp_types

        del context
        try:
            request = _parse_sampling_request(self._server, params)
        except ValueError as error:
            return mcp_types.ErrorData(code=_INVALID_PARAMS, message=str(error))
        if (
            self._settings.sampling != "allow"
            and (await self._ask_user(request.to_approval_request())).action != "accept"
        ):
            return mcp_types.ErrorData(
                code=_REFUSED_BY_PERSON, message="The user refused the use of the model."
            )
        result = await self._call_sampler(request)
        log.info(
            "sampling request of MCP server %r: %s", self._server, "answered" if result else "no response"
        )
        if result is None:
            return mcp_types.ErrorData(code=_INTERNAL_ERROR, message="The model gave no response.")
        return mcp_types.CreateMessageResult(
            role="assistant",
            content=mcp_types.TextContent(type="text", text=result.text),
            model=result.model,
            stop_reason=result.stop_reason,
        )

    def _parse_elicitation(self, params: mcp_types.ElicitRequestParams) -> ElicitationRequest:
        if params.mode == "url":
            return parse_url_request(self._server, params.message, params.url)
        return parse_form(self._server, params.message, params.requested_schema)

    async def _ask_user(self, request: ElicitationRequest) -> ElicitationReply:
        """Ask the person, and ask again after an invalid reply; the timeout covers all attempts."""
        try:
            async with self._queue_slot(), asyncio.timeout(self._callbacks.timeout_seconds):
                for _ in range(MAX_ATTEMPTS):
                    reply = await self._call_elicit(request)
                    if reply.action != "accept" or request.mode != "form":
                        return reply
                    try:
                        return ElicitationReply("accept", validate_values(request, reply.values))
                    except ValueError as error:
                        request = _repeat_with_problem(request, str(error))
        except TimeoutError:
            log.warning("nobody answered the request of MCP server %r in time", self._server)
        except _QueueFull:
            log.warning("MCP server %r has too many open requests; its new request is declined", self._server)
            return _DECLINE
        return _CANCEL

    async def _call_elicit(self, request: ElicitationRequest) -> ElicitationReply:
        if self._callbacks.elicit is None:
            return _CANCEL
        try:
            reply = await self._callbacks.loops.call_with_timeout(
                self._callbacks.timeout_seconds,
                self._callbacks.elicit,
                request,
                max_threads=MAX_CHECK_THREADS,
            )
        except CallTimeout:
            raise TimeoutError from None
        except Exception as error:
            log.error(
                "the elicit callback failed for a request of MCP server %r: %s",
                self._server,
                type(error).__name__,
            )
            return _CANCEL
        finally:
            request.withdrawn.set()
        return _parse_reply(reply)

    async def _call_sampler(self, request: SamplingRequest) -> SamplingResult | None:
        if self._callbacks.sampler is None:
            return None
        try:
            async with self._queue_slot():
                reply = await self._callbacks.loops.call_with_timeout(
                    self._callbacks.timeout_seconds,
                    self._callbacks.sampler,
                    request,
                    max_threads=MAX_CHECK_THREADS,
                )
        except (CallTimeout, _QueueFull):
            return None
        except Exception as error:
            log.error(
                "the sampler failed for a request of MCP server %r: %s", self._server, type(error).__name__
            )
            return None
        if isinstance(reply, str):
            return SamplingResult(reply)
        return reply if isinstance(reply, SamplingResult) else None

    @contextlib.asynccontextmanager
    async def _queue_slot(self) -> AsyncIterator[None]:
        """Context manager that waits until the server's earlier requests have been answered.

        Raises _QueueFull if too many wait already.
        """
        if self._pending_count >= MAX_QUEUED_REQUESTS:
            raise _QueueFull
        self._pending_count += 1
        try:
            async with self._lock:
                yield
        finally:
            self._pending_count -= 1


class _QueueFull(Exception):
    """Raised if too many of the server's requests are already waiting for a person's reply."""


def _repeat_with_problem(request: ElicitationRequest, problem: str) -> ElicitationRequest:
    return dataclasses.replace(request, problem=problem, withdrawn=threading.Event())


def _parse_reply(reply: object) -> ElicitationReply:
    if isinstance(reply, ElicitationReply):
        return reply if reply.action in ("accept", "decline") else _CANCEL
    if reply is True:
        return ElicitationReply("accept")
    if isinstance(reply, Mapping):
        return ElicitationReply("accept", reply)
    return _DECLINE if reply is False else _CANCEL


def _parse_sampling_request(server: str, params: mcp_types.CreateMessageRequestParams) -> SamplingRequest:
    """Check and convert a server's sampling request. Raises ValueError if it is not supported."""
    if params.tools or params.tool_choice:
        raise ValueError("Sampling with tools is not supported.")
    if params.max_tokens < 1:
        raise ValueError("maxTokens must be at least 1.")
    messages = [_message_to_json(each) for each in params.messages]
    if sum(len(str(each)) for each in messages) + len(params.system_prompt or "") > MAX_SAMPLING_CHARS:
        raise ValueError(f"The request exceeds {MAX_SAMPLING_CHARS:,} characters.")
    hints = (params.model_preferences and params.model_preferences.hints) or []
    return SamplingRequest(
        server=server,
        messages=tuple(freeze(each) for each in messages),
        system=params.system_prompt or "",
        max_tokens=min(params.max_tokens, MAX_SAMPLING_TOKENS),
        temperature=params.temperature,
        stop=tuple(params.stop_sequences or ()),
        hints=tuple(shorten(hint.name, 100) for hint in hints[:8] if hint.name),
    )


def _message_to_json(message: mcp_types.SamplingMessage) -> dict[str, Any]:
    blocks = [
        block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in message.content_as_list
    ]
    return {"role": message.role, "content": blocks}
