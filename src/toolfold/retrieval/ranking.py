"""Making one order out of the legs' scores.

Two ways. Reciprocal rank fusion looks at ranks only and needs no training. The learned ranker looks at
what each leg says of a candidate, how sure it is and how the candidate's name meets the message, and was
trained on messages of other catalogs to tell which leg to believe.
"""

from __future__ import annotations

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
    if depth < len(scores) // 4:
        bound = np.partition(scores, len(scores) - depth)[len(scores) - depth]
        above = np.flatnonzero(scores > bound)
        some = np.concatenate((above, np.flatnonzero(scores == bound)[: depth - len(above)]))
    else:
        some = np.arange(len(scores))
    order: Places = some[np.argsort(-scores[some], kind="stable")]
    return order[:depth]


def reciprocal_ranks(rankings: Sequence[Places], size: int, k: int = RRF_K) -> Scores:
    """Reciprocal rank fusion: a tool high in any leg is high in the result."""
    total = np.zeros(size, np.float32)
    for ranking in rankings:
        total[ranking] += (1.0 / (k + np.arange(len(ranking)))).astype(np.float32)
    return total


def features(legs: Legs, candidates: Places, names: Scores) -> Scores:
    """A row a candidate: what each leg says of it, by itself and beside the others."""
    columns: list[Scores | float] = [*_lexical_columns(legs, candidates), names]
    for scores in legs.dense.values():
        columns += _dense_columns(scores, candidates)
    rows: Scores = np.empty((len(candidates), len(columns)), np.float32)
    for place, column in enumerate(columns):
        rows[:, place] = column
    return rows


def _lexical_columns(legs: Legs, candidates: Places) -> list[Scores | float]:
    mine = legs.lexical[candidates]
    highest = float(legs.lexical.max(initial=0.0))
    return [
        mine / max(legs.best_lexical, 1e-6),
        mine / max(highest, 1e-6),
        mine / 10.0,
        _closeness(mine),
        highest / max(legs.best_lexical, 1e-6),
        min(legs.best_lexical / 40.0, 2.0),
    ]


def _dense_columns(scores: Scores, candidates: Places) -> list[Scores | float]:
    mine = scores[candidates]
    real = scores[scores > NEVER]  # what is not granted says nothing about what is usual
    highest, average, spread = float(real.max(initial=0)), float(real.mean()), float(real.std()) + 1e-6
    return [
        mine,
        (mine - highest) * 4.0,
        (mine - average) / spread / 4.0,
        _closeness(mine),
        highest,
        (highest - average) / spread / 4.0,
    ]


def _closeness(mine: Scores) -> Scores:
    """1 for the best of the candidates, less with every rank; 0 for what has no score at all."""
    ranks = np.empty(len(mine), np.float32)
    ranks[np.argsort(-mine, kind="stable")] = np.arange(len(mine))
    closeness: Scores = np.where(mine > 0, 1.0 / (1.0 + ranks / 3.0), 0.0).astype(np.float32)
    return closeness


class Ranker:
    """A small network over the features: one hidden layer, trained by `training/train_ranker.py`."""

    def __init__(self, weights: Mapping[str, Scores]) -> None:
        self._weights = dict(weights)

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
        weights = self._weights
        scaled = (rows - weights["mean"]) / weights["spread"]
        hidden = np.maximum(scaled @ weights["inner"] + weights["inner_bias"], np.float32(0))
        return np.asarray(hidden @ weights["outer"] + scaled @ weights["direct"], np.float32)
