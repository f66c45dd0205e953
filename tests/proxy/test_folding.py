"""Clients of all three APIs see only their own tools, whatever the model behind the folding proxy does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.gateway.harness import TIMEOUT_S
from tests.proxy.clients import APIS, Seen, ask, make_tools
from tests.proxy.harness import RunningProxy, serve_proxy
from tests.proxy.scripted_model import EVENT_STREAM, Say, ScriptedModel
from tests.proxy.upstream import Prepared, Received, Upstream, serve_upstream
from tests.proxy.weather_tools import FORECAST, FORECAST_CALL, SEARCH, TOOLS, define, names_of
from toolfold.core.types import BRIDGE_NAMES, Json

pytestmark = pytest.mark.skipif(
    not (find_spec("openai") and find_spec("anthropic")),
    reason="the packages openai and anthropic are not installed",
)

each_api = pytest.mark.parametrize("api", APIS)
with_and_without_streaming = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
PATHS = {"chat": "chat/completions", "messages": "messages", "responses": "responses"}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with serve_upstream() as made:
        yield made


@pytest.fixture(autouse=True)
def _clean(upstream: Upstream) -> None:
    upstream.received.clear()
    upstream.prepared.clear()
    upstream.answer = None
    upstream.was_closed.clear()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[RunningProxy]:
    settings = {"proxy.folding": "on", "tools.rag_embed_model": "light", "proxy.max_search_rounds": 3}
    with serve_proxy(tmp_path_factory.mktemp("folding"), upstream.url, settings) as made:
        yield made


def converse(
    served: RunningProxy,
    upstream: Upstream,
    api: str,
    stream: bool,
    *script: Say,
    messages: list[Json] | None = None,
    **options: Any,
) -> tuple[Seen, list[Json]]:
    """Ask the model with this script for the weather; return what the client sees and the provider gets."""
    model = ScriptedModel(list(script))
    upstream.answer = model
    said = messages or [{"role": "user", "content": "What will the weather be in Porto?"}]
    options = {"tools": make_tools(api, TOOLS), **options}
    return ask(api, served.url, said, stream=stream, **options), model.requests


@each_api
@with_and_without_streaming
def test_call_of_a_hidden_tool_through_tool_call_reaches_the_client_as_a_direct_call(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    seen, requests = converse(served, upstream, api, stream, Say("Let me look.", [FORECAST_CALL]))
    assert seen.calls == [("get_forecast", {"city": "Porto", "days": 2})]
    assert seen.text == "Let me look."
    assert seen.reason == {"chat": "tool_calls", "messages": "tool_use", "responses": "completed"}[api]
    assert set(names_of(requests[0])) == BRIDGE_NAMES
    assert f"folded={len(TOOLS)}; kept=0" in seen.headers["x-toolfold-folding"]


@each_api
@with_and_without_streaming
def test_proxy_answers_tool_search_and_tool_describe_calls_that_the_client_does_not_see(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    describe = ("tool_describe", {"name": "get_forecast"})
    script = (Say("", [SEARCH]), Say("", [describe], thinking="Which days?"), Say("Here.", [FORECAST_CALL]))
    seen, requests = converse(served, upstream, api, stream, *script)
    assert seen.calls == [("get_forecast", {"city": "Porto", "days": 2})]
    assert seen.text == "Here."
    assert seen.usage == {"input": 300, "output": 30}
    assert len(requests) == 3
    assert "Weather forecast for a city." in str(requests[1])
    assert names_of(requests[0]) == names_of(requests[2])
    if not stream:
        assert "rounds=3; spent=2" in seen.headers["x-toolfold-folding"]


@each_api
@with_and_without_streaming
def test_request_after_a_tool_search_appends_messages_to_the_unchanged_previous_request(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    _, requests = converse(served, upstream, api, stream, Say("One.", [SEARCH], thinking="Hm."), Say("Done."))
    key = "input" if api == "responses" else "messages"
    first, second = requests
    assert second[key][: len(first[key])] == first[key]
    assert {**first, key: []} == {**second, key: []}


@each_api
@with_and_without_streaming
def test_client_gets_the_texts_before_and_after_a_tool_search_in_order(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    seen, _ = converse(served, upstream, api, stream, Say("Searching. ", [SEARCH]), Say("It will be sunny."))
    assert seen.text == "Searching. It will be sunny."
    assert seen.calls == []
    assert seen.reason == {"chat": "stop", "messages": "end_turn", "responses": "completed"}[api]


@each_api
@with_and_without_streaming
def test_reply_with_a_tool_search_and_client_tool_calls_delivers_the_client_calls_in_order(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    invoice: tuple[str, Json] = ("tool_call", {"name": "send_invoice", "arguments": {"customer": "Ada"}})
    direct: tuple[str, Json] = ("get_forecast", {"city": "Faro", "days": 1})
    calls: list[tuple[str, Json]] = [FORECAST_CALL, SEARCH, direct, invoice]
    seen, requests = converse(
        served, upstream, api, stream, Say("", calls), tool_choice=_choose(api, "get_forecast")
    )
    assert [name for name, _ in seen.calls] == ["get_forecast", "get_forecast", "send_invoice"]
    assert [args.get("city") for _, args in seen.calls] == ["Porto", "Faro", None]
    assert len(set(seen.call_ids)) == 3
    assert len(requests) == 1


def _choose(api: str, name: str) -> Json:
    if api == "chat":
        return {"type": "function", "function": {"name": name}}
    return {"type": "tool" if api == "messages" else "function", "name": name}


@each_api
@with_and_without_streaming
def test_hidden_tool_call_without_required_arguments_is_answered_with_all_of_them_and_the_schema(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    wrong = ("tool_call", {"name": "get_forecast", "arguments": {}})
    seen, requests = converse(served, upstream, api, stream, Say("", [wrong]), Say("", [FORECAST_CALL]))
    assert seen.calls == [("get_forecast", {"city": "Porto", "days": 2})]
    answer = str(requests[1]["input" if api == "responses" else "messages"][-1]).replace("\\", "")
    assert '"city", "days" are required properties' in answer
    assert '"properties"' in answer  # with the schema, as the agent gets it


@each_api
@with_and_without_streaming
def test_proxy_sends_all_tools_of_the_client_after_too_many_tool_searches(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    script = (
        *(Say("", [SEARCH]) for _ in range(3)),
        Say("", [("get_forecast", {"city": "Porto", "days": 1})]),
    )
    seen, requests = converse(served, upstream, api, stream, *script)
    assert seen.calls == [("get_forecast", {"city": "Porto", "days": 1})]
    assert names_of(requests[-1]) == [tool["name"] for tool in TOOLS]


@each_api
def test_tools_called_earlier_in_the_conversation_or_named_by_tool_choice_are_not_hidden(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    history: dict[str, list[Json]] = {
        "chat": [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "send_invoice", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "sent"},
        ],
        "messages": [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "send_invoice", "input": {}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "sent"}]},
        ],
        "responses": [
            {"role": "user", "content": "Hi"},
            {"type": "function_call", "call_id": "c1", "name": "send_invoice", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "sent"},
        ],
    }
    choice = _choose(api, "get_forecast")
    _, (request,) = converse(
        served, upstream, api, False, Say("Done."), messages=history[api], tool_choice=choice
    )
    assert {*names_of(request)} == {*BRIDGE_NAMES, "send_invoice", "get_forecast"}
    kept = [entry for entry in request["tools"] if "invoice" in str(entry)]
    assert kept == [tool for tool in make_tools(api, TOOLS) if "invoice" in str(tool)]
    assert request["tool_choice"] == choice


@each_api
@with_and_without_streaming
def test_each_request_to_the_provider_repeats_the_tools_and_messages_of_the_previous_request(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    asked: list[Json] = [{"role": "user", "content": f"What will the weather be in Porto ({stream})?"}]
    script = (Say("One moment.", [SEARCH], thinking="Which?"), Say("", [FORECAST_CALL]), Say("Sunny."))
    seen, before = converse(served, upstream, api, stream, *script, messages=asked)
    history = [*asked, *_as_history(api, seen), *_result(api, seen.call_ids[0])]
    seen, (after,) = converse(served, upstream, api, stream, Say("Sunny."), messages=history)
    key = "input" if api == "responses" else "messages"
    assert after["tools"] == before[-1]["tools"]
    assert after[key][: len(before[-1][key])] == before[-1][key]
    assert "tool_call" in str(after[key][len(before[-1][key])])
    history += [*_as_history(api, seen), {"role": "user", "content": "Thanks."}]
    _, (last,) = converse(served, upstream, api, stream, Say("You are welcome."), messages=history)
    assert last["tools"] == after["tools"]
    assert last[key][: len(after[key])] == after[key]


def _as_history(api: str, seen: Seen) -> list[Json]:
    """Return a reply as a client puts it into its history."""
    if api == "chat":
        return [seen.raw.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"})]
    if api == "messages":
        return [
            {
                "role": "assistant",
                "content": [block.model_dump(exclude_none=True) for block in seen.raw.content],
            }
        ]
    return [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in seen.raw.output]


def _result(api: str, call_id: str) -> list[Json]:
    if api == "chat":
        return [{"role": "tool", "tool_call_id": call_id, "content": "sunny"}]
    if api == "messages":
        return [
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": "sunny"}]}
        ]
    return [{"type": "function_call_output", "call_id": call_id, "output": "sunny"}]


def test_provider_executed_tools_and_cache_markers_stay_in_the_request(
    served: RunningProxy, upstream: Upstream
) -> None:
    own = {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}
    tools = [own, *make_tools("messages", TOOLS)]
    tools[-1] = {**tools[-1], "cache_control": {"type": "ephemeral"}}
    _, (request,) = converse(served, upstream, "messages", False, Say("Done."), tools=tools)
    assert request["tools"][0] == own
    assert request["tools"][-1]["cache_control"] == {"type": "ephemeral"}
    assert sum("cache_control" in tool for tool in request["tools"]) == 1


def test_built_in_client_tools_stay_in_the_request_while_tools_of_mcp_servers_are_hidden(
    served: RunningProxy, upstream: Upstream
) -> None:
    served_tools = [
        define(f"mcp__books__entry_{n}", f"Book entry type {n}.", amount="number") for n in range(40)
    ]
    tools = make_tools("messages", [define("Bash", "Run a command.", command="string"), *served_tools])
    _, (request,) = converse(served, upstream, "messages", False, Say("Done."), tools=tools)
    assert set(names_of(request)) == {"Bash", *BRIDGE_NAMES}


@pytest.mark.parametrize("placement", ["replace", "append"])
def test_built_in_client_tools_stay_in_the_request_beside_the_tools_selected_for_the_message(
    tmp_path: Path, upstream: Upstream, placement: str
) -> None:
    settings = {
        "proxy.folding": "on",
        "tools.selection": "keyword",
        "tools.rag_need": "off",
        "tools.rag_top_k": 2,
        "tools.rag_placement": placement,
        "tools.rag_embed_model": "light",
    }
    others = [{**each, "name": f"mcp__books__{each['name']}"} for each in TOOLS]
    tools = make_tools("chat", [define("Bash", "Run a command.", command="string"), *others])
    with serve_proxy(tmp_path, upstream.url, settings) as served:
        _, (request,) = converse(served, upstream, "chat", False, Say("Done."), tools=tools)
    assert request["tools"][0] == tools[0]
    assert "mcp__books__get_forecast" in names_of(request)
    assert len(request["tools"]) <= 1 + len(BRIDGE_NAMES) + 2


@with_and_without_streaming
def test_thinking_block_before_a_tool_search_is_returned_to_the_provider_with_its_signature(
    served: RunningProxy, upstream: Upstream, stream: bool
) -> None:
    thought = "I must find a tool for the weather."
    script = (Say("", [SEARCH], thinking=thought), Say("Sunny.", thinking="Now I know."))
    seen, requests = converse(served, upstream, "messages", stream, *script)
    sent = requests[1]["messages"][-2]["content"][0]
    assert sent == {"type": "thinking", "thinking": thought, "signature": "signed 1"}
    shown = [block for block in seen.raw.content if block.type == "thinking"]
    assert [(block.thinking, block.signature) for block in shown] == [("Now I know.", "signed 2")]


@with_and_without_streaming
def test_response_object_lists_all_tools_of_the_client_including_hidden_tools(
    served: RunningProxy, upstream: Upstream, stream: bool
) -> None:
    seen, _ = converse(served, upstream, "responses", stream, Say("", [SEARCH]), Say("Done."))
    assert [tool.name for tool in seen.raw.tools] == [tool["name"] for tool in TOOLS]
    assert seen.raw.id == "resp_2"


def test_continuing_a_stored_response_sends_the_results_of_its_tool_search_and_client_tool_call(
    served: RunningProxy, upstream: Upstream
) -> None:
    seen, _ = converse(served, upstream, "responses", False, Say("", [SEARCH, FORECAST_CALL]))
    output = {"type": "function_call_output", "call_id": seen.call_ids[0], "output": "sunny"}
    _, (request,) = converse(
        served,
        upstream,
        "responses",
        False,
        Say("Done."),
        messages=[output],
        previous_response_id=seen.raw.id,
    )
    assert [item["call_id"] for item in request["input"]] == ["call_1_0", "call_1_1"]
    assert "Weather forecast for a city." in request["input"][0]["output"]


def test_tool_search_result_of_a_stored_response_is_not_sent_for_another_client(
    served: RunningProxy, upstream: Upstream
) -> None:
    first, second = ({"x-toolfold-token": served.tokens.add(name)} for name in ("first", "second"))
    mixed = Say("", [SEARCH, FORECAST_CALL])
    seen, _ = converse(served, upstream, "responses", False, mixed, extra_headers=first)
    output = {"type": "function_call_output", "call_id": seen.call_ids[0], "output": "sunny"}
    options = {"messages": [output], "previous_response_id": seen.raw.id}
    for headers, results in ((second, 1), (first, 2)):
        _, (request,) = converse(
            served, upstream, "responses", False, Say("Done."), extra_headers=headers, **options
        )
        assert len(request["input"]) == results


def test_previous_response_id_from_before_a_tool_search_is_mapped_to_the_id_of_the_final_response(
    served: RunningProxy, upstream: Upstream
) -> None:
    seen, _ = converse(served, upstream, "responses", True, Say("Searching.", [SEARCH]), Say("Sunny."))
    assert seen.raw.id == "resp_1"
    _, (request,) = converse(
        served, upstream, "responses", False, Say("Done."), previous_response_id=seen.raw.id
    )
    assert request["previous_response_id"] == "resp_2"


def test_client_gets_the_first_text_of_a_stream_before_the_provider_has_sent_the_rest(
    served: RunningProxy, upstream: Upstream
) -> None:
    gate = threading.Event()
    whole = ScriptedModel([Say("Hello there, this is the weather.", [FORECAST_CALL])])

    def answer(received: Received) -> Prepared:
        made = whole(received)
        head = next(at for at, part in enumerate(made.parts) if b"Hello" in part) + 1
        parts = [b"".join(made.parts[:head]), *made.parts[head:]]
        return Prepared(parts, headers=EVENT_STREAM, chunked=True, gate=gate)

    upstream.answer = answer
    body = _request_body("chat", stream=True)
    received = b""
    with httpx2.stream("POST", f"{served.url}/v1/chat/completions", json=body, timeout=TIMEOUT_S) as response:
        for part in response.iter_raw():
            received += part
            if b"Hello" in received:
                gate.set()  # the provider goes on only after the client has the first piece
    assert b"get_forecast" in received
    assert b'tool_call"' not in received.replace(b'"tool_calls"', b"")


def _request_body(api: str, *, stream: bool) -> Json:
    said = [{"role": "user", "content": "What will the weather be in Porto?"}]
    body: Json = {"model": "m", "tools": make_tools(api, TOOLS), "stream": stream}
    return body | ({"input": said} if api == "responses" else {"messages": said, "max_tokens": 100})


@each_api
@with_and_without_streaming
@pytest.mark.parametrize("status", [401, 429, 500, 529])
def test_error_response_of_the_provider_to_a_request_with_hidden_tools_reaches_the_client_unchanged(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool, status: int
) -> None:
    problem = b'{"error": {"message": "as the provider says"}}'
    upstream.prepared.append(Prepared([problem], status))
    response = httpx2.post(
        f"{served.url}/v1/{PATHS[api]}", json=_request_body(api, stream=stream), timeout=TIMEOUT_S
    )
    assert (response.status_code, response.content) == (status, problem)
    assert len(upstream.received) == 1


@each_api
@with_and_without_streaming
def test_request_is_retried_with_all_tools_if_the_provider_rejects_the_shortened_request(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    upstream.prepared += [Prepared([b'{"error": {}}'], 400), Prepared([b"the answer"])]
    response = httpx2.post(
        f"{served.url}/v1/{PATHS[api]}", json=_request_body(api, stream=stream), timeout=TIMEOUT_S
    )
    assert response.content == b"the answer"
    assert upstream.received[1].body == response.request.content
    assert "x-toolfold-folding" not in response.headers


@each_api
def test_stream_ends_with_an_error_event_if_the_connection_to_the_provider_breaks(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    model = ScriptedModel([Say("This text is cut in the middle.")])

    def answer(received: Received) -> Prepared:
        made = model(received)
        return Prepared(made.parts[:-4], headers=EVENT_STREAM, chunked=True, is_cut=True)

    upstream.answer = answer
    response = httpx2.post(
        f"{served.url}/v1/{PATHS[api]}", json=_request_body(api, stream=True), timeout=TIMEOUT_S
    )
    last = response.text.strip().split("\n\n")[-1]
    assert "This te" in response.text
    assert '"error"' in last
    assert "toolfold: The connection to the provider" in last


@each_api
def test_error_response_after_a_streamed_tool_search_ends_the_stream_with_an_error_event(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    model = ScriptedModel([Say("Searching.", [SEARCH])])
    upstream.answer = lambda received: Prepared([b"{}"], 529) if model.requests else model(received)
    response = httpx2.post(
        f"{served.url}/v1/{PATHS[api]}", json=_request_body(api, stream=True), timeout=TIMEOUT_S
    )
    assert response.status_code == 200
    assert "answered with status 529" in response.text.strip().split("\n\n")[-1]


@each_api
@pytest.mark.parametrize("reply", [b"<html>", b'{"error": "strange"}', b"[]"])
def test_reply_of_the_provider_that_cannot_be_parsed_reaches_the_client_unchanged(
    served: RunningProxy, upstream: Upstream, api: str, reply: bytes
) -> None:
    upstream.prepared.append(Prepared([reply]))
    response = httpx2.post(
        f"{served.url}/v1/{PATHS[api]}", json=_request_body(api, stream=False), timeout=TIMEOUT_S
    )
    assert response.content == reply
    assert len(upstream.received) == 1


def test_request_with_hidden_tools_is_cancelled_at_the_provider_if_the_client_disconnects(
    served: RunningProxy, upstream: Upstream
) -> None:
    model = ScriptedModel([Say("Hello.")])

    def answer(received: Received) -> Prepared:
        return Prepared(model(received).parts[:3], headers=EVENT_STREAM, chunked=True, waits_for_close=True)

    upstream.answer = answer
    with httpx2.stream(
        "POST",
        f"{served.url}/v1/chat/completions",
        json=_request_body("chat", stream=True),
        timeout=TIMEOUT_S,
    ) as response:
        next(response.iter_raw())
    assert upstream.was_closed.wait(TIMEOUT_S)


@pytest.mark.parametrize(
    "change",
    [
        {
            "tools": [
                *make_tools("chat", TOOLS),
                *make_tools("chat", [define("tool_search", "Mine.", q="string")]),
            ]
        },
        {"tools": [*make_tools("chat", TOOLS), *make_tools("chat", [FORECAST])]},
        {"tools": "all of them"},
        {"tools": []},
        {"n": 2},
        {"messages": "not a list"},
    ],
    ids=["reserved name", "repeated name", "no list", "empty", "several answers", "no messages"],
)
def test_request_with_tools_that_cannot_be_hidden_is_forwarded_unchanged(
    served: RunningProxy, upstream: Upstream, change: Json
) -> None:
    body = _request_body("chat", stream=False) | change
    response = httpx2.post(f"{served.url}/v1/chat/completions", json=body, timeout=TIMEOUT_S)
    (received,) = upstream.received
    assert received.body == response.request.content


@each_api
@pytest.mark.parametrize("placement", ["replace", "append", "tail"])
def test_tools_selected_for_a_message_are_sent_at_the_configured_position_and_stay_in_later_requests(
    tmp_path: Path, upstream: Upstream, api: str, placement: str
) -> None:
    settings = {
        "tools.selection": "keyword",
        "tools.rag_need": "off",
        "tools.rag_top_k": 2,
        "tools.rag_placement": placement,
        "tools.tool_search.threshold_tokens": 100,
        "tools.rag_embed_model": "light",
    }
    asked: list[Json] = [{"role": "user", "content": "What will the weather forecast be in Porto?"}]
    with serve_proxy(tmp_path, upstream.url, settings) as served:
        direct = ("get_forecast", {"city": "Porto", "days": 1})
        call = FORECAST_CALL if placement == "tail" else direct
        seen, (before,) = converse(served, upstream, api, True, Say("", [call]), messages=asked)
        history = [*asked, *_as_history(api, seen), *_result(api, seen.call_ids[0])]
        _, (after,) = converse(served, upstream, api, True, Say("Sunny."), messages=history)
    key = "input" if api == "responses" else "messages"
    assert [name for name, _ in seen.calls] == ["get_forecast"]
    assert ("get_forecast" in names_of(before)) == (placement != "tail")
    assert ("get_forecast" in str(before[key])) == (placement == "tail")
    assert len(before["tools"]) <= len(BRIDGE_NAMES) + 2
    assert after["tools"] == before["tools"]
    assert after[key][: len(before[key])] == before[key]
