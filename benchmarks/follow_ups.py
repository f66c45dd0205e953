"""Measure what the history of a conversation adds to the search for tools, on BFCL multi-turn.

    sh scripts/conversations_env.sh .venv-conversations
    .venv-conversations/bin/python benchmarks/follow_ups.py [--limit N] [--json FILE]

For each message after the first that takes calls: the share of the called tools among the best five and
eight, by the message alone and with the messages and calls before it. Nothing was trained on BFCL's
conversations. `--limit` is the number of conversations per part of BFCL (0: all).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from measuring import report
from measuring.conversations import Conversation, ConversationSet, load_bfcl_sets
from measuring.peers import print_progress

from toolfold.core.authoring import build_tool
from toolfold.core.registry import Snapshot
from toolfold.core.types import Json
from toolfold.selection.retrieval.context import NO_CONTEXT, Context
from toolfold.selection.retrieval.multilingual import MultilingualEmbedder
from toolfold.selection.retrieval.need import NeedClassifier
from toolfold.selection.retrieval.ranking import Ranker
from toolfold.selection.retrieval.tool_search import Retriever

DEPTHS = (5, 8)
MAX_EARLIER = 3
MAX_USED = 8


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--limit", type=int, default=40, help="conversations per part; 0 for all")
    add("--json", type=Path, help="write the results to this file")
    return parser.parse_args()


def load_tools(data: ConversationSet) -> Snapshot:
    tools = [
        build_tool(
            name=row["name"],
            toolset=row["toolset"],
            schema={"description": row["description"], "parameters": row["parameters"]},
            handler=lambda args: args,
        )
        for row in data.definitions
    ]
    return Snapshot({tool.name: tool for tool in tools}, 0)


def follow_ups(conversation: Conversation) -> Iterator[tuple[str, set[str], Context]]:
    """Yield each message after the first that needs tools, with these tools and the earlier conversation."""
    earlier: list[str] = []
    used: list[str] = []
    for turn in conversation.turns:
        if earlier and turn.calls:
            latest = tuple(dict.fromkeys(reversed(used)))[:MAX_USED]
            context = Context(tuple(reversed(earlier[-MAX_EARLIER:])), latest)
            yield turn.message, {call.name for call in turn.calls}, context
        earlier.append(turn.message)
        used += [call.name for call in turn.calls]


def measure(data: ConversationSet, retriever: Retriever) -> Json:
    """Return the recall for one part of BFCL, with and without the history of the conversation."""
    tools = load_tools(data)
    found: dict[str, list[float]] = {
        f"{way} R@{depth}": [] for way in ("alone", "history") for depth in DEPTHS
    }
    for conversation in data.conversations:
        for message, called, context in follow_ups(conversation):
            for way, given in (("alone", NO_CONTEXT), ("history", context)):
                result = retriever.answer(tools, message, mode="hybrid", limit=max(DEPTHS), context=given)
                names = [hit.name for hit in result.hits]
                for depth in DEPTHS:
                    found[f"{way} R@{depth}"].append(len(called & {*names[:depth]}) / len(called))
    messages = len(found[f"alone R@{DEPTHS[0]}"])
    return {"set": data.name, "tools": len(tools), "messages": messages} | {
        key: round(fmean(values), 4) for key, values in found.items()
    }


def format_table(rows: Sequence[Json]) -> str:
    columns = list(rows[0])
    return report.table(columns, ([_format_cell(row[key]) for key in columns] for row in rows))


def _format_cell(value: str | int | float) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def main() -> None:
    options = parse_options()
    retriever = Retriever(
        MultilingualEmbedder(),
        lambda: Ranker.shipped("encoder"),
        None,
        need_classifier=lambda: NeedClassifier.shipped("encoder"),
    )
    rows = []
    for data in load_bfcl_sets(options.limit):
        print_progress(f"{data.name}: {len(data.conversations)} conversations")
        rows.append(measure(data, retriever))
    print(format_table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
