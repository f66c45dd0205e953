"""The official conformance runner against the client: every scenario that a revision requires."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases import check_cases
from tests.mcp import servers
from tests.mcp.conformance import (
    SCORED,
    UNSCORED,
    Outcome,
    render_section,
    replace_section,
    run,
    start_client,
)

CASES = [(revision, scenario) for revision, scenarios in SCORED.items() for scenario in scenarios]


@pytest.fixture(scope="module")
def client() -> Iterator[str]:
    with start_client() as command:
        yield command


@pytest.mark.thorough(keep=("25-tools_call", "28-tools_call", "28-auth/iss-wrong-issuer"))
@pytest.mark.parametrize(("revision", "scenario"), CASES)
def test_mcp_client_of_toolfold_passes_each_scenario_of_the_mcp_conformance_suite(
    client: str, revision: str, scenario: str, tmp_path: Path
) -> None:
    outcome = run(servers.conformance_command(), client, revision, scenario, tmp_path)
    assert outcome.is_passed, f"{outcome.problems or outcome.exit_code}\n{outcome.output[-4_000:]}"


@check_cases("revision", SCORED)
def test_every_client_scenario_of_the_mcp_conformance_suite_is_tested(
    revision: str,
) -> None:
    package = Path(servers.conformance_command()[1]).parents[1]
    required = (package / f"requirements/{revision}.yaml").read_text()
    _, _, ours = required.partition("\nclient:\n")
    scored, _, others = ours.partition("\nnot_scored:\n")
    assert set(re.findall(r"^  - (\S+)$", scored, re.MULTILINE)) == set(SCORED[revision])
    entries = re.findall(r"scenario: (\S+)\n\s+leg: client", others)
    assert set(entries) == set(UNSCORED)


def test_generated_conformance_page_lists_failing_scenarios_with_reasons() -> None:
    good = [make_outcome(*case, checks={"SUCCESS": 2, "INFO": 1}) for case in CASES]
    assert "No scored scenario fails." in render_section(good)
    failed = make_outcome(*CASES[0], checks={"SUCCESS": 1, "FAILURE": 1}, problems=("greeting: was rude",))
    page = render_section([failed, *good[1:]])
    assert f"* `{failed.scenario}` at {failed.revision}: greeting: was rude" in page
    assert f"| `{failed.scenario}` | fails, 1 of 2 |" in page
    assert f"| {failed.revision} | 17 of 18 | 35 of 36 | 0 |" in page


@pytest.mark.parametrize(
    ("checks", "exit_code"),
    [({}, 0), ({"INFO": 3}, 0), ({"SUCCESS": 1, "WARNING": 1}, 0), ({"SUCCESS": 1}, 1)],
    ids=["nothing was checked", "only looked at", "a warning", "the client gave up"],
)
def test_conformance_scenario_with_warnings_or_errors_or_without_any_check_does_not_pass(
    checks: dict[str, int], exit_code: int
) -> None:
    assert not make_outcome("2026-07-28", "tools_call", checks=checks, exit_code=exit_code).is_passed


def make_outcome(
    revision: str,
    scenario: str,
    *,
    checks: dict[str, int],
    problems: tuple[str, ...] = (),
    exit_code: int = 0,
) -> Outcome:
    return Outcome(revision, scenario, Counter(checks), problems, exit_code, "")


def test_replacing_the_client_section_of_the_conformance_page_keeps_its_other_sections() -> None:
    page = "# A\n\n## As a client\n\nold\n\n## As a server\n\nkept\n"
    assert (
        replace_section(page, "## As a client\n\nnew\n")
        == "# A\n\n## As a client\n\nnew\n\n## As a server\n\nkept\n"
    )
