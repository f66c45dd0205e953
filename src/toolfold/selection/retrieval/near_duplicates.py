"""Move near-duplicate tools down the ranking, to leave room for tools for other tasks.

The two best of a group of duplicates keep their rank, as a choice and an alternative. The others move
behind all other candidates; none is removed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from toolfold.selection.retrieval.index import Index
from toolfold.selection.retrieval.ranking import Scores
from toolfold.selection.retrieval.vectors import Vectors, multiply_rows

MAX_DUPLICATES = 2
MAX_EXAMINED = 32
SAME_NAME_SIMILARITY, ANY_NAME_SIMILARITY = 0.88, 0.985
_EPSILON = 1e-9


def demote_duplicates(index: Index, order: Sequence[int], limit: int = MAX_EXAMINED) -> list[int]:
    """Move all but the first two tools of each group of duplicates to the end of the ranking `order`.

    Nothing changes if the first `limit` positions contain no group of more than two duplicates.
    """
    if not _has_excess_duplicates(index, order[: min(limit, MAX_EXAMINED)]):
        return list(order)
    examined, rest = list(order[:MAX_EXAMINED]), list(order[MAX_EXAMINED:])
    duplicates = _duplicate_matrix(index, examined)
    leading: list[int] = []
    demoted: list[int] = []
    for position in range(len(examined)):
        (demoted if duplicates[position, leading].sum() >= MAX_DUPLICATES else leading).append(position)
    return [*(examined[position] for position in (*leading, *demoted)), *rest]


def _has_excess_duplicates(index: Index, positions: Sequence[int]) -> bool:
    """Return True if more than MAX_DUPLICATES of the tools at `positions` may be mutual duplicates.

    If there are vectors, only they are compared: faster than names, and no group is missed.
    """
    if len(positions) <= MAX_DUPLICATES:
        return False
    duplicates = (
        _duplicate_matrix(index, positions)
        if index.vectors is None
        else _similarity_matrix(index.vectors, positions) >= SAME_NAME_SIMILARITY
    )
    return bool(duplicates.sum(1).max() > MAX_DUPLICATES)  # each tool counts itself


def _duplicate_matrix(index: Index, positions: Sequence[int]) -> NDArray[np.bool_]:
    """Return a boolean matrix that is True where two tools are near-duplicates."""
    names = np.array([hash(row.tobytes()) for row in index.lexical.names[np.asarray(positions)]])
    same: NDArray[np.bool_] = names[:, None] == names[None, :]
    if index.vectors is None:
        descriptions = np.array([_description_key(index, position) for position in positions])
        same &= descriptions[:, None] == descriptions[None, :]
        return same
    similarity = _similarity_matrix(index.vectors, positions)
    duplicates: NDArray[np.bool_] = (same & (similarity >= SAME_NAME_SIMILARITY)) | (
        similarity >= ANY_NAME_SIMILARITY
    )
    return duplicates


def _similarity_matrix(vectors: Vectors, positions: Sequence[int]) -> Scores:
    """Return the pairwise cosine similarities of the tools at `positions`, from -1 to 1."""
    rows = vectors.packed.numbers[np.asarray(positions)].astype(np.float32)
    similarity = multiply_rows(rows, rows)
    lengths = np.sqrt(np.maximum(similarity.diagonal(), _EPSILON))
    similarity /= lengths[:, None] * lengths
    return similarity


def _description_key(index: Index, position: int) -> str:
    tool = index.tools[position]
    return tool.description[:200].casefold() if tool else ""
