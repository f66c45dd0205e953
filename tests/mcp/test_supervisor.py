"""Supervision of one server: start on demand, reopening when lost, backoff while it fails."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.fault_http import serve_in_thread
from tests.mcp.faults import CALL_TIMEOUT_S, call_echo, http_settings, open_supervisor, stdio_settings
from toolfold.config.servers_settings import McpServerSettings
from toolfold.mcp import supervisor
from toolfold.mcp.call_relay import CallRelay
from toolfold.mcp.connection import ConnectionDeps
from toolfold.mcp.faults import NotStarted, ResponseTimeout, ServerBackingOff, ServerFailed
from toolfold.mcp.supervisor import ServerSupervisor
from toolfold.mcp.tool_listing import Listing

TIMEOUT_S = 60.0
NEVER = 600.0
"""Longer than any test takes."""


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    return tmp_path / "diary"


class Clock:
    """The supervisor's clock, which tests can advance."""

    ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(supervisor, "time", found)
    return found


@pytest.fixture
def long_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the backoff of a failing server longer than any test takes."""
    monkeypatch.setattr(supervisor, "INITIAL_BACKOFF_S", NEVER)
    monkeypatch.setattr(supervisor, "MAX_BACKOFF_S", NEVER)


def diary_counts(diary: Path) -> Counter[str]:
    """Count the lines of the file in which the test server records its starts and calls."""
    return Counter(diary.read_text().split()) if diary.exists() else Counter()


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.01)


def settings_with_diary(fault: str, diary: Path, **settings: Any) -> Any:
    return stdio_settings(fault, "--diary", str(diary), **settings)


async def test_mcp_server_is_started_when_a_tool_is_first_called(tmp_path: Path, diary: Path) -> None:
    async with open_supervisor(settings_with_diary("", diary), tmp_path) as server:
        await asyncio.sleep(0.05)
        assert (server.state_name, diary_counts(diary)["start"]) == ("idle", 0)
        assert await call_echo(server, "hello") == ("hello", "hello")
        assert (server.state_name, diary_counts(diary)["start"]) == ("up", 1)


async def test_concurrent_first_calls_start_the_server_only_once(tmp_path: Path, diary: Path) -> None:
    async with open_supervisor(settings_with_diary("", diary), tmp_path) as server:
        answers = await asyncio.gather(*(call_echo(server, str(number)) for number in range(8)))
    assert [answer for answer, _ in answers] == [str(number) for number in range(8)]
    assert diary_counts(diary) == {"start": 1, "call": 8}


async def test_cancelling_one_call_that_waits_for_the_server_start_does_not_fail_other_waiting_calls(
    tmp_path: Path, diary: Path
) -> None:
    async with open_supervisor(settings_with_diary("", diary), tmp_path) as server:
        impatient = asyncio.create_task(call_echo(server, "never"))
        other = asyncio.create_task(call_echo(server, "hello"))
        await asyncio.sleep(0.01)
        impatient.cancel()
        assert (await other)[0] == "hello"
    assert diary_counts(diary)["start"] == 1


@pytest.mark.usefixtures("long_backoff")
async def test_repeatedly_failing_server_is_retried_after_a_backoff_that_the_error_states(
    tmp_path: Path, diary: Path
) -> None:
    async with open_supervisor(settings_with_diary("crash-at-start", diary), tmp_path) as server:
        for _ in range(supervisor.MAX_FAILURES):
            with pytest.raises(NotStarted):
                await server.call_tool("echo", {})
        with pytest.raises(ServerBackingOff, match=r"no database.* tried again in \d+ s"):
            await server.call_tool("echo", {})
        assert server.state.state == "resting"
        assert 0 < server.state.next_try <= supervisor.MAX_BACKOFF_S
    assert diary_counts(diary)["start"] == supervisor.MAX_FAILURES


@pytest.mark.usefixtures("long_backoff")
async def test_call_succeeds_after_the_backoff_if_the_failing_server_was_repaired(
    tmp_path: Path, diary: Path, clock: Clock
) -> None:
    mended = tmp_path / "mended"
    settings = stdio_settings("crash-at-start", "--unless", str(mended), "--diary", str(diary))
    async with open_supervisor(settings, tmp_path) as server:
        for _ in range(supervisor.MAX_FAILURES):
            assert (await call_echo(server, "hello"))[0] == "not-started"
        mended.touch()
        assert (await call_echo(server, "hello"))[0] == "resting"
        clock.ahead += server.state.next_try
        assert (await call_echo(server, "hello"))[0] == "hello"


@pytest.mark.usefixtures("long_backoff")
async def test_restart_starts_a_repeatedly_failed_server_without_waiting_for_the_backoff(
    tmp_path: Path,
) -> None:
    mended = tmp_path / "mended"
    async with open_supervisor(stdio_settings("crash-at-start", "--unless", str(mended)), tmp_path) as server:
        for _ in range(supervisor.MAX_FAILURES):
            assert (await call_echo(server, "hello"))[0] == "not-started"
        mended.touch()
        await server.restart()
        assert server.state_name == "up"


async def test_restart_aborts_a_hanging_server_start_and_starts_the_server_again(
    tmp_path: Path, diary: Path
) -> None:
    mended = tmp_path / "mended"
    words = ("--unless", str(mended), "--diary", str(diary))
    settings = stdio_settings("silent-at-start", *words, connect_timeout_seconds=NEVER)
    async with asyncio.timeout(TIMEOUT_S), open_supervisor(settings, tmp_path) as server:
        waiting = asyncio.create_task(call_echo(server, "hello"))
        await wait_until(lambda: diary_counts(diary)["start"])
        mended.touch()
        await server.restart()
        assert (await call_echo(server, "again"))[0] == "again"
        await asyncio.wait({waiting})


async def test_server_that_crashes_during_a_call_is_restarted_without_a_new_call(
    tmp_path: Path, diary: Path
) -> None:
    async with open_supervisor(settings_with_diary("crash", diary), tmp_path) as server:
        assert (await call_echo(server, "now"))[0] == "lost"
        await wait_until(lambda: diary_counts(diary)["start"] == 2 and server.state_name == "up")


@pytest.mark.thorough
async def test_server_that_exits_after_each_start_is_restarted_with_growing_backoff(
    tmp_path: Path, diary: Path
) -> None:
    async with open_supervisor(settings_with_diary("dies-soon", diary), tmp_path) as server:
        began = time.monotonic()
        await call_echo(server, "hello")
        await wait_until(lambda: diary_counts(diary)["start"] == 3)
        # Backoff has a jitter of 50 to 100 percent and doubles each time.
        assert time.monotonic() - began >= (0.5 + 1.0) * supervisor.INITIAL_BACKOFF_S


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("fault", ["crash", "close-output", "hang", "broken-frame", "huge"])
async def test_failed_stdio_call_that_the_server_may_have_executed_is_not_sent_again(
    tmp_path: Path, diary: Path, fault: str
) -> None:
    limit = {"call_timeout_seconds": CALL_TIMEOUT_S} if fault == "hang" else {}
    async with open_supervisor(settings_with_diary(fault, diary, **limit), tmp_path) as server:
        with pytest.raises(ServerFailed) as failed:
            await server.call_tool("echo", {"text": "now"})
        assert failed.value.may_have_run
        assert (await call_echo(server, "again"))[0] == "again"
    assert diary_counts(diary)["call"] == 2


@pytest.mark.parametrize("fault", ["status-500", "cut-before-headers", "cut-in-body", "stream-ends-early"])
async def test_failed_http_call_that_the_server_may_have_executed_is_not_sent_again(
    tmp_path: Path, fault: str
) -> None:
    with serve_in_thread(fault) as http:
        async with open_supervisor(http_settings(http.url(), "http"), tmp_path) as server:
            with pytest.raises(ServerFailed) as failed:
                await server.call_tool("echo", {"text": "now"})
            assert failed.value.may_have_run
            assert http.calls == 1


async def test_calls_refused_for_an_expired_http_session_are_repeated_in_a_new_session(
    tmp_path: Path,
) -> None:
    with serve_in_thread() as http:
        async with open_supervisor(http_settings(http.url(), "http"), tmp_path) as server:
            assert (await call_echo(server, "first"))[0] == "first"
            http.sessions.clear()
            answers = await asyncio.gather(*(call_echo(server, str(number)) for number in range(4)))
            assert [answer for answer, _ in answers] == ["0", "1", "2", "3"]
            assert http.calls == 5


@pytest.mark.parametrize("way", ["http", "sse"])
async def test_calls_succeed_after_an_http_server_was_restarted_by_another_program(
    tmp_path: Path, way: Any
) -> None:
    with serve_in_thread() as http:
        settings, port = http_settings(http.url(way), way), http.port
        holding = open_supervisor(settings, tmp_path)
        server = await holding.__aenter__()
        assert (await call_echo(server, "first"))[0] == "first"
    try:
        assert (await call_echo(server, "second"))[0] in ("not-started", "lost")
        with serve_in_thread(port=port) as again:
            async with asyncio.timeout(TIMEOUT_S):
                while (await call_echo(server, "third"))[0] != "third":  # noqa: ASYNC110 - it rests meanwhile
                    await asyncio.sleep(server.state.next_try)
            assert again.calls == 1
    finally:
        await holding.__aexit__(None, None, None)


async def test_server_that_does_not_answer_keepalive_pings_is_restarted(
    tmp_path: Path, diary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PING_TIMEOUT_S", TIMEOUT_S)
    settings = settings_with_diary("deaf-afterwards", diary, keepalive_seconds=0.3)
    async with open_supervisor(settings, tmp_path) as server:
        assert (await call_echo(server, "now"))[0] == "my last words"
        monkeypatch.setattr(supervisor, "PING_TIMEOUT_S", 0.2)
        await wait_until(lambda: server.state_name != "up")
        monkeypatch.setattr(supervisor, "PING_TIMEOUT_S", TIMEOUT_S)  # the next server may start slowly
        await wait_until(lambda: diary_counts(diary)["start"] == 2 and server.state_name == "up")
        assert (await call_echo(server, "again"))[0] == "again"


async def test_server_receives_no_keepalive_ping_during_a_call(
    tmp_path: Path, diary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PING_TIMEOUT_S", TIMEOUT_S)
    awake = tmp_path / "awake"
    settings = stdio_settings("slow", "--diary", str(diary), "--until", str(awake), keepalive_seconds=0.1)
    async with open_supervisor(settings, tmp_path) as server:
        call = asyncio.create_task(call_echo(server, "now"))
        await wait_until(lambda: diary_counts(diary)["call"])
        monkeypatch.setattr(supervisor, "PING_TIMEOUT_S", 0.05)  # a ping would time out
        await asyncio.sleep(0.5)
        monkeypatch.setattr(supervisor, "PING_TIMEOUT_S", TIMEOUT_S)
        awake.touch()
        assert (await call)[0] == "slept"
    assert diary_counts(diary)["start"] == 1


async def test_server_that_answers_keepalive_pings_is_not_restarted(
    tmp_path: Path, diary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PING_TIMEOUT_S", TIMEOUT_S)
    async with open_supervisor(settings_with_diary("", diary, keepalive_seconds=0.1), tmp_path) as server:
        await call_echo(server, "hello")
        await wait_until(lambda: diary_counts(diary)["ping"] >= 3)
        assert server.state_name == "up"
    assert diary_counts(diary)["start"] == 1


@pytest.mark.thorough
async def test_progress_notifications_extend_the_call_timeout_up_to_max_call_seconds(tmp_path: Path) -> None:
    heard: list[float] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        heard.append(done)

    settings = stdio_settings("progress", call_timeout_seconds=2.5)  # the call takes longer
    async with open_supervisor(settings, tmp_path) as server:
        result = await server.call_tool("echo", {"text": "now"}, CallRelay(client="", progress=progress))
        assert result.content[0].text == "done"
        await wait_until(lambda: heard == [1, 2, 3, 4, 5, 6, 7, 8])
    settings = stdio_settings("progress", call_timeout_seconds=1.0, max_call_seconds=1.2)
    async with open_supervisor(settings, tmp_path) as server:
        with pytest.raises(ResponseTimeout):
            await server.call_tool("echo", {"text": "now"})


async def test_cancelling_a_stdio_call_sends_a_cancelled_notification_to_the_server(
    tmp_path: Path, diary: Path
) -> None:
    async with open_supervisor(
        settings_with_diary("hang", diary, call_timeout_seconds=NEVER), tmp_path
    ) as server:
        call = asyncio.create_task(call_echo(server, "now"))
        await wait_until(lambda: diary_counts(diary)["call"])
        call.cancel()
        await asyncio.wait({call})
        await wait_until(lambda: diary_counts(diary)["cancelled"])
        assert (await call_echo(server, "again"))[0] == "again"


async def test_stdio_call_that_exceeds_its_timeout_is_cancelled_at_the_server(
    tmp_path: Path, diary: Path
) -> None:
    async with open_supervisor(
        settings_with_diary("hang", diary, call_timeout_seconds=CALL_TIMEOUT_S), tmp_path
    ) as server:
        assert (await call_echo(server, "now"))[0] == "no-answer"
        await wait_until(lambda: diary_counts(diary)["cancelled"])


@pytest.mark.thorough
async def test_http_call_that_exceeds_its_timeout_is_cancelled_at_the_server(tmp_path: Path) -> None:
    with serve_in_thread("hang-before-headers") as http:
        async with open_supervisor(
            http_settings(http.url(), "http", call_timeout_seconds=CALL_TIMEOUT_S), tmp_path
        ) as server:
            assert (await call_echo(server, "now"))[0] == "no-answer"
            await wait_until(lambda: http.cancelled == 1)


async def test_list_changed_notification_of_a_server_updates_the_published_tool_list(
    tmp_path: Path,
) -> None:
    told: list[list[str]] = []

    def publish(_name: str, listing: Listing) -> None:
        told.append([offer.name for offer in listing.tools])

    async with open_supervisor(stdio_settings("changing-list"), tmp_path, publish=publish) as server:
        await call_echo(server, "now")
        await wait_until(lambda: len(told) == 2)
    assert told == [["echo"], ["echo", "arrived_late"]]


async def test_tool_list_that_changes_during_the_first_tools_list_request_is_fetched_again(
    tmp_path: Path,
) -> None:
    told: list[list[str]] = []
    settled = tmp_path / "settled"

    def publish(_name: str, listing: Listing) -> None:
        told.append([offer.name for offer in listing.tools])

    settings = stdio_settings("changes-while-listed", "--until", str(settled))
    async with open_supervisor(settings, tmp_path, publish=publish) as server:
        starting = asyncio.create_task(call_echo(server, "hello"))
        await asyncio.sleep(
            5 * supervisor.RELIST_DELAY_S
        )  # longer than a change is left to be subscription_server
        settled.touch()
        await starting
        await wait_until(lambda: len(told) == 2)
    assert told == [["echo"], ["echo", "arrived_late"]]


async def test_closing_a_server_that_is_still_starting_ends_its_process(tmp_path: Path, diary: Path) -> None:
    async with (
        asyncio.timeout(TIMEOUT_S),
        open_supervisor(
            settings_with_diary("silent-at-start", diary, connect_timeout_seconds=NEVER), tmp_path
        ) as server,
    ):
        call = asyncio.create_task(call_echo(server, "hello"))
        await wait_until(lambda: diary_counts(diary)["start"])
        await server.close()
        await asyncio.wait({call})
        assert call.cancelled() or call.exception() or call.result()[0] == "not-started"
        assert (await call_echo(server, "hello"))[0] == "not-started"
    assert diary_counts(diary)["start"] == 1


async def test_closing_a_server_during_a_call_ends_the_call_with_an_error(
    tmp_path: Path, diary: Path
) -> None:
    settings = settings_with_diary("hang", diary, call_timeout_seconds=NEVER)
    async with asyncio.timeout(TIMEOUT_S), open_supervisor(settings, tmp_path) as server:
        call = asyncio.create_task(call_echo(server, "now"))
        await wait_until(lambda: diary_counts(diary)["call"])
        await server.close()
        assert (await call)[0] == "lost"


async def test_closing_a_server_also_ends_the_old_process_during_a_reconnect(
    tmp_path: Path, diary: Path
) -> None:
    async with open_supervisor(settings_with_diary("close-output", diary), tmp_path) as server:
        assert (await call_echo(server, "now"))[0] == "lost"
        assert find_servers(diary)
    await wait_until(lambda: not find_servers(diary))


def find_servers(diary: Path) -> list[str]:
    """Return the server processes that record their starts and calls in the given file."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(diary).encode() in file.read_bytes():
                found.append(file.parent.name)
    return found


SUBSCRIPTION_SERVER = """
import json, sys

diary = open(sys.argv[1], "a", buffering=1)
print("start", file=diary)
for line in sys.stdin:
    asked = json.loads(line)
    method, result = asked["method"], {}
    if method in ("resources/subscribe", "resources/unsubscribe"):
        print(method, asked["params"]["uri"], file=diary)
        if method == "resources/unsubscribe" or asked["params"]["uri"] == "note://fatal":
            sys.exit(1)
    elif method == "initialize":
        offered = {"tools": {}, "resources": {"subscribe": True}}
        about = {"name": "notes", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": offered, "serverInfo": about}
    elif method == "tools/list":
        result = {"tools": []}
    if "id" in asked and method != "server/discover":
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
    elif "id" in asked:
        error = {"code": -32601, "message": "what is that?"}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}), flush=True)
"""


def subscription_server(tmp_path: Path, diary: Path) -> McpServerSettings:
    program = tmp_path / "followed.py"
    program.write_text(SUBSCRIPTION_SERVER)
    return McpServerSettings(command=sys.executable, args=(str(program), str(diary)))


async def test_server_restart_does_not_resubscribe_a_resource_after_a_failed_unsubscribe_request(
    tmp_path: Path, diary: Path
) -> None:
    async with open_supervisor(subscription_server(tmp_path, diary), tmp_path) as server:
        await server.send_request("resources/subscribe", {"uri": "note://a"})
        with pytest.raises(ServerFailed):
            await server.send_request("resources/unsubscribe", {"uri": "note://a"})
        await server.restart()
        await server.send_request("resources/subscribe", {"uri": "note://b"})
    assert diary_counts(diary)["start"] >= 2
    assert diary_counts(diary)["note://a"] == 2  # subscribe and unsubscribe


async def test_resubscribing_to_resources_raises_no_error_if_the_server_exits_during_the_requests(
    tmp_path: Path, diary: Path
) -> None:
    async with open_supervisor(subscription_server(tmp_path, diary), tmp_path) as server:
        connection = await server.get_connection()
        await connection.resubscribe(["note://a", "note://fatal", "note://b"], TIMEOUT_S)
    assert diary_counts(diary)["note://fatal"] == 1
    assert diary_counts(diary)["note://b"] == 0


async def test_repeated_calls_that_fail_for_a_missing_login_do_not_start_the_backoff(tmp_path: Path) -> None:
    with serve_in_thread("login") as http:
        async with open_supervisor(http_settings(http.url(), "http"), tmp_path) as server:
            for _ in range(supervisor.MAX_FAILURES + 1):
                assert (await call_echo(server, "hello"))[0] == "needs-login"
            assert server.state_name == "login"


async def test_secrets_of_a_server_are_redacted_in_errors_that_the_server_returns(tmp_path: Path) -> None:
    known = {**os.environ, "SERVICE_API_KEY": "open-sesame-42"}
    async with open_supervisor(
        stdio_settings("tell-secret"), tmp_path, environment=known, secrets=["open-sesame-42"]
    ) as server:
        kind, said = await call_echo(server, "now")
    assert kind == "rejected"
    assert "is not valid" in said
    assert "open-sesame-42" not in said


async def test_call_error_contains_the_name_of_an_unset_variable_in_the_server_settings(
    tmp_path: Path,
) -> None:
    from toolfold.core.errors import ConfigError

    async def build_deps(_server: ServerSupervisor) -> ConnectionDeps:
        raise ConfigError("the variable TOKEN is not set")

    server = ServerSupervisor("some", stdio_settings(), build_deps=build_deps, publish=lambda *_: None)
    with pytest.raises(NotStarted, match="the variable TOKEN is not set"):
        await server.call_tool("echo", {})
    await server.close()
