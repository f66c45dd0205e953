"""The keyword leg: BM25F over what a tool says of itself, as arrays.

Fields have weights and are normalised by their own length. What a term adds to a tool's score is worked
out once, when the tool is indexed; a query adds up a few slices. One changed tool is cut out of the
arrays and put in again, without touching the others.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolfold.model import Tool
from toolfold.retrieval.text import Words

K1 = 1.2
_DEEPEST = 4


@dataclass(frozen=True, slots=True)
class Field:
    """How much a part of a tool counts, and how much its length counts against it."""

    weight: float
    by_length: float


FIELDS: Mapping[str, Field] = {
    "name": Field(2.0, 0.4),
    "title": Field(1.5, 0.4),
    "synonyms": Field(1.5, 0.0),
    "description": Field(1.0, 0.6),
    "parameters": Field(0.5, 0.6),
    "parameter descriptions": Field(0.4, 0.6),
    "values": Field(0.4, 0.6),
    "server": Field(0.5, 0.0),
}

Document = Mapping[str, Counter[str]]


def read(tool: Tool, words: Words) -> Document:
    """A tool's fields as counted tokens."""
    parameters = Parameters()
    parameters.collect(tool.parameters)
    texts = {
        "name": tool.original_name or tool.name,
        "title": tool.title,
        "synonyms": " ".join(tool.synonyms),
        "description": tool.description,
        "parameters": " ".join(parameters.names),
        "parameter descriptions": " ".join(parameters.descriptions),
        "values": " ".join(parameters.values),
        "server": tool.source.name or tool.toolset,
    }
    return {name: Counter(words.tokens(text)) for name, text in texts.items() if text}


@dataclass(slots=True)
class Parameters:
    """What a schema says in words: names, descriptions and listed values, at any sane depth."""

    names: list[str] = field(default_factory=list)
    descriptions: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    def collect(self, schema: Any, depth: int = 0) -> None:
        """Take in a schema and those inside it."""
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return
        properties = schema.get("properties")
        for name, inner in properties.items() if isinstance(properties, Mapping) else ():
            self.names.append(name)
            self._describe(inner)
            self.collect(inner, depth + 1)
        self._describe(schema.get("items"))
        self.collect(schema.get("items"), depth + 1)

    def _describe(self, schema: Any) -> None:
        if not isinstance(schema, Mapping):
            return
        if isinstance(schema.get("description"), str):
            self.descriptions.append(schema["description"])
        listed = schema.get("enum")
        if isinstance(listed, list):
            self.values += [value for value in listed[:30] if isinstance(value, str)]


@dataclass(frozen=True, slots=True, eq=False)
class Lexical:
    """Postings, by term: which tools have it and how much it says about each."""

    words: Words
    size: int
    terms: Mapping[str, int]
    starts: NDArray[np.int64]
    places: NDArray[np.int32]
    weights: NDArray[np.float32]
    lengths: Mapping[str, float]
    """The average length of each field when the index was built whole."""

    @classmethod
    def build(cls, tools: Sequence[Tool], words: Words) -> Lexical:
        """The index of these tools, in their order."""
        documents = [read(tool, words) for tool in tools]
        totals: Counter[str] = Counter()
        for document in documents:
            totals.update({name: counts.total() for name, counts in document.items()})
        lengths = {name: totals[name] / max(1, len(documents)) or 1.0 for name in FIELDS}
        postings: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        for place, document in enumerate(documents):
            for term, weight in _weighed(document, lengths).items():
                postings[term].append((place, weight))
        return cls._of(postings, len(documents), lengths, words)

    @classmethod
    def _of(
        cls,
        postings: Mapping[str, list[tuple[int, float]]],
        size: int,
        lengths: Mapping[str, float],
        words: Words,
    ) -> Lexical:
        counts = [len(entries) for entries in postings.values()]
        flat = [entry for entries in postings.values() for entry in entries]
        return cls(
            words=words,
            size=size,
            terms={term: number for number, term in enumerate(postings)},
            starts=np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).astype(np.int64),
            places=np.fromiter((place for place, _ in flat), np.int32, len(flat)),
            weights=np.fromiter((weight for _, weight in flat), np.float32, len(flat)),
            lengths=lengths,
        )

    def scores(self, query: str) -> tuple[NDArray[np.float32], float]:
        """Every tool's score, and the score of one that would match every word as well as can be."""
        total = np.zeros(self.size, np.float32)
        best = 0.0
        for term in dict.fromkeys(self.words.telling(query)):
            rarity, start, end = self._rarity(term)
            best += rarity
            if end > start:
                total[self.places[start:end]] += self.weights[start:end] * np.float32(rarity)
        return total, best

    def matched(self, query: str, places: Sequence[int]) -> list[list[str]]:
        """For each of these tools, the words of the query it shares, for a person."""
        found: dict[int, list[str]] = {place: [] for place in places}
        for term, word in self.words.as_written(query).items():
            _, start, end = self._rarity(term)
            for place in np.intersect1d(self.places[start:end], places, assume_unique=True):
                found[int(place)].append(word)
        return [found[place] for place in places]

    def without(self, gone: Iterable[int], size: int) -> Lexical:
        """The index with these places empty, and room for more at its end."""
        dead = np.zeros(max(self.size, size), bool)
        dead[list(gone)] = True
        kept = ~dead[self.places]
        running = np.concatenate(([0], np.cumsum(kept)))
        return replace(
            self,
            size=size,
            starts=running[self.starts].astype(np.int64),
            places=self.places[kept],
            weights=self.weights[kept],
        )

    def with_tool(self, place: int, tool: Tool) -> Lexical:
        """The index with a tool at an empty place."""
        weighed = _weighed(read(tool, self.words), self.lengths)
        terms = dict(self.terms)
        starts = self.starts
        fresh = [term for term in weighed if term not in terms]
        terms.update({term: len(terms) + number for number, term in enumerate(fresh)})
        starts = np.concatenate((starts, np.full(len(fresh), starts[-1])))
        numbers = np.sort(np.array([terms[term] for term in weighed], np.int64))
        names = {terms[term]: weight for term, weight in weighed.items()}
        at = starts[numbers + 1]
        added = np.zeros(len(starts), np.int64)
        added[numbers + 1] = 1
        return replace(
            self,
            terms=terms,
            starts=starts + np.cumsum(added),
            places=np.insert(self.places, at, np.int32(place)),
            weights=np.insert(self.weights, at, [names[int(number)] for number in numbers]),
        )

    def _rarity(self, term: str) -> tuple[float, int, int]:
        """How much a term tells, and where its postings stand. A term nobody has tells the most."""
        number = self.terms.get(term)
        start, end = (0, 0) if number is None else map(int, self.starts[number : number + 2])
        having = end - start
        return math.log(1 + (self.size - having + 0.5) / (having + 0.5)), start, end


def _weighed(document: Document, lengths: Mapping[str, float]) -> dict[str, float]:
    frequency: defaultdict[str, float] = defaultdict(float)
    for name, counts in document.items():
        settings = FIELDS[name]
        length = counts.total() / lengths[name]
        norm = 1 - settings.by_length + settings.by_length * length
        for term, count in counts.items():
            frequency[term] += settings.weight * count / norm
    return {term: value / (K1 + value) for term, value in frequency.items()}
