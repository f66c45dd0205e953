"""MCP servers are added, removed and changed while a runtime is open."""

from __future__ import annotations

import concurrent.futures
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RuntimeOpener
from tests.mcp.faults import server_entry
from toolfold import ConfigError, Runtime
from toolfold.core.events import ConfigReloaded, Event

TIMEOUT_S = 60.0


def open_with_servers(open_test_runtime: RuntimeOpener, **servers: Any) -> Runtime:
    return open_test_runtime({"mcp.servers": servers, "mcp.wait_seconds": TIMEOUT_S})


def server_tools(runtime: Runtime) -> set[str]:
    """Return the MCP tools that a session's next turn could call."""
    return {name for name in runtime.session(["all"]).assemble().offered_names if name.startswith("mcp_")}


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.02)


def starts(diary: Path) -> int:
    return diary.read_text().split().count("start") if diary.exists() else 0


def collect_changes(runtime: Runtime) -> list[str]:
    changes: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, ConfigReloaded):
            changes.extend(event.changes)

    runtime.events.subscribe(listen)
    return changes


def test_next_turn_of_a_session_offers_the_tools_of_a_server_added_to_the_open_runtime(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_with_servers(open_test_runtime, one=server_entry())
    session = runtime.session()
    assert "mcp_two_echo" not in session.assemble().offered_names
    changes = collect_changes(runtime)
    runtime.mcp.add("two", server_entry())
    assert "mcp_two_echo" in session.assemble().offered_names
    assert session.call_sync("mcp_two_echo", {"text": "hello"}).value == "hello"
    assert changes == ["mcp.servers.two added"]


def test_session_limited_to_one_server_cannot_call_tools_of_a_server_added_later(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_with_servers(open_test_runtime, one=server_entry())
    session = runtime.session(["mcp-one"])
    runtime.mcp.add("two", server_entry())
    assert "mcp_two_echo" not in session.assemble().offered_names
    assert session.call_sync("mcp_two_echo", {"text": "hello"}).error


def test_server_can_be_added_with_the_settings_object_of_another_server(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_with_servers(open_test_runtime, one=server_entry())
    runtime.mcp.add("copy", runtime.config.mcp.servers["one"])
    assert server_tools(runtime) == {"mcp_one_echo", "mcp_copy_echo"}


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("two", {"command": "x", "url": "http://localhost"}, "either command"),
        ("two", {"commando": "x"}, "did you mean command"),
        ("a server", {"command": "x"}, "cannot be the name of a server"),
    ],
)
def test_adding_a_server_with_invalid_settings_to_an_open_runtime_raises_config_error(
    open_test_runtime: RuntimeOpener, name: str, settings: dict[str, Any], message: str
) -> None:
    runtime = open_with_servers(open_test_runtime, one=server_entry())
    with pytest.raises(ConfigError, match=message):
        runtime.mcp.add(name, settings)
    assert list(runtime.mcp.servers) == ["one"]


def test_adding_a_server_raises_config_error_if_the_setting_mcp_enabled_is_false(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime({"mcp.enabled": False})
    with pytest.raises(ConfigError, match="MCP servers are disabled"):
        runtime.mcp.add("one", server_entry())


def test_adding_a_server_that_cannot_start_does_not_affect_tools_of_running_servers(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_with_servers(open_test_runtime, one=server_entry())
    runtime.mcp.add("dead", server_entry("crash-at-start"))
    states = {each.name: each for each in runtime.mcp.states()}
    assert "no database" in states["dead"].error
    assert runtime.session().call_sync("mcp_one_echo", {"text": "hello"}).value == "hello"


def test_removing_a_server_from_an_open_runtime_stops_its_process_and_removes_its_tools(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    entry = {
        "command": "/bin/sh",
        "args": ["-c", f'echo $$ > {pid_file}; exec "$0" "$@"', *_command_line(server_entry())],
    }
    runtime = open_with_servers(open_test_runtime, one=server_entry(), two=entry)
    session, changes = runtime.session(), collect_changes(runtime)
    session.assemble()
    assert runtime.mcp.remove("two")
    assert changes == ["mcp.servers.two removed"]
    assert "was removed or disabled" in (session.call_sync("mcp_two_echo", {"text": "hello"}).error or "")
    assert "mcp_two_echo" not in session.assemble().offered_names
    wait_until(lambda: not _is_running(int(pid_file.read_text())))
    assert session.call_sync("mcp_one_echo", {"text": "hello"}).value == "hello"
    assert not runtime.mcp.remove("two")


def test_removing_a_server_does_not_interrupt_a_call_in_progress(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    diary, until = tmp_path / "diary", tmp_path / "until"
    slow = server_entry("slow", "--until", str(until), "--diary", str(diary))
    runtime = open_with_servers(open_test_runtime, slow=slow)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        call = pool.submit(runtime.session().call_sync, "mcp_slow_echo", {"text": "now"})
        wait_until(lambda: "call" in diary.read_text())
        runtime.mcp.remove("slow")
        assert server_tools(runtime) == set()
        assert not call.done()
        until.touch()
        result = call.result(TIMEOUT_S)
    assert result.ok, result.error


def test_closing_the_runtime_ends_a_hanging_call_to_a_removed_server(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    slow = server_entry("slow", "--until", str(tmp_path / "never"), "--diary", str(diary))
    runtime = open_with_servers(open_test_runtime, slow=slow)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        call = pool.submit(runtime.session().call_sync, "mcp_slow_echo", {"text": "now"})
        wait_until(lambda: "call" in diary.read_text())
        runtime.mcp.remove("slow")
        runtime.mcp.close()
        assert call.result(TIMEOUT_S).error


def test_tool_excluded_by_a_changed_setting_is_removed_without_a_restart_of_its_server(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    entry = server_entry("", "--tools", "3", "--diary", str(diary))
    runtime = open_with_servers(open_test_runtime, one=entry)
    session = runtime.session()
    session.assemble()
    runtime.mcp.add("one", {**entry, "exclude": ["tool_2"]})
    assert "has no enabled tool 'tool_2'" in (
        session.call_sync("mcp_one_tool_2", {"text": "hello"}).error or ""
    )
    assert server_tools(runtime) == {"mcp_one_echo", "mcp_one_tool_3"}
    assert session.call_sync("mcp_one_echo", {"text": "hello"}).value == "hello"
    assert starts(diary) == 1


def test_changing_the_command_of_a_server_restarts_only_that_server(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    other = server_entry("", "--diary", str(diary))
    runtime = open_with_servers(open_test_runtime, one=server_entry(), other=other)
    runtime.session().call_sync("mcp_other_echo", {"text": "hello"})
    runtime.mcp.add("one", {**server_entry("", "--tools", "2"), "trust": "off"})
    assert server_tools(runtime) == {"mcp_one_echo", "mcp_one_tool_2", "mcp_other_echo"}
    assert runtime.session().call_sync("mcp_one_tool_2", {"text": "hello"}).ok
    assert starts(diary) == 1


def test_new_tools_need_a_review_after_the_command_of_their_server_was_changed(
    open_test_runtime: RuntimeOpener,
) -> None:
    """The tools that the user accepted for the server stay pinned when its command changes."""
    runtime = open_with_servers(open_test_runtime, one=server_entry())
    runtime.mcp.add("one", server_entry("", "--tools", "2"))
    assert server_tools(runtime) == {"mcp_one_echo"}
    assert [each.tool.name for each in runtime.mcp.held_tools("one")] == ["tool_2"]


def test_tools_of_a_server_are_removed_if_its_changed_command_cannot_start(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_with_servers(open_test_runtime, one=server_entry())
    runtime.mcp.add("one", server_entry("crash-at-start"))
    wait_until(lambda: server_tools(runtime) == set())


def test_tool_names_do_not_depend_on_whether_the_server_is_added_later_or_configured_at_start(
    open_test_runtime: RuntimeOpener,
) -> None:
    """Servers `a` (tool `b_echo`) and `a_b` (tool `echo`) both claim the name `mcp_a_b_echo`."""
    short, long = server_entry("", "--first", "b_echo"), server_entry()
    runtime = open_with_servers(open_test_runtime, a=short)
    assert server_tools(runtime) == {"mcp_a_b_echo"}
    runtime.mcp.add("a_b", long)
    added_later = server_tools(runtime)
    assert runtime.registry.snapshot()["mcp_a_b_echo"].source.name == "a_b"
    runtime.close()
    assert added_later == server_tools(open_with_servers(open_test_runtime, a=short, a_b=long))


def test_tool_can_be_called_after_its_server_was_removed_and_added_again(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_with_servers(open_test_runtime, one=server_entry())
    for _ in range(3):
        runtime.mcp.remove("one")
        runtime.mcp.add("one", server_entry())
    assert runtime.session().call_sync("mcp_one_echo", {"text": "hello"}).value == "hello"


def test_no_tools_are_registered_for_a_slow_server_that_is_removed_before_it_lists_tools(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    until = tmp_path / "until"
    runtime = open_with_servers(open_test_runtime, one=server_entry())
    slow = server_entry("slow-at-start", "--until", str(until))
    runtime.mcp.add("late", slow, wait_seconds=0)
    runtime.mcp.remove("late")
    until.touch()
    runtime.mcp.add("other", server_entry())
    assert server_tools(runtime) == {"mcp_one_echo", "mcp_other_echo"}


def _command_line(entry: dict[str, Any]) -> list[str]:
    return [entry["command"], *entry["args"]]


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
