"""Runs one agent turn in a forked process that kills itself at a given point. Started by test_kill.py.

A point is a call of the session store or a moment inside a tool. Usage: killed_agent.py DIRECTORY POINT...
For each point: a new session, a turn that is killed there, and one line of JSON with the session's id.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, TextIO

from toolfold import ToolCall, build_tool, open_runtime
from toolfold.agent import Agent
from toolfold.config import load_config
from toolfold.core.events import Event, TextReceived
from toolfold.core.types import CallContext, Json
from toolfold.models.scripted import ScriptedProvider, ScriptedReply
from toolfold.runtime.runtime import Runtime
from toolfold.state.store import SqliteSessionStore

STEPS = 8


class Countdown:
    """Kills the process when it reaches zero."""

    def __init__(self, points: int) -> None:
        self.left = points

    def tick(self) -> None:
        self.left -= 1
        if self.left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


class KilledStore(SqliteSessionStore):
    """Session store in which the process can be killed before and after every operation."""

    countdown: Countdown | None = None

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        countdown = super().__getattribute__("countdown")
        if countdown is None or name.startswith("_") or not callable(value):
            return value

        def counted(*args: Any, **options: Any) -> Any:
            countdown.tick()
            result = value(*args, **options)
            countdown.tick()
            return result

        return counted


def open_agent_runtime(directory: Path, ran: Path, countdown: Countdown | None = None) -> Runtime:
    """Return a runtime with a tool that leaves a line in `ran` each time it runs."""
    env = {"TOOLFOLD_HOME": str(directory / "home"), "HOME": str(directory)}
    env["TOOLFOLD_TOOLS__RAG_EMBED_MODEL"] = "light"  # takes less processor time
    runtime = open_runtime(load_config(project=directory, env=env))

    def note(args: Json, context: CallContext) -> Json:
        if countdown:
            countdown.tick()
        with ran.open("a") as file:
            file.write(f"{context.call_id}\n")
        if countdown:
            countdown.tick()
        return {"noted": args["text"]}

    schema = {
        "description": "Note a text.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
    }
    runtime.registry.add(build_tool(name="note", toolset="notes", schema=schema, handler=note, parallel=True))
    return runtime


def _show(event: Event, screen: TextIO) -> None:
    if isinstance(event, TextReceived):
        screen.write(event.text)
        screen.flush()


def script() -> list[str | ScriptedReply]:
    """Return a conversation with more operations than the test needs points to kill the process at."""
    calls = [ToolCall("note", {"text": str(number)}, f"call-{number}") for number in range(STEPS * 2)]
    steps = [
        ScriptedReply("Now I note two more things. " * 4, calls[2 * step : 2 * step + 2])
        for step in range(STEPS)
    ]
    return [*steps, "All of them are noted. " * 20]


def run_and_die(directory: Path, point: int) -> None:
    countdown = Countdown(point)
    runtime = open_agent_runtime(directory, directory / f"ran-{point}", countdown)
    store = KilledStore(directory / "sessions.db")
    agent = Agent(ScriptedProvider(script()), runtime=runtime, store=store)
    shown = (directory / f"shown-{point}").open("w", buffering=1)
    runtime.events.subscribe(lambda event: _show(event, shown))
    (directory / f"session-{point}").write_text(agent.session_id)
    store.countdown = countdown
    asyncio.run(agent.run("Note many things"))
    os._exit(0)


def main() -> None:
    directory = Path(sys.argv[1])
    for point in map(int, sys.argv[2:]):
        child = os.fork()
        if child == 0:
            run_and_die(directory, point)
        _, status = os.waitpid(child, 0)
        session = (directory / f"session-{point}").read_text()
        print(json.dumps({"point": point, "session": session, "killed": os.WIFSIGNALED(status)}), flush=True)


if __name__ == "__main__":
    main()
