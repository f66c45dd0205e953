"""How much text is kept, and how bytes and text become each other without loss."""

from __future__ import annotations

from collections.abc import Iterable

from shellverdict.shell.runs import Taint, TextStream
from shellverdict.shell.words import GAP, MAX_TEXT_CHARS, Word

__all__ = ["create_stream", "decode_bytes", "encode_text", "rejoin_bytes", "unknown_stream"]


def decode_bytes(data: bytes) -> str:
    """Bytes as text; what is no UTF-8 survives the way back."""
    return data.decode("utf-8", "surrogateescape")


def encode_text(text: str) -> bytes | None:
    """The bytes of a text in which nothing is unknown, and which has any."""
    try:
        return None if GAP in text else text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None


def rejoin_bytes(text: str) -> str:
    """Bytes that were put together one by one, as the characters they make."""
    data = encode_text(text)
    return text if data is None else decode_bytes(data)


def create_stream(text: str, taints: Iterable[Taint] = ()) -> TextStream:
    """A stream of this text; of what is too long only a beginning with a gap behind it."""
    return TextStream(
        Word(text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + GAP), frozenset(taints)
    )


def unknown_stream(*taints: Taint, source: TextStream | None = None) -> TextStream:
    if source is None:
        return TextStream(None, frozenset(taints))
    return TextStream(None, frozenset(taints) | source.taints, listed_directories=source.listed_directories)
