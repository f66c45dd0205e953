"""Measure the need classifier: how often it selects tools for small talk, and how often it misses a need.

A row that names its own candidates is searched over those only. Uses weights that were not trained on the
set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from measuring.peers import print_progress
from measuring.quality import Quality, snapshot
from measuring.scores import DEEPEST, Figures
from measuring.sets import Sets, Task, sampled
from toolfold.config.settings import DEFAULT_NEED_THRESHOLD
from toolfold.core.registry import Snapshot
from toolfold.selection.retrieval.ranking_metrics import Query
from toolfold.selection.retrieval.tool_search import SearchResult

CHAT = "none"
NEEDS_A_MESSAGE = 4  # times the limit: one in a hundred has to show


@dataclass(frozen=True, slots=True)
class Need:
    """Runs the need classifier on every message of a set."""

    quality: Quality
    limit: int

    def measure(self, sets: Sets, names: Sequence[str]) -> dict[str, Figures]:
        """Return the shares of selected messages and their probabilities, for each data set."""
        told = {}
        for name in names:
            print_progress(f"  need of a tool: {name}")
            told[name] = self._measure_set(sets, name)
        return told

    def _measure_set(self, sets: Sets, name: str) -> Figures:
        queries = sets.queries(name)
        task = sets.task(name, self.limit * NEEDS_A_MESSAGE)
        chat = [query for query in queries if query.kind == CHAT and not query.gold]
        own = [query for query in queries if not query.gold and query.candidates]
        tools = snapshot(task.catalog)
        needs = [verdict for part in self.parts(task) for verdict in self._search_all(part, task, tools)]
        first = self.parts(task)[0][0] if task.queries else "shipped"
        return {
            "seen": self.quality.weights.has_seen_need(name),
            "needs": _summarize(needs),
            "chat": _summarize(
                self._search_all((first, sampled(chat, self.limit * NEEDS_A_MESSAGE)), task, tools)
            ),
            "own": _summarize(self._search_all((first, sampled(own, self.limit)), task, tools)),
        }

    def parts(self, task: Task) -> list[tuple[str, Sequence[Query]]]:
        return [(part.weights, part.queries) for part in self.quality.weights.parts(task)]

    def _search_all(
        self, part: tuple[str, Sequence[Query]], task: Task, tools: Snapshot
    ) -> list[SearchResult]:
        weights, queries = part
        retriever = self.quality.retriever(weights, task.name, "encoder")
        ask = partial(retriever.answer, tools, mode="hybrid", limit=DEEPEST)
        return [ask(query.text, granted=query.candidates) for query in queries]


def _summarize(verdicts: Sequence[SearchResult]) -> Figures:
    if not verdicts:
        return {}
    share = sum(verdict.needed(DEFAULT_NEED_THRESHOLD) for verdict in verdicts) / len(verdicts)
    return {
        "messages": len(verdicts),
        "selected": round(share, 4),
        "need": sorted(round(float(verdict.need), 4) for verdict in verdicts),
    }


def curve(chat: Sequence[float], needs: Sequence[float]) -> list[tuple[float, float, float]]:
    """Return each threshold with the shares of missed needs and of accepted small talk."""
    bounds = sorted({*chat, *needs, 0.0, 1.01})
    return [
        (
            bound,
            sum(value < bound for value in needs) / len(needs),
            sum(value >= bound for value in chat) / len(chat),
        )
        for bound in bounds
    ]
