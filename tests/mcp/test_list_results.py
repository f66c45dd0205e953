"""Malformed entries in server listings: only the entry is dropped, and it is reported by its name."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types.methods import parse_server_result

from tests.conftest import RuntimeOpener
from tests.mcp.faults import open_supervisor
from tests.mcp.test_pool import wait_until
from toolfold.config.servers_settings import McpServerSettings, parse_server_settings
from toolfold.mcp.list_results import MAX_LISTED, PROBLEMS_KEY, repair_list_result
from toolfold.mcp.tool_listing import Listing

SERVER = Path(__file__).with_name("listing_server.py")
GOOD = {"name": "good", "inputSchema": {"type": "object", "properties": {"a": {"type": "string"}}}}
METHODS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}
PROTOCOLS = ("2024-11-05", "2025-06-18", "2025-11-25", "2026-07-28")


def listing_settings(folder: Path, **results: Any) -> McpServerSettings:
    """Return the settings of a server that answers list requests with the given results, keyed by method."""
    if "tools" in results:
        results["tools/list"] = {"tools": results.pop("tools")}
    file = folder / "results.json"
    file.write_text(json.dumps({"tools/list": {"tools": []}, **results}))
    return parse_server_settings({"command": sys.executable, "args": ["-I", str(SERVER), str(file)]})


async def fetch_listing(folder: Path, **results: Any) -> Listing:
    async with open_supervisor(listing_settings(folder, **results), folder) as server:
        return await server.refresh_listing()


@pytest.mark.parametrize(
    "schema",
    [
        {},
        None,
        [],
        True,
        {"properties": {}},
        {"properties": None, "required": None, "type": None},
        {"type": "object", "properties": []},
        {"type": ["object", "null"]},
        {"type": "object", "required": True},
        {"type": "object", "properties": {"a": None}},
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"additionalProperties": {"type": "string"}},
    ],
    ids=json.dumps,
)
async def test_listed_tool_with_an_incomplete_input_schema_is_repaired_and_can_be_called(
    schema: Any, tmp_path: Path
) -> None:
    async with open_supervisor(
        listing_settings(tmp_path, tools=[{"name": "odd", "inputSchema": schema}, GOOD]), tmp_path
    ) as it:
        listing = await it.refresh_listing()
        assert [each.name for each in listing.tools] == ["odd", "good"]
        assert listing.tools[0].input_schema["type"] == "object"
        answer = await it.call_tool("odd", {"a": "x"})
        assert json.loads(answer.content[0].text) == {"a": "x"}


async def test_listed_tool_without_an_input_schema_is_accepted(tmp_path: Path) -> None:
    listing = await fetch_listing(tmp_path, tools=[{"name": "odd"}])
    assert [each.name for each in listing.tools] == ["odd"]


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        (
            {"name": "bad", "inputSchema": "none"},
            "'bad' is dropped: its inputSchema is 'none' instead of an",
        ),
        ({"name": "bad", "inputSchema": False}, "'bad' is dropped: its inputSchema is false instead of an"),
        ({"name": "bad", "inputSchema": {"type": "string"}}, "has the type 'string' instead of 'object'"),
        (
            {"name": "bad", "inputSchema": {"properties": "a"}},
            "inputSchema.properties is 'a' instead of an obj",
        ),
        ({"inputSchema": {"type": "object"}}, "the tool 1 of its list is dropped: it has no usable name"),
        ({"name": "", "inputSchema": {}}, "the tool 1 of its list is dropped: it has no usable name"),
        ({"name": 7, "inputSchema": {}}, "the tool 1 of its list is dropped: it has no usable name"),
        ({"name": None, "inputSchema": {}}, "the tool 1 of its list is dropped: it has no usable name"),
        ("bad", "the tool 1 of its list is dropped: it is 'bad' instead of an object"),
        (None, "the tool 1 of its list is dropped: it is null instead of an object"),
        ({"name": "bad", "inputSchema": {"description": "x" * 300_000}}, "'bad' is larger than 200,000"),
        ({"name": "x" * 600, "inputSchema": {}}, "no usable name"),
    ],
    ids=lambda each: json.dumps(each)[:40] if isinstance(each, dict) else None,
)
async def test_listed_tool_with_an_invalid_schema_or_name_is_skipped_with_a_reason(
    tool: Any, reason: str, tmp_path: Path
) -> None:
    listing = await fetch_listing(tmp_path, tools=[tool, GOOD])
    assert [each.name for each in listing.tools] == ["good"]
    assert any(reason in each for each in listing.problems), listing.problems
    assert reason in (tmp_path / "some.log").read_text()


async def test_listed_tool_with_a_too_deeply_nested_schema_is_skipped_and_other_tools_are_kept(
    tmp_path: Path,
) -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(150):
        schema = {"type": "object", "properties": {"a": schema}}
    listing = await fetch_listing(tmp_path, tools=[{"name": "deep", "inputSchema": schema}, GOOD])
    assert [each.name for each in listing.tools] == ["good"]
    assert any("'deep'" in each and "nested deeper than" in each for each in listing.problems)


@pytest.mark.parametrize(
    "fields",
    [
        {"description": 7},
        {"description": ["a"]},
        {"title": {}},
        {"annotations": "read-only"},
        {"annotations": {"readOnlyHint": [], "destructiveHint": False}},
        {"outputSchema": "text"},
        {"outputSchema": {"type": "strnig"}},
        {"outputSchema": {"type": "object", "properties": 7}},
        {"icons": "icon.png"},
        {"_meta": []},
    ],
    ids=json.dumps,
)
async def test_malformed_optional_field_of_a_listed_tool_is_removed_and_reported(
    fields: Any, tmp_path: Path
) -> None:
    async with open_supervisor(
        listing_settings(tmp_path, tools=[{**GOOD, "name": "odd", **fields}, GOOD]), tmp_path
    ) as it:
        listing = await it.refresh_listing()
        assert [each.name for each in listing.tools] == ["odd", "good"]
        assert any(f"'odd' has a malformed {next(iter(fields))}" in each for each in listing.problems)
        assert not listing.tools[0].annotations  # annotations are dropped as a whole
        assert (await it.call_tool("odd", {})).is_error is not True


async def test_second_tool_with_the_same_name_in_a_tool_list_is_skipped_and_reported(
    tmp_path: Path,
) -> None:
    listing = await fetch_listing(tmp_path, tools=[GOOD, {**GOOD, "description": "another"}])
    assert [each.description for each in listing.tools] == [""]
    assert any("'good' twice" in each for each in listing.problems)


async def test_malformed_tool_is_skipped_and_the_next_page_of_the_tool_list_is_read(tmp_path: Path) -> None:
    pages = [{"tools": [{"name": 7}], "nextCursor": "1"}, {"tools": [GOOD], "nextCursor": ""}]
    listing = await fetch_listing(tmp_path, **{"tools/list": pages})
    assert [each.name for each in listing.tools] == ["good"]
    assert listing.problems == ("the tool 1 of its list is dropped: it has no usable name",)


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ({"tools": None}, ""),
        ({}, ""),
        ({"tools": {"good": {}}}, "its list of tools is an object instead of a list"),
        ({"tools": [], "nextCursor": 7}, "its nextCursor is a number instead of text"),
        ({"tools": [], "_meta": "x"}, ""),
    ],
    ids=json.dumps,
)
async def test_malformed_tool_list_result_is_reported_and_yields_no_tools_without_an_exception(
    result: Any, problem: str, tmp_path: Path
) -> None:
    listing = await fetch_listing(tmp_path, **{"tools/list": result})
    assert listing.tools == ()
    assert "".join(listing.problems).startswith(problem)


@pytest.mark.parametrize(
    ("method", "good", "bad"),
    [
        ("resources/list", {"uri": "a:b", "name": "b"}, [{"name": "no uri"}, {"uri": 7}, "x", None]),
        ("resources/templates/list", {"uriTemplate": "a:{b}", "name": "b"}, [{"name": "x"}, 7]),
        ("prompts/list", {"name": "p"}, [{"description": "nameless"}, {"name": 7}, []]),
    ],
)
async def test_malformed_resource_or_prompt_in_a_list_is_skipped_and_other_entries_are_kept(
    method: str, good: Any, bad: list[Any], tmp_path: Path
) -> None:
    odd = {
        **good,
        "description": 7,
        "annotations": "x",
        "arguments": [{"name": 1}, {"name": "a"}],
        "size": "x",
    }
    settings = listing_settings(tmp_path, **{method: {METHODS[method]: [*bad, good, odd]}})
    async with open_supervisor(settings, tmp_path) as server:
        page = await server.send_request(method, {})
    found = page.model_dump(by_alias=True, exclude_none=True)[METHODS[method]]
    assert found[0] == good
    assert len(found) == 2
    assert "description" not in found[1]
    log = (tmp_path / "some.log").read_text()
    assert len({line for line in log.splitlines() if "is dropped" in line}) == len(bad)
    assert "has a malformed description, which is ignored" in log


async def test_listed_resource_without_a_name_gets_its_uri_as_name(tmp_path: Path) -> None:
    settings = listing_settings(tmp_path, **{"resources/list": {"resources": [{"uri": "a:b"}]}})
    async with open_supervisor(settings, tmp_path) as server:
        page = await server.send_request("resources/list", {})
    assert [each.name for each in page.resources] == ["a:b"]


async def test_error_for_an_invalid_initialize_result_contains_the_name_of_the_invalid_field(
    tmp_path: Path,
) -> None:
    settings = listing_settings(tmp_path, initialize={"serverInfo": {"name": 7}})
    async with open_supervisor(settings, tmp_path) as server:
        with pytest.raises(Exception, match=r"does not follow the protocol: serverInfo\.name"):
            await server.refresh_listing()
    assert "serverInfo.name" in (tmp_path / "some.log").read_text()


@pytest.mark.parametrize(
    ("results", "has"),
    [
        ({}, (False, False)),
        ({"resources/list": {"resources": []}, "prompts/list": {"prompts": []}}, (False, False)),
        ({"resources/list": {"resources": [{"uri": "a:b"}]}}, (True, False)),
        ({"resources/templates/list": {"resourceTemplates": [{"uriTemplate": "a:{b}"}]}}, (True, False)),
        ({"prompts/list": {"prompts": [{"name": "p"}]}}, (False, True)),
        ({"prompts/list": {"prompts": [{"name": 7}]}}, (False, False)),
    ],
    ids=json.dumps,
)
async def test_has_resources_and_has_prompts_are_true_only_if_valid_resources_or_prompts_are_listed(
    results: Any, has: tuple[bool, bool], tmp_path: Path
) -> None:
    listing = await fetch_listing(tmp_path, tools=[GOOD], **results)
    assert (listing.has_resources, listing.has_prompts) == has
    assert [each.name for each in listing.tools] == ["good"]


def test_generated_resource_tools_exist_only_if_the_server_has_resources_and_rank_last_in_search(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    tools = [{"name": "get_time", "description": "Tell the time.", "inputSchema": {}}]
    tools += [{"name": "read_clock", "description": "Read the clock.", "inputSchema": {}}]
    settings = listing_settings(tmp_path, tools=tools)
    entry = {"command": settings.command, "args": list(settings.args)}
    runtime = open_test_runtime({"mcp.servers": {"time": entry}, "mcp.wait_seconds": 60.0})

    def listed_tool_names() -> set[str]:
        names = runtime.session(["all"]).assemble().offered_names
        return {name for name in names if name.startswith("mcp_time_")}

    assert listed_tool_names() == {"mcp_time_get_time", "mcp_time_read_clock"}
    listing_settings(tmp_path, tools=tools, **{"resources/list": {"resources": [{"uri": "a:b"}]}})
    assert not runtime.session(["all"]).call_sync("mcp_time_get_time", {}).error
    wait_until(lambda: "mcp_time_read_resource" in listed_tool_names())
    searched = runtime.session(["mcp-time"]).call_sync("tool_search", {"query": "read a resource of time"})
    names = re.findall(r'"name": ?"(mcp_time_\w+)"', searched.text)
    extras = {"mcp_time_read_resource", "mcp_time_list_resources"}
    assert set(names) >= extras
    assert set(names[-2:]) == extras


scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5)
IDENTIFIERS = ["name", "uri", "uriTemplate"]
FIELDS = ["inputSchema", "outputSchema", "annotations", "title", "description", "icons", "arguments", "size"]
INNER = ["type", "properties", "required", "$schema", "src", "readOnlyHint", "priority", "audience", "_meta"]
keys = st.sampled_from([*IDENTIFIERS, *FIELDS, *INNER, "execution", "taskSupport", "mimeType"])
values = st.recursive(
    scalars | st.just("object"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=20,
)
envelopes = st.dictionaries(st.sampled_from(["nextCursor", "_meta", "ttlMs", "cacheScope"]), values)


@given(
    method=st.sampled_from(sorted(METHODS)),
    protocol=st.sampled_from(PROTOCOLS),
    entries=st.lists(values, max_size=4) | values,
    envelope=envelopes,
)
def test_repaired_malformed_list_result_always_conforms_to_the_protocol(
    method: str, protocol: str, entries: Any, envelope: Any
) -> None:
    result = {"resultType": "complete", **envelope, METHODS[method]: entries}
    repaired = repair_list_result(method, protocol, result)
    if isinstance(repaired["ttlMs"], int):
        repaired["ttlMs"] = max(0, repaired["ttlMs"])  # as the SDK does
    parse_server_result(method, protocol, repaired)
    if isinstance(entries, list):
        lost = len(entries) - len(repaired[METHODS[method]])
        assert sum("is dropped" in each for each in repaired["_meta"][PROBLEMS_KEY]) == lost


@given(
    protocol=st.sampled_from(PROTOCOLS), method=st.sampled_from(["tools/call", "prompts/get"]), result=values
)
def test_repair_list_result_does_not_change_the_result_of_a_tool_call_or_a_prompt_request(
    protocol: str, method: str, result: Any
) -> None:
    assert repair_list_result(method, protocol, result) is result


def test_prompt_list_above_the_maximum_number_of_entries_is_truncated_and_reported() -> None:
    prompts = [{"name": f"p{number}"} for number in range(MAX_LISTED + 1_500)]
    repaired = repair_list_result("prompts/list", "2025-11-25", {"prompts": prompts})
    assert len(repaired["prompts"]) == MAX_LISTED
    assert repaired["_meta"][PROBLEMS_KEY] == ["1,500 more prompts are dropped"]
