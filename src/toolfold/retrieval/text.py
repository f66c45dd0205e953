"""Words: how names, descriptions and messages are cut into pieces that can be compared.

`snake_case`, `kebab-case` and `camelCase` are split, accents dropped, English endings stemmed, common
abbreviations spelled out; Chinese, Japanese and Korean become overlapping pairs of characters. Knows
nothing of tools or of ranking.
"""

from __future__ import annotations

import itertools
import re
import threading
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

LONGEST = 20_000
LONGEST_WORD = 64
MOST_STEMS = 200_000
MOST_RECENT = 32
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W_]+")
_PAIRS = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af"
_PAIRED = re.compile(rf"[{_PAIRS}]+")
_SCRIPTS = re.compile(rf"[{_PAIRS}]+|[^{_PAIRS}]+")
_VOICED = "\u3099\u309a"
_SHORTENED = re.compile(r"(?<=[a-z])['’](?:s|re|ve|ll|d|m|t)\b")

# What a message says to be polite or whole, and what says nothing of the tool it wants.
COMMON = frozenset(
    """a about again all also am an and any are as at be been being but by can could did do does doing done
    for from get give go going got had has have he hello help her here hey hi him his how i if in into is
    it its just kind let like lot make many may maybe me might more much my need no not now of off ok okay
    on once one only or other our out over please put really she should so some something than thank thanks
    that the their them then there these they thing things this those to too try up us use using very want
    was way we well were what whats when where whether which while who why will with without would yes yet
    you your""".split()  # noqa: SIM905  (a list of two hundred quoted words is no page to read)
)

SPELLED_OUT: Mapping[str, str] = {
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
class Said:
    """A message in pieces."""

    every: frozenset[str]
    telling: Mapping[str, str]
    """Those that say what it wants, all of them where none does, each with the word it was cut from."""


class Words:
    """Cuts texts, remembering the stems it has met: a catalog uses few words very often."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stems: dict[str, str] = {}
        self._stemmer: Any = None
        self._recent: dict[str, Said] = {}

    def tokens(self, text: str) -> list[str]:
        """The comparable pieces of a text, in its order."""
        every = words(text)
        try:
            return list(map(self._stems.__getitem__, every))
        except KeyError:  # a word not met yet, or one of several pieces
            return [piece for word in every for piece in self._pieces(word)]

    def said(self, message: str) -> Said:
        """A message in pieces. Every leg asks for the same few in turn, so those are kept."""
        message = message[:LONGEST]
        found = self._recent.get(message)
        if found is None:
            if len(self._recent) >= MOST_RECENT:
                self._recent.clear()
            found = self._recent[message] = self._said(message)
        return found

    def _said(self, message: str) -> Said:
        every = words(message)
        pieces = {word: self._pieces(word) for word in set(every)}
        telling = {
            piece: word if word.isascii() else piece
            for word in [word for word in every if word not in COMMON] or every
            for piece in pieces[word]
        }
        return Said(frozenset(itertools.chain.from_iterable(pieces.values())), telling)

    def _pieces(self, word: str) -> Iterable[str]:
        stem = self._stems.get(word)
        if stem is not None:
            return (stem,)
        if not word.isascii() and _PAIRED.search(word):
            return [piece for run in _SCRIPTS.findall(word) for piece in self._run_pieces(run)]
        return (self._stem(word),)

    def _run_pieces(self, run: str) -> Iterable[str]:
        """Of a part of a word in one script: "slackに送る" says "slack" too."""
        if _PAIRED.match(run):
            return [run[start : start + 2] for start in range(max(1, len(run) - 1))]
        return (self._stemmed(run),)

    def _stemmed(self, word: str) -> str:
        stem = self._stems.get(word)
        return stem if stem is not None else self._stem(word)

    def _stem(self, word: str) -> str:
        with self._lock:  # the stemmer is not made for several threads
            if self._stemmer is None:
                import Stemmer

                self._stemmer = Stemmer.Stemmer("english", 0)
            stem: str = self._stemmer.stemWord(SPELLED_OUT.get(word, word)[:LONGEST_WORD])
            if len(self._stems) < MOST_STEMS:
                self._stems[word] = stem
            return stem


def words(text: str) -> list[str]:
    """Lower-case words without accents, compound names split."""
    text = text[:LONGEST]
    plain = text if text.isascii() else _without_accents(text)
    if not plain.islower():
        plain = _HUMP.sub(" ", plain).lower()
    if "'" in plain or "’" in plain:
        plain = _SHORTENED.sub("", plain)
    return _WORD.findall(plain)


def _without_accents(text: str) -> str:
    parts = unicodedata.normalize("NFKD", text)
    kept = (c for c in parts if not unicodedata.combining(c) or c in _VOICED)
    # Hangul syllables and voiced kana fall apart in NFKD: put together again what is no accent.
    return unicodedata.normalize("NFC", "".join(kept))
