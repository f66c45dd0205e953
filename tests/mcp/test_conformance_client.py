"""The official conformance runner against our client: every scenario that a revision requires."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mcp import servers
from tests.mcp.conformance import SCORED, UNSCORED, run, written

CASES = [(revision, scenario) for revision, scenarios in SCORED.items() for scenario in scenarios]


@pytest.mark.parametrize(("revision", "scenario"), CASES)
def test_the_client_conforms(revision: str, scenario: str, tmp_path: Path) -> None:
    outcome = run(servers.conformance(), revision, scenario, tmp_path)
    assert outcome.is_good, f"{outcome.problems or outcome.ended}\n{outcome.said[-4_000:]}"


@pytest.mark.parametrize("revision", SCORED)
def test_no_scenario_is_left_out(revision: str) -> None:
    package = Path(servers.conformance()[1]).parents[1]
    required = (package / f"requirements/{revision}.yaml").read_text()
    _, _, ours = required.partition("\nclient:\n")
    scored, _, others = ours.partition("\nnot_scored:\n")
    assert set(re.findall(r"^  - (\S+)$", scored, re.MULTILINE)) == set(SCORED[revision])
    entries = re.findall(r"scenario: (\S+)\n\s+leg: client", others)
    assert set(entries) == set(UNSCORED)


def test_the_page_keeps_what_is_not_about_the_client() -> None:
    page = "# A\n\n## As a client\n\nold\n\n## As a server\n\nkept\n"
    assert (
        written(page, "## As a client\n\nnew\n") == "# A\n\n## As a client\n\nnew\n\n## As a server\n\nkept\n"
    )
