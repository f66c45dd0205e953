"""One server under supervision: started when needed, opened again when lost, left alone while it fails."""

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

from tests.mcp.fault_http import serving
from tests.mcp.faults import LIMIT, at, called, stdio, supervised
from toolfold.config.servers import McpServer
from toolfold.sources.mcp import supervisor
from toolfold.sources.mcp.connection import Wiring
from toolfold.sources.mcp.courier import Courier
from toolfold.sources.mcp.faults import NoAnswer, NotStarted, Resting, ServerFailed
from toolfold.sources.mcp.offers import Listing
from toolfold.sources.mcp.supervisor import Supervised

PATIENCE = 60.0
NEVER = 600.0
"""Longer than anybody waits here."""


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    return tmp_path / "diary"


class Clock:
    """The time of the supervisor, which can be put forward."""

    ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(supervisor, "time", found)
    return found


@pytest.fixture
def sleepy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that keeps failing rests for longer than any test takes."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", NEVER)
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE", NEVER)


def noted(diary: Path) -> Counter[str]:
    """What the server wrote down about itself."""
    return Counter(diary.read_text().split()) if diary.exists() else Counter()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.01)


def with_diary(fault: str, diary: Path, **settings: Any) -> Any:
    return stdio(fault, "--diary", str(diary), **settings)


async def test_a_server_is_started_by_the_first_call_and_not_before(tmp_path: Path, diary: Path) -> None:
    async with supervised(with_diary("", diary), tmp_path) as server:
        await asyncio.sleep(0.05)
        assert (server.word, noted(diary)["start"]) == ("idle", 0)
        assert await called(server, "hello") == ("hello", "hello")
        assert (server.word, noted(diary)["start"]) == ("up", 1)


async def test_calls_at_the_same_time_share_one_start(tmp_path: Path, diary: Path) -> None:
    async with supervised(with_diary("", diary), tmp_path) as server:
        answers = await asyncio.gather(*(called(server, str(number)) for number in range(8)))
    assert [answer for answer, _ in answers] == [str(number) for number in range(8)]
    assert noted(diary) == {"start": 1, "call": 8}


async def test_a_caller_that_goes_away_does_not_end_the_start_for_the_others(
    tmp_path: Path, diary: Path
) -> None:
    async with supervised(with_diary("", diary), tmp_path) as server:
        impatient = asyncio.create_task(called(server, "never"))
        other = asyncio.create_task(called(server, "hello"))
        await asyncio.sleep(0.01)
        impatient.cancel()
        assert (await other)[0] == "hello"
    assert noted(diary)["start"] == 1


@pytest.mark.usefixtures("sleepy")
async def test_a_server_that_keeps_failing_rests_and_says_until_when(tmp_path: Path, diary: Path) -> None:
    async with supervised(with_diary("crash-at-start", diary), tmp_path) as server:
        for _ in range(supervisor.MOST_FAILURES):
            with pytest.raises(NotStarted):
                await server.call("echo", {})
        with pytest.raises(Resting, match=r"no database.* tried again in \d+ s"):
            await server.call("echo", {})
        assert server.state.state == "resting"
        assert 0 < server.state.next_try <= supervisor.LONGEST_PAUSE
    assert noted(diary)["start"] == supervisor.MOST_FAILURES


@pytest.mark.usefixtures("sleepy")
async def test_after_its_rest_a_server_that_was_mended_works(
    tmp_path: Path, diary: Path, clock: Clock
) -> None:
    mended = tmp_path / "mended"
    settings = stdio("crash-at-start", "--unless", str(mended), "--diary", str(diary))
    async with supervised(settings, tmp_path) as server:
        for _ in range(supervisor.MOST_FAILURES):
            assert (await called(server, "hello"))[0] == "not-started"
        mended.touch()
        assert (await called(server, "hello"))[0] == "resting"
        clock.ahead += server.state.next_try
        assert (await called(server, "hello"))[0] == "hello"


@pytest.mark.usefixtures("sleepy")
async def test_a_restart_does_not_wait_for_the_end_of_a_rest(tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    async with supervised(stdio("crash-at-start", "--unless", str(mended)), tmp_path) as server:
        for _ in range(supervisor.MOST_FAILURES):
            assert (await called(server, "hello"))[0] == "not-started"
        mended.touch()
        await server.restart()
        assert server.word == "up"


async def test_a_restart_gives_up_a_start_that_hangs(tmp_path: Path, diary: Path) -> None:
    mended = tmp_path / "mended"
    words = ("--unless", str(mended), "--diary", str(diary))
    settings = stdio("silent-at-start", *words, connect_timeout_seconds=NEVER)
    async with asyncio.timeout(PATIENCE), supervised(settings, tmp_path) as server:
        waiting = asyncio.create_task(called(server, "hello"))
        await until(lambda: noted(diary)["start"])
        mended.touch()
        await server.restart()
        assert (await called(server, "again"))[0] == "again"
        await asyncio.wait({waiting})


async def test_a_server_that_is_lost_is_opened_again_by_itself(tmp_path: Path, diary: Path) -> None:
    async with supervised(with_diary("crash", diary), tmp_path) as server:
        assert (await called(server, "now"))[0] == "lost"
        await until(lambda: noted(diary)["start"] == 2 and server.word == "up")


async def test_a_server_that_starts_only_to_end_is_tried_less_and_less_often(
    tmp_path: Path, diary: Path
) -> None:
    async with supervised(with_diary("dies-soon", diary), tmp_path) as server:
        began = time.monotonic()
        await called(server, "hello")
        await until(lambda: noted(diary)["start"] == 3)
        # A pause is half as long as it may be, or longer, and the second twice as long as the first.
        assert time.monotonic() - began >= (0.5 + 1.0) * supervisor.FIRST_PAUSE


@pytest.mark.parametrize("fault", ["crash", "close-output", "hang", "broken-frame", "huge"])
async def test_a_call_that_may_have_run_is_never_repeated(tmp_path: Path, diary: Path, fault: str) -> None:
    limit = {"call_timeout_seconds": LIMIT} if fault == "hang" else {}
    async with supervised(with_diary(fault, diary, **limit), tmp_path) as server:
        with pytest.raises(ServerFailed) as failed:
            await server.call("echo", {"text": "now"})
        assert failed.value.may_have_run
        assert (await called(server, "again"))[0] == "again"
    assert noted(diary)["call"] == 2


@pytest.mark.parametrize("fault", ["status-500", "cut-before-headers", "cut-in-body", "stream-ends-early"])
async def test_a_call_over_http_that_may_have_run_is_never_repeated(tmp_path: Path, fault: str) -> None:
    with serving(fault) as http:
        async with supervised(at(http.url(), "http"), tmp_path) as server:
            with pytest.raises(ServerFailed) as failed:
                await server.call("echo", {"text": "now"})
            assert failed.value.may_have_run
            assert http.calls == 1


async def test_calls_that_find_the_session_forgotten_are_sent_again_once(tmp_path: Path) -> None:
    with serving() as http:
        async with supervised(at(http.url(), "http"), tmp_path) as server:
            assert (await called(server, "first"))[0] == "first"
            http.sessions.clear()
            answers = await asyncio.gather(*(called(server, str(number)) for number in range(4)))
            assert [answer for answer, _ in answers] == ["0", "1", "2", "3"]
            assert http.calls == 5


@pytest.mark.parametrize("way", ["http", "sse"])
async def test_a_server_that_was_restarted_elsewhere_is_found_again(tmp_path: Path, way: Any) -> None:
    with serving() as http:
        settings, port = at(http.url(way), way), http.port
        holding = supervised(settings, tmp_path)
        server = await holding.__aenter__()
        assert (await called(server, "first"))[0] == "first"
    try:
        assert (await called(server, "second"))[0] in ("not-started", "lost")
        with serving(port=port) as again:
            async with asyncio.timeout(PATIENCE):
                while (await called(server, "third"))[0] != "third":  # noqa: ASYNC110 - it rests meanwhile
                    await asyncio.sleep(server.state.next_try)
            assert again.calls == 1
    finally:
        await holding.__aexit__(None, None, None)


async def test_keepalive_ends_a_server_that_hangs_and_opens_another(
    tmp_path: Path, diary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "SIGN_SECONDS", PATIENCE)
    settings = with_diary("deaf-afterwards", diary, keepalive_seconds=0.3)
    async with supervised(settings, tmp_path) as server:
        assert (await called(server, "now"))[0] == "my last words"
        monkeypatch.setattr(supervisor, "SIGN_SECONDS", 0.2)
        await until(lambda: server.word != "up")
        monkeypatch.setattr(supervisor, "SIGN_SECONDS", PATIENCE)  # the next one may take its time
        await until(lambda: noted(diary)["start"] == 2 and server.word == "up")
        assert (await called(server, "again"))[0] == "again"


async def test_keepalive_leaves_a_server_alone_that_is_busy_with_a_call(
    tmp_path: Path, diary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "SIGN_SECONDS", PATIENCE)
    awake = tmp_path / "awake"
    settings = stdio("slow", "--diary", str(diary), "--until", str(awake), keepalive_seconds=0.1)
    async with supervised(settings, tmp_path) as server:
        call = asyncio.create_task(called(server, "now"))
        await until(lambda: noted(diary)["call"])
        monkeypatch.setattr(supervisor, "SIGN_SECONDS", 0.05)  # it would be ended if it were asked now
        await asyncio.sleep(0.5)
        monkeypatch.setattr(supervisor, "SIGN_SECONDS", PATIENCE)
        awake.touch()
        assert (await call)[0] == "slept"
    assert noted(diary)["start"] == 1


async def test_keepalive_does_not_disturb_a_server_that_lives(
    tmp_path: Path, diary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "SIGN_SECONDS", PATIENCE)
    async with supervised(with_diary("", diary, keepalive_seconds=0.1), tmp_path) as server:
        await called(server, "hello")
        await until(lambda: noted(diary)["ping"] >= 3)
        assert server.word == "up"
    assert noted(diary)["start"] == 1


async def test_progress_gives_a_call_more_time_up_to_the_longest_it_may_take(tmp_path: Path) -> None:
    heard: list[float] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        heard.append(done)

    settings = stdio("progress", call_timeout_seconds=2.5)  # it takes longer than that
    async with supervised(settings, tmp_path) as server:
        result = await server.call("echo", {"text": "now"}, Courier(client="", progress=progress))
        assert result.content[0].text == "done"
        await until(lambda: heard == [1, 2, 3, 4, 5, 6, 7, 8])
    settings = stdio("progress", call_timeout_seconds=1.0, max_call_seconds=1.2)
    async with supervised(settings, tmp_path) as server:
        with pytest.raises(NoAnswer):
            await server.call("echo", {"text": "now"})


async def test_a_call_that_is_cancelled_is_cancelled_at_the_server(tmp_path: Path, diary: Path) -> None:
    async with supervised(with_diary("hang", diary, call_timeout_seconds=NEVER), tmp_path) as server:
        call = asyncio.create_task(called(server, "now"))
        await until(lambda: noted(diary)["call"])
        call.cancel()
        await asyncio.wait({call})
        await until(lambda: noted(diary)["cancelled"])
        assert (await called(server, "again"))[0] == "again"


async def test_a_call_that_takes_too_long_is_cancelled_at_the_server(tmp_path: Path, diary: Path) -> None:
    async with supervised(with_diary("hang", diary, call_timeout_seconds=LIMIT), tmp_path) as server:
        assert (await called(server, "now"))[0] == "no-answer"
        await until(lambda: noted(diary)["cancelled"])


async def test_a_call_over_http_that_is_cancelled_is_cancelled_at_the_server(tmp_path: Path) -> None:
    with serving("hang-before-headers") as http:
        async with supervised(at(http.url(), "http", call_timeout_seconds=LIMIT), tmp_path) as server:
            assert (await called(server, "now"))[0] == "no-answer"
            await until(lambda: http.cancelled == 1)


async def test_a_changed_list_is_asked_for_again_and_told_of(tmp_path: Path) -> None:
    told: list[list[str]] = []

    def publish(_name: str, listing: Listing) -> None:
        told.append([offer.name for offer in listing.offers])

    async with supervised(stdio("changing-list"), tmp_path, publish=publish) as server:
        await called(server, "now")
        await until(lambda: len(told) == 2)
    assert told == [["echo"], ["echo", "arrived_late"]]


async def test_a_list_that_changes_while_it_is_first_asked_for_is_asked_for_again(tmp_path: Path) -> None:
    told: list[list[str]] = []
    settled = tmp_path / "settled"

    def publish(_name: str, listing: Listing) -> None:
        told.append([offer.name for offer in listing.offers])

    settings = stdio("changes-while-listed", "--until", str(settled))
    async with supervised(settings, tmp_path, publish=publish) as server:
        starting = asyncio.create_task(called(server, "hello"))
        await asyncio.sleep(5 * supervisor.SETTLE_SECONDS)  # longer than a change is left to be followed
        settled.touch()
        await starting
        await until(lambda: len(told) == 2)
    assert told == [["echo"], ["echo", "arrived_late"]]


async def test_a_server_is_closed_while_it_starts(tmp_path: Path, diary: Path) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        supervised(with_diary("silent-at-start", diary, connect_timeout_seconds=NEVER), tmp_path) as server,
    ):
        call = asyncio.create_task(called(server, "hello"))
        await until(lambda: noted(diary)["start"])
        await server.close()
        await asyncio.wait({call})
        assert call.cancelled() or call.exception() or call.result()[0] == "not-started"
        assert (await called(server, "hello"))[0] == "not-started"
    assert noted(diary)["start"] == 1


async def test_a_server_is_closed_while_it_is_called(tmp_path: Path, diary: Path) -> None:
    settings = with_diary("hang", diary, call_timeout_seconds=NEVER)
    async with asyncio.timeout(PATIENCE), supervised(settings, tmp_path) as server:
        call = asyncio.create_task(called(server, "now"))
        await until(lambda: noted(diary)["call"])
        await server.close()
        assert (await call)[0] == "lost"


async def test_a_server_that_was_about_to_be_ended_is_ended_with_the_others(
    tmp_path: Path, diary: Path
) -> None:
    async with supervised(with_diary("close-output", diary), tmp_path) as server:
        assert (await called(server, "now"))[0] == "lost"
        assert running(diary)
    await until(lambda: not running(diary))


def running(diary: Path) -> list[str]:
    """The servers that write this diary."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(diary).encode() in file.read_bytes():
                found.append(file.parent.name)
    return found


FOLLOWED = """
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


def followed(tmp_path: Path, diary: Path) -> McpServer:
    program = tmp_path / "followed.py"
    program.write_text(FOLLOWED)
    return McpServer(command=sys.executable, args=(str(program), str(diary)))


async def test_news_that_nobody_wants_are_not_asked_for_again_although_it_did_not_hear_so(
    tmp_path: Path, diary: Path
) -> None:
    async with supervised(followed(tmp_path, diary), tmp_path) as server:
        await server.ask("resources/subscribe", {"uri": "note://a"})
        with pytest.raises(ServerFailed):
            await server.ask("resources/unsubscribe", {"uri": "note://a"})
        await server.restart()
        await server.ask("resources/subscribe", {"uri": "note://b"})
    assert noted(diary)["start"] >= 2
    assert noted(diary)["note://a"] == 2  # once each way


async def test_a_server_that_ends_while_it_is_asked_for_news_again_is_no_fault_of_ours(
    tmp_path: Path, diary: Path
) -> None:
    async with supervised(followed(tmp_path, diary), tmp_path) as server:
        connection = await server.connection()
        await connection.follow_again(["note://a", "note://fatal", "note://b"], PATIENCE)
    assert noted(diary)["note://fatal"] == 1
    assert noted(diary)["note://b"] == 0


async def test_a_login_that_is_missing_is_no_failure_that_counts(tmp_path: Path) -> None:
    with serving("login") as http:
        async with supervised(at(http.url(), "http"), tmp_path) as server:
            for _ in range(supervisor.MOST_FAILURES + 1):
                assert (await called(server, "hello"))[0] == "needs-login"
            assert server.word == "login"


async def test_what_a_server_says_of_its_secrets_is_not_told(tmp_path: Path) -> None:
    known = {**os.environ, "SERVICE_API_KEY": "open-sesame-42"}
    async with supervised(
        stdio("tell-secret"), tmp_path, environment=known, secrets=["open-sesame-42"]
    ) as server:
        kind, said = await called(server, "now")
    assert kind == "rejected"
    assert "is not valid" in said
    assert "open-sesame-42" not in said


async def test_settings_that_cannot_be_looked_up_are_told_as_they_are(tmp_path: Path) -> None:
    from toolfold.errors import ConfigError

    async def wiring(_server: Supervised) -> Wiring:
        raise ConfigError("the variable TOKEN is not set")

    server = Supervised("some", stdio(), wiring=wiring, publish=lambda *_: None)
    with pytest.raises(NotStarted, match="the variable TOKEN is not set"):
        await server.call("echo", {})
    await server.close()
