"""The server that the official conformance runner wants to meet, to stand behind the gateway.

    python conformance_fixture.py PORT

Its tools, resources and prompts have the names and do what the runner's scenarios say. On the SDK's own
server, so that what a scenario finds missing was lost in the gateway.
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


def shape(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def tool(name: str, **properties: Any) -> Callable[[Tool], Tool]:
    def add(function: Tool) -> Tool:
        TOOLS[name] = shape(**properties), function
        return function

    return add


def words(text: str) -> t.TextContent:
    return t.TextContent(type="text", text=text)


def resource(uri: str, mime: str, text: str) -> t.EmbeddedResource:
    contents = t.TextResourceContents(uri=uri, mime_type=mime, text=text)
    return t.EmbeddedResource(type="resource", resource=contents)


def done(*content: Any, **more: Any) -> t.CallToolResult:
    return t.CallToolResult(content=list(content), **more)


def question(message: str, **properties: Any) -> t.ElicitRequest:
    params = t.ElicitRequestFormParams(message=message, requested_schema=shape(**properties))
    return t.ElicitRequest(params=params)


def sampling(text: str) -> t.CreateMessageRequest:
    message = t.SamplingMessage(role="user", content=words(text))
    return t.CreateMessageRequest(params=t.CreateMessageRequestParams(messages=[message], max_tokens=100))


def roots() -> t.ListRootsRequest:
    return t.ListRootsRequest(params=t.RequestParams())


def needed(state: str | None = None, **requests: Any) -> t.InputRequiredResult:
    return t.InputRequiredResult(input_requests=requests, request_state=state)


IMAGE = t.ImageContent(type="image", data=PNG, mime_type="image/png")


@tool("test_simple_text")
async def simple_text(context: Any, params: Any) -> Any:
    return done(words("This is a simple text response for testing."))


@tool("test_image_content")
async def image_content(context: Any, params: Any) -> Any:
    return done(IMAGE)


@tool("test_audio_content")
async def audio_content(context: Any, params: Any) -> Any:
    return done(t.AudioContent(type="audio", data=WAV, mime_type="audio/wav"))


@tool("test_embedded_resource")
async def embedded_resource(context: Any, params: Any) -> Any:
    return done(resource("test://embedded-resource", "text/plain", "This is an embedded resource."))


@tool("test_multiple_content_types")
async def multiple_content(context: Any, params: Any) -> Any:
    mixed = resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return done(words("Several kinds:"), IMAGE, mixed)


@tool("test_error_handling")
async def error_handling(context: Any, params: Any) -> Any:
    return done(words("This tool intentionally returns an error for testing"), is_error=True)


@tool("test_tool_with_progress")
async def with_progress(context: Any, params: Any) -> Any:
    for step in (0, 50, 100):
        await context.session.report_progress(step, 100)
        await asyncio.sleep(0.05)
    return done(words("done"))


@tool("test_logging_tool")
@tool("test_tool_with_logging")
async def with_logging(context: Any, params: Any) -> Any:
    for said in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await context.session.send_log_message("info", said, related_request_id=context.request_id)
        await asyncio.sleep(0.05)
    return done(words("done"))


@tool("test_sampling", prompt=TEXT)
async def asks_the_model(context: Any, params: Any) -> Any:
    message = t.SamplingMessage(role="user", content=words(params.arguments["prompt"]))
    said = await context.session.create_message(
        [message], max_tokens=100, related_request_id=context.request_id
    )
    return done(words(f"LLM response: {said.content.text}"))


async def elicited(context: Any, message: str, properties: dict[str, Any], **more: Any) -> Any:
    form = {"type": "object", "properties": properties, **more}
    said = await context.session.elicit_form(message, form, related_request_id=context.request_id)
    return done(words(f"User response: {said.action}"))


@tool("test_elicitation", message=TEXT)
async def asks_a_person(context: Any, params: Any) -> Any:
    fields = {"username": TEXT, "email": TEXT}
    return await elicited(context, params.arguments["message"], fields, required=list(fields))


@tool("test_elicitation_sep1034_defaults")
async def asks_with_defaults(context: Any, params: Any) -> Any:
    return await elicited(context, "With defaults", DEFAULTS)


@tool("test_elicitation_sep1330_enums")
async def asks_with_choices(context: Any, params: Any) -> Any:
    return await elicited(context, "With choices", ENUMS)


@tool("test_missing_capability")
async def needs_a_capability(context: Any, params: Any) -> Any:
    declared = context.session.client_capabilities
    if declared is None or declared.sampling is None:
        wanted: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(t.MISSING_REQUIRED_CLIENT_CAPABILITY, "it needs sampling", wanted)
    return done(words("done"))


@tool("test_streaming_elicitation")
async def streams(context: Any, params: Any) -> Any:
    return done(words("done")) if params.input_responses else needed(name=question("Name?", name=TEXT))


@tool("test_trigger_tool_change")
async def changes_tools(context: Any, params: Any) -> Any:
    await bus.publish(ToolsListChanged())
    return done(words("done"))


@tool("test_trigger_prompt_change")
async def changes_prompts(context: Any, params: Any) -> Any:
    await bus.publish(PromptsListChanged())
    return done(words("done"))


@tool(INPUTS + "elicitation")
async def inputs_of_a_person(context: Any, params: Any) -> Any:
    said = (params.input_responses or {}).get("user_name")
    if said is None:
        return needed(user_name=question("What is your name?", name=TEXT))
    return done(words(f"Hello, {said.content['name']}!"))


@tool(INPUTS + "sampling")
async def inputs_of_the_model(context: Any, params: Any) -> Any:
    if params.input_responses:
        return done(words("done"))
    return needed(capital_question=sampling("What is the capital of France?"))


@tool(INPUTS + "list_roots")
async def inputs_of_roots(context: Any, params: Any) -> Any:
    return done(words("done")) if params.input_responses else needed(client_roots=roots())


@tool(INPUTS + "request_state")
@tool(INPUTS + "tampered_state")
async def inputs_with_a_state(context: Any, params: Any) -> Any:
    if params.input_responses and params.request_state == "first":
        return done(words("state-ok"))
    return needed("first", confirm=question("All right?", ok={"type": "boolean"}))


@tool(INPUTS + "multiple_inputs")
async def several_inputs(context: Any, params: Any) -> Any:
    if params.input_responses:
        return done(words("done"))
    name, greeting = question("Name?", name=TEXT), sampling("Greet them.")
    return needed("first", user_name=name, greeting=greeting, client_roots=roots())


@tool(INPUTS + "multi_round")
async def several_rounds(context: Any, params: Any) -> Any:
    if not params.request_state:
        return needed("first", step1=question("Name?", name=TEXT))
    if params.request_state == "first":
        return needed("second", step2=question("Colour?", color=TEXT))
    return done(words("done"))


@tool(INPUTS + "capabilities")
async def inputs_by_capability(context: Any, params: Any) -> Any:
    declared = context.session.client_capabilities or t.ClientCapabilities()
    wanted: dict[str, Any] = {}
    if declared.sampling is not None:
        wanted["model"] = sampling("Hello")
    if declared.elicitation is not None:
        wanted["person"] = question("Hello?", name=TEXT)
    return needed(**wanted)


@tool("test_header", region={**TEXT, "x-mcp-header": "Region"})
async def takes_a_header(context: Any, params: Any) -> Any:
    return done(words("done"))


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
        return needed(user_context=question("Context?", context=TEXT))
    blocks: list[Any] = [words(f"A prompt with {arguments}")]
    if params.name == "test_prompt_with_embedded_resource":
        blocks.insert(0, resource(arguments["resourceUri"], "text/plain", "embedded"))
    if params.name == "test_prompt_with_image":
        blocks.insert(0, IMAGE)
    return t.GetPromptResult(messages=[t.PromptMessage(role="user", content=each) for each in blocks])


async def nothing(context: Any, params: Any) -> Any:
    return t.EmptyResult()


async def complete(context: Any, params: Any) -> Any:
    return t.CompleteResult(completion=t.Completion(values=[], total=0, has_more=False))


def main() -> None:
    warnings.simplefilter("ignore")  # the older revision's ways are what is tried
    server: Server[Any] = Server(
        "conformance-fixture",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=nothing,
        on_unsubscribe_resource=nothing,
        on_subscriptions_listen=ListenHandler(bus),
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
        get_tool_input_schema=lambda name: TOOLS[name][0] if name in TOOLS else None,
    )
    server.add_request_handler("logging/setLevel", t.SetLevelRequestParams, nothing)
    security = RequestStateSecurity.ephemeral()
    server.middleware.append(RequestStateBoundary(security, default_audience="fixture"))
    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")


if __name__ == "__main__":
    main()
