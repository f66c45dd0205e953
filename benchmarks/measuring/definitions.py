"""Count the tokens of the tool definitions that a ranking would add to a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

from measuring.scores import DEEPEST
from toolfold.core.types import Json
from toolfold.selection.turn.slimming import slim
from toolfold.selection.turn.tokens import TokenCounter
from toolfold.tools.catalog import load_catalog


class DefinitionTokens:
    """Counts o200k tokens of a catalog's definitions, each tool at most once per form."""

    def __init__(self, catalog: Path) -> None:
        self._tools = {tool.name: tool for tool in load_catalog(catalog)}
        self._counter = TokenCounter()
        self.as_written: Callable[[str], int] = cache(lambda name: self._count(name, dict))
        """Tokens of a definition as its author wrote it, which is what other projects send."""
        self.slimmed: Callable[[str], int] = cache(lambda name: self._count(name, slim))
        """Tokens of a definition as Toolfold sends it."""

    def _count(self, name: str, render: Callable[[Json], Json]) -> int:
        tool = self._tools.get(name)
        return self._counter.definition(render(tool.definition())) if tool else 0

    def total(self) -> int:
        """Return the number of tokens of all definitions, as they are written in the catalog."""
        return sum(map(self.as_written, self._tools))


def mean_tokens(ranked: Mapping[str, Sequence[str]], count: Callable[[str], int]) -> float:
    """Return the mean number of tokens of the definitions of the best hits for each message."""
    return round(fmean(sum(map(count, names[:DEEPEST])) for names in ranked.values()), 1)
