"""Every built-in tool is called by an agent and found by a natural message."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.internet.web_server import WebServer
from tests.tools.tool_examples import (
    EXAMPLES,
    call_all_tools,
    find_missed_tools,
    open_everything,
)
from toolfold import Runtime


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Runtime, WebServer]]:
    with open_everything(tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("project")) as opened:
        yield opened


@pytest.mark.filterwarnings("ignore:.*imghdr.*:DeprecationWarning")
def test_every_built_in_tool_that_is_usable_on_this_machine_can_be_called_without_an_error(
    everything: tuple[Runtime, WebServer],
) -> None:
    runtime, server = everything
    statuses = runtime.statuses(each.tool for each in EXAMPLES)
    missing = {name for name, status in statuses.items() if not status.usable}
    problems = {name: problem for name, problem in call_all_tools(runtime, server).items() if problem}
    assert {name: problems[name] for name in problems.keys() - missing} == {}


def test_every_built_in_tool_is_among_the_tools_selected_for_its_example_message(
    everything: tuple[Runtime, WebServer],
) -> None:
    assert find_missed_tools(everything[0]) == {}


def test_every_built_in_tool_has_an_example_message(everything: tuple[Runtime, WebServer]) -> None:
    tools = everything[0].registry.snapshot().values()
    builtin = {tool.name for tool in tools if tool.source.kind == "builtin"}
    assert {each.tool for each in EXAMPLES} == builtin
