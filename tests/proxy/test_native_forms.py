"""Folding in the providers' own forms of tools that are loaded on demand, as clients and providers see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.proxy.clients import Seen, ask, make_tools
from tests.proxy.harness import RunningProxy, serve_proxy
from tests.proxy.scripted_model import Say, ScriptedModel
from tests.proxy.upstream import Prepared, Received, Upstream, serve_upstream
from tests.proxy.weather_tools import FORECAST_CALL, SEARCH, TOOLS
from toolfold.core.types import BRIDGE_NAMES, Json
from toolfold.models.wire import WIRES
from toolfold.serving.proxy.native_forms import NativeForms, add_header_value
from toolfold.serving.proxy.upstreams import Upstream as Provider

pytestmark = pytest.mark.skipif(
    not (find_spec("openai") and find_spec("anthropic")),
    reason="the packages openai and anthropic are not installed",
)
each_api = pytest.mark.parametrize("api", ["messages", "responses"])
with_and_without_streaming = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
MODELS = {"messages": "claude-test-5", "responses": "gpt-5.4"}
QUESTION: Json = {"role": "user", "content": "What will the weather be in Porto?"}
DIRECT: tuple[str, Json] = ("get_forecast", {"city": "Porto", "days": 2})


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with serve_upstream() as made:
        yield made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[RunningProxy]:
    settings = {"proxy.folding": "on", "proxy.native": "on", "tools.rag_embed_model": "light"}
    with serve_proxy(tmp_path_factory.mktemp("native"), upstream.url, settings) as made:
        yield made


def converse(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool, *script: Say, **options: Any
) -> tuple[Seen, list[Json]]:
    """Ask the model with this script; return what the client sees and the provider gets."""
    model = ScriptedModel(list(script))
    upstream.answer = model
    options = {"tools": make_tools(api, TOOLS), "messages": [QUESTION], "model": MODELS[api], **options}
    messages = options.pop("messages")
    return ask(api, served.url, messages, stream=stream, **options), model.requests


def conversation_of(api: str, request: Json) -> list[Json]:
    messages: list[Json] = request["input" if api == "responses" else "messages"]
    return messages


@each_api
@with_and_without_streaming
def test_tool_search_result_consists_of_tool_references_if_the_provider_supports_deferred_tools(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    seen, (first, second) = converse(served, upstream, api, stream, Say("", [SEARCH]), Say("Here.", [DIRECT]))
    assert seen.calls == [DIRECT]
    assert seen.text == "Here."
    assert "form=native" in seen.headers["x-toolfold-folding"]
    own = {each["name"]: each for each in make_tools(api, TOOLS)}
    *_, result = conversation_of(api, second)
    if api == "messages":
        deferred = [each for each in first["tools"] if each.get("defer_loading")]
        assert deferred == [each | {"defer_loading": True} for each in own.values()]
        assert {each["name"] for each in first["tools"]} - own.keys() == BRIDGE_NAMES
        references = result["content"][0]["content"]
        assert {"type": "tool_reference", "tool_name": "get_forecast"} in references
    else:
        assert [each["type"] for each in first["tools"]] == ["tool_search"]
        assert first["tools"][0]["execution"] == "client"
        (output,) = (
            each for each in conversation_of(api, second) if each.get("type") == "tool_search_output"
        )
        assert own["get_forecast"] | {"defer_loading": True} in output["tools"]
    assert first["tools"] == second["tools"]
    assert conversation_of(api, second)[: len(conversation_of(api, first))] == conversation_of(api, first)


@each_api
@with_and_without_streaming
def test_follow_up_request_with_deferred_tools_repeats_all_messages_of_the_previous_request(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    seen, before = converse(served, upstream, api, stream, Say("", [SEARCH]), Say("Here.", [DIRECT]))
    messages = [QUESTION, *written_by_client(api, seen)]
    _, (after,) = converse(served, upstream, api, stream, Say("Sunny."), messages=messages)
    sent = conversation_of(api, before[-1])
    assert conversation_of(api, after)[: len(sent)] == sent
    assert after["tools"] == before[-1]["tools"]


def written_by_client(api: str, seen: Seen) -> list[Json]:
    """Return the messages that a client adds to its history after a reply with one call."""
    (call_id,), ((name, arguments),) = seen.call_ids, seen.calls
    if api == "messages":
        blocks = [{"type": "text", "text": seen.text}]
        blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": arguments})
        result = {"type": "tool_result", "tool_use_id": call_id, "content": "sun"}
        return [{"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
    call = {"type": "function_call", "call_id": call_id, "name": name, "arguments": json.dumps(arguments)}
    return [
        {"role": "assistant", "content": seen.text},
        call,
        {"type": "function_call_output", "call_id": call_id, "output": "sun"},
    ]


@each_api
def test_provider_that_rejects_deferred_tools_gets_only_search_tools_in_later_requests(
    tmp_path: Path, upstream: Upstream, api: str
) -> None:
    settings = {"proxy.folding": "on", "proxy.native": "on", "tools.rag_embed_model": "light"}
    script = ScriptedModel(lambda _body: Say("", [FORECAST_CALL]))
    received: list[set[str]] = []

    def refuse_native(request: Received) -> Prepared:
        received.append({str(each.get("name")) for each in request.json["tools"]})
        text = json.dumps(request.json["tools"])
        return Prepared(status=400) if "defer_loading" in text or '"execution"' in text else script(request)

    upstream.answer = refuse_native
    tools, model = make_tools(api, TOOLS), MODELS[api]
    with serve_proxy(tmp_path, upstream.url, settings) as served:
        for _ in range(2):
            seen = ask(api, served.url, [QUESTION], stream=True, tools=tools, model=model)
            assert seen.calls == [DIRECT]
    assert len(received) == 3  # the native form was tried once
    assert received[1] == received[2] == BRIDGE_NAMES


def test_tools_selected_for_a_message_are_added_to_the_input_with_their_full_client_definitions(
    tmp_path: Path, upstream: Upstream
) -> None:
    settings = {
        "proxy.native": "on",
        "tools.selection": "keyword",
        "tools.rag_need": "off",
        "tools.rag_top_k": 2,
        "tools.tool_search.threshold_tokens": 100,
    }
    tools = [{**each, "strict": True} for each in make_tools("responses", TOOLS)]
    with serve_proxy(tmp_path, upstream.url, settings) as served:
        seen, (before,) = converse(served, upstream, "responses", True, Say("Here.", [DIRECT]), tools=tools)
        messages = [QUESTION, *written_by_client("responses", seen)]
        _, (after,) = converse(
            served, upstream, "responses", True, Say("Sunny."), messages=messages, tools=tools
        )
    added = [each for each in before["input"] if each.get("type") == "additional_tools"]
    assert tools[0] in added[0]["tools"]
    assert [each["type"] for each in before["tools"]] == ["tool_search"]
    assert after["input"][: len(before["input"])] == before["input"]
    assert after["tools"] == before["tools"]


def test_cache_marker_of_a_deferred_tool_is_moved_to_a_tool_that_is_not_deferred(
    served: RunningProxy, upstream: Upstream
) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    tools = make_tools("messages", TOOLS)
    tools[-1] |= mark
    _, (request,) = converse(served, upstream, "messages", False, Say("Hi."), tools=tools)
    marked = [each for each in request["tools"] if "cache_control" in each]
    assert [each["name"] in BRIDGE_NAMES for each in marked] == [True]


def test_tool_named_by_tool_choice_is_sent_without_defer_loading(
    served: RunningProxy, upstream: Upstream
) -> None:
    choice = {"type": "tool", "name": "get_forecast"}
    _, (request,) = converse(served, upstream, "messages", False, Say("", [DIRECT]), tool_choice=choice)
    (entry,) = (each for each in request["tools"] if each["name"] == "get_forecast")
    assert "defer_loading" not in entry


OWN_FORMS: dict[str, tuple[str, list[Json]]] = {
    "deferred tool of a client": (
        "messages",
        [{"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}],
    ),
    "deferred toolset of a server": (
        "messages",
        [{"type": "mcp_toolset", "mcp_server_name": "x", "default_config": {"defer_loading": True}}],
    ),
    "search of the provider": ("responses", [{"type": "tool_search"}]),
    "deferred tool in a namespace": (
        "responses",
        [
            {
                "type": "namespace",
                "name": "n",
                "tools": [{"type": "function", "name": "f", "defer_loading": True}],
            }
        ],
    ),
}


@pytest.mark.parametrize("form", OWN_FORMS)
def test_request_with_tools_deferred_by_the_client_is_forwarded_unchanged(
    served: RunningProxy, upstream: Upstream, form: str
) -> None:
    api, added = OWN_FORMS[form]
    upstream.received.clear()
    upstream.answer = None
    body = {"model": MODELS[api], "messages": [QUESTION], "tools": [*make_tools(api, TOOLS), *added]}
    sent = json.dumps(body, indent=3).encode()
    httpx2.post(f"{served.url}/v1/{api}", content=sent, headers={"content-type": "application/json"})
    assert [each.body for each in upstream.received] == [sent]


def test_provider_side_tool_deferral_is_used_by_default_only_for_models_that_support_deferral() -> None:
    auto, forced, off = NativeForms("auto"), NativeForms("on"), NativeForms("off")
    messages, responses = WIRES["messages"], WIRES["responses"]
    anthropic = Provider("anthropic", "anthropic", "https://api.anthropic.com", 60, True)
    openai = Provider("openai", "openai", "https://api.openai.com/v1", 60, True)
    house = Provider("house", "openai", "https://models.example.com/v1", 60, True)
    assert auto.are_used(anthropic, messages, "claude-sonnet-4-5")
    assert auto.are_used(openai, responses, "gpt-5.4")
    assert not auto.are_used(anthropic, messages, "claude-3-5-haiku")
    assert not auto.are_used(openai, responses, "gpt-4.1")
    assert not auto.are_used(openai, WIRES["chat/completions"], "gpt-5.4")
    assert not auto.are_used(house, responses, "gpt-5.4")
    assert forced.are_used(house, responses, "gpt-5.4")
    assert not off.are_used(openai, responses, "gpt-5.4")
    auto.mark_refused(openai, "gpt-5.4")
    assert not auto.are_used(openai, responses, "gpt-5.4")
    assert auto.are_used(openai, responses, "gpt-5.5")


def test_adding_a_value_to_the_anthropic_beta_header_keeps_the_values_of_the_client() -> None:
    headers = [(b"Anthropic-Beta", b"one, two"), (b"x", b"y")]
    assert add_header_value(headers, "anthropic-beta", "three") == [
        (b"x", b"y"),
        (b"anthropic-beta", b"one,two,three"),
    ]
    assert add_header_value(headers, "anthropic-beta", "two") == headers
