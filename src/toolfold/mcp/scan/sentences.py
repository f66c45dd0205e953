"""Split text into sentences and find known phrases in each.

Normalises spelling first: look-alike letters of other alphabets, styled letters, accents, hidden characters.
Runs in linear time. Does not decide whether a sentence is suspicious.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from toolfold.mcp.scan.hidden_characters import remove_hidden_characters
from toolfold.mcp.scan.vocabulary import get_pattern, get_word_set, load_phrases

MAX_SENTENCE_CHARS = 700

_SPACES = r"[^\S\n]{0,200}"  # bounded: unbounded, a page of spaces would take quadratic time
_SENTENCE_END = re.compile(
    r"(?<=[.!?;…])(?<!e\.g\.)(?<!i\.e\.)[\"'”’)\]*_`]{0,4}\s(?=\s{0,200}\S)|(?<=[。！？；।۔])"
    rf"|\n{_SPACES}\n|\n(?={_SPACES}(?:[^\s\w]|[A-Z0-9]|[^\x00-\x7f]))|\s(?=<[^>\s])"
)
_TOKEN = re.compile(
    r"""
      (?P<url>\b[a-z][a-z0-9+.-]{1,10}://[^\s<>"'`\])|]+)
    | (?P<mail>[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,32}){1,4}(?::[\w./-]{1,64})?)
    | (?P<path>(?<![\w)])(?:~|\.{1,2}|[a-z]:)?[/\\][\w.~/\\-]{0,200}\w | (?<![\w.)])\.[a-z][\w.-]{1,60})
    | (?P<word>[^\W_](?:[\w'-]{0,80}[^\W_])?)
    """,
    re.VERBOSE,
)
_CAMEL_CASE_NAME = re.compile(r"\b[a-z]+[A-Z]\w*\b")
_UNSEGMENTED_SCRIPT = re.compile(
    "[\u0590-\u08ff\u0900-\u0fff\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U0001f900-\U0001f9ff]"
)
_LINE_BREAK = re.compile("[\x0b\x0c\x85\u2028\u2029]")
_ACCENT = re.compile("[\u0300-\u036f]")
_LATIN_WORD = re.compile(r"\w*[a-z]\w*", re.IGNORECASE)
_LOOK_ALIKE_LETTERS = str.maketrans(
    "аеорсухіјѕԁһԛԝкмтнвзьАЕОРСУХІЈЅКМТНВαοερτυικνχɑɡıⅼℓ",
    "aeopcyxijsdhqwkmthbsbAEOPCYXIJSKMTHBaoeptuiknxagill",
)
_SMALL_LETTERS = str.maketrans(
    "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘǫʀꜱᴛᴜᴠᴡʏᴢᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ",
    "abcdefghijklmnopqrstuvwyzabcdefghijklmnoprstuvwxyz",
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence with the known phrases, names and addresses found in it."""

    start: int
    end: int
    text: str
    """Normalised lower-case text."""
    positions: Mapping[str, tuple[int, ...]]
    """Word positions of each phrase group that occurs in the sentence."""
    names: frozenset[str] = frozenset()
    """Identifiers in the sentence: words with an underscore, hyphen or inner capital."""
    urls: tuple[str, ...] = ()
    emails: tuple[str, ...] = ()
    length: int = 0
    """Number of words in the sentence."""

    def has_all(self, *groups: str) -> bool:
        return all(map(self.positions.__contains__, groups))

    def has_any(self, *groups: str) -> bool:
        return any(map(self.positions.__contains__, groups))

    def count(self, group: str) -> int:
        return len(self.positions.get(group, ()))

    def is_near(self, first: str, second: str, gap: int, *, back: int = 0) -> bool:
        """Return True if `second` is at most `gap` words after `first`, or at most `back` words before it."""
        if first not in self.positions or second not in self.positions:
            return False
        return any(
            -back <= b - a <= gap and a != b for a in self.positions[first] for b in self.positions[second]
        )


class _PhraseIndex(NamedTuple):
    words: dict[str, tuple[str, ...]]
    phrases: dict[tuple[str, str], tuple[tuple[tuple[str, ...], str], ...]]
    """Phrases by their first two words."""
    wildcard_phrases: dict[str, tuple[tuple[tuple[str, ...], str], ...]]
    """Phrases that contain a word with any ending, by their first word."""
    stems: dict[str, tuple[tuple[str, str], ...]]
    unsegmented: tuple[tuple[str, str], ...]
    """Phrases of scripts that do not separate words, such as Chinese."""


def split_sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a text in order."""
    position = 0
    was_blank = False
    for stop in [*(match.start() for match in _SENTENCE_END.finditer(text)), len(text)]:
        for start in range(position, stop, MAX_SENTENCE_CHARS):
            piece = text[start : min(stop, start + MAX_SENTENCE_CHARS)]
            is_blank = piece.isspace()
            if not (is_blank and was_blank):
                yield read_sentence(piece, start)
            was_blank = is_blank
        position = max(position, stop)


def read_sentence(text: str, start: int = 0) -> Sentence:
    """Return one sentence with the phrases, names and addresses found in it."""
    folded = fold(text)
    positions: dict[str, list[int]] = {}
    names, urls, emails = {name.lower() for name in _CAMEL_CASE_NAME.findall(text)}, [], []
    words: list[str] = []
    for match in _TOKEN.finditer(folded):
        kind, token = match.lastgroup, match[0]
        if kind == "word":
            if "_" in token or "-" in token:
                names.add(token)
            words += _split_token(token)
            continue
        if kind == "url":
            urls.append(token)
        elif kind == "mail":
            emails.append(token)
        if kind == "path" and get_pattern("personal_path").match(token):
            positions.setdefault("private_data", []).append(len(words))
        if kind != "mail" and get_pattern("secret_path").search(token):
            positions.setdefault("secret", []).append(len(words))
            positions.setdefault("critical_secret", []).append(len(words))
        words.append(token)
    _add_phrases(words, positions)
    if _UNSEGMENTED_SCRIPT.search(folded):
        for phrase, group in _load_lexicon().unsegmented:
            offset = folded.find(phrase)
            if offset >= 0:
                positions.setdefault(group, []).append(offset // 3)  # about three letters a word
    return Sentence(
        start,
        start + len(text),
        folded,
        {group: tuple(indices) for group, indices in positions.items()},
        frozenset(names),
        tuple(urls),
        tuple(emails),
        len(words),
    )


def _split_token(token: str) -> list[str]:
    """Split a long snake-case name or hyphenated word; drop an elided article such as "l'"."""
    if "_" in token:
        parts = [part for part in token.split("_") if part]
        return parts if len(parts) >= 4 else [token]
    if "'" in token and token.split("'", 1)[0] in get_word_set("elided_articles"):
        token = token.split("'", 1)[1]
    return [part for part in token.split("-") if part] if "-" in token else [token]


def _add_phrases(words: list[str], positions: dict[str, list[int]]) -> None:
    index = _load_lexicon()
    following = "", *words[1:], ""
    for position, word in enumerate(words):
        for group in index.words.get(word, ()):
            positions.setdefault(group, []).append(position)
        for stem, group in index.stems.get(word[:3], ()):
            if word.startswith(stem):
                positions.setdefault(group, []).append(position)
        for rest, group in index.phrases.get((word, following[position + 1]), ()):
            if _matches_rest(words, position + 1, rest):
                positions.setdefault(group, []).append(position)
        for rest, group in index.wildcard_phrases.get(word, ()):
            if _matches_rest(words, position + 1, rest):
                positions.setdefault(group, []).append(position)


def _matches_rest(words: list[str], position: int, rest: tuple[str, ...]) -> bool:
    candidate = words[position : position + len(rest)]
    return len(candidate) == len(rest) and all(
        word == expected or (expected[-1] == "*" and word.startswith(expected[:-1]))
        for word, expected in zip(candidate, rest, strict=True)
    )


def fold(text: str) -> str:
    """Return the text in lower case, with look-alike letters replaced and accents removed."""
    if text.isascii():
        return text.lower()
    text = remove_hidden_characters(_LINE_BREAK.sub("\n", text)).translate(_SMALL_LETTERS)
    text = unicodedata.normalize("NFKC", text).replace("’", "'").replace("‘", "'")
    text = _LATIN_WORD.sub(lambda match: match[0].translate(_LOOK_ALIKE_LETTERS), text)
    text = _ACCENT.sub("", unicodedata.normalize("NFD", text))
    return unicodedata.normalize("NFC", text).lower()


@cache
def _load_lexicon() -> _PhraseIndex:
    words: dict[str, list[str]] = {}
    phrases: dict[tuple[str, str], list[tuple[tuple[str, ...], str]]] = {}
    wildcard_phrases: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    stems: dict[str, list[tuple[str, str]]] = {}
    unsegmented: list[tuple[str, str]] = []
    for group, entries in load_phrases().items():
        for phrase in {form for entry in entries for form in _expand_plural(fold(entry))}:
            if _UNSEGMENTED_SCRIPT.search(phrase):
                unsegmented.append((phrase, group))
                continue
            first, *rest = [part for word in phrase.split(" ") for part in _split_token(word)]
            if rest and "*" in phrase:
                wildcard_phrases.setdefault(first.rstrip("*"), []).append((tuple(rest), group))
            elif rest:
                phrases.setdefault((first, rest[0]), []).append((tuple(rest), group))
            elif first.endswith("*"):
                stems.setdefault(first[:3], []).append((first[:-1], group))
            else:
                words.setdefault(first, []).append(group)
    return _PhraseIndex(
        {word: tuple(groups) for word, groups in words.items()},
        {pair: tuple(entries) for pair, entries in phrases.items()},
        {word: tuple(entries) for word, entries in wildcard_phrases.items()},
        {prefix: tuple(entries) for prefix, entries in stems.items()},
        tuple(unsegmented),
    )


def _expand_plural(phrase: str) -> tuple[str, ...]:
    return (phrase.replace("(s)", ""), phrase.replace("(s)", "s")) if "(s)" in phrase else (phrase,)
