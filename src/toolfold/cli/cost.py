"""`toolfold cost`: what a conversation costs in dollars, by what the model is shown of the tools."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.catalogs import FILE, brought, catalog_options
from toolfold.cli.plot import Panel, draw_dollars, plot_option
from toolfold.cli.show import as_json, counted, note, out, plain, table, working

if TYPE_CHECKING:
    from toolfold.model import Tool
    from toolfold.registry import Snapshot
    from toolfold.retrieval.judging import Query
    from toolfold.runtime import Runtime
    from toolfold.turn.cost import Asked, Call, Dialogue, Exchange, ToolSizes
    from toolfold.turn.pricing import Bill, Prices
    from toolfold.turn.tokens import TokenCounter

MOST_RANKED = 20
Message = tuple[str, tuple[str, ...]]
"""A text, and the tools it needs."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A conversation, and its bills by model and strategy."""

    sizes: ToolSizes
    dialogue: Dialogue
    bills: Mapping[str, Mapping[str, Bill]]
    prices: Sequence[Prices]
    origin: str


@dataclass(frozen=True, slots=True)
class Talk:
    """Which conversation to compare: a recorded one, or so many messages that are imagined."""

    turns: int
    seed: int
    recorded: Path | None
    is_sample: bool


@click.command("cost")
@catalog_options
@click.option(
    "--turns", type=click.IntRange(1, 500), default=20, show_default=True, help="How many messages."
)
@click.option(
    "--seed", type=int, default=7, show_default=True, help="Another number, other messages and sizes."
)
@click.option("--conversation", "recorded", type=FILE, help="A recorded conversation, a JSON turn a line.")
@click.option("--prices", "price_file", type=FILE, help="Your prices, as YAML or JSON.")
@click.option(
    "--model", "models", multiple=True, help="Show these models' tables. Default: one of each kind."
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
    plot: Path | None,
    as_json_: bool,
) -> None:
    """Compare what each way of showing tools costs.

    Where no tools are configured or given beyond the built-in ones, the sample catalog is taken. With the
    sample come its messages; for other tools they are made of the tools' own descriptions.
    """
    prices = _prices(price_file)
    shown = _chosen(prices, models)
    with invocation.runtime() as runtime, working("searching tools for every message"):
        tools, is_sample = _tools(runtime, catalog, sample)
        compared = _compare(
            runtime, tools, shown if models else prices, Talk(turns, seed, recorded, is_sample)
        )
    if as_json_:
        as_json(_for_programs(compared))
    else:
        _tell(compared, shown)
    if plot:
        _draw(compared, shown, plot)


def _prices(file: Path | None) -> Sequence[Prices]:
    from toolfold.config.document import read_file
    from toolfold.errors import ConfigError
    from toolfold.turn.pricing import PRICES, read_prices

    if file is None:
        return PRICES
    try:
        return read_prices(read_file(file, "prices file").plain())
    except ValueError as error:
        raise ConfigError(str(error), file=str(file)) from None


def _chosen(prices: Sequence[Prices], models: Sequence[str]) -> list[Prices]:
    by_name = {each.name: each for each in prices}
    unknown = [model for model in models if model not in by_name]
    if unknown:
        raise click.UsageError(f"no prices for {', '.join(unknown)}; there are {', '.join(by_name)}")
    by_kind = {each.kind: each for each in reversed(prices)}
    return [by_name[model] for model in models] or [each for each in prices if each in by_kind.values()]


# Whose tools, which messages


def _tools(runtime: Runtime, catalog: Path | None, sample: bool) -> tuple[list[Tool], bool]:
    """The tools to show, and whether the sample's are among them."""
    own = list(runtime.offered(quiet=True))
    if not (catalog or sample) and all(tool.core for tool in own):
        note("no tools are configured beyond the built-in ones: this is the sample catalog")
        sample = True
    by_name = {tool.name: tool for tool in (*own, *brought(catalog, sample))}
    return list(by_name.values()), sample


def _compare(runtime: Runtime, tools: Sequence[Tool], prices: Sequence[Prices], talk: Talk) -> Compared:
    from toolfold.registry import Snapshot
    from toolfold.turn import Answers, Bridge
    from toolfold.turn.cost import STRATEGIES, sizes_of
    from toolfold.turn.pricing import bill
    from toolfold.turn.tokens import TokenCounter

    counter, settings = TokenCounter(), runtime.config.tools
    bridge = Bridge(Answers(runtime.retriever, settings))
    sizes = sizes_of(tools, counter, settings, bridge=bridge.tools)
    ranking = Ranking(runtime, Snapshot({tool.name: tool for tool in tools}, 0), counter)
    dialogue, origin = _held(talk, tools, ranking)
    requests = {name: strategy(dialogue, sizes) for name, strategy in STRATEGIES.items()}
    bills = {each.name: {name: bill(sent, each) for name, sent in requests.items()} for each in prices}
    return Compared(sizes, dialogue, bills, prices, origin)


def _held(talk: Talk, tools: Sequence[Tool], ranking: Ranking) -> tuple[Dialogue, str]:
    """The conversation, and where it comes from."""
    from toolfold.turn.cost import imagine

    if talk.recorded:
        return ranking.recorded(talk.recorded), f"recorded in {talk.recorded}"
    dice = random.Random(talk.seed)  # noqa: S311  (nothing to guard)
    messages = (_sample_messages if talk.is_sample else _own_words)(tools, talk.turns, dice)
    whose = "the sample's messages" if talk.is_sample else "messages in the tools' own words, easy to find"
    asked = [ranking.asked(text, needs) for text, needs in messages]
    return imagine(asked, seed=talk.seed), f"imagined from {whose}"


def _sample_messages(tools: Sequence[Tool], turns: int, dice: random.Random) -> list[Message]:
    """Messages of the sample, every other about the service of the one before, as people do."""
    from importlib.resources import as_file, files

    from toolfold.retrieval.judging import load_queries

    with as_file(files("toolfold").joinpath("sample/queries.jsonl")) as file:
        queries = load_queries(file)
    services = {tool.name: tool.toolset for tool in tools}
    left: list[Query] = []
    service, messages = "", []
    for _ in range(turns):
        left = left or list(queries)
        near = [query for query in left if query.gold and services.get(query.gold[0]) == service]
        query = dice.choice(near if near and dice.random() < 0.5 else left)
        left.remove(query)
        service = services.get(query.gold[0], "") if query.gold else service
        messages.append((query.text, query.gold))
    return messages


def _own_words(tools: Sequence[Tool], turns: int, dice: random.Random) -> list[Message]:
    """A message for each of some tools: the beginning of its description."""
    chosen = [dice.choice(tools) for _ in range(turns)]
    return [(tool.description.partition(".")[0][:200] or tool.name, (tool.name,)) for tool in chosen]


class Ranking:
    """Measures messages: their tokens, and the tools that a search finds for them."""

    def __init__(self, runtime: Runtime, tools: Snapshot, counter: TokenCounter) -> None:
        self._retriever, self._tools, self._counter = runtime.retriever, tools, counter

    def asked(self, text: str, needs: tuple[str, ...]) -> Asked:
        from toolfold.turn.cost import Asked

        return Asked(self._counter.text(text), needs, self._found(text))

    def recorded(self, file: Path) -> Dialogue:
        """The conversation of a file: a line `{"system": …}` first, if any, then one for each message."""
        from toolfold.jsonlines import read_file
        from toolfold.turn.cost import Dialogue, Exchange

        lines = read_file(file, self._line, what="a conversation")
        turns = tuple(line for line in lines if isinstance(line, Exchange))
        if not turns:
            raise click.ClickException(f"{file} has no message: expected lines with `user`")
        return Dialogue(sum(line for line in lines if isinstance(line, int)), turns)

    def _line(self, row: Any) -> Exchange | int:
        from toolfold.turn.cost import Exchange

        if not isinstance(row, dict) or not row.keys() & {"system", "user"}:
            raise ValueError("expected an object with `user`, or with `system`")
        if "user" not in row:
            return self._tokens(row["system"])
        calls = tuple(self._call(each) for each in _listed(row, "calls"))
        return Exchange(
            user=self._tokens(row["user"]),
            calls=calls,
            answer=self._tokens(row.get("answer", 0)),
            ranked=self._found(row["user"]) if isinstance(row["user"], str) else tuple(c.tool for c in calls),
            pause=_seconds(row.get("pause", 30)),
        )

    def _call(self, row: Any) -> Call:
        from toolfold.turn.cost import Call

        if not isinstance(row, dict) or not isinstance(row.get("tool"), str):
            raise ValueError("expected `calls` as a list of objects, each with `tool`, a name")
        return Call(row["tool"], self._tokens(row.get("arguments", 0)), self._tokens(row.get("result", 0)))

    def _tokens(self, value: Any) -> int:
        """A size: a number is one, anything else is counted as the text it is sent as."""
        import json

        if isinstance(value, int) and not isinstance(value, bool):
            if not 0 <= value <= 100_000_000:
                raise ValueError(f"{value} is no number of tokens")
            return value
        return self._counter.text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))

    def _found(self, text: str) -> tuple[str, ...]:
        hits = self._retriever.find(self._tools, text, mode="hybrid", limit=MOST_RANKED)
        return tuple(hit.name for hit in hits)


def _listed(row: Mapping[str, Any], key: str) -> list[Any]:
    value = row.get(key, [])
    if not isinstance(value, list):
        raise ValueError(f"expected a list as {key}")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise ValueError("expected `pause` in seconds")
    return float(value)


# Telling


def _tell(compared: Compared, shown: Sequence[Prices]) -> None:
    from toolfold.turn.pricing import PRICES, PRICES_AS_OF

    full, slim = (sum(sizes.values()) for sizes in (compared.sizes.full, compared.sizes.slim))
    turns = compared.dialogue.turns
    calls = sum(len(turn.calls) for turn in turns)
    out(
        f"[bold]{counted(len(compared.sizes.full), 'tool')}[/bold], {full:,} tokens as written,"
        f" {slim:,} slim; {counted(len(turns), 'message')} with {counted(calls, 'call')},"
        f" {plain(compared.origin)}."
    )
    if compared.prices is PRICES:
        out(f"Prices of {PRICES_AS_OF}, as examples: check yours, and give them with --prices.")
    for prices in shown:
        out()
        _tell_model(prices, compared.bills[prices.name])
        _tell_how_many(prices, compared)
    _tell_who_wins(compared)


def _tell_model(prices: Prices, bills: Mapping[str, Bill]) -> None:
    eager = bills["eager"].dollars
    table(
        f"{prices.name}: {prices.kind}",
        ("strategy", "#calls", "#input tokens", "#cached", "#dollars", "#of eager"),
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
        whole="strategy",
    )


def _tell_how_many(prices: Prices, compared: Compared) -> None:
    from toolfold.turn.cost import STRATEGIES, best_placement, best_shown
    from toolfold.turn.pricing import bill

    dialogue, sizes = compared.dialogue, compared.sizes
    placement = best_placement(prices, dialogue, sizes)
    count = best_shown(prices, placement, dialogue, sizes)
    if count < sizes.shown:
        less = bill(STRATEGIES[placement](dialogue, replace(sizes, shown=count)), prices)
        out(
            f"{placement} would cost least with {counted(count, 'tool')} a message instead of {sizes.shown}:"
            f" {less.dollars:.4f} dollars, {counted(less.calls, 'call')}."
        )


def _tell_who_wins(compared: Compared) -> None:
    from toolfold.turn.cost import STRATEGIES, cheapest

    last = len(compared.dialogue.turns)
    out("[bold]Who pays least[/bold]")
    for turns in sorted({1, min(5, last), last}):
        won = cheapest(compared.bills, turns)
        told = [f"[bold]{strategy}[/bold] for {', '.join(models)}" for strategy, models in won.items()]
        out(f"  after {counted(turns, 'message')}: {'; '.join(told)}.")
    never = [strategy for strategy in STRATEGIES if strategy not in won]
    out(f"  At the end nobody does with {', '.join(f'[bold]{each}[/bold]' for each in never)}.")
    told = [f"[bold]{each}[/bold] for {', '.join(models)}" for each, models in _placements(compared).items()]
    out(f"  Of the three placements of a selection: {'; '.join(told)}.")
    calls = {name: each.calls for name, each in next(iter(compared.bills.values())).items()}
    out(
        f"  A model call is also time: {calls['eager']} eager, {calls['tail']} with a selection,"
        f" {calls['search']} with a search, {calls['search+describe']} with a describe as well."
    )


def _placements(compared: Compared) -> dict[str, list[str]]:
    from toolfold.turn.cost import best_placement

    best: dict[str, list[str]] = {}
    for prices in compared.prices:
        placement = best_placement(prices, compared.dialogue, compared.sizes)
        best.setdefault(placement, []).append(prices.name)
    return best


def _for_programs(compared: Compared) -> dict[str, Any]:
    from toolfold.turn.cost import cheapest

    turns = len(compared.dialogue.turns)
    kinds = {prices.name: prices.kind for prices in compared.prices}
    return {
        "tools": len(compared.sizes.full),
        "tokens": sum(compared.sizes.full.values()),
        "tokens_slim": sum(compared.sizes.slim.values()),
        "turns": turns,
        "origin": compared.origin,
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
            for model, bills in compared.bills.items()
            for strategy, each in bills.items()
        ],
        "placement": {model: each for each, models in _placements(compared).items() for model in models},
        "cheapest": {count: cheapest(compared.bills, count) for count in range(1, turns + 1)},
    }


def _draw(compared: Compared, shown: Sequence[Prices], file: Path) -> None:
    panels = [
        Panel(
            f"{prices.name}\n{prices.kind}",
            {strategy: each.by_turn() for strategy, each in compared.bills[prices.name].items()},
        )
        for prices in shown
    ]
    draw_dollars(file, panels)
    note(f"dollars by message are drawn in {plain(str(file))}")
