"""`toolfold demo`: the main job on embedded defaults, with no key, no server and no download."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import json_option
from toolfold.cli.show import as_json, out, plain, table, working

if TYPE_CHECKING:
    from toolfold.runtime import Runtime

MESSAGES = (
    "Create an invoice for Halden Ltd over 1,200 euros, due in 30 days",
    "Is Priya free on Thursday afternoon? Book a room for the two of us",
    "Where is the parcel I sent to Lisbon?",
    "The checkout service broke after the last deploy, go back to the version before",
)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a model would be sent for one message."""

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
def command(messages: tuple[str, ...], as_json_: bool) -> None:
    """See what a model would be sent for a few messages, or for yours."""
    with tempfile.TemporaryDirectory(prefix="toolfold-demo-") as folder, _runtime(Path(folder)) as runtime:
        with working("reading the tools once: a few seconds"):
            rows = [_shown(runtime, message) for message in messages or MESSAGES if message.strip()]
        if not rows:
            raise click.UsageError("the message is empty")
        if as_json_:
            as_json([{**asdict(row), "saved": row.saved} for row in rows])
            return
        _tell(runtime, rows)
        _tell_a_call(runtime)


def _runtime(folder: Path) -> Runtime:
    """Built-in tools and the sample catalog, in a folder of their own: the demo touches nothing of yours."""
    from toolfold.config import load
    from toolfold.runtime import open_runtime
    from toolfold.sources import sample_catalog

    home = {"TOOLFOLD_HOME": str(folder / "home")}
    overrides = ["tools.selection=hybrid", "tools.tool_search=off", "plugins.enabled=false"]
    overrides.append(f"files.workspace={folder}")
    runtime = open_runtime(load(project=folder, env=home, overrides=overrides))
    runtime.registry.add_all(sample_catalog())
    return runtime


def _shown(runtime: Runtime, message: str) -> Shown:
    from toolfold.turn import count_tokens

    session = runtime.session()
    everything = session.definitions()
    sent = session.definitions(message)
    names = tuple(each["function"]["name"] for each in sent)
    return Shown(message, len(everything), count_tokens(everything), count_tokens(sent), names)


def _tell(runtime: Runtime, rows: list[Shown]) -> None:
    servers = {
        tool.source.name for tool in runtime.registry.snapshot().values() if tool.source.kind == "catalog"
    }
    first = rows[0]
    out(
        f"[bold]{first.tools} tools[/bold]: the built-in ones and {len(servers)} imagined services."
        f" Sent whole, they cost [bold]{first.tokens_all:,} tokens[/bold] on every model call.\n"
    )
    table(
        "what the model is sent instead",
        ("message", "#tools", "#tokens before", "#after", "#saved"),
        ((r.message, str(len(r.selected)), f"{r.tokens_all:,}", f"{r.tokens_sent:,}", r.saved) for r in rows),
    )
    for row in rows:
        out(f"[bold]{plain(row.message)}[/bold]\n  {plain(', '.join(row.selected))}\n")


def _tell_a_call(runtime: Runtime) -> None:
    session = runtime.session(["file"])
    session.call_sync("write_file", {"path": "hello.txt", "content": "Every call takes the one line.\n"})
    result = session.call_sync("read_file", {"path": "hello.txt"})
    refused = session.call_sync("tillerbank_instruct_payment", {"amount": 5})
    out("[bold]And calling one[/bold], in a session that was granted the file tools only:")
    out(f"  read_file     → {plain(result.text)}")
    out(f"  a bank's tool → {plain(refused.text)}")
    out('\nNext: [bold]toolfold tools list[/bold], [bold]toolfold demo "your own message"[/bold]')
