"""Spans (start and end positions) of text: merge them, and find the literal parts of a value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]

# A reference does not reveal the secret, and the command in a substitution must stay readable.
_REFERENCE = re.compile(
    r"\$[A-Z_][A-Z0-9_]{0,63}|\$\{\{[^{}]{1,80}\}\}|\{env:\w{1,63}\}"
    r"|\$\{(?:[a-z]{1,12}:[A-Za-z0-9_./-]{1,63}|[A-Za-z_][A-Za-z0-9_.]{0,63})(?::?[-?+](?:none|null)?)?\}"
    r"|env:[A-Za-z_][A-Za-z0-9_]{0,63}|file:[./~]\S{0,255}|fd:\d{1,3}"
)
_PLACEHOLDER = re.compile(
    r"[.…*=-]{1,64}|[A-Z_]{0,32}(?:VARIABLE|NAME|VALUE|TOKEN|KEY|SECRET|PASSWORD)|value|\{[a-z_.]{1,40}\}…?|.",
    re.DOTALL,
)
_SUBSTITUTION = re.compile(r"\$\(|`")


def split_words(text: str) -> frozenset[str]:
    """Return the set of whitespace-separated words in a text."""
    return frozenset(text.split())


def merge_spans(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the spans sorted by position, with overlapping spans merged."""
    current: Span | None = None
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if current is None:
            current = start, end
        elif start < current[1]:
            current = current[0], max(current[1], end)
        else:
            yield current
            current = start, end
    if current is not None:
        yield current


def literal_parts(text: str, start: int, end: int) -> Iterator[Span]:
    """Yield the spans of a value that are literal text: no placeholder, reference or substitution."""
    value = text[start:end]
    unquoted = value.strip("\"'\\")
    if _REFERENCE.fullmatch(unquoted) or _PLACEHOLDER.fullmatch(unquoted):
        return
    substitution = _SUBSTITUTION.search(value)
    if substitution is None:
        yield start, end
        return
    closing = max(value.rfind(")"), value.rfind("`", substitution.end()))
    if closing < substitution.end():  # the substitution ends in a later word
        closing = len(value)
    for part_start, part_end in ((0, substitution.start()), (closing + 1, len(value))):
        part = value[part_start:part_end].strip("\"'\\")
        if part and not _PLACEHOLDER.fullmatch(part):
            yield start + part_start, start + part_end
