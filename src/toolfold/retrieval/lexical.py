"""The keyword leg: BM25F over what a tool says of itself, as arrays.

Fields have weights and are normalised by their own length. What a term adds to a tool's score is worked
out once, when the tool is indexed; a query adds up a few slices. Changed tools are cut out of the arrays
and put in again, without touching the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from toolfold.model import Tool
from toolfold.retrieval.postings import (
    Few,
    Field,
    Numbers,
    Texts,
    Vocabulary,
    Weights,
    joined,
    starts_of,
)
from toolfold.retrieval.schemas import listed_values, nested
from toolfold.retrieval.text import Words

LONGEST_NAME = 16
_DEEPEST = 4
_MOST_SCHEMAS = 1_000
_MOST_VALUES = 30

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


def read(tool: Tool) -> Mapping[str, str]:
    """What a tool says in each field."""
    parameters = Parameters.of(tool.parameters)
    return {
        "name": tool.own_name,
        "title": tool.title,
        "synonyms": " ".join(tool.synonyms),
        "description": tool.description,
        "parameters": " ".join(parameters.names),
        "parameter descriptions": " ".join(parameters.descriptions),
        "values": " ".join(parameters.values),
        "server": tool.source.name or tool.toolset,
    }


def own_name(tool: Tool) -> str:
    """The tool's name without its server's, which all its neighbours share."""
    name = tool.own_name
    return name.removeprefix("mcp_").removeprefix(tool.server) or name


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a schema says in words: names, descriptions and listed values, at any sane depth."""

    names: list[str] = field(default_factory=list)
    descriptions: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, schema: Any) -> Parameters:
        """Of a tool's parameters: those it lists, those inside them, and what they refer to."""
        found = cls()
        for name, inner in nested(schema, depth=_DEEPEST, most=_MOST_SCHEMAS):
            if name:
                found.names.append(name)
            if isinstance(inner.get("description"), str):
                found.descriptions.append(inner["description"])
            found.values.extend(listed_values(inner)[:_MOST_VALUES])
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Lexical:
    """Postings, by term: which tools have it and how much it says about each."""

    words: Words
    size: int
    terms: Mapping[str, int]
    starts: Numbers
    places: Few
    """Ascending within a term."""
    weights: Weights
    names: Few
    """A row a tool: the terms of its own name, then -1."""
    lengths: Mapping[str, float]
    """The average length of each field when the index was built whole."""

    @classmethod
    def build(cls, tools: Sequence[Tool], words: Words) -> Lexical:
        """The index of these tools, in their order."""
        texts, names = _cut(dict(enumerate(tools)), words, Vocabulary())
        averages = texts.averages(len(FIELDS), len(tools))
        parts = list(texts.postings(list(FIELDS.values()), averages))
        starts, places, weights = joined(parts, len(texts.vocabulary))
        return cls(
            words=words,
            size=len(tools),
            terms=dict(texts.vocabulary),
            starts=starts,
            places=places,
            weights=weights,
            names=names,
            lengths=dict(zip(FIELDS, averages, strict=True)),
        )

    def scores(self, query: str) -> tuple[Weights, float]:
        """Every tool's score, and the score of one that would match every word as well as can be."""
        said = [self._rarity(term) for term in self.words.said(query).telling]
        best = sum(rarity for rarity, _, _ in said)
        having = [(rarity, start, end) for rarity, start, end in said if end > start]
        if not having:
            return np.zeros(self.size, np.float32), best
        places = np.concatenate([self.places[start:end] for _, start, end in having])
        weights = np.concatenate([self.weights[start:end] for _, start, end in having])
        rarities = np.array([rarity for rarity, _, _ in having], np.float32)
        weights *= rarities.repeat([end - start for _, start, end in having])
        return np.bincount(places, weights, self.size).astype(np.float32), best

    def matched(self, query: str, places: Sequence[int]) -> list[list[str]]:
        """For each of these tools, the words of the query it shares, for a person."""
        found: list[list[str]] = [[] for _ in places]
        if not len(places):
            return found
        wanted = np.asarray(places, np.int32)
        for term, word in self.words.said(query).telling.items():
            _, start, end = self._rarity(term)
            if end > start:
                having = self.places[start:end]
                at = having.searchsorted(wanted)
                for row in (having.take(at, mode="clip") == wanted).nonzero()[0].tolist():
                    found[row].append(word)
        return found

    def name_coverage(self, query: str, places: Numbers) -> Weights:
        """How much of each of these tools' own names the query says."""
        said = np.zeros(len(self.terms) + 1, bool)
        said[[self.terms.get(piece, -1) for piece in self.words.said(query).every]] = True
        said[-1] = False  # what no tool has, and the end of every name
        names, one = self.names[places], np.ones(LONGEST_NAME, np.float32)
        covered: Weights = said[names].astype(np.float32) @ one
        covered /= np.maximum((names >= 0).astype(np.float32) @ one, 1)
        return covered

    def without(self, gone: Iterable[int], size: int) -> Lexical:
        """The index with these places empty, and room for more at its end."""
        dead = np.zeros(max(self.size, size), bool)
        dead[list(gone)] = True
        kept = ~dead[self.places]
        names = np.full((size, LONGEST_NAME), -1, np.int32)
        names[: self.size] = np.where(dead[: self.size, None], -1, self.names)[:size]
        return replace(
            self,
            size=size,
            starts=starts_of(kept)[self.starts],
            places=self.places[kept],
            weights=self.weights[kept],
            names=names,
        )

    def with_tools(self, new: Mapping[int, Tool]) -> Lexical:
        """The index with tools at empty places."""
        if not new:
            return self
        texts, added = _cut(new, self.words, Vocabulary(self.terms))
        terms = len(texts.vocabulary)
        averages = [self.lengths[name] for name in FIELDS]
        more, places, weights = joined(list(texts.postings(list(FIELDS.values()), averages)), terms)
        starts = np.append(self.starts, np.full(terms - len(self.terms), self.starts[-1]))
        at = _between(self.places, starts, places, more)
        names = self.names.copy()
        names[sorted(new)] = added
        return replace(
            self,
            terms=dict(texts.vocabulary),
            starts=starts + more,
            places=np.insert(self.places, at, places),
            weights=np.insert(self.weights, at, weights),
            names=names,
        )

    def _rarity(self, term: str) -> tuple[float, int, int]:
        """How much a term tells, and where its postings stand. A term nobody has tells the most."""
        number = self.terms.get(term)
        start, end = (0, 0) if number is None else self.starts[number : number + 2].tolist()
        having = end - start
        return math.log(1 + (self.size - having + 0.5) / (having + 0.5)), start, end


def _cut(tools: Mapping[int, Tool], words: Words, vocabulary: Vocabulary) -> tuple[Texts, Few]:
    """What tools say, and their own names by themselves, in the order of their places."""
    texts, names = Texts(vocabulary), np.full((len(tools), LONGEST_NAME), -1, np.int32)
    for row, place in enumerate(sorted(tools)):
        said = read(tools[place])
        for number, name in enumerate(FIELDS):
            if said[name]:
                texts.add(place, number, words.tokens(said[name]))
        own = words.tokens(own_name(tools[place]))[:LONGEST_NAME]
        names[row, : len(own)] = [vocabulary[token] for token in own]
    return texts, names


def _between(places: Few, starts: Numbers, new: Few, new_starts: Numbers) -> Numbers:
    """Where the new postings of each term belong among those it has."""
    at = np.empty(len(new), np.int64)
    for term in np.diff(new_starts).nonzero()[0].tolist():
        first, after = new_starts[term : term + 2].tolist()
        start, end = starts[term : term + 2].tolist()
        at[first:after] = start + places[start:end].searchsorted(new[first:after])
    return at
