"""From a word as typed to the words a program would be given.

In bash's order: braces, tilde, parameters, substitutions, arithmetic, splitting; file patterns are kept as
patterns. What a substitution prints is asked of the reader, which alone can follow commands.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence

from shellverdict.shell.grammar import Budget
from shellverdict.shell.runs import Stream
from shellverdict.shell.state import UNSET, State, Value
from shellverdict.shell.tree import (
    Arithmetic,
    Array,
    Literal,
    Part,
    Process,
    Script,
    Substitution,
    Variable,
    WordNode,
)
from shellverdict.shell.words import ANY, CLOSE, EMPTY, GAP, LONGEST, OPEN, STAR, Word, expression, gap

__all__ = ["Expansion"]

MOST_ALTERNATIVES = 128
LONGEST_MATCHED = 300
LONGEST_PATTERN = 60

_PATTERN_SIGNS = str.maketrans({"*": STAR, "?": ANY})
_BRACKET = re.compile(r"\[([^\[\]/]+)\]")
_SEQUENCE = re.compile(r"(-?\d{1,6}|[A-Za-z])\.\.(-?\d{1,6}|[A-Za-z])(?:\.\.(-?\d{1,4}))?")
_LATER_TILDE = re.compile(r"(:)~(?=/|:|\Z)")
# A subscript with a substitution in it is run by whatever evaluates it as a number or as a name.
_RUNS_CODE = re.compile(r"\[[^\]]*(?:\$\(|`|\$\{)")
_CHANGED = re.compile(
    r"([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)
_PLACED = re.compile(r"\[(\d{1,3})\]=(.*)", re.DOTALL)
_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda left, right: int(left / right),
    ast.Mod: math.fmod,
}


class Expansion:
    """Expands words against one state."""

    def __init__(
        self,
        state: State,
        budget: Budget,
        captured: Callable[[Script], Stream],
        process: Callable[[Script, bool], Word],
        doubt: Callable[[str], None],
        used: Callable[[str], None],
    ) -> None:
        self._state, self._budget = state, budget
        self._captured, self._process, self._doubt, self._used = captured, process, doubt, used

    def fields(self, words: Iterable[WordNode]) -> list[Word]:
        """All words, split and with their braces written out."""
        found: list[Word] = []
        for typed in words:
            for parts in self._braces(typed.parts):
                made = self._split(parts)
                self._budget.spend(len(made))
                found.extend(self._bounded(word) for word in made)
        return found

    def text(self, parts: Sequence[Part], *, tilde: bool = True) -> Word:
        """One word that is not split: a value, a redirection's target, a here-document."""
        written: list[str] = []
        for place, part in enumerate(parts):
            if place == 0 and tilde and isinstance(part, Literal) and not part.quoted:
                written.append(self._tilde(part.text))
            elif isinstance(part, Literal):
                written.append(part.text if part.quoted else _patterned(part.text))
            else:
                written.append(_joined(self._expanded(part)))
        return self._bounded("".join(written))

    def _bounded(self, text: str) -> Word:
        """A variable doubled thirty times is a billion letters: what grows so long is not followed."""
        self._budget.spend(len(text) // 128)
        return Word(text) if len(text) <= LONGEST else gap(Word(text).marks)

    def plain_text(self, parts: Sequence[Part]) -> Word:
        """One word in which nothing is a file pattern."""
        return self.text(parts).typed

    def value(self, assigned: Sequence[Part] | Array) -> Value:
        if isinstance(assigned, Array):
            return _placed(self.fields(assigned.words))
        home = self._home()
        return Word(_LATER_TILDE.sub(lambda found: found.group(1) + home, self.plain_text(assigned)))

    # Braces

    def _braces(self, parts: tuple[Part, ...]) -> list[tuple[Part, ...]]:
        if not any(isinstance(p, Literal) and not p.quoted and "{" in p.text for p in parts):
            return [parts]
        atoms: list[str | Part] = []
        for part in parts:
            if isinstance(part, Literal) and not part.quoted:
                atoms.extend(part.text)
            else:
                atoms.append(part)
        self._budget.spend(len(atoms))
        return [_regrouped(alternative) for alternative in self._alternatives(atoms)]

    def _alternatives(self, atoms: list[str | Part]) -> list[list[str | Part]]:
        opening = 0
        while True:
            try:
                opening = atoms.index("{", opening)
            except ValueError:
                return [atoms]
            inside = _matching(atoms, opening)
            self._budget.spend((len(atoms) - opening if inside is None else len(inside)) // 8)
            choices = self._choices(inside) if inside is not None else None
            if choices is None or inside is None:
                opening += 1
                continue
            head, tail = atoms[:opening], atoms[opening + len(inside) + 2 :]
            results = [head + choice + rest for choice in choices for rest in self._alternatives(tail)]
            self._budget.spend(len(results))
            return (
                results if len(results) <= MOST_ALTERNATIVES else [[*head, Literal(GAP, quoted=True), *tail]]
            )

    def _choices(self, inside: list[str | Part]) -> list[list[str | Part]] | None:
        pieces = _comma_parts(inside)
        if len(pieces) > 1:
            return [whole for piece in pieces for whole in self._alternatives(piece)]
        if all(isinstance(atom, str) for atom in inside):
            sequence = _sequence("".join(str(atom) for atom in inside))
            return [list(text) for text in sequence] if sequence else None
        return None

    # Splitting

    def _split(self, parts: tuple[Part, ...]) -> list[Word]:
        fields = _Fields(self._separators())
        for place, part in enumerate(parts):
            self._add(part, fields, first=place == 0)
        return fields.done()

    def _separators(self) -> str:
        separators = self._state.value("IFS")
        return " \t\n" if separators is None or separators is UNSET else _joined(separators)

    def _home(self) -> str:
        home = self._state.value("HOME")
        return self._state.home if home is None or isinstance(home, tuple) else home

    def _add(self, part: Part, fields: _Fields, *, first: bool) -> None:
        if isinstance(part, Literal):
            if part.quoted:
                fields.add(part.text)
            elif first and part.text.startswith("~"):
                fields.add(self._tilde(part.text))
            elif first and "=~" in part.text:
                name, _, rest = part.text.partition("=")
                fields.add(f"{name}={self._tilde(rest)}")
            else:
                fields.add(_patterned(part.text))
        elif isinstance(part, Variable) and not part.quoted and self._takes_default(part):
            for place, inner in enumerate(part.argument):
                if isinstance(inner, Literal) and not inner.quoted:
                    fields.add_split(Word(self._tilde(inner.text) if place == 0 else inner.text))
                else:
                    self._add(inner, fields, first=False)
        elif isinstance(part, Variable | Substitution) and not part.quoted:
            fields.add_split(self._expanded(part))
        else:
            fields.add_quoted(self._expanded(part), part)

    def _takes_default(self, part: Variable) -> bool:
        """Whether `${x:-…}` stands for its own words, whose quoting then counts."""
        value = self._state.value(part.name)
        missing = value is None or value is UNSET or (part.operator == ":-" and value in (EMPTY, ()))
        return part.operator in (":-", "-") and not part.prefix and part.index is None and missing

    def _tilde(self, text: str) -> str:
        name, slash, rest = text.partition("/")
        state = self._state
        match name:
            case "~":
                return self._home() + slash + _patterned(rest)
            case "~+":
                return state.cwd + slash + _patterned(rest)
            case "~-":
                return GAP + slash + _patterned(rest)
            case "~root":
                return "/root" + slash + _patterned(rest)
        if name.startswith("~") and name[1:].isalnum():
            return f"/home/{name[1:]}" + slash + _patterned(rest)
        return _patterned(text)

    # Parts

    def _expanded(self, part: Part) -> Value:
        self._budget.spend()
        match part:
            case Literal():
                return Word(part.text)
            case Variable():
                return self._variable(part)
            case Substitution():
                return _printed(self._captured(part.body))
            case Process():
                return self._process(part.body, part.writes)
            case Arithmetic():
                return self._number(part.parts)

    def _number(self, parts: Sequence[Part]) -> Word:
        return self.number(self.text(parts, tilde=False).typed)

    def number(self, text: Word) -> Word:
        """What a sum comes to. Names in it stand for their values, whose subscripts a shell evaluates."""
        self._suspect(text)
        changed = {first or second for first, second in _CHANGED.findall(text)}
        for name in sorted(set(re.findall(r"[A-Za-z_]\w*", text)))[:20]:
            value = self._state.value(name)
            self._suspect(_joined(value or EMPTY))
            known = GAP if value is None else _joined(value).replace("\\", "")
            text = Word(re.sub(rf"\b{name}\b", known, text))
        for name in changed:
            self._state.set(name, gap())
        return _calculated(text)

    def _suspect(self, text: str) -> None:
        if _RUNS_CODE.search(text):
            self._doubt(text)

    def _variable(self, part: Variable) -> Value:
        self._used(part.name)
        if part.prefix == "!":
            return self._indirect(part)
        value = self._state.value(part.name)
        if part.index is not None:
            value = self._indexed(part, value)
        if part.prefix == "#":
            return self._length(part, value)
        if part.operator in (":-", "-", ":=", "=", ":+", "+", ":?", "?"):
            return self._conditional(part, value)
        if value is None:
            return self._state.unknown(part.name)
        if isinstance(value, tuple):
            value = tuple(item for item in value if item is not UNSET)
        if isinstance(value, tuple) and part.index is None and part.name not in "@*":
            value = value[0] if value else EMPTY
        return self._operated(part, value) if part.operator else value

    def _length(self, part: Variable, value: Value | None) -> Value:
        """How many there are where all of a list are meant, else how many letters the first one has."""
        if value is None:
            return gap()
        items = value if isinstance(value, tuple) else (value,)
        every = part.name in ("@", "*") or (
            part.index is not None and self.text(part.index, tilde=False) in ("@", "*")
        )
        counted = tuple(each for each in items if each is not UNSET) if every else items[:1]
        if not all(each.known for each in counted):
            return gap()
        return Word(len(counted)) if every else Word(len(counted[0]) if counted else 0)

    def _indirect(self, part: Variable) -> Value:
        name = self._state.value(part.name)
        if part.name == "#":
            name = Word(len(self._state.arguments))
        if name is None or isinstance(name, tuple) or not name.known:
            return gap()
        self._suspect(name)
        value = self._state.value(name)
        return value if value is not None else self._state.unknown(name)

    def _indexed(self, part: Variable, value: Value | None) -> Value | None:
        place = self.text(part.index or (), tilde=False)
        if value is None or place in ("@", "*"):
            return value
        keyed = self._state.variables.get(f"{part.name}[{place.typed}]")
        if keyed is not None:
            return keyed
        values = value if isinstance(value, tuple) else (value,)
        number = self.number(place.typed)
        if not re.fullmatch(r"-?\d+", number):
            return gap()
        try:
            return values[int(number)]
        except IndexError:
            return EMPTY

    def _conditional(self, part: Variable, value: Value | None) -> Value:
        missing = value is None or value is UNSET or (part.operator[0] == ":" and value in (EMPTY, ()))
        sign = part.operator[-1]
        if sign == "+":
            given = self.text(part.argument)
            return gap(given.marks) if value is None else EMPTY if missing else given
        if not missing and value is not None:
            return value
        if sign == "?":
            return self._state.unknown(part.name) if value is None else EMPTY
        default = self.text(part.argument)
        if sign == "=":
            self._state.set(part.name, default.typed)
        return default

    def _operated(self, part: Variable, value: Value) -> Value:
        if part.operator == ":":
            return self._sliced(part, value)
        if isinstance(value, tuple):
            return tuple(self._changed(part, one) for one in value)
        return self._changed(part, value)

    def _sliced(self, part: Variable, value: Value) -> Value:
        first, _, count = self.text(part.argument, tilde=False).partition(":")
        start, length = self.number(Word(first)), self.number(Word(count)) if count else None
        if not re.fullmatch(r"-?\d+", start) or (length is not None and not re.fullmatch(r"-?\d+", length)):
            return gap()
        begin = int(start)
        if isinstance(value, tuple) and part.name in "@*" and part.index is None and begin > 0:
            begin -= 1  # the arguments are counted from one
        begin = max(len(value) + begin, 0) if begin < 0 else begin
        end = (
            len(value)
            if length is None
            else begin + int(length)
            if int(length) >= 0
            else len(value) + int(length)
        )
        return value[begin:end] if isinstance(value, tuple) else Word(value[begin:end])

    def _changed(self, part: Variable, value: Word) -> Word:
        sign = part.operator
        if sign[0] in "^,":
            return gap(value.marks) if part.argument else _cased(sign, value)
        if sign[0] == "@":
            if "$" in value or "`" in value:
                self._doubt(value)
            return gap(value.marks)
        if not value.known or len(value) > LONGEST_MATCHED:
            return gap(value.marks)
        pattern = self.text(part.argument, tilde=False)
        self._budget.spend(len(value))
        if GAP in pattern or len(pattern) > LONGEST_PATTERN or "[" in pattern or "]" in pattern:
            return gap(value.marks)
        if sign[0] in "#%":
            return _trimmed(sign, value, pattern)
        replacement = self.text(part.second, tilde=False).typed if part.second else ""
        return _replaced(sign, value, pattern, replacement)


class _Fields:
    """Words under construction."""

    def __init__(self, separators: str) -> None:
        self._separators = separators
        self._blank = "".join(character for character in separators if character in " \t\n")
        self._marking = "".join(character for character in separators if character not in " \t\n")
        self._fields: list[Word] = []
        self._open: list[str] | None = None

    def add(self, text: str) -> None:
        self._open = self._open if self._open is not None else []
        self._open.append(text)

    def add_quoted(self, value: Value, part: Part) -> None:
        many = isinstance(value, tuple) and isinstance(part, Variable) and not _stars(part)
        if not many or not isinstance(value, tuple):
            self.add(value if isinstance(value, str) else self._separators[:1].join(value))
            return
        for place, word in enumerate(value):
            if place:
                self._close()
            self.add(word)

    def add_split(self, value: Value) -> None:
        for number, word in enumerate(value if isinstance(value, tuple) else (value,)):
            if number:
                self._close()
            self._add_pieces(word)

    def _add_pieces(self, word: str) -> None:
        if not self._separators:
            if word:
                self.add(_patterned(word))
            return
        for place, piece in enumerate(self._pieces(word)):
            if place:
                self._close()
            if piece is not None:
                self.add(_patterned(piece))

    def _pieces(self, word: str) -> list[str | None]:
        """Blanks part words; any other separator also makes an empty word between two of its kind."""
        blank = f"[{re.escape(self._blank)}]" if self._blank else "(?!)"
        if not self._marking:
            return [piece or None for piece in re.split(f"{blank}+", word)]
        mark = f"[{re.escape(self._marking)}]"
        edges = word.strip(self._blank) if self._blank else word
        pieces: list[str | None] = list(re.split(f"{blank}*{mark}{blank}*|{blank}+", edges))
        if pieces and not pieces[-1]:
            pieces[-1] = None
        return pieces

    def _close(self) -> None:
        if self._open is not None:
            self._fields.append(Word("".join(self._open)))
        self._open = None

    def done(self) -> list[Word]:
        self._close()
        return self._fields


def _placed(words: list[Word]) -> tuple[Word, ...]:
    """The items of an array, those with a place of their own there."""
    items: list[Word] = []
    for word in words:
        found = _PLACED.fullmatch(word.typed)
        if found is None:
            items.append(word)
            continue
        place = int(found.group(1))
        items += [UNSET] * (place + 1 - len(items))
        items[place] = Word(found.group(2))
    return tuple(items)


def _stars(part: Variable) -> bool:
    index = part.index or ()
    return part.name == "*" or (len(index) == 1 and isinstance(index[0], Literal) and index[0].text == "*")


def _joined(value: Value) -> str:
    return " ".join(value) if isinstance(value, tuple) else value


def _printed(stream: Stream) -> Word:
    if stream.text is None:
        return stream.as_unknown()
    return Word(stream.text.rstrip("\n").replace("\0", ""))


def _patterned(text: str) -> str:
    if not any(sign in text for sign in "*?["):
        return text
    return _BRACKET.sub(lambda found: OPEN + found.group(1) + CLOSE, text).translate(_PATTERN_SIGNS)


def _matching(atoms: list[str | Part], opening: int) -> list[str | Part] | None:
    depth = 0
    for place in range(opening, len(atoms)):
        if atoms[place] == "{":
            depth += 1
        elif atoms[place] == "}":
            depth -= 1
            if depth == 0:
                return atoms[opening + 1 : place]
    return None


def _comma_parts(atoms: list[str | Part]) -> list[list[str | Part]]:
    parts: list[list[str | Part]] = [[]]
    depth = 0
    for atom in atoms:
        depth += (atom == "{") - (atom == "}")
        if atom == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(atom)
    return parts


def _sequence(text: str) -> list[str] | None:
    found = _SEQUENCE.fullmatch(text)
    if found is None:
        return None
    first, last, step = found.groups()
    if first.isalpha() != last.isalpha():
        return None
    width = max(len(first), len(last)) if first.startswith("0") or last.startswith("0") else 0
    begin, end = (ord(first), ord(last)) if first.isalpha() else (int(first), int(last))
    by = max(abs(int(step or 1)), 1)
    if abs(end - begin) // by > MOST_ALTERNATIVES:
        return [GAP]
    numbers = range(begin, end + 1, by) if begin <= end else range(begin, end - 1, -by)
    return [chr(n) if first.isalpha() else str(n).zfill(width) for n in numbers]


def _regrouped(atoms: list[str | Part]) -> tuple[Part, ...]:
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


def _calculated(text: str) -> Word:
    """A small sum; anything beyond whole numbers and plain signs is not known."""
    text = text.strip().replace("/", "//")
    if not text:
        return Word("0")
    if len(text) > 80 or "**" in text or not re.fullmatch(r"[\d\s+\-*/%()]+", text):
        return gap()
    try:
        return Word(_sum(ast.parse(text, mode="eval").body))
    except (ValueError, SyntaxError, ZeroDivisionError, KeyError, RecursionError, MemoryError):
        return gap()


def _sum(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_sum(node.operand)
    if isinstance(node, ast.BinOp):
        return int(_ARITHMETIC[type(node.op)](_sum(node.left), _sum(node.right)))
    raise ValueError


def _cased(sign: str, value: Word) -> Word:
    change = str.upper if sign[0] == "^" else str.lower
    return Word(change(value)) if len(sign) == 2 else Word(change(value[:1]) + value[1:])


def _trimmed(sign: str, value: Word, pattern: Word) -> Word:
    """`${x#…}` and its three relatives."""
    match = expression(pattern).fullmatch
    lengths: Iterable[int] = range(len(value) + 1)
    if len(sign) == 2:
        lengths = reversed(range(len(value) + 1))
    for length in lengths:
        if sign[0] == "#" and match(value, 0, length):
            return Word(value[length:])
        if sign[0] == "%" and match(value, len(value) - length):
            return Word(value[: len(value) - length])
    return value


def _replaced(sign: str, value: Word, pattern: Word, replacement: str) -> Word:
    if not pattern:
        return value
    found = expression(pattern).pattern
    if sign == "/#":
        found = rf"\A(?:{found})"
    elif sign == "/%":
        found = rf"(?:{found})\Z"
    return Word(re.sub(found, lambda _: replacement, value, count=0 if sign == "//" else 1, flags=re.DOTALL))
