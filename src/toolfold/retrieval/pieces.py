"""Cutting text into the pieces an embedding model knows.

The two schemes our models were trained with, WordPiece and Unigram, written out because that is a page
and the library they come from brings a hub client along. Both remember the words they have cut.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence

MOST_REMEMBERED = 100_000
LONGEST_WORD = 100
_ASCII_WORDS = re.compile(r"[0-9a-z]+|[!-/:-@\[-`{-~]")
_DIGITS = re.compile(r"\d+|\D+")


class WordPiece:
    """Longest known piece first, as BERT models read."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._ids = {piece: number for number, piece in enumerate(vocabulary)}
        self._unknown = self._ids["[UNK]"]
        self._first, self._last = self._ids["[CLS]"], self._ids["[SEP]"]
        self._remembered: dict[str, tuple[int, ...]] = {}

    def ids(self, text: str, limit: int) -> list[int]:
        """The numbers of the text's pieces between the two marks, at most `limit` in all."""
        ids = [self._first]
        for word in split_words(_plain(text)):
            ids += self._cut(word)
            if len(ids) >= limit:
                break
        return [*ids[: limit - 1], self._last]

    def count(self, word: str) -> int:
        """Into how many pieces a word falls."""
        if (known := self._remembered.get(word)) is not None and word.isascii():
            return len(known)
        return sum(len(self._cut(part)) for part in split_words(_plain(word)))

    def _cut(self, word: str) -> tuple[int, ...]:
        known = self._remembered.get(word)
        if known is None:
            known = self._longest_first(word)
            if len(self._remembered) < MOST_REMEMBERED:
                self._remembered[word] = known
        return known

    def _longest_first(self, word: str) -> tuple[int, ...]:
        if len(word) > LONGEST_WORD:
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
    """The likeliest way to cut a word, by the pieces' own likelihoods."""

    def __init__(self, scores: Mapping[str, float], ids: Mapping[str, int]) -> None:
        self._scores, self._ids = scores, ids
        self._longest = max(map(len, scores), default=1)
        self._unknown_score = min(scores.values(), default=0.0) - 10.0
        self._remembered: dict[str, tuple[int, ...]] = {}

    def ids(self, text: str, limit: int) -> list[int]:
        """The numbers of the text's known pieces, at most `limit`."""
        ids: list[int] = []
        for word in split_words(_lower(text if text.isascii() else unicodedata.normalize("NFKC", text))):
            known = self._remembered.get(word)
            ids += self._cut(word) if known is None else known
            if len(ids) >= limit:
                break
        return ids[:limit]

    def _cut(self, word: str) -> tuple[int, ...]:
        """Of a word of letters and figures, each by themselves."""
        parts = _DIGITS.findall(word)
        known = tuple(number for part in parts for number in self._likeliest(part))
        if len(self._remembered) < MOST_REMEMBERED:
            self._remembered[word] = known
        return known

    def _likeliest(self, word: str) -> tuple[int, ...]:
        word = word[:LONGEST_WORD]
        score_of, longest, best, came_from = self._scores.get, self._longest, [0.0], [0]
        for end in range(1, len(word) + 1):
            highest, origin = -math.inf, end - 1
            for start in range(max(0, end - longest), end):
                score = score_of(word[start:end])
                if score is not None and best[start] + score > highest:
                    highest, origin = best[start] + score, start
            if score is None and best[-1] + self._unknown_score > highest:  # a letter that nobody knows
                highest, origin = best[-1] + self._unknown_score, end - 1
            best.append(highest)
            came_from.append(origin)
        return self._traced(word, came_from)

    def _traced(self, word: str, came_from: Sequence[int]) -> tuple[int, ...]:
        pieces: list[int] = []
        end = len(word)
        while end:
            start = came_from[end]
            if (number := self._ids.get(word[start:end])) is not None:
                pieces.append(number)
            end = start
        return tuple(reversed(pieces))


def split_words(text: str) -> list[str]:
    """Runs of anything between white space, every mark of punctuation by itself."""
    if text.isascii() and text.islower() and text.isprintable():
        return _ASCII_WORDS.findall(text)
    words: list[str] = []
    for run in text.split():
        start = 0
        for place, char in enumerate(run):
            if _is_punctuation(char):
                words += [run[start:place], char] if place > start else [char]
                start = place + 1
        if start < len(run):
            words.append(run[start:])
    return words


def _is_punctuation(char: str) -> bool:
    code = ord(char)
    if code < 128:
        return not char.isalnum() and not char.isspace() and 32 < code < 127
    return unicodedata.category(char).startswith("P")


def _plain(text: str) -> str:
    """Lower case, without accents and control characters, Chinese characters one by one."""
    if text.isascii() and text.isprintable():
        return text.lower()
    out = []
    for char in text:
        code = ord(char)
        if code in (0, 0xFFFD) or (char not in "\t\n\r" and unicodedata.category(char).startswith("C")):
            continue
        out.append(f" {char} " if _is_chinese(code) else " " if char.isspace() else char)
    parts = unicodedata.normalize("NFD", "".join(out))
    return _lower("".join(char for char in parts if unicodedata.category(char) != "Mn"))


def _lower(text: str) -> str:
    """Letter by letter: Python would write a word's last sigma in a way the models never read."""
    return text.replace("Σ", "σ").lower()


def _is_chinese(code: int) -> bool:
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0x20000 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF
        or 0x2F800 <= code <= 0x2FA1F
    )
