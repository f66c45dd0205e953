"""Health and readiness of a gateway, and that it answers requests until it has been drained."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.gateway.gateway_process import GatewayProcess, gateway_process, write_settings
from tests.gateway.harness import TIMEOUT_S, wait_until
from toolfold.serving.gateway import health
from toolfold.serving.gateway.health import ReplicaReadiness
from toolfold.state.database import open_database


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("drained")
    settings = {"gateway": {"drain_seconds": 300.0}, "telemetry": {"prometheus": True}}
    write_settings(home, {**settings, "dashboard": {"enabled": False}})
    with gateway_process(home) as running:
        yield running


def get(gateway: GatewayProcess, path: str, **headers: str) -> httpx2.Response:
    return httpx2.get(f"http://127.0.0.1:{gateway.port}{path}", headers=headers, timeout=TIMEOUT_S)


def test_health_and_readiness_endpoints_accept_any_host_header(gateway: GatewayProcess) -> None:
    for path in ("/healthz", "/readyz"):
        response = get(gateway, path, host="10.1.2.3:8765")
        assert (response.status_code, response.json()) == (200, {"status": "ok"})
    posted = httpx2.post(f"http://127.0.0.1:{gateway.port}/healthz", timeout=TIMEOUT_S)
    assert posted.status_code == 405


def test_metrics_endpoint_returns_the_prometheus_text_format(gateway: GatewayProcess) -> None:
    response = get(gateway, "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'toolfold_tool_calls_total{outcome="ok"} 0\n' in response.text
    assert "toolfold_ready 1\n" in response.text


def test_sighup_reloads_the_gateway_settings_and_keeps_client_streams_open(
    gateway: GatewayProcess,
) -> None:
    home = gateway.log.parent
    settings = json.loads((home / "config.yaml").read_text())
    info = {"name": "test", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    kinds = {"Accept": "application/json, text/event-stream"}
    opened = httpx2.post(gateway.url, json=opening, headers=kinds, timeout=TIMEOUT_S)
    session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    with httpx2.stream("GET", gateway.url, headers=kinds | session, timeout=TIMEOUT_S) as stream:
        assert stream.status_code == 200
        settings["gateway"]["port"] = 1234
        settings["tools"] = {"selection": "keyword"}
        write_settings(home, settings)
        gateway.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "read again after SIGHUP" in read_log(home))
        wait_until(lambda: "settings have changed: tools.selection" in read_log(home))
        assert "take effect after a restart: gateway.port" in read_log(home)
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        headers = kinds | session
        assert httpx2.post(gateway.url, json=ping, headers=headers, timeout=TIMEOUT_S).status_code == 200
        assert not stream.is_closed
    assert gateway.process.poll() is None


def read_log(home: Path) -> str:
    return "".join(each.read_text() for each in home.rglob("gateway.log"))


def test_gateway_reports_not_ready_but_answers_after_sigterm_and_exits_after_a_second_sigterm(
    gateway: GatewayProcess,
) -> None:
    gateway.process.send_signal(signal.SIGTERM)
    wait_until(lambda: get(gateway, "/readyz").status_code == 503)
    assert get(gateway, "/readyz").json()["problems"] == ["the replica is about to stop"]
    assert get(gateway, "/healthz").status_code == 200
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    headers = {"Accept": "application/json, text/event-stream"}
    assert httpx2.post(gateway.url, json=ping, headers=headers, timeout=TIMEOUT_S).status_code < 500
    gateway.process.send_signal(signal.SIGTERM)
    gateway.process.wait(TIMEOUT_S)


def test_replica_reports_not_ready_while_its_database_does_not_respond(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = open_database(database_url)
    assert database is not None
    readiness = ReplicaReadiness(database)
    assert readiness.find_problems() == ()
    monkeypatch.setattr(health, "MAX_SILENCE_S", -1.0)
    assert readiness.find_problems() == ("the database cannot be reached",)
    database.close()
