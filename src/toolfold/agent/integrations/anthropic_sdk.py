"""Run tool calls from replies of the `anthropic` package, for programs that call the model themselves.

The functions read the package's reply objects, run the calls in a session and return what to append to the
history. The package is not imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolfold.core.types import Json, ToolCall, ToolResult
from toolfold.models import get_dialect
from toolfold.runtime.session import Session

__all__ = ["answer_message", "answer_message_sync"]


async def answer_message(session: Session, message: Any) -> list[Json]:
    """Run the tool calls in a model's message; return the message and the results for the history.

    These messages are the reply, and the results of its calls if it has any.
    """
    return _make_messages(message, await session.call_all(read_calls(message)))


def answer_message_sync(session: Session, message: Any) -> list[Json]:
    """Run the tool calls of a message like `answer_message`, from synchronous code."""
    return _make_messages(message, session.call_all_sync(read_calls(message)))


def read_calls(message: Any) -> list[ToolCall]:
    """Return the tool calls in a message."""
    return [ToolCall(each.name, each.input, each.id) for each in message.content if each.type == "tool_use"]


def _make_messages(message: Any, results: Sequence[ToolResult]) -> list[Json]:
    content = [each.model_dump(exclude_none=True) for each in message.content]
    reply: Json = {"role": "assistant", "content": content}
    return [reply, *get_dialect("anthropic").render_results(results)]
