"""Evaluate simple expressions of script languages: variables and concatenated strings.

String concatenation is the only grammar supported. A variable assigned from a string has that string as its
value; everything else is unknown (a gap). Steps are counted, so that the cost of any input is limited.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from shellverdict.embedded_code.analysis import HOME, AnalysisBuilder
from shellverdict.embedded_code.call_actions import DECODING_NAMES, load_actions
from shellverdict.embedded_code.tokenizer import SYNTAX, Syntax, Token, tokenize
from shellverdict.shell.words import GAP

__all__ = ["CLOSING_BRACKETS", "LISTING_FUNCTIONS", "MAX_STEPS", "OPENING_BRACKETS", "ExpressionReader"]

MAX_STEPS = 20_000
_MAX_ARGUMENT_TOKENS = 400  # per call
_MAX_TEXT_CHARS = 4_096  # of a concatenated string
_MAX_VALUE_TOKENS = 64  # of an assigned value
OPENING_BRACKETS = {"(": ")", "[": "]", "{": "}"}
CLOSING_BRACKETS = frozenset(OPENING_BRACKETS.values())
_CONCATENATORS = frozenset({"+", ".", "..", "&", "~", "^", "<>", "<", ">", "++"})
_STATEMENT_ENDS = frozenset({";", "}", "|", "{", ")"})
_ENDING_KEYWORDS = frozenset(
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
_DECLARING_WORDS = frozenset(
    {"my", "our", "local", "let", "var", "const", "val", "def", "set", "String", "auto"}
)
_TRANSPARENT_CALLS = frozenset(
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
_HOME_FUNCTIONS = frozenset(
    {
        *("homedir", "home", "expandUser", "user_home", "user_home!", "UserHomeDir", "NSHomeDirectory"),
        *("user-homedir-pathname", "getHomeDirectory", "homeDirectory", "getUserHome"),
    }
)
_ENVIRONMENT_NAMES = frozenset(
    {
        *("ENV", "env", "environ", "_ENV", "_SERVER", "process", "getenv", "Getenv", "get_env"),
        *("getProperty", "fetch_env", "LookupEnv"),
    }
)
_INPUT_NAMES = frozenset({"ARGV", "argv", "ARGF", "STDIN", "stdin", "gets"})
LISTING_FUNCTIONS = frozenset(
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


class ExpressionReader:
    """Reader that evaluates the expressions in a piece of code, using variables whose values are known."""

    def __init__(self, code: str, language: str) -> None:
        self.code, self.language = code, language
        self.syntax: Syntax = SYNTAX.get(language) or SYNTAX["node"]
        self.actions = load_actions().get(language, {})
        self.tokens = tokenize(code, self.syntax)
        self.analysis = AnalysisBuilder()
        self.values: dict[str, str] = {}
        self.possible_texts: dict[str, dict[str, None]] = {}  # every text assigned to a name
        self.lists: dict[str, list[str]] = {}
        self.aliases: dict[str, str] = {}  # alias -> function name
        self.steps = 0

    def qualified_name(self, at: int) -> str:
        """Return the full name at token `at`, with its parts joined by dots: `Foo.bar` for `Foo::bar`."""
        name = self.tokens[at].text.lstrip("$@%&")
        parts, place = [name], at
        while place >= 2 and self.mark_at(place - 1) in (".", ":", ">") and len(parts) < 4:
            place -= 2
            while place >= 1 and self.mark_at(place) in (":", "-", ")", "("):
                place -= 1
            if self.tokens[place].kind != "name":
                break
            parts.insert(0, self.tokens[place].text.lstrip("$@%&"))
        return ".".join(parts)

    def mark_at(self, at: int) -> str:
        """Return the punctuation at token `at`, or an empty string if that token is something else."""
        token = self.tokens[at] if 0 <= at < len(self.tokens) else None
        return token.text if token is not None and token.kind == "mark" else ""

    def name_at(self, at: int) -> str:
        """Return the identifier at token `at`, or an empty string if that token is something else."""
        token = self.tokens[at] if 0 <= at < len(self.tokens) else None
        return token.text if token is not None and token.kind == "name" else ""

    def record_assignment(self, at: int) -> None:
        """Record the text or function that code such as `name = "text"` or `name .= "text"` assigns."""
        name = self.tokens[at].text.lstrip("$@%&")
        mark = self.mark_at(at + 1)
        if mark == ":" and name in self.actions and (other := self.name_at(at + 2)):
            self.aliases[other] = name  # const {execSync: x} = …
        adds = mark in (".", "+") and self.mark_at(at + 2) == "="
        declares = mark == ":" and self.mark_at(at + 2) == "="
        if not (adds or declares) and (mark != "=" or self.mark_at(at + 2) in ("=", "~", ">")):
            return
        begin = at + (3 if adds or declares else 2)
        words = self.statement_tokens(begin)
        text = self.fold_text(words)
        listed = self.fold_list(words)
        if words and words[-1].kind == "name" and words[-1].text in self.actions:
            self.aliases[name] = words[-1].text
        if text is not None:
            whole = (self.values.get(name, GAP) if adds else "") + text
            self.values[name] = whole if len(whole) <= _MAX_TEXT_CHARS else whole[:_MAX_TEXT_CHARS] + GAP
            if len(self.possible_texts.setdefault(name, {})) < 16:
                self.possible_texts[name][self.values[name]] = None
        if listed is not None:
            self.lists[name] = listed

    def statement_tokens(self, begin: int) -> list[Token]:
        """Return the tokens from index `begin` to the end of the statement."""
        statement: list[Token] = []
        depth = 0
        for token in self.tokens[begin : begin + _MAX_VALUE_TOKENS]:
            self.steps += 1
            if token.kind == "mark" and token.text in OPENING_BRACKETS:
                depth += 1
            elif token.kind == "mark" and token.text in CLOSING_BRACKETS:
                depth -= 1
            if depth < 0 or (depth == 0 and (token.kind == "line" or token.text in (";", ","))):
                break
            statement.append(token)
        return statement

    def arguments_at(self, at: int) -> list[list[Token]]:
        """Return the arguments of the call at token `at`, each as a list of tokens."""
        if self.steps > 2 * MAX_STEPS:
            self.analysis.add_unreadable(self.code)
            return []
        if self.syntax.is_lisp:
            return self._split_lisp_arguments(at + 1)
        inside = self.mark_at(at + 1) in ("(", "[") or (
            self.language == "lua" and self.mark_at(at + 1) == "{"
        )
        if not inside and not self.syntax.has_bare_arguments:
            return []
        arguments: list[list[Token]] = [[]]
        depth = 0
        for token in self.tokens[at + (2 if inside else 1) : at + _MAX_ARGUMENT_TOKENS]:
            self.steps += 1
            if token.kind == "mark" and token.text in OPENING_BRACKETS:
                depth += 1
            elif token.kind == "mark" and token.text in CLOSING_BRACKETS:
                depth -= 1
                if depth < 0:
                    break
            elif not inside and depth == 0 and self._ends_bare_arguments(token):
                break
            if token.kind == "mark" and token.text == "," and depth == 0:
                arguments.append([])
            elif token.kind != "line":
                arguments[-1].append(token)
        return [argument for argument in arguments if argument]

    def _ends_bare_arguments(self, token: Token) -> bool:
        return (
            token.kind == "line"
            or (token.kind == "mark" and token.text in _STATEMENT_ENDS)
            or (token.kind == "name" and token.text in _ENDING_KEYWORDS)
        )

    def _split_lisp_arguments(self, begin: int) -> list[list[Token]]:
        arguments: list[list[Token]] = []
        depth = 0
        for token in self.tokens[begin : begin + _MAX_ARGUMENT_TOKENS]:
            self.steps += 1
            if token.kind == "line":
                continue
            if token.kind == "mark" and token.text in CLOSING_BRACKETS:
                depth -= 1
                if depth < 0:
                    break
                continue
            if depth == 0:
                arguments.append([])
            arguments[-1].append(token)
            depth += token.kind == "mark" and token.text in OPENING_BRACKETS
        return arguments

    def argument_texts(self, at: int) -> list[str | None]:
        """Return the text of each argument of the call at token `at`, None where the text is unknown."""
        return [self.fold_text(argument) for argument in self.arguments_at(at)[:32]]

    def fold_text(self, words: Sequence[Token]) -> str | None:
        """Return the text of an expression, with placeholders for unknown parts; None if it is no text."""
        parts: list[str] = []
        has_text = False
        skip = 0
        for place, token in enumerate(words):
            self.steps += 1
            if place < skip:
                continue
            if token.text == "[" and token.kind == "mark" and (joined := self.fold_join(words, place)):
                text, skip = joined
                parts.append(text)
                has_text = True
            elif token.kind in ("string", "command", "words"):  # what a command prints is unknown
                parts.append(GAP if token.kind == "command" else token.text)
                has_text = True
            elif token.kind == "number":
                parts.append(token.text)
            elif parts and _is_unpack_method(words, place):
                parts, skip = [_decode_string(token.text, "".join(parts), words[place:])], len(words)
                has_text = True
            elif token.kind == "name":
                text, skip = self._fold_name(words, place)
                has_text |= text not in ("", GAP)
                if text == HOME and parts[-1:] == [GAP] and words[place - 1].text == ".":
                    parts.pop()  # remove the gap of the module name before the function
                parts.append(text)
            elif token.text not in _CONCATENATORS and token.text not in "()[]{},:;@\\'#$":
                parts.append(GAP)
        text = "".join(parts)
        text = text if len(text) <= _MAX_TEXT_CHARS else text[:_MAX_TEXT_CHARS] + GAP
        return text if has_text or GAP in text else None

    def is_list_method_call(self, words: Sequence[Token]) -> bool:
        """Return True for a method called on a list literal, as in `["a", "b"].join(" ")`."""
        return words[0].text == "[" and [t.text for t in words[self._skip_brackets(words, 0) :][:1]] == ["."]

    def fold_join(self, words: Sequence[Token], place: int) -> tuple[str, int] | None:
        """Return the text of `["a", "b"].join(" ")` and the index of the next token; None for other code."""
        end = self._skip_brackets(words, place)
        behind = words[end : end + 4]
        if [token.text for token in behind[:3]] != [".", "join", "("]:
            return None
        glue = behind[3].text if len(behind) > 3 and behind[3].kind == "string" else ","
        return glue.join(self.fold_list(words[place:end]) or []), min(len(words), end + 5)

    def _fold_name(self, words: Sequence[Token], place: int) -> tuple[str, int]:
        """Return the text of the variable at index `place`, and the index of the token after it."""
        name = words[place].text.lstrip("$@%&")
        rest = words[place + 1 : place + 8]
        if name in self.values:
            return self.values[name], place + 1
        if name in _INPUT_NAMES and rest and rest[0].text == ".":
            return GAP, place + 1
        if name in _HOME_FUNCTIONS:
            return HOME, self._skip_access(words, place + 1)
        if name in _ENVIRONMENT_NAMES:
            end = self._skip_access(words, place + 1)
            known = any(token.text in ("HOME", "user.home", "USERPROFILE", "~") for token in words[place:end])
            return (HOME if known else GAP), end
        if (
            name in DECODING_NAMES
            and (text := next((t.text for t in words[place:] if t.kind == "string"), None)) is not None
        ):
            return _decode_string(name, text, words[place:]), len(words)
        if (
            name in _TRANSPARENT_CALLS
            or name in _DECLARING_WORDS
            or (rest and rest[0].kind == "string" and name in LISTING_FUNCTIONS)
        ):
            return "", place + 1
        called = bool(rest) and rest[0].text == "("
        qualifies = bool(rest) and rest[0].kind == "mark" and rest[0].text in (".", ":", "-")
        if (
            name in LISTING_FUNCTIONS
            or qualifies
            or name in ("true", "false", "TRUE", "FALSE", "T", "F", "nil", "null")
        ):
            return "", place + 1
        return GAP, self._skip_brackets(words, place + 1) if called else place + 1

    def _skip_access(self, words: Sequence[Token], at: int) -> int:
        """Return the index of the token after an attribute or item access: `.env.HOME`, `["HOME"]`."""
        while at < len(words) and words[at].kind == "mark":
            self.steps += 1
            if words[at].text in OPENING_BRACKETS:
                at = self._skip_brackets(words, at)
            elif words[at].text in (".", "-", ">", ":") and _is_member(words, at + 1):
                at += 1 if words[at + 1].kind == "mark" else 2
            else:
                break
        return at

    def _skip_brackets(self, words: Sequence[Token], at: int) -> int:
        """Return the index of the token after the bracket expression that starts at or after index `at`."""
        depth = 0
        for place in range(at, len(words)):
            self.steps += 1
            if words[place].kind == "mark" and words[place].text in OPENING_BRACKETS:
                depth += 1
            elif words[place].kind == "mark" and words[place].text in CLOSING_BRACKETS:
                depth -= 1
                if depth <= 0:
                    return place + 1
        return len(words)

    def fold_list(self, words: Sequence[Token]) -> list[str] | None:
        """Return the strings of a list literal or of a list variable; None if the strings are unknown."""
        if len(words) == 1 and words[0].kind == "words":
            return words[0].text.split()
        if len(words) == 1 and words[0].kind == "name":
            return self.lists.get(words[0].text.lstrip("$@%&"))
        if not any(token.kind == "mark" and token.text in OPENING_BRACKETS for token in words[:3]):
            return None
        strings: list[str] = []
        part: list[Token] = []
        depth = 0
        for token in [*words, Token("mark", ",")]:
            self.steps += 1
            if token.kind == "mark":
                depth += (token.text in OPENING_BRACKETS) - (token.text in CLOSING_BRACKETS)
            if token.kind == "mark" and (
                token.text == "," or (depth == 0 and token.text in CLOSING_BRACKETS)
            ):
                text = self.fold_text(part)
                strings += [text] if text is not None else []
                part = []
                if token.text in CLOSING_BRACKETS:
                    break
            elif token.kind != "line":
                part.append(token)
        return strings


def _is_member(words: Sequence[Token], at: int) -> bool:
    if at >= len(words):
        return False
    token = words[at]
    return (token.kind == "name" and token.text[0] not in "$@%&") or token.text in (">", ":")


def _is_unpack_method(words: Sequence[Token], place: int) -> bool:
    """Return True for Ruby's `["…"].pack("H*")` and `"…".unpack1("m")`, which decode the text before them."""
    named = words[place].kind == "name" and words[place].text in ("pack", "unpack", "unpack1")
    return named and place > 0 and words[place - 1].text == "."


def _decode_string(name: str, text: str, words: Sequence[Token]) -> str:
    """Decode a hex or base64 string literal; return a placeholder for unknown text if that fails."""
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
