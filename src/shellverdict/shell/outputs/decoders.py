"""Programs that unpack: base64, hexadecimal, gzip and their kin, on bytes that are known.

What cannot be unpacked exactly stays unknown; that it was packed is said in any case.
"""

from __future__ import annotations

import base64
import binascii
import bz2
import lzma
import re
import zlib
from collections.abc import Callable

from shellverdict.shell.outputs.bounds import as_bytes, as_stream, as_text, unknown
from shellverdict.shell.runs import Mark, Stream
from shellverdict.shell.words import LONGEST

__all__ = [
    "Decoder",
    "ascii85",
    "bzip2",
    "decoded",
    "from_base32",
    "from_base64",
    "from_hex",
    "gzip",
    "quoted",
    "xz",
]

Decoder = Callable[[bytes], bytes]

_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/=_-]")
_NOT_HEX = re.compile(rb"[^0-9A-Fa-f]")


def decoded(stream: Stream | None, decoder: Decoder) -> Stream:
    """What `decoder` makes of a stream."""
    marks = (stream.marks if stream else frozenset()) | {Mark.DECODED}
    data = as_bytes(stream.text) if stream is not None and stream.text is not None else None
    if data is None:
        return unknown(*marks)
    try:
        return as_stream(as_text(decoder(data)), marks)
    except (ValueError, EOFError, OSError, zlib.error, lzma.LZMAError, binascii.Error):
        return unknown(*marks)


def from_base64(data: bytes) -> bytes:
    """As far as it goes: a program prints what it could decode before it complains."""
    clean = _NOT_BASE64.sub(b"", data).translate(bytes.maketrans(b"-_", b"+/")).split(b"=")[0]
    clean = clean[: len(clean) - (len(clean) % 4 == 1)]
    return base64.b64decode(clean + b"=" * (-len(clean) % 4))


def from_base32(data: bytes) -> bytes:
    clean = re.sub(rb"[^A-Z2-7]", b"", data.upper())
    return base64.b32decode(clean + b"=" * (-len(clean) % 8))


def from_hex(data: bytes) -> bytes:
    clean = _NOT_HEX.sub(b"", data)
    return bytes.fromhex(clean[: len(clean) & ~1].decode("ascii"))


def ascii85(data: bytes) -> bytes:
    return base64.a85decode(data.strip(), adobe=data.lstrip().startswith(b"<~"))


def quoted(data: bytes) -> bytes:
    return binascii.a2b_qp(data)


def gzip(data: bytes) -> bytes:
    """gzip or zlib; a false checksum stops no one, because the text is out before it is looked at."""
    try:
        return zlib.decompressobj(wbits=47).decompress(data, LONGEST + 1)
    except zlib.error:
        return zlib.decompressobj(wbits=47).decompress(data[:-8], LONGEST + 1)


def bzip2(data: bytes) -> bytes:
    return bz2.BZ2Decompressor().decompress(data, LONGEST + 1)


def xz(data: bytes) -> bytes:
    return lzma.LZMADecompressor(memlimit=1 << 26).decompress(data, LONGEST + 1)
