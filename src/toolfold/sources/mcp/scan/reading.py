"""A text as sentences, and each sentence as the sayings that are found in it and where.

Sees through spelling: letters of other alphabets that look alike, letters in fancy dress, accents, characters
nobody sees. Takes time in proportion to the text. Judges nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from toolfold.sources.mcp.scan.hidden import stripped
from toolfold.sources.mcp.scan.words import SAYINGS

LONGEST_SENTENCE = 700

_BLANKS = r"[^\S\n]{0,200}"  # bounded, or a page of blanks would be looked through again from each of them
_END = re.compile(
    r"(?<=[.!?;…])(?<!e\.g\.)(?<!i\.e\.)[\"'”’)\]*_`]{0,4}\s(?=\s{0,200}\S)|(?<=[。！？；।۔])"
    rf"|\n{_BLANKS}\n|\n(?={_BLANKS}(?:[^\s\w]|[A-Z0-9]|[^\x00-\x7f]))|\s(?=<[^>\s])"
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
_SECRET_PLACE = re.compile(
    r"\.ssh\b|id_(?:rsa|ed25519|ecdsa|dsa)|\.env\b|\.aws\b|\.kube\b|netrc|\.npmrc|\.pypirc|pgpass"
    r"|\.docker/config"
    r"|git-credentials|/etc/(?:passwd|shadow|sudoers)|\.gnupg|hosts\.yml|(?:bash|zsh|shell)_history"
    r"|cookies|login.data"
    r"|wallet|keychain|credentials|\.pem\b|secrets?\b|known_hosts|authorized_keys|\.kdbx|\.p12\b"
    r"|\.pfx\b|/proc/\w+/environ"
    r"|\.config/gcloud|\.azure|\.mozilla|\.bitcoin|terraform\.tfstate|service.account|\.vault.token"
    r"|\.htpasswd"
)
_CAMEL = re.compile(r"\b[a-z]+[A-Z]\w*\b")
_HOME = re.compile(r"~|/(?:home|root|users|etc|var/log|proc)\b|[a-z]:\\users")
_GLUED = re.compile(
    "[\u0590-\u08ff\u0900-\u0fff\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U0001f900-\U0001f9ff]"
)
_BREAKS = re.compile("[\x0b\x0c\x85\u2028\u2029]")
_ACCENTS = re.compile("[\u0300-\u036f]")
_LATIN_WORD = re.compile(r"\w*[a-z]\w*", re.IGNORECASE)
_ALIKE = str.maketrans(
    "аеорсухіјѕԁһԛԝкмтнвзьАЕОРСУХІЈЅКМТНВαοερτυικνχɑɡıⅼℓ",
    "aeopcyxijsdhqwkmthbsbAEOPCYXIJSKMTHBaoeptuiknxagill",
)
_SMALL = str.maketrans(
    "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘǫʀꜱᴛᴜᴠᴡʏᴢᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ",
    "abcdefghijklmnopqrstuvwyzabcdefghijklmnoprstuvwxyz",
)


_ARTICLES = frozenset(
    re.findall(
        r"\w+",
        "l d n s c j m t qu all dell nell sull un",
    )
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, read."""

    start: int
    end: int
    text: str
    """As it is compared: folded, in small letters."""
    said: Mapping[str, tuple[int, ...]]
    """The groups of sayings found, each with the places of its words."""
    names: frozenset[str] = frozenset()
    """Names of the sort that programs have."""
    urls: tuple[str, ...] = ()
    mails: tuple[str, ...] = ()
    length: int = 0
    """In words."""

    def has(self, *groups: str) -> bool:
        return all(map(self.said.__contains__, groups))

    def any(self, *groups: str) -> bool:
        return any(map(self.said.__contains__, groups))

    def count(self, group: str) -> int:
        return len(self.said.get(group, ()))

    def near(self, first: str, then: str, gap: int, *, back: int = 0) -> bool:
        """Whether a word of the one follows one of the other within `gap`, or precedes it within `back`."""
        if first not in self.said or then not in self.said:
            return False
        return any(-back <= b - a <= gap and a != b for a in self.said[first] for b in self.said[then])


class _Lexicon(NamedTuple):
    words: dict[str, tuple[str, ...]]
    phrases: dict[tuple[str, str], tuple[tuple[tuple[str, ...], str], ...]]
    """By their first two words."""
    open_phrases: dict[str, tuple[tuple[tuple[str, ...], str], ...]]
    """Those in which a word may have any ending, by their first."""
    stems: dict[str, tuple[tuple[str, str], ...]]
    glued: tuple[tuple[str, str], ...]


def sentences(text: str) -> Iterator[Sentence]:
    """The sentences of a text, in order, with their places in it. Blank ones in a row count as one."""
    at = 0
    was_blank = False
    for stop in [*(match.start() for match in _END.finditer(text)), len(text)]:
        for start in range(at, stop, LONGEST_SENTENCE):
            piece = text[start : min(stop, start + LONGEST_SENTENCE)]
            is_blank = piece.isspace()
            if not (is_blank and was_blank):
                yield read(piece, start)
            was_blank = is_blank
        at = max(at, stop)


def read(text: str, start: int = 0) -> Sentence:
    """One sentence."""
    folded = fold(text)
    said: dict[str, list[int]] = {}
    names, urls, mails = {each.lower() for each in _CAMEL.findall(text)}, [], []
    place = -1
    tokens: list[str] = []
    for match in _TOKEN.finditer(folded):
        kind, token = match.lastgroup, match[0]
        parts = _parts(token) if kind == "word" else [token]
        if kind == "word":
            if "_" in token or "-" in token:
                names.add(token)
        else:
            if kind == "url":
                urls.append(token)
            elif kind == "mail":
                mails.append(token)
            if kind == "path" and _HOME.match(token):
                said.setdefault("private", []).append(place + 1)
            if kind != "mail" and _SECRET_PLACE.search(token):
                said.setdefault("secret", []).append(place + 1)
                said.setdefault("grave_secret", []).append(place + 1)
        for part in parts:
            place += 1
            tokens.append(part)
    _look_up(tokens, said)
    if _GLUED.search(folded):
        for piece, group in _lexicon().glued:
            found = folded.find(piece)
            if found >= 0:
                said.setdefault(group, []).append(found // 3)
    return Sentence(
        start,
        start + len(text),
        folded,
        {group: tuple(places) for group, places in said.items()},
        frozenset(names),
        tuple(urls),
        tuple(mails),
        len(tokens),
    )


def _parts(token: str) -> list[str]:
    """The words in a name that is a sentence itself, in a word with a hyphen, or behind a short article."""
    if "_" in token:
        parts = [part for part in token.split("_") if part]
        return parts if len(parts) >= 4 else [token]
    if "'" in token and token.split("'", 1)[0] in _ARTICLES:
        token = token.split("'", 1)[1]
    return [part for part in token.split("-") if part] if "-" in token else [token]


def _look_up(tokens: list[str], said: dict[str, list[int]]) -> None:
    words, phrases, open_phrases, stems, _ = _lexicon()
    following = "", *tokens[1:], ""
    for place, token in enumerate(tokens):
        for group in words.get(token, ()):
            said.setdefault(group, []).append(place)
        for stem, group in stems.get(token[:3], ()):
            if token.startswith(stem):
                said.setdefault(group, []).append(place)
        for rest, group in phrases.get((token, following[place + 1]), ()):
            if _follows(tokens, place + 1, rest):
                said.setdefault(group, []).append(place)
        for rest, group in open_phrases.get(token, ()):
            if _follows(tokens, place + 1, rest):
                said.setdefault(group, []).append(place)


def _follows(tokens: list[str], place: int, rest: tuple[str, ...]) -> bool:
    found = tokens[place : place + len(rest)]
    return len(found) == len(rest) and all(
        one == other or (other[-1] == "*" and one.startswith(other[:-1]))
        for one, other in zip(found, rest, strict=True)
    )


def fold(text: str) -> str:
    """As it is meant to be read, whatever letters it is written in."""
    if text.isascii():
        return text.lower()
    text = stripped(_BREAKS.sub("\n", text)).translate(_SMALL)
    text = unicodedata.normalize("NFKC", text).replace("’", "'").replace("‘", "'")
    text = _LATIN_WORD.sub(lambda match: match[0].translate(_ALIKE), text)
    text = _ACCENTS.sub("", unicodedata.normalize("NFD", text))
    return unicodedata.normalize("NFC", text).lower()


@cache
def _lexicon() -> _Lexicon:
    words: dict[str, list[str]] = {}
    phrases: dict[tuple[str, str], list[tuple[tuple[str, ...], str]]] = {}
    open_phrases: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    stems: dict[str, list[tuple[str, str]]] = {}
    glued: list[tuple[str, str]] = []
    for group, block in SAYINGS.items():
        for saying in {form for each in block.split("|") for form in _forms(fold(" ".join(each.split())))}:
            if _GLUED.search(saying):
                glued.append((saying, group))
                continue
            first, *rest = [part for word in saying.split(" ") for part in _parts(word)]
            if rest and "*" in saying:
                open_phrases.setdefault(first.rstrip("*"), []).append((tuple(rest), group))
            elif rest:
                phrases.setdefault((first, rest[0]), []).append((tuple(rest), group))
            elif first.endswith("*"):
                stems.setdefault(first[:3], []).append((first[:-1], group))
            else:
                words.setdefault(first, []).append(group)
    return _Lexicon(
        {key: tuple(each) for key, each in words.items()},
        {pair: tuple(each) for pair, each in phrases.items()},
        {key: tuple(each) for key, each in open_phrases.items()},
        {key: tuple(each) for key, each in stems.items()},
        tuple(glued),
    )


def _forms(saying: str) -> tuple[str, ...]:
    return (saying.replace("(s)", ""), saying.replace("(s)", "s")) if "(s)" in saying else (saying,)
