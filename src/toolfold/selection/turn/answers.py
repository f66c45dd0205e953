"""Answer calls of `tool_search` and `tool_describe`, with which a model finds tools not in its request.

Only reads; nothing here runs a tool. The turn's scope gate decides which names may be mentioned, and the
search gets only the turn's own tools.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolfold.config.settings import ToolsSettings
from toolfold.core.errors import (
    BridgeMisuse,
    CallError,
    InvalidArguments,
    closest_names,
    error_message,
    shorten,
)
from toolfold.core.types import (
    BRIDGE_CALL,
    BRIDGE_DESCRIBE,
    BRIDGE_NAMES,
    BRIDGE_SEARCH,
    Json,
    Tool,
    freeze,
    read_json,
)
from toolfold.models.dialect import select_mappings
from toolfold.selection.retrieval.text import COMMON_WORDS
from toolfold.selection.retrieval.tool_search import Mode, Retriever, SearchResult
from toolfold.selection.turn.assembly import Turn
from toolfold.selection.turn.companions import READING_VERBS, name_words
from toolfold.selection.turn.signature import signature

log = logging.getLogger(__name__)

MAX_QUERY_CHARS = 2_000
MAX_DESCRIPTION_CHARS = 400
MAX_SOURCE_CHARS = 40
MAX_QUERIES = 8
MAX_DESCRIBED_TOOLS = 10
MAX_LISTED_SOURCES = 30
MAX_NEAR_NAMES = 5
MAX_READ_MESSAGES = 400
MIN_FULL_MATCHES = 3
"""The best hits of a query always have a signature; later ones if they are as probable."""
MAX_WEAK_DESCRIPTION_CHARS = 120
MAX_DIRECT_TOOLS = 3
NOTHING_FITS_BELOW = 0.5
"""Probability that a tool serves a query, below which none is returned. Error rates: docs/tool-search.md."""
WEAK_MATCHES_BELOW = 0.8
_WEAK_MATCHES_HINT = (
    "Weak matches, perhaps none fits: check descriptions before a call. Other words may find better."
)
_NOTHING_FITS_HINT = (
    "No tool seems to do this. If one of near_names might, search for that name; otherwise try other words:"
    " the action and the thing it acts on, in the language of the sources."
)
_UNFINISHED_INDEX_HINT = (
    "Keyword matches only, because the search index is still being built: search again in a few seconds for"
    " better ones."
)
_KEYWORDS_ONLY_HINT = "Keyword matches only: use words that the tool's name or description may contain."
_RESULT_START = '{"matches":'
_MAX_MESSAGE_DEPTH = 6
_WORD = re.compile(r"[^\W_]{3,40}")
_NOT_IN_NAMES = re.compile(r"[^\w .-]+")
_NAME_PART = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class _QueryMatches:
    """Tools found for one query of `tool_search`, best first."""

    names: Sequence[str] = ()
    """Tools to return; empty if nothing fits."""
    brief: frozenset[str] = frozenset()
    """Those that are far less probable than the best, and are returned without a signature."""
    weak: bool = False
    """True if perhaps none of the tools fits."""
    nearest: Sequence[str] = ()
    """The nearest tools, if nothing fits."""
    direct: Sequence[str] = ()
    """Tools that fit and are already in the model's list."""
    by_keywords: bool = False
    """True if the tools were not compared by meaning."""


class BridgeAnswers:
    """Answers calls of `tool_search` and `tool_describe` in one turn."""

    def __init__(self, retriever: Retriever, settings: ToolsSettings) -> None:
        self._retriever = retriever
        reranker = settings.tool_search.reranker
        best: Mode = reranker.mode if reranker.enabled else "hybrid"
        self._modes: tuple[Mode, ...] = (best, "keyword")
        self._default = settings.tool_search.search_default_limit
        self._most = settings.tool_search.max_search_limit
        self._room = settings.result_max_chars * 3 // 4

    def search(self, turn: Turn, args: Json, client: str = "") -> Json:
        """Return the tools that match the search queries, best first, or suggestions if there are none.

        `client` is whose use of tools the ranking learns from; empty for users of this machine.
        """
        queries = _read_texts(BRIDGE_SEARCH, args, "query", "queries", most=MAX_QUERIES)
        if (longest := max(map(len, queries))) > MAX_QUERY_CHARS:
            problem = (
                f"a query has {longest:,} characters; say it in a few words, {MAX_QUERY_CHARS:,} at most"
            )
            raise _invalid_arguments(BRIDGE_SEARCH, problem)
        limit = min(max(1, args.get("limit") or self._default), self._most)
        available = turn.searchable_names
        search_one = functools.partial(self._search_one, turn, limit=limit, offered=available, client=client)
        found = {query: search_one(query) for query in queries}
        answer: Json = {
            "matches": _render_matches(turn, found, self._most),
            "total_available": len(available),
        }
        if weak := [shorten(query, 80) for query, each in found.items() if each.weak]:
            answer |= {"weak_for": weak} if len(queries) > 1 else {}
            answer["hint"] = _WEAK_MATCHES_HINT
        direct = dict.fromkeys(name for each in found.values() for name in each.direct)
        missed = {query: each.nearest for query, each in found.items() if not each.names and not each.direct}
        if missed:
            answer |= _suggest_elsewhere(turn, missed)
        if available and any(each.by_keywords for each in found.values()):
            answer["hint"] = self._explain_keywords(answer.get("hint", ""))
        return answer | _direct_tools(list(direct)) | _held_for_review(turn, queries)

    def _explain_keywords(self, hint: str) -> str:
        """Return the hint of a result that was found by keywords only."""
        if self._retriever.is_building_index():
            return _UNFINISHED_INDEX_HINT
        return f"{hint} {_KEYWORDS_ONLY_HINT}".lstrip()

    def describe(self, turn: Turn, args: Json) -> Json:
        """Return the full definitions of the named tools, limited to the size of one tool result."""
        names = _read_texts(BRIDGE_DESCRIBE, args, "name", "names", most=MAX_DESCRIBED_TOOLS)
        if len(names) == 1:
            return _render_definition(turn, _require_tool(turn, names[0]))
        told: list[Json] = []
        failed: Json = {}
        room = self._room
        for place, name in enumerate(names):
            try:
                description = _render_definition(turn, _require_tool(turn, name))
            except CallError as error:
                failed[shorten(name)] = error_message(error)
                continue
            room -= len(json.dumps(description, ensure_ascii=False))
            if room < 0 and told:
                return _render_definitions(told, failed, left=names[place:])
            told.append(description)
        return _render_definitions(told, failed)

    def _search_one(
        self, turn: Turn, query: str, *, limit: int, offered: frozenset[str], client: str
    ) -> _QueryMatches:
        """Search for one query, and return the matching tools among the `offered` names."""
        named = [tool.name for tool in turn.snapshot.named(query) if tool.name in turn.offered_names]
        shown = turn.direct & turn.offered_names
        found = self._run_search(turn, query, limit + MAX_DIRECT_TOOLS, offered | shown, client)
        ranked = list(dict.fromkeys((*named, *(hit.name for hit in found.hits))))
        names = [name for name in ranked if name in offered][:limit]
        # One tool far ahead of all others is worth a look, even if the query sounds like a question.
        if not named and found.probable != 1 and not found.needed(NOTHING_FITS_BELOW):
            return _QueryMatches(nearest=names, by_keywords=found.by_keywords)
        weak = not named and not found.needed(WEAK_MATCHES_BELOW)
        likely = 0 if weak else found.probable if 0 < found.probable <= MAX_DIRECT_TOOLS else 1
        direct = [name for name in ranked[: max(likely, len(named))] if name in shown]
        full = len(ranked)
        if found.probable:
            least = 1 if direct else MIN_FULL_MATCHES
            full = least if weak else max(found.probable, least)
        return _QueryMatches(
            names, frozenset(ranked[full:]), weak, direct=direct, by_keywords=found.by_keywords
        )

    def _run_search(
        self, turn: Turn, query: str, limit: int, granted: frozenset[str], client: str
    ) -> SearchResult:
        for mode in self._modes if granted else ():
            try:
                return self._retriever.answer(
                    turn.snapshot, query, mode=mode, limit=limit, granted=granted, client=client
                )
            except Exception:  # the index or the model may fail; the other mode may still work
                log.exception("searching tools by %s failed", mode)
        if not granted:
            return SearchResult(())
        raise CallError(
            "The tool search does not work right now. A tool whose name you know can still "
            "be called by its name.",
            **_suggest_elsewhere(turn, {query: ()}),
        )


def source_name(tool: Tool) -> str:
    """Return the name of a tool's source (server or plugin) for the model, as a word without spaces."""
    return (
        to_single_line(_NOT_IN_NAMES.sub(" ", tool.server[: MAX_SOURCE_CHARS * 4]), MAX_SOURCE_CHARS)
        or "unnamed"
    )


def to_single_line(text: str, limit: int) -> str:
    """Return untrusted text on one line, without unprintable characters, truncated to `limit` characters."""
    head = text[: limit * 4]
    words = "".join(char if char.isprintable() else " " for char in head).split()
    joined = " ".join(words)
    return joined if len(joined) <= limit and len(head) == len(text) else joined[: limit - 1].rstrip() + "…"


def _read_texts(bridge: str, args: Json, one: str, many: str, *, most: int) -> list[str]:
    """Return the distinct texts in the arguments `query` and `queries` (or `name` and `names`)."""
    given = [args.get(one), *(args.get(many) or ())]
    asked = list(dict.fromkeys(each.strip() for each in given if each and each.strip()))
    if not asked:
        raise _invalid_arguments(bridge, f"it needs `{one}`, or several in `{many}`")
    if len(asked) > most:
        raise _invalid_arguments(bridge, f"{len(asked)} {many} are more than {most} at once")
    return asked


def _invalid_arguments(bridge: str, problem: str) -> InvalidArguments:
    return InvalidArguments(f"{bridge!r} was not invoked: {problem}.")


def _render_matches(turn: Turn, found: Mapping[str, _QueryMatches], most: int) -> list[Json]:
    """Return the hits of all queries, grouped by query; the best of each query come before the `most`."""
    rows = itertools.zip_longest(*(each.names for each in found.values()))
    kept = set(itertools.islice(dict.fromkeys(name for row in rows for name in row if name), most))
    queries: dict[str, list[str]] = {}
    for query, each in found.items():
        for name in kept.intersection(each.names):
            queries.setdefault(name, []).append(query)
    # A call outside a turn does not know what its model was shown.
    visible = {tool.name for tool in turn.tools} if turn.searchable else frozenset[str]()
    matches = []
    for name in dict.fromkeys(name for each in found.values() for name in each.names if name in kept):
        brief = all(name in found[query].brief for query in queries[name])
        match = _render_match(turn, turn.find_visible(name), name in visible, brief)
        group = {"for": " | ".join(shorten(query, 80) for query in queries[name])}
        matches.append(group | match if len(found) > 1 else match)
    return matches


def find_known_signatures(messages: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the signatures in the search results of a message history, by the tool's name.

    What a result says is not trusted: a signature counts only if the tool still has the same one.
    """
    described: dict[str, str] = {}
    for text in _find_search_results(messages[-MAX_READ_MESSAGES:]):
        try:
            matches = read_json(text).get("matches")
        except (ValueError, RecursionError):  # not JSON, or cut
            continue
        for match in select_mappings(matches):
            name, written = match.get("name"), match.get("signature")
            if isinstance(name, str) and isinstance(written, str):
                described[name] = written
    return described


def _find_search_results(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the texts in a message history that begin like the result of a search."""
    if isinstance(value, str):
        if value.startswith(_RESULT_START):
            yield value
    elif isinstance(value, (Mapping, list)) and depth < _MAX_MESSAGE_DEPTH:
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _find_search_results(each, depth + 1)


def _render_match(turn: Turn, tool: Tool, visible: bool, brief: bool) -> Json:
    """Return a hit: what tells it from others, and how to call it. Nothing is said twice: it costs tokens."""
    adapted, source = _adapt_to_turn(turn, tool), source_name(tool)
    match: Json = {"name": tool.name}
    written = signature(adapted).removeprefix(tool.name)
    if not visible and turn.known_signatures.get(tool.name) == written:
        return {**match, "note": "Described above."}
    if not tool.name.casefold().startswith(source.casefold()) and source != tool.source.kind:
        match["source"] = source
    if visible:
        return {**match, "note": "You have this tool: call it directly."}
    description = to_single_line(adapted.description, MAX_DESCRIPTION_CHARS)
    if brief:
        first, _, _ = description.partition(". ")
        return {**match, "description": to_single_line(first, MAX_WEAK_DESCRIPTION_CHARS), "weak": True}
    return {**match, "description": description, "signature": written}


def _adapt_to_turn(turn: Turn, tool: Tool) -> Tool:
    """Return the tool with a description that mentions only tools of this turn."""
    if tool.adapt is None:
        return tool
    function = turn.described(tool)["function"]
    description, parameters = function.get("description"), function.get("parameters")
    if not isinstance(description, str) or not isinstance(parameters, Mapping):
        return tool
    try:
        return replace(tool, description=description, parameters=freeze(parameters))
    except (TypeError, RecursionError):  # the adapted definition is not JSON
        return tool


def _require_tool(turn: Turn, name: str) -> Tool:
    if name in BRIDGE_NAMES:
        raise BridgeMisuse(f"{name!r} is always in your list of tools: read its description there.")
    return turn.find_visible(name)


def _render_definition(turn: Turn, tool: Tool) -> Json:
    adapted = _adapt_to_turn(turn, tool)
    return {
        "name": tool.name,
        "source": source_name(tool),
        "description": _clean_text(adapted.description),
        "parameters": _clean_schema(adapted.parameters),
    }


def _clean_schema(schema: Any) -> Any:
    """Return a tool schema without unprintable characters, for display only."""
    if isinstance(schema, str):
        return _clean_text(schema)
    if isinstance(schema, Mapping):
        return {_clean_text(key): _clean_schema(each) for key, each in schema.items()}
    return [_clean_schema(each) for each in schema] if isinstance(schema, list) else schema


def _clean_text(text: str) -> str:
    return "".join(char if char.isprintable() or char in "\n\t" else " " for char in text)


def _render_definitions(told: Sequence[Json], failed: Json, left: Sequence[str] = ()) -> Json:
    answer: Json = {"tools": told}
    if failed:
        answer["errors"] = failed
    if left:
        answer["left_out"] = [shorten(name) for name in left]
        answer["hint"] = "These did not fit into one answer: describe them in another call."
    return answer


def _suggest_elsewhere(turn: Turn, missed: Mapping[str, Sequence[str]]) -> Json:
    """Return near tool names, available sources and a hint for queries that no tool fits.

    `missed` has the nearest tools of each query.
    """
    if not turn.searchable_names:
        return {"hint": "This session has no tools to search."}
    near = (name for query, names in missed.items() for name in names or _similar_tool_names(turn, query))
    return {
        "nothing_for": [shorten(query, 80) for query in missed],
        "near_names": list(dict.fromkeys(near))[:MAX_NEAR_NAMES],
        "sources": _count_sources(_searchable_tools(turn)),
        "hint": _NOTHING_FITS_HINT,
    }


def _held_for_review(turn: Turn, queries: Sequence[str]) -> Json:
    """Return tools that match the search queries but are unusable until a person has reviewed them."""
    names = sorted(turn.held_names)
    likely = dict.fromkeys(
        name for query in queries for name in (*closest_names(query, names), *_share_words(names, query))
    )
    if not likely:
        return {}
    return {"awaiting_review": list(likely)[:5], "review": "A person can accept them: `toolfold mcp review`."}


def _share_words(names: Sequence[str], query: str) -> list[str]:
    """Return the names that have a word of the query other than a verb such as "get"."""
    asked = set(name_words(query[:500])) - READING_VERBS - COMMON_WORDS
    return [name for name in names if not asked.isdisjoint(name_words(name))]


def _similar_tool_names(turn: Turn, query: str) -> list[str]:
    """Return names of searchable tools that are similar to the query."""
    return _similar_names([tool.name for tool in _searchable_tools(turn)], query)


def _searchable_tools(turn: Turn) -> list[Tool]:
    return [tool for tool in turn.offered if tool.name not in turn.direct]


def _direct_tools(names: Sequence[str]) -> Json:
    """Return fitting tools that the model can call directly, without a search."""
    if not names:
        return {}
    return {
        "direct": names[:5],
        "note": f"You have these: if one fits, call it directly, not through {BRIDGE_CALL}.",
    }


def _similar_names(names: Sequence[str], query: str) -> list[str]:
    """Return names similar to the query, and names with a word similar to a word of the query."""
    by_part: dict[str, list[str]] = {}
    for name in names:
        for part in _NAME_PART.findall(name.casefold()):
            by_part.setdefault(part, []).append(name)
    words = _WORD.findall(query.casefold()[:500])[:6]
    parts = dict.fromkeys(part for word in words for part in closest_names(word, by_part))
    return [*closest_names(query, names), *(name for part in parts for name in by_part[part][:2])]


def _count_sources(tools: Iterable[Tool]) -> dict[str, Any]:
    """Return the number of tools from each source, limited to the largest sources."""
    counts = Counter(map(source_name, tools))
    kept = sorted(counts.most_common(MAX_LISTED_SOURCES))
    left = len(counts) - len(kept)
    return dict(kept) | ({"…": f"{left} more"} if left else {})
