"""Train the query encoder: a student with fewer layers that embeds messages into the encoder's vector space.

    python train_query_encoder.py --data ../../shared/bench --teacher DIR --out DIR [--fold a] [--layers 4]

Tools are embedded by the encoder, once; only messages are embedded while a user waits. The student shares the
encoder's embeddings and two lowest layers, which stay as they are, and learns from fixed tool vectors: each
message must find its tools among all tools of its catalog, and stay near the encoder's own vector of it.
The messages in `written/` are used in addition to those of the sets. With `--fold`, the sets of that fold and
everything written over their tools are left out; the teacher must have been trained without them too.
"""

from __future__ import annotations

import argparse
import pickle
import random
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from toolfold.retrieval.document import query_text
from torch import Tensor
from torch.nn import functional as F

from conversations import MORE_SERVERS
from data import FOLDS, NEVER, SAMPLE, Bench, Query, load, made_up_query, read, split, vary_query
from embedders import TOOL_TOKENS, TransformerEmbedder
from encoder import WIDTH, Block, Encoder, load_exported, load_tuned, save
from evaluate import at_most
from train_encoder import schedule

SEED = 20261117
WRITTEN = Path(__file__).resolve().parent / "written"
LOWER_LAYERS = 2
MAX_CATALOG = 4_000
QUERY_TOKENS = 64
SCALE = 20.0  # 1 / temperature
SYNTHETIC = 0.15  # share of messages that are generated from definitions
MAX_MADE_UP = 1_500
JOINED = 0.15  # share of messages that are a part of two joined ones
MAX_JOINED = 1_200
JOINTS = (". ", ", and ", " and then ", "; also ", ", then ", " and ")
KIND_WEIGHTS = {"indirect": 2.0}
EXCLUDED = frozenset({*NEVER, "acebench-zh"})  # the vocabulary is English


@dataclass(frozen=True, slots=True)
class Group:
    """Messages over one catalog, with the vectors of its tools."""

    name: str
    vectors: Tensor
    queries: tuple[Query, ...]
    golds: tuple[tuple[int, ...], ...]
    masked: tuple[tuple[int, ...], ...]
    """Tools that are neither right nor wrong: alternatives, and near-duplicates of a right tool."""


def is_held_out(server: str, every: int) -> bool:
    """Return True for about one of `every` servers; its written messages are only used to measure."""
    return every > 0 and zlib.crc32(server.encode()) % every == 0


def add_written(benches: Sequence[Bench], hold_out: int = 0) -> list[Bench]:
    """Return the sets with the messages of `written/` added."""
    extended = []
    for bench in benches:
        servers = {tool.name: tool.server for tool in bench.tools}
        rows = read(WRITTEN / f"{bench.name}.jsonl")
        added = tuple(
            Query(f"written-{number}", row["query"], tuple(row["gold"]), row["kind"], row["lang"])
            for number, row in enumerate(rows)
            # the conversations measure these servers
            if not any(
                servers[name] in MORE_SERVERS or is_held_out(servers[name], hold_out) for name in row["gold"]
            )
        )
        extended.append(Bench(bench.name, bench.tools, bench.queries + added))
    return extended


def embed_tools(bench: Bench, embedder: TransformerEmbedder, cache: Path | None) -> Tensor:
    """Return the vectors of a set's tools, from the cache if they were computed before."""
    texts = [tool.text() for tool in bench.tools]
    file = cache / f"{bench.name}-{zlib.crc32(chr(0).join(texts).encode()):08x}.npy" if cache else None
    if file and file.exists():
        return torch.from_numpy(np.load(file).astype(np.float32))
    vectors = embedder.embed(texts, TOOL_TOKENS)
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, vectors.astype(np.float16))
    return torch.from_numpy(vectors)


def make_group(bench: Bench, vectors: Tensor) -> Group:
    """Look up the right tools of a set's messages."""
    place = {tool.name: index for index, tool in enumerate(bench.tools)}
    alike = (vectors @ vectors.T) > 0.97
    golds, masked = [], []
    for query in bench.queries:
        gold = tuple(place[name] for name in query.gold if name in place)
        near = {int(index) for one in gold for index in alike[one].nonzero()[:, 0]}
        also = {place[name] for name in query.others if name in place}
        golds.append(gold)
        masked.append(tuple((near | also) - set(gold)))
    return Group(bench.name, vectors, bench.queries, tuple(golds), tuple(masked))


@dataclass(frozen=True, slots=True)
class Example:
    """One message with its right tools in a group's catalog, as the teacher reads it."""

    kind: str
    states: np.ndarray
    """Hidden states of the tokens after the frozen layers."""
    vector: np.ndarray
    golds: tuple[int, ...]
    masked: tuple[int, ...]
    text: str = ""
    span: tuple[int | None, int | None] = (None, None)
    """Tokens whose mean is the vector: of a message with several requests, those of one request."""


class Source:
    """Messages of one group, labelled or generated from definitions; each is read by the teacher once."""

    def __init__(self, group: Group, bench: Bench, teacher: Teacher, chance: random.Random) -> None:
        self.name, self.vectors, self._chance = group.name, group.vectors, chance
        self._kinds: dict[str, list[Example]] = {}
        for query, golds, masked in zip(group.queries, group.golds, group.masked, strict=True):
            if golds and query.lang == "en":
                kept = self._kinds.setdefault(query.kind, [])
                varied = vary_query(query.text, _seeded_by(query.text))
                for text in dict.fromkeys((query.text, varied)):
                    kept.append(Example(query.kind, *teacher.read(text), golds, masked, text))
        self._made_up = [
            Example("made-up", *teacher.read(made_up_query(tool, _seeded_by(tool.name))), (index,), ())
            for index, tool in list(enumerate(bench.tools))[:: 1 + len(bench.tools) // MAX_MADE_UP]
        ]
        self._joined = list(self._join_messages(teacher))
        labelled = sum(len(each) for each in self._kinds.values()) / 2
        self.weight = labelled**0.5 + 0.15 * len(bench.tools) ** 0.5

    def _join_messages(self, teacher: Teacher) -> Iterator[Example]:
        """Yield the halves of joined messages; each must get the vector of that message alone."""
        single = [each for kind, examples in self._kinds.items() if kind != "multi" for each in examples]
        dice = random.Random(self.name)
        for _ in range(min(MAX_JOINED, len(single)) if len(single) > 1 else 0):
            first, second = dice.sample(single, 2)
            joined = first.text.rstrip(" .,!") + dice.choice(JOINTS) + second.text
            sizes = [teacher.count_tokens(each.text) for each in (first, second)]
            states, _ = teacher.read(joined)
            if sum(sizes) + 2 > len(states):
                continue  # truncated
            end = len(states) - 1
            yield replace(first, states=states, span=(1, 1 + sizes[0]))
            yield replace(second, states=states, span=(end - sizes[1], end))

    def draw(self) -> Example:
        """Draw a labelled message, a generated one, or a part of a joined one."""
        kind = self._chance.random()
        if not self._kinds or kind < SYNTHETIC:
            return self._chance.choice(self._made_up)
        if self._joined and kind < SYNTHETIC + JOINED:
            return self._chance.choice(self._joined)
        kinds = list(self._kinds)
        weights = [len(self._kinds[kind]) ** 0.5 * KIND_WEIGHTS.get(kind, 1) for kind in kinds]
        return self._chance.choice(self._kinds[self._chance.choices(kinds, weights)[0]])


def _seeded_by(text: str) -> random.Random:
    return random.Random(zlib.crc32(text.encode()))


class Teacher:
    """The exported encoder: vectors of messages, and their hidden states after the frozen layers."""

    def __init__(self, folder: Path, cache: Path | None) -> None:
        self.embedder, self._file = TransformerEmbedder(folder), cache / "read.pickle" if cache else None
        self._known: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        if self._file and self._file.exists():
            self._known = pickle.loads(self._file.read_bytes())

    def read(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the states of a message's tokens and its vector."""
        if text not in self._known:
            states, vector = self.embedder.read(query_text(text), QUERY_TOKENS)
            self._known[text] = states.astype(np.float16), vector
        return self._known[text]

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a message, without those that mark its start and end."""
        return self.embedder.count_tokens(query_text(text)) - 2

    def store(self) -> None:
        """Write what was read to the cache."""
        if self._file:
            self._file.write_bytes(pickle.dumps(self._known))


Batch = list[tuple[Source, list[Example]]]


def draw_batches(sources: Sequence[Source], chance: random.Random, size: int) -> Iterator[Batch]:
    """Yield batches of `size` examples from four sources."""
    weights = [source.weight for source in sources]
    while True:
        picked = chance.choices(sources, weights, k=4)
        yield [(source, [source.draw() for _ in range(size // 4)]) for source in picked]


def rank_loss(vectors: Tensor, source: Source, examples: Sequence[Example]) -> Tensor:
    """Return the mean cross entropy of each right tool among all tools of the catalog."""
    scores = vectors @ source.vectors.T * SCALE
    right = torch.zeros(scores.shape, dtype=torch.bool)
    ignored = torch.zeros(scores.shape, dtype=torch.bool)
    for row, example in enumerate(examples):
        right[row, list(example.golds)] = True
        ignored[row, list(example.masked)] = True
    rest = torch.logsumexp(scores.masked_fill(right | ignored, -1e4), 1, keepdim=True)
    each = torch.logaddexp(scores, rest) - scores
    return ((each * right).sum(1) / right.sum(1)).mean()


def read_states(blocks: Sequence[Block], examples: Sequence[Example]) -> Tensor:
    """Return the vectors of messages from their hidden states after the frozen layers."""
    longest = max(len(example.states) for example in examples)
    x = torch.zeros(len(examples), longest, WIDTH)
    mask, pooled = torch.zeros(len(examples), longest), torch.zeros(len(examples), longest)
    for row, example in enumerate(examples):
        x[row, : len(example.states)] = torch.from_numpy(example.states.astype(np.float32))
        mask[row, : len(example.states)] = 1
        pooled[row, : len(example.states)][slice(*example.span)] = 1
    bias = (1 - mask)[:, None, None, :] * -1e4
    for block in blocks:
        x = block(x, bias)
    return F.normalize((x.float() * pooled[..., None]).sum(1), dim=-1)


def embed_batch(blocks: Sequence[Block], examples: Sequence[Example], chunk: int = 32) -> Tensor:
    """Return vectors in order; messages of similar length are read together to limit padding."""
    order = sorted(range(len(examples)), key=lambda place: len(examples[place].states))
    parts = [
        read_states(blocks, [examples[place] for place in order[start : start + chunk]])
        for start in range(0, len(order), chunk)
    ]
    back = torch.empty(len(order), dtype=torch.long)
    back[torch.tensor(order)] = torch.arange(len(order))
    return torch.cat(parts)[back]


def make_student(teacher: Encoder, layers: int) -> Encoder:
    """Return a student: the teacher's lowest layers, and some of its upper ones to start from."""
    student = Encoder(*(table.weight.shape[0] for table in (teacher.words, teacher.places)), layers)
    student.words, student.places, student.norm = teacher.words, teacher.places, teacher.norm
    upper, last = layers - LOWER_LAYERS, len(teacher.blocks) - 1
    step = (last - LOWER_LAYERS + 1) // upper
    chosen = [last - step * (upper - 1 - index) for index in range(upper)]
    for index, source in enumerate([*range(LOWER_LAYERS), *chosen]):
        student.blocks[index].load_state_dict(teacher.blocks[source].state_dict())
    return student


def train(student: Encoder, sources: Sequence[Source], options: argparse.Namespace) -> None:
    """Train the student's upper layers."""
    blocks = list(student.blocks)[LOWER_LAYERS:]
    parameters = [parameter for block in blocks for parameter in block.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=options.rate, weight_decay=0.01)
    started, losses = time.time(), []
    batches = draw_batches(sources, random.Random(options.seed), options.batch)
    for step, batch in zip(range(options.steps), batches, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = options.rate * schedule(step, options.steps, max(1, options.steps // 15))
        flat = [example for _, examples in batch for example in examples]
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
            vectors = embed_batch(blocks, flat)
        wanted = torch.from_numpy(np.stack([example.vector for example in flat]))
        near = (1 - (vectors * wanted).sum(1)).mean()
        parts = vectors.split([len(examples) for _, examples in batch])
        ranks = [rank_loss(part, *each) for part, each in zip(parts, batch, strict=True)]
        loss = torch.stack(ranks).mean() + options.follow * near
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append((loss.item(), near.item()))
        if step % 100 == 99:
            mean, apart = np.mean(losses[-100:], 0)
            spent = time.time() - started
            print(
                f"step {step + 1}/{options.steps} loss {mean:.3f} distance {apart:.3f} {spent:.0f} s",
                flush=True,
            )
    student.eval()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=SAMPLE)
    add(
        "--teacher",
        type=Path,
        required=True,
        help="directory with encoder.onnx, and encoder.safetensors if there are float weights",
    )
    add("--out", type=Path, required=True)
    add("--fold", choices=sorted(FOLDS))
    add("--layers", type=int, default=4)
    add("--start", type=Path, help="student to train further, instead of a new one")
    add("--steps", type=int, default=1500)
    add("--batch", type=int, default=128)
    add("--rate", type=float, default=3e-4)
    add("--follow", type=float, default=2.0, help="weight of the distance to the encoder's vector")
    add("--seed", type=int, default=SEED)
    add("--threads", type=int, default=1)
    add("--bf16", action="store_true")
    add("--cache", type=Path, help="directory that keeps the tool vectors between runs")
    add("--hold-out", type=int, default=0, help="leave out the written messages of every n-th server")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    tuned = (options.teacher / "encoder.safetensors").exists()
    teacher = load_tuned(options.teacher) if tuned else load_exported(options.teacher)
    benches = [
        bench for bench in add_written(load(options.data), options.hold_out) if bench.name not in EXCLUDED
    ]
    benches = [at_most(bench, MAX_CATALOG) for bench in split(benches, FOLDS.get(options.fold, ()))]
    teaching = Teacher(options.teacher, options.cache)
    chance = random.Random(options.seed)
    sources = []
    for bench in benches:
        group = make_group(bench, embed_tools(bench, teaching.embedder, options.cache))
        sources.append(Source(group, bench, teaching, chance))
        print(f"{bench.name}: {len(bench.tools)} tools, {len(bench.queries)} messages", flush=True)
    teaching.store()
    student = load_tuned(options.start) if options.start else make_student(teacher, options.layers)
    train(student, sources, options)
    save(
        student,
        options.out,
        {"layers": options.layers, "steps": options.steps, "fold": options.fold, "follow": options.follow},
    )


if __name__ == "__main__":
    main()
