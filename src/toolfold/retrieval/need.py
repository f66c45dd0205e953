"""How likely it is that a message needs any tool at all.

Thanks, opinions, small talk and words about the conversation itself need none, whatever words they share
with a catalog. Three things are read: the message's own letters and words; what the encoder's second layer
made of each of its tokens, where the encoder runs; and how near the catalog's nearest tools are. Knows
nothing of which tools were found. Trained by `training/train_need.py`.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toolfold.retrieval.ranking import Legs, Places, Scores, distinct, real
from toolfold.retrieval.vectors import products

Head = Literal["encoder", "light", "text"]

LETTERS = 1 << 15  # buckets for runs of characters
WORDS = 1 << 14  # buckets for words and pairs of words
LONGEST_RUN = 5
MOST_CHARACTERS = 400
_SALTS = tuple(np.uint32(length * 0x9E3779B1 & 0xFFFFFFFF) for length in range(1, LONGEST_RUN + 1))
_SPACE = re.compile(r"\s+")
_DIGIT = re.compile(r"\d")
_WORD = re.compile(r"[^\W_]+|[?!:;.,/\"'`@#=<>(){}]")


class Need:
    """A sum of small parts: letters and words, tokens in context, the catalog's nearness."""

    def __init__(self, weights: Mapping[str, NDArray[Any]], head: Head) -> None:
        self._weights = {key: value.astype(np.float32) for key, value in weights.items()}
        self._head = head
        self._inner = np.ascontiguousarray(self._weights["inner"].T)

    @classmethod
    def shipped(cls, head: Head) -> Need:
        """The one that comes with the package, for the model that the semantic leg runs."""
        file = files("toolfold").joinpath("retrieval/weights/need.npz")
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
            return cls({key: stored[key] for key in stored.files}, head)

    def probability(self, message: str, legs: Legs, states: Scores | None = None) -> float:
        """From 0, plain talk, to 1, a tool is needed; a message without words needs none.

        `states` are the encoder's, a row a token. Without them the other parts answer alone.
        """
        text = _plain(message)
        if not text:
            return 0.0
        head = self._usable(legs, states)
        if head == "encoder" and states is not None:
            said = self._said(text, "joint") + self._meant(states)
        else:
            said = self._said(text, "alone")
        weigh, shift = self._weights[f"{head}.weigh"].tolist(), float(self._weights[f"{head}.shift"])
        row = [said, *_nearness(legs, dense=head != "text")]
        score = sum(each * weight for each, weight in zip(row, weigh, strict=True)) + shift
        return 1.0 / (1.0 + math.exp(-min(max(score, -30.0), 30.0)))

    def _usable(self, legs: Legs, states: Scores | None) -> Head:
        if not legs.dense or (self._head == "encoder" and states is None):
            return "text"
        return self._head

    def _said(self, text: str, part: str) -> float:
        weights = self._weights
        places, shares = _traits(text)
        told = float(weights[f"{part}.table"][places] @ shares)
        return told * float(weights[f"{part}.scale"]) + float(weights[f"{part}.shift"])

    def _meant(self, states: Scores) -> float:
        weights = self._weights
        inner = products(states, self._inner) + weights["inner_shift"]
        np.maximum(inner, 0, out=inner)
        pooled = np.concatenate((inner.mean(0), inner.max(0), states.mean(0)))
        return float(pooled @ weights["outer"])


def traits(message: str) -> tuple[Places, Scores]:
    """The buckets of a message's runs of characters, words and pairs of words, and what each counts."""
    return _traits(_plain(message))


def _traits(text: str) -> tuple[Places, Scores]:
    runs, words = _runs(text), _words(text)
    places = np.concatenate((runs, words))
    shares = np.empty(len(places), np.float32)
    shares[: len(runs)] = len(runs) ** -0.5
    shares[len(runs) :] = max(len(words), 1) ** -0.5
    return places, shares


def nearness(legs: Legs, *, dense: bool) -> Scores:
    """What the legs say of the catalog as a whole: is anything in it near the message?"""
    return np.asarray(_nearness(legs, dense=dense), np.float32)


def _nearness(legs: Legs, *, dense: bool) -> list[float]:
    # In words that no tool knows: a word's weight grows with the catalog, a small one must not look far away.
    unknown = math.log(2.0 * len(legs.lexical) + 2.0)
    lexical, best = float(legs.lexical.max(initial=0.0)) / unknown, legs.best_lexical / unknown
    row = [lexical / max(best, 1e-6), lexical, min(best / 5.0, 2.0)]
    if dense:
        row += _dense_nearness(next(iter(legs.dense.values())))
    return row


def _dense_nearness(scores: Scores) -> list[float]:
    """The highest, and how far the fifth is below it: one clear answer, or a crowd that is as near."""
    usual = real(scores)
    if not len(usual):
        return [0.0, 0.0]
    depth = min(5, len(usual))
    best = np.partition(usual, len(usual) - depth)[len(usual) - depth :]
    highest = float(best.max())
    return [highest, highest - float(best.min())]


def _plain(message: str) -> str:
    return _SPACE.sub(" ", _DIGIT.sub("0", message[:MOST_CHARACTERS].lower())).strip()


def _runs(text: str) -> Places:
    """The buckets of all runs of one to five characters, by a rolling hash over the whole text at once."""
    letters = np.frombuffer(f"^ {text} $".encode("utf-32-le", "replace"), np.uint32)
    found, rolled = [letters + _SALTS[0]], letters
    for length in range(2, LONGEST_RUN + 1):
        rolled = rolled[:-1] * np.uint32(0x01000193)
        rolled += letters[length - 1 :]
        found.append(rolled + _SALTS[length - 1])
    mixed = np.concatenate(found)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0x85EBCA6B)
    mixed >>= np.uint32(17)
    return distinct(mixed.astype(np.int64))


def _words(text: str) -> Places:
    words = ["^", *_WORD.findall(text), "$"]
    pairs = (f"{one} {other}" for one, other in itertools.pairwise(words))
    told = (*words[1:-1], *pairs)
    buckets = {zlib.crc32(each.encode("utf-8", "replace")) % WORDS for each in told}
    return np.array(sorted(buckets), np.int64) + LETTERS
