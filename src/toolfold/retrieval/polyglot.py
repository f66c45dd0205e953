"""The default model: the encoder for English, both shipped models together for every other language.

A tool's vector is the encoder's with the light model's behind it. A message's is the same, each part
weighed by how well its model reads the message's language: an English one has nothing in the second.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from toolfold.retrieval.embedding import Encoder, Kind, Light, Matrix, Reading, shipped_encoder
from toolfold.retrieval.language import FOREIGN, foreignness, is_latin

# The encoder's share in a message that is not English. It reads an English vocabulary: of Latin scripts it
# knows the letters and some kin, of others next to nothing. Recall at five over an English catalog, on
# messages neither model was trained on: .61 to .70 for Latin scripts, .31 to .49 for others.
LATIN_SHARE, OTHER_SHARE = 0.35, 0.2
LIGHT_SCALE = 0.88  # brings the spread of the light model's similarities to the encoder's


class Polyglot:
    """Both shipped models as one."""

    def __init__(self, encoder: Encoder | None = None, light: Light | None = None) -> None:
        self._encoder, self._light = encoder or shipped_encoder(), light or Light()
        self.name = f"{self._encoder.name}+{self._light.name}"

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:
        """Tools in both models; a message as its language asks for."""
        if kind == "query":
            return self.read(texts).vectors
        light = self._light.embed(texts, kind) * np.float32(LIGHT_SCALE)
        return np.hstack((self._encoder.embed(texts, kind), light))

    def read(self, messages: Sequence[str]) -> Reading:
        """Messages as their languages ask for, and how the first is said."""
        first = self._encoder.read(messages)
        width = first.vectors.shape[1]
        whole: Matrix = np.zeros((len(messages), width + self._light.width), np.float32)
        for place, text in enumerate(messages):
            share = self.share(text)
            whole[place, :width] = first.vectors[place] * share
            if share < 1:
                whole[place, width:] = self._light.embed([text], "query")[0] * (1 - share)
        return Reading(whole, first.states)

    def share(self, text: str) -> np.float32:
        """How much the encoder has to say about a message: all, where it is English."""
        if foreignness(text, self._encoder.pieces) < FOREIGN:
            return np.float32(1)
        return np.float32(LATIN_SHARE if is_latin(text) else OTHER_SHARE)
