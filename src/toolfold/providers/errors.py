"""Errors of model calls, classified by kind, such as authentication, rate limit or context length."""

from __future__ import annotations

from typing import Literal

from toolfold.errors import ToolfoldError

ProblemKind = Literal[
    "authentication",
    "permission",
    "not_found",
    "rate_limit",
    "overloaded",
    "context_length",
    "bad_request",
    "connection",
    "timeout",
    "server",
    "missing_package",
]

RETRYABLE: frozenset[ProblemKind] = frozenset({"rate_limit", "overloaded", "connection", "timeout", "server"})

_CONTEXT_PHRASES = (
    "context length",
    "context_length",
    "context window",
    "maximum context",
    "prompt is too long",
)


class ProviderError(ToolfoldError):
    """A model call failed."""

    def __init__(
        self,
        message: str,
        *,
        kind: ProblemKind,
        retry_after_s: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.retry_after_s, self.status = kind, retry_after_s, status

    @property
    def is_retryable(self) -> bool:
        """Return True if the same request may succeed later."""
        return self.kind in RETRYABLE


def classify_status(status: int, message: str = "") -> ProblemKind:
    """Return the error kind for a provider's HTTP status and error message."""
    lowered = message.lower()
    if status in (400, 413, 422):
        is_too_long = status == 413 or any(phrase in lowered for phrase in _CONTEXT_PHRASES)
        return "context_length" if is_too_long else "bad_request"
    known: dict[int, ProblemKind] = {
        401: "authentication",
        403: "permission",
        404: "not_found",
        408: "timeout",
        409: "server",
        429: "rate_limit",
        503: "overloaded",
        529: "overloaded",
    }
    return known.get(status, "server" if status >= 500 else "bad_request")
