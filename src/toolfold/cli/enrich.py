"""`toolfold enrich`: write, list, remove, export and import example messages of tools."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import EXIT_FAILED, Invocation, json_option
from toolfold.cli.catalog_options import catalog_options, load_extra_tools
from toolfold.cli.output import (
    NotFound,
    escape_text,
    format_count,
    print_json,
    print_line,
    print_note,
    print_table,
    print_warning,
    progress_bar,
)
from toolfold.core.errors import ConfigError, closest_names, did_you_mean, join_names, shorten

if TYPE_CHECKING:
    from toolfold.core.types import Tool
    from toolfold.models.client import ModelClient
    from toolfold.models.model_names import ModelName
    from toolfold.runtime.runtime import Runtime
    from toolfold.selection.enrichment import CostEstimate, MessageOptions, WriteReport
    from toolfold.selection.retrieval.example_messages import MessageChecker, MessageRecord
    from toolfold.serving.gateway.control_client import ConnectedClient

MAX_REJECTIONS_SHOWN = 5
MAX_NAMES_SHOWN = 8
ENDPOINT = "endpoint"
ENDPOINT_TIMEOUT_S = 120.0
_NEW_FILE = click.Path(dir_okay=False, path_type=Path)
_OLD_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The options that choose the model which writes the example messages."""

    model: str
    endpoint: str
    key_env: str
    through: ConnectedClient | None = None
    """The connected client of a running gateway whose model writes the example messages."""


@click.command("enrich")
@click.argument("names", nargs=-1, metavar="[TOOL|TOOLSET]...")
@click.option(
    "--model",
    default="",
    metavar="PROVIDER:MODEL",
    help="Model that writes the messages. Default: agent.auxiliary_model or, if it is empty, agent.model.",
)
@click.option(
    "--endpoint",
    default="",
    metavar="URL",
    help="Base URL of an OpenAI-compatible API, such as http://127.0.0.1:11434/v1; --model "
    "then names a model of this API.",
)
@click.option(
    "--key-env", default="", metavar="NAME", help="Environment variable with the API key for --endpoint."
)
@click.option(
    "--through",
    default="",
    metavar="CLIENT",
    help="Use the model of a client that is connected to a running gateway; the client asks its user for "
    "consent. `toolfold mcp status` lists clients.",
)
@click.option("--count", type=click.IntRange(1, 8), default=3, show_default=True, help="Messages per tool.")
@click.option(
    "--language",
    "languages",
    multiple=True,
    metavar="NAME",
    help="Language of the messages. Default: English. Repeatable: all messages of a tool are "
    "in the first language except the last message, which is in one of the further "
    "languages.",
)
@click.option(
    "--batch", type=click.IntRange(1, 50), default=10, show_default=True, help="Tools per model call."
)
@click.option(
    "--again", is_flag=True, help="Also write messages for tools that already have example messages."
)
@click.option(
    "--estimate",
    is_flag=True,
    help="Do not call the model; show how many tools would get messages, and the estimated "
    "tokens and dollars.",
)
@click.option("--yes", is_flag=True, help="Call the model without asking for confirmation.")
@click.option(
    "--export",
    "export_file",
    type=_NEW_FILE,
    help="Write a task file that a coding agent can complete, instead of calling a model.",
)
@click.option(
    "--import",
    "import_file",
    type=_OLD_FILE,
    help="Store the example messages of a task file that a coding agent completed.",
)
@click.option(
    "--list",
    "show",
    is_flag=True,
    help="List the tools that have example messages, and where these messages come from.",
)
@click.option("--remove", is_flag=True, help="Remove the messages of the named tools, or of all tools.")
@click.option(
    "--contribute",
    is_flag=True,
    help="Print the example messages of the named tools in the format of the built-in phrasebook file.",
)
@catalog_options
@json_option
@click.pass_obj
def command(
    invocation: Invocation,
    /,
    names: tuple[str, ...],
    model: str,
    endpoint: str,
    key_env: str,
    through: str,
    count: int,
    languages: tuple[str, ...],
    batch: int,
    catalog: Path | None,
    sample: bool,
    as_json: bool,
    yes: bool,
    again: bool,
    **actions: Any,
) -> int:
    """Let a language model write example messages for tools that have none.

    A message is what a user might write when the tool is needed. Search then finds the tool by more words.
    Messages are written from definitions alone, checked, and stored on this machine. An interrupted run
    continues where it stopped.
    """
    from toolfold.selection.enrichment import MessageOptions

    chosen = [key for key, value in actions.items() if value]
    if len(chosen) > 1:
        raise click.UsageError(
            "use only one of --estimate, --export, --import, --list, --remove, --contribute"
        )
    if through and (model or endpoint):
        raise click.UsageError("--through uses the client's own model; leave out --model and --endpoint")
    added = load_extra_tools(catalog, sample)
    options = MessageOptions(count=count, languages=languages or ("English",))
    with invocation.open_runtime() as runtime:
        session = EnrichmentSession(runtime, added, as_json=as_json)
        tools = session.find_tools(names)
        match chosen:
            case ["show"]:
                return session.list_messages(tools)
            case ["remove"]:
                return session.remove_messages(tools if names else None)
            case ["contribute"]:
                return session.print_contribution(tools)
            case ["import_file"]:
                return session.import_file(actions["import_file"])
        client = session.find_client(through) if through else None
        tools = session.select_usable(client, tools) if client else tools
        tools = tools if again else [tool for tool in tools if runtime.retriever.examples.find(tool) is None]
        if not tools:
            print_line("all these tools have example messages; --again writes new ones")
            return 0
        if chosen == ["export_file"]:
            return session.export_file(actions["export_file"], tools, options)
        writing = ModelOptions(model=model, endpoint=endpoint, key_env=key_env, through=client)
        return session.write_messages(
            tools, options, writing, batch, only_estimate=chosen == ["estimate"], yes=yes
        )


class EnrichmentSession:
    """One run of `toolfold enrich`: the tools of a runtime, and the store of their example messages."""

    def __init__(self, runtime: Runtime, added: Sequence[Tool], *, as_json: bool) -> None:
        from toolfold.selection.retrieval.message_store import open_messages

        self._runtime, self._as_json = runtime, as_json
        self._store = open_messages(runtime.config.paths.state_dir, runtime.database)
        snapshot, granted = runtime.registry.snapshot(), runtime.session().granted()
        own = [tool for tool in snapshot.ordered if tool.name in granted and not tool.is_auxiliary]
        self._tools = [*own, *added]
        if not runtime.config.tools.example_messages:
            print_warning("tools.example_messages is off, so search does not use example messages")

    def find_tools(self, names: Sequence[str]) -> list[Tool]:
        """Return the tools that `names` selects by tool, toolset or server; all tools if `names` is empty."""
        if not names:
            return self._tools
        found: dict[str, Tool] = {}
        for name in names:
            matching = [tool for tool in self._tools if name in (*tool.names, tool.toolset, tool.server)]
            if not matching:
                near = closest_names(name, [tool.name for tool in self._tools])
                raise NotFound(f"there is no tool, toolset or server {name!r}.{did_you_mean(near)}")
            found |= {tool.name: tool for tool in matching}
        return list(found.values())

    def find_client(self, name: str) -> ConnectedClient:
        """Return the connected gateway client with this name, if its model can be used. Raises NotFound."""
        from toolfold.serving.gateway.control_client import list_clients

        clients = self._runtime.run_coroutine(list_clients(self._runtime.config.paths.state_dir))
        named = [client for client in clients if name in (client.name, client.program)]
        usable = next((client for client in named if not client.problem), None)
        if usable is not None:
            return usable
        if named:
            raise click.ClickException(f"the model of client {name!r} cannot be used: {named[0].problem}")
        names = sorted({client.label for client in clients})
        connected = f"Connected are: {', '.join(names)}" if names else "No gateway with a client is running"
        raise NotFound(f"no client {name!r} is connected. {connected}.")

    def select_usable(self, client: ConnectedClient, tools: Sequence[Tool]) -> list[Tool]:
        """Return those of the tools that a gateway client may use; its model must not see the others."""
        usable = [tool for tool in tools if tool.name in client.tools]
        if len(usable) < len(tools):
            left_out = format_count(len(tools) - len(usable), "tool")
            print_note(escape_text(f"left out: {left_out} that the client {client.label} may not use"))
        return usable

    def write_messages(
        self,
        tools: Sequence[Tool],
        options: MessageOptions,
        writing: ModelOptions,
        batch: int,
        *,
        only_estimate: bool,
        yes: bool,
    ) -> int:
        """Estimate the cost, ask the user for consent, and let a model write example messages."""
        from toolfold.selection.enrichment import estimate_cost

        name = self._choose_model(writing, needs_model=not only_estimate)
        estimate = estimate_cost(tools, options, name.model, batch)
        if only_estimate and self._as_json:
            print_json(_estimate_row(estimate, name))
            return 0
        print_note(escape_text(_format_estimate(estimate, name)))
        if only_estimate:
            return 0
        _require_consent(yes)
        client = self._open_client(name, writing)
        with progress_bar("writing messages") as step, redirect_stdout(sys.stderr):
            report = self._runtime.run_coroutine(self._write(client, name, tools, options, batch, step))
        return self._print_report(report, name.model)

    async def _write(
        self,
        client: ModelClient,
        name: ModelName,
        tools: Sequence[Tool],
        options: MessageOptions,
        batch: int,
        step: Callable[[int, int], None],
    ) -> WriteReport:
        from toolfold.selection.enrichment.writer import MAX_PARALLEL_CALLS, MessageWriter

        writer = MessageWriter(
            client,
            name,
            self._build_checker(),
            options=options,
            date=_today(),
            batch_size=batch,
            # Without a model in its name it is the client's, which asks its user: one question at a time.
            parallel_calls=MAX_PARALLEL_CALLS if name.model else 1,
        )
        try:
            return await writer.write(tools, self._store.add, step)
        finally:
            await client.close()

    def export_file(self, file: Path, tools: Sequence[Tool], options: MessageOptions) -> int:
        """Write a file with the tools that need example messages, for another program to fill in."""
        from toolfold.selection.enrichment import export_task

        try:
            export_task(file, tools, options)
        except FileExistsError:
            raise click.ClickException(f"{file} exists; choose another file or delete it") from None
        except OSError as error:
            raise click.ClickException(f"{file} cannot be written: {error.strerror}") from None
        print_line(
            f"{format_count(len(tools), 'tool')} written to {escape_text(str(file))}. Have the messages"
            f" filled in, then run: toolfold enrich --import {escape_text(str(file))}"
        )
        return 0

    def import_file(self, file: Path) -> int:
        """Store the example messages from a file that another program has filled in."""
        from toolfold.selection.enrichment import import_task

        records, report = import_task(file, self._tools, self._build_checker(), date=_today())
        self._store.add(records)
        return self._print_report(report, "")

    def list_messages(self, tools: Sequence[Tool]) -> int:
        """Print the tools that have example messages, and where these messages come from."""
        rows = [describe_messages(tool, self._runtime) for tool in tools]
        rows = [row for row in rows if row["messages"]]
        if self._as_json:
            print_json(rows)
            return 0
        print_table(
            f"{format_count(len(rows), 'tool')} of {len(tools):,} with example messages",
            ("tool", "from", "messages"),
            ((row["name"], row["from"], "\n".join(row["messages"])) for row in rows),
            no_wrap="tool",
        )
        return 0

    def remove_messages(self, tools: Sequence[Tool] | None) -> int:
        """Remove stored example messages of the given tools (None: of all tools); keep built-in messages."""
        stored = self._store.load()
        if tools is not None:
            wanted = {(tool.server, tool.own_name) for tool in tools}
            stored = [record for record in stored if (record.server, record.tool) in wanted]
        removed = self._store.remove(record.checksum for record in stored)
        print_line(f"removed the messages of {format_count(removed, 'tool')}")
        return 0

    def print_contribution(self, tools: Sequence[Tool]) -> int:
        """Print stored example messages in the file format of the built-in ones, for contributing them."""
        from dataclasses import replace

        from toolfold.selection.retrieval.message_store import format_record

        wanted = {(tool.server, tool.own_name) for tool in tools}
        records = [each for each in self._store.load() if (each.server, each.tool) in wanted]
        for record in records:
            click.echo(format_record(replace(record, model="", date="")))
        if not records:
            print_note("no messages are stored for these tools; write some with `toolfold enrich`")
        return 0 if records else EXIT_FAILED

    def _build_checker(self) -> MessageChecker:
        from toolfold.mcp.scan import find_injections
        from toolfold.selection.enrichment.relevance import DefinitionSimilarity
        from toolfold.selection.retrieval.example_messages import MessageChecker
        from toolfold.selection.retrieval.vector_store import VECTOR_DIRECTORY, VectorFile

        store = VectorFile(self._runtime.config.paths.cache_dir / VECTOR_DIRECTORY)
        return MessageChecker(self._tools, find_injections, DefinitionSimilarity(self._tools, store))

    def _choose_model(self, writing: ModelOptions, *, needs_model: bool = True) -> ModelName:
        """Return the name of the model that writes example messages; empty if no model is needed."""
        from toolfold.models.model_names import ModelName, parse_model_name

        if writing.through:
            return ModelName(writing.through.label, "")
        config = self._runtime.config
        text = writing.model or config.agent.auxiliary_model or config.agent.model
        if writing.endpoint:
            if not writing.model:
                raise click.UsageError("--endpoint needs --model with the name of a model at that URL")
            return ModelName(ENDPOINT, writing.model)
        if not text and not needs_model:
            return ModelName("", "")
        if not text:
            raise ConfigError(
                "no model is configured that could write example messages for the tools",
                key="agent.model",
                hint="use --model PROVIDER:MODEL, or --export to let a coding agent write the messages",
            )
        return parse_model_name(text, config)

    def _open_client(self, name: ModelName, writing: ModelOptions) -> ModelClient:
        from toolfold.models import get_dialect
        from toolfold.models.client import OpenAIClient
        from toolfold.models.model_names import build_client
        from toolfold.serving.gateway.control_client import SamplingClient

        if writing.through:
            return SamplingClient(writing.through)
        if not writing.endpoint:
            return build_client(name, self._runtime.config)
        key = self._runtime.config.environment.get(writing.key_env, "") if writing.key_env else ""
        return OpenAIClient(
            ENDPOINT,
            get_dialect("openai"),
            base_url=writing.endpoint,
            api_key=key,
            timeout_s=ENDPOINT_TIMEOUT_S,
        )

    def _print_report(self, report: WriteReport, model: str) -> int:
        if self._as_json:
            print_json(_report_row(report, model))
        else:
            print_line(escape_text(_format_report(report, model)))
        for tool, message, reason in report.rejected[:MAX_REJECTIONS_SHOWN]:
            print_note(f"rejected for {escape_text(tool)}: {escape_text(shorten(message))} ({reason})")
        if report.error is not None:
            raise click.ClickException(
                f"{report.error}. What was written is stored; run the command again to continue"
            )
        if report.failed:
            print_warning(f"no messages for {join_names(report.failed, MAX_NAMES_SHOWN)}")
        return EXIT_FAILED if report.failed and not report.written else 0


def describe_messages(tool: Tool, runtime: Runtime) -> dict[str, Any]:
    """Return a tool's example messages and where they come from; empty if it has none."""
    record = runtime.retriever.examples.find(tool)
    return {
        "name": tool.name,
        "from": _format_origin(record) if record else "",
        "messages": list(record.messages) if record else [],
    }


def _format_origin(record: MessageRecord) -> str:
    return f"{record.model}, {record.date}" if record.model else "phrasebook"


def _require_consent(yes: bool) -> None:
    """Ask the user whether the model may be called; raise an error if there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.ClickException("nobody can be asked here whether to call the model; use --yes")
    click.confirm("Write the messages now?", abort=True, err=True)


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _format_dollars(dollars: float | None) -> str:
    return "price unknown" if dollars is None else f"${dollars:.2f}" if dollars >= 0.01 else "less than $0.01"


def _format_estimate(estimate: CostEstimate, name: ModelName) -> str:
    return (
        f"{format_count(estimate.tools, 'tool')}, {format_count(estimate.calls, 'call')} of"
        f" {_format_model(name)}: about"
        f" {estimate.usage.input_tokens:,} tokens in, {estimate.usage.output_tokens:,} out,"
        f" {_format_dollars(estimate.dollars)}"
    )


def _format_model(name: ModelName) -> str:
    if not (name.provider or name.model):
        return (
            "a model (none is configured, so tokens are counted like those of GPT-4o; name one for the price:"
            " --model PROVIDER:MODEL, or the settings agent.auxiliary_model or agent.model)"
        )
    return str(name) if name.model else f"the model of client {name.provider}, which asks its user first"


def _estimate_row(estimate: CostEstimate, name: ModelName) -> dict[str, Any]:
    return {
        "model": str(name) if name.model else name.provider,
        "tools": estimate.tools,
        "calls": estimate.calls,
        "input_tokens": estimate.usage.input_tokens,
        "output_tokens": estimate.usage.output_tokens,
        "dollars": estimate.dollars,
    }


def _cost_of_report(report: WriteReport, model: str) -> float | None:
    from toolfold.selection.turn.pricing import cost_of_call, find_prices

    return cost_of_call(report.usage, find_prices(model)) if model else None


def _format_report(report: WriteReport, model: str) -> str:
    text = f"wrote messages for {format_count(report.written, 'tool')}"
    if not report.usage.total_tokens:
        return text
    usage = f"{report.usage.input_tokens:,} tokens in, {report.usage.output_tokens:,} out"
    return f"{text} ({usage}, {_format_dollars(_cost_of_report(report, model))})"


def _report_row(report: WriteReport, model: str) -> dict[str, Any]:
    return {
        "written": report.written,
        "failed": report.failed,
        "rejected": [
            {"tool": tool, "message": message, "reason": reason} for tool, message, reason in report.rejected
        ],
        "input_tokens": report.usage.input_tokens,
        "output_tokens": report.usage.output_tokens,
        "dollars": _cost_of_report(report, model),
        "error": str(report.error) if report.error else "",
    }
