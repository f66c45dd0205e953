"""Load phrases, words and patterns of the scanner from TOML files.

Each file is read on first use. The files are data: what a match means is decided by the rules.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def load_phrases() -> dict[str, list[str]]:
    """Return the phrases of each phrase group of the scanner."""
    groups: dict[str, str] = _read_data("phrases.toml")
    return {name: [" ".join(phrase.split()) for phrase in text.split("|")] for name, text in groups.items()}


@cache
def get_words(name: str) -> tuple[str, ...]:
    """Return the scanner's word list with this name, in the order of the file."""
    return tuple(_read_data("words.toml")[name])


@cache
def get_word_set(name: str) -> frozenset[str]:
    """Return the scanner's word list with this name, as a set."""
    return frozenset(get_words(name))


@cache
def get_pattern(name: str) -> re.Pattern[str]:
    """Return the scanner's regular expression with this name."""
    entry = _read_data("patterns.toml")[name]
    flags = re.IGNORECASE if entry.get("ignore_case") else re.NOFLAG
    return re.compile("|".join(map(_join_lines, entry["alternatives"])), flags)


def _join_lines(alternative: str) -> str:
    if "\n" not in alternative:
        return alternative
    return "".join(line.strip() for line in alternative.splitlines())


@cache
def _read_data(name: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))
