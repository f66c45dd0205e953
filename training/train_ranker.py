"""Train the small network that ranks the candidates of the retrieval legs.

    python train_ranker.py --data ../../shared/bench --vectors DIR --model encoder --out FILE

Reads the vectors that `evaluate.py --vectors` kept: each set's were made by models that never saw the set,
so that the ranker learns how far to believe a semantic leg on catalogs it was not trained on. First it is
judged a set at a time, trained on the others; then the one to ship is trained on all. Needs numpy and the
package itself, no torch. Fixed seeds; a few minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from toolfold.core.authoring import build_tool
from toolfold.core.types import CallContext, Json, Source, Tool
from toolfold.selection.retrieval.document import query_text
from toolfold.selection.retrieval.index import Index
from toolfold.selection.retrieval.lexical import KeywordIndex
from toolfold.selection.retrieval.multilingual import LIGHT_SCALE, MultilingualEmbedder
from toolfold.selection.retrieval.ranking import (
    CANDIDATES_PER_LEG,
    Legs,
    Ranker,
    best_positions,
    features,
    fuse_reciprocal_ranks,
)
from toolfold.selection.retrieval.text import WordTokenizer
from toolfold.selection.retrieval.weight_files import save_arrays

from data import FOLDS, Bench, Query, load, with_written

HIDDEN = 24
STEPS = 3_000
BATCH = 48
MAX_QUERIES_PER_SET = 500
WRITTEN_SHARE = 0.25  # most of these messages are indirect, which is not typical


@dataclass(frozen=True, slots=True)
class Example:
    """One message: the features of its candidates, and the indexes of the correct ones."""

    rows: np.ndarray
    golds: tuple[tuple[int, ...], ...]
    """For each needed tool, its candidates; empty if no leg found it."""
    alone: dict[str, list[int]]
    """Rankings of the candidates by each leg and by rank fusion."""


def examples(name: str, benches: Sequence[Bench], vectors: Path, near: Near, most: int) -> list[Example]:
    """Return the training examples of one set."""
    stored = Stored.read(vectors, name)
    bench = next(each for each in benches if name in (each.name, *(f"{each.name}-{fold}" for fold in FOLDS)))
    tools = {tool.name: tool for tool in bench.tools}
    kept = [to_tool(tools[each]) for each in stored.names]
    index = Index.of(kept, [b""] * len(kept), KeywordIndex.build(kept, WordTokenizer()), None)
    queries = {query.id: query for query in bench.queries}
    chosen = [place for place, each in enumerate(stored.ids) if each in queries]
    if len(chosen) > most:
        chosen = random.Random(7).sample(chosen, most)
    return [
        _make_example(index, queries[stored.ids[place]], near(stored, place, queries[stored.ids[place]].text))
        for place in chosen
    ]


@dataclass(frozen=True, slots=True)
class Stored:
    """Vectors of one set from models that were not trained on it."""

    names: list[str]
    ids: list[str]
    tools: dict[str, np.ndarray]
    queries: dict[str, np.ndarray]

    @classmethod
    def read(cls, folder: Path, name: str) -> Stored:
        files = {
            leg: np.load(folder / f"{name}.{leg}.npz", allow_pickle=False) for leg in ("encoder", "static")
        }
        return cls(
            list(map(str, files["encoder"]["names"])),
            list(map(str, files["encoder"]["ids"])),
            {leg: file["tools"].astype(np.float32) for leg, file in files.items()},
            {leg: file["queries"].astype(np.float32) for leg, file in files.items()},
        )


Near = Callable[[Stored, int, str], np.ndarray]


def light(stored: Stored, place: int, _text: str) -> np.ndarray:
    """Return the light model's similarity of every tool."""
    return stored.tools["static"] @ stored.queries["static"][place]


def polyglot() -> Near:
    """Return the default model's similarity of every tool: both models for foreign languages."""
    model = MultilingualEmbedder()

    def near(stored: Stored, place: int, text: str) -> np.ndarray:
        share = model.share(query_text(text))
        first = stored.tools["encoder"] @ stored.queries["encoder"][place]
        return first * share + light(stored, place, text) * LIGHT_SCALE * (1 - share)

    return near


def to_tool(tool: object) -> Tool:
    """Return a catalog entry as a tool of the product."""
    schema: Json = {"description": tool.description, "parameters": dict(tool.parameters or {})}  # type: ignore[attr-defined]
    schema["parameters"] = {**schema["parameters"], "type": "object"}
    server = tool.server or ""  # type: ignore[attr-defined]
    source = Source("catalog", server)
    return build_tool(name=tool.name, toolset="x", schema=schema, handler=_do_nothing, source=source)  # type: ignore[attr-defined]


def _do_nothing(_args: Json, _context: CallContext) -> None:
    return None


def _make_example(index: Index, query: Query, near: np.ndarray) -> Example:
    lexical, best = index.lexical.scores(query.text)
    legs = Legs(lexical, best, {"dense": near})
    found = best_positions(lexical, CANDIDATES_PER_LEG)
    rankings = {"lexical": found[lexical[found] > 0]}
    rankings["dense"] = best_positions(near, CANDIDATES_PER_LEG)
    candidates = np.unique(np.concatenate(list(rankings.values())))
    seat = {int(place): row for row, place in enumerate(candidates)}
    fused = best_positions(fuse_reciprocal_ranks(list(rankings.values()), len(lexical)), CANDIDATES_PER_LEG)
    rankings["rrf"] = fused
    golds = [
        tuple(
            seat[index.by_name[name]]
            for name in (gold, *query.alternatives.get(gold, ()))
            if name in index.by_name and index.by_name[name] in seat
        )
        for gold in query.gold
    ]
    named = index.lexical.name_coverage(query.text, candidates)
    alone = {name: [seat[int(p)] for p in each if int(p) in seat] for name, each in rankings.items()}
    return Example(features(legs, candidates, named), tuple(golds), alone)


def recall(example: Example, order: Sequence[int], depth: int = 5) -> float:
    """Return the share of needed tools among the first ones."""
    top = set(order[:depth])
    return float(np.mean([bool(top & set(gold)) for gold in example.golds]))


def train(sets: Mapping[str, Sequence[Example]], seed: int = 7) -> dict[str, np.ndarray]:
    """Return the weights of a ranker; each set counts by the square root of its size, written ones less."""
    rng = np.random.default_rng(seed)
    usable = [[e for e in each if any(e.golds)] for each in sets.values()]
    every = np.concatenate([e.rows for each in usable for e in each[:100]])
    width = every.shape[1]
    weights = {
        "mean": every.mean(0),
        "spread": every.std(0) + 1e-3,
        "inner": rng.normal(0, 0.3, (width, HIDDEN)),
        "inner_bias": np.zeros(HIDDEN),
        "outer": rng.normal(0, 0.1, HIDDEN),
        "direct": np.zeros(width),
    }
    learned = ("inner", "inner_bias", "outer", "direct")
    first = {key: np.zeros_like(weights[key]) for key in learned}
    second = {key: np.zeros_like(weights[key]) for key in learned}
    factors = [WRITTEN_SHARE if name.startswith("written_") else 1.0 for name in sets]
    share = np.sqrt([len(each) for each in usable]) * factors
    for step in range(1, STEPS + 1):
        picks = rng.choice(len(usable), BATCH, p=share / share.sum())
        slopes = _compute_gradients(weights, [usable[p][rng.integers(len(usable[p]))] for p in picks])
        rate = 0.01 * min(1, step / 100) * 0.5 * (1 + np.cos(np.pi * step / STEPS))
        for key in learned:
            slope = slopes[key] + 1e-4 * weights[key]
            first[key] = 0.9 * first[key] + 0.1 * slope
            second[key] = 0.99 * second[key] + 0.01 * slope**2
            weights[key] = weights[key] - rate * first[key] / (np.sqrt(second[key]) + 1e-8)
    return {key: value.astype(np.float32) for key, value in weights.items()}


def _compute_gradients(weights: dict[str, np.ndarray], batch: Sequence[Example]) -> dict[str, np.ndarray]:
    """Return the gradient of the mean log-loss of each needed tool against all others."""
    total = {key: np.zeros_like(weights[key]) for key in ("inner", "inner_bias", "outer", "direct")}
    for example in batch:
        scaled = (example.rows - weights["mean"]) / weights["spread"]
        before = scaled @ weights["inner"] + weights["inner_bias"]
        hidden = np.maximum(before, 0)
        scores = hidden @ weights["outer"] + scaled @ weights["direct"]
        pull = _score_gradients(scores, example.golds)
        inward = np.outer(pull, weights["outer"]) * (before > 0)
        total["direct"] += scaled.T @ pull
        total["outer"] += hidden.T @ pull
        total["inner"] += scaled.T @ inward
        total["inner_bias"] += inward.sum(0)
    return {key: value / len(batch) for key, value in total.items()}


def _score_gradients(scores: np.ndarray, golds: Sequence[tuple[int, ...]]) -> np.ndarray:
    right = {place for gold in golds for place in gold}
    pull = np.zeros_like(scores)
    for gold in golds:
        if not gold:
            continue
        open_to = np.array([place in gold or place not in right for place in range(len(scores))])
        share = np.where(open_to, np.exp(scores - scores.max()), 0)
        share /= share.sum()
        inside = share[list(gold)].sum()
        pull += share
        pull[list(gold)] -= share[list(gold)] / inside
    return pull / max(1, sum(bool(gold) for gold in golds))


def order(ranker: Ranker, example: Example) -> list[int]:
    return [int(place) for place in np.argsort(-ranker(example.rows), kind="stable")]


def judged(ranker: Ranker, found: Sequence[Example]) -> dict[str, float]:
    """Return recall@5 of each leg, of rank fusion, of the ranker, and its upper bound."""
    row = {leg: np.mean([recall(each, each.alone[leg]) for each in found]) for leg in found[0].alone}
    row["ranker"] = np.mean([recall(each, order(ranker, each)) for each in found])
    row["reachable"] = np.mean([np.mean([bool(gold) for gold in each.golds]) for each in found])
    return {key: round(float(value), 3) for key, value in row.items()}


def _origin(name: str) -> str:
    """Return the first part of a set's name; sets with the same one are left out together."""
    return name.removeprefix("written_").split("-")[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--model", choices=("encoder", "light"), default="encoder")
    parser.add_argument("--keep", type=Path, help="directory for the rankers trained without one set")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--final-only", action="store_true", help="train the final ranker without evaluation")
    options = parser.parse_args()
    names = sorted({file.name.split(".")[0] for file in options.vectors.glob("*.encoder.npz")})
    near = polyglot() if options.model == "encoder" else light
    benches = with_written(load(options.data))
    sets = {name: examples(name, benches, options.vectors, near, MAX_QUERIES_PER_SET) for name in names}
    told = {}
    for name in names if not options.final_only else ():
        weights = train({other: sets[other] for other in names if _origin(other) != _origin(name)})
        told[name] = judged(Ranker(weights), sets[name])
        print(name, told[name], flush=True)
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            save_arrays(options.keep / f"without-{name}.{options.model}.arrays", weights)
    save_arrays(options.out, train(sets))
    if options.scores:
        options.scores.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
