"""Decode documents in the character sets that browsers support.

A server names the character set of its document, and some codecs of Python are dangerous on hostile data:
punycode takes quadratic time, and idna raises errors even if told to replace invalid bytes. Therefore only
character sets that browsers support are accepted; with any other name, a document is decoded as UTF-8.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

__all__ = ["decode_text", "find_codec"]

CHUNK_BYTES = 65_536
_DEFAULT_CODEC = "utf-8-sig"
_ISO_8859_PARTS = (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)
# Like browsers, use the larger set of the vendor for labels whose documents contain its characters.
_LABELS = {
    "utf-8-sig": "utf-8 utf8 unicode-1-1-utf-8",
    "utf-16-le": "utf-16 utf-16le",
    "utf-16-be": "utf-16be",
    "cp1252": "windows-1252 cp1252 x-cp1252 iso-8859-1 iso8859-1 latin1 latin-1 l1 ascii us-ascii",
    "cp1254": "windows-1254 cp1254 x-cp1254 iso-8859-9 iso8859-9 latin5 l5",
    "cp874": "windows-874 cp874 dos-874 iso-8859-11 iso8859-11 tis-620",
    "cp866": "ibm866 cp866 866",
    "koi8-r": "koi8-r koi8 koi",
    "koi8-u": "koi8-u koi8-ru",
    "mac-roman": "macintosh mac x-mac-roman",
    "mac-cyrillic": "x-mac-cyrillic x-mac-ukrainian",
    "gb18030": "gb18030 gbk gb2312 gb-2312-80 x-gbk chinese",
    "big5hkscs": "big5 big5-hkscs cn-big5 x-x-big5",
    "euc-jp": "euc-jp x-euc-jp",
    "iso2022-jp": "iso-2022-jp csiso2022jp",
    "cp932": "shift-jis shift_jis sjis x-sjis ms932 windows-31j ms-kanji",
    "cp949": "euc-kr windows-949 ks-c-5601-1987 ksc5601 korean",
    **{f"iso8859-{part}": f"iso-8859-{part} iso8859-{part}" for part in _ISO_8859_PARTS},
    "iso8859-8": "iso-8859-8 iso8859-8 iso-8859-8-i logical visual",
    **{
        f"cp{page}": f"windows-{page} cp{page} x-cp{page}"
        for page in (1250, 1251, 1253, 1255, 1256, 1257, 1258)
    },
}
_CODECS = {label.replace("_", "-"): codec for codec, labels in _LABELS.items() for label in labels.split()}


def find_codec(data: bytes, charset: str) -> str:
    """Return the Python codec for a document's byte order mark or declared charset; empty if unknown."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return _CODECS.get(charset.strip().lower().replace("_", "-"), "")


def decode_text(data: bytes, charset: str, max_chars: int) -> tuple[str, bool]:
    """Return the first `max_chars` characters of a document, and True if it is longer.

    Decodes in small steps, so that other threads can run meanwhile. Invalid bytes are replaced.
    """
    parts, size = list[str](), 0
    for part in _decode_chunks(data, find_codec(data, charset) or _DEFAULT_CODEC):
        parts.append(part)
        size += len(part)
        if size > max_chars:
            break
    return "".join(parts)[:max_chars], size > max_chars


def _decode_chunks(data: bytes, codec: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(codec)("replace")
    for start in range(0, len(data), CHUNK_BYTES):
        yield decoder.decode(data[start : start + CHUNK_BYTES])
    yield decoder.decode(b"", final=True)
