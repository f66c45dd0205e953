"""Splits streamed Markdown into blocks that are finished and the last block, which may still change.

Finished blocks can be printed permanently; the last block (a paragraph, a list, a code block) may grow and is
drawn again whenever text arrives. Knows nothing of the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from toolfold.cli.activity import clean_text

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


class MarkdownStream:
    """Collects the streamed pieces of one answer and splits them into Markdown blocks."""

    def __init__(self) -> None:
        self._pending = ""
        self._parser: MarkdownIt | None = None

    @property
    def pending(self) -> str:
        """Return the Markdown block that may still grow, without characters that control a terminal."""
        return clean_text(self._pending)

    def add(self, text: str) -> list[str]:
        """Add a piece of the answer and return the Markdown blocks that are finished now."""
        self._pending += text
        if "\n" not in text:
            return []
        cleaned = self.pending
        cut = self._find_last_block(cleaned)
        if cut == 0:
            return []
        lines = cleaned.split("\n")
        self._pending = "\n".join(lines[cut:])
        return ["\n".join(lines[:cut]).strip("\n")]

    def finish(self) -> list[str]:
        """Return the Markdown blocks that `add` has not returned yet, at the end of the answer."""
        left, self._pending = self.pending.strip("\n"), ""
        return [left] if left.strip() else []

    def _find_last_block(self, text: str) -> int:
        """Return the line at which the last top-level Markdown block begins."""
        from markdown_it import MarkdownIt

        if self._parser is None:
            self._parser = MarkdownIt().enable("table")
        starts = [token.map[0] for token in self._parser.parse(text) if token.level == 0 and token.map]
        return starts[-1] if starts else 0


def clean_tokens(tokens: Iterable[Token]) -> None:
    """Remove terminal control characters from parsed Markdown; entities like `&#27;` can produce them."""
    for token in tokens:
        token.content = clean_text(token.content)
        token.info = clean_text(token.info)
        for name, value in token.attrs.items():
            token.attrs[name] = clean_text(value) if isinstance(value, str) else value
        clean_tokens(token.children or ())
