"""Evaluate an embedding model alone: recall at 1, 5 and 8 per set.

    python evaluate.py --data ../../shared/bench --fold a --encoder DIR --static DIR --scores FILE

With `--fold` only that fold's sets are judged, which its models never saw; messages of `authored` over those
sets' tools are judged among all of `authored`'s tools. `--vectors` keeps every vector, so that fusion can be
tuned without models. Without `--data` the sample catalog is judged.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from toolfold.selection.retrieval.document import query_text

from data import FOLDS, NEVER, SAMPLE, Bench, Query, load, with_written
from embedders import QUERY_TOKENS, TOOL_TOKENS, StaticEmbedder, TransformerEmbedder

Embedder = TransformerEmbedder | StaticEmbedder
DEPTHS = (1, 5, 8)
VectorCache = dict[str, np.ndarray]  # vectors of tools by their text


def held_out(benches: Sequence[Bench], fold: str | None) -> list[Bench]:
    """Return the sets to evaluate: those of the fold, and messages written for their tools."""
    away = (*FOLDS[fold], *(f"written_{name}" for name in FOLDS[fold])) if fold else ()
    chosen = []
    for bench in benches:
        queries = [query for query in bench.queries if query.gold]
        if fold and bench.name not in away:
            over = {tool.name for tool in bench.tools if tool.origin in away}
            queries = [query for query in queries if over & set(query.gold)]
        if queries and bench.name not in NEVER:
            name = f"{bench.name}-{fold}" if fold and bench.name not in away else bench.name
            chosen.append(Bench(name, bench.tools, tuple(queries)))
    return chosen


def at_most(bench: Bench, most: int) -> Bench:
    """Reduce a set to all needed tools and a sample of the others."""
    if len(bench.tools) <= most:
        return bench
    needed = {name for query in bench.queries for name in (*query.gold, *query.others)}
    others = [tool.name for tool in bench.tools if tool.name not in needed]
    kept = needed | set(random.Random(7).sample(others, max(0, min(len(others), most - len(needed)))))
    return Bench(bench.name, tuple(tool for tool in bench.tools if tool.name in kept), bench.queries)


def recall(query: Query, ranked: Sequence[str], depth: int) -> float:
    """Return the share of needed tools, or their alternatives, among the first ones."""
    top = set(ranked[:depth])
    return fmean(bool(top & {gold, *query.alternatives.get(gold, ())}) for gold in query.gold)


def rank(tools: np.ndarray, names: Sequence[str], queries: np.ndarray) -> list[list[str]]:
    """Return the eight best names per message."""
    ranked = []
    for start in range(0, len(queries), 256):
        likeness = queries[start : start + 256] @ tools.T
        best = np.argsort(-likeness, axis=1, kind="stable")[:, : max(DEPTHS)]
        ranked += [[names[place] for place in row] for row in best]
    return ranked


def judge(
    bench: Bench, embedder: Embedder, keep: Path | None, label: str, known: VectorCache
) -> dict[str, object]:
    """Return the scores of an embedder on a set, in total and by kind; `known` caches vectors of tools."""
    limit = {"limit": TOOL_TOKENS} if isinstance(embedder, TransformerEmbedder) else {}
    short = {"limit": QUERY_TOKENS} if isinstance(embedder, TransformerEmbedder) else {}
    names = [tool.name for tool in bench.tools]
    started = time.process_time()
    texts = [tool.text() for tool in bench.tools]
    new = [text for text in dict.fromkeys(texts) if text not in known]
    if new:
        known |= dict(zip(new, embedder.embed(new, **limit), strict=True))
    tools = np.stack([known[text] for text in texts])
    spent = time.process_time() - started
    queries = embedder.embed([query_text(query.text) for query in bench.queries], **short)
    if keep:
        _store_vectors(keep / f"{bench.name}.{label}.npz", bench, tools, queries)
    ranked = rank(tools, names, queries)
    scores: dict[str, object] = {
        "tools": len(names),
        "queries": len(queries),
        **_mean_scores(bench.queries, ranked),
    }
    if new:
        scores["tools_a_second"] = round(len(new) / max(spent, 1e-6))
    kinds = sorted({_kind_of(query) for query in bench.queries})
    if len(kinds) > 1:
        scores["kinds"] = {
            kind: _mean_scores(*_filter_queries(bench.queries, ranked, kind)) for kind in kinds
        }
    return scores


def _kind_of(query: Query) -> str:
    return f"lang:{query.lang}" if query.kind == "lang" else query.kind


def _filter_queries(
    queries: Sequence[Query], ranked: Sequence[list[str]], kind: str
) -> tuple[list[Query], list[list[str]]]:
    kept = [place for place, query in enumerate(queries) if _kind_of(query) == kind]
    return [queries[place] for place in kept], [ranked[place] for place in kept]


def _mean_scores(queries: Sequence[Query], ranked: Sequence[list[str]]) -> dict[str, float]:
    return {
        f"R@{depth}": round(
            fmean(recall(query, row, depth) for query, row in zip(queries, ranked, strict=True)), 4
        )
        for depth in DEPTHS
    }


def _store_vectors(path: Path, bench: Bench, tools: np.ndarray, queries: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        tools=tools.astype(np.float16),
        names=np.array([tool.name for tool in bench.tools]),
        queries=queries.astype(np.float16),
        ids=np.array([query.id for query in bench.queries]),
    )


def record(path: Path, place: Sequence[str], scores: dict[str, object]) -> None:
    """Merge scores into a JSON file."""
    whole = json.loads(path.read_text()) if path.exists() else {}
    inner = whole
    for key in place:
        inner = inner.setdefault(key, {})
    inner.update(scores)
    path.write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n")


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--data", type=Path, default=SAMPLE)
    options.add_argument("--fold", choices=sorted(FOLDS))
    options.add_argument("--encoder", type=Path)
    options.add_argument("--static", type=Path)
    options.add_argument("--label", default="", help="name of the model in the scores; default: its kind")
    options.add_argument("--vectors", type=Path)
    options.add_argument("--scores", type=Path)
    options.add_argument("--sets", default="", help="comma-separated names of data sets")
    options.add_argument(
        "--most",
        type=int,
        default=100_000,
        help="maximum number of tools per catalog; larger catalogs are sampled",
    )
    options.add_argument("--threads", type=int, default=1)
    chosen = options.parse_args()
    embedders: list[Embedder] = (
        [TransformerEmbedder(chosen.encoder, chosen.threads)] if chosen.encoder else []
    )
    embedders += [StaticEmbedder(chosen.static)] if chosen.static else []
    only = chosen.sets.split(",") if chosen.sets else [*FOLDS.get(chosen.fold, ()), "authored"]
    benches = with_written(load(chosen.data, only if chosen.sets or chosen.fold else None))
    known: list[VectorCache] = [{} for _ in embedders]
    for bench in held_out(benches, chosen.fold):
        for embedder, vectors in zip(embedders, known, strict=True):
            label = chosen.label or embedder.name
            scores = judge(at_most(bench, chosen.most), embedder, chosen.vectors, label, vectors)
            shown = " ".join(f"{key} {value}" for key, value in scores.items() if key != "kinds")
            print(f"{bench.name:18} {label:14} {shown}", flush=True)
            if chosen.scores:
                record(chosen.scores, (bench.name, label), scores)


if __name__ == "__main__":
    main()
