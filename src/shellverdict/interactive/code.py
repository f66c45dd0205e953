"""Code of other languages that is typed line by line: what the new lines do after all those before them.

An interpreter drops what it does not understand and goes on, so that code is taken apart as it would do that:
no line, however broken, hides those behind it.
"""

from __future__ import annotations

import ast
import codeop
import re
import shlex
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from shellverdict.embedded_code import CodeAnalysis, analyze_code
from shellverdict.embedded_code.dispatch import MAX_CODE_CHARS
from shellverdict.interactive.programs import UNREAD
from shellverdict.shell.grammar import BudgetExceeded
from shellverdict.shell.words import Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["MAX_CODE_CHARS", "CodeReader"]

MAX_READ_CHARS = 400_000
"""How much code is read for one verdict, all repetitions counted: a few seconds' work."""
MAX_HELD_LINES = 64
"""How many lines of one unfinished statement are parsed, each together with those before it."""
MAX_RESTARTS = 24
"""At how many earlier lines reading starts anew, in case the interpreter has dropped what stands before."""

_PYTHON_GOES_ON = re.compile(r"\s|(?:elif|else|except|finally)\b")
_KEYS_TO_SHELL = re.compile(r"[!|](.*)")
_PASSES_ON = re.compile(
    r"[!|]|system|sh\b|shell|spawn|exec|popen|process|psql|mysql|python|node\b|irb|console|term",
    re.IGNORECASE,
)


class _Parsed(Enum):
    """What an interpreter would make of the lines it holds."""

    COMPLETE = auto()
    UNFINISHED = auto()
    BROKEN = auto()


@dataclass(slots=True)
class CodeReader:
    """Reads code and counts the work."""

    left: int = MAX_READ_CHARS
    _known: dict[tuple[str, str], CodeAnalysis] = field(default_factory=dict)
    _parsed: dict[str, _Parsed] = field(default_factory=dict)

    def read_new(self, language: str, before: Sequence[str], new: Sequence[str]) -> CodeAnalysis:
        """What `new` lines do, with what the lines `before` have set up."""
        if language == UNREAD:
            return _unread("\n".join(new)) if any(line.strip() for line in new) else CodeAnalysis()
        if sum(map(len, before)) + sum(map(len, new)) > MAX_CODE_CHARS:
            return _unread("more code than is read")
        old, fresh = self._units(language, before, new)
        known = self._read(language, old)
        context = old if not _anything(known) else self._harmless(language, old)
        found = [self._read(language, [*context, *fresh])]
        if len(context) != len(old):
            everything = self._read(language, [*old, *fresh])
            dropped = [unit for unit in old if unit not in context]
            found.append(everything if _uses(dropped, fresh) else _without(everything, known))
        if language != "python":
            found += self._restarted(language, context, fresh)
            renamed = _with_aliases(old, fresh)
            found += [self._read(language, [*context, *renamed])] if renamed != fresh else []
            if language.startswith("sql") and any("\\gexec" in line for line in fresh):
                found.append(_unread("\\gexec"))
        return _joined(found)

    def may_start_something(self, line: str) -> bool:
        """Whether a line may start another program that reads on."""
        return _PASSES_ON.search(line) is not None

    def _units(self, language: str, before: Sequence[str], new: Sequence[str]) -> tuple[list[str], list[str]]:
        if language != "python":
            return list(before), list(new)
        old, rest = self._python_units(before)
        fresh, rest = self._python_units([*rest, *new])
        return old, [*fresh, *rest]

    def _python_units(self, lines: Sequence[str]) -> tuple[list[str], list[str]]:
        """Complete statements, as an interactive interpreter takes them, and the lines of an unfinished one.

        What is no Python stands by itself, so that it spoils nothing else. Every line is parsed together with
        those held before it; raises TooMuch where that is more work than may be done.
        """
        units: list[str] = []
        held: list[str] = []
        for line in lines:
            if held and not _PYTHON_GOES_ON.match(line) and self._parse(held) is _Parsed.COMPLETE:
                units += _statements("\n".join(held))
                held = []
            held.append(line)
            if self._parse(held) is _Parsed.BROKEN:
                units += held
                held = []
        if held and self._parse(held) is _Parsed.COMPLETE:
            return [*units, *_statements("\n".join(held))], []
        return units, held

    def _parse(self, lines: Sequence[str]) -> _Parsed:
        if len(lines) > MAX_HELD_LINES:
            raise BudgetExceeded
        text = "\n".join(lines)
        if (known := self._parsed.get(text)) is None:
            self._spend(len(text))
            known = self._parsed[text] = _parse_python(text)
        return known

    def _spend(self, chars: int) -> None:
        self.left -= chars
        if self.left < 0:
            raise BudgetExceeded

    def _harmless(self, language: str, units: Iterable[str]) -> list[str]:
        """The units that do nothing by themselves. The others have been asked about, and may come again."""
        plain = [unit for unit in units if not _anything(self._read(language, [unit]))]
        if not _anything(self._read(language, plain)):
            return plain
        kept: list[str] = []
        for unit in plain:
            if not _anything(self._read(language, [*kept, unit])):
                kept.append(unit)
        return kept

    def _restarted(self, language: str, context: list[str], new: list[str]) -> Iterator[CodeAnalysis]:
        lines = [*context, *new]
        first_new = len(context)
        starts = range(max(1, first_new - MAX_RESTARTS), len(lines))
        if len(lines) - first_new > MAX_RESTARTS:  # a long text in one write is read as it stands
            starts = range(max(1, first_new - MAX_RESTARTS), first_new + 1)
        for start in starts:
            told = self._read(language, lines[start:])
            if start < first_new:
                told = _without(told, self._read(language, lines[start:first_new]))
            yield told

    def _read(self, language: str, units: Sequence[str]) -> CodeAnalysis:
        text = "\n".join(units)
        if (found := self._known.get((language, text))) is not None:
            return found
        self._spend(len(text) + 100)
        found = _read_text(text, language)
        if language == "python":
            found = _joined([found, *map(_python_magic, units)])
        self._known[language, text] = found
        return found


def _read_text(text: str, language: str) -> CodeAnalysis:
    if language.startswith("sql"):
        text = _sql_plain(text)
    if language in _SHELL_LINES:
        lines = (line.strip() for line in text.split("\n"))
        sign = _SHELL_LINES[language]
        escaped = tuple(Word(line[len(sign) :]) for line in lines if line.startswith(sign))
        return _joined([CodeAnalysis(escaped), analyze_code(Word(text), language)])
    if language == "redis":
        return CodeAnalysis(tuple(_redis_commands(text)))
    if language == "pager":
        return CodeAnalysis(tuple(Word(each) for each in _KEYS_TO_SHELL.findall(text) if each.strip()))
    if language == "vim":
        typed = [part for line in text.split("\n") for part in line.split(":")[1:]]
        return analyze_code(Word("\n".join(typed)), "vim")
    return analyze_code(Word(text), language)


_SHELL_LINES = {"haskell": ":!", "julia": ";"}
_SQL_SET = re.compile(r"\\set\s+(\w+)\s+(.*)")
_SQL_LATER = re.compile(r"\bPREPARE\s+\w+\s*(?:\([^()]*\)\s*)?AS\s+", re.IGNORECASE)


def _sql_plain(text: str) -> str:
    """SQL with psql's variables put in, and prepared statements as if they were run."""
    values = {name: value.strip().strip("'") for name, value in _SQL_SET.findall(text)}
    for name, value in list(values.items())[:32]:
        text = re.sub(rf"(?<!:):(['\"]?){name}\b\1", value[:500].replace("\\", "\\\\"), text)
    return _SQL_LATER.sub("", text)


_ALIAS = re.compile(
    r"\s*(?:local|var|let|const|my|our)?\s*[$@]?(\w+)\s*(?:=|<-|:=)\s*([A-Za-z_][\w.:]*)\s*;?\s*"
)


def _with_aliases(before: Iterable[str], new: Iterable[str]) -> list[str]:
    """Calls by another name (`f = os.execute`) as calls by the first one."""
    lines = list(new)
    aliases = [found.groups() for line in (*before, *lines) if (found := _ALIAS.fullmatch(line))][-32:]
    for name, target in aliases:
        lines = [re.sub(rf"(?<![\w.]){re.escape(name)}(?=\s*[(.])", target, line) for line in lines]
    return lines


def _redis_commands(text: str) -> Iterator[Word]:
    for line in text.split("\n"):
        try:
            words = shlex.split(line)
        except ValueError:
            words = line.split()
        if words and words[0].isdigit():  # a number repeats what follows
            words = words[1:]
        if words:
            yield Word(shlex.join(["redis-cli", *words]))


def _parse_python(text: str) -> _Parsed:
    if _is_python(text):
        return _Parsed.COMPLETE
    return _Parsed.UNFINISHED if _is_unfinished(text) else _Parsed.BROKEN


def _statements(text: str) -> list[str]:
    tree = ast.parse(text)
    return [ast.get_source_segment(text, each) or text for each in tree.body]


def _is_python(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _is_unfinished(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return codeop.compile_command(text + "\n") is None
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return False


_MAGIC = re.compile(r"\s*(?:\w[\w, ]*=\s*)?(?:!+|%{1,2}(?:sx|sc|system|bash|sh|!)?\s?)(?=\S)(.*)", re.DOTALL)


def _python_magic(unit: str) -> CodeAnalysis:
    """IPython's and pdb's lines behind `!` and `%`: a command of the shell, or a statement."""
    found = _MAGIC.fullmatch(unit)
    if found is None:
        return CodeAnalysis()
    return _joined([CodeAnalysis((Word(found[1]),)), analyze_code(Word(found[1]), "python")])


def _unread(text: str) -> CodeAnalysis:
    return CodeAnalysis(
        (),
        (CommandEffect(EffectKind.UNREADABLE, Word(text[:80]), detail="a language that is not read here"),),
    )


_DEFINES = re.compile(
    r"\b(?:def|function|class|module|const|let|var|my|our|local|sub|as|import|define|macro|procedure|set)\s+"
    r"[$@%]?([\w.]+)|([\w.]+)\s*(?::=|=|<-)(?!=)",
    re.IGNORECASE,
)


def _uses(defining: Iterable[str], using: Iterable[str]) -> bool:
    """Whether code names something that other code may define."""
    names = {name.lower() for unit in defining for pair in _DEFINES.findall(unit) for name in pair if name}
    return any(word.lower() in names for unit in using for word in re.findall(r"[\w.]+", unit))


def _anything(found: CodeAnalysis) -> bool:
    return bool(found.scripts or found.effects)


def _without(found: CodeAnalysis, known: CodeAnalysis) -> CodeAnalysis:
    return CodeAnalysis(
        tuple(each for each in found.scripts if each not in known.scripts),
        tuple(each for each in found.effects if each not in known.effects),
    )


def _joined(found: Iterable[CodeAnalysis]) -> CodeAnalysis:
    scripts: dict[Word, None] = {}
    effects: dict[CommandEffect, None] = {}
    for each in found:
        scripts |= dict.fromkeys(each.scripts)
        effects |= dict.fromkeys(each.effects)
    return CodeAnalysis(tuple(scripts), tuple(effects))
