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

from toolfold.config.servers import parse_server_settings
from toolfold.sources.mcp.elicitation import MAX_QUEUED_REQUESTS, MAX_SAMPLING_TOKENS, InteractionCallbacks
from toolfold.sources.mcp.elicitation_requests import (
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


class Asking:
    """Callback that gives the next of its answers to each request and records the requests."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), list[ElicitationRequest]()

    def __call__(self, question: ElicitationRequest) -> Any:
        self.asked.append(question)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def told(
    people: InteractionCallbacks, tool: str, settings: Mapping[str, Any] | None = None, **args: Any
) -> Any:
    """Call a tool that sends a request to the client, over a real connection; return the response it got."""
    return (await all_told(people, [(tool, args)], settings))[0]


async def all_told(
    people: InteractionCallbacks,
    calls: list[tuple[str, dict[str, Any]]],
    settings: Mapping[str, Any] | None = None,
    after_each: Callable[[], None] = lambda: None,
) -> list[Any]:
    voice = people.create_prompt_handler("notes", parse_server_settings({"command": "x", **(settings or {})}))
    client = Client(
        asking_server(),
        mode="legacy",
        elicitation_callback=voice.elicitation_callback,
        sampling_callback=voice.sampling_callback,
    )

    async def call(tool: str, args: dict[str, Any]) -> Any:
        result = await client.call_tool(tool, args)
        after_each()
        return result

    async with client:
        results = await asyncio.gather(*(call(tool, args) for tool, args in calls))
        assert not voice.is_waiting
    return [result.structured_content for result in results]


def asking_server() -> MCPServer:
    """Server whose tools send requests to the client and return the response."""
    server = MCPServer("asking")

    async def outcome(asking: Any) -> dict[str, Any]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = await asking
        except MCPError as error:
            return {"error": error.error.message, "code": error.error.code}
        return dict(result.model_dump(mode="json", by_alias=True, exclude_none=True))

    @server.tool()
    async def ask(schema: dict[str, Any], context: Context, message: str = "Who are you?") -> dict[str, Any]:
        return await outcome(context.session.elicit_form(message, schema))

    @server.tool()
    async def go(url: str, context: Context) -> dict[str, Any]:
        return await outcome(context.session.elicit_url("Please log in", url, "1"))

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
        return await outcome(context.session.send_request(request, mcp_types.CreateMessageResult))

    @server.tool()
    async def may(context: Context) -> dict[str, Any]:
        params = context.session.client_params
        return dict(params.capabilities.model_dump(mode="json", exclude_none=True)) if params else {}

    return server


async def test_form_shows_the_server_name_and_the_reply_is_returned() -> None:
    person = Asking(ElicitationReply("accept", {"name": "Ada", "note": "not asked for"}))
    answer = await told(InteractionCallbacks(elicit=person), "ask", schema=NAME)
    assert answer == {"action": "accept", "content": {"name": "Ada"}}
    (question,) = person.asked
    assert (question.server, question.mode, question.message) == ("notes", "form", "Who are you?")
    assert [(f.name, f.kind, f.required) for f in question.fields] == [("name", "text", True)]


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
async def test_unclear_reply_counts_as_refusal(
    said: Any, heard: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "toolfold")
    assert await told(InteractionCallbacks(elicit=Asking(said)), "ask", schema=NAME) == {"action": heard}
    assert SECRET not in caplog.text


async def test_elicit_callback_may_be_async_and_return_plain_values() -> None:
    async def person(question: ElicitationRequest) -> dict[str, str]:
        return {"name": question.server}

    answer = await told(InteractionCallbacks(elicit=person), "ask", schema=NAME)
    assert answer == {"action": "accept", "content": {"name": "notes"}}


async def test_invalid_reply_is_asked_again_up_to_the_limit() -> None:
    person = Asking({"name": 5}, {}, {"name": "Ada"})
    assert (await told(InteractionCallbacks(elicit=person), "ask", schema=NAME))["content"] == {"name": "Ada"}
    assert [bool(question.problem) for question in person.asked] == [False, True, True]
    assert "required" in person.asked[2].problem
    stubborn = Asking({"name": 5}, {"name": 5}, {"name": 5}, {"name": "late"})
    assert await told(InteractionCallbacks(elicit=stubborn), "ask", schema=NAME) == {"action": "cancel"}


async def test_repeated_request_is_not_withdrawn() -> None:
    withdrawn = []

    def person(question: ElicitationRequest) -> dict[str, Any]:
        withdrawn.append(question.withdrawn.is_set())
        return {"name": "Ada"} if question.problem else {}

    await told(InteractionCallbacks(elicit=person), "ask", schema=NAME)
    assert withdrawn == [False, False]


async def test_timeout_cancels_and_withdraws_the_request() -> None:
    asked: list[ElicitationRequest] = []
    over = threading.Event()

    def person(question: ElicitationRequest) -> Any:
        asked.append(question)
        over.wait(60)
        return {"name": "late"}

    answer = await told(InteractionCallbacks(elicit=person, timeout_seconds=1.0), "ask", schema=NAME)
    assert answer == {"action": "cancel"}
    assert asked[0].withdrawn.is_set()
    over.set()


async def test_decline_policy_does_not_ask_the_user() -> None:
    person = Asking()
    answer = await told(InteractionCallbacks(elicit=person), "ask", {"elicitation": "decline"}, schema=NAME)
    assert answer == {"action": "decline"}
    assert person.asked == []


async def test_unavailable_capabilities_are_not_declared_to_the_server() -> None:
    def sampler(wish: SamplingRequest) -> str:
        return "x"

    person = Asking()
    assert set(await told(InteractionCallbacks(), "may")) == set()
    assert set(await told(InteractionCallbacks(elicit=person), "may")) == {"elicitation"}
    assert (
        set(await told(InteractionCallbacks(sampler=sampler), "may")) == set()
    )  # asking first needs somebody to ask
    assert set(await told(InteractionCallbacks(sampler=sampler), "may", {"sampling": "allow"})) == {
        "sampling"
    }
    assert set(await told(InteractionCallbacks(elicit=person, sampler=sampler), "may")) == {
        "elicitation",
        "sampling",
    }
    denied = await told(InteractionCallbacks(elicit=person, sampler=sampler), "may", {"sampling": "deny"})
    assert set(denied) == {"elicitation"}


async def test_undeclared_request_gets_an_error() -> None:
    assert "error" in await told(InteractionCallbacks(), "ask", schema=NAME)
    assert "error" in await told(InteractionCallbacks(), "think", text="hello")


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
async def test_unsupported_form_is_refused_without_asking(schema: dict[str, Any]) -> None:
    person = Asking()
    answer = await told(InteractionCallbacks(elicit=person), "ask", schema=schema)
    assert answer["code"] == -32602
    assert person.asked == []


async def test_url_request_shows_the_whole_url_and_only_asks_for_consent() -> None:
    person = Asking(True)
    assert await told(InteractionCallbacks(elicit=person), "go", url="https://login.example.com/a?b=c") == {
        "action": "accept"
    }
    (question,) = person.asked
    assert (question.mode, question.url) == ("url", "https://login.example.com/a?b=c")
    assert (question.host, question.warnings) == ("login.example.com", ())


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
async def test_deceptive_url_is_refused(url: str) -> None:
    person = Asking()
    assert (await told(InteractionCallbacks(elicit=person), "go", url=url))["code"] == -32602
    assert person.asked == []


@pytest.mark.parametrize(
    ("url", "host", "warning"),
    [
        ("http://example.com/", "example.com", "not encrypted"),
        ("https://b\u00fccher.example/", "xn--bcher-kva.example", "non-ASCII characters"),
        ("https://xn--80ak6aa92e.com/", "xn--80ak6aa92e.com", "non-ASCII characters"),
        ("http://127.0.0.1:8080/", "127.0.0.1", ""),
    ],
)
def test_unusual_url_has_a_warning(url: str, host: str, warning: str) -> None:
    question = parse_url_request("notes", "Please", url)
    assert question.host == host
    assert warning in " ".join(question.warnings)
    assert bool(warning) == bool(question.warnings)


def test_form_that_asks_for_a_secret_has_a_warning() -> None:
    asked = {"properties": {"name": {"type": "string"}, "key": {"type": "string", "title": "API key"}}}
    assert [w.split("'")[1] for w in parse_form("notes", "", asked).warnings] == ["key"]


def test_texts_are_truncated_and_have_no_invisible_characters() -> None:
    asked = {"properties": {"a": {"type": "string", "title": "x" * 9_000, "description": "see\u200bn\u202e"}}}
    question = parse_form("notes", "hi\u2066dden" + "y" * 9_000, asked)
    assert question.message.startswith("hidden")
    assert len(question.message) < 5_000
    assert len(question.fields[0].title) < 500
    assert question.fields[0].description == "seen"


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


def test_every_kind_of_field_is_parsed() -> None:
    fields = {f.name: f for f in parse_form("notes", "", ALL_KINDS).fields}
    kinds = ["text", "text", "text", "integer", "number", "switch", "choice", "choice", "choices", "choices"]
    assert [f.kind for f in fields.values()] == kinds
    assert [(c.value, c.label) for c in fields["size"].choices] == [("s", "Small"), ("m", "Medium")]
    assert [(c.value, c.label) for c in fields["hue"].choices] == [("#f00", "Red"), ("#0f0", "#0f0")]
    assert [c.label for c in fields["more"].choices] == ["The x"]


def test_defaults_are_sent_unless_removed() -> None:
    question = parse_form("notes", "", ALL_KINDS)
    assert validate_values(question, {}) == {"age": 30, "sure": False, "tags": ["a"]}
    assert validate_values(question, {"age": None, "sure": True, "tags": ["b", "c"]}) == {
        "sure": True,
        "tags": ["b", "c"],
    }


@pytest.mark.parametrize(
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
def test_invalid_value_is_named_in_the_error(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        validate_values(parse_form("notes", "", ALL_KINDS), {name: value})


@pytest.mark.parametrize(
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
def test_typed_text_is_converted_to_a_value(name: str, typed: str, value: Any) -> None:
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
def test_any_form_and_values_are_parsed_or_refused(schema: dict[str, Any], values: dict[str, Any]) -> None:
    try:
        question = parse_form(
            "notes", "?", {"type": "object", "properties": {"it": schema, "x": {"type": "string"}}}
        )
        answer = validate_values(question, values)
    except ValueError:
        return
    assert set(answer) <= {"it", "x"}


@given(st.text())
def test_any_url_is_parsed_with_its_host_or_refused(url: str) -> None:
    try:
        question = parse_url_request("notes", "?", url)
    except ValueError:
        return
    assert question.host.isascii()
    assert question.url.startswith(("http", "HTTP", "Http"))


async def test_requests_are_asked_one_at_a_time_and_a_flood_is_declined() -> None:
    now, most, told_already = 0, 0, threading.Semaphore(0)

    def person(question: ElicitationRequest) -> dict[str, str]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if not asked:
            for _ in range(3):  # a flood is declined while the first question is still read
                told_already.acquire(timeout=60)
        asked.append(question)
        time.sleep(0.05)
        now -= 1
        return {"name": "Ada"}

    asked: list[ElicitationRequest] = []
    answers = await all_told(
        InteractionCallbacks(elicit=person),
        [("ask", {"schema": NAME})] * (MAX_QUEUED_REQUESTS + 3),
        after_each=told_already.release,
    )
    actions = sorted(answer["action"] for answer in answers)
    assert actions == ["accept"] * MAX_QUEUED_REQUESTS + ["decline"] * 3
    assert most == 1


async def test_sampling_runs_after_the_user_approved_the_prompt() -> None:
    wishes: list[SamplingRequest] = []

    def sampler(wish: SamplingRequest) -> SamplingResult:
        wishes.append(wish)
        return SamplingResult("42", model="small-1")

    person = Asking(True)
    people = InteractionCallbacks(elicit=person, sampler=sampler)
    answer = await told(people, "think", text="Six times seven?", tokens=10**9)
    assert answer == {
        "role": "assistant",
        "content": {"type": "text", "text": "42"},
        "model": "small-1",
        "stopReason": "endTurn",
    }
    assert (person.asked[0].mode, person.asked[0].server) == ("sampling", "notes")
    assert person.asked[0].message == "system: Be brief\nuser: Six times seven?"
    assert (wishes[0].max_tokens, wishes[0].system) == (MAX_SAMPLING_TOKENS, "Be brief")
    assert wishes[0].messages[0]["content"][0]["text"] == "Six times seven?"


@pytest.mark.parametrize("said", [False, None, ElicitationReply("decline"), RuntimeError()])
async def test_sampling_is_refused_without_user_approval(said: Any) -> None:
    asked: list[SamplingRequest] = []
    answer = await told(
        InteractionCallbacks(elicit=Asking(said), sampler=asked.append), "think", text="hello"
    )
    assert answer["code"] == -1
    assert asked == []


async def test_allow_policy_samples_without_asking() -> None:
    answer = await told(
        InteractionCallbacks(sampler=lambda wish: "fine"), "think", {"sampling": "allow"}, text="How are you?"
    )
    assert answer["content"]["text"] == "fine"


async def test_failing_sampler_gives_an_error_without_details() -> None:
    def failing(wish: SamplingRequest) -> str:
        raise RuntimeError(SECRET)

    for sampler in (failing, lambda wish: None):
        answer = await told(
            InteractionCallbacks(sampler=sampler), "think", {"sampling": "allow"}, text="hello"
        )
        assert answer == {"error": "The model gave no response.", "code": -32603}


async def test_sampling_with_tools_or_too_much_text_is_refused() -> None:
    asked: list[SamplingRequest] = []
    people = InteractionCallbacks(sampler=asked.append)
    for wish in ({"text": "x" * 500_000}, {"text": "x", "tools": True}, {"text": "x", "tokens": 0}):
        answer = await told(people, "think", {"sampling": "allow"}, **wish)
        assert answer["code"] == -32602
    assert asked == []
