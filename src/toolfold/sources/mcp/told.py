"""What the SDK, the network and our own wire say of a failed request, as a fault with advice.

The one place that knows their errors by sight. What a server says of itself is heard without secrets. Knows
no connection: it is told whether one is over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from toolfold.errors import error_message, shorten
from toolfold.redaction import Redaction
from toolfold.sources.mcp.faults import (
    Garbled,
    Lost,
    NeedsLogin,
    NotStarted,
    Rejected,
    ServerFailed,
    TooLarge,
    Unsent,
)
from toolfold.sources.mcp.wire import CODE, FAULT

MAX_ERROR_CHARS = 20_000
"""Characters of an error that are searched for secrets; a longer one is cut."""
MOST_DATA = 100_000
ADDRESS = "Look whether it runs and whether its url is right."
UNKNOWN = "The call may or may not have taken effect; look before you repeat it."
_LESS = "Ask for less at once. " + UNKNOWN
_BOUND = "byte limit"  # as the SDK says it of an event


def logs(server: str) -> str:
    """Where to read what a server says of itself."""
    return f"`toolfold mcp logs {server}` shows what it wrote."


def first_cause(error: BaseException | None) -> BaseException | None:
    """The cause inside what task groups make of it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def told(server: str, error: BaseException | None, is_over: bool, redact: Redaction) -> ServerFailed | None:
    """What the protocol, the network or our own wire says of a failed request; None for a lost connection."""
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED, PARSE_ERROR
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        where = f"sent an answer that does not follow the protocol: {_first_violation(error)}."
        return Garbled(server, where, advice=UNKNOWN)
    if isinstance(error, RuntimeError) and "structured content" in error_message(error):
        return Garbled(server, "answered with what its own output schema does not allow.", advice=UNKNOWN)
    if error is not None and _BOUND in error_message(error):
        return TooLarge(server, "sent more than is taken at once.", advice=_LESS)
    if getattr(getattr(error, "response", None), "status_code", 0) in (401, 403):
        return _ours(server, "login", "asks for a login.")
    if not isinstance(error, MCPError):
        return None
    if error.code == CONNECTION_CLOSED and (is_over or error.message == "Connection closed"):
        return None
    problem = redact(error.message)
    if error.code == CODE and isinstance(error.data, dict):
        return _ours(server, str(error.data.get(FAULT)), problem)
    if error.code == CONNECTION_CLOSED and problem.startswith("SSE stream"):  # servers use the code as well
        return Lost(server, f"was lost: {problem}.", advice=UNKNOWN)
    if error.code == PARSE_ERROR and "parse" in problem.lower():
        return Garbled(server, "sent an answer that is not well-formed.", advice=UNKNOWN)
    original = MCPError(error.code, problem, _unless_secret(error.data, redact))
    return Rejected(server, f"answered: {shorten(problem, 2_000)}", original=original)


def _first_violation(error: Any) -> str:
    """Where a message departs from the protocol, without its values: they may be secret."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = shorten(".".join(map(str, first["loc"])), 120) or "the whole of it"
    return f"{place}: {shorten(first['msg'], 120)}"


def _unless_secret(data: Any, redact: Redaction) -> Any:
    """What comes with an error is a courtesy: not at the price of a secret or a flood."""
    written = "" if data is None else json.dumps(data, default=str)
    return None if len(written) > MOST_DATA or redact.finds_any(written) else data


def without_secrets(answer: Any, redact: Redaction) -> Any:
    """The answer; where it tells of a failure, its words without secrets, as those of every error."""
    if getattr(answer, "is_error", False) is not True:
        return answer
    content = [
        block.model_copy(update={"text": redact(block.text)})
        if block.type == "text" and (len(block.text) > MAX_ERROR_CHARS or redact.finds_any(block.text))
        else block
        for block in answer.content
    ]
    kept = _unless_secret(answer.structured_content, redact)
    return answer.model_copy(update={"content": content, "structured_content": kept})


def _ours(server: str, kind: str, problem: str) -> ServerFailed:
    """What our own wire or guard answered in the server's place."""
    faults: Mapping[str, Callable[[], ServerFailed]] = {
        "garbled": lambda: Garbled(server, f"{problem}.", advice=UNKNOWN),
        "too-large": lambda: TooLarge(server, f"{problem}.", advice=_LESS),
        "login": lambda: NeedsLogin(server, problem, advice=f"Run `toolfold mcp login {server}`."),
        "needs-login": lambda: NeedsLogin(server, problem, advice=f"Run `toolfold mcp login {server}`."),
        "not-started": lambda: NotStarted(server, problem),
        "unsent": lambda: Unsent(server, f"could not be reached: {problem}", advice=ADDRESS),
        "session": lambda: Unsent(server, f"could not be reached: {problem}", advice=ADDRESS),
        "lost": lambda: Lost(server, f"was lost: {problem}.", advice=UNKNOWN),
        "broken": lambda: Lost(server, problem, advice=UNKNOWN),
    }
    return faults.get(kind, lambda: Rejected(server, problem, advice=ADDRESS))()


def at_start(fault: ServerFailed) -> ServerFailed:
    """The same, where nothing can have been run yet."""
    if isinstance(fault, NeedsLogin):
        return fault
    problem = fault.problem if isinstance(fault, Unsent) else f"could not be started: it {fault.problem}"
    return NotStarted(
        fault.server, problem, advice=ADDRESS if fault.advice == ADDRESS else logs(fault.server)
    )


def in_words(error: BaseException | None) -> str:
    """How a connection ended, where only an exception knows."""
    if error is None:
        return "the connection was closed."
    return f"{type(error).__name__}: {shorten(error_message(error), 300) or 'no more is known'}."
