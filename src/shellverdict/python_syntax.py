"""Parse Python code, also while other threads of the process parse some."""

from __future__ import annotations

import ast

__all__ = ["parse_expression", "parse_module"]

_MAX_ATTEMPTS = 20


def parse_module(text: str) -> ast.Module:
    """Return the syntax tree of a program. Raises the errors of `ast.parse`."""
    for _ in range(_MAX_ATTEMPTS):
        try:
            return ast.parse(text)
        except SystemError:  # CPython 3.11 mixes up the nesting depths of threads that parse at the same time
            continue
    return ast.parse(text)


def parse_expression(text: str) -> ast.expr:
    """Return the syntax tree of an expression. Raises the errors of `ast.parse`."""
    (statement,) = parse_module(f"({text})").body
    if not isinstance(statement, ast.Expr):
        raise SyntaxError("not an expression")
    return statement.value
