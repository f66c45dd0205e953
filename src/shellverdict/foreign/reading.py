"""Which reader understands which language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from shellverdict.foreign.awk import read_awk
from shellverdict.foreign.calls import actions
from shellverdict.foreign.editors import read_ed, read_sed, read_vim
from shellverdict.foreign.nouns import Foreign, Found
from shellverdict.foreign.prompts import read_cmd, read_fish, read_powershell, read_tcl
from shellverdict.foreign.python import NotPython, read_python
from shellverdict.foreign.scripts import read_calls
from shellverdict.foreign.sql import read_sql
from shellverdict.foreign.tools import (
    read_cmake,
    read_crontab,
    read_dc,
    read_debugger,
    read_gnuplot,
    read_make,
    read_make_value,
    read_mongo,
    read_puppet,
    read_tex,
    read_transfer,
)
from shellverdict.shell.words import GAP, Word

__all__ = ["LONGEST", "read_foreign"]

LONGEST = 16_384  # characters of foreign code that are read; code in a command is rarely a hundredth of it

_READERS: Mapping[str, Callable[[str], Foreign]] = MappingProxyType(
    {
        "awk": read_awk,
        "sed": read_sed,
        "ed": read_ed,
        "fish": read_fish,
        "powershell": read_powershell,
        "cmd": read_cmd,
        "tcl": read_tcl,
        "expect": read_tcl,
        "make": read_make,
        "make-value": read_make_value,
        "crontab": read_crontab,
        "cmake": read_cmake,
        "mongo": read_mongo,
        "lftp": read_transfer,
        "sftp": read_transfer,
        "dc": read_dc,
        "tex": read_tex,
        "puppet": read_puppet,
        "gnuplot": read_gnuplot,
    }
)
_WITH_OTHERS: Mapping[str, Callable[[str], tuple[Foreign, list[tuple[str, str]]]]] = MappingProxyType(
    {"vim": read_vim, "gdb": read_debugger}
)
_DATA = frozenset({"binary", "readline", ""})  # nothing that could be read here


def read_foreign(code: Word, language: str) -> Foreign:
    """What `code` in `language` does. Raises nothing; code that cannot be read is said to be so."""
    found = Found()
    if language in _DATA:
        return found.foreign
    if not code.strip().strip(GAP):
        if code.strip():
            found.unreadable(code)
        return found.foreign
    found.merge(_read(Word(code[:LONGEST]), language))
    if len(code) > LONGEST:
        found.unreadable(code)
    return found.foreign


def _read(code: Word, language: str, depth: int = 0) -> Foreign:
    if language == "python":
        return _python(code)
    if language.startswith("sql"):
        return read_sql(code, language.partition(":")[2])
    if reader := _READERS.get(language):
        return reader(code)
    if (mixed := _WITH_OTHERS.get(language)) and depth < 3:
        found = Found()
        own, others = mixed(code)
        found.merge(own)
        for other, text in others:
            found.merge(_read(Word(text), other, depth + 1))
        return found.foreign
    return read_calls(code, language) if language in actions() else Foreign()


def _python(code: str) -> Foreign:
    try:
        return read_python(code)
    except NotPython:
        found = Found()
        for line in code.split("\n"):
            if line.lstrip().startswith("!"):  # IPython's way to a shell
                found.script(line.lstrip().lstrip("!"))
        found.merge(read_calls(code, "python"))
        return found.foreign
