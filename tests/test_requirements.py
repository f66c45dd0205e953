"""The requirements manifest matches the existing tests, in both directions."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
TEST_NAME = re.compile(r"^ *(?:async )?def (test_\w+)\(", re.MULTILINE)


def read_requirements() -> dict[str, list[str]]:
    """Return each requirement with the patterns of its tests."""
    sections = tomllib.loads((TESTS / "requirements.toml").read_text(encoding="utf-8"))
    return {
        f"{section}: {promise}": patterns
        for section, entries in sections.items()
        for promise, patterns in entries.items()
    }


@cache
def find_tests() -> Mapping[str, Sequence[str]]:
    """Return the names of all tests by file."""
    return {
        file.relative_to(TESTS).as_posix(): TEST_NAME.findall(file.read_text(encoding="utf-8"))
        for file in sorted(TESTS.rglob("test_*.py"))
    }


def find_matches(pattern: str) -> Iterator[str]:
    """Yield every test, as `path::name`, that the pattern of a requirement names."""
    path, _, name = pattern.partition("::")
    files = [path] if path in find_tests() else [each for each in find_tests() if fnmatchcase(each, path)]
    for file in files:
        yield from (f"{file}::{test}" for test in find_tests()[file] if fnmatchcase(test, name or "*"))


def test_every_requirement_names_existing_tests() -> None:
    empty = [
        f"{promise}: {pattern}"
        for promise, patterns in read_requirements().items()
        for pattern in patterns
        if not any(find_matches(pattern))
    ]
    assert empty == []
    assert all(read_requirements().values())


def test_every_test_belongs_to_a_requirement() -> None:
    patterns = [pattern for each in read_requirements().values() for pattern in each]
    claimed = {test for pattern in patterns for test in find_matches(pattern)}
    every = {f"{file}::{test}" for file, tests in find_tests().items() for test in tests}
    assert sorted(every - claimed) == []
