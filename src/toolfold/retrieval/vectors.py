"""Many tools' vectors: a byte a number, and how near each is to a message.

A product with every row is exact, and quick enough for millions of numbers. Beyond that memory is what
takes the time, so a sketch finds the neighbourhood first (each row along the few directions in which the
rows differ most) and the products are exact only there. Knows nothing of tools or models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from toolfold.retrieval.ranking import NEVER, Places, Scores

Matrix = NDArray[np.float32]

WIDEST = 8_192
"""Twice the longest vectors of any common model: what a sketch needs grows with the square."""
MOST_WHOLE = 10_000_000
REFINED = 1_024
SKETCHED = 128
_SAMPLE = 4_096
_COLUMNS = 384
_NOTHING = 1e-9
_DONE_ALONE = 1 << 18
"""How many products of numbers a BLAS does not share among threads."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A byte a number, a scale a row. Fresh vectors go through it too: the first run orders like the next."""

    numbers: NDArray[np.int8]
    scales: Matrix

    @classmethod
    def of(cls, vectors: Matrix) -> Packed:
        """These vectors, a little rounded."""
        scales = (np.abs(vectors).max(1, initial=_NOTHING) / 127).astype(np.float32)
        return cls(np.round(vectors / scales[:, None]).astype(np.int8), scales)

    @classmethod
    def empty(cls, size: int, width: int) -> Packed:
        """Rows that say nothing."""
        return cls(np.zeros((size, width), np.int8), np.zeros(size, np.float32))

    @property
    def size(self) -> int:
        return len(self.numbers)

    @property
    def width(self) -> int:
        return int(self.numbers.shape[1])

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which rows say something."""
        return self.scales > _NOTHING

    def taken(self, places: Places) -> Packed:
        """Some of the rows."""
        return Packed(self.numbers[places], self.scales[places])

    def restored(self) -> Matrix:
        """As vectors again."""
        restored: Matrix = self.numbers.astype(np.float32)
        restored *= self.scales[:, None]
        return restored

    def in_columns(self, most: int) -> tuple[Matrix, ...]:
        """As vectors again, at most so many of their numbers in each part."""
        parts = (self.numbers[:, start : start + most] for start in range(0, self.width, most))
        return tuple(Packed(part, self.scales).restored() for part in parts)

    def near(self, places: Places, vector: Matrix) -> Scores:
        """How near some of the rows are."""
        said = _said(vector)
        rows = self.numbers[:, :said][places].astype(np.float32)
        return _products(rows, vector[:said]) * self.scales[places]

    def with_rows(self, size: int, places: Places, rows: Packed) -> Packed:
        """With other rows at these places, and room for more at the end."""
        changed = Packed.empty(size, self.width)
        changed.numbers[: self.size], changed.scales[: self.size] = self.numbers, self.scales
        changed.numbers[places], changed.scales[places] = rows.numbers, rows.scales
        return changed


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """Rows along the directions in which most of their differences lie."""

    directions: Matrix
    rows: Matrix

    @classmethod
    def of(cls, packed: Packed) -> Sketch:
        """Drawn from a sample of the rows, with a part for every row."""
        sample = packed.taken(np.arange(0, packed.size, max(1, packed.size // _SAMPLE))).restored()
        _, directions = np.linalg.eigh(sample.T @ sample)
        most = max(SKETCHED, packed.width // 3)
        telling: Matrix = np.ascontiguousarray(directions[:, ::-1][:, :most], np.float32)
        rows: Matrix = np.empty((packed.size, telling.shape[1]), np.float32)
        for start in range(0, packed.size, _SAMPLE):
            part = np.arange(start, min(packed.size, start + _SAMPLE))
            rows[part] = packed.taken(part).restored() @ telling
        return cls(telling, rows)

    def with_rows(self, size: int, places: Places, rows: Packed) -> Sketch:
        return replace(self, rows=_with_rows(self.rows, size, places, rows.restored() @ self.directions))


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """The rows of an index, ready to be compared: either whole, or with a sketch."""

    packed: Packed
    whole: tuple[Matrix, ...]
    """Side by side, each of so many columns: what a message says nothing in is not even passed by."""
    sketch: Sketch | None

    @classmethod
    def of(cls, packed: Packed, sketch: Sketch | None = None) -> Vectors:
        """A sketch that is known is not drawn again."""
        if packed.numbers.size <= MOST_WHOLE:
            return cls(packed, packed.in_columns(_COLUMNS), None)
        return cls(packed, (), sketch or Sketch.of(packed))

    @property
    def size(self) -> int:
        return self.packed.size

    @property
    def width(self) -> int:
        return self.packed.width

    def with_rows(self, size: int, places: Places, rows: Packed) -> Vectors:
        """With other rows at these places, and room for more at the end."""
        packed = self.packed.with_rows(size, places, rows)
        if not self.whole or packed.numbers.size > MOST_WHOLE:
            return Vectors.of(packed, self.sketch and self.sketch.with_rows(size, places, rows))
        fresh = rows.in_columns(_COLUMNS)
        whole = (_with_rows(before, size, places, new) for before, new in zip(self.whole, fresh, strict=True))
        return Vectors(packed, tuple(whole), None)

    def near(self, vector: Matrix, hidden: Places, beside: Scores) -> Scores:
        """How near each row is; NEVER for those hidden.

        What is nearest, and what is best in the scores of another leg, is always told exactly.
        """
        if self.sketch is None:
            scores = self._wholly(vector)
            scores[hidden] = NEVER
            return scores
        scores = _products(self.sketch.rows, vector @ self.sketch.directions)
        scores[hidden] = NEVER
        telling = np.zeros(self.size, bool)
        telling[_highest(scores, REFINED)] = True
        sharing = beside.nonzero()[0]
        telling[sharing[_highest(beside[sharing], REFINED // 8)]] = True
        telling[hidden] = False
        places = telling.nonzero()[0]
        scores[places] = self.packed.near(places, vector)
        return scores

    def _wholly(self, vector: Matrix) -> Scores:
        said = _said(vector)
        scores: Scores = np.zeros(self.size, np.float32)
        for number, columns in enumerate(self.whole):
            part = vector[number * _COLUMNS : min((number + 1) * _COLUMNS, said)]
            if len(part):
                scores += _products(columns[:, : len(part)], part)
        return scores


def _with_rows(before: Matrix, size: int, places: Places, rows: Matrix) -> Matrix:
    """A copy with other rows at these places, and room for more at the end."""
    changed: Matrix = np.zeros((size, before.shape[1]), np.float32)
    changed[: len(before)] = before
    changed[places] = rows
    return changed


def _said(vector: Matrix) -> int:
    """Up to where a message says anything: an English one says nothing in the end."""
    return int(vector.nonzero()[0].max(initial=-1)) + 1


def _products(rows: Matrix, vector: Matrix) -> Scores:
    """As `rows @ vector`, but in this thread: waking others for a millisecond's work costs more than it."""
    products: Scores = np.vecdot(rows, vector)
    return products


def products(rows: Matrix, others: Matrix) -> Matrix:
    """As `rows @ others.T` for a few rows, in this thread: so few at once that none other is woken."""
    step = max(1, _DONE_ALONE // max(others.size, 1))
    if step >= len(rows):
        return rows @ others.T
    return np.concatenate([rows[start : start + step] @ others.T for start in range(0, len(rows), step)])


def _highest(scores: Scores, most: int) -> Places:
    """Where the highest scores stand, in no order; the earlier places of those alike at the bound."""
    if most >= len(scores):
        return np.arange(len(scores))
    bound = np.partition(scores, len(scores) - most)[len(scores) - most]
    above = np.flatnonzero(scores > bound)
    return np.append(above, np.flatnonzero(scores == bound)[: most - len(above)])
