"""The built files of the dashboard's web page, each read and compressed once."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from importlib.resources import files

INDEX = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_MIN_COMPRESSED_BYTES = 500


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One built file of the dashboard's web page."""

    content: bytes
    compressed: bytes
    """The content compressed with gzip; empty if compressing it is not worthwhile."""
    media_type: str
    etag: str


def load_static_files() -> dict[str, StaticFile]:
    """Return the built files of the dashboard's web page by name."""
    folder = files("toolfold.serving.dashboard").joinpath("static")
    found = {}
    for each in folder.iterdir():
        suffix = each.name.rpartition(".")[2]
        if suffix in _TYPES:
            content = each.read_bytes()
            compressed = gzip.compress(content, mtime=0) if len(content) > _MIN_COMPRESSED_BYTES else b""
            etag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            found[each.name] = StaticFile(content, compressed, _TYPES[suffix], etag)
    return found
