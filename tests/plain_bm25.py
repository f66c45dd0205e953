"""Okapi BM25 over a tool's name, description and parameter names.

The textbook formula (k1 1.5, b 0.75) without stemming or weights: the baseline for all other rankings.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolfold.core.types import Tool

K1 = 1.5
B = 0.75
_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Hit:
    """A ranked tool with its score and matched words."""

    name: str
    score: float
    matched: tuple[str, ...] = ()


def split_words(text: str) -> list[str]:
    """Return lower-case words; `snake_case`, `kebab-case` and `camelCase` are split."""
    return [word.casefold() for word in _WORD.findall(_HUMP.sub(" ", text))]


class Bm25:
    """Inverted index over a set of tools."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._names: list[str] = []
        self._postings: dict[str, list[tuple[int, float]]] = {}
        counts = [self._read(tool) for tool in tools]
        self._weigh(counts)

    def rank(self, query: str, limit: int = 5) -> list[Hit]:
        """Return the best tools for a message, best first; only those that share a word with it."""
        scores: dict[int, float] = {}
        matched: dict[int, list[str]] = {}
        for word in dict.fromkeys(split_words(query)):
            for place, weight in self._postings.get(word, ()):
                scores[place] = scores.get(place, 0.0) + weight
                matched.setdefault(place, []).append(word)
        best = heapq.nsmallest(limit, scores, key=lambda place: (-scores[place], self._names[place]))
        return [Hit(self._names[place], scores[place], tuple(matched[place])) for place in best]

    def _read(self, tool: Tool) -> Counter[str]:
        self._names.append(tool.name)
        parameters = " ".join(tool.parameters.get("properties", {}))
        return Counter(split_words(f"{tool.original_name or tool.name} {tool.description} {parameters}"))

    def _weigh(self, counts: Sequence[Counter[str]]) -> None:
        lengths = [count.total() for count in counts]
        average = sum(lengths) / len(lengths) if any(lengths) else 1.0
        frequency: Counter[str] = Counter(word for count in counts for word in count)
        for place, count in enumerate(counts):
            norm = K1 * (1 - B + B * lengths[place] / average)
            for word, times in count.items():
                rarity = math.log(1 + (len(counts) - frequency[word] + 0.5) / (frequency[word] + 0.5))
                weight = rarity * times * (K1 + 1) / (times + norm)
                self._postings.setdefault(word, []).append((place, weight))
