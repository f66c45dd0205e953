"""A dashboard in a process of its own, with the sample catalog, which runs calls on request.

    python -m tests.dashboard.dashboard_process HOME

Not in the process of the test: a browser that a process with an open runtime has started may not answer its
approval questions. Reads one JSON command per line and answers with one JSON line each, in any order.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Any

from toolfold import CallContext, Runtime, build_tool, open_runtime
from toolfold.agent import Agent
from toolfold.cli.demo import make_dashboard_demo
from toolfold.cli.serve import build_server, make_link, open_listening_socket
from toolfold.cli.ui import _make_policy
from toolfold.config import load_config
from toolfold.core.types import Json, ToolCall
from toolfold.models.scripted import ScriptedProvider, ScriptedReply
from toolfold.selection.retrieval.example_messages import MessageRecord
from toolfold.selection.retrieval.message_store import MESSAGES_DIRECTORY, MessageStore
from toolfold.serving.dashboard.approval_routes import make_page_approver
from toolfold.serving.dashboard.dashboard import Dashboard
from toolfold.serving.dashboard.dashboard_app import DashboardApp, make_standalone_app
from toolfold.tools.catalog import sample_catalog


class Commands:
    """Runs the commands of the test."""

    def __init__(self, runtime: Runtime, app: DashboardApp, address: tuple[str, int]) -> None:
        self._runtime, self._app, self._address = runtime, app, address

    async def link(self) -> str:
        """Return a new one-time link."""
        return make_link(*self._address, self._app.sign_in.create_code())

    async def call(self, tool: str, arguments: Json) -> Json:
        """Call a tool in a session."""
        result = await self._runtime.session().call(tool, arguments)
        return {"ok": result.ok, "error": result.error, "text": result.text[:2_000]}

    async def search(self, query: str) -> str:
        """Search for tools as a model does."""
        session = self._runtime.session()
        await session.prepare()
        return (await session.call("tool_search", {"query": query})).text

    async def agent(self, steps: list[Any], message: str) -> Json:
        """Let an agent with a scripted model work on a message."""
        replies = [
            step
            if isinstance(step, str)
            else ScriptedReply(
                step.get("text", ""),
                [ToolCall(each["name"], each.get("arguments")) for each in step.get("calls", ())],
            )
            for step in steps
        ]
        async with Agent(ScriptedProvider(replies), runtime=self._runtime) as agent:
            result = await agent.run(message)
        return {"text": result.text, "reason": result.reason}

    async def add_tools(self, count: int, names: list[str] | None = None) -> int:
        """Register tools that return their arguments."""
        tools = [
            build_tool(
                name=f"bulk_{number:05d}_{'_'.join(words)}",
                toolset=f"bulk{number % 20}",
                schema={
                    "description": f"{words[0].title()} the {words[1]} number {number} of the {words[2]}.",
                    "parameters": {"type": "object", "properties": {"id": {"type": "string"}}},
                },
                handler=_return_arguments,
            )
            for number, words in enumerate(_draw_words(count))
        ]
        self._runtime.registry.add_all(tools)
        return len(tools)

    async def add_tool(self, **definition: Any) -> str:
        """Register one tool."""
        return self._runtime.registry.register(handler=_return_arguments, **definition).name

    async def refresh(self, server: str) -> int:
        """List the tools of an MCP server again."""
        listing = await asyncio.to_thread(self._runtime.mcp.refresh_listing, server)
        return len(listing.tools)

    async def add_examples(self, tool: str, enriched: list[str], learned: list[str]) -> list[str]:
        """Store example messages of a tool; return why each learned one is not used, empty if it is."""
        snapshot, config = self._runtime.registry.snapshot(), self._runtime.config
        found = snapshot[tool]
        store = MessageStore(config.paths.state_dir / MESSAGES_DIRECTORY)
        store.add([MessageRecord.of(found, enriched, model="demo-model", date="2026-01-01")])
        retriever = self._runtime.retriever
        return [retriever.learn(snapshot, found, [text], client="", origin="message") for text in learned]

    async def calibrate_work(self, rate: float) -> int:
        """Register the tool `compute`; return how many steps of it a call needs for this many per second."""
        self._runtime.registry.register(
            name="compute",
            toolset="bulk",
            schema={
                "description": "Compute for a while.",
                "parameters": {"type": "object", "properties": {"steps": {"type": "integer"}}},
            },
            handler=_compute,
        )
        session = self._runtime.session()
        for _ in range(20):
            await session.call("compute", {"steps": 1, "text": "warm up"})
        started = time.process_time()
        for _ in range(50):
            await session.call("compute", {"steps": 1, "text": "warm up"})
        overhead = (time.process_time() - started) / 50
        started = time.process_time()
        _compute({"steps": 200_000}, None)
        each = (time.process_time() - started) / 200_000
        return max(1, round((1 / rate - overhead) / each))

    async def work(self, seconds: float, steps: int, rate: float = math.inf) -> Json:
        """Call the tool `compute` again and again; return the calls, the time and the processor time."""
        session = self._runtime.session()
        calls, started, cpu = 0, time.monotonic(), time.process_time()
        while time.monotonic() - started < seconds:
            await session.call("compute", {"steps": steps, "text": f"{calls} " + "argument " * 40})
            calls += 1
            await asyncio.sleep(max(0.0, started + calls / rate - time.monotonic()))
        return {"calls": calls, "seconds": time.monotonic() - started, "cpu": time.process_time() - cpu}


def _compute(args: Json, _context: CallContext | None) -> Json:
    total = 0
    for number in range(args["steps"]):
        total += number * number
    return {"total": total, "text": "result " * 120}


def _return_arguments(args: Json, _context: CallContext) -> Json:
    return args


def _draw_words(count: int) -> list[list[str]]:
    rng = random.Random(1)
    verbs = ("list", "read", "create", "update", "archive", "export", "share", "tag")
    nouns = ("invoice", "parcel", "ticket", "report", "meeting", "branch", "photo", "order")
    places = ("shop", "warehouse", "team", "project", "archive", "calendar")
    return [[rng.choice(verbs), rng.choice(nouns), rng.choice(places)] for _ in range(count)]


async def _read_commands(commands: Commands) -> None:
    loop, tasks = asyncio.get_running_loop(), set()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        message = json.loads(line)
        task = asyncio.create_task(_run_command(commands, message))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _run_command(commands: Commands, message: Json) -> None:
    try:
        answer: Any = await getattr(commands, message["do"])(**message["with"])
        _print({"id": message["id"], "answer": answer})
    except Exception as error:
        _print({"id": message["id"], "problem": f"{type(error).__name__}: {error}"})


def _print(message: Json) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


async def _serve(runtime: Runtime, approver: Any) -> None:
    with open_listening_socket("127.0.0.1", 0) as listening:
        host, port = listening.getsockname()[:2]
        app = Dashboard(runtime, approver, demo=make_dashboard_demo()).make_app(
            _make_policy(runtime.config, host, runtime.database),
            port=port,
            print_link=lambda code: _print({"printed": code}),
        )
        commands = Commands(runtime, app, (host, port))
        server = build_server(make_standalone_app(app), lambda: _print({"port": port}))
        serving = asyncio.create_task(server.serve([listening]))
        await _read_commands(commands)
        server.should_exit = True
        await serving


def main() -> None:
    """Serve a dashboard until standard input ends."""
    home = Path(sys.argv[1])
    env = {"TOOLFOLD_HOME": str(home), "HOME": str(home), "DEMO_API_KEY": "sk-demo-0123456789abcdef"}
    config = load_config(project=Path.cwd(), env=env)
    approver = make_page_approver(config.secret_values())
    with open_runtime(config, approver=approver, client_names=True) as runtime:
        runtime.registry.add_all(sample_catalog())
        asyncio.run(_serve(runtime, approver))


if __name__ == "__main__":
    main()
