"""Limits on what the clients of the model proxy may use: memory, open requests, and tokens of users."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import httpx2
import pytest

from tests.gateway.harness import TIMEOUT_S, wait_until
from tests.proxy.clients import APIS, ask, make_tools
from tests.proxy.harness import RunningProxy, serve_proxy
from tests.proxy.scripted_model import Say, ScriptedModel
from tests.proxy.upstream import Prepared, Upstream, serve_upstream
from tests.proxy.weather_tools import SEARCH, TOOLS
from toolfold.core.events import Event, ModelReplied
from toolfold.core.types import Json
from toolfold.serving.proxy import proxy_app as app
from toolfold.state.users.directory import Meter
from toolfold.state.users.quotas import Quotas, SqliteQuotaStore, user_account

BODY = b'{"model": "m", "messages": []}'
needs_packages = pytest.mark.skipif(
    not (find_spec("openai") and find_spec("anthropic")),
    reason="the packages openai and anthropic are not installed",
)
HIGH: dict[Meter, float] = {"tokens_per_day": 1e9, "cost_per_day": 1e6}


@dataclass
class CountedUser:
    """A proxy with a user whose tokens and cost are counted."""

    served: RunningProxy
    quotas: Quotas
    user_id: str
    token: str

    def read_used(self) -> dict[Meter, float]:
        """Set limits that are not reached, and return what was used so far."""
        wait_until(lambda: self.served.proxy.open_requests == 0)
        self.served.tokens.users.change_user("ann", lambda user: replace(user, limits=HIGH))
        self.quotas.write_pending()
        return {meter: used for meter, used, _ in self.quotas.describe(user_account(self.user_id), HIGH)}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with serve_upstream() as made:
        yield made


@pytest.fixture(autouse=True)
def _clean(upstream: Upstream) -> None:
    upstream.received.clear()
    upstream.prepared.clear()
    upstream.answer = None


def post(served: RunningProxy, body: bytes, token: str = "") -> httpx2.Response:
    headers = {"x-toolfold-token": token} if token else {}
    url = f"{served.url}/v1/chat/completions"
    return httpx2.post(url, content=body, headers=headers, timeout=TIMEOUT_S)


def test_large_request_is_refused_while_open_requests_of_the_same_client_use_up_its_memory_limit(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_CLIENT_BODY_BYTES", 250_000)
    gate, body = threading.Event(), BODY + b" " * 100_000
    upstream.prepared += [Prepared(start=gate), Prepared(start=gate)]
    with serve_proxy(tmp_path, upstream.url) as served, ThreadPoolExecutor() as threads:
        waiting = [threads.submit(post, served, body) for _ in range(2)]
        wait_until(lambda: len(upstream.received) == 2)
        assert served.proxy.buffered_bytes == 2 * len(body)
        refused, small = post(served, body), post(served, BODY)
        gate.set()
        assert [each.result().status_code for each in waiting] == [200, 200]
        wait_until(lambda: served.proxy.buffered_bytes == 0)
        later = post(served, body)
    assert (refused.status_code, small.status_code, later.status_code) == (503, 200, 200)
    assert "Too many large requests" in refused.json()["error"]["message"]


def test_large_request_is_refused_while_another_client_uses_up_the_total_memory_limit(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_TOTAL_BODY_BYTES", 150_000)
    gate, body = threading.Event(), BODY + b" " * 100_000
    upstream.prepared.append(Prepared(start=gate))
    with serve_proxy(tmp_path, upstream.url) as served, ThreadPoolExecutor() as threads:
        first, second = (served.tokens.add(name) for name in ("first", "second"))
        waiting = threads.submit(post, served, body, first)
        wait_until(lambda: len(upstream.received) == 1)
        refused = post(served, body, second)
        gate.set()
        assert waiting.result().status_code == 200
    assert refused.status_code == 503


def test_one_client_cannot_use_more_than_half_of_the_maximum_number_of_open_requests(
    tmp_path: Path, upstream: Upstream
) -> None:
    gate = threading.Event()
    upstream.prepared += [Prepared(start=gate), Prepared(start=gate)]
    with (
        serve_proxy(tmp_path, upstream.url, {"proxy.max_requests": 4}) as served,
        ThreadPoolExecutor() as threads,
    ):
        greedy, other = (served.tokens.add(name) for name in ("greedy", "other"))
        waiting = [threads.submit(post, served, BODY, greedy) for _ in range(2)]
        wait_until(lambda: len(upstream.received) == 2)
        refused, accepted = post(served, BODY, greedy), post(served, BODY, other)
        gate.set()
        assert [each.result().status_code for each in waiting] == [200, 200]
        wait_until(lambda: served.proxy.open_requests == 0)
        later = post(served, BODY, greedy)
    assert (refused.status_code, accepted.status_code, later.status_code) == (429, 200, 200)
    assert "of this client are open" in refused.json()["error"]["message"]
    assert len(upstream.received) == 4


def test_memory_of_a_refused_request_body_no_longer_counts_towards_the_memory_limit(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_BODY_BYTES", 50_000)
    with serve_proxy(tmp_path, upstream.url) as served:
        assert post(served, b" " * 60_000).status_code == 413
        wait_until(lambda: served.proxy.buffered_bytes == 0)
        wait_until(lambda: served.proxy.open_requests == 0)


def test_model_request_above_the_daily_call_limit_of_a_user_gets_status_429_with_retry_after(
    tmp_path: Path, upstream: Upstream
) -> None:
    with serve_proxy(tmp_path, upstream.url) as served:
        users = served.tokens.users
        user = users.add_user("ann")
        users.change_user("ann", lambda each: replace(each, limits={"calls_per_day": 1.0}))
        quotas = Quotas(SqliteQuotaStore(tmp_path / "quotas.db"), users.directory)
        served.tokens.quotas = quotas
        token = served.tokens.add("laptop", user_id=user.id)
        accepted, refused = post(served, BODY, token), post(served, BODY, token)
        anonymous = post(served, BODY)
    assert (accepted.status_code, refused.status_code, anonymous.status_code) == (200, 429, 200)
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    assert "limit of 1 call per day for you is reached" in refused.json()["error"]["message"]
    assert len(upstream.received) == 2


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[CountedUser]:
    """A proxy and a user whose tokens and cost are limited."""
    home = tmp_path_factory.mktemp("counted")
    settings = {"proxy.folding": "on", "tools.rag_embed_model": "light"}
    with serve_proxy(home, upstream.url, settings) as served:
        users = served.tokens.users
        user = users.add_user("ann")
        quotas = Quotas(SqliteQuotaStore(home / "quotas.db"), users.directory)
        served.tokens.quotas = quotas
        yield CountedUser(served, quotas, user.id, served.tokens.add("laptop", user_id=user.id))
        served.tokens.quotas = None
        quotas.close()


@needs_packages
@pytest.mark.thorough(keep=("folded-stream-messages", "forwarded-stream-chat", "forwarded-whole-messages"))
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("tools", [TOOLS, []], ids=["folded", "forwarded"])
def test_tokens_and_cost_of_model_replies_count_towards_the_daily_limits_of_the_user(
    counted: CountedUser, upstream: Upstream, api: str, stream: bool, tools: list[Json]
) -> None:
    script = [Say("", [SEARCH]), Say("Sunny.")] if tools else [Say("Sunny.")]
    upstream.answer = ScriptedModel(script)
    before = counted.read_used()
    options = {"tools": make_tools(api, tools)} if tools else {}
    replies: list[Event] = []
    unsubscribe = counted.served.runtime.events.subscribe(replies.append, only=ModelReplied)
    seen = ask(
        api,
        counted.served.url,
        [{"role": "user", "content": "Weather?"}],
        stream=stream,
        extra_headers={"x-toolfold-token": counted.token},
        **options,
    )
    assert seen.text == "Sunny."
    used = {meter: value - before[meter] for meter, value in counted.read_used().items()}
    unsubscribe()
    assert {each.user_id for each in replies if isinstance(each, ModelReplied)} == {counted.user_id}
    cached = 20 if api == "messages" else 0  # that API does not count it as input
    assert used["tokens_per_day"] == (110 + cached) * len(script)
    assert used["cost_per_day"] > 0
    counted.served.tokens.users.change_user("ann", lambda user: replace(user, limits={"tokens_per_day": 1.0}))
    refused = post(counted.served, BODY, counted.token)
    assert refused.status_code == 429
    assert "limit of 1 token per day for you is reached" in refused.json()["error"]["message"]


def test_tokens_of_a_reply_without_usage_figures_are_estimated_for_the_daily_limit_of_the_user(
    counted: CountedUser, upstream: Upstream
) -> None:
    before = counted.read_used()["tokens_per_day"]
    image = "iVBORw0KGgo" * 10_000
    content = [{"type": "text", "text": "word " * 860}, {"type": "image_url", "image_url": {"url": image}}]
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": content}]}
    chunks = [{"choices": [{"index": 0, "delta": {"content": "text " * 172}}]}]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    lines = [f"data: {json.dumps(each)}\n\n".encode() for each in chunks]
    upstream.prepared.append(
        Prepared([*lines, b"data: [DONE]\n\n"], headers={"content-type": "text/event-stream"}, chunked=True)
    )
    assert post(counted.served, json.dumps(body).encode(), counted.token).status_code == 200
    assert 1_200 < counted.read_used()["tokens_per_day"] - before < 1_300


@pytest.mark.parametrize("tools", [TOOLS, []], ids=["folded", "forwarded"])
def test_tokens_of_a_stream_abandoned_by_the_client_count_towards_the_limit_of_the_user(
    counted: CountedUser, upstream: Upstream, tools: list[Json]
) -> None:
    before = counted.read_used()["tokens_per_day"]
    chunk = {"id": "1", "model": "m", "choices": [{"index": 0, "delta": {"content": "text " * 172}}]}
    upstream.prepared.append(
        Prepared(
            [f"data: {json.dumps(chunk)}\n\n".encode()],
            headers={"content-type": "text/event-stream"},
            chunked=True,
            waits_for_close=True,
        )
    )
    body: Json = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Write."}]}
    body |= {"tools": make_tools("chat", tools)} if tools else {}
    url, headers = f"{counted.served.url}/v1/chat/completions", {"x-toolfold-token": counted.token}
    with httpx2.stream("POST", url, json=body, headers=headers, timeout=TIMEOUT_S) as response:
        assert b"text" in next(response.iter_raw())
    assert counted.read_used()["tokens_per_day"] - before >= 200


CHUNK = {"id": "1", "model": "m", "choices": [{"index": 0, "delta": {"content": "Hi"}}]}
USAGE = {"prompt_tokens": 3_000, "completion_tokens": 4_000}


def send_limited(
    counted: CountedUser, path: str, body: bytes, *, method: str = "POST", kind: str = "application/json"
) -> httpx2.Response:
    headers = {"x-toolfold-token": counted.token, "content-type": kind}
    url = f"{counted.served.url}/v1/{path}"
    return httpx2.request(method, url, content=body, headers=headers, timeout=TIMEOUT_S)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions/", BODY),
        ("/chat/completions", BODY),
        ("chat//completions", BODY),
        ("messages/batches", b'{"requests": []}'),
        ("images/generations", b'{"model": "m"}'),
        ("models/m", BODY),
        ("responses", b'{"model": "m", "input": "x", "background": true}'),
        ("responses", b'{"model": "m", "input": "x", "background": false, "background": true}'),
        ("responses", b'{"model": "m", "input": "x", "background": true, "background": false}'),
        ("responses", b'{"model": "m", "input": "x", "Background": true}'),
        ("chat/completions", b"no json"),
    ],
)
def test_request_whose_tokens_cannot_be_counted_is_refused_for_a_user_with_a_daily_limit(
    counted: CountedUser, upstream: Upstream, path: str, body: bytes
) -> None:
    counted.read_used()
    assert send_limited(counted, path, body).status_code in (400, 403)
    assert not upstream.received
    unlimited = httpx2.post(f"{counted.served.url}/v1/{path}", content=body, timeout=TIMEOUT_S)
    assert unlimited.status_code == 200


def test_model_request_of_a_user_with_a_daily_limit_must_be_sent_by_post_as_utf_8_json(
    counted: CountedUser, upstream: Upstream
) -> None:
    counted.read_used()
    for kind in ("application/x-www-form-urlencoded", "application/json; charset=utf-7"):
        assert send_limited(counted, "chat/completions", BODY, kind=kind).status_code == 400
    for method in ("GET", "PUT", "PATCH"):
        assert send_limited(counted, "chat/completions", BODY, method=method).status_code == 403
    assert not upstream.received
    assert send_limited(counted, "models", b"", method="GET").status_code == 200
    kind = "application/json; charset=utf-8"
    assert send_limited(counted, "chat/completions", BODY, kind=kind).status_code == 200


def test_headers_that_override_the_http_method_are_not_forwarded_to_the_provider(
    counted: CountedUser, upstream: Upstream
) -> None:
    headers = {"x-http-method-override": "POST", "X-HTTP-Method": "POST", "x-method-override": "POST"}
    url = f"{counted.served.url}/v1/models"
    assert httpx2.get(url, headers=headers, timeout=TIMEOUT_S).status_code == 200
    assert not [name for name, _ in upstream.received[0].headers if "method" in name.lower()]


@pytest.mark.parametrize("path", ["completions", "embeddings"])
def test_tokens_of_text_completions_and_embeddings_count_towards_the_daily_limit(
    counted: CountedUser, upstream: Upstream, path: str
) -> None:
    before = counted.read_used()["tokens_per_day"]
    reply = {"model": "m", "choices": [{"index": 0, "text": "Hi"}], "usage": USAGE}
    upstream.prepared.append(Prepared([json.dumps(reply).encode()]))
    assert send_limited(counted, path, b'{"model": "m", "prompt": "x", "input": "x"}').status_code == 200
    assert counted.read_used()["tokens_per_day"] - before == 7_000


@pytest.mark.parametrize("tools", [TOOLS, []], ids=["folded", "forwarded"])
@pytest.mark.parametrize("is_asked", [True, False], ids=["asked", "not-asked"])
def test_stream_usage_is_always_requested_from_the_provider_but_sent_only_to_clients_that_ask(
    counted: CountedUser, upstream: Upstream, tools: list[Json], is_asked: bool
) -> None:
    before = counted.read_used()["tokens_per_day"]
    last: Json = {"id": "1", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage: Json = {"id": "1", "model": "m", "choices": [], "usage": USAGE}
    stream = b"".join(f"data: {json.dumps(each)}\n\n".encode() for each in (CHUNK, last, usage))
    parts = [stream[:50], stream[50:-30], stream[-30:], b"data: [DONE]\n\n"]
    upstream.prepared.append(Prepared(parts, headers={"content-type": "Text/Event-Stream"}, chunked=True))
    body: Json = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Write."}]}
    body |= {"stream_options": {"include_usage": True}} if is_asked else {}
    body |= {"tools": make_tools("chat", tools)} if tools else {}
    answer = send_limited(counted, "chat/completions", json.dumps(body).encode())
    assert answer.status_code == 200
    assert "Hi" in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
    assert ("prompt_tokens" in answer.text) is is_asked
    assert upstream.received[0].json["stream_options"] == {"include_usage": True}
    assert counted.read_used()["tokens_per_day"] - before == 7_000


def test_base64_text_counts_towards_the_token_limit_unless_it_is_an_image_or_document(
    counted: CountedUser, upstream: Upstream
) -> None:
    data = "QUJD" * 25_000
    call = {"type": "tool_use", "id": "1", "name": "x", "input": {"data": data}}
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    document = {"type": "tool_result", "content": [{"type": "document", "source": source}]}
    spent = []
    for content in (data, [call], [image], [document]):
        before = counted.read_used()["tokens_per_day"]
        body = {"model": "m", "messages": [{"role": "user", "content": content}]}
        assert send_limited(counted, "chat/completions", json.dumps(body).encode()).status_code == 200
        spent.append(counted.read_used()["tokens_per_day"] - before)
    assert min(spent[:2]) > 20_000
    assert max(spent[2:]) < 200


@pytest.mark.parametrize("tools", [TOOLS, []], ids=["folded", "forwarded"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_input_tokens_of_a_request_abandoned_before_the_reply_count_towards_the_daily_limit(
    counted: CountedUser, upstream: Upstream, tools: list[Json], stream: bool
) -> None:
    before, gate = counted.read_used()["tokens_per_day"], threading.Event()
    upstream.prepared.append(Prepared(start=gate))
    body: Json = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "word " * 4_000}]}
    body |= {"tools": make_tools("chat", tools)} if tools else {}
    url, headers = f"{counted.served.url}/v1/chat/completions", {"x-toolfold-token": counted.token}
    with pytest.raises(httpx2.TimeoutException):
        httpx2.post(url, json=body, headers=headers, timeout=3)
    used = counted.read_used()["tokens_per_day"] - before
    gate.set()
    assert used > 4_000


def test_tokens_of_a_request_refused_by_the_provider_do_not_count_towards_the_daily_limit(
    counted: CountedUser, upstream: Upstream
) -> None:
    before = counted.read_used()["tokens_per_day"]
    upstream.prepared.append(Prepared(status=400))
    assert send_limited(counted, "chat/completions", BODY).status_code == 400
    assert counted.read_used()["tokens_per_day"] == before
