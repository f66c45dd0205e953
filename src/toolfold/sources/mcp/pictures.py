"""What bytes are, told by their beginning: the type and the size of an image, the type of a sound.

Providers refuse a whole conversation over one image that is not what it is called, or larger than they
take, so nobody's word is believed here. Reads headers, decodes nothing, never raises.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Picture", "picture", "sound"]

_PNG = b"\x89PNG\r\n\x1a\n"
_NO_SIZE = frozenset({0x01, *range(0xD0, 0xDA)})  # markers in a JPEG that stand alone
_NO_FRAME = frozenset({0xC4, 0xC8, 0xCC})


@dataclass(frozen=True, slots=True)
class Picture:
    """An image as its header describes it."""

    mime_type: str
    width: int
    height: int


def picture(data: bytes) -> Picture | None:
    """What image this is, or nothing where models could not look at it."""
    if data.startswith(_PNG):
        found = Picture("image/png", _big(data, 16, 4), _big(data, 20, 4))
    elif data.startswith((b"GIF87a", b"GIF89a")):
        found = Picture("image/gif", _little(data, 6, 2), _little(data, 8, 2))
    elif data.startswith(b"\xff\xd8\xff"):
        found = Picture("image/jpeg", *_jpeg_size(data))
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        found = Picture("image/webp", *_webp_size(data))
    else:
        return None
    return found if found.width and found.height else None


def sound(data: bytes) -> str:
    """The type of a sound, or nothing where its beginning does not tell."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "audio/wav"
    if data.startswith((b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")):
        return "audio/mpeg"
    return "audio/ogg" if data.startswith(b"OggS") else "audio/flac" if data.startswith(b"fLaC") else ""


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """From the first frame; the segments before it are passed over."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _NO_SIZE:
            at += 2
        elif 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            return _big(data, at + 7, 2), _big(data, at + 5, 2)
        else:
            at += 2 + max(_big(data, at + 2, 2), 2)
    return 0, 0


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        return _little(data, 24, 3) + 1, _little(data, 27, 3) + 1
    if kind == b"VP8L" and len(data) >= 25:
        bits = _little(data, 21, 4)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF
    return 0, 0


def _big(data: bytes, start: int, count: int) -> int:
    return int.from_bytes(data[start : start + count], "big")


def _little(data: bytes, start: int, count: int) -> int:
    return int.from_bytes(data[start : start + count], "little")
