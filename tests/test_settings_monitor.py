"""Settings that change during a tool call are detected, reported and not used until accepted."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RuntimeOpener
from toolfold import Answer, ApprovalRequest, ConfigError, Runtime, build_tool
from toolfold.cli.app import run
from toolfold.config import atomic, fingerprints, load_config, set_value
from toolfold.config.monitor import SettingsMonitor, WatchedPath
from toolfold.config.record import PendingChange, SettingsRecord
from toolfold.core.tool_processes import command_limit, is_tool_process
from toolfold.mcp.lock import LockFile
from toolfold.serving.gateway.client_tokens import Tokens

PATIENCE_S = 60.0
PYTHON = shlex.quote(sys.executable)
LOOSE = "approval: {mode: 'off'}\n"


def allow(_request: ApprovalRequest) -> bool:
    return True


def wait_for(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return found


def run_command(runtime: Runtime, command: str) -> str:
    result = runtime.session(["terminal"]).call_sync("terminal", {"command": command})
    assert result.ok, result.error
    return result.text


def pending(home: Path) -> dict[Path, PendingChange]:
    return SettingsRecord(home / "state").list_pending()


def read_log(home: Path) -> list[dict[str, Any]]:
    file = home / "state" / "approvals.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def config_file(home: Path) -> Path:
    file = home / "config.yaml"
    file.write_text("tools: {rag_top_k: 7}\n")
    return file


@pytest.fixture
def runtime(config_file: Path, open_test_runtime: RuntimeOpener) -> Runtime:
    return open_test_runtime(approver=allow)


@pytest.fixture
def toolfold(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run a command line in this process, as the user would in their own terminal."""
    monkeypatch.setenv("TOOLFOLD_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return lambda *words: run(words)


WAYS = {
    "sed": "sed -i 's/7/8/' {file}",
    "redirection": "echo \"approval: {{mode: 'off'}}\" > {file}",
    "python": '{python} -c \'open("{file}", "w").write("approval: {{}}")\'',
    "moved": "echo 'tools: {{rag_top_k: 9}}' > other; mv other {file}",
    "linked": "echo 'tools: {{rag_top_k: 9}}' > other; ln -sf \"$PWD/other\" {file}",
    "deleted": "rm {file}",
    "found": "find {folder} -name 'conf*' | xargs sed -i s/7/8/",
    "with its old times": "cp -p {file} kept; sed -i s/7/8/ {file}; touch -r kept {file}",
}


@pytest.mark.parametrize("way", WAYS)
def test_settings_change_by_a_terminal_command_is_reported_and_not_used_at_the_next_start(
    runtime: Runtime,
    open_test_runtime: RuntimeOpener,
    home: Path,
    config_file: Path,
    way: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    command = WAYS[way].format(file=config_file, folder=home, python=PYTHON)
    result = json.loads(run_command(runtime, command))
    assert "settings were changed while this call ran" in result["notice"]
    assert str(config_file) in result["notice"]
    found = [each for each in read_log(home) if each["by"] == "settings monitor"]
    assert [each["command"] for each in found] == [str(config_file)]
    assert list(pending(home)) == [config_file]
    assert open_test_runtime().config.tools.rag_top_k == 7
    assert "was changed while terminal" in caplog.text
    assert "The settings before the change are used" in caplog.text


@pytest.mark.parametrize("length", [10, 400_000])
def test_notice_of_a_settings_change_is_a_top_level_key_of_short_and_large_results(
    runtime: Runtime, config_file: Path, length: int
) -> None:
    def write_settings(_: Any) -> dict[str, str]:
        config_file.write_text(LOOSE)
        return {"log": "x" * length}

    schema = {"description": "Write."}
    runtime.registry.add(
        build_tool(name="write", toolset="x", schema=schema, handler=write_settings, effects=("write",))
    )
    result = runtime.session(["x"]).call_sync("write", {})
    assert result.ok, result.error
    whole = json.loads(result.whole_text or result.text)
    assert "settings were changed while this call ran" in whole["notice"]
    assert len(json.loads(whole["result"])["log"]) == length


@pytest.mark.parametrize(
    "file", ["toolfold.lock", "state/trust.json", "state/gateway/tokens.json", "plugins/evil.py"]
)
def test_changing_a_lock_file_trust_file_token_file_or_plugin_in_a_call_blocks_the_next_start(
    runtime: Runtime, open_test_runtime: RuntimeOpener, home: Path, file: str
) -> None:
    target = home / file
    run_command(runtime, f"mkdir -p {target.parent}; echo '{{}}' > {target}")
    assert len(pending(home)) == 1
    with pytest.raises(ConfigError, match="toolfold config accept"):
        open_test_runtime()


def test_project_settings_changed_by_a_tool_call_are_reported_but_do_not_block_the_next_start(
    runtime: Runtime,
    open_test_runtime: RuntimeOpener,
    home: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = run_command(runtime, "echo 'tools: {rag_top_k: 3}' > toolfold.yaml")
    assert "settings were changed while this call ran" in text
    open_test_runtime()
    assert "toolfold.yaml were changed while terminal" in caplog.text


def test_result_of_a_call_that_changes_no_settings_contains_no_notice(runtime: Runtime, home: Path) -> None:
    assert "notice" not in json.loads(run_command(runtime, "echo hello > file.txt"))
    assert pending(home) == {}


def test_allowlist_entry_added_by_the_approval_answer_always_is_not_reported_as_a_change(
    config_file: Path, open_test_runtime: RuntimeOpener, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "old").mkdir()
    runtime = open_test_runtime(approver=lambda _request: Answer.ALWAYS)
    run_command(runtime, "rm -rf old")
    assert "rm -rf old" in config_file.read_text()
    assert pending(home) == {}
    open_test_runtime()


def test_settings_change_by_a_command_of_the_user_during_a_call_is_not_reported(
    open_test_runtime: RuntimeOpener, home: Path, config_file: Path, toolfold: Callable[..., int]
) -> None:
    runtime = open_test_runtime(approver=allow)

    def meanwhile(_args: Any, _context: Any) -> str:
        return str(toolfold("config", "set", "tools.rag_top_k", "9"))

    schema = {"name": "meanwhile", "description": "x", "parameters": {"type": "object", "properties": {}}}
    runtime.registry.add(
        build_tool(name="meanwhile", toolset="x", schema=schema, handler=meanwhile, effects=["execute"])
    )
    assert runtime.session().call_sync("meanwhile", {}).text == '{"result":"0"}'
    assert "9" in config_file.read_text()
    assert pending(home) == {}


def test_command_config_set_does_not_hide_an_earlier_settings_edit_by_another_program(
    home: Path, config_file: Path
) -> None:
    record = SettingsRecord(home / "state")
    monitor = SettingsMonitor([WatchedPath(config_file)], record)
    with monitor.watch_call("a call"):
        config_file.write_text(LOOSE)
        set_value(config_file, "tools.rag_top_k", 3, record=record)
    assert list(pending(home)) == [config_file]


def test_settings_edit_by_the_user_between_calls_is_not_reported(home: Path, config_file: Path) -> None:
    monitor = SettingsMonitor([WatchedPath(config_file)], SettingsRecord(home / "state"))
    with monitor.watch_call("a call"):
        pass
    config_file.write_text(LOOSE)
    with monitor.watch_call("another call") as watch:
        pass
    assert watch.notice == ""
    assert pending(home) == {}


def test_settings_change_by_a_background_process_of_a_finished_call_is_reported(
    runtime: Runtime, home: Path, config_file: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    script = f"until [ -e {go} ]; do sleep 0.05; done; sed -i s/7/8/ {config_file}; touch done; sleep 30"
    run_command(runtime, f"setsid -f sh -c {shlex.quote(script)} >/dev/null 2>&1")
    assert pending(home) == {}
    go.touch()
    wait_for((tmp_path / "done").exists)
    run_command(runtime, "true")
    assert ["running that terminal" in each.during for each in pending(home).values()] == [True]


def test_edit_after_the_end_of_a_process_that_a_call_left_behind_is_the_users_own(
    runtime: Runtime, home: Path, config_file: Path, tmp_path: Path
) -> None:
    go, notes = tmp_path / "go", home / "state" / "settings" / "calls"
    script = f"until [ -e {go} ]; do sleep 0.05; done"
    run_command(runtime, f"setsid -f sh -c {shlex.quote(script)} >/dev/null 2>&1")
    assert len(list(notes.iterdir())) == 1
    go.touch()
    wait_for(lambda: runtime.check_settings() == () and not list(notes.iterdir()))
    config_file.write_text("tools: {rag_top_k: 5}\n")
    assert load_config(env={"TOOLFOLD_HOME": str(home)}).tools.rag_top_k == 5
    assert runtime.check_settings() == ("tools.rag_top_k changed",)
    assert pending(home) == {}


HIDING = {
    "lowered its memory limit": "ulimit -m 1000",
    "took a limit like that of another runtime": "ulimit -m $(((1 << 52) + 1))",
}


@pytest.mark.parametrize("way", HIDING)
def test_settings_change_by_a_detached_process_that_conceals_its_origin_is_reported(
    runtime: Runtime, home: Path, config_file: Path, tmp_path: Path, way: str
) -> None:
    go = tmp_path / "go"
    script = f"until [ -e {go} ]; do sleep 0.05; done; sed -i s/7/8/ {config_file}; touch done"
    run_command(runtime, f"{HIDING[way]}; setsid -f env -i sh -c {shlex.quote(script)} >/dev/null 2>&1")
    go.touch()
    wait_for((tmp_path / "done").exists)
    assert runtime.check_settings() == ()
    assert ["running that terminal" in each.during for each in pending(home).values()] == [True]


CLIENT = "0000000fffff00ab"
LIMITED_PROCESS = (
    "import ctypes, os, resource, sys\n"
    "resource.setrlimit(resource.RLIMIT_RSS, (int(sys.argv[1]),) * 2)\n"
    "ctypes.CDLL(None).prctl(4, 0)\n"  # no memory dumps: its directory in /proc belongs to root
    "print(os.getpid(), flush=True)\n"
    "sys.stdin.read()\n"
)


@pytest.mark.parametrize("limit", [command_limit(CLIENT), command_limit(CLIENT) - 1024, 1 << 20])
def test_process_with_the_memory_limit_of_tool_commands_or_less_is_attributed_to_a_tool_call(
    limit: int,
) -> None:
    command = [sys.executable, "-c", LIMITED_PROCESS, str(limit)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert int(process.stdout.readline()) == process.pid
        assert is_tool_process(CLIENT, process.pid)
        process.stdin.close()
        # Until `wait` is called, the ended process is still listed.
        wait_for(lambda: not is_tool_process(CLIENT, process.pid))


def test_process_started_by_another_runtime_is_not_attributed_to_tool_calls_of_this_runtime() -> None:
    code = (
        "import subprocess, sys\n"
        "from toolfold.core.tool_processes import Beacon\n"
        "beacon = Beacon()\n"
        "subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[2]])\n"
    )
    command = [sys.executable, "-c", code, LIMITED_PROCESS, str(1 << 20)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert not is_tool_process(CLIENT, int(process.stdout.readline()))


def test_settings_change_by_a_tool_call_that_kills_the_runtime_is_reported_at_the_next_start(
    open_test_runtime: RuntimeOpener, home: Path, config_file: Path, tmp_path: Path
) -> None:
    code = (
        "import os, toolfold\n"
        "from toolfold.config import load_config\n"
        f"env = {{'TOOLFOLD_HOME': {str(home)!r}, 'HOME': {str(home)!r}, 'PATH': os.environ['PATH']}}\n"
        "runtime = toolfold.open_runtime(load_config(env=env), approver=lambda request: True)\n"
        f"command = 'sed -i s/7/8/ {config_file}; kill -9 %d' % os.getpid()\n"
        "runtime.session().call_sync('terminal', {'command': command})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={"PATH": os.environ["PATH"]})
    assert done.returncode == -signal.SIGKILL
    assert "8" in config_file.read_text()
    assert open_test_runtime().config.tools.rag_top_k == 7
    assert list(pending(home)) == [config_file]


def test_note_of_a_killed_runtime_is_kept_while_a_process_of_its_commands_is_running(
    open_test_runtime: RuntimeOpener, home: Path, config_file: Path, tmp_path: Path
) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from toolfold.config.monitor import SettingsMonitor, WatchedPath\n"
        "from toolfold.config.record import SettingsRecord\n"
        "watched = [WatchedPath(Path(sys.argv[1]), is_noted=True)]\n"
        "record = SettingsRecord(Path(sys.argv[2]))\n"
        "SettingsMonitor(watched, record, client_id=sys.argv[3]).watch_call('a call').__enter__()\n"
        "os._exit(0)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(config_file), str(home / "state"), CLIENT], cwd=tmp_path, check=True
    )
    command = [sys.executable, "-c", LIMITED_PROCESS, str(command_limit(CLIENT))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert int(process.stdout.readline()) == process.pid
        assert open_test_runtime().config.tools.rag_top_k == 7
        config_file.write_text("tools: {rag_top_k: 8}\n")
        assert open_test_runtime().config.tools.rag_top_k == 7
        config_file.write_text("tools: {rag_top_k: 7}\n")
        process.stdin.close()
    assert open_test_runtime().config.tools.rag_top_k == 7
    assert not list((home / "state" / "settings" / "calls").iterdir())
    config_file.write_text("tools: {rag_top_k: 9}\n")
    assert open_test_runtime().config.tools.rag_top_k == 9, "an edit by the user"


def test_settings_change_while_only_mcp_servers_run_is_reported_but_needs_no_acceptance(
    home: Path, config_file: Path
) -> None:
    reported: list[tuple[str, str]] = []
    monitor = SettingsMonitor(
        [WatchedPath(config_file)],
        SettingsRecord(home / "state"),
        report=lambda path, during: reported.append((path, during)),
        has_servers=lambda: True,
    )
    config_file.write_text(LOOSE)
    with monitor.watch_call("a call"):
        pass
    assert reported == [(str(config_file), "while MCP servers were running and no call was")]
    assert pending(home) == {}


def test_settings_changed_by_a_tool_call_take_effect_after_the_user_runs_the_command_config_accept(
    runtime: Runtime,
    open_test_runtime: RuntimeOpener,
    home: Path,
    config_file: Path,
    toolfold: Callable[..., int],
    capfd: pytest.CaptureFixture[str],
) -> None:
    run_command(runtime, f"sed -i s/7/8/ {config_file}")
    assert toolfold("config", "accept") == 1, "nobody can be asked without a terminal"
    assert list(pending(home)) == [config_file]
    capfd.readouterr()
    assert toolfold("config", "accept", "--yes") == 0
    shown = capfd.readouterr().out
    assert "-tools: {rag_top_k: 7}" in shown
    assert "+tools: {rag_top_k: 8}" in shown
    assert open_test_runtime().config.tools.rag_top_k == 8


def test_command_config_restore_undoes_a_settings_change_of_a_tool_call(
    runtime: Runtime, open_test_runtime: RuntimeOpener, config_file: Path, toolfold: Callable[..., int]
) -> None:
    before = config_file.read_bytes()
    run_command(runtime, f'echo "{LOOSE.strip()}" > {config_file}')
    assert toolfold("config", "restore", "--yes") == 0
    assert config_file.read_bytes() == before
    assert open_test_runtime().config.approval.mode == "manual"


def test_runtime_starts_after_the_user_has_reverted_the_settings_change_of_a_tool_call(
    runtime: Runtime, open_test_runtime: RuntimeOpener, config_file: Path
) -> None:
    before = config_file.read_bytes()
    run_command(runtime, f"rm {config_file}")
    config_file.write_bytes(before)
    open_test_runtime()


def test_command_config_set_is_refused_until_a_settings_change_of_a_tool_call_is_accepted_or_undone(
    runtime: Runtime, config_file: Path, toolfold: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    run_command(runtime, f"sed -i s/7/8/ {config_file}")
    assert toolfold("config", "set", "log_level", "debug") == 3
    assert "toolfold config accept" in " ".join(capfd.readouterr().err.split())
    assert "log_level" not in config_file.read_text()


def test_doctor_reports_settings_changed_by_a_tool_call_and_suggests_config_accept_and_restore(
    runtime: Runtime, config_file: Path, toolfold: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    run_command(runtime, f"sed -i s/7/8/ {config_file}")
    capfd.readouterr()
    assert toolfold("doctor", "--json", "--seconds", "1") == 1
    findings = json.loads(capfd.readouterr().out)["findings"]
    assert [each["next"] for each in findings if "was changed while terminal" in each["what"]] == [
        "run in your own terminal: toolfold config accept, or toolfold config restore"
    ]


def test_gateway_token_written_into_the_token_file_by_another_program_is_refused(home: Path) -> None:
    file = home / "state" / "gateway" / "tokens.json"
    record = SettingsRecord(home / "state")
    running, other = Tokens(file, record), Tokens(home / "other.json")
    assert running.find("tf_nothing") is None
    kept = Tokens(file, record).add("kept")
    assert running.find(kept) is not None
    forged = other.add("forged")
    both = json.loads(file.read_text()) | json.loads((home / "other.json").read_text())
    file.write_text(json.dumps(both))
    assert running.find(forged) is None
    assert running.find(kept) is not None
    file.write_text("{}")
    assert running.find(kept) is None


def test_lock_file_of_accepted_tools_that_another_program_changed_causes_an_error(home: Path) -> None:
    file, record = home / "toolfold.lock", SettingsRecord(home / "state")
    lock = LockFile(file, record)
    assert lock.pins("some") is None
    LockFile(file, record).pin_new_server("some", [])
    assert lock.pins("some") == {}
    file.write_bytes(file.read_bytes().replace(b'"some"', b'"other"'))
    with pytest.raises(ConfigError, match="by a program other than Toolfold"):
        lock.pins("other")


def test_runtime_does_not_start_if_its_settings_record_is_damaged(
    home: Path, open_test_runtime: RuntimeOpener
) -> None:
    folder = home / "state" / "settings"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text("[1, 2")
    with pytest.raises(ConfigError, match="record of changed settings cannot be read"):
        open_test_runtime()
    assert load_config(env={"TOOLFOLD_HOME": str(home)}).approval.mode == "manual"


def test_deleting_the_token_file_does_not_allow_anonymous_clients(home: Path) -> None:
    file, record = home / "state" / "gateway" / "tokens.json", SettingsRecord(home / "state")
    running = Tokens(file, record)
    assert not running.are_in_use()
    token = Tokens(file, record).add("some")
    assert running.find(token) is not None
    assert running.are_in_use()
    file.unlink()
    assert running.are_in_use()
    assert running.find(token) is None
    assert Tokens(file, record).are_in_use(), "a gateway that starts later knows it from the record"


def test_restoring_an_old_token_file_does_not_reactivate_revoked_tokens(home: Path) -> None:
    file, record = home / "state" / "gateway" / "tokens.json", SettingsRecord(home / "state")
    running, user = Tokens(file, record), Tokens(file, record)
    user.add("kept")
    assert running.find("tf_nothing") is None
    revoked = user.add("revoked")
    old = file.read_bytes()
    assert running.find(revoked) is not None
    user.revoke("revoked")
    assert running.find(revoked) is None
    file.write_bytes(old)
    assert running.find(revoked) is None


def test_restoring_an_old_settings_file_during_a_call_is_reported_as_a_change(
    home: Path, config_file: Path
) -> None:
    record = SettingsRecord(home / "state")
    monitor = SettingsMonitor([WatchedPath(config_file)], record)
    set_value(config_file, "tools.rag_top_k", 8, record=record)
    old = config_file.read_bytes()
    set_value(config_file, "tools.rag_top_k", 7, record=record)
    with monitor.watch_call("a call"):
        pass
    with monitor.watch_call("another call") as watch:
        config_file.write_bytes(old)
    assert str(config_file) in watch.notice
    assert list(pending(home)) == [config_file]


def test_settings_change_by_toolfold_in_a_call_is_not_reported_even_without_settings_record(
    home: Path, config_file: Path
) -> None:
    record = SettingsRecord(home / "state")
    set_value(config_file, "tools.rag_top_k", 8, record=record)
    monitor = SettingsMonitor([WatchedPath(config_file)], record)
    (home / "state" / "settings" / "record.json").unlink()
    with monitor.watch_call("a call") as watch:
        set_value(config_file, "tools.rag_top_k", 9, record=record)
    assert watch.notice == ""


def test_lock_file_of_accepted_tools_that_another_program_deleted_causes_an_error(home: Path) -> None:
    file, record = home / "toolfold.lock", SettingsRecord(home / "state")
    lock = LockFile(file, record)
    lock.pin_new_server("some", [])
    file.unlink()
    with pytest.raises(ConfigError, match="by a program other than Toolfold"):
        lock.pins("some")
    with pytest.raises(ConfigError, match="by a program other than Toolfold"):
        lock.pin_new_server("some", [])
    assert not file.exists()


def test_old_lock_file_of_accepted_tools_that_another_program_restored_causes_an_error(
    home: Path,
) -> None:
    file, record = home / "toolfold.lock", SettingsRecord(home / "state")
    lock = LockFile(file, record)
    lock.pin_new_server("kept", [])
    lock.pin_new_server("forgotten", [])
    old = file.read_bytes()
    lock.forget("forgotten")
    file.write_bytes(old)
    with pytest.raises(ConfigError, match="by a program other than Toolfold"):
        lock.pins("forgotten")


@pytest.mark.parametrize("broken", ["record", "report"])
def test_result_contains_the_settings_change_notice_even_if_recording_the_change_fails(
    home: Path, config_file: Path, broken: str
) -> None:
    record = SettingsRecord(home / "state")
    reported: list[str] = []

    def report(path: str, _during: str) -> None:
        reported.append(path)
        if broken == "report":
            raise OSError("no space left")

    monitor = SettingsMonitor([WatchedPath(config_file)], record, report=report)
    with monitor.watch_call("a call", executes=False) as watch:
        config_file.write_text(LOOSE)
        if broken == "record":
            (home / "state" / "settings" / "record.json").mkdir(parents=True)
    assert str(config_file) in watch.notice
    assert reported == [str(config_file)]
    with monitor.watch_call("another call") as watch:
        pass
    assert watch.notice == "", "the call that ended is no longer suspected"


def test_symlinked_plugin_is_monitored_for_changes(home: Path, tmp_path: Path) -> None:
    plugins, elsewhere = home / "plugins", tmp_path / "elsewhere"
    plugins.mkdir()
    elsewhere.mkdir()
    (elsewhere / "__init__.py").write_text("")
    (elsewhere / "itself").symlink_to(elsewhere)
    monitor = SettingsMonitor([WatchedPath(plugins)], SettingsRecord(home / "state"))
    with monitor.watch_call("a call") as linking:
        (plugins / "evil").symlink_to(elsewhere)
    with monitor.watch_call("a call") as writing:
        (elsewhere / "__init__.py").write_text("import os")
    with monitor.watch_call("a call") as idle:
        pass
    assert [bool(each.notice) for each in (linking, writing, idle)] == [True, True, False]


def test_fingerprint_of_a_plugin_directory_changes_if_the_target_of_a_contained_symlink_changes(
    tmp_path: Path,
) -> None:
    for name in ("one", "two", "plugins"):
        (tmp_path / name).mkdir()
    (tmp_path / "plugins" / "some").symlink_to(tmp_path / "one")
    before = fingerprints.fingerprint_path(tmp_path / "plugins")
    assert fingerprints.fingerprint_path(tmp_path / "plugins") == before
    (tmp_path / "plugins" / "some").unlink()
    (tmp_path / "plugins" / "some").symlink_to(tmp_path / "two")
    assert fingerprints.fingerprint_path(tmp_path / "plugins") != before


def test_directory_with_too_many_or_too_large_files_is_always_treated_as_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprints, "MAX_FILES", 2)
    monkeypatch.setattr(fingerprints, "MAX_FILE_BYTES", 10)
    for name in "ab":
        (tmp_path / name).write_text("x" * 10)
    assert fingerprints.fingerprint_path(tmp_path) == fingerprints.fingerprint_path(tmp_path)
    assert fingerprints.stat_signature(tmp_path) == fingerprints.stat_signature(tmp_path)
    (tmp_path / "b").write_text("x" * 11)
    assert fingerprints.fingerprint_path(tmp_path) != fingerprints.fingerprint_path(tmp_path)
    assert fingerprints.fingerprint_path(tmp_path / "b") != fingerprints.fingerprint_path(tmp_path / "b")
    (tmp_path / "b").write_text("x")
    (tmp_path / "c").write_text("x")
    assert fingerprints.fingerprint_path(tmp_path) != fingerprints.fingerprint_path(tmp_path)
    assert fingerprints.stat_signature(tmp_path) != fingerprints.stat_signature(tmp_path)


def test_settings_change_is_reported_even_if_another_process_keeps_the_record_locked(
    home: Path, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "LOCK_TIMEOUT_S", 0.1)
    record = SettingsRecord(home / "state")
    monitor = SettingsMonitor([WatchedPath(config_file)], record)
    record.directory.mkdir(parents=True)
    handle = os.open(record.directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="has locked the directory"):
            set_value(config_file, "tools.rag_top_k", 8, record=record)
        with monitor.watch_call("a call") as watch:
            config_file.write_text(LOOSE)
    finally:
        os.close(handle)
    assert str(config_file) in watch.notice


async def test_changed_settings_files_are_read_outside_the_event_loop_thread(
    open_test_runtime: RuntimeOpener, home: Path, config_file: Path
) -> None:
    threads: list[int] = []
    runtime = open_test_runtime(approver=allow)
    monitor = runtime._dispatch.monitor
    assert monitor is not None
    monitor._report = lambda _path, _during: threads.append(threading.get_ident())
    command = {"command": f"sed -i s/7/8/ {config_file}"}
    result = await runtime.session(["terminal"]).call("terminal", command)
    assert "settings were changed while this call ran" in result.text
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_settings_file_restored_after_its_deletion_by_a_call_is_readable_by_its_owner_only(
    home: Path, config_file: Path
) -> None:
    config_file.chmod(0o600)
    record = SettingsRecord(home / "state")
    monitor = SettingsMonitor([WatchedPath(config_file)], record)
    with monitor.watch_call("a call"):
        config_file.unlink()
    record.restore(pending(home)[config_file])
    assert stat.S_IMODE(config_file.stat().st_mode) == 0o600
    assert pending(home) == {}
    with monitor.watch_call("a call") as watch:
        pass
    assert watch.notice == ""


def test_settings_change_is_not_accepted_if_the_file_changed_again_after_the_diff_was_shown(
    home: Path, config_file: Path
) -> None:
    record = SettingsRecord(home / "state")
    with SettingsMonitor([WatchedPath(config_file)], record).watch_call("a call"):
        config_file.write_text("log_level: debug\n")
    shown = fingerprints.fingerprint_path(config_file)
    config_file.write_text(LOOSE)
    with pytest.raises(ConfigError, match="the file has changed since its content was shown"):
        record.accept(config_file, shown)
    assert list(pending(home)) == [config_file]


def test_command_config_accept_shows_a_diff_with_redacted_secrets_and_the_number_of_omitted_lines(
    home: Path, config_file: Path, toolfold: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "ghp_" + "a1B2" * 9
    with SettingsMonitor([WatchedPath(config_file)], SettingsRecord(home / "state")).watch_call("a call"):
        config_file.write_text(f"log_level: debug # {secret}\n" + "# a line\n" * 300)
    assert toolfold("config", "accept", "--yes") == 0
    shown = capfd.readouterr().out
    assert secret not in shown
    assert "+log_level: debug" in shown
    assert "103 more lines are not shown" in shown


def test_unchanged_or_missing_settings_files_are_checked_without_starting_a_thread(
    home: Path, config_file: Path
) -> None:
    config_file.write_text("{}")
    missing = home / "toolfold.lock"
    monitor = SettingsMonitor(map(WatchedPath, (config_file, missing)), SettingsRecord(home / "state"))
    notes = home / "state" / "settings" / "calls"
    call = monitor.watch_call("a call", executes=False)
    assert call.enter_nowait() is not None
    assert len(list(notes.iterdir())) == 1
    assert call.exit_nowait()
    assert not list(notes.iterdir())


@pytest.mark.parametrize("change", ["changed", "created"])
def test_settings_file_changed_during_a_call_is_read_in_a_thread_and_reported(
    home: Path, config_file: Path, change: str
) -> None:
    config_file.write_text("{}")
    missing = home / "toolfold.lock"
    monitor = SettingsMonitor(map(WatchedPath, (config_file, missing)), SettingsRecord(home / "state"))
    call = monitor.watch_call("a call", executes=False)
    watch = call.enter_nowait()
    assert watch is not None
    path = config_file if change == "changed" else missing
    path.write_text(LOOSE)
    assert not call.exit_nowait()
    call.__exit__()
    assert str(path) in watch.notice
    assert list(pending(home)) == [path]
    assert not monitor.watch_call("a call that executes").enter_nowait()


@pytest.mark.parametrize("kind", ["directory", "link"])
def test_monitored_directories_and_symlinks_are_checked_in_a_thread(
    home: Path, tmp_path: Path, kind: str
) -> None:
    path = home / "watched"
    if kind == "directory":
        path.mkdir()
    else:
        (tmp_path / "target").write_text("")
        path.symlink_to(tmp_path / "target")
    monitor = SettingsMonitor([WatchedPath(path)], SettingsRecord(home / "state"))
    assert monitor.watch_call("a call", executes=False).enter_nowait() is None
