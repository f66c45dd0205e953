"""Measure the model calls, tokens and dollars of each mode, with a scripted model.

    python benchmarks/round_trips.py [--turns N] [--limit N] [--json FILE]

The model is served over HTTP and knows for each of the sample's messages which tools it takes. It calls
one only if its schema was sent, and otherwise searches with the user's words. Every mode is driven through
real sessions over the sample catalog. `--turns` is the number of messages in a conversation.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from measuring import report
from measuring.peers import print_progress
from measuring.scripted import ScriptedModel, served
from measuring.sets import SAMPLE, SEED, Sets
from measuring.trips import MODES, Outcome, hold, opened, scripted

from toolfold import sample_catalog
from toolfold.core.types import Json
from toolfold.selection.retrieval.ranking_metrics import Query
from toolfold.selection.turn.pricing import PRICES_AS_OF, Prices, prices_for

PRICED = tuple(map(prices_for, ("claude-sonnet-4-6", "gpt-5.4", "gpt-4o", "llama-4-maverick")))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--turns", type=int, default=1, help="messages per conversation")
    add("--limit", type=int, default=1_000, help="maximum number of messages")
    add("--home", type=Path, help="directory of the index between runs")
    add("--json", type=Path, help="write the whole result to this file")
    return parser.parse_args()


def messages(limit: int, work: Path) -> list[Query]:
    """Return the messages of the sample catalog in random order, so that conversations change the subject."""
    queries = Sets(None, work).queries(SAMPLE)
    random.Random(SEED).shuffle(queries)
    return queries[:limit]


def conversations(queries: Sequence[Query], turns: int) -> list[list[Query]]:
    return [list(queries[start : start + turns]) for start in range(0, len(queries), turns)]


def measure(queries: Sequence[Query], turns: int, home: Path) -> list[Outcome]:
    """Run every mode over the same conversations."""
    tools = sample_catalog()
    script = scripted(queries, tools)
    talks = conversations(queries, turns)
    outcomes = []
    with served(ScriptedModel(script)) as address:
        for mode in MODES:
            print_progress(f"{mode.name}: {len(talks)} conversations of {turns}")
            with opened(mode, tools, home) as runtime:
                outcomes.append(hold(mode, runtime, address, script, talks))
    return outcomes


def figures(outcomes: Sequence[Outcome], queries: Sequence[Query]) -> Json:
    """Return the figures of every mode, for the messages that need tools and for all messages."""
    needing = {str(query.id) for query in queries if query.gold}
    rows = [outcome.figures(outcomes[0], needing, PRICED) for outcome in outcomes]
    return {"modes": rows, "trips": {each.mode: list(map(asdict, each.trips)) for each in outcomes}}


def table(rows: Sequence[Json], prices: Sequence[Prices]) -> str:
    """Format a Markdown table with shares in percent."""
    heads = ["mode", "calls a message", "no more than eager", "served", "input", "output"]
    heads += [f"{each.name}, $" for each in prices]
    lines = (
        [
            row["mode"],
            f"{row['calls']:.2f}",
            f"{row['all']['no_more_than_eager']:.1%} ({row['needing']['no_more_than_eager']:.1%})",
            f"{row['all']['served']:.1%} ({row['needing']['served']:.1%})",
            f"{row['input']:,}",
            f"{row['output']:,}",
            *(f"{row['dollars'][each.name]:.2f}" for each in prices),
        ]
        for row in rows
    )
    return report.table(heads, lines)


def main() -> None:
    chosen = options()
    with tempfile.TemporaryDirectory() as folder:
        queries = messages(chosen.limit, Path(folder))
        outcomes = measure(queries, chosen.turns, chosen.home or Path(folder, "home"))
    result = figures(outcomes, queries)
    needing = sum(bool(query.gold) for query in queries)
    print(f"{len(queries)} messages ({needing} that need a tool in brackets), {chosen.turns} a conversation.")
    print(f"Tokens a message; dollars for 1,000 messages, prices of {PRICES_AS_OF}.\n")
    print(table(result["modes"], PRICED))
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
