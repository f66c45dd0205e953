"""Expressions of script languages: what names stand for, and what text they make together.

Operators that glue strings are all there is of a grammar; a variable that was set to a string is that string,
everything else is a gap. One reader counts its steps, so that no text costs more than a bound.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from shellverdict.foreign.calls import DECODES, actions
from shellverdict.foreign.nouns import HOME, Found
from shellverdict.foreign.syntax import SYNTAX, Syntax, Token, tokens
from shellverdict.shell.words import GAP

__all__ = ["CLOSE", "MOST_STEPS", "OPEN", "PATTERN_MAKERS", "Expressions"]

MOST_STEPS = 20_000
_FARTHEST = 400  # tokens that one call's arguments may have
_LONGEST = 4_096  # characters of a text that is put together
_NEAR = 64  # tokens that an assigned value may have
OPEN = {"(": ")", "[": "]", "{": "}"}
CLOSE = frozenset(OPEN.values())
_GLUE = frozenset({"+", ".", "..", "&", "~", "^", "<>", "<", ">", "++"})
_ENDS = frozenset({";", "}", "|", "{", ")"})
_STOPS = frozenset(
    {
        "or",
        "and",
        "if",
        "unless",
        "while",
        "until",
        "for",
        "do",
        "foreach",
        "rescue",
        "then",
        "end",
        "||",
        "&&",
    }
)
_DECLARES = frozenset({"my", "our", "local", "let", "var", "const", "val", "def", "set", "String", "auto"})
_CLEAR = frozenset(
    {
        *(
            "get",
            "of",
            "File",
            "new",
            "Path",
            "Paths",
            "join",
            "resolve",
            "String",
            "toString",
            "expand_path",
            "glob",
            "list",
        ),
        *(
            "c",
            "array",
            "list",
            "Seq",
            "List",
            "Array",
            "asList",
            "vec",
            "quote",
            "cons",
            "normalize",
            "escapeshellarg",
            "shellescape",
        ),
        *(
            "fromFile",
            "tostring",
            "str",
            "string",
            "concat",
            "format",
            "paste",
            "paste0",
            "path.expand",
            "file.path",
            "trim",
        ),
    }
)
_HOMES = frozenset(
    {
        *("homedir", "home", "expandUser", "user_home", "user_home!", "UserHomeDir", "NSHomeDirectory"),
        *("user-homedir-pathname", "getHomeDirectory", "homeDirectory", "getUserHome"),
    }
)
_ENVIRONMENTS = frozenset(
    {
        *("ENV", "env", "environ", "_ENV", "_SERVER", "process", "getenv", "Getenv", "get_env"),
        *("getProperty", "fetch_env", "LookupEnv"),
    }
)
PATTERN_MAKERS = frozenset(
    {
        "glob",
        "Dir.glob",
        "readdir",
        "readdirSync",
        "scandir",
        "list.files",
        "entries",
        "children",
        "each_child",
        "wildcard",
        "ls!",
    }
)


class Expressions:
    """The tokens of one text, and what has been learned about its names."""

    def __init__(self, code: str, language: str) -> None:
        self.code, self.language = code, language
        self.syntax: Syntax = SYNTAX.get(language) or SYNTAX["node"]
        self.actions = actions().get(language, {})
        self.tokens = tokens(code, self.syntax)
        self.found = Found()
        self.values: dict[str, str] = {}
        self.every: dict[str, dict[str, None]] = {}  # all texts a name may stand for
        self.lists: dict[str, list[str]] = {}
        self.aliases: dict[str, str] = {}  # other names of functions
        self.steps = 0

    def qualified(self, at: int) -> str:
        """The name with the one before it, whatever stands between."""
        name = self.tokens[at].text.lstrip("$@%&")
        parts, place = [name], at
        while place >= 2 and self.mark(place - 1) in (".", ":", ">") and len(parts) < 4:
            place -= 2
            while place >= 1 and self.mark(place) in (":", "-", ")", "("):
                place -= 1
            if self.tokens[place].kind != "name":
                break
            parts.insert(0, self.tokens[place].text.lstrip("$@%&"))
        return ".".join(parts)

    def mark(self, at: int) -> str:
        token = self.tokens[at] if 0 <= at < len(self.tokens) else None
        return token.text if token is not None and token.kind == "mark" else ""

    def name_at(self, at: int) -> str:
        token = self.tokens[at] if 0 <= at < len(self.tokens) else None
        return token.text if token is not None and token.kind == "name" else ""

    def learn(self, at: int) -> None:
        """`name = "text"` and `name .= "text"` are remembered."""
        name = self.tokens[at].text.lstrip("$@%&")
        mark = self.mark(at + 1)
        if mark == ":" and name in self.actions and (other := self.name_at(at + 2)):
            self.aliases[other] = name  # const {execSync: x} = …
        adds = mark in (".", "+") and self.mark(at + 2) == "="
        declares = mark == ":" and self.mark(at + 2) == "="
        if not (adds or declares) and (mark != "=" or self.mark(at + 2) in ("=", "~", ">")):
            return
        begin = at + (3 if adds or declares else 2)
        words = self.until_end(begin)
        text = self.fold(words)
        listed = self.listed(words)
        if words and words[-1].kind == "name" and words[-1].text in self.actions:
            self.aliases[name] = words[-1].text
        if text is not None:
            whole = (self.values.get(name, GAP) if adds else "") + text
            self.values[name] = whole if len(whole) <= _LONGEST else whole[:_LONGEST] + GAP
            if len(self.every.setdefault(name, {})) < 16:
                self.every[name][self.values[name]] = None
        if listed is not None:
            self.lists[name] = listed

    def until_end(self, begin: int) -> list[Token]:
        """Tokens up to the end of a statement."""
        out: list[Token] = []
        depth = 0
        for token in self.tokens[begin : begin + _NEAR]:
            self.steps += 1
            if token.kind == "mark" and token.text in OPEN:
                depth += 1
            elif token.kind == "mark" and token.text in CLOSE:
                depth -= 1
            if depth < 0 or (depth == 0 and (token.kind == "line" or token.text in (";", ","))):
                break
            out.append(token)
        return out

    def arguments(self, at: int) -> list[list[Token]]:
        """The arguments behind the name at `at`, one list of tokens each."""
        if self.steps > 2 * MOST_STEPS:
            self.found.unreadable(self.code)
            return []
        if self.syntax.lisp:
            return self._lisp_arguments(at + 1)
        inside = self.mark(at + 1) in ("(", "[") or (self.language == "lua" and self.mark(at + 1) == "{")
        if not inside and not self.syntax.bare:
            return []
        arguments: list[list[Token]] = [[]]
        depth = 0
        for token in self.tokens[at + (2 if inside else 1) : at + _FARTHEST]:
            self.steps += 1
            if token.kind == "mark" and token.text in OPEN:
                depth += 1
            elif token.kind == "mark" and token.text in CLOSE:
                depth -= 1
                if depth < 0:
                    break
            elif not inside and depth == 0 and self._ends_bare(token):
                break
            if token.kind == "mark" and token.text == "," and depth == 0:
                arguments.append([])
            elif token.kind != "line":
                arguments[-1].append(token)
        return [argument for argument in arguments if argument]

    def _ends_bare(self, token: Token) -> bool:
        return (
            token.kind == "line"
            or (token.kind == "mark" and token.text in _ENDS)
            or (token.kind == "name" and token.text in _STOPS)
        )

    def _lisp_arguments(self, begin: int) -> list[list[Token]]:
        arguments: list[list[Token]] = []
        depth = 0
        for token in self.tokens[begin : begin + _FARTHEST]:
            self.steps += 1
            if token.kind == "line":
                continue
            if token.kind == "mark" and token.text in CLOSE:
                depth -= 1
                if depth < 0:
                    break
                continue
            if depth == 0:
                arguments.append([])
            arguments[-1].append(token)
            depth += token.kind == "mark" and token.text in OPEN
        return arguments

    def texts(self, at: int) -> list[str | None]:
        """The arguments behind the name at `at`, as far as they are text."""
        return [self.fold(argument) for argument in self.arguments(at)[:32]]

    def fold(self, words: Sequence[Token]) -> str | None:
        """The text that these tokens make, with gaps; None where there is none in it."""
        parts: list[str] = []
        told = False
        skip = 0
        for place, token in enumerate(words):
            self.steps += 1
            if place < skip:
                continue
            if token.text == "[" and token.kind == "mark" and (joined := self.joined(words, place)):
                text, skip = joined
                parts.append(text)
                told = True
            elif token.kind in ("string", "command", "words"):
                parts.append(token.text)
                told = True
            elif token.kind == "number":
                parts.append(token.text)
            elif parts and _unpacks(words, place):
                parts, skip = [_decoded(token.text, "".join(parts), words[place:])], len(words)
                told = True
            elif token.kind == "name":
                text, skip = self._named(words, place)
                told |= text not in ("", GAP)
                if text == HOME and parts[-1:] == [GAP] and words[place - 1].text == ".":
                    parts.pop()  # the module whose function it is
                parts.append(text)
            elif token.text not in _GLUE and token.text not in "()[]{},:;@\\'#$":
                parts.append(GAP)
        text = "".join(parts)
        text = text if len(text) <= _LONGEST else text[:_LONGEST] + GAP
        return text if told or GAP in text else None

    def goes_on(self, words: Sequence[Token]) -> bool:
        """Whether a list is only the beginning: `["a", "b"].join(" ")`, `["726d"].pack("H*")`."""
        return words[0].text == "[" and [t.text for t in words[self._behind_call(words, 0) :][:1]] == ["."]

    def joined(self, words: Sequence[Token], place: int) -> tuple[str, int] | None:
        """`["a", "b"].join(" ")` as text, and where to go on."""
        end = self._behind_call(words, place)
        behind = words[end : end + 4]
        if [token.text for token in behind[:3]] != [".", "join", "("]:
            return None
        glue = behind[3].text if len(behind) > 3 and behind[3].kind == "string" else ","
        return glue.join(self.listed(words[place:end]) or []), min(len(words), end + 5)

    def _named(self, words: Sequence[Token], place: int) -> tuple[str, int]:
        """What a name within an expression stands for, and where to go on."""
        name = words[place].text.lstrip("$@%&")
        rest = words[place + 1 : place + 8]
        if name in self.values:
            return self.values[name], place + 1
        if name in _HOMES:
            return HOME, self._behind_access(words, place + 1)
        if name in _ENVIRONMENTS:
            end = self._behind_access(words, place + 1)
            known = any(token.text in ("HOME", "user.home", "USERPROFILE", "~") for token in words[place:end])
            return (HOME if known else GAP), end
        if (
            name in DECODES
            and (text := next((t.text for t in words[place:] if t.kind == "string"), None)) is not None
        ):
            return _decoded(name, text, words[place:]), len(words)
        if (
            name in _CLEAR
            or name in _DECLARES
            or (rest and rest[0].kind == "string" and name in PATTERN_MAKERS)
        ):
            return "", place + 1
        called = bool(rest) and rest[0].text == "("
        qualifies = bool(rest) and rest[0].kind == "mark" and rest[0].text in (".", ":", "-")
        if (
            name in PATTERN_MAKERS
            or qualifies
            or name in ("true", "false", "TRUE", "FALSE", "T", "F", "nil", "null")
        ):
            return "", place + 1
        return GAP, self._behind_call(words, place + 1) if called else place + 1

    def _behind_access(self, words: Sequence[Token], at: int) -> int:
        """Behind `.env.HOME`, `["HOME"]`, `{HOME}`, `("HOME")`: all that belongs to a name before it."""
        while at < len(words) and words[at].kind == "mark":
            self.steps += 1
            if words[at].text in OPEN:
                at = self._behind_call(words, at)
            elif words[at].text in (".", "-", ">", ":") and _is_member(words, at + 1):
                at += 1 if words[at + 1].kind == "mark" else 2
            else:
                break
        return at

    def _behind_call(self, words: Sequence[Token], at: int) -> int:
        depth = 0
        for place in range(at, len(words)):
            self.steps += 1
            if words[place].kind == "mark" and words[place].text in OPEN:
                depth += 1
            elif words[place].kind == "mark" and words[place].text in CLOSE:
                depth -= 1
                if depth <= 0:
                    return place + 1
        return len(words)

    def listed(self, words: Sequence[Token]) -> list[str] | None:
        """The strings of a list that is written out."""
        if len(words) == 1 and words[0].kind == "words":
            return words[0].text.split()
        if len(words) == 1 and words[0].kind == "name":
            return self.lists.get(words[0].text.lstrip("$@%&"))
        if not any(token.kind == "mark" and token.text in OPEN for token in words[:3]):
            return None
        out: list[str] = []
        part: list[Token] = []
        depth = 0
        for token in [*words, Token("mark", ",")]:
            self.steps += 1
            if token.kind == "mark":
                depth += (token.text in OPEN) - (token.text in CLOSE)
            if token.kind == "mark" and (token.text == "," or (depth == 0 and token.text in CLOSE)):
                text = self.fold(part)
                out += [text] if text is not None else []
                part = []
                if token.text in CLOSE:
                    break
            elif token.kind != "line":
                part.append(token)
        return out


def _is_member(words: Sequence[Token], at: int) -> bool:
    if at >= len(words):
        return False
    token = words[at]
    return (token.kind == "name" and token.text[0] not in "$@%&") or token.text in (">", ":")


def _unpacks(words: Sequence[Token], place: int) -> bool:
    """Ruby's `["…"].pack("H*")` and `"…".unpack1("m")`: the text stands before the name."""
    named = words[place].kind == "name" and words[place].text in ("pack", "unpack", "unpack1")
    return named and place > 0 and words[place - 1].text == "."


def _decoded(name: str, text: str, words: Sequence[Token]) -> str:
    """A string that is unpacked where it stands."""
    try:
        if name in ("hex2bin", "fromhex", "unhexlify") or any(token.text == "H*" for token in words):
            return bytes.fromhex(text).decode("utf-8", "replace")
        if (
            "64" in name
            or name in ("atob", "Base64", "MIME", "unpack", "unpack1")
            or any(token.text == "base64" for token in words)
        ):
            return base64.b64decode(text + "=" * (-len(text) % 4)).decode("utf-8", "replace")
    except (ValueError, binascii.Error):
        return GAP
    return GAP
