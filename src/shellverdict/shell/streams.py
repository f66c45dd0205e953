"""What flows between programs, put together: one after the other, either, for ever."""

from __future__ import annotations

from shellverdict.shell.runs import Stream
from shellverdict.shell.words import EMPTY, LONGEST, Word

__all__ = ["SILENT", "UNKNOWN", "after", "either", "forever", "lines_of", "with_marks"]

SILENT = Stream(EMPTY)
UNKNOWN = Stream(None)


def after(first: Stream, second: Stream) -> Stream:
    if first.text == "" and not first.marks:
        return second
    text = None if first.text is None or second.text is None else Word(first.text + second.text)
    if text is not None and len(text) > LONGEST:
        text = None
    return Stream(text, first.marks | second.marks)


def either(first: Stream, second: Stream) -> Stream:
    if first == second or (first.text == "" and not first.marks):
        return second
    return Stream(None, first.marks | second.marks)


def forever(printed: Stream) -> Stream:
    return printed if printed.text == "" else Stream(None, printed.marks)


def with_marks(stream: Stream) -> Stream:
    if stream.text is None:
        return stream
    return Stream(stream.text, stream.marks | stream.text.marks)


def lines_of(stream: Stream | None, most: int) -> list[str] | None:
    if stream is None or stream.text is None:
        return None
    lines = stream.text.splitlines(keepends=True)
    return lines if len(lines) <= most else None
