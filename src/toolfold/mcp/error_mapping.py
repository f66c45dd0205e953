"""Convert exceptions of the MCP SDK, the network and the transports to ServerFailed with advice.

The only module that recognizes their errors. Secrets are removed from error texts of a server. Knows no
connection: callers say whether it has ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from toolfold.core.errors import error_message, shorten
from toolfold.mcp.faults import (
    ConnectionLost,
    InvalidResponse,
    NeedsLogin,
    NotStarted,
    RequestNotSent,
    RequestRejected,
    ResponseTooLarge,
    ServerFailed,
)
from toolfold.mcp.sdk_compat import (
    is_connection_closed,
    is_event_stream_failure,
    is_event_too_large,
    is_invalid_structured_content,
    is_unparsable_message,
)
from toolfold.mcp.stdio_transport import FAULT_KEY, TRANSPORT_ERROR_CODE
from toolfold.safety.redaction import Redaction

MAX_ERROR_CHARS = 20_000
"""Characters of an error text that are searched for secrets; a longer text is cut."""
MAX_ERROR_DATA_CHARS = 100_000
CHECK_URL_ADVICE = "Check that it is running and that its url is correct."
UNKNOWN_EFFECT_ADVICE = "The call may or may not have taken effect; check before repeating it."
_REQUEST_LESS_ADVICE = "Request less data at once. " + UNKNOWN_EFFECT_ADVICE


def log_advice(server: str) -> str:
    """Return advice for the user to read the server's log."""
    return f"`toolfold mcp logs {server}` shows its log."


def unwrap_group(error: BaseException | None) -> BaseException | None:
    """Return the first exception inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def map_error(
    server: str, error: BaseException | None, is_over: bool, redact: Redaction
) -> ServerFailed | None:
    """Convert the exception of a failed request to ServerFailed; return None if the connection was lost."""
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        problem = f"sent a response that does not follow the protocol: {_describe_first_violation(error)}."
        return InvalidResponse(server, problem, advice=UNKNOWN_EFFECT_ADVICE)
    if is_invalid_structured_content(error):
        return InvalidResponse(
            server, "sent a result that does not match its own output schema.", advice=UNKNOWN_EFFECT_ADVICE
        )
    if is_event_too_large(error):
        return ResponseTooLarge(
            server, "sent a message that exceeds the size limit.", advice=_REQUEST_LESS_ADVICE
        )
    if getattr(getattr(error, "response", None), "status_code", 0) in (401, 403):
        return _map_transport_error(server, "login", "requires a login.")
    if not isinstance(error, MCPError):
        return None
    if is_connection_closed(error) or (is_over and error.code == CONNECTION_CLOSED):
        return None
    problem = redact(error.message)
    if error.code == TRANSPORT_ERROR_CODE and isinstance(error.data, dict):
        return _map_transport_error(server, str(error.data.get(FAULT_KEY)), problem)
    if is_event_stream_failure(error):
        return ConnectionLost(server, f"disconnected: {problem}.", advice=UNKNOWN_EFFECT_ADVICE)
    if is_unparsable_message(error):
        return InvalidResponse(
            server, "sent a response that is not valid JSON.", advice=UNKNOWN_EFFECT_ADVICE
        )
    original = MCPError(error.code, problem, _drop_if_secret(error.data, redact))
    return RequestRejected(server, f"responded with an error: {shorten(problem, 2_000)}", original=original)


def _describe_first_violation(error: Any) -> str:
    """Describe where a message violates the protocol, without its values, which may be secret."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    location = shorten(".".join(map(str, first["loc"])), 120) or "the whole message"
    return f"{location}: {shorten(first['msg'], 120)}"


def _drop_if_secret(data: Any, redact: Redaction) -> Any:
    """Return the data of a server's error, or None if it is too large or contains a secret."""
    text = "" if data is None else json.dumps(data, default=str)
    return None if len(text) > MAX_ERROR_DATA_CHARS or redact.contains_secret(text) else data


def redact_error_result(result: Any, redact: Redaction) -> Any:
    """Remove secrets from the texts of a result that reports an error; return other results unchanged."""
    if getattr(result, "is_error", False) is not True:
        return result
    content = [
        block.model_copy(update={"text": redact(block.text)})
        if block.type == "text" and (len(block.text) > MAX_ERROR_CHARS or redact.contains_secret(block.text))
        else block
        for block in result.content
    ]
    structured = _drop_if_secret(result.structured_content, redact)
    return result.model_copy(update={"content": content, "structured_content": structured})


def _map_transport_error(server: str, kind: str, problem: str) -> ServerFailed:
    """Convert an error response that was created by Toolfold's transport, not by the server."""
    faults: Mapping[str, Callable[[], ServerFailed]] = {
        "garbled": lambda: InvalidResponse(server, f"{problem}.", advice=UNKNOWN_EFFECT_ADVICE),
        "too-large": lambda: ResponseTooLarge(server, f"{problem}.", advice=_REQUEST_LESS_ADVICE),
        "login": lambda: NeedsLogin(server, problem, advice=f"Run `toolfold mcp login {server}`."),
        "needs-login": lambda: NeedsLogin(server, problem, advice=f"Run `toolfold mcp login {server}`."),
        "not-started": lambda: NotStarted(server, problem),
        "unsent": lambda: RequestNotSent(server, f"could not be reached: {problem}", advice=CHECK_URL_ADVICE),
        "session": lambda: RequestNotSent(
            server, f"could not be reached: {problem}", advice=CHECK_URL_ADVICE
        ),
        "lost": lambda: ConnectionLost(server, f"disconnected: {problem}.", advice=UNKNOWN_EFFECT_ADVICE),
        "broken": lambda: ConnectionLost(server, problem, advice=UNKNOWN_EFFECT_ADVICE),
    }
    return faults.get(kind, lambda: RequestRejected(server, problem, advice=CHECK_URL_ADVICE))()


def as_start_failure(fault: ServerFailed) -> ServerFailed:
    """Convert an error to NotStarted, because it happened before any call was sent."""
    if isinstance(fault, NeedsLogin):
        return fault
    problem = (
        fault.problem if isinstance(fault, RequestNotSent) else f"could not be started: it {fault.problem}"
    )
    return NotStarted(
        fault.server,
        problem,
        advice=CHECK_URL_ADVICE if fault.advice == CHECK_URL_ADVICE else log_advice(fault.server),
    )


def describe_error(error: BaseException | None) -> str:
    """Describe why a connection ended, from its exception."""
    if error is None:
        return "the connection was closed."
    return f"{type(error).__name__}: {shorten(error_message(error), 300) or 'no details'}."
