"""Check many cases in one test, because each separate test costs more time than a case without fixtures."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

Test = Callable[..., None]


def check_cases(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test function once for each case, in one test; a failure lists every case that failed.

    Takes the same arguments as `pytest.mark.parametrize`; an empty list is an error. All cases share
    the fixtures of the test.
    """
    fields = [each.strip() for each in names.split(",")] if isinstance(names, str) else list(names)
    every = list(cases)
    if not every:
        raise ValueError(f"no cases for {fields}: the test would pass without checking anything")

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def check_every_case(*owner: object, **fixtures: object) -> None:
            failures = []
            for case in every:
                values = dict(zip(fields, case if len(fields) > 1 else (case,), strict=True))
                try:
                    test(*owner, **fixtures, **values)
                except Exception as error:
                    error.add_note(f"the case was: {values!r}"[:2_000])
                    failures.append(error)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(every)} cases failed", failures)

        signature = inspect.signature(test)
        left = [each for each in signature.parameters.values() if each.name not in fields]
        del check_every_case.__wrapped__
        check_every_case.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return check_every_case

    return decorate
