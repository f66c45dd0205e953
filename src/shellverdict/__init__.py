"""Determine what a shell command would do, without running it.

`judge` reads a command as a shell would and returns a `Verdict` with findings. The package runs nothing,
asks nobody and keeps no state: what follows from a verdict is the caller's decision.

    >>> from shellverdict import judge
    >>> judge("rm -rf /").blocked
    True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shellverdict.errors import RuleError
    from shellverdict.judging import Judge, judge
    from shellverdict.rules import Rules, load_rules
    from shellverdict.verdict import Finding, Severity, Verdict

__all__ = ["Finding", "Judge", "RuleError", "Rules", "Severity", "Verdict", "judge", "load_rules"]

_MODULES = {
    "Finding": "verdict",
    "Judge": "judging",
    "RuleError": "errors",
    "Rules": "rules",
    "Severity": "verdict",
    "Verdict": "verdict",
    "judge": "judging",
    "load_rules": "rules",
}


def __getattr__(name: str) -> Any:
    """Import a public name of this package on first use, because importing all modules at once is slow."""
    if name not in _MODULES:
        raise AttributeError(f"module 'shellverdict' has no attribute {name!r}")
    return getattr(importlib.import_module(f"shellverdict.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
