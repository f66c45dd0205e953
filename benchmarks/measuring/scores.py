"""Compute metrics from ranked names: recall, reciprocal rank, and time percentiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from toolfold.selection.retrieval.ranking_metrics import Query, recall, reciprocal_rank

DEPTHS = (1, 5, 8)
DEEPEST = max(DEPTHS)
Figures = dict[str, Any]


def figures(queries: Sequence[Query], ranked: Mapping[str, Sequence[str]]) -> Figures:
    """Return means over all messages, and per kind if there are several."""
    told = means(queries, ranked)
    kinds = sorted({query.kind for query in queries})
    if len(kinds) > 1:
        told["kinds"] = {
            kind: means([query for query in queries if query.kind == kind], ranked) for kind in kinds
        }
    return told


def means(queries: Sequence[Query], ranked: Mapping[str, Sequence[str]]) -> Figures:
    """Return R@1, R@5, R@8 and the mean reciprocal rank at 8."""
    pairs = [(query, ranked.get(str(query.id), ())) for query in queries]
    told: Figures = {
        f"R@{depth}": round(fmean(recall(query, names, depth) for query, names in pairs), 4)
        for depth in DEPTHS
    }
    told["MRR"] = round(fmean(reciprocal_rank(query, names[:DEEPEST]) for query, names in pairs), 4)
    return told | {"messages": len(pairs)}


def spread(times: Sequence[float]) -> Figures:
    """Return the median and the 99th percentile."""
    ordered = sorted(times)
    if not ordered:
        return {}
    return {"p50": round(_percentile_of(ordered, 0.5), 4), "p99": round(_percentile_of(ordered, 0.99), 4)}


def median_difference(times: Sequence[float], base: Sequence[float]) -> float:
    """Return the median of the differences between times measured in turn."""
    return median(one - other for one, other in zip(times, base, strict=True))


def _percentile_of(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
