from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import RuntimeOpener
from toolfold import Runtime
from toolfold.agent import LocalAgent
from toolfold.core.types import Json
from toolfold.tools.builtin.agent import NOBODY_CAN_ANSWER

NAMES = ("todo", "memory", "session_search", "delegate_task", "clarify")
FITTING: dict[str, Json] = {
    "todo": {},
    "memory": {"action": "add", "content": "likes tea"},
    "session_search": {"query": "tea"},
    "delegate_task": {"goal": "make tea"},
    "clarify": {"question": "Which tea?"},
}


class Recorder:
    """Agent that offers given tools and records its calls."""

    def __init__(self, *offers: str, answers_later: bool = False) -> None:
        self._offers, self._answers_later = frozenset(offers), answers_later
        self.asked: list[tuple[str, Json]] = []

    @property
    def offers(self) -> frozenset[str]:
        return self._offers

    def run(self, name: str, args: Json) -> Any:
        self.asked.append((name, args))
        return self._later() if self._answers_later else {"done": name}

    async def _later(self) -> Json:
        return {"done": "later"}


def refusal(name: str) -> str:
    """Return the error of a call that no agent runs."""
    if name == "clarify":
        return NOBODY_CAN_ANSWER
    return f"{name!r} is run by the agent itself, and this session has no agent that offers it."


def shown_names(runtime: Runtime, agent: Recorder | LocalAgent | None) -> set[str]:
    definitions = runtime.session(agent=agent).definitions()
    return {each["function"]["name"] for each in definitions} & set(NAMES)


def test_agent_level_tools_such_as_todo_and_delegate_task_are_registered_with_strict_schemas(
    runtime: Runtime,
) -> None:
    found = runtime.registry.get_definitions(NAMES)
    assert [each["function"]["name"] for each in found] == sorted(NAMES)
    for each in found:
        assert each["function"]["description"]
        assert each["function"]["parameters"]["additionalProperties"] is False


def test_each_agent_level_tool_has_a_separate_toolset(runtime: Runtime) -> None:
    toolsets = {"clarify": "clarify", "todo": "todo", "memory": "memory", "session_search": "session_search"}
    for name, toolset in {**toolsets, "delegate_task": "delegation"}.items():
        assert runtime.resolve_toolset(toolset) == [name]


@pytest.mark.parametrize("name", NAMES)
async def test_calling_an_agent_level_tool_fails_in_a_session_without_an_agent(
    name: str, runtime: Runtime
) -> None:
    result = await runtime.session().call(name, FITTING[name])
    assert json.loads(result.text) == {"error": refusal(name)}


@pytest.mark.parametrize("name", NAMES)
async def test_calling_an_agent_level_tool_that_the_agent_does_not_support_fails(
    name: str, runtime: Runtime
) -> None:
    agent = Recorder(*(set(NAMES) - {name}))
    result = await runtime.session(agent=agent).call(name, FITTING[name])
    assert result.error == refusal(name)
    assert agent.asked == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("through", ["directly", "tool_call"])
async def test_agent_level_tools_run_in_the_agent_when_called_directly_or_through_the_tool_call_bridge(
    name: str, through: str, open_test_runtime: RuntimeOpener
) -> None:
    agent = Recorder(name)
    session = open_test_runtime({"tools.tool_search.defer": list(NAMES)}).session(agent=agent)
    call = (name, FITTING[name])
    if through == "tool_call":
        call = ("tool_call", {"name": name, "arguments": FITTING[name]})
    assert (await session.call(*call)).value == {"done": name}
    assert agent.asked == [(name, FITTING[name])]


@pytest.mark.parametrize("name", NAMES)
async def test_agent_level_tool_in_the_models_request_runs_through_the_tool_call_bridge(
    name: str, runtime: Runtime
) -> None:
    agent = Recorder(name)
    session = runtime.session(agent=agent)
    result = await session.call("tool_call", {"name": name, "arguments": FITTING[name]})
    assert result.error is None
    assert agent.asked == [(name, FITTING[name])]


async def test_awaitable_that_an_agent_returns_for_a_tool_call_is_awaited(
    runtime: Runtime,
) -> None:
    agent = Recorder("delegate_task", answers_later=True)
    assert (await runtime.session(agent=agent).call("delegate_task", {"goal": "x"})).value == {
        "done": "later"
    }


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("memory", {}),
        ("memory", {"action": "forget everything"}),
        ("session_search", {"query": ""}),
        ("session_search", {"query": "x", "limit": 21}),
        ("delegate_task", {"goal": ""}),
        ("delegate_task", {"goal": "x", "toolsets": [1]}),
        ("delegate_task", {"goal": "x", "as_root": True}),
    ],
)
async def test_agent_level_tool_call_with_invalid_arguments_is_rejected_before_it_reaches_the_agent(
    name: str, args: Json, runtime: Runtime
) -> None:
    agent = Recorder(*NAMES)
    assert "was not invoked" in str((await runtime.session(agent=agent).call(name, args)).error)
    assert agent.asked == []


async def test_call_of_an_ungranted_agent_level_tool_does_not_reach_the_agent(
    runtime: Runtime,
) -> None:
    agent = Recorder(*NAMES)
    session = runtime.session(["file"], agent=agent)
    for name in NAMES:
        assert not (await session.call(name, FITTING[name])).ok
    assert agent.asked == []


async def test_agent_level_tools_fail_in_a_delegated_session_because_it_has_no_agent(
    runtime: Runtime,
) -> None:
    agent = Recorder(*NAMES)
    child = runtime.session(agent=agent).delegate()
    assert not (await child.call("memory", FITTING["memory"])).ok
    assert agent.asked == []


def test_only_agent_level_tools_that_the_agent_supports_are_shown_to_the_model(runtime: Runtime) -> None:
    assert shown_names(runtime, None) == set()
    assert shown_names(runtime, LocalAgent()) == {"todo"}
    assert shown_names(runtime, Recorder("memory", "todo")) == {"memory", "todo"}


def test_calls_of_ordinary_tools_do_not_reach_an_agent_that_claims_to_support_them(runtime: Runtime) -> None:
    agent = Recorder("write_file", "ghost")
    session = runtime.session(["todo"], agent=agent)
    assert session.definitions() == []
    assert not session.call_sync("write_file", {"path": "x", "content": "y"}).ok
    assert agent.asked == []
