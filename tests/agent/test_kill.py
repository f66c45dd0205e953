"""A process that is killed in the middle of a turn loses nothing that was shown, and runs no tool twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.killed_agent import open_agent_runtime
from tests.thorough import thorough_count
from toolfold.agent import Agent
from toolfold.agent.history import NOT_RUN, UNKNOWN_OUTCOME
from toolfold.core.types import Json
from toolfold.models.scripted import ScriptedProvider
from toolfold.runtime.runtime import Runtime
from toolfold.state.store import SqliteSessionStore

POINTS = thorough_count(100, 6)
PARTS = thorough_count(4, 1)  # so that they can run in parallel


def kill_at(directory: Path, points: range) -> list[Json]:
    command = [sys.executable, "-m", "tests.agent.killed_agent", str(directory), *map(str, points)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def result_texts(agent: Agent) -> dict[str, str]:
    return {
        message["tool_call_id"]: message["content"]
        for message in agent.history.messages
        if message["role"] == "tool"
    }


def check_session(runtime: Runtime, store: SqliteSessionStore, directory: Path, run: Json) -> None:
    """Reopen the session of a killed process and compare its history with what was shown and run."""
    agent = Agent(ScriptedProvider(["Go on."]), runtime=runtime, store=store, session_id=run["session"])
    dialect, messages = agent.history.dialect, agent.history.messages
    calls = [call_id for call_id, _ in dialect.find_calls(messages)]
    assert set(calls) == dialect.find_result_ids(messages)
    ran_file = directory / f"ran-{run['point']}"
    ran = ran_file.read_text().split() if ran_file.exists() else []
    assert len(ran) == len(set(ran)), "a tool ran twice"
    texts = result_texts(agent)
    for call_id in ran:  # the model is told of every run: by its result, or that the outcome is unknown
        assert "noted" in texts[call_id] or UNKNOWN_OUTCOME in texts[call_id]
    for call_id, text in texts.items():
        assert call_id in ran or NOT_RUN in text or UNKNOWN_OUTCOME in text
    shown = (directory / f"shown-{run['point']}").read_text()
    kept = "".join(message["content"] or "" for message in messages if message["role"] == "assistant")
    assert kept.startswith(shown), "text that was shown is lost"
    agent.release()


@pytest.mark.parametrize("part", range(PARTS))
def test_session_of_a_killed_agent_process_reopens_with_a_valid_history(tmp_path: Path, part: int) -> None:
    directory = tmp_path
    killed = kill_at(directory, range(part + 1, POINTS + 1, PARTS))
    assert len(killed) == POINTS // PARTS
    assert all(run["killed"] for run in killed), "the conversation has fewer points than the test needs"
    store = SqliteSessionStore(directory / "sessions.db")
    runtime = open_agent_runtime(directory, directory / "unused")
    problems = []
    try:
        for run in killed:
            try:
                check_session(runtime, store, directory, run)
            except Exception as error:
                problems.append(f"point {run['point']}: {type(error).__name__}: {error}")
    finally:
        runtime.close()
        store.close()
    assert not problems, "\n".join(problems)
