"""A client that waits while the model searches gets a sign, so that it does not give up the stream."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.gateway.harness import TIMEOUT_S
from tests.proxy.clients import APIS, ask, make_tools
from tests.proxy.harness import RunningProxy, serve_proxy
from tests.proxy.scripted_model import Say, ScriptedModel
from tests.proxy.upstream import Answer, Prepared, Received, Upstream, serve_upstream
from tests.proxy.weather_tools import FORECAST_CALL, SEARCH, TOOLS
from toolfold.core.types import Json
from toolfold.models.wire import WIRES
from toolfold.serving.proxy.rounds import _StreamClient

PATHS = {"chat": "chat/completions", "messages": "messages", "responses": "responses"}
INTERVAL_S = 0.05
SILENCE_S = 0.5
"""How long the provider is silent; many intervals."""
COMMENT = b": keep-alive\n\n"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
QUESTION: Json = {"role": "user", "content": "What will the weather be in Porto?"}
each_api = pytest.mark.parametrize("api", APIS)


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with serve_upstream() as made:
        yield made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[RunningProxy]:
    settings = {
        "proxy.folding": "on",
        "proxy.keep_alive_seconds": INTERVAL_S,
        "tools.rag_embed_model": "light",
    }
    with serve_proxy(tmp_path_factory.mktemp("keep_alive"), upstream.url, settings) as made:
        yield made


def delay_second(answer: Answer, gate: threading.Event, wait_s: float = TIMEOUT_S) -> Answer:
    """Return a provider that answers the second request when the gate is open."""
    received = 0

    def respond(request: Received) -> Prepared:
        nonlocal received
        received += 1
        if received == 2:
            gate.wait(wait_s)
        return answer(request)

    return respond


def read_stream(served: RunningProxy, api: str, sign: bytes, gate: threading.Event) -> tuple[int, bytes]:
    """Return the status and the stream that a client reads, which opens the gate when it gets a sign."""
    body: Json = {"model": "m", "tools": make_tools(api, TOOLS), "stream": True}
    body |= {"input": [QUESTION]} if api == "responses" else {"messages": [QUESTION], "max_tokens": 100}
    url, received = f"{served.url}/v1/{PATHS[api]}", b""
    with httpx2.stream("POST", url, json=body, timeout=TIMEOUT_S) as response:
        for part in response.iter_raw():
            received += part
            if sign in received:
                gate.set()
    return response.status_code, received


@each_api
def test_client_gets_keep_alive_events_after_streamed_text_while_the_reply_to_a_tool_search_is_slow(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    gate, model = threading.Event(), ScriptedModel([Say("I look.", [SEARCH]), Say("Sunny.")])
    upstream.answer = delay_second(model, gate)
    sign = PING if api == "messages" else COMMENT
    status, received = read_stream(served, api, sign, gate)
    assert status == 200
    assert received.index(b"I look.") < received.index(sign) < received.index(b"Sunny.")
    assert received.count(b"Sunny.") >= 1
    assert sign not in received[received.rindex(b"Sunny.") :]
    assert COMMENT not in received.replace(sign, b"")


@each_api
def test_stream_that_begins_with_a_tool_search_starts_with_a_keep_alive_comment(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    gate, model = threading.Event(), ScriptedModel([Say("", [SEARCH]), Say("Sunny.")])
    upstream.answer = delay_second(model, gate)
    status, received = read_stream(served, api, COMMENT, gate)
    assert status == 200
    assert received.startswith(COMMENT)
    assert received.index(COMMENT) < received.index(b"Sunny.")


@each_api
def test_official_sdks_can_read_a_stream_with_keep_alive_events(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    pytest.importorskip("openai")
    pytest.importorskip("anthropic")
    model = ScriptedModel([Say("I look. ", [SEARCH]), Say("Found.", [FORECAST_CALL])])
    upstream.answer = delay_second(model, threading.Event(), SILENCE_S)
    seen = ask(api, served.url, [QUESTION], stream=True, tools=make_tools(api, TOOLS))
    assert seen.text == "I look. Found."
    assert seen.calls == [("get_forecast", {"city": "Porto", "days": 2})]


@each_api
def test_provider_error_after_a_keep_alive_event_is_sent_as_the_last_event_of_the_stream(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    gate, model = threading.Event(), ScriptedModel([Say("", [SEARCH])])
    answers: list[Answer] = [model, lambda _: Prepared([b"{}"], 529)]
    upstream.answer = delay_second(lambda request: answers.pop(0)(request), gate)
    status, received = read_stream(served, api, COMMENT, gate)
    assert status == 200
    last = received.strip().split(b"\n\n")[-1]
    assert b"answered with status 529" in last


@each_api
def test_no_keep_alive_event_is_sent_before_the_provider_has_accepted_the_request(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    def refuse(_request: Received) -> Prepared:
        threading.Event().wait(SILENCE_S)
        return Prepared([b'{"error": "busy"}'], 429, {"content-type": "application/json"})

    upstream.answer = refuse
    status, received = read_stream(served, api, COMMENT, threading.Event())
    assert (status, received) == (429, b'{"error": "busy"}')


class Recorder:
    """Records what an app sends to its client."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.has_sent = asyncio.Event()

    async def __call__(self, message: Any) -> None:
        self.sent.append(message)
        self.has_sent.set()


async def test_no_keep_alive_event_is_sent_after_stop_keep_alive_was_called_or_the_stream_has_ended() -> None:
    send, merger = Recorder(), WIRES["messages"].merge_stream({}, lambda call: call)
    client = _StreamClient(send)
    client.headers = [(b"content-type", b"text/event-stream")]
    async with client.keep_alive(merger, 0.01):
        client.stop_keep_alive()
        await asyncio.sleep(0.05)
        assert not client.has_started
    assert send.sent == []
    async with asyncio.timeout(TIMEOUT_S), client.keep_alive(merger, 0.01):
        await send.has_sent.wait()
    count = len(send.sent)
    await asyncio.sleep(0.05)
    assert [each["type"] for each in send.sent[:2]] == ["http.response.start", "http.response.body"]
    assert len(send.sent) == count
