"""`toolfold demo`: show the effect of tool selection without any key, server or download."""

from __future__ import annotations

import contextlib
import datetime
import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.agent_options import AgentOpener, AgentOptions
from toolfold.cli.app import Invocation, json_option
from toolfold.cli.output import escape_text, print_json, print_line, print_table, show_spinner
from toolfold.core.errors import shorten

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.core.types import Json
    from toolfold.runtime.runtime import Runtime
    from toolfold.serving.dashboard.approval_routes import PageApprover
    from toolfold.serving.dashboard.demo_routes import DemoParts

MAX_RESULT_CHARS = 150

MESSAGES = (
    "Create an invoice for Halden Ltd over 1,200 euros, due in 30 days",
    "Is Priya free on Thursday afternoon? Book a room for the two of us",
    "Where is the parcel I sent to Lisbon?",
    "The checkout service broke after the last deploy, go back to the version before",
)


@dataclass(frozen=True, slots=True)
class DemoRow:
    """Row of the demo's table: the tools and tokens that a model would be sent for one message."""

    message: str
    tools: int
    tokens_all: int
    tokens_sent: int
    selected: tuple[str, ...]

    @property
    def saved(self) -> str:
        return f"{1 - self.tokens_sent / self.tokens_all:.1%}"


@click.command("demo")
@click.argument("messages", nargs=-1)
@json_option
def command(messages: tuple[str, ...], as_json: bool) -> None:
    """Show which tools a model would be sent for sample messages, or for your own messages."""
    with (
        tempfile.TemporaryDirectory(prefix="toolfold-demo-") as directory,
        open_demo_runtime(Path(directory)) as runtime,
    ):
        with show_spinner("indexing the tools, which takes a few seconds"):
            rows = [_measure_message(runtime, message) for message in messages or MESSAGES if message.strip()]
        if not rows:
            raise click.UsageError("the message is empty")
        if as_json:
            print_json([{**asdict(row), "saved": row.saved} for row in rows])
            return
        _print_rows(runtime, rows)
        _print_calls(runtime)
        _print_conversation(runtime)
        program = escape_text(find_own_command())
        print_line(
            f'\nNext: [bold]{program} tools list[/bold], [bold]{program} demo "your own message"[/bold]'
        )


def find_own_command() -> str:
    """Return the shell command that starts this program: `toolfold`, or its path if it is not in PATH."""
    path = Path(sys.argv[0])
    if shutil.which("toolfold") or path.name != "toolfold":
        return "toolfold"
    return shlex.quote(str(path))


def open_demo_runtime(
    directory: Path, *, models: Config | None = None, overrides: Sequence[str] = (), **handlers: Any
) -> Runtime:
    """Open a runtime with built-in tools and the sample catalog, isolated from the user's settings.

    `models` are settings whose model providers and keys can be used.
    """
    from toolfold.config import load_config
    from toolfold.models.model_names import list_variables
    from toolfold.runtime.runtime import open_runtime
    from toolfold.tools.catalog import sample_catalog

    env = {"TOOLFOLD_HOME": str(directory / "home")}
    if models is not None:
        env |= {
            each: models.environment[each] for each in list_variables(models) if each in models.environment
        }
    overrides = [*overrides, "tools.selection=hybrid", "tools.tool_search=off", "plugins.enabled=false"]
    overrides += [f"files.workspace={directory}", "tools.patience_seconds=60"]
    config = load_config(project=directory, env=env, overrides=overrides)
    if models is not None:
        config = config.model_copy(update={"providers": models.providers})
    runtime = open_runtime(config, build_index=False, **handlers)
    # The agent is told the date of today, so the meetings of this week must be in this week.
    runtime.registry.add_all(sample_catalog(datetime.date.today()))
    return runtime


@contextlib.contextmanager
def open_demo_agents(
    invocation: Invocation, options: AgentOptions, *, delta_delay_s: float = 0.0, **handlers: Any
) -> Iterator[AgentOpener]:
    """Open agents with sample tools in a temporary directory, without the user's tools and settings.

    The model is a script unless `options` names one; models are found with the user's settings and keys.
    """
    from toolfold.agent.agent import open_store
    from toolfold.cli.demo_conversation import MESSAGES, OLD_FOLDER, build_demo_model

    client = None if options.model else build_demo_model(delta_delay_s=delta_delay_s)
    settings: dict[str, Any] = {"models": invocation.load_config(), "overrides": options.overrides}
    with tempfile.TemporaryDirectory(prefix="toolfold-demo-") as name:
        directory = Path(name)
        (directory / OLD_FOLDER).mkdir()
        with (
            # With a progress function, the first search waits until all tools are indexed.
            open_demo_runtime(
                directory, **settings, progress=lambda _done, _total: None, **handlers
            ) as runtime,
            contextlib.closing(open_store(runtime.config, runtime.database)) as store,
        ):
            with show_spinner("indexing the sample tools, which takes a few seconds"):
                runtime.session().definitions(MESSAGES[0])
            yield AgentOpener(runtime, store, options, client=client)


def make_dashboard_demo() -> DemoParts:
    """Return the parts of the demo that the dashboard shows: sample tools and a scripted model."""
    from toolfold.cli.demo_conversation import MESSAGES, OLD_FOLDER, build_demo_model
    from toolfold.serving.dashboard.demo_routes import DemoParts

    def open_runtime(directory: Path, approver: PageApprover) -> Runtime:
        (directory / OLD_FOLDER).mkdir()
        return open_demo_runtime(directory, approver=approver)

    return DemoParts(open_runtime, build_demo_model, MESSAGES)


def _measure_message(runtime: Runtime, message: str) -> DemoRow:
    from toolfold.selection.turn import count_tokens

    session = runtime.session()
    everything = session.definitions()
    sent = session.definitions(message)
    names = tuple(each["function"]["name"] for each in sent)
    return DemoRow(message, len(everything), count_tokens(everything), count_tokens(sent), names)


def _print_rows(runtime: Runtime, rows: list[DemoRow]) -> None:
    servers = {
        tool.source.name for tool in runtime.registry.snapshot().values() if tool.source.kind == "catalog"
    }
    first = rows[0]
    print_line(
        f"[bold]{first.tools} tools[/bold]: the built-in ones and those of {len(servers)} sample services."
        f" Sending all of them costs [bold]{first.tokens_all:,} tokens[/bold] on every model call.\n"
    )
    print_table(
        "what Toolfold sends instead",
        ("message", "#tools", "#tokens before", "#after", "#saved"),
        ((r.message, str(len(r.selected)), f"{r.tokens_all:,}", f"{r.tokens_sent:,}", r.saved) for r in rows),
    )
    for row in rows:
        print_line(f"[bold]{escape_text(row.message)}[/bold]\n  {escape_text(', '.join(row.selected))}\n")


def _print_calls(runtime: Runtime) -> None:
    session = runtime.session(["file"])
    session.call_sync("write_file", {"path": "hello.txt", "content": "Hello from the demo.\n"})
    result = session.call_sync("read_file", {"path": "hello.txt"})
    refused = session.call_sync("tillerbank_instruct_payment", {"amount": 5})
    print_line("[bold]Calling tools[/bold] in a session that is allowed to use the file tools only:")
    print_line(f"  read_file     → {escape_text(result.text)}")
    print_line(f"  a bank's tool → {escape_text(refused.text)}\n")


def _print_conversation(runtime: Runtime) -> None:
    """Print a conversation of the agent with a scripted model, with tool calls to simulated services."""
    from toolfold.agent import Agent
    from toolfold.cli.demo_conversation import PARCEL, build_demo_model
    from toolfold.core.events import Event, ToolFinished, ToolStarted

    # Printed afterwards: in a callback of the event loop, the end of the output (`| head`) would be an error.
    lines: list[str] = []

    def record(event: Event) -> None:
        if isinstance(event, ToolStarted):
            lines.append(f"  call   {event.tool} {escape_text(_shorten_json(event.arguments))}")
        elif isinstance(event, ToolFinished):
            lines.append(f"  result {escape_text(shorten(event.result or event.error, MAX_RESULT_CHARS))}")

    print_line(
        "[bold]A conversation[/bold] of the agent with a scripted model. The tools run, on simulated services"
        " with sample data:"
    )
    print_line(f"  you    {escape_text(PARCEL)}")
    unsubscribe = runtime.events.subscribe(record)
    try:
        with Agent(build_demo_model(), runtime=runtime) as agent:
            result = agent.run_sync(PARCEL)
    finally:
        unsubscribe()
    for line in lines:
        print_line(line)
    print_line(f"  model  {escape_text(result.text or result.error)}")


def _shorten_json(value: Json) -> str:
    return shorten(json.dumps(value, ensure_ascii=False), MAX_RESULT_CHARS)
