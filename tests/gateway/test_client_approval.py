"""Approval of destructive tools at a gateway: per client, delegated to the client, or refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mcp_types
import pytest

from tests.gateway.harness import REVISIONS, result_text, serve_gateway
from toolfold.core.events import ApprovalAnswered, ApprovalAsked, Event
from toolfold.serving.gateway.client_tokens import GatewayClient, Tokens
from toolfold.serving.gateway.http_app import AccessPolicy, make_access_policy

NOTES = str(Path(__file__).parents[1] / "clients" / "notes_server.py")
NAME = "notes_delete_note"
both_revisions = pytest.mark.parametrize("revision", REVISIONS)


def servers(tmp_path: Path) -> dict[str, Any]:
    return {"notes": {"command": sys.executable, "args": [NOTES, str(tmp_path / "record")]}}


async def call_delete(client: Any, text: str = "draft") -> Any:
    return await client.call_tool(NAME, {"text": text})


@both_revisions
async def test_tool_allowed_for_one_client_in_the_settings_runs_only_with_the_token_of_that_client(
    tmp_path: Path, revision: str
) -> None:
    allowed = {"approval.allowed_tools": ["server:notes client=desk"]}
    with serve_gateway(tmp_path / "home", servers(tmp_path), **allowed) as served:
        for name, runs in (("desk", True), ("other", False)):
            async with served.client(revision, token=served.tokens.add(name)) as client:
                assert (await call_delete(client)).is_error is not runs


@both_revisions
@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("decline", "the client declined (some clients do so without showing the question)"),
        ("cancel", "the client did not answer the question"),
    ],
)
async def test_declined_approval_form_is_reported_as_declined_by_the_client_not_by_a_person(
    tmp_path: Path, revision: str, action: Any, reason: str
) -> None:
    async def elicit(_context: Any, _params: Any) -> mcp_types.ElicitResult:
        return mcp_types.ElicitResult(action=action, content=None)

    with serve_gateway(tmp_path / "home", servers(tmp_path)) as served:
        async with served.client(revision, elicitation_callback=elicit) as client:
            text = result_text(await call_delete(client))
    assert reason in text
    assert f"toolfold approvals allow {NAME}" in text
    assert "person" not in text


@both_revisions
async def test_approval_by_a_client_publishes_one_event_for_the_question_and_one_for_the_answer(
    tmp_path: Path, revision: str
) -> None:
    async def elicit(_context: Any, _params: Any) -> mcp_types.ElicitResult:
        return mcp_types.ElicitResult(action="accept", content={"answer": "once"})

    events: list[Event] = []
    with serve_gateway(tmp_path / "home", servers(tmp_path)) as served:
        served.runtime.events.subscribe(events.append)
        async with served.client(revision, elicitation_callback=elicit) as client:
            assert not (await call_delete(client)).is_error
    asked, answered = (each for each in events if isinstance(each, (ApprovalAsked, ApprovalAnswered)))
    assert (asked.type, answered.type) == ("approval_asked", "approval_answered")
    assert asked.tool == answered.tool == NAME
    assert asked.call_id == answered.call_id != ""
    assert isinstance(answered, ApprovalAnswered)
    assert (answered.allowed, answered.answer) == (True, "once")


@both_revisions
async def test_session_approval_of_a_tool_by_a_client_allows_later_calls_with_other_arguments(
    tmp_path: Path, revision: str
) -> None:
    forms: list[Any] = []

    async def elicit(_context: Any, params: Any) -> mcp_types.ElicitResult:
        forms.append(params.requested_schema["properties"]["answer"]["enumNames"])
        return mcp_types.ElicitResult(action="accept", content={"answer": "session"})

    with serve_gateway(tmp_path / "home", servers(tmp_path)) as served:
        async with served.client(revision, elicitation_callback=elicit) as client:
            for text in ("one", "two"):
                assert not (await call_delete(client, text)).is_error
    (offered,) = forms
    assert f"this and any call of {NAME}, with any arguments, until the client disconnects" in offered


@pytest.mark.parametrize("trusted", [True, False])
async def test_setting_trust_client_approval_allows_destructive_tools_but_not_dangerous_commands(
    tmp_path: Path, trusted: bool
) -> None:
    setting = {"gateway.trust_client_approval": trusted}
    with serve_gateway(tmp_path / "home", servers(tmp_path), **setting) as served:
        async with served.client() as client:
            assert (await call_delete(client)).is_error is not trusted
            risky = await client.call_tool(NAME, {"text": "x", "command": "rm -rf src"})
            assert risky.is_error  # found in the arguments, not declared by the tool


@pytest.mark.parametrize(
    ("host", "hosts", "is_local"),
    [
        ("127.0.0.1", (), True),
        ("localhost", (), True),
        ("127.0.0.1", ("box.example",), False),
        ("0.0.0.0", (), False),
        ("192.0.2.7", (), False),
    ],
)
def test_is_local_is_true_only_for_loopback_addresses_without_additional_allowed_hosts(
    tmp_path: Path, host: str, hosts: tuple[str, ...], is_local: bool
) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    tokens.add("somebody")
    assert make_access_policy(host, tokens, toolsets=None, hosts=hosts, origins=()).is_local is is_local


async def test_setting_trust_client_approval_has_no_effect_if_other_machines_can_reach_the_gateway(
    tmp_path: Path, monkeypatch: Any
) -> None:
    import tests.gateway.harness as harness

    def beyond(_host: str, tokens: Tokens, **_: Any) -> AccessPolicy:
        return AccessPolicy(
            tokens=tokens, anonymous_client=GatewayClient("(local)", None), hosts=frozenset({"box.example"})
        )

    monkeypatch.setattr(harness, "make_access_policy", beyond)
    setting = {"gateway.trust_client_approval": True}
    with serve_gateway(tmp_path / "home", servers(tmp_path), **setting) as served:
        async with served.client() as client:
            assert (await call_delete(client)).is_error
