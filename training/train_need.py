"""Train the classifier of whether a message needs any tool.

    python train_need.py --data ../../shared/bench --vectors DIR --folds DIR --out need.arrays --scores FILE

Two stages. The first reads the message alone: letters and words, and the states of the encoder's second
layer, which no training of the encoder changes. The second weighs that beside how near the catalog is, on
vectors of models that never saw the set (`evaluate.py --vectors`; `--folds` holds those models, a folder a
fold, for the messages without a tool). Held out is `authored`: the first stage is judged on it before it is
trained on it; the second has seven numbers at most and is judged on fifths of it. Fixed seeds; about ten
minutes on one free core.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from onnxruntime import InferenceSession, SessionOptions
from tokenizers import Tokenizer
from toolfold.selection.retrieval.document import query_text
from toolfold.selection.retrieval.embedding import Encoder, LightEmbedder
from toolfold.selection.retrieval.index import Index
from toolfold.selection.retrieval.lexical import KeywordIndex
from toolfold.selection.retrieval.need import (
    CHARACTER_BUCKETS,
    WORD_BUCKETS,
    catalog_similarity,
    hashed_features,
)
from toolfold.selection.retrieval.ranking import EXCLUDED_SCORE, Legs
from toolfold.selection.retrieval.text import WordTokenizer
from toolfold.selection.retrieval.weight_files import save_arrays
from torch import Tensor, nn
from torch.nn import functional as F

from data import WRITTEN, Query, load, read, with_typos
from embedders import QUERY_TOKENS, truncate_ids
from train_ranker import to_tool

WEIGHTS = Path(__file__).resolve().parent.parent / "src" / "toolfold" / "retrieval" / "weights"
MESSAGES = Path(__file__).resolve().parent / "messages"
WRITTEN_WEIGHT = 0.2  # ten thousand messages must not outweigh the others
STATES = "blocks.1.two"
HELD_OUT = "authored"
HIDDEN = 64
MAX_MESSAGES_PER_SET = 300
BATCH = 128
RATES = (0.05, 2e-3)
DECAY = 1e-5
REFUSED = 0.015
_BEFORE = (
    "hey, ",
    "hi! ",
    "ok thanks. now ",
    "thanks, that worked. ",
    "please ",
    "ok ",
    "great, ",
    "and ",
    "hmm ",
)
_AFTER = (" thanks!", " please", " thx", " asap", " ok?", " cheers", "")


@dataclass(frozen=True, slots=True)
class Message:
    """A message and whether it needs a tool."""

    text: str
    needs: bool
    origin: str
    kind: str
    lang: str
    weight: float
    id: str = ""


def messages(data: Path) -> list[Message]:
    """Return all training messages, each once."""
    found = []
    for file in sorted(MESSAGES.glob("*.jsonl")):
        needs = "needs" in file.stem
        found += [
            Message(row["text"], needs, "own", row.get("why", ""), row["lang"], 1.0) for row in read(file)
        ]
    found += [
        Message(row["query"], True, "written", row["kind"], row["lang"], WRITTEN_WEIGHT)
        for file in sorted(WRITTEN.glob("*.jsonl"))
        for row in read(file)
    ]
    lines = (WRITTEN / "no_tool.txt").read_text(encoding="utf-8").splitlines()
    found += [Message(line, False, "written", "", "", 1.0) for line in lines]
    for bench in load(data):
        rows = [query for query in bench.queries if query.gold or bench.name == HELD_OUT]
        chosen = rows if bench.name == HELD_OUT else _sample_queries(rows, MAX_MESSAGES_PER_SET)
        found += [_make_message(query, bench.name, len(chosen)) for query in chosen]
    return found


def _is_written_small_talk(message: Message) -> bool:
    return message.origin == "written" and not message.needs


def _sample_queries(rows: Sequence[Query], most: int) -> list[Query]:
    return random.Random(3).sample(rows, min(most, len(rows)))


def _make_message(query: Query, origin: str, count: int) -> Message:
    # Sets beside `authored` hold much that a model could answer by itself, so they weigh little.
    weight = (0.4 if query.gold else 2.0) if origin == HELD_OUT else min(0.5, 100 / count)
    lang = "zh" if origin == "acebench-zh" else query.lang
    return Message(query.text, bool(query.gold), origin, query.kind, lang, weight, query.id)


def varied(message: Message, chance: random.Random) -> Message:
    """Return a shorter or more polite variant of the message."""
    text, kind = message.text, chance.random()
    if kind < 0.3:
        text = with_typos(text, chance) if " " in text else text.lower()
    elif kind < 0.6 or message.lang != "en" or not message.needs:
        text = text.lower().rstrip(".?!")
    else:
        text = chance.choice(_BEFORE) * (chance.random() < 0.6) + text[:1].lower() + text[1:]
        text += chance.choice(_AFTER)
    return Message(text, message.needs, message.origin, message.kind, message.lang, message.weight / 2)


class Second:
    """Computes the hidden states of the encoder's second layer, one row per token."""

    def __init__(self, folder: Path, threads: int) -> None:
        low = _truncate_graph(onnx.load(str(folder / "encoder.onnx")), STATES)
        options = SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = InferenceSession(low.SerializeToString(), options)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def __call__(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return all rows concatenated, and the start of each text."""
        encoded = self._tokenizer.encode_batch([query_text(text) for text in texts])
        rows = [truncate_ids(one.ids, QUERY_TOKENS) for one in encoded]
        starts = np.r_[0, np.cumsum([len(row) for row in rows])]
        states = np.zeros((starts[-1], 384), np.float16)
        for place, row in enumerate(rows):
            (made,) = self._session.run(None, {"ids": np.array([row])})
            states[starts[place] : starts[place + 1]] = made[0]
        return states, starts


def _truncate_graph(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Remove the layers above, which would triple the time."""
    nodes = list(model.graph.node)
    last = next(place for place, node in enumerate(nodes) if name in node.output)
    del model.graph.node[last + 1 :]
    del model.graph.output[:]
    shape = ["rows", "tokens", 384]
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    return model


class Net(nn.Module):
    """Linear model over hashed n-grams, plus one layer over token states with mean and max pooling."""

    def __init__(self, deep: bool) -> None:
        super().__init__()
        self.deep = deep
        self.table = nn.EmbeddingBag(CHARACTER_BUCKETS + WORD_BUCKETS, 1, mode="sum")
        nn.init.zeros_(self.table.weight)
        self.shift = nn.Parameter(torch.zeros(1))
        self.inner, self.outer = nn.Linear(384, HIDDEN), nn.Linear(2 * HIDDEN + 384, 1, bias=False)
        with torch.no_grad():
            self.outer.weight[:, 2 * HIDDEN :] = 0

    def forward(self, said: tuple[Tensor, Tensor, Tensor], meant: tuple[Tensor, Tensor] | None) -> Tensor:
        places, starts, shares = said
        score = self.table(places, starts, per_sample_weights=shares)[:, 0] + self.shift
        return score if meant is None else score + self._token_score(*meant)

    def _token_score(self, states: Tensor, owner: Tensor) -> Tensor:
        states = F.dropout(states, 0.25, self.training)
        inner = F.relu(self.inner(states))
        rows = int(owner[-1]) + 1
        counts = torch.bincount(owner, minlength=rows)[:, None]
        mean = torch.zeros(rows, HIDDEN).index_add(0, owner, inner) / counts
        high = torch.zeros(rows, HIDDEN).index_reduce(0, owner, inner, "amax")
        plain = torch.zeros(rows, 384).index_add(0, owner, states) / counts
        pooled = F.dropout(torch.cat((mean, high), 1), 0.25, self.training)
        return self.outer(torch.cat((pooled, plain), 1))[:, 0]


class Table:
    """Input tensors of the messages."""

    def __init__(self, rows: Sequence[Message], second: Second) -> None:
        self.rows = rows
        self.needs = np.array([row.needs for row in rows], np.float32)
        self.weights = np.array([row.weight for row in rows])
        self.origins = np.array([row.origin for row in rows])
        self._traits = [hashed_features(row.text) for row in rows]
        self._states, self._starts = second([row.text for row in rows])
        self.lengths = np.diff(self._starts)

    def batch(
        self, places: np.ndarray, deep: bool
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor] | None]:
        taken = [self._traits[place] for place in places]
        starts = np.r_[0, np.cumsum([len(buckets) for buckets, _ in taken])[:-1]]
        said = tuple(
            torch.from_numpy(each)
            for each in (
                np.concatenate([buckets for buckets, _ in taken]),
                starts,
                np.concatenate([s for _, s in taken]),
            )
        )
        if not deep:
            return said, None
        flat = np.concatenate([np.arange(self._starts[p], self._starts[p + 1]) for p in places])
        states = torch.from_numpy(self._states[flat].astype(np.float32))
        return said, (states, torch.from_numpy(np.repeat(np.arange(len(places)), self.lengths[places])))


def train(table: Table, among: np.ndarray, *, deep: bool, steps: int, seed: int = 7) -> Net:
    """Train a net on these rows with balanced classes."""
    torch.manual_seed(seed)
    chance = np.random.default_rng(seed)
    net = Net(deep).train()
    weights, needs = table.weights[among], table.needs[among] > 0
    weights = np.where(needs, weights / weights[needs].sum(), weights / weights[~needs].sum()) / 2
    others = [part for name, part in net.named_parameters() if not name.startswith("table")]
    groups = [{"params": [net.table.weight], "weight_decay": 0.0}, {"params": others, "weight_decay": 0.02}]
    optimiser = torch.optim.AdamW(groups, lr=RATES[1])
    for step in range(steps):
        for group, rate in zip(optimiser.param_groups, RATES, strict=True):
            group["lr"] = rate * min(1, (step + 1) / 20) * (1 - step / steps)
        places = chance.choice(among, BATCH, p=weights)
        wanted = torch.from_numpy(table.needs[places] * 0.98 + 0.01)
        score = net(*table.batch(places, deep))
        loss = F.binary_cross_entropy_with_logits(score, wanted) + DECAY * net.table.weight.square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 100 == 0:
            print(f"  step {step} of {steps}: {float(loss.detach()):.3f}", flush=True)
    return net.eval()


@torch.inference_mode()
def scores(net: Net, table: Table, places: np.ndarray) -> np.ndarray:
    """Return the scores of the first stage, which knows no catalog."""
    parts = [net(*table.batch(places[first : first + 256], net.deep)) for first in range(0, len(places), 256)]
    return torch.cat(parts).numpy()


def catalog_rows(
    rows: Sequence[Message], options: argparse.Namespace, label: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return catalog similarity features of the held-out set, for random parts and the whole catalog."""
    chance = np.random.default_rng(11)
    (bench,) = load(options.data, [HELD_OUT])
    tools = [to_tool(tool) for tool in bench.tools]
    index = Index.of(tools, [b""] * len(tools), KeywordIndex.build(tools, WordTokenizer()), None)
    gold = {query.id: [index.by_name[name] for name in query.gold] for query in bench.queries}
    text = {row.id: row.text for row in rows}
    found: dict[str, list[np.ndarray]] = {}
    for fold in "abc":
        vectors, near = _fold_vectors(
            options, fold, label, {each: text[each] for each in text if not gold[each]}
        )
        for each, vector in near.items():
            if each not in text:
                continue
            lexical, best = index.lexical.scores(text[each])
            dense = vectors @ vector
            keep = _sample_tools(len(tools), gold[each], chance)
            part = Legs(np.where(keep, lexical, 0), best, {"dense": np.where(keep, dense, EXCLUDED_SCORE)})
            found[each] = [
                catalog_similarity(legs, dense=True) for legs in (part, Legs(lexical, best, {"dense": dense}))
            ]
    parts, whole = zip(*(found[row.id] for row in rows), strict=True)
    return np.stack(parts), np.stack(whole)


def _fold_vectors(
    options: argparse.Namespace, fold: str, label: str, without: dict[str, str]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return a fold's vectors of tools and messages, with a third of the messages without a tool."""
    with np.load(options.vectors / f"{HELD_OUT}-{fold}.{label}.npz", allow_pickle=False) as stored:
        queries = stored["queries"].astype(np.float32)
        near = {str(each): vector for each, vector in zip(stored["ids"], queries, strict=True)}
        vectors = stored["tools"].astype(np.float32)
    mine = [each for place, each in enumerate(without) if place % 3 == "abc".index(fold)]
    folder = options.folds / fold
    model = Encoder(weights=folder) if label == "encoder" else LightEmbedder(weights=folder)
    made = model.embed([query_text(without[each]) for each in mine], "query")
    return vectors, near | dict(zip(mine, made, strict=True))


def _sample_tools(count: int, gold: Sequence[int], chance: np.random.Generator) -> np.ndarray:
    """Draw a random part of the catalog that contains the needed tools."""
    keep = chance.random(count) < np.exp(chance.uniform(np.log(0.03), 0))
    keep[list(gold)] = True
    return keep


def weigh(rows: np.ndarray, needs: np.ndarray) -> np.ndarray:
    """Fit a balanced logistic regression by Newton's method; the last number is the intercept."""
    rows = np.c_[rows, np.ones(len(rows))].astype(np.float64)
    each = np.where(needs, 0.5 / needs.mean(), 0.5 / (1 - needs.mean()))
    found = np.zeros(rows.shape[1])
    ridge = np.r_[np.full(rows.shape[1] - 1, 1.0), 0.0]
    for _ in range(30):
        likely = 1 / (1 + np.exp(-np.clip(rows @ found, -30, 30)))
        slope = rows.T @ (each * (likely - needs)) + ridge * found
        bend = (rows * (each * likely * (1 - likely))[:, None]).T @ rows + np.diag(ridge + 1e-9)
        found -= np.linalg.solve(bend, slope)
    return found


def apply(found: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(rows @ found[:-1] + found[-1], -30, 30)))


def curve(likely: np.ndarray, needs: np.ndarray) -> list[dict[str, float]]:
    """Return, for several shares of missed needs, the threshold and the accepted small talk."""
    shares = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15, 0.2)
    bounds = [float(np.quantile(likely[needs], share)) for share in shares]
    return [
        {"threshold": round(b, 4), "refused": s, "selected": round(float(np.mean(likely[~needs] >= b)), 4)}
        for s, b in zip(shares, bounds, strict=True)
    ]


def reliability(likely: np.ndarray, needs: np.ndarray, bins: int = 10) -> list[dict[str, float]]:
    """Compare predicted and true frequencies with balanced classes."""
    each = np.where(needs, 0.5 / needs.mean(), 0.5 / (1 - needs.mean()))
    place = np.minimum((likely * bins).astype(int), bins - 1)
    told = []
    for one in range(bins):
        here = place == one
        if here.any():
            total = each[here].sum()
            told.append(
                {
                    "said": round(float((each * likely)[here].sum() / total), 3),
                    "true": round(float((each * needs)[here].sum() / total), 3),
                    "messages": int(here.sum()),
                }
            )
    return told


def judged(likely: np.ndarray, rows: Sequence[Message], bound: float) -> dict[str, object]:
    """Return the errors at a threshold by reason, kind and language."""
    needs = np.array([row.needs for row in rows])
    wrong = (likely >= bound) != needs

    def by(part: str, which: np.ndarray) -> dict[str, float]:
        names = np.array([getattr(row, part) for row in rows])
        return {
            str(name): round(float(wrong[which & (names == name)].mean()), 3)
            for name in np.unique(names[which])
        }

    return {
        "threshold": round(bound, 4),
        "refused": {"all": round(float(wrong[needs].mean()), 4), **by("kind", needs), **by("lang", needs)},
        "selected": {
            "all": round(float(wrong[~needs].mean()), 4),
            **by("kind", ~needs),
            **by("lang", ~needs),
        },
    }


def second_stage(
    head: str, said: np.ndarray, near: tuple[np.ndarray, np.ndarray], rows: Sequence[Message]
) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """Return the weights of a head and its five-fold cross-validated results."""
    needs = np.array([row.needs for row in rows])
    learn, test = (np.c_[said, each[:, : 3 if head == "text" else 5]] for each in near)
    fifth = np.random.default_rng(0).integers(0, 5, len(rows))
    likely = np.zeros(len(rows))
    for one in range(5):
        found = weigh(learn[fifth != one], needs[fifth != one])
        likely[fifth == one] = apply(found, test[fifth == one])
    bound = float(np.quantile(likely[needs], REFUSED))
    told = {
        "message_alone": curve(said, needs),
        "curve": curve(likely, needs),
        "reliability": reliability(likely, needs),
        "errors": judged(likely, rows, bound),
    }
    found = weigh(learn, needs)
    return {f"{head}.weigh": found[:-1].astype(np.float32), f"{head}.shift": np.float32(found[-1])}, told


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--folds", type=Path, required=True)
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="directory of the encoder weights")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = messages(options.data)
    chance = random.Random(5)
    rows += [varied(row, chance) for row in rows if row.origin == "own" or _is_written_small_talk(row)]
    table = Table(rows, Second(options.weights, options.threads))
    every = np.arange(len(rows))
    held = np.flatnonzero(table.origins == HELD_OUT)
    rest, judges = np.setdiff1d(every, held), [rows[place] for place in held]
    near = {label: catalog_rows(judges, options, label) for label in ("encoder", "static")}
    kept: dict[str, np.ndarray] = {}
    told: dict[str, object] = {}
    for part, deep in (("joint", True), ("alone", False)):
        said = scores(train(table, rest, deep=deep, steps=options.steps), table, held)
        for head in ("encoder",) if deep else ("light", "text"):
            weights, told[head] = second_stage(head, said, near["encoder" if deep else "static"], judges)
            print(head, json.dumps(told[head]), flush=True)
            kept |= weights
        kept |= _to_arrays(train(table, every, deep=deep, steps=options.steps * 5 // 4), part)
    if options.scores:
        options.scores.write_text(json.dumps(told, indent=1) + "\n")
    save_arrays(options.out, kept)


def _to_arrays(net: Net, part: str) -> dict[str, np.ndarray]:
    state = {key: value.detach().numpy() for key, value in net.state_dict().items()}
    table = state["table.weight"][:, 0]
    scale = np.abs(table).max() / 127
    kept = {
        f"{part}.table": np.round(table / scale).astype(np.int8),
        f"{part}.scale": np.float32(scale),
        f"{part}.shift": state["shift"][0].astype(np.float32),
    }
    if net.deep:
        kept |= {"inner": state["inner.weight"].T.astype(np.float16)}
        kept |= {"inner_shift": state["inner.bias"].astype(np.float32)}
        kept |= {"outer": state["outer.weight"][0].astype(np.float32)}
    return kept


if __name__ == "__main__":
    main()
