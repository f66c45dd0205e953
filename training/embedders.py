"""Run trained models with numpy, tokenizers and onnxruntime only.

The product has its own embedders; these are minimal ones that give the same vectors.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from toolfold.selection.retrieval.weight_files import load_arrays

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

    def embed(self, texts: Sequence[str], limit: int = TOOL_TOKENS) -> np.ndarray:
        """Return unit vectors in order, one run for each text."""
        ids = [truncate_ids(one.ids, limit) for one in self._tokenizer.encode_batch(list(texts))]
        vectors = np.empty((len(ids), 384), np.float32)
        for place, row in enumerate(ids):
            vectors[place] = self._session.run(["vectors"], {"ids": np.array([row], np.int64)})[0][0]
        return vectors


def truncate_ids(ids: list[int], limit: int) -> list[int]:
    """Return at most `limit` ids; the last one, [SEP], is kept."""
    return ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]


class StaticEmbedder:
    """The light model, a sum of token vectors: `static.arrays` and `static.tokenizer.json.gz`."""

    name = "static"

    def __init__(self, folder: Path) -> None:
        stored = load_arrays(folder / "static.arrays")
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
