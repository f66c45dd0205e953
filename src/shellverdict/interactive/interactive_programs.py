"""Table of programs that read commands from standard input, and the language of these commands."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from shellverdict.shell.runs import ProgramRun

__all__ = ["UNSUPPORTED", "exits_program", "interactive_language", "may_read_lines", "opens_shell"]

UNSUPPORTED = "unread"
"""Name that stands for all languages that cannot be analyzed."""

_EXITING_OPTIONS = frozenset({"--version", "--help", "-version", "-help", "--list"})


@dataclass(frozen=True, slots=True)
class _ProgramTable:
    languages: Mapping[str, str]
    bare: frozenset[str]
    valued: frozenset[str]
    subcommands: Mapping[str, str]
    silent_builtins: frozenset[str]
    silent_programs: frozenset[str]
    file_options: re.Pattern[str]
    leave: Mapping[str, re.Pattern[str]]
    shell: Mapping[str, re.Pattern[str]]


@cache
def _load_table() -> _ProgramTable:
    """Load the table of interactive programs on first use and cache it."""
    data = tomllib.loads(files(__package__).joinpath("programs.toml").read_text("utf-8"))
    languages = {name: language for language, names in data["language"].items() for name in names.split()}
    return _ProgramTable(
        languages | dict.fromkeys(data["unread"]["names"].split(), UNSUPPORTED),
        frozenset(data["bare"]["names"].split()),
        frozenset(data["bare"]["valued"].split()),
        {words: language for language, several in data["subcommand"].items() for words in several},
        frozenset(data["silent"]["builtins"].split()),
        frozenset(data["silent"]["programs"].split()),
        re.compile(data["silent"]["file_options"]),
        {language: re.compile(pattern) for language, pattern in data["leave"].items()},
        {language: re.compile(pattern) for language, pattern in data["shell"].items()},
    )


def interactive_language(run: ProgramRun) -> str:
    """Return the language of the commands that a program reads interactively; empty if unknown."""
    table, name = _load_table(), str(run.name)
    words = [str(word) for word in run.argv[1:]]
    if not _EXITING_OPTIONS.isdisjoint(words):
        return ""
    if name in ("python", "python3") and words[:1] == ["-m"] and words[1:2]:
        name, words = words[1], words[2:]
    for at, word in enumerate(words):  # python manage.py shell
        if word.endswith("manage.py"):
            name, words = "manage.py", words[at + 1 :]
            break
    operands = [word for word in words if not word.startswith("-")]
    if language := _language_by_subcommand(name, operands, words):
        return language
    if name in table.bare and _find_operands(words):
        return ""
    language = table.languages.get(name, "")
    return "" if language == UNSUPPORTED and "-l" in words else language


def _language_by_subcommand(name: str, operands: list[str], words: list[str]) -> str:
    if not operands:
        return ""
    called = f"{name} {operands[0]}"
    attached = any(re.fullmatch(r"-[a-z]*i[a-z]*|--interactive(=true)?", word) for word in words)
    subcommands = _load_table().subcommands
    return subcommands.get(called) or (subcommands.get(f"{called} -i", "") if attached else "")


def _find_operands(words: list[str]) -> list[str]:
    """Return the words of a command that are neither options nor values of options."""
    operands_found: list[str] = []
    skip = False
    for word in words:
        if not skip and not word.startswith("-"):
            operands_found.append(word)
        skip = not skip and word in _load_table().valued
    return operands_found


def may_read_lines(run: ProgramRun, *, pty: bool, custom_path: bool) -> bool:
    """Return True if a program may consume input lines that were meant for the shell that started it.

    With `pty`, a program can open the terminal whatever its standard input is. With `custom_path`, a name
    without a directory may be any program.
    """
    if not run.argv or not (pty or (run.stdin is not None and run.stdin.is_interactive)):
        return False
    table = _load_table()
    if run.path in table.silent_builtins:
        return False
    if custom_path or run.name not in table.silent_programs or run.path not in _usual_paths(run.name):
        return True
    return any(table.file_options.fullmatch(word) for word in run.argv[1:])


def _usual_paths(name: str) -> tuple[str, ...]:
    return (name, f"/bin/{name}", f"/usr/bin/{name}")


def exits_program(language: str, line: str) -> bool:
    """Return True if a line typed into a program makes it exit."""
    patterns = _load_table().leave
    pattern = patterns.get(_language_family(language)) or patterns["default"]
    return pattern.fullmatch(line.strip()) is not None


def opens_shell(language: str, line: str) -> bool:
    """Return True if a line typed into a program opens a shell inside it."""
    pattern = _load_table().shell.get(_language_family(language))
    return pattern is not None and pattern.fullmatch(line.strip()) is not None


def _language_family(language: str) -> str:
    return language.partition(":")[0]
