"""Python code that would administrate this runtime: imports of its modules, changes of its processes' mark.

Told as programs that the rules know (`toolfold-code`, `prlimit`). Reads one node at a time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

__all__ = ["own_commands"]

# What a program that only uses the runtime has no need of.
_ADMINISTRATIVE = frozenset({"__main__", "approval", "cli", "config", "connecting", "gateway", "provenance"})
_HARMLESS = frozenset(
    f"toolfold.config.{name}" for name in ("Config", "Paths", "describe", "get", "json_schema", "load")
)
_MODULE = re.compile(r"toolfold(?:\.\w+)+")


def own_commands(node: ast.AST) -> Iterator[tuple[str, ...]]:
    """Yield what the node does to the runtime, as words of a command."""
    for module in _modules(node):
        if module.split(".")[1:2] and module.split(".")[1] in _ADMINISTRATIVE and module not in _HARMLESS:
            yield "toolfold-code", module
    match node:
        case ast.Call(func=ast.Attribute(attr="run_module" | "_run_module_as_main"), args=[first, *_]):
            if isinstance(first, ast.Constant) and str(first.value).partition(".")[0] == "toolfold":
                yield "toolfold-code", str(first.value)
        case ast.Attribute(attr="RLIMIT_RSS") | ast.alias(name="RLIMIT_RSS"):
            yield "prlimit", "--rss=unlimited"


def _modules(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (each.name for each in names)
        case ast.ImportFrom(module=str() as module, names=names):
            yield from (f"{module}.{each.name}" for each in names)
        case ast.Constant(value=str() as text) if _MODULE.fullmatch(text[:200]):
            yield text  # a name that is imported while the code runs
        case ast.Attribute(value=ast.Name(id="toolfold"), attr=name):
            yield f"toolfold.{name}"
