"""SQL queries that find the candidate tools for a message in the search index of the shared database.

Everything that a session may not use is excluded by the statements themselves. Tools and words of messages
are passed as parameters, never as part of a statement.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toolfold.selection.retrieval.catalog_rows import (
    CLASS_WEIGHTS,
    Ids,
    format_ids,
    format_vector,
    parse_words,
    quote_word,
    unpack_vectors,
)
from toolfold.selection.retrieval.lexical import TermStatistics
from toolfold.selection.retrieval.vectors import Matrix
from toolfold.state.database import RowCursor, clean_text

MAX_QUERY_TERMS = 24
MAX_MATCHES = 3_000
"""Tools that a statement compares by keywords; words that more tools contain count only in combination."""
_INDEPENDENCE = 0.8
"""How independent of each other the terms of a tool are: 1 if completely, 0 if they always occur together."""
MAX_MENTIONED = 256


@dataclass(frozen=True, slots=True, eq=False)
class ScopeFilter:
    """SQL filter that restricts a search to a given set of tools.

    Either a list of tools, or all tools of some toolsets without a few, and a few others, or all but a few.
    """

    only: str | None = None
    """All tools, if they are few: these are compared exactly. Lists of numbers are PostgreSQL arrays."""
    toolsets: str | None = "{}"
    """None: tools of all toolsets."""
    without: str = ""
    others: str = ""

    @classmethod
    def of_tools(cls, ids: Ids) -> ScopeFilter:
        """Return a filter that allows only the listed tools."""
        return cls(only=format_ids(ids))

    @classmethod
    def of_toolsets(cls, toolsets: Ids, without: Ids, others: Ids) -> ScopeFilter:
        """Return a filter for the tools in `toolsets` without those in `without`, plus those in `others`."""
        return cls(
            None,
            format_ids(toolsets),
            format_ids(without) if len(without) else "",
            format_ids(others) if len(others) else "",
        )

    @classmethod
    def of_all_but(cls, without: Ids) -> ScopeFilter:
        """Return a filter that allows all tools except `without`."""
        return cls(None, None, format_ids(without) if len(without) else "")

    def condition(self, column: str) -> tuple[str, dict[str, object]]:
        """Return the SQL condition and its parameters; `column` is the column with the tool's id."""
        if self.only is not None:
            return f"{column} = ANY(%(only)s::bigint[])", {"only": self.only}
        inside, values = "TRUE", dict[str, object]()
        if self.toolsets is not None:
            inside, values = "toolset = ANY(%(toolsets)s::bigint[])", {"toolsets": self.toolsets}
        if self.without:
            inside = f"({inside} AND {column} <> ALL(%(without)s::bigint[]))"
            values["without"] = self.without
        if self.others:
            inside = f"({inside} OR {column} = ANY(%(others)s::bigint[]))"
            values["others"] = self.others
        return inside, values


@dataclass(frozen=True, slots=True, eq=False)
class VectorTable:
    """Database table with the vectors of one embedding model."""

    name: str
    width: int
    is_ready: bool
    """True if its index is built."""


@dataclass(frozen=True, slots=True, eq=False)
class NearestQuery:
    """Search for the tools nearest to a vector, restricted to the tools of `server` if given."""

    vector: Matrix
    limit: int
    server: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CandidateQuery:
    """Terms, names and vectors to look up in the database for one message."""

    texts: Sequence[Sequence[str]]
    """Terms of the message and of its parts; each is searched by keywords."""
    nearest: Sequence[NearestQuery]
    mentions: Sequence[str]
    """Words that may be names of tools."""
    ids: Sequence[int]
    """Tools that are candidates whatever matches."""
    limit: int
    partial_names: Sequence[str] = ()
    """Parts of names that are looked up if nothing else is found."""


@dataclass(frozen=True, slots=True, eq=False)
class FoundRows:
    """Candidate tools found in the database, and the number of tools that contain each search term."""

    ids: list[int]
    weights: list[dict[str, float]]
    vectors: Matrix | None
    """One row per candidate; zero if it has no vector."""
    statistics: TermStatistics


def find_candidate_rows(
    cursor: RowCursor, query: CandidateQuery, scope: ScopeFilter, table: VectorTable | None
) -> FoundRows:
    """Return the allowed candidate tools for a message; without a vector `table`, search by words only."""
    statistics = _read_statistics(cursor, {term for text in query.texts for term in text})
    found = dict.fromkeys(query.ids)
    if table is not None:
        for each in query.nearest:
            found |= dict.fromkeys(find_nearest_ids(cursor, table, each, scope))
    for terms in query.texts:
        found |= dict.fromkeys(_find_by_words(cursor, terms, statistics, scope, query.limit))
    found |= dict.fromkeys(_find_mentioned(cursor, query.mentions, scope))
    if not found and query.partial_names:
        found |= dict.fromkeys(_find_by_partial_name(cursor, query, scope))
    return _read_rows(cursor, list(found), table, statistics)


def _read_statistics(cursor: RowCursor, terms: Iterable[str]) -> TermStatistics:
    rows = cursor.execute(
        "SELECT term, tools FROM catalog_terms WHERE term = ANY(%s)", ([*terms, ""],)
    ).fetchall()
    counts = {row["term"]: row["tools"] for row in rows}
    return TermStatistics(counts.pop("", 0), counts)


def find_nearest_ids(
    cursor: RowCursor, table: VectorTable, query: NearestQuery, scope: ScopeFilter
) -> list[int]:
    """Return the ids of the allowed tools nearest to a vector, in approximate order."""
    condition, values = scope.condition("tool")
    if query.server is not None:
        condition += " AND server = %(server)s"
        values["server"] = query.server
    values |= {"vector": format_vector(query.vector), "limit": query.limit}
    rows = f"SELECT tool, vector FROM {table.name} WHERE {condition}"  # noqa: S608
    if scope.only is not None:  # few tools: compare all of them
        rows = f"SELECT tool, vector FROM ({rows} OFFSET 0) AS granted"  # noqa: S608
    statement = f"{rows} ORDER BY vector <#> %(vector)s::halfvec LIMIT %(limit)s"
    return [row["tool"] for row in cursor.execute(statement.encode(), values)]


def plan_word_groups(terms: Sequence[str], statistics: TermStatistics) -> list[tuple[str, ...]]:
    """Return groups of search terms; a tool matches if it contains all terms of at least one group.

    A rare term is a group by itself; common ones are combined until about MAX_MATCHES tools match in all: if
    more match, only some of them are compared, which need not be the best.
    """
    frequencies = statistics.frequencies
    known = sorted({term for term in terms if frequencies.get(term)}, key=lambda term: frequencies[term])
    known = known[:MAX_QUERY_TERMS]
    expected = {
        group: _estimate_matches(group, statistics)
        for size in (1, 2, 3)
        for group in itertools.combinations(known[: MAX_QUERY_TERMS // size], size)
    }
    limit, groups = float(MAX_MATCHES), _list_minimal_groups(expected, MAX_MATCHES)
    while sum(map(expected.__getitem__, groups)) > MAX_MATCHES:
        limit /= 2
        smaller = _list_minimal_groups(expected, limit)
        if not smaller:  # all have about the same size
            in_order = sorted(groups, key=expected.__getitem__)
            totals = itertools.accumulate(map(expected.__getitem__, in_order))
            return [group for group, total in zip(in_order, totals, strict=True) if total <= MAX_MATCHES]
        groups = smaller
    return groups or ([tuple(known)] if known else [])


def _list_minimal_groups(expected: Mapping[tuple[str, ...], float], limit: float) -> list[tuple[str, ...]]:
    """Return the groups of terms that match at most `limit` tools, without supersets of other groups."""
    groups: list[tuple[str, ...]] = []
    for group, matches in expected.items():  # short groups first
        if matches <= limit and not any(set(other) <= set(group) for other in groups):
            groups.append(group)
    return groups


def _estimate_matches(group: Sequence[str], statistics: TermStatistics) -> float:
    """Estimate how many tools contain all terms of a group; the terms are sorted by frequency."""
    rarest, *others = (statistics.frequencies[term] for term in group)
    total = max(statistics.tools, 1)
    return math.prod(((frequency / total) ** _INDEPENDENCE for frequency in others), start=float(rarest))


def _find_by_words(
    cursor: RowCursor, terms: Sequence[str], statistics: TermStatistics, scope: ScopeFilter, limit: int
) -> list[int]:
    condition, values = scope.condition("id")
    groups = plan_word_groups(terms, statistics)
    if scope.only is not None:
        groups = list(dict.fromkeys((term,) for term in terms if statistics.frequencies.get(term)))
    if not groups:
        return []
    frequencies = statistics.frequencies
    known = {term for term in terms if frequencies.get(term)}
    used = sorted(known, key=lambda term: frequencies[term])[:MAX_QUERY_TERMS]
    total = max(statistics.tools, 1)
    values["words"] = " | ".join(f"({' & '.join(map(quote_word, group))})" for group in groups)
    ranks = []
    for number, term in enumerate(used):
        values[f"term{number}"] = quote_word(term)
        values[f"rarity{number}"] = float(np.log1p(total / (statistics.frequencies[term] + 0.5)))
        ranks.append(f"%(rarity{number})s * ts_rank('{CLASS_WEIGHTS}', words, %(term{number})s::tsquery)")
    statement = (
        f"SELECT id FROM (SELECT id, words FROM catalog WHERE words @@ %(words)s::tsquery AND {condition}"  # noqa: S608
        f" LIMIT {2 * MAX_MATCHES}) AS matching ORDER BY {' + '.join(ranks)} DESC, id LIMIT {int(limit)}"
    )
    return [row["id"] for row in cursor.execute(statement.encode(), values)]


def _find_mentioned(cursor: RowCursor, mentions: Sequence[str], scope: ScopeFilter) -> list[int]:
    if not mentions:
        return []
    condition, values = scope.condition("id")
    values["names"] = [clean_text(name) for name in mentions]
    statement = (
        f"SELECT id FROM catalog WHERE spellings && %(names)s::text[] AND {condition}"  # noqa: S608
        f" ORDER BY lower(name) = ANY(%(names)s::text[]) DESC, name LIMIT {MAX_MENTIONED}"
    )
    return [row["id"] for row in cursor.execute(statement.encode(), values)]


def _find_by_partial_name(cursor: RowCursor, query: CandidateQuery, scope: ScopeFilter) -> list[int]:
    condition, values = scope.condition("id")
    values["parts"] = [clean_text(part) for part in query.partial_names]
    statement = (
        f"SELECT id FROM catalog WHERE {condition} AND EXISTS"  # noqa: S608
        " (SELECT FROM unnest(%(parts)s::text[]) AS part WHERE strpos(lower(name), part) > 0)"
        f" ORDER BY name LIMIT {int(query.limit)}"
    )
    return [row["id"] for row in cursor.execute(statement.encode(), values)]


def _read_rows(
    cursor: RowCursor, ids: list[int], table: VectorTable | None, statistics: TermStatistics
) -> FoundRows:
    """Return the stored words and vectors of tools, in the order of `ids`."""
    words = {
        row["id"]: row["words"]
        for row in cursor.execute("SELECT id, words::text AS words FROM catalog WHERE id = ANY(%s)", (ids,))
    }
    found = [each for each in ids if each in words]
    weights = [parse_words(words[each]) for each in found]
    vectors = None
    if table is not None:
        rows = cursor.execute(
            f"SELECT tool, vector FROM {table.name} WHERE tool = ANY(%s)".encode(),  # noqa: S608
            (found,),
            binary=True,
        ).fetchall()
        known = {row["tool"]: number for number, row in enumerate(rows)}
        unpacked = unpack_vectors([row["vector"] for row in rows], table.width)
        vectors = np.zeros((len(found), table.width), np.float32)
        having = [number for number, each in enumerate(found) if each in known]
        vectors[having] = unpacked[[known[found[number]] for number in having]]
    return FoundRows(found, weights, vectors, statistics)
