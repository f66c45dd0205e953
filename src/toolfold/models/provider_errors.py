"""Errors of model calls, classified by kind, such as authentication, rate limit or context length."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from toolfold.core.errors import ToolfoldError

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

_OVERFLOW = re.compile(
    # OpenAI, Azure, Groq, DeepSeek (code); llama.cpp (type); GitHub's models (code)
    r"context_length_exceeded|exceed_context_size_error|model_max_prompt_tokens_exceeded"
    # OpenAI, OpenRouter, vLLM, Mistral, SGLang, Ollama, LM Studio
    r"|(?:maximum|model's|model|exceeds? the|loaded with(?: a)?) (?:maximum )?context (?:length|window)"
    r"|maximum context"
    r"|(?:exceeds?|exceeded|than|larger than|with) (?:the |your |its )?(?:maximum |available |model'?s? )*"
    r"(?:context (?:length|window|size|limit)|model (?:length|token limit))"
    r"|context (?:length|window|size) (?:is |was )?exceeded|context window exceeds"
    # Anthropic (also on Vertex and Bedrock), Bedrock, xAI, Cohere
    r"|(?:prompt|input|request|message) is too long|exceed context limit|maximum prompt length"
    r"|too many tokens"
    # Vertex and Gemini, GitHub's models
    r"|token count\b.{0,40}\b(?:exceeds|only supports)"
    # Groq; Together, TGI
    r"|reduce the length of the (?:messages|input|prompt)"
    r"|`?inputs`? tokens \+ `?max_new_tokens`? must be"
    # OpenAI, Groq: a request that alone exceeds the tokens per minute can never succeed
    r"|request too large for",
    re.IGNORECASE,
)
"""How providers and servers say that the input, or input and output together, exceed the context window."""
_OVERFLOW_STATUSES = frozenset({400, 413, 422, 429, 500})
_LABELS = {
    "overloaded": 529,
    "rate_limit": 429,
    "authentication": 401,
    "permission": 403,
    "too_large": 413,
    "not_found": 404,
    "timeout": 408,
    "invalid": 400,
}
"""HTTP statuses of errors in streams, by a part of the error's code or type."""
MAX_CLASSIFIED_CHARS = 20_000


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
    text = message[:MAX_CLASSIFIED_CHARS]
    if status == 413 or (status in _OVERFLOW_STATUSES and _OVERFLOW.search(text)):
        return "context_length"
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


def read_stream_error(error: Any) -> ProviderError:
    """Return the error that a provider reports as JSON inside of a stream, after the HTTP status 200."""
    details = error if isinstance(error, Mapping) else {"message": error}
    message = str(details.get("message") or "the provider reported an error without a message")
    labels = [str(details.get(key) or "").lower() for key in ("code", "status", "type")]
    numbers = [int(label) for label in labels if re.fullmatch(r"[45][0-9]{2}", label)]
    named = [status for part, status in _LABELS.items() if any(part in label for label in labels)]
    status = (numbers + named + [500])[0]
    return ProviderError(message, kind=classify_status(status, " ".join([message, *labels])), status=status)
