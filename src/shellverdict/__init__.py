"""Tell what a shell command would do, before it runs.

`Judge` reads a command as a shell would and returns a `Verdict` with findings. The package runs nothing,
asks nobody and keeps no state: what follows from a verdict is the caller's decision.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shellverdict.errors import RuleError
    from shellverdict.judge import Judge
    from shellverdict.verdict import Finding, Severity, Verdict

__all__ = ["Finding", "Judge", "RuleError", "Severity", "Verdict"]

_MODULES = {
    "Finding": "verdict",
    "Judge": "judge",
    "RuleError": "errors",
    "Severity": "verdict",
    "Verdict": "verdict",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: reading the rules' modules takes longer than most callers need."""
    if name not in _MODULES:
        raise AttributeError(f"module 'shellverdict' has no attribute {name!r}")
    return getattr(importlib.import_module(f"shellverdict.{_MODULES[name]}"), name)
