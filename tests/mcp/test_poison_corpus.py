"""The corpus of poisoned, changed and harmless tools is whole, frozen and split fairly.

Judges no case: what a detector makes of them is measured elsewhere. No assertion
prints a line of the held half.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "poison"
HALVES = ("seen", "held")
PLACES = {"description", "schema", "name", "annotations", "result", "change"}
FIELDS = {"id", "kind", "where", "server", "tool", "expect", "why"}
OPTIONAL = {"before", "result", "others"}


def cases(half: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / f"{half}.jsonl").read_text(encoding="ascii").splitlines()]


def said(case: dict[str, Any]) -> str:
    """What the case says to a model, apart from the frame that many tools share."""
    return str(case.get("result") or case["tool"]["description"])


def triples(text: str) -> frozenset[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return frozenset(zip(words, words[1:], words[2:], strict=False))


@pytest.mark.parametrize("half", HALVES)
def test_each_half_is_the_one_that_was_frozen(half: str) -> None:
    frozen = re.findall(
        rf"^([0-9a-f]{{64}})  {half}\.jsonl$", (FOLDER / "README.md").read_text("utf-8"), re.MULTILINE
    )
    assert [hashlib.sha256((FOLDER / f"{half}.jsonl").read_bytes()).hexdigest()] == frozen


@pytest.mark.parametrize("half", HALVES)
def test_each_half_is_large_enough_and_well_formed(half: str) -> None:
    rows = cases(half)
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
        or case["where"] not in PLACES
        or ("before" in case) != (case["where"] == "change")
        or ("result" in case) != (case["where"] == "result")
    ]
    assert malformed == []


def test_the_halves_hold_the_same_kinds_in_the_same_numbers() -> None:
    seen, held = (Counter((case["kind"], case["expect"]) for case in cases(half)) for half in HALVES)
    assert seen.keys() == held.keys()
    assert seen.total() == held.total()
    assert [kind for kind in seen if abs(seen[kind] - held[kind]) > 1] == []


def test_the_readme_counts_every_kind_rightly() -> None:
    told = re.findall(
        r"^\| `([a-z-]+)` \| (\d+) \| (\d+) \|", (FOLDER / "README.md").read_text("utf-8"), re.MULTILINE
    )
    seen, held = (Counter(case["kind"] for case in cases(half)) for half in HALVES)
    assert {kind: (int(a), int(b)) for kind, a, b in told} == {
        kind: (seen[kind], held[kind]) for kind in seen
    }


def test_no_case_is_in_both_halves() -> None:
    seen, held = (cases(half) for half in HALVES)
    ids = Counter(case["id"] for case in [*seen, *held])
    assert ids.most_common(1)[0][1] == 1
    contents = [
        {json.dumps([case["tool"], case.get("result"), case.get("before")], sort_keys=True) for case in half}
        for half in (seen, held)
    ]
    shared = len(contents[0] & contents[1])  # counted apart: a failing assertion shows what it is made of
    assert shared == 0


def test_no_case_has_a_near_copy_of_its_kind_in_the_other_half() -> None:
    seen, held = (
        [(case["kind"], case["id"], triples(said(case))) for case in cases(half)] for half in HALVES
    )
    near = [
        (one, other)
        for kind, one, mine in seen
        for other_kind, other, theirs in held
        if kind == other_kind and 3 * len(mine & theirs) > min(len(mine), len(theirs)) > 0
    ]
    assert near == []
