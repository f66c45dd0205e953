"""The official `openai` and `anthropic` packages, behind one interface for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolfold.core.types import Json

KEY = "sk-of-the-client"
APIS = ("chat", "messages", "responses")


@dataclass
class Seen:
    """What a client saw of one reply."""

    text: str
    calls: list[tuple[str, Any]]
    reason: str
    usage: dict[str, int]
    call_ids: list[str] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: Any = None


def make_tools(api: str, definitions: Sequence[Json]) -> list[Json]:
    """Write tools as a user of the API would."""
    if api == "chat":
        return [{"type": "function", "function": each} for each in definitions]
    if api == "messages":
        return [
            {"name": each["name"], "description": each["description"], "input_schema": each["parameters"]}
            for each in definitions
        ]
    return [{"type": "function", "strict": False, **each} for each in definitions]


def ask(api: str, url: str, messages: Sequence[Json], *, stream: bool, **options: Any) -> Seen:
    """Send a conversation with the official package for the API, and return what its user sees."""
    if api == "messages":
        return _ask_messages(url, messages, stream, options)
    import openai

    http = openai.DefaultHttpx2Client(verify=False)  # loading certificates takes longer than the request
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, http_client=http) as client:
        if api == "chat":
            return _ask_chat(client, messages, stream, options)
        return _ask_responses(client, messages, stream, options)


def _ask_chat(client: Any, messages: Sequence[Json], stream: bool, options: Any) -> Seen:
    request = {"model": "gpt-4.1", "messages": list(messages), **options}
    if stream:
        with client.chat.completions.stream(**request, stream_options={"include_usage": True}) as events:
            for _ in events:
                pass
            completion, headers = events.get_final_completion(), dict(events._response.headers)
    else:
        raw = client.chat.completions.with_raw_response.create(**request)
        completion, headers = raw.parse(), dict(raw.headers)
    choice = completion.choices[0]
    calls = choice.message.tool_calls or []
    return Seen(
        choice.message.content or "",
        [(call.function.name, json.loads(call.function.arguments)) for call in calls],
        choice.finish_reason,
        {"input": completion.usage.prompt_tokens, "output": completion.usage.completion_tokens},
        [call.id for call in calls],
        headers,
        completion,
    )


def _ask_messages(url: str, messages: Sequence[Json], stream: bool, options: Any) -> Seen:
    import anthropic

    request = {"model": "claude-test-5", "max_tokens": 500, "messages": list(messages), **options}
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        if stream:
            with client.messages.stream(**request) as events:
                message, headers = events.get_final_message(), dict(events.response.headers)
        else:
            raw = client.messages.with_raw_response.create(**request)
            message, headers = raw.parse(), dict(raw.headers)
    calls = [block for block in message.content if block.type == "tool_use"]
    return Seen(
        "".join(block.text for block in message.content if block.type == "text"),
        [(call.name, call.input) for call in calls],
        message.stop_reason or "",
        {"input": message.usage.input_tokens, "output": message.usage.output_tokens},
        [call.id for call in calls],
        headers,
        message,
    )


def _ask_responses(client: Any, messages: Sequence[Json], stream: bool, options: Any) -> Seen:
    request = {"model": "gpt-4.1", "input": list(messages), **options}
    if stream:
        with client.responses.stream(**request) as events:
            for _ in events:
                pass
            response, headers = events.get_final_response(), dict(events._response.headers)
    else:
        raw = client.responses.with_raw_response.create(**request)
        response, headers = raw.parse(), dict(raw.headers)
    calls = [item for item in response.output if item.type == "function_call"]
    return Seen(
        response.output_text,
        [(call.name, json.loads(call.arguments)) for call in calls],
        response.status or "",
        {"input": response.usage.input_tokens, "output": response.usage.output_tokens},
        [call.call_id for call in calls],
        headers,
        response,
    )
