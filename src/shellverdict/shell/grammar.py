"""Shell text to a tree, as bash would group it: words with their quoting, and commands.

It expands nothing and knows no program. Text that bash would not accept raises `Unreadable`, with what was
read before it; text that asks for too much work raises `TooMuch`. Every byte is looked at a bounded number of
times, so that reading stays linear.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from shellverdict.shell.tree import (
    NOTHING,
    Arithmetic,
    Array,
    Assignment,
    Branch,
    Case,
    Chain,
    For,
    Function,
    Group,
    Literal,
    Loop,
    Node,
    Part,
    Pipeline,
    Process,
    Redirection,
    Script,
    Simple,
    Statement,
    Substitution,
    Variable,
    WordNode,
)

__all__ = ["DECLARES", "Budget", "TooMuch", "Unreadable", "parse", "parse_input"]

DEEPEST = 40


class Unreadable(Exception):
    """The text is not a shell's; `script` is what was read before the trouble."""

    def __init__(self, problem: str, at: int, *, unfinished: bool = False) -> None:
        """`unfinished`: more text could still make it readable, so that a shell would wait for it."""
        super().__init__(problem)
        self.at = at
        self.unfinished = unfinished
        self.script: Script | None = None


class TooMuch(Exception):
    """Reading on would take more work than a verdict may cost."""


@dataclass(slots=True)
class Budget:
    """How much may still be done; shared by everything that reads one command."""

    steps: int = 10_000

    def spend(self, steps: int = 1) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise TooMuch


BLANK = re.compile(r"(?:[ \t]|\\\n)+")
BARE = re.compile(r"[^ \t\n\\'\"`$<>|&;()]+")
IN_DOUBLE = re.compile(r"[^\\\"`$]+")
IN_BRACES = re.compile(r"[^\\'\"`$}/]+")
IN_HEREDOC = re.compile(r"[^\\`$]+")
NAME_START = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
NAME_REST = re.compile(r"[A-Za-z0-9_]+")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!_-]")
SHORT_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]|[@*#?$!_-]")
ZSH_SPLIT_PARAMETER = re.compile(r"[=~^]{1,4}([A-Za-z_][A-Za-z0-9_]*)")  # `$=v`: in words, also if quoted
ASSIGNS = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]\n]{0,200}\])?(\+?=)")
REDIRECT = re.compile(r"(\d+|\{[A-Za-z_]\w*\})?(<<<|<<-|<<|<>|<&|>&|>>|>\||<(?!\()|>(?!\())|(&>>|&>)")
OPERATOR = re.compile(r":[-=?+]|[-=?+]|##?|%%?|//?|\^\^?|,,?|@|:")
RESERVED = re.compile(
    r"(if|then|elif|else|fi|while|until|do|done|for|select|case|esac|function|time|coproc|\{|\}|!|\[\[)"
    r"(?=[ \t\n;&|()<>]|\\\n|\Z)"
)
DECLARES = frozenset({"declare", "export", "local", "readonly", "typeset", "alias"})
CLOSERS = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})
BACKTICK_ESCAPES = re.compile(r"\\([\\`$])")
ANSI_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|c(.)|(.))", re.DOTALL
)
ANSI_NAMED = {
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


def parse(text: str, budget: Budget, *, depth: int = 0) -> Script:
    """The whole text as a script."""
    parser = Parser(text, budget, depth)
    return parser.whole()


def parse_input(text: str, budget: Budget) -> Script:
    """Parse text that is still being written to a shell.

    Raises `Unreadable` with `unfinished` set where the shell would wait for more before it runs anything.
    """
    parser = Parser(text, budget)
    script = parser.whole()
    if parser.open_heredoc or text.endswith("\\\n"):
        problem = Unreadable("the text does not end here", len(text), unfinished=True)
        problem.script = script
        raise problem
    return script


class Parser:
    """Reads one text from left to right."""

    def __init__(self, text: str, budget: Budget, depth: int = 0, *, nested: bool = False) -> None:
        self.text, self.end, self.at = text, len(text), 0
        self.budget, self.depth = budget, depth
        self.waiting: list[Redirection] = []  # here-documents whose line has not ended
        self.open_heredoc = False
        self._nested = nested or depth > 0  # a part that is complete: nothing can be added to it

    def whole(self) -> Script:
        statements: list[Statement] = []
        try:
            self._statements(statements, frozenset())
            if self.at < self.end:
                self._fail("a closing word or bracket without its opening")
        except Unreadable as problem:
            problem.script = Script(tuple(statements))
            raise
        self._read_waiting()
        return Script(tuple(statements))

    # Statements

    def _script(self, closers: frozenset[str]) -> Script:
        statements: list[Statement] = []
        self._deeper()
        self._statements(statements, closers)
        self.depth -= 1
        return Script(tuple(statements))

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise TooMuch

    def _statements(self, found: list[Statement], closers: frozenset[str]) -> None:
        """Read until the end, a closing bracket, or one of the closing words."""
        while True:
            self._skip_lines()
            if self.at >= self.end or self._starts(")") or self._starts(";;") or self._starts(";&"):
                return
            word = self._reserved()
            if word in CLOSERS:
                if word in closers:
                    return
                self._fail(f"{word!r} without its beginning")
            node = self._and_or()
            self._blank()
            background = self._starts("&") and not self._starts("&&") and not self._starts("&>")
            found.append(Statement(node, background))
            if background or (self._starts(";") and not self._starts(";;") and not self._starts(";&")):
                self.at += 1
            elif self.at < self.end and self.text[self.at] not in "\n);":
                self._fail("something stands where a command should have ended")

    def _and_or(self) -> Node:
        first = self._pipeline()
        links: list[tuple[str, Node]] = []
        while True:
            self._blank()
            operator = self.text[self.at : self.at + 2]
            if operator not in ("&&", "||"):
                return Chain(first, tuple(links)) if links else first
            self.at += 2
            self._skip_lines()
            links.append((operator, self._pipeline()))

    def _pipeline(self) -> Node:
        while True:
            self._blank()
            word = self._reserved()
            if word == "!":
                self.at += 1
            elif word == "time":
                self.at += 4
                self._blank()
                if self.text.startswith("-p", self.at):
                    self.at += 2
            else:
                break
        stages = [self._command()]
        while True:
            self._blank()
            if not self._starts("|") or self._starts("||"):
                break
            self.at += 2 if self._starts("|&") else 1
            self._skip_lines()
            stages.append(self._command())
        return stages[0] if len(stages) == 1 else Pipeline(tuple(stages))

    def _command(self) -> Node:
        self.budget.spend()
        self._blank()
        word = self._reserved()
        compound = self._compound(word)
        if compound is None:
            return self._simple()
        redirects: list[Redirection] = []
        while self._redirect(redirects):
            pass
        return Group(Script((Statement(compound),)), tuple(redirects)) if redirects else compound

    def _compound(self, word: str | None) -> Node | None:
        if self._starts("(("):
            arithmetic = self._double_brackets()
            if arithmetic is not None:
                return arithmetic
        if self._starts("("):
            self.at += 1
            body = self._script(frozenset())
            self._expect(")")
            return Group(body, own_shell=True)
        match word:
            case "{":
                return Group(self._between("{", "}"))
            case "if":
                return self._if()
            case "while" | "until":
                return self._while(word)
            case "for" | "select":
                return self._for(word)
            case "case":
                return self._case()
            case "function":
                return self._function()
            case "[[":
                return self._test()
            case "coproc":
                return self._coproc()
        return None

    def _between(self, opening: str, closing: str) -> Script:
        self.at += len(opening)
        body = self._script(frozenset({closing}))
        self._expect_word(closing)
        return body

    def _if(self) -> Node:
        arms: list[tuple[Script | None, Script]] = []
        condition: Script | None = self._between("if", "then")
        while True:
            body = self._script(frozenset({"elif", "else", "fi"}))
            arms.append((condition, body))
            word = self._reserved()
            if word == "fi":
                self.at += 2
                return Branch(tuple(arms))
            if word is None or condition is None:
                self._fail("an `if` without its `fi`")
            condition = self._between("elif", "then") if word == "elif" else None
            if condition is None:
                self.at += len("else")

    def _while(self, word: str) -> Node:
        condition = self._between(word, "do")
        body = self._script(frozenset({"done"}))
        self._expect_word("done")
        return Loop(condition, body)

    def _for(self, word: str) -> Node:
        self.at += len(word)
        self._blank()
        if self._starts("(("):
            head = self._double_brackets()
            self._separator()
            return Loop(NOTHING, self._do(), head.words if isinstance(head, Group) else ())
        name = NAME.match(self.text, self.at)
        if name is None:
            self._fail("a `for` without a name")
        self.at = name.end()
        self._skip_lines()
        words: list[WordNode] | None = None
        if re.compile(r"in(?=\s|;|$)").match(self.text, self.at):
            self.at += 2
            words = []
            while (word_node := self._next_word()) is not None:
                words.append(word_node)
        self._separator()
        return For(name.group(), None if words is None else tuple(words), self._do())

    def _separator(self) -> None:
        self._blank()
        if self._starts(";"):
            self.at += 1
        self._skip_lines()

    def _do(self) -> Script:
        if self._reserved() == "{":
            return self._between("{", "}")
        if self._reserved() != "do":
            self._fail("a loop without its `do`")
        return self._between("do", "done")

    def _case(self) -> Node:
        self.at += len("case")
        subject = self._next_word()
        self._skip_lines()
        if subject is None or not self.text.startswith("in", self.at):
            self._fail("a `case` without its `in`")
        self.at += 2
        arms: list[tuple[tuple[WordNode, ...], Script]] = []
        while True:
            self._skip_lines()
            if self._reserved() == "esac":
                self.at += 4
                return Case(subject, tuple(arms))
            arms.append((self._patterns(), self._script(frozenset({"esac"}))))
            for ending in (";;&", ";;", ";&"):
                if self._starts(ending):
                    self.at += len(ending)
                    break

    def _patterns(self) -> tuple[WordNode, ...]:
        if self._starts("("):
            self.at += 1
        patterns: list[WordNode] = []
        while True:
            pattern = self._next_word()
            if pattern is None:
                self._fail("a `case` without a pattern")
            patterns.append(pattern)
            self._blank()
            if self._starts(")"):
                self.at += 1
                return tuple(patterns)
            self._expect("|")

    def _function(self) -> Node:
        self.at += len("function")
        name = self._next_word()
        if name is None or name.plain is None:
            self._fail("a function without a plain name")
        self._blank()
        if self._starts("("):
            self.at += 1
            self._blank()
            self._expect(")")
        return self._function_body(name.plain or "")

    def _function_body(self, name: str) -> Node:
        self._skip_lines()
        self._deeper()
        body = self._command()
        self.depth -= 1
        return Function(name, body)

    def _coproc(self) -> Node:
        self.at += len("coproc")
        self._blank()
        start = self.at
        name = NAME.match(self.text, self.at)
        if name:  # a name may stand before a compound command, and only there
            self.at = name.end()
            self._blank()
            if self._starts("(") or self._reserved() not in (None, "!", "time", "coproc"):
                return self._command()
            self.at = start
        return self._command()

    def _test(self) -> Node:
        """`[[ … ]]`: its words count for what they expand, not for what they compare."""
        self.at += 2
        words: list[WordNode] = []
        while True:
            self._skip_lines()
            if self.text.startswith("]]", self.at):
                self.at += 2
                return Group(NOTHING, words=tuple(words))
            if self.at >= self.end:
                self._fail("a `[[` without its `]]`")
            if self.text[self.at] in "()<>|&!;" and not self.text.startswith(("<(", ">("), self.at):
                self.at += 1
                continue
            words.append(self._word())

    def _double_brackets(self) -> Group | None:
        """`(( … ))`, or None where it is two brackets of two groups after all."""
        inside = self._arithmetic_end(self.at + 2)
        if inside is None:
            return None
        start, self.at = self.at, inside + 2
        parts = self._sub(self.text[start + 2 : inside]).quoted_parts()
        return Group(NOTHING, words=(WordNode(parts, start, self.at),))

    def _arithmetic_end(self, at: int) -> int | None:
        depth = 0
        for place in range(at, min(self.end, at + 4096)):
            character = self.text[place]
            if character == "(":
                depth += 1
            elif character == ")":
                if depth == 0:
                    return place if self.text.startswith("))", place) else None
                depth -= 1
        return None

    # Simple commands

    def _simple(self) -> Node:
        start = self.at
        assignments: list[Assignment] = []
        words: list[WordNode | Assignment] = []
        redirects: list[Redirection] = []
        declares = False
        while True:
            self._blank()
            if self._redirect(redirects):
                continue
            if self.at >= self.end or (self.text[self.at] in "\n;|&()<>" and not self._process()):
                break
            assigned = self._assignment() if not words or declares else None
            if assigned is not None:
                (words if words else assignments).append(assigned)
                continue
            word = self._word()
            words.append(word)
            declares = declares or (len(words) == 1 and word.plain in DECLARES)
            if len(words) == 1 and word.plain and not assignments and self._empty_brackets():
                return self._function_body(word.plain)
        if not (assignments or words or redirects):
            self._fail("a command is missing")
        return Simple(
            tuple(assignments), tuple(words), tuple(redirects), start, self._trimmed(start), self.text
        )

    def _trimmed(self, start: int) -> int:
        end = self.at
        while end > start and self.text[end - 1] in " \t":
            end -= 1
        return end

    def _empty_brackets(self) -> bool:
        found = re.compile(r"[ \t]*\([ \t]*\)").match(self.text, self.at)
        if found:
            self.at = found.end()
        return found is not None

    def _assignment(self) -> Assignment | None:
        found = ASSIGNS.match(self.text, self.at)
        if found is None:
            return None
        name, index, operator = found.groups()
        self.at = found.end()
        where = self._sub(index[1:-1]).quoted_parts() if index else None
        if self._starts("("):
            return Assignment(name, self._array(), where, operator == "+=")
        return Assignment(name, self._parts(BARE), where, operator == "+=")

    def _array(self) -> Array:
        self.at += 1
        words: list[WordNode] = []
        while True:
            self._skip_lines()
            if self._starts(")"):
                self.at += 1
                return Array(tuple(words))
            word = self._next_word()
            if word is None:
                self._fail("an array without its closing bracket")
            words.append(word)

    def _redirect(self, redirects: list[Redirection]) -> bool:
        self._blank()
        found = REDIRECT.match(self.text, self.at)
        if found is None:
            return False
        self.budget.spend()
        operator = found.group(2) or found.group(3)
        self.at = found.end()
        self._blank()
        if operator in ("<<", "<<-"):
            redirects.append(self._heredoc(operator, found.group(1) or ""))
            return True
        if self.at >= self.end or (self.text[self.at] in "\n;|&()<>" and not self._process()):
            self._fail("a redirection to nowhere")
        redirects.append(Redirection(operator, self._word().parts, found.group(1) or ""))
        return True

    def _heredoc(self, operator: str, descriptor: str) -> Redirection:
        word = self._next_word()
        if word is None:
            self._fail("a here-document without its mark")
        written = self.text[word.start : word.end]
        mark = "".join(part.text for part in word.parts if isinstance(part, Literal))
        if any(not isinstance(part, Literal) for part in word.parts):
            mark = written
        expands = not any(isinstance(part, Literal) and part.quoted for part in word.parts)
        heredoc = Redirection(operator, (), descriptor, mark, expands)
        self.waiting.append(heredoc)
        return heredoc

    def _read_waiting(self) -> None:
        """The bodies of the here-documents of the line that has just ended."""
        for heredoc in self.waiting:
            body = self._heredoc_body(heredoc)
            if heredoc.expands:
                heredoc.target = self._sub(body).heredoc_parts()
            else:
                heredoc.target = (Literal(body, quoted=True),)
        self.waiting = []

    def _heredoc_body(self, heredoc: Redirection) -> str:
        tabs = r"\t*" if heredoc.operator == "<<-" else ""
        found = re.compile(rf"^{tabs}{re.escape(heredoc.delimiter)}$", re.MULTILINE).search(
            self.text, self.at
        )
        self.open_heredoc = self.open_heredoc or found is None
        stop = found.start() if found else self.end
        body = self.text[self.at : stop]
        self.at = min(found.end() + 1, self.end) if found else self.end
        return re.sub(r"^\t+", "", body, flags=re.MULTILINE) if tabs else body

    # Words

    def _next_word(self) -> WordNode | None:
        self._blank()
        if self.at >= self.end or (self.text[self.at] in "\n;|&()<>" and not self._process()):
            return None
        return self._word()

    def _word(self) -> WordNode:
        start = self.at
        parts = self._parts(BARE)
        if self.at == start:
            self._fail("a word was expected")
        return WordNode(parts, start, self.at)

    def _process(self) -> bool:
        return self.text.startswith(("<(", ">("), self.at)

    def _parts(self, plain: re.Pattern[str], stop: str = "", quoted: bool = False) -> tuple[Part, ...]:
        """Parts up to the end of a word, or up to one of the stopping characters."""
        parts: list[Part] = []
        while self.at < self.end:
            self.budget.spend()
            found = plain.match(self.text, self.at)
            if found:
                parts.append(Literal(found.group(), quoted))
                self.at = found.end()
                continue
            character = self.text[self.at]
            if character in stop:
                break
            if character == "\\":
                self._escape(parts, plain, quoted)
            elif character == "$":
                parts.append(self._dollar(quoted))
            elif character == "`":
                parts.append(self._backticks(quoted))
            elif character == "'" and not quoted:
                parts.append(self._single())
            elif character == '"' and not (quoted and plain is not IN_BRACES):
                parts.extend(self._double())
            elif plain is BARE and self._process():
                parts.append(self._process_substitution())
            elif plain is BARE:
                break
            else:
                parts.append(Literal(character, quoted))
                self.at += 1
        return tuple(parts)

    def _escape(self, parts: list[Part], plain: re.Pattern[str], quoted: bool) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if following == "\n":
            self.at += 2
        elif not following or (quoted and following not in ('$`"\\}' if plain is IN_BRACES else '$`"\\')):
            parts.append(Literal("\\", quoted=True))
            self.at += 1
        else:
            parts.append(Literal(following, quoted=True))
            self.at += 2

    def _single(self) -> Literal:
        close = self.text.find("'", self.at + 1)
        if close < 0:
            self._fail("a quotation mark is not closed", unclosed=True)
        text = self.text[self.at + 1 : close]
        self.at = close + 1
        return Literal(text, quoted=True)

    def _double(self) -> tuple[Part, ...]:
        self.at += 1
        parts = self._parts(IN_DOUBLE, '"', quoted=True)
        self._expect('"')
        return parts or (Literal("", quoted=True),)

    def quoted_parts(self) -> tuple[Part, ...]:
        """All of the text as if between double quotes."""
        return self._parts(IN_DOUBLE, quoted=True)

    def heredoc_parts(self) -> tuple[Part, ...]:
        return self._parts(IN_HEREDOC, quoted=True)

    def _sub(self, text: str) -> Parser:
        return Parser(text, self.budget, self.depth, nested=True)

    def _dollar(self, quoted: bool) -> Part:
        following = self.text[self.at + 1 : self.at + 2]
        if following == "'" and not quoted:
            return self._ansi()
        if following == '"' and not quoted:
            self.at += 1
            parts = self._double()
            return parts[0] if len(parts) == 1 else Arithmetic(parts)
        if following == "(":
            return self._substitution(quoted)
        if following == "{":
            return self._braces(quoted)
        if following == "[":
            return self._old_arithmetic()
        if found := ZSH_SPLIT_PARAMETER.match(self.text, self.at + 1):
            self.at = found.end()
            return Variable(found.group(1))
        found = SHORT_PARAMETER.match(self.text, self.at + 1)
        if found is None:
            self.at += 1
            return Literal("$", quoted=True)
        name, self.at = found.group(), found.end()
        while self._starts("\\\n") and name[0] in NAME_START:  # a name may go on in the next line
            self.at += 2
            more = NAME_REST.match(self.text, self.at)
            name, self.at = (name + more.group(), more.end()) if more else (name, self.at)
        return Variable(name, quoted)

    def _ansi(self) -> Literal:
        place = self.at + 2
        while place < self.end and self.text[place] != "'":
            place += 2 if self.text[place] == "\\" else 1
        if place >= self.end:
            self._fail("a quotation mark is not closed", unclosed=True)
        text = self.text[self.at + 2 : place]
        self.at = place + 1
        return Literal(ANSI_ESCAPE.sub(_ansi_character, text).partition("\0")[0], quoted=True)

    def _substitution(self, quoted: bool) -> Part:
        if self.text.startswith("$((", self.at):
            inside = self._arithmetic_end(self.at + 3)
            if inside is not None:
                text = self.text[self.at + 3 : inside]
                self.at = inside + 2
                return Arithmetic(self._sub(text).quoted_parts())
        self.at += 2
        waiting, self.waiting = self.waiting, []
        body = self._script(frozenset())
        self._expect(")")
        self.waiting = waiting + self.waiting
        return Substitution(body, quoted)

    def _process_substitution(self) -> Part:
        writes = self._starts(">")
        self.at += 2
        body = self._script(frozenset())
        self._expect(")")
        return Process(body, writes)

    def _backticks(self, quoted: bool) -> Part:
        place = self.at + 1
        while place < self.end and self.text[place] != "`":
            place += 2 if self.text[place] == "\\" else 1
        if place >= self.end:
            self._fail("a backtick is not closed", unclosed=True)
        text = BACKTICK_ESCAPES.sub(r"\1", self.text[self.at + 1 : place])
        if quoted:
            text = text.replace('\\"', '"')
        self.at = place + 1
        self._deeper()
        body = parse(text, self.budget, depth=self.depth)
        self.depth -= 1
        return Substitution(body, quoted)

    def _old_arithmetic(self) -> Part:
        close = self.text.find("]", self.at)
        if close < 0:
            self._fail("a bracket is not closed", unclosed=True)
        text = self.text[self.at + 2 : close]
        self.at = close + 1
        return Arithmetic(self._sub(text).quoted_parts())

    def _braces(self, quoted: bool) -> Part:
        self.at += 2
        self._deeper()
        prefix = ""
        if self.text[self.at : self.at + 1] in ("!", "#") and self.text[self.at + 1 : self.at + 2] not in (
            "}",
            ":",
        ):
            prefix = self.text[self.at]
            self.at += 1
        name = PARAMETER.match(self.text, self.at)
        if name is None:
            self._fail("a `${` without a name")
        self.at = name.end()
        index = self._index()
        operator, argument, second = self._operation(quoted)
        self._expect("}")
        self.depth -= 1
        return Variable(name.group(), quoted, prefix, index, operator, argument, second)

    def _index(self) -> tuple[Part, ...] | None:
        if not self._starts("["):
            return None
        close = self.text.find("]", self.at)
        if close < 0:
            self._fail("a bracket is not closed", unclosed=True)
        text = self.text[self.at + 1 : close]
        self.at = close + 1
        return self._sub(text).quoted_parts()

    def _operation(self, quoted: bool) -> tuple[str, tuple[Part, ...], tuple[Part, ...] | None]:
        if self._starts("}"):
            return "", (), None
        found = OPERATOR.match(self.text, self.at)
        if found is None:
            self._fail("a `${` that cannot be read")
        operator = found.group()
        self.at = found.end()
        if operator == "/" and self.text[self.at : self.at + 1] in ("#", "%"):
            operator += self.text[self.at]
            self.at += 1
        slashed = operator.startswith("/")
        quoted = quoted and operator[-1] in "-=?+"  # quotes around it do not make a pattern plain text
        argument = self._parts(IN_BRACES, "/}" if slashed else "}", quoted)
        second: tuple[Part, ...] | None = None
        if slashed and self._starts("/"):
            self.at += 1
            second = self._parts(IN_BRACES, "}", quoted)
        return operator, argument, second

    # Small steps

    def _starts(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def _blank(self) -> None:
        found = BLANK.match(self.text, self.at)
        if found:
            self.at = found.end()
        if self.at < self.end and self.text[self.at] == "#" and self._at_word_start():
            stop = self.text.find("\n", self.at)
            self.at = self.end if stop < 0 else stop

    def _at_word_start(self) -> bool:
        return self.at == 0 or self.text[self.at - 1] in " \t\n;|&()"

    def _skip_lines(self) -> None:
        while True:
            self._blank()
            if self.at >= self.end or self.text[self.at] != "\n":
                return
            self.at += 1
            self.budget.spend()
            if self.waiting:
                self._read_waiting()

    def _reserved(self) -> str | None:
        found = RESERVED.match(self.text, self.at)
        return found.group(1) if found else None

    def _expect(self, text: str) -> None:
        if not self._starts(text):
            self._fail(f"{text!r} is missing")
        self.at += len(text)

    def _expect_word(self, word: str) -> None:
        if self._reserved() != word:
            self._fail(f"{word!r} is missing")
        self.at += len(word)

    def _fail(self, problem: str, *, unclosed: bool = False) -> NoReturn:
        unfinished = not self._nested and (unclosed or self.at >= self.end)
        raise Unreadable(problem, self.at, unfinished=unfinished)


def _ansi_character(found: re.Match[str]) -> str:
    hexadecimal, short, long, octal, control, named = found.groups()
    if hexadecimal or short or long:
        return _character(int(hexadecimal or short or long, 16))
    if octal:
        return _character(int(octal, 8) & 0xFF)
    if control:
        return chr(ord(control.upper()) & 0x1F)
    return ANSI_NAMED.get(named, named if named in "\\'\"?" else "\\" + named)


def _character(code: int) -> str:
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"
