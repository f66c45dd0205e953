"""Train the network that ranks tools in the context of a conversation.

    python conversations.py --mcp ../../shared/mcp --more FILE --out DIR
    python train_context.py --data DIR --out context.arrays

Reads the catalog and the messages that `conversations.py` wrote. The features come from the product's own
code. Besides the written messages, the openings of other conversations follow each conversation once, so
that a new topic is learned as well. Half of the conversations tune the settings of the training; the
held-out ones are measured at the end. Needs numpy and the package itself. Fixed seeds; a few minutes.
"""

from __future__ import annotations

import argparse
import random
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from toolfold.core.registry import Snapshot
from toolfold.selection.retrieval.context import (
    NEED_BUCKETS,
    Context,
    ContextRanker,
    need_buckets,
    need_features,
    pool_states,
)
from toolfold.selection.retrieval.embedding import Embedder
from toolfold.selection.retrieval.example_messages import ExampleMessages
from toolfold.selection.retrieval.multilingual import MultilingualEmbedder
from toolfold.selection.retrieval.need import NeedClassifier
from toolfold.selection.retrieval.phrasebook import Phrasebook
from toolfold.selection.retrieval.ranking import Ranker
from toolfold.selection.retrieval.ranking_metrics import load_queries
from toolfold.selection.retrieval.tool_search import Mode, Retriever
from toolfold.selection.retrieval.weight_files import save_arrays
from toolfold.selection.turn.recent_messages import Conversation
from toolfold.tools.catalog import load_catalog

from data import read

HIDDEN = 12
STEPS = 1_200
BATCH = 48
RATE = 0.02
DECAY = 3e-4
SMALL_TALK = "small talk"
CORRECTION = "correction"
SWITCH = "new topic"
MESSAGES = Path(__file__).resolve().parent / "messages"
UNSERVED = Path(__file__).resolve().parent / "unserved"
NEW_SMALL_TALK = ("no_tool.txt", "remarks.txt")
"""Small talk that the need classifier for single messages was not trained on."""
REACTIONS = "reactions.txt"
NO_TOOL_MESSAGES = 1_400
OWN_WEIGHT = 3.0
WITHOUT_CALLS = 0.15  # share of conversations whose calls are unknown
MISSED = 0.08
SHIPPED_THRESHOLD = 0.17
STATE_SCALE = 0.125
MIN_STATE_SPREAD = 0.05
SPLITS = ("tune", "held-out")


@dataclass(frozen=True, slots=True)
class Example:
    """One message: the features of its candidates, which of them are right, and the need of the message."""

    kind: str
    text: str
    rows: np.ndarray
    right: np.ndarray
    """True for each candidate that the message needs."""
    missing: bool
    """True if no needed tool is a candidate."""
    need: float
    needs: bool
    states: np.ndarray
    """The pooled states of the message's tokens."""
    tokens: np.ndarray | None
    weight: float
    called: bool
    """True if the conversation has called tools."""


def make_retriever(embedder: Embedder | None) -> Retriever:
    """Return the product's retriever, with a context ranker that has yet to be trained."""
    examples = ExampleMessages(Phrasebook())
    ranker = (lambda: Ranker.shipped("encoder")) if embedder else None
    retriever = Retriever(
        embedder, ranker, None, need_classifier=lambda: NeedClassifier.shipped("encoder"), examples=examples
    )
    retriever._searcher._context_ranker = Untrained
    return retriever


class Untrained(ContextRanker):
    """Gives every candidate the same score."""

    def __init__(self) -> None:
        super().__init__({})

    def __call__(self, rows: np.ndarray, *, dense: bool) -> np.ndarray:  # noqa: ARG002
        return np.zeros(len(rows), np.float32)


def make_examples(data: Path, name: str, mode: Mode, retriever: Retriever, tools: Snapshot) -> list[Example]:
    """Return the examples of a file of messages, with new topics and more small talk added."""
    queries = load_queries(data / f"{name}.jsonl")
    rows = [(query.kind, query.text, query.history, query.needs()) for query in queries]
    chance = random.Random(4)
    openings = [row for row in rows if row[0] == "opening"]
    later = [row for row in rows if row[2]]
    rows += [(SWITCH, text, chance.choice(later)[2], needs) for _, text, _, needs in openings]
    idle: set[str] = set()
    if name == "tune":
        every = [
            row["text"] for file in ("no_tool", "more_no_tool") for row in read(MESSAGES / f"{file}.jsonl")
        ]
        idle = set(chance.sample(every, NO_TOOL_MESSAGES))
        fresh = [
            line
            for file in NEW_SMALL_TALK
            for line in (UNSERVED / file).read_text(encoding="utf-8").splitlines()
        ]
        rows += [(SMALL_TALK, text, chance.choice(later)[2], []) for text in (*sorted(idle), *fresh)]
        reactions = (UNSERVED / REACTIONS).read_text(encoding="utf-8").splitlines()
        # Their own random numbers: more small talk leaves the other examples as they are.
        other_chance = random.Random(6)
        rows += [(SMALL_TALK, text, other_chance.choice(later)[2], []) for text in reactions]
    found = []
    index = retriever._find_index(tools, "", mode, None)
    for kind, text, history, needs in rows:
        if not history:
            continue
        context = Conversation.from_messages([*history, {"role": "user", "content": text}]).context()
        if name == "tune" and chance.random() < WITHOUT_CALLS:
            context = Context(context.earlier)
        ranked, need, states = retriever._searcher.rank_in_context(index, text, mode, None, context)
        if ranked is None:
            continue
        pooled = np.zeros(0, np.float32) if states is None else pool_states(states)
        weight = 1.0 if text in idle else OWN_WEIGHT * (1 + 2 * (kind == CORRECTION))
        wanted = set().union(*needs) if needs else set()
        right = np.array([index.tools[each].name in wanted for each in ranked.candidates])
        found.append(
            Example(
                kind,
                text,
                ranked.rows,
                right,
                not right.any(),
                need,
                bool(needs),
                pooled,
                states,
                weight,
                bool(context.used),
            )
        )
    return found


def train(examples: Sequence[Example], seed: int = 7, steps: int = STEPS) -> dict[str, np.ndarray]:
    """Train the network with a softmax over the candidates of each message."""
    chance = np.random.default_rng(seed)
    usable = [each for each in examples if each.needs and not each.missing]
    weight = np.array([1.5 if each.kind in (SWITCH, CORRECTION) else 1.0 for each in usable])
    weight /= weight.sum()
    width = usable[0].rows.shape[1]
    net = {
        "inner": chance.normal(0, width**-0.5, (width, HIDDEN)),
        "inner_shift": np.zeros(HIDDEN),
        "outer": chance.normal(0, HIDDEN**-0.5, HIDDEN),
        "direct": np.zeros(width),
    }
    first, second = ({key: np.zeros_like(value) for key, value in net.items()} for _ in range(2))
    for step in range(1, steps + 1):
        slope = {key: DECAY * value for key, value in net.items()}
        for place in chance.choice(len(usable), BATCH, p=weight):
            _add_slope(net, slope, usable[place], chance)
        rate = RATE * min(1, step / 50) * (1 - step / (steps + 1))
        for key in net:
            first[key] = 0.9 * first[key] + 0.1 * slope[key]
            second[key] = 0.99 * second[key] + 0.01 * slope[key] ** 2
            corrected = first[key] / (1 - 0.9**step)
            net[key] -= rate * corrected / (np.sqrt(second[key] / (1 - 0.99**step)) + 1e-8)
    return {key: value.astype(np.float32) for key, value in net.items()}


def _add_slope(net: dict[str, np.ndarray], slope: dict[str, np.ndarray], each: Example, chance: Any) -> None:
    """Add the gradient of one message's loss: the probability of a right candidate should be 1."""
    rows = each.rows
    before = rows @ net["inner"] + net["inner_shift"]
    keep = (chance.random(HIDDEN) > 0.1) / 0.9
    inner = np.maximum(before, 0) * keep
    scores = inner @ net["outer"] + rows @ net["direct"]
    share = np.exp(scores - scores.max())
    share /= share.sum()
    wanted = share * each.right
    error = (share - wanted / wanted.sum()) / BATCH
    back = np.outer(error, net["outer"]) * (before > 0) * keep
    slope["inner"] += rows.T @ back
    slope["inner_shift"] += back.sum(0)
    slope["outer"] += inner.T @ error
    slope["direct"] += rows.T @ error


def score(net: dict[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    return np.maximum(rows @ net["inner"] + net["inner_shift"], 0) @ net["outer"] + rows @ net["direct"]


def recalls(
    nets: Sequence[dict[str, np.ndarray]], examples: Sequence[Example], depth: int = 8
) -> dict[str, float]:
    """Return, by kind, the share of messages with a right tool among the best."""
    hits: dict[str, list[bool]] = defaultdict(list)
    for each in examples:
        if each.needs:
            total = sum(score(net, each.rows) for net in nets)
            hits[each.kind].append(bool(each.right[(-total).argsort()[:depth]].any()))
    return {kind: round(float(np.mean(found)), 3) for kind, found in sorted(hits.items())}


def base_recalls(examples: Sequence[Example], depth: int = 8) -> dict[str, float]:
    hits: dict[str, list[bool]] = defaultdict(list)
    for each in examples:
        if each.needs:
            hits[each.kind].append(bool(each.right[(-each.rows[:, 0]).argsort(kind="stable")[:depth]].any()))
    return {kind: round(float(np.mean(found)), 3) for kind, found in sorted(hits.items())}


def train_need(
    examples: Sequence[Example], net: dict[str, np.ndarray], *, states: bool
) -> dict[str, np.ndarray]:
    """Fit the need of a message, scaled so that the shipped threshold misses a fixed share of the needs.

    The share is that of messages the fit has not seen (three folds).
    """
    rows = np.stack([_need_row(net, each, states=states) for each in examples])
    needs = np.array([float(each.needs) for each in examples], np.float32)
    weight = np.array([each.weight for each in examples], np.float32)
    width = len(examples[0].states) if states else 0
    scale, middle = np.ones(rows.shape[1], np.float32), np.zeros(rows.shape[1], np.float32)
    if width:  # the states have very different ranges, and some are the same for all messages
        scale[-width:] = STATE_SCALE / np.maximum(rows[:, -width:].std(0), MIN_STATE_SPREAD)
        middle[-width:] = rows[:, -width:].mean(0)
    rows = (rows - middle) * scale
    fold = np.array([zlib.crc32(each.text.encode()) % 3 for each in examples])
    unseen = np.zeros(len(rows))
    for one in range(3):
        found, shift = _fit_logistic(rows[fold != one], needs[fold != one], weight[fold != one])
        unseen[fold == one] = rows[fold == one] @ found + shift
    usual = (needs > 0) & (weight > 1) & np.array([each.called for each in examples])
    bound = float(np.quantile(unseen[usual], MISSED))
    found, shift = _fit_logistic(rows, needs, weight)
    found = found * scale
    shift -= float(middle @ found)
    words = found[:NEED_BUCKETS]
    step = np.abs(words).max() / 127
    kept = {
        "words": np.round(words / step).astype(np.int8),
        "words_scale": np.float32(step),
        "need_shift": np.float32(shift - bound + np.log(SHIPPED_THRESHOLD / (1 - SHIPPED_THRESHOLD))),
    }
    rest = found[NEED_BUCKETS:].astype(np.float32)
    return (
        kept | {"need": rest[: len(rest) - width]} | ({"states": rest[len(rest) - width :]} if width else {})
    )


def _fit_logistic(
    rows: np.ndarray, needs: np.ndarray, weight: np.ndarray, steps: int = 200, decay: float = 1e-3
) -> tuple[np.ndarray, float]:
    """Fit a balanced logistic regression."""
    share = weight * np.where(needs > 0, 0.5 / weight[needs > 0].sum(), 0.5 / weight[needs == 0].sum())
    share = share.astype(np.float32)
    found, shift = np.zeros(rows.shape[1], np.float32), 0.0
    first, second = np.zeros_like(found), np.zeros_like(found)
    for step in range(1, steps + 1):
        error = share * (1 / (1 + np.exp(-np.clip(rows @ found + shift, -30, 30))) - needs)
        slope = rows.T @ error + decay * found
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
        found -= 0.02 * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
        shift -= 0.1 * float(error.sum())
    return found, shift


def _need_row(net: dict[str, np.ndarray], each: Example, *, states: bool) -> np.ndarray:
    row = np.zeros(NEED_BUCKETS, np.float32)
    buckets, shares = need_buckets(each.text)
    np.add.at(row, buckets, shares)
    own = need_features(score(net, each.rows), each.rows, each.need)
    return np.concatenate((row, own, each.states if states else [])).astype(np.float32)


def need_errors(likely: np.ndarray, examples: Sequence[Example]) -> dict[str, float]:
    """Return, by kind of message, the share for which the shipped threshold is wrong."""
    wrong: dict[str, list[bool]] = defaultdict(list)
    for each, probability in zip(examples, likely, strict=True):
        wrong[each.kind].append((probability >= SHIPPED_THRESHOLD) != each.needs)
    return {kind: round(float(np.mean(found)), 3) for kind, found in sorted(wrong.items())}


def predict_needs(ranker: ContextRanker, part: str, examples: Sequence[Example]) -> np.ndarray:
    dense = part != "text"
    return np.array(
        [
            ranker.need_probability(
                each.text,
                need_features(ranker(each.rows, dense=dense), each.rows, each.need),
                dense=dense,
                states=each.tokens if part == "encoder" else None,
            )
            for each in examples
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="directory that conversations.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="file of weights to write")
    options = parser.parse_args()
    tools = Snapshot({tool.name: tool for tool in load_catalog(options.data / "catalog.jsonl")}, 0)
    kept: dict[str, np.ndarray] = {}
    parts: tuple[tuple[str, Embedder | None, Mode], ...] = (
        ("dense", MultilingualEmbedder(), "hybrid"),
        ("text", None, "keyword"),
    )
    for part, embedder, mode in parts:
        retriever = make_retriever(embedder)
        tune, held_out = (make_examples(options.data, name, mode, retriever, tools) for name in SPLITS)
        net = train(tune)
        kept |= {f"{part}.{key}": value for key, value in net.items()}
        heads = {part: False, "encoder": True} if embedder else {part: False}
        for head, states in heads.items():
            need = train_need(tune, net, states=states)
            kept |= {f"{head}.{key}": value for key, value in need.items()}
        print(part, "message alone:", base_recalls(held_out))
        print(part, "in context:   ", recalls([net], held_out))
        for head in heads:
            print(
                head,
                "wrong need:   ",
                need_errors(predict_needs(ContextRanker(kept), head, held_out), held_out),
            )
    save_arrays(options.out, kept)


if __name__ == "__main__":
    main()
