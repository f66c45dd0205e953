"""The manifest of promises, held against the tests that exist, both ways."""

from __future__ import annotations

import ast
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

TESTS = Path(__file__).parent


def promises() -> dict[str, list[str]]:
    """Each promise with the patterns of its tests."""
    sections = tomllib.loads((TESTS / "requirements.toml").read_text(encoding="utf-8"))
    return {
        f"{section}: {promise}": patterns
        for section, entries in sections.items()
        for promise, patterns in entries.items()
    }


def existing_tests() -> list[str]:
    """Every test there is, as `path::name`."""
    return [
        f"{file.relative_to(TESTS).as_posix()}::{node.name}"
        for file in sorted(TESTS.rglob("test_*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
    ]


def test_every_requirement_names_existing_tests() -> None:
    existing = existing_tests()
    empty = [
        f"{promise}: {pattern}"
        for promise, patterns in promises().items()
        for pattern in patterns
        if not any(fnmatchcase(test, pattern) for test in existing)
    ]
    assert empty == []
    assert all(promises().values())


def test_every_test_belongs_to_a_requirement() -> None:
    patterns = [pattern for each in promises().values() for pattern in each]
    unclaimed = [
        test for test in existing_tests() if not any(fnmatchcase(test, pattern) for pattern in patterns)
    ]
    assert unclaimed == []
