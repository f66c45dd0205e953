"""What users may use: rules of users, teams and tokens, in open sessions of a real gateway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from mcp import Client, MCPError

from tests.gateway.harness import (
    TIMEOUT_S,
    RunningGateway,
    fault_server,
    result_text,
    serve_gateway,
    wait_until,
)
from tests.gateway.test_event_streams import ACCEPT, HttpSession, request
from toolfold.core.errors import ConfigError
from toolfold.core.types import GrantLimit
from toolfold.serving.dashboard.recorder import UsageRecorder
from toolfold.serving.gateway.client_tokens import Tokens
from toolfold.serving.gateway.refusal_log import MAX_PENDING_LOOKUPS, Refusal, RefusalLog
from toolfold.serving.gateway.server import LIMIT_REACHED
from toolfold.serving.gateway.user_access import explain_access
from toolfold.state.store.usage import SqliteUsageStore
from toolfold.state.users.directory import NOTHING, Directory, Team, User
from toolfold.state.users.quotas import Quotas, SqliteQuotaStore

ALL_TOOLS = {"notes_echo", "notes_tool_2", "mail_echo"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    servers = {"notes": fault_server("--tools", "2", "--resources", "1"), "mail": fault_server()}
    with serve_gateway(tmp_path_factory.mktemp("home"), servers) as running:
        yield running


@pytest.fixture(autouse=True)
def _remove_users(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "served" in request.fixturenames:
        tokens = request.getfixturevalue("served").tokens
        for each in tokens.list_clients():
            tokens.revoke(each.name)
        tokens.users.edit(lambda _: Directory())


def add_user(
    tokens: Tokens, name: str, *, allowed: tuple[str, ...] = (), denied: tuple[str, ...] = ()
) -> User:
    tokens.users.add_user(name)
    return tokens.users.change_user(name, lambda user: replace(user, allowed=allowed, denied=denied))


async def list_names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


@pytest.mark.parametrize(
    ("allowed", "denied", "token", "token_denied", "expected"),
    [
        ((), (), None, (), ALL_TOOLS),
        (("mcp-notes",), (), None, (), {"notes_echo", "notes_tool_2"}),
        (("server:notes",), (), None, (), {"notes_echo", "notes_tool_2"}),
        (("tool:mail_echo",), (), None, (), {"mail_echo"}),
        (("tool:mcp_mail_echo",), (), None, (), {"mail_echo"}),
        (("server:notes", "tool:mail_echo"), ("tool:notes_echo",), None, (), {"notes_tool_2", "mail_echo"}),
        (("server:notes", "server:mail"), ("mcp-notes",), None, (), {"mail_echo"}),
        ((), ("all",), None, (), set()),
        ((), ("tool:mcp_mail_echo",), None, (), {"notes_echo", "notes_tool_2"}),
        (("server:notes",), (), ("server:mail",), (), set()),
        (("server:notes",), (), ("tool:notes_echo", "server:mail"), (), {"notes_echo"}),
        ((), (), None, ("server:notes",), {"mail_echo"}),
        (("server:missing",), (), None, (), set()),
        (("tool:",), (), None, (), None),
    ],
)
async def test_user_sees_only_tools_allowed_by_both_access_rules_and_token(
    served: RunningGateway,
    allowed: tuple[str, ...],
    denied: tuple[str, ...],
    token: tuple[str, ...] | None,
    token_denied: tuple[str, ...],
    expected: set[str] | None,
) -> None:
    if expected is None:
        with pytest.raises(ConfigError, match="is no rule"):
            add_user(served.tokens, "ann", allowed=allowed)
        return
    user = add_user(served.tokens, "ann", allowed=allowed, denied=denied)
    key = served.tokens.add("laptop", token, user_id=user.id, denied=token_denied)
    async with served.client("2026-07-28", token=key) as client:
        assert await list_names(client) == expected


def make_directory(*teams: Team, **rules: tuple[str, ...]) -> Directory:
    user = replace(User("1", "ann"), **rules)  # type: ignore[arg-type]
    members = frozenset({"1"})
    return Directory({"1": user}, {each.name: replace(each, members=members) for each in teams})


def test_access_rules_of_a_user_are_combined_with_the_rules_of_all_teams_of_the_user() -> None:
    red, blue = Team("red", allowed=("a",), denied=("x",)), Team("blue", allowed=("b",), denied=("y",))
    assert make_directory(red, blue).find_limit("1") == GrantLimit(("a", "b"), ("x", "y"))
    assert make_directory(red, allowed=("c",), denied=("a",)).find_limit("1") == GrantLimit(
        ("a", "c"), ("a", "x")
    )
    assert make_directory(denied=("z",)).find_limit("1") == GrantLimit(None, ("z",))
    assert make_directory().find_limit("1") == GrantLimit()
    assert make_directory(red).find_limit("2") == NOTHING
    disabled = make_directory(red)
    assert disabled.with_user(replace(disabled.users["1"], is_disabled=True)).find_limit("1") == NOTHING


@pytest.mark.parametrize("revision", ["legacy", "2026-07-28"])
async def test_tools_denied_by_a_changed_access_rule_disappear_from_an_open_client_session(
    served: RunningGateway, revision: str
) -> None:
    users = served.tokens.users
    user = add_user(served.tokens, "ann")
    users.add_team("red")
    users.join_team("red", "ann")
    key = served.tokens.add("laptop", user_id=user.id)
    async with served.client(revision, token=key) as client:
        assert await list_names(client) == ALL_TOOLS
        users.change_team("red", lambda team: replace(team, denied=("server:mail",)))
        assert await list_names(client) == {"notes_echo", "notes_tool_2"}
        refused = await client.call_tool("mail_echo", {"text": "x"})
        unknown = await client.call_tool("mail_exho", {"text": "x"})
        assert refused.is_error
        assert result_text(refused).replace("mail_echo", "mail_exho") == result_text(unknown)
        assert not (await client.call_tool("notes_echo", {"text": "x"})).is_error
        users.leave_team("red", "ann")
        assert not (await client.call_tool("mail_echo", {"text": "x"})).is_error


async def test_client_is_notified_when_the_access_rules_of_its_user_change(served: RunningGateway) -> None:
    user = add_user(served.tokens, "ann")
    key, other = served.tokens.add("laptop", user_id=user.id), served.tokens.add("plain")
    changed, unchanged = asyncio.Event(), asyncio.Event()

    async def note(message: object) -> None:
        if "ToolListChanged" in type(message).__name__:
            changed.set()

    async def note_other(message: object) -> None:
        if "ToolListChanged" in type(message).__name__:
            unchanged.set()

    async with (
        served.client(token=key, message_handler=note) as client,
        served.client(token=other, message_handler=note_other) as plain,
    ):
        await list_names(client)
        await list_names(plain)
        served.tokens.users.change_user("ann", lambda each: replace(each, denied=("server:mail",)))
        async with asyncio.timeout(TIMEOUT_S):
            await changed.wait()
        assert not unchanged.is_set()


@pytest.mark.parametrize("ending", ["disable", "remove", "revoke"])
def test_open_stream_of_a_disabled_or_removed_user_is_closed_and_the_next_request_is_refused(
    served: RunningGateway, ending: str
) -> None:
    tokens = served.tokens
    user = add_user(tokens, "ann")
    key = tokens.add("laptop", user_id=user.id)
    headers = {**ACCEPT, "authorization": f"Bearer {key}"}
    with httpx2.Client(headers=headers, timeout=TIMEOUT_S) as http:
        session = HttpSession(http, served.url)
        with http.stream("GET", served.url) as stream:
            assert stream.status_code == 200
            if ending == "disable":
                tokens.users.set_disabled("ann", True)
            elif ending == "remove":
                tokens.users.remove_user("ann")
            else:
                tokens.revoke("laptop")
            assert b"data:" not in stream.read()  # the stream ends without another message
        assert session.post(request("tools/list", {})).status_code == 401
        if ending == "disable":
            tokens.users.set_disabled("ann", False)
            assert session.post(request("tools/list", {})).status_code == 200


def test_terminal_tool_is_granted_to_a_user_only_by_an_explicit_access_rule_or_token_scope(
    served: RunningGateway, tmp_path: Path
) -> None:
    from toolfold.serving.gateway.server import open_session

    tokens = Tokens(tmp_path / "tokens.json")
    plain, named = add_user(tokens, "ann"), add_user(tokens, "bob", allowed=("terminal", "server:mail"))
    for user, toolsets, expected in (
        (plain, None, False),
        (plain, ["terminal"], True),
        (named, None, True),
        (named, ["server:mail"], False),
    ):
        key = tokens.add(f"client{expected}{toolsets is None}", toolsets, user_id=user.id)
        client = tokens.find(key)
        assert client is not None
        found = open_session(
            served.runtime,
            client.toolsets,
            find_limits=lambda: tokens.list_limits(client),  # noqa: B023
        )
        assert ("terminal" in found.granted()) == expected
        known, directory = served.runtime.toolsets(), tokens.users.directory()
        explained = explain_access("terminal", user, directory, known, frozenset(known.snapshot), [client])
        assert (explained.is_granted and not explained.tokens) == expected
        tokens.revoke(client.name)


def test_explain_access_returns_every_rule_that_allows_or_denies_a_tool_to_a_user(
    served: RunningGateway,
) -> None:
    runtime, toolsets = served.runtime, served.runtime.toolsets()
    configured = frozenset(toolsets.snapshot) - runtime.switched_off()
    red = Team("red", allowed=("server:notes",), denied=("tool:notes_tool_2",))
    directory = make_directory(red)
    user = directory.users["1"]

    def explain(
        tool: str, user: User = user, directory: Directory = directory
    ) -> tuple[tuple[str, ...], ...]:
        found = explain_access(tool, user, directory, toolsets, configured, [])
        return found.allowed_by, found.refused_by

    assert explain("notes_echo") == (("team red allows server:notes",), ())
    assert explain("notes_tool_2") == (
        ("team red allows server:notes",),
        ("team red denies tool:notes_tool_2",),
    )
    assert explain("mail_echo") == ((), ("no rule allows it (team red may use only what is allowed)",))
    free = make_directory()
    assert explain("mail_echo", free.users["1"], free) == ((), ())
    disabled = replace(free.users["1"], is_disabled=True)
    assert explain("mail_echo", disabled, free.with_user(disabled)) == ((), ("the user ann is disabled",))


async def test_resources_of_a_server_denied_to_a_user_are_neither_listed_nor_readable(
    served: RunningGateway,
) -> None:
    user = add_user(served.tokens, "ann")
    key = served.tokens.add("laptop", user_id=user.id)
    async with served.client("2026-07-28", token=key) as client:
        (resource,) = (await client.list_resources()).resources
        served.tokens.users.change_user("ann", lambda each: replace(each, denied=("server:notes",)))
        assert (await client.list_resources()).resources == []
        with pytest.raises(Exception, match="was not found") as refused:
            await client.read_resource(str(resource.uri))
        with pytest.raises(Exception, match="was not found") as unknown:
            await client.read_resource(str(resource.uri) + "x")
        assert str(refused.value) == str(unknown.value).replace("x' was", "' was")


def test_explain_access_reports_that_a_user_without_rules_and_tokens_cannot_use_local_tools(
    served: RunningGateway,
) -> None:
    directory, toolsets = make_directory(), served.runtime.toolsets()
    user, everything = directory.users["1"], frozenset(toolsets.snapshot)
    found = explain_access("terminal", user, directory, toolsets, everything, [])
    assert not found.is_granted
    assert "neither a rule nor a token names it" in found.refused_by[0]


async def test_usage_history_of_a_user_contains_only_calls_of_that_user(
    served: RunningGateway, quotas: Quotas
) -> None:
    users = [add_user(served.tokens, name) for name in ("ann", "bob")]
    keys = [served.tokens.add(each.name, user_id=each.id) for each in users]
    store = SqliteUsageStore(None)
    recorder = UsageRecorder(served.runtime.events, store)
    try:
        for key, tool in zip(keys, ("mail_echo", "notes_echo"), strict=True):
            async with served.client(token=key) as client:
                await client.call_tool(tool, {"text": "x"})
                await client.call_tool("tool_search", {"query": "echo"})
        recorder.flush()
        for user, tool in zip(users, ("mail_echo", "notes_echo"), strict=True):
            found = store.list_of_user(user.id, 10)
            assert [(each["kind"], each["name"]) for each in found] == [("search", ""), ("call", tool)]
            assert store.summarize_user(user.id, 0)["calls"] == 1
        assert store.list_of_user("", 10) == []
    finally:
        recorder.close()
        store.close()


def test_token_of_a_disabled_user_returns_401_and_only_the_log_contains_the_reason(
    served: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    user = add_user(served.tokens, "ann")
    key = served.tokens.add("laptop", user_id=user.id)
    served.tokens.users.set_disabled("ann", True)
    with caplog.at_level("INFO", "toolfold"):
        answer = httpx2.post(served.url, json={}, headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == 401
    assert "disabled" not in answer.text
    assert "the token of the client 'laptop' is refused: its user 'ann' is disabled" in caplog.text


@pytest.mark.parametrize(
    ("rules", "token", "tool", "reason"),
    [
        ({"denied": ("server:mail",)}, None, "mail_echo", "team red denies server:mail"),
        ({"allowed": ("server:notes",)}, None, "mail_echo", "team red may use only what is allowed"),
        ({}, ("server:notes",), "mail_echo", "the token grants only server:notes"),
    ],
)
async def test_refused_tool_call_is_logged_with_the_rule_of_the_team_or_token_that_refuses_it(
    served: RunningGateway,
    caplog: pytest.LogCaptureFixture,
    rules: dict[str, tuple[str, ...]],
    token: tuple[str, ...] | None,
    tool: str,
    reason: str,
) -> None:
    caplog.set_level("INFO", "toolfold")
    users, user = served.tokens.users, add_user(served.tokens, "ann")
    users.add_team("red")
    users.change_team("red", lambda team: replace(team, **rules))  # type: ignore[arg-type]
    users.join_team("red", "ann")
    key = served.tokens.add("laptop", token, user_id=user.id)
    async with served.client(token=key) as client:
        for name in (tool, tool, "mail_exho"):
            assert (await client.call_tool(name, {"text": "x"})).is_error
        await asyncio.to_thread(wait_until, lambda: reason in caplog.text)
    refusals = [each for each in caplog.messages if f"'{tool}' is refused: " in each]
    assert len(refusals) == 1  # a repeated refusal is logged once a minute
    assert "'mail_exho' is refused" not in caplog.text


async def test_refused_resource_request_is_logged_with_the_access_rule_that_refuses_it(
    served: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "toolfold")
    user = add_user(served.tokens, "ann")
    key = served.tokens.add("laptop", user_id=user.id)
    async with served.client("2026-07-28", token=key) as client:
        (resource,) = (await client.list_resources()).resources
        served.tokens.users.change_user("ann", lambda each: replace(each, denied=("server:notes",)))
        with pytest.raises(Exception, match="was not found"):
            await client.read_resource(str(resource.uri))
        reason = "is refused: user ann denies server:notes"
        await asyncio.to_thread(wait_until, lambda: reason in caplog.text)


async def test_refused_resource_or_tool_with_line_breaks_in_its_name_cannot_forge_log_lines(
    served: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "toolfold")
    user = add_user(served.tokens, "ann", denied=("server:notes",))
    key = served.tokens.add("laptop", user_id=user.id)
    client = served.tokens.find(key)
    assert client is not None
    tools = served.runtime.registry.snapshot().named("notes_echo")
    log = RefusalLog(served.runtime, served.tokens)
    log.note(Refusal(client, "laptop", "note://1\nWARNING forged", frozenset(), lambda: tools))
    await asyncio.to_thread(wait_until, lambda: "user ann denies server:notes" in caplog.text)
    async with served.client(token=key) as connected:
        assert (await connected.call_tool("notes_echo\nWARNING forged", {"text": "x"})).is_error
    assert "forged" in caplog.text
    assert not any(line.startswith("WARNING forged") for line in caplog.text.splitlines())


async def test_refusals_above_the_limit_of_pending_reason_lookups_are_logged_only_as_a_number(
    served: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "toolfold")
    user = add_user(served.tokens, "ann", denied=("server:notes",))
    client = served.tokens.find(served.tokens.add("laptop", user_id=user.id))
    assert client is not None
    tools = served.runtime.registry.snapshot().named("notes_echo")
    log = RefusalLog(served.runtime, served.tokens)
    for number in range(MAX_PENDING_LOOKUPS + 3):  # without giving the event loop time to finish one
        log.note(Refusal(client, "laptop", f"note://{number}", frozenset(), lambda: tools))
    await asyncio.to_thread(wait_until, lambda: "3 more refused requests" in caplog.text)
    assert caplog.text.count("user ann denies server:notes") == MAX_PENDING_LOOKUPS


def test_user_without_allow_rules_may_use_no_tools_if_access_is_denied_by_default(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json", denies_by_default=True)
    user = add_user(tokens, "ann")
    client, plain = tokens.find(tokens.add("laptop", user_id=user.id)), tokens.find(tokens.add("plain"))
    assert client is not None
    assert plain is not None
    assert tokens.list_limits(client)[0] == GrantLimit(())
    assert tokens.list_limits(plain)[0] == GrantLimit()
    tokens.users.add_team("red")
    tokens.users.change_team("red", lambda team: replace(team, allowed=("server:mail",)))
    tokens.users.join_team("red", "ann")
    assert tokens.list_limits(client)[0] == GrantLimit(("server:mail",))
    tokens.users.remove_team("red")
    assert tokens.list_limits(client)[0] == GrantLimit(())
    reopened = Tokens(tmp_path / "tokens.json")
    assert reopened.list_limits(client)[0] == GrantLimit()


def test_rules_about_models_do_not_limit_the_tools_of_a_user() -> None:
    directory = make_directory(allowed=("model:gpt-*", "key:openai"), denied=("model:o1",))
    assert directory.find_limit("1") == GrantLimit()


@pytest.fixture
def quotas(served: RunningGateway, tmp_path: Path) -> Iterator[Quotas]:
    """The limits of the gateway's users."""
    found = Quotas(SqliteQuotaStore(tmp_path / "quotas.db"), served.tokens.users.directory)
    served.tokens.quotas = found
    yield found
    served.tokens.quotas = None
    found.close()


@pytest.mark.parametrize("revision", ["legacy", "2026-07-28"])
async def test_calls_above_the_call_limit_of_a_user_are_refused_with_the_remaining_wait_time(
    served: RunningGateway, quotas: Quotas, revision: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "toolfold")
    user = add_user(served.tokens, "ann")
    served.tokens.users.change_user(
        "ann", lambda each: replace(each, limits={"calls_per_day": 2.0, "searches_per_minute": 0.0})
    )
    key, other = served.tokens.add("laptop", user_id=user.id), served.tokens.add("plain")
    async with served.client(revision, token=key) as client:
        for _ in range(2):
            assert not (await client.call_tool("mail_echo", {"text": "x"})).is_error
        with pytest.raises(MCPError, match="limit of 2 calls per day for you is reached") as refused:
            await client.call_tool("mail_echo", {"text": "x"})
        assert refused.value.error.code == LIMIT_REACHED
        assert 0 < refused.value.error.data["retry_after_s"] <= 86_400
        assert await list_names(client) == ALL_TOOLS  # lists are not limited
        with pytest.raises(MCPError, match="0 tool searches per minute"):
            await client.call_tool("tool_search", {"query": "echo"})
    assert quotas.refusals["calls_per_day"] == quotas.refusals["searches_per_minute"] == 1
    assert "client laptop: the call of mail_echo was refused: The limit of 2 calls per day" in caplog.text
    async with served.client(revision, token=other) as client:
        for _ in range(3):
            assert not (await client.call_tool("mail_echo", {"text": "x"})).is_error


@pytest.mark.parametrize("revision", ["legacy", "2026-07-28"])
async def test_calls_with_a_forged_request_state_count_towards_the_call_limit_of_the_user(
    served: RunningGateway, quotas: Quotas, revision: str
) -> None:
    user = add_user(served.tokens, "ann")
    served.tokens.users.change_user("ann", lambda each: replace(each, limits={"calls_per_day": 2.0}))
    async with served.client(revision, token=served.tokens.add("laptop", user_id=user.id)) as client:
        for _ in range(2):
            with contextlib.suppress(MCPError):  # the newest revision has such states, and refuses this one
                await client.session.call_tool("mail_echo", {"text": "x"}, request_state="toolfold:x")
        with pytest.raises(MCPError, match="limit of 2 calls per day for you is reached"):
            await client.session.call_tool("mail_echo", {"text": "x"}, request_state="toolfold:x")
    assert quotas.refusals["calls_per_day"] == 1


async def test_calls_of_a_user_with_call_limits_are_refused_if_the_quota_database_is_damaged(
    served: RunningGateway, quotas: Quotas, tmp_path: Path
) -> None:
    user = add_user(served.tokens, "ann")
    served.tokens.users.change_user("ann", lambda each: replace(each, limits={"calls_per_day": 2.0}))
    (tmp_path / "quotas.db").write_text("damaged " * 1_000)
    async with served.client(token=served.tokens.add("laptop", user_id=user.id)) as client:
        with pytest.raises(MCPError, match="cannot check your limits"):
            await client.call_tool("mail_echo", {"text": "x"})
