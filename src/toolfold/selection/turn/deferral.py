"""Divide a session's tools into tools that may be deferred to tool search and tools always listed.

Computed once per grant from the configured lists. When tools are deferred is decided in `disclosure`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from toolfold.config.settings import ToolsSettings
from toolfold.core.types import Tool
from toolfold.selection.turn.assembly import Turn
from toolfold.selection.turn.grant import Grant
from toolfold.selection.turn.token_counts import TokenCount, ToolTokenCounts


@dataclass(slots=True)
class ToolPartition:
    """The granted tools of a session, divided into pinned, never deferred and deferrable tools."""

    pinned: Sequence[Tool]
    """Tools that are shown for every message."""
    kept: Sequence[Tool]
    """Tools that are never deferred: pinned and core tools."""
    deferrable: dict[str, Tool]
    kept_names: frozenset[str] = field(init=False)
    _weight: TokenCount | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.kept_names = frozenset(tool.name for tool in self.kept)

    def find_unavailable(self, turn: Turn) -> list[Tool]:
        """Return the deferrable tools that are unavailable in this turn."""
        return [self.deferrable[name] for name in turn.unavailable if name in self.deferrable]

    def count_tokens(self, turn: Turn, weights: ToolTokenCounts, enough: int) -> TokenCount:
        """Count the tokens of deferrable tools, and stop as soon as `enough` tokens are counted.

        The count of all deferrable tools is cached; the unavailable ones change too often.
        """
        whole = self._weight
        if whole is None or not _is_decided(whole, enough):
            whole = self._weight = weights.count_until(list(self.deferrable.values()), enough)
        missing = self.find_unavailable(turn)
        if not missing or whole.known == "at most":
            return whole
        working = replace(whole, tokens=whole.tokens - sum(map(weights.count_tool, missing)))
        if _is_decided(working, enough):
            return working
        return weights.count_until([tool for tool in self.deferrable.values() if tool not in missing], enough)


class Deferral:
    """Divides a session's tools into deferrable and always listed tools, as configured; caches the result."""

    def __init__(self, settings: ToolsSettings) -> None:
        self._always = frozenset(settings.tool_search.always_load)
        self._defer = frozenset(settings.tool_search.defer)
        self._pinned = frozenset(settings.pinned)
        self._pins_core = settings.selection == "auto"
        self._lock = threading.Lock()
        self._sorted: weakref.WeakKeyDictionary[Grant, ToolPartition] = weakref.WeakKeyDictionary()

    def __call__(self, grant: Grant) -> ToolPartition:
        with self._lock:
            parts = self._sorted.get(grant)
            if parts is None:
                parts = self._sorted[grant] = self._partition(grant.tools)
            return parts

    def _partition(self, tools: Sequence[Tool]) -> ToolPartition:
        names = frozenset(tool.name for tool in tools)
        pinned = [tool for tool in tools if self._is_pinned(tool, names)]
        always = {tool.name for tool in pinned}
        kept = [tool for tool in tools if tool.name in always or self._is_own(tool, names)]
        staying = {tool.name for tool in kept}
        pinned = kept if self._pins_core else pinned
        return ToolPartition(pinned, kept, {tool.name: tool for tool in tools if tool.name not in staying})

    def _is_pinned(self, tool: Tool, tools: Collection[str]) -> bool:
        if _is_named_in(tool, self._always, tools):
            return True
        return _is_named_in(tool, self._pinned, tools) and not _is_named_in(tool, self._defer, tools)

    def _is_own(self, tool: Tool, tools: Collection[str]) -> bool:
        return tool.core and not _is_named_in(tool, self._defer, tools)


def _is_decided(weight: TokenCount, enough: int) -> bool:
    """Return True if an exact or bounded token count shows whether the limit `enough` is reached."""
    if weight.known == "exactly":
        return True
    return (weight.known == "at least") is (weight.tokens >= enough)


def _is_named_in(tool: Tool, names: Collection[str], tools: Collection[str]) -> bool:
    """Return True if a configured list contains this tool or one of its toolsets.

    The name of a tool is never taken as the name of a toolset.
    """
    if any(name in names for name in tool.names):
        return True
    return tool.toolset in names and tool.toolset not in tools
