"""Settings that a process of an ended tool call has changed are not used by any program, until accepted."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from tests.cli.scripts import WriteScript, call, write_script
from tests.cli.terminal_driver import ENTER, Terminal
from tests.known_vectors import LIGHT_MODEL
from toolfold import load_config
from toolfold.config import set_value
from toolfold.config.record import SettingsRecord

__all__ = ["write_script"]

TOOLFOLD = str(Path(sys.executable).with_name("toolfold"))
TIMEOUT_S = 60
# Renamed into place: with two owners, a second process writes the file while the first result is read.
LATER = (
    "until [ -e go ]; do sleep 0.05; done; cp weak.yaml weak.$$; mv weak.$$ {file}; touch done; sleep 60\n"
)
WEAK = "approval: {mode: 'off'}\ntools: {rag_top_k: 3}\n"


def wait_for(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


class Place:
    """A project, settings, and a script that changes them when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.project, self.home = folder / "project", folder / "home"
        for each in (self.project, self.home, self.project / "victim"):
            each.mkdir()
        self.config_file = self.home / "config.yaml"
        self.config_file.write_text("tools: {rag_top_k: 7}\n")
        (self.project / "weak.yaml").write_text(WEAK)
        (self.project / "later.sh").write_text(LATER.format(file=self.config_file))
        kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        self.environment = {**kept, "TOOLFOLD_HOME": str(self.home), **LIGHT_MODEL}
        self.leave_process = "setsid -f sh later.sh >/dev/null 2>&1 </dev/null"

    def load(self) -> Any:
        return load_config(project=self.project, env=self.environment)

    def delete_victim(self) -> subprocess.CompletedProcess[str]:
        """Run a command that needs approval, in a program that starts now and in which nobody can answer."""
        arguments = json.dumps({"command": "rm -rf victim ../other"})
        return subprocess.run(
            [TOOLFOLD, "call", "terminal", arguments],
            env=self.environment,
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    def let_process_write(self) -> None:
        (self.project / "go").touch()
        wait_for((self.project / "done").exists)
        assert self.config_file.read_text() == WEAK

    def pending(self) -> list[Path]:
        return list(SettingsRecord(self.home / "state").list_pending())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    (found.project / "go").touch()


OWNER = """
import sys, toolfold
def approve(request):
    return "victim" not in str(request)

with toolfold.open_runtime(user_settings=True, approver=approve) as runtime:
    session = runtime.session(["terminal"])
    for line in sys.stdin:
        print(session.call_sync("terminal", {"command": line.strip()}).ok, flush=True)
"""


@contextmanager
def own_with_library(place: Place) -> Iterator[Callable[[str], bool]]:
    """Open a runtime in a program, and return a function that runs a command there.

    A program of its own: whatever the program with the runtime starts counts as a tool call.
    """
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env=place.environment,
        cwd=place.project,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:

        def run_command(command: str) -> bool:
            assert owner.stdin is not None
            assert owner.stdout is not None
            print(command, file=owner.stdin, flush=True)
            return owner.stdout.readline() == "True\n"

        assert run_command(place.leave_process)
        yield run_command
        (place.project / "go").touch()


@contextmanager
def own_with_chat(place: Place, model: str) -> Iterator[Terminal]:
    command = [TOOLFOLD, "--set", "approval.mode=off", "chat", "--model", model]
    with Terminal(command, env=place.environment, cwd=place.project) as terminal:
        terminal.wait_for_prompt()
        terminal.send("start it")
        terminal.wait_for("It runs.")
        terminal.wait_for_prompt()
        yield terminal


@contextmanager
def own_with_gateway(place: Place) -> Iterator[None]:
    """Keep a gateway open, for a client that has called one tool."""
    arguments = ["--set", "approval.mode=off", "mcp", "serve", "--toolset", "terminal"]
    command = StdioServerParameters(
        command=TOOLFOLD, args=arguments, env=place.environment, cwd=str(place.project)
    )

    async def call_tool() -> None:
        async with Client(command) as client:
            result = await client.call_tool("terminal", {"command": place.leave_process})
            assert not result.is_error
            called.set()
            await leave.wait()

    loop, called, leave = asyncio.new_event_loop(), asyncio.Event(), asyncio.Event()
    task = loop.create_task(call_tool())
    try:
        loop.run_until_complete(
            asyncio.wait([task, loop.create_task(called.wait())], return_when=asyncio.FIRST_COMPLETED)
        )
        assert called.is_set()
        yield
    finally:
        leave.set()
        loop.run_until_complete(task)
        loop.close()


@pytest.fixture(params=["library", "chat", "gateway", "library and chat"])
def open_owner(
    request: pytest.FixtureRequest, place: Place, write_script: WriteScript
) -> Callable[[ExitStack], None]:
    """Open the programs whose tool call leaves a process behind, and which are idle afterwards."""

    def enter(stack: ExitStack) -> None:
        if "library" in request.param:
            stack.enter_context(own_with_library(place))
        if "chat" in request.param:
            model = write_script(call("terminal", command=place.leave_process), "It runs.")
            stack.enter_context(own_with_chat(place, model))
        if "gateway" in request.param:
            stack.enter_context(own_with_gateway(place))

    return enter


def test_approval_turned_off_by_a_left_process_of_an_idle_program_is_not_used_by_a_new_program(
    place: Place, open_owner: Callable[[ExitStack], None]
) -> None:
    with ExitStack() as stack:
        open_owner(stack)
        place.let_process_write()
        done = place.delete_victim()
        assert done.returncode == 1, done.stdout
        assert (place.project / "victim").is_dir()
        assert "toolfold config accept" in " ".join(done.stderr.split())
        assert place.load().tools.rag_top_k == 7, "other settings stay in force"
        assert place.pending() == [place.config_file]
    assert place.load().approval.mode == "manual", "also after the program has ended"


def test_refused_call_notices_settings_that_a_left_process_has_changed(place: Place) -> None:
    with own_with_library(place) as run_command:
        place.let_process_write()
        assert place.pending() == []
        assert not run_command("rm -rf victim ../other")
        assert place.pending() == [place.config_file]


def test_old_settings_restored_by_a_left_process_are_not_used(place: Place) -> None:
    record = SettingsRecord(place.home / "state")
    place.config_file.write_text(WEAK)
    with own_with_library(place):
        set_value(place.config_file, "approval.mode", "manual", record=record)
        assert place.load().approval.mode == "manual"
        age_steps(record)
        place.let_process_write()
        assert "toolfold config accept" in place.delete_victim().stderr
        assert (place.project / "victim").is_dir()
        assert place.pending() == [place.config_file]


def age_steps(record: SettingsRecord) -> None:
    """Move the recorded changes into the past: a file may have its old content for some seconds."""
    data = json.loads(record.file.read_text())
    for steps in data["steps"].values():
        for step in steps:
            step[2] -= 20_000_000_000
    record.file.write_text(json.dumps(data))


def test_interactive_start_asks_about_an_edit_while_a_left_process_runs_and_uses_it_if_confirmed(
    place: Place,
) -> None:
    with own_with_library(place):
        place.config_file.write_text("tools: {rag_top_k: 5}\n")  # as in an editor
        command = [TOOLFOLD, "config", "get", "tools.rag_top_k"]
        with Terminal(command, env=place.environment, cwd=place.project, columns=200) as terminal:
            terminal.wait_for("Did you make this change")
            assert "-tools: {rag_top_k: 7}" in terminal.text
            assert "+tools: {rag_top_k: 5}" in terminal.text
            terminal.type("n" + ENTER)
            assert terminal.wait_for_exit() == 0
        assert place.load().tools.rag_top_k == 7
        with Terminal(command, env=place.environment, cwd=place.project, columns=200) as terminal:
            terminal.wait_for("Did you make this change")
            terminal.type("y" + ENTER)
            assert terminal.wait_for_exit() == 0
        assert place.load().tools.rag_top_k == 5
        assert place.pending() == []
        place.let_process_write()
        assert place.load().tools.rag_top_k == 5, "a later change needs its own confirmation"


def test_edit_while_a_left_process_runs_names_only_the_call_that_left_it(place: Place) -> None:
    with own_with_library(place) as run_command:
        for _ in range(5):
            assert run_command("true")
        assert len(list((place.home / "state" / "settings" / "calls").iterdir())) == 1
        place.config_file.write_text("tools: {rag_top_k: 5}\n")
        assert place.load().tools.rag_top_k == 7
        (change,) = SettingsRecord(place.home / "state").list_pending().values()
        assert change.during.count("terminal (call") == 1
