"""Run trained models with numpy, tokenizers and onnxruntime only.

The product has its own embedders; these are minimal ones that give the same vectors.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

QUERY_TOKENS, TOOL_TOKENS = 64, 112


class TransformerEmbedder:
    """The encoder: the lower layers, and upper ones for tools or for messages (`encoder.*.onnx`)."""

    name = "encoder"

    def __init__(self, folder: Path, threads: int = 1, tokenizer: Path | None = None) -> None:
        import onnxruntime  # only this embedder needs it

        def load(part: str) -> Any:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            options.inter_op_num_threads = 1
            return onnxruntime.InferenceSession(str(folder / f"encoder.{part}.onnx"), options)

        self._lower, self._upper = load("lower"), {"tool": load("tool")}
        has_student = (folder / "encoder.query.onnx").exists()
        self._upper["query"] = load("query") if has_student else self._upper["tool"]
        self._tokenizer = Tokenizer.from_file(str(tokenizer or folder / "tokenizer.json"))

    def embed(self, texts: Sequence[str], limit: int = TOOL_TOKENS, kind: str = "tool") -> np.ndarray:
        """Return unit vectors in order."""
        return np.stack([self.read(text, limit, kind)[1] for text in texts])

    def read(self, text: str, limit: int, kind: str = "tool") -> tuple[np.ndarray, np.ndarray]:
        """Return the states of a text's tokens after the lowest layers, and its vector."""
        states = self.read_states(text, limit)
        vector, _ = self._upper[kind].run(None, {"states": states[None]})
        return states, vector[0]

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self._tokenizer.encode(text).ids)

    def read_states(self, text: str, limit: int) -> np.ndarray:
        """Return the states of a text's tokens after the lowest layers."""
        ids = np.array([_truncate_ids(self._tokenizer.encode(text).ids, limit)])
        return self._lower.run(None, {"ids": ids})[0][0]


def _truncate_ids(ids: list[int], limit: int) -> list[int]:
    return ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]


class StaticEmbedder:
    """The light model, a sum of token vectors: `static.npz` and `static.tokenizer.json.gz`."""

    name = "static"

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "static.npz") as stored:
            self._rows, self._scales = stored["rows"], stored["scales"].astype(np.float32)[:, None]
        packed = (folder / "static.tokenizer.json.gz").read_bytes()
        self._tokenizer = Tokenizer.from_str(gzip.decompress(packed).decode())

    def embed(self, texts: Sequence[str], limit: int = 256) -> np.ndarray:
        """Return unit vectors; zero for a text without known tokens."""
        vectors = np.zeros((len(texts), self._rows.shape[1]), np.float32)
        for place, one in enumerate(self._tokenizer.encode_batch(list(texts), add_special_tokens=False)):
            ids = one.ids[:limit]
            if ids:
                vectors[place] = (self._rows[ids] * self._scales[ids]).sum(0)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
