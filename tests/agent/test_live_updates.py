"""An agent uses changed settings and servers from its next message on."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from tests.conftest import recording_tool
from tests.mcp.faults import server_entry
from toolfold import Agent, Runtime, ToolCall, load_config, open_runtime
from toolfold.agent import AgentLimits
from toolfold.core.errors import ToolfoldError
from toolfold.core.events import ConfigReloaded, Event, TurnFinished, TurnStarted
from toolfold.core.types import Json
from toolfold.models.reply import ModelRequest
from toolfold.models.scripted import ScriptedProvider, ScriptedReply, Step
from toolfold.state.store import SqliteSessionStore

TIMEOUT_S = 60.0


class LiveAgent:
    """An agent with a scripted model, whose settings come from a file."""

    def __init__(self, runtime: Runtime, store: SqliteSessionStore, file: Path) -> None:
        self.runtime, self._store, self.file = runtime, store, file

    def write_settings(self, *, servers: dict[str, Any] | None = None, **settings: Any) -> None:
        mcp = {"servers": servers or {}, "wait_seconds": TIMEOUT_S}
        self.file.write_text(json.dumps({"mcp": mcp, **settings}))

    def open(self, *steps: Step, **options: Any) -> tuple[Agent, ScriptedProvider]:
        model = ScriptedProvider(steps)
        return Agent(model, runtime=self.runtime, store=self._store, **options), model


@pytest.fixture
def live(home: Path, tmp_path: Path) -> Iterator[LiveAgent]:
    env = {"TOOLFOLD_HOME": str(home), "HOME": str(home), "PATH": os.environ["PATH"]}
    store = SqliteSessionStore(tmp_path / "sessions.db")
    with open_runtime(load_config(project=tmp_path, env=env)) as runtime:
        yield LiveAgent(runtime, store, home / "config.yaml")
    store.close()


def call(tool: str, /, **arguments: Any) -> ScriptedReply:
    return ScriptedReply(calls=[ToolCall(tool, arguments)])


def shown(request: ModelRequest) -> set[str]:
    return {tool["function"]["name"] for tool in request.tools}


def is_extended_by(earlier: ModelRequest, later: ModelRequest) -> bool:
    """Return True if system prompt and messages of the later request start with those of the earlier one."""
    start = json.dumps(list(earlier.messages))[:-1]
    return earlier.system == later.system and json.dumps(list(later.messages)).startswith(start)


def last_result(request: ModelRequest) -> Json:
    content: Json = json.loads(request.messages[-1]["content"])
    return content


async def test_mcp_server_added_between_two_messages_is_used_for_the_second_message(live: LiveAgent) -> None:
    agent, model = live.open("Hello.", call("mcp_late_echo", text="from the new server"), "Done.")
    await agent.run("Hello")
    live.write_settings(servers={"late": server_entry()})
    result = await agent.run("Use the new server")
    assert result.text == "Done."
    assert "mcp_late_echo" not in shown(model.requests[0])
    assert "mcp_late_echo" in shown(model.requests[1])
    assert last_result(model.requests[2]) == {"result": "from the new server"}
    assert is_extended_by(model.requests[0], model.requests[1])
    assert is_extended_by(model.requests[1], model.requests[2])


async def test_mcp_server_added_or_removed_in_code_changes_the_tools_of_the_next_turn(
    live: LiveAgent,
) -> None:
    agent, model = live.open("One.", "Two.", "Three.")
    await agent.run("One")
    live.runtime.mcp.add("late", server_entry(), wait_seconds=TIMEOUT_S)
    await agent.run("Two")
    live.runtime.mcp.remove("late")
    await agent.run("Three")
    assert ["mcp_late_echo" in shown(each) for each in model.requests] == [False, True, False]


async def test_tool_definitions_sent_with_tool_search_do_not_change_when_an_mcp_server_is_added(
    live: LiveAgent,
) -> None:
    settings: dict[str, Any] = {"tools": {"tool_search": "on"}}
    live.write_settings(servers={"one": server_entry()}, **settings)
    agent, model = live.open(
        "Hello.",
        call("tool_search", queries=["late gives back the text"]),
        call("tool_call", name="mcp_late_arrival", arguments={"text": "found"}),
        "Done.",
    )
    await agent.run("Hello")
    live.write_settings(
        servers={"one": server_entry(), "late": server_entry("", "--first", "arrival")}, **settings
    )
    await agent.run("Find the new tool")
    first, *others = model.requests
    assert all(json.dumps(first.tools) == json.dumps(each.tools) for each in others)
    assert all(is_extended_by(first, each) for each in others)
    assert "mcp_late_arrival" in json.dumps(last_result(model.requests[2]))
    assert last_result(model.requests[3]) == {"result": "found"}


async def test_tool_disabled_between_two_messages_is_neither_sent_to_the_model_nor_run(
    live: LiveAgent,
) -> None:
    ran: list[str] = []
    live.runtime.registry.add(recording_tool("count_boats", "harbour", ran))
    agent, model = live.open(call("count_boats"), "Three.", call("count_boats"), "I cannot.")
    await agent.run("How many boats?")
    live.write_settings(tools={"disabled": ["count_boats"]})
    await agent.run("And now?")
    assert [("count_boats" in shown(each)) for each in model.requests] == [True, True, False, False]
    assert "is not available" in last_result(model.requests[3])["error"]
    assert ran == ["count_boats"]


async def test_agent_limits_changed_in_the_settings_apply_to_the_next_message(live: LiveAgent) -> None:
    live.runtime.registry.add(recording_tool("count_boats", "harbour", []))
    agent, _ = live.open(*[call("count_boats")] * 2, "Done.", *[call("count_boats")] * 5)
    assert (await agent.run("Count")).reason == "completed"
    live.write_settings(agent={"max_steps": 2})
    assert (await agent.run("Count again")).reason == "step_limit"


async def test_agent_limits_set_in_code_are_not_replaced_by_changed_settings(live: LiveAgent) -> None:
    live.runtime.registry.add(recording_tool("count_boats", "harbour", []))
    agent, _ = live.open(*[call("count_boats")] * 3, "Done.", limits=AgentLimits(max_steps=10))
    live.write_settings(agent={"max_steps": 1})
    assert (await agent.run("Count")).reason == "completed"


async def test_event_stream_of_the_next_message_names_the_changed_settings(
    live: LiveAgent,
) -> None:
    agent, _ = live.open("Hello.")
    live.write_settings(tools={"rag_top_k": 3})
    events = [event async for event in agent.stream("Hello")]
    reloaded = [event for event in events if isinstance(event, ConfigReloaded)]
    assert [set(each.changes) for each in reloaded] == [
        {"mcp.wait_seconds changed", "tools.rag_top_k changed"}
    ]
    assert isinstance(events[1], TurnStarted)


async def test_agent_keeps_its_settings_if_the_settings_file_becomes_invalid(live: LiveAgent) -> None:
    live.write_settings(servers={"one": server_entry()})
    agent, model = live.open("One.", call("mcp_one_echo", text="still here"), "Two.")
    await agent.run("One")
    live.file.write_text("mcp: [")
    result = await agent.run("Two")
    assert result.ok
    assert last_result(model.requests[2]) == {"result": "still here"}


async def test_mcp_server_written_into_the_settings_by_a_terminal_call_of_the_agent_is_not_used(
    home: Path, tmp_path: Path
) -> None:
    file = home / "config.yaml"
    evil = json.dumps({"mcp": {"servers": {"evil": server_entry()}, "wait_seconds": TIMEOUT_S}})
    (tmp_path / "evil.json").write_text(evil)
    file.write_text("tools: {rag_top_k: 7}\n")
    env = {"TOOLFOLD_HOME": str(home), "HOME": str(home), "PATH": os.environ["PATH"]}
    store = SqliteSessionStore(tmp_path / "sessions.db")
    with open_runtime(load_config(project=tmp_path, env=env), approver=lambda _: True) as runtime:
        model = ScriptedProvider(
            [
                call("terminal", command=f"cp {tmp_path / 'evil.json'} {file}"),
                call("mcp_evil_echo", text="in the same turn"),
                "One.",
                call("mcp_evil_echo", text="in the next turn"),
                "Two.",
            ]
        )
        agent = Agent(model, runtime=runtime, store=store)
        await agent.run("One")
        await agent.run("Two")
    store.close()
    assert file.read_text() == evil
    assert "settings were changed while this call ran" in json.dumps(model.requests[1].messages[-1])
    assert not any("mcp_evil_echo" in shown(each) for each in model.requests)
    assert "is not available" in last_result(model.requests[2])["error"]
    assert "is not available" in last_result(model.requests[4])["error"]


class SlowSettings:
    """Changes the settings of an agent and delays their use until the end of a `with` block."""

    def __init__(self, live: LiveAgent) -> None:
        self._live = live
        self._is_waiting, self._may_end = threading.Event(), threading.Event()

    def __enter__(self) -> Self:
        self._live.runtime.events.subscribe(self._delay)
        self._live.write_settings(agent={"max_steps": 7})
        return self

    def __exit__(self, *_: object) -> None:
        self._may_end.set()

    def _delay(self, event: Event) -> None:
        if isinstance(event, ConfigReloaded):
            self._is_waiting.set()
            self._may_end.wait(TIMEOUT_S)

    async def wait_until_used(self) -> None:
        assert await asyncio.to_thread(self._is_waiting.wait, TIMEOUT_S)


async def test_interrupting_the_agent_while_it_reloads_settings_ends_the_turn_without_a_model_call(
    live: LiveAgent,
) -> None:
    agent, model = live.open("Answer.")
    events: list[Event] = []
    live.runtime.events.subscribe(events.append)
    with SlowSettings(live) as settings:
        turn = asyncio.create_task(agent.run("Hello"))
        await settings.wait_until_used()
        agent.interrupt()
        assert (await asyncio.wait_for(turn, TIMEOUT_S)).reason == "interrupted"
    assert not model.requests
    assert not agent.history.messages
    turns = [(type(each), each.turn) for each in events if isinstance(each, TurnStarted | TurnFinished)]
    assert turns == [(TurnStarted, 1), (TurnFinished, 1)]
    assert (await agent.run("Hello again")).text == "Answer."


async def test_cancelling_an_agent_stream_while_settings_are_reloaded_stores_no_message(
    live: LiveAgent,
) -> None:
    agent, model = live.open("Answer.")

    async def read_stream() -> None:
        async for _ in agent.stream("Hello"):
            pass

    with SlowSettings(live) as settings:
        reading = asyncio.create_task(read_stream())
        await settings.wait_until_used()
        reading.cancel()
        await asyncio.wait({reading}, timeout=TIMEOUT_S)
        assert reading.cancelled()
    assert not model.requests
    assert not agent.history.messages


async def test_agent_refuses_a_second_message_while_it_reloads_settings_for_the_first_message(
    live: LiveAgent,
) -> None:
    agent, _ = live.open("Answer.")
    with SlowSettings(live) as settings:
        turn = asyncio.create_task(agent.run("Hello"))
        await settings.wait_until_used()
        with pytest.raises(ToolfoldError, match="already working"):
            await asyncio.wait_for(agent.run("Hello again"), TIMEOUT_S)
    assert (await turn).text == "Answer."
