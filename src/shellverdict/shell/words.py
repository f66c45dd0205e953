"""Words as a shell would see them, with what is not known marked where it stands.

A `Word` is text in which a few characters that never occur in real text stand for what reading alone cannot
settle: a gap (text nobody knows, perhaps empty), marks behind a gap that say where its text comes from, and
the parts of an unquoted file pattern. It knows nothing of grammar: who expands what into a word is the
business of the reader.
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
    "LONGEST",
    "NOTHING_KEPT",
    "OPEN",
    "STAR",
    "Mark",
    "Word",
    "expression",
    "gap",
]

LONGEST = 65_536  # of a text that is followed


class Mark(StrEnum):
    """Where text that nobody has read comes from, where that matters."""

    NETWORK = "network"  # fetched from another machine
    DECODED = "decoded"  # unpacked from a form people cannot read
    CONFIDENTIAL = "confidential"  # a key, a token, a password
    UNREAD = "unread"  # a file or program nobody has looked into


GAP = "\ufdd0"  # text that nobody knows
STAR = "\ufdd1"  # an unquoted *
ANY = "\ufdd2"  # an unquoted ?
OPEN, CLOSE = "\ufdd3", "\ufdd4"  # an unquoted [ and its ]

_MARK_SIGNS = {
    Mark.NETWORK: "\ufdd5",
    Mark.DECODED: "\ufdd6",
    Mark.CONFIDENTIAL: "\ufdd7",
    Mark.UNREAD: "\ufdd8",
}
_PATTERN = re.compile(f"[{STAR}{ANY}{OPEN}{CLOSE}]")
_WILD = re.compile(f"((?:{STAR}|{ANY}|{OPEN}[^{CLOSE}]*{CLOSE}|{GAP})[\ufdd5-\ufdd8]*)")
_INSIDE = re.compile(
    "([^/\ufdd0-\ufdd8])(?:\ufdd0[\ufdd5-\ufdd8]*)+(?=[^\ufdd0-\ufdd8])"
    "|([^/=:\ufdd0-\ufdd8])(?:\ufdd0[\ufdd5-\ufdd8]*)+$"
)
_SHOWN = {GAP: "…", STAR: "*", ANY: "?", OPEN: "[", CLOSE: "]"} | dict.fromkeys(_MARK_SIGNS.values(), "")
_SHOWN_TABLE = str.maketrans(_SHOWN)
_TYPED_TABLE = str.maketrans({STAR: "*", ANY: "?", OPEN: "[", CLOSE: "]"})


class Word(str):
    """One word of a command after expansion."""

    __slots__ = ()

    @property
    def known(self) -> bool:
        """Whether this is the very text a program would be given."""
        return GAP not in self and not self.pattern

    @property
    def pattern(self) -> bool:
        """Whether the shell would match it against the names of files."""
        return _PATTERN.search(self) is not None

    @property
    def shown(self) -> str:
        """The word for a person's eyes: patterns as they were typed, gaps as an ellipsis."""
        return self.translate(_SHOWN_TABLE)

    @property
    def typed(self) -> Word:
        """The word with its patterns as plain characters, as another shell would be given it."""
        return Word(self.translate(_TYPED_TABLE))

    @property
    def marks(self) -> frozenset[Mark]:
        """Where its unknown parts come from."""
        if GAP not in self:
            return frozenset()
        return frozenset(mark for mark, sign in _MARK_SIGNS.items() if sign in self)

    @property
    def shortest(self) -> Word:
        """The word if what is not known within a name were nothing, as of a variable never set."""
        return Word(_INSIDE.sub(r"\1\2", self)) if GAP in self else self

    def pieces(self) -> Iterator[tuple[str, bool]]:
        """The word in parts, as typed, each with whether it is a pattern (or a gap)."""
        for part in _WILD.split(self):
            wild = _WILD.fullmatch(part) is not None
            yield (part.translate(_SHOWN_TABLE), wild)

    def could_be(self, text: str) -> bool:
        """Whether what is not known could be filled so that the word is `text`."""
        return self == text or (not self.known and expression(self).fullmatch(text) is not None)


EMPTY = Word("")
NOTHING_KEPT: Mapping[str, Word] = MappingProxyType({})  # what a command finds where none was before it


def gap(marks: frozenset[Mark] = frozenset()) -> Word:
    """Unknown text with its marks."""
    return Word(GAP + "".join(_MARK_SIGNS[mark] for mark in sorted(marks)))


def expression(word: str) -> re.Pattern[str]:
    """The word as an expression; runs of wild parts are one, so that matching stays linear enough."""
    parts: list[str] = []
    rest = re.split(f"([{GAP}{STAR}\ufdd5-\ufdd8]+|{ANY}|{OPEN}[^{CLOSE}]*{CLOSE})", word)
    for part in rest:
        if part and part[0] in (GAP, STAR):
            parts.append(".*")
        elif part == ANY:
            parts.append(".")
        elif part.startswith(OPEN):
            parts.append(_class(part[1:-1]))
        else:
            parts.append(re.escape(part))
    return re.compile("".join(parts), re.DOTALL)


def _class(inside: str) -> str:
    negated = inside[:1] in ("!", "^")
    body = "".join(c if c == "-" else re.escape(c) for c in inside[negated:])
    try:
        re.compile(f"[{body}]")
    except re.error:
        return "."
    return f"[{'^' if negated else ''}{body}]" if body else "."
