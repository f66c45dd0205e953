"""Read danger rules and program syntax from built-in TOML files, configuration and plugins.

Errors name the rule and the key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from shellverdict.errors import RuleError, shorten, suggest_name
from shellverdict.rules.program_syntax import ProgramSyntax
from shellverdict.rules.rule import PLACEHOLDER, PLACEHOLDER_DEFAULTS, EffectCondition, Rule, RunCondition
from shellverdict.rules.rule_patterns import OptionPattern, SubcommandPattern, WordPattern
from shellverdict.shell.runs import Taint
from shellverdict.verdict import EffectKind, Severity

__all__ = ["load_builtin_tables", "read_program", "read_rule", "read_rule_file"]

Tables: TypeAlias = Sequence[Mapping[str, Any]]

MAX_RULE_FILE_BYTES: Final = 1_000_000

RULE_KEYS: Final = ("name", "category", "severity", "description", "blocked", "matches", "must_not_match")
EFFECT_KEYS: Final = ("effect", "traits", "any_trait", "no_trait", "target", "known", "detail", "no_detail")
RUN_KEYS: Final = (
    "programs",
    "no_programs",
    "words",
    "no_words",
    "any_option",
    "all_options",
    "no_option",
    "operand",
    "no_operand",
    "bare",
    "through",
    "elsewhere",
    "fed",
    "input",
    "assigned",
    "fallback",
)
PROGRAM_KEYS: Final = (
    "names",
    "valued",
    "harmless",
    "not_help",
    "inner",
    "exact",
    "leading",
    "abbreviated",
    "slashes",
    "modules",
)


def load_builtin_tables() -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the program and rule tables of the TOML files in this package, in order of file name."""
    toml_files = (each for each in files(__package__).iterdir() if each.name.endswith(".toml"))
    programs: list[Mapping[str, Any]] = []
    rules: list[Mapping[str, Any]] = []
    for file in sorted(toml_files, key=lambda each: each.name):
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
        programs.extend(tables.get("program", ()))
        rules.extend(tables.get("rule", ()))
    return programs, rules


def read_rule_file(file: Path) -> tuple[Tables, Tables]:
    """Return the program and rule tables of a TOML file.

    Raises RuleError if the file has another structure.
    """
    content = _read_limited(file)
    try:
        tables = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or nested too deeply
        raise RuleError(f"the rule file is not valid TOML: {error}") from None
    for key, value in tables.items():
        if key not in ("program", "rule"):
            hint = suggest_name(key, ("program", "rule")) or "a rule starts with [[rule]]"
            raise RuleError(f"`{shorten(key)}` is not a known table of a rule file", key=key, hint=hint)
        if not isinstance(value, list):
            raise RuleError(
                f"`{key}` must be a list of tables in a rule file", key=key, hint=f"write [[{key}]]"
            )
    return tables.get("program", ()), tables.get("rule", ())


def _read_limited(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_RULE_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # a ValueError: the path contains a null character
        raise RuleError(
            f"the rule file cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    if len(content) > MAX_RULE_FILE_BYTES:
        raise RuleError(f"the rule file has more than {MAX_RULE_FILE_BYTES:,} bytes", hint="split it")
    return content


def read_rule(table: Mapping[str, Any], number: int = 0) -> Rule:
    """Read one danger rule from a table of a rule file. Raises RuleError if it is invalid."""
    name = table.get("name") if isinstance(table, Mapping) else None
    label = repr(shorten(name)) if isinstance(name, str) and name else f"number {number + 1}"
    keys = _TableReader(table, f"rule {label}", name if isinstance(name, str) else "")
    keys.check_known_keys(*RULE_KEYS, *EFFECT_KEYS, *RUN_KEYS)
    return Rule(
        name=keys.read_text("name"),
        category=keys.read_text("category"),
        severity=Severity[keys.read_choice("severity", [s.name.lower() for s in Severity]).upper()],
        description=_read_description(keys),
        condition=_read_condition(keys),
        blocked=keys.read_flag("blocked") or False,
        matches=keys.read_texts("matches"),
        must_not_match=keys.read_texts("must_not_match"),
    )


def read_program(table: Mapping[str, Any]) -> tuple[tuple[str, ...], ProgramSyntax]:
    """Read the names of a program and its command-line syntax from a table of a rule file."""
    keys = _TableReader(table, f"program {_program_label(table)}")
    keys.check_known_keys(*PROGRAM_KEYS)
    if not keys.has_key("names"):
        raise keys.make_error("names", "is missing")
    return keys.read_texts("names"), ProgramSyntax(
        valued=frozenset(keys.read_texts("valued")),
        harmless=frozenset(keys.read_texts("harmless")),
        not_help=frozenset(keys.read_texts("not_help")),
        inner=frozenset(tuple(path.split()) for path in keys.read_texts("inner")),
        exact=keys.read_flag("exact") or False,
        leading=keys.read_flag("leading") or False,
        abbreviated=keys.read_flag("abbreviated") or False,
        slashes=keys.read_flag("slashes") or False,
        modules=keys.read_flag("modules") or False,
    )


def _program_label(table: Mapping[str, Any]) -> str:
    names = table.get("names") if isinstance(table, Mapping) else None
    return shorten(repr(names)) if names else "without names"


def _read_description(keys: _TableReader) -> str:
    text = keys.read_text("description")
    for name in PLACEHOLDER.findall(text):
        if name not in PLACEHOLDER_DEFAULTS:
            raise keys.make_error(
                "description",
                f"contains the unknown placeholder {{{name}}}",
                suggest_name(name, PLACEHOLDER_DEFAULTS),
            )
    return text


def _read_condition(keys: _TableReader) -> EffectCondition | RunCondition:
    if keys.has_key("effect") == keys.has_key("programs"):
        raise keys.make_error("effect", "or `programs` must be set, but not both")
    if keys.has_key("effect"):
        keys.check_absent(RUN_KEYS, "a rule about an effect")
        return _read_effect_condition(keys)
    keys.check_absent(EFFECT_KEYS, "a rule about a program")
    return _read_run_condition(keys)


def _read_effect_condition(keys: _TableReader) -> EffectCondition:
    return EffectCondition(
        kind=EffectKind(keys.read_choice("effect", [kind.value for kind in EffectKind])),
        traits=frozenset(keys.read_texts("traits")),
        any_trait=frozenset(keys.read_texts("any_trait")),
        no_trait=frozenset(keys.read_texts("no_trait")),
        target=keys.read_word_pattern("target"),
        known=keys.read_flag("known"),
        detail=keys.read_word_pattern("detail"),
        no_detail=keys.read_word_pattern("no_detail"),
    )


def _read_run_condition(keys: _TableReader) -> RunCondition:
    return RunCondition(
        programs=keys.read_texts("programs"),
        no_programs=frozenset(keys.read_texts("no_programs")),
        words=keys.read_subcommands("words"),
        no_words=keys.read_subcommands("no_words"),
        any_option=keys.read_options("any_option"),
        all_options=keys.read_options("all_options"),
        no_option=keys.read_options("no_option"),
        operand=keys.read_word_pattern("operand"),
        no_operand=keys.read_word_pattern("no_operand"),
        bare=keys.read_flag("bare"),
        through=frozenset(keys.read_texts("through")),
        elsewhere=keys.read_flag("elsewhere"),
        fed=frozenset(Taint(taint) for taint in keys.read_choices("fed", [taint.value for taint in Taint])),
        input=keys.read_word_pattern("input"),
        assigned=keys.read_assignments("assigned"),
        fallback=keys.read_flag("fallback") or False,
    )


class _TableReader:
    """Reader for one table of a rule file; its errors name the invalid key and the rule or program."""

    def __init__(self, table: Mapping[str, Any], owner: str, rule: str = "") -> None:
        if not isinstance(table, Mapping):
            raise RuleError(f"{owner} must be a table of keys and values", key=owner)
        self._table, self._owner, self._rule = table, owner, rule

    def make_error(self, key: str, problem: str, hint: str = "") -> RuleError:
        return RuleError(f"{self._owner}: `{key}` {problem}", key=key, hint=hint, rule=self._rule)

    def has_key(self, key: str) -> bool:
        return key in self._table

    def check_known_keys(self, *known: str) -> None:
        for key in self._table:
            if key not in known:
                raise self.make_error(shorten(str(key)), "is not a valid key", suggest_name(str(key), known))

    def check_absent(self, keys: Sequence[str], owner: str) -> None:
        for key in keys:
            if key in self._table:
                raise self.make_error(key, f"is not valid in {owner}")

    def read_text(self, key: str) -> str:
        value = self._table.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.make_error(key, "must be a non-empty string" if key in self._table else "is missing")
        return value.strip()

    def read_choice(self, key: str, known: Sequence[str]) -> str:
        return self._check_choice(key, self.read_text(key), known)

    def read_choices(self, key: str, known: Sequence[str]) -> list[str]:
        return [self._check_choice(key, value, known) for value in self.read_texts(key)]

    def _check_choice(self, key: str, value: str, known: Sequence[str]) -> str:
        if value not in known:
            hint = suggest_name(value, known) or f"use one of {', '.join(known)}"
            raise self.make_error(key, f"has the invalid value {shorten(value)!r}", hint)
        return value

    def read_flag(self, key: str) -> bool | None:
        value = self._table.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.make_error(key, "must be true or false")
        return value

    def read_texts(self, key: str) -> tuple[str, ...]:
        value = self._table.get(key, ())
        if isinstance(value, str):
            value = (value,)
        if not isinstance(value, Sequence) or not all(isinstance(each, str) and each for each in value):
            raise self.make_error(key, "must be a list of strings")
        if key in self._table and not value:
            raise self.make_error(key, "must not be empty")
        return tuple(value)

    def read_subcommands(self, key: str) -> tuple[SubcommandPattern, ...]:
        paths = tuple(SubcommandPattern.parse(text) for text in self.read_texts(key))
        for text, path in zip(self.read_texts(key), paths, strict=True):
            if not path.steps or "**" in text.split()[1:]:
                raise self.make_error(
                    key, f"has the invalid value {shorten(text)!r}", "`**` is only allowed as the first word"
                )
        return paths

    def read_options(self, key: str) -> tuple[OptionPattern, ...]:
        texts = self.read_texts(key)
        for text in texts:
            if text[0] not in "-/+":
                raise self.make_error(
                    key, f"contains {shorten(text)!r}, which is not an option", f"write -{text}"
                )
        return tuple(OptionPattern.parse(text) for text in texts)

    def read_word_pattern(self, key: str) -> WordPattern | None:
        return WordPattern.parse(self.read_texts(key)) if key in self._table else None

    def read_assignments(self, key: str) -> Mapping[str, WordPattern]:
        value = self._table.get(key, {})
        if not isinstance(value, Mapping):
            raise self.make_error(key, "must be a table of variable names and values")
        assignments = _TableReader(value, f"{self._owner}, `{key}`", self._rule)
        return MappingProxyType({name: WordPattern.parse(assignments.read_texts(name)) for name in value})
