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

__all__ = ["ProgramSpec", "load_programs"]

OperandKind = Literal["", "argv", "code", "script", "text", "texts", "files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSpec:
    """How one program names what it runs.

    `then` says what stands behind the options and `skip` further operands: `argv` a command; `code` words
    that are joined to one line of code; `script` a file of code and its arguments, or standard input where
    there is none; `text` code in the first operand, unless an option gave it; `texts` code in every operand;
    `files` every operand is a file of code.
    """

    options: str = ""
    operands: OperandKind = ""
    language: str = "sh"
    skip: int = 0
    assignments: bool = False  # NAME=value may stand before the command
    single_dash: bool = False  # long options begin with one dash
    permuted: bool = False  # options may stand behind operands
    reads_stdin: bool = False  # where no code and no command was given, standard input is code
    options_until_dashes: bool = False  # options may follow the skipped operands, up to `--`
    wrapper: str | None = None  # the name it is seen through; its own where nothing is said
    subcommands: Mapping[str, ProgramSpec] = field(default_factory=lambda: MappingProxyType({}))


@cache
def load_programs() -> Mapping[str, ProgramSpec]:
    """Every program of the table, by name."""
    tables = tomllib.loads(files(__package__).joinpath("programs.toml").read_text("utf-8"))
    return MappingProxyType({name: _build_program(tables, table) for name, table in tables.items()})


def _build_program(tables: Mapping[str, Any], table: Mapping[str, Any]) -> ProgramSpec:
    if "same_as" in table:
        return _build_program(tables, tables[table["same_as"]])
    subcommands = {
        name: _build_program(tables, below) for name, below in table.get("subcommands", {}).items()
    }
    return ProgramSpec(**{**table, "subcommands": MappingProxyType(subcommands)})
