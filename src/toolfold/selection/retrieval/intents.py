"""Split a message that contains several requests, and merge the rankings of its parts.

"Cancel my flight and tell Ana" contains two requests, "milk and eggs" contains none. Grammar cannot tell
them apart, but the catalog can: a part is a request of its own if its best tool is about as similar to it
as the best tool of the whole message is to that message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from toolfold.selection.retrieval.ranking import Positions
from toolfold.selection.retrieval.text import WordTokenizer

MAX_PARTS = 4
MIN_PART_WORDS = 3
SIMILARITY_MARGIN = 0.05
LEADING_HITS = 2
_MAX_MESSAGE_CHARS = 2_000
_SPLIT_POINTS = re.compile(
    r"(?<=[.;!?])\s+|(?<=[。！？；])|\n+"
    r"|,?\s+(?:and\s+then|and\s+also|but\s+first|after\s+that|afterwards|then|also|and|plus"
    r"|und|dann|y|luego|et|puis|и|потом)\s+"
    r"|[，,]?(?:然后|并且|そして|それから)"
    r"|,\s+(?=[a-z]+\s+(?:the|a|an|my|me|it|this|that|our|all|to)\b)",
    re.IGNORECASE,
)


def split_intents(message: str, words: WordTokenizer) -> list[str]:
    """Return the parts of a message that may be separate requests; empty if there is only one request."""
    if len(words.message_terms(message).content_terms) < 2 * MIN_PART_WORDS:
        return []
    pieces = (
        piece.strip(" ,") for piece in _SPLIT_POINTS.split(_collapse_spaces(message[:_MAX_MESSAGE_CHARS]))
    )
    long_enough = [
        piece for piece in pieces if piece and len(words.message_terms(piece).content_terms) >= MIN_PART_WORDS
    ]
    return long_enough[:MAX_PARTS] if len(long_enough) > 1 else []


def _collapse_spaces(text: str) -> str:
    """Collapse repeated spaces, which would make splitting slow; keep single line breaks."""
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(filter(None, lines))


def merge_rankings(whole: Positions, parts: Iterable[Positions]) -> list[int]:
    """Merge rankings: the best tools for the whole message, the best tool for each part, then the rest."""
    firsts = [int(part[0]) for part in parts if len(part)]
    order: list[int] = whole.tolist()
    return list(dict.fromkeys((*order[:LEADING_HITS], *firsts, *order)))
