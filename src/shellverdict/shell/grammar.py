"""Parser for shell scripts: text to a syntax tree, grouped as bash would.

It expands nothing and knows no programs. Text that bash would not accept raises `ShellSyntaxError` with the
statements parsed before the error; text that needs too much work raises `BudgetExceeded`. Every character is
visited a bounded number of times, so that the time stays linear.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from shellverdict.shell.tree import (
    EMPTY_SCRIPT,
    AndOrList,
    ArithmeticExpansion,
    Array,
    Assignment,
    CaseStatement,
    CommandGroup,
    CommandSubstitution,
    ForLoop,
    FunctionDefinition,
    IfStatement,
    Literal,
    Node,
    ParameterExpansion,
    Part,
    Pipeline,
    ProcessSubstitution,
    Redirection,
    Script,
    SimpleCommand,
    Statement,
    WhileLoop,
    WordNode,
)

__all__ = [
    "DECLARATION_COMMANDS",
    "Budget",
    "BudgetExceeded",
    "ShellSyntaxError",
    "parse_partial_input",
    "parse_script",
]

MAX_NESTING_DEPTH = 40


class ShellSyntaxError(Exception):
    """The text is not valid shell code; `script` has the statements before the error."""

    def __init__(self, problem: str, position: int, *, is_unfinished: bool = False) -> None:
        """Create the error; `is_unfinished` means that a shell would wait for more input."""
        super().__init__(problem)
        self.position = position
        self.is_unfinished = is_unfinished
        self.script: Script | None = None


class BudgetExceeded(Exception):
    """The analysis of the command needs more work than one verdict may cost."""


@dataclass(slots=True)
class Budget:
    """Remaining amount of work, shared by everything that analyses one command."""

    steps: int = 10_000

    def spend(self, steps: int = 1) -> None:
        """Use up the steps; raise `BudgetExceeded` if none are left."""
        self.steps -= steps
        if self.steps < 0:
            raise BudgetExceeded


BLANKS = re.compile(r"(?:[ \t]|\\\n)+")
UNQUOTED_TEXT = re.compile(r"[^ \t\n\\'\"`$<>|&;()]+")
DOUBLE_QUOTED_TEXT = re.compile(r"[^\\\"`$]+")
BRACED_TEXT = re.compile(r"[^\\'\"`$}/]+")
HEREDOC_TEXT = re.compile(r"[^\\`$]+")
NAME_START = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
NAME_REST = re.compile(r"[A-Za-z0-9_]+")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!_-]")
SHORT_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]|[@*#?$!_-]")
ZSH_SPLIT_PARAMETER = re.compile(r"[=~^]{1,4}([A-Za-z_][A-Za-z0-9_]*)")  # `$=v` is split even if quoted
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]\n]{0,200}\])?(\+?=)")
REDIRECTION_OPERATOR = re.compile(
    r"(\d+|\{[A-Za-z_]\w*\})?(<<<|<<-|<<|<>|<&|>&|>>|>\||<(?!\()|>(?!\())|(&>>|&>)"
)
PARAMETER_OPERATOR = re.compile(r":[-=?+]|[-=?+]|##?|%%?|//?|\^\^?|,,?|@|:")
RESERVED_WORD = re.compile(
    r"(if|then|elif|else|fi|while|until|do|done|for|select|case|esac|function|time|coproc|\{|\}|!|\[\[)"
    r"(?=[ \t\n;&|()<>]|\\\n|\Z)"
)
DECLARATION_COMMANDS = frozenset({"declare", "export", "local", "readonly", "typeset", "alias"})
CLOSING_WORDS = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})
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


def parse_script(text: str, budget: Budget, *, depth: int = 0) -> Script:
    """Parse the whole text as a script."""
    parser = Parser(text, budget, depth)
    return parser.parse_all()


def parse_partial_input(text: str, budget: Budget) -> Script:
    """Parse text that is still being written to a shell.

    Raises `ShellSyntaxError` with `is_unfinished` set if the shell would wait for more input before it runs
    anything.
    """
    parser = Parser(text, budget)
    script = parser.parse_all()
    if parser.has_open_heredoc or text.endswith("\\\n"):
        problem = ShellSyntaxError("the input is not complete", len(text), is_unfinished=True)
        problem.script = script
        raise problem
    return script


class Parser:
    """Recursive descent parser that reads one text from left to right."""

    def __init__(self, text: str, budget: Budget, depth: int = 0, *, is_nested: bool = False) -> None:
        self.text, self.end, self.position = text, len(text), 0
        self.budget, self.depth = budget, depth
        self.pending_heredocs: list[Redirection] = []  # waiting for the end of their line
        self.has_open_heredoc = False
        self._is_nested = is_nested or depth > 0  # more input cannot complete a nested part

    def parse_all(self) -> Script:
        """Parse the whole text as a script."""
        statements: list[Statement] = []
        try:
            self._parse_statements(statements, frozenset())
            if self.position < self.end:
                self._raise_error("a closing word or bracket has no opening one")
        except ShellSyntaxError as problem:
            problem.script = Script(tuple(statements))
            raise
        self._read_pending_heredocs()
        return Script(tuple(statements))

    # Statements

    def _parse_block(self, closers: frozenset[str]) -> Script:
        statements: list[Statement] = []
        self._enter_nesting()
        self._parse_statements(statements, closers)
        self.depth -= 1
        return Script(tuple(statements))

    def _enter_nesting(self) -> None:
        self.depth += 1
        if self.depth > MAX_NESTING_DEPTH:
            raise BudgetExceeded

    def _parse_statements(self, found: list[Statement], closers: frozenset[str]) -> None:
        """Parse until the end, a closing parenthesis, or one of the closing words."""
        while True:
            self._skip_blank_lines()
            if (
                self.position >= self.end
                or self._starts_with(")")
                or self._starts_with(";;")
                or self._starts_with(";&")
            ):
                return
            word = self._peek_reserved_word()
            if word in CLOSING_WORDS:
                if word in closers:
                    return
                self._raise_error(f"{word!r} has no opening word")
            node = self._parse_and_or()
            self._skip_blanks()
            background = (
                self._starts_with("&") and not self._starts_with("&&") and not self._starts_with("&>")
            )
            found.append(Statement(node, background))
            if background or (
                self._starts_with(";") and not self._starts_with(";;") and not self._starts_with(";&")
            ):
                self.position += 1
            elif self.position < self.end and self.text[self.position] not in "\n);":
                self._raise_error("unexpected text after a command")

    def _parse_and_or(self) -> Node:
        first = self._parse_pipeline()
        links: list[tuple[str, Node]] = []
        while True:
            self._skip_blanks()
            operator = self.text[self.position : self.position + 2]
            if operator not in ("&&", "||"):
                return AndOrList(first, tuple(links)) if links else first
            self.position += 2
            self._skip_blank_lines()
            links.append((operator, self._parse_pipeline()))

    def _parse_pipeline(self) -> Node:
        while True:
            self._skip_blanks()
            word = self._peek_reserved_word()
            if word == "!":
                self.position += 1
            elif word == "time":
                self.position += 4
                self._skip_blanks()
                if self.text.startswith("-p", self.position):
                    self.position += 2
            else:
                break
        stages = [self._parse_command()]
        while True:
            self._skip_blanks()
            if not self._starts_with("|") or self._starts_with("||"):
                break
            self.position += 2 if self._starts_with("|&") else 1
            self._skip_blank_lines()
            stages.append(self._parse_command())
        return stages[0] if len(stages) == 1 else Pipeline(tuple(stages))

    def _parse_command(self) -> Node:
        self.budget.spend()
        self._skip_blanks()
        word = self._peek_reserved_word()
        compound = self._parse_compound(word)
        if compound is None:
            return self._parse_simple_command()
        redirects: list[Redirection] = []
        while self._parse_redirection(redirects):
            pass
        return CommandGroup(Script((Statement(compound),)), tuple(redirects)) if redirects else compound

    def _parse_compound(self, word: str | None) -> Node | None:
        if self._starts_with("(("):
            arithmetic = self._parse_arithmetic_command()
            if arithmetic is not None:
                return arithmetic
        if self._starts_with("("):
            self.position += 1
            body = self._parse_block(frozenset())
            self._expect_text(")")
            return CommandGroup(body, in_subshell=True)
        match word:
            case "{":
                return CommandGroup(self._parse_between("{", "}"))
            case "if":
                return self._parse_if()
            case "while" | "until":
                return self._parse_while(word)
            case "for" | "select":
                return self._parse_for(word)
            case "case":
                return self._parse_case()
            case "function":
                return self._parse_function()
            case "[[":
                return self._parse_test()
            case "coproc":
                return self._parse_coproc()
        return None

    def _parse_between(self, opening: str, closing: str) -> Script:
        self.position += len(opening)
        body = self._parse_block(frozenset({closing}))
        self._expect_reserved_word(closing)
        return body

    def _parse_if(self) -> Node:
        arms: list[tuple[Script | None, Script]] = []
        condition: Script | None = self._parse_between("if", "then")
        while True:
            body = self._parse_block(frozenset({"elif", "else", "fi"}))
            arms.append((condition, body))
            word = self._peek_reserved_word()
            if word == "fi":
                self.position += 2
                return IfStatement(tuple(arms))
            if word is None or condition is None:
                self._raise_error("an `if` has no `fi`")
            condition = self._parse_between("elif", "then") if word == "elif" else None
            if condition is None:
                self.position += len("else")

    def _parse_while(self, word: str) -> Node:
        condition = self._parse_between(word, "do")
        body = self._parse_block(frozenset({"done"}))
        self._expect_reserved_word("done")
        return WhileLoop(condition, body)

    def _parse_for(self, word: str) -> Node:
        self.position += len(word)
        self._skip_blanks()
        if self._starts_with("(("):
            head = self._parse_arithmetic_command()
            self._skip_separator()
            return WhileLoop(
                EMPTY_SCRIPT, self._parse_loop_body(), head.words if isinstance(head, CommandGroup) else ()
            )
        name = NAME.match(self.text, self.position)
        if name is None:
            self._raise_error("a `for` has no variable name")
        self.position = name.end()
        self._skip_blank_lines()
        words: list[WordNode] | None = None
        if re.compile(r"in(?=\s|;|$)").match(self.text, self.position):
            self.position += 2
            words = []
            while (word_node := self._parse_next_word()) is not None:
                words.append(word_node)
        self._skip_separator()
        return ForLoop(name.group(), None if words is None else tuple(words), self._parse_loop_body())

    def _skip_separator(self) -> None:
        self._skip_blanks()
        if self._starts_with(";"):
            self.position += 1
        self._skip_blank_lines()

    def _parse_loop_body(self) -> Script:
        if self._peek_reserved_word() == "{":
            return self._parse_between("{", "}")
        if self._peek_reserved_word() != "do":
            self._raise_error("a loop has no `do`")
        return self._parse_between("do", "done")

    def _parse_case(self) -> Node:
        self.position += len("case")
        subject = self._parse_next_word()
        self._skip_blank_lines()
        if subject is None or not self.text.startswith("in", self.position):
            self._raise_error("a `case` has no `in`")
        self.position += 2
        arms: list[tuple[tuple[WordNode, ...], Script]] = []
        while True:
            self._skip_blank_lines()
            if self._peek_reserved_word() == "esac":
                self.position += 4
                return CaseStatement(subject, tuple(arms))
            arms.append((self._parse_case_patterns(), self._parse_block(frozenset({"esac"}))))
            for ending in (";;&", ";;", ";&"):
                if self._starts_with(ending):
                    self.position += len(ending)
                    break

    def _parse_case_patterns(self) -> tuple[WordNode, ...]:
        if self._starts_with("("):
            self.position += 1
        patterns: list[WordNode] = []
        while True:
            pattern = self._parse_next_word()
            if pattern is None:
                self._raise_error("a `case` clause has no pattern")
            patterns.append(pattern)
            self._skip_blanks()
            if self._starts_with(")"):
                self.position += 1
                return tuple(patterns)
            self._expect_text("|")

    def _parse_function(self) -> Node:
        self.position += len("function")
        name = self._parse_next_word()
        if name is None or name.bare_text is None:
            self._raise_error("a function has no plain name")
        self._skip_blanks()
        if self._starts_with("("):
            self.position += 1
            self._skip_blanks()
            self._expect_text(")")
        return self._parse_function_body(name.bare_text or "")

    def _parse_function_body(self, name: str) -> Node:
        self._skip_blank_lines()
        self._enter_nesting()
        body = self._parse_command()
        self.depth -= 1
        return FunctionDefinition(name, body)

    def _parse_coproc(self) -> Node:
        self.position += len("coproc")
        self._skip_blanks()
        start = self.position
        name = NAME.match(self.text, self.position)
        if name:  # a name is only allowed before a compound command
            self.position = name.end()
            self._skip_blanks()
            if self._starts_with("(") or self._peek_reserved_word() not in (None, "!", "time", "coproc"):
                return self._parse_command()
            self.position = start
        return self._parse_command()

    def _parse_test(self) -> Node:
        """Parse `[[ … ]]`: only its expanded words matter, not the operators between them."""
        self.position += 2
        words: list[WordNode] = []
        while True:
            self._skip_blank_lines()
            if self.text.startswith("]]", self.position):
                self.position += 2
                return CommandGroup(EMPTY_SCRIPT, words=tuple(words))
            if self.position >= self.end:
                self._raise_error("a `[[` has no `]]`")
            if self.text[self.position] in "()<>|&!;" and not self.text.startswith(
                ("<(", ">("), self.position
            ):
                self.position += 1
                continue
            words.append(self._parse_word())

    def _parse_arithmetic_command(self) -> CommandGroup | None:
        """Parse `(( … ))`; return None if it is two opening parentheses of nested groups."""
        inside = self._find_arithmetic_end(self.position + 2)
        if inside is None:
            return None
        start, self.position = self.position, inside + 2
        parts = self._create_subparser(self.text[start + 2 : inside]).parse_quoted_parts()
        return CommandGroup(EMPTY_SCRIPT, words=(WordNode(parts, start, self.position),))

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

    # Simple commands

    def _parse_simple_command(self) -> Node:
        start = self.position
        assignments: list[Assignment] = []
        words: list[WordNode | Assignment] = []
        redirects: list[Redirection] = []
        declares = False
        while True:
            self._skip_blanks()
            if self._parse_redirection(redirects):
                continue
            if self.position >= self.end or (
                self.text[self.position] in "\n;|&()<>" and not self._is_at_process_substitution()
            ):
                break
            assigned = self._parse_assignment() if not words or declares else None
            if assigned is not None:
                (words if words else assignments).append(assigned)
                continue
            word = self._parse_word()
            words.append(word)
            declares = declares or (len(words) == 1 and word.bare_text in DECLARATION_COMMANDS)
            if len(words) == 1 and word.bare_text and not assignments and self._skip_empty_parentheses():
                return self._parse_function_body(word.bare_text)
        if not (assignments or words or redirects):
            self._raise_error("a command is missing")
        return SimpleCommand(
            tuple(assignments),
            tuple(words),
            tuple(redirects),
            start,
            self._end_without_blanks(start),
            self.text,
        )

    def _end_without_blanks(self, start: int) -> int:
        end = self.position
        while end > start and self.text[end - 1] in " \t":
            end -= 1
        return end

    def _skip_empty_parentheses(self) -> bool:
        found = re.compile(r"[ \t]*\([ \t]*\)").match(self.text, self.position)
        if found:
            self.position = found.end()
        return found is not None

    def _parse_assignment(self) -> Assignment | None:
        found = ASSIGNMENT.match(self.text, self.position)
        if found is None:
            return None
        name, index, operator = found.groups()
        self.position = found.end()
        where = self._create_subparser(index[1:-1]).parse_quoted_parts() if index else None
        if self._starts_with("("):
            return Assignment(name, self._parse_array(), where, operator == "+=")
        return Assignment(name, self._parse_parts(UNQUOTED_TEXT), where, operator == "+=")

    def _parse_array(self) -> Array:
        self.position += 1
        words: list[WordNode] = []
        while True:
            self._skip_blank_lines()
            if self._starts_with(")"):
                self.position += 1
                return Array(tuple(words))
            word = self._parse_next_word()
            if word is None:
                self._raise_error("an array has no closing parenthesis")
            words.append(word)

    def _parse_redirection(self, redirects: list[Redirection]) -> bool:
        self._skip_blanks()
        found = REDIRECTION_OPERATOR.match(self.text, self.position)
        if found is None:
            return False
        self.budget.spend()
        operator = found.group(2) or found.group(3)
        self.position = found.end()
        self._skip_blanks()
        if operator in ("<<", "<<-"):
            redirects.append(self._parse_heredoc_start(operator, found.group(1) or ""))
            return True
        if self.position >= self.end or (
            self.text[self.position] in "\n;|&()<>" and not self._is_at_process_substitution()
        ):
            self._raise_error("a redirection has no target")
        redirects.append(Redirection(operator, self._parse_word().parts, found.group(1) or ""))
        return True

    def _parse_heredoc_start(self, operator: str, descriptor: str) -> Redirection:
        word = self._parse_next_word()
        if word is None:
            self._raise_error("a here-document has no delimiter")
        written = self.text[word.start : word.end]
        delimiter = "".join(part.text for part in word.parts if isinstance(part, Literal))
        if any(not isinstance(part, Literal) for part in word.parts):
            delimiter = written
        expands = not any(isinstance(part, Literal) and part.quoted for part in word.parts)
        heredoc = Redirection(operator, (), descriptor, delimiter, expands)
        self.pending_heredocs.append(heredoc)
        return heredoc

    def _read_pending_heredocs(self) -> None:
        """Read the bodies of the here-documents that were started on the line that just ended."""
        for heredoc in self.pending_heredocs:
            body = self._read_heredoc_body(heredoc)
            if heredoc.expands:
                heredoc.target = self._create_subparser(body).parse_heredoc_parts()
            else:
                heredoc.target = (Literal(body, quoted=True),)
        self.pending_heredocs = []

    def _read_heredoc_body(self, heredoc: Redirection) -> str:
        tabs = r"\t*" if heredoc.operator == "<<-" else ""
        found = re.compile(rf"^{tabs}{re.escape(heredoc.delimiter)}$", re.MULTILINE).search(
            self.text, self.position
        )
        self.has_open_heredoc = self.has_open_heredoc or found is None
        stop = found.start() if found else self.end
        body = self.text[self.position : stop]
        self.position = min(found.end() + 1, self.end) if found else self.end
        return re.sub(r"^\t+", "", body, flags=re.MULTILINE) if tabs else body

    # Words

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

    def _create_subparser(self, text: str) -> Parser:
        return Parser(text, self.budget, self.depth, is_nested=True)

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
        body = parse_script(text, self.budget, depth=self.depth)
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

    def _skip_blank_lines(self) -> None:
        while True:
            self._skip_blanks()
            if self.position >= self.end or self.text[self.position] != "\n":
                return
            self.position += 1
            self.budget.spend()
            if self.pending_heredocs:
                self._read_pending_heredocs()

    def _peek_reserved_word(self) -> str | None:
        found = RESERVED_WORD.match(self.text, self.position)
        return found.group(1) if found else None

    def _expect_text(self, text: str) -> None:
        if not self._starts_with(text):
            self._raise_error(f"{text!r} is missing")
        self.position += len(text)

    def _expect_reserved_word(self, word: str) -> None:
        if self._peek_reserved_word() != word:
            self._raise_error(f"{word!r} is missing")
        self.position += len(word)

    def _raise_error(self, problem: str, *, unclosed: bool = False) -> NoReturn:
        """Raise a syntax error; it is unfinished if more input could still complete the text."""
        is_unfinished = not self._is_nested and (unclosed or self.position >= self.end)
        raise ShellSyntaxError(problem, self.position, is_unfinished=is_unfinished)


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
