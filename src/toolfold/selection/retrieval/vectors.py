"""Store the vectors of many tools as 8-bit integers, and compute their similarity to a message.

Exact products with every row are fast enough for millions of numbers. Beyond that memory bandwidth
dominates, so a sketch (a projection of each row onto the few directions of largest variance) selects
candidates, and only those are scored exactly. Knows nothing of tools or models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from toolfold.selection.retrieval.ranking import EXCLUDED_SCORE, Positions, Scores

Matrix = NDArray[np.float32]

MAX_DIMENSIONS = 8_192
"""Twice the dimensions of any common model. The memory for a sketch grows with the square."""
MAX_EXACT_NUMBERS = 10_000_000
MAX_RESCORED_ROWS = 1_024
MIN_SKETCH_DIMENSIONS = 128
_SAMPLE_ROWS = 4_096
_BLOCK_COLUMNS = 384
_EPSILON = 1e-9
_MAX_SINGLE_THREAD_PRODUCTS = 1 << 18
"""Number of scalar products up to which BLAS does not use several threads."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedVectors:
    """Vectors stored as 8-bit integers with one scale per row.

    New vectors are quantized too, so that the ranking is the same before and after the index is saved.
    """

    numbers: NDArray[np.int8]
    scales: Matrix

    @classmethod
    def of(cls, vectors: Matrix) -> PackedVectors:
        """Convert float vectors to 8-bit integers."""
        scales = (np.abs(vectors).max(1, initial=_EPSILON) / 127).astype(np.float32)
        return cls(np.round(vectors / scales[:, None]).astype(np.int8), scales)

    @classmethod
    def empty(cls, size: int, width: int) -> PackedVectors:
        """Return packed vectors that are all zero."""
        return cls(np.zeros((size, width), np.int8), np.zeros(size, np.float32))

    @property
    def size(self) -> int:
        return len(self.numbers)

    @property
    def width(self) -> int:
        return int(self.numbers.shape[1])

    @property
    def has_vector(self) -> NDArray[np.bool_]:
        """Return a boolean mask of the rows that are not zero."""
        return self.scales > _EPSILON

    def take_rows(self, positions: Positions) -> PackedVectors:
        """Return the packed rows at the given positions."""
        return PackedVectors(self.numbers[positions], self.scales[positions])

    def dequantize(self) -> Matrix:
        """Return the rows as float vectors."""
        dequantize: Matrix = self.numbers.astype(np.float32)
        dequantize *= self.scales[:, None]
        return dequantize

    def dequantize_columns(self, limit: int) -> tuple[Matrix, ...]:
        """Return the rows as float vectors, divided into blocks of at most `limit` columns."""
        parts = (self.numbers[:, start : start + limit] for start in range(0, self.width, limit))
        return tuple(PackedVectors(part, self.scales).dequantize() for part in parts)

    def similarities(self, positions: Positions, vector: Matrix) -> Scores:
        """Return the similarity of a vector to the rows at the given positions."""
        used = _used_dimensions(vector)
        rows = self.numbers[:, :used][positions].astype(np.float32)
        return _row_products(rows, vector[:used]) * self.scales[positions]

    def with_rows(self, size: int, positions: Positions, rows: PackedVectors) -> PackedVectors:
        """Return a copy of the matrix with `size` rows and with `rows` stored at `positions`."""
        changed = PackedVectors.empty(size, self.width)
        changed.numbers[: self.size], changed.scales[: self.size] = self.numbers, self.scales
        changed.numbers[positions], changed.scales[positions] = rows.numbers, rows.scales
        return changed


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """Projections of vectors onto their directions of largest variance, for a fast first search."""

    directions: Matrix
    rows: Matrix

    @classmethod
    def of(cls, packed: PackedVectors) -> Sketch:
        """Compute the directions of largest variance from a sample of the rows, and project every row."""
        sample = packed.take_rows(np.arange(0, packed.size, max(1, packed.size // _SAMPLE_ROWS))).dequantize()
        _, directions = np.linalg.eigh(sample.T @ sample)
        limit = max(MIN_SKETCH_DIMENSIONS, packed.width // 3)
        rescored: Matrix = np.ascontiguousarray(directions[:, ::-1][:, :limit], np.float32)
        rows: Matrix = np.empty((packed.size, rescored.shape[1]), np.float32)
        for start in range(0, packed.size, _SAMPLE_ROWS):
            part = np.arange(start, min(packed.size, start + _SAMPLE_ROWS))
            rows[part] = packed.take_rows(part).dequantize() @ rescored
        return cls(rescored, rows)

    def with_rows(self, size: int, positions: Positions, rows: PackedVectors) -> Sketch:
        return replace(self, rows=_with_rows(self.rows, size, positions, rows.dequantize() @ self.directions))


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """Vectors of a search index, prepared for fast search.

    Few vectors are stored as blocks of floats. For many there is a sketch: short projections that are
    searched first.
    """

    packed: PackedVectors
    blocks: tuple[Matrix, ...]
    """Blocks of columns; blocks in which a message's vector is zero are skipped."""
    sketch: Sketch | None

    @classmethod
    def of(cls, packed: PackedVectors, sketch: Sketch | None = None) -> Vectors:
        """Prepare packed vectors for search.

        If there are many, a sketch (short projections) is computed unless one is given.
        """
        if packed.numbers.size <= MAX_EXACT_NUMBERS:
            return cls(packed, packed.dequantize_columns(_BLOCK_COLUMNS), None)
        return cls(packed, (), sketch or Sketch.of(packed))

    @property
    def size(self) -> int:
        return self.packed.size

    @property
    def width(self) -> int:
        return self.packed.width

    def with_rows(self, size: int, positions: Positions, rows: PackedVectors) -> Vectors:
        """Return a copy of the vectors with `size` rows and with `rows` stored at `positions`."""
        packed = self.packed.with_rows(size, positions, rows)
        if not self.blocks or packed.numbers.size > MAX_EXACT_NUMBERS:
            return Vectors.of(packed, self.sketch and self.sketch.with_rows(size, positions, rows))
        fresh = rows.dequantize_columns(_BLOCK_COLUMNS)
        blocks = (
            _with_rows(before, size, positions, new) for before, new in zip(self.blocks, fresh, strict=True)
        )
        return Vectors(packed, tuple(blocks), None)

    def similarities(self, vector: Matrix, hidden: Positions, keyword_scores: Scores) -> Scores:
        """Return each tool's similarity to a vector; EXCLUDED_SCORE for tools that may not be used.

        The most similar rows, and the best rows of the keyword leg, are always scored exactly.
        """
        if self.sketch is None:
            scores = self._exact_scores(vector)
            scores[hidden] = EXCLUDED_SCORE
            return scores
        scores = _row_products(self.sketch.rows, vector @ self.sketch.directions)
        scores[hidden] = EXCLUDED_SCORE
        rescored = np.zeros(self.size, bool)
        rescored[_highest_positions(scores, MAX_RESCORED_ROWS)] = True
        sharing = keyword_scores.nonzero()[0]
        rescored[sharing[_highest_positions(keyword_scores[sharing], MAX_RESCORED_ROWS // 8)]] = True
        rescored[hidden] = False
        positions = rescored.nonzero()[0]
        scores[positions] = self.packed.similarities(positions, vector)
        return scores

    def _exact_scores(self, vector: Matrix) -> Scores:
        used = _used_dimensions(vector)
        scores: Scores = np.zeros(self.size, np.float32)
        for number, columns in enumerate(self.blocks):
            part = vector[number * _BLOCK_COLUMNS : min((number + 1) * _BLOCK_COLUMNS, used)]
            if len(part):
                scores += _row_products(columns[:, : len(part)], part)
        return scores


def _with_rows(before: Matrix, size: int, positions: Positions, rows: Matrix) -> Matrix:
    """Return a copy of a matrix with `size` rows and with `rows` stored at `positions`."""
    changed: Matrix = np.zeros((size, before.shape[1]), np.float32)
    changed[: len(before)] = before
    changed[positions] = rows
    return changed


def _used_dimensions(vector: Matrix) -> int:
    """Return the length of a vector without its trailing zeros.

    Vectors of English texts have many trailing zeros.
    """
    return int(vector.nonzero()[0].max(initial=-1)) + 1


def _row_products(rows: Matrix, vector: Matrix) -> Scores:
    """Compute `rows @ vector` in this thread, because starting BLAS threads would take longer."""
    multiply_rows: Scores = np.vecdot(rows, vector)
    return multiply_rows


def multiply_rows(rows: Matrix, others: Matrix) -> Matrix:
    """Compute `rows @ others.T` for a few rows, in steps small enough for a single BLAS thread."""
    step = max(1, _MAX_SINGLE_THREAD_PRODUCTS // max(others.size, 1))
    if step >= len(rows):
        return rows @ others.T
    return np.concatenate([rows[start : start + step] @ others.T for start in range(0, len(rows), step)])


def _highest_positions(scores: Scores, limit: int) -> Positions:
    """Return the positions of the highest scores, in any order."""
    if limit >= len(scores):
        return np.arange(len(scores))
    bound = np.partition(scores, len(scores) - limit)[len(scores) - limit]
    above = np.flatnonzero(scores > bound)
    return np.append(above, np.flatnonzero(scores == bound)[: limit - len(above)])
