"""How much a sentence reads like one of those that attack, learned from examples.

Two judges, whose verdicts are added. One adds up small weights: of the pieces of its words, of the sayings
found in it, alone and in pairs, and of the signs that were weighed. The other weighs what the encoder that
finds tools by meaning makes of it, and takes some milliseconds. The weights were trained
(training/train_scan.py); nothing is learned here, and none of them is read before the first sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from toolfold.retrieval.embedding import EmbeddingUnavailable, shipped_encoder

BITS = 17
FLATTENING = 0.15  # long sentences have more pieces; divided by their number, short ones would shout

_PIECE = re.compile(r"[^\W_]+|[^\w\s]")
_DIGITS = str.maketrans("123456789", "000000000")
_STEP, _STRIDE = np.uint32(1000003), np.uint32(2654435761)
_SALTS = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F, 0x165667B1, 0xD3A2646D)
_POWERS = np.array([pow(1000003, power, 1 << 32) for power in range(128)], np.uint32)
Places = np.ndarray[Any, np.dtype[np.intp]]


@dataclass(frozen=True, slots=True)
class Look:
    """What is judged of one sentence, or of two together."""

    places: Places
    """Of the pieces of its words, in the table of weights."""
    said: Iterable[str]
    signs: Sequence[float]
    facts: Sequence[float]


@dataclass(frozen=True, slots=True)
class Judge:
    """The weights."""

    pieces: np.ndarray[Any, np.dtype[np.float32]]
    groups: Mapping[str, int]
    alone: Sequence[float]
    paired: Sequence[Sequence[float]]
    signs: Sequence[float]
    facts: Sequence[float]
    bias: float
    meaning: np.ndarray[Any, np.dtype[np.float32]]
    meaning_bias: float

    def leaning(self, look: Look) -> float:
        """Above zero for what reads like an attack."""
        groups = sorted(self.groups[group] for group in look.said if group in self.groups)
        total = self.bias + sum(self.alone[group] for group in groups)
        for at, first in enumerate(groups):
            row = self.paired[first]
            total += sum(row[second] for second in groups[at + 1 :])
        total += sum(each * weight for each, weight in zip(look.signs, self.signs, strict=True) if each)
        total += sum(each * weight for each, weight in zip(look.facts, self.facts, strict=True) if each)
        if len(look.places):
            total += float(self.pieces[look.places].sum()) * len(look.places) ** -FLATTENING
        return total


@lru_cache(maxsize=4096)  # tools of one server say the same of the same parameters
def meant(folded: str) -> float:
    """What is added for what the sentence means; nothing where the encoder cannot run."""
    try:
        weighed = float(meaning(folded) @ judge().meaning)
    except EmbeddingUnavailable:
        return 0.0
    return weighed + judge().meaning_bias


def meaning(folded: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The encoder's vector of a sentence, and mean and peaks of what its lowest layers make of the words.

    The vector tells what is spoken of, the lower layers how it is said. Raises EmbeddingUnavailable.
    """
    read = shipped_encoder().read([folded])
    states = read.vectors if read.states is None else read.states
    return np.concatenate([read.vectors[0], states.mean(0), states.max(0)])


@lru_cache(maxsize=64)  # a sentence is judged alone and beside each of its neighbours
def places(folded: str) -> Places:
    """Where the weights of a sentence's pieces lie: three to five letters in a row, one to three words."""
    text = f" {' '.join(_PIECE.findall(folded.translate(_DIGITS)))} "
    letters = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)
    found = []
    run = letters[:-1] * _STEP + letters[1:]
    for length in range(3, 6):
        if len(letters) < length:
            break
        run = run[:-1] * _STEP + letters[length - 1 :]
        found.append(run * np.uint32(_SALTS[length - 3]))
    words = _words(letters)
    run = words
    for length in range(1, 4):
        if len(words) < length:
            break
        if length > 1:
            run = run[:-1] * _STRIDE + words[length - 1 :]
        found.append(run * np.uint32(_SALTS[length + 2]))
    if not found:
        return np.zeros(0, np.intp)
    mixed = np.concatenate(found)
    mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x2C1B3C6D)
    found_at: Places = (mixed >> np.uint32(32 - BITS)).astype(np.intp)
    return found_at


def joined_places(of_each: Iterable[Places]) -> Places:
    """Of sentences that are judged together."""
    return np.concatenate(list(of_each))


def _words(letters: np.ndarray[Any, np.dtype[np.uint32]]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """A number for each word."""
    blanks = np.flatnonzero(letters == 32)
    if len(blanks) < 2:
        return np.zeros(0, np.uint32)
    at = np.arange(len(letters)) - np.repeat(blanks, np.diff(np.append(blanks, len(letters))))
    weighed = letters * _POWERS[np.minimum(at, 127)]
    return np.add.reduceat(weighed, blanks[:-1], dtype=np.uint32)


@cache
def judge() -> Judge:
    """As it is shipped."""
    with files(__package__).joinpath("judge.npz").open("rb") as file, np.load(file) as stored:
        return Judge(
            pieces=stored["pieces"].astype(np.float32) * float(stored["scale"]),
            groups={str(name): place for place, name in enumerate(stored["groups"])},
            alone=stored["alone"].tolist(),
            paired=stored["paired"].tolist(),
            signs=stored["signs"].tolist(),
            facts=stored["facts"].tolist(),
            bias=float(stored["bias"]),
            meaning=stored["meaning"],
            meaning_bias=float(stored["meaning_bias"]),
        )
