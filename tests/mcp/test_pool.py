"""All servers of a runtime: tools are available early, and servers do not affect each other."""

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

from tests.conftest import RuntimeOpener
from tests.mcp.fault_http import serve_in_thread
from tests.mcp.faults import server_entry
from toolfold import Runtime
from toolfold.mcp.lock import LOCK_FILE

TIMEOUT_S = 60.0


def mcp_config(**found: Any) -> dict[str, object]:
    return {"mcp.servers": found, "mcp.wait_seconds": TIMEOUT_S}


def server_states(runtime: Runtime) -> dict[str, str]:
    return {each.name: each.state for each in runtime.mcp.states()}


def callable_tools(runtime: Runtime) -> set[str]:
    """Return the MCP tools that a session's next turn could call."""
    return {name for name in runtime.session(["all"]).assemble().offered_names if name.startswith("mcp_")}


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def diary_lines(diary: Path) -> Counter[str]:
    return Counter(diary.read_text().split()) if diary.exists() else Counter()


def test_session_can_call_the_tools_of_a_configured_mcp_server(open_test_runtime: RuntimeOpener) -> None:
    runtime = open_test_runtime(mcp_config(files=server_entry("", "--tools", "3")))
    assert callable_tools(runtime) == {"mcp_files_echo", "mcp_files_tool_2", "mcp_files_tool_3"}
    session = runtime.session(["mcp-files"])
    assert json.loads(session.call_sync("mcp_files_echo", {"text": "hello"}).text) == {"result": "hello"}
    assert json.loads(session.call_sync("mcp__files__echo", {"text": "hello"}).text) == {"result": "hello"}


def test_call_of_a_tool_outside_the_toolsets_of_the_session_does_not_reach_the_server(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    runtime = open_test_runtime(mcp_config(one=server_entry("", "--diary", str(diary)), other=server_entry()))
    result = runtime.session(["mcp-other"]).call_sync("mcp_one_echo", {"text": "hello"})
    assert result.error
    assert diary_lines(diary)["call"] == 0


def test_tools_listed_in_an_earlier_run_are_available_before_their_server_starts(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    settings = mcp_config(files=server_entry("", "--diary", str(diary), "--tools", "2"))
    open_test_runtime(settings).close()
    runtime = open_test_runtime(settings)
    assert callable_tools(runtime) == {"mcp_files_echo", "mcp_files_tool_2"}
    assert (server_states(runtime), diary_lines(diary)["start"]) == ({"files": "idle"}, 1)
    assert not runtime.session(["all"]).call_sync("mcp_files_echo", {"text": "hello"}).error
    assert (server_states(runtime), diary_lines(diary)["start"]) == ({"files": "up"}, 2)


def test_call_of_a_tool_that_changed_since_the_last_run_is_refused_until_reviewed(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    """The first call starts the server; the change is not known before that."""
    diary, unchanged = tmp_path / "diary", tmp_path / "unchanged"
    settings = mcp_config(files=server_entry("reworded", "--unless", str(unchanged), "--diary", str(diary)))
    unchanged.touch()
    open_test_runtime(settings).close()
    unchanged.unlink()
    session = open_test_runtime(settings).session(["all"])
    assert "mcp_files_echo" in session.assemble().offered_names
    result = session.call_sync("mcp_files_echo", {"text": "hello"})
    assert "must be reviewed first" in (result.error or "")
    assert (diary_lines(diary)["start"], diary_lines(diary)["call"]) == (2, 0)


def test_cached_tool_list_is_not_used_after_the_arguments_of_the_server_changed(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    open_test_runtime(mcp_config(files=server_entry("", "--tools", "2"))).close()
    awake = tmp_path / "awake"
    other = server_entry("slow-at-start", "--until", str(awake))
    runtime = open_test_runtime({**mcp_config(files=other), "mcp.wait_seconds": 0})
    assert callable_tools(runtime) == set()
    awake.touch()
    wait_until(lambda: callable_tools(runtime) == {"mcp_files_echo"})


def test_tools_of_a_server_are_listed_again_if_the_tool_list_cache_file_is_damaged(
    open_test_runtime: RuntimeOpener, home: Path
) -> None:
    open_test_runtime(mcp_config(files=server_entry())).close()
    kept = list(home.rglob("mcp/files-*.json"))
    assert kept
    for number, file in enumerate(kept):
        file.write_text('{"format": 1, "tools": [' if number % 2 else '{"format": 1, "tools": {"a": []}}')
    assert callable_tools(open_test_runtime(mcp_config(files=server_entry()))) == {"mcp_files_echo"}


def test_tools_of_a_working_server_are_available_while_other_servers_crash_or_hang_at_start(
    open_test_runtime: RuntimeOpener,
) -> None:
    hung = {**server_entry("silent-at-start"), "connect_timeout_seconds": 600}
    settings = mcp_config(
        dead=server_entry("crash-at-start"), hung=hung, gone=server_entry("missing"), well=server_entry()
    )
    runtime = open_test_runtime({**settings, "mcp.wait_seconds": 0})
    wait_until(lambda: callable_tools(runtime) == {"mcp_well_echo"})
    session = runtime.session(["all"])
    assert not session.call_sync("mcp_well_echo", {"text": "hello"}).error
    assert server_states(runtime)["hung"] == "starting"
    wait_until(lambda: server_states(runtime)["dead"] in ("waiting", "resting", "failed"))
    assert "no database" in next(each.error for each in runtime.mcp.states() if each.name == "dead")


def test_hanging_call_does_not_delay_calls_to_another_server(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    hung = {**server_entry("hang-wholly", "--diary", str(diary)), "call_timeout_seconds": 600}
    runtime = open_test_runtime(mcp_config(hung=hung, well=server_entry()))
    session = runtime.session(["all"])

    async def both() -> Any:
        waiting = asyncio.create_task(session.call("mcp_hung_echo", {"text": "now"}))
        while not diary_lines(diary)["call"]:  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.01)
        answers = [await session.call("mcp_well_echo", {"text": str(number)}) for number in range(5)]
        assert not waiting.done()
        waiting.cancel()
        return answers

    assert [each.error for each in asyncio.run(both())] == [None] * 5


def test_second_runtime_does_not_wait_for_a_server_that_started_too_slowly_in_the_first_runtime(
    open_test_runtime: RuntimeOpener,
) -> None:
    hung = {**server_entry("silent-at-start"), "connect_timeout_seconds": 600}
    settings = {**mcp_config(hung=hung), "mcp.wait_seconds": 0.2}
    open_test_runtime(settings).close()
    started = time.monotonic()
    open_test_runtime({**settings, "mcp.wait_seconds": 60}).close()
    assert time.monotonic() - started < 60  # it was not waited for again


def test_tools_of_a_server_that_starts_slowly_are_offered_in_a_later_turn_of_the_session(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    awake = tmp_path / "awake"
    late = server_entry("slow-at-start", "--until", str(awake))
    runtime = open_test_runtime({**mcp_config(files=late), "mcp.wait_seconds": 0})
    session = runtime.session(["all"])
    before = session.assemble()
    assert "mcp_files_echo" not in before.offered_names
    awake.touch()
    wait_until(lambda: "mcp_files_echo" in session.assemble().offered_names)
    assert "mcp_files_echo" not in before.offered_names


def test_tool_that_a_server_adds_during_a_call_is_offered_in_a_later_turn_of_the_session(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime(mcp_config(files={**server_entry("changing-list"), "trust": "off"}))
    session = runtime.session(["all"])
    before = session.assemble()
    assert not session.call_sync("mcp_files_echo", {"text": "now"}).error
    wait_until(lambda: "mcp_files_arrived_late" in session.assemble().offered_names)
    assert "mcp_files_arrived_late" not in before.offered_names


def test_tool_added_by_a_server_after_its_first_listing_is_unusable_until_a_person_accepts_it(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime(mcp_config(files=server_entry("changing-list")))
    session = runtime.session(["all"])
    session.call_sync("mcp_files_echo", {"text": "now"})
    wait_until(lambda: runtime.mcp.held_tools("files"))
    assert callable_tools(runtime) == {"mcp_files_echo"}
    assert session.call_sync("mcp_files_arrived_late", {"text": "hello"}).error
    runtime.mcp.trust.accept("files", [held.tool for held in runtime.mcp.held_tools("files")])
    runtime.mcp.publish_reviewed("files")
    assert not session.call_sync("mcp_files_arrived_late", {"text": "hello"}).error


def test_tool_with_a_prompt_injection_is_neither_listed_nor_callable_before_review(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime(mcp_config(files=server_entry("poisoned-tool")))
    assert [held.reason for held in runtime.mcp.held_tools("files")] == ["flagged"]
    assert callable_tools(runtime) == {"mcp_files_echo"}
    assert runtime.session(["all"]).call_sync("mcp_files_helper", {"text": "hello"}).error
    assert next(iter(runtime.mcp.states())).held == 1


def test_call_is_refused_after_a_program_other_than_toolfold_changed_the_lock_file(
    open_test_runtime: RuntimeOpener, home: Path, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    runtime = open_test_runtime(mcp_config(files=server_entry("", "--diary", str(diary))))
    session = runtime.session(["all"])
    [lock] = home.rglob(LOCK_FILE)
    content = json.loads(lock.read_text())
    content["servers"]["files"]["tools"] = {}
    lock.write_text(json.dumps(content))
    result = session.call_sync("mcp_files_echo", {"text": "hello"})
    assert "the lock file was changed by a program other than Toolfold" in (result.error or "")
    assert "toolfold config accept" in (result.error or "")
    assert diary_lines(diary)["call"] == 0


@pytest.mark.parametrize("content", ["", "{", "<<<<<<< HEAD", '{"version": 99, "servers": {}}'])
def test_tools_of_a_server_are_unusable_while_its_lock_file_is_invalid(
    open_test_runtime: RuntimeOpener, home: Path, content: str
) -> None:
    settings = mcp_config(files=server_entry())
    open_test_runtime(settings).close()
    [lock] = home.rglob(LOCK_FILE)
    lock.write_text(content)
    runtime = open_test_runtime(settings)
    assert callable_tools(runtime) == set()
    assert runtime.session(["all"]).call_sync("mcp_files_echo", {"text": "hello"}).error
    assert lock.read_text() == content  # a file that needs repair is not overwritten


def test_tool_call_is_refused_if_the_lock_file_becomes_invalid_while_the_runtime_is_open(
    open_test_runtime: RuntimeOpener, home: Path, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    runtime = open_test_runtime(mcp_config(files=server_entry("", "--diary", str(diary))))
    [lock] = home.rglob(LOCK_FILE)
    lock.write_text("{")
    assert runtime.session(["all"]).call_sync("mcp_files_echo", {"text": "hello"}).error
    assert diary_lines(diary)["call"] == 0


def test_server_process_receives_configured_environment_variables_but_no_api_keys_of_the_user(
    open_test_runtime: RuntimeOpener, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "a-secret-of-ours")
    runtime = open_test_runtime(
        mcp_config(files={**server_entry("tell-environment"), "env": {"NAMED": "yes"}})
    )
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


def test_secret_from_the_settings_is_redacted_in_the_error_of_a_server_call(
    open_test_runtime: RuntimeOpener,
) -> None:
    secret = {"SERVICE_API_KEY": "open-sesame-42"}
    runtime = open_test_runtime(mcp_config(files={**server_entry("tell-secret"), "env": secret}))
    result = runtime.session(["all"]).call_sync("mcp_files_echo", {"text": "now"})
    assert "is not valid" in (result.error or "")
    assert "open-sesame-42" not in result.text + (result.error or "")


def test_error_of_a_call_that_crashed_the_server_states_that_the_call_may_have_taken_effect(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime(mcp_config(files=server_entry("crash")))
    result = runtime.session(["all"]).call_sync("mcp_files_echo", {"text": "now"})
    assert "out of cheese" in (result.error or "")
    assert "may or may not have taken effect" in (result.error or "")
    assert json.loads(result.text)["error"]


def test_one_session_can_call_tools_of_stdio_and_http_and_sse_servers(
    open_test_runtime: RuntimeOpener,
) -> None:
    with serve_in_thread() as http:
        found = {"web": {"url": http.url()}, "old": {"url": http.url("sse"), "transport": "sse"}}
        runtime = open_test_runtime(mcp_config(**found, local=server_entry()))
        session = runtime.session(["all"])
        for name in ("web", "old", "local"):
            result = session.call_sync(f"mcp_{name}_echo", {"text": name})
            assert json.loads(result.text) == {"result": name}
        runtime.close()


def test_only_tools_allowed_by_the_include_and_exclude_patterns_of_their_server_are_registered(
    open_test_runtime: RuntimeOpener,
) -> None:
    wanted = {**server_entry("", "--tools", "4"), "include": ["tool_*"], "exclude": ["*_3"]}
    assert callable_tools(open_test_runtime(mcp_config(files=wanted))) == {
        "mcp_files_tool_2",
        "mcp_files_tool_4",
    }


def test_server_that_is_disabled_in_the_settings_is_not_started(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    runtime = open_test_runtime(
        mcp_config(files={**server_entry("", "--diary", str(diary)), "enabled": False})
    )
    assert (server_states(runtime), diary_lines(diary)) == ({}, Counter())


def test_closing_the_runtime_ends_all_server_processes_even_if_they_are_starting_or_unresponsive(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    names = ("", "deaf-to-closing", "silent-at-start", "grandchild")
    found = {f"s{number}": server_entry(fault, "--diary", str(diary)) for number, fault in enumerate(names)}
    runtime = open_test_runtime({**mcp_config(**found), "mcp.wait_seconds": 0})
    wait_until(lambda: diary_lines(diary)["start"] == len(names))
    runtime.close()
    runtime.close()
    wait_until(lambda: not find_processes(str(diary)))


def find_processes(word: str) -> list[str]:
    """Return the processes whose command line contains the given word."""
    found = []
    for pid in Path("/proc").glob("[0-9]*"):
        try:
            command = (pid / "cmdline").read_bytes()
        except OSError:
            continue
        if word.encode() in command:
            found.append(pid.name)
    return found


def test_call_to_a_server_after_the_runtime_is_closed_is_refused(open_test_runtime: RuntimeOpener) -> None:
    runtime = open_test_runtime(mcp_config(files=server_entry()))
    session = runtime.session(["all"])
    runtime.close()
    assert session.call_sync("mcp_files_echo", {"text": "hello"}).error


def test_runtime_without_mcp_servers_starts_no_thread_for_mcp(open_test_runtime: RuntimeOpener) -> None:
    open_test_runtime()
    assert "toolfold-mcp" not in {each.name for each in threading.enumerate()}


def test_restarting_a_server_that_failed_to_start_registers_its_tools(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    runtime = open_test_runtime(mcp_config(files=server_entry("crash-at-start", "--unless", str(mended))))
    assert callable_tools(runtime) == set()
    mended.touch()
    runtime.mcp.restart("files")
    assert callable_tools(runtime) == {"mcp_files_echo"}
