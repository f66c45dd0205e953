"""The wishes in one message: where it may be cut, and when a part has earned a place of its own.

"Cancel my flight and tell Ana" is two wishes, "milk and eggs" is none. Grammar cannot tell them apart, but
the catalog can: a part that by itself comes as near to a tool as the whole message does to any is a wish.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from toolfold.retrieval.ranking import Places
from toolfold.retrieval.text import Words

MOST_PARTS = 4
FEWEST_WORDS = 3
NEARLY = 0.05
LEADING = 2
_LONGEST = 2_000
_CUTS = re.compile(
    r"(?<=[.;!?])\s+|(?<=[。！？；])|\n+"
    r"|,?\s+(?:and\s+then|and\s+also|but\s+first|after\s+that|afterwards|then|also|and|plus"
    r"|und|dann|y|luego|et|puis|и|потом)\s+"
    r"|[，,]?(?:然后|并且|そして|それから)"
    r"|,\s+(?=[a-z]+\s+(?:the|a|an|my|me|it|this|that|our|all|to)\b)",
    re.IGNORECASE,
)


def parts_of(message: str, words: Words) -> list[str]:
    """What may be wishes of their own; none where the message is all one."""
    if len(words.said(message).telling) < 2 * FEWEST_WORDS:
        return []
    pieces = (piece.strip(" ,") for piece in _CUTS.split(_single_spaced(message[:_LONGEST])))
    telling = [piece for piece in pieces if piece and len(words.said(piece).telling) >= FEWEST_WORDS]
    return telling[:MOST_PARTS] if len(telling) > 1 else []


def _single_spaced(text: str) -> str:
    """A blank where there were many, which the cuts would try one by one; a line break stays one."""
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(filter(None, lines))


def shared_out(whole: Places, parts: Iterable[Places]) -> list[int]:
    """The whole message's best first, then the best of each wish, then the rest."""
    firsts = [int(part[0]) for part in parts if len(part)]
    order: list[int] = whole.tolist()
    return list(dict.fromkeys((*order[:LEADING], *firsts, *order)))
