"""Rules and programs out of tables: the shipped TOML files, a configuration, a plugin.

Whatever cannot be used is named with its rule and key, so that a person can mend it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from shellverdict.errors import RuleError, shorten, suggest_name
from shellverdict.rules.globs import Choice, OptionGlob, Path
from shellverdict.rules.programs import Program
from shellverdict.rules.rule import PLACEHOLDER, UNNAMED, AboutEffect, AboutRun, Rule
from shellverdict.shell.runs import Mark
from shellverdict.verdict import Kind, Severity

__all__ = ["read_program", "read_rule", "shipped_tables"]

PLAIN: Final = ("name", "category", "severity", "description", "blocked", "matches", "must_not_match")
OF_EFFECT: Final = ("effect", "traits", "any_trait", "no_trait", "target", "known", "detail", "no_detail")
OF_RUN: Final = (
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
OF_PROGRAM: Final = (
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


def shipped_tables() -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The programs and the rules of the files beside this one, by the files' names."""
    found = (each for each in files(__package__).iterdir() if each.name.endswith(".toml"))
    programs: list[Mapping[str, Any]] = []
    rules: list[Mapping[str, Any]] = []
    for file in sorted(found, key=lambda each: each.name):
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
        programs.extend(tables.get("program", ()))
        rules.extend(tables.get("rule", ()))
    return programs, rules


def read_rule(table: Mapping[str, Any], number: int = 0) -> Rule:
    """One rule, or a RuleError that says which and why not."""
    keys = _Keys(table, f"the rule {_named(table, number)}")
    keys.only(*PLAIN, *OF_EFFECT, *OF_RUN)
    return Rule(
        name=keys.text("name"),
        category=keys.text("category"),
        severity=Severity[keys.one_of("severity", [s.name.lower() for s in Severity]).upper()],
        description=_description(keys),
        about=_about(keys),
        blocked=keys.flag("blocked") or False,
        matches=keys.texts("matches"),
        must_not_match=keys.texts("must_not_match"),
    )


def read_program(table: Mapping[str, Any]) -> tuple[tuple[str, ...], Program]:
    """The names of a program and how it reads its words."""
    keys = _Keys(table, f"the program {table.get('names')}")
    keys.only(*OF_PROGRAM)
    return keys.texts("names"), Program(
        valued=frozenset(keys.texts("valued")),
        harmless=frozenset(keys.texts("harmless")),
        not_help=frozenset(keys.texts("not_help")),
        inner=frozenset(tuple(path.split()) for path in keys.texts("inner")),
        exact=keys.flag("exact") or False,
        leading=keys.flag("leading") or False,
        abbreviated=keys.flag("abbreviated") or False,
        slashes=keys.flag("slashes") or False,
        modules=keys.flag("modules") or False,
    )


def _named(table: Mapping[str, Any], number: int) -> str:
    name = table.get("name") if isinstance(table, Mapping) else None
    return repr(shorten(name)) if isinstance(name, str) and name else f"number {number + 1}"


def _description(keys: _Keys) -> str:
    text = keys.text("description")
    for name in PLACEHOLDER.findall(text):
        if name not in UNNAMED:
            raise keys.wrong(
                "description", f"has {{{name}}}, which nothing fills", suggest_name(name, UNNAMED)
            )
    return text


def _about(keys: _Keys) -> AboutEffect | AboutRun:
    if keys.has("effect") == keys.has("programs"):
        raise keys.wrong("effect", "and `programs` cannot both be given, and one of them must be")
    if keys.has("effect"):
        keys.none_of(OF_RUN, "a rule about an effect")
        return _about_effect(keys)
    keys.none_of(OF_EFFECT, "a rule about a program")
    return _about_run(keys)


def _about_effect(keys: _Keys) -> AboutEffect:
    return AboutEffect(
        kind=Kind(keys.one_of("effect", [kind.value for kind in Kind])),
        traits=frozenset(keys.texts("traits")),
        any_trait=frozenset(keys.texts("any_trait")),
        no_trait=frozenset(keys.texts("no_trait")),
        target=keys.choice("target"),
        known=keys.flag("known"),
        detail=keys.choice("detail"),
        no_detail=keys.choice("no_detail"),
    )


def _about_run(keys: _Keys) -> AboutRun:
    return AboutRun(
        programs=keys.texts("programs"),
        no_programs=frozenset(keys.texts("no_programs")),
        words=keys.paths("words"),
        no_words=keys.paths("no_words"),
        any_option=keys.options("any_option"),
        all_options=keys.options("all_options"),
        no_option=keys.options("no_option"),
        operand=keys.choice("operand"),
        no_operand=keys.choice("no_operand"),
        bare=keys.flag("bare"),
        through=frozenset(keys.texts("through")),
        elsewhere=keys.flag("elsewhere"),
        fed=frozenset(Mark(mark) for mark in keys.each_of("fed", [mark.value for mark in Mark])),
        input=keys.choice("input"),
        assigned=keys.assigned("assigned"),
        fallback=keys.flag("fallback") or False,
    )


class _Keys:
    """One table, read key by key; every complaint names the owner and the key."""

    def __init__(self, table: Mapping[str, Any], owner: str) -> None:
        if not isinstance(table, Mapping):
            raise RuleError(f"{owner} must be a map of keys", key=owner)
        self._table, self._owner = table, owner

    def wrong(self, key: str, problem: str, hint: str = "") -> RuleError:
        return RuleError(f"{self._owner}: `{key}` {problem}", key=key, hint=hint)

    def has(self, key: str) -> bool:
        return key in self._table

    def only(self, *known: str) -> None:
        for key in self._table:
            if key not in known:
                raise self.wrong(shorten(str(key)), "is not a key it can have", suggest_name(str(key), known))

    def none_of(self, keys: Sequence[str], owner: str) -> None:
        for key in keys:
            if key in self._table:
                raise self.wrong(key, f"means nothing in {owner}")

    def text(self, key: str) -> str:
        value = self._table.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, "must be a text" if key in self._table else "is missing")
        return value.strip()

    def one_of(self, key: str, known: Sequence[str]) -> str:
        return self._known(key, self.text(key), known)

    def each_of(self, key: str, known: Sequence[str]) -> list[str]:
        return [self._known(key, value, known) for value in self.texts(key)]

    def _known(self, key: str, value: str, known: Sequence[str]) -> str:
        if value not in known:
            hint = suggest_name(value, known) or f"use one of {', '.join(known)}"
            raise self.wrong(key, f"cannot be {shorten(value)!r}", hint)
        return value

    def flag(self, key: str) -> bool | None:
        value = self._table.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, "must be true or false")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._table.get(key, ())
        if isinstance(value, str):
            value = (value,)
        if not isinstance(value, Sequence) or not all(isinstance(each, str) and each for each in value):
            raise self.wrong(key, "must be a list of texts")
        if key in self._table and not value:
            raise self.wrong(key, "is empty")
        return tuple(value)

    def paths(self, key: str) -> tuple[Path, ...]:
        paths = tuple(Path.of(text) for text in self.texts(key))
        for text, path in zip(self.texts(key), paths, strict=True):
            if not path.steps or "**" in text.split()[1:]:
                raise self.wrong(key, f"cannot have {shorten(text)!r}", "`**` can only come first")
        return paths

    def options(self, key: str) -> tuple[OptionGlob, ...]:
        texts = self.texts(key)
        for text in texts:
            if text[0] not in "-/+":
                raise self.wrong(key, f"has {shorten(text)!r}, which is not an option", f"write -{text}")
        return tuple(OptionGlob.of(text) for text in texts)

    def choice(self, key: str) -> Choice | None:
        return Choice.of(self.texts(key)) if key in self._table else None

    def assigned(self, key: str) -> Mapping[str, Choice]:
        value = self._table.get(key, {})
        if not isinstance(value, Mapping):
            raise self.wrong(key, "must be a map of names to values")
        inside = _Keys(value, f"{self._owner}, `{key}`")
        return MappingProxyType({name: Choice.of(inside.texts(name)) for name in value})
