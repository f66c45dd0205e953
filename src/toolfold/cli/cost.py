"""`toolfold cost`: compare what a conversation costs with each strategy of sending tools."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.catalog_options import FILE, catalog_options, load_extra_tools, sample_files
from toolfold.cli.output import (
    escape_text,
    format_count,
    print_json,
    print_line,
    print_note,
    print_table,
    show_spinner,
)
from toolfold.cli.plot import CostPanel, draw_dollars, plot_option

if TYPE_CHECKING:
    from toolfold.config.settings import ToolsSettings
    from toolfold.core.registry import Snapshot
    from toolfold.core.types import Tool
    from toolfold.runtime.runtime import Runtime
    from toolfold.selection.retrieval.ranking_metrics import Query
    from toolfold.selection.retrieval.tool_search import Retriever
    from toolfold.selection.turn import Disclosure
    from toolfold.selection.turn.pricing import Bill, Prices
    from toolfold.selection.turn.request_cost import Call, Dialogue, DialogueMessage, DialogueTurn, ToolSizes
    from toolfold.selection.turn.tokens import TokenCounter

MAX_RANKED_TOOLS = 20
SERVER_COUNTS = (1, 2, 3, 5, 8, 12)
SMALL_SERVER_TOOLS = 5
SEARCHES = ("search", "search+describe")
SampleMessage = tuple[str, tuple[str, ...]]
"""The text of a message, and the names of the tools it needs."""


@dataclass(frozen=True, slots=True)
class CostComparison:
    """A conversation, and its cost for each model and strategy of sending tools."""

    sizes: ToolSizes
    dialogue: Dialogue
    bills: Mapping[str, Mapping[str, Bill]]
    prices: Sequence[Prices]
    origin: str
    why: str
    """Why the settings defer tools to tool search, or why they do not."""


@dataclass(frozen=True, slots=True)
class ConversationSpec:
    """Conversation to compute costs for: a recorded one, or the number of messages to generate."""

    turns: int
    seed: int
    recorded: Path | None
    is_sample: bool


@click.command("cost")
@catalog_options
@click.option(
    "--turns",
    type=click.IntRange(1, 500),
    default=20,
    show_default=True,
    help="Number of user messages in the simulated conversation.",
)
@click.option("--seed", type=int, default=7, show_default=True, help="Random seed.")
@click.option(
    "--conversation",
    "recorded",
    type=FILE,
    help="Use the recorded conversation in this file: one JSON object per line.",
)
@click.option("--prices", "price_file", type=FILE, help="Use your own prices from this YAML or JSON file.")
@click.option(
    "--model",
    "models",
    multiple=True,
    help="Show the costs at the prices of this model. Repeatable. Default: one model per kind of provider.",
)
@click.option(
    "--by-size",
    is_flag=True,
    help="Show from how many sample servers on a gateway with tool search saves context, and money.",
)
@plot_option("dollars by message")
@json_option
@click.pass_obj
def command(
    invocation: Invocation,
    catalog: Path | None,
    sample: bool,
    turns: int,
    seed: int,
    recorded: Path | None,
    price_file: Path | None,
    models: tuple[str, ...],
    by_size: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Compare what a conversation costs with each way of sending tools to a model.

    If no tools are configured beyond the built-in ones, the sample catalog and its messages are used. For
    other tools, messages are generated from the tool descriptions.
    """
    prices = _load_prices(price_file)
    shown = _select_prices(prices, models)
    # Without vectors the figures would be those of keyword search.
    patient = invocation.with_overrides(("tools.patience_seconds=600",))
    with patient.open_runtime() as runtime, show_spinner("searching tools for every message"):
        if by_size:
            rows = _compare_sizes(runtime, shown, turns, seed)
            if as_json:
                print_json(rows)
            else:
                _print_sizes(rows, shown)
            return
        tools, is_sample = _select_tools(runtime, catalog, sample)
        comparison = _compare_costs(
            runtime, tools, shown if models else prices, ConversationSpec(turns, seed, recorded, is_sample)
        )
    if as_json:
        print_json(_comparison_as_json(comparison))
    else:
        _print_comparison(comparison, shown)
    if plot:
        _draw_plot(comparison, shown, plot)


def _load_prices(file: Path | None) -> Sequence[Prices]:
    from toolfold.config.yaml_document import read_settings_file
    from toolfold.core.errors import ConfigError
    from toolfold.selection.turn.pricing import PRICES, read_prices

    if file is None:
        return PRICES
    try:
        return read_prices(read_settings_file(file, "prices file").to_python())
    except ValueError as error:
        raise ConfigError(str(error), file=str(file)) from None


def _select_prices(prices: Sequence[Prices], models: Sequence[str]) -> list[Prices]:
    by_name = {each.name: each for each in prices}
    unknown = [model for model in models if model not in by_name]
    if unknown:
        raise click.UsageError(f"no prices for {', '.join(unknown)}; known models: {', '.join(by_name)}")
    by_kind = {each.kind: each for each in reversed(prices)}
    return [by_name[model] for model in models] or [each for each in prices if each in by_kind.values()]


def _select_tools(runtime: Runtime, catalog: Path | None, sample: bool) -> tuple[list[Tool], bool]:
    """Return the tools to compute costs for, and True if the sample catalog is among them."""
    configured = list(runtime.offered(quiet=True))
    if not (catalog or sample) and all(tool.core for tool in configured):
        print_note("no tools are configured beyond the built-in ones: using the sample catalog")
        sample = True
    by_name = {tool.name: tool for tool in (*configured, *load_extra_tools(catalog, sample))}
    return list(by_name.values()), sample


def _compare_costs(
    runtime: Runtime, tools: Sequence[Tool], prices: Sequence[Prices], spec: ConversationSpec
) -> CostComparison:
    from toolfold.core.registry import Snapshot
    from toolfold.selection.turn import Bridge, BridgeAnswers, Disclosure
    from toolfold.selection.turn.pricing import compute_bill
    from toolfold.selection.turn.request_cost import STRATEGIES, measure_tools
    from toolfold.selection.turn.tokens import TokenCounter

    counter, settings = TokenCounter(), runtime.config.tools
    bridge = Bridge(BridgeAnswers(runtime.retriever, settings))
    sizes = measure_tools(tools, counter, settings, bridge=bridge.tools)
    snapshot = Snapshot({tool.name: tool for tool in tools}, 0)
    session = SessionSimulator(runtime.retriever, snapshot, settings)
    ranking = MessageMeasurer(runtime.retriever, snapshot, counter, session)
    dialogue, origin = _build_conversation(spec, tools, ranking)
    why = session.explain_disclosure(Disclosure(settings, bridge), runtime.config.agent.model)
    requests = {name: strategy(dialogue, sizes) for name, strategy in STRATEGIES.items()}
    bills = {
        each.name: {name: compute_bill(sent, each) for name, sent in requests.items()} for each in prices
    }
    return CostComparison(sizes, dialogue, bills, prices, origin, why)


def _compare_sizes(runtime: Runtime, prices: Sequence[Prices], turns: int, seed: int) -> list[dict[str, Any]]:
    """Compare tool search with sending all tools, for gateways with more and more sample servers."""
    by_service: dict[str, list[Tool]] = {}
    for tool in load_extra_tools(None, True):
        by_service.setdefault(tool.toolset, []).append(tool)
    services = list(by_service.values())
    catalogs = [services[:count] for count in (*SERVER_COUNTS, len(services))]
    rows = []
    for servers in ([services[0][:SMALL_SERVER_TOOLS]], *catalogs):
        tools = [tool for server in servers for tool in server]
        found = _compare_costs(runtime, tools, prices, ConversationSpec(turns, seed, None, True))
        tokens = sum(found.sizes.full.values())
        rows.append(
            {
                "servers": len(servers),
                "tools": len(tools),
                "tokens": tokens,
                "context_saved": 1 - found.sizes.bridge / tokens,
                "dollars_of_eager": {
                    model: [bills[name].dollars / bills["eager"].dollars for name in SEARCHES]
                    for model, bills in found.bills.items()
                },
            }
        )
    return rows


def _print_sizes(rows: Sequence[Mapping[str, Any]], shown: Sequence[Prices]) -> None:
    print_table(
        "A gateway with tool search, compared with sending all tools of its servers",
        ("servers", "#tools", "#tokens", "#context saved", *(f"#{each.name}" for each in shown)),
        (
            (
                str(row["servers"]),
                str(row["tools"]),
                f"{row['tokens']:,}",
                f"{row['context_saved']:.1%}",
                *("{:.0%} to {:.0%}".format(*row["dollars_of_eager"][each.name]) for each in shown),
            )
            for row in rows
        ),
    )
    print_line(
        "Context saved: the part of the tool definitions that is not in a request. Models: dollars as a share"
        " of sending all tools, without to with a call of tool_describe for each tool. Above 100% search"
        " costs money: it adds model calls and results."
    )


def _build_conversation(
    spec: ConversationSpec, tools: Sequence[Tool], ranking: MessageMeasurer
) -> tuple[Dialogue, str]:
    """Return the conversation to compute costs for, and a description of its origin."""
    from toolfold.selection.turn.request_cost import generate_dialogue

    if spec.recorded:
        return ranking.read_conversation(spec.recorded), f"recorded in {spec.recorded}"
    rng = random.Random(spec.seed)  # noqa: S311  (not used for security)
    messages = (_sample_messages if spec.is_sample else _description_messages)(tools, spec.turns, rng)
    basis = (
        "the sample messages" if spec.is_sample else "the tools' own descriptions, which are easy to match"
    )
    measured = [ranking.measure_message(text, needs) for text, needs in messages]
    return generate_dialogue(measured, seed=spec.seed), f"generated from {basis}"


def _sample_messages(tools: Sequence[Tool], turns: int, rng: random.Random) -> list[SampleMessage]:
    """Draw random sample messages; about half of them are about the same service as the message before."""
    from toolfold.selection.retrieval.ranking_metrics import load_queries

    with sample_files() as (_, file):
        names = {tool.name for tool in tools}
        queries = [each for each in load_queries(file) if names.issuperset(each.gold)]
    services = {tool.name: tool.toolset for tool in tools}
    left: list[Query] = []
    service, messages = "", []
    for _ in range(turns):
        left = left or list(queries)
        near = [query for query in left if query.gold and services.get(query.gold[0]) == service]
        query = rng.choice(near if near and rng.random() < 0.5 else left)
        left.remove(query)
        service = services.get(query.gold[0], "") if query.gold else service
        messages.append((query.text, query.gold))
    return messages


def _description_messages(tools: Sequence[Tool], turns: int, rng: random.Random) -> list[SampleMessage]:
    """Make messages from the descriptions of randomly chosen tools."""
    chosen = [rng.choice(tools) for _ in range(turns)]
    return [(tool.description.partition(".")[0][:200] or tool.name, (tool.name,)) for tool in chosen]


class SessionSimulator:
    """Selects tools for successive messages of a conversation, as a session with the same settings would."""

    def __init__(self, retriever: Retriever, tools: Snapshot, settings: ToolsSettings) -> None:
        from toolfold.selection.turn import Grant, Selector, Turn

        self._grant = Grant.from_names(tools, frozenset(tools))
        self._turn = Turn(
            tools, self._grant.names, offered=self._grant.tools, offered_names=self._grant.tool_names
        )
        self._selector = Selector(settings, retriever)
        self._texts: list[str] = []
        self._used: dict[str, None] = {}
        """The tools that were called, latest last."""

    def explain_disclosure(self, disclosure: Disclosure, model: str) -> str:
        """Return why a session with the tools defers them to tool search, or why it does not."""
        from toolfold.models.model_table import find_limits

        limits = find_limits(model)
        return disclosure.decide(self._grant, self._turn, limits.context if limits else None).reason

    def select_tools(self, text: str, calls: Sequence[str]) -> tuple[str, ...]:
        """Return the tools selected for the next message; `calls` are the tools that the model then calls."""
        from toolfold.selection.turn.recent_messages import MAX_USED_TOOLS, MAX_USER_TEXTS, Conversation

        self._texts = [*self._texts, text][-MAX_USER_TEXTS:]
        conversation = Conversation(tuple(self._texts), tuple(self._used)[-MAX_USED_TOOLS:])
        selected = self._selector(self._grant, self._turn, conversation).names
        for name in calls:
            self._used.pop(name, None)
            self._used[name] = None
        return selected


class MessageMeasurer:
    """Measures the messages of a conversation: counts their tokens, and ranks and selects tools for each."""

    def __init__(
        self, retriever: Retriever, tools: Snapshot, counter: TokenCounter, session: SessionSimulator
    ) -> None:
        self._retriever, self._tools, self._counter, self._session = retriever, tools, counter, session

    def measure_message(self, text: str, needs: tuple[str, ...]) -> DialogueMessage:
        from toolfold.selection.turn.request_cost import DialogueMessage

        selected = self._session.select_tools(text, needs)
        return DialogueMessage(self._counter.text(text), needs, self._rank_tools(text), selected)

    def read_conversation(self, file: Path) -> Dialogue:
        """Read a recorded conversation: an optional line `{"system": …}`, then one line for each message."""
        from toolfold.core.jsonlines import read_json_lines
        from toolfold.selection.turn.request_cost import Dialogue, DialogueTurn

        lines = read_json_lines(file, self._parse_line, what="a conversation")
        turns = tuple(line for line in lines if isinstance(line, DialogueTurn))
        if not turns:
            raise click.ClickException(
                f"{file} contains no message: expected JSON objects with the key `user`, one per line"
            )
        return Dialogue(sum(line for line in lines if isinstance(line, int)), turns)

    def _parse_line(self, row: Any) -> DialogueTurn | int:
        from toolfold.selection.turn.request_cost import DialogueTurn

        if not isinstance(row, dict) or not row.keys() & {"system", "user"}:
            raise ValueError(
                "expected each line of the conversation to be an object with the key `user` or `system`"
            )
        if "user" not in row:
            return self._count_tokens(row["system"])
        calls = tuple(self._parse_call(each) for each in _require_list(row, "calls"))
        text, called = row["user"], tuple(call.tool for call in calls)
        is_text = isinstance(text, str)
        return DialogueTurn(
            user=self._count_tokens(text),
            calls=calls,
            answer=self._count_tokens(row.get("answer", 0)),
            ranked=self._rank_tools(text) if is_text else called,
            pause=_parse_seconds(row.get("pause", 30)),
            selected=self._session.select_tools(text, called) if is_text else None,
        )

    def _parse_call(self, row: Any) -> Call:
        from toolfold.selection.turn.request_cost import Call

        if not isinstance(row, dict) or not isinstance(row.get("tool"), str):
            raise ValueError("expected `calls` to be a list of objects with a tool name as `tool`")
        return Call(
            row["tool"], self._count_tokens(row.get("arguments", 0)), self._count_tokens(row.get("result", 0))
        )

    def _count_tokens(self, value: Any) -> int:
        """Return the number of tokens of a text or JSON value; a number is returned unchanged."""
        import json

        if isinstance(value, int) and not isinstance(value, bool):
            if not 0 <= value <= 100_000_000:
                raise ValueError(f"{value} is not a valid number of tokens (0 to 100,000,000)")
            return value
        return self._counter.text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))

    def _rank_tools(self, text: str) -> tuple[str, ...]:
        hits = self._retriever.find(self._tools, text, mode="hybrid", limit=MAX_RANKED_TOOLS)
        return tuple(hit.name for hit in hits)


def _require_list(row: Mapping[str, Any], key: str) -> list[Any]:
    value = row.get(key, [])
    if not isinstance(value, list):
        raise ValueError(f"a line of the conversation has a `{key}` that is not a list")
    return value


def _parse_seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise ValueError("expected `pause` to be a number of seconds")
    return float(value)


def _print_comparison(comparison: CostComparison, shown: Sequence[Prices]) -> None:
    from toolfold.selection.turn.pricing import PRICES, PRICES_AS_OF

    full, slim = (sum(sizes.values()) for sizes in (comparison.sizes.full, comparison.sizes.slim))
    turns = comparison.dialogue.turns
    calls = sum(len(turn.calls) for turn in turns)
    print_line(
        f"[bold]{format_count(len(comparison.sizes.full), 'tool')}[/bold], {full:,} tokens in full,"
        f" {slim:,} in slim form; {format_count(len(turns), 'message')} with {format_count(calls, 'call')},"
        f" {escape_text(comparison.origin)}."
    )
    print_line(_describe_selections(comparison))
    print_line(f"tools.selection decides with these tools: {escape_text(comparison.why)}.")
    if comparison.prices is PRICES:
        print_line(f"Example prices as of {PRICES_AS_OF}; use --prices for your own.")
    for prices in shown:
        print_line()
        _print_model_costs(prices, comparison.bills[prices.name])
        _print_best_tool_count(prices, comparison)
    _print_cheapest(comparison)


def _describe_selections(comparison: CostComparison) -> str:
    from statistics import fmean

    from toolfold.selection.turn.request_cost import count_shown

    counts = count_shown(comparison.dialogue, comparison.sizes)
    return f"If tools are selected, {fmean(counts):.1f} are shown per message, at most {max(counts)}."


def _print_model_costs(prices: Prices, bills: Mapping[str, Bill]) -> None:
    eager = bills["eager"].dollars
    print_table(
        f"{prices.name}: {prices.kind}",
        ("strategy", "#calls", "#input tokens", "#cached", "#dollars", "#vs eager"),
        (
            (
                name,
                str(each.calls),
                f"{each.input:,}",
                f"{each.cached_share:.0%}",
                f"{each.dollars:.4f}",
                f"{each.dollars / eager:.0%}" if eager else "-",
            )
            for name, each in bills.items()
        ),
        no_wrap="strategy",
    )


def _print_best_tool_count(prices: Prices, comparison: CostComparison) -> None:
    from toolfold.selection.turn.pricing import compute_bill
    from toolfold.selection.turn.request_cost import STRATEGIES, best_limit, best_placement, count_shown

    dialogue, sizes = comparison.dialogue, comparison.sizes
    placement = best_placement(prices, dialogue, sizes)
    limit = best_limit(prices, placement, dialogue, sizes)
    if limit < max(count_shown(dialogue, sizes)):
        less = compute_bill(STRATEGIES[placement](dialogue, replace(sizes, limit=limit)), prices)
        print_line(
            f"{placement} would be cheapest with at most {format_count(limit, 'tool')} per message:"
            f" {less.dollars:.4f} dollars, {format_count(less.calls, 'call')}."
        )


def _print_cheapest(comparison: CostComparison) -> None:
    from toolfold.selection.turn.request_cost import STRATEGIES, cheapest

    last = len(comparison.dialogue.turns)
    print_line("[bold]Cheapest strategy[/bold]")
    for turns in sorted({1, min(5, last), last}):
        won = cheapest(comparison.bills, turns)
        winners = [f"[bold]{strategy}[/bold] for {', '.join(models)}" for strategy, models in won.items()]
        print_line(f"  after {format_count(turns, 'message')}: {'; '.join(winners)}.")
    never = [strategy for strategy in STRATEGIES if strategy not in won]
    print_line(f"  Never the cheapest at the end: {', '.join(f'[bold]{each}[/bold]' for each in never)}.")
    best = [
        f"[bold]{each}[/bold] for {', '.join(models)}"
        for each, models in _best_placements(comparison).items()
    ]
    print_line(f"  Cheapest placement of selected tools: {'; '.join(best)}.")
    shares = [
        (name, bills["search"].dollars / bills["eager"].dollars) for name, bills in comparison.bills.items()
    ]
    if dearer := [f"{name} ({share:.0%})" for name, share in shares if share > 1]:
        print_line(
            f"  [yellow]Tool search costs more than sending all tools with {', '.join(dearer)}[/yellow]:"
            " it saves context, not money."
        )
    calls = {name: each.calls for name, each in next(iter(comparison.bills.values())).items()}
    print_line(
        f"  Model calls, which also take time: {calls['eager']} with eager, {calls['tail']} with a selection,"
        f" {calls['search']} with search, {calls['search+describe']} with search+describe."
    )


def _best_placements(comparison: CostComparison) -> dict[str, list[str]]:
    from toolfold.selection.turn.request_cost import best_placement

    best: dict[str, list[str]] = {}
    for prices in comparison.prices:
        placement = best_placement(prices, comparison.dialogue, comparison.sizes)
        best.setdefault(placement, []).append(prices.name)
    return best


def _comparison_as_json(comparison: CostComparison) -> dict[str, Any]:
    from toolfold.selection.turn.request_cost import cheapest, count_shown

    turns = len(comparison.dialogue.turns)
    kinds = {prices.name: prices.kind for prices in comparison.prices}
    return {
        "tools": len(comparison.sizes.full),
        "tokens": sum(comparison.sizes.full.values()),
        "tokens_slim": sum(comparison.sizes.slim.values()),
        "turns": turns,
        "origin": comparison.origin,
        "selected": count_shown(comparison.dialogue, comparison.sizes),
        "bills": [
            {
                "model": model,
                "kind": kinds[model],
                "strategy": strategy,
                "calls": each.calls,
                "input": each.input,
                "cached": each.cached,
                "output": each.output,
                "dollars": round(each.dollars, 6),
                "by_turn": [round(dollars, 6) for dollars in each.by_turn()],
            }
            for model, bills in comparison.bills.items()
            for strategy, each in bills.items()
        ],
        "placement": {
            model: each for each, models in _best_placements(comparison).items() for model in models
        },
        "cheapest": {count: cheapest(comparison.bills, count) for count in range(1, turns + 1)},
    }


def _draw_plot(comparison: CostComparison, shown: Sequence[Prices], file: Path) -> None:
    panels = [
        CostPanel(
            f"{prices.name}\n{prices.kind}",
            {strategy: each.by_turn() for strategy, each in comparison.bills[prices.name].items()},
        )
        for prices in shown
    ]
    draw_dollars(file, panels)
    print_note(f"plot of dollars by message written to {escape_text(str(file))}")
