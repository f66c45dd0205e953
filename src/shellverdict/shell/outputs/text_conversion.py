"""Convert between bytes and text without loss, and create text streams with a length limit."""

from __future__ import annotations

from collections.abc import Iterable

from shellverdict.shell.runs import Taint, TextStream
from shellverdict.shell.words import GAP, MAX_TEXT_CHARS, Word

__all__ = ["create_stream", "decode_bytes", "encode_text", "rejoin_bytes", "unknown_stream"]


def decode_bytes(data: bytes) -> str:
    """Decode bytes to text without loss: invalid UTF-8 is kept in a form that can be encoded again."""
    return data.decode("utf-8", "surrogateescape")


def encode_text(text: str) -> bytes | None:
    """Return the bytes of a text; None if it has unknown parts or cannot be encoded."""
    try:
        return None if GAP in text else text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None


def rejoin_bytes(text: str) -> str:
    """Combine surrogates, each of which stands for one byte, into the UTF-8 characters that they encode."""
    data = encode_text(text)
    return text if data is None else decode_bytes(data)


def create_stream(text: str, taints: Iterable[Taint] = ()) -> TextStream:
    """Return a stream with the text; beyond the length limit, it continues as unknown text."""
    return TextStream(
        Word(text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + GAP), frozenset(taints)
    )


def unknown_stream(*taints: Taint, source: TextStream | None = None) -> TextStream:
    """Return a stream of unknown text from the given origins (network, file …) and those of `source`."""
    if source is None:
        return TextStream(None, frozenset(taints))
    return TextStream(None, frozenset(taints) | source.taints, listed_directories=source.listed_directories)
