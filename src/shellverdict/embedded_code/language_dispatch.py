"""Analyze code in any supported language by calling the analyzer for that language."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

from shellverdict.embedded_code.analysis import AnalysisBuilder, CodeAnalysis
from shellverdict.embedded_code.awk import analyze_awk
from shellverdict.embedded_code.call_actions import load_actions
from shellverdict.embedded_code.call_scanner import analyze_calls
from shellverdict.embedded_code.editors import analyze_ed, analyze_sed, analyze_vim
from shellverdict.embedded_code.other_shells import analyze_cmd, analyze_fish, analyze_powershell, analyze_tcl
from shellverdict.embedded_code.python import NotPython, analyze_python
from shellverdict.embedded_code.sql import analyze_sql
from shellverdict.embedded_code.tool_languages import (
    analyze_cmake,
    analyze_crontab,
    analyze_dc,
    analyze_debugger,
    analyze_file_transfer,
    analyze_gnuplot,
    analyze_make,
    analyze_make_value,
    analyze_mongo,
    analyze_puppet,
    analyze_tex,
)
from shellverdict.shell.words import GAP, MAX_TEXT_CHARS, Word

__all__ = ["analyze_code"]

_ANALYZERS: Mapping[str, Callable[[str], CodeAnalysis]] = MappingProxyType(
    {
        "awk": analyze_awk,
        "sed": analyze_sed,
        "ed": analyze_ed,
        "fish": analyze_fish,
        "powershell": analyze_powershell,
        "cmd": analyze_cmd,
        "tcl": analyze_tcl,
        "expect": analyze_tcl,
        "make": analyze_make,
        "make-value": analyze_make_value,
        "crontab": analyze_crontab,
        "cmake": analyze_cmake,
        "mongo": analyze_mongo,
        "lftp": analyze_file_transfer,
        "sftp": analyze_file_transfer,
        "dc": analyze_dc,
        "tex": analyze_tex,
        "puppet": analyze_puppet,
        "gnuplot": analyze_gnuplot,
    }
)
_MIXED_ANALYZERS: Mapping[str, Callable[[str], tuple[CodeAnalysis, list[tuple[str, str]]]]] = (
    MappingProxyType({"vim": analyze_vim, "gdb": analyze_debugger})
)
_NOT_CODE = frozenset({"binary", "readline", ""})  # data, nothing to analyze


def analyze_code(code: Word, language: str) -> CodeAnalysis:
    """Return the effects of `code`, which is written in `language`, and the shell scripts that it runs.

    Never raises. Code that cannot be analyzed, or that is too long, gives an `unreadable` effect.
    """
    analysis = AnalysisBuilder()
    if language in _NOT_CODE:
        return analysis.build()
    if not code.strip().strip(GAP):
        if code.strip():
            analysis.add_unreadable(code)
        return analysis.build()
    analysis.merge(_analyze_language(Word(code[:MAX_TEXT_CHARS]), language))
    if len(code) > MAX_TEXT_CHARS:
        analysis.add_unreadable(code)
    return analysis.build()


def _analyze_language(code: Word, language: str, depth: int = 0) -> CodeAnalysis:
    if language == "python":
        return _analyze_python_or_calls(code)
    if language == "doctest":
        return _analyze_doctest(code)
    if language.startswith("sql"):
        return analyze_sql(code, language.partition(":")[2])
    if analyze := _ANALYZERS.get(language):
        return analyze(code)
    if (analyze_mixed := _MIXED_ANALYZERS.get(language)) and depth < 3:
        analysis = AnalysisBuilder()
        own, others = analyze_mixed(code)
        analysis.merge(own)
        for other, text in others:
            analysis.merge(_analyze_language(Word(text), other, depth + 1))
        return analysis.build()
    return analyze_calls(code, language) if language in load_actions() else CodeAnalysis()


_DOCTEST_PROMPT = re.compile(r"^[ \t]*(?:>>>|\.\.\.) ?(.*)$", re.MULTILINE)


def _analyze_doctest(code: str) -> CodeAnalysis:
    """Analyze a file whose examples `doctest` runs: a Python module, or text with `>>> ` lines."""
    analysis = AnalysisBuilder()
    with suppress(NotPython):
        analysis.merge(analyze_python(code))
    if examples := "\n".join(_DOCTEST_PROMPT.findall(code)):
        analysis.merge(_analyze_python_or_calls(examples))
    return analysis.build()


def _analyze_python_or_calls(code: str) -> CodeAnalysis:
    try:
        return analyze_python(code)
    except NotPython:
        analysis = AnalysisBuilder()
        for line in code.split("\n"):
            if line.lstrip().startswith("!"):  # IPython's shell escape
                analysis.add_script(line.lstrip().lstrip("!"))
        analysis.merge(analyze_calls(code, "python"))
        return analysis.build()
