"""Detect text files and enforce size limits.

Works on strings, bytes and open files. Opens no file itself, and knows nothing of pages, edits or searches.
"""

from __future__ import annotations

import codecs
import mimetypes
import os
from typing import BinaryIO

from toolfold.core.errors import CallError

MAX_FILE_BYTES = 10_000_000
"""Maximum size of a file that is written or patched."""

SAMPLE_BYTES = 8_192
"""Number of bytes at the start of a file that are examined to detect binary data."""

_MAGIC = (
    (b"\x89PNG", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"GIF8", "GIF image"),
    (b"%PDF-", "PDF document"),
    (b"PK\x03\x04", "ZIP archive or office document"),
    (b"\x1f\x8b", "gzip archive"),
    (b"\x7fELF", "ELF program"),
    (b"SQLite format 3", "SQLite database"),
    (codecs.BOM_UTF16_LE, "UTF-16 text; convert it to UTF-8 first"),
    (codecs.BOM_UTF16_BE, "UTF-16 text; convert it to UTF-8 first"),
)
_TEXT_CONTROLS = bytes([7, 8, 9, 10, 12, 13, 27])
_OTHER_CONTROLS = bytes(set(range(32)) - set(_TEXT_CONTROLS)) + b"\x7f"


def encode_text(text: str, argument: str) -> bytes:
    """Encode a string from a model. Raises CallError that names `argument` if it is invalid Unicode."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise CallError(
            f"`{argument}` has half of a surrogate pair at character {error.start}, which is not valid text."
            " Nothing was written. Send the whole character instead."
        ) from None


def require_size(size: int, what: str) -> None:
    """Raise CallError if data is too large to be written; `what` names the data in the message."""
    if size > MAX_FILE_BYTES:
        raise CallError(f"{what} has {size:,} bytes; the limit is {MAX_FILE_BYTES:,}. Nothing was written.")


def require_text(file: BinaryIO, name: str) -> int:
    """Return the size of a text file and rewind it. Raises CallError if it is binary."""
    size = os.fstat(file.fileno()).st_size
    kind = detect_binary(file.read(SAMPLE_BYTES), name)
    if kind:
        raise CallError(f"{name!r} is not a text file but {size:,} bytes of {kind}.")
    file.seek(0)
    return size


def detect_binary(sample: bytes, name: str) -> str | None:
    """Return the kind of a binary file, detected by its first bytes; None for text."""
    for magic, kind in _MAGIC:
        if sample.startswith(magic):
            return kind
    controls = len(sample) - len(sample.translate(None, _OTHER_CONTROLS))
    if b"\0" in sample or (controls * 20 > len(sample) and "\ufffd" in sample.decode("utf-8", "replace")):
        return mimetypes.guess_type(name)[0] or "binary data"
    return None


def replace_surrogates(text: str) -> str:
    """Replace surrogates, which represent invalid UTF-8 bytes, by a visible character."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
