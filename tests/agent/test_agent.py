"""The agent: turns, limits, interruption, resuming, compression, delegation."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RuntimeOpener, recording_tool
from tests.providers.scripted_server import ScriptedServer, serve_models
from toolfold import ConfigError, Runtime, ToolCall, build_tool, open_runtime
from toolfold.agent import Agent, AgentLimits
from toolfold.agent.compression import MIN_CHARS_PER_TOKEN, SUMMARY_OPENING
from toolfold.agent.history import UNKNOWN_OUTCOME
from toolfold.core.errors import NameTaken
from toolfold.core.events import (
    ContextCompressed,
    Event,
    ModelReplied,
    TextReceived,
    ThinkingReceived,
    ToolFinished,
    ToolsSelected,
    ToolStarted,
    TurnFinished,
    TurnStarted,
)
from toolfold.core.types import CallContext, GrantLimit, Json
from toolfold.models import get_dialect
from toolfold.models.client import ReplyStream
from toolfold.models.provider_errors import ProviderError
from toolfold.models.reply import ModelRequest
from toolfold.models.scripted import ScriptedProvider, ScriptedReply, Step
from toolfold.state.store import SessionInUse, SqliteSessionStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteSessionStore]:
    store = SqliteSessionStore(tmp_path / "sessions.db")
    yield store
    store.close()


def call(tool: str, /, **arguments: Any) -> ScriptedReply:
    return ScriptedReply(calls=[ToolCall(tool, arguments)])


def agent_with(runtime: Runtime, store: SqliteSessionStore, *steps: Step, **options: Any) -> Agent:
    return Agent(ScriptedProvider(steps), runtime=runtime, store=store, **options)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; the caller limits the time."""
    while not condition():  # noqa: ASYNC110 - polls a database
        await asyncio.sleep(0.01)


def is_valid(agent: Agent) -> bool:
    """Return True if every tool call of the history has exactly one result after it."""
    dialect, messages = agent.history.dialect, agent.history.messages
    calls = [call_id for call_id, _ in dialect.find_calls(messages)]
    results = dialect.find_result_ids(messages)
    return set(calls) == results and len(calls) == len(set(calls))


def count_boats(pier: str) -> dict[str, object]:
    """Count the boats at a pier."""
    return {"pier": pier, "boats": 3}


def test_agent_of_its_own_has_the_functions_it_was_given_and_nothing_else(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLFOLD_HOME", str(home))
    (home / "config.yaml").write_text("mcp: {servers: {clock: {command: no}}}\n")
    outside = [call(name) for name in ("terminal", "write_file", "cronjob", "todo", "mcp_clock_now")]
    bridge = [call("tool_call", name=name, arguments={}) for name in ("terminal", "write_file", "cronjob")]
    model = ScriptedProvider([call("count_boats", pier="north"), *outside, *bridge, "Three."])
    with Agent(model, tools=[count_boats]) as agent:
        assert agent.session.granted() == {"count_boats"}
        assert agent.run_sync("How many boats?").text == "Three."
        told = json.dumps(agent.history.messages)
        assert not agent.runtime.config.mcp.servers
    assert '\\"boats\\":3' in told
    assert told.count("not available in this session") == len(outside) + len(bridge)
    assert [each.name for each in home.iterdir()] == ["config.yaml"]


def test_agent_with_tools_and_toolsets_has_both(runtime: Runtime, store: SqliteSessionStore) -> None:
    agent = agent_with(runtime, store, "Done.", tools=[count_boats], toolsets=["todo"])
    assert agent.session.granted() == {"count_boats", "todo"}


def test_limits_of_an_agent_give_it_no_built_in_tool_that_it_lacks_without_them(
    store: SqliteSessionStore, tmp_path: Path
) -> None:
    with open_runtime(state_dir=tmp_path / "state", build_index=False) as runtime:
        runtime.registry.add(count_boats)
        limits = [GrantLimit(None, ("web",))]
        assert agent_with(runtime, store, "Done.", grant_limits=limits).session.granted() == {"count_boats"}
        with_todo = agent_with(runtime, store, "Done.", toolsets=["todo", "web"], grant_limits=limits)
        assert with_todo.session.granted() == {"todo"}


def test_tool_of_an_agent_replaces_no_other_tool_of_a_shared_runtime(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    agent_with(runtime, store, "Done.", tools=[count_boats])

    def other() -> str:
        return "another function"

    other.__name__ = "count_boats"
    for tool in (other, build_tool(name="read_file", toolset="t", schema={}, handler=lambda args: args)):
        with pytest.raises(NameTaken):
            agent_with(runtime, store, "Done.", tools=[tool])


async def test_agent_runs_tool_calls_until_the_model_answers(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    ran: list[str] = []
    runtime.registry.add(recording_tool("count_boats", "harbour", ran))
    agent = agent_with(runtime, store, call("count_boats"), "Three boats.")
    result = await agent.run("How many boats?")
    assert (result.text, result.reason, ran) == ("Three boats.", "completed", ["count_boats"])
    assert [message["role"] for message in agent.history.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert result.usage.output_tokens > 0


def test_run_sync_called_outside_an_event_loop_returns_the_answer_of_the_agent(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    agent = agent_with(runtime, store, call("todo"), "Done.")
    assert agent.run_sync("Plan").text == "Done."


async def test_agent_stream_reports_the_name_of_a_tool_called_through_the_wrapper_tool_call(
    open_test_runtime: RuntimeOpener, store: SqliteSessionStore
) -> None:
    runtime = open_test_runtime({"tools": {"tool_search": {"enabled": "on"}}})
    ran: list[str] = []
    runtime.registry.add(recording_tool("count_boats", "harbour", ran))
    wrapped = call("tool_call", name="count_boats", arguments={})
    agent = agent_with(runtime, store, call("tool_search", query="boats"), wrapped, "Three.")
    events = [event async for event in agent.stream("How many boats?")]
    assert isinstance(events[0], TurnStarted)
    assert isinstance(events[-1], TurnFinished)
    assert [each.tool for each in events if isinstance(each, (ToolStarted, ToolFinished))] == [
        "count_boats"
    ] * 2
    assert [each.calls for each in events if isinstance(each, ModelReplied)] == [(), ("count_boats",), ()]
    assert "".join(each.text for each in events if isinstance(each, TextReceived)) == "Three."
    selected = next(each for each in events if isinstance(each, ToolsSelected))
    assert selected.tool_search
    assert "count_boats" not in selected.shown
    assert not {"tool_search", "tool_call"} & set(selected.shown)
    for event in events:
        json.dumps(event.to_json())


async def test_each_part_of_a_streamed_answer_is_stored_before_its_text_event_is_published(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    agent = agent_with(runtime, store, "word " * 200)
    shown = ""

    def check(event: Event) -> None:
        nonlocal shown
        if isinstance(event, TextReceived):
            shown += event.text
            assert store.load_draft(agent.session_id).startswith(shown)

    runtime.events.subscribe(check)
    result = await agent.run("Talk")
    assert shown == result.text == "word " * 200
    assert store.load_draft(agent.session_id) == ""


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (AgentLimits(max_steps=3), "step_limit"),
        (AgentLimits(max_tokens=1), "token_limit"),
        (AgentLimits(max_seconds=0.0001), "time_limit"),
    ],
)
async def test_agent_stops_with_a_valid_history_at_its_limit_of_steps_or_tokens_or_time(
    runtime: Runtime, store: SqliteSessionStore, limits: AgentLimits, reason: str
) -> None:
    agent = agent_with(runtime, store, *[call("todo") for _ in range(100)], limits=limits)
    result = await agent.run("Loop forever")
    assert result.reason == reason
    assert is_valid(agent)


async def test_agent_stops_when_the_cost_of_its_model_calls_exceeds_the_cost_limit(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 0}
    steps = [ScriptedReply(calls=[ToolCall("todo", {})], usage=usage) for _ in range(9)]
    provider = ScriptedProvider(steps, model="gpt-4.1")
    agent = Agent(provider, runtime=runtime, store=store, limits=AgentLimits(max_cost=3.0, max_tokens=10**9))
    result = await agent.run("Spend")
    assert (result.reason, result.cost) == ("cost_limit", 4.0)


async def test_interrupting_the_agent_during_a_tool_call_leaves_a_valid_history_that_can_be_continued(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    started = asyncio.Event()

    async def wait(_args: Json, _context: CallContext) -> None:
        started.set()
        await asyncio.Event().wait()

    schema = {"description": "wait"}
    runtime.registry.add(build_tool(name="wait", toolset="t", schema=schema, handler=wait, parallel=True))
    ran: list[str] = []
    runtime.registry.add(recording_tool("quick", "t", ran, parallel=True))
    both = ScriptedReply("Working", calls=[ToolCall("wait", {}), ToolCall("quick", {})])
    agent = agent_with(runtime, store, both, "Next answer")
    work = asyncio.create_task(agent.run("Go"))
    async with asyncio.timeout(30):
        await started.wait()
        await until(lambda: any(each.result for each in store.load_calls(agent.session_id)))
    agent.interrupt()
    result = await work
    assert result.reason == "interrupted"
    assert is_valid(agent)
    texts = {message["content"] for message in agent.history.messages if message["role"] == "tool"}
    assert '{"ran":"quick"}' in texts
    assert any(UNKNOWN_OUTCOME in text for text in texts)
    assert (await agent.run("Continue")).text == "Next answer"


async def test_agent_stops_if_another_process_claims_its_session_but_not_if_renewing_its_claim_fails(
    runtime: Runtime,
    store: SqliteSessionStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("toolfold.agent.conversation.CLAIM_RENEWAL_S", 0.02)
    started = asyncio.Event()

    async def wait(_args: Json, _context: CallContext) -> None:
        started.set()
        await asyncio.Event().wait()

    schema = {"description": "wait"}
    runtime.registry.add(build_tool(name="wait", toolset="t", schema=schema, handler=wait))
    agent = agent_with(runtime, store, call("wait"))
    work = asyncio.create_task(agent.run("Go"))
    with contextlib.closing(sqlite3.connect(tmp_path / "sessions.db")) as database:
        async with asyncio.timeout(30):
            await started.wait()
            database.execute("ALTER TABLE sessions RENAME TO hidden")
            await until(lambda: "could not be renewed" in caplog.text)
            database.execute("ALTER TABLE hidden RENAME TO sessions")
            assert not work.done()
            database.execute("UPDATE sessions SET owner = 'elsewhere:1:x', claimed = ?", (time.time(),))
            database.commit()
            result = await work
    assert result.reason == "interrupted"


async def test_interrupting_the_agent_during_an_answer_stores_the_text_already_shown(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    provider = ScriptedProvider(["A long answer. " * 500, "Next"], delta_delay_s=0.005)
    agent = Agent(provider, runtime=runtime, store=store)
    shown: list[str] = []
    runtime.events.subscribe(
        lambda event: shown.append(event.text) if isinstance(event, TextReceived) else None
    )
    work = asyncio.create_task(agent.run("Talk"))
    async with asyncio.timeout(30):
        await until(lambda: bool(shown))
    agent.interrupt()
    result = await work
    assert result.reason == "interrupted"
    assert result.text.startswith("".join(shown)[:10])
    assert agent.history.messages[-1] == {"role": "assistant", "content": result.text}
    assert (await agent.run("Continue")).ok


async def test_interrupted_thinking_of_the_model_is_stored_for_display_but_not_sent_to_the_model(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    class Thinker(ScriptedProvider):
        def stream(self, request: ModelRequest) -> ReplyStream:
            return ReplyStream(self._think(), self.dialect.start_reply())

        async def _think(self) -> AsyncIterator[Json]:
            for text in ("Boats ", "float."):
                yield {"choices": [{"index": 0, "delta": {"reasoning_content": text}}]}
            await asyncio.Event().wait()

    agent = Agent(Thinker([]), runtime=runtime, store=store)
    events: list[Event] = []
    runtime.events.subscribe(events.append)
    turn = asyncio.create_task(agent.run("Why do boats float?"))
    await asyncio.wait_for(until(lambda: sum(isinstance(e, ThinkingReceived) for e in events) == 2), 60)
    agent.interrupt()
    assert (await turn).reason == "interrupted"
    stored = store.load_messages(agent.session_id, active_only=False)
    assert [(each.role, each.text, each.state) for each in stored if each.role == "thinking"] == [
        ("thinking", "Boats float.", "unsent")
    ]
    assert "float." not in json.dumps(agent.history.messages)
    assert {match.role for match in store.search_messages("float")} == {"user"}
    agent.release()
    again = agent_with(runtime, store, session_id=agent.session_id)
    assert again.history.messages == agent.history.messages


async def test_provider_error_ends_the_turn_with_an_error_and_the_next_turn_succeeds(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    refused = ProviderError("the key is not valid", kind="authentication")
    agent = agent_with(runtime, store, refused, "Fine now.")
    result = await agent.run("Hello")
    assert (result.reason, result.error) == ("error", "the key is not valid")
    assert (await agent.run("Again")).text == "Fine now."


class TestResuming:
    async def test_first_request_after_an_agent_restart_repeats_the_messages_sent_before_the_restart(
        self, open_test_runtime: RuntimeOpener, store: SqliteSessionStore
    ) -> None:
        settings = {"tools": {"selection": "keyword", "rag_placement": "tail"}}
        requests: list[ModelRequest] = []
        session_id = None
        for number in range(3):
            runtime = open_test_runtime(settings)
            for name in ("count_boats", "paint_boat", "sell_house"):
                runtime.registry.add(recording_tool(name, "harbour", []))
            provider = ScriptedProvider(
                [call("todo", todos=[{"id": "1", "content": "x", "status": "pending"}]), "Ok."]
            )
            agent = Agent(provider, runtime=runtime, store=store, session_id=session_id)
            await agent.run(f"Please count the boats number {number}")
            requests += provider.requests
            session_id = agent.session_id
            agent.release()
        for earlier, later in itertools.pairwise(requests):
            assert later.system == earlier.system
            assert list(later.tools) == list(earlier.tools)
            assert list(later.messages[: len(earlier.messages)]) == list(earlier.messages)
        assert "<tools>" in json.dumps(requests[-1].messages)

    async def test_todo_plan_of_the_agent_is_restored_with_the_session(
        self, runtime: Runtime, store: SqliteSessionStore
    ) -> None:
        todo = {"id": "1", "content": "Paint", "status": "pending"}
        first = agent_with(runtime, store, call("todo", todos=[todo]), "Planned.")
        await first.run("Plan")
        first.release()
        again = agent_with(runtime, store, call("todo"), "Read.", session_id=first.session_id)
        await again.run("Read the plan")
        results = [message["content"] for message in again.history.messages if message["role"] == "tool"]
        assert "Paint" in results[-1]

    async def test_resuming_a_session_with_another_model_stores_the_name_of_the_new_model(
        self, runtime: Runtime, store: SqliteSessionStore
    ) -> None:
        first = agent_with(runtime, store, "Hi.")
        first.release()
        provider = ScriptedProvider(["Hi."], model="other")
        Agent(provider, runtime=runtime, store=store, session_id=first.session_id).release()
        assert store.load_session(first.session_id).model == "scripted:other"

    async def test_session_that_is_open_in_another_process_cannot_be_opened(
        self, runtime: Runtime, store: SqliteSessionStore
    ) -> None:
        agent = agent_with(runtime, store, "Hi.")
        with pytest.raises(SessionInUse):
            agent_with(runtime, store, "Hi.", session_id=agent.session_id)

    async def test_undo_removes_the_last_message_and_its_answer_from_the_history(
        self, runtime: Runtime, store: SqliteSessionStore
    ) -> None:
        agent = agent_with(runtime, store, "One.", "Two.", "Three.")
        await agent.run("first")
        await agent.run("second")
        assert agent.undo() == "second"
        await agent.run("third")
        contents = [message["content"] for message in agent.history.messages]
        assert contents == ["first", "One.", "third", "Three."]
        agent.release()
        again = agent_with(runtime, store, session_id=agent.session_id)
        assert again.history.messages == agent.history.messages

    @pytest.mark.parametrize("dialect", ["anthropic", "responses"])
    async def test_history_is_converted_if_the_model_of_a_resumed_session_uses_another_message_format(
        self, runtime: Runtime, store: SqliteSessionStore, dialect: str
    ) -> None:
        agent = agent_with(runtime, store, call("todo"), "Done.")
        await agent.run("Plan it")
        agent.release()

        class Other(ScriptedProvider):
            @property
            def dialect(self) -> Any:
                return get_dialect(dialect)

        other = Agent(Other([]), runtime=runtime, store=store, session_id=agent.session_id)
        assert is_valid(other)
        assert len(other.history.dialect.find_calls(other.history.messages)) == 1
        assert other.history.dialect.find_text(other.history.messages[-1]) == "Done."


def auxiliary_settings(server: ScriptedServer) -> dict[str, object]:
    """Return settings in which a model of another provider, behind `server`, writes summaries."""
    provider = {"dialect": "anthropic", "base_url": server.url}
    return {"agent.auxiliary_model": "cheap:claude-haiku-4-5", "providers": {"cheap": provider}}


def record_summaries(runtime: Runtime) -> list[ModelReplied]:
    events: list[ModelReplied] = []

    def keep(event: Event) -> None:
        if isinstance(event, ModelReplied) and event.purpose == "summary":
            events.append(event)

    runtime.events.subscribe(keep)
    return events


class TestCompression:
    async def test_old_messages_are_summarised_when_the_history_approaches_the_context_limit(
        self, runtime: Runtime, store: SqliteSessionStore
    ) -> None:
        def answer(request: ModelRequest) -> str:
            return (
                "A summary: the user likes boats."
                if "Summarise" in request.system
                else "Noted. " + "x " * 300
            )

        agent = agent_with(runtime, store, *[answer] * 100, context_tokens=4_000)
        compressed: list[ContextCompressed] = []
        runtime.events.subscribe(
            lambda event: compressed.append(event) if isinstance(event, ContextCompressed) else None
        )
        for number in range(12):
            assert (await agent.run(f"Remember number {number}: " + "y " * 200)).ok
        assert compressed
        assert all(each.tokens_after < each.tokens_before for each in compressed)
        assert agent.history.messages[0]["content"].startswith(SUMMARY_OPENING)
        assert is_valid(agent)
        agent.release()
        again = agent_with(runtime, store, session_id=agent.session_id)
        assert again.history.messages == agent.history.messages

    async def test_auxiliary_model_writes_the_summary_of_old_messages_and_its_cost_is_counted(
        self, open_test_runtime: RuntimeOpener, store: SqliteSessionStore
    ) -> None:
        with serve_models() as server:
            runtime = open_test_runtime(auxiliary_settings(server))
            summaries = record_summaries(runtime)
            agent = agent_with(runtime, store, *["Noted. " + "x " * 300] * 20, context_tokens=4_000)
            results = [await agent.run("Remember this: " + "y " * 200) for _ in range(8)]
            await agent.close()
        assert all(result.ok for result in results)
        assert agent.history.messages[0]["content"] == f"{SUMMARY_OPENING}\n\nLet me look."
        paths = [path for path, _, _ in server.requests]
        assert set(paths) == {"messages"}
        assert len(summaries) == len(paths)
        assert {(each.model, each.usage.input_tokens) for each in summaries} == {("m-1", 20)}
        assert all(each.cost is not None and each.cost > 0 for each in summaries)

    async def test_main_model_writes_the_summary_of_old_messages_if_the_auxiliary_model_fails(
        self, open_test_runtime: RuntimeOpener, store: SqliteSessionStore
    ) -> None:
        def answer(request: ModelRequest) -> str:
            return "Own summary." if "Summarise" in request.system else "Noted. " + "x " * 300

        with serve_models() as server:
            problem = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
            server.failures += [(400, {}, problem)] * 50
            runtime = open_test_runtime(auxiliary_settings(server))
            agent = agent_with(runtime, store, *[answer] * 30, context_tokens=4_000)
            for _ in range(8):
                assert (await agent.run("Remember this: " + "y " * 200)).ok
            await agent.close()
        assert server.requests
        assert agent.history.messages[0]["content"] == f"{SUMMARY_OPENING}\n\nOwn summary."

    async def test_main_model_gets_a_shortened_transcript_to_summarise_if_the_auxiliary_model_fails(
        self, open_test_runtime: RuntimeOpener, store: SqliteSessionStore
    ) -> None:
        transcripts: list[str] = []

        def answer(request: ModelRequest) -> str:
            if "Summarise" not in request.system:
                return "information " * 150
            transcripts.append(request.messages[0]["content"])
            return "Own summary."

        with serve_models() as server:
            problem = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
            server.failures += [(400, {}, problem)] * 50
            runtime = open_test_runtime(auxiliary_settings(server))
            agent = agent_with(runtime, store, *[answer] * 40, context_tokens=4_000)
            while not transcripts:
                assert (await agent.run("information " * 150)).ok
            await agent.close()
        assert "characters left out" in transcripts[0]
        assert len(transcripts[0]) < 4_000 * MIN_CHARS_PER_TOKEN + 100

    @pytest.mark.parametrize(
        ("name", "problem"),
        [
            ("nowhere:model", "'nowhere:model' names no known model provider"),
            ("openrouter:model", "there is no key for the model provider 'openrouter'"),
        ],
    )
    def test_auxiliary_model_of_an_unknown_provider_or_without_an_api_key_raises_config_error(
        self, open_test_runtime: RuntimeOpener, store: SqliteSessionStore, name: str, problem: str
    ) -> None:
        runtime = open_test_runtime({"agent.auxiliary_model": name})
        with pytest.raises(ConfigError, match=problem):
            agent_with(runtime, store, "Hi.")

    async def test_summarising_old_messages_keeps_tool_calls_and_their_results_together(
        self, runtime: Runtime, store: SqliteSessionStore
    ) -> None:
        def answer(request: ModelRequest) -> str | ScriptedReply:
            if "Summarise" in request.system:
                return "Summary."
            return ScriptedReply("z " * 200, calls=[ToolCall("todo", {})])

        agent = agent_with(
            runtime, store, *[answer] * 100, context_tokens=4_000, limits=AgentLimits(max_steps=25)
        )
        await agent.run("Go on and on")
        assert agent.history.messages[0]["content"].startswith(SUMMARY_OPENING)
        assert is_valid(agent)

    async def test_history_is_summarised_and_resent_if_the_provider_rejects_the_request_as_too_long(
        self, runtime: Runtime, store: SqliteSessionStore
    ) -> None:
        too_long = ProviderError("prompt is too long", kind="context_length")
        agent = agent_with(runtime, store, "One.", "Two.", too_long, "Summary.", "Fits now.")
        await agent.run("first " * 300)
        await agent.run("second " * 300)
        assert (await agent.run("third")).text == "Fits now."


class TestDelegation:
    async def test_sub_agent_can_call_only_delegated_toolsets_and_its_report_becomes_the_tool_result(
        self, runtime: Runtime, store: SqliteSessionStore
    ) -> None:
        ran: list[str] = []
        runtime.registry.add(recording_tool("count_boats", "harbour", ran))
        runtime.registry.add(recording_tool("sell_house", "estate", ran))
        agent = agent_with(
            runtime,
            store,
            call("delegate_task", goal="Count the boats", toolsets=["harbour"]),
            call("sell_house"),
            call("count_boats"),
            "There are three boats.",
            "The sub-agent counted three.",
        )
        result = await agent.run("How many boats?")
        assert result.text == "The sub-agent counted three."
        assert ran == ["count_boats"]
        report = json.loads(agent.history.messages[2]["content"])
        assert report["report"] == "There are three boats."
        assert store.load_session(report["session"]).parent == agent.session_id

    async def test_nested_delegation_does_not_deadlock_if_only_one_sub_agent_may_run_at_a_time(
        self, open_test_runtime: RuntimeOpener, store: SqliteSessionStore
    ) -> None:
        runtime = open_test_runtime({"agent": {"max_delegates": 1}})
        nested = [call("delegate_task", goal=goal) for goal in ("a", "b")]
        agent = agent_with(runtime, store, *nested, "Inner.", "Outer.", "End.")
        events = [event async for event in agent.stream("Delegate twice")]
        assert events[-1].to_json()["text"] == "End."
        report = json.loads(agent.history.messages[2]["content"])
        assert report["report"] == "Outer."

    async def test_sub_agent_cannot_delegate_further_at_the_maximum_delegation_depth(
        self, open_test_runtime: RuntimeOpener, store: SqliteSessionStore
    ) -> None:
        runtime = open_test_runtime({"agent": {"max_delegation_depth": 1}})
        agent = agent_with(
            runtime,
            store,
            call("delegate_task", goal="a"),
            call("delegate_task", goal="b"),
            "Gave up.",
            "End.",
        )
        await agent.run("Delegate")
        report = json.loads(agent.history.messages[2]["content"])
        child = store.load_messages(report["session"])
        assert "run by the agent itself" in child[2].text or "not available" in child[2].text


async def test_fact_stored_by_the_memory_tool_appears_in_the_system_prompt_of_later_sessions(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    first = agent_with(runtime, store, call("memory", action="add", content="The user sails."), "Noted.")
    await first.run("I sail")
    assert "The user sails." not in first.history.record.system
    second = agent_with(runtime, store, "Hello.")
    assert "- The user sails." in second.history.record.system
    file = runtime.config.paths.config_dir / "memory.md"
    file.write_text(file.read_text() + "- Edited by hand.\n")
    assert "Edited by hand." in agent_with(runtime, store).history.record.system


async def test_session_search_tool_finds_text_of_an_earlier_agent_session(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    first = agent_with(runtime, store, "The harbour master is called Ines.")
    await first.run("Who is the harbour master?")
    second = agent_with(runtime, store, call("session_search", query="harbour master"), "Ines.")
    await second.run("Who was that?")
    assert "Ines" in second.history.messages[2]["content"]
