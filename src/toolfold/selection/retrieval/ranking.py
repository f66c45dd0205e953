"""Combine keyword scores and vector similarities into one ranking.

There are two methods. Reciprocal rank fusion uses ranks only and needs no training. The learned ranker
uses the scores of each leg, their distribution and the match between the tool's name and the message; it
was trained on messages of other catalogs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable

import numpy as np
from numpy.typing import NDArray

from toolfold.selection.retrieval.weight_files import load_arrays, shipped_weights

Scores = NDArray[np.float32]
Positions = NDArray[np.int64]

RRF_K = 60
CANDIDATES_PER_LEG = 64
PROBABLE_SHARE = 0.9
EXCLUDED_SCORE = np.float32(-1e9)  # score of tools outside the grant


@dataclass(frozen=True, slots=True, eq=False)
class Legs:
    """Scores of all tools for one message by each leg (search method): keywords, vector similarity.

    `dense` is empty if no embedding model is used.
    """

    lexical: Scores
    best_lexical: float
    """Score of a hypothetical tool that matches every word perfectly."""
    dense: Mapping[str, Scores]
    catalog_tools: int = 0
    """Number of tools in the whole catalog, if the scores are those of candidates only."""
    usual: Mapping[str, Scores] = field(default_factory=dict)
    """Similarities of tools drawn from all that are granted, if `dense` has those of candidates only."""


def best_positions(scores: Scores, depth: int) -> Positions:
    """Return the positions of the highest scores, best first; sort equal scores by position."""
    depth = min(depth, len(scores))
    if depth == 0:
        return np.zeros(0, np.int64)
    if depth >= len(scores) // 4:
        return (-scores).argsort(kind="stable")[:depth]
    bound = np.partition(scores, len(scores) - depth)[len(scores) - depth]
    some: Positions = (scores >= bound).nonzero()[0]  # may exceed `depth` on ties
    return some[(-scores[some]).argsort(kind="stable")[:depth]]


def sorted_unique(positions: Positions) -> Positions:
    """Return the distinct tool positions in ascending order."""
    ordered = np.sort(positions)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def granted_scores(scores: Scores) -> Scores:
    """Return only the scores of tools that the session may use."""
    return scores if scores.min(initial=0) > EXCLUDED_SCORE else scores[scores > EXCLUDED_SCORE]


def fuse_reciprocal_ranks(rankings: Sequence[Positions], size: int, k: int = RRF_K) -> Scores:
    """Return reciprocal rank fusion scores: a tool with a high rank in any ranking gets a high score."""
    total = np.zeros(size, np.float32)
    for ranking in rankings:
        total[ranking] += (1.0 / (k + np.arange(len(ranking)))).astype(np.float32)
    return total


def count_probable(scores: Scores, share: float = PROBABLE_SHARE) -> int:
    """Return how many of the best candidates together reach the given share of the total probability.

    `scores` are those of a network that was trained with a softmax over the candidates.
    """
    if not len(scores):
        return 0
    likely = np.exp(np.sort(scores)[::-1] - scores.max())
    total = likely.cumsum()
    return int((total < share * total[-1]).sum()) + 1


def features(legs: Legs, candidates: Positions, names: Scores) -> Scores:
    """Return one row of features per candidate tool: its scores, and its scores relative to other tools."""
    columns: Scores = np.empty((7 + 6 * len(legs.dense), len(candidates)), np.float32)
    by_rank = np.float32(1) / (1 + np.arange(len(candidates), dtype=np.float32) / np.float32(3))
    _lexical_columns(columns[:6], legs, candidates, by_rank)
    columns[6] = names
    for number, (name, scores) in enumerate(legs.dense.items()):
        _dense_columns(columns[7 + 6 * number :], scores, candidates, by_rank, legs.usual.get(name))
    return columns.T


def _lexical_columns(columns: Scores, legs: Legs, candidates: Positions, by_rank: Scores) -> None:
    mine = legs.lexical[candidates]
    highest, best = float(legs.lexical.max(initial=0.0)), max(legs.best_lexical, 1e-6)
    np.divide(mine, best, out=columns[0])
    np.divide(mine, max(highest, 1e-6), out=columns[1])
    np.divide(mine, 10.0, out=columns[2])
    _set_closeness(columns[3], mine, by_rank)
    columns[4] = highest / best
    columns[5] = min(legs.best_lexical / 40.0, 2.0)


def _dense_columns(
    columns: Scores, scores: Scores, candidates: Positions, by_rank: Scores, sample: Scores | None
) -> None:
    mine, granted = scores[candidates], granted_scores(scores)
    usual = granted if sample is None else sample
    highest, average = float(granted.max(initial=0)), float(usual.sum()) / max(len(usual), 1)
    apart = usual - np.float32(average)
    spread = 4.0 * (math.sqrt(float(np.vecdot(apart, apart)) / max(len(usual), 1)) + 1e-6)
    columns[0] = mine
    np.multiply(mine - highest, 4.0, out=columns[1])
    np.divide(mine - average, spread, out=columns[2])
    _set_closeness(columns[3], mine, by_rank)
    columns[4] = highest
    columns[5] = (highest - average) / spread


def _set_closeness(column: Scores, mine: Scores, by_rank: Scores) -> None:
    """Fill a feature column by rank: 1 for the best candidate, less for lower ranks, 0 without a score."""
    column[(-mine).argsort(kind="stable")] = by_rank
    column *= mine > 0


class Ranker:
    """Small neural network with one hidden layer that scores candidates; see `training/train_ranker.py`."""

    def __init__(self, weights: Mapping[str, Scores]) -> None:
        # Scaling, hidden layer and direct path are folded into one matrix: this runs for every message.
        scaled = np.column_stack((weights["inner"], weights["direct"])) / weights["spread"][:, None]
        self._table: Scores = np.ascontiguousarray(scaled, np.float32)
        self._shift: Scores = np.append(weights["inner_bias"], np.float32(0)) - weights["mean"] @ self._table
        self._outer: Scores = np.append(weights["outer"], np.float32(1))

    @classmethod
    def shipped(cls, name: str) -> Ranker:
        """Load the shipped ranker for the embedding model in use."""
        return cls.load(shipped_weights().joinpath(f"ranker-{name}.arrays"))

    @classmethod
    def load(cls, file: Traversable) -> Ranker:
        """Load a ranker from a file written by `training/train_ranker.py`."""
        return cls(load_arrays(file))

    def __call__(self, rows: Scores) -> Scores:
        """Return one score per feature row; only the order of the scores is meaningful."""
        hidden: Scores = rows @ self._table
        hidden += self._shift
        inner = hidden[:, :-1]
        np.maximum(inner, 0, out=inner)
        return hidden @ self._outer
