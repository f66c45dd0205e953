"""Program that reads one HTML or PDF document from standard input and prints its text as JSON.

Started by `extraction` for each document, so that a hostile document can neither block nor crash the
runtime. Limits its own processor time and memory where the system supports that.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any

from toolfold.tools.internet.charsets import find_codec

MAX_CPU_S = 45
MAX_MEMORY_BYTES = 2 * 1024**3
MAX_PDF_PAGES = 500


def main() -> None:
    """Read a JSON request line and a document from standard input; print the document's text as JSON."""
    _limit_resources()
    request = json.loads(sys.stdin.buffer.readline())
    data = sys.stdin.buffer.read()
    read = _read_pdf if request["kind"] == "pdf" else _read_html
    try:
        with contextlib.redirect_stdout(sys.stderr):
            answer = read(data, request)
    except Exception as error:  # parsers raise many kinds of exceptions on damaged documents
        answer = {"error": f"The document could not be parsed: {type(error).__name__}."}
    json.dump(_shorten_text(answer, request["max_chars"]), sys.stdout)


def _limit_resources() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):  # not on Windows; or a lower limit exists
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


def _read_html(data: bytes, request: dict[str, Any]) -> dict[str, Any]:
    import trafilatura

    page = _decode_html(data, request["charset"])
    metadata = trafilatura.extract_metadata(page, default_url=request["url"])
    title = (metadata.title if metadata else "") or ""
    text = None
    if request["detail"] == "main":
        text = trafilatura.extract(
            page,
            url=request["url"],
            output_format="markdown",
            include_links=True,
            include_tables=True,
            include_formatting=True,
            include_comments=False,
            favor_recall=True,
        )
    text = text or trafilatura.html2txt(page)
    if not (text or title):
        return {"error": "The page has no text. It may be built by scripts: try browser_navigate."}
    return {"title": title, "text": text or "", "pages": 0}


def _decode_html(data: bytes, charset: str) -> Any:
    """Return HTML as text if its character set is known, else as bytes for detection by the parser."""
    with contextlib.suppress(UnicodeError):
        if codec := find_codec(data, charset):
            return data.decode(codec)
    return data


def _read_pdf(data: bytes, _request: dict[str, Any]) -> dict[str, Any]:
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        return {"error": "The PDF document is encrypted and needs a password."}
    pages = [page.extract_text() for page in reader.pages[:MAX_PDF_PAGES]]
    text = "\n\n".join(f"[page {number}]\n{page}" for number, page in enumerate(pages, 1) if page.strip())
    if not text:
        return {"error": "The PDF document has no text; its pages may be images."}
    title = reader.metadata.title if reader.metadata else ""
    is_truncated = len(reader.pages) > MAX_PDF_PAGES
    return {
        "title": str(title or ""),
        "text": text,
        "pages": len(reader.pages),
        "is_truncated": is_truncated,
    }


def _shorten_text(answer: dict[str, Any], max_chars: int) -> dict[str, Any]:
    if "text" not in answer:
        return answer
    text = answer["text"]
    is_truncated = answer.get("is_truncated", False) or len(text) > max_chars
    return {**answer, "text": text[:max_chars], "is_truncated": is_truncated}


if __name__ == "__main__":
    main()
