"""Detect Python code that may change Toolfold itself, for example by importing its modules.

Reported as commands that the rules know (`toolfold-code`, `prlimit`). Examines one syntax node at a time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

__all__ = ["find_runtime_commands"]

# Modules that a program does not need in order to use the runtime.
_ADMINISTRATIVE = ("__main__", "cli", "config", "core.tool_processes", "safety.approval", "serving.gateway")
_HARMLESS = frozenset(
    f"toolfold.config.{name}" for name in ("Config", "Paths", "describe", "get", "json_schema", "load")
)
_RUNTIME_MODULE = re.compile(r"toolfold(?:\.\w+)+")


def find_runtime_commands(node: ast.AST) -> Iterator[tuple[str, ...]]:
    """Yield commands, as argument lists, that are equivalent to Python code that changes Toolfold itself."""
    for module in _named_modules(node):
        package, _, rest = module.partition(".")
        is_own = package == "toolfold" and f"{rest}.".startswith(
            tuple(f"{each}." for each in _ADMINISTRATIVE)
        )
        if is_own and module not in _HARMLESS:
            yield "toolfold-code", module
    match node:
        case ast.Call(func=ast.Attribute(attr="run_module" | "_run_module_as_main"), args=[first, *_]):
            if isinstance(first, ast.Constant) and str(first.value).partition(".")[0] == "toolfold":
                yield "toolfold-code", str(first.value)
        case ast.Attribute(attr="RLIMIT_RSS") | ast.alias(name="RLIMIT_RSS"):
            yield "prlimit", "--rss=unlimited"


def _named_modules(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names of modules that a syntax node imports or names in a string."""
    match node:
        case ast.Import(names=names):
            yield from (each.name for each in names)
        case ast.ImportFrom(module=str() as module, names=names):
            yield from (f"{module}.{each.name}" for each in names)
        case ast.Constant(value=str() as text) if _RUNTIME_MODULE.fullmatch(text[:200]):
            yield text  # perhaps imported by name at run time
        case ast.Attribute(value=ast.Name(id="toolfold"), attr=name):
            yield f"toolfold.{name}"
