"""Real clients of both protocol generations at a real gateway: tools, grants, approval and isolation."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import mcp_types
import pytest
from mcp import Client, MCPError

from tests.gateway.harness import (
    REVISIONS,
    TIMEOUT_S,
    RunningGateway,
    fault_server,
    result_text,
    serve_gateway,
    wait_until,
)
from tests.thorough import thorough_count

both_revisions = pytest.mark.parametrize("revision", REVISIONS)


@pytest.fixture(scope="module")
def two_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    servers = {"one": fault_server("--tools", "3"), "two": fault_server("--tools", "2")}
    with serve_gateway(tmp_path_factory.mktemp("two_servers"), servers) as served:
        yield served


@pytest.fixture(scope="module")
def large_catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    servers = {"one": fault_server("--tools", "30"), "two": fault_server("--tools", "30")}
    settings = {"tools.tool_search.threshold_tokens": 500}
    with serve_gateway(tmp_path_factory.mktemp("large_catalog"), servers, **settings) as served:
        yield served


async def tool_names(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools]


@both_revisions
async def test_gateway_with_few_tools_lists_every_tool_by_its_name_without_the_prefix_mcp(
    two_servers: RunningGateway, revision: str
) -> None:
    async with two_servers.client(revision) as client:
        assert await tool_names(client) == ["one_echo", "one_tool_2", "one_tool_3", "two_echo", "two_tool_2"]
        assert result_text(await client.call_tool("one_echo", {"text": "hello"})) == "hello"


@both_revisions
async def test_read_only_hint_is_set_for_tool_search_and_tool_describe_but_not_for_tool_call(
    large_catalog: RunningGateway, revision: str
) -> None:
    async with large_catalog.client(revision) as client:
        hints = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
    assert (hint := hints["tool_search"]) is not None
    assert hint.read_only_hint is True
    assert (hint := hints["tool_describe"]) is not None
    assert hint.read_only_hint is True
    assert hints["tool_call"] is None


@both_revisions
async def test_gateway_with_many_tools_lists_only_search_tools_but_accepts_calls_of_any_tool_by_name(
    large_catalog: RunningGateway, revision: str
) -> None:
    async with large_catalog.client(revision) as client:
        assert sorted(await tool_names(client)) == ["tool_call", "tool_describe", "tool_search"]
        found = json.loads(result_text(await client.call_tool("tool_search", {"query": "tool_7"})))
        assert found["matches"][0]["name"] in ("one_tool_7", "two_tool_7")
        described = result_text(await client.call_tool("tool_describe", {"name": "one_tool_7"}))
        assert "one_tool_7" in described
        call = {"name": "one_echo", "arguments": {"text": "through the bridge"}}
        assert result_text(await client.call_tool("tool_call", call)) == "through the bridge"
        assert result_text(await client.call_tool("two_echo", {"text": "by its name"})) == "by its name"


@both_revisions
async def test_client_cannot_find_or_call_tools_outside_the_toolsets_of_its_token(
    large_catalog: RunningGateway, revision: str
) -> None:
    token = large_catalog.tokens.add(f"only-one-{revision}", ["mcp-one"])
    async with large_catalog.client(revision, token=token) as client:
        assert result_text(await client.call_tool("one_echo", {"text": "x"})) == "x"
        found = result_text(await client.call_tool("tool_search", {"query": "two echo"}))
        assert "two_echo" not in found
        for name, args in (
            ("two_echo", {"text": "x"}),
            ("mcp_two_echo", {"text": "x"}),
            ("mcp__two__echo", {"text": "x"}),
            ("tool_call", {"name": "two_echo", "arguments": {"text": "x"}}),
            ("tool_describe", {"name": "two_echo"}),
            ("terminal", {"command": "true"}),
            ("read_file", {"path": "x"}),
        ):
            result = await client.call_tool(name, args)
            assert result_text(result) != "x", name
            assert result.is_error or "not" in result_text(result), name


@both_revisions
async def test_file_and_terminal_tools_are_listed_only_to_clients_whose_token_grants_their_toolset(
    two_servers: RunningGateway, revision: str
) -> None:
    token = two_servers.tokens.add(f"shell-{revision}", ["file"])
    async with two_servers.client(revision) as client:
        assert (await client.call_tool("terminal", {"command": "true"})).is_error
    async with two_servers.client(revision, token=token) as client:
        assert "read_file" in await tool_names(client)


async def test_client_with_a_wrong_token_cannot_connect(two_servers: RunningGateway) -> None:
    with pytest.raises(BaseException):  # noqa: B017, PT011 - the SDK wraps it in exception groups
        async with two_servers.client(token="tf_wrong") as client:
            await client.list_tools()


async def test_mcp_session_opened_with_one_token_cannot_be_used_with_another_token_or_without_a_token(
    two_servers: RunningGateway,
) -> None:
    import httpx2

    mine, other = two_servers.tokens.add("mine", ["mcp-one"]), two_servers.tokens.add("other", ["mcp-two"])
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        },
    }
    kinds = {"accept": "application/json, text/event-stream"}
    async with httpx2.AsyncClient(timeout=TIMEOUT_S) as http:
        begun = await http.post(
            two_servers.url, json=hello, headers={**kinds, "authorization": f"Bearer {mine}"}
        )
        session = begun.headers["mcp-session-id"]
        for token in (other, ""):
            headers = {**kinds, "mcp-session-id": session} | (
                {"authorization": f"Bearer {token}"} if token else {}
            )
            stolen = await http.post(
                two_servers.url, json={"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, headers=headers
            )
            assert stolen.status_code in (403, 404), token
            assert "one_echo" not in stolen.text


@both_revisions
async def test_concurrent_clients_with_different_tokens_do_not_see_tools_or_results_of_each_other(
    two_servers: RunningGateway, revision: str
) -> None:
    tokens = [two_servers.tokens.add(f"{name}-{revision}", [f"mcp-{name}"]) for name in ("one", "two")]

    async def use(token: str, name: str) -> list[str]:
        async with two_servers.client(revision, token=token) as client:
            text = [result_text(await client.call_tool(f"{name}_echo", {"text": str(n)})) for n in range(20)]
            assert text == [str(n) for n in range(20)]
            return await tool_names(client)

    one, two = await asyncio.gather(use(tokens[0], "one"), use(tokens[1], "two"))
    assert all(name.startswith("one_") for name in one)
    assert all(name.startswith("two_") for name in two)


@pytest.mark.thorough(keep=1)
@both_revisions
async def test_progress_notifications_of_servers_are_forwarded_to_clients(
    tmp_path: Path, revision: str
) -> None:
    with serve_gateway(tmp_path, {"slow": fault_server("--fault", "progress")}) as served:
        steps: list[float] = []

        async def note(progress: float, total: float | None, message: str | None) -> None:
            steps.append(progress)

        async with served.client(revision) as client:
            result = await client.call_tool("slow_echo", {"text": "now"}, progress_callback=note)
            assert result_text(result) == "done"
    assert steps == sorted(steps)
    assert len(steps) >= 7


@pytest.mark.thorough(keep=1)
@both_revisions
async def test_call_cancelled_by_a_client_is_cancelled_at_the_server(tmp_path: Path, revision: str) -> None:
    diary = tmp_path / "diary"
    with serve_gateway(tmp_path, {"slow": fault_server("--fault", "hang", "--diary", str(diary))}) as served:
        async with served.client(revision) as client:
            call = asyncio.create_task(client.call_tool("slow_echo", {"text": "now"}))
            await asyncio.to_thread(wait_until, lambda: "call" in diary.read_text())
            call.cancel()
            await asyncio.wait({call})
            assert result_text(await client.call_tool("slow_echo", {"text": "again"})) == "again"
        wait_until(lambda: "cancelled" in diary.read_text())


@pytest.mark.thorough(keep=1)
@both_revisions
async def test_server_that_crashes_or_hangs_or_floods_one_client_does_not_affect_other_clients(
    tmp_path: Path, revision: str
) -> None:
    flood_size = str(thorough_count(50_000, 2_000))  # the gateway passes each notification on to the client
    servers = {
        "good": fault_server(),
        "crash": fault_server("--fault", "crash"),
        "hang": fault_server("--fault", "hang", call_timeout_seconds=2.0),
        "flood": fault_server("--fault", "flood", "--flood-size", flood_size),
        "huge": fault_server("--fault", "huge"),
        "dead": fault_server("--fault", "crash-at-start"),
    }
    with serve_gateway(tmp_path, servers) as served:

        async def works() -> int:
            async with served.client(revision) as client:
                for count in range(100):
                    assert result_text(await client.call_tool("good_echo", {"text": str(count)})) == str(
                        count
                    )
            return 100

        async def suffers(name: str) -> Any:
            async with served.client(revision) as client:
                return await client.call_tool(f"{name}_echo", {"text": "now"})

        done, crash, hang, flood, huge, dead = await asyncio.gather(
            works(), *(suffers(name) for name in ("crash", "hang", "flood", "huge", "dead"))
        )
    assert done == 100
    assert crash.is_error
    assert "may or may not" in result_text(crash)
    assert hang.is_error
    assert "did not respond" in result_text(hang)
    assert result_text(flood) == "after the flood"
    assert huge.is_error
    assert "more than" in result_text(huge)
    assert dead.is_error


@both_revisions
async def test_shell_server_runs_one_process_per_client_while_other_servers_share_one_process(
    tmp_path: Path, revision: str
) -> None:
    servers = {"shell": fault_server("--fault", "pid"), "plain": fault_server("--fault", "pid")}
    with serve_gateway(tmp_path, servers) as served:
        shells: list[int] = []
        plains: list[int] = []
        for name in ("a", "b"):
            token = served.tokens.add(name)
            async with served.client(revision, token=token) as client:
                shells.append(int(result_text(await client.call_tool("shell_echo", {"text": "now"}))))
                plains.append(int(result_text(await client.call_tool("plain_echo", {"text": "now"}))))
        assert shells[0] != shells[1]
        assert plains[0] == plains[1]
        if revision == "legacy":  # without sessions, the process ends only when it has been idle
            wait_until(lambda: not any(_is_running(pid) for pid in shells))


def _is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


async def test_tool_added_by_a_server_notifies_clients_and_appears_in_their_next_tool_list(
    tmp_path: Path,
) -> None:
    with serve_gateway(tmp_path, {"late": fault_server("--fault", "changing-list", trust="off")}) as served:
        notified = asyncio.Event()

        async def hear(message: Any) -> None:
            if type(message).__name__.startswith("ToolListChanged"):
                notified.set()

        async with served.client("legacy", message_handler=hear) as client:
            tools = client.server_capabilities.tools
            assert tools
            assert tools.list_changed  # otherwise clients need not listen
            assert "late_arrived_late" not in await tool_names(client)
            async with asyncio.timeout(TIMEOUT_S):
                while not notified.is_set():  # the notification stream may not be open yet
                    await client.call_tool("late_echo", {"text": "now"})
                    await asyncio.sleep(0.2)
            assert "late_arrived_late" in await tool_names(client)


async def test_tool_changed_by_its_server_is_not_listed_to_clients_until_a_person_reviews_it(
    tmp_path: Path,
) -> None:
    with serve_gateway(tmp_path, {"late": fault_server("--fault", "changing-list", trust="pin")}) as served:
        async with served.client("legacy") as client:
            await client.call_tool("late_echo", {"text": "now"})
            wait_until(lambda: bool(served.runtime.mcp.held_tools("late")))
            assert "late_arrived_late" not in await tool_names(client)
            assert (await client.call_tool("late_arrived_late", {"text": "x"})).is_error


@contextlib.asynccontextmanager
async def asked_client(served: RunningGateway, revision: str, answer: str) -> AsyncIterator[Any]:
    questions: list[str] = []

    async def elicit(context: Any, params: Any) -> mcp_types.ElicitResult:
        questions.append(params.message)
        return mcp_types.ElicitResult(action="accept", content={"answer": answer})

    token = served.tokens.add(f"asked-{revision}-{answer}", ["terminal"])
    async with served.client(revision, token=token, elicitation_callback=elicit) as client:
        yield client, questions


@both_revisions
async def test_approval_of_a_kind_of_command_by_a_client_applies_only_to_the_session_of_that_client(
    tmp_path: Path, revision: str
) -> None:
    victims = [tmp_path / name for name in ("build", "src", "other")]
    for victim in victims:
        victim.mkdir()
    calls = [{"command": f"rm -rf {victim}"} for victim in victims]
    with serve_gateway(tmp_path / "home", {}, **{"files.workspace": str(tmp_path)}) as served:
        async with asked_client(served, revision, "kind") as (client, questions):
            for call in calls[:2]:
                assert not (await client.call_tool("terminal", call)).is_error
            assert len(questions) == 1
        async with asked_client(served, revision, "deny") as (client, questions):
            assert (await client.call_tool("terminal", calls[2])).is_error
            assert len(questions) == 1
        async with asked_client(served, revision, "always-kind") as (client, _):
            assert (await client.call_tool("terminal", calls[2])).is_error
    assert [victim.exists() for victim in victims] == [False, False, True]


@both_revisions
async def test_dangerous_call_sends_an_approval_form_to_the_user_through_the_client(
    tmp_path: Path, revision: str
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    command = {"command": f"rm -rf {victim}"}
    settings = {"files.workspace": str(tmp_path)}
    with serve_gateway(tmp_path / "home", {}, **settings) as served:
        async with asked_client(served, revision, "deny") as (client, questions):
            assert (await client.call_tool("terminal", command)).is_error
            assert len(questions) == 1
            assert "rm -rf" in questions[0]
            assert victim.exists()
        async with asked_client(served, revision, "once") as (client, questions):
            result = await client.call_tool("terminal", command)
            assert not result.is_error, result_text(result)
            assert len(questions) == 1
            assert not victim.exists()


@both_revisions
@pytest.mark.parametrize(
    ("action", "content", "runs"),
    [
        ("accept", {}, True),
        ("decline", None, False),
        ("accept", None, True),
        ("accept", {"answer": "session"}, True),
        ("accept", {"answer": "always"}, False),
        ("accept", {"answer": 1}, False),
        ("cancel", None, False),
    ],
)
async def test_call_runs_only_if_the_approval_form_is_accepted_with_a_valid_answer(
    tmp_path: Path, revision: str, action: Any, content: Any, runs: bool
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    forms = []

    async def elicit(_context: Any, params: Any) -> mcp_types.ElicitResult:
        forms.append(params.requested_schema)
        return mcp_types.ElicitResult(action=action, content=content)

    with serve_gateway(tmp_path / "home", {}, **{"files.workspace": str(tmp_path)}) as served:
        token = served.tokens.add("form", ["terminal"])
        async with served.client(revision, token=token, elicitation_callback=elicit) as client:
            result = await client.call_tool("terminal", {"command": f"rm -rf {victim}"})
    assert result.is_error is not runs
    assert victim.exists() is not runs
    field = forms[0]["properties"]["answer"]
    assert field["default"] == "once"
    assert "deny" not in field["enum"]
    assert len(field["enumNames"]) == len(field["enum"])


@both_revisions
async def test_dangerous_call_is_refused_if_the_client_does_not_support_elicitation(
    tmp_path: Path, revision: str
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    with serve_gateway(tmp_path / "home", {}, **{"files.workspace": str(tmp_path)}) as served:
        token = served.tokens.add("silent", ["terminal"])
        async with served.client(revision, token=token) as client:
            async with asyncio.timeout(TIMEOUT_S):
                assert (await client.call_tool("terminal", {"command": f"rm -rf {victim}"})).is_error
    assert victim.exists()


async def test_approval_answer_with_a_forged_or_already_used_request_state_is_rejected(
    tmp_path: Path,
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    command = {"command": f"rm -rf {victim}"}
    yes = {"toolfold": mcp_types.ElicitResult(action="accept", content={"answer": "once"})}
    with serve_gateway(tmp_path / "home", {}, **{"files.workspace": str(tmp_path)}) as served:
        async with asked_client(served, "2026-07-28", "once") as (client, _):
            first = await client.session.call_tool("terminal", command, allow_input_required=True)
            assert isinstance(first, mcp_types.InputRequiredResult)
            assert first.request_state is not None
            for state, args in (
                ("toolfold:guess", command),
                (first.request_state + "x", command),
                ("made up", command),
                (first.request_state, {"command": "rm -rf /tmp/another"}),
                (first.request_state, command),  # used by the previous attempt
            ):
                with pytest.raises(MCPError):
                    await client.session.call_tool(
                        "terminal", args, input_responses=yes, request_state=state, allow_input_required=True
                    )
    assert victim.exists()


async def test_tools_awaiting_review_are_found_by_tool_search_only_for_clients_allowed_to_use_them(
    tmp_path: Path,
) -> None:
    servers = {"late": fault_server("--fault", "changing-list", trust="pin"), "other": fault_server()}
    with serve_gateway(tmp_path, servers, **{"tools.tool_search.enabled": "on"}) as served:
        allowed, foreign = (served.tokens.add(name, [f"mcp-{name}"]) for name in ("late", "other"))
        query = {"query": "arrived late"}
        async with served.client("legacy", token=allowed) as client:
            await client.call_tool("late_echo", {"text": "now"})
            wait_until(lambda: bool(served.runtime.mcp.held_tools("late")))
            for _ in range(200):  # wait for the turn that includes it
                text = result_text(await client.call_tool("tool_search", query))
                if "awaiting_review" in text:
                    break
            assert json.loads(text)["awaiting_review"] == ["late_arrived_late"]
            other = {"query": "wash the plate"}
            assert "awaiting_review" not in result_text(await client.call_tool("tool_search", other))
            refused = result_text(await client.call_tool("late_arrived_late", {"text": "x"}))
            assert "toolfold mcp review" in refused
        async with served.client("legacy", token=foreign) as client:
            text = result_text(await client.call_tool("tool_search", query))
            assert "arrived_late" not in text
            assert "review" not in result_text(await client.call_tool("late_arrived_late", {"text": "x"}))


@both_revisions
async def test_client_with_a_token_for_an_unknown_toolset_gets_no_tools(
    two_servers: RunningGateway, revision: str
) -> None:
    token = two_servers.tokens.add(f"gone-{revision}", ["no-such-toolset"])
    async with two_servers.client(revision, token=token) as client:
        assert await tool_names(client) == []
        assert (await client.call_tool("one_echo", {"text": "x"})).is_error
