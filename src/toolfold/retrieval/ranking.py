"""Making one order out of the legs' scores.

Two ways. Reciprocal rank fusion looks at ranks only and needs no training. The learned ranker looks at
what each leg says of a candidate, how sure it is and how the candidate's name meets the message, and was
trained on messages of other catalogs to tell which leg to believe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]
Places = NDArray[np.int64]

RRF_K = 60
DEPTH = 64
NEVER = np.float32(-1e9)  # the score of what must not be found


@dataclass(frozen=True, slots=True, eq=False)
class Legs:
    """What the legs say of every tool for one message. A semantic leg that cannot answer is not there."""

    lexical: Scores
    best_lexical: float
    """The score of a tool that would match every word as well as can be."""
    dense: Mapping[str, Scores]


def best_places(scores: Scores, depth: int) -> Places:
    """Where the highest scores stand, best first; earlier places first among equals."""
    depth = min(depth, len(scores))
    if depth == 0:
        return np.zeros(0, np.int64)
    if depth >= len(scores) // 4:
        return (-scores).argsort(kind="stable")[:depth]
    bound = np.partition(scores, len(scores) - depth)[len(scores) - depth]
    some: Places = (scores >= bound).nonzero()[0]  # more than asked for where several stand at the bound
    return some[(-scores[some]).argsort(kind="stable")[:depth]]


def distinct(places: Places) -> Places:
    """Each of them once, in ascending order."""
    ordered = np.sort(places)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def real(scores: Scores) -> Scores:
    """The scores of what may be found: what is not granted says nothing about what is usual."""
    return scores if scores.min(initial=0) > NEVER else scores[scores > NEVER]


def reciprocal_ranks(rankings: Sequence[Places], size: int, k: int = RRF_K) -> Scores:
    """Reciprocal rank fusion: a tool high in any leg is high in the result."""
    total = np.zeros(size, np.float32)
    for ranking in rankings:
        total[ranking] += (1.0 / (k + np.arange(len(ranking)))).astype(np.float32)
    return total


def features(legs: Legs, candidates: Places, names: Scores) -> Scores:
    """A row a candidate: what each leg says of it, by itself and beside the others."""
    columns: Scores = np.empty((7 + 6 * len(legs.dense), len(candidates)), np.float32)
    by_rank = np.float32(1) / (1 + np.arange(len(candidates), dtype=np.float32) / np.float32(3))
    _lexical_columns(columns[:6], legs, candidates, by_rank)
    columns[6] = names
    for number, scores in enumerate(legs.dense.values()):
        _dense_columns(columns[7 + 6 * number :], scores, candidates, by_rank)
    return columns.T


def _lexical_columns(columns: Scores, legs: Legs, candidates: Places, by_rank: Scores) -> None:
    mine = legs.lexical[candidates]
    highest, best = float(legs.lexical.max(initial=0.0)), max(legs.best_lexical, 1e-6)
    np.divide(mine, best, out=columns[0])
    np.divide(mine, max(highest, 1e-6), out=columns[1])
    np.divide(mine, 10.0, out=columns[2])
    _set_closeness(columns[3], mine, by_rank)
    columns[4] = highest / best
    columns[5] = min(legs.best_lexical / 40.0, 2.0)


def _dense_columns(columns: Scores, scores: Scores, candidates: Places, by_rank: Scores) -> None:
    mine, usual = scores[candidates], real(scores)
    highest, average = float(usual.max(initial=0)), float(usual.sum()) / max(len(usual), 1)
    apart = usual - np.float32(average)
    spread = 4.0 * (math.sqrt(float(np.vecdot(apart, apart)) / max(len(usual), 1)) + 1e-6)
    columns[0] = mine
    np.multiply(mine - highest, 4.0, out=columns[1])
    np.divide(mine - average, spread, out=columns[2])
    _set_closeness(columns[3], mine, by_rank)
    columns[4] = highest
    columns[5] = (highest - average) / spread


def _set_closeness(column: Scores, mine: Scores, by_rank: Scores) -> None:
    """1 for the best of the candidates, less with every rank; 0 for what has no score at all."""
    column[(-mine).argsort(kind="stable")] = by_rank
    column *= mine > 0


class Ranker:
    """A small network over the features: one hidden layer, trained by `training/train_ranker.py`."""

    def __init__(self, weights: Mapping[str, Scores]) -> None:
        # The scales and both ways out of a row are worked into one table: it is asked for every message.
        scaled = np.column_stack((weights["inner"], weights["direct"])) / weights["spread"][:, None]
        self._table: Scores = np.ascontiguousarray(scaled, np.float32)
        self._shift: Scores = np.append(weights["inner_bias"], np.float32(0)) - weights["mean"] @ self._table
        self._outer: Scores = np.append(weights["outer"], np.float32(1))

    @classmethod
    def shipped(cls, name: str) -> Ranker:
        """The one that comes with the package for this combination of legs."""
        return cls.load(files("toolfold").joinpath(f"retrieval/weights/ranker-{name}.npz"))

    @classmethod
    def load(cls, file: Traversable) -> Ranker:
        """The one in a file that `training/train_ranker.py` wrote."""
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
            return cls({key: stored[key] for key in stored.files})

    def __call__(self, rows: Scores) -> Scores:
        """One score a row; only their order means something."""
        hidden: Scores = rows @ self._table
        hidden += self._shift
        inner = hidden[:, :-1]
        np.maximum(inner, 0, out=inner)
        return hidden @ self._outer
