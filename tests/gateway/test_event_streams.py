"""Responses to requests of HTTP sessions: JSON if the response comes soon, else an event stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import httpx2
import pytest

from .harness import TIMEOUT_S, RunningGateway, fault_server, serve_gateway

ACCEPT = {"accept": "application/json, text/event-stream"}
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    servers = {
        "plain": fault_server(),
        "steps": fault_server("--fault", "progress"),
        "silent": fault_server("--fault", "hang", call_timeout_seconds=2),
    }
    with serve_gateway(tmp_path_factory.mktemp("home"), servers) as running:
        yield running


class HttpSession:
    """An MCP session over HTTP whose responses are not interpreted."""

    def __init__(self, client: httpx2.Client, url: str) -> None:
        self._client, self._url = client, url
        self.id = self.post(request("initialize", HELLO)).headers["mcp-session-id"]
        client.headers["mcp-session-id"] = self.id
        self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def stream(self, message: dict[str, Any]) -> AbstractContextManager[httpx2.Response]:
        return self._client.stream("POST", self._url, json=message)

    def post(self, message: dict[str, Any], **headers: str) -> httpx2.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._client.post(self._url, json=message, headers=named)


@pytest.fixture
def session(served: RunningGateway) -> Iterator[HttpSession]:
    with httpx2.Client(headers=ACCEPT, timeout=TIMEOUT_S) as client:
        yield HttpSession(client, served.url)


def request(method: str, params: dict[str, Any], id_: int | str = 7) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}


def call(tool: str, **meta: Any) -> dict[str, Any]:
    return request("tools/call", {"name": tool, "arguments": {"text": "now"}, "_meta": meta})


def read_events(response: httpx2.Response) -> list[dict[str, Any]]:
    return [json.loads(line[5:]) for line in response.text.splitlines() if line.startswith("data:")]


@pytest.mark.parametrize("message", [request("tools/list", {}), call("plain_echo")], ids=["list", "call"])
def test_fast_request_is_answered_with_a_json_response_instead_of_an_event_stream(
    session: HttpSession, message: dict[str, Any]
) -> None:
    response = session.post(message)
    assert response.headers["content-type"] == "application/json"
    assert response.headers["mcp-session-id"] == session.id
    assert response.json()["id"] == 7
    assert "result" in response.json()


def test_call_that_reports_progress_is_answered_with_an_event_stream(session: HttpSession) -> None:
    response = session.post(call("steps_echo", progressToken="p"))
    events = read_events(response)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["mcp-session-id"] == session.id
    assert events[0]["method"] == "notifications/progress"
    assert events[-1]["id"] == 7
    assert "result" in events[-1]


def test_slow_call_is_answered_with_an_event_stream_instead_of_a_json_response(session: HttpSession) -> None:
    response = session.post(call("silent_echo"))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert [each["id"] for each in read_events(response)] == [7]


def test_request_with_an_unknown_session_id_or_an_unsupported_accept_header_is_refused(
    session: HttpSession,
) -> None:
    assert session.post(call("plain_echo"), mcp_session_id="x").status_code == 404
    assert session.post(call("plain_echo"), accept="text/html").status_code == 406


def test_request_id_can_be_reused_after_the_first_request_was_answered(
    session: HttpSession,
) -> None:
    answers = [session.post(call("plain_echo")).json() for _ in range(2)]
    assert [each["id"] for each in answers] == [7, 7]


@pytest.mark.parametrize("repeated", [7, "7"])
def test_request_with_the_id_of_an_open_request_is_refused_and_the_open_request_is_answered(
    session: HttpSession, repeated: int | str
) -> None:
    with session.stream(call("silent_echo")) as first:
        assert first.headers["content-type"].startswith("text/event-stream")  # it has not been answered
        for _ in range(3):
            second = session.post({**call("plain_echo"), "id": repeated})
            assert second.status_code == 400
            assert second.json()["id"] == repeated
            assert "another id" in second.json()["error"]["message"]
        first.read()
    assert [each["id"] for each in read_events(first)] == [7]
    assert session.post(call("plain_echo")).json()["id"] == 7


def test_every_one_of_many_simultaneous_requests_with_the_same_id_is_answered(
    served: RunningGateway, session: HttpSession
) -> None:
    def ask(_: int) -> httpx2.Response:
        headers = {**ACCEPT, "mcp-session-id": session.id}
        return httpx2.post(served.url, json=call("plain_echo"), headers=headers, timeout=TIMEOUT_S)

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(ask, range(50)))
    assert {each.status_code for each in answers} <= {200, 400}
    assert any(each.status_code == 200 for each in answers)
