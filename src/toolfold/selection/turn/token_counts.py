"""Count or estimate the tokens of tools, only as precisely as a decision requires, and cache the counts.

The tokenizer takes half a second to load and half a millisecond per tool. Decisions that a byte count can
make use the byte count, and a very large catalog is counted only until it is known to be large.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Literal

from toolfold.core.types import Tool
from toolfold.selection.turn.tokens import TokenCounter, compact

MAX_COUNTED_TOOLS = 1_000
BYTES_PER_TOKEN = 4.3
"""The mean of many definitions of tools."""
_MIN_BYTES_PER_TOKEN = 2.5


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Token count that is either exact or an upper or lower bound."""

    tokens: int
    known: Literal["exactly", "at least", "at most"] = "exactly"

    def __str__(self) -> str:
        return f"{self.tokens:,}" if self.known == "exactly" else f"{self.known} {self.tokens:,}"


class ToolTokenCounts:
    """Cache of the token count of each tool while the tool exists."""

    def __init__(self) -> None:
        self._counter = TokenCounter()
        self._lock = threading.Lock()
        self._tokens: weakref.WeakKeyDictionary[Tool, int] = weakref.WeakKeyDictionary()
        self._bytes: weakref.WeakKeyDictionary[Tool, int] = weakref.WeakKeyDictionary()

    def count_tool(self, tool: Tool) -> int:
        """Return the exact number of tokens of a tool's definition."""
        # Count the text: the counter would otherwise keep removed tools' schemas alive.
        return self._get_or_count(self._tokens, tool, lambda: self._counter.text(_definition_text(tool)))

    def estimate_upper_bound(self, tool: Tool) -> int:
        """Return an upper bound of a tool's token count without loading the tokenizer.

        1,251 measured definitions all have at least 2.7 bytes per token.
        """
        return int(self._count_bytes(tool) / _MIN_BYTES_PER_TOKEN)

    def estimate(self, tools: Iterable[Tool]) -> int:
        """Return an estimated token count of tool definitions, without loading the tokenizer."""
        return round(sum(map(self._count_bytes, tools)) / BYTES_PER_TOKEN)

    def count_until(self, tools: Sequence[Tool], enough: int) -> TokenCount:
        """Return the token count of tools: exact, or a bound that shows whether it reaches `enough`."""
        at_most = self._sum_bytes(tools, enough)
        if at_most < enough:
            return TokenCount(at_most, "at most")
        with self._lock:
            uncounted = (tool for tool in tools if tool not in self._tokens)
            too_many = next(itertools.islice(uncounted, MAX_COUNTED_TOOLS, None), None) is not None
        return self._count_until(tools, enough) if too_many else TokenCount(sum(map(self.count_tool, tools)))

    def _count_until(self, tools: Sequence[Tool], enough: int) -> TokenCount:
        tokens = 0
        goal = enough + enough // 4  # a few unavailable tools must not make it undecided again
        for tool in tools:
            tokens += self.count_tool(tool)
            if tokens >= goal:
                return TokenCount(tokens, "at least")
        return TokenCount(tokens)

    def _sum_bytes(self, tools: Sequence[Tool], enough: int) -> int:
        """Return the size of the tool definitions in bytes; stop counting at `enough`."""
        total = 0
        for tool in tools:
            total += self._count_bytes(tool)
            if total >= enough:
                break
        return total

    def _count_bytes(self, tool: Tool) -> int:
        return self._get_or_count(self._bytes, tool, lambda: len(_definition_text(tool, escaped=True)))

    def _get_or_count(self, memo: MutableMapping[Tool, int], tool: Tool, count: Callable[[], int]) -> int:
        with self._lock:
            known = memo.get(tool)
        if known is None:
            known = count()
            with self._lock:
                memo[tool] = known
        return known


def _definition_text(tool: Tool, *, escaped: bool = False) -> str:
    return compact(tool.definition()["function"], escaped=escaped)
