"""A tokenizer for script languages that also accepts invalid code.

Languages differ in comments, quotes and string interpolation; `Syntax` describes one. Invalid code also gives
tokens. The tokenizer does not know what a token means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from shellverdict.embedded_code.analysis import HOME
from shellverdict.shell.words import GAP

__all__ = ["MAX_TOKENS", "SYNTAX", "Syntax", "Token", "tokenize"]

_MAX_NESTING = 3
MAX_TOKENS = 6_000  # the rest of the code is ignored

TokenKind = Literal["name", "string", "command", "words", "number", "mark", "line"]


class Token(NamedTuple):
    kind: TokenKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Syntax:
    """Lexical syntax of one script language: comments, quotes, interpolation."""

    line_comments: tuple[str, ...] = ("#",)
    block_comments: tuple[tuple[str, str], ...] = ()
    raw_quotes: str = "'"  # quotes without escapes
    plain_quotes: str = ""  # quotes with escapes
    interpolating_quotes: str = '"'  # quotes with escapes and interpolation
    interpolation: str = ""  # regular expression for an interpolated value
    has_nested_interpolation: bool = False  # interpolated values are code
    backtick: Literal["", "command", "filled"] = ""
    has_letter_quotes: bool = False  # Perl's and Ruby's q{…}, qx{…}, %w[…]
    has_percent_quotes_only: bool = False  # of these, only the ones after a percent sign
    has_regex_literals: bool = False  # /…/ is a regular expression where a value is expected
    has_bare_arguments: bool = False  # parentheses around arguments are optional
    is_lisp: bool = False  # the function follows the opening parenthesis
    long_quotes: tuple[tuple[str, str], ...] = ()  # more raw quotes: Lua's [[…]], Python's triple quotes


_DOLLAR_INTERPOLATION = r"\$\{[^{}]*\}?|\$\w+(?:->)?(?:\[[^\[\]]*\]?|\{[^{}]*\}?)?|@\{[^{}]*\}?"
_C_BLOCKS = (("/*", "*/"),)

SYNTAX: Mapping[str, Syntax] = MappingProxyType(
    {
        "perl": Syntax(
            interpolation=_DOLLAR_INTERPOLATION + r"|@\w+",
            backtick="command",
            has_letter_quotes=True,
            has_regex_literals=True,
            has_bare_arguments=True,
        ),
        "ruby": Syntax(
            interpolation=r"\#\{[^{}]*\}?",
            has_nested_interpolation=True,
            backtick="command",
            has_letter_quotes=True,
            has_percent_quotes_only=True,
            has_regex_literals=True,
            has_bare_arguments=True,
        ),
        "php": Syntax(
            line_comments=("#", "//"),
            block_comments=_C_BLOCKS,
            interpolation=_DOLLAR_INTERPOLATION,
            backtick="command",
            has_bare_arguments=True,
        ),
        "node": Syntax(
            line_comments=("//",),
            block_comments=_C_BLOCKS,
            raw_quotes="",
            plain_quotes="'\"",
            interpolating_quotes="",
            interpolation=r"\$\{[^{}]*\}?",
            has_nested_interpolation=True,
            backtick="filled",
            has_regex_literals=True,
        ),
        "lua": Syntax(
            line_comments=("--",),
            block_comments=(("--[[", "]]"),),
            raw_quotes="",
            plain_quotes="'\"",
            interpolating_quotes="",
            has_bare_arguments=True,
            long_quotes=(("[[", "]]"),),
        ),
        "awk": Syntax(raw_quotes="", plain_quotes='"', interpolating_quotes="", has_regex_literals=True),
        "r": Syntax(raw_quotes="", plain_quotes="'\"`", interpolating_quotes=""),
        "julia": Syntax(
            block_comments=(("#=", "=#"),),
            raw_quotes="",
            plain_quotes="'",
            interpolation=r"\$\([^()]*\)?|\$\w+",
            backtick="command",
        ),
        "octave": Syntax(line_comments=("#", "%"), raw_quotes="'"),
        "osascript": Syntax(
            line_comments=("--", "#"),
            block_comments=(("(*", "*)"),),
            raw_quotes="",
            plain_quotes='"',
            interpolating_quotes="",
            has_bare_arguments=True,
        ),
        "groovy": Syntax(
            line_comments=("//",),
            block_comments=_C_BLOCKS,
            raw_quotes="",
            plain_quotes="'",
            interpolation=r"\$\{[^{}]*\}?|\$\w+",
            has_bare_arguments=True,
        ),
        "scala": Syntax(
            line_comments=("//",),
            block_comments=_C_BLOCKS,
            raw_quotes="",
            plain_quotes='"',
            interpolating_quotes="",
            long_quotes=(('"""', '"""'),),
        ),
        "kotlin": Syntax(
            line_comments=("//",),
            block_comments=_C_BLOCKS,
            raw_quotes="",
            plain_quotes="'",
            interpolation=r"\$\{[^{}]*\}?|\$\w+",
            long_quotes=(('"""', '"""'),),
        ),
        "jshell": Syntax(
            line_comments=("//",),
            block_comments=_C_BLOCKS,
            raw_quotes="",
            plain_quotes="'\"",
            interpolating_quotes="",
        ),
        "elixir": Syntax(
            plain_quotes="'",
            raw_quotes="",
            interpolation=r"\#\{[^{}]*\}?",
            has_nested_interpolation=True,
            has_bare_arguments=True,
        ),
        "erlang": Syntax(line_comments=("%",), raw_quotes="", plain_quotes="'\"", interpolating_quotes=""),
        "haskell": Syntax(
            line_comments=("--",),
            block_comments=(("{-", "-}"),),
            raw_quotes="",
            plain_quotes='"',
            interpolating_quotes="",
            has_bare_arguments=True,
        ),
        "prolog": Syntax(
            line_comments=("%",),
            block_comments=_C_BLOCKS,
            raw_quotes="",
            plain_quotes="'\"",
            interpolating_quotes="",
        ),
        "elisp": Syntax(
            line_comments=(";",), raw_quotes="", plain_quotes='"', interpolating_quotes="", is_lisp=True
        ),
        "lisp": Syntax(
            line_comments=(";",),
            block_comments=(("#|", "|#"),),
            raw_quotes="",
            plain_quotes='"',
            interpolating_quotes="",
            is_lisp=True,
        ),
        "scheme": Syntax(
            line_comments=(";",),
            block_comments=(("#|", "|#"),),
            raw_quotes="",
            plain_quotes='"',
            interpolating_quotes="",
            is_lisp=True,
        ),
        "clojure": Syntax(
            line_comments=(";",), raw_quotes="", plain_quotes='"', interpolating_quotes="", is_lisp=True
        ),
        "gnuplot": Syntax(backtick="command"),
        "raku": Syntax(interpolation=r"\{[^{}]*\}?|\$\w+", has_letter_quotes=True, has_bare_arguments=True),
        "ocaml": Syntax(
            line_comments=(),
            block_comments=(("(*", "*)"),),
            raw_quotes="",
            plain_quotes='"',
            interpolating_quotes="",
            has_bare_arguments=True,
        ),
        "swift": Syntax(
            line_comments=("//",), block_comments=_C_BLOCKS, raw_quotes="", interpolation=r"\\\([^()]*\)?"
        ),
        "go": Syntax(
            line_comments=("//",),
            block_comments=_C_BLOCKS,
            raw_quotes="",
            plain_quotes="'\"",
            interpolating_quotes="",
            long_quotes=(("`", "`"),),
        ),
        "c": Syntax(
            line_comments=("//",),
            block_comments=_C_BLOCKS,
            raw_quotes="",
            plain_quotes="'\"",
            interpolating_quotes="",
        ),
        "python": Syntax(
            raw_quotes="",
            plain_quotes="'\"",
            interpolating_quotes="",
            long_quotes=(("'''", "'''"), ('"""', '"""')),
        ),
    }
)

_NAME = re.compile(r"[$@%&]{0,2}[^\W\d]\w*[!?*]?|[$@]\{?\^?\w+\}?")
_LISP_NAME = re.compile(r"[^\s()\[\]{}'\"`;,#]+")
_NUMBER = re.compile(r"\d\w*(?:\.\d\w*)*")
_SPACE = re.compile(r"[ \t\r\f]+")
_CONTINUED_CHAIN = re.compile(r"\n\s*(?=[?&]?\.[A-Za-z_])")  # a call on the value of the line before
_LETTER_QUOTE = re.compile(
    r"(qq|qw|qx|qr|q|m|tr|y|s)\b\s*([^\w\s,;=)])|(qq|qw|qx|qr|q|m|tr|y|s)([#])|%([xqQwWiIr]?)([{(\[<|!/])"
)
_PERL_GLOB = re.compile(r"<([^<>\s=;$]{0,256}\*[^<>\s;]{0,256})>")
_BRACKET_PAIRS = {"{": "}", "(": ")", "[": "]", "<": ">"}
_VALUE_ENDS = frozenset({")", "]", "}"})
_KEYWORDS_BEFORE_VALUE = frozenset(
    {"return", "if", "unless", "and", "or", "not", "split", "grep", "in", "case", "when", "typeof"}
)


def tokenize(code: str, syntax: Syntax) -> list[Token]:
    """Return the tokens of the code, including a token for each end of line."""
    return _Tokenizer(code, syntax).run()


class _Tokenizer:
    def __init__(self, code: str, syntax: Syntax, depth: int = 0) -> None:
        self.code, self.syntax, self.depth, self.at = code, syntax, depth, 0
        self.tokens: list[Token] = []
        self.interpolation = re.compile(syntax.interpolation) if syntax.interpolation else None
        self.openers = [(*pair, "block") for pair in syntax.block_comments] + [
            (*pair, "long") for pair in syntax.long_quotes
        ]
        self.openers.sort(key=lambda opener: -len(opener[0]))

    def run(self) -> list[Token]:
        while self.at < len(self.code) and len(self.tokens) < MAX_TOKENS:
            self._read_token()
        return self.tokens

    def _read_token(self) -> None:
        code, at = self.code, self.at
        character = code[at]
        if space := _SPACE.match(code, at) or _CONTINUED_CHAIN.match(code, at):
            self.at = space.end()
        elif character == "\n":
            self._add_token("line", "\n", at + 1)
        elif character == "\\" and code[at + 1 : at + 2] in ("\n", '"', "'", "`"):
            self._read_escaped_quote(code[at + 1])
        elif self._read_block() or self._skip_comment() or self._read_letter_quote():
            return
        elif character == "`" and self.syntax.backtick:
            self._read_quoted("`", self.syntax.backtick == "command")
        elif (
            character in self.syntax.raw_quotes + self.syntax.plain_quotes + self.syntax.interpolating_quotes
        ):
            self._read_quoted(character, False)
        elif character == "<" and self.syntax.has_letter_quotes and (globbed := _PERL_GLOB.match(code, at)):
            self.tokens.append(Token("name", "glob"))  # Perl's <*.txt>
            self._add_token("string", globbed[1], globbed.end())
        elif character == "/" and self.syntax.has_regex_literals and self._expects_value():
            self._read_pattern()
        else:
            self._read_word()

    def _add_token(self, kind: TokenKind, text: str, at: int) -> None:
        self.tokens.append(Token(kind, text))
        self.at = at

    def _read_block(self) -> bool:
        for begin, end, kind in self.openers:
            if self.code.startswith(begin, self.at):
                stop = self.code.find(end, self.at + len(begin))
                stop = len(self.code) if stop < 0 else stop
                if kind == "long":
                    self._add_token("string", self.code[self.at + len(begin) : stop], stop + len(end))
                self.at = stop + len(end)
                return True
        return False

    def _skip_comment(self) -> bool:
        for mark in self.syntax.line_comments:
            if self.code.startswith(mark, self.at):
                if mark == "#" and self.at and self.code[self.at - 1] in "$&{":
                    return False
                end = self.code.find("\n", self.at)
                self.at = len(self.code) if end < 0 else end
                return True
        return False

    def _read_escaped_quote(self, quote: str) -> None:
        r"""Read a string whose quotes have unnecessary backslashes, as in `-e 'f(\"x\")'`."""
        end = self.code.find("\\" + quote, self.at + 2) if quote != "\n" else -1
        if end < 0:
            self.at += 2 if quote == "\n" else 1
            return
        kind: TokenKind = "command" if quote == "`" and self.syntax.backtick == "command" else "string"
        self._add_token(kind, self._decode_text(self.code[self.at + 2 : end], False, True), end + 2)

    def _read_quoted(self, quote: str, command: bool) -> None:
        at = begin = self.at + 1
        code, is_raw = self.code, quote in self.syntax.raw_quotes
        interpolates = self.interpolation is not None and (
            quote in self.syntax.interpolating_quotes or quote == "`"
        )
        inner: list[str] = []
        while at < len(code) and code[at] != quote:
            if interpolates and code[at : at + 2] in ("#{", "${") and self.syntax.has_nested_interpolation:
                end = self._find_closing("{", at + 2)
                inner.append(code[at + 2 : end])
                at = end
            at += 2 if code[at : at + 1] == "\\" else 1
        self._add_token(
            "command" if command else "string",
            self._decode_text(code[begin:at], is_raw, interpolates),
            at + 1,
        )
        self._add_nested_code(inner)

    def _add_nested_code(self, codes: list[str]) -> None:
        """Add the tokens of the code that is interpolated in strings, such as `"#{…}"`."""
        for code in codes:
            if self.depth < _MAX_NESTING and not code.isidentifier():
                self.tokens.append(Token("line", "\n"))
                self.tokens += _Tokenizer(code, self.syntax, self.depth + 1).run()

    def _decode_text(self, text: str, is_raw: bool, interpolates: bool) -> str:
        """Return a string literal's text: escapes decoded, interpolated expressions marked as unknown."""
        if interpolates and self.interpolation is not None:
            text = self.interpolation.sub(lambda match: HOME if "HOME" in match[0] else GAP, text)
        return text if is_raw and "\\" not in text else _unescape_text(text, is_raw)

    def _read_letter_quote(self) -> bool:
        """Read a quote with a letter prefix, such as Perl's `qx{…}` or Ruby's `%w[…]`."""
        if not self.syntax.has_letter_quotes:
            return False
        match = _LETTER_QUOTE.match(self.code, self.at)
        if not match or (
            self.at and (self.code[self.at - 1].isalnum() or self.code[self.at - 1] in "$@%&_>.{")
        ):
            return False
        if self.syntax.has_percent_quotes_only and not match[6]:
            return False
        letter = (
            match[1] or match[3] or {"x": "qx", "w": "qw", "W": "qw", "r": "m"}.get(match[5] or "Q", "qq")
        )
        opening = match[2] or match[4] or match[6]
        if match[6] and not self._expects_value():
            return False
        if opening == "=" or (match[2] and self.code.startswith("=>", match.end() - 1)):
            return False
        begin = match.end()
        end = self._find_closing(opening, begin)
        text = self.code[begin:end]
        self.at = end + 1
        if letter in ("s", "tr", "y"):
            self._read_replacement(opening)
        elif letter in ("m", "qr"):
            self.tokens.append(Token("mark", "/"))
        elif letter == "qw":
            self.tokens.append(Token("words", text))
        else:
            kind: TokenKind = "command" if letter == "qx" else "string"
            self.tokens.append(Token(kind, self._decode_text(text, letter == "q", letter in ("qq", "qx"))))
        return True

    def _find_closing(self, opening: str, at: int) -> int:
        closing = _BRACKET_PAIRS.get(opening, opening)
        depth, code = 1, self.code
        while at < len(code):
            if code[at] == "\\":
                at += 1
            elif code[at] == closing:
                depth -= 1
                if not depth:
                    return at
            elif code[at] == opening:
                depth += 1
            at += 1
        return len(code)

    def _read_replacement(self, opening: str) -> None:
        """Read the replacement part of Perl's `s///` or `tr///`; with the flag `e` it is code."""
        begin = self.at
        if opening in _BRACKET_PAIRS:
            while begin < len(self.code) and self.code[begin].isspace():
                begin += 1
            opening = self.code[begin : begin + 1] or opening
            begin += 1
        end = self._find_closing(opening, begin)
        flags = re.compile(r"[a-z]*").match(self.code, min(end + 1, len(self.code)))
        self.tokens.append(Token("mark", "/"))
        self.at = end + 1 + (len(flags[0]) if flags else 0)
        if flags and "e" in flags[0]:
            if begin < end and self.depth < _MAX_NESTING:
                self.tokens += _Tokenizer(self.code[begin:end], self.syntax, self.depth + 1).run()
            self.tokens.append(Token("line", "\n"))

    def _expects_value(self) -> bool:
        """Return True if the next token may be a value, so that a slash starts a regular expression."""
        before = next((token for token in reversed(self.tokens) if token.kind != "line"), None)
        if before is None or (before.kind == "mark" and before.text not in _VALUE_ENDS):
            return True
        return (before.kind == "name" and before.text in _KEYWORDS_BEFORE_VALUE) or self.tokens[
            -1
        ].kind == "line"

    def _read_pattern(self) -> None:
        at, code, bracket = self.at + 1, self.code, False
        while at < len(code) and code[at] != "\n" and (bracket or code[at] != "/"):
            bracket = (bracket or code[at] == "[") and code[at] != "]"
            at += 2 if code[at] == "\\" else 1
        if code[at : at + 1] == "/":
            self._add_token("mark", "/", at + 1)
        else:
            self._add_token("mark", "/", self.at + 1)

    def _read_word(self) -> None:
        pattern = _LISP_NAME if self.syntax.is_lisp else _NAME
        if number := _NUMBER.match(self.code, self.at):
            self._add_token("number", number[0], number.end())
        elif self.code[self.at] == GAP:
            self._add_token("string", GAP, self.at + 1)
        elif (name := pattern.match(self.code, self.at)) and name.end() > self.at:
            self._add_token("name", name[0], name.end())
        else:
            self._add_token("mark", self.code[self.at], self.at + 1)


_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|x\{[0-9A-Fa-f]{1,6}\}|u[0-9A-Fa-f]{4}|[0-7]{1,3}|.)", re.DOTALL)
_SIMPLE_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "\n": "",
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "e": "\033",
}


def _unescape_text(text: str, is_raw: bool) -> str:
    if is_raw:
        return text.replace("\\\\", "\\").replace("\\'", "'")
    return _ESCAPE.sub(_unescape_character, text)


def _unescape_character(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "xu" and len(code) > 1:
        number = int(code[1:].strip("{}"), 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else GAP
    if code[0] in "01234567":
        return chr(int(code, 8))
    return _SIMPLE_ESCAPES.get(code, code)
