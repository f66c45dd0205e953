"""Fine-tune all-MiniLM-L6-v2 so that messages and their tools have similar vectors.

    python train_encoder.py --data ../../shared/bench --out /tmp/run [--fold a] [--steps 300]

Contrastive: each message must find its tool among the batch's tools, which are similar on purpose.
The shipped model starts from the mean of the folds' models (`--start`) and sees every set.
With `--fold` the sets of that fold, and everything written over their tools, are never seen.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from data import FOLDS, SAMPLE, Batch, Sampler, load, split
from encoder import Encoder, average, embed_ids, load_base, load_tokenizer, load_tuned, save, token_ids

SEED = 20261115
TRAIN_QUERY_TOKENS, TRAIN_TOOL_TOKENS = 40, 64
FROZEN_LAYERS = 2
SCALE = 20.0  # 1 / temperature
BACKWARD = 0.3  # share of the tool -> message loss


def contrast(queries: Tensor, tools: Tensor, masked: Tensor) -> Tensor:
    """Return the cross entropy in both directions; masked tools are ignored."""
    likeness = (queries @ tools.T * SCALE).masked_fill(masked, -1e4)
    right = torch.arange(len(queries))
    forward = F.cross_entropy(likeness, right)
    return forward + BACKWARD * F.cross_entropy(likeness[:, : len(queries)].T, right)


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


def step_loss(model: Encoder, read: Callable[[list[str], int], list[list[int]]], batch: Batch) -> Tensor:
    """Return the loss of one batch."""
    queries = embed_ids(model, read(batch.queries, TRAIN_QUERY_TOKENS))
    tools = embed_ids(model, read(batch.tools, TRAIN_TOOL_TOKENS))
    return contrast(queries, tools, torch.from_numpy(batch.masked))


def train(model: Encoder, sampler: Sampler, steps: int, size: int, negatives: int, rate: float) -> Encoder:
    """Train and return the tuned model."""
    tokenizer = load_tokenizer()
    parameters = trainable(model)
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01)
    started, losses = time.time(), []
    for step, batch in zip(range(steps), sampler.batches(size, negatives), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rate * schedule(step, steps, max(1, steps // 12))
        loss = step_loss(model, lambda texts, limit: token_ids(tokenizer, texts, limit), batch)
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
    benches = split(load(chosen.data), FOLDS.get(chosen.fold, ()))
    sampler = Sampler(benches, chosen.seed)
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
