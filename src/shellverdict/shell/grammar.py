"""Parse shell scripts into a syntax tree, as bash would.

It expands nothing and knows no programs. Text that bash would not accept raises `ShellSyntaxError` with the
statements parsed before the error; text that needs too much work raises `BudgetExceeded`. Every character is
visited a bounded number of times, so that the time stays linear.
"""

from __future__ import annotations

import re

from shellverdict.shell.budget import Budget
from shellverdict.shell.tree import (
    EMPTY_SCRIPT,
    AndOrList,
    Array,
    Assignment,
    CaseStatement,
    CommandGroup,
    ForLoop,
    FunctionDefinition,
    IfStatement,
    Literal,
    Node,
    Pipeline,
    Redirection,
    Script,
    SimpleCommand,
    Statement,
    WhileLoop,
    WordNode,
)
from shellverdict.shell.word_grammar import UNQUOTED_TEXT, ShellSyntaxError, WordParser

__all__ = ["DECLARATION_COMMANDS", "RESERVED_WORD", "parse_partial_input", "parse_script"]


NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]\n]{0,200}\])?(\+?=)")
REDIRECTION_OPERATOR = re.compile(
    r"(\d+|\{[A-Za-z_]\w*\})?(<<<|<<-|<<|<>|<&|>&|>>|>\||<(?!\()|>(?!\())|(&>>|&>)"
)
RESERVED_WORD = re.compile(
    r"(if|then|elif|else|fi|while|until|do|done|for|select|case|esac|function|time|coproc|\{|\}|!|\[\[)"
    r"(?=[ \t\n;&|()<>]|\\\n|\Z)"
)
DECLARATION_COMMANDS = frozenset({"declare", "export", "local", "readonly", "typeset", "alias"})
CLOSING_WORDS = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})


def parse_script(text: str, budget: Budget, *, depth: int = 0) -> Script:
    """Parse the whole text as a shell script."""
    parser = Parser(text, budget, depth)
    return parser.parse_all()


def parse_partial_input(text: str, budget: Budget) -> Script:
    """Parse shell input that may not be complete yet.

    Raises `ShellSyntaxError` with `is_unfinished` set if the shell would wait for more input before it runs
    anything.
    """
    parser = Parser(text, budget)
    script = parser.parse_all()
    if parser.has_open_heredoc or text.endswith("\\\n"):
        problem = ShellSyntaxError("the shell command is not complete", len(text), is_unfinished=True)
        problem.script = script
        raise problem
    return script


class Parser(WordParser):
    """Recursive descent parser that reads one text from left to right."""

    def __init__(self, text: str, budget: Budget, depth: int = 0, *, is_nested: bool = False) -> None:
        super().__init__(text, budget, depth, is_nested=is_nested)
        self.has_open_heredoc = False

    def parse_all(self) -> Script:
        """Parse the whole text as a shell script."""
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

    def _parse_nested_script(self, text: str) -> Script:
        return parse_script(text, self.budget, depth=self.depth)

    # Statements

    def _parse_block(self, closers: frozenset[str]) -> Script:
        statements: list[Statement] = []
        self._enter_nesting()
        self._parse_statements(statements, closers)
        self.depth -= 1
        return Script(tuple(statements))

    def _parse_statements(self, found: list[Statement], closers: frozenset[str]) -> None:
        """Parse statements up to the end of the text, a closing parenthesis or a word such as `done`."""
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
        """Parse `[[ … ]]` into its words, without the operators between the words."""
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
        """Parse `(( … ))`; return None if the parentheses open two nested groups instead."""
        inside = self._find_arithmetic_end(self.position + 2)
        if inside is None:
            return None
        start, self.position = self.position, inside + 2
        parts = self._create_subparser(self.text[start + 2 : inside]).parse_quoted_parts()
        return CommandGroup(EMPTY_SCRIPT, words=(WordNode(parts, start, self.position),))

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

    # Token helpers

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

    def _expect_reserved_word(self, word: str) -> None:
        if self._peek_reserved_word() != word:
            self._raise_error(f"{word!r} is missing")
        self.position += len(word)
