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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolfold.config.settings import ToolsSettings
from toolfold.errors import BridgeMisuse, CallError, InvalidArguments, closest_names, error_message, shorten
from toolfold.model import BRIDGE_CALL, BRIDGE_DESCRIBE, BRIDGE_NAMES, BRIDGE_SEARCH, Json, Tool, freeze
from toolfold.retrieval.search import Hit, Mode, Retriever
from toolfold.turn.assembly import Turn
from toolfold.turn.signature import signature

log = logging.getLogger(__name__)

MAX_QUERY_CHARS = 2_000
MAX_DESCRIPTION_CHARS = 400
MAX_SOURCE_CHARS = 40
MAX_QUERIES = 8
MAX_DESCRIBED_TOOLS = 10
MAX_LISTED_SOURCES = 30
_WEAK_MATCH_HINT = (
    "No tool shares a word with this; these are the nearest in meaning. Other words may find better."
)
_WORD = re.compile(r"[^\W_]{3,40}")
_NOT_IN_NAMES = re.compile(r"[^\w .-]+")
_NAME_PART = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class _QueryMatches:
    """Tools found for one query of `tool_search`, best first."""

    names: Sequence[str]
    sure: bool
    """True if any of the tools shares a word with the query."""


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
        rows = itertools.zip_longest(*(each.names for each in found.values()))
        names = list(dict.fromkeys(name for row in rows for name in row if name))
        # A call outside a turn does not know what its model was shown.
        visible = {tool.name for tool in turn.tools} if turn.searchable else frozenset[str]()
        answer: Json = {
            "matches": [
                _render_match(turn, turn.find_visible(name), name in visible) for name in names[: self._most]
            ],
            "total_available": len(available),
        }
        if missed := [query for query, each in found.items() if not each.names]:
            answer |= _suggest_elsewhere(turn, missed)
        elif not any(each.sure for each in found.values()):
            answer["hint"] = _WEAK_MATCH_HINT
        return answer | _direct_tools(turn, queries) | _held_for_review(turn, queries)

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
        first = [tool.name for tool in turn.snapshot.named(query) if tool.name in offered]
        hits = self._run_search(turn, query, limit, offered, client) if offered else []
        names = dict.fromkeys((*first, *(hit.name for hit in hits if hit.name in offered)))
        sure = bool(first) or any(hit.exact or hit.matched for hit in hits)
        return _QueryMatches(list(names)[:limit], sure)

    def _run_search(
        self, turn: Turn, query: str, limit: int, offered: frozenset[str], client: str
    ) -> list[Hit]:
        for mode in self._modes:
            try:
                return self._retriever.find(
                    turn.snapshot, query, mode=mode, limit=limit, granted=offered, client=client
                )
            except Exception:  # the index or the model may fail; the other mode may still work
                log.exception("searching tools by %s failed", mode)
        raise CallError(
            "The tool search does not work right now. A tool whose name you know can still "
            "be called by its name.",
            **_suggest_elsewhere(turn, [query]),
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


def _render_match(turn: Turn, tool: Tool, visible: bool) -> Json:
    """Return a hit: what tells it from others, and how to call it. Nothing is said twice: it costs tokens."""
    adapted, source = _adapt_to_turn(turn, tool), source_name(tool)
    match = {"name": tool.name}
    if not tool.name.casefold().startswith(source.casefold()):
        match["source"] = source
    match["description"] = to_single_line(adapted.description, MAX_DESCRIPTION_CHARS)
    if visible:
        return {**match, "note": "You have this tool: call it directly."}
    return {**match, "signature": signature(adapted).removeprefix(tool.name)}


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


def _suggest_elsewhere(turn: Turn, missed: Sequence[str]) -> Json:
    """Return similar tool names, available sources and a hint for searches without results."""
    if not turn.searchable_names:
        return {"hint": "This session has no tools to search."}
    near = list(dict.fromkeys(name for query in missed for name in _similar_tool_names(turn, query)))
    return {
        "nothing_for": [shorten(query, 80) for query in missed],
        "near_names": near[:5],
        "sources": _count_sources(_searchable_tools(turn)),
        "hint": "Try other words: the action and the thing it acts on, or the name of a source.",
    }


def _held_for_review(turn: Turn, queries: Sequence[str]) -> Json:
    """Return tools that match the search queries but are unusable until a person has reviewed them."""
    names = sorted(turn.held_names)
    likely = dict.fromkeys(name for query in queries for name in _similar_names(names, query))
    if not likely:
        return {}
    return {"awaiting_review": list(likely)[:5], "review": "A person can accept them: `toolfold mcp review`."}


def _similar_tool_names(turn: Turn, query: str) -> list[str]:
    """Return names of searchable tools that are similar to the query."""
    return _similar_names([tool.name for tool in _searchable_tools(turn)], query)


def _searchable_tools(turn: Turn) -> list[Tool]:
    return [tool for tool in turn.offered if tool.name not in turn.direct]


def _direct_tools(turn: Turn, queries: Sequence[str]) -> Json:
    """Return the tools named in a query that the model can call directly, without a search."""
    named = (tool.name for query in queries for tool in turn.snapshot.named(query))
    direct = [name for name in dict.fromkeys(named) if name in turn.direct & turn.offered_names]
    if not direct:
        return {}
    return {"direct": direct[:5], "note": f"Call these directly, not through {BRIDGE_CALL}."}


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
