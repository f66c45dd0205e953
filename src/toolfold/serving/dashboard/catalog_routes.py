"""The catalog page of the dashboard: lists all tools with their state, and changes the state of a tool.

Names and descriptions come from servers and are untrusted. A change is written to the user's settings, as by
`toolfold tools` and `toolfold mcp review`, and takes effect at once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from toolfold.config import read_file_value, set_value
from toolfold.config.record import SettingsRecord
from toolfold.core.errors import ConfigError
from toolfold.core.types import BRIDGE_NAMES, Json, Tool
from toolfold.selection.turn.signature import signature
from toolfold.selection.turn.slimming import slim
from toolfold.selection.turn.token_counts import BYTES_PER_TOKEN, ToolTokenCounts
from toolfold.selection.turn.tokens import compact
from toolfold.serving.dashboard.texts import show_exact_line, show_json, show_line, show_name, show_text
from toolfold.serving.gateway.request_bodies import RequestRefused

if TYPE_CHECKING:
    from toolfold.core.registry import Snapshot
    from toolfold.mcp.trust import HeldTool
    from toolfold.runtime.runtime import Runtime
    from toolfold.safety.redaction import Redaction
    from toolfold.selection.retrieval.example_messages import MessageRecord
    from toolfold.selection.retrieval.learned_store import LearnedMessage

State = Literal["core", "pinned", "shown", "deferred", "held", "unavailable", "off"]
MAX_PAGE_ROWS = 500
MAX_FILTER_CHARS = 200
REFRESH_INTERVAL_S = 5.0
USAGE_DAYS = 30
MAX_LEARNED_SHOWN = 20
_USE_ORDER: Mapping[State, int] = {"held": -1, "off": 2, "unavailable": 3}
_SORT_KEYS: Mapping[str, Callable[[CatalogRow], Any]] = {
    # What waits for the user, then the user's own tools, then built-in ones, then what cannot be used.
    "use": lambda row: (_USE_ORDER.get(row.state, int(row.is_builtin)), row.name.casefold()),
    "name": lambda row: row.name.casefold(),
    "source": lambda row: (row.source, row.name.casefold()),
    "state": lambda row: (row.state, row.name.casefold()),
    "tokens": lambda row: -row.size,
    "calls": lambda row: (-row.calls, row.name.casefold()),
}


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """One tool in the catalog page of the dashboard."""

    name: str
    source: str
    state: State
    reason: str
    size: int
    """Estimated number of tokens of the tool's definition, for sorting."""
    calls: int
    text: str
    """Lower-case text of the tool in which filter words are searched."""
    tool: Tool | None = None
    held: HeldTool | None = None
    server: str = ""
    """The MCP server of a tool that the user must review before it can be used; else empty."""

    @property
    def is_builtin(self) -> bool:
        return self.tool is not None and self.tool.source.kind == "builtin"


@dataclass(frozen=True, slots=True)
class _Rows:
    rows: tuple[CatalogRow, ...]
    snapshot: Snapshot
    version: int
    held: tuple[HeldTool, ...]
    built: float


class CatalogView:
    """Lists the tools of a runtime and changes their state. Methods block: call them in a thread."""

    def __init__(
        self, runtime: Runtime, count_calls: Callable[[float], Mapping[str, int]], redact: Redaction
    ) -> None:
        """Open the catalog; `count_calls` returns how often each tool was called since a time."""
        self._runtime, self._count_calls, self._redact = runtime, count_calls, redact
        self._weights = ToolTokenCounts()
        self._lock = threading.Lock()
        self._cached: _Rows | None = None

    def list_page(self, options: Mapping[str, str]) -> Json:
        """Return one page of the tools that match a filter, with the number of tools in each state.

        With the option `collapse` and without a filter, built-in tools that cannot be used are only counted.
        """
        rows = self._load_rows()
        words = options.get("q", "")[:MAX_FILTER_CHARS].casefold().split()
        found = [row for row in rows if all(word in row.text for word in words)]
        states, sources = Counter(row.state for row in found), Counter(row.source for row in found)
        for field, value in (("state", options.get("state")), ("source", options.get("source"))):
            found = [row for row in found if not value or getattr(row, field) == value]
        collapsed = 0
        if options.get("collapse") and not (words or options.get("state") or options.get("source")):
            usable = [row for row in found if not (row.is_builtin and row.state == "unavailable")]
            found, collapsed = usable, len(found) - len(usable)
        key = _SORT_KEYS.get(options.get("sort", "name"), _SORT_KEYS["name"])
        found.sort(key=key, reverse=options.get("order") == "desc")
        start, count = _read_number(options, "offset", 0), _read_number(options, "limit", 100)
        page = found[start : start + min(count, MAX_PAGE_ROWS)]
        return {
            "total": len(rows),
            "matching": len(found),
            "collapsed": collapsed,
            "offset": start,
            "states": dict(states),
            "sources": dict(sorted(sources.items())[:500]),
            "rows": [self._describe_row(row) for row in page],
        }

    def count_states(self) -> dict[str, int]:
        """Return the number of tools in each state."""
        return dict(Counter(row.state for row in self._load_rows()))

    def measure(self) -> Json:
        """Return the estimated tokens of all usable tools, and of those that need no tool search."""
        usable = [row for row in self._load_rows() if row.state not in ("off", "unavailable", "held")]
        shown = [row for row in usable if row.state != "deferred"]
        return {
            "tools": len(usable),
            "shown": len(shown),
            "tokens_all": sum(row.size for row in usable),
            "tokens_shown": sum(row.size for row in shown),
        }

    def describe_tool(self, name: str) -> Json:
        """Return all details of one tool. Raises RequestRefused if there is no tool of this name."""
        row = self._find_row(name)
        if row.held is not None:
            return {**self._describe_row(row), "held": _describe_held(row.held)}
        tool = row.tool
        assert tool is not None  # noqa: S101 - a row has a tool or a held tool
        sent = slim(tool.definition())["function"]
        return {
            **self._describe_row(row),
            "title": show_line(tool.title),
            "description": show_text(tool.description),
            "toolset": show_name(tool.toolset),
            "original_name": show_name(tool.original_name),
            "effects": sorted(tool.effects),
            "requires_env": list(tool.requires_env),
            "missing_env": list(self._runtime.config.missing_env(tool.requires_env)),
            "schema": show_json(tool.parameters),
            "sent": show_json(sent),
            "signature": show_text(signature(tool)),
            "tokens_sent": self._count_text(compact(sent)),
            "tokens_signature": self._count_text(signature(tool)),
            "examples": self._list_examples(tool),
        }

    def _list_examples(self, tool: Tool) -> list[Json]:
        """Return the example messages of a tool, grouped by their origin; those in the search index first."""
        retriever = self._runtime.retriever
        records = retriever.examples.list_records(tool)
        found = [_describe_record(each, is_used=not number) for number, each in enumerate(records)]
        if tool.messages:
            # The author's own messages are used only if nobody else has written some.
            found.append(_describe_examples("author", "", tool.messages, is_used=not records))
        if learned := retriever.learned.find(tool)[:MAX_LEARNED_SHOWN]:
            found.append(
                {
                    "source": "learned",
                    "note": "",
                    "is_used": retriever.learned.enabled,
                    "messages": [
                        {
                            "text": show_line(self._redact(each.shown_text)),
                            "note": _describe_use(each),
                        }
                        for each in learned
                    ],
                }
            )
        return found

    def _count_text(self, text: str) -> int:
        from toolfold.selection.turn.tokens import TokenCounter

        return TokenCounter().text(text)

    def change_tool(self, name: str, change: str) -> None:
        """Enable, disable, pin or unpin a tool in the user's settings. Raises RequestRefused."""
        row = self._find_row(name)
        if row.tool is None:
            raise RequestRefused(409, "This tool waits for your review. Accept it first.")
        names = frozenset(row.tool.names)
        key, is_added = {
            "disable": ("tools.disabled", True),
            "enable": ("tools.disabled", False),
            "pin": ("tools.pinned", True),
            "unpin": ("tools.pinned", False),
        }[change]
        self._change_list(key, row.tool.name, names, is_added=is_added)
        self._cached = None
        self._require_effect(row.tool, key, names, is_added=is_added)

    def _change_list(self, key: str, name: str, names: frozenset[str], *, is_added: bool) -> None:
        paths = self._runtime.config.paths
        before = [str(each) for each in read_file_value(paths.user_file, key) or ()]
        if key == "tools.pinned" and not before:
            before = list(self._runtime.config.tools.pinned)  # the default list is replaced, not extended
        after = [each for each in before if each not in names] + ([name] if is_added else [])
        try:
            set_value(
                paths.user_file, key, list(dict.fromkeys(after)), record=SettingsRecord(paths.state_dir)
            )
        except ConfigError as error:
            raise RequestRefused(409, f"The settings could not be changed: {error}") from None
        self._runtime.check_settings()

    def _require_effect(self, tool: Tool, key: str, names: frozenset[str], *, is_added: bool) -> None:
        """Raise RequestRefused if a changed setting has no effect because another source overrides it."""
        tools = self._runtime.config.tools
        current = tools.disabled if key == "tools.disabled" else tools.pinned
        if is_added != (not names.isdisjoint(current)):
            origin = self._runtime.config.origins.get(key, "another source of settings")
            raise RequestRefused(409, f"Written to your settings, but {origin} overrides it.")
        if key == "tools.disabled" and not is_added and tool.name in self._runtime.switched_off():
            raise RequestRefused(409, "The toolset of this tool is disabled; enable the toolset.")

    def accept_held(self, name: str, fingerprint: str) -> None:
        """Accept a tool that waits for review, in exactly the version shown. Raises RequestRefused."""
        row = self._find_row(name)
        if row.held is None:
            raise RequestRefused(409, "This tool does not wait for a review.")
        if row.held.tool.fingerprint != fingerprint:
            raise RequestRefused(409, "The tool has changed again since it was shown. Review it again.")
        try:
            self._runtime.mcp.accept_held(row.server, [row.held.tool])
        except ConfigError as error:
            raise RequestRefused(409, f"The tool could not be accepted: {error}") from None
        self._cached = None

    def _find_row(self, name: str) -> CatalogRow:
        rows = [row for row in self._load_rows() if row.name == name]
        if not rows:
            raise RequestRefused(404, "There is no tool of this name any more.")
        return rows[0]

    def _describe_row(self, row: CatalogRow) -> Json:
        tool = row.tool
        description = tool.description if tool else row.held.tool.description if row.held else ""
        return {
            "id": row.name,
            "name": show_name(row.name),
            "emoji": show_name(tool.emoji) if tool else "",
            "source": show_name(row.source),
            "state": row.state,
            "reason": show_line(row.reason),
            "tokens": self._weights.count_tool(tool) if tool else row.size,
            "calls": row.calls,
            "summary": show_line(description, 160),
        }

    def _load_rows(self) -> tuple[CatalogRow, ...]:
        runtime = self._runtime
        with self._lock:
            held = tuple(
                each for state in runtime.mcp.states() for each in runtime.mcp.held_tools(state.name)
            )
            snapshot, version, cached = runtime.registry.snapshot(), runtime.settings_version, self._cached
            if (
                cached is None
                or cached.snapshot is not snapshot
                or cached.version != version
                or cached.held != held
                or time.monotonic() - cached.built > REFRESH_INTERVAL_S
            ):
                rows = tuple(self._build_rows(snapshot))
                self._cached = cached = _Rows(rows, snapshot, version, held, time.monotonic())
            return cached.rows

    def _build_rows(self, snapshot: Snapshot) -> Iterable[CatalogRow]:
        runtime = self._runtime
        off, statuses = runtime.switched_off(), runtime.statuses()
        shown = {tool.name for tool in runtime.session().assemble().tools}
        calls = self._count_calls(time.time() - USAGE_DAYS * 86_400)
        pinned = frozenset(runtime.config.tools.pinned) | frozenset(
            runtime.config.tools.tool_search.always_load
        )
        for tool in snapshot.ordered:
            if tool.name in BRIDGE_NAMES:
                continue
            status = statuses[tool.name]
            state: State = "shown" if tool.name in shown else "deferred"
            if tool.name in off:
                state = "off"
            elif not status.available:
                state = "unavailable"
            elif not pinned.isdisjoint(tool.names):
                state = "pinned"
            elif tool.core:
                state = "core"
            elif tool.agent_level and state == "deferred":
                state = "shown"
            yield CatalogRow(
                tool.name,
                tool.server,
                state,
                status.reason,
                round(len(compact(tool.definition()["function"])) / BYTES_PER_TOKEN),
                calls.get(tool.name, 0),
                f"{tool.name} {tool.title} {tool.server} {tool.description[:2_000]}".casefold(),
                tool,
            )
        yield from self._held_rows()

    def _held_rows(self) -> Iterable[CatalogRow]:
        mcp = self._runtime.mcp
        for state in mcp.states():
            for each in mcp.held_tools(state.name):
                name = mcp.registered_name(state.name, each.tool.name)
                text = f"{name} {state.name} {each.tool.description[:2_000]}".casefold()
                size = round(len(each.tool.description) / BYTES_PER_TOKEN)
                yield CatalogRow(
                    name, state.name, "held", each.describe(name), size, 0, text, held=each, server=state.name
                )


def _describe_held(held: HeldTool) -> Json:
    from toolfold.mcp.trust import describe_difference

    return {
        "fingerprint": held.tool.fingerprint,
        "why": held.reason,
        "findings": [show_line(str(each)) for each in held.findings[:20]],
        "changes": [show_line(each) for each in held.changes[:20]],
        "difference": [
            show_exact_line(each, 1_000)
            for each in describe_difference(held.accepted_version, held.tool)[:400]
        ],
    }


def _describe_record(record: MessageRecord, *, is_used: bool) -> Json:
    if not record.model:
        return _describe_examples("phrasebook", "", record.messages, is_used=is_used)
    note = show_line(f"by {record.model}, {record.date}" if record.date else f"by {record.model}")
    return _describe_examples("enriched", note, record.messages, is_used=is_used)


def _describe_examples(source: str, note: str, messages: Iterable[str], *, is_used: bool) -> Json:
    shown = [{"text": show_line(each), "note": ""} for each in messages]
    return {"source": source, "note": note, "is_used": is_used, "messages": shown}


def _describe_use(message: LearnedMessage) -> str:
    """Return a text that says how often a learned message was used, when last, and by which client."""
    date = time.strftime("%Y-%m-%d", time.localtime(message.last_used))
    times = "once" if message.uses == 1 else f"{message.uses:,} times"
    return show_line(f"{times}, last on {date}" + (f", by {message.client}" if message.client else ""))


def _read_number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else default
