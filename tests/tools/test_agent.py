from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import Opened
from toolfold import LocalAgent, Runtime
from toolfold.model import Json

NAMES = ("todo", "memory", "session_search", "delegate_task")
FITTING: dict[str, Json] = {
    "todo": {},
    "memory": {"action": "add", "content": "likes tea"},
    "session_search": {"query": "tea"},
    "delegate_task": {"goal": "make tea"},
}


class Recorder:
    """An agent that offers what it is told to, and remembers what it was asked."""

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


def shown(runtime: Runtime, agent: Recorder | LocalAgent | None) -> set[str]:
    definitions = runtime.session(agent=agent).definitions()
    return {each["function"]["name"] for each in definitions} & set(NAMES)


def test_their_schemas_are_in_the_registry(runtime: Runtime) -> None:
    found = runtime.registry.get_definitions(NAMES)
    assert [each["function"]["name"] for each in found] == sorted(NAMES)
    for each in found:
        assert each["function"]["description"]
        assert each["function"]["parameters"]["additionalProperties"] is False


def test_each_can_be_granted_by_itself(runtime: Runtime) -> None:
    toolsets = {"todo": "todo", "memory": "memory", "session_search": "session_search"}
    for name, toolset in {**toolsets, "delegate_task": "delegation"}.items():
        assert runtime.resolve_toolset(toolset) == [name]


@pytest.mark.parametrize("name", NAMES)
async def test_without_an_agent_a_call_is_a_clear_error(name: str, runtime: Runtime) -> None:
    result = await runtime.session().call(name, FITTING[name])
    said = f"{name!r} is run by the agent itself, and this session has no agent that offers it."
    assert json.loads(result.text) == {"error": said}


@pytest.mark.parametrize("name", NAMES)
async def test_an_agent_that_does_not_offer_it_is_not_asked(name: str, runtime: Runtime) -> None:
    agent = Recorder(*(set(NAMES) - {name}))
    result = await runtime.session(agent=agent).call(name, FITTING[name])
    assert "no agent that offers it" in str(result.error)
    assert agent.asked == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("through", ["directly", "tool_call"])
async def test_an_agent_that_offers_it_runs_it(name: str, through: str, opened: Opened) -> None:
    agent = Recorder(name)
    session = opened({"tools.tool_search.defer": list(NAMES)}).session(agent=agent)
    call = (name, FITTING[name])
    if through == "tool_call":
        call = ("tool_call", {"name": name, "arguments": FITTING[name]})
    assert (await session.call(*call)).value == {"done": name}
    assert agent.asked == [(name, FITTING[name])]


@pytest.mark.parametrize("name", NAMES)
async def test_an_agents_own_tools_are_called_directly(name: str, runtime: Runtime) -> None:
    agent = Recorder(name)
    session = runtime.session(agent=agent)
    result = await session.call("tool_call", {"name": name, "arguments": FITTING[name]})
    assert "call it directly" in (result.error or "")
    assert agent.asked == []


async def test_an_agent_may_answer_asynchronously(runtime: Runtime) -> None:
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
async def test_arguments_that_do_not_fit_never_reach_the_agent(
    name: str, args: Json, runtime: Runtime
) -> None:
    agent = Recorder(*NAMES)
    assert "was not invoked" in str((await runtime.session(agent=agent).call(name, args)).error)
    assert agent.asked == []


async def test_a_session_that_was_not_granted_it_never_reaches_its_agent(runtime: Runtime) -> None:
    agent = Recorder(*NAMES)
    session = runtime.session(["file"], agent=agent)
    for name in NAMES:
        assert not (await session.call(name, FITTING[name])).ok
    assert agent.asked == []


async def test_a_delegated_session_does_not_inherit_its_parents_agent(runtime: Runtime) -> None:
    agent = Recorder(*NAMES)
    child = runtime.session(agent=agent).delegate()
    assert not (await child.call("memory", FITTING["memory"])).ok
    assert agent.asked == []


def test_a_model_is_shown_only_what_the_agent_would_run(runtime: Runtime) -> None:
    assert shown(runtime, None) == set()
    assert shown(runtime, LocalAgent()) == {"todo"}
    assert shown(runtime, Recorder("memory", "todo")) == {"memory", "todo"}


def test_an_offer_of_another_tool_grants_nothing(runtime: Runtime) -> None:
    agent = Recorder("write_file", "ghost")
    session = runtime.session(["todo"], agent=agent)
    assert session.definitions() == []
    assert not session.call_sync("write_file", {"path": "x", "content": "y"}).ok
    assert agent.asked == []
