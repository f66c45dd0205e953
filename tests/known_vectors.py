"""Saves the processor time in which tests compute the vectors of the same texts again.

A new runtime indexes the built-in tools, which takes the encoder a second of processor time. The vectors are
those of the real encoder: it runs once for each text instead of once for each test.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pytest

from toolfold.selection.retrieval.embedding import Encoder, Kind, Matrix, QueryEncoding, shipped_encoder

LIGHT_MODEL = {"TOOLFOLD_TOOLS__RAG_EMBED_MODEL": "light"}
"""Variable for processes of Toolfold in tests that are not about search: they index tools in milliseconds."""
MAX_READ_MESSAGES = 500  # each takes up to 100 kB


def share_vectors(patch: pytest.MonkeyPatch) -> None:
    """Let the encoder that runtimes use return vectors that it has already computed."""
    embed, read = Encoder.embed, Encoder.read
    known: dict[tuple[str, Kind], Matrix] = {}

    def embed_once(self: Encoder, texts: Sequence[str], kind: Kind) -> Matrix:
        if self is not shipped_encoder() or not texts:
            return embed(self, texts, kind)
        missing = [text for text in dict.fromkeys(texts) if (text, kind) not in known]
        if missing:
            known.update(zip([(text, kind) for text in missing], embed(self, missing, kind), strict=True))
        return np.stack([known[text, kind] for text in texts])

    @functools.lru_cache(MAX_READ_MESSAGES)
    def read_shipped(message: str, parts: tuple[str, ...]) -> QueryEncoding:
        return read(shipped_encoder(), message, parts)

    def read_once(self: Encoder, message: str, parts: Sequence[str] = ()) -> QueryEncoding:
        return (
            read_shipped(message, tuple(parts)) if self is shipped_encoder() else read(self, message, parts)
        )

    patch.setattr(Encoder, "embed", embed_once)
    patch.setattr(Encoder, "read", read_once)
