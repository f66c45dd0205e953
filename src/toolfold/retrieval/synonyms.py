"""What people call tools: extra words for a tool, or for all tools of a toolset or a server.

They are added to the tools that an index reads, and to nothing else: what a model is shown of a tool,
and what the registry holds, stays as its author wrote it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace

from toolfold.model import Tool


class Synonyms:
    """Words by the name of a tool, a toolset or a server."""

    def __init__(self, words: Mapping[str, Sequence[str]] | None = None) -> None:
        self._words = {name: tuple(said) for name, said in (words or {}).items() if name and said}
        self._lock = threading.Lock()
        self._enriched: weakref.WeakKeyDictionary[Tool, Tool] = weakref.WeakKeyDictionary()
        self._current: tuple[Sequence[Tool], Sequence[Tool]] | None = None

    def of(self, tool: Tool) -> tuple[str, ...]:
        """The words for a tool: its own before those of all its neighbours."""
        return tuple(dict.fromkeys(word for name in _names(tool) for word in self._words.get(name, ())))

    def added_to(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """The tools with their words. The same sequence gives the same answer, the same tool the same one."""
        if not self._words:
            return tools
        with self._lock:
            if self._current is None or self._current[0] is not tools:
                self._current = (tools, tuple(map(self._with_words, tools)))
            return self._current[1]

    def _with_words(self, tool: Tool) -> Tool:
        if self._words.keys().isdisjoint(_names(tool)):  # nearly all of them, and there may be many
            return tool
        found = self._enriched.get(tool)
        if found is None:
            # Before those of its author: where room is short, what its user says counts more.
            found = self._enriched[tool] = replace(tool, synonyms=(*self.of(tool), *tool.synonyms))
        return found


def _names(tool: Tool) -> tuple[str, ...]:
    return (*tool.names, tool.toolset, tool.source.name)
