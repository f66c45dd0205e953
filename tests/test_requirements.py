"""The requirements manifest matches the existing tests, in both directions."""

from __future__ import annotations

import ast
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

TESTS = Path(__file__).parent


def read_requirements() -> dict[str, list[str]]:
    """Return each requirement with the patterns of its tests."""
    sections = tomllib.loads((TESTS / "requirements.toml").read_text(encoding="utf-8"))
    return {
        f"{section}: {promise}": patterns
        for section, entries in sections.items()
        for promise, patterns in entries.items()
    }


def find_tests() -> list[str]:
    """Return every test as `path::name`."""
    return [
        f"{file.relative_to(TESTS).as_posix()}::{node.name}"
        for file in sorted(TESTS.rglob("test_*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
    ]


def test_every_requirement_names_existing_tests() -> None:
    existing = find_tests()
    empty = [
        f"{promise}: {pattern}"
        for promise, patterns in read_requirements().items()
        for pattern in patterns
        if not any(fnmatchcase(test, pattern) for test in existing)
    ]
    assert empty == []
    assert all(read_requirements().values())


def test_every_test_belongs_to_a_requirement() -> None:
    patterns = [pattern for each in read_requirements().values() for pattern in each]
    unclaimed = [test for test in find_tests() if not any(fnmatchcase(test, pattern) for pattern in patterns)]
    assert unclaimed == []
