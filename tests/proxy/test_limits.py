"""Limits on what the clients of the model proxy may use at the same time: memory and open requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from tests.gateway.harness import TIMEOUT_S, wait_until
from tests.proxy.harness import RunningProxy, serve_proxy
from tests.proxy.upstream import Prepared, Upstream, serve_upstream
from toolfold.proxy import app
from toolfold.users.quotas import Quotas, SqliteQuotaStore

BODY = b'{"model": "m", "messages": []}'


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with serve_upstream() as made:
        yield made


@pytest.fixture(autouse=True)
def _clean(upstream: Upstream) -> None:
    upstream.received.clear()
    upstream.prepared.clear()


def post(served: RunningProxy, body: bytes, token: str = "") -> httpx2.Response:
    headers = {"x-toolfold-token": token} if token else {}
    url = f"{served.url}/v1/chat/completions"
    return httpx2.post(url, content=body, headers=headers, timeout=TIMEOUT_S)


def test_bodies_of_open_requests_count_towards_the_memory_limit(
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


def test_all_clients_share_a_memory_limit(
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


def test_one_client_cannot_take_all_open_requests(tmp_path: Path, upstream: Upstream) -> None:
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


def test_refused_requests_free_their_memory(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_BODY_BYTES", 50_000)
    with serve_proxy(tmp_path, upstream.url) as served:
        assert post(served, b" " * 60_000).status_code == 413
        wait_until(lambda: served.proxy.buffered_bytes == 0)
        wait_until(lambda: served.proxy.open_requests == 0)


def test_requests_over_the_limit_of_a_user_are_refused_with_the_time_to_wait(
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
    assert "limit of 1 calls per day for you is reached" in refused.json()["error"]["message"]
    assert len(upstream.received) == 2
