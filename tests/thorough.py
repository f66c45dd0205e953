"""Which tests `make test` leaves to `make test-clients` and `make test-all`.

`make test` runs a representative part of the tests in a few minutes. `make test-clients` runs those that use
browsers, client programs and agent frameworks. `make test-all` runs everything, because it sets the variable
TOOLFOLD_TEST_ALL. There are two markers:

* `@pytest.mark.clients`: the test runs with `make test-clients` and `make test-all` only;
* `@pytest.mark.thorough`: the test runs with `make test-all` only;
* `@pytest.mark.thorough(keep=2)`: `make test` runs the first two of the test's parameter sets;
* `@pytest.mark.thorough(keep=("docker",))`: `make test` runs the parameter sets whose id contains one of the
  texts.

A test that repeats something chooses the number of repetitions with `thorough_count`, and a property test its
number of examples with `try_examples`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import settings

RUN_ALL_VARIABLE = "TOOLFOLD_TEST_ALL"
"""Set by `make test-all`."""
RUN_CLIENTS_VARIABLE = "TOOLFOLD_TEST_CLIENTS"
"""Set by `make test-clients`."""
MARKER = "thorough"
CLIENTS_MARKER = "clients"
EXAMPLES_FRACTION = 10
MIN_EXAMPLES = 10


def runs_all_tests() -> bool:
    return bool(os.environ.get(RUN_ALL_VARIABLE))


def runs_client_tests() -> bool:
    return bool(os.environ.get(RUN_CLIENTS_VARIABLE))


def thorough_count(every: int, quick: int) -> int:
    """Return the number of repetitions: `every` with `make test-all`, otherwise `quick`."""
    return every if runs_all_tests() else quick


def count_examples(every: int) -> int:
    """Return the number of examples for a property: `every` with `make test-all`, otherwise a tenth."""
    return thorough_count(every, min(every, max(MIN_EXAMPLES, every // EXAMPLES_FRACTION)))


def try_examples(every: int, **options: Any) -> settings:
    """Return settings for a property test with `every` examples, of which `make test` tries a tenth."""
    return settings(max_examples=count_examples(every), deadline=None, **options)


def split_items(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests that run, and those that are left to another command; see the top of this module."""
    left_out = {id(item) for group in _group_by_function(items) for item in _find_left_out(group)}
    for item in items:
        if (item.get_closest_marker(CLIENTS_MARKER) is not None) != runs_client_tests():
            left_out.add(id(item))
    chosen = [item for item in items if id(item) not in left_out]
    return chosen, [item for item in items if id(item) in left_out]


def _group_by_function(items: Iterable[pytest.Item]) -> Iterable[list[pytest.Item]]:
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker(MARKER) is not None:
            groups[item.nodeid.partition("[")[0]].append(item)
    return groups.values()


def _find_left_out(cases: Sequence[pytest.Item]) -> Sequence[pytest.Item]:
    """Return the cases of one test function, in the order in which they are listed, that are left out."""
    return [case for number, case in enumerate(cases) if not _is_kept(case, number)]


def _is_kept(case: pytest.Item, number: int) -> bool:
    marker = case.get_closest_marker(MARKER)
    keep: int | Collection[str] = marker.kwargs.get("keep", 0) if marker else 0
    if isinstance(keep, int):
        return number < keep
    return any(text in case.nodeid.partition("[")[2] for text in keep)
