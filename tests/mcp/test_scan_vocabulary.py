"""Data files of the scanner: they load, match the classifier, and every entry is used."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.cases import check_cases
from toolfold.mcp import scan
from toolfold.mcp.scan.classifier import load_classifier
from toolfold.mcp.scan.vocabulary import get_pattern, get_words, load_phrases

SCAN_DIR = Path(scan.__file__).parent
SOURCE = "".join(file.read_text(encoding="utf-8") for file in sorted(SCAN_DIR.glob("*.py")))
RULES = (SCAN_DIR / "injection.py").read_text(encoding="utf-8")
GROUP_USES = re.compile(r"(?:has_all|has_any|count|is_near|_is_negated|positions\.get)\(([^()]*)")


def names_in(file: str) -> list[str]:
    return sorted(tomllib.loads((SCAN_DIR / file).read_text(encoding="utf-8")))


def test_phrase_groups_of_the_injection_scanner_equal_the_features_of_its_classifier() -> None:
    assert set(load_phrases()) == set(load_classifier().group_indices)


def test_injection_scanner_rules_use_every_phrase_group_and_no_undefined_phrase_group() -> None:
    used = {name for match in GROUP_USES.findall(RULES) for name in re.findall(r'"(\w+)"', match)}
    assert used == set(load_phrases())


def test_every_phrase_of_the_injection_scanner_is_non_empty() -> None:
    assert [name for name, phrases in load_phrases().items() if not all(phrases)] == []


@check_cases("name", names_in("patterns.toml"))
def test_every_regular_expression_of_the_injection_scanner_compiles_and_is_used_in_its_code(
    name: str,
) -> None:
    assert get_pattern(name).pattern
    assert re.search(rf'get_pattern\(\s*"{name}"', SOURCE)


@check_cases("name", names_in("words.toml"))
def test_every_word_list_of_the_injection_scanner_has_no_duplicates_and_is_used_in_its_code(
    name: str,
) -> None:
    words = get_words(name)
    assert len(set(words)) == len(words) > 0
    assert re.search(rf'\(\s*"{name}"', SOURCE)
