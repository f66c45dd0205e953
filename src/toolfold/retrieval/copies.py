"""Near-copies of one tool: five servers that all read files must not fill five of eight places.

Of tools that do the same the best two stay where they are, a choice and an alternative; the others go
behind everything else that was found. Nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from toolfold.retrieval.index import Index
from toolfold.retrieval.ranking import Scores
from toolfold.retrieval.vectors import Vectors, products

KEPT = 2
LOOKED_AT = 32
SAME_NAME, ANY_NAME = 0.88, 0.985
_NOTHING = 1e-9


def spread_out(index: Index, order: Sequence[int], wanted: int = LOOKED_AT) -> list[int]:
    """The same tools in the same order, but for the third and further copies of any.

    Where only so many of them are wanted, copies among the others are left where they are.
    """
    if not _has_copies(index, order[: min(wanted, LOOKED_AT)]):
        return list(order)
    looked, rest = list(order[:LOOKED_AT]), list(order[LOOKED_AT:])
    alike = _alike(index, looked)
    kept: list[int] = []
    later: list[int] = []
    for place in range(len(looked)):
        (later if alike[place, kept].sum() >= KEPT else kept).append(place)
    return [*(looked[place] for place in (*kept, *later)), *rest]


def _has_copies(index: Index, places: Sequence[int]) -> bool:
    """Whether more than are kept may be alike. Vectors tell it sooner than names do."""
    if len(places) <= KEPT:
        return False
    alike = _alike(index, places) if index.vectors is None else _nearness(index.vectors, places) >= SAME_NAME
    return bool(alike.sum(1).max() > KEPT)  # each is alike to itself


def _alike(index: Index, places: Sequence[int]) -> NDArray[np.bool_]:
    names = np.array([hash(row.tobytes()) for row in index.lexical.names[np.asarray(places)]])
    same: NDArray[np.bool_] = names[:, None] == names[None, :]
    if index.vectors is None:
        said = np.array([_description(index, place) for place in places])
        same &= said[:, None] == said[None, :]
        return same
    near = _nearness(index.vectors, places)
    alike: NDArray[np.bool_] = (same & (near >= SAME_NAME)) | (near >= ANY_NAME)
    return alike


def _nearness(vectors: Vectors, places: Sequence[int]) -> Scores:
    """How near each of these is to each other, from -1 to 1."""
    rows = vectors.packed.numbers[np.asarray(places)].astype(np.float32)
    near = products(rows, rows)
    lengths = np.sqrt(np.maximum(near.diagonal(), _NOTHING))
    near /= lengths[:, None] * lengths
    return near


def _description(index: Index, place: int) -> str:
    tool = index.tools[place]
    return tool.description[:200].casefold() if tool else ""
