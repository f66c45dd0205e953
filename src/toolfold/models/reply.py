"""Data types for model requests and replies, shared by the dialects of all providers.

A reply keeps its messages in the dialect's own format, because some content (signed thinking, encrypted
reasoning) must go back to the provider unchanged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from toolfold.core.events import Usage
from toolfold.core.types import Json, ToolCall

INTERRUPTED_TEXT = "[The answer was interrupted.]"
"""Text that replaces an interrupted reply of which nothing can be kept in the history."""

FinishReason = Literal["stop", "tool_calls", "length", "refusal", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A request to a model: messages, tools and options."""

    model: str
    messages: Sequence[Json]
    system: str = ""
    tools: Sequence[Json] = ()
    max_output_tokens: int | None = None
    temperature: float | None = None
    stream: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further parameters of the provider's API, passed on unchanged."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A text chunk of a streamed answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A chunk of the model's visible reasoning in a streamed answer."""

    text: str


Delta = TextDelta | ThinkingDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A complete model reply."""

    messages: tuple[Json, ...]
    """Messages to append to the history, in the provider's format."""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    finish_reason: FinishReason = "stop"
    is_cut: bool = False
    """True if the reply ended at the output limit; its text or its last tool call is incomplete."""
    model: str = ""
    """The model that answered, as the provider names it."""
    id: str = ""
    """The id under which the provider stores the reply, if it does."""
    unsent_thinking: str = ""
    """Reasoning of an interrupted reply that is not in its messages: the provider would not accept it."""


class ReplyReader(ABC):
    """Parser that builds a reply from the events of one stream, skipping unknown events."""

    @abstractmethod
    def feed(self, event: Json) -> Iterator[Delta]:
        """Parse one event of a streamed reply and yield its text chunks.

        Raises ProviderError for an error event.
        """

    @abstractmethod
    def finish(self, *, interrupted: bool = False) -> Reply:
        """Return the reply parsed from the stream so far.

        An interrupted reply keeps its text and drops tool calls: they will not be run. Reasoning is kept
        where the provider would accept it.
        """


def count_of(usage: Any, *path: str) -> int:
    """Return the integer at a key path in nested usage data; 0 if it is missing or not an integer."""
    for key in path:
        usage = usage.get(key) if isinstance(usage, Mapping) else None
    return usage if isinstance(usage, int) and not isinstance(usage, bool) else 0


def text_of(value: Any) -> str:
    """Return the value if it is text, else an empty string."""
    return value if isinstance(value, str) else ""
