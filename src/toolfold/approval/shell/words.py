"""Words as a shell would see them, with what is not known marked where it stands.

A `Word` is text in which five characters that never occur in real text stand for what reading alone cannot
settle: a gap (text nobody knows, perhaps empty), and the parts of an unquoted file pattern. It knows nothing
of grammar: who expands what into a word is the business of the reader.
"""

from __future__ import annotations

import re

__all__ = ["ANY", "CLOSE", "EMPTY", "GAP", "OPEN", "STAR", "Word"]

GAP = "\ufdd0"  # text that nobody knows
STAR = "\ufdd1"  # an unquoted *
ANY = "\ufdd2"  # an unquoted ?
OPEN, CLOSE = "\ufdd3", "\ufdd4"  # an unquoted [ and its ]

_PATTERN = re.compile(f"[{STAR}{ANY}{OPEN}{CLOSE}]")
_MARKS = {GAP: "…", STAR: "*", ANY: "?", OPEN: "[", CLOSE: "]"}


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
        return "".join(_MARKS.get(character, character) for character in self)

    def could_be(self, text: str) -> bool:
        """Whether what is not known could be filled so that the word is `text`."""
        return self == text or (not self.known and _filled(self).fullmatch(text) is not None)


EMPTY = Word("")


def _filled(word: str) -> re.Pattern[str]:
    """The word as an expression; runs of wild parts are one, so that matching stays linear enough."""
    parts: list[str] = []
    rest = re.split(f"([{GAP}{STAR}]+|{ANY}|{OPEN}[^{CLOSE}]*{CLOSE})", word)
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
