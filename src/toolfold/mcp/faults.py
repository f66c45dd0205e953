"""Exceptions for failures of MCP servers, each with advice for the user.

    CallError
    └── ServerFailed            one server failed; all others keep working
        ├── NotStarted          it could not be started or reached; the call did not run
        ├── ResponseTimeout     it did not respond in time; the call may have run
        ├── ConnectionLost      it exited or the connection broke during the call, which may have run
        ├── RequestNotSent      the connection was gone before the call was sent; the call did not run
        ├── InvalidResponse     its response does not follow the protocol; the call may have run
        ├── ResponseTooLarge    its response exceeds a limit; the call may have run
        ├── ServerBackingOff    it failed repeatedly and is not retried yet; the call did not run
        ├── NeedsLogin          a person must log in first; the call did not run
        ├── ToolHeldForReview   a person must review the tool first; the call did not run
        └── RequestRejected     it responded with an error

Each class has a `kind`, which identifies it in results, logs and `benchmarks/results/mcp-faults.md`.
"""

from __future__ import annotations

from toolfold.core.errors import CallError, shorten


class ServerFailed(CallError):
    """Failure of an MCP server, with the server's name, the problem and advice for the user."""

    kind = "failed"
    may_have_run = False
    """True if the call may have taken effect; it is then never repeated automatically."""

    def __init__(self, server: str, problem: str, *, advice: str = "") -> None:
        text = f"MCP server {server!r} {shorten(problem, 1_000)}"
        if advice and text[-1] not in ".!?…":
            text += "."
        super().__init__(f"{text} {advice}".rstrip(), server=server, kind=self.kind)
        self.server, self.problem, self.advice = server, problem, advice


class NotStarted(ServerFailed):
    """The MCP server could not be started or reached. The call did not run."""

    kind = "not-started"


class ResponseTimeout(ServerFailed):
    """The MCP server did not respond in time. The call may have run."""

    kind = "no-answer"
    may_have_run = True


class ConnectionLost(ServerFailed):
    """The MCP server exited or the connection broke. The call may have run."""

    kind = "lost"
    may_have_run = True


class RequestNotSent(ServerFailed):
    """The connection to the MCP server was lost before the call was sent. The call did not run."""

    kind = "unsent"


class InvalidResponse(ServerFailed):
    """The MCP server's response does not follow the protocol. The call may have run."""

    kind = "garbled"
    may_have_run = True


class ResponseTooLarge(ServerFailed):
    """The MCP server's response exceeds a limit. The call may have run."""

    kind = "too-large"
    may_have_run = True


class ServerBackingOff(ServerFailed):
    """The MCP server failed repeatedly and will not be restarted yet. The call did not run."""

    kind = "resting"


class NeedsLogin(ServerFailed):
    """A person must log in to the MCP server first. The call did not run."""

    kind = "needs-login"


class ToolHeldForReview(ServerFailed):
    """A person must review the MCP server's tool first. The call did not run."""

    kind = "withheld"


class RequestRejected(ServerFailed):
    """The MCP server responded with an error; `original` is the SDK's exception."""

    kind = "rejected"

    def __init__(
        self, server: str, problem: str, *, advice: str = "", original: Exception | None = None
    ) -> None:
        super().__init__(server, problem, advice=advice)
        self.original = original
