"""Near-copies of one tool: five servers that all read files must not fill five of eight places.

Of tools that do the same the best two stay where they are, a choice and an alternative; the others go
behind everything else that was found. Nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from toolfold.retrieval.index import Index
from toolfold.retrieval.vectors import products

KEPT = 2
LOOKED_AT = 32
SAME_NAME, ANY_NAME = 0.88, 0.985


def spread_out(index: Index, order: Sequence[int]) -> list[int]:
    """The same tools in the same order, but for the third and further copies of any."""
    looked, rest = list(order[:LOOKED_AT]), list(order[LOOKED_AT:])
    alike = _alike(index, looked)
    if not len(looked) or alike.sum(1).max() <= KEPT:  # each is alike to itself
        return list(order)
    kept: list[int] = []
    later: list[int] = []
    for place in range(len(looked)):
        (later if alike[place, kept].sum() >= KEPT else kept).append(place)
    return [*(looked[place] for place in (*kept, *later)), *rest]


def _alike(index: Index, places: Sequence[int]) -> NDArray[np.bool_]:
    at = np.asarray(places, np.int64)
    names = np.array([hash(row.tobytes()) for row in index.lexical.names[at]])
    same: NDArray[np.bool_] = names[:, None] == names[None, :]
    if index.vectors is None:
        said = np.array([_description(index, place) for place in places])
        same &= said[:, None] == said[None, :]
        return same
    rows = index.vectors.packed.taken(at).restored()
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    near = products(rows, rows)
    alike: NDArray[np.bool_] = (same & (near >= SAME_NAME)) | (near >= ANY_NAME)
    return alike


def _description(index: Index, place: int) -> str:
    tool = index.tools[place]
    return tool.description[:200].casefold() if tool else ""
