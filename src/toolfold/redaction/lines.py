"""Split text into words and commands roughly as a shell would, with the place of every character.

Not a shell parser: text may be a script, a log line that quotes a command, or prose. Anything can be read, a
quote that is never closed is an ordinary character, and quoted text with blanks in it is read again as a
command of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from toolfold.redaction.spans import Span

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
_CLOSING = {"'": re.compile(r"[^']*'"), '"': re.compile(r'(?:[^"\\]|\\.)*"', re.DOTALL)}


@dataclass(slots=True)
class TextWord:
    """A word without its quotes, and where each of its characters stands in the text."""

    start: int
    end: int = 0
    plain: str = ""
    at: list[int] = field(default_factory=list)
    quotes: list[int] = field(default_factory=list)
    """For each character where its opening quote stands; -1 outside of quotes."""

    def span(self, offset: int = 0) -> Span:
        """The part of the text from a character of the word to its end, with quotes that belong to it."""
        if offset == 0 or offset >= len(self.at):
            return self.start, self.end
        opened = self.quotes[offset]
        if opened < 0 or opened > self.at[offset - 1]:
            return self.at[offset - 1] + 1, self.end
        if self.quotes[-1] == opened:
            return self.at[offset], self.at[-1] + 1
        return opened, self.end


@dataclass(slots=True)
class CommandLine:
    """A simple command: its words, and what it is given to read."""

    words: list[TextWord] = field(default_factory=list)
    here: list[Span] = field(default_factory=list)
    piped: bool = False
    """Whether its output goes to the next command."""


def split_commands(text: str) -> Iterator[list[CommandLine]]:
    """The pipelines of a text, and those inside of quoted parts."""
    yield from _Splitter(text, 0, len(text), 0).pipelines()


class _Splitter:
    def __init__(self, text: str, start: int, end: int, depth: int) -> None:
        self._text, self._at, self._end, self._depth = text, start, end, depth
        self._word: TextWord | None = None
        self._line = CommandLine()
        self._pipeline: list[CommandLine] = []
        self._nested: list[Span] = []
        self._expected = ""
        self._unclosed: set[str] = set()
        self._heredocs = 0

    def pipelines(self) -> Iterator[list[CommandLine]]:
        while self._at < self._end:
            token = _TOKEN.match(self._text, self._at, self._end)
            if token is None:
                break
            self._at = token.end()
            if self._take(token.lastgroup or "", token):
                yield from self._finished()
        self._end_word()
        yield from self._finished()
        for start, end in self._nested:
            yield from _Splitter(self._text, start, end, self._depth + 1).pipelines()

    def _take(self, kind: str, token: re.Match[str]) -> bool:
        """Read one token; True where a pipeline ends."""
        if kind == "quote":
            self._quoted(token.start())
        elif kind in ("plain", "escape"):
            start = token.start() + (kind == "escape")
            self._add(start, token.end(), -1, token.start())
        else:
            self._end_word()
            if kind in ("heredoc", "herestring", "redirect"):
                self._expected = kind
            elif kind == "pipe":
                self._line.piped = True
                self._next_line()
            elif kind == "end":
                self._next_line()
                return True
        return False

    def _quoted(self, opening: int) -> None:
        quote = self._text[opening]
        closing = None
        if quote not in self._unclosed:
            closing = _CLOSING[quote].match(self._text, opening + 1, self._end)
        if closing is None:
            self._unclosed.add(quote)
            self._add(opening, opening + 1, -1, opening)
            return
        inside = opening + 1, closing.end() - 1
        self._add(*inside, opening, opening)
        self._at = closing.end()
        if self._word is not None:
            self._word.end = closing.end()
        if self._depth < _MAX_DEPTH and any(self._text.find(blank, *inside) >= 0 for blank in " \n"):
            self._nested.append(inside)

    def _add(self, start: int, end: int, quote: int, begins: int) -> None:
        word = self._word
        if word is None:
            word = self._word = TextWord(begins)
        word.plain += self._text[start:end]
        word.at.extend(range(start, end))
        word.quotes.extend([quote] * (end - start))
        word.end = end

    def _end_word(self) -> None:
        word, self._word = self._word, None
        if word is None:
            return
        expected, self._expected = self._expected, ""
        if expected == "herestring":
            self._line.here.append(word.span())
        elif expected == "heredoc":
            self._add_heredoc(word.plain)
        elif not expected:
            self._line.words.append(word)

    def _add_heredoc(self, delimiter: str) -> None:
        """What stands between the end of this line and the delimiter; it is read as commands as well."""
        self._heredocs += 1
        start = self._text.find("\n", self._at - 1, self._end) + 1
        if self._heredocs > _MAX_HEREDOCS or not start or not delimiter:
            return
        end = self._text.find(f"\n{delimiter}", start - 1, self._end)
        self._line.here.append((start, end if end >= 0 else self._end))

    def _next_line(self) -> None:
        self._pipeline.append(self._line)
        self._line = CommandLine()

    def _finished(self) -> Iterator[list[CommandLine]]:
        if self._line.words or self._line.here:
            self._next_line()
        pipeline, self._pipeline = self._pipeline, []
        if pipeline:
            yield pipeline
