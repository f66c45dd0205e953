"""Check tool names: unprintable characters, mixed alphabets, and imitations of other tools.

Two servers often share a plain name, which is only reported; a name that merely looks the same is suspicious.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from toolfold.core.errors import shorten
from toolfold.mcp.scan.findings import ScanFinding
from toolfold.mcp.scan.hidden_characters import escape_hidden, find_hidden_runs
from toolfold.mcp.scan.sentences import fold
from toolfold.mcp.scan.vocabulary import get_word_set
from toolfold.mcp.tool_listing import ListedTool

_UNUSUAL_CHARACTERS = re.compile(r"^\s|\s$|\.\./|%[0-9a-f]{2}|[\n\r\t\"'`<>{}\\]|\s{2,}")
_WORD = re.compile(r"[^\W\d_]+")
_SEPARATORS = re.compile(r"[\W_]+")
_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LOOK_ALIKES = str.maketrans(
    {"1": "l", "i": "l", "|": "l", "!": "l", "0": "o", "5": "s", "$": "s", "@": "a", "3": "e"}
)


def scan_name(
    tool: ListedTool, server: str, others: Mapping[str, Sequence[ListedTool]]
) -> Iterator[ScanFinding]:
    """Yield findings about a tool's name, alone and compared with tools of other servers."""
    yield from _check_characters(tool.name)
    own = _normalise_name(tool.name)
    for other, tools in others.items():
        if other == server:
            continue
        for foreign_tool in tools:
            relation, is_grave = _compare_names(own, _normalise_name(foreign_tool.name), other)
            if relation:
                imitated = shorten(escape_hidden(foreign_tool.name), 80)
                why = f"it {relation} {imitated!r} of the server {shorten(other, 80)!r}"
                yield ScanFinding("shadow", "name", shorten(escape_hidden(tool.name), 80), why, is_grave)
                return


def _check_characters(name: str) -> Iterator[ScanFinding]:
    excerpt = shorten(escape_hidden(name).replace("\n", "⟨newline⟩"), 80)
    if any(find_hidden_runs(name)):
        yield ScanFinding("hidden", "name", excerpt, "it contains hidden characters")
    elif _UNUSUAL_CHARACTERS.search(name):
        yield ScanFinding("hidden", "name", excerpt, "it contains characters that do not belong in a name")
    if find_mixed_words(name):
        yield ScanFinding("hidden", "name", excerpt, "it mixes look-alike letters of different alphabets")


def find_mixed_words(text: str) -> list[str]:
    """Return the words that mix two alphabets, such as a Latin word with the Cyrillic letter а."""
    return [] if text.isascii() else [word for word in _WORD.findall(text) if _is_mixed(word)]


def _is_mixed(word: str) -> bool:
    if word.isascii() or len(word) < 2:
        return False
    letter_scripts = [unicodedata.name(each, "?").split(" ")[0] for each in word]
    scripts = set(letter_scripts)
    if "LATIN" not in scripts or (len(word) >= 4 and _is_compound(letter_scripts)):
        return False
    if "CYRILLIC" in scripts or "ARMENIAN" in scripts or "CHEROKEE" in scripts:
        return True
    return "GREEK" in scripts and len(word) >= 4 and sum(each.isascii() for each in word) >= 3


def _is_compound(letter_scripts: list[str]) -> bool:
    """Return True if a word's alphabet changes only once, as in a foreign name with a native ending."""
    changes = [
        index for index in range(1, len(letter_scripts)) if letter_scripts[index] != letter_scripts[index - 1]
    ]
    return len(changes) == 1 and 2 <= changes[0] <= len(letter_scripts) - 1


@dataclass(frozen=True, slots=True)
class _NameForms:
    """Normalised forms of a tool name, used to compare tool names."""

    name: str
    plain: str
    look_alike_key: str
    parts: tuple[str, ...]
    words: frozenset[str]


@functools.lru_cache(maxsize=20_000)  # each name is compared with every other
def _normalise_name(name: str) -> _NameForms:
    folded, parts = fold(name), tuple(_split_name(name))
    return _NameForms(name, _SEPARATORS.sub("", folded), _look_alike_key(folded), parts, frozenset(parts))


def _compare_names(own: _NameForms, other: _NameForms, server: str) -> tuple[str, bool]:
    if own.name == other.name:
        return "has the same name as", False
    if not other.plain:
        return "", False
    if own.plain == other.plain:
        is_plain = own.name.isascii() and own.name.strip() == own.name
        return ("has the same name as", False) if is_plain else ("imitates the name of", True)
    if own.plain.endswith(other.plain) and own.plain in _qualified_names(
        other.plain, _normalise_name(server).plain
    ):
        return "uses the qualified name of", True
    if other.words < own.words and own.words - other.words <= get_word_set("promotional_words"):
        return "adds promotional words to the name of", True
    if own.look_alike_key == other.look_alike_key or _differs_by_typo(own.parts, other.parts):
        return "imitates the name of", True
    return "", False


def _look_alike_key(name: str) -> str:
    return _SEPARATORS.sub("", name.replace("rn", "m").replace("vv", "w").translate(_LOOK_ALIKES))


def _qualified_names(tool: str, server: str) -> tuple[str, ...]:
    return server + tool, "mcp" + server + tool, "mcp" + tool


def _split_name(name: str) -> list[str]:
    return [part for part in _SEPARATORS.split(_CAMEL_CASE_BOUNDARY.sub("_", name).lower()) if part]


def _differs_by_typo(parts: Sequence[str], others: Sequence[str]) -> bool:
    """Return True if two names differ in one word, by swapped, doubled or missing letters."""
    if len(parts) != len(others):
        return False
    pairs = [(one, other) for one, other in zip(parts, others, strict=True) if one != other]
    return len(pairs) == 1 and _is_typo(*pairs[0])


def _is_typo(one: str, other: str) -> bool:
    if min(len(one), len(other)) < 4 or one[0] != other[0]:
        return False
    if len(one) == len(other):
        differing = [index for index in range(len(one)) if one[index] != other[index]]
        return (
            len(differing) == 2
            and differing[1] == differing[0] + 1
            and one[differing[0]] == other[differing[1]]
        )
    short, long = sorted((one, other), key=len)
    if len(long) - len(short) != 1 or len(short) < 4 or long == short + "s":
        return False
    return any(long[:index] + long[index + 1 :] == short for index in range(1, len(long) - 1))
