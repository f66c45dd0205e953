"""Real clients of both eras at a real gateway: what they see, may do, are asked, and do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import mcp_types
import pytest
from mcp import Client, MCPError

from tests.gateway.harness import ERAS, PATIENCE, Served, faulty, serving, until, words

both_eras = pytest.mark.parametrize("era", ERAS)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    servers = {"one": faulty("--tools", "3"), "two": faulty("--tools", "2")}
    with serving(tmp_path_factory.mktemp("plain"), servers) as served:
        yield served


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    servers = {"one": faulty("--tools", "30"), "two": faulty("--tools", "30")}
    settings = {"tools.tool_search.threshold_tokens": 500}
    with serving(tmp_path_factory.mktemp("many"), servers, **settings) as served:
        yield served


async def listed(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools]


@both_eras
async def test_a_small_catalog_is_shown_whole_without_our_prefix(plain: Served, era: str) -> None:
    async with plain.client(era) as client:
        assert await listed(client) == ["one_echo", "one_tool_2", "one_tool_3", "two_echo", "two_tool_2"]
        assert words(await client.call_tool("one_echo", {"text": "hello"})) == "hello"


@both_eras
async def test_searching_is_marked_read_only_and_calling_is_not(many: Served, era: str) -> None:
    async with many.client(era) as client:
        hints = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
    assert (hint := hints["tool_search"]) is not None
    assert hint.read_only_hint is True
    assert (hint := hints["tool_describe"]) is not None
    assert hint.read_only_hint is True
    assert hints["tool_call"] is None


@both_eras
async def test_a_large_catalog_stands_behind_the_bridge_and_every_real_name_works(
    many: Served, era: str
) -> None:
    async with many.client(era) as client:
        assert sorted(await listed(client)) == ["tool_call", "tool_describe", "tool_search"]
        found = json.loads(words(await client.call_tool("tool_search", {"query": "tool_7"})))
        assert found["matches"][0]["name"] in ("one_tool_7", "two_tool_7")
        described = words(await client.call_tool("tool_describe", {"name": "one_tool_7"}))
        assert "one_tool_7" in described
        call = {"name": "one_echo", "arguments": {"text": "through the bridge"}}
        assert words(await client.call_tool("tool_call", call)) == "through the bridge"
        assert words(await client.call_tool("two_echo", {"text": "by its name"})) == "by its name"


@both_eras
async def test_a_token_grants_its_toolsets_and_nothing_else(many: Served, era: str) -> None:
    token = many.tokens.add(f"only-one-{era}", ["mcp-one"])
    async with many.client(era, token=token) as client:
        assert words(await client.call_tool("one_echo", {"text": "x"})) == "x"
        found = words(await client.call_tool("tool_search", {"query": "two echo"}))
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
            assert words(result) != "x", name
            assert result.is_error or "not" in words(result), name


@both_eras
async def test_files_and_the_terminal_are_not_offered_unless_they_are_granted(
    plain: Served, era: str
) -> None:
    token = plain.tokens.add(f"shell-{era}", ["file"])
    async with plain.client(era) as client:
        assert (await client.call_tool("terminal", {"command": "true"})).is_error
    async with plain.client(era, token=token) as client:
        assert "read_file" in await listed(client)


async def test_a_wrong_token_reaches_nothing(plain: Served) -> None:
    with pytest.raises(BaseException):  # noqa: B017, PT011 - the SDK wraps it in groups
        async with plain.client(token="tf_wrong") as client:
            await client.list_tools()


async def test_a_session_belongs_to_the_token_that_began_it(plain: Served) -> None:
    import httpx2

    mine, other = plain.tokens.add("mine", ["mcp-one"]), plain.tokens.add("other", ["mcp-two"])
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
    async with httpx2.AsyncClient(timeout=PATIENCE) as http:
        begun = await http.post(plain.url, json=hello, headers={**kinds, "authorization": f"Bearer {mine}"})
        session = begun.headers["mcp-session-id"]
        for token in (other, ""):
            headers = {**kinds, "mcp-session-id": session} | (
                {"authorization": f"Bearer {token}"} if token else {}
            )
            stolen = await http.post(
                plain.url, json={"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, headers=headers
            )
            assert stolen.status_code in (403, 404), token
            assert "one_echo" not in stolen.text


@both_eras
async def test_several_clients_at_once_see_each_their_own(plain: Served, era: str) -> None:
    tokens = [plain.tokens.add(f"{name}-{era}", [f"mcp-{name}"]) for name in ("one", "two")]

    async def use(token: str, name: str) -> list[str]:
        async with plain.client(era, token=token) as client:
            said = [words(await client.call_tool(f"{name}_echo", {"text": str(n)})) for n in range(20)]
            assert said == [str(n) for n in range(20)]
            return await listed(client)

    one, two = await asyncio.gather(use(tokens[0], "one"), use(tokens[1], "two"))
    assert all(name.startswith("one_") for name in one)
    assert all(name.startswith("two_") for name in two)


@both_eras
async def test_progress_comes_through(tmp_path: Path, era: str) -> None:
    with serving(tmp_path, {"slow": faulty("--fault", "progress")}) as served:
        steps: list[float] = []

        async def note(progress: float, total: float | None, message: str | None) -> None:
            steps.append(progress)

        async with served.client(era) as client:
            result = await client.call_tool("slow_echo", {"text": "now"}, progress_callback=note)
            assert words(result) == "done"
    assert steps == sorted(steps)
    assert len(steps) >= 7


@both_eras
async def test_who_stops_waiting_stops_the_server_behind(tmp_path: Path, era: str) -> None:
    diary = tmp_path / "diary"
    with serving(tmp_path, {"slow": faulty("--fault", "hang", "--diary", str(diary))}) as served:
        async with served.client(era) as client:
            call = asyncio.create_task(client.call_tool("slow_echo", {"text": "now"}))
            await asyncio.to_thread(until, lambda: "call" in diary.read_text())
            call.cancel()
            await asyncio.wait({call})
            assert words(await client.call_tool("slow_echo", {"text": "again"})) == "again"
        until(lambda: "cancelled" in diary.read_text())


@both_eras
async def test_faults_behind_are_told_to_who_called_and_to_nobody_else(tmp_path: Path, era: str) -> None:
    servers = {
        "good": faulty(),
        "crash": faulty("--fault", "crash"),
        "hang": faulty("--fault", "hang", call_timeout_seconds=2.0),
        "flood": faulty("--fault", "flood"),
        "huge": faulty("--fault", "huge"),
        "dead": faulty("--fault", "crash-at-start"),
    }
    with serving(tmp_path, servers) as served:

        async def works() -> int:
            async with served.client(era) as client:
                for count in range(100):
                    assert words(await client.call_tool("good_echo", {"text": str(count)})) == str(count)
            return 100

        async def suffers(name: str) -> Any:
            async with served.client(era) as client:
                return await client.call_tool(f"{name}_echo", {"text": "now"})

        done, crash, hang, flood, huge, dead = await asyncio.gather(
            works(), *(suffers(name) for name in ("crash", "hang", "flood", "huge", "dead"))
        )
    assert done == 100
    assert crash.is_error
    assert "may or may not" in words(crash)
    assert hang.is_error
    assert "did not respond" in words(hang)
    assert words(flood) == "after the flood"
    assert huge.is_error
    assert "more than" in words(huge)
    assert dead.is_error


@both_eras
async def test_what_keeps_a_state_is_each_clients_own_and_ends_with_it(tmp_path: Path, era: str) -> None:
    servers = {"shell": faulty("--fault", "pid"), "plain": faulty("--fault", "pid")}
    with serving(tmp_path, servers) as served:
        shells: list[int] = []
        plains: list[int] = []
        for name in ("a", "b"):
            token = served.tokens.add(name)
            async with served.client(era, token=token) as client:
                shells.append(int(words(await client.call_tool("shell_echo", {"text": "now"}))))
                plains.append(int(words(await client.call_tool("plain_echo", {"text": "now"}))))
        assert shells[0] != shells[1]
        assert plains[0] == plains[1]
        if era == "legacy":  # without sessions nobody says goodbye: those are ended when they are idle
            until(lambda: not any(_lives(pid) for pid in shells))


def _lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


async def test_a_tool_that_arrives_is_told_of_and_shown(tmp_path: Path) -> None:
    with serving(tmp_path, {"late": faulty("--fault", "changing-list", trust="off")}) as served:
        told = asyncio.Event()

        async def hear(message: Any) -> None:
            if type(message).__name__.startswith("ToolListChanged"):
                told.set()

        async with served.client("legacy", message_handler=hear) as client:
            tools = client.server_capabilities.tools
            assert tools
            assert tools.list_changed  # else clients need not listen
            assert "late_arrived_late" not in await listed(client)
            async with asyncio.timeout(PATIENCE):
                while not told.is_set():  # the stream over which it is told may not be there yet
                    await client.call_tool("late_echo", {"text": "now"})
                    await asyncio.sleep(0.2)
            assert "late_arrived_late" in await listed(client)


async def test_a_changed_tool_is_held_behind_the_gateway_too(tmp_path: Path) -> None:
    with serving(tmp_path, {"late": faulty("--fault", "changing-list", trust="pin")}) as served:
        async with served.client("legacy") as client:
            await client.call_tool("late_echo", {"text": "now"})
            until(lambda: bool(served.runtime.mcp.held_tools("late")))
            assert "late_arrived_late" not in await listed(client)
            assert (await client.call_tool("late_arrived_late", {"text": "x"})).is_error


@contextlib.asynccontextmanager
async def asked(served: Served, era: str, answer: str) -> AsyncIterator[Any]:
    questions: list[str] = []

    async def elicit(context: Any, params: Any) -> mcp_types.ElicitResult:
        questions.append(params.message)
        return mcp_types.ElicitResult(action="accept", content={"answer": answer})

    token = served.tokens.add(f"asked-{era}-{answer}", ["terminal"])
    async with served.client(era, token=token, elicitation_callback=elicit) as client:
        yield client, questions


@both_eras
async def test_a_kind_agreed_to_through_the_client_covers_its_session_and_no_other(
    tmp_path: Path, era: str
) -> None:
    victims = [tmp_path / name for name in ("build", "src", "other")]
    for victim in victims:
        victim.mkdir()
    calls = [{"command": f"rm -rf {victim}"} for victim in victims]
    with serving(tmp_path / "home", {}, **{"files.workspace": str(tmp_path)}) as served:
        async with asked(served, era, "kind") as (client, questions):
            for call in calls[:2]:
                assert not (await client.call_tool("terminal", call)).is_error
            assert len(questions) == 1
        async with asked(served, era, "deny") as (client, questions):
            assert (await client.call_tool("terminal", calls[2])).is_error
            assert len(questions) == 1
        async with asked(served, era, "always-kind") as (client, _):
            assert (await client.call_tool("terminal", calls[2])).is_error
    assert [victim.exists() for victim in victims] == [False, False, True]


@both_eras
async def test_a_person_is_asked_through_the_client_before_something_dangerous_runs(
    tmp_path: Path, era: str
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    command = {"command": f"rm -rf {victim}"}
    settings = {"files.workspace": str(tmp_path)}
    with serving(tmp_path / "home", {}, **settings) as served:
        async with asked(served, era, "deny") as (client, questions):
            assert (await client.call_tool("terminal", command)).is_error
            assert len(questions) == 1
            assert "rm -rf" in questions[0]
            assert victim.exists()
        async with asked(served, era, "once") as (client, questions):
            result = await client.call_tool("terminal", command)
            assert not result.is_error, words(result)
            assert len(questions) == 1
            assert not victim.exists()


@both_eras
@pytest.mark.parametrize(
    ("action", "content", "runs"),
    [
        ("accept", {}, True),
        ("accept", None, True),
        ("accept", {"answer": "session"}, True),
        ("accept", {"answer": "always"}, False),
        ("accept", {"answer": 1}, False),
        ("decline", None, False),
        ("cancel", None, False),
    ],
)
async def test_accepting_the_approval_form_allows_the_call(
    tmp_path: Path, era: str, action: Any, content: Any, runs: bool
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    forms = []

    async def elicit(_context: Any, params: Any) -> mcp_types.ElicitResult:
        forms.append(params.requested_schema)
        return mcp_types.ElicitResult(action=action, content=content)

    with serving(tmp_path / "home", {}, **{"files.workspace": str(tmp_path)}) as served:
        token = served.tokens.add("form", ["terminal"])
        async with served.client(era, token=token, elicitation_callback=elicit) as client:
            result = await client.call_tool("terminal", {"command": f"rm -rf {victim}"})
    assert result.is_error is not runs
    assert victim.exists() is not runs
    field = forms[0]["properties"]["answer"]
    assert field["default"] == "once"
    assert "deny" not in field["enum"]
    assert len(field["enumNames"]) == len(field["enum"])


@both_eras
async def test_nobody_to_ask_means_no(tmp_path: Path, era: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    with serving(tmp_path / "home", {}, **{"files.workspace": str(tmp_path)}) as served:
        token = served.tokens.add("silent", ["terminal"])
        async with served.client(era, token=token) as client:
            async with asyncio.timeout(PATIENCE):
                assert (await client.call_tool("terminal", {"command": f"rm -rf {victim}"})).is_error
    assert victim.exists()


async def test_a_state_that_was_not_given_or_was_used_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    command = {"command": f"rm -rf {victim}"}
    yes = {"toolfold": mcp_types.ElicitResult(action="accept", content={"answer": "once"})}
    with serving(tmp_path / "home", {}, **{"files.workspace": str(tmp_path)}) as served:
        async with asked(served, "2026-07-28", "once") as (client, _):
            first = await client.session.call_tool("terminal", command, allow_input_required=True)
            assert isinstance(first, mcp_types.InputRequiredResult)
            assert first.request_state is not None
            for state, args in (
                ("toolfold:guess", command),
                (first.request_state + "x", command),
                ("made up", command),
                (first.request_state, {"command": "rm -rf /tmp/another"}),
                (first.request_state, command),  # it was used up by the attempt before
            ):
                with pytest.raises(MCPError):
                    await client.session.call_tool(
                        "terminal", args, input_responses=yes, request_state=state, allow_input_required=True
                    )
    assert victim.exists()


def test_a_gateway_over_stdio_serves_the_client_that_started_it_and_ends_with_it(tmp_path: Path) -> None:
    import sys

    from mcp import StdioServerParameters

    settings = json.dumps({"one": faulty("--tools", "2")})
    given = ["--set", f"mcp.servers={settings}", "--set", "mcp.wait_seconds=60"]
    program = [sys.executable, "-m", "toolfold", *given, "mcp", "serve"]
    started = StdioServerParameters(
        command=program[0],
        args=program[1:],
        env={"TOOLFOLD_HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        cwd=tmp_path,
    )

    async def use(era: str) -> None:
        async with Client(started, mode=era) as client:
            assert await listed(client) == ["one_echo", "one_tool_2"]
            assert words(await client.call_tool("one_echo", {"text": era})) == era

    for era in ERAS:
        asyncio.run(use(era))


async def test_a_search_that_finds_nothing_names_what_waits_for_review_and_only_what_would_be_granted(
    tmp_path: Path,
) -> None:
    servers = {"late": faulty("--fault", "changing-list", trust="pin"), "other": faulty()}
    with serving(tmp_path, servers, **{"tools.tool_search.enabled": "on"}) as served:
        allowed, foreign = (served.tokens.add(name, [f"mcp-{name}"]) for name in ("late", "other"))
        query = {"query": "arrived late"}
        async with served.client("legacy", token=allowed) as client:
            await client.call_tool("late_echo", {"text": "now"})
            until(lambda: bool(served.runtime.mcp.held_tools("late")))
            for _ in range(200):  # the next turn knows of it, whichever that is
                said = words(await client.call_tool("tool_search", query))
                if "awaiting_review" in said:
                    break
            assert json.loads(said)["awaiting_review"] == ["late_arrived_late"]
            refused = words(await client.call_tool("late_arrived_late", {"text": "x"}))
            assert "toolfold mcp review" in refused
        async with served.client("legacy", token=foreign) as client:
            said = words(await client.call_tool("tool_search", query))
            assert "arrived_late" not in said
            assert "review" not in words(await client.call_tool("late_arrived_late", {"text": "x"}))


@both_eras
async def test_a_token_for_a_toolset_that_is_gone_grants_nothing(plain: Served, era: str) -> None:
    token = plain.tokens.add(f"gone-{era}", ["no-such-toolset"])
    async with plain.client(era, token=token) as client:
        assert await listed(client) == []
        assert (await client.call_tool("one_echo", {"text": "x"})).is_error
