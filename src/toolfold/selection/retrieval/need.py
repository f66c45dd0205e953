"""Estimate the probability that a message needs a tool of the catalog.

Thanks, opinions, small talk and remarks about the conversation need none, even if they share words with
the catalog; "book a table" needs none of a catalog of developer tools. The inputs are the characters and
words of the message, the token states of the encoder's second layer if the encoder is in use, and the scores
of the best tools. Knows nothing of which tools were found. `training/train_need.py` trains the score of the
text, `training/train_servable.py` its weight beside the scores of the tools.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toolfold.selection.retrieval.ranking import Legs, Positions, Scores, granted_scores, sorted_unique
from toolfold.selection.retrieval.vectors import multiply_rows
from toolfold.selection.retrieval.weight_files import load_arrays, shipped_weights

Head = Literal["encoder", "light", "text"]

CHARACTER_BUCKETS = 1 << 15  # hash buckets for character n-grams
WORD_BUCKETS = 1 << 14  # hash buckets for words and word pairs
MAX_NGRAM_CHARS = 5
MAX_MESSAGE_CHARS = 400
TEXT_SCORE_BENDS = (0.0, -1.0)
_SALTS = tuple(np.uint32(length * 0x9E3779B1 & 0xFFFFFFFF) for length in range(1, MAX_NGRAM_CHARS + 1))
_SPACE = re.compile(r"\s+")
_DIGIT = re.compile(r"\d")
_WORD = re.compile(r"[^\W_]+|[?!:;.,/\"'`@#=<>(){}]")


class NeedClassifier:
    """Logistic model that predicts whether a message needs a tool, from its text and tool similarities."""

    def __init__(self, weights: Mapping[str, NDArray[Any]], head: Head) -> None:
        self._weights = {key: value.astype(np.float32) for key, value in weights.items()}
        self._head = head
        self._inner = np.ascontiguousarray(self._weights["inner"].T)

    @classmethod
    def shipped(cls, head: Head) -> NeedClassifier:
        """Load the shipped classifier for the embedding model in use."""
        return cls(load_arrays(shipped_weights().joinpath("need.arrays")), head)

    def probability(self, message: str, legs: Legs, states: Scores | None = None) -> float:
        """Return the probability that the message needs a tool; 0 for a message without words.

        `states` are the encoder's, one row per token. Without them the text and the scores decide.
        """
        text = _normalize_text(message)
        if not text:
            return 0.0
        head = self._usable_head(legs, states)
        weigh, shift = self._weights[f"{head}.weigh"].tolist(), float(self._weights[f"{head}.shift"])
        row = self._features(text, legs, states, head)
        score = sum(each * weight for each, weight in zip(row, weigh, strict=True)) + shift
        return 1.0 / (1.0 + math.exp(-min(max(score, -30.0), 30.0)))

    def features(self, message: str, legs: Legs, states: Scores | None = None) -> list[float]:
        """Return the features that determine a message's probability of needing a tool, for training."""
        return self._features(_normalize_text(message), legs, states, self._usable_head(legs, states))

    def _features(self, text: str, legs: Legs, states: Scores | None, head: Head) -> list[float]:
        if head == "encoder" and states is not None:
            score = self._score_text(text, "joint") + self._score_states(states)
        else:
            score = self._score_text(text, "alone")
        # A low score tells that no tool is needed; a high one does not tell whether the catalog has one.
        bends = (min(score - bend, 0.0) for bend in TEXT_SCORE_BENDS)
        return [score, *bends, _foreign_share(text), *_catalog_similarity(legs, dense=head != "text")]

    def _usable_head(self, legs: Legs, states: Scores | None) -> Head:
        if not legs.dense or (self._head == "encoder" and states is None):
            return "text"
        return self._head

    def _score_text(self, text: str, part: str) -> float:
        weights = self._weights
        positions, shares = _hash_features(text)
        text_terms = float(weights[f"{part}.table"][positions] @ shares)
        return text_terms * float(weights[f"{part}.scale"]) + float(weights[f"{part}.shift"])

    def _score_states(self, states: Scores) -> float:
        weights = self._weights
        inner = multiply_rows(states, self._inner) + weights["inner_shift"]
        np.maximum(inner, 0, out=inner)
        pooled = np.concatenate((inner.mean(0), inner.max(0), states.mean(0)))
        return float(pooled @ weights["outer"])


def hashed_features(message: str) -> tuple[Positions, Scores]:
    """Return the hash buckets of a message's character and word n-grams, with their weights."""
    return _hash_features(_normalize_text(message))


def _hash_features(text: str) -> tuple[Positions, Scores]:
    runs, words = _character_ngrams(text), _word_ngrams(text)
    positions = np.concatenate((runs, words))
    shares = np.empty(len(positions), np.float32)
    shares[: len(runs)] = len(runs) ** -0.5
    shares[len(runs) :] = max(len(words), 1) ** -0.5
    return positions, shares


def catalog_similarity(legs: Legs, *, dense: bool) -> Scores:
    """Return features for how well the best tools of the catalog match the message."""
    return np.asarray(_catalog_similarity(legs, dense=dense), np.float32)


def _catalog_similarity(legs: Legs, *, dense: bool) -> list[float]:
    # Term weights grow with the catalog: divide by the weight of an unknown term to cancel that.
    unknown = math.log(2.0 * (legs.catalog_tools or len(legs.lexical)) + 2.0)
    lexical, best = float(legs.lexical.max(initial=0.0)) / unknown, legs.best_lexical / unknown
    row = [lexical / max(best, 1e-6), lexical, min(best / 5.0, 2.0)]
    if dense:
        row += _dense_similarity(next(iter(legs.dense.values())))
    return row


def _dense_similarity(scores: Scores) -> list[float]:
    """Return the highest similarity of any tool to the message, and its lead over the fifth highest.

    The difference is large if one tool fits the message clearly better than others.
    """
    usual = granted_scores(scores)
    if not len(usual):
        return [0.0, 0.0]
    depth = min(5, len(usual))
    best = np.partition(usual, len(usual) - depth)[len(usual) - depth :]
    highest = float(best.max())
    return [highest, highest - float(best.min())]


def _foreign_share(text: str) -> float:
    """Return the share of non-ASCII characters, scaled so that one in eight gives 1.

    Models compare other languages less well, so a low similarity says less.
    """
    ascii_only = len(text.encode("ascii", "ignore"))
    return min(8.0 * (len(text) - ascii_only) / max(len(text), 1), 1.0)


def _normalize_text(message: str) -> str:
    return _SPACE.sub(" ", _DIGIT.sub("0", message[:MAX_MESSAGE_CHARS].lower())).strip()


def _character_ngrams(text: str) -> Positions:
    """Return the hash buckets of all n-grams of one to five characters in a text."""
    letters = np.frombuffer(f"^ {text} $".encode("utf-32-le", "replace"), np.uint32)
    found, rolled = [letters + _SALTS[0]], letters
    for length in range(2, MAX_NGRAM_CHARS + 1):
        rolled = rolled[:-1] * np.uint32(0x01000193)
        rolled += letters[length - 1 :]
        found.append(rolled + _SALTS[length - 1])
    mixed = np.concatenate(found)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0x85EBCA6B)
    mixed >>= np.uint32(17)
    return sorted_unique(mixed.astype(np.int64))


def _word_ngrams(text: str) -> Positions:
    words = ["^", *_WORD.findall(text), "$"]
    pairs = (f"{one} {other}" for one, other in itertools.pairwise(words))
    text_terms = (*words[1:-1], *pairs)
    buckets = {zlib.crc32(each.encode("utf-8", "replace")) % WORD_BUCKETS for each in text_terms}
    return np.array(sorted(buckets), np.int64) + CHARACTER_BUCKETS
