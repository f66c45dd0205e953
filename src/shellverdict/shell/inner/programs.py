"""Programs that run other programs or code, as data.

One `Program` says how its options are spelled (see `options`), and what its operands are: a command, a line
of shell code, a script, or a program text. The programs themselves are in `programs.toml`; what does not fit
a table is read by hand in the modules beside this one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

__all__ = ["Program", "programs"]

Operands = Literal["", "argv", "code", "script", "text", "texts", "files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How one program names what it runs.

    `then` says what stands behind the options and `skip` further operands: `argv` a command; `code` words
    that are joined to one line of code; `script` a file of code and its arguments, or standard input where
    there is none; `text` code in the first operand, unless an option gave it; `texts` code in every operand;
    `files` every operand is a file of code.
    """

    options: str = ""
    then: Operands = ""
    language: str = "sh"
    skip: int = 0
    assignments: bool = False  # NAME=value may stand before the command
    single: bool = False  # long options begin with one dash
    mixed: bool = False  # options may stand behind operands
    stdin: bool = False  # where no code and no command was given, standard input is code
    dashes: bool = False  # options may follow the skipped operands, up to `--`
    through: str | None = None  # the name it is seen through; its own where nothing is said
    sub: Mapping[str, Program] = field(default_factory=lambda: MappingProxyType({}))


@cache
def programs() -> Mapping[str, Program]:
    """Every program of the table, by name."""
    tables = tomllib.loads(files(__package__).joinpath("programs.toml").read_text("utf-8"))
    return MappingProxyType({name: _program(tables, table) for name, table in tables.items()})


def _program(tables: Mapping[str, Any], table: Mapping[str, Any]) -> Program:
    if "same" in table:
        return _program(tables, tables[table["same"]])
    sub = {name: _program(tables, below) for name, below in table.get("sub", {}).items()}
    return Program(**{**table, "sub": MappingProxyType(sub)})
