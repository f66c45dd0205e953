"""Parser for the words of a shell script: quotes, escapes, substitutions and parameter expansions."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import NoReturn, Self

from shellverdict.shell.budget import Budget, BudgetExceeded
from shellverdict.shell.tree import (
    ArithmeticExpansion,
    CommandSubstitution,
    Literal,
    ParameterExpansion,
    Part,
    ProcessSubstitution,
    Redirection,
    Script,
    WordNode,
)

__all__ = ["ANSI_C_ESCAPES", "UNQUOTED_TEXT", "ShellSyntaxError", "WordParser"]

MAX_NESTING_DEPTH = 40
BLANKS = re.compile(r"(?:[ \t]|\\\n)+")
UNQUOTED_TEXT = re.compile(r"[^ \t\n\\'\"`$<>|&;()]+")
DOUBLE_QUOTED_TEXT = re.compile(r"[^\\\"`$]+")
BRACED_TEXT = re.compile(r"[^\\'\"`$}/]+")
HEREDOC_TEXT = re.compile(r"[^\\`$]+")
NAME_START = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
NAME_REST = re.compile(r"[A-Za-z0-9_]+")
PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!_-]")
SHORT_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]|[@*#?$!_-]")
ZSH_SPLIT_PARAMETER = re.compile(r"[=~^]{1,4}([A-Za-z_][A-Za-z0-9_]*)")  # `$=v` is split even if quoted
PARAMETER_OPERATOR = re.compile(r":[-=?+]|[-=?+]|##?|%%?|//?|\^\^?|,,?|@|:")
BACKTICK_ESCAPES = re.compile(r"\\([\\`$])")
ANSI_C_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|c(.)|(.))", re.DOTALL
)
ANSI_C_ESCAPES = {
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}


class ShellSyntaxError(Exception):
    """Raised for text that is not valid shell code; `script` contains the statements before the error."""

    def __init__(self, problem: str, position: int, *, is_unfinished: bool = False) -> None:
        """Create the error; `is_unfinished` means that a shell would wait for more input."""
        super().__init__(problem)
        self.position = position
        self.is_unfinished = is_unfinished
        self.script: Script | None = None


class WordParser(ABC):
    """Recursive descent parser for shell words; the subclass `Parser` adds statements and whole scripts."""

    def __init__(self, text: str, budget: Budget, depth: int = 0, *, is_nested: bool = False) -> None:
        self.text, self.end, self.position = text, len(text), 0
        self.budget, self.depth = budget, depth
        self.pending_heredocs: list[Redirection] = []  # waiting for the end of their line
        self._is_nested = is_nested or depth > 0  # more input cannot complete a nested part

    @abstractmethod
    def _parse_block(self, closers: frozenset[str]) -> Script:
        """Parse statements up to a closing parenthesis or one of the closing words (`done`, `fi` …)."""

    @abstractmethod
    def _parse_nested_script(self, text: str) -> Script:
        """Parse the text of a command substitution as a whole script."""

    # Words and their parts

    def _parse_next_word(self) -> WordNode | None:
        self._skip_blanks()
        if self.position >= self.end or (
            self.text[self.position] in "\n;|&()<>" and not self._is_at_process_substitution()
        ):
            return None
        return self._parse_word()

    def _parse_word(self) -> WordNode:
        start = self.position
        parts = self._parse_parts(UNQUOTED_TEXT)
        if self.position == start:
            self._raise_error("a word is missing")
        return WordNode(parts, start, self.position)

    def _is_at_process_substitution(self) -> bool:
        return self.text.startswith(("<(", ">("), self.position)

    def _parse_parts(self, plain: re.Pattern[str], stop: str = "", quoted: bool = False) -> tuple[Part, ...]:
        """Parse the parts of a word up to its end or up to one of the characters in `stop`."""
        parts: list[Part] = []
        while self.position < self.end:
            self.budget.spend()
            found = plain.match(self.text, self.position)
            if found:
                parts.append(Literal(found.group(), quoted))
                self.position = found.end()
                continue
            character = self.text[self.position]
            if character in stop:
                break
            if character == "\\":
                self._parse_escape(parts, plain, quoted)
            elif character == "$":
                parts.append(self._parse_dollar(quoted))
            elif character == "`":
                parts.append(self._parse_backticks(quoted))
            elif character == "'" and not quoted:
                parts.append(self._parse_single_quotes())
            elif character == '"' and not (quoted and plain is not BRACED_TEXT):
                parts.extend(self._parse_double_quotes())
            elif plain is UNQUOTED_TEXT and self._is_at_process_substitution():
                parts.append(self._parse_process_substitution())
            elif plain is UNQUOTED_TEXT:
                break
            else:
                parts.append(Literal(character, quoted))
                self.position += 1
        return tuple(parts)

    def _parse_escape(self, parts: list[Part], plain: re.Pattern[str], quoted: bool) -> None:
        following = self.text[self.position + 1 : self.position + 2]
        if following == "\n":
            self.position += 2
        elif not following or (quoted and following not in ('$`"\\}' if plain is BRACED_TEXT else '$`"\\')):
            parts.append(Literal("\\", quoted=True))
            self.position += 1
        else:
            parts.append(Literal(following, quoted=True))
            self.position += 2

    def _parse_single_quotes(self) -> Literal:
        close = self.text.find("'", self.position + 1)
        if close < 0:
            self._raise_error("a quotation mark is not closed", unclosed=True)
        text = self.text[self.position + 1 : close]
        self.position = close + 1
        return Literal(text, quoted=True)

    def _parse_double_quotes(self) -> tuple[Part, ...]:
        self.position += 1
        parts = self._parse_parts(DOUBLE_QUOTED_TEXT, '"', quoted=True)
        self._expect_text('"')
        return parts or (Literal("", quoted=True),)

    def parse_quoted_parts(self) -> tuple[Part, ...]:
        """Parse the whole text as if it were inside double quotes."""
        return self._parse_parts(DOUBLE_QUOTED_TEXT, quoted=True)

    def parse_heredoc_parts(self) -> tuple[Part, ...]:
        return self._parse_parts(HEREDOC_TEXT, quoted=True)

    def _create_subparser(self, text: str) -> Self:
        return type(self)(text, self.budget, self.depth, is_nested=True)

    def _parse_dollar(self, quoted: bool) -> Part:
        following = self.text[self.position + 1 : self.position + 2]
        if following == "'" and not quoted:
            return self._parse_ansi_c_string()
        if following == '"' and not quoted:
            self.position += 1
            parts = self._parse_double_quotes()
            return parts[0] if len(parts) == 1 else ArithmeticExpansion(parts)
        if following == "(":
            return self._parse_substitution(quoted)
        if following == "{":
            return self._parse_parameter(quoted)
        if following == "[":
            return self._parse_bracket_arithmetic()
        if found := ZSH_SPLIT_PARAMETER.match(self.text, self.position + 1):
            self.position = found.end()
            return ParameterExpansion(found.group(1))
        found = SHORT_PARAMETER.match(self.text, self.position + 1)
        if found is None:
            self.position += 1
            return Literal("$", quoted=True)
        name, self.position = found.group(), found.end()
        while self._starts_with("\\\n") and name[0] in NAME_START:  # an escaped newline may be inside a name
            self.position += 2
            more = NAME_REST.match(self.text, self.position)
            name, self.position = (name + more.group(), more.end()) if more else (name, self.position)
        return ParameterExpansion(name, quoted)

    def _parse_ansi_c_string(self) -> Literal:
        place = self.position + 2
        while place < self.end and self.text[place] != "'":
            place += 2 if self.text[place] == "\\" else 1
        if place >= self.end:
            self._raise_error("a quotation mark is not closed", unclosed=True)
        text = self.text[self.position + 2 : place]
        self.position = place + 1
        return Literal(ANSI_C_ESCAPE.sub(_decode_ansi_escape, text).partition("\0")[0], quoted=True)

    def _parse_substitution(self, quoted: bool) -> Part:
        if self.text.startswith("$((", self.position):
            inside = self._find_arithmetic_end(self.position + 3)
            if inside is not None:
                text = self.text[self.position + 3 : inside]
                self.position = inside + 2
                return ArithmeticExpansion(self._create_subparser(text).parse_quoted_parts())
        self.position += 2
        pending_heredocs, self.pending_heredocs = self.pending_heredocs, []
        body = self._parse_block(frozenset())
        self._expect_text(")")
        self.pending_heredocs = pending_heredocs + self.pending_heredocs
        return CommandSubstitution(body, quoted)

    def _parse_process_substitution(self) -> Part:
        writes = self._starts_with(">")
        self.position += 2
        body = self._parse_block(frozenset())
        self._expect_text(")")
        return ProcessSubstitution(body, writes)

    def _parse_backticks(self, quoted: bool) -> Part:
        place = self.position + 1
        while place < self.end and self.text[place] != "`":
            place += 2 if self.text[place] == "\\" else 1
        if place >= self.end:
            self._raise_error("a backtick is not closed", unclosed=True)
        text = BACKTICK_ESCAPES.sub(r"\1", self.text[self.position + 1 : place])
        if quoted:
            text = text.replace('\\"', '"')
        self.position = place + 1
        self._enter_nesting()
        body = self._parse_nested_script(text)
        self.depth -= 1
        return CommandSubstitution(body, quoted)

    def _parse_bracket_arithmetic(self) -> Part:
        close = self.text.find("]", self.position)
        if close < 0:
            self._raise_error("a bracket is not closed", unclosed=True)
        text = self.text[self.position + 2 : close]
        self.position = close + 1
        return ArithmeticExpansion(self._create_subparser(text).parse_quoted_parts())

    def _parse_parameter(self, quoted: bool) -> Part:
        self.position += 2
        self._enter_nesting()
        prefix = ""
        if self.text[self.position : self.position + 1] in ("!", "#") and self.text[
            self.position + 1 : self.position + 2
        ] not in (
            "}",
            ":",
        ):
            prefix = self.text[self.position]
            self.position += 1
        name = PARAMETER.match(self.text, self.position)
        if name is None:
            self._raise_error("a `${` has no variable name")
        self.position = name.end()
        index = self._parse_subscript()
        operator, argument, second = self._parse_operator(quoted)
        self._expect_text("}")
        self.depth -= 1
        return ParameterExpansion(name.group(), quoted, prefix, index, operator, argument, second)

    def _parse_subscript(self) -> tuple[Part, ...] | None:
        if not self._starts_with("["):
            return None
        close = self.text.find("]", self.position)
        if close < 0:
            self._raise_error("a bracket is not closed", unclosed=True)
        text = self.text[self.position + 1 : close]
        self.position = close + 1
        return self._create_subparser(text).parse_quoted_parts()

    def _parse_operator(self, quoted: bool) -> tuple[str, tuple[Part, ...], tuple[Part, ...] | None]:
        if self._starts_with("}"):
            return "", (), None
        found = PARAMETER_OPERATOR.match(self.text, self.position)
        if found is None:
            self._raise_error("a `${…}` has an unknown operator")
        operator = found.group()
        self.position = found.end()
        if operator == "/" and self.text[self.position : self.position + 1] in ("#", "%"):
            operator += self.text[self.position]
            self.position += 1
        slashed = operator.startswith("/")
        quoted = quoted and operator[-1] in "-=?+"  # outer quotes do not quote a pattern
        argument = self._parse_parts(BRACED_TEXT, "/}" if slashed else "}", quoted)
        second: tuple[Part, ...] | None = None
        if slashed and self._starts_with("/"):
            self.position += 1
            second = self._parse_parts(BRACED_TEXT, "}", quoted)
        return operator, argument, second

    def _find_arithmetic_end(self, position: int) -> int | None:
        depth = 0
        for place in range(position, min(self.end, position + 4096)):
            character = self.text[place]
            if character == "(":
                depth += 1
            elif character == ")":
                if depth == 0:
                    return place if self.text.startswith("))", place) else None
                depth -= 1
        return None

    # Token helpers

    def _starts_with(self, text: str) -> bool:
        return self.text.startswith(text, self.position)

    def _skip_blanks(self) -> None:
        found = BLANKS.match(self.text, self.position)
        if found:
            self.position = found.end()
        if self.position < self.end and self.text[self.position] == "#" and self._is_at_word_start():
            stop = self.text.find("\n", self.position)
            self.position = self.end if stop < 0 else stop

    def _is_at_word_start(self) -> bool:
        return self.position == 0 or self.text[self.position - 1] in " \t\n;|&()"

    def _expect_text(self, text: str) -> None:
        if not self._starts_with(text):
            self._raise_error(f"{text!r} is missing")
        self.position += len(text)

    def _raise_error(self, problem: str, *, unclosed: bool = False) -> NoReturn:
        """Raise a syntax error, marked as unfinished if more input could still complete the text."""
        is_unfinished = not self._is_nested and (unclosed or self.position >= self.end)
        raise ShellSyntaxError(problem, self.position, is_unfinished=is_unfinished)

    def _enter_nesting(self) -> None:
        self.depth += 1
        if self.depth > MAX_NESTING_DEPTH:
            raise BudgetExceeded


def _decode_ansi_escape(found: re.Match[str]) -> str:
    hexadecimal, short, long, octal, control, named = found.groups()
    if hexadecimal or short or long:
        return _character_from_code(int(hexadecimal or short or long, 16))
    if octal:
        return _character_from_code(int(octal, 8) & 0xFF)
    if control:
        return chr(ord(control.upper()) & 0x1F)
    return ANSI_C_ESCAPES.get(named, named if named in "\\'\"?" else "\\" + named)


def _character_from_code(code: int) -> str:
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"
