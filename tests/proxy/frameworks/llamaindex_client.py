"""Conversations with LlamaIndex. Usage: llamaindex_client.py PLAN, a `FrameworkPlan` as JSON.

Prints the results. The URL of the proxy comes from the environment, as a user of LlamaIndex sets it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

# The packages are in an environment of their own.
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.openai import OpenAI, OpenAIResponses
from pydantic import create_model

TYPES = {"string": str, "integer": int, "number": float}


def make_model(api: str) -> Any:
    if api == "messages":
        return Anthropic(model="claude-sonnet-4-5", max_tokens=500, max_retries=0)
    kind = OpenAIResponses if api == "responses" else OpenAI
    return kind(model="gpt-4.1", api_base=os.environ["OPENAI_BASE_URL"], max_retries=0)


def make_tool(definition: dict[str, Any]) -> Any:
    properties = definition["parameters"]["properties"]
    fields: dict[str, Any] = {key: (TYPES[each["type"]], ...) for key, each in properties.items()}
    return FunctionTool.from_defaults(
        fn=lambda **_: None,
        name=definition["name"],
        description=definition["description"],
        fn_schema=create_model(definition["name"], **fields),
    )


def receive(model: Any, tools: list[Any], messages: list[Any], *, stream: bool) -> Any:
    if not stream:
        return model.chat_with_tools(tools, chat_history=messages)
    *_, last = model.stream_chat_with_tools(tools, chat_history=messages)
    return last


def converse(plan: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """Run the model's calls until it answers with text only."""
    model, tools = make_model(case["api"]), list(map(make_tool, plan["tools"]))
    messages = [ChatMessage(role="user", content=case["question"])]
    calls: list[Any] = []
    while True:
        reply = receive(model, tools, messages, stream=case["stream"])
        messages.append(reply.message)
        made = model.get_tool_calls_from_response(reply, error_on_no_tool_call=False)
        if not made:
            return {"text": reply.message.content, "calls": calls}
        for call in made:
            calls.append([call.tool_name, call.tool_kwargs])
            about = {"tool_call_id": call.tool_id}
            messages.append(ChatMessage(role="tool", content=plan["result"], additional_kwargs=about))


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps({each["name"]: converse(given, each) for each in given["cases"]}))
