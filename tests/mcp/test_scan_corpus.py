"""How much the scanner sees of the frozen corpus, and how often real tools alarm it.

`poison/README.md` has the rules. The held half is counted by kind and never shown: a message that names one
of its cases would spoil it. Its floor is what was reached without looking, and lies below the aim of 0.95.
"""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolfold.sources.mcp.offers import Offer, read_offer
from toolfold.sources.mcp.scan import Finding, scan_offer, scan_offers, scan_text

POISON = Path(__file__).parent / "poison"
REAL = Path(__file__).parents[3] / "shared" / "mcp"


def cases(half: str) -> Iterator[dict[str, Any]]:
    with (POISON / f"{half}.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def flagged(case: dict[str, Any]) -> bool:
    if case["where"] == "change":
        return read_offer(case["before"]).fingerprint != read_offer(case["tool"]).fingerprint
    if case["where"] == "result":
        return bool(scan_text(case["result"]))
    return bool(findings_of(case))


def findings_of(case: dict[str, Any]) -> tuple[Finding, ...]:
    others: dict[str, list[Offer]] = {}
    for other in case.get("others", ()):
        others.setdefault(other["server"], []).append(read_offer(other))
    return scan_offer(read_offer(case["tool"]), case["server"], others)


def counted(half: str) -> tuple[Counter[str], Counter[str]]:
    """Of each kind, how many there are and how many were judged as they should be."""
    total: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for case in cases(half):
        total[case["kind"]] += 1
        right[case["kind"]] += flagged(case) == (case["expect"] == "flag")
    return total, right


def share(total: Counter[str], right: Counter[str], kinds: set[str]) -> float:
    return sum(right[kind] for kind in kinds) / sum(total[kind] for kind in kinds)


def parted(total: Counter[str]) -> tuple[set[str], set[str]]:
    """The kinds that are judged: those to be flagged and those to be left alone."""
    clean = {kind for kind in total if kind.startswith("benign")}
    return set(total) - clean - {"change", "change-equal"}, clean


@pytest.mark.parametrize(("half", "floor", "alone"), [("seen", 0.95, 0.95), ("held", 0.87, 0.84)])
def test_most_poisoned_tools_and_results_are_flagged_and_most_others_are_not(
    half: str, floor: float, alone: float
) -> None:
    total, right = counted(half)
    poisoned, clean = parted(total)
    print(half, "flagged", {kind: f"{right[kind]}/{total[kind]}" for kind in sorted(poisoned)})
    print(half, "left alone", {kind: f"{right[kind]}/{total[kind]}" for kind in sorted(clean)})
    print(half, f"detection {share(total, right, poisoned):.3f}, left alone {share(total, right, clean):.3f}")
    assert share(total, right, poisoned) >= floor
    assert share(total, right, clean) >= alone


@pytest.mark.parametrize("half", ["seen", "held"])
def test_every_change_is_noticed_and_nothing_else(half: str) -> None:
    total, right = counted(half)
    for kind in ("change", "change-equal"):
        assert right[kind] == total[kind]


def real_tools() -> list[tuple[str, Offer]]:
    if not REAL.is_dir():
        pytest.skip("the answers of real servers are not here (../shared/mcp)")
    return [
        (found["server"], read_offer(tool))
        for file in sorted(REAL.glob("*.json"))
        for found in [json.loads(file.read_text(encoding="utf-8"))]
        for tool in found["tools"]
    ]


def alarms(tools: list[tuple[str, Offer]], others: dict[str, list[Offer]]) -> dict[str, tuple[Finding, ...]]:
    found = {f"{server} {offer.name}": scan_offer(offer, server, others) for server, offer in tools}
    return {tool: findings for tool, findings in found.items() if any(each.grave for each in findings)}


@pytest.mark.parametrize(("half", "floor"), [("seen", 0.86), ("held", 0.74)])
def test_poisoned_tools_that_the_scanner_is_sure_about_are_held(half: str, floor: float) -> None:
    held: Counter[bool] = Counter()
    total: Counter[bool] = Counter()
    for case in cases(half):
        if case["where"] in ("change", "result"):
            continue
        poisoned = case["expect"] == "flag"
        total[poisoned] += 1
        held[poisoned] += any(each.holds() for each in findings_of(case))
    print(f"{half}: held {held[True]} of {total[True]} poisoned, {held[False]} of {total[False]} look-alikes")
    assert held[True] >= floor * total[True]
    assert held[False] <= 0.08 * total[False]


def test_real_tools_are_seldom_held() -> None:
    tools = real_tools()
    held = [name for name, found in alarms(tools, {}).items() if any(each.holds() for each in found)]
    print(f"{len(held)} of {len(tools)} are held", sorted(held))
    assert len(held) <= 0.005 * len(tools)


@pytest.mark.parametrize("catalog", ["distractors-mcp", "dust-mcp", "mcpproxy-golden"])
def test_tools_of_other_servers_are_seldom_held(catalog: str) -> None:
    file = REAL.parent / "bench" / catalog / "catalog.jsonl.gz"
    if not file.is_file():
        pytest.skip(f"the descriptions of other servers are not here (../shared/bench/{catalog})")
    servers: dict[str, list[Offer]] = {}
    for line in gzip.decompress(file.read_bytes()).decode().splitlines():
        said = json.loads(line)["function"]
        server, _, name = said["name"].partition("__")
        tool = {"name": name, "description": said["description"], "inputSchema": said["parameters"]}
        servers.setdefault(server, []).append(read_offer(tool))
    found = [each for name, offers in servers.items() for each in scan_offers(offers, name, {name: offers})]
    held = sum(any(each.holds() for each in findings) for findings in found)
    print(f"{catalog}: {held} of {len(found)} are held")
    assert held <= 0.005 * len(found)


def test_real_tools_seldom_raise_an_alarm() -> None:
    tools = real_tools()
    began = time.process_time()
    alone = alarms(tools, {})
    print(f"{len(alone)} of {len(tools)} alarm, in {time.process_time() - began:.2f} s", sorted(alone))
    assert len(alone) <= 0.02 * len(tools)


def test_real_servers_seldom_raise_an_alarm_beside_each_other() -> None:
    tools = real_tools()
    together: dict[str, list[Offer]] = {}
    for server, offer in tools:
        together.setdefault(server, []).append(offer)
    beside = alarms(tools, together)
    print(f"{len(beside)} of {len(tools)} alarm", sorted(beside))
    assert len(beside) <= 0.02 * len(tools)
