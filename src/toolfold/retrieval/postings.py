"""From tokens to sorted arrays: which term says how much of which tool.

What the keyword leg counts is a sum over occurrences, so nothing is counted term by term: tools become
one long row of numbered terms, and the arrays are sorted and added up some thousands of tools at a time.
Knows places and fields by number only, nothing of tools or messages.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Few = NDArray[np.int32]
Weights = NDArray[np.float32]

K1 = 1.2
BLOCK = 4_096
_PLACE_BITS = 32


@dataclass(frozen=True, slots=True)
class Field:
    """How much a part of a tool counts, and how much its length counts against it."""

    weight: float
    by_length: float


class Vocabulary(dict[str, int]):
    """Terms with their numbers. A term that is asked for and not there gets the next one."""

    def __missing__(self, term: str) -> int:
        self[term] = number = len(self)
        return number


def _row() -> array[int]:
    return array("i")


@dataclass(slots=True)
class Texts:
    """What tools say as numbered terms, one field after the other. Places must come in ascending order."""

    vocabulary: Vocabulary
    terms: array[int] = field(default_factory=_row)
    places: array[int] = field(default_factory=_row)
    fields: array[int] = field(default_factory=_row)
    counts: array[int] = field(default_factory=_row)

    def add(self, place: int, number: int, tokens: Sequence[str]) -> None:
        """Take in one field of one tool."""
        self.terms.extend(map(self.vocabulary.__getitem__, tokens))
        self.places.append(place)
        self.fields.append(number)
        self.counts.append(len(tokens))

    def averages(self, fields: int, tools: int) -> list[float]:
        """The average length of each field; 1 for one that nobody has."""
        totals = np.bincount(ints(self.fields), ints(self.counts), fields)
        return [float(total) / max(1, tools) or 1.0 for total in totals]

    def postings(self, fields: Sequence[Field], averages: Sequence[float]) -> Iterator[Postings]:
        """The tools' postings, each part those of some places after the places before."""
        places, counts, number = ints(self.places), ints(self.counts), ints(self.fields)
        by_length = np.array([each.by_length for each in fields])[number]
        weight = np.array([each.weight for each in fields])[number]
        each = weight / (1 - by_length + by_length * counts / np.array(averages)[number])
        ends = starts_of(counts)
        terms = ints(self.terms)
        for first in range(0, int(places.max(initial=-1)) + 1, BLOCK):
            part = slice(*np.searchsorted(places, (first, first + BLOCK)))
            said = terms[ends[part.start] : ends[part.stop]]
            where, much = np.repeat(places[part], counts[part]), np.repeat(each[part], counts[part])
            yield Postings.summed(said, where, much)


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """Sorted by term, and by place within a term."""

    terms: Numbers
    places: Few
    weights: Weights

    @classmethod
    def summed(cls, terms: Few, places: Few, each: NDArray[np.float64]) -> Postings:
        """All occurrences of a term in a tool made one, the further ones counting less and less."""
        keys = keys_of(terms, places)
        order = np.argsort(keys)
        keys = keys[order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        value = np.add.reduceat(each[order], first) if len(first) else each
        keys = keys[first]
        found = (keys & ((1 << _PLACE_BITS) - 1)).astype(np.int32)
        return cls(keys >> _PLACE_BITS, found, (value / (K1 + value)).astype(np.float32))


def joined(parts: Sequence[Postings], terms: int) -> tuple[Numbers, Few, Weights]:
    """Parts with ascending places as one: where each term's postings begin, their places and weights."""
    counts = [np.bincount(part.terms, minlength=terms) for part in parts]
    starts = starts_of(np.add.reduce([np.zeros(terms, np.int64), *counts]))
    places, weights = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.float32)
    room = starts[:-1].copy()
    for part, count in zip(parts, counts, strict=True):
        at = np.arange(len(part.terms)) + (room - starts_of(count)[:-1])[part.terms]
        places[at], weights[at] = part.places, part.weights
        room += count
    return starts, places, weights


def keys_of(terms: NDArray[np.integer], places: NDArray[np.integer]) -> Numbers:
    """A number a posting, which sorts by term and then by place."""
    return (terms.astype(np.int64) << _PLACE_BITS) | places


def starts_of(counts: NDArray[np.integer] | NDArray[np.bool_]) -> Numbers:
    """Where each of some rows begins if they stand one after the other, and where the last ends."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def ints(values: array[int]) -> Few:
    """The same numbers, for numpy."""
    return np.frombuffer(values, np.int32) if len(values) else np.zeros(0, np.int32)
