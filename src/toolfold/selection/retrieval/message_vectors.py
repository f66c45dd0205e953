"""Move each tool's vector towards the mean vector of its example messages.

The merged vector is the tool's vector plus the weighted mean of its messages' vectors, scaled back to the
length of the tool's vector, so a search costs the same with and without messages. All messages have something
in common, the wording of requests, which would make a tool with messages similar to any message: the mean
vector of many messages is subtracted first. The distance between a tool's vector and the merged one is
limited: no messages, however chosen, can raise a tool's similarity to any query by more than MAX_SHIFT.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from toolfold.selection.retrieval.embedding import Embedder, Matrix

# Compared on five catalogs, one left out at a time (docs/retrieval.md). With more weight, tools that have
# messages displace those that have none; a single message says little and gets less.
WEIGHT_PER_MESSAGE = 0.22
MAX_MESSAGE_WEIGHT = 0.55
MAX_SHIFT = 0.4
_EPSILON = 1e-9


@runtime_checkable
class MessageMean(Protocol):
    """Interface of an embedding model that provides the mean vector of example messages."""

    def message_mean(self) -> Matrix:
        """Return the mean vector of many example messages of different tools."""


@runtime_checkable
class MessageEmbedder(Protocol):
    """Embedding model with its own method for moving tools' vectors towards their example messages."""

    def merge_messages(self, vectors: Matrix, messages: Sequence[Sequence[str]]) -> Matrix:
        """Move each tool's vector towards the mean vector of its example messages."""


def embed_with_messages(
    embedder: Embedder, texts: Sequence[str], messages: Sequence[Sequence[str]]
) -> Matrix:
    """Return one vector per tool, computed from its definition and its example messages."""
    vectors = embedder.embed(texts, "tool")
    if not any(messages):
        return vectors
    if isinstance(embedder, MessageEmbedder):
        return embedder.merge_messages(vectors, messages)
    return merge_messages(embedder, vectors, messages)


def merge_messages(embedder: Embedder, vectors: Matrix, messages: Sequence[Sequence[str]]) -> Matrix:
    """Move each tool's vector towards the mean vector of its example messages."""
    flat = [text for each in messages for text in each]
    rows = embedder.embed(flat, "tool")
    if not flat or rows.shape[1] != vectors.shape[1]:
        return vectors
    common = embedder.message_mean() if isinstance(embedder, MessageMean) else np.float32(0)
    return merge_rows(vectors, weighted_means(rows - common, messages))


def weighted_means(rows: Matrix, messages: Sequence[Sequence[str]]) -> Matrix:
    """Return the weighted mean of the message vectors of each tool; zero for a tool without messages."""
    means: Matrix = np.zeros((len(messages), rows.shape[1]), np.float32)
    start = 0
    for owner, each in enumerate(messages):
        if each:
            weight = np.float32(min(WEIGHT_PER_MESSAGE * len(each), MAX_MESSAGE_WEIGHT))
            means[owner] = weight * rows[start : start + len(each)].mean(0)
            start += len(each)
    return means


def merge_rows(vectors: Matrix, means: Matrix) -> Matrix:
    """Move each tool's vector towards the mean vector of its messages, preserving the vector's length.

    A vector moves by at most MAX_SHIFT of its length.
    """
    lengths = np.sqrt(np.vecdot(vectors, vectors))[:, None]
    tools = vectors / np.maximum(lengths, _EPSILON)
    wanted = tools + means
    wanted /= np.maximum(np.sqrt(np.vecdot(wanted, wanted))[:, None], _EPSILON)
    min_cosine = 1 - MAX_SHIFT**2 / 2  # the distance of unit vectors is sqrt(2 - 2 cos)
    cosine = np.vecdot(wanted, tools)[:, None]
    across = wanted - cosine * tools
    across /= np.maximum(np.sqrt(np.vecdot(across, across))[:, None], _EPSILON)
    limited = np.float32(min_cosine) * tools + np.float32(math.sqrt(1 - min_cosine**2)) * across
    limited /= np.maximum(np.sqrt(np.vecdot(limited, limited))[:, None], _EPSILON)  # if `across` is zero
    merged: Matrix = (np.where(cosine < min_cosine, limited, wanted) * lengths).astype(np.float32)
    return np.where(np.any(means, axis=1, keepdims=True), merged, vectors)
