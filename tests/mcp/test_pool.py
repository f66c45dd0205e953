"""All servers of a runtime: their tools are there early, and none of them is in another's way."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Opened
from tests.mcp.fault_http import serving
from tests.mcp.faults import entry
from toolfold import Runtime
from toolfold.sources.mcp.lock import LOCK_FILE

PATIENCE = 60.0


def servers(**found: Any) -> dict[str, object]:
    return {"mcp.servers": found, "mcp.wait_seconds": PATIENCE}


def states(runtime: Runtime) -> dict[str, str]:
    return {each.name: each.state for each in runtime.mcp.states()}


def tools(runtime: Runtime) -> set[str]:
    """The tools of servers that a session's next turn could call."""
    return {name for name in runtime.session(["all"]).assemble().offered_names if name.startswith("mcp_")}


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def noted(diary: Path) -> Counter[str]:
    return Counter(diary.read_text().split()) if diary.exists() else Counter()


def test_a_servers_tools_are_called_through_a_session(opened: Opened) -> None:
    runtime = opened(servers(files=entry("", "--tools", "3")))
    assert tools(runtime) == {"mcp_files_echo", "mcp_files_tool_2", "mcp_files_tool_3"}
    session = runtime.session(["mcp-files"])
    assert json.loads(session.call_sync("mcp_files_echo", {"text": "hello"}).text) == {"result": "hello"}
    assert json.loads(session.call_sync("mcp__files__echo", {"text": "hello"}).text) == {"result": "hello"}


def test_a_session_that_was_not_granted_a_server_cannot_call_it(opened: Opened, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    runtime = opened(servers(one=entry("", "--diary", str(diary)), other=entry()))
    result = runtime.session(["mcp-other"]).call_sync("mcp_one_echo", {"text": "hello"})
    assert result.error
    assert noted(diary)["call"] == 0


def test_tools_that_were_listed_before_are_there_before_the_server_is(opened: Opened, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    settings = servers(files=entry("", "--diary", str(diary), "--tools", "2"))
    opened(settings).close()
    runtime = opened(settings)
    assert tools(runtime) == {"mcp_files_echo", "mcp_files_tool_2"}
    assert (states(runtime), noted(diary)["start"]) == ({"files": "idle"}, 1)
    assert not runtime.session(["all"]).call_sync("mcp_files_echo", {"text": "hello"}).error
    assert (states(runtime), noted(diary)["start"]) == ({"files": "up"}, 2)


def test_a_tool_that_changed_while_its_server_was_down_is_not_called_even_once(
    opened: Opened, tmp_path: Path
) -> None:
    """The first call starts the server; until then nobody knows of the change."""
    diary, unchanged = tmp_path / "diary", tmp_path / "unchanged"
    settings = servers(files=entry("reworded", "--unless", str(unchanged), "--diary", str(diary)))
    unchanged.touch()
    opened(settings).close()
    unchanged.unlink()
    session = opened(settings).session(["all"])
    assert "mcp_files_echo" in session.assemble().offered_names
    result = session.call_sync("mcp_files_echo", {"text": "hello"})
    assert "waits for review" in (result.error or "")
    assert (noted(diary)["start"], noted(diary)["call"]) == (2, 0)


def test_a_server_with_other_arguments_is_another_server(opened: Opened, tmp_path: Path) -> None:
    opened(servers(files=entry("", "--tools", "2"))).close()
    awake = tmp_path / "awake"
    other = entry("slow-at-start", "--until", str(awake))
    runtime = opened({**servers(files=other), "mcp.wait_seconds": 0})
    assert tools(runtime) == set()
    awake.touch()
    until(lambda: tools(runtime) == {"mcp_files_echo"})


def test_a_kept_listing_that_is_broken_is_as_good_as_none(opened: Opened, home: Path) -> None:
    opened(servers(files=entry())).close()
    kept = list(home.rglob("mcp/files-*.json"))
    assert kept
    for number, file in enumerate(kept):
        file.write_text('{"format": 1, "tools": [' if number % 2 else '{"format": 1, "tools": {"a": []}}')
    assert tools(opened(servers(files=entry()))) == {"mcp_files_echo"}


def test_dead_and_hung_servers_delay_no_other(opened: Opened) -> None:
    hung = {**entry("silent-at-start"), "connect_timeout_seconds": 600}
    settings = servers(dead=entry("crash-at-start"), hung=hung, gone=entry("missing"), well=entry())
    runtime = opened({**settings, "mcp.wait_seconds": 0})
    until(lambda: tools(runtime) == {"mcp_well_echo"})
    session = runtime.session(["all"])
    assert not session.call_sync("mcp_well_echo", {"text": "hello"}).error
    assert states(runtime)["hung"] == "starting"
    until(lambda: states(runtime)["dead"] in ("waiting", "resting", "failed"))
    assert "no database" in next(each.error for each in runtime.mcp.states() if each.name == "dead")


def test_a_call_that_hangs_delays_no_call_of_another_server(opened: Opened, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    hung = {**entry("hang-wholly", "--diary", str(diary)), "call_timeout_seconds": 600}
    runtime = opened(servers(hung=hung, well=entry()))
    session = runtime.session(["all"])

    async def both() -> Any:
        waiting = asyncio.create_task(session.call("mcp_hung_echo", {"text": "now"}))
        while not noted(diary)["call"]:  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.01)
        answers = [await session.call("mcp_well_echo", {"text": str(number)}) for number in range(5)]
        assert not waiting.done()
        waiting.cancel()
        return answers

    assert [each.error for each in asyncio.run(both())] == [None] * 5


def test_opening_waits_no_longer_than_it_is_told_and_for_a_slow_server_only_once(opened: Opened) -> None:
    hung = {**entry("silent-at-start"), "connect_timeout_seconds": 600}
    settings = {**servers(hung=hung), "mcp.wait_seconds": 0.2}
    opened(settings).close()
    began = time.monotonic()
    opened({**settings, "mcp.wait_seconds": 60}).close()
    assert time.monotonic() - began < 60  # it did not wait for it again


def test_a_server_that_arrives_late_appears_in_the_next_turn_and_not_in_this_one(
    opened: Opened, tmp_path: Path
) -> None:
    awake = tmp_path / "awake"
    late = entry("slow-at-start", "--until", str(awake))
    runtime = opened({**servers(files=late), "mcp.wait_seconds": 0})
    session = runtime.session(["all"])
    before = session.assemble()
    assert "mcp_files_echo" not in before.offered_names
    awake.touch()
    until(lambda: "mcp_files_echo" in session.assemble().offered_names)
    assert "mcp_files_echo" not in before.offered_names


def test_a_changed_list_shows_in_the_next_turn_and_not_in_this_one(opened: Opened) -> None:
    runtime = opened(servers(files={**entry("changing-list"), "trust": "off"}))
    session = runtime.session(["all"])
    before = session.assemble()
    assert not session.call_sync("mcp_files_echo", {"text": "now"}).error
    until(lambda: "mcp_files_arrived_late" in session.assemble().offered_names)
    assert "mcp_files_arrived_late" not in before.offered_names


def test_a_tool_that_arrives_later_is_held_until_a_person_accepts_it(opened: Opened) -> None:
    runtime = opened(servers(files=entry("changing-list")))
    session = runtime.session(["all"])
    session.call_sync("mcp_files_echo", {"text": "now"})
    until(lambda: runtime.mcp.held("files"))
    assert tools(runtime) == {"mcp_files_echo"}
    assert session.call_sync("mcp_files_arrived_late", {"text": "hello"}).error
    runtime.mcp.trust.accept("files", [held.offer for held in runtime.mcp.held("files")])
    runtime.mcp.reviewed("files")
    assert not session.call_sync("mcp_files_arrived_late", {"text": "hello"}).error


def test_a_suspicious_tool_is_held_from_the_start_and_is_neither_listed_nor_callable(opened: Opened) -> None:
    runtime = opened(servers(files=entry("poisoned-tool")))
    assert [held.why for held in runtime.mcp.held("files")] == ["flagged"]
    assert tools(runtime) == {"mcp_files_echo"}
    assert runtime.session(["all"]).call_sync("mcp_files_helper", {"text": "hello"}).error
    assert next(iter(runtime.mcp.states())).held == 1


def test_calls_are_refused_once_the_lock_file_was_changed_by_another_program(
    opened: Opened, home: Path, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    runtime = opened(servers(files=entry("", "--diary", str(diary))))
    session = runtime.session(["all"])
    [lock] = home.rglob(LOCK_FILE)
    content = json.loads(lock.read_text())
    content["servers"]["files"]["tools"] = {}
    lock.write_text(json.dumps(content))
    result = session.call_sync("mcp_files_echo", {"text": "hello"})
    assert "the lock file was changed, and not by Toolfold" in (result.error or "")
    assert "toolfold config accept" in (result.error or "")
    assert noted(diary)["call"] == 0


@pytest.mark.parametrize("content", ["", "{", "<<<<<<< HEAD", '{"version": 99, "servers": {}}'])
def test_nothing_is_used_while_the_lock_cannot_be_read(opened: Opened, home: Path, content: str) -> None:
    settings = servers(files=entry())
    opened(settings).close()
    [lock] = home.rglob(LOCK_FILE)
    lock.write_text(content)
    runtime = opened(settings)
    assert tools(runtime) == set()
    assert runtime.session(["all"]).call_sync("mcp_files_echo", {"text": "hello"}).error
    assert lock.read_text() == content  # what a person must look at is not written over


def test_a_lock_that_breaks_later_stops_the_next_call(opened: Opened, home: Path, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    runtime = opened(servers(files=entry("", "--diary", str(diary))))
    [lock] = home.rglob(LOCK_FILE)
    lock.write_text("{")
    assert runtime.session(["all"]).call_sync("mcp_files_echo", {"text": "hello"}).error
    assert noted(diary)["call"] == 0


def test_a_server_knows_what_is_harmless_or_named_and_no_more(
    opened: Opened, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "a-secret-of-ours")
    runtime = opened(servers(files={**entry("tell-environment"), "env": {"NAMED": "yes"}}))
    answer = runtime.session(["all"]).call_sync("mcp_files_echo", {"text": "now"})
    known = json.loads(answer.text)
    known = (
        json.loads(known["result"]) if isinstance(known.get("result"), str) else known.get("result", known)
    )
    assert known["NAMED"] == "yes"
    assert known["HOME"] == str(home)
    assert "SOME_API_KEY" not in known
    assert set(known) <= {
        "NAMED",
        "HOME",
        "PATH",
        "TOOLFOLD_SERVER",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "LC_CTYPE",
    }


def test_the_error_of_a_server_tells_no_secret_it_was_given(opened: Opened) -> None:
    secret = {"SERVICE_API_KEY": "open-sesame-42"}
    runtime = opened(servers(files={**entry("tell-secret"), "env": secret}))
    result = runtime.session(["all"]).call_sync("mcp_files_echo", {"text": "now"})
    assert "is not valid" in (result.error or "")
    assert "open-sesame-42" not in result.text + (result.error or "")


def test_an_error_of_a_server_reaches_the_model_with_what_to_do(opened: Opened) -> None:
    runtime = opened(servers(files=entry("crash")))
    result = runtime.session(["all"]).call_sync("mcp_files_echo", {"text": "now"})
    assert "out of cheese" in (result.error or "")
    assert "may or may not have taken effect" in (result.error or "")
    assert json.loads(result.text)["error"]


def test_servers_over_every_transport_work_beside_each_other(opened: Opened) -> None:
    with serving() as http:
        found = {"web": {"url": http.url()}, "old": {"url": http.url("sse"), "transport": "sse"}}
        runtime = opened(servers(**found, local=entry()))
        session = runtime.session(["all"])
        for name in ("web", "old", "local"):
            result = session.call_sync(f"mcp_{name}_echo", {"text": name})
            assert json.loads(result.text) == {"result": name}
        runtime.close()


def test_only_what_is_wanted_of_a_server_is_used(opened: Opened) -> None:
    wanted = {**entry("", "--tools", "4"), "include": ["tool_*"], "exclude": ["*_3"]}
    assert tools(opened(servers(files=wanted))) == {"mcp_files_tool_2", "mcp_files_tool_4"}


def test_a_server_that_is_switched_off_is_not_started(opened: Opened, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    runtime = opened(servers(files={**entry("", "--diary", str(diary)), "enabled": False}))
    assert (states(runtime), noted(diary)) == ({}, Counter())


def test_closing_ends_every_server_however_it_fares(opened: Opened, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    names = ("", "deaf-to-closing", "silent-at-start", "grandchild")
    found = {f"s{number}": entry(fault, "--diary", str(diary)) for number, fault in enumerate(names)}
    runtime = opened({**servers(**found), "mcp.wait_seconds": 0})
    until(lambda: noted(diary)["start"] == len(names))
    runtime.close()
    runtime.close()
    until(lambda: not of_the_test(str(diary)))


def of_the_test(word: str) -> list[str]:
    """The processes whose command has this word in it."""
    found = []
    for pid in Path("/proc").glob("[0-9]*"):
        try:
            command = (pid / "cmdline").read_bytes()
        except OSError:
            continue
        if word.encode() in command:
            found.append(pid.name)
    return found


def test_a_call_after_the_end_says_so(opened: Opened) -> None:
    runtime = opened(servers(files=entry()))
    session = runtime.session(["all"])
    runtime.close()
    assert session.call_sync("mcp_files_echo", {"text": "hello"}).error


def test_a_runtime_without_servers_starts_no_thread(opened: Opened) -> None:
    opened()
    assert "toolfold-mcp" not in {each.name for each in threading.enumerate()}


def test_a_restart_brings_what_the_server_offers_now(opened: Opened, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    runtime = opened(servers(files=entry("crash-at-start", "--unless", str(mended))))
    assert tools(runtime) == set()
    mended.touch()
    runtime.mcp.restart("files")
    assert tools(runtime) == {"mcp_files_echo"}
