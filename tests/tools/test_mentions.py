"""Descriptions of built-in tools mention other tools only where those can be called."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.tools.tool_examples import open_everything
from toolfold import Runtime
from toolfold.core.types import Tool
from toolfold.selection.turn.assembly import render_definitions

ORDINARY_WORDS = re.compile(r"\b(?:a|an|the|of|pseudo)[ -](?:process|terminal|patch)\b(?! tool)")


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    with open_everything(tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("project")) as (opened, _):
        yield opened


def find_builtin(runtime: Runtime) -> list[Tool]:
    return [tool for tool in runtime.registry.snapshot().values() if tool.source.kind == "builtin"]


def read_descriptions(value: Any) -> Iterator[str]:
    """Yield all descriptions in a tool definition."""
    if isinstance(value, list):
        for each in value:
            yield from read_descriptions(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            if key == "description" and isinstance(each, str):
                yield ORDINARY_WORDS.sub("", each)
            else:
                yield from read_descriptions(each)


def _mentions(definition: Any, name: str) -> bool:
    mention = re.compile(rf"(?<![\w-]){name}(?![\w-])")
    return any(map(mention.search, read_descriptions(definition)))


def test_no_description_mentions_a_tool_that_the_turn_does_not_have(runtime: Runtime) -> None:
    tools = find_builtin(runtime)
    stale = [
        (disabled.name, definition["function"]["name"])
        for disabled in tools
        for definition in render_definitions(tool for tool in tools if tool is not disabled)
        if _mentions(definition, disabled.name)
    ]
    assert stale == []


def test_no_description_contains_a_placeholder_for_a_mention(runtime: Runtime) -> None:
    tools = find_builtin(runtime)
    for definitions in (render_definitions(tools), [tool.definition() for tool in tools]):
        assert not [text for text in read_descriptions(definitions) if re.search(r"\{\w+\?", text)]


def test_descriptions_mention_tools_that_the_turn_has(runtime: Runtime) -> None:
    described = {each["function"]["name"]: each for each in render_definitions(find_builtin(runtime))}
    for name, mentioned in {
        "browser_navigate": "browser_close",
        "execute_code": "delegate_task",
        "rl_configure": "rl_list_environments",
        "cronjob": "send_message",
        "write_file": "patch",
    }.items():
        assert any(mentioned in text for text in read_descriptions(described[name])), name


def test_adapted_definitions_keep_their_parameters(runtime: Runtime) -> None:
    for tool in find_builtin(runtime):
        adapted = render_definitions([tool])[0]["function"]["parameters"]
        assert adapted == tool.parameters


def test_built_in_tools_are_never_deferred(runtime: Runtime) -> None:
    assert [tool.name for tool in find_builtin(runtime) if not tool.core] == []
