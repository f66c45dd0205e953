"""Recorded listings of 58 real servers: every tool is parsed, named, found, validated and rendered.

The recordings are stored beside the project and are not part of it. Without them these tests are skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.cases import check_cases
from toolfold.config.servers_settings import parse_server_settings
from toolfold.core.errors import InvalidArguments
from toolfold.core.naming import is_accepted
from toolfold.core.registry import Registry, Snapshot
from toolfold.core.types import CallContext, Content, Json, Tool
from toolfold.core.validation import Validation
from toolfold.mcp.mcp_tools import build_tools
from toolfold.mcp.tool_listing import ListedTool, parse_tools
from toolfold.mcp.tool_names import ToolNames
from toolfold.models import DIALECTS, DialectName, get_dialect
from toolfold.selection.retrieval.embedding import LightEmbedder
from toolfold.selection.retrieval.ranking import Ranker
from toolfold.selection.retrieval.tool_search import Retriever

RECORDINGS = Path(__file__).parents[3] / "shared" / "mcp"
SETTINGS = parse_server_settings({"command": "serve"})

pytestmark = pytest.mark.skipif(
    not RECORDINGS.is_dir(), reason="the recorded listings of real servers (../shared/mcp) are missing"
)


async def refuse_call(offer: ListedTool, args: Json, context: CallContext) -> Content:
    raise AssertionError("nobody calls it")


@cache
def recorded_results() -> Mapping[str, Json]:
    """Return each server's `tools/list` result by its name."""
    read = (json.loads(file.read_text(encoding="utf-8")) for file in sorted(RECORDINGS.glob("*.json")))
    return {answer["server"]: answer for answer in read}


@cache
def snapshot() -> Snapshot:
    """Return all tools of the recorded servers, registered as a runtime does it."""
    registry, names = Registry(), ToolNames(recorded_results())
    for server, answer in recorded_results().items():
        offers, _ = parse_tools(answer["tools"])
        registry.replace_toolset(f"mcp-{server}", build_tools(server, SETTINGS, offers, names, refuse_call))
    return registry.snapshot()


def recorded_tools() -> list[tuple[str, str]]:
    return [
        (server, tool["name"]) for server, answer in recorded_results().items() for tool in answer["tools"]
    ]


def test_every_tool_recorded_from_real_servers_is_parsed_without_problems() -> None:
    complaints = {server: parse_tools(answer["tools"])[1] for server, answer in recorded_results().items()}
    assert {server: said for server, said in complaints.items() if said} == {}
    assert (len(recorded_results()), len(recorded_tools())) == (58, 974)
    assert len(snapshot()) == 974
    assert len(snapshot().toolsets) == 58


def test_every_tool_recorded_from_real_servers_has_a_name_that_model_providers_accept() -> None:
    for server, own in recorded_tools():
        tool = snapshot().find(f"mcp__{server}__{own}")
        assert tool is not None
        assert (tool.server, tool.own_name) == (server, own)
        assert is_accepted(tool.name)
        assert tool.name.startswith("mcp_")


def test_names_of_tools_recorded_from_real_servers_are_used_unchanged_after_the_server_prefix() -> None:
    odd = [tool.name for tool in snapshot().values() if tool.name != f"mcp_{tool.server}_{tool.own_name}"]
    assert odd == []


def test_tools_recorded_from_real_servers_are_registered_with_full_description_and_parameters() -> None:
    for server, answer in recorded_results().items():
        for said in answer["tools"]:
            tool = snapshot().find(f"mcp__{server}__{said['name']}")
            assert tool is not None
            assert tool.description.split() == said["description"].split()
            assert set(tool.parameters["properties"]) == set(said["inputSchema"].get("properties") or {})


# -- search ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def retriever() -> Retriever:
    return Retriever(LightEmbedder(), lambda: Ranker.shipped("light"), None)


def test_every_tool_recorded_from_real_servers_ranks_first_for_a_message_that_contains_its_name(
    retriever: Retriever,
) -> None:
    for name in snapshot():
        hits = retriever.find(snapshot(), f"call {name} now", mode="hybrid", limit=1)
        assert [hit.name for hit in hits] == [name]


@check_cases(
    ("message", "server", "own"),
    [
        ("open a pull request on github for the branch fix-login", "github", "create_pull_request"),
        ("what time is it in Tokyo right now", "mcp-server-time", "get_current_time"),
        ("post a message to the #general channel on slack", "slack", "slack_post_message"),
        ("roll back the deployment in kubernetes", "kubernetes", "kubectl_rollout"),
        ("read the file notes.txt on my disk", "filesystem", "read_text_file"),
        ("draw a pie chart", "antv-chart", "generate_pie_chart"),
    ],
)
def test_tool_needed_for_a_simple_message_ranks_among_the_first_five_of_all_recorded_tools(
    retriever: Retriever, message: str, server: str, own: str
) -> None:
    wanted = snapshot().find(f"mcp__{server}__{own}")
    assert wanted is not None
    hits = retriever.find(snapshot(), message, mode="hybrid", limit=5)
    assert wanted.name in [hit.name for hit in hits]


# -- validation -----------------------------------------------------------------------------------------


def example(schema: Any, root: Json, depth: int = 0) -> Any:
    """Return a minimal value that is valid for a schema."""
    if not isinstance(schema, Mapping) or depth > 20:
        return "x"
    if isinstance(ref := schema.get("$ref"), str):
        found: Any = root
        for step in ref.removeprefix("#/").split("/"):
            found = found[step]
        return example(found, root, depth + 1)
    if schema.get("enum"):
        return schema["enum"][0]
    if "const" in schema or "default" in schema:
        return schema.get("const", schema.get("default"))
    for union in ("anyOf", "oneOf", "allOf"):
        if schema.get(union) and "properties" not in schema:
            return example({**schema[union][0]}, root, depth + 1)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, (list, tuple)) else kind
    if kind == "object" or "properties" in schema:
        return {
            name: example((schema.get("properties") or {}).get(name, {}), root, depth + 1)
            for name in schema.get("required", ())
        }
    if kind == "array":
        return [example(schema.get("items", {}), root, depth + 1)] * schema.get("minItems", 0)
    if kind in ("integer", "number"):
        return max(schema.get("minimum", 0), schema.get("exclusiveMinimum", -1) + 1)
    return {"boolean": False, "null": None}[kind] if kind in ("boolean", "null") else example_text(schema)


def example_text(schema: Mapping[str, Any]) -> str:
    pattern, shortest = schema.get("pattern", ""), schema.get("minLength", 1)
    words = ("x" * shortest, "a" * shortest, "AB", "AB-1", "1:2", "a.png")
    return next((word for word in words if re.search(pattern, word)), "x")


def test_validation_accepts_example_arguments_of_every_tool_recorded_from_real_servers() -> None:
    validate, refused = Validation(), dict[str, str]()
    for tool in snapshot().values():
        try:
            validate(tool, example(tool.parameters, tool.parameters))
        except InvalidArguments as error:
            refused[tool.name] = str(error)
    assert refused == {}


def validation_error(validate: Validation, tool: Tool, args: Json) -> str:
    with pytest.raises(InvalidArguments) as caught:
        validate(tool, args)
    return str(caught.value)


def test_validation_error_for_a_recorded_tool_contains_the_name_of_the_missing_argument() -> None:
    validate = Validation()
    for tool in snapshot().values():
        args = example(tool.parameters, tool.parameters)
        for name in tool.parameters.get("required", ()):
            rest = {key: value for key, value in args.items() if key != name}
            assert name in validation_error(validate, tool, rest)


# -- definitions ----------------------------------------------------------------------------------------


@check_cases("form", DIALECTS)
def test_every_tool_recorded_from_real_servers_has_a_valid_definition_for_every_model_provider(
    form: DialectName,
) -> None:
    for tool in snapshot().values():
        shown = get_dialect(form).render_tool(tool.definition())
        json.dumps(shown)
        inner = shown.get("function", shown)
        schema = inner.get("input_schema") or inner.get("parameters")
        assert schema["type"] == "object"
        assert not {"oneOf", "anyOf", "allOf"} & set(schema)
