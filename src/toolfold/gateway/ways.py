"""What a client can be asked and told while its request is under way, by the era it is of.

Older clients take requests of ours in the middle of a call; newer ones are told what to bring when they call
again. Knows the SDK's request context, and nothing of seats and servers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolfold.gateway import asking
from toolfold.model import Json


def is_modern(context: Any) -> bool:
    """Whether the request is of the newest revision, which knows no requests of ours."""
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def capabilities(context: Any) -> Json:
    """What the client declared, as plain data."""
    declared = context.session.client_capabilities
    return declared.model_dump(by_alias=True, exclude_none=True, mode="json") if declared else {}


def can(context: Any, what: str) -> bool:
    """Whether the client said that it can do this."""
    return getattr(context.session.client_capabilities, what, None) is not None


@dataclass(frozen=True, slots=True)
class Ways:
    """How this client can be asked, by us and by servers; None for what it cannot be asked."""

    approver: Any
    elicit: Any
    sample: Any

    @classmethod
    def in_the_middle(cls, context: Any, require_user: asking.RequireUser) -> Ways:
        """By requests of ours while its own is under way.

        `require_user` raises UntrustedClient where the client must not answer for the user.
        """
        from mcp.shared.message import ServerMessageMetadata

        related = ServerMessageMetadata(related_request_id=context.request_id)

        async def send(request: Any, kind: Any) -> Any:
            return await context.session.send_request(request, kind, metadata=related)

        can_be_asked = can(context, "elicitation")
        approver = asking.asked_in_the_middle(context, require_user) if can_be_asked else None
        return cls(approver, *_asked_by(context, send))

    @classmethod
    def in_rounds(cls, context: Any, call: asking.Waiting) -> Ways:
        """By telling it what to bring when it calls again."""

        async def send(request: Any, kind: Any) -> Any:
            return kind.model_validate(await call.ask(request))

        approver = call.approve if can(context, "elicitation") else None
        return cls(approver, *_asked_by(context, send))


def _asked_by(context: Any, send: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    import mcp_types

    async def elicit(params: Any) -> Any:
        return await send(mcp_types.ElicitRequest(params=params), mcp_types.ElicitResult)

    async def sample(params: Any) -> Any:
        kind = mcp_types.CreateMessageResultWithTools if params.tools else mcp_types.CreateMessageResult
        return await send(mcp_types.CreateMessageRequest(params=params), kind)

    return (
        elicit if can(context, "elicitation") else None,
        sample if can(context, "sampling") else None,
    )


async def log_words(session: Any, said: Any, server: str, request_id: Any) -> None:
    """Pass on what a server says for the log."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # older clients know no other way to be told
        await session.send_log_message(
            said.level, said.data, said.logger or server, related_request_id=request_id
        )
