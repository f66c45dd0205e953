"""Analyze code in other languages that a shell command contains or runs.

`analyze_code` returns the shell commands that the code starts and the effects it has by itself. It does not
judge them: the commands are parsed by the shell reader and judged by the same rules as any other command.
"""

from __future__ import annotations

from shellverdict.embedded_code.analysis import CodeAnalysis
from shellverdict.embedded_code.language_dispatch import analyze_code

__all__ = ["CodeAnalysis", "analyze_code"]
