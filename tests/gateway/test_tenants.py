"""Users of one gateway cannot see or change what belongs to other users."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import mcp_types
import pytest
from mcp import MCPError

from tests.gateway.harness import (
    REVISIONS,
    TIMEOUT_S,
    RunningGateway,
    fault_server,
    result_text,
    serve_gateway,
)
from tests.gateway.test_attacks import attacker, call_text
from tests.gateway.test_event_streams import ACCEPT, HELLO, HttpSession, request
from toolfold import load_config
from toolfold.config.record import SettingsRecord
from toolfold.core.errors import ConfigError
from toolfold.core.types import GrantLimit
from toolfold.mcp.user_credentials import CREDENTIALS_FILE, find_key_file, open_credentials
from toolfold.serving.gateway.job_clients import limit_jobs_by_token
from toolfold.state.credentials import make_key
from toolfold.state.credentials.keys import write_keys
from toolfold.state.store.jobs import Job
from toolfold.state.users.quotas import Quotas, SqliteQuotaStore
from toolfold.tools.scheduled_jobs import JobRejected

NEWEST = "2026-07-28"


@dataclass
class Tenants:
    """A gateway with the users ann and bob, who have a token each."""

    served: RunningGateway
    home: Path
    ann: str
    bob: str

    def open_http(self, token: str, **headers: str) -> httpx2.Client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx2.Client(
            headers={**ACCEPT, "authorization": f"Bearer {token}", **named}, timeout=TIMEOUT_S
        )


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    workspace = tmp_path_factory.mktemp("workspace")
    home = workspace / "home"  # so that the file tools refuse its files because they are private
    home.mkdir()
    servers = {"notes": fault_server("--resources", "1"), "diary": attacker("diary")}
    settings = {
        "files.workspace": str(workspace),
        "telemetry.prometheus": True,
        "tools.rag_embed_model": "light",
    }
    with serve_gateway(home, servers, **settings) as served:
        tokens = [
            served.tokens.add(name, ["server:notes", "file", "terminal"], user_id=user.id)
            for name in ("ann", "bob")
            for user in [served.tokens.users.add_user(name)]
        ]
        yield Tenants(served, home, *tokens)


def test_user_cannot_use_the_mcp_session_of_another_user(tenants: Tenants) -> None:
    url = tenants.served.url
    with tenants.open_http(tenants.ann) as ann, tenants.open_http(tenants.bob) as bob:
        session = HttpSession(ann, url)
        stolen = {"mcp-session-id": session.id}
        call = {"name": "notes_echo", "arguments": {"text": "x"}}
        for method, params in (("tools/list", {}), ("tools/call", call), ("resources/list", {})):
            assert bob.post(url, json=request(method, params), headers=stolen).status_code == 404
        with bob.stream("GET", url, headers=stolen) as stream:
            assert stream.status_code == 404
        assert bob.delete(url, headers=stolen).status_code == 404
        assert session.post(request("tools/list", {})).status_code == 200  # it was not closed


async def test_user_cannot_resume_a_call_of_another_user_that_waits_for_approval(
    tenants: Tenants, tmp_path: Path
) -> None:
    command = {"command": f"rm -rf {tmp_path / 'victim'}"}
    (tmp_path / "victim").mkdir()
    yes: dict[str, Any] = {"toolfold": mcp_types.ElicitResult(action="accept", content={"answer": "once"})}

    async def refuse(context: Any, params: Any) -> mcp_types.ElicitResult:
        raise AssertionError("no question expected")

    info = mcp_types.Implementation(name="the same", version="1")
    options: dict[str, Any] = {"elicitation_callback": refuse, "client_info": info}
    async with (
        tenants.served.client(NEWEST, token=tenants.ann, **options) as ann,
        tenants.served.client(NEWEST, token=tenants.bob, **options) as bob,
    ):
        waiting = await ann.session.call_tool("terminal", command, allow_input_required=True)
        assert isinstance(waiting, mcp_types.InputRequiredResult)
        with pytest.raises(MCPError, match="unknown, was used, or belongs to another call"):
            await bob.session.call_tool(
                "terminal",
                command,
                input_responses=yes,
                request_state=waiting.request_state,
                allow_input_required=True,
            )
    assert (tmp_path / "victim").exists()


async def test_approval_answer_cannot_be_replayed_for_a_second_call(tenants: Tenants, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    command = {"command": f"rm -rf {victim}"}
    yes: dict[str, Any] = {"toolfold": mcp_types.ElicitResult(action="accept", content={"answer": "once"})}

    async def refuse(context: Any, params: Any) -> mcp_types.ElicitResult:
        raise AssertionError("no question expected")

    victim.mkdir()
    async with tenants.served.client(NEWEST, token=tenants.ann, elicitation_callback=refuse) as ann:
        waiting = await ann.session.call_tool("terminal", command, allow_input_required=True)
        assert isinstance(waiting, mcp_types.InputRequiredResult)
        answer: dict[str, Any] = {"input_responses": yes, "request_state": waiting.request_state}
        assert not (await ann.session.call_tool("terminal", command, **answer)).is_error
        assert not victim.exists()
        victim.mkdir()
        with pytest.raises(MCPError, match="unknown, was used, or belongs to another call"):
            await ann.session.call_tool("terminal", command, **answer)
    assert victim.exists()


async def test_call_repeated_with_its_approval_answer_counts_once_towards_the_call_limit(
    tenants: Tenants, tmp_path: Path
) -> None:
    tokens = tenants.served.tokens
    user = tokens.users.add_user("waiting")
    tokens.users.change_user("waiting", lambda each: replace(each, limits={"calls_per_day": 1.0}))
    tokens.quotas = Quotas(SqliteQuotaStore(tmp_path / "quotas.db"), tokens.users.directory)
    no: dict[str, Any] = {"toolfold": mcp_types.ElicitResult(action="decline")}

    async def refuse(context: Any, params: Any) -> mcp_types.ElicitResult:
        raise AssertionError("no question expected")

    key = tokens.add("waitingclient", ["terminal"], user_id=user.id)
    call = ("terminal", {"command": f"rm -rf {tmp_path / 'victim'}"})
    try:
        async with tenants.served.client(NEWEST, token=key, elicitation_callback=refuse) as client:
            waiting = await client.session.call_tool(*call, allow_input_required=True)
            assert isinstance(waiting, mcp_types.InputRequiredResult)
            await client.session.call_tool(*call, input_responses=no, request_state=waiting.request_state)
            with pytest.raises(MCPError, match="limit of 1 call per day"):
                await client.session.call_tool(*call)
    finally:
        tokens.quotas.close()
        tokens.quotas = None


async def test_user_cannot_cancel_a_call_of_another_user(tmp_path: Path) -> None:
    until, diary = tmp_path / "until", tmp_path / "diary"
    slow = fault_server("--fault", "slow", "--until", str(until), "--diary", str(diary))
    with serve_gateway(tmp_path / "home", {"notes": slow}) as served:
        users = served.tokens.users
        ann, bob = (served.tokens.add(name, user_id=users.add_user(name).id) for name in ("ann", "bob"))
        headers = {**ACCEPT, "authorization": f"Bearer {ann}"}
        async with httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http:
            hello = request("initialize", HELLO)
            session = (await http.post(served.url, json=hello)).headers["mcp-session-id"]
            http.headers["mcp-session-id"] = session
            call = request("tools/call", {"name": "notes_echo", "arguments": {"text": "now"}}, id_=77)
            running = asyncio.create_task(http.post(served.url, json=call))
            async with asyncio.timeout(TIMEOUT_S):
                while not (diary.exists() and "call" in diary.read_text()):  # noqa: ASYNC110 - a process writes it
                    await asyncio.sleep(0.02)
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 77}}
            with httpx2.Client(
                headers={**headers, "authorization": f"Bearer {bob}"}, timeout=TIMEOUT_S
            ) as other:
                own = HttpSession(other, served.url)
                own.post(cancel)
                other.post(served.url, json=cancel, headers={"mcp-session-id": session})
            until.touch()
            response = await running
        assert "slept" in response.text


async def test_read_file_tool_refuses_toolfold_files_such_as_users_and_tokens_and_credentials(
    tenants: Tenants,
) -> None:
    runtime = tenants.served.runtime
    state = runtime.config.paths.state_dir
    write_keys(find_key_file(runtime.config), [make_key()])
    credentials = open_credentials(lambda: runtime.config, None)
    credentials.set("bob", "notes", "TOKEN", "what bob has read")
    credentials.close()
    use = [state / name for name in ("gateway/quotas.db", "usage.db", "jobs.db", "learned/learned.sqlite")]
    for each in use:
        each.parent.mkdir(exist_ok=True)
        each.touch()
    own = tenants.served.client(NEWEST, token=tenants.ann)
    foreign = state / "results" / "session-of-bob"
    foreign.mkdir(parents=True, exist_ok=True)
    (foreign / "secret.txt").write_text("what bob has read")
    async with own as ann:
        for path in (
            foreign / "secret.txt",
            tenants.home / "users.json",
            tenants.home / "tokens.json",
            SettingsRecord(state).file,
            state / CREDENTIALS_FILE,
            find_key_file(runtime.config),
            *use,
        ):
            result = await ann.call_tool("read_file", {"path": str(path)})
            assert result.is_error, path
            assert "Toolfold's own settings and state" in result_text(result), path
        (tenants.home.parent / "own.txt").write_text("what bob has read is not known here")
        search = {"pattern": "what bob has read", "path": str(tenants.home.parent)}
        found = result_text(await ann.call_tool("search_files", search))
        assert "own.txt" in found
        assert "secret.txt" not in found


def test_user_with_access_to_only_one_tool_cannot_list_or_read_resources_of_its_server(
    tenants: Tenants,
) -> None:
    user = tenants.served.tokens.users.add_user("carl")
    token = tenants.served.tokens.add("carl", ["tool:notes_echo"], user_id=user.id)
    with tenants.open_http(tenants.ann) as ann, tenants.open_http(token) as carl:
        session, foreign = HttpSession(ann, tenants.served.url), HttpSession(carl, tenants.served.url)
        (resource,) = session.post(request("resources/list", {})).json()["result"]["resources"]
        assert foreign.post(request("resources/list", {})).json()["result"]["resources"] == []
        for method in ("resources/subscribe", "resources/read"):
            denied, missing = (
                foreign.post(request(method, {"uri": uri})).json()["error"]
                for uri in (resource["uri"], f"{resource['uri']}x")
            )
            assert "was not found" in denied["message"]
            assert denied["code"] == missing["code"]
            assert denied["message"] == missing["message"].replace("x' was", "' was")


@pytest.fixture
def limited_token(tenants: Tenants) -> Iterator[str]:
    """The token of a user whom a rule denies the server `diary`."""
    tokens = tenants.served.tokens
    user = tokens.users.add_user("eve")
    tokens.users.change_user("eve", lambda each: replace(each, denied=("server:diary",)))
    yield tokens.add("eve", user_id=user.id)
    tokens.revoke("eve")
    tokens.users.remove_user("eve")


async def test_prompt_argument_completion_of_a_denied_server_returns_the_error_of_an_unknown_server(
    tenants: Tenants, limited_token: str
) -> None:
    def list_references(server: str) -> list[mcp_types.PromptReference | mcp_types.ResourceTemplateReference]:
        return [
            mcp_types.PromptReference(type="ref/prompt", name=f"{server}_plan"),
            mcp_types.ResourceTemplateReference(type="ref/resource", uri=f"{server}+note://{{which}}"),
        ]

    argument = {"name": "which", "value": ""}
    async with (
        tenants.served.client(NEWEST) as unlimited,
        tenants.served.client(NEWEST, token=limited_token) as eve,
    ):
        assert (await eve.list_prompts()).prompts != []
        for allowed, denied, missing in zip(
            *(list_references(server) for server in ("diary", "diary", "diarx")), strict=True
        ):
            completion = await unlimited.complete(ref=allowed, argument=argument)
            assert "diary-value" in completion.completion.values
            errors = []
            for reference in (denied, missing):
                with pytest.raises(MCPError, match="was not found") as refused:
                    await eve.complete(ref=reference, argument=argument)
                errors.append((refused.value.error.code, str(refused.value).replace("diarx", "diary")))
            assert errors[0] == errors[1]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_tool_denied_by_an_access_rule_cannot_be_called_by_any_spelling_or_through_tool_call(
    tenants: Tenants, limited_token: str, revision: str
) -> None:
    wanted = {"text": "reached"}
    async with tenants.served.client(revision, token=limited_token) as eve:
        allowed = {"name": "notes_echo", "arguments": wanted}
        assert "reached" in await call_text(eve, "tool_call", allowed)
        for name in (
            *("diary_echo", "DIARY_ECHO", "mcp_diary_echo", "mcp__diary__echo", "mcp-diary", "server:diary"),
            *("diary_echo\u200b", "\uff44iary_echo", " diary_echo", "diary_echo ", "diary.echo"),
            *("../diary_echo", "tool:diary_echo", "diary_read_resource", "diary_get_prompt"),
        ):
            inner = {"name": name, "arguments": wanted}
            for outer, args in (
                (name, wanted),
                ("tool_call", inner),
                ("tool_call", {"name": "tool_call", "arguments": inner}),
                ("tool_call", {"name": "tool_call", "arguments": json.dumps(inner)}),
            ):
                assert "reached" not in await call_text(eve, outer, args), (outer, args)
        for outer, rest in (("tool_call", {"arguments": wanted}), ("tool_describe", {})):
            denied = await call_text(eve, outer, {"name": "diary_echo", **rest})
            missing = await call_text(eve, outer, {"name": "diarx_echo", **rest})
            assert denied == missing.replace("diarx", "diary")
        assert "diary_echo" not in await call_text(eve, "tool_search", {"query": "diary echo"})


async def test_metrics_contain_no_names_of_users_or_teams_or_clients_or_tools(
    tenants: Tenants, tmp_path: Path
) -> None:
    tokens = tenants.served.tokens
    user = tokens.users.add_user("metered")
    tokens.users.add_team("meteredteam")
    tokens.users.join_team("meteredteam", "metered")
    tokens.users.change_user("metered", lambda each: replace(each, limits={"calls_per_day": 1.0}))
    tokens.quotas = Quotas(SqliteQuotaStore(tmp_path / "quotas.db"), tokens.users.directory)
    try:
        async with tenants.served.client(token=tokens.add("meteredclient", user_id=user.id)) as client:
            assert not (await client.call_tool("notes_echo", {"text": "x"})).is_error
            with pytest.raises(MCPError, match="limit of 1 call per day"):
                await client.call_tool("notes_echo", {"text": "x"})
        async with httpx2.AsyncClient(timeout=TIMEOUT_S) as http:
            metrics = (await http.get(tenants.served.url.replace("/mcp", "/metrics"))).text
    finally:
        tokens.quotas.close()
        tokens.quotas = None
    assert 'toolfold_limit_refusals_total{limit="calls_per_day"} 1' in metrics
    for name in ("metered", user.id, "notes", "echo", "ann"):
        assert name not in metrics


async def test_session_approval_of_one_user_does_not_apply_to_calls_of_another_user(
    tenants: Tenants, tmp_path: Path
) -> None:
    (tmp_path / "one").mkdir()

    async def allow(context: Any, params: Any) -> mcp_types.ElicitResult:
        return mcp_types.ElicitResult(action="accept", content={"answer": "session"})

    command = {"command": f"rm -rf {tmp_path / 'one'}"}
    async with tenants.served.client(token=tenants.ann, elicitation_callback=allow) as ann:
        assert not (await ann.call_tool("terminal", command)).is_error
        (tmp_path / "one").mkdir()
        async with tenants.served.client(token=tenants.bob) as bob:
            assert (await bob.call_tool("terminal", command)).is_error
    assert (tmp_path / "one").exists()


def test_scheduled_job_gets_only_tools_granted_to_its_user_and_fails_if_the_user_is_disabled(
    tenants: Tenants,
) -> None:
    tokens = tenants.served.tokens
    user = tokens.users.add_user("dora")
    tokens.add("dora", user_id=user.id, may_use_keys=True)
    limit = limit_jobs_by_token(tokens, allow_anonymous=False)
    job = Job(prompt="look", schedule="hourly", times={}, zone="UTC", client="dora")
    tokens.users.change_user("dora", lambda each: replace(each, denied=("server:notes",)))
    assert GrantLimit(None, ("server:notes",)) in limit(job)
    tokens.users.set_disabled("dora", True)
    with pytest.raises(JobRejected):
        limit(job)


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "a\\b", "a\0b", "", "a\nb", ".hidden"])
def test_names_with_path_traversal_are_rejected_for_servers_and_users_and_teams_and_tokens(
    tenants: Tenants, tmp_path: Path, name: str
) -> None:
    tokens = tenants.served.tokens
    for create in (tokens.add, tokens.users.add_user, tokens.users.add_team):
        with pytest.raises(ConfigError):
            create(name)
    with pytest.raises(ConfigError):
        load_config(
            overrides={"mcp.servers": {name: {"command": "true"}}}, env={"TOOLFOLD_HOME": str(tmp_path)}
        )
