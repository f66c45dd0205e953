"""Integrity of the scanner's corpus: complete, frozen and split evenly.

Detection rates are measured in test_scan_corpus.py. No assertion prints a case of the held-out half.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from tests.cases import check_cases

CORPUS_DIR = Path(__file__).parent / "poison"
HALVES = ("seen", "held")
LOCATIONS = {"description", "schema", "name", "annotations", "result", "change"}
FIELDS = {"id", "kind", "where", "server", "tool", "expect", "why"}
OPTIONAL = {"before", "result", "others"}


def read_cases(half: str) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (CORPUS_DIR / f"{half}.jsonl").read_text(encoding="ascii").splitlines()
    ]


def model_visible_text(case: dict[str, Any]) -> str:
    """Return the text that a model would read, without the parts that many tools share."""
    return str(case.get("result") or case["tool"]["description"])


def word_triples(text: str) -> frozenset[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return frozenset(zip(words, words[1:], words[2:], strict=False))


@check_cases("half", HALVES)
def test_files_of_the_injection_corpus_match_the_hashes_in_its_readme(half: str) -> None:
    frozen = re.findall(
        rf"^([0-9a-f]{{64}})  {half}\.jsonl$", (CORPUS_DIR / "README.md").read_text("utf-8"), re.MULTILINE
    )
    assert [hashlib.sha256((CORPUS_DIR / f"{half}.jsonl").read_bytes()).hexdigest()] == frozen


@check_cases("half", HALVES)
def test_each_half_of_the_injection_corpus_contains_at_least_250_well_formed_cases(half: str) -> None:
    rows = read_cases(half)
    expected = Counter(case["expect"] for case in rows)
    assert expected.keys() == {"flag", "clean"}
    assert expected["flag"] >= 130
    assert expected["clean"] >= 120
    malformed = [
        case["id"]
        for case in rows
        if not case.keys() >= FIELDS
        or not case.keys() <= FIELDS | OPTIONAL
        or not case["tool"].keys() >= {"name", "description", "inputSchema"}
        or case["where"] not in LOCATIONS
        or ("before" in case) != (case["where"] == "change")
        or ("result" in case) != (case["where"] == "result")
    ]
    assert malformed == []


def test_both_halves_of_the_injection_corpus_contain_nearly_equal_numbers_of_cases_per_kind() -> None:
    seen, held = (Counter((case["kind"], case["expect"]) for case in read_cases(half)) for half in HALVES)
    assert seen.keys() == held.keys()
    assert seen.total() == held.total()
    assert [kind for kind in seen if abs(seen[kind] - held[kind]) > 1] == []


def test_readme_of_the_injection_corpus_lists_the_actual_number_of_cases() -> None:
    counts = re.findall(
        r"^\| `([a-z-]+)` \| (\d+) \| (\d+) \|", (CORPUS_DIR / "README.md").read_text("utf-8"), re.MULTILINE
    )
    seen, held = (Counter(case["kind"] for case in read_cases(half)) for half in HALVES)
    assert {kind: (int(a), int(b)) for kind, a, b in counts} == {
        kind: (seen[kind], held[kind]) for kind in seen
    }


def test_two_halves_of_the_injection_corpus_have_no_case_in_common() -> None:
    seen, held = (read_cases(half) for half in HALVES)
    ids = Counter(case["id"] for case in [*seen, *held])
    assert ids.most_common(1)[0][1] == 1
    contents = [
        {json.dumps([case["tool"], case.get("result"), case.get("before")], sort_keys=True) for case in half}
        for half in (seen, held)
    ]
    shared = len(contents[0] & contents[1])  # counted first: a failing assertion would print the cases
    assert shared == 0


def test_held_out_half_of_the_injection_corpus_contains_no_near_duplicates_of_the_other_half() -> None:
    seen, held = (
        [(case["kind"], case["id"], word_triples(model_visible_text(case))) for case in read_cases(half)]
        for half in HALVES
    )
    near = [
        (one, other)
        for kind, one, mine in seen
        for other_kind, other, theirs in held
        if kind == other_kind and 3 * len(mine & theirs) > min(len(mine), len(theirs)) > 0
    ]
    assert near == []
