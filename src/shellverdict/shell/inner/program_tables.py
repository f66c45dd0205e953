"""Load the table of programs that run other programs or code.

A `ProgramSpec` describes the options of a program (see `option_spec`) and the meaning of its operands. The
programs are listed in `programs.toml`; programs that do not fit the table have a reader function in another
module.
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
    """Specification of a program that runs other commands: which of its arguments are commands or code.

    `operands` is the meaning of the words after the options and `skip` further operands: `argv` a command;
    `code` words that are joined to one line of code; `script` a code file and its arguments, or standard
    input if there is none; `text` code in the first operand, unless an option has given it; `texts` code in
    every operand; `files` every operand is a code file.
    """

    options: str = ""
    operands: OperandKind = ""
    language: str = "sh"
    skip: int = 0
    assignments: bool = False  # NAME=value may precede the command
    single_dash: bool = False  # long options start with one dash
    permuted: bool = False  # options may follow operands
    reads_stdin: bool = False  # without code or a command, standard input is code
    options_until_dashes: bool = False  # options may follow the skipped operands, up to `--`
    wrapper: str | None = None  # name in `wrappers`; the program's own by default
    subcommands: Mapping[str, ProgramSpec] = field(default_factory=lambda: MappingProxyType({}))


@cache
def load_programs() -> Mapping[str, ProgramSpec]:
    """Return the specification of every program in `programs.toml`, by program name."""
    tables = tomllib.loads(files(__package__).joinpath("programs.toml").read_text("utf-8"))
    return MappingProxyType({name: _build_program(tables, table) for name, table in tables.items()})


def _build_program(tables: Mapping[str, Any], table: Mapping[str, Any]) -> ProgramSpec:
    if "same_as" in table:
        return _build_program(tables, tables[table["same_as"]])
    subcommands = {
        name: _build_program(tables, below) for name, below in table.get("subcommands", {}).items()
    }
    return ProgramSpec(**{**table, "subcommands": MappingProxyType(subcommands)})
