"""Elicitation and sampling requests of a server, and the responses it gets."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError

from tests.cases import check_cases
from toolfold.config.servers_settings import parse_server_settings
from toolfold.mcp.elicitation import MAX_QUEUED_REQUESTS, MAX_SAMPLING_TOKENS, InteractionCallbacks
from toolfold.mcp.elicitation_requests import (
    ElicitationReply,
    ElicitationRequest,
    SamplingRequest,
    SamplingResult,
    parse_form,
    parse_url_request,
    validate_values,
)

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
SECRET = "correct horse battery staple"


class ScriptedUser:
    """Callback that gives the next of its answers to each request and records the requests."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), list[ElicitationRequest]()

    def __call__(self, request: ElicitationRequest) -> Any:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def call_asking_tool(
    callbacks: InteractionCallbacks, tool: str, settings: Mapping[str, Any] | None = None, **args: Any
) -> Any:
    """Call a tool that sends a request to the client, over a real connection; return the response it got."""
    return (await call_asking_tools(callbacks, [(tool, args)], settings))[0]


async def call_asking_tools(
    callbacks: InteractionCallbacks,
    calls: list[tuple[str, dict[str, Any]]],
    settings: Mapping[str, Any] | None = None,
    after_each: Callable[[], None] = lambda: None,
) -> list[Any]:
    handler = callbacks.create_prompt_handler(
        "notes", parse_server_settings({"command": "x", **(settings or {})})
    )
    client = Client(
        create_asking_server(),
        mode="legacy",
        elicitation_callback=handler.elicitation_callback,
        sampling_callback=handler.sampling_callback,
    )

    async def call(tool: str, args: dict[str, Any]) -> Any:
        result = await client.call_tool(tool, args)
        after_each()
        return result

    async with client:
        results = await asyncio.gather(*(call(tool, args) for tool, args in calls))
        assert not handler.is_waiting
    return [result.structured_content for result in results]


def create_asking_server() -> MCPServer:
    """Server whose tools send requests to the client and return the response."""
    server = MCPServer("asking")

    async def response_json(asking: Any) -> dict[str, Any]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = await asking
        except MCPError as error:
            return {"error": error.error.message, "code": error.error.code}
        return dict(result.model_dump(mode="json", by_alias=True, exclude_none=True))

    @server.tool()
    async def ask(schema: dict[str, Any], context: Context, message: str = "Who are you?") -> dict[str, Any]:
        return await response_json(context.session.elicit_form(message, schema))

    @server.tool()
    async def go(url: str, context: Context) -> dict[str, Any]:
        return await response_json(context.session.elicit_url("Please log in", url, "1"))

    @server.tool()
    async def think(text: str, context: Context, tokens: int = 10, tools: bool = False) -> dict[str, Any]:
        content = mcp_types.TextContent(type="text", text=text)
        params = mcp_types.CreateMessageRequestParams(
            messages=[mcp_types.SamplingMessage(role="user", content=content)],
            system_prompt="Be brief",
            max_tokens=tokens,
            tools=[mcp_types.Tool(name="t", input_schema={"type": "object"})] if tools else None,
        )
        request = mcp_types.CreateMessageRequest(params=params)
        return await response_json(context.session.send_request(request, mcp_types.CreateMessageResult))

    @server.tool()
    async def may(context: Context) -> dict[str, Any]:
        params = context.session.client_params
        return dict(params.capabilities.model_dump(mode="json", exclude_none=True)) if params else {}

    return server


async def test_elicitation_callback_receives_the_form_and_its_return_value_is_sent_to_the_server() -> None:
    elicit = ScriptedUser(ElicitationReply("accept", {"name": "Ada", "note": "not asked for"}))
    answer = await call_asking_tool(InteractionCallbacks(elicit=elicit), "ask", schema=NAME)
    assert answer == {"action": "accept", "content": {"name": "Ada"}}
    (request,) = elicit.asked
    assert (request.server, request.mode, request.message) == ("notes", "form", "Who are you?")
    assert [(f.name, f.kind, f.required) for f in request.fields] == [("name", "text", True)]


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (ElicitationReply("decline"), "decline"),
        (ElicitationReply("cancel"), "cancel"),
        (False, "decline"),
        (None, "cancel"),
        ("yes", "cancel"),
        (1, "cancel"),
        (RuntimeError(SECRET), "cancel"),
    ],
)
async def test_elicitation_is_cancelled_if_its_callback_raises_or_returns_an_unsupported_value(
    said: Any, heard: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "toolfold")
    assert await call_asking_tool(InteractionCallbacks(elicit=ScriptedUser(said)), "ask", schema=NAME) == {
        "action": heard
    }
    assert SECRET not in caplog.text


async def test_form_values_returned_by_an_async_elicitation_callback_are_sent_with_the_action_accept() -> (
    None
):
    async def elicit(request: ElicitationRequest) -> dict[str, str]:
        return {"name": request.server}

    answer = await call_asking_tool(InteractionCallbacks(elicit=elicit), "ask", schema=NAME)
    assert answer == {"action": "accept", "content": {"name": "notes"}}


async def test_elicitation_is_repeated_after_an_invalid_reply_and_cancelled_after_three_invalid_replies() -> (
    None
):
    elicit = ScriptedUser({"name": 5}, {}, {"name": "Ada"})
    assert (await call_asking_tool(InteractionCallbacks(elicit=elicit), "ask", schema=NAME))["content"] == {
        "name": "Ada"
    }
    assert [bool(request.problem) for request in elicit.asked] == [False, True, True]
    assert "required" in elicit.asked[2].problem
    stubborn = ScriptedUser({"name": 5}, {"name": 5}, {"name": 5}, {"name": "late"})
    assert await call_asking_tool(InteractionCallbacks(elicit=stubborn), "ask", schema=NAME) == {
        "action": "cancel"
    }


async def test_elicitation_repeated_after_an_invalid_reply_is_not_marked_as_withdrawn() -> None:
    withdrawn = []

    def elicit(request: ElicitationRequest) -> dict[str, Any]:
        withdrawn.append(request.withdrawn.is_set())
        return {"name": "Ada"} if request.problem else {}

    await call_asking_tool(InteractionCallbacks(elicit=elicit), "ask", schema=NAME)
    assert withdrawn == [False, False]


async def test_elicitation_without_a_reply_is_cancelled_and_marked_as_withdrawn_after_the_timeout() -> None:
    asked: list[ElicitationRequest] = []
    over = threading.Event()

    def elicit(request: ElicitationRequest) -> Any:
        asked.append(request)
        over.wait(60)
        return {"name": "late"}

    answer = await call_asking_tool(
        InteractionCallbacks(elicit=elicit, timeout_seconds=1.0), "ask", schema=NAME
    )
    assert answer == {"action": "cancel"}
    assert asked[0].withdrawn.is_set()
    over.set()


async def test_elicitations_are_declined_without_asking_the_user_if_the_server_settings_say_decline() -> None:
    elicit = ScriptedUser()
    answer = await call_asking_tool(
        InteractionCallbacks(elicit=elicit), "ask", {"elicitation": "decline"}, schema=NAME
    )
    assert answer == {"action": "decline"}
    assert elicit.asked == []


async def test_elicitation_and_sampling_are_declared_only_if_callbacks_and_server_settings_allow_them() -> (
    None
):
    def sampler(request: SamplingRequest) -> str:
        return "x"

    elicit = ScriptedUser()
    assert set(await call_asking_tool(InteractionCallbacks(), "may")) == set()
    assert set(await call_asking_tool(InteractionCallbacks(elicit=elicit), "may")) == {"elicitation"}
    assert (
        set(await call_asking_tool(InteractionCallbacks(sampler=sampler), "may")) == set()
    )  # the policy `ask` needs an elicit callback
    assert set(
        await call_asking_tool(InteractionCallbacks(sampler=sampler), "may", {"sampling": "allow"})
    ) == {"sampling"}
    assert set(await call_asking_tool(InteractionCallbacks(elicit=elicit, sampler=sampler), "may")) == {
        "elicitation",
        "sampling",
    }
    denied = await call_asking_tool(
        InteractionCallbacks(elicit=elicit, sampler=sampler), "may", {"sampling": "deny"}
    )
    assert set(denied) == {"elicitation"}


async def test_elicitation_and_sampling_requests_return_an_error_if_no_callbacks_are_set() -> None:
    assert "error" in await call_asking_tool(InteractionCallbacks(), "ask", schema=NAME)
    assert "error" in await call_asking_tool(InteractionCallbacks(), "think", text="hello")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"type": "object"},
        {"type": "object", "properties": {"deep": {"type": "object", "properties": {}}}},
        {"type": "object", "properties": {"list": {"type": "array", "items": {"type": "string"}}}},
        {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema"}}},
        {"type": "object", "properties": {}, "required": ["ghost"]},
        {"type": "object", "properties": {f"f{i}": {"type": "string"} for i in range(41)}},
        {"type": "object", "properties": {"c": {"type": "string", "enum": [str(i) for i in range(501)]}}},
    ],
)
async def test_elicitation_form_with_unsupported_or_too_many_fields_is_rejected_without_asking_the_user(
    schema: dict[str, Any],
) -> None:
    elicit = ScriptedUser()
    answer = await call_asking_tool(InteractionCallbacks(elicit=elicit), "ask", schema=schema)
    assert answer["code"] == -32602
    assert elicit.asked == []


async def test_url_elicitation_asks_the_user_for_consent_and_shows_the_whole_url() -> None:
    elicit = ScriptedUser(True)
    assert await call_asking_tool(
        InteractionCallbacks(elicit=elicit), "go", url="https://login.example.com/a?b=c"
    ) == {"action": "accept"}
    (request,) = elicit.asked
    assert (request.mode, request.url) == ("url", "https://login.example.com/a?b=c")
    assert (request.host, request.warnings) == ("login.example.com", ())


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "https://bank.example@evil.example/",
        "https://bank.example\\@evil.example/",
        "https://evil.example/ bank.example",
        "https://evil.example/\u202ebank",
        "https:///nowhere",
        "https://[broken",
        "https://example.com/" + "x" * 5_000,
    ],
)
async def test_elicitation_with_a_deceptive_or_invalid_url_is_refused(url: str) -> None:
    elicit = ScriptedUser()
    assert (await call_asking_tool(InteractionCallbacks(elicit=elicit), "go", url=url))["code"] == -32602
    assert elicit.asked == []


@check_cases(
    ("url", "host", "warning"),
    [
        ("http://example.com/", "example.com", "not encrypted"),
        ("https://b\u00fccher.example/", "xn--bcher-kva.example", "non-ASCII characters"),
        ("https://xn--80ak6aa92e.com/", "xn--80ak6aa92e.com", "non-ASCII characters"),
        ("http://127.0.0.1:8080/", "127.0.0.1", ""),
    ],
)
def test_elicitation_request_with_an_unencrypted_or_non_ascii_url_contains_a_warning(
    url: str, host: str, warning: str
) -> None:
    request = parse_url_request("notes", "Please", url)
    assert request.host == host
    assert warning in " ".join(request.warnings)
    assert bool(warning) == bool(request.warnings)


def test_elicitation_form_that_asks_for_a_secret_contains_a_warning() -> None:
    asked = {"properties": {"name": {"type": "string"}, "key": {"type": "string", "title": "API key"}}}
    assert [w.split("'")[1] for w in parse_form("notes", "", asked).warnings] == ["key"]


def test_long_texts_of_an_elicitation_form_are_truncated_and_invisible_characters_removed() -> None:
    asked = {"properties": {"a": {"type": "string", "title": "x" * 9_000, "description": "see\u200bn\u202e"}}}
    request = parse_form("notes", "hi\u2066dden" + "y" * 9_000, asked)
    assert request.message.startswith("hidden")
    assert len(request.message) < 5_000
    assert len(request.fields[0].title) < 500
    assert request.fields[0].description == "seen"


ALL_KINDS = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 2, "maxLength": 4},
        "mail": {"type": "string", "format": "email"},
        "day": {"type": "string", "format": "date"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150, "default": 30},
        "share": {"type": "number", "maximum": 1},
        "sure": {"type": "boolean", "default": False},
        "size": {"type": "string", "enum": ["s", "m"], "enumNames": ["Small", "Medium"]},
        "hue": {"type": "string", "oneOf": [{"const": "#f00", "title": "Red"}, {"const": "#0f0"}]},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 2, "default": ["a"]},
        "more": {"type": "array", "items": {"anyOf": [{"const": "x", "title": "The x"}]}},
    },
}


def test_every_kind_of_field_in_an_elicitation_form_is_parsed_with_its_choices() -> None:
    fields = {f.name: f for f in parse_form("notes", "", ALL_KINDS).fields}
    kinds = ["text", "text", "text", "integer", "number", "switch", "choice", "choice", "choices", "choices"]
    assert [f.kind for f in fields.values()] == kinds
    assert [(c.value, c.label) for c in fields["size"].choices] == [("s", "Small"), ("m", "Medium")]
    assert [(c.value, c.label) for c in fields["hue"].choices] == [("#f00", "Red"), ("#0f0", "#0f0")]
    assert [c.label for c in fields["more"].choices] == ["The x"]


def test_default_value_of_an_elicitation_field_is_sent_unless_the_reply_sets_the_field_to_none() -> None:
    request = parse_form("notes", "", ALL_KINDS)
    assert validate_values(request, {}) == {"age": 30, "sure": False, "tags": ["a"]}
    assert validate_values(request, {"age": None, "sure": True, "tags": ["b", "c"]}) == {
        "sure": True,
        "tags": ["b", "c"],
    }


@check_cases(
    ("name", "value"),
    [
        ("text", "x"),
        ("text", "longer"),
        ("mail", "nobody"),
        ("day", "tomorrow"),
        ("age", -1),
        ("age", 1.5),
        ("age", True),
        ("share", 2),
        ("share", float("nan")),
        ("sure", "yes"),
        ("size", "l"),
        ("hue", "Red"),
        ("tags", ["a", "b", "c"]),
        ("tags", ["z"]),
        ("tags", "a"),
        ("text", object()),
        ("mail", "a" * 200_000 + "@example.com"),
    ],
)
def test_error_for_an_invalid_elicitation_value_contains_the_field_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        validate_values(parse_form("notes", "", ALL_KINDS), {name: value})


@check_cases(
    ("name", "typed", "value"),
    [
        ("age", " 41 ", 41),
        ("share", "0.5", 0.5),
        ("share", "inf", "inf"),
        ("age", "many", "many"),
        ("sure", "Yes", True),
        ("sure", "n", False),
        ("sure", "maybe", "maybe"),
        ("tags", "a, b,", ["a", "b"]),
        ("text", " as it is ", " as it is "),
    ],
)
def test_text_typed_into_an_elicitation_field_is_converted_to_the_type_of_the_field(
    name: str, typed: str, value: Any
) -> None:
    fields = {f.name: f for f in parse_form("notes", "", ALL_KINDS).fields}
    assert fields[name].parse_input(typed) == value


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_WORDS = st.sampled_from(
    [
        "type",
        "properties",
        "required",
        "enum",
        "oneOf",
        "anyOf",
        "items",
        "const",
        "default",
        "minimum",
        "title",
    ]
)


@given(st.dictionaries(_WORDS, _JSON), st.dictionaries(st.text(max_size=8), _JSON))
def test_arbitrary_elicitation_forms_and_replies_raise_no_error_other_than_value_error(
    schema: dict[str, Any], values: dict[str, Any]
) -> None:
    try:
        request = parse_form(
            "notes", "?", {"type": "object", "properties": {"it": schema, "x": {"type": "string"}}}
        )
        answer = validate_values(request, values)
    except ValueError:
        return
    assert set(answer) <= {"it", "x"}


@given(st.text())
def test_arbitrary_elicitation_urls_are_parsed_with_an_ascii_host_or_raise_value_error(url: str) -> None:
    try:
        request = parse_url_request("notes", "?", url)
    except ValueError:
        return
    assert request.host.isascii()
    assert request.url.startswith(("http", "HTTP", "Http"))


async def test_concurrent_elicitations_are_shown_one_at_a_time_and_declined_above_the_queue_limit() -> None:
    now, most, told_already = 0, 0, threading.Semaphore(0)

    def elicit(request: ElicitationRequest) -> dict[str, str]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if not asked:
            for _ in range(3):  # declined while the first request is open
                told_already.acquire(timeout=60)
        asked.append(request)
        time.sleep(0.05)
        now -= 1
        return {"name": "Ada"}

    asked: list[ElicitationRequest] = []
    answers = await call_asking_tools(
        InteractionCallbacks(elicit=elicit),
        [("ask", {"schema": NAME})] * (MAX_QUEUED_REQUESTS + 3),
        after_each=told_already.release,
    )
    actions = sorted(answer["action"] for answer in answers)
    assert actions == ["accept"] * MAX_QUEUED_REQUESTS + ["decline"] * 3
    assert most == 1


async def test_sampling_request_is_sent_to_the_model_after_the_user_approved_its_prompt() -> None:
    wishes: list[SamplingRequest] = []

    def sampler(request: SamplingRequest) -> SamplingResult:
        wishes.append(request)
        return SamplingResult("42", model="small-1")

    elicit = ScriptedUser(True)
    callbacks = InteractionCallbacks(elicit=elicit, sampler=sampler)
    answer = await call_asking_tool(callbacks, "think", text="Six times seven?", tokens=10**9)
    assert answer == {
        "role": "assistant",
        "content": {"type": "text", "text": "42"},
        "model": "small-1",
        "stopReason": "endTurn",
    }
    assert (elicit.asked[0].mode, elicit.asked[0].server) == ("sampling", "notes")
    assert elicit.asked[0].message == "system: Be brief\nuser: Six times seven?"
    assert (wishes[0].max_tokens, wishes[0].system) == (MAX_SAMPLING_TOKENS, "Be brief")
    assert wishes[0].messages[0]["content"][0]["text"] == "Six times seven?"


@pytest.mark.parametrize("said", [False, None, ElicitationReply("decline"), RuntimeError()])
async def test_sampling_request_is_refused_if_the_user_does_not_approve_its_prompt(said: Any) -> None:
    asked: list[SamplingRequest] = []
    answer = await call_asking_tool(
        InteractionCallbacks(elicit=ScriptedUser(said), sampler=asked.append), "think", text="hello"
    )
    assert answer["code"] == -1
    assert asked == []


async def test_sampling_requests_run_without_asking_the_user_if_the_server_settings_allow_sampling() -> None:
    answer = await call_asking_tool(
        InteractionCallbacks(sampler=lambda request: "fine"),
        "think",
        {"sampling": "allow"},
        text="How are you?",
    )
    assert answer["content"]["text"] == "fine"


async def test_failing_sampling_callback_returns_an_error_without_details_to_the_server() -> None:
    def failing(request: SamplingRequest) -> str:
        raise RuntimeError(SECRET)

    for sampler in (failing, lambda request: None):
        answer = await call_asking_tool(
            InteractionCallbacks(sampler=sampler), "think", {"sampling": "allow"}, text="hello"
        )
        assert answer == {"error": "The model gave no response.", "code": -32603}


async def test_sampling_request_with_tools_or_too_much_text_is_rejected_without_calling_the_model() -> None:
    asked: list[SamplingRequest] = []
    callbacks = InteractionCallbacks(sampler=asked.append)
    for request in ({"text": "x" * 500_000}, {"text": "x", "tools": True}, {"text": "x", "tokens": 0}):
        answer = await call_asking_tool(callbacks, "think", {"sampling": "allow"}, **request)
        assert answer["code"] == -32602
    assert asked == []
