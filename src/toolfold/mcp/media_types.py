"""Detect media types by content: type and size of an image, type of audio.

Providers reject a whole conversation because of one image that is not what its type says, or too large, so
declared types are not trusted. Reads headers, decodes nothing, never raises.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ImageInfo", "detect_audio_type", "detect_image"]

_PNG = b"\x89PNG\r\n\x1a\n"
_STANDALONE_MARKERS = frozenset({0x01, *range(0xD0, 0xDA)})  # JPEG markers without a length
_NON_FRAME_MARKERS = frozenset({0xC4, 0xC8, 0xCC})


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """Type and size of an image, read from its header."""

    mime_type: str
    width: int
    height: int


def detect_image(data: bytes) -> ImageInfo | None:
    """Return type and size of an image; None if models do not accept images of its type."""
    if data.startswith(_PNG):
        info = ImageInfo("image/png", _read_big_endian(data, 16, 4), _read_big_endian(data, 20, 4))
    elif data.startswith((b"GIF87a", b"GIF89a")):
        info = ImageInfo("image/gif", _read_little_endian(data, 6, 2), _read_little_endian(data, 8, 2))
    elif data.startswith(b"\xff\xd8\xff"):
        info = ImageInfo("image/jpeg", *_jpeg_size(data))
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        info = ImageInfo("image/webp", *_webp_size(data))
    else:
        return None
    return info if info.width and info.height else None


def detect_audio_type(data: bytes) -> str:
    """Return the MIME type of audio data, or an empty string if it is unknown."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "audio/wav"
    if data.startswith((b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")):
        return "audio/mpeg"
    return "audio/ogg" if data.startswith(b"OggS") else "audio/flac" if data.startswith(b"fLaC") else ""


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """Return width and height of a JPEG image."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _STANDALONE_MARKERS:
            at += 2
        elif 0xC0 <= marker <= 0xCF and marker not in _NON_FRAME_MARKERS:
            return _read_big_endian(data, at + 7, 2), _read_big_endian(data, at + 5, 2)
        else:
            at += 2 + max(_read_big_endian(data, at + 2, 2), 2)
    return 0, 0


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        return _read_little_endian(data, 24, 3) + 1, _read_little_endian(data, 27, 3) + 1
    if kind == b"VP8L" and len(data) >= 25:
        bits = _read_little_endian(data, 21, 4)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return _read_little_endian(data, 26, 2) & 0x3FFF, _read_little_endian(data, 28, 2) & 0x3FFF
    return 0, 0


def _read_big_endian(data: bytes, start: int, count: int) -> int:
    return int.from_bytes(data[start : start + count], "big")


def _read_little_endian(data: bytes, start: int, count: int) -> int:
    return int.from_bytes(data[start : start + count], "little")
