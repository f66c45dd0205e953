"""Build the sorted arrays (postings) of the keyword index from tokens.

The weight of a term is a sum over its occurrences, so the tools become one long array of term numbers,
which is sorted and summed for some thousands of tools at a time. Knows positions and fields only by
number, nothing of tools or messages.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Float32s = NDArray[np.float32]

K1 = 1.2
BLOCK_SIZE = 4_096
_POSITION_BITS = 32


@dataclass(frozen=True, slots=True)
class FieldConfig:
    """BM25F parameters of one text field: its weight and its length normalisation."""

    weight: float
    length_penalty: float


class Vocabulary(dict[str, int]):
    """Mapping from each term of the keyword index to its number; new terms get the next number."""

    def __missing__(self, term: str) -> int:
        self[term] = number = len(self)
        return number


def _empty_array() -> array[int]:
    return array("i")


@dataclass(slots=True)
class TermTable:
    """Terms of all tools as numbers, stored consecutively for each text field of each tool.

    Tools must be added in ascending order of position.
    """

    vocabulary: Vocabulary
    terms: array[int] = field(default_factory=_empty_array)
    positions: array[int] = field(default_factory=_empty_array)
    fields: array[int] = field(default_factory=_empty_array)
    counts: array[int] = field(default_factory=_empty_array)

    def add(self, position: int, number: int, tokens: Sequence[str]) -> None:
        """Add the tokens of one text field of one tool."""
        self.terms.extend(map(self.vocabulary.__getitem__, tokens))
        self.positions.append(position)
        self.fields.append(number)
        self.counts.append(len(tokens))

    def averages(self, fields: int, tools: int) -> list[float]:
        """Return the average number of terms in each text field; 1 for a field that no tool has."""
        totals = np.bincount(as_int32(self.fields), as_int32(self.counts), fields)
        return [float(total) / max(1, tools) or 1.0 for total in totals]

    def postings(self, fields: Sequence[FieldConfig], averages: Sequence[float]) -> Iterator[Postings]:
        """Yield the postings in blocks of ascending tool positions."""
        positions, counts, number = as_int32(self.positions), as_int32(self.counts), as_int32(self.fields)
        length_penalty = np.array([each.length_penalty for each in fields])[number]
        weight = np.array([each.weight for each in fields])[number]
        each = weight / (1 - length_penalty + length_penalty * counts / np.array(averages)[number])
        ends = row_starts(counts)
        terms = as_int32(self.terms)
        for first in range(0, int(positions.max(initial=-1)) + 1, BLOCK_SIZE):
            part = slice(*np.searchsorted(positions, (first, first + BLOCK_SIZE)))
            said = terms[ends[part.start] : ends[part.stop]]
            where, much = np.repeat(positions[part], counts[part]), np.repeat(each[part], counts[part])
            yield Postings.sum_occurrences(said, where, much)


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """Entries of the keyword index (term, tool position, weight), sorted by term, then by position."""

    terms: Int64s
    positions: Int32s
    weights: Float32s

    @classmethod
    def sum_occurrences(cls, terms: Int32s, positions: Int32s, each: NDArray[np.float64]) -> Postings:
        """Return postings with the sum of the BM25 weights of all occurrences of each term in each tool."""
        keys = sort_keys(terms, positions)
        order = np.argsort(keys)
        keys = keys[order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        value = np.add.reduceat(each[order], first) if len(first) else each
        keys = keys[first]
        found = (keys & ((1 << _POSITION_BITS) - 1)).astype(np.int32)
        return cls(keys >> _POSITION_BITS, found, (value / (K1 + value)).astype(np.float32))


def merge_postings(parts: Sequence[Postings], terms: int) -> tuple[Int64s, Int32s, Float32s]:
    """Merge blocks of postings into three arrays: the offset of each term, tool positions and weights."""
    counts = [np.bincount(part.terms, minlength=terms) for part in parts]
    starts = row_starts(np.add.reduce([np.zeros(terms, np.int64), *counts]))
    positions, weights = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.float32)
    room = starts[:-1].copy()
    for part, count in zip(parts, counts, strict=True):
        at = np.arange(len(part.terms)) + (room - row_starts(count)[:-1])[part.terms]
        positions[at], weights[at] = part.positions, part.weights
        room += count
    return starts, positions, weights


def sort_keys(terms: NDArray[np.integer], positions: NDArray[np.integer]) -> Int64s:
    """Return one integer sort key per posting, which sorts by term and then by position."""
    return (terms.astype(np.int64) << _POSITION_BITS) | positions


def row_starts(counts: NDArray[np.integer] | NDArray[np.bool_]) -> Int64s:
    """Return the start of each row in an array of concatenated rows, and the end of the last row."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def as_int32(values: array[int]) -> Int32s:
    """View a standard-library array as a numpy array of 32-bit integers."""
    return np.frombuffer(values, np.int32) if len(values) else np.zeros(0, np.int32)
