"""Conversations with LangChain. Usage: langchain_client.py PLAN, a `FrameworkPlan` as JSON.

Prints the results. The URL of the proxy comes from the environment, as a user of LangChain sets it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

# The packages are in an environment of their own.
from langchain_anthropic import ChatAnthropic  # type: ignore[import-not-found]
from langchain_core.messages import (
    HumanMessage,
    ToolMessage,
)
from langchain_openai import ChatOpenAI


def make_model(api: str) -> Any:
    if api == "messages":
        return ChatAnthropic(model="claude-test-5", max_tokens=500, max_retries=0)
    return ChatOpenAI(model="gpt-4.1", use_responses_api=api == "responses", max_retries=0)


def receive(model: Any, messages: list[Any], *, stream: bool) -> Any:
    if not stream:
        return model.invoke(messages)
    first, *rest = model.stream(messages)
    for chunk in rest:
        first += chunk
    return first


def converse(plan: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """Run the model's calls until it answers with text only."""
    tools = [{"type": "function", "function": each} for each in plan["tools"]]
    model = make_model(case["api"]).bind_tools(tools)
    messages: list[Any] = [HumanMessage(case["question"])]
    calls: list[Any] = []
    while True:
        reply = receive(model, messages, stream=case["stream"])
        messages.append(reply)
        if not reply.tool_calls:
            return {"text": reply.text, "calls": calls}
        for call in reply.tool_calls:
            calls.append([call["name"], call["args"]])
            messages.append(ToolMessage(plan["result"], tool_call_id=call["id"]))


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps({each["name"]: converse(given, each) for each in given["cases"]}))
