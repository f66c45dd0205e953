"""Measure how well Toolfold's modes find tools, with weights that were not trained on the messages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from measuring.peers import print_progress
from measuring.scores import DEEPEST, Figures, figures, spread
from measuring.sets import Task
from measuring.weights import MODELS, Model, Part, Remembering, Weights
from toolfold.core.registry import Snapshot
from toolfold.selection.retrieval.embedding import Embedder
from toolfold.selection.retrieval.learned_messages import LearnedMessages
from toolfold.selection.retrieval.multilingual import MultilingualEmbedder
from toolfold.selection.retrieval.tool_search import Mode, Retriever
from toolfold.tools.catalog import load_catalog


@dataclass(frozen=True, slots=True)
class System:
    """One search mode."""

    name: str
    model: Model
    mode: Mode
    ranked: bool = True
    """True: the learned ranker; False: reciprocal rank fusion."""


DEFAULT, LIGHT = "default", "light"
SYSTEMS = (
    System("keyword", "encoder", "keyword"),
    System("semantic", "encoder", "semantic"),
    System("rank fusion", "encoder", "hybrid", ranked=False),
    System(DEFAULT, "encoder", "hybrid"),
    System("light semantic", "light", "semantic"),
    System(LIGHT, "light", "hybrid"),
)


@dataclass(slots=True)
class Quality:
    """Measures Toolfold's modes on one task after another."""

    weights: Weights
    systems: Sequence[System] = SYSTEMS
    encoders: dict[str, Remembering] = field(default_factory=dict)

    def measure(self, task: Task) -> dict[str, Figures]:
        """Return the metrics of every mode on one task."""
        ranked, times = self.search(task)
        return {
            name: figures(task.queries, found) | spread(times[name]) | {"tools": task.tools}
            for name, found in ranked.items()
        }

    def search(self, task: Task) -> tuple[dict[str, dict[str, list[str]]], dict[str, list[float]]]:
        """Return every mode's hits by message, and the CPU milliseconds of its searches."""
        ranked: dict[str, dict[str, list[str]]] = {system.name: {} for system in self.systems}
        times: dict[str, list[float]] = {system.name: [] for system in self.systems}
        tools = snapshot(task.catalog)
        for part in self.weights.parts(task):
            for model in MODELS:
                self._search_part(task, part, model, tools, ranked, times)
        return ranked, times

    def _search_part(
        self,
        task: Task,
        part: Part,
        model: Model,
        tools: Snapshot,
        ranked: Mapping[str, dict[str, list[str]]],
        times: Mapping[str, list[float]],
    ) -> None:
        by_kind = {
            ranked: self.retriever(part.weights, task.name, model, ranked=ranked) for ranked in (True, False)
        }
        for system in (each for each in self.systems if each.model == model):
            retriever = by_kind[system.ranked]
            retriever.find(tools, "warm up", mode=system.mode, limit=1)
            for query in part.queries:
                before = time.process_time()
                hits = retriever.find(tools, query.text, mode=system.mode, limit=DEEPEST)
                times[system.name].append((time.process_time() - before) * 1000)
                ranked[system.name][str(query.id)] = [hit.name for hit in hits]
        if model == "encoder":
            self._get_encoder(part.weights).keep()

    def retriever(
        self,
        part: str,
        name: str,
        model: Model,
        *,
        ranked: bool = True,
        learned: LearnedMessages | None = None,
    ) -> Retriever:
        """Return a retriever with weights that were not trained on the set; its index is not saved."""
        ranker = partial(self.weights.ranker, name, model) if ranked else None
        return Retriever(self._make_embedder(part, model), ranker, None, learned=learned)

    def _make_embedder(self, part: str, model: Model) -> Embedder:
        light = self.weights.light(part)
        return light if model == "light" else MultilingualEmbedder(self._get_encoder(part), light)

    def _get_encoder(self, part: str) -> Remembering:
        if part not in self.encoders:
            print_progress(f"  reading the encoder ({part})")
            self.encoders[part] = self.weights.encoder(part)
        return self.encoders[part]


def snapshot(catalog: Path) -> Snapshot:
    """Return the tools of a catalog file without registering them: their names may be invalid."""
    return Snapshot({tool.name: tool for tool in load_catalog(catalog)}, 0)
