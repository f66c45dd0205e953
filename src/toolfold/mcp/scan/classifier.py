"""Trained classifier that scores the similarity of a sentence to prompt injections.

Adds up two linear models. The first weighs hashed word pieces, phrase groups (alone and in pairs), rule
weights and facts about the context. The second weighs the sentence's embedding and costs some milliseconds.
The weights come from training/train_scan.py and are loaded on first use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from toolfold.selection.retrieval.embedding import EmbeddingUnavailable, shipped_encoder
from toolfold.selection.retrieval.weight_files import load_arrays

HASH_BITS = 17
LENGTH_EXPONENT = 0.15  # dividing by the number of pieces itself would overrate short sentences

_TOKEN = re.compile(r"[^\W_]+|[^\w\s]")
_DIGITS_TO_ZERO = str.maketrans("123456789", "000000000")
_LETTER_MULTIPLIER, _WORD_MULTIPLIER = np.uint32(1000003), np.uint32(2654435761)
_SALTS = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F, 0x165667B1, 0xD3A2646D)
_POWERS = np.array([pow(1000003, power, 1 << 32) for power in range(128)], np.uint32)
PieceIndices = np.ndarray[Any, np.dtype[np.intp]]


@dataclass(frozen=True, slots=True)
class Features:
    """Features of a sentence or a pair of sentences, the input of the prompt injection classifier."""

    piece_indices: PieceIndices
    """Indices of the sentence's pieces in the weight table."""
    groups: Iterable[str]
    """Phrase groups found in the sentence."""
    rule_weights: Sequence[float]
    context_values: Sequence[float]


@dataclass(frozen=True, slots=True)
class AttackClassifier:
    """Classifier of prompt injections: the weights of its two linear models."""

    pieces: np.ndarray[Any, np.dtype[np.float32]]
    group_indices: Mapping[str, int]
    group_weights: Sequence[float]
    group_pair_weights: Sequence[Sequence[float]]
    rule_weights: Sequence[float]
    context_weights: Sequence[float]
    bias: float
    embedding: np.ndarray[Any, np.dtype[np.float32]]
    embedding_bias: float

    def score(self, features: Features) -> float:
        """Return the word-based score of a sentence; above zero means it resembles an attack."""
        groups = sorted(self.group_indices[group] for group in features.groups if group in self.group_indices)
        total = self.bias + sum(self.group_weights[group] for group in groups)
        for index, first in enumerate(groups):
            row = self.group_pair_weights[first]
            total += sum(row[second] for second in groups[index + 1 :])
        total += _weighted_sum(features.rule_weights, self.rule_weights)
        total += _weighted_sum(features.context_values, self.context_weights)
        if count := len(features.piece_indices):
            total += float(self.pieces[features.piece_indices].sum()) * count**-LENGTH_EXPONENT
        return total


def _weighted_sum(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True) if value)


@lru_cache(maxsize=4096)  # the tools of one server repeat the same sentences about their parameters
def score_meaning(folded: str) -> float:
    """Return the classifier's score for a sentence's embedding; 0 if the encoder is not available."""
    try:
        score = float(embed_sentence(folded) @ load_classifier().embedding)
    except EmbeddingUnavailable:
        return 0.0
    return score + load_classifier().embedding_bias


def embed_sentence(folded: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a sentence's embedding, followed by the mean and maximum of the encoder's token states.

    The vector carries the topic, the token states the phrasing. Raises EmbeddingUnavailable.
    """
    read = shipped_encoder().read(folded)
    states = read.vectors if read.states is None else read.states
    return np.concatenate([read.vectors[0], states.mean(0), states.max(0)])


@lru_cache(maxsize=64)  # a sentence is scored alone and beside each of its neighbours
def piece_indices(folded: str) -> PieceIndices:
    """Return the feature indices of a text: hashes of its 3- to 5-character and 1- to 3-word n-grams."""
    text = f" {' '.join(_TOKEN.findall(folded.translate(_DIGITS_TO_ZERO)))} "
    letters = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)
    hashes = []
    run = letters[:-1] * _LETTER_MULTIPLIER + letters[1:]
    for length in range(3, 6):
        if len(letters) < length:
            break
        run = run[:-1] * _LETTER_MULTIPLIER + letters[length - 1 :]
        hashes.append(run * np.uint32(_SALTS[length - 3]))
    words = _hash_words(letters)
    run = words
    for length in range(1, 4):
        if len(words) < length:
            break
        if length > 1:
            run = run[:-1] * _WORD_MULTIPLIER + words[length - 1 :]
        hashes.append(run * np.uint32(_SALTS[length + 2]))
    if not hashes:
        return np.zeros(0, np.intp)
    mixed = np.concatenate(hashes)
    mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x2C1B3C6D)
    indices: PieceIndices = (mixed >> np.uint32(32 - HASH_BITS)).astype(np.intp)
    return indices


def join_piece_indices(indices: Iterable[PieceIndices]) -> PieceIndices:
    """Concatenate the feature indices of sentences that are scored together."""
    return np.concatenate(list(indices))


def _hash_words(letters: np.ndarray[Any, np.dtype[np.uint32]]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return a hash of each word, given the characters of a text that starts and ends with a space."""
    spaces = np.flatnonzero(letters == 32)
    if len(spaces) < 2:
        return np.zeros(0, np.uint32)
    offsets = np.arange(len(letters)) - np.repeat(spaces, np.diff(np.append(spaces, len(letters))))
    weighted = letters * _POWERS[np.minimum(offsets, 127)]
    return np.add.reduceat(weighted, spaces[:-1], dtype=np.uint32)


@cache
def load_classifier() -> AttackClassifier:
    """Load the classifier weights shipped with the package."""
    stored = load_arrays(files(__package__).joinpath("classifier.arrays"))
    return AttackClassifier(
        pieces=stored["pieces"].astype(np.float32) * float(stored["scale"]),
        group_indices={str(name): index for index, name in enumerate(stored["groups"])},
        group_weights=stored["alone"].tolist(),
        group_pair_weights=stored["paired"].tolist(),
        rule_weights=stored["signs"].tolist(),
        context_weights=stored["facts"].tolist(),
        bias=float(stored["bias"]),
        embedding=stored["meaning"],
        embedding_bias=float(stored["meaning_bias"]),
    )
