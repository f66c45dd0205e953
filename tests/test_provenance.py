"""Processes started by a tool call are detected, whatever they do, and cannot act as the user.

Uses real shells, terminals and daemons, started through a session.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RuntimeOpener
from tests.thorough import thorough_count
from toolfold import ApprovalRequest, Runtime
from toolfold.core.tool_processes import Beacon, find_tool_call

PATIENCE_S = 60.0
PYTHON = shlex.quote(sys.executable)
TOOLFOLD = f"{PYTHON} -m toolfold"


def allow(_request: ApprovalRequest) -> bool:
    return True


@pytest.fixture
def runtime(open_test_runtime: RuntimeOpener) -> Runtime:
    return open_test_runtime(approver=allow)


def run_command(runtime: Runtime, command: str, **args: Any) -> str:
    result = runtime.session(["terminal"]).call_sync("terminal", {"command": command, **args})
    assert result.ok, result.error
    return str(json.loads(result.text)["output"])


def wait_for(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return found


def write_probe(folder: Path) -> tuple[Path, Path]:
    """Write a script that stores how it detects a tool call above it; return it and its output file."""
    answer, probe = folder / "answer.txt", folder / "probe.py"
    probe.write_text(
        f"""import os, sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "src")!r})
from toolfold.core.tool_processes import find_tool_call
with open({str(answer)!r} + ".new", "w") as stream:
    stream.write(find_tool_call() or "UNMARKED")
os.rename({str(answer)!r} + ".new", {str(answer)!r})
"""
    )
    return probe, answer


DETACH = """import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
time.sleep(0.2)  # until its parent is gone
os.execve(sys.argv[1], sys.argv[1:], {})
"""
PTY_SPAWN = "import pty, sys; pty.spawn(sys.argv[1:])"
CLEAN_SUBPROCESS = "import subprocess, sys; subprocess.run(sys.argv[1:], env={}, start_new_session=True)"

LAUNCHERS = {
    "plain": "{probe}",
    "env -i": "env -i {probe}",
    "sh -c": "sh -c {quoted}",
    "script": "script -qc {quoted} /dev/null",
    "script without environment": "env -i script -qc {quoted} /dev/null",
    "setsid": "env -i setsid -w {probe}",
    "setsid in the background": "env -i setsid -f {probe}",
    "nohup": "env -i nohup {probe} >/dev/null 2>&1 & sleep 0.1",
    "double fork": f"{PYTHON} -c {shlex.quote(DETACH)} {{probe}}",
    "xargs": "echo {probe} | env -i xargs env",
    "python with a clean environment": f"{PYTHON} -c {shlex.quote(CLEAN_SUBPROCESS)} {{probe}}",
    "pty.spawn": f"env -i {PYTHON} -c {shlex.quote(PTY_SPAWN)} {{probe}}",
    "su": "env -i su -c {quoted} root",
    "sudo": "env -i sudo -n -u root {probe}",
    "unshare": "env -i unshare --pid --fork --mount-proc {probe}",
    "bubblewrap": "env -i bwrap --bind / / --unshare-pid --proc /proc --dev /dev {probe}",
    "tmux": "env -i TERM=xterm tmux -S {folder}/tmux new -d {quoted}",
    "screen": "env -i HOME={folder} TERM=xterm screen -dm {probe}",
    "expect": "env -i expect -c {expect}",
}
PROGRAMS = {"env -i": "env", "double fork": "", "python with a clean environment": "", "pty.spawn": ""}
PROGRAMS |= {"bubblewrap": "bwrap", "plain": "", "sh -c": "sh", "script without environment": "script"}
PROGRAMS |= {"setsid in the background": "setsid"}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_process_started_by_a_tool_call_is_recognised_even_behind_sudo_setsid_and_other_launchers(
    runtime: Runtime, tmp_path: Path, launcher: str
) -> None:
    program = PROGRAMS.get(launcher, launcher)
    if program and not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    if launcher in ("su", "sudo", "unshare") and os.getuid():
        pytest.skip("needs root")
    script, answer = write_probe(tmp_path)
    probe = f"{PYTHON} {shlex.quote(str(script))}"
    expect = shlex.quote(f"spawn {probe}; expect eof")
    command = LAUNCHERS[launcher]
    for name, value in (
        *(("{probe}", probe), ("{quoted}", shlex.quote(probe))),
        *(("{folder}", shlex.quote(str(tmp_path))), ("{expect}", expect)),
    ):
        command = command.replace(name, value)
    output = run_command(runtime, command)
    wait_for(lambda: answer.exists() or "denied" in output or "not permitted" in output)
    if not answer.exists():
        pytest.skip(f"not allowed on this machine: {output.strip()[-200:]}")
    assert answer.read_text() != "UNMARKED"


def test_orphaned_process_without_environment_is_attributed_to_a_tool_call_by_memory_limit(
    runtime: Runtime, tmp_path: Path
) -> None:
    """An orphan in its own session without environment is identified by its memory limit only."""
    script, answer = write_probe(tmp_path)
    run_command(runtime, f"{PYTHON} -c {shlex.quote(DETACH)} {PYTHON} {shlex.quote(str(script))}")
    wait_for(answer.exists)
    assert "ulimit -Hm" in answer.read_text()


async def test_detached_child_process_of_an_mcp_server_is_recognised_as_started_by_the_runtime(
    tmp_path: Path,
) -> None:
    from toolfold.mcp.server_process import ServerLog, start_server
    from toolfold.safety.redaction import Redaction

    script, answer = write_probe(tmp_path)
    probe = [sys.executable, "-c", DETACH, sys.executable, str(script)]
    log = ServerLog(tmp_path / "server.log", Redaction())
    child = await start_server(
        "some", "env", ["-i", *probe], environment={"PATH": os.environ["PATH"]}, cwd=tmp_path, log=log
    )
    try:
        await asyncio.to_thread(wait_for, answer.exists)
    finally:
        await child.close()
    assert "ulimit -Hm" in answer.read_text()


def test_process_started_by_a_tool_call_is_recognised_even_if_it_lowers_its_memory_limit(
    runtime: Runtime, tmp_path: Path
) -> None:
    script, answer = write_probe(tmp_path)
    probe = f"{PYTHON} -c {shlex.quote(DETACH)} {PYTHON} {shlex.quote(str(script))}"
    run_command(runtime, f"sh -c {shlex.quote(f'ulimit -m 100000000; {probe}')}")
    wait_for(answer.exists)
    assert "limit on resident memory" in answer.read_text()


def test_process_unrelated_to_the_runtime_is_not_attributed_to_a_tool_call(tmp_path: Path) -> None:
    script, answer = write_probe(tmp_path)
    subprocess.run([sys.executable, str(script)], check=True, env={})
    assert answer.read_text() == "UNMARKED"
    assert find_tool_call() == ""


def test_child_process_of_a_process_with_an_open_runtime_is_attributed_to_a_tool_call(
    tmp_path: Path,
) -> None:
    """Tools that start processes themselves do not mark them, but the runtime is an ancestor."""
    script, answer = write_probe(tmp_path)
    beacon = Beacon()
    try:
        subprocess.run(["sh", "-c", f"{PYTHON} {shlex.quote(str(script))}; :"], check=True, env={})
    finally:
        beacon.close()
    assert "holds an open runtime" in answer.read_text()
    subprocess.run([sys.executable, str(script)], check=True, env={})
    assert answer.read_text() == "UNMARKED"


def test_ancestors_of_a_process_are_read_with_ps_on_systems_without_a_proc_filesystem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("ps"):
        pytest.skip("ps is not installed")
    monkeypatch.setattr("toolfold.core.tool_processes._PROC", tmp_path / "nothing")
    sleeping = ["sh", "-c", "sleep 60; :"]
    with subprocess.Popen(
        sleeping, env={**os.environ, "TOOLFOLD_RUN": "x"}, start_new_session=True
    ) as parent:
        try:
            child = wait_for(lambda: _child_of(parent.pid))
            assert "TOOLFOLD_RUN" in find_tool_call(child)
        finally:
            os.killpg(parent.pid, 9)
    assert find_tool_call(os.getppid()) == ""


def _child_of(pid: int) -> int:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found[0]) if found else 0


ADMINISTRATION = [
    "config set approval.mode off",
    "config unset approval.mode",
    "config edit",
    "config accept --yes",
    "config restore --yes",
    "approvals revoke --all",
    "approvals allow terminal",
    "token add intruder",
    "token revoke somebody",
    "credentials set server TOKEN",
    "store copy",
    "credentials list",
    "credentials remove server",
    "credentials generate-key",
    "credentials rotate-key",
    "user add intruder",
    "user list",
    "user show somebody",
    "user disable somebody",
    "user enable somebody",
    "user remove somebody --yes",
    "user set somebody --admin",
    "user allow somebody terminal",
    "user deny somebody terminal",
    "user unset somebody --all",
    "user explain somebody terminal",
    "user limit somebody --calls-per-day 5",
    "team limit some --calls-per-day 5",
    "team allow some terminal",
    "team deny some terminal",
    "team unset some --all",
    "team add intruders",
    "team list",
    "team show some",
    "team set some --share-learned on",
    "team remove some --yes",
    "team join some somebody",
    "team leave some somebody",
    "env shell",
    "plugins new weather",
    "plugins trust .",
    "plugins untrust .",
    "tools enable terminal",
    "tools disable terminal",
    "tools from-openapi pets.json --yes",
    "tools remove-api pets",
    "mcp add other -- true",
    "mcp import --yes",
    "mcp remove some",
    "mcp enable some",
    "mcp disable some tool",
    "mcp set some trust off",
    "mcp review --yes",
    "mcp login some",
    "mcp logout some",
    "connect cursor --yes",
    "connect aider --proxy --yes",
    "chat",
    "enrich --estimate",
    "learned list",
    "learned forget --all",
    "learned off",
    "learned on",
    "run hello",
    "ui --no-browser",
    "store status",
    "store migrate",
    "store recover",
    "sessions list",
    "skills list",
    "sessions show some",
    "sessions search some",
    "sessions export some",
    "sessions delete some",
    "cron add hourly hello",
    "cron list",
    "cron show some",
    "cron edit some --name other",
    "cron pause some",
    "cron resume some",
    "cron remove some --yes",
    "cron preview hourly",
    "cron run --due",
]


def toolfold_in(home: Path) -> str:
    return f"TOOLFOLD_HOME={shlex.quote(str(home))} HOME={shlex.quote(str(home))} {TOOLFOLD}"


def settings_of(home: Path) -> dict[str, bytes]:
    """Return the content of the files with settings, trusted projects, accepted tools and tokens."""
    return {
        str(each.relative_to(home)): each.read_bytes()
        for each in sorted(home.rglob("*"))
        if each.is_file()
        and each.name in ("config.yaml", "trust.json", "tokens.json", "users.json", "toolfold.lock")
    }


def test_toolfold_commands_that_change_settings_or_access_are_refused_in_a_tool_call(
    runtime: Runtime, home: Path
) -> None:
    (home / "config.yaml").write_text("mcp:\n  servers:\n    some: {command: 'true'}\n")
    before = settings_of(home)
    commands = ADMINISTRATION[:: thorough_count(1, 15)]  # the next test covers the others in this process
    script = "\n".join(f'{toolfold_in(home)} {each} 2>&1; echo "= $?"' for each in commands)
    output = run_command(runtime, script, timeout=300)
    answers = output.split("= 1\n")
    assert len(answers) == len(commands) + 1, output
    for command, answer in zip(commands, answers, strict=False):
        assert "is not allowed here" in answer, (command, answer)
        assert "in your own terminal" in " ".join(answer.split()), (command, answer)
    assert settings_of(home) == before


def test_every_toolfold_command_is_either_refused_or_listed_as_allowed_in_a_tool_call() -> None:
    import click

    from toolfold.cli.app import app
    from toolfold.cli.restrictions import ALLOWED_IN_TOOL_CALLS

    def leaves(command: click.Command, path: str) -> set[str]:
        if not isinstance(command, click.Group):
            return {path}
        context = click.Context(command)
        found = {path} if command.invoke_without_command and path else set()
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            found |= leaves(below, f"{path} {name}".strip())
        return found

    every = leaves(app, "")
    single = ("connect", "chat", "enrich", "run", "ui")
    refused = {" ".join(each.split()[: 1 if each.split()[0] in single else 2]) for each in ADMINISTRATION}
    assert every - ALLOWED_IN_TOOL_CALLS == refused
    assert every >= ALLOWED_IN_TOOL_CALLS


def test_command_group_without_a_subcommand_is_refused_in_a_tool_call_unless_listed_as_allowed() -> None:
    import click

    from toolfold.cli.restrictions import restrict_command
    from toolfold.core.errors import StartedByTool

    @click.group("danger", invoke_without_command=True)
    def danger() -> None:
        raise AssertionError("the group must not run")

    with pytest.raises(StartedByTool):
        restrict_command(danger, "danger", "call-1").main([], standalone_mode=False)


@pytest.mark.thorough
def test_read_only_toolfold_commands_are_allowed_in_a_tool_call(runtime: Runtime, home: Path) -> None:
    own = toolfold_in(home)
    commands = ("config show", "approvals list", "token list", "tools list", "approvals test 'ls'")
    script = "; ".join(f'{own} {each} >/dev/null 2>&1; printf "%s " "$?"' for each in commands)
    assert run_command(runtime, script, timeout=300) == "0 " * len(commands)


PYTHON_ATTEMPTS = {
    "main": "import sys; sys.argv[1:] = ['config', 'set', 'approval.mode', 'off'];"
    " from toolfold.cli import main; main()",
    "set_value": "import toolfold.config as c;"
    " c.set_value(c.locate_paths().user_file, 'approval.mode', 'off')",
    "replace_settings": "import toolfold.config as c;"
    " c.replace_settings(c.locate_paths().user_file, 'approval: {mode: off}')",
    "trust": "import pathlib, toolfold.config as c; c.trust_project(pathlib.Path('.'), c.locate_paths())",
    "tokens": "import toolfold.config as c; from toolfold.serving.gateway.client_tokens import Tokens;"
    " Tokens(c.locate_paths().state_dir / 'gateway' / 'tokens.json').add('x')",
    "allow-list": "import toolfold.config as c; from toolfold.safety.approval.allowlist import AllowList;"
    " AllowList(file=c.locate_paths().user_file).add('rm -rf x')",
}


@pytest.mark.parametrize("attempt", PYTHON_ATTEMPTS)
def test_python_code_run_by_a_tool_call_cannot_change_settings_through_toolfold(
    runtime: Runtime, home: Path, attempt: str
) -> None:
    before = settings_of(home)
    code = shlex.quote(PYTHON_ATTEMPTS[attempt])
    output = run_command(
        runtime, f"env -i TOOLFOLD_HOME={shlex.quote(str(home))} {PYTHON} -c {code} 2>&1", timeout=120
    )
    assert "is not allowed here" in output
    assert settings_of(home) == before


NESTED = json.dumps({"command": "rm -rf nested-target"})


def read_log(home: Path) -> list[dict[str, Any]]:
    file = home / "state" / "approvals.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize("answer", ["y", "o", "a"])
def test_process_of_a_tool_call_cannot_answer_its_own_approval_question(
    runtime: Runtime, home: Path, tmp_path: Path, answer: str
) -> None:
    """The command opens a terminal and types the answer into it."""
    if not shutil.which("script"):
        pytest.skip("script is not installed")
    target = tmp_path / "nested-target"
    target.mkdir()
    nested = f"{toolfold_in(home)} call terminal {shlex.quote(NESTED)}"
    command = (
        f"(sleep 2; echo {answer}; sleep 2; echo {answer}) | script -qec {shlex.quote(nested)} /dev/null"
    )
    output = run_command(runtime, command, timeout=120)
    assert "refused" in output
    assert "Your answer" not in output
    assert target.exists()
    about_it = [each for each in read_log(home) if each["command"] == "rm -rf nested-target"]
    assert [each["by"] for each in about_it] == ["nobody to ask (started by a tool call)"]
    assert not any(each["allowed"] for each in about_it)


def test_runtime_opened_inside_a_tool_call_refuses_risky_calls_without_asking_its_approver(
    runtime: Runtime, home: Path, tmp_path: Path
) -> None:
    """Code in a tool call opens a runtime and approves everything permanently."""
    target = tmp_path / "nested-target"
    target.mkdir()
    code = (
        "import toolfold\n"
        "from toolfold import Answer\n"
        "always = lambda request: Answer.ALWAYS\n"
        "with toolfold.open_runtime(approver=always, toolsets=['terminal']) as runtime:\n"
        "    print(runtime.session().call_sync('terminal', {'command': 'rm -rf nested-target'}).text)\n"
    )
    output = run_command(
        runtime, f"TOOLFOLD_HOME={shlex.quote(str(home))} {PYTHON} -c {shlex.quote(code)} 2>&1", timeout=120
    )
    assert "refused" in output
    assert target.exists()
    about_it = [each for each in read_log(home) if each["command"] == "rm -rf nested-target"]
    assert [each["by"] for each in about_it] == ["nobody to ask (started by a tool call)"]
    assert settings_of(home) == {}


@pytest.mark.thorough
def test_toolfold_call_command_inside_a_tool_call_can_run_a_harmless_command(
    runtime: Runtime, home: Path
) -> None:
    nested = shlex.quote(json.dumps({"command": "echo nested works"}))
    output = run_command(runtime, f"{toolfold_in(home)} call terminal {nested}", timeout=120)
    assert "nested works" in output


def test_toolfold_call_command_inside_a_tool_call_cannot_disable_approval(
    runtime: Runtime, home: Path, tmp_path: Path
) -> None:
    target = tmp_path / "nested-target"
    target.mkdir()
    nested = f"--set approval.mode=off call terminal {shlex.quote(NESTED)} 2>&1"
    output = run_command(runtime, f"TOOLFOLD_APPROVAL__MODE=off {toolfold_in(home)} {nested}", timeout=120)
    assert "refused" in output
    assert target.exists()


def test_command_config_set_run_by_a_process_unrelated_to_the_open_runtime_succeeds(
    runtime: Runtime, home: Path, tmp_path: Path
) -> None:
    """Runs in a process that is no descendant of the runtime."""
    run_command(runtime, "true")
    answer = tmp_path / "answer.txt"
    code = (
        "import os, sys\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "import time\n"
        f"while os.getppid() == {os.getpid()}: time.sleep(0.01)\n"
        "from toolfold.cli.app import run\n"
        "code = run(['config', 'set', 'tools.rag_top_k', '7'])\n"
        f"open({str(answer)!r}, 'w').write(str(code))\n"
    )
    env = {"PATH": os.environ["PATH"], "TOOLFOLD_HOME": str(home)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, cwd=tmp_path)
    wait_for(lambda: answer.exists() and answer.read_text())
    assert answer.read_text() == "0"
    assert "rag_top_k: 7" in (home / "config.yaml").read_text()


def test_find_tool_call_returns_an_empty_string_on_systems_without_resource_limits() -> None:
    code = (
        "import os, sys\n"
        "sys.modules['resource'] = None\n"
        "del os.getuid, os.getsid\n"
        "import toolfold.config\n"
        "from toolfold.core.tool_processes import find_tool_call\n"
        "print(repr(find_tool_call()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.strip() == "''", done.stderr
