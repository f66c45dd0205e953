"""Cutting the text of a script language into tokens, tolerantly and in one pass.

Languages differ in their comments, quotes, and in what stands between quotes; `Syntax` says how. A text that
is no proper code gives tokens too. Nothing here knows what a token does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from shellverdict.foreign.nouns import HOME
from shellverdict.shell.words import GAP

__all__ = ["MOST_TOKENS", "SYNTAX", "Syntax", "Token", "tokens"]

_DEEPEST = 3
MOST_TOKENS = 6_000  # what comes behind them is not read

Kind = Literal["name", "string", "command", "words", "number", "mark", "line"]


class Token(NamedTuple):
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Syntax:
    """How a language is written."""

    comments: tuple[str, ...] = ("#",)
    blocks: tuple[tuple[str, str], ...] = ()
    raw: str = "'"  # quotes between which everything stands for itself
    plain: str = ""  # quotes with escapes
    filled: str = '"'  # quotes with escapes and with values filled in
    filling: str = ""  # what is filled in, as an expression
    nested: bool = False  # what is filled in is code of any length
    backtick: Literal["", "command", "filled"] = ""
    letters: bool = False  # Perl's and Ruby's q{…}, qx{…}, %w[…]
    percent: bool = False  # of these, only the ones behind a percent sign
    patterns: bool = False  # /…/ is a pattern where a value may stand
    bare: bool = False  # a function's arguments may stand without parentheses
    lisp: bool = False  # a function stands behind the parenthesis
    long: tuple[tuple[str, str], ...] = ()  # further raw quotes: Lua's [[…]], Python's triple quotes


_DOLLAR = r"\$\{[^{}]*\}?|\$\w+(?:->)?(?:\[[^\[\]]*\]?|\{[^{}]*\}?)?|@\{[^{}]*\}?"
_C_BLOCKS = (("/*", "*/"),)

SYNTAX: Mapping[str, Syntax] = MappingProxyType(
    {
        "perl": Syntax(
            filling=_DOLLAR + r"|@\w+", backtick="command", letters=True, patterns=True, bare=True
        ),
        "ruby": Syntax(
            filling=r"\#\{[^{}]*\}?",
            nested=True,
            backtick="command",
            letters=True,
            percent=True,
            patterns=True,
            bare=True,
        ),
        "php": Syntax(comments=("#", "//"), blocks=_C_BLOCKS, filling=_DOLLAR, backtick="command", bare=True),
        "node": Syntax(
            comments=("//",),
            blocks=_C_BLOCKS,
            raw="",
            plain="'\"",
            filled="",
            filling=r"\$\{[^{}]*\}?",
            nested=True,
            backtick="filled",
            patterns=True,
        ),
        "lua": Syntax(
            comments=("--",),
            blocks=(("--[[", "]]"),),
            raw="",
            plain="'\"",
            filled="",
            bare=True,
            long=(("[[", "]]"),),
        ),
        "awk": Syntax(raw="", plain='"', filled="", patterns=True),
        "r": Syntax(raw="", plain="'\"`", filled=""),
        "julia": Syntax(
            blocks=(("#=", "=#"),), raw="", plain="'", filling=r"\$\([^()]*\)?|\$\w+", backtick="command"
        ),
        "octave": Syntax(comments=("#", "%"), raw="'"),
        "osascript": Syntax(
            comments=("--", "#"), blocks=(("(*", "*)"),), raw="", plain='"', filled="", bare=True
        ),
        "groovy": Syntax(
            comments=("//",), blocks=_C_BLOCKS, raw="", plain="'", filling=r"\$\{[^{}]*\}?|\$\w+", bare=True
        ),
        "scala": Syntax(
            comments=("//",), blocks=_C_BLOCKS, raw="", plain='"', filled="", long=(('"""', '"""'),)
        ),
        "kotlin": Syntax(
            comments=("//",),
            blocks=_C_BLOCKS,
            raw="",
            plain="'",
            filling=r"\$\{[^{}]*\}?|\$\w+",
            long=(('"""', '"""'),),
        ),
        "jshell": Syntax(comments=("//",), blocks=_C_BLOCKS, raw="", plain="'\"", filled=""),
        "elixir": Syntax(plain="'", raw="", filling=r"\#\{[^{}]*\}?", nested=True, bare=True),
        "erlang": Syntax(comments=("%",), raw="", plain="'\"", filled=""),
        "haskell": Syntax(comments=("--",), blocks=(("{-", "-}"),), raw="", plain='"', filled="", bare=True),
        "prolog": Syntax(comments=("%",), blocks=_C_BLOCKS, raw="", plain="'\"", filled=""),
        "elisp": Syntax(comments=(";",), raw="", plain='"', filled="", lisp=True),
        "lisp": Syntax(comments=(";",), blocks=(("#|", "|#"),), raw="", plain='"', filled="", lisp=True),
        "scheme": Syntax(comments=(";",), blocks=(("#|", "|#"),), raw="", plain='"', filled="", lisp=True),
        "clojure": Syntax(comments=(";",), raw="", plain='"', filled="", lisp=True),
        "gnuplot": Syntax(backtick="command"),
        "raku": Syntax(filling=r"\{[^{}]*\}?|\$\w+", letters=True, bare=True),
        "ocaml": Syntax(comments=(), blocks=(("(*", "*)"),), raw="", plain='"', filled="", bare=True),
        "swift": Syntax(comments=("//",), blocks=_C_BLOCKS, raw="", filling=r"\\\([^()]*\)?"),
        "go": Syntax(comments=("//",), blocks=_C_BLOCKS, raw="", plain="'\"", filled="", long=(("`", "`"),)),
        "c": Syntax(comments=("//",), blocks=_C_BLOCKS, raw="", plain="'\"", filled=""),
        "python": Syntax(raw="", plain="'\"", filled="", long=(("'''", "'''"), ('"""', '"""'))),
    }
)

_NAME = re.compile(r"[$@%&]{0,2}[^\W\d]\w*[!?*]?|[$@]\{?\^?\w+\}?")
_LISP_NAME = re.compile(r"[^\s()\[\]{}'\"`;,#]+")
_NUMBER = re.compile(r"\d[\w.]*")
_SPACE = re.compile(r"[ \t\r\f]+")
_LETTERS = re.compile(
    r"(qq|qw|qx|qr|q|m|tr|y|s)\b\s*([^\w\s,;=)])|(qq|qw|qx|qr|q|m|tr|y|s)([#])|%([xqQwWiIr]?)([{(\[<|!/])"
)
_GLOB = re.compile(r"<([^<>\s=;$]{0,256}\*[^<>\s;]{0,256})>")
_PAIRS = {"{": "}", "(": ")", "[": "]", "<": ">"}
_VALUE_BEFORE = frozenset({")", "]", "}"})
_KEYWORDS_BEFORE_VALUE = frozenset(
    {"return", "if", "unless", "and", "or", "not", "split", "grep", "in", "case", "when", "typeof"}
)


def tokens(code: str, syntax: Syntax) -> list[Token]:
    """The tokens of a text; an end of line is one too."""
    return _Cutter(code, syntax).cut()


class _Cutter:
    def __init__(self, code: str, syntax: Syntax, depth: int = 0) -> None:
        self.code, self.syntax, self.depth, self.at = code, syntax, depth, 0
        self.out: list[Token] = []
        self.filling = re.compile(syntax.filling) if syntax.filling else None
        self.openers = [(*pair, "block") for pair in syntax.blocks] + [
            (*pair, "long") for pair in syntax.long
        ]
        self.openers.sort(key=lambda opener: -len(opener[0]))

    def cut(self) -> list[Token]:
        while self.at < len(self.code) and len(self.out) < MOST_TOKENS:
            self._one()
        return self.out

    def _one(self) -> None:
        code, at = self.code, self.at
        character = code[at]
        if space := _SPACE.match(code, at):
            self.at = space.end()
        elif character == "\n":
            self._put("line", "\n", at + 1)
        elif character == "\\" and code[at + 1 : at + 2] in ("\n", '"', "'", "`"):
            self._escaped(code[at + 1])
        elif self._opened() or self._commented() or self._lettered():
            return
        elif character == "`" and self.syntax.backtick:
            self._quoted("`", self.syntax.backtick == "command")
        elif character in self.syntax.raw + self.syntax.plain + self.syntax.filled:
            self._quoted(character, False)
        elif character == "<" and self.syntax.letters and (globbed := _GLOB.match(code, at)):
            self.out.append(Token("name", "glob"))  # Perl's <*.txt>
            self._put("string", globbed[1], globbed.end())
        elif character == "/" and self.syntax.patterns and self._wants_value():
            self._pattern()
        else:
            self._word()

    def _put(self, kind: Kind, text: str, at: int) -> None:
        self.out.append(Token(kind, text))
        self.at = at

    def _opened(self) -> bool:
        for begin, end, kind in self.openers:
            if self.code.startswith(begin, self.at):
                stop = self.code.find(end, self.at + len(begin))
                stop = len(self.code) if stop < 0 else stop
                if kind == "long":
                    self._put("string", self.code[self.at + len(begin) : stop], stop + len(end))
                self.at = stop + len(end)
                return True
        return False

    def _commented(self) -> bool:
        for mark in self.syntax.comments:
            if self.code.startswith(mark, self.at):
                if mark == "#" and self.at and self.code[self.at - 1] in "$&{":
                    return False
                end = self.code.find("\n", self.at)
                self.at = len(self.code) if end < 0 else end
                return True
        return False

    def _escaped(self, quote: str) -> None:
        """Quotes that were escaped once too often (`-e 'f(\\"x\\")'`) are meant as quotes."""
        end = self.code.find("\\" + quote, self.at + 2) if quote != "\n" else -1
        if end < 0:
            self.at += 2 if quote == "\n" else 1
            return
        kind: Kind = "command" if quote == "`" and self.syntax.backtick == "command" else "string"
        self._put(kind, self._text(self.code[self.at + 2 : end], False, True), end + 2)

    def _quoted(self, quote: str, command: bool) -> None:
        at = begin = self.at + 1
        code, raw = self.code, quote in self.syntax.raw
        fills = self.filling is not None and (quote in self.syntax.filled or quote == "`")
        inner: list[str] = []
        while at < len(code) and code[at] != quote:
            if fills and code[at : at + 2] in ("#{", "${") and self.syntax.nested:
                end = self._closing("{", at + 2)
                inner.append(code[at + 2 : end])
                at = end
            at += 2 if code[at : at + 1] == "\\" else 1
        self._put("command" if command else "string", self._text(code[begin:at], raw, fills), at + 1)
        self._nested(inner)

    def _nested(self, codes: list[str]) -> None:
        """What is filled in is code too."""
        for code in codes:
            if self.depth < _DEEPEST and not code.isidentifier():
                self.out.append(Token("line", "\n"))
                self.out += _Cutter(code, self.syntax, self.depth + 1).cut()

    def _text(self, text: str, raw: bool, fills: bool) -> str:
        if fills and self.filling is not None:
            text = self.filling.sub(lambda found: HOME if "HOME" in found[0] else GAP, text)
        return text if raw and "\\" not in text else _unescaped(text, raw)

    def _lettered(self) -> bool:
        if not self.syntax.letters:
            return False
        found = _LETTERS.match(self.code, self.at)
        if not found or (
            self.at and (self.code[self.at - 1].isalnum() or self.code[self.at - 1] in "$@%&_>.{")
        ):
            return False
        if self.syntax.percent and not found[6]:
            return False
        letter = (
            found[1] or found[3] or {"x": "qx", "w": "qw", "W": "qw", "r": "m"}.get(found[5] or "Q", "qq")
        )
        opening = found[2] or found[4] or found[6]
        if found[6] and not self._wants_value():
            return False
        if opening == "=" or (found[2] and self.code.startswith("=>", found.end() - 1)):
            return False
        begin = found.end()
        end = self._closing(opening, begin)
        text = self.code[begin:end]
        self.at = end + 1
        if letter in ("s", "tr", "y"):
            self._replacement(opening)
        elif letter in ("m", "qr"):
            self.out.append(Token("mark", "/"))
        elif letter == "qw":
            self.out.append(Token("words", text))
        else:
            kind: Kind = "command" if letter == "qx" else "string"
            self.out.append(Token(kind, self._text(text, letter == "q", letter in ("qq", "qx"))))
        return True

    def _closing(self, opening: str, at: int) -> int:
        closing = _PAIRS.get(opening, opening)
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

    def _replacement(self, opening: str) -> None:
        """The second half of s/// and tr///; with /e it is code, and is read as such."""
        begin = self.at
        if opening in _PAIRS:
            while begin < len(self.code) and self.code[begin].isspace():
                begin += 1
            opening = self.code[begin : begin + 1] or opening
            begin += 1
        end = self._closing(opening, begin)
        flags = re.compile(r"[a-z]*").match(self.code, min(end + 1, len(self.code)))
        self.out.append(Token("mark", "/"))
        self.at = end + 1 + (len(flags[0]) if flags else 0)
        if flags and "e" in flags[0]:
            if begin < end and self.depth < _DEEPEST:
                self.out += _Cutter(self.code[begin:end], self.syntax, self.depth + 1).cut()
            self.out.append(Token("line", "\n"))

    def _wants_value(self) -> bool:
        before = next((token for token in reversed(self.out) if token.kind != "line"), None)
        if before is None or (before.kind == "mark" and before.text not in _VALUE_BEFORE):
            return True
        return (before.kind == "name" and before.text in _KEYWORDS_BEFORE_VALUE) or self.out[
            -1
        ].kind == "line"

    def _pattern(self) -> None:
        at, code, bracket = self.at + 1, self.code, False
        while at < len(code) and code[at] != "\n" and (bracket or code[at] != "/"):
            bracket = (bracket or code[at] == "[") and code[at] != "]"
            at += 2 if code[at] == "\\" else 1
        if code[at : at + 1] == "/":
            self._put("mark", "/", at + 1)
        else:
            self._put("mark", "/", self.at + 1)

    def _word(self) -> None:
        pattern = _LISP_NAME if self.syntax.lisp else _NAME
        if number := _NUMBER.match(self.code, self.at):
            self._put("number", number[0], number.end())
        elif self.code[self.at] == GAP:
            self._put("string", GAP, self.at + 1)
        elif (name := pattern.match(self.code, self.at)) and name.end() > self.at:
            self._put("name", name[0], name.end())
        else:
            self._put("mark", self.code[self.at], self.at + 1)


_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|x\{[0-9A-Fa-f]{1,6}\}|u[0-9A-Fa-f]{4}|[0-7]{1,3}|.)", re.DOTALL)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "\n": "", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\033"}


def _unescaped(text: str, raw: bool) -> str:
    if raw:
        return text.replace("\\\\", "\\").replace("\\'", "'")
    return _ESCAPE.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    code = found[1]
    if code[0] in "xu" and len(code) > 1:
        number = int(code[1:].strip("{}"), 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else GAP
    if code[0] in "01234567":
        return chr(int(code, 8))
    return _SIMPLE.get(code, code)
