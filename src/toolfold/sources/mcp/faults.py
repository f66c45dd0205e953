"""What can go wrong with a server, each with what to do about it.

    CallError
    └── ServerFailed       one server; every other works on
        ├── NotStarted     it could not be started or reached; nothing was run
        ├── NoAnswer       it did not answer in time; the call may have run
        ├── Lost           it ended or the connection broke while it was asked; the call may have run
        ├── Unsent         the connection was gone before the call was sent; nothing was run
        ├── Garbled        it answered with what is no answer
        ├── TooLarge       it answered with more than is taken
        ├── Resting        it failed too often and is left alone for a while; nothing was run
        ├── NeedsLogin     a person must log in first; nothing was run
        ├── Withheld       the tool is held until a person has looked at it; nothing was run
        └── Rejected       it answered that it will not or cannot

Each has a `kind`, the word the table of faults and the logs know it by. Knows no connection.
"""

from __future__ import annotations

from toolfold.errors import CallError, shorten


class ServerFailed(CallError):
    """One server failed. `server` names it, `advice` says what to do next."""

    kind = "failed"
    may_have_run = False
    """Whether the call may have taken effect: then it is never repeated by itself."""

    def __init__(self, server: str, problem: str, *, advice: str = "") -> None:
        text = f"MCP server {server!r} {shorten(problem, 1_000)}"
        if advice and text[-1] not in ".!?…":
            text += "."
        super().__init__(f"{text} {advice}".rstrip(), server=server, kind=self.kind)
        self.server, self.problem, self.advice = server, problem, advice


class NotStarted(ServerFailed):
    """It could not be started or reached. Nothing was run."""

    kind = "not-started"


class NoAnswer(ServerFailed):
    """It did not answer in time. Whether the call took effect is unknown."""

    kind = "no-answer"
    may_have_run = True


class Lost(ServerFailed):
    """It ended, or the connection broke. Whether the call took effect is unknown."""

    kind = "lost"
    may_have_run = True


class Unsent(ServerFailed):
    """The connection turned out to be gone before the call was sent. Nothing was run."""

    kind = "unsent"


class Garbled(ServerFailed):
    """It sent what is no answer."""

    kind = "garbled"
    may_have_run = True


class TooLarge(ServerFailed):
    """It sent more than is taken."""

    kind = "too-large"
    may_have_run = True


class Resting(ServerFailed):
    """It failed too often and is left alone for a while. Nothing was run."""

    kind = "resting"


class NeedsLogin(ServerFailed):
    """A person must log in first. Nothing was run."""

    kind = "needs-login"


class Withheld(ServerFailed):
    """The tool is held until a person has looked at it. Nothing was run."""

    kind = "withheld"


class Rejected(ServerFailed):
    """The server answered with an error of its own, which `original` is."""

    kind = "rejected"

    def __init__(
        self, server: str, problem: str, *, advice: str = "", original: Exception | None = None
    ) -> None:
        super().__init__(server, problem, advice=advice)
        self.original = original
