"""Requests through the model proxy are published as events, for the figures and activity of the dashboard."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator
from importlib.util import find_spec

import httpx2
import pytest

from tests.proxy.clients import APIS, ask, make_tools
from tests.proxy.harness import RunningProxy, serve_proxy
from tests.proxy.scripted_model import Say, ScriptedModel
from tests.proxy.upstream import Prepared, Upstream, serve_upstream
from tests.proxy.weather_tools import FORECAST_CALL, SEARCH, TOOLS
from toolfold.core.events import Event, ModelReplied, ToolsSearched, ToolsSelected, TurnFinished
from toolfold.serving.dashboard.recorder import UsageRecorder
from toolfold.state.store.usage import SqliteUsageStore

pytestmark = pytest.mark.skipif(
    not (find_spec("openai") and find_spec("anthropic")),
    reason="the packages openai and anthropic are not installed",
)

MESSAGES = [{"role": "user", "content": "What will the weather be in Porto?"}]
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with serve_upstream() as made:
        yield made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[RunningProxy]:
    settings = {"proxy.folding": "on", "tools.rag_embed_model": "light"}
    with serve_proxy(tmp_path_factory.mktemp("events"), upstream.url, settings) as made:
        yield made


@pytest.fixture
def events(served: RunningProxy) -> Iterator[queue.Queue[Event]]:
    published: queue.Queue[Event] = queue.Queue()
    unsubscribe = served.runtime.events.subscribe(published.put)
    yield published
    unsubscribe()


def read_until(events: queue.Queue[Event], last: type[Event], count: int) -> list[Event]:
    """Return the events up to the given number of events of the type `last`."""
    seen: list[Event] = []
    while sum(isinstance(each, last) for each in seen) < count:
        seen.append(events.get(timeout=TIMEOUT_S))
    return [
        each for each in seen if isinstance(each, (ModelReplied, ToolsSearched, ToolsSelected, TurnFinished))
    ]


@pytest.mark.thorough(keep=("stream-chat", "whole-messages"))
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_proxy_publishes_events_for_each_model_request_and_tool_search_of_a_client_request(
    served: RunningProxy, upstream: Upstream, events: queue.Queue[Event], api: str, stream: bool
) -> None:
    upstream.answer = ScriptedModel([Say("", [SEARCH]), Say("Here.", [FORECAST_CALL])])
    ask(api, served.url, MESSAGES, stream=stream, tools=make_tools(api, TOOLS))
    seen = read_until(events, ModelReplied, 2)
    assert [each.type for each in seen] == [
        *("tools_selected", "model_replied", "tools_searched", "tools_selected", "model_replied")
    ]
    assert len({each.session_id for each in seen}) == 1
    selected, first, searched, _, second = seen
    assert isinstance(selected, ToolsSelected)
    assert (selected.shown, selected.available, selected.tool_search) == ((), len(TOOLS), True)
    assert selected.tokens_saved > 1_000 > selected.tokens > 0
    assert isinstance(first, ModelReplied)
    assert isinstance(second, ModelReplied)
    assert isinstance(searched, ToolsSearched)
    assert (first.calls, second.calls) == ((), ("get_forecast",))
    assert first.usage.output_tokens == 10
    assert "get_forecast" in searched.found


def test_usage_history_counts_the_tokens_saved_by_the_proxy_and_its_successful_tool_searches(
    served: RunningProxy, upstream: Upstream
) -> None:
    upstream.answer = ScriptedModel([Say("", [SEARCH]), Say("Here.", [FORECAST_CALL])])
    store = SqliteUsageStore(None)
    recorder = UsageRecorder(served.runtime.events, store)
    ask("chat", served.url, MESSAGES, stream=False, tools=make_tools("chat", TOOLS))
    recorder.close()
    totals = store.summarize(time.time() - 3_600, time.time() + 60)
    store.close()
    assert totals["requests"] == 2
    assert totals["saved_tokens"] > 2_000
    assert (totals["searches"], totals["hits"]) == (1, 1)


def test_proxy_publishes_an_event_for_a_failed_request_and_for_a_request_without_tools(
    served: RunningProxy, upstream: Upstream, events: queue.Queue[Event]
) -> None:
    body = {"model": "test-model-1", "messages": MESSAGES}
    upstream.prepared = [
        Prepared([json.dumps({"error": {"message": "busy"}}).encode()], status=429),
        Prepared(),
    ]
    for _ in range(2):
        httpx2.post(f"{served.url}/v1/chat/completions", json=body, timeout=TIMEOUT_S)
    failed, replied = read_until(events, ModelReplied, 1)
    assert isinstance(failed, TurnFinished)
    assert (failed.reason, failed.error) == ("error", "test-model-1: openai answered with status 429")
    assert isinstance(replied, ModelReplied)
    assert (replied.model, replied.provider) == ("test-model-1", "openai")
    assert failed.session_id == replied.session_id
