"""Default embedding model: the English encoder, combined with the small model for other languages.

A tool's vector is the encoder's followed by the light model's. A message's vector has the same layout, with
each half weighted by how well that model reads the message's language; for English the second half is zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from toolfold.selection.retrieval.embedding import (
    Encoder,
    Kind,
    LightEmbedder,
    Matrix,
    QueryEncoding,
    shipped_encoder,
    shipped_light_embedder,
)
from toolfold.selection.retrieval.language_detection import FOREIGN_THRESHOLD, foreign_probability, is_latin
from toolfold.selection.retrieval.message_vectors import merge_rows, weighted_means

# Weight of the encoder for a message that is not English. Its vocabulary is English: it knows Latin letters
# and related words, and almost nothing of other scripts. Recall@5 on an English catalog, with messages that
# neither model was trained on, rises from .61 to .70 for Latin scripts and from .31 to .49 for others.
LATIN_SHARE, OTHER_SHARE = 0.35, 0.2
LIGHT_SCALE = 0.88  # gives both models' similarities the same spread


class MultilingualEmbedder:
    """Embedding model that combines the English encoder and the small multilingual model."""

    def __init__(self, encoder: Encoder | None = None, light: LightEmbedder | None = None) -> None:
        self._encoder, self._light = encoder or shipped_encoder(), light or shipped_light_embedder()
        self.name = f"{self._encoder.name}+{self._light.name}"

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:
        """Embed texts with both models and concatenate the vectors; for messages, weight them by language."""
        encoded = self._encoder.embed(texts, kind)
        if kind == "query":
            return self._weigh_by_language(texts, encoded)
        light = self._light.embed(texts, kind) * np.float32(LIGHT_SCALE)
        return np.hstack((encoded, light))

    def read(self, message: str, parts: Sequence[str] = ()) -> QueryEncoding:
        """Encode a message and its parts with both models; include the English encoder's hidden states."""
        encoded = self._encoder.read(message, parts)
        return QueryEncoding(self._weigh_by_language((message, *parts), encoded.vectors), encoded.states)

    def _weigh_by_language(self, messages: Sequence[str], encoded: Matrix) -> Matrix:
        """Return the concatenated vectors of both models for messages, weighted by language."""
        width = encoded.shape[1]
        whole: Matrix = np.zeros((len(messages), width + self._light.width), np.float32)
        for position, text in enumerate(messages):
            share = self.share(text)
            whole[position, :width] = encoded[position] * share
            if share < 1:
                whole[position, width:] = self._light.embed([text], "query")[0] * (1 - share)
        return whole

    def merge_messages(self, vectors: Matrix, messages: Sequence[Sequence[str]]) -> Matrix:
        """Move both halves of each tool's vector (one per model) towards its example messages."""
        flat = [text for each in messages for text in each]
        width = vectors.shape[1] - self._light.width
        shares = np.array([self.share(text) for text in flat], np.float32)[:, None]
        halves = (
            self._encoder.embed(flat, "tool") * shares - self._encoder.message_mean(),
            self._light.embed(flat, "tool") - self._light.message_mean(),
        )
        parts = (vectors[:, :width], vectors[:, width:])
        merged = [
            merge_rows(part, weighted_means(rows, messages)) for part, rows in zip(parts, halves, strict=True)
        ]
        return np.hstack(merged)

    def share(self, text: str) -> np.float32:
        """Return the weight of the English encoder for a message: 1 if the message is English."""
        if foreign_probability(text, self._encoder.pieces) < FOREIGN_THRESHOLD:
            return np.float32(1)
        return np.float32(LATIN_SHARE if is_latin(text) else OTHER_SHARE)
