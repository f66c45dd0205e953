"""Functions that a client of the responses API groups in namespaces are folded, and called in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.gateway.harness import TIMEOUT_S
from tests.proxy.clients import make_tools
from tests.proxy.harness import RunningProxy, serve_proxy
from tests.proxy.scripted_model import Say, ScriptedModel
from tests.proxy.upstream import Upstream, serve_upstream
from tests.proxy.weather_tools import FORECAST, SEARCH, TOOLS, define
from toolfold.core.types import BRIDGE_NAMES, Json
from toolfold.models.wire import WIRES, EventParser

ARGUMENTS = {"city": "Porto", "days": 2}
BRIDGE_CALL: tuple[str, Json] = ("tool_call", {"name": "mcp__weather__get_forecast", "arguments": ARGUMENTS})
QUESTION: Json = {"role": "user", "content": "What will the weather be in Porto?"}
OWN = define("exec_command", "Run a command in a shell.", cmd="string")
with_and_without_streaming = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def group(name: str, *definitions: Json) -> Json:
    """Return functions in a namespace, as Codex writes those of an MCP server."""
    tools = make_tools("responses", definitions)
    return {
        "type": "namespace",
        "name": name,
        "description": f"Tools in the {name} namespace.",
        "tools": tools,
    }


CLIENT_TOOLS: list[Json] = [
    *make_tools("responses", [OWN]),
    group("mcp__weather", FORECAST, define("get_tides", "High and low tide at a harbour.", harbour="string")),
    group("mcp__ledger", *TOOLS[2:20]),
    group("mcp__archive", *TOOLS[20:]),
    {"type": "web_search"},
]


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with serve_upstream() as made:
        yield made


@pytest.fixture(scope="module", params=["bridge", "native"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, upstream: Upstream
) -> Iterator[RunningProxy]:
    native = "on" if request.param == "native" else "off"
    settings = {"proxy.folding": "on", "proxy.native": native, "tools.rag_embed_model": "light"}
    with serve_proxy(tmp_path_factory.mktemp("namespaces"), upstream.url, settings) as made:
        yield made


def is_native(served: RunningProxy) -> bool:
    return served.runtime.config.proxy.native == "on"


def converse(
    served: RunningProxy, upstream: Upstream, *script: Say, stream: bool = False, **options: Any
) -> tuple[list[Json], list[Json]]:
    """Ask the model with this script; return the items that the client gets, and the provider's requests."""
    model = ScriptedModel(list(script))
    upstream.answer = model
    body = {"model": "gpt-5.4", "input": [QUESTION], "tools": CLIENT_TOOLS, "stream": stream, **options}
    response = httpx2.post(f"{served.url}/v1/responses", json=body, timeout=TIMEOUT_S)
    assert response.status_code == 200, response.text
    assert not any(f'"name": "{name}"' in response.text for name in BRIDGE_NAMES)
    if not stream:
        return response.json()["output"], model.requests
    events = [event.parse() or {} for event in EventParser().feed(response.content)]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
    return done, model.requests


def find_call(items: list[Json]) -> Json:
    (call,) = (item for item in items if item.get("type") == "function_call")
    return call


def places(request: Json) -> set[tuple[str, str]]:
    """Return the namespace and the name of each function in a request's tools array."""
    tools = request["tools"]
    inner = {(each["name"], tool["name"]) for each in tools for tool in each.get("tools", ())}
    return inner | {("", each.get("name", each["type"])) for each in tools if "tools" not in each}


@with_and_without_streaming
def test_hidden_function_in_a_namespace_is_found_by_search_and_called_with_its_namespace(
    served: RunningProxy, upstream: Upstream, stream: bool
) -> None:
    call = ("mcp__weather:get_forecast", ARGUMENTS) if is_native(served) else BRIDGE_CALL
    items, (first, second) = converse(served, upstream, Say("", [SEARCH]), Say("", [call]), stream=stream)
    shown = find_call(items)
    assert (shown["namespace"], shown["name"]) == ("mcp__weather", "get_forecast")
    assert json.loads(shown["arguments"]) == ARGUMENTS
    assert not any(namespace for namespace, _ in places(first))
    assert {("", "exec_command"), ("", "web_search")} <= places(first)
    (result,) = (each for each in second["input"] if str(each.get("type")).endswith("_output"))
    if is_native(served):
        (loaded,) = (each for each in result["tools"] if each["name"] == "mcp__weather")
        own = CLIENT_TOOLS[1]
        assert {key: loaded[key] for key in ("type", "description")} == {
            key: own[key] for key in ("type", "description")
        }
        assert own["tools"][0] | {"defer_loading": True} in loaded["tools"]
        assert len({each["name"] for each in result["tools"]}) == len(result["tools"])
    else:
        assert "mcp__weather__get_forecast" in result["output"]


@with_and_without_streaming
def test_call_name_with_namespace_and_function_joined_by_underscores_is_split_for_the_client(
    served: RunningProxy, upstream: Upstream, stream: bool
) -> None:
    script = Say("", [("mcp__weather__get_forecast", ARGUMENTS)])
    items, _ = converse(served, upstream, script, stream=stream)
    assert (find_call(items)["namespace"], find_call(items)["name"]) == ("mcp__weather", "get_forecast")


@with_and_without_streaming
def test_namespace_added_by_the_provider_to_a_function_call_is_removed_for_the_client(
    served: RunningProxy, upstream: Upstream, stream: bool
) -> None:
    script = Say("", [("exec_command:exec_command", {"cmd": "date"})])
    items, _ = converse(served, upstream, script, stream=stream)
    call = find_call(items)
    assert call["name"] == "exec_command"
    assert "namespace" not in call
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "today"}
    _, (request,) = converse(served, upstream, Say("Done."), input=[QUESTION, *items, output])
    assert find_call(request["input"])["namespace"] == "exec_command"


@with_and_without_streaming
def test_call_of_a_client_function_named_tool_search_in_a_namespace_reaches_the_client(
    served: RunningProxy, upstream: Upstream, stream: bool
) -> None:
    gateway = group("mcp__toolfold", define("tool_search", "Find tools of the gateway.", query="string"))
    script = Say("", [("mcp__toolfold:tool_search", {"query": "weather"})])
    tools = [*CLIENT_TOOLS, gateway]
    items, requests = converse(served, upstream, script, stream=stream, tools=tools)
    assert (find_call(items)["namespace"], find_call(items)["name"]) == ("mcp__toolfold", "tool_search")
    assert len(requests) == 1


def test_namespaced_functions_called_earlier_or_named_by_tool_choice_are_not_hidden(
    served: RunningProxy, upstream: Upstream
) -> None:
    call = {"type": "function_call", "call_id": "c1", "namespace": "mcp__weather", "name": "get_forecast"}
    history = [
        QUESTION,
        {**call, "arguments": json.dumps(ARGUMENTS)},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ]
    choice = {"type": "function", "name": "get_tides"}
    _, (request,) = converse(served, upstream, Say("Done."), input=history, tool_choice=choice)
    added = [item for item in request["input"] if item.get("type") == "additional_tools"]
    assert {place for sent in (request, *added) for place in places(sent)} >= {
        ("mcp__weather", "get_forecast"),
        ("mcp__weather", "get_tides"),
    }
    assert "mcp__ledger" not in {server for server, _ in places(request)}
    said = [item for item in request["input"] if item not in added]
    assert said[0]["content"].startswith(QUESTION["content"])
    assert said[1 : len(history)] == history[1:]


def test_namespace_that_contains_a_tool_other_than_a_function_is_forwarded_unchanged(
    served: RunningProxy, upstream: Upstream
) -> None:
    patch = {"type": "custom", "name": "apply_patch", "format": {"type": "text"}}
    mixed = group("files", FORECAST)
    mixed["tools"].append(patch)
    _, (request,) = converse(served, upstream, Say("Done."), tools=[*CLIENT_TOOLS, mixed])
    assert mixed in request["tools"]


def test_join_entries_groups_functions_by_namespace_in_the_order_of_their_first_occurrence() -> None:
    wire = WIRES["responses"]
    groups = [group("a", *TOOLS[:3]), *make_tools("responses", [OWN]), group("b", *TOOLS[3:5])]
    entries = [tool.entry for each in groups for tool in wire.read_tools(each)]
    assert wire.join_entries(entries) == groups
    mixed = wire.join_entries([entries[4], entries[1], entries[5], entries[0]])
    assert [each["name"] for each in mixed] == ["b", "a"]
    assert [each["name"] for each in mixed[1]["tools"]] == [TOOLS[1]["name"], TOOLS[0]["name"]]
