"""Destructive tools through a gateway: allowed per client, left to the client, refused with a reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mcp_types
import pytest

from tests.gateway.harness import ERAS, serving, words
from toolfold.gateway.http_app import AccessPolicy, make_access_policy
from toolfold.gateway.tokens import GatewayClient, Tokens

NOTES = str(Path(__file__).parents[1] / "clients" / "notes_server.py")
NAME = "notes_delete_note"
both_eras = pytest.mark.parametrize("era", ERAS)


def servers(tmp_path: Path) -> dict[str, Any]:
    return {"notes": {"command": sys.executable, "args": [NOTES, str(tmp_path / "record")]}}


async def delete(client: Any, text: str = "draft") -> Any:
    return await client.call_tool(NAME, {"text": text})


@both_eras
async def test_a_client_scope_is_the_name_of_its_token(tmp_path: Path, era: str) -> None:
    allowed = {"approval.allowed_tools": ["server:notes client=desk"]}
    with serving(tmp_path / "home", servers(tmp_path), **allowed) as served:
        for name, runs in (("desk", True), ("other", False)):
            async with served.client(era, token=served.tokens.add(name)) as client:
                assert (await delete(client)).is_error is not runs


@both_eras
@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("decline", "the client declined (some clients do so without showing the question)"),
        ("cancel", "the client did not answer the question"),
    ],
)
async def test_an_unanswered_form_is_not_called_a_persons_refusal(
    tmp_path: Path, era: str, action: Any, reason: str
) -> None:
    async def elicit(_context: Any, _params: Any) -> mcp_types.ElicitResult:
        return mcp_types.ElicitResult(action=action, content=None)

    with serving(tmp_path / "home", servers(tmp_path)) as served:
        async with served.client(era, elicitation_callback=elicit) as client:
            told = words(await delete(client))
    assert reason in told
    assert f"toolfold approvals allow {NAME}" in told
    assert "person" not in told


@both_eras
async def test_one_answer_for_the_session_covers_other_arguments(tmp_path: Path, era: str) -> None:
    forms: list[Any] = []

    async def elicit(_context: Any, params: Any) -> mcp_types.ElicitResult:
        forms.append(params.requested_schema["properties"]["answer"]["enumNames"])
        return mcp_types.ElicitResult(action="accept", content={"answer": "session"})

    with serving(tmp_path / "home", servers(tmp_path)) as served:
        async with served.client(era, elicitation_callback=elicit) as client:
            for text in ("one", "two"):
                assert not (await delete(client, text)).is_error
    (offered,) = forms
    assert f"this and any call of {NAME}, with other arguments too, until the client disconnects" in offered


@pytest.mark.parametrize("trusted", [True, False])
async def test_the_question_is_left_to_the_client_where_the_setting_says_so(
    tmp_path: Path, trusted: bool
) -> None:
    setting = {"gateway.trust_client_approval": trusted}
    with serving(tmp_path / "home", servers(tmp_path), **setting) as served:
        async with served.client() as client:
            assert (await delete(client)).is_error is not trusted
            risky = await client.call_tool(NAME, {"text": "x", "command": "rm -rf src"})
            assert risky.is_error  # this was found in the call, and is not what the tool declares


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
def test_only_loopback_without_another_name_is_local(
    tmp_path: Path, host: str, hosts: tuple[str, ...], is_local: bool
) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    tokens.add("somebody")
    assert make_access_policy(host, tokens, toolsets=None, hosts=hosts, origins=()).is_local is is_local


async def test_the_setting_does_not_count_beyond_loopback(tmp_path: Path, monkeypatch: Any) -> None:
    import tests.gateway.harness as harness

    def beyond(_host: str, tokens: Tokens, **_: Any) -> AccessPolicy:
        return AccessPolicy(
            tokens=tokens, anonymous_client=GatewayClient("(local)", None), hosts=frozenset({"box.example"})
        )

    monkeypatch.setattr(harness, "door", beyond)
    setting = {"gateway.trust_client_approval": True}
    with serving(tmp_path / "home", servers(tmp_path), **setting) as served:
        async with served.client() as client:
            assert (await delete(client)).is_error
