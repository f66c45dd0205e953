"""The structure check of JSON documents agrees with the parser for any bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfold.core.json_limits import (
    MAX_JSON_DEPTH,
    MAX_JSON_ITEMS,
    MAX_NUMBER_DIGITS,
    _read_steps,
    find_excess,
    is_large,
)

TRICKY = st.text(st.sampled_from('[]{},:"\\n\u2028é') | st.characters(codec="utf-8"), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TRICKY,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TRICKY, inner, max_size=5),
    max_leaves=30,
)


def count_items(value: Any) -> int:
    """Return the number of values and keys in a JSON value."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(count_items, value.values()))
    return 1 + sum(map(count_items, value)) if isinstance(value, list) else 1


def measure_depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(measure_depth, inner), default=0)


def count_empty(value: Any) -> int:
    """Return the number of empty lists and objects, which the structure check counts twice."""
    if not isinstance(value, (dict, list)):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return sum(map(count_empty, inner)) if value else 1


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_limit_check_of_json_text_gives_the_same_result_as_measuring_the_parsed_value(
    value: Any, ascii_only: bool, indent: Any
) -> None:
    document = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    items, depth = count_items(value) + count_empty(value), measure_depth(value)
    assert find_excess(document, max_items=items, max_depth=depth) is None
    if items > 1:
        assert "values and keys" in (find_excess(document, max_items=items - 1) or "")
    if depth:
        assert "levels deep" in (find_excess(document, max_depth=depth - 1) or "")


@given(st.binary(max_size=60) | st.text('[]{},:"\\1 n', max_size=60).map(str.encode))
def test_arbitrary_json_text_whose_parsed_value_exceeds_a_limit_is_reported_as_excessive(
    document: bytes,
) -> None:
    try:
        value = json.loads(document)
    except (ValueError, RecursionError):
        return
    for limit in range(count_items(value)):
        assert find_excess(document, max_items=limit) is not None
    for limit in range(measure_depth(value)):
        assert find_excess(document, max_depth=limit) is not None


@given(VALUES, st.text(',:[]{}"', max_size=40))
def test_json_text_above_a_limit_is_reported_as_excessive_regardless_of_trailing_text(
    value: Any, garbage: str
) -> None:
    document = json.dumps([value, value]).encode()
    limit = count_items(value)
    assert find_excess(document + garbage.encode(), max_items=limit) is not None
    assert find_excess(document + garbage.encode(), max_depth=measure_depth(value)) is not None


def test_depth_check_of_json_text_ignores_a_million_unmatched_closing_brackets() -> None:
    document = b"[" * (MAX_JSON_DEPTH + 1) + b"]" * 1_000_000
    assert len(_read_steps(document)) == 2 * (MAX_JSON_DEPTH + 1)
    assert "levels deep" in (find_excess(document) or "")


@pytest.mark.parametrize(
    "document",
    [
        b'"' + b"a" * 9_000_000 + b'"',
        b'"' + b"1,2:[3]{4}" * 900_000 + b'"',
        b'"' + rb"\n" * 4_000_000 + b'"',
        b'"' + rb"\"," * 3_000_000 + b'"',
        b'["' + rb"\\" * 4_000_000 + b'", "x"]',
        b"[" + b"123.456789," * (MAX_JSON_ITEMS - 10) + b"1]",
        b'"' + b"0123456789" * 900_000 + b'"',
        b"1" * 4_000,
    ],
    ids=[
        "long string",
        "csv",
        "newlines",
        "escaped quotes",
        "backslashes",
        "table of numbers",
        "digits",
        "integer",
    ],
)
def test_large_json_document_with_few_values_is_accepted(document: bytes) -> None:
    assert find_excess(document) is None


@pytest.mark.parametrize(
    "document",
    [
        b"[" + b"[]," * 3_000_000 + b"[]]",
        b"{" + b'"":0,' * 1_000_000 + b'"":0}',
        b"[" + b'"",' * 3_000_000 + b'""]',
        b"[" + b"1," * 4_000_000 + b"1]",
        b"[" * 1_000_000,
        b"[" + b"1" * 4_000 + b"," + b"9" * 4_000 * 20 + b"]",
        b'{"a":"' + b"b" * 60_000 + b'","c":-' + b"7" * (MAX_NUMBER_DIGITS + 1) + b"e5}",
        b"[" * (MAX_JSON_DEPTH + 1) + b"]" * (MAX_JSON_DEPTH + 1),
    ],
    ids=["lists", "keys", "strings", "numbers", "open", "integers", "integer", "deep"],
)
def test_json_document_with_too_many_values_is_rejected(document: bytes) -> None:
    assert find_excess(document)


@given(VALUES)
def test_small_json_value_is_classified_as_large_only_with_an_item_limit_of_zero(value: Any) -> None:
    assert is_large(value, max_items=0 if isinstance(value, (dict, list)) and value else 1) == (
        isinstance(value, (dict, list)) and bool(value)
    )
    assert not is_large(value)


@pytest.mark.parametrize(
    "value",
    ["a" * 60_000, [1] * 2_000, {"a": ["b" * 30_000] * 3}, [[[]] * 600] * 2, [{"k" * 60_000: 1}]],
    ids=["text", "numbers", "texts", "lists", "key"],
)
def test_json_values_with_long_strings_or_many_items_are_classified_as_large(value: Any) -> None:
    assert is_large(value)
