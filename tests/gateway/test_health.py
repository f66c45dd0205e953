"""Health and readiness of a gateway, and that it answers requests until it has been drained."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import httpx2
import pytest

from tests.gateway.gateway_process import GatewayProcess, gateway_process, write_settings
from tests.gateway.harness import TIMEOUT_S, wait_until
from toolfold.database import open_database
from toolfold.gateway import health
from toolfold.gateway.health import Readiness


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("drained")
    settings = {"gateway": {"drain_seconds": 300.0}, "telemetry": {"prometheus": True}}
    write_settings(home, {**settings, "dashboard": {"enabled": False}})
    with gateway_process(home) as running:
        yield running


def get(gateway: GatewayProcess, path: str, **headers: str) -> httpx2.Response:
    return httpx2.get(f"http://127.0.0.1:{gateway.port}{path}", headers=headers, timeout=TIMEOUT_S)


def test_gateway_is_healthy_and_ready_for_any_host_name(gateway: GatewayProcess) -> None:
    for path in ("/healthz", "/readyz"):
        response = get(gateway, path, host="10.1.2.3:8765")
        assert (response.status_code, response.json()) == (200, {"status": "ok"})
    posted = httpx2.post(f"http://127.0.0.1:{gateway.port}/healthz", timeout=TIMEOUT_S)
    assert posted.status_code == 405


def test_metrics_are_served_in_the_format_of_prometheus(gateway: GatewayProcess) -> None:
    response = get(gateway, "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'toolfold_tool_calls_total{outcome="ok"} 0\n' in response.text
    assert "toolfold_ready 1\n" in response.text


def test_gateway_answers_while_it_is_drained_and_a_second_signal_stops_it(gateway: GatewayProcess) -> None:
    gateway.process.send_signal(signal.SIGTERM)
    wait_until(lambda: get(gateway, "/readyz").status_code == 503)
    assert get(gateway, "/readyz").json()["problems"] == ["the replica is about to stop"]
    assert get(gateway, "/healthz").status_code == 200
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    headers = {"Accept": "application/json, text/event-stream"}
    assert httpx2.post(gateway.url, json=ping, headers=headers, timeout=TIMEOUT_S).status_code < 500
    gateway.process.send_signal(signal.SIGTERM)
    gateway.process.wait(TIMEOUT_S)


def test_replica_is_not_ready_while_its_database_is_silent(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = open_database(database_url)
    assert database is not None
    readiness = Readiness(database)
    assert readiness.find_problems() == ()
    monkeypatch.setattr(health, "MAX_SILENCE_S", -1.0)
    assert readiness.find_problems() == ("the database cannot be reached",)
    database.close()
