"""A client with OpenAI Agents. Usage: openai_agents_client.py PLAN, where PLAN is a `LibraryPlan` as JSON.

An agent with a scripted model makes the calls, so the results are what a model receives. The library supports
no forms, so the plan's answers are not used.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

# The packages are in an environment of their own.
from agents import (
    Agent,
    Model,
    ModelResponse,
    Runner,
    Usage,
    set_tracing_disabled,
)
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

TIMEOUT_S = 300  # the default of 5 seconds is too short for a busy machine
MAX_TURNS = 20


class ScriptedModel(Model):  # type: ignore[misc]  # the library is not installed where types are checked
    """A model that makes the calls of a plan, and stores the tools and results that it receives."""

    def __init__(self, steps: list[dict[str, Any]]) -> None:
        self.steps = iter(steps)
        self.listed: list[str] = []
        self.results: list[str] = []

    async def get_response(self, *_arguments: Any, **request: Any) -> Any:
        self.listed = [each.name for each in request["tools"]]
        outputs = [each for each in request["input"] if each.get("type") == "function_call_output"]
        self.results = [result_text(each) for each in outputs]
        step = next(self.steps, None)
        output = tool_call(step, f"call-{len(self.results)}") if step else final_message()
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *_arguments: Any, **_options: Any) -> Any:
        raise NotImplementedError("the agent runs without streaming")


def tool_call(step: dict[str, Any], call_id: str) -> ResponseFunctionToolCall:
    arguments = json.dumps(step["arguments"])
    return ResponseFunctionToolCall(
        type="function_call", call_id=call_id, name=step["tool"], arguments=arguments
    )


def final_message() -> ResponseOutputMessage:
    text = ResponseOutputText(type="output_text", text="finished", annotations=[])
    return ResponseOutputMessage(
        id="final", type="message", role="assistant", status="completed", content=[text]
    )


def result_text(item: dict[str, Any]) -> str:
    """Return the text of a tool result, which is a string or a list of content items."""
    output = item["output"]
    return output if isinstance(output, str) else "".join(each["text"] for each in output)


def gateway_server(plan: dict[str, Any]) -> Any:
    """Return the library's object for the gateway: a running one, or one that it starts."""
    if plan["url"]:
        params = {"url": plan["url"], "timeout": TIMEOUT_S}
        return MCPServerStreamableHttp(params, client_session_timeout_seconds=TIMEOUT_S)
    command, *arguments = plan["command"]
    start = {"command": command, "args": arguments, "env": plan["environment"]}
    return MCPServerStdio(start, client_session_timeout_seconds=TIMEOUT_S)


async def run_plan(plan: dict[str, Any]) -> dict[str, Any]:
    set_tracing_disabled(True)  # traces would be sent over the network
    model = ScriptedModel(plan["steps"])
    async with gateway_server(plan) as server:
        agent = Agent("notes", model=model, mcp_servers=[server])
        await Runner.run(agent, "use the notes", max_turns=MAX_TURNS)
    return {"listed": model.listed, "results": model.results}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run_plan(json.loads(sys.argv[1])))))
