"""Python code can be parsed by several threads at the same time."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from shellverdict.python_syntax import parse_expression, parse_module

CODE = "x = {'a': (1, 2, [3, (4,)])}\n" * 50


class _Cycle:
    """Garbage whose removal runs Python code, and so lets another thread go on in the middle of a parse."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        sum(range(50))


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("frequent_thread_switches")
def test_code_is_parsed_while_other_threads_parse_code() -> None:
    def parse(_number: int) -> int:
        for _ in range(30):
            _Cycle()
        return len(parse_module(CODE).body)

    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(parse, range(200))) == {50}


def test_expression_is_parsed_without_parentheses_around_it() -> None:
    assert ast.dump(parse_expression("1 + 2")) == ast.dump(ast.parse("1 + 2", mode="eval").body)
