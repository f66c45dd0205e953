"""Extract text from documents: HTML as Markdown, PDF as plain text, text formats unchanged.

HTML and PDF are parsed in a separate process with limits on time and memory, because a hostile document can
keep a parser busy for hours, and Python cannot stop a thread.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from toolfold.core.errors import CallError, shorten
from toolfold.core.types import Json
from toolfold.tools.internet.charsets import decode_text

if TYPE_CHECKING:
    from toolfold.tools.internet.fetching import FetchedDocument

__all__ = ["ExtractedText", "ExtractionFailed", "extract_text", "require_packages"]

Detail = Literal["main", "all"]
Kind = Literal["html", "pdf", "text"]

MAX_TEXT_CHARS = 1_000_000
MAX_OUTPUT_BYTES = 16_000_000
MAX_SECONDS = 60.0
PACKAGES = ("trafilatura", "pypdf")
_WORKER = "toolfold.tools.internet.extraction_worker"
_TEXT_TYPES = frozenset(
    {"application/json", "application/xml", "application/yaml", "application/javascript", "application/toml"}
    | {"application/x-yaml", "application/x-ndjson", "application/ecmascript", "application/sql"}
)
_HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
_UNKNOWN_TYPES = frozenset({"", "application/octet-stream", "binary/octet-stream"})
_HTML_STARTS = (b"<!doctype html", b"<html", b"<head", b"<body")
# Variables that Python and its packages need; all others may be secrets.
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SYSTEMROOT")


class ExtractionFailed(CallError):
    """Raised when no text could be extracted from a document."""


@dataclass(frozen=True, slots=True)
class ExtractedText:
    """Text extracted from a document."""

    text: str
    title: str = ""
    pages: int = 0
    """Number of pages of a PDF document."""
    is_truncated: bool = False


def require_packages() -> bool:
    """Raise ExtractionFailed if a package for parsing documents is missing; otherwise return True."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise ExtractionFailed(
            f"The package {' and '.join(missing)} is missing. Install it: pip install 'toolfold[web]'."
        )
    return True


async def extract_text(document: FetchedDocument, detail: Detail = "main") -> ExtractedText:
    """Return the text of a document; for HTML only the main content, unless `detail` is "all"."""
    kind = _detect_kind(document)
    if kind == "text":
        # Not in the event loop: decoding a large document takes a while.
        text, is_cut = await asyncio.to_thread(decode_text, document.data, document.charset, MAX_TEXT_CHARS)
        return ExtractedText(text, is_truncated=is_cut)
    request = {"kind": kind, "url": document.url, "charset": document.charset, "detail": detail}
    answer = await _run_worker({**request, "max_chars": MAX_TEXT_CHARS}, document.data)
    if problem := answer.get("error"):
        raise ExtractionFailed(str(problem))
    return ExtractedText(answer["text"], answer["title"], answer["pages"], answer["is_truncated"])


def _detect_kind(document: FetchedDocument) -> Kind:
    """Return the kind of a document: HTML, PDF or plain text. Raises ExtractionFailed for other kinds."""
    media_type, start = document.media_type, document.data[:1_024].lstrip().lower()
    if start.startswith(b"%pdf-"):
        return "pdf"
    if media_type in _HTML_TYPES or (media_type in _UNKNOWN_TYPES and start.startswith(_HTML_STARTS)):
        return "html"
    if media_type.startswith("text/") or media_type in _TEXT_TYPES or media_type.endswith(("+json", "+xml")):
        return "text"
    if media_type in _UNKNOWN_TYPES and _is_utf8(document.data):
        return "text"
    described = shorten(media_type, 80) or "an unknown type"
    raise ExtractionFailed(
        f"The document ({described}, {len(document.data):,} bytes) is of a type without readable text."
    )


def _is_utf8(data: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data[:100_000])
    except UnicodeDecodeError:
        return False
    return b"\0" not in data[:100_000]


async def _run_worker(request: Json, data: bytes) -> Json:
    """Parse a document in a worker process and return the worker's answer. Cancellation kills the worker."""
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-m", _WORKER),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
        limit=MAX_OUTPUT_BYTES,
    )
    try:
        async with asyncio.timeout(MAX_SECONDS):
            output, _ = await process.communicate(json.dumps(request).encode() + b"\n" + data)
        answer: Json = json.loads(output)
    except TimeoutError:
        raise ExtractionFailed(f"The document could not be read within {MAX_SECONDS:g} s.") from None
    except ValueError:  # it was killed because of its limits, or crashed
        raise ExtractionFailed("The document could not be read: its parser failed or ran too long.") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return answer
