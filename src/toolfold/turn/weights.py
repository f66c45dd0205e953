"""How many tokens tools take, counted once for each tool and no further than a decision needs.

The tokenizer takes half a second to load and half a millisecond for a tool, so what a count of bytes
can decide is decided by it, and a catalog too large to be counted at once is counted until it is
known to be large.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Literal

from toolfold.model import Tool
from toolfold.turn.tokens import TokenCounter, compact

MOST_AT_ONCE = 1_000
_BYTES_A_TOKEN = 2.5


@dataclass(frozen=True, slots=True)
class Weight:
    """A number of tokens, and how much is known of it."""

    tokens: int
    known: Literal["exactly", "at least", "at most"] = "exactly"

    def __str__(self) -> str:
        return f"{self.tokens:,}" if self.known == "exactly" else f"{self.known} {self.tokens:,}"


class Weights:
    """Remembers each tool's tokens as long as the tool lives."""

    def __init__(self) -> None:
        self._counter = TokenCounter()
        self._lock = threading.Lock()
        self._tokens: weakref.WeakKeyDictionary[Tool, int] = weakref.WeakKeyDictionary()
        self._bytes: weakref.WeakKeyDictionary[Tool, int] = weakref.WeakKeyDictionary()

    def of(self, tool: Tool) -> int:
        """The exact tokens of a tool's definition."""
        # By its text: the counter would keep the schema of a tool that is gone.
        return self._known(self._tokens, tool, lambda: self._counter.text(_written(tool)))

    def likely_at_most(self, tool: Tool) -> int:
        """Without the tokenizer: of 1,251 definitions of real and imagined servers none has fewer than 2.7
        bytes a token."""
        return int(self._size(tool) / _BYTES_A_TOKEN)

    def total(self, tools: Sequence[Tool], enough: int) -> Weight:
        """The tokens of all these tools, known well enough to compare them with `enough`."""
        at_most = self._sizes(tools, enough)
        if at_most < enough:
            return Weight(at_most, "at most")
        with self._lock:
            uncounted = (tool for tool in tools if tool not in self._tokens)
            too_many = next(itertools.islice(uncounted, MOST_AT_ONCE, None), None) is not None
        return self._until(tools, enough) if too_many else Weight(sum(map(self.of, tools)))

    def _until(self, tools: Sequence[Tool], enough: int) -> Weight:
        tokens = 0
        goal = enough + enough // 4  # so that a few tools that cannot work now do not make it undecided
        for tool in tools:
            tokens += self.of(tool)
            if tokens >= goal:
                return Weight(tokens, "at least")
        return Weight(tokens)

    def _sizes(self, tools: Sequence[Tool], enough: int) -> int:
        """The bytes of the definitions, each of which is one token at most; no further than `enough`."""
        total = 0
        for tool in tools:
            total += self._size(tool)
            if total >= enough:
                break
        return total

    def _size(self, tool: Tool) -> int:
        return self._known(self._bytes, tool, lambda: len(_written(tool, escaped=True)))

    def _known(self, memo: MutableMapping[Tool, int], tool: Tool, count: Callable[[], int]) -> int:
        with self._lock:
            known = memo.get(tool)
        if known is None:
            known = count()
            with self._lock:
                memo[tool] = known
        return known


def _written(tool: Tool, *, escaped: bool = False) -> str:
    return compact(tool.definition()["function"], escaped=escaped)
