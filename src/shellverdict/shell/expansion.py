"""Expand shell words, as typed in a command, into the arguments that a program receives.

In bash's order: braces, tilde, parameters, command substitutions, arithmetic, field splitting. File patterns
stay patterns. The output of command substitutions is requested from the reader, which alone can analyse
commands.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence

from shellverdict.python_syntax import parse_expression
from shellverdict.shell.budget import Budget
from shellverdict.shell.runs import TextStream
from shellverdict.shell.state import UNSET, ShellState, Value
from shellverdict.shell.tree import (
    ArithmeticExpansion,
    Array,
    CommandSubstitution,
    Literal,
    ParameterExpansion,
    Part,
    ProcessSubstitution,
    Script,
    WordNode,
)
from shellverdict.shell.words import (
    ANY,
    CLOSE,
    EMPTY,
    GAP,
    MAX_TEXT_CHARS,
    OPEN,
    STAR,
    Word,
    compile_pattern,
    unknown_word,
)

__all__ = ["Expansion"]

MAX_BRACE_ALTERNATIVES = 128
MAX_MATCHED_CHARS = 300
MAX_PATTERN_CHARS = 60

_WILDCARD_CHARACTERS = str.maketrans({"*": STAR, "?": ANY})
_BRACKET_EXPRESSION = re.compile(r"\[([^\[\]/]+)\]")
_SEQUENCE_EXPRESSION = re.compile(r"(-?\d{1,6}|[A-Za-z])\.\.(-?\d{1,6}|[A-Za-z])(?:\.\.(-?\d{1,4}))?")
_TILDE_AFTER_COLON = re.compile(r"(:)~(?=/|:|\Z)")
# A command substitution in a subscript runs when the text is evaluated as a number or as a name.
_COMMAND_IN_SUBSCRIPT = re.compile(r"\[[^\]]*(?:\$\(|`|\$\{)")
_ASSIGNED_NAME = re.compile(
    r"([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)
_INDEXED_ITEM = re.compile(r"\[(\d{1,3})\]=(.*)", re.DOTALL)
_ARITHMETIC_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda left, right: int(left / right),
    ast.Mod: math.fmod,
}


class Expansion:
    """Expansion of shell words, with the variables of one shell state."""

    def __init__(
        self,
        state: ShellState,
        budget: Budget,
        capture_output: Callable[[Script], TextStream],
        substitute_process: Callable[[Script, bool], Word],
        report_evaluated_text: Callable[[str], None],
        check_name: Callable[[str], None],
    ) -> None:
        self._state, self._budget = state, budget
        self._capture_output, self._substitute_process, self._report_evaluated_text, self._check_name = (
            capture_output,
            substitute_process,
            report_evaluated_text,
            check_name,
        )

    def expand_fields(self, words: Iterable[WordNode]) -> list[Word]:
        """Expand shell words into fields, with brace expansion and field splitting."""
        found: list[Word] = []
        for typed in words:
            for parts in self._expand_braces(typed.parts):
                made = self._split_fields(parts)
                self._budget.spend(len(made))
                found.extend(self._limit_length(word) for word in made)
        return found

    def expand_text(self, parts: Sequence[Part], *, tilde: bool = True) -> Word:
        """Expand the parts of a word to one word, without field splitting, as in assignments."""
        written: list[str] = []
        for place, part in enumerate(parts):
            if place == 0 and tilde and isinstance(part, Literal) and not part.quoted:
                written.append(self._expand_tilde(part.text))
            elif isinstance(part, Literal):
                written.append(part.text if part.quoted else _mark_wildcards(part.text))
            else:
                written.append(_join_items(self._expand_part(part)))
        return self._limit_length("".join(written))

    def _limit_length(self, text: str) -> Word:
        """Return text as a word; if it is too long, return a placeholder for unknown text."""
        self._budget.spend(len(text) // 128)
        return Word(text) if len(text) <= MAX_TEXT_CHARS else unknown_word(Word(text).taints)

    def expand_literal(self, parts: Sequence[Part]) -> Word:
        """Expand the parts of a word to one word, in which wildcards are ordinary characters."""
        return self.expand_text(parts).literal

    def expand_value(self, assigned: Sequence[Part] | Array) -> Value:
        """Expand the right side of an assignment."""
        if isinstance(assigned, Array):
            return _build_array(self.expand_fields(assigned.words))
        home = self._home_directory()
        return Word(
            _TILDE_AFTER_COLON.sub(lambda found: found.group(1) + home, self.expand_literal(assigned))
        )

    # Braces

    def _expand_braces(self, parts: tuple[Part, ...]) -> list[tuple[Part, ...]]:
        if not any(isinstance(p, Literal) and not p.quoted and "{" in p.text for p in parts):
            return [parts]
        atoms: list[str | Part] = []
        for part in parts:
            if isinstance(part, Literal) and not part.quoted:
                atoms.extend(part.text)
            else:
                atoms.append(part)
        self._budget.spend(len(atoms))
        return [_join_literals(alternative) for alternative in self._expand_alternatives(atoms)]

    def _expand_alternatives(self, atoms: list[str | Part]) -> list[list[str | Part]]:
        opening = 0
        while True:
            try:
                opening = atoms.index("{", opening)
            except ValueError:
                return [atoms]
            inside = _brace_content(atoms, opening)
            self._budget.spend((len(atoms) - opening if inside is None else len(inside)) // 8)
            choices = self._brace_choices(inside) if inside is not None else None
            if choices is None or inside is None:
                opening += 1
                continue
            head, tail = atoms[:opening], atoms[opening + len(inside) + 2 :]
            results = [head + choice + rest for choice in choices for rest in self._expand_alternatives(tail)]
            self._budget.spend(len(results))
            return (
                results
                if len(results) <= MAX_BRACE_ALTERNATIVES
                else [[*head, Literal(GAP, quoted=True), *tail]]
            )

    def _brace_choices(self, inside: list[str | Part]) -> list[list[str | Part]] | None:
        pieces = _split_at_commas(inside)
        if len(pieces) > 1:
            return [whole for piece in pieces for whole in self._expand_alternatives(piece)]
        if all(isinstance(atom, str) for atom in inside):
            sequence = _expand_sequence("".join(str(atom) for atom in inside))
            return [list(text) for text in sequence] if sequence else None
        return None

    # Splitting

    def _split_fields(self, parts: tuple[Part, ...]) -> list[Word]:
        fields = _FieldBuilder(self._field_separators())
        for place, part in enumerate(parts):
            self._add_part(part, fields, first=place == 0)
        return fields.finish()

    def _field_separators(self) -> str:
        separators = self._state.get_value("IFS")
        return " \t\n" if separators is None or separators is UNSET else _join_items(separators)

    def _home_directory(self) -> str:
        home = self._state.get_value("HOME")
        return self._state.home if home is None or isinstance(home, tuple) else home

    def _add_part(self, part: Part, fields: _FieldBuilder, *, first: bool) -> None:
        if isinstance(part, Literal):
            if part.quoted:
                fields.add(part.text)
            elif first and part.text.startswith("~"):
                fields.add(self._expand_tilde(part.text))
            elif first and "=~" in part.text:
                name, _, rest = part.text.partition("=")
                fields.add(f"{name}={self._expand_tilde(rest)}")
            else:
                fields.add(_mark_wildcards(part.text))
        elif isinstance(part, ParameterExpansion) and not part.quoted and self._uses_default(part):
            for place, inner in enumerate(part.argument):
                if isinstance(inner, Literal) and not inner.quoted:
                    fields.add_split(Word(self._expand_tilde(inner.text) if place == 0 else inner.text))
                else:
                    self._add_part(inner, fields, first=False)
        elif isinstance(part, ParameterExpansion | CommandSubstitution) and not part.quoted:
            fields.add_split(self._expand_part(part))
        else:
            fields.add_quoted(self._expand_part(part), part)

    def _uses_default(self, part: ParameterExpansion) -> bool:
        """Return True if `${x:-…}` expands to the default value, because `x` is unset or empty."""
        value = self._state.get_value(part.name)
        missing = value is None or value is UNSET or (part.operator == ":-" and value in (EMPTY, ()))
        return part.operator in (":-", "-") and not part.prefix and part.index is None and missing

    def _expand_tilde(self, text: str) -> str:
        name, slash, rest = text.partition("/")
        state = self._state
        match name:
            case "~":
                return self._home_directory() + slash + _mark_wildcards(rest)
            case "~+":
                return state.cwd + slash + _mark_wildcards(rest)
            case "~-":
                return GAP + slash + _mark_wildcards(rest)
            case "~root":
                return "/root" + slash + _mark_wildcards(rest)
        if name.startswith("~") and name[1:].isalnum():
            return f"/home/{name[1:]}" + slash + _mark_wildcards(rest)
        return _mark_wildcards(text)

    # Parts

    def _expand_part(self, part: Part) -> Value:
        self._budget.spend()
        match part:
            case Literal():
                return Word(part.text)
            case ParameterExpansion():
                return self._expand_parameter(part)
            case CommandSubstitution():
                return _substitution_text(self._capture_output(part.body))
            case ProcessSubstitution():
                return self._substitute_process(part.body, part.writes)
            case ArithmeticExpansion():
                return self._evaluate_parts(part.parts)

    def _evaluate_parts(self, parts: Sequence[Part]) -> Word:
        return self.evaluate_arithmetic(self.expand_text(parts, tilde=False).literal)

    def evaluate_arithmetic(self, text: Word) -> Word:
        """Evaluate an arithmetic expression. Report commands in subscripts, which a shell would run."""
        self._check_subscripts(text)
        changed = {first or second for first, second in _ASSIGNED_NAME.findall(text)}
        for name in sorted(set(re.findall(r"[A-Za-z_]\w*", text)))[:20]:
            value = self._state.get_value(name)
            self._check_subscripts(_join_items(value or EMPTY))
            known = GAP if value is None else _join_items(value).replace("\\", "")
            text = Word(re.sub(rf"\b{name}\b", known, text))
        for name in changed:
            self._state.set_variable(name, unknown_word())
        return _calculate(text)

    def _check_subscripts(self, text: str) -> None:
        if _COMMAND_IN_SUBSCRIPT.search(text):
            self._report_evaluated_text(text)

    def _expand_parameter(self, part: ParameterExpansion) -> Value:
        self._check_name(part.name)
        if part.prefix == "!":
            return self._expand_indirect(part)
        value = self._state.get_value(part.name)
        if part.index is not None:
            value = self._select_item(part, value)
        if part.prefix == "#":
            return self._value_length(part, value)
        if part.operator in (":-", "-", ":=", "=", ":+", "+", ":?", "?"):
            return self._apply_default(part, value)
        if value is None:
            return self._state.unknown_value(part.name)
        if isinstance(value, tuple):
            value = tuple(item for item in value if item is not UNSET)
        if isinstance(value, tuple) and part.index is None and part.name not in "@*":
            value = value[0] if value else EMPTY
        return self._apply_operator(part, value) if part.operator else value

    def _value_length(self, part: ParameterExpansion, value: Value | None) -> Value:
        """Return the value of `${#x}`: the number of items for `${#x[@]}`, else the length of the text."""
        if value is None:
            return unknown_word()
        items = value if isinstance(value, tuple) else (value,)
        every = part.name in ("@", "*") or (
            part.index is not None and self.expand_text(part.index, tilde=False) in ("@", "*")
        )
        counted = tuple(each for each in items if each is not UNSET) if every else items[:1]
        if not all(each.is_known for each in counted):
            return unknown_word()
        return Word(len(counted)) if every else Word(len(counted[0]) if counted else 0)

    def _expand_indirect(self, part: ParameterExpansion) -> Value:
        name = self._state.get_value(part.name)
        if part.name == "#":
            name = Word(len(self._state.arguments))
        if name is None or isinstance(name, tuple) or not name.is_known:
            return unknown_word()
        self._check_subscripts(name)
        value = self._state.get_value(name)
        return value if value is not None else self._state.unknown_value(name)

    def _select_item(self, part: ParameterExpansion, value: Value | None) -> Value | None:
        place = self.expand_text(part.index or (), tilde=False)
        if value is None or place in ("@", "*"):
            return value
        keyed = self._state.variables.get(f"{part.name}[{place.literal}]")
        if keyed is not None:
            return keyed
        values = value if isinstance(value, tuple) else (value,)
        index = self.evaluate_arithmetic(place.literal)
        if not re.fullmatch(r"-?\d+", index):
            return unknown_word()
        try:
            return values[int(index)]
        except IndexError:
            return EMPTY

    def _apply_default(self, part: ParameterExpansion, value: Value | None) -> Value:
        missing = value is None or value is UNSET or (part.operator[0] == ":" and value in (EMPTY, ()))
        sign = part.operator[-1]
        if sign == "+":
            given = self.expand_text(part.argument)
            return unknown_word(given.taints) if value is None else EMPTY if missing else given
        if not missing and value is not None:
            return value
        if sign == "?":
            return self._state.unknown_value(part.name) if value is None else EMPTY
        default = self.expand_text(part.argument)
        if sign == "=":
            self._state.set_variable(part.name, default.literal)
        return default

    def _apply_operator(self, part: ParameterExpansion, value: Value) -> Value:
        if part.operator == ":":
            return self._slice_value(part, value)
        if isinstance(value, tuple):
            return tuple(self._transform_text(part, one) for one in value)
        return self._transform_text(part, value)

    def _slice_value(self, part: ParameterExpansion, value: Value) -> Value:
        first, _, count = self.expand_text(part.argument, tilde=False).partition(":")
        start, length = (
            self.evaluate_arithmetic(Word(first)),
            self.evaluate_arithmetic(Word(count)) if count else None,
        )
        if not re.fullmatch(r"-?\d+", start) or (length is not None and not re.fullmatch(r"-?\d+", length)):
            return unknown_word()
        begin = int(start)
        if isinstance(value, tuple) and part.name in "@*" and part.index is None and begin > 0:
            begin -= 1  # positional parameters start at index 1
        begin = max(len(value) + begin, 0) if begin < 0 else begin
        end = (
            len(value)
            if length is None
            else begin + int(length)
            if int(length) >= 0
            else len(value) + int(length)
        )
        return value[begin:end] if isinstance(value, tuple) else Word(value[begin:end])

    def _transform_text(self, part: ParameterExpansion, value: Word) -> Word:
        sign = part.operator
        if sign[0] in "^,":
            return unknown_word(value.taints) if part.argument else _change_case(sign, value)
        if sign[0] == "@":
            if "$" in value or "`" in value:
                self._report_evaluated_text(value)
            return unknown_word(value.taints)
        if not value.is_known or len(value) > MAX_MATCHED_CHARS:
            return unknown_word(value.taints)
        pattern = self.expand_text(part.argument, tilde=False)
        self._budget.spend(len(value))
        if GAP in pattern or len(pattern) > MAX_PATTERN_CHARS or "[" in pattern or "]" in pattern:
            return unknown_word(value.taints)
        if sign[0] in "#%":
            return _trim_affix(sign, value, pattern)
        replacement = self.expand_text(part.replacement, tilde=False).literal if part.replacement else ""
        return _replace_pattern(sign, value, pattern, replacement)


class _FieldBuilder:
    """Builder of fields from expanded text, which is split at the separators in IFS."""

    def __init__(self, separators: str) -> None:
        self._field_separators = separators
        self._blank_separators = "".join(character for character in separators if character in " \t\n")
        self._other_separators = "".join(character for character in separators if character not in " \t\n")
        self._fields: list[Word] = []
        self._open_field: list[str] | None = None

    def add(self, text: str) -> None:
        self._open_field = self._open_field if self._open_field is not None else []
        self._open_field.append(text)

    def add_quoted(self, value: Value, part: Part) -> None:
        many = isinstance(value, tuple) and isinstance(part, ParameterExpansion) and not _is_star(part)
        if not many or not isinstance(value, tuple):
            self.add(value if isinstance(value, str) else self._field_separators[:1].join(value))
            return
        for place, word in enumerate(value):
            if place:
                self._close_field()
            self.add(word)

    def add_split(self, value: Value) -> None:
        for index, word in enumerate(value if isinstance(value, tuple) else (value,)):
            if index:
                self._close_field()
            self._add_split_text(word)

    def _add_split_text(self, word: str) -> None:
        if not self._field_separators:
            if word:
                self.add(_mark_wildcards(word))
            return
        for place, piece in enumerate(self._split_text(word)):
            if place:
                self._close_field()
            if piece is not None:
                self.add(_mark_wildcards(piece))

    def _split_text(self, word: str) -> list[str | None]:
        """Split text at the separators in IFS; separators other than blanks also delimit empty fields."""
        blank = f"[{re.escape(self._blank_separators)}]" if self._blank_separators else "(?!)"
        if not self._other_separators:
            return [piece or None for piece in re.split(f"{blank}+", word)]
        mark = f"[{re.escape(self._other_separators)}]"
        edges = word.strip(self._blank_separators) if self._blank_separators else word
        pieces: list[str | None] = list(re.split(f"{blank}*{mark}{blank}*|{blank}+", edges))
        if pieces and not pieces[-1]:
            pieces[-1] = None
        return pieces

    def _close_field(self) -> None:
        if self._open_field is not None:
            self._fields.append(Word("".join(self._open_field)))
        self._open_field = None

    def finish(self) -> list[Word]:
        self._close_field()
        return self._fields


def _build_array(words: list[Word]) -> tuple[Word, ...]:
    """Return the items of an array literal; items written as `[index]=value` are put at that index."""
    items: list[Word] = []
    for word in words:
        found = _INDEXED_ITEM.fullmatch(word.literal)
        if found is None:
            items.append(word)
            continue
        place = int(found.group(1))
        items += [UNSET] * (place + 1 - len(items))
        items[place] = Word(found.group(2))
    return tuple(items)


def _is_star(part: ParameterExpansion) -> bool:
    index = part.index or ()
    return part.name == "*" or (len(index) == 1 and isinstance(index[0], Literal) and index[0].text == "*")


def _join_items(value: Value) -> str:
    return " ".join(value) if isinstance(value, tuple) else value


def _substitution_text(stream: TextStream) -> Word:
    if stream.text is None:
        return stream.to_unknown_word()
    return Word(stream.text.rstrip("\n").replace("\0", ""))


def _mark_wildcards(text: str) -> str:
    if not any(sign in text for sign in "*?["):
        return text
    return _BRACKET_EXPRESSION.sub(lambda found: OPEN + found.group(1) + CLOSE, text).translate(
        _WILDCARD_CHARACTERS
    )


def _brace_content(atoms: list[str | Part], opening: int) -> list[str | Part] | None:
    depth = 0
    for place in range(opening, len(atoms)):
        if atoms[place] == "{":
            depth += 1
        elif atoms[place] == "}":
            depth -= 1
            if depth == 0:
                return atoms[opening + 1 : place]
    return None


def _split_at_commas(atoms: list[str | Part]) -> list[list[str | Part]]:
    parts: list[list[str | Part]] = [[]]
    depth = 0
    for atom in atoms:
        depth += (atom == "{") - (atom == "}")
        if atom == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(atom)
    return parts


def _expand_sequence(text: str) -> list[str] | None:
    found = _SEQUENCE_EXPRESSION.fullmatch(text)
    if found is None:
        return None
    first, last, step = found.groups()
    if first.isalpha() != last.isalpha():
        return None
    width = max(len(first), len(last)) if first.startswith("0") or last.startswith("0") else 0
    begin, end = (ord(first), ord(last)) if first.isalpha() else (int(first), int(last))
    by = max(abs(int(step or 1)), 1)
    if abs(end - begin) // by > MAX_BRACE_ALTERNATIVES:
        return [GAP]
    numbers = range(begin, end + 1, by) if begin <= end else range(begin, end - 1, -by)
    return [chr(n) if first.isalpha() else str(n).zfill(width) for n in numbers]


def _join_literals(atoms: list[str | Part]) -> tuple[Part, ...]:
    parts: list[Part] = []
    bare: list[str] = []
    for atom in atoms:
        if isinstance(atom, str):
            bare.append(atom)
            continue
        if bare:
            parts.append(Literal("".join(bare)))
            bare = []
        parts.append(atom)
    if bare:
        parts.append(Literal("".join(bare)))
    return tuple(parts)


def _calculate(text: str) -> Word:
    """Evaluate an expression of integers and basic operators; any other expression is unknown."""
    text = text.strip().replace("/", "//")
    if not text:
        return Word("0")
    if len(text) > 80 or "**" in text or not re.fullmatch(r"[\d\s+\-*/%()]+", text):
        return unknown_word()
    try:
        return Word(_evaluate_node(parse_expression(text)))
    except (ValueError, SyntaxError, ZeroDivisionError, KeyError, RecursionError, MemoryError):
        return unknown_word()


def _evaluate_node(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate_node(node.operand)
    if isinstance(node, ast.BinOp):
        return int(
            _ARITHMETIC_OPERATORS[type(node.op)](_evaluate_node(node.left), _evaluate_node(node.right))
        )
    raise ValueError


def _change_case(sign: str, value: Word) -> Word:
    change = str.upper if sign[0] == "^" else str.lower
    return Word(change(value)) if len(sign) == 2 else Word(change(value[:1]) + value[1:])


def _trim_affix(sign: str, value: Word, pattern: Word) -> Word:
    """Remove a prefix or suffix pattern from a value: `${x#…}`, `${x##…}`, `${x%…}` or `${x%%…}`."""
    match = compile_pattern(pattern).fullmatch
    lengths: Iterable[int] = range(len(value) + 1)
    if len(sign) == 2:
        lengths = reversed(range(len(value) + 1))
    for length in lengths:
        if sign[0] == "#" and match(value, 0, length):
            return Word(value[length:])
        if sign[0] == "%" and match(value, len(value) - length):
            return Word(value[: len(value) - length])
    return value


def _replace_pattern(sign: str, value: Word, pattern: Word, replacement: str) -> Word:
    if not pattern:
        return value
    found = compile_pattern(pattern).pattern
    if sign == "/#":
        found = rf"\A(?:{found})"
    elif sign == "/%":
        found = rf"(?:{found})\Z"
    return Word(re.sub(found, lambda _: replacement, value, count=0 if sign == "//" else 1, flags=re.DOTALL))
