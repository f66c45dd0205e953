"""Keyword index of tools: BM25F over their text fields, stored as arrays.

Fields have weights and are normalised by their own length. The weight of a term for a tool is computed
once, when the tool is indexed; a query sums a few slices. Changed tools are removed from the arrays and
inserted again without touching the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from toolfold.core.types import Tool
from toolfold.selection.retrieval.postings import (
    FieldConfig,
    Float32s,
    Int32s,
    Int64s,
    TermTable,
    Vocabulary,
    merge_postings,
    row_starts,
    sort_keys,
)
from toolfold.selection.retrieval.schemas import iterate_schemas, listed_values
from toolfold.selection.retrieval.text import WordTokenizer

MAX_NAME_TERMS = 16
_MAX_SCHEMA_DEPTH = 4
_MAX_SCHEMAS = 1_000
_MAX_VALUES = 30

MESSAGES_FIELD = "messages"
FIELDS: Mapping[str, FieldConfig] = {
    "name": FieldConfig(2.0, 0.4),
    "title": FieldConfig(1.5, 0.4),
    "synonyms": FieldConfig(1.5, 0.0),
    "description": FieldConfig(1.0, 0.6),
    "parameters": FieldConfig(0.5, 0.6),
    "parameter descriptions": FieldConfig(0.4, 0.6),
    "values": FieldConfig(0.4, 0.6),
    "server": FieldConfig(0.5, 0.0),
    MESSAGES_FIELD: FieldConfig(0.1, 0.0),
}


def field_texts(tool: Tool) -> Mapping[str, str]:
    """Return the text of each field of a tool (name, description …) for the keyword index."""
    parameters = ParameterTexts.of(tool.parameters)
    return {
        "name": tool.own_name,
        "title": tool.title,
        "synonyms": " ".join(tool.synonyms),
        "description": tool.description,
        "parameters": " ".join(parameters.names),
        "parameter descriptions": " ".join(parameters.descriptions),
        "values": " ".join(parameters.values),
        "server": tool.source.name or tool.toolset,
        MESSAGES_FIELD: "\n".join(tool.messages),
    }


def own_name(tool: Tool) -> str:
    """Return the tool's name without the name of its server."""
    name = tool.own_name
    return name.removeprefix("mcp_").removeprefix(tool.server) or name


@dataclass(frozen=True, slots=True)
class ParameterTexts:
    """Names, descriptions and enum values of all parameters in a tool's schema, including nested ones."""

    names: list[str] = field(default_factory=list)
    descriptions: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, schema: Any) -> ParameterTexts:
        """Collect the texts in a tool's parameter schema, including nested and referenced schemas."""
        found = cls()
        for name, inner in iterate_schemas(schema, depth=_MAX_SCHEMA_DEPTH, limit=_MAX_SCHEMAS):
            if name:
                found.names.append(name)
            if isinstance(inner.get("description"), str):
                found.descriptions.append(inner["description"])
            found.values.extend(listed_values(inner)[:_MAX_VALUES])
        return found


@dataclass(frozen=True, slots=True)
class TermStatistics:
    """Number of tools in a whole catalog, and number of tools that contain each term."""

    tools: int
    frequencies: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class KeywordIndex:
    """Inverted index: for each term, the tools that contain it and the term's weight for each tool."""

    words: WordTokenizer
    size: int
    terms: Mapping[str, int]
    starts: Int64s
    positions: Int32s
    """Ascending within a term."""
    weights: Float32s
    names: Int32s
    """One row per tool: the terms of its own name, padded with -1."""
    lengths: Mapping[str, float]
    """Average length of each field when the index was last built from scratch."""
    statistics: TermStatistics | None = None
    """Of the whole catalog, if the index has only some candidates of it."""

    @classmethod
    def of_candidates(
        cls,
        tools: Sequence[Tool],
        weights: Sequence[Mapping[str, float]],
        words: WordTokenizer,
        statistics: TermStatistics,
    ) -> KeywordIndex:
        """Build an index of some tools of a larger catalog from the given weights of their terms."""
        vocabulary = Vocabulary()
        # One array at a time: an array of tuples would take most of the time of a search.
        terms = np.fromiter(map(vocabulary.__getitem__, itertools.chain.from_iterable(weights)), np.int64)
        positions = np.repeat(np.arange(len(weights)), list(map(len, weights)))
        values = np.fromiter(
            itertools.chain.from_iterable(each.values() for each in weights), np.float32, len(terms)
        )
        order = np.argsort(sort_keys(terms, positions))
        names = _name_terms(tools, words, vocabulary)
        return cls(
            words=words,
            size=len(tools),
            terms=dict(vocabulary),
            starts=row_starts(np.bincount(terms, minlength=len(vocabulary))),
            positions=positions[order].astype(np.int32),
            weights=values[order],
            names=names,
            lengths={},
            statistics=statistics,
        )

    @classmethod
    def build(cls, tools: Sequence[Tool], words: WordTokenizer) -> KeywordIndex:
        """Build the keyword index of tools, in the given order."""
        texts, names = _tokenize_tools(dict(enumerate(tools)), words, Vocabulary())
        averages = texts.averages(len(FIELDS), len(tools))
        parts = list(texts.postings(list(FIELDS.values()), averages))
        starts, positions, weights = merge_postings(parts, len(texts.vocabulary))
        return cls(
            words=words,
            size=len(tools),
            terms=dict(texts.vocabulary),
            starts=starts,
            positions=positions,
            weights=weights,
            names=names,
            lengths=dict(zip(FIELDS, averages, strict=True)),
        )

    def scores(self, query: str) -> tuple[Float32s, float]:
        """Return the keyword score of every tool, and the score of a perfect match."""
        query_terms = [self._term_stats(term) for term in self.words.message_terms(query).content_terms]
        best = sum(rarity for rarity, _, _ in query_terms)
        having = [(rarity, start, end) for rarity, start, end in query_terms if end > start]
        if not having:
            return np.zeros(self.size, np.float32), best
        positions = np.concatenate([self.positions[start:end] for _, start, end in having])
        weights = np.concatenate([self.weights[start:end] for _, start, end in having])
        rarities = np.array([rarity for rarity, _, _ in having], np.float32)
        weights *= rarities.repeat([end - start for _, start, end in having])
        return np.bincount(positions, weights, self.size).astype(np.float32), best

    def matched(self, query: str, positions: Sequence[int]) -> list[list[str]]:
        """Return, for each of the given tool positions, the words of the query that the tool contains."""
        found: list[list[str]] = [[] for _ in positions]
        if not len(positions):
            return found
        wanted = np.asarray(positions, np.int32)
        for term, word in self.words.message_terms(query).content_terms.items():
            _, start, end = self._term_stats(term)
            if end > start:
                having = self.positions[start:end]
                at = having.searchsorted(wanted)
                for row in (having.take(at, mode="clip") == wanted).nonzero()[0].tolist():
                    found[row].append(word)
        return found

    def name_coverage(self, query: str, positions: Int64s) -> Float32s:
        """Return the share of the terms in each tool's name that the query contains."""
        query_terms = np.zeros(len(self.terms) + 1, bool)
        query_terms[[self.terms.get(piece, -1) for piece in self.words.message_terms(query).all_terms]] = True
        query_terms[-1] = False  # index -1: unknown terms and the padding of names
        names, one = self.names[positions], np.ones(MAX_NAME_TERMS, np.float32)
        covered: Float32s = query_terms[names].astype(np.float32) @ one
        covered /= np.maximum((names >= 0).astype(np.float32) @ one, 1)
        return covered

    def without(self, gone: Iterable[int], size: int) -> KeywordIndex:
        """Return a copy of the index without the tools at positions `gone`, resized to `size` positions."""
        dead = np.zeros(max(self.size, size), bool)
        dead[list(gone)] = True
        kept = ~dead[self.positions]
        names = np.full((size, MAX_NAME_TERMS), -1, np.int32)
        names[: self.size] = np.where(dead[: self.size, None], -1, self.names)[:size]
        return replace(
            self,
            size=size,
            starts=row_starts(kept)[self.starts],
            positions=self.positions[kept],
            weights=self.weights[kept],
            names=names,
        )

    def with_tools(self, new: Mapping[int, Tool]) -> KeywordIndex:
        """Return a copy of the index with tools added at empty positions."""
        if not new:
            return self
        texts, added = _tokenize_tools(new, self.words, Vocabulary(self.terms))
        terms = len(texts.vocabulary)
        averages = [self.lengths[name] for name in FIELDS]
        more, positions, weights = merge_postings(
            list(texts.postings(list(FIELDS.values()), averages)), terms
        )
        starts = np.append(self.starts, np.full(terms - len(self.terms), self.starts[-1]))
        at = _insertion_points(self.positions, starts, positions, more)
        names = self.names.copy()
        names[sorted(new)] = added
        return replace(
            self,
            terms=dict(texts.vocabulary),
            starts=starts + more,
            positions=np.insert(self.positions, at, positions),
            weights=np.insert(self.weights, at, weights),
            names=names,
        )

    def _term_stats(self, term: str) -> tuple[float, int, int]:
        """Return a term's inverse document frequency, and the start and end of its postings."""
        number = self.terms.get(term)
        start, end = (0, 0) if number is None else self.starts[number : number + 2].tolist()
        size, having = self.size, end - start
        if self.statistics is not None:
            size = max(self.statistics.tools, size)
            having = min(max(self.statistics.frequencies.get(term, 0), having), size)
        return math.log(1 + (size - having + 0.5) / (having + 0.5)), start, end


def compute_term_weights(
    tools: Sequence[Tool], words: WordTokenizer, lengths: Mapping[str, float]
) -> list[dict[str, float]]:
    """Return each tool's terms with their BM25F weights; `lengths` are the average field lengths."""
    texts, _ = _tokenize_tools(dict(enumerate(tools)), words, Vocabulary())
    terms, found = list(texts.vocabulary), [dict[str, float]() for _ in tools]
    averages = [lengths.get(name) or 1.0 for name in FIELDS]
    for part in texts.postings(list(FIELDS.values()), averages):
        rows = zip(part.terms.tolist(), part.positions.tolist(), part.weights.tolist(), strict=True)
        for term, position, weight in rows:
            found[position][terms[term]] = weight
    return found


def compute_field_lengths(tools: Sequence[Tool], words: WordTokenizer) -> dict[str, float]:
    """Return the average number of terms of each text field of the tools."""
    texts, _ = _tokenize_tools(dict(enumerate(tools)), words, Vocabulary())
    return dict(zip(FIELDS, texts.averages(len(FIELDS), len(tools)), strict=True))


def _tokenize_tools(
    tools: Mapping[int, Tool], words: WordTokenizer, vocabulary: Vocabulary
) -> tuple[TermTable, Int32s]:
    """Split the text fields and names of tools into numbered terms, in order of tool position."""
    texts = TermTable(vocabulary)
    for position in sorted(tools):
        query_terms = field_texts(tools[position])
        for number, name in enumerate(FIELDS):
            if query_terms[name]:
                tokens = words.tokens(query_terms[name])
                # Repeating a word in many messages must not raise its weight.
                texts.add(position, number, list(dict.fromkeys(tokens)) if name == MESSAGES_FIELD else tokens)
    return texts, _name_terms([tools[position] for position in sorted(tools)], words, vocabulary)


def _name_terms(tools: Sequence[Tool], words: WordTokenizer, vocabulary: Vocabulary) -> Int32s:
    """Return the term numbers of each tool's name, one row per tool, padded with -1."""
    names = np.full((len(tools), MAX_NAME_TERMS), -1, np.int32)
    for row, tool in enumerate(tools):
        own = words.tokens(own_name(tool))[:MAX_NAME_TERMS]
        names[row, : len(own)] = [vocabulary[token] for token in own]
    return names


def _insertion_points(positions: Int32s, starts: Int64s, new: Int32s, new_starts: Int64s) -> Int64s:
    """Return the positions at which new postings of each term must be inserted."""
    at = np.empty(len(new), np.int64)
    for term in np.diff(new_starts).nonzero()[0].tolist():
        first, after = new_starts[term : term + 2].tolist()
        start, end = starts[term : term + 2].tolist()
        at[first:after] = start + positions[start:end].searchsorted(new[first:after])
    return at
