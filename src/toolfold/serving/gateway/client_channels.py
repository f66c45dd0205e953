"""Send requests and notifications to a client while its own request is in progress.

Clients of the handshake revisions accept requests during a call. Clients of the newest revision get an
"input required" result instead and repeat their call with the answers. Knows the SDK's request context, and
nothing of client sessions and servers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from pydantic import BaseModel

from toolfold.core.types import Approver, Json
from toolfold.serving.gateway.client_approval import PausedCall, RequireUser, elicitation_approver

if TYPE_CHECKING:
    import mcp_types
    from mcp.server.context import ServerRequestContext
    from mcp.server.session import ServerSession
    from starlette.requests import Request

    RequestContext: TypeAlias = ServerRequestContext[Any, Request]

M = TypeVar("M", bound=BaseModel)
Capability = Literal["elicitation", "sampling"]


class _SendRequest(Protocol):
    """Interface of a function that sends a request to the client and returns its result."""

    def __call__(self, request: mcp_types.InputRequest, result_type: type[M], /) -> Awaitable[M]: ...


def is_modern(context: RequestContext) -> bool:
    """Return True if the client uses the newest protocol revision, in which servers send no requests."""
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def client_capabilities(context: RequestContext) -> Json:
    """Return the capabilities that the client declared, as JSON."""
    declared = context.session.client_capabilities
    return declared.model_dump(by_alias=True, exclude_none=True, mode="json") if declared else {}


def has_capability(context: RequestContext, capability: Capability) -> bool:
    """Return True if the client declared the capability."""
    return getattr(context.session.client_capabilities, capability, None) is not None


@dataclass(frozen=True, slots=True)
class ClientChannels:
    """Functions that send requests to a client; None for each capability that the client did not declare."""

    approver: Approver | None
    elicit: Callable[[mcp_types.ElicitRequestParams], Coroutine[Any, Any, mcp_types.ElicitResult]] | None
    sample: (
        Callable[
            [mcp_types.CreateMessageRequestParams],
            Coroutine[Any, Any, mcp_types.CreateMessageResult | mcp_types.CreateMessageResultWithTools],
        ]
        | None
    )

    @classmethod
    def during_call(cls, context: RequestContext, require_user: RequireUser) -> ClientChannels:
        """Return functions that send requests to the client while the client's own request is in progress."""
        from mcp.shared.message import ServerMessageMetadata

        related = ServerMessageMetadata(related_request_id=context.request_id)

        async def send(request: mcp_types.InputRequest, result_type: type[M], /) -> M:
            return await context.session.send_request(request, result_type, metadata=related)

        approver = elicitation_approver(context, require_user)
        return cls._with_sender(context, approver, send)

    @classmethod
    def between_calls(cls, context: RequestContext, call: PausedCall) -> ClientChannels:
        """Return functions that send requests to a client that answers them by repeating its paused call.

        The call is paused until the client repeats it together with the responses.
        """

        async def send(request: mcp_types.InputRequest, result_type: type[M], /) -> M:
            return result_type.model_validate(await call.ask_client(request))

        return cls._with_sender(context, call.approve, send)

    @classmethod
    def _with_sender(cls, context: RequestContext, approver: Approver, send: _SendRequest) -> ClientChannels:
        import mcp_types

        async def elicit(params: mcp_types.ElicitRequestParams) -> mcp_types.ElicitResult:
            return await send(mcp_types.ElicitRequest(params=params), mcp_types.ElicitResult)

        async def sample(
            params: mcp_types.CreateMessageRequestParams,
        ) -> mcp_types.CreateMessageResult | mcp_types.CreateMessageResultWithTools:
            request = mcp_types.CreateMessageRequest(params=params)
            if params.tools:
                return await send(request, mcp_types.CreateMessageResultWithTools)
            return await send(request, mcp_types.CreateMessageResult)

        can_elicit, can_sample = has_capability(context, "elicitation"), has_capability(context, "sampling")
        return cls(
            approver if can_elicit else None, elicit if can_elicit else None, sample if can_sample else None
        )


async def send_log_message(
    session: ServerSession,
    message: mcp_types.LoggingMessageNotificationParams,
    server: str,
    request_id: mcp_types.RequestId | None,
) -> None:
    """Forward a server's log message to the client."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated by the SDK, but clients have no other way to get it
        await session.send_log_message(
            message.level, message.data, message.logger or server, related_request_id=request_id
        )
