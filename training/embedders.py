"""Run trained models with numpy, tokenizers and onnxruntime only.

The product has its own embedders; these are minimal ones that give the same vectors.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

QUERY_TOKENS, TOOL_TOKENS = 64, 112


class TransformerEmbedder:
    """The encoder: `encoder.onnx` and its `tokenizer.json`."""

    name = "encoder"

    def __init__(self, folder: Path, threads: int = 1, tokenizer: Path | None = None) -> None:
        import onnxruntime  # only this embedder needs it

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(folder / "encoder.onnx"), options)
        self._tokenizer = Tokenizer.from_file(str(tokenizer or folder / "tokenizer.json"))

    def embed(self, texts: Sequence[str], limit: int = TOOL_TOKENS, chunk: int = 16) -> np.ndarray:
        """Return unit vectors in order; texts of similar length are batched together."""
        ids = [_truncate_ids(one.ids, limit) for one in self._tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        vectors = np.empty((len(ids), 384), np.float32)
        for start in range(0, len(order), chunk):
            places = order[start : start + chunk]
            vectors[places] = self._run_batch([ids[place] for place in places])
        return vectors

    def _run_batch(self, rows: Sequence[list[int]]) -> np.ndarray:
        padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
        mask = np.zeros_like(padded)
        for place, row in enumerate(rows):
            padded[place, : len(row)] = row
            mask[place, : len(row)] = 1
        return self._session.run(None, {"ids": padded, "mask": mask})[0]


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
