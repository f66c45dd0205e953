"""The server that the official conformance suite expects, to be run behind the gateway.

    python conformance_fixture.py PORT

Its tools, resources and prompts are those that the scenarios expect. It uses the SDK's own server, so that
whatever a scenario finds missing was lost in the gateway.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as t
import uvicorn
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ToolsListChanged,
)

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
_SOUND = b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0@\x1f\0\0\x80>\0\0\2\0\x10\0data\0\0\0\0"
WAV = base64.b64encode(_SOUND).decode()
TEXT: dict[str, Any] = {"type": "string"}
OPTIONS = ["option1", "option2", "option3"]
TITLED = [{"const": f"value{number}", "title": f"Option {number}"} for number in (1, 2, 3)]
DEFAULTS: dict[str, Any] = {
    "name": {**TEXT, "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {**TEXT, "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
ENUMS: dict[str, Any] = {
    "untitledSingle": {**TEXT, "enum": OPTIONS},
    "titledSingle": {**TEXT, "oneOf": TITLED},
    "legacyEnum": {**TEXT, "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
    "untitledMulti": {"type": "array", "items": {**TEXT, "enum": OPTIONS}},
    "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
}
INPUTS = "test_input_required_result_"

bus = InMemorySubscriptionBus()
Tool = Callable[[Any, Any], Awaitable[Any]]
TOOLS: dict[str, tuple[dict[str, Any], Tool]] = {}


def object_schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def tool(name: str, **properties: Any) -> Callable[[Tool], Tool]:
    def add(function: Tool) -> Tool:
        TOOLS[name] = object_schema(**properties), function
        return function

    return add


def text_block(text: str) -> t.TextContent:
    return t.TextContent(type="text", text=text)


def resource(uri: str, mime: str, text: str) -> t.EmbeddedResource:
    contents = t.TextResourceContents(uri=uri, mime_type=mime, text=text)
    return t.EmbeddedResource(type="resource", resource=contents)


def call_result(*content: Any, **more: Any) -> t.CallToolResult:
    return t.CallToolResult(content=list(content), **more)


def elicit_request(message: str, **properties: Any) -> t.ElicitRequest:
    params = t.ElicitRequestFormParams(message=message, requested_schema=object_schema(**properties))
    return t.ElicitRequest(params=params)


def sampling_request(text: str) -> t.CreateMessageRequest:
    message = t.SamplingMessage(role="user", content=text_block(text))
    return t.CreateMessageRequest(params=t.CreateMessageRequestParams(messages=[message], max_tokens=100))


def roots_request() -> t.ListRootsRequest:
    return t.ListRootsRequest(params=t.RequestParams())


def input_required(state: str | None = None, **requests: Any) -> t.InputRequiredResult:
    return t.InputRequiredResult(input_requests=requests, request_state=state)


IMAGE = t.ImageContent(type="image", data=PNG, mime_type="image/png")


@tool("test_simple_text")
async def simple_text(context: Any, params: Any) -> Any:
    return call_result(text_block("This is a simple text response for testing."))


@tool("test_image_content")
async def image_content(context: Any, params: Any) -> Any:
    return call_result(IMAGE)


@tool("test_audio_content")
async def audio_content(context: Any, params: Any) -> Any:
    return call_result(t.AudioContent(type="audio", data=WAV, mime_type="audio/wav"))


@tool("test_embedded_resource")
async def embedded_resource(context: Any, params: Any) -> Any:
    return call_result(resource("test://embedded-resource", "text/plain", "This is an embedded resource."))


@tool("test_multiple_content_types")
async def multiple_content(context: Any, params: Any) -> Any:
    mixed = resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return call_result(text_block("Several kinds:"), IMAGE, mixed)


@tool("test_error_handling")
async def error_handling(context: Any, params: Any) -> Any:
    return call_result(text_block("This tool intentionally returns an error for testing"), is_error=True)


@tool("test_tool_with_progress")
async def with_progress(context: Any, params: Any) -> Any:
    for step in (0, 50, 100):
        await context.session.report_progress(step, 100)
        await asyncio.sleep(0.05)
    return call_result(text_block("done"))


@tool("test_logging_tool")
@tool("test_tool_with_logging")
async def with_logging(context: Any, params: Any) -> Any:
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await context.session.send_log_message("info", message, related_request_id=context.request_id)
        await asyncio.sleep(0.05)
    return call_result(text_block("done"))


@tool("test_sampling", prompt=TEXT)
async def request_sampling(context: Any, params: Any) -> Any:
    message = t.SamplingMessage(role="user", content=text_block(params.arguments["prompt"]))
    response = await context.session.create_message(
        [message], max_tokens=100, related_request_id=context.request_id
    )
    return call_result(text_block(f"LLM response: {response.content.text}"))


async def elicit_and_report(context: Any, message: str, properties: dict[str, Any], **more: Any) -> Any:
    form = {"type": "object", "properties": properties, **more}
    response = await context.session.elicit_form(message, form, related_request_id=context.request_id)
    return call_result(text_block(f"User response: {response.action}"))


@tool("test_elicitation", message=TEXT)
async def request_elicitation(context: Any, params: Any) -> Any:
    fields = {"username": TEXT, "email": TEXT}
    return await elicit_and_report(context, params.arguments["message"], fields, required=list(fields))


@tool("test_elicitation_sep1034_defaults")
async def request_elicitation_with_defaults(context: Any, params: Any) -> Any:
    return await elicit_and_report(context, "With defaults", DEFAULTS)


@tool("test_elicitation_sep1330_enums")
async def request_elicitation_with_enums(context: Any, params: Any) -> Any:
    return await elicit_and_report(context, "With choices", ENUMS)


@tool("test_missing_capability")
async def require_capability(context: Any, params: Any) -> Any:
    declared = context.session.client_capabilities
    if declared is None or declared.sampling is None:
        wanted: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(t.MISSING_REQUIRED_CLIENT_CAPABILITY, "it needs sampling", wanted)
    return call_result(text_block("done"))


@tool("test_streaming_elicitation")
async def stream_elicitation(context: Any, params: Any) -> Any:
    return (
        call_result(text_block("done"))
        if params.input_responses
        else input_required(name=elicit_request("Name?", name=TEXT))
    )


@tool("test_trigger_tool_change")
async def notify_tools_changed(context: Any, params: Any) -> Any:
    await bus.publish(ToolsListChanged())
    return call_result(text_block("done"))


@tool("test_trigger_prompt_change")
async def notify_prompts_changed(context: Any, params: Any) -> Any:
    await bus.publish(PromptsListChanged())
    return call_result(text_block("done"))


@tool(INPUTS + "elicitation")
async def require_elicitation_input(context: Any, params: Any) -> Any:
    response = (params.input_responses or {}).get("user_name")
    if response is None:
        return input_required(user_name=elicit_request("What is your name?", name=TEXT))
    return call_result(text_block(f"Hello, {response.content['name']}!"))


@tool(INPUTS + "sampling")
async def require_sampling_input(context: Any, params: Any) -> Any:
    if params.input_responses:
        return call_result(text_block("done"))
    return input_required(capital_question=sampling_request("What is the capital of France?"))


@tool(INPUTS + "list_roots")
async def require_roots_input(context: Any, params: Any) -> Any:
    return (
        call_result(text_block("done"))
        if params.input_responses
        else input_required(client_roots=roots_request())
    )


@tool(INPUTS + "request_state")
@tool(INPUTS + "tampered_state")
async def require_input_with_state(context: Any, params: Any) -> Any:
    if params.input_responses and params.request_state == "first":
        return call_result(text_block("state-ok"))
    return input_required("first", confirm=elicit_request("All right?", ok={"type": "boolean"}))


@tool(INPUTS + "multiple_inputs")
async def require_several_inputs(context: Any, params: Any) -> Any:
    if params.input_responses:
        return call_result(text_block("done"))
    name, greeting = elicit_request("Name?", name=TEXT), sampling_request("Greet them.")
    return input_required("first", user_name=name, greeting=greeting, client_roots=roots_request())


@tool(INPUTS + "multi_round")
async def require_several_rounds(context: Any, params: Any) -> Any:
    if not params.request_state:
        return input_required("first", step1=elicit_request("Name?", name=TEXT))
    if params.request_state == "first":
        return input_required("second", step2=elicit_request("Colour?", color=TEXT))
    return call_result(text_block("done"))


@tool(INPUTS + "capabilities")
async def require_inputs_by_capability(context: Any, params: Any) -> Any:
    declared = context.session.client_capabilities or t.ClientCapabilities()
    wanted: dict[str, Any] = {}
    if declared.sampling is not None:
        wanted["model"] = sampling_request("Hello")
    if declared.elicitation is not None:
        wanted["person"] = elicit_request("Hello?", name=TEXT)
    return input_required(**wanted)


@tool("test_header", region={**TEXT, "x-mcp-header": "Region"})
async def echo_header_argument(context: Any, params: Any) -> Any:
    return call_result(text_block("done"))


RESOURCES: dict[str, Any] = {
    "test://static-text": t.TextResourceContents(
        uri="test://static-text", mime_type="text/plain", text="The content of the static text resource."
    ),
    "test://static-binary": t.BlobResourceContents(
        uri="test://static-binary", mime_type="image/png", blob=PNG
    ),
    "test://watched-resource": t.TextResourceContents(
        uri="test://watched-resource", mime_type="text/plain", text="watched"
    ),
}
PROMPTS = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    INPUTS + "prompt": (),
}


async def list_tools(context: Any, params: Any) -> Any:
    return t.ListToolsResult(
        tools=[t.Tool(name=name, description=name, input_schema=each[0]) for name, each in TOOLS.items()]
    )


async def call_tool(context: Any, params: Any) -> Any:
    if params.name not in TOOLS:
        raise MCPError(t.INVALID_PARAMS, f"there is no tool {params.name}")
    return await TOOLS[params.name][1](context, params)


async def list_resources(context: Any, params: Any) -> Any:
    listed = [t.Resource(uri=uri, name=uri, mime_type=each.mime_type) for uri, each in RESOURCES.items()]
    return t.ListResourcesResult(resources=listed)


async def list_templates(context: Any, params: Any) -> Any:
    template = t.ResourceTemplate(uri_template="test://template/{id}/data", name="by id")
    return t.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(context: Any, params: Any) -> Any:
    uri = str(params.uri)
    if uri in RESOURCES:
        return t.ReadResourceResult(contents=[RESOURCES[uri]])
    if uri.startswith("test://template/"):
        text = json.dumps({"id": uri.split("/")[3]})
        contents = t.TextResourceContents(uri=uri, mime_type="application/json", text=text)
        return t.ReadResourceResult(contents=[contents])
    raise MCPError(t.INVALID_PARAMS, "there is no such resource", {"uri": uri})


async def list_prompts(context: Any, params: Any) -> Any:
    prompts = [
        t.Prompt(
            name=name,
            description=name,
            arguments=[t.PromptArgument(name=each, required=True) for each in arguments],
        )
        for name, arguments in PROMPTS.items()
    ]
    return t.ListPromptsResult(prompts=prompts)


async def get_prompt(context: Any, params: Any) -> Any:
    arguments = params.arguments or {}
    if params.name == INPUTS + "prompt" and not params.input_responses:
        return input_required(user_context=elicit_request("Context?", context=TEXT))
    blocks: list[Any] = [text_block(f"A prompt with {arguments}")]
    if params.name == "test_prompt_with_embedded_resource":
        blocks.insert(0, resource(arguments["resourceUri"], "text/plain", "embedded"))
    if params.name == "test_prompt_with_image":
        blocks.insert(0, IMAGE)
    return t.GetPromptResult(messages=[t.PromptMessage(role="user", content=each) for each in blocks])


async def return_empty_result(context: Any, params: Any) -> Any:
    return t.EmptyResult()


async def complete(context: Any, params: Any) -> Any:
    return t.CompleteResult(completion=t.Completion(values=[], total=0, has_more=False))


def main() -> None:
    warnings.simplefilter("ignore")  # deprecated features of older revisions are tested on purpose
    server: Server[Any] = Server(
        "conformance-fixture",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=return_empty_result,
        on_unsubscribe_resource=return_empty_result,
        on_subscriptions_listen=ListenHandler(bus),
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
        get_tool_input_schema=lambda name: TOOLS[name][0] if name in TOOLS else None,
    )
    server.add_request_handler("logging/setLevel", t.SetLevelRequestParams, return_empty_result)
    security = RequestStateSecurity.ephemeral()
    server.middleware.append(RequestStateBoundary(security, default_audience="fixture"))
    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")


if __name__ == "__main__":
    main()
