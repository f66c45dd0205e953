"""What a client of the model proxy gets when the provider, the network or the client itself fails.

Every fault is tried with every API, with folding on and off. After each, no request may be left open, and the
provider must have got no more requests than the answer needs. The table of these faults is in docs/proxy.md.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection

import httpx2
import pytest

from tests.gateway.harness import TIMEOUT_S, wait_until
from tests.proxy.clients import APIS, make_tools
from tests.proxy.harness import RunningProxy, serve_proxy
from tests.proxy.scripted_model import EVENT_STREAM, Say, ScriptedModel
from tests.proxy.upstream import Answer, Prepared, Received, Upstream, serve_upstream
from tests.proxy.weather_tools import FORECAST_CALL, SEARCH, TOOLS, names_of
from toolfold.core.types import BRIDGE_NAMES, Json

PATHS = {"chat": "chat/completions", "messages": "messages", "responses": "responses"}
TEXT = "This text is long enough to be sent in several pieces."
PROBLEM = b'{"error": {"type": "as_the_provider_says"}}'
SILENCE_TIMEOUT_S = 1.0

each_api = pytest.mark.parametrize("api", APIS)
folding_on_and_off = pytest.mark.parametrize("served", ["on", "off"], indirect=True)
with_and_without_streaming = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with serve_upstream() as made:
        yield made


@pytest.fixture(scope="module")
def proxies(
    tmp_path_factory: pytest.TempPathFactory, upstream: Upstream
) -> Iterator[dict[str, RunningProxy]]:
    provider = {"timeout_seconds": SILENCE_TIMEOUT_S}
    settings = {
        "tools.rag_embed_model": "light",
        "providers.openai": {"dialect": "openai", "base_url": f"{upstream.url}/v1", **provider},
        "providers.anthropic": {"dialect": "anthropic", "base_url": upstream.url, **provider},
    }
    folder = tmp_path_factory.mktemp("faults")
    with (
        serve_proxy(folder / "on", upstream.url, {**settings, "proxy.folding": "on"}) as on,
        serve_proxy(folder / "off", upstream.url, {**settings, "proxy.folding": "off"}) as off,
    ):
        yield {"on": on, "off": off}


@pytest.fixture
def served(
    request: pytest.FixtureRequest, proxies: dict[str, RunningProxy], upstream: Upstream
) -> Iterator[RunningProxy]:
    """A proxy with or without folding; afterwards nothing of the test may be left in it."""
    upstream.received.clear()
    upstream.prepared.clear()
    upstream.answer = None
    upstream.was_closed.clear()
    made = proxies[getattr(request, "param", "on")]
    yield made
    wait_until(lambda: made.proxy.open_requests == 0)
    assert made.proxy.buffered_bytes == 0
    # What is still open at the provider are connections that wait for the next request.
    wait_until(lambda: upstream.open_connections <= sum(map(count_idle, proxies.values())))


def count_idle(served: RunningProxy) -> int:
    """Return the number of connections to providers that are kept for the next request."""
    return sum(map(len, served.proxy._connections._pool._idle.values()))


def make_body(api: str, *, stream: bool) -> Json:
    said = [{"role": "user", "content": "What will the weather be in Porto?"}]
    body: Json = {"model": "m", "tools": make_tools(api, TOOLS), "stream": stream}
    return body | ({"input": said} if api == "responses" else {"messages": said, "max_tokens": 100})


def post(served: RunningProxy, api: str, *, stream: bool) -> httpx2.Response:
    url, body = f"{served.url}/v1/{PATHS[api]}", make_body(api, stream=stream)
    return httpx2.post(url, json=body, timeout=TIMEOUT_S)


def answer_in_turn(*answers: Answer) -> Answer:
    """Return a provider that uses one answer for each request."""
    remaining = list(answers)
    return lambda received: remaining.pop(0)(received)


def say(*script: Say) -> Answer:
    return ScriptedModel(list(script))


def refuse(status: int, **headers: str) -> Answer:
    sent = {"content-type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    return lambda _: Prepared([PROBLEM], status, sent)


def keep_parts(answer: Answer, kept: slice, **changes: object) -> Answer:
    """Return a provider that sends a part of an answer only."""

    def respond(received: Received) -> Prepared:
        made = answer(received)
        return replace(made, parts=made.parts[kept], **changes)  # type: ignore[arg-type]

    return respond


def cut_after_text(answer: Answer) -> Answer:
    """Return a provider that closes the connection in the middle of the text."""

    def respond(received: Received) -> Prepared:
        made = answer(received)
        if len(made.parts) == 1:
            return Prepared([made.parts[0][:40]], chunked=True, is_cut=True)
        cut = next(at for at, part in enumerate(made.parts) if b"ong eno" in part)
        return replace(made, parts=made.parts[:cut], is_cut=True)

    return respond


def last_event(response: httpx2.Response) -> str:
    return response.text.strip().split("\n\n")[-1]


def names_called(text: str) -> set[str]:
    """Return which bridge tools a response mentions as called."""
    return {name for name in BRIDGE_NAMES if f'"name":"{name}"' in text.replace('": "', '":"')}


@each_api
@folding_on_and_off
@with_and_without_streaming
@pytest.mark.parametrize("status", [401, 429, 500, 529])
def test_error_response_of_the_provider_reaches_the_client_with_its_headers_and_is_not_retried(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool, status: int
) -> None:
    upstream.answer = refuse(status, retry_after="7", x_should_retry="true", request_id="req_1")
    response = post(served, api, stream=stream)
    assert (response.status_code, response.content) == (status, PROBLEM)
    assert response.headers["retry-after"] == "7"
    assert response.headers["x-should-retry"] == "true"
    assert response.headers["request-id"] == "req_1"
    assert len(upstream.received) == 1


@pytest.mark.thorough(keep=6)
@each_api
@folding_on_and_off
@with_and_without_streaming
def test_client_gets_status_504_if_the_provider_does_not_answer_in_time(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    gate = threading.Event()
    upstream.answer = lambda _: Prepared(start=gate)
    response = post(served, api, stream=stream)
    gate.set()
    assert response.status_code == 504
    assert "did not answer in time" in response.json()["error"]["message"]
    assert len(upstream.received) == 1


@each_api
def test_stream_with_hidden_tools_ends_with_an_error_event_if_the_provider_stops_sending(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    upstream.answer = keep_parts(say(Say(TEXT)), slice(0, 5), waits_for_close=True)
    response = post(served, api, stream=True)
    assert response.status_code == 200
    assert "did not answer in time" in last_event(response)
    assert len(upstream.received) == 1


@each_api
@pytest.mark.parametrize("served", ["off"], indirect=True)
def test_forwarded_stream_stays_incomplete_if_the_provider_stops_sending(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    upstream.answer = keep_parts(say(Say(TEXT)), slice(0, 5), waits_for_close=True)
    with pytest.raises(httpx2.RemoteProtocolError):
        post(served, api, stream=True)
    assert len(upstream.received) == 1


@each_api
@with_and_without_streaming
def test_client_gets_status_504_if_the_provider_does_not_answer_after_a_tool_search(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    gate = threading.Event()
    upstream.answer = answer_in_turn(say(Say("", [SEARCH])), lambda _: Prepared(start=gate))
    response = post(served, api, stream=stream)
    gate.set()
    assert response.status_code == 504
    assert "did not answer in time" in response.json()["error"]["message"]
    assert len(upstream.received) == 2


@each_api
def test_stream_with_text_ends_with_an_error_event_if_the_provider_stops_sending_after_a_tool_search(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    gate = threading.Event()
    upstream.answer = answer_in_turn(say(Say(TEXT, [SEARCH])), lambda _: Prepared(start=gate))
    response = post(served, api, stream=True)
    gate.set()
    assert response.status_code == 200
    assert "did not answer in time" in last_event(response)
    assert not names_called(response.text)
    assert len(upstream.received) == 2


@each_api
@with_and_without_streaming
@pytest.mark.parametrize("fault", ["cut", "dropped"])
def test_lost_connection_during_the_request_after_a_tool_search_causes_an_error_without_a_retry(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool, fault: str
) -> None:
    broken: Answer = lambda _: Prepared(is_dropped=True)  # noqa: E731
    if fault == "cut":
        broken = cut_after_text(say(Say(TEXT)))
    upstream.answer = answer_in_turn(say(Say("", [SEARCH])), broken)
    response = post(served, api, stream=stream)
    if stream and fault == "cut":  # the client has got a part of the text
        assert response.status_code == 200
        assert '"error"' in last_event(response)
    else:
        assert response.status_code == 502
        assert "connection to the provider" in response.json()["error"]["message"]
    assert len(upstream.received) == 2


@each_api
@folding_on_and_off
@with_and_without_streaming
def test_client_gets_status_502_if_the_provider_closes_the_connection_without_a_response(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    upstream.answer = lambda _: Prepared(is_dropped=True)
    response = post(served, api, stream=stream)
    assert response.status_code == 502
    assert "connection to the provider" in response.json()["error"]["message"]
    assert len(upstream.received) == 1


@each_api
@with_and_without_streaming
def test_malformed_reply_after_a_tool_search_is_forwarded_with_an_error_event_if_it_is_streamed(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    headers = EVENT_STREAM if stream else {"content-type": "application/json"}
    broken = b'data: {"choices": [{"delta": \n\n' if stream else b'{"unexpected": '
    upstream.answer = answer_in_turn(say(Say("", [SEARCH])), lambda _: Prepared([broken], headers=headers))
    response = post(served, api, stream=stream)
    assert response.status_code == 200
    assert broken in response.content
    if stream:
        assert "ended early" in last_event(response)
    assert len(upstream.received) == 2


@each_api
def test_stream_with_hidden_tools_ends_with_an_error_event_if_the_connection_to_the_provider_breaks(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    upstream.answer = cut_after_text(say(Say(TEXT)))
    response = post(served, api, stream=True)
    assert "This te" in response.text
    assert '"error"' in last_event(response)
    assert len(upstream.received) == 1


@each_api
@pytest.mark.parametrize("served", ["off"], indirect=True)
@with_and_without_streaming
def test_response_to_a_forwarded_request_stays_incomplete_if_the_connection_to_the_provider_breaks(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    upstream.answer = cut_after_text(say(Say(TEXT)))
    with pytest.raises(httpx2.RemoteProtocolError):
        post(served, api, stream=stream)
    assert len(upstream.received) == 1


@each_api
def test_client_gets_status_502_if_the_reply_to_a_request_with_hidden_tools_is_incomplete(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    upstream.answer = cut_after_text(say(Say(TEXT)))
    response = post(served, api, stream=False)
    assert response.status_code == 502
    assert "connection to the provider" in response.json()["error"]["message"]
    assert len(upstream.received) == 1


@each_api
@folding_on_and_off
def test_malformed_event_in_the_stream_of_the_provider_reaches_the_client_unchanged(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    strange = b'data: {"choices": [{"delta": \n\n'

    def respond(received: Received) -> Prepared:
        made = say(Say(TEXT))(received)
        return replace(made, parts=[*made.parts[:3], strange, *made.parts[3:]])

    upstream.answer = respond
    response = post(served, api, stream=True)
    assert strange in response.content
    assert "ong eno" in response.text.partition(strange.decode())[2]
    assert len(upstream.received) == 1


@each_api
@folding_on_and_off
@pytest.mark.parametrize("reply", [b"<html>gateway</html>", b"[]", b'{"unexpected": 1}', b""])
def test_malformed_reply_of_the_provider_reaches_the_client_unchanged(
    served: RunningProxy, upstream: Upstream, api: str, reply: bytes
) -> None:
    upstream.answer = lambda _: Prepared([reply])
    response = post(served, api, stream=False)
    assert response.content == reply
    assert len(upstream.received) == 1


@each_api
@folding_on_and_off
def test_html_page_sent_by_the_provider_instead_of_an_event_stream_is_forwarded_to_the_client(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    upstream.answer = lambda _: Prepared([b"<html>gateway</html>"], headers={"content-type": "text/html"})
    response = post(served, api, stream=True)
    assert b"<html>gateway</html>" in response.content
    assert len(upstream.received) == 1


@contextmanager
def send_request(served: RunningProxy, api: str, *, stream: bool) -> Iterator[None]:
    """Send a request without reading the response, and disconnect at the end of the block."""
    address = httpx2.URL(served.url)
    connection = HTTPConnection(address.host, address.port, timeout=TIMEOUT_S)
    with closing(connection):
        body = json.dumps(make_body(api, stream=stream))
        connection.request("POST", f"/v1/{PATHS[api]}", body, {"content-type": "application/json"})
        yield


@each_api
@folding_on_and_off
@with_and_without_streaming
def test_disconnect_of_the_client_cancels_the_request_at_the_provider(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    answer = say(Say(TEXT))
    upstream.answer = keep_parts(answer, slice(0, 5 if stream else 0), chunked=True, waits_for_close=True)
    with send_request(served, api, stream=stream):
        wait_until(lambda: len(upstream.received) == 1)
    assert upstream.was_closed.wait(TIMEOUT_S)
    assert len(upstream.received) == 1


@each_api
@with_and_without_streaming
def test_disconnect_of_the_client_cancels_the_follow_up_request_after_a_tool_search(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    model = ScriptedModel([Say("", [SEARCH]), Say(TEXT)])
    upstream.answer = answer_in_turn(
        model, keep_parts(model, slice(0, 0), chunked=True, waits_for_close=True)
    )
    with send_request(served, api, stream=stream):
        wait_until(lambda: len(upstream.received) == 2)
    assert upstream.was_closed.wait(TIMEOUT_S)
    assert len(upstream.received) == 2


@each_api
@with_and_without_streaming
def test_proxy_falls_back_to_the_original_request_if_the_provider_rejects_the_follow_up_request(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    upstream.answer = answer_in_turn(say(Say("", [SEARCH])), refuse(400), say(Say(TEXT)))
    response = post(served, api, stream=stream)
    sent = upstream.received
    assert response.status_code == 200
    assert "x-toolfold-folding" not in response.headers
    assert sent[2].body == response.request.content
    assert len(sent) == 3


@each_api
@with_and_without_streaming
@pytest.mark.parametrize("status", [401, 429, 500, 529])
def test_error_response_to_the_follow_up_request_after_a_tool_search_is_forwarded_unchanged(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool, status: int
) -> None:
    upstream.answer = answer_in_turn(say(Say("", [SEARCH])), refuse(status, retry_after="9"))
    response = post(served, api, stream=stream)
    assert (response.status_code, response.content) == (status, PROBLEM)
    assert response.headers["retry-after"] == "9"
    assert len(upstream.received) == 2


@each_api
def test_stream_with_text_ends_with_an_error_event_if_the_request_after_a_tool_search_fails(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    upstream.answer = answer_in_turn(say(Say(TEXT, [SEARCH])), refuse(529))
    response = post(served, api, stream=True)
    assert response.status_code == 200
    assert "answered with status 529" in last_event(response)
    assert not names_called(response.text)
    assert len(upstream.received) == 2


ERROR_EVENTS: dict[str, Json] = {
    "chat": {"error": {"message": "overloaded", "type": "server_error"}},
    "messages": {"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}},
    "responses": {"type": "error", "code": "server_error", "message": "overloaded", "sequence_number": 3},
}


@each_api
@folding_on_and_off
def test_client_gets_no_further_events_after_an_error_event_of_the_provider(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    event = ERROR_EVENTS[api]
    name = f"event: {event['type']}\n" if "type" in event else ""
    data = f"{name}data: {json.dumps(event)}\n\n".encode()

    def respond(received: Received) -> Prepared:
        made = say(Say(TEXT))(received)
        return Prepared([*made.parts[:5], data], headers=EVENT_STREAM, chunked=True)

    upstream.answer = respond
    response = post(served, api, stream=True)
    assert "overloaded" in last_event(response)
    assert "toolfold" not in response.text
    assert len(upstream.received) == 1


def test_client_gets_the_start_event_of_a_stream_before_the_model_has_written_text(
    served: RunningProxy, upstream: Upstream
) -> None:
    gate, ping = threading.Event(), b'event: ping\ndata: {"type": "ping"}\n\n'

    def respond(received: Received) -> Prepared:
        made = say(Say(TEXT, thinking="Hm."))(received)
        return replace(made, parts=[b"".join(made.parts[:5]) + ping, *made.parts[5:]], gate=gate)

    upstream.answer = respond
    url, body = f"{served.url}/v1/messages", make_body("messages", stream=True)
    received = b""
    with httpx2.stream("POST", url, json=body, timeout=TIMEOUT_S) as response:
        for part in response.iter_raw():
            received += part
            if b"message_start" in received:
                gate.set()  # the provider goes on only after the client knows that the reply has begun
    assert received.index(b"message_start") < received.index(b"ping") < received.index(b"Hm.")
    assert received.count(b"event: message_start") == 1


def count_events(response: httpx2.Response, kind: str) -> int:
    return response.text.replace('": "', '":"').count(f'"type":"{kind}"')


def test_replies_before_and_after_tool_searches_are_merged_into_one_stream(
    served: RunningProxy, upstream: Upstream
) -> None:
    script: Sequence[Say] = (Say("One. ", [SEARCH]), Say("Two. ", [SEARCH]), Say("Three."))
    upstream.answer = say(*script)
    messages = post(served, "messages", stream=True)
    upstream.answer = say(*script)
    responses = post(served, "responses", stream=True)
    upstream.answer = say(*script)
    chat = post(served, "chat", stream=True)
    assert count_events(messages, "message_start") == count_events(messages, "message_stop") == 1
    assert count_events(responses, "response.created") == count_events(responses, "response.completed") == 1
    assert chat.text.count("[DONE]") == chat.text.replace(" ", "").count('"role":"assistant"') == 1


@with_and_without_streaming
def test_reply_with_a_tool_search_and_a_client_tool_call_has_the_stop_reason_tool_use(
    served: RunningProxy, upstream: Upstream, stream: bool
) -> None:
    upstream.answer = say(Say("", [SEARCH, FORECAST_CALL]))
    response = post(served, "messages", stream=stream)
    assert '"stop_reason":"tool_use"' in response.text.replace('": "', '":"')
    assert "end_turn" not in response.text


def test_each_of_two_parallel_tool_searches_gets_a_result_in_the_responses_api(
    served: RunningProxy, upstream: Upstream
) -> None:
    upstream.answer = say(Say("", [SEARCH, SEARCH]), Say(TEXT))
    post(served, "responses", stream=True)
    items = upstream.received[1].json["input"]
    called = [item["call_id"] for item in items if item.get("type") == "function_call"]
    answered = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    assert called == answered == ["call_1_0", "call_1_1"]


COUNTING = {"messages": "messages/count_tokens", "responses": "responses/input_tokens"}


@pytest.mark.parametrize("api", sorted(COUNTING))
def test_token_counting_request_omits_the_same_tools_as_the_model_request(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    upstream.answer = lambda received: Prepared([b'{"input_tokens":%d}' % len(received.body)])
    url, body = f"{served.url}/v1/{COUNTING[api]}", make_body(api, stream=False)
    counted = httpx2.post(url, json=body, timeout=TIMEOUT_S)
    upstream.answer = say(Say(TEXT))
    httpx2.post(f"{served.url}/v1/{PATHS[api]}", json=body, timeout=TIMEOUT_S)
    of_count, of_request = upstream.received
    assert of_count.path == f"/v1/{COUNTING[api]}"
    assert set(names_of(of_count.json)) == BRIDGE_NAMES
    assert of_count.body == of_request.body
    assert counted.json() == {"input_tokens": len(of_count.body)}
    assert f"folded={len(TOOLS)}" in counted.headers["x-toolfold-folding"]


@pytest.mark.parametrize("api", sorted(COUNTING))
@pytest.mark.parametrize("status", [400, 404])
def test_token_counting_is_retried_with_all_tools_if_the_provider_rejects_the_shortened_request(
    served: RunningProxy, upstream: Upstream, api: str, status: int
) -> None:
    upstream.answer = answer_in_turn(refuse(status), lambda _: Prepared([b'{"input_tokens":5}']))
    url, body = f"{served.url}/v1/{COUNTING[api]}", make_body(api, stream=False)
    counted = httpx2.post(url, json=body, timeout=TIMEOUT_S)
    assert counted.json() == {"input_tokens": 5}
    assert upstream.received[1].body == counted.request.content
