"""Analyze code that is typed into an interpreter line by line, taking earlier lines into account.

An interpreter drops code it cannot parse and continues. Code is split the same way here, so that an invalid
line cannot hide the lines after it.
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
from shellverdict.interactive.interactive_programs import UNSUPPORTED
from shellverdict.python_syntax import parse_module
from shellverdict.shell.budget import BudgetExceeded
from shellverdict.shell.words import Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["MAX_CODE_CHARS", "CodeReader"]

MAX_CODE_CHARS = 16_384
"""Maximum number of characters of the code that a running program has received."""
MAX_ANALYZED_CHARS = 400_000
"""Maximum number of characters analyzed for one verdict, counting repetitions: a few seconds of work."""
MAX_STATEMENT_LINES = 64
"""Maximum number of lines of one statement; each line is parsed together with the lines before it."""
MAX_RESTARTS = 24
"""Maximum number of repeated analyses, each of which skips more of the earlier lines."""

_PYTHON_CONTINUATION = re.compile(r"\s|(?:elif|else|except|finally)\b")
_PAGER_SHELL_COMMAND = re.compile(r"[!|](.*)")
_MAY_START_PROGRAM = re.compile(
    r"[!|]|system|sh\b|shell|spawn|exec|popen|process|psql|mysql|python|node\b|irb|console|term",
    re.IGNORECASE,
)


class _ParseStatus(Enum):
    """Status of the lines that an interpreter has received: complete, unfinished or invalid."""

    COMPLETE = auto()
    UNFINISHED = auto()
    BROKEN = auto()


@dataclass(slots=True)
class CodeReader:
    """Reader that analyzes code typed into interpreters, up to a limit on the total length of the code."""

    chars_left: int = MAX_ANALYZED_CHARS
    _analyses: dict[tuple[str, str], CodeAnalysis] = field(default_factory=dict)
    _parse_results: dict[str, _ParseStatus] = field(default_factory=dict)

    def analyze_new(self, language: str, before: Sequence[str], new: Sequence[str]) -> CodeAnalysis:
        """Return the effects of the `new` lines typed into an interpreter after the lines `before`."""
        if language == UNSUPPORTED:
            return (
                _unsupported_language("\n".join(new)) if any(line.strip() for line in new) else CodeAnalysis()
            )
        if sum(map(len, before)) + sum(map(len, new)) > MAX_CODE_CHARS:
            return _unsupported_language("more code than is analyzed")
        old_units, new_units = self._split_units(language, before, new)
        known = self._analyze_units(language, old_units)
        context = old_units if not _has_effects(known) else self._harmless_units(language, old_units)
        analyses = [self._analyze_units(language, [*context, *new_units])]
        if len(context) != len(old_units):
            everything = self._analyze_units(language, [*old_units, *new_units])
            dropped = [unit for unit in old_units if unit not in context]
            analyses.append(
                everything if _uses_definitions(dropped, new_units) else _remove_known(everything, known)
            )
        if language != "python":
            analyses += self._analyze_suffixes(language, context, new_units)
            renamed = _expand_aliases(old_units, new_units)
            analyses += [self._analyze_units(language, [*context, *renamed])] if renamed != new_units else []
            if language.startswith("sql") and any("\\gexec" in line for line in new_units):
                analyses.append(_unsupported_language("\\gexec"))
        return _merge_analyses(analyses)

    def may_start_program(self, line: str) -> bool:
        """Return True if a line typed into an interpreter may start a program that reads the same input."""
        return _MAY_START_PROGRAM.search(line) is not None

    def _split_units(
        self, language: str, before: Sequence[str], new: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        if language != "python":
            return list(before), list(new)
        old_units, rest = self._split_python(before)
        new_units, rest = self._split_python([*rest, *new])
        return old_units, [*new_units, *rest]

    def _split_python(self, lines: Sequence[str]) -> tuple[list[str], list[str]]:
        """Split lines into complete Python statements and an unfinished rest, as an interpreter does.

        A line that is not Python becomes a unit of its own, so that it does not affect the others. Every line
        is parsed together with the unfinished ones before it; raises BudgetExceeded if that is too much work.
        """
        units: list[str] = []
        statement_lines: list[str] = []
        for line in lines:
            if (
                statement_lines
                and not _PYTHON_CONTINUATION.match(line)
                and self._parse_cached(statement_lines) is _ParseStatus.COMPLETE
            ):
                units += _split_statements("\n".join(statement_lines))
                statement_lines = []
            statement_lines.append(line)
            if self._parse_cached(statement_lines) is _ParseStatus.BROKEN:
                units += statement_lines
                statement_lines = []
        if statement_lines and self._parse_cached(statement_lines) is _ParseStatus.COMPLETE:
            return [*units, *_split_statements("\n".join(statement_lines))], []
        return units, statement_lines

    def _parse_cached(self, lines: Sequence[str]) -> _ParseStatus:
        if len(lines) > MAX_STATEMENT_LINES:
            raise BudgetExceeded
        text = "\n".join(lines)
        if (known := self._parse_results.get(text)) is None:
            self._spend_chars(len(text))
            known = self._parse_results[text] = _parse_python(text)
        return known

    def _spend_chars(self, chars: int) -> None:
        self.chars_left -= chars
        if self.chars_left < 0:
            raise BudgetExceeded

    def _harmless_units(self, language: str, units: Iterable[str]) -> list[str]:
        """Return those earlier statements that have no effects, as context for analyzing new statements."""
        candidates = [unit for unit in units if not _has_effects(self._analyze_units(language, [unit]))]
        if not _has_effects(self._analyze_units(language, candidates)):
            return candidates
        harmless_units: list[str] = []
        for unit in candidates:
            if not _has_effects(self._analyze_units(language, [*harmless_units, unit])):
                harmless_units.append(unit)
        return harmless_units

    def _analyze_suffixes(self, language: str, context: list[str], new: list[str]) -> Iterator[CodeAnalysis]:
        lines = [*context, *new]
        first_new = len(context)
        starts = range(max(1, first_new - MAX_RESTARTS), len(lines))
        if len(lines) - first_new > MAX_RESTARTS:  # a long text in one write is analyzed as a whole only
            starts = range(max(1, first_new - MAX_RESTARTS), first_new + 1)
        for start in starts:
            analysis = self._analyze_units(language, lines[start:])
            if start < first_new:
                analysis = _remove_known(analysis, self._analyze_units(language, lines[start:first_new]))
            yield analysis

    def _analyze_units(self, language: str, units: Sequence[str]) -> CodeAnalysis:
        text = "\n".join(units)
        if (analysis := self._analyses.get((language, text))) is not None:
            return analysis
        self._spend_chars(len(text) + 100)
        analysis = _analyze_text(text, language)
        if language == "python":
            analysis = _merge_analyses([analysis, *map(_analyze_python_magic, units)])
        self._analyses[language, text] = analysis
        return analysis


def _analyze_text(text: str, language: str) -> CodeAnalysis:
    if language.startswith("sql"):
        text = _expand_sql_variables(text)
    if language in _SHELL_ESCAPES:
        lines = (line.strip() for line in text.split("\n"))
        sign = _SHELL_ESCAPES[language]
        escaped = tuple(Word(line[len(sign) :]) for line in lines if line.startswith(sign))
        return _merge_analyses([CodeAnalysis(escaped), analyze_code(Word(text), language)])
    if language == "redis":
        return CodeAnalysis(tuple(_redis_commands(text)))
    if language == "pager":
        return CodeAnalysis(tuple(Word(each) for each in _PAGER_SHELL_COMMAND.findall(text) if each.strip()))
    if language == "vim":
        typed = [part for line in text.split("\n") for part in line.split(":")[1:]]
        return analyze_code(Word("\n".join(typed)), "vim")
    return analyze_code(Word(text), language)


_SHELL_ESCAPES = {"haskell": ":!", "julia": ";"}
_SQL_SET = re.compile(r"\\set\s+(\w+)\s+(.*)")
_SQL_PREPARE = re.compile(r"\bPREPARE\s+\w+\s*(?:\([^()]*\)\s*)?AS\s+", re.IGNORECASE)


def _expand_sql_variables(text: str) -> str:
    """Substitute the variables of psql in SQL text, and turn prepared statements into ordinary ones."""
    values = {name: value.strip().strip("'") for name, value in _SQL_SET.findall(text)}
    for name, value in list(values.items())[:32]:
        text = re.sub(rf"(?<!:):(['\"]?){name}\b\1", value[:500].replace("\\", "\\\\"), text)
    return _SQL_PREPARE.sub("", text)


_ALIAS = re.compile(
    r"\s*(?:local|var|let|const|my|our)?\s*[$@]?(\w+)\s*(?:=|<-|:=)\s*([A-Za-z_][\w.:]*)\s*;?\s*"
)


def _expand_aliases(before: Iterable[str], new: Iterable[str]) -> list[str]:
    """Replace calls of a function's alias (`f = os.execute`) by calls of the function."""
    lines = list(new)
    aliases = [match.groups() for line in (*before, *lines) if (match := _ALIAS.fullmatch(line))][-32:]
    for name, target in aliases:
        lines = [re.sub(rf"(?<![\w.]){re.escape(name)}(?=\s*[(.])", target, line) for line in lines]
    return lines


def _redis_commands(text: str) -> Iterator[Word]:
    for line in text.split("\n"):
        try:
            words = shlex.split(line)
        except ValueError:
            words = line.split()
        if words and words[0].isdigit():  # a leading number repeats the command
            words = words[1:]
        if words:
            yield Word(shlex.join(["redis-cli", *words]))


def _parse_python(text: str) -> _ParseStatus:
    if _is_python(text):
        return _ParseStatus.COMPLETE
    return _ParseStatus.UNFINISHED if _is_unfinished(text) else _ParseStatus.BROKEN


def _split_statements(text: str) -> list[str]:
    tree = parse_module(text)
    return [ast.get_source_segment(text, each) or text for each in tree.body]


def _is_python(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parse_module(text)
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


def _analyze_python_magic(unit: str) -> CodeAnalysis:
    """Analyze an IPython or pdb line that starts with `!` or `%`, both as a shell command and as Python."""
    match = _MAGIC.fullmatch(unit)
    if match is None:
        return CodeAnalysis()
    return _merge_analyses([CodeAnalysis((Word(match[1]),)), analyze_code(Word(match[1]), "python")])


def _unsupported_language(text: str) -> CodeAnalysis:
    return CodeAnalysis(
        (),
        (
            CommandEffect(
                EffectKind.UNREADABLE, Word(text[:80]), detail="its language is not supported by the analysis"
            ),
        ),
    )


_DEFINITION = re.compile(
    r"\b(?:def|function|class|module|const|let|var|my|our|local|sub|as|import|define|macro|procedure|set)\s+"
    r"[$@%]?([\w.]+)|([\w.]+)\s*(?::=|=|<-)(?!=)",
    re.IGNORECASE,
)


def _uses_definitions(defining: Iterable[str], using: Iterable[str]) -> bool:
    """Return True if the code in `using` uses a name that the code in `defining` may define."""
    names = {name.lower() for unit in defining for pair in _DEFINITION.findall(unit) for name in pair if name}
    return any(word.lower() in names for unit in using for word in re.findall(r"[\w.]+", unit))


def _has_effects(analysis: CodeAnalysis) -> bool:
    return bool(analysis.scripts or analysis.effects)


def _remove_known(analysis: CodeAnalysis, known: CodeAnalysis) -> CodeAnalysis:
    return CodeAnalysis(
        tuple(each for each in analysis.scripts if each not in known.scripts),
        tuple(each for each in analysis.effects if each not in known.effects),
    )


def _merge_analyses(analyses: Iterable[CodeAnalysis]) -> CodeAnalysis:
    scripts: dict[Word, None] = {}
    effects: dict[CommandEffect, None] = {}
    for each in analyses:
        scripts |= dict.fromkeys(each.scripts)
        effects |= dict.fromkeys(each.effects)
    return CodeAnalysis(tuple(scripts), tuple(effects))
