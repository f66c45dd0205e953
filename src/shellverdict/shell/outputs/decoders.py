"""Decode and decompress text that a command pipes to a decoder: base64, hexadecimal, gzip and others.

If the data cannot be decoded exactly, the result is unknown; it is marked as decoded in any case.
"""

from __future__ import annotations

import base64
import binascii
import bz2
import lzma
import re
import zlib
from collections.abc import Callable

from shellverdict.shell.outputs.text_conversion import (
    create_stream,
    decode_bytes,
    encode_text,
    unknown_stream,
)
from shellverdict.shell.runs import Taint, TextStream
from shellverdict.shell.words import MAX_TEXT_CHARS

__all__ = [
    "Decoder",
    "decode_ascii85",
    "decode_base32",
    "decode_base64",
    "decode_hex",
    "decode_quoted_printable",
    "decode_stream",
    "decompress_bzip2",
    "decompress_gzip",
    "decompress_xz",
]

Decoder = Callable[[bytes], bytes]

_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/=_-]")
_NOT_HEX = re.compile(rb"[^0-9A-Fa-f]")


def decode_stream(stream: TextStream | None, decoder: Decoder) -> TextStream:
    """Return the stream decoded by `decoder`, or a stream of unknown text if it cannot be decoded."""
    taints = (stream.taints if stream else frozenset()) | {Taint.DECODED}
    data = encode_text(stream.text) if stream is not None and stream.text is not None else None
    if data is None:
        return unknown_stream(*taints)
    try:
        return create_stream(decode_bytes(decoder(data)), taints)
    except (ValueError, EOFError, OSError, zlib.error, lzma.LZMAError, binascii.Error):
        return unknown_stream(*taints)


def decode_base64(data: bytes) -> bytes:
    """Decode base64 up to the first error, because a program prints what it has decoded before it fails."""
    clean = _NOT_BASE64.sub(b"", data).translate(bytes.maketrans(b"-_", b"+/")).split(b"=")[0]
    clean = clean[: len(clean) - (len(clean) % 4 == 1)]
    return base64.b64decode(clean + b"=" * (-len(clean) % 4))


def decode_base32(data: bytes) -> bytes:
    clean = re.sub(rb"[^A-Z2-7]", b"", data.upper())
    return base64.b32decode(clean + b"=" * (-len(clean) % 8))


def decode_hex(data: bytes) -> bytes:
    clean = _NOT_HEX.sub(b"", data)
    return bytes.fromhex(clean[: len(clean) & ~1].decode("ascii"))


def decode_ascii85(data: bytes) -> bytes:
    return base64.a85decode(data.strip(), adobe=data.lstrip().startswith(b"<~"))


def decode_quoted_printable(data: bytes) -> bytes:
    return binascii.a2b_qp(data)


def decompress_gzip(data: bytes) -> bytes:
    """Decompress gzip or zlib data.

    A wrong checksum is ignored, because programs print the text before it.
    """
    try:
        return zlib.decompressobj(wbits=47).decompress(data, MAX_TEXT_CHARS + 1)
    except zlib.error:
        return zlib.decompressobj(wbits=47).decompress(data[:-8], MAX_TEXT_CHARS + 1)


def decompress_bzip2(data: bytes) -> bytes:
    return bz2.BZ2Decompressor().decompress(data, MAX_TEXT_CHARS + 1)


def decompress_xz(data: bytes) -> bytes:
    return lzma.LZMADecompressor(memlimit=1 << 26).decompress(data, MAX_TEXT_CHARS + 1)
