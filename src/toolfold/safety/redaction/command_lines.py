"""Split text into words and commands roughly as a shell does, with the position of every character.

This is not a shell parser: the text may be a script, a log line that quotes a command, or prose. Any text
is accepted, an unclosed quote is an ordinary character, and quoted text with spaces is split again as a
command of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from toolfold.safety.redaction.spans import Span

_MAX_DEPTH = 3
_MAX_HEREDOCS = 64
_TOKEN = re.compile(
    r"""
      (?P<blank>[ \t\r]+|\\\n)
    | (?P<heredoc>[0-9]?<<-?(?!<))
    | (?P<herestring>[0-9]?<<<)
    | (?P<redirect>[0-9]?(?:>>|>&|<&|>\||[<>]))
    | (?P<pipe>\|&?(?!\|))
    | (?P<end>\$\(|[;\n()`]|&&?|\|\|)
    | (?P<escape>\\.)
    | (?P<quote>['"])
    | (?P<plain>[^\s\\'"`;|&()<>$]+|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSING_QUOTE = {"'": re.compile(r"[^']*'"), '"': re.compile(r'(?:[^"\\]|\\.)*"', re.DOTALL)}


@dataclass(slots=True)
class TextWord:
    """A shell word without its quotes, and the position of each of its characters in the text."""

    start: int
    end: int = 0
    text: str = ""
    positions: list[int] = field(default_factory=list)
    quote_positions: list[int] = field(default_factory=list)
    """For each character the position of its opening quote; -1 outside of quotes."""

    def span(self, offset: int = 0) -> Span:
        """Return the span in the text from the word's character `offset` to the end of the word."""
        if offset == 0 or offset >= len(self.positions):
            return self.start, self.end
        opened = self.quote_positions[offset]
        if opened < 0 or opened > self.positions[offset - 1]:
            return self.positions[offset - 1] + 1, self.end
        if self.quote_positions[-1] == opened:
            return self.positions[offset], self.positions[-1] + 1
        return opened, self.end


@dataclass(slots=True)
class CommandLine:
    """A simple shell command: its words, and the text that it reads as input."""

    words: list[TextWord] = field(default_factory=list)
    input_spans: list[Span] = field(default_factory=list)
    is_piped: bool = False
    """True if the command's output is piped to the next command."""


def split_commands(text: str) -> Iterator[list[CommandLine]]:
    """Yield the shell pipelines in a text, including pipelines inside quoted parts."""
    yield from _CommandSplitter(text, 0, len(text), 0).split_pipelines()


class _CommandSplitter:
    def __init__(self, text: str, start: int, end: int, depth: int) -> None:
        self._text, self._at, self._end, self._depth = text, start, end, depth
        self._word: TextWord | None = None
        self._line = CommandLine()
        self._pipeline: list[CommandLine] = []
        self._nested: list[Span] = []
        self._pending_redirect = ""
        self._unclosed: set[str] = set()
        self._heredocs = 0

    def split_pipelines(self) -> Iterator[list[CommandLine]]:
        while self._at < self._end:
            token = _TOKEN.match(self._text, self._at, self._end)
            if token is None:
                break
            self._at = token.end()
            if self._process_token(token.lastgroup or "", token):
                yield from self._finish_pipeline()
        self._end_word()
        yield from self._finish_pipeline()
        for start, end in self._nested:
            yield from _CommandSplitter(self._text, start, end, self._depth + 1).split_pipelines()

    def _process_token(self, kind: str, token: re.Match[str]) -> bool:
        """Process one shell token; return True at the end of a pipeline."""
        if kind == "quote":
            self._process_quote(token.start())
        elif kind in ("plain", "escape"):
            start = token.start() + (kind == "escape")
            self._append_text(start, token.end(), -1, token.start())
        else:
            self._end_word()
            if kind in ("heredoc", "herestring", "redirect"):
                self._pending_redirect = kind
            elif kind == "pipe":
                self._line.is_piped = True
                self._next_line()
            elif kind == "end":
                self._next_line()
                return True
        return False

    def _process_quote(self, opening: int) -> None:
        quote = self._text[opening]
        closing = None
        if quote not in self._unclosed:
            closing = _CLOSING_QUOTE[quote].match(self._text, opening + 1, self._end)
        if closing is None:
            self._unclosed.add(quote)
            self._append_text(opening, opening + 1, -1, opening)
            return
        inside = opening + 1, closing.end() - 1
        self._append_text(*inside, opening, opening)
        self._at = closing.end()
        if self._word is not None:
            self._word.end = closing.end()
        if self._depth < _MAX_DEPTH and any(self._text.find(blank, *inside) >= 0 for blank in " \n"):
            self._nested.append(inside)

    def _append_text(self, start: int, end: int, quote: int, begins: int) -> None:
        word = self._word
        if word is None:
            word = self._word = TextWord(begins)
        word.text += self._text[start:end]
        word.positions.extend(range(start, end))
        word.quote_positions.extend([quote] * (end - start))
        word.end = end

    def _end_word(self) -> None:
        word, self._word = self._word, None
        if word is None:
            return
        expected, self._pending_redirect = self._pending_redirect, ""
        if expected == "herestring":
            self._line.input_spans.append(word.span())
        elif expected == "heredoc":
            self._add_heredoc(word.text)
        elif not expected:
            self._line.words.append(word)

    def _add_heredoc(self, delimiter: str) -> None:
        """Record the text of a here-document, up to its delimiter, as input of the current command."""
        self._heredocs += 1
        start = self._text.find("\n", self._at - 1, self._end) + 1
        if self._heredocs > _MAX_HEREDOCS or not start or not delimiter:
            return
        end = self._text.find(f"\n{delimiter}", start - 1, self._end)
        self._line.input_spans.append((start, end if end >= 0 else self._end))

    def _next_line(self) -> None:
        self._pipeline.append(self._line)
        self._line = CommandLine()

    def _finish_pipeline(self) -> Iterator[list[CommandLine]]:
        if self._line.words or self._line.input_spans:
            self._next_line()
        pipeline, self._pipeline = self._pipeline, []
        if pipeline:
            yield pipeline
