"""Split names, descriptions and messages into comparable terms.

`snake_case`, `kebab-case` and `camelCase` are split, accents removed, English words stemmed and common
abbreviations expanded; Chinese, Japanese and Korean text becomes overlapping pairs of characters. Knows
nothing of tools or ranking.
"""

from __future__ import annotations

import itertools
import re
import threading
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_TEXT_CHARS = 20_000
MAX_WORD_CHARS = 64
MAX_CACHED_STEMS = 200_000
MAX_RECENT_MESSAGES = 32
_CAMEL_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W_]+")
_CJK = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af"
_CJK_RUN = re.compile(rf"[{_CJK}]+")
_SCRIPT_RUNS = re.compile(rf"[{_CJK}]+|[^{_CJK}]+")
_KANA_VOICING_MARKS = "\u3099\u309a"
_CONTRACTION = re.compile(r"(?<=[a-z])['’](?:s|re|ve|ll|d|m|t)\b")

# Function words and phrases of politeness, which carry no information about the tool.
COMMON_WORDS = frozenset(
    """a about again all also am an and any are as at be been being but by can could did do does doing done
    for from get give go going got had has have he hello help her here hey hi him his how i if in into is
    it its just kind let like lot make many may maybe me might more much my need no not now of off ok okay
    on once one only or other our out over please put really she should so some something than thank thanks
    that the their them then there these they thing things this those to too try up us use using very want
    was way we well were what whats when where whether which while who why will with without would yes yet
    you your""".split()  # noqa: SIM905  (a literal list would be unreadable)
)

ABBREVIATIONS: Mapping[str, str] = {
    "admin": "administrator",
    "app": "application",
    "apps": "application",
    "appt": "appointment",
    "auth": "authentication",
    "cal": "calendar",
    "cfg": "configuration",
    "config": "configuration",
    "configs": "configuration",
    "db": "database",
    "dbs": "database",
    "del": "delete",
    "desc": "description",
    "dev": "development",
    "dir": "directory",
    "dirs": "directory",
    "doc": "document",
    "docs": "document",
    "email": "mail",
    "emails": "mail",
    "env": "environment",
    "img": "image",
    "imgs": "image",
    "info": "information",
    "k8s": "kubernetes",
    "kb": "knowledge",
    "lang": "language",
    "loc": "location",
    "max": "maximum",
    "min": "minimum",
    "msg": "message",
    "msgs": "message",
    "num": "number",
    "org": "organization",
    "orgs": "organization",
    "param": "parameter",
    "params": "parameter",
    "pic": "picture",
    "pics": "picture",
    "pkg": "package",
    "prod": "production",
    "pw": "password",
    "qty": "quantity",
    "rec": "record",
    "ref": "reference",
    "repo": "repository",
    "repos": "repository",
    "temp": "temperature",
    "tz": "timezone",
    "vid": "video",
    "vids": "video",
}


@dataclass(frozen=True, slots=True)
class MessageTerms:
    """Terms of a message, each with its original word."""

    all_terms: frozenset[str]
    content_terms: Mapping[str, str]
    """Terms of words that are not common, each with its word; of all words if all are common."""


class WordTokenizer:
    """Splits texts into terms; caches stems, because a catalog repeats few words very often."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stems: dict[str, str] = {}
        self._stemmer: Any = None
        self._recent: dict[str, MessageTerms] = {}

    def tokens(self, text: str) -> list[str]:
        """Return the terms (stemmed words) of a text, in order."""
        all_terms = words(text)
        try:
            return list(map(self._stems.__getitem__, all_terms))
        except KeyError:  # a new word, or one that has several terms
            return [piece for word in all_terms for piece in self._word_terms(word)]

    def message_terms(self, message: str) -> MessageTerms:
        """Return the terms of a message; recent results are cached."""
        message = message[:MAX_TEXT_CHARS]
        found = self._recent.get(message)
        if found is None:
            if len(self._recent) >= MAX_RECENT_MESSAGES:
                self._recent.clear()
            found = self._recent[message] = self._split_message(message)
        return found

    def _split_message(self, message: str) -> MessageTerms:
        all_terms = words(message)
        pieces = {word: self._word_terms(word) for word in set(all_terms)}
        content_terms = {
            piece: word if word.isascii() else piece
            for word in [word for word in all_terms if word not in COMMON_WORDS] or all_terms
            for piece in pieces[word]
        }
        return MessageTerms(frozenset(itertools.chain.from_iterable(pieces.values())), content_terms)

    def _word_terms(self, word: str) -> Iterable[str]:
        stem = self._stems.get(word)
        if stem is not None:
            return (stem,)
        if not word.isascii() and _CJK_RUN.search(word):
            return [piece for run in _SCRIPT_RUNS.findall(word) for piece in self._script_terms(run)]
        return (self._compute_stem(word),)

    def _script_terms(self, run: str) -> Iterable[str]:
        """Return the terms of a piece of text in a single script, such as "slack" in "slackに送る"."""
        if _CJK_RUN.match(run):
            return [run[start : start + 2] for start in range(max(1, len(run) - 1))]
        return (self._stem_word(run),)

    def _stem_word(self, word: str) -> str:
        stem = self._stems.get(word)
        return stem if stem is not None else self._compute_stem(word)

    def _compute_stem(self, word: str) -> str:
        with self._lock:  # the stemmer is not thread-safe
            if self._stemmer is None:
                import Stemmer

                self._stemmer = Stemmer.Stemmer("english", 0)
            stem: str = self._stemmer.stemWord(ABBREVIATIONS.get(word, word)[:MAX_WORD_CHARS])
            if len(self._stems) < MAX_CACHED_STEMS:
                self._stems[word] = stem
            return stem


def words(text: str) -> list[str]:
    """Return the lowercase words of a text without accents; compound names are split."""
    text = text[:MAX_TEXT_CHARS]
    plain = text if text.isascii() else _strip_accents(text)
    if not plain.islower():
        plain = _CAMEL_BOUNDARY.sub(" ", plain).lower()
    if "'" in plain or "’" in plain:
        plain = _CONTRACTION.sub("", plain)
    return _WORD.findall(plain)


def _strip_accents(text: str) -> str:
    parts = unicodedata.normalize("NFKD", text)
    kept = (c for c in parts if not unicodedata.combining(c) or c in _KANA_VOICING_MARKS)
    # NFKD also decomposes Hangul syllables and voiced kana: recompose them.
    return unicodedata.normalize("NFC", "".join(kept))
