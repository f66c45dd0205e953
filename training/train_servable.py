"""Train how the need for a tool depends on the message and on the catalog together.

    python conversations.py --mcp ../../shared/mcp --more FILE --out DIR
    python train_servable.py --data DIR --weights need.arrays --out need.arrays [--scores FILE]

The last stage of the need classifier: a logistic regression on the text score of `train_need.py` and on how
well the best tools match. Messages that need a tool are those of the phrasebook and the openings of
conversations; a tool is indexed without messages or with other ones than the message searched. Messages that
need none are small talk (`unserved/no_tool.txt`), requests written for catalogs that cannot serve them
(`unserved/requests.txt`), and phrasebook messages of servers that are not in the catalog and have no similar
tool in it. Nothing of this was used to train the encoder or the text score. Catalogs are random parts of real
servers; judged by leaving out related servers together, or a written catalog. Needs numpy and the package.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from toolfold.core.types import Tool
from toolfold.selection.retrieval.document import query_text
from toolfold.selection.retrieval.embedding import Embedder, Encoder, LightEmbedder, QueryEncoding
from toolfold.selection.retrieval.example_messages import ExampleMessages
from toolfold.selection.retrieval.index import embedded_messages, embedding_text
from toolfold.selection.retrieval.lexical import KeywordIndex
from toolfold.selection.retrieval.message_vectors import embed_with_messages
from toolfold.selection.retrieval.multilingual import MultilingualEmbedder
from toolfold.selection.retrieval.need import Head, NeedClassifier
from toolfold.selection.retrieval.phrasebook import Phrasebook
from toolfold.selection.retrieval.ranking import Legs
from toolfold.selection.retrieval.text import WordTokenizer
from toolfold.selection.retrieval.weight_files import load_arrays, save_arrays
from toolfold.tools.catalog import load_catalog

from data import read

UNSERVED = Path(__file__).resolve().parent / "unserved"
FOLDS = 4
SMALL_CATALOGS, LARGE_CATALOGS = 14, 4
"""Number of random catalogs per fold."""
SERVABLE, SMALL_TALK, WRITTEN, FOREIGN = "servable", "small talk", "written", "other server"
MAX_TOOL_SIMILARITY = 0.45
"""A message of another server counts as unservable if its tool is at most this similar to every tool."""
MISSED = 0.02
THRESHOLD = 0.17
"""Probability at which every head misses the share `MISSED`."""
REPORTED = (0.01, 0.02, 0.05, 0.1)
RIDGE = 1.0
WITHOUT_MESSAGES, ALL_MESSAGES = -1, 2
RELATED = (
    "github gitlab cyanheads-git mcp-server-git circleci-circleci",
    "playwright-mcp ea-playwright puppeteer chrome-devtools",
    "brave-search tavily exa duckduckgo mcp-server-fetch",
    "mcp-server-sqlite sqlite-mcp postgres-ref motherduck clickhouse neondatabase-neon",
    "gmail google-workspace google-calendar",
    "google-maps mapbox",
    "word excel powerpoint pdf pandoc markitdown",
    "filesystem text-editor shell",
)
"""Servers that serve each other's messages; they are left out together."""


class CachingEncoder(Encoder):
    """Encoder that encodes each text once."""

    def __init__(self) -> None:
        super().__init__()
        self._tools: dict[str, np.ndarray] = {}
        self._queries: dict[str, QueryEncoding] = {}

    def embed(self, texts: Sequence[str], kind: str) -> np.ndarray:
        for text in texts:
            if text not in self._tools:
                self._tools[text] = super().embed([text], kind)[0]
        return np.stack([self._tools[text] for text in texts]) if texts else np.zeros((0, 384), np.float32)

    def read(self, message: str, parts: Sequence[str] = ()) -> QueryEncoding:
        if parts:
            return super().read(message, parts)
        if message not in self._queries:
            self._queries[message] = super().read(message)
        return self._queries[message]


@dataclass(frozen=True, slots=True)
class Example:
    """A message over a catalog: its features by head, and whether the catalog has a tool for it."""

    kind: str
    group: str
    features: dict[str, list[float]]

    @property
    def needs(self) -> bool:
        return self.kind == SERVABLE


class Models:
    """The embedding models, and the need classifier's features for each of its heads."""

    def __init__(self, weights: Path) -> None:
        self.embedders: dict[Head, Embedder] = {
            "encoder": MultilingualEmbedder(CachingEncoder()),
            "light": LightEmbedder(),
        }
        self.weights = load_arrays(weights)
        heads: tuple[Head, ...] = ("encoder", "light", "text")
        self._classifiers = {head: NeedClassifier(self.weights, head) for head in heads}

    def features(self, catalog: Catalog, message: str) -> dict[str, list[float]]:
        lexical, best = catalog.keywords.scores(message)
        found = {"text": self._classifiers["text"].features(message, Legs(lexical, best, {}))}
        for head, embedder in self.embedders.items():
            text = query_text(message)
            read = (
                embedder.read(text)
                if isinstance(embedder, MultilingualEmbedder)
                else QueryEncoding(embedder.embed([text], "query"))
            )
            legs = Legs(lexical, best, {"dense": catalog.vectors[head] @ read.vectors[0]})
            found[head] = self._classifiers[head].features(message, legs, read.states)
        return found


class Catalog:
    """Tools with some of their example messages, prepared for search."""

    def __init__(self, tools: Sequence[Tool], models: Models, part: int) -> None:
        self.names = [tool.name for tool in tools]
        self.servers = {tool.server for tool in tools}
        self.part = part
        self._messages = {tool.name: tool.messages for tool in tools}
        indexed = [replace(tool, messages=_take_part(tool.messages, part)) for tool in tools]
        self.keywords = KeywordIndex.build(indexed, WordTokenizer())
        texts, messages = [embedding_text(tool) for tool in indexed], list(map(embedded_messages, indexed))
        self.vectors = {
            head: embed_with_messages(model, texts, messages) for head, model in models.embedders.items()
        }

    def draw_messages(self, count: int, chance: random.Random) -> Iterator[str]:
        """Yield messages of the catalog's tools that are not in the index."""
        named = [name for name in self.names if self._messages[name]]
        for name in chance.sample(named, min(count, len(named))):
            free = _take_part(self._messages[name], 1 - self.part if self.part >= 0 else ALL_MESSAGES)
            if free:
                yield chance.choice(free)


def _take_part(messages: Sequence[str], part: int) -> tuple[str, ...]:
    """Return no messages, every second one (0 or 1), or all."""
    if part == WITHOUT_MESSAGES:
        return ()
    return tuple(messages) if part == ALL_MESSAGES else tuple(messages[part::2])


class Builder:
    """Makes examples over catalogs of real servers."""

    def __init__(self, data: Path, models: Models) -> None:
        self._data, self._models, self._chance = data, models, random.Random(5)
        catalog = load_catalog(data / "catalog.jsonl")
        self.tools = {tool.name: tool for tool in ExampleMessages(Phrasebook()).add_messages(catalog)}
        vectors = models.embedders["encoder"].embed(list(map(embedding_text, catalog)), "tool")[:, :384]
        self._vectors = dict(zip(self.tools, vectors, strict=True))
        self.folds = _make_folds(sorted({tool.server for tool in catalog}))
        self.small_talk = (UNSERVED / "no_tool.txt").read_text(encoding="utf-8").splitlines()

    def examples(self) -> Iterator[Example]:
        for fold in range(FOLDS):
            inside = sorted(server for server, its in self.folds.items() if its == fold)
            outside = sorted(self.folds.keys() - set(inside))
            for _ in range(SMALL_CATALOGS):
                count = min(self._chance.choice((1, 2, 3, 5, 8, 14)), len(inside))
                yield from self._random_catalog(inside, count, f"servers {fold}", 25, 8)
            for number in range(LARGE_CATALOGS):
                count = len(outside) if number < LARGE_CATALOGS // 2 else len(outside) // 2
                yield from self._random_catalog(outside, count, f"large {fold}", 40, 15)
        yield from self._written_catalogs()
        yield from self._openings()

    def _random_catalog(
        self, servers: Sequence[str], count: int, group: str, messages: int, small_talk: int
    ) -> Iterator[Example]:
        part = self._chance.choice((WITHOUT_MESSAGES, WITHOUT_MESSAGES, 0, 1))
        catalog = self._catalog(self._chance.sample(servers, count), part)
        yield from self._make(SERVABLE, group, catalog, catalog.draw_messages(messages, self._chance))
        yield from self._make(FOREIGN, group, catalog, self._foreign_messages(catalog, messages))
        yield from self._make(SMALL_TALK, group, catalog, self._chance.sample(self.small_talk, small_talk))

    def _catalog(self, servers: Iterable[str], part: int) -> Catalog:
        chosen = set(servers)
        return Catalog([tool for tool in self.tools.values() if tool.server in chosen], self._models, part)

    def _foreign_messages(self, catalog: Catalog, count: int) -> Iterator[str]:
        inside = np.stack([self._vectors[name] for name in catalog.names])
        others = [
            tool for tool in self.tools.values() if tool.server not in catalog.servers and tool.messages
        ]
        far = (
            tool
            for tool in self._chance.sample(others, len(others))
            if float((inside @ self._vectors[tool.name]).max()) <= MAX_TOOL_SIMILARITY
        )
        for tool, _ in zip(far, range(count), strict=False):
            yield self._chance.choice(tool.messages)

    def _written_catalogs(self) -> Iterator[Example]:
        for block in (UNSERVED / "requests.txt").read_text(encoding="utf-8").split("\n\n"):
            header, *requests = block.strip().splitlines()
            group, _, listed = header.removeprefix("# ").partition(": ")
            servers = listed.split()
            for part in (WITHOUT_MESSAGES, 0, 1):
                catalog = self._catalog(servers, part)
                yield from self._make(SERVABLE, group, catalog, catalog.draw_messages(20, self._chance))
            catalogs = [catalog, self._catalog(servers, WITHOUT_MESSAGES)]
            for request in requests:
                yield from self._make(WRITTEN, group, self._chance.choice(catalogs), [request])

    def _openings(self) -> Iterator[Example]:
        openings = [row["query"] for row in read(self._data / "tune.jsonl") if row["kind"] == "opening"]
        for part in (WITHOUT_MESSAGES, ALL_MESSAGES):
            yield from self._make(SERVABLE, "openings", self._catalog(self.folds, part), openings)

    def _make(self, kind: str, group: str, catalog: Catalog, messages: Iterable[str]) -> Iterator[Example]:
        for message in messages:
            yield Example(kind, group, self._models.features(catalog, message))


def _make_folds(servers: Sequence[str]) -> dict[str, int]:
    shuffled = random.Random(2).sample(servers, len(servers))
    folds = {server: number % FOLDS for number, server in enumerate(shuffled)}
    for related in RELATED:
        first, *others = related.split()
        folds |= dict.fromkeys(others, folds[first])
    return folds


def fit(rows: np.ndarray, needs: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """Fit a logistic regression in which both classes, and the kinds within a class, weigh the same."""
    mean, spread = rows.mean(0), rows.std(0) + 1e-6
    scaled = np.c_[(rows - mean) / spread, np.ones(len(rows))].astype(np.float64)
    weight = np.zeros(len(rows))
    for kind in np.unique(kinds):
        members = kinds == kind
        classes = len(np.unique(kinds[needs == needs[members][0]]))
        weight[members] = 0.5 * len(rows) / classes / members.sum()
    found = np.zeros(scaled.shape[1])
    ridge = np.r_[np.full(scaled.shape[1] - 1, RIDGE), 0.0]
    for _ in range(40):
        likely = _logistic(scaled @ found)
        slope = scaled.T @ (weight * (likely - needs)) + ridge * found
        bend = (scaled * (weight * likely * (1 - likely))[:, None]).T @ scaled + np.diag(ridge + 1e-9)
        found -= np.linalg.solve(bend, slope)
    weights = found[:-1] / spread
    return np.r_[weights, found[-1] - mean @ weights]


def _logistic(scores: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(scores, -30, 30)))


def judge(rows: np.ndarray, needs: np.ndarray, kinds: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the scores of every message by a fit without its group of catalogs."""
    scores = np.zeros(len(rows))
    for group in np.unique(groups):
        held = groups == group
        found = fit(rows[~held], needs[~held], kinds[~held])
        scores[held] = rows[held] @ found[:-1] + found[-1]
    return scores


def curve(scores: np.ndarray, needs: np.ndarray, kinds: np.ndarray, shift: float) -> list[dict[str, float]]:
    """Return, for several shares of missed needs, the threshold and the accepted messages by kind."""
    told = []
    for missed in REPORTED:
        bound = float(np.quantile(scores[needs], missed))
        row = {"missed": missed, "threshold": round(float(_logistic(np.array(bound + shift))), 4)}
        told.append(
            row
            | {
                str(kind): round(float((scores[kinds == kind] >= bound).mean()), 3)
                for kind in np.unique(kinds[~needs])
            }
        )
    return told


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="directory that conversations.py wrote")
    parser.add_argument("--weights", type=Path, required=True, help="weights that train_need.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="file of weights to write")
    parser.add_argument("--scores", type=Path, help="write the results to this file")
    options = parser.parse_args()
    models = Models(options.weights)
    examples = list(Builder(options.data, models).examples())
    kinds, groups = (np.array([getattr(each, part) for each in examples]) for part in ("kind", "group"))
    needs = np.array([each.needs for each in examples])
    print({kind: int((kinds == kind).sum()) for kind in np.unique(kinds)}, flush=True)
    told: dict[str, object] = defaultdict(dict)
    weights = dict(models.weights)
    for head in ("encoder", "light", "text"):
        rows = np.array([each.features[head] for each in examples])
        scores = judge(rows, needs, kinds, groups)
        # Heads differ in certainty: a shift gives them the same share of missed needs at one threshold.
        shift = np.log(THRESHOLD / (1 - THRESHOLD)) - float(np.quantile(scores[needs], MISSED))
        told[head] = curve(scores, needs, kinds, shift)
        print(head, "shift", round(shift, 3), json.dumps(told[head], indent=1), flush=True)
        found = fit(rows, needs, kinds)
        weights |= {f"{head}.weigh": found[:-1].astype(np.float32)}
        weights |= {f"{head}.shift": np.float32(found[-1] + shift)}
    save_arrays(options.out, weights)
    if options.scores:
        options.scores.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
