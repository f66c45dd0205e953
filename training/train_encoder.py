"""Fine-tune all-MiniLM-L6-v2 so that messages and their tools have similar vectors.

    python train_encoder.py --data ../../shared/bench --out /tmp/run [--fold a] [--steps 300]

Contrastive: each message must find its tool among the batch's tools, which are similar on purpose, and
among all tools of its catalog, whose vectors are computed again from time to time. For some pairs the
tool's vector contains another of its messages, as enrichment adds them.
With `--fold` the sets of that fold, and everything written over their tools, are never seen.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from data import DUPLICATE, FOLDS, LATIN_LANGUAGES, SAMPLE, Batch, Sampler, add_written, load, split
from encoder import Encoder, average, embed_ids, load_base, load_tokenizer, load_tuned, save, token_ids

SEED = 20261115
TRAIN_QUERY_TOKENS, TRAIN_TOOL_TOKENS = 40, 64
FROZEN_LAYERS = 2
SCALE = 20.0  # 1 / temperature
BACKWARD = 0.3  # share of the tool -> message loss
CATALOG = 0.5  # share of the loss among all tools of the catalog
MAX_CATALOG_TOOLS = 800
REFRESH_STEPS = 60
EMBED_CHUNK = 64
MERGE_WEIGHT = 0.5  # of another message in a tool's vector


def contrast(queries: Tensor, tools: Tensor, masked: Tensor) -> Tensor:
    """Return the cross entropy in both directions; masked tools are ignored."""
    likeness = (queries @ tools.T * SCALE).masked_fill(masked, -1e4)
    right = torch.arange(len(queries))
    forward = F.cross_entropy(likeness, right)
    return forward + BACKWARD * F.cross_entropy(likeness[:, : len(queries)].T, right)


class CatalogVectors:
    """Vectors of all tools of the catalogs, as negatives that need no gradient."""

    def __init__(self, sampler: Sampler, read: Callable[[list[str], int], list[list[int]]]) -> None:
        self._sampler, self._read = sampler, read
        self._catalogs = sampler.sample_catalogs(MAX_CATALOG_TOOLS)
        self._catalog_of = {tool: number for number, rows in enumerate(self._catalogs) for tool in rows}
        self._row_of = {tool: row for rows in self._catalogs for row, tool in enumerate(rows)}
        self._vectors: list[Tensor] = []

    def refresh(self, model: Encoder) -> None:
        """Compute all vectors with the current weights."""
        with torch.no_grad(), autocast():
            self._vectors = [
                embed_ids(
                    model,
                    self._read([self._sampler.tools[tool].text() for tool in rows], TRAIN_TOOL_TOKENS),
                    EMBED_CHUNK,
                ).float()
                for rows in self._catalogs
            ]

    def loss(self, queries: Tensor, batch: Batch) -> Tensor:
        """Return the cross entropy of each message's tool among its catalog."""
        losses = []
        by_catalog: dict[int, list[int]] = defaultdict(list)
        for row in range(len(queries)):
            if batch.places[row] in self._catalog_of:
                by_catalog[self._catalog_of[batch.places[row]]].append(row)
        for number, rows in by_catalog.items():
            catalog = self._catalogs[number]
            masked = self._sampler.similarity([batch.places[row] for row in rows], catalog) > DUPLICATE
            for at, row in enumerate(rows):
                masked[at] |= np.fromiter(
                    (tool in batch.answers[row] for tool in catalog), bool, len(catalog)
                )
            negatives = (queries[rows] @ self._vectors[number].T).masked_fill(torch.from_numpy(masked), -1e4)
            # The right tool's vector is as old as the others': a new one could win by moving all vectors.
            own = torch.tensor([self._row_of[batch.places[row]] for row in rows])
            right = (queries[rows] * self._vectors[number][own]).sum(1, keepdim=True)
            scores = torch.cat([right, negatives], 1) * SCALE
            losses.append(F.cross_entropy(scores, torch.zeros(len(rows), dtype=torch.long), reduction="sum"))
        return sum(losses, torch.zeros(())) / len(queries)


def autocast() -> torch.autocast:
    """Multiply in bfloat16, which takes about half the time on processors that support it."""
    return torch.autocast("cpu", dtype=torch.bfloat16)


def schedule(step: int, steps: int, warm: int) -> float:
    """Learning rate schedule: linear warm-up, cosine decay."""
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def trainable(model: Encoder) -> list[torch.nn.Parameter]:
    """Return the upper layers' parameters; freezing the embeddings keeps rare words and saves time."""
    for part in (model.words, model.places, model.norm, *list(model.blocks)[:FROZEN_LAYERS]):
        part.requires_grad_(False)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def step_loss(
    model: Encoder, read: Callable[[list[str], int], list[list[int]]], batch: Batch, catalogs: CatalogVectors
) -> Tensor:
    """Return the loss of one batch."""
    with autocast():
        texts = [*batch.queries, *batch.merged.values()]
        messages = embed_ids(model, read(texts, TRAIN_QUERY_TOKENS)).float()
        tools = embed_ids(model, read(batch.tools, TRAIN_TOOL_TOKENS)).float()
    queries, others = messages[: len(batch.queries)], messages[len(batch.queries) :]
    with_messages = tools
    if batch.merged:
        added = torch.zeros_like(tools).index_add(0, torch.tensor(list(batch.merged)), others)
        with_messages = F.normalize(tools + MERGE_WEIGHT * added, dim=-1)
    loss = contrast(queries, with_messages, torch.from_numpy(batch.masked))
    return loss + CATALOG * catalogs.loss(queries, batch)


def train(model: Encoder, sampler: Sampler, steps: int, size: int, negatives: int, rate: float) -> Encoder:
    """Train and return the tuned model."""
    tokenizer = load_tokenizer()

    def read(texts: list[str], limit: int) -> list[list[int]]:
        return token_ids(tokenizer, texts, limit)

    parameters = trainable(model)
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01)
    catalogs = CatalogVectors(sampler, read)
    started, losses = time.time(), []
    for step, batch in zip(range(steps), sampler.batches(size, negatives), strict=False):
        if step % REFRESH_STEPS == 0:
            catalogs.refresh(model)
        for group in optimizer.param_groups:
            group["lr"] = rate * schedule(step, steps, max(1, steps // 12))
        loss = step_loss(model, read, batch, catalogs)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 9:
            print(
                f"step {step + 1}/{steps} loss {np.mean(losses[-10:]):.3f} {time.time() - started:.0f} s",
                flush=True,
            )
    return model.eval()


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--data", type=Path, default=SAMPLE)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--fold", choices=sorted(FOLDS))
    options.add_argument(
        "--start",
        type=Path,
        nargs="*",
        help="tuned models to average and start from, instead of the base model",
    )
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--negatives", type=int, default=16)
    options.add_argument("--rate", type=float, default=1e-4)
    options.add_argument("--threads", type=int, default=1)
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(chosen.seed)
    benches = [add_written(bench) for bench in load(chosen.data)]
    sampler = Sampler(split(benches, FOLDS.get(chosen.fold, ())), chosen.seed, languages=LATIN_LANGUAGES)
    print(f"{len(sampler.tools)} tools, {len(sampler.pairs())} pairs", flush=True)
    start = average([load_tuned(folder) for folder in chosen.start]) if chosen.start else load_base()
    model = train(start, sampler, chosen.steps, chosen.batch, chosen.negatives, chosen.rate)
    facts = {
        "fold": chosen.fold,
        "steps": chosen.steps,
        "batch": chosen.batch,
        "rate": chosen.rate,
        "seed": chosen.seed,
    }
    save(model, chosen.out, facts)


if __name__ == "__main__":
    main()
