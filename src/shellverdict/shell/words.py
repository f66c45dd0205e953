"""Words of a command after expansion, in which unknown text is marked.

A `Word` is a string in which Unicode noncharacters stand for what the analysis cannot determine: `GAP` for
unknown text (possibly empty), taint characters after it for the origin of that text, and others for the parts
of an unquoted file pattern. This module knows no shell grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType

__all__ = [
    "ANY",
    "CLOSE",
    "EMPTY",
    "GAP",
    "MAX_TEXT_CHARS",
    "NO_VARIABLES",
    "OPEN",
    "STAR",
    "Taint",
    "Word",
    "compile_pattern",
    "unknown_word",
]

MAX_TEXT_CHARS = 65_536  # longer texts are not analysed


class Taint(StrEnum):
    """Origin of text whose content is unknown, such as the network or a file."""

    NETWORK = "network"  # fetched from another machine
    DECODED = "decoded"  # decoded from a form that people cannot read, such as base64
    CONFIDENTIAL = "confidential"  # a key, a token, a password
    UNREAD = "unread"  # content of a file or output of a program that was not analysed


GAP = "\ufdd0"  # unknown text
STAR = "\ufdd1"  # an unquoted *
ANY = "\ufdd2"  # an unquoted ?
OPEN, CLOSE = "\ufdd3", "\ufdd4"  # an unquoted [ and its ]

_TAINT_CHARACTERS = {
    Taint.NETWORK: "\ufdd5",
    Taint.DECODED: "\ufdd6",
    Taint.CONFIDENTIAL: "\ufdd7",
    Taint.UNREAD: "\ufdd8",
}
_WILDCARD_CHARACTER = re.compile(f"[{STAR}{ANY}{OPEN}{CLOSE}]")
_WILDCARD = re.compile(f"((?:{STAR}|{ANY}|{OPEN}[^{CLOSE}]*{CLOSE}|{GAP})[\ufdd5-\ufdd8]*)")
_UNKNOWN_IN_NAME = re.compile(
    "([^/\ufdd0-\ufdd8])(?:\ufdd0[\ufdd5-\ufdd8]*)+(?=[^\ufdd0-\ufdd8])"
    "|([^/=:\ufdd0-\ufdd8])(?:\ufdd0[\ufdd5-\ufdd8]*)+$"
)
_DISPLAY_CHARACTERS = {GAP: "…", STAR: "*", ANY: "?", OPEN: "[", CLOSE: "]"} | dict.fromkeys(
    _TAINT_CHARACTERS.values(), ""
)
_DISPLAY_TABLE = str.maketrans(_DISPLAY_CHARACTERS)
_LITERAL_TABLE = str.maketrans({STAR: "*", ANY: "?", OPEN: "[", CLOSE: "]"})


class Word(str):
    """A string that is one word of a command after expansion; it may have unknown parts and wildcards."""

    __slots__ = ()

    @property
    def is_known(self) -> bool:
        """Return True if the word has no unknown parts and no wildcards."""
        return GAP not in self and not self.is_pattern

    @property
    def is_pattern(self) -> bool:
        """Return True if the shell would match the word against file names."""
        return _WILDCARD_CHARACTER.search(self) is not None

    @property
    def display_text(self) -> str:
        """Return the word for display: patterns as they were typed, unknown text as an ellipsis."""
        return self.translate(_DISPLAY_TABLE)

    @property
    def literal(self) -> Word:
        """Return the word with its wildcards as plain characters such as `*`, for use as shell code."""
        return Word(self.translate(_LITERAL_TABLE))

    @property
    def taints(self) -> frozenset[Taint]:
        """Return the origins of the unknown parts of the word, such as the network or a file."""
        if GAP not in self:
            return frozenset()
        return frozenset(taint for taint, sign in _TAINT_CHARACTERS.items() if sign in self)

    @property
    def without_unknown_parts(self) -> Word:
        """Return the word without unknown text, as if the variables in it were not set."""
        return Word(_UNKNOWN_IN_NAME.sub(r"\1\2", self)) if GAP in self else self

    @property
    def known_text(self) -> str:
        """Return the parts of the word that are neither wildcards nor unknown."""
        return "".join(part for part, wild in self.split_wildcards() if not wild)

    def split_wildcards(self) -> Iterator[tuple[str, bool]]:
        """Yield each part of the word, with True if the part is a wildcard or unknown text."""
        for part in _WILDCARD.split(self):
            wild = _WILDCARD.fullmatch(part) is not None
            yield (part.translate(_DISPLAY_TABLE), wild)

    def can_equal(self, text: str) -> bool:
        """Return True if some value of the unknown parts makes the word equal to `text`."""
        return self == text or (not self.is_known and compile_pattern(self).fullmatch(text) is not None)


EMPTY = Word("")
NO_VARIABLES: Mapping[str, Word] = MappingProxyType({})  # no earlier command has exported any


def unknown_word(taints: frozenset[Taint] = frozenset()) -> Word:
    """Return a word that stands for unknown text from the given origins, such as the network."""
    return Word(GAP + "".join(_TAINT_CHARACTERS[taint] for taint in sorted(taints)))


def compile_pattern(word: str) -> re.Pattern[str]:
    """Compile a word to a regular expression. Adjacent wildcards are joined to limit backtracking."""
    parts: list[str] = []
    rest = re.split(f"([{GAP}{STAR}\ufdd5-\ufdd8]+|{ANY}|{OPEN}[^{CLOSE}]*{CLOSE})", word)
    for part in rest:
        if part and part[0] in (GAP, STAR):
            parts.append(".*")
        elif part == ANY:
            parts.append(".")
        elif part.startswith(OPEN):
            parts.append(_bracket_class(part[1:-1]))
        else:
            parts.append(re.escape(part))
    return re.compile("".join(parts), re.DOTALL)


def _bracket_class(inside: str) -> str:
    negated = inside[:1] in ("!", "^")
    body = "".join(c if c == "-" else re.escape(c) for c in inside[negated:])
    try:
        re.compile(f"[{body}]")
    except re.error:
        return "."
    return f"[{'^' if negated else ''}{body}]" if body else "."
