"""Measure for which messages of written conversations a session shows the right tools, by kind of message.

    python training/conversations.py --mcp ../shared/mcp \\
        --more ../shared/bench/distractors-mcp/catalog.jsonl --out TALKS
    python benchmarks/written_conversations.py --data TALKS [--top-k N] [--max-k N] [--without-messages]
    python benchmarks/written_conversations.py --data training/conversations/sample --splits tune,held-out

`held-out` and `unseen` conversations were not used for training. Of small talk, the share that selects
tools is reported; of tasks that take several tools, the share with all of them. A directory without
`catalog.jsonl` has messages for the sample catalog. Tools are selected with default settings; two
or three minutes on an idle core.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from measuring import report

from toolfold.config.settings import ToolsSettings
from toolfold.core.registry import Snapshot
from toolfold.runtime.evaluation import QueryResult, run_queries
from toolfold.selection.retrieval.example_messages import ExampleMessages
from toolfold.selection.retrieval.multilingual import MultilingualEmbedder
from toolfold.selection.retrieval.need import NeedClassifier
from toolfold.selection.retrieval.phrasebook import Phrasebook
from toolfold.selection.retrieval.ranking import Ranker
from toolfold.selection.retrieval.ranking_metrics import load_queries, recall
from toolfold.selection.retrieval.tool_search import Retriever
from toolfold.tools.catalog import load_catalog, sample_catalog

SPLITS = ("held-out", "unseen")
KINDS = ("opening", "follow-up", "reference", "correction", "return", "new topic", "task", "small talk")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="directory that training/conversations.py wrote")
    add("--splits", default=",".join(SPLITS), help="comma-separated: tune, held-out, unseen")
    add("--top-k", type=int, default=ToolsSettings().rag_top_k, help="tools.rag_top_k")
    add("--max-k", type=int, help="tools.rag_max_k")
    add("--without-messages", action="store_true", help="ignore the example messages of the phrasebook")
    return parser.parse_args()


def make_retriever(*, with_messages: bool) -> Retriever:
    """Return the retriever of a runtime with default settings."""
    return Retriever(
        MultilingualEmbedder(),
        lambda: Ranker.shipped("encoder"),
        None,
        need_classifier=lambda: NeedClassifier.shipped("encoder"),
        examples=ExampleMessages(Phrasebook()) if with_messages else None,
    )


def format_row(split: str, results: Sequence[QueryResult]) -> list[str]:
    """Return the share of messages of each kind whose tools are shown, and the mean number of tools."""
    shares: dict[str, list[float]] = defaultdict(list)
    for each in results:
        shown = each.selected
        found = recall(each.query, shown, len(shown)) if each.query.gold else float(bool(shown))
        if each.query.kind == "task":
            found = float(found == 1)
        shares[each.query.kind].append(found)
    cells = [f"{fmean(shares[kind]):.3f} ({len(shares[kind])})" if shares[kind] else "–" for kind in KINDS]
    return [split, *cells, f"{fmean(len(each.selected) for each in results):.1f}"]


def main() -> None:
    options = parse_options()
    file = options.data / "catalog.jsonl"
    every = load_catalog(file) if file.exists() else sample_catalog()
    tools = Snapshot({tool.name: tool for tool in every}, 0)
    retriever = make_retriever(with_messages=not options.without_messages)
    settings = ToolsSettings(rag_top_k=options.top_k, rag_max_k=options.max_k)
    rows = []
    for split in options.splits.split(","):
        queries = load_queries(options.data / f"{split}.jsonl")
        found = run_queries(
            retriever,
            tools,
            queries,
            "hybrid",
            options.top_k,
            settings=settings,
            step=lambda _done, _total: None,
            max_k=settings.max_selected,
        )
        rows.append(format_row(split, list(found)))
    print(report.table(["split", *KINDS, "tools shown"], rows))


if __name__ == "__main__":
    main()
