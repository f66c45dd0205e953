"""Tokenize text into subwords for the shipped embedding models: WordPiece and Unigram.

Implemented here because they are short and the usual library brings a model hub client along. Both cache
the words they have split.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence

MAX_CACHED_WORDS = 100_000
MAX_WORD_CHARS = 100
_ASCII_WORDS = re.compile(r"[0-9a-z]+|[!-/:-@\[-`{-~]")
_DIGITS = re.compile(r"\d+|\D+")


class WordPiece:
    """WordPiece tokenizer of BERT models: greedy, longest known piece first."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._ids = {piece: number for number, piece in enumerate(vocabulary)}
        self._unknown = self._ids["[UNK]"]
        self._first, self._last = self._ids["[CLS]"], self._ids["[SEP]"]
        self._cache: dict[str, tuple[int, ...]] = {}

    def ids(self, text: str, limit: int) -> list[int]:
        """Return the ids of a text's subword pieces between [CLS] and [SEP], at most `limit` in total."""
        ids = [self._first]
        for word in split_words(_normalize_text(text)):
            ids += self._split_word(word)
            if len(ids) >= limit:
                break
        return [*ids[: limit - 1], self._last]

    def count(self, word: str) -> int:
        """Return the number of subword pieces into which a word is split."""
        if (known := self._cache.get(word)) is not None and word.isascii():
            return len(known)
        return sum(len(self._split_word(part)) for part in split_words(_normalize_text(word)))

    def _split_word(self, word: str) -> tuple[int, ...]:
        known = self._cache.get(word)
        if known is None:
            known = self._greedy_split(word)
            if len(self._cache) < MAX_CACHED_WORDS:
                self._cache[word] = known
        return known

    def _greedy_split(self, word: str) -> tuple[int, ...]:
        if len(word) > MAX_WORD_CHARS:
            return (self._unknown,)
        found: list[int] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            for end in range(len(word), start, -1):
                number = self._ids.get(mark + word[start:end])
                if number is not None:
                    found.append(number)
                    start = end
                    break
            else:
                return (self._unknown,)
        return tuple(found)


class Unigram:
    """Unigram tokenizer, which finds the most likely split of a word by the log-likelihood of each piece."""

    def __init__(self, scores: Mapping[str, float], ids: Mapping[str, int]) -> None:
        self._scores, self._ids = scores, ids
        self._longest = max(map(len, scores), default=1)
        self._unknown_score = min(scores.values(), default=0.0) - 10.0
        self._cache: dict[str, tuple[int, ...]] = {}

    def ids(self, text: str, limit: int) -> list[int]:
        """Return the ids of a text's known subword pieces, at most `limit`."""
        ids: list[int] = []
        for word in split_words(_lowercase(text if text.isascii() else unicodedata.normalize("NFKC", text))):
            known = self._cache.get(word)
            ids += self._split_word(word) if known is None else known
            if len(ids) >= limit:
                break
        return ids[:limit]

    def _split_word(self, word: str) -> tuple[int, ...]:
        """Split a word into subword pieces; digits are split separately from letters."""
        parts = _DIGITS.findall(word)
        known = tuple(number for part in parts for number in self._best_split(part))
        if len(self._cache) < MAX_CACHED_WORDS:
            self._cache[word] = known
        return known

    def _best_split(self, word: str) -> tuple[int, ...]:
        word = word[:MAX_WORD_CHARS]
        score_of, longest, best, came_from = self._scores.get, self._longest, [0.0], [0]
        for end in range(1, len(word) + 1):
            highest, origin = -math.inf, end - 1
            for start in range(max(0, end - longest), end):
                score = score_of(word[start:end])
                if score is not None and best[start] + score > highest:
                    highest, origin = best[start] + score, start
            if score is None and best[-1] + self._unknown_score > highest:  # unknown character
                highest, origin = best[-1] + self._unknown_score, end - 1
            best.append(highest)
            came_from.append(origin)
        return self._trace_back(word, came_from)

    def _trace_back(self, word: str, came_from: Sequence[int]) -> tuple[int, ...]:
        pieces: list[int] = []
        end = len(word)
        while end:
            start = came_from[end]
            if (number := self._ids.get(word[start:end])) is not None:
                pieces.append(number)
            end = start
        return tuple(reversed(pieces))


def split_words(text: str) -> list[str]:
    """Split text at white space; each punctuation character becomes a separate word."""
    if text.isascii() and text.islower() and text.isprintable():
        return _ASCII_WORDS.findall(text)
    words: list[str] = []
    for run in text.split():
        start = 0
        for position, char in enumerate(run):
            if _is_punctuation(char):
                words += [run[start:position], char] if position > start else [char]
                start = position + 1
        if start < len(run):
            words.append(run[start:])
    return words


def _is_punctuation(char: str) -> bool:
    code = ord(char)
    if code < 128:
        return not char.isalnum() and not char.isspace() and 32 < code < 127
    return unicodedata.category(char).startswith("P")


def _normalize_text(text: str) -> str:
    """Lowercase a text, strip accents and control characters, and put spaces around Chinese characters."""
    if text.isascii() and text.isprintable():
        return text.lower()
    out = []
    for char in text:
        code = ord(char)
        if code in (0, 0xFFFD) or (char not in "\t\n\r" and unicodedata.category(char).startswith("C")):
            continue
        out.append(f" {char} " if _is_chinese(code) else " " if char.isspace() else char)
    parts = unicodedata.normalize("NFD", "".join(out))
    return _lowercase("".join(char for char in parts if unicodedata.category(char) != "Mn"))


def _lowercase(text: str) -> str:
    """Convert to lower case, without Python's special rule for a Greek sigma at the end of a word."""
    return text.replace("Σ", "σ").lower()


def _is_chinese(code: int) -> bool:
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0x20000 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF
        or 0x2F800 <= code <= 0x2FA1F
    )
