"""Configured synonyms for a tool, or for all tools of a toolset or a server.

They are added only to the tools in the search index. The definitions that a model receives, and those in
the registry, stay as their author wrote them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace

from toolfold.core.types import Tool


class Synonyms:
    """Configured synonyms, by the name of the tool, toolset or server to which they belong."""

    def __init__(self, words: Mapping[str, Sequence[str]] | None = None) -> None:
        self._words = {name: tuple(synonyms) for name, synonyms in (words or {}).items() if name and synonyms}
        self._lock = threading.Lock()
        self._enriched: weakref.WeakKeyDictionary[Tool, Tool] = weakref.WeakKeyDictionary()
        self._current: tuple[Sequence[Tool], Sequence[Tool]] | None = None

    def of(self, tool: Tool) -> tuple[str, ...]:
        """Return the configured synonyms of a tool, followed by those of its toolset and server."""
        return tuple(dict.fromkeys(word for name in _lookup_keys(tool) for word in self._words.get(name, ())))

    def add_synonyms(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Return the tools with their configured synonyms added.

        Cached: equal input objects give the same output objects.
        """
        if not self._words:
            return tools
        with self._lock:
            if self._current is None or self._current[0] is not tools:
                self._current = (tools, tuple(map(self._enrich_tool, tools)))
            return self._current[1]

    def _enrich_tool(self, tool: Tool) -> Tool:
        if self._words.keys().isdisjoint(_lookup_keys(tool)):  # the usual case, kept fast
            return tool
        enriched = self._enriched.get(tool)
        if enriched is None:
            # Before the author's synonyms: if the text is truncated, the user's are kept.
            enriched = self._enriched[tool] = replace(tool, synonyms=(*self.of(tool), *tool.synonyms))
        return enriched


def _lookup_keys(tool: Tool) -> tuple[str, ...]:
    return (*tool.names, tool.toolset, tool.source.name)
