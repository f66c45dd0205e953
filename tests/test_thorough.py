"""`make test` leaves out only marked tests; a test of many cases reports each that fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cases import check_cases
from tests.thorough import (
    RUN_ALL_VARIABLE,
    RUN_CLIENTS_VARIABLE,
    count_examples,
    split_items,
    thorough_count,
)

MARKED_TESTS = """
import pytest

def test_plain(): pass

@pytest.mark.thorough
def test_left_out(): pass

@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_first_two(number): pass

@pytest.mark.thorough(keep=("docker",))
@pytest.mark.parametrize("name", ["ssh", "docker"])
def test_named(name): pass

@pytest.mark.clients
def test_browser(): pass
"""


def test_tests_marked_thorough_or_client_are_skipped_unless_an_environment_variable_is_set(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "test_marked.py"
    file.write_text(MARKED_TESTS)
    module = pytest.Module.from_parent(request.session, path=file)
    marked_tests = list(request.session.genitems(module))
    monkeypatch.delenv(RUN_CLIENTS_VARIABLE, raising=False)
    chosen, left_out = split_items(marked_tests)
    assert [item.name for item in chosen] == [
        "test_plain",
        "test_first_two[1]",
        "test_first_two[2]",
        "test_named[docker]",
    ]
    assert [item.name for item in left_out] == [
        "test_left_out",
        "test_first_two[3]",
        "test_named[ssh]",
        "test_browser",
    ]
    monkeypatch.setenv(RUN_CLIENTS_VARIABLE, "1")
    assert [item.name for item in split_items(marked_tests)[0]] == ["test_browser"]


PROTECTIVE_TESTS = (
    "approval/*.py",
    "cli/test_approvals.py",
    "environments/test_sandbox_view.py",
    "gateway/test_client_approval.py",
    "gateway/test_peers.py",
    "gateway/test_settings.py",
    "gateway/test_tenants.py",
    "shellverdict/test_fuzz.py",
    "sources/test_plugins.py",
    "test_approval.py",
    "test_dispatch.py",
    "test_log_redaction.py",
    "test_redaction.py",
    "test_scope.py",
    "test_settings_monitor.py",
    "test_validation.py",
    "tools/test_cronjob.py",
    "tools/test_skills.py",
)


@pytest.mark.parametrize("pattern", PROTECTIVE_TESTS)
def test_every_test_of_a_rule_that_protects_the_user_keeps_cases_in_the_default_run(pattern: str) -> None:
    files = list(Path(__file__).parent.glob(pattern))
    assert files
    for file in files:
        marks = re.findall(r"mark\.thorough\b(?!\(keep=[1-9(])", file.read_text("utf-8"))
        assert not marks, f"{file.name}: use @pytest.mark.thorough(keep=…), or no marker"


def test_repetitions_and_hypothesis_examples_are_reduced_unless_thorough_tests_are_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(RUN_ALL_VARIABLE, raising=False)
    assert (thorough_count(50, 4), count_examples(100), count_examples(20), count_examples(5)) == (
        4,
        10,
        10,
        5,
    )
    monkeypatch.setenv(RUN_ALL_VARIABLE, "1")
    assert (thorough_count(50, 4), count_examples(100), count_examples(20)) == (50, 100, 20)


def test_check_cases_reports_every_failing_case_instead_of_only_the_first() -> None:
    @check_cases(("number", "limit"), [(1, 2), (3, 2), (2, 2), (4, 2)])
    def check_limit(number: int, limit: int) -> None:
        assert number <= limit

    with pytest.raises(ExceptionGroup) as caught:
        check_limit()
    assert "2 of 4 cases failed" in str(caught.value)
    notes = [note for error in caught.value.exceptions for note in error.__notes__]
    assert notes == [f"the case was: {{'number': {number}, 'limit': 2}}" for number in (3, 4)]


def test_table_without_cases_is_an_error() -> None:
    with pytest.raises(ValueError, match="no cases for"):
        check_cases("case", [])
