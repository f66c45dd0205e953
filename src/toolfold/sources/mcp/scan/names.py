"""Names that pass themselves off as something else: unprintable, of mixed letters, or another server's.

The same plain name on two servers is common and only worth a word; one that merely looks the same is not.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from toolfold.errors import shorten
from toolfold.sources.mcp.offers import Offer
from toolfold.sources.mcp.scan.findings import Finding
from toolfold.sources.mcp.scan.hidden import hidden_runs, legible
from toolfold.sources.mcp.scan.reading import fold

_UNFIT = re.compile(r"^\s|\s$|\.\./|%[0-9a-f]{2}|[\n\r\t\"'`<>{}\\]|\s{2,}")
_WORDS = re.compile(r"[^\W\d_]+")
_PARTING = re.compile(r"[\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PRAISE = frozenset(
    re.findall(
        r"\w+",
        "official safe secure new real verified trusted fast better best pro plus fixed patched origina"
        "l true v2 v3 2",
    )
)
_LOOKS = str.maketrans(
    {"1": "l", "i": "l", "|": "l", "!": "l", "0": "o", "5": "s", "$": "s", "@": "a", "3": "e"}
)


def scan_name(offer: Offer, server: str, others: Mapping[str, Sequence[Offer]]) -> Iterator[Finding]:
    """What is odd about a tool's name, alone and beside those of the other servers."""
    yield from _odd(offer.name)
    own = _forms(offer.name)
    for other, offers in others.items():
        if other == server:
            continue
        for each in offers:
            why, grave = _resembles(own, _forms(each.name), other)
            if why:
                told = f"it {why} {shorten(legible(each.name), 80)!r} of the server {shorten(other, 80)!r}"
                yield Finding("shadow", "name", shorten(legible(offer.name), 80), told, grave)
                return


def _odd(name: str) -> Iterator[Finding]:
    said = shorten(legible(name).replace("\n", "⟨newline⟩"), 80)
    if any(hidden_runs(name)):
        yield Finding("hidden", "name", said, "it holds characters that nobody sees")
    elif _UNFIT.search(name):
        yield Finding("hidden", "name", said, "it holds characters that no name needs")
    if mixed_words(name):
        yield Finding("hidden", "name", said, "it mixes letters of alphabets that look alike")


def mixed_words(text: str) -> list[str]:
    """Words of letters from two alphabets, such as a Latin word with a Cyrillic а."""
    return [] if text.isascii() else [word for word in _WORDS.findall(text) if _is_mixed(word)]


def _is_mixed(word: str) -> bool:
    if word.isascii() or len(word) < 2:
        return False
    spelt = [unicodedata.name(each, "?").split(" ")[0] for each in word]
    scripts = set(spelt)
    if "LATIN" not in scripts or (len(word) >= 4 and _is_compound(spelt)):
        return False
    if "CYRILLIC" in scripts or "ARMENIAN" in scripts or "CHEROKEE" in scripts:
        return True
    return "GREEK" in scripts and len(word) >= 4 and sum(each.isascii() for each in word) >= 3


def _is_compound(spelt: list[str]) -> bool:
    """One alphabet and then the other, as where a foreign name has a native ending: nothing is disguised."""
    turns = [place for place in range(1, len(spelt)) if spelt[place] != spelt[place - 1]]
    return len(turns) == 1 and 2 <= turns[0] <= len(spelt) - 1


@dataclass(frozen=True, slots=True)
class _Forms:
    """A name as it is compared with others."""

    name: str
    plain: str
    looks: str
    parts: tuple[str, ...]
    words: frozenset[str]


@functools.lru_cache(maxsize=20_000)  # every name is compared with every other
def _forms(name: str) -> _Forms:
    folded, parts = fold(name), tuple(_parts(name))
    return _Forms(name, _PARTING.sub("", folded), _looks(folded), parts, frozenset(parts))


def _resembles(own: _Forms, other: _Forms, server: str) -> tuple[str, bool]:
    if own.name == other.name:
        return "has the name of", False
    if not other.plain:
        return "", False
    if own.plain == other.plain:
        is_plain = own.name.isascii() and own.name.strip() == own.name
        return ("has the name of", False) if is_plain else ("looks like", True)
    if own.plain.endswith(other.plain) and own.plain in _full_names(other.plain, _forms(server).plain):
        return "takes the full name of", True
    if other.words < own.words and own.words - other.words <= _PRAISE:
        return "praises itself over", True
    if own.looks == other.looks or _is_slip(own.parts, other.parts):
        return "looks like", True
    return "", False


def _looks(name: str) -> str:
    return _PARTING.sub("", name.replace("rn", "m").replace("vv", "w").translate(_LOOKS))


def _full_names(tool: str, server: str) -> tuple[str, ...]:
    return server + tool, "mcp" + server + tool, "mcp" + tool


def _parts(name: str) -> list[str]:
    return [part for part in _PARTING.split(_CAMEL.sub("_", name).lower()) if part]


def _is_slip(parts: Sequence[str], others: Sequence[str]) -> bool:
    """Whether they differ as a misprint does: in one word, by letters swapped, doubled or left out."""
    if len(parts) != len(others):
        return False
    pairs = [(one, other) for one, other in zip(parts, others, strict=True) if one != other]
    return len(pairs) == 1 and _is_misprint(*pairs[0])


def _is_misprint(one: str, other: str) -> bool:
    if min(len(one), len(other)) < 4 or one[0] != other[0]:
        return False
    if len(one) == len(other):
        differ = [place for place in range(len(one)) if one[place] != other[place]]
        return len(differ) == 2 and differ[1] == differ[0] + 1 and one[differ[0]] == other[differ[1]]
    short, long = sorted((one, other), key=len)
    if len(long) - len(short) != 1 or len(short) < 4 or long == short + "s":
        return False
    return any(long[:place] + long[place + 1 :] == short for place in range(1, len(long) - 1))
