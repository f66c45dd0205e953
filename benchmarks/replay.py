"""Replay conversations through the agent in each mode: model calls, tokens, dollars, and tools found.

    sh scripts/conversations_env.sh .venv-conversations
    .venv-conversations/bin/python benchmarks/replay.py [--sets NAME…] [--limit N] [--json FILE]

The conversations with the sample services need no other package (`--sets sample`). BFCL multi-turn and
AgentDojo bring their tools as Python code, which runs; at the end the state of each conversation is compared
with the expected one. `--limit` is the number of conversations per data set (0: all). `--distractors` adds
the sample catalog to the tools of each data set. A task is one conversation.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measuring import report
from measuring.conversations import ConversationSet, load_sets
from measuring.peers import print_progress
from measuring.replay import OUTCOMES, PRICED, open_replay
from measuring.trips import MODES, Mode

from toolfold.core.types import Json

SKIPPED_MODES = ("search, describe, call",)  # differs from "search, call" by the number of model calls only


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--sets", nargs="+", default=("sample", "bfcl", "agentdojo"), help="data sets to replay")
    add("--limit", type=int, default=40, help="conversations per data set; 0 for all")
    add("--distractors", action="store_true", help="add the tools of the sample catalog")
    add("--json", type=Path, help="write the results to this file")
    return parser.parse_args()


def measure(data: ConversationSet, modes: Sequence[Mode], home: Path, *, distractors: bool) -> list[Json]:
    rows = []
    for mode in modes:
        print_progress(f"{data.name}, {mode.name}: {len(data.conversations)} conversations")
        with open_replay(data, mode, home, distractors=distractors) as replay:
            rows.append({"tools": len(data.definitions), **replay.run().summarize()})
    return rows


def format_table(rows: Sequence[Json]) -> str:
    """Return a Markdown table with shares in percent."""
    heads = ["data set", "mode", "calls", *OUTCOMES, "model calls", "input", "output"]
    heads += [*(f"$, {prices.name}" for prices in PRICED), "right end state"]
    lines = (
        [
            f"{row['set']} ({row['tools']} tools)",
            row["mode"],
            f"{row['calls']:,}",
            *(f"{row[name]:.1%}" for name in OUTCOMES),
            f"{row['model_calls_per_task']:.2f}",
            f"{row['input_tokens_per_task']:,}",
            f"{row['output_tokens_per_task']:,}",
            *(f"{row['dollars_per_task'][prices.name]:.4f}" for prices in PRICED),
            f"{row['correct_states']:.1%}",
        ]
        for row in rows
    )
    return report.table(heads, lines)


def main() -> None:
    options = parse_options()
    modes = [mode for mode in MODES if mode.name not in SKIPPED_MODES]
    with tempfile.TemporaryDirectory() as home:
        rows = [
            row
            for data in load_sets(options.sets, options.limit)
            for row in measure(data, modes, Path(home), distractors=options.distractors)
        ]
    print("Shares of recorded calls; model calls, tokens (o200k) and dollars per task.\n")
    print(format_table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
