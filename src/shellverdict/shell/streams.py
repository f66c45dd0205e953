"""Combine output streams of programs: concatenated, as alternatives, or repeated."""

from __future__ import annotations

from shellverdict.shell.runs import TextStream
from shellverdict.shell.words import EMPTY, MAX_TEXT_CHARS, Word

__all__ = [
    "EMPTY_STREAM",
    "UNKNOWN_STREAM",
    "concatenate_streams",
    "merge_alternatives",
    "repeat_unknown_times",
    "split_known_lines",
    "with_text_taints",
]

EMPTY_STREAM = TextStream(EMPTY)
UNKNOWN_STREAM = TextStream(None)


def concatenate_streams(first: TextStream, second: TextStream) -> TextStream:
    """Concatenate two streams; the resulting text is unknown if either text is unknown or it is too long."""
    if first.text == "" and not first.taints:
        return second
    text = None if first.text is None or second.text is None else Word(first.text + second.text)
    if text is not None and len(text) > MAX_TEXT_CHARS:
        text = None
    return TextStream(text, first.taints | second.taints)


def merge_alternatives(first: TextStream, second: TextStream) -> TextStream:
    """Merge the outputs of two alternative branches; if they differ, the text of the result is unknown."""
    if first == second or (first.text == "" and not first.taints):
        return second
    return TextStream(None, first.taints | second.taints)


def repeat_unknown_times(printed: TextStream) -> TextStream:
    """Return the output of a loop that prints the stream an unknown number of times."""
    return printed if printed.text == "" else TextStream(None, printed.taints)


def with_text_taints(stream: TextStream) -> TextStream:
    """Add the origins (network, file …) of the unknown parts of a stream's text to the stream."""
    if stream.text is None:
        return stream
    return TextStream(stream.text, stream.taints | stream.text.taints)


def split_known_lines(stream: TextStream | None, max_lines: int) -> list[str] | None:
    """Return the lines of a stream; None if the text is unknown or has more than `max_lines`."""
    if stream is None or stream.text is None:
        return None
    lines = stream.text.splitlines(keepends=True)
    return lines if len(lines) <= max_lines else None
