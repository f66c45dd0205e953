"""Run tool calls from replies of the `openai` package, for programs that call the model themselves.

The functions read the package's reply objects, run the calls in a session and return what to append to the
history. The package is not imported here.
"""

from __future__ import annotations

from typing import Any

from toolfold.core.types import Json, ToolCall
from toolfold.models import get_dialect
from toolfold.runtime.session import Session

__all__ = ["answer_chat", "answer_chat_sync", "answer_response", "answer_response_sync"]


async def answer_chat(session: Session, completion: Any) -> list[Json]:
    """Run the tool calls in a chat completion; return its message and the results for the history.

    These messages are the reply, and the results of its calls if it has any.
    """
    reply = completion.choices[0].message
    results = await session.call_all(read_chat_calls(reply))
    return [_dump(reply), *get_dialect("openai").render_results(results)]


def answer_chat_sync(session: Session, completion: Any) -> list[Json]:
    """Run the tool calls of a chat completion like `answer_chat`, from synchronous code."""
    reply = completion.choices[0].message
    results = session.call_all_sync(read_chat_calls(reply))
    return [_dump(reply), *get_dialect("openai").render_results(results)]


async def answer_response(session: Session, response: Any) -> list[Json]:
    """Run the function calls in a reply of the Responses API; return its items and the results as next input.

    These items are those of the response, and the results of its calls.
    """
    results = await session.call_all(read_response_calls(response))
    return [*map(_dump, response.output), *get_dialect("responses").render_results(results)]


def answer_response_sync(session: Session, response: Any) -> list[Json]:
    """Run the function calls of a response like `answer_response`, from synchronous code."""
    results = session.call_all_sync(read_response_calls(response))
    return [*map(_dump, response.output), *get_dialect("responses").render_results(results)]


def read_chat_calls(reply: Any) -> list[ToolCall]:
    """Return the function calls in the message of a chat completion."""
    calls = (each for each in reply.tool_calls or () if each.type == "function")
    return [ToolCall(each.function.name, each.function.arguments, each.id) for each in calls]


def read_response_calls(response: Any) -> list[ToolCall]:
    """Return the function calls in the output of a response."""
    calls = (each for each in response.output if each.type == "function_call")
    return [ToolCall(each.name, each.arguments, each.call_id) for each in calls]


def _dump(reply: Any) -> Json:
    dumped: Json = reply.model_dump(exclude_none=True)
    return dumped
