"""How much text is kept, and how bytes and text become each other without loss."""

from __future__ import annotations

from collections.abc import Iterable

from shellverdict.shell.runs import Mark, Stream
from shellverdict.shell.words import GAP, LONGEST, Word

__all__ = ["as_bytes", "as_stream", "as_text", "unknown", "whole"]


def as_text(data: bytes) -> str:
    """Bytes as text; what is no UTF-8 survives the way back."""
    return data.decode("utf-8", "surrogateescape")


def as_bytes(text: str) -> bytes | None:
    """The bytes of a text in which nothing is unknown, and which has any."""
    try:
        return None if GAP in text else text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None


def whole(text: str) -> str:
    """Bytes that were put together one by one, as the characters they make."""
    data = as_bytes(text)
    return text if data is None else as_text(data)


def as_stream(text: str, marks: Iterable[Mark] = ()) -> Stream:
    """A stream of this text; of what is too long only a beginning with a gap behind it."""
    return Stream(Word(text if len(text) <= LONGEST else text[:LONGEST] + GAP), frozenset(marks))


def unknown(*marks: Mark, also: Stream | None = None) -> Stream:
    if also is None:
        return Stream(None, frozenset(marks))
    return Stream(None, frozenset(marks) | also.marks, folders=also.folders)
