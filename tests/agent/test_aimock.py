"""Agent turns over HTTP, in each provider's API with and without streaming, against the server aimock."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RuntimeOpener
from tests.providers.aimock import serve_aimock
from toolfold import Agent, Runtime, build_tool
from toolfold.agent import TurnResult
from toolfold.core.events import Event, ModelRetried, TextReceived
from toolfold.core.types import CallContext, Json
from toolfold.models import DIALECTS, DialectName
from toolfold.state.store import SqliteSessionStore

pytestmark = pytest.mark.skipif(
    not (find_spec("openai") and find_spec("anthropic")),
    reason="the packages openai and anthropic are not installed",
)

LONG_ANSWER = "This answer is long enough to be cut in the middle of its stream, after a few of its chunks."
FIXTURES: list[Json] = [
    {
        "match": {"userMessage": "Two forecasts", "hasToolResult": False},
        "response": {
            "toolCalls": [
                {"id": "call_a", "name": "forecast", "arguments": {"city": "Porto"}},
                {"id": "call_b", "name": "forecast", "arguments": {"city": "Faro"}},
            ]
        },
    },
    {
        "match": {"userMessage": "Two forecasts", "hasToolResult": True},
        "response": {"content": "Porto is sunny and Faro is windy."},
    },
    {
        "match": {"userMessage": "Busy", "sequenceIndex": 0},
        "response": {
            "error": {"message": "Rate limited", "type": "rate_limit_error"},
            "status": 429,
            "retryAfter": 1,
        },
    },
    {"match": {"userMessage": "Busy"}, "response": {"content": "Now it works."}},
    {
        "match": {"userMessage": "Cut off"},
        "response": {"content": LONG_ANSWER},
        "latency": 30,
        "truncateAfterChunks": 6,
    },
    {"match": {"userMessage": "Go on"}, "response": {"content": "Here I am again."}},
]
each_dialect = pytest.mark.parametrize("dialect", DIALECTS)
with_and_without_streaming = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_aimock(tmp_path_factory.mktemp("aimock"), FIXTURES) as url:
        yield url


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteSessionStore]:
    store = SqliteSessionStore(tmp_path / "sessions.db")
    yield store
    store.close()


def open_agent(
    open_runtime: RuntimeOpener, store: SqliteSessionStore, url: str, dialect: DialectName, stream: bool
) -> tuple[Runtime, Agent, list[str]]:
    """Return an agent with a `forecast` tool, and the cities that the tool is called with."""
    base_url = url if dialect == "anthropic" else f"{url}/v1"
    runtime = open_runtime({"providers": {"mock": {"dialect": dialect, "base_url": base_url}}})
    cities: list[str] = []

    def forecast(args: Json, _context: CallContext) -> Json:
        cities.append(args["city"])
        return {"forecast": "fine"}

    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    schema = {"description": "Forecast the weather.", "parameters": parameters}
    runtime.registry.add(
        build_tool(name="forecast", toolset="weather", schema=schema, handler=forecast, parallel=True)
    )
    model = "mock:claude-sonnet-4-6" if dialect == "anthropic" else "mock:gpt-4.1"
    agent = Agent(model, runtime=runtime, store=store, toolsets=["weather"], stream_model=stream)
    return runtime, agent, cities


async def run_and_record(runtime: Runtime, agent: Agent, message: str) -> tuple[TurnResult, list[Event]]:
    events: list[Event] = []
    unsubscribe = runtime.events.subscribe(events.append)
    try:
        return await agent.run(message), events
    finally:
        unsubscribe()


@pytest.mark.thorough(keep=1)
@each_dialect
@with_and_without_streaming
async def test_parallel_tool_calls_are_run_and_their_results_are_accepted_by_the_model_api(
    open_test_runtime: RuntimeOpener, store: SqliteSessionStore, url: str, dialect: DialectName, stream: bool
) -> None:
    _, agent, cities = open_agent(open_test_runtime, store, url, dialect, stream)
    async with agent:
        result = await agent.run("Two forecasts")
    assert (result.text, result.reason) == ("Porto is sunny and Faro is windy.", "completed"), result.error
    assert sorted(cities) == ["Faro", "Porto"]
    found = agent.history.dialect.find_calls(agent.history.messages)
    assert found == [("call_a", "forecast"), ("call_b", "forecast")]
    assert agent.history.dialect.find_result_ids(agent.history.messages) == {"call_a", "call_b"}


@pytest.mark.thorough(keep=1)
@each_dialect
@with_and_without_streaming
async def test_rate_limited_model_call_is_retried_after_the_delay_requested_by_the_server(
    tmp_path: Path,
    open_test_runtime: RuntimeOpener,
    store: SqliteSessionStore,
    dialect: DialectName,
    stream: bool,
) -> None:
    with serve_aimock(tmp_path, FIXTURES) as own_url:  # its own server: the first request fails
        runtime, agent, _ = open_agent(open_test_runtime, store, own_url, dialect, stream)
        async with agent:
            result, events = await run_and_record(runtime, agent, "Busy")
    assert result.text == "Now it works.", result.error
    assert [each.delay_s for each in events if isinstance(each, ModelRetried)] == [1.0]


@each_dialect
async def test_interrupted_model_stream_ends_the_turn_and_keeps_the_received_text(
    open_test_runtime: RuntimeOpener, store: SqliteSessionStore, url: str, dialect: DialectName
) -> None:
    runtime, agent, _ = open_agent(open_test_runtime, store, url, dialect, True)
    async with agent:
        result, events = await run_and_record(runtime, agent, "Cut off")
        received = "".join(each.text for each in events if isinstance(each, TextReceived))
        assert result.reason == "error"
        assert result.error
        assert received
        assert LONG_ANSWER.startswith(received)
        assert received != LONG_ANSWER
        stored: list[Any] = agent.history.messages
        assert agent.history.dialect.find_text(stored[-1]) == received
        assert (await agent.run("Go on")).text == "Here I am again."
