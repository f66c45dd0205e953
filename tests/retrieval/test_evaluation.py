"""Ranking metrics against values computed by hand, and the query file format."""

from __future__ import annotations

import gzip
import json
import math
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest

from tests.cases import check_cases
from toolfold.core import jsonlines
from toolfold.core.errors import SourceError
from toolfold.selection.retrieval.ranking_metrics import (
    Query,
    discounted_gain,
    load_queries,
    percentile,
    ranks,
    recall,
    reciprocal_rank,
)
from toolfold.tools.catalog import sample_catalog

ONE_NEED = Query("1", "…", ("a",))
TWO_NEEDS = Query("2", "…", ("a", "b"))
WITH_ALTERNATIVES = Query("3", "…", ("a", "b"), {"a": ("x", "y")})

SECOND, THIRD = 1 / math.log2(3), 1 / math.log2(4)


@check_cases(
    ("query", "ranked", "depth", "expected"),
    [
        (ONE_NEED, ["a"], 1, 1.0),
        (ONE_NEED, ["b", "a"], 1, 0.0),
        (ONE_NEED, ["b", "a"], 5, 1.0),
        (ONE_NEED, [], 5, 0.0),
        (TWO_NEEDS, ["a", "c", "b"], 1, 0.5),
        (TWO_NEEDS, ["a", "c", "b"], 2, 0.5),
        (TWO_NEEDS, ["a", "c", "b"], 3, 1.0),
        (WITH_ALTERNATIVES, ["y", "x"], 5, 0.5),
        (WITH_ALTERNATIVES, ["y", "b"], 5, 1.0),
        (WITH_ALTERNATIVES, ["x", "y", "a"], 3, 0.5),
    ],
)
def test_recall_is_the_share_of_needed_tools_that_are_among_the_first_hits(
    query: Query, ranked: list[str], depth: int, expected: float
) -> None:
    assert recall(query, ranked, depth) == expected


@check_cases(
    ("query", "ranked", "expected"),
    [
        (ONE_NEED, ["a", "b"], 1.0),
        (ONE_NEED, ["b", "c", "a"], 1 / 3),
        (ONE_NEED, ["b"], 0.0),
        (ONE_NEED, [], 0.0),
        (TWO_NEEDS, ["c", "b", "a"], 1 / 2),
        (WITH_ALTERNATIVES, ["c", "d", "e", "y"], 1 / 4),
    ],
)
def test_reciprocal_rank_is_computed_from_the_best_ranked_needed_tool(
    query: Query, ranked: list[str], expected: float
) -> None:
    assert reciprocal_rank(query, ranked) == expected


@check_cases(
    ("query", "ranked", "expected"),
    [
        (ONE_NEED, ["a"], 1.0),
        (ONE_NEED, ["b", "a"], SECOND),
        (ONE_NEED, ["b", "c", "a"], 0.5),
        (ONE_NEED, ["b"], 0.0),
        (ONE_NEED, [*"bcdefghijk", "a"], 0.0),
        (TWO_NEEDS, ["b", "a"], 1.0),
        (TWO_NEEDS, ["a", "c", "b"], (1 + THIRD) / (1 + SECOND)),
        (TWO_NEEDS, ["a"], 1 / (1 + SECOND)),
        (WITH_ALTERNATIVES, ["x", "y", "b"], (1 + THIRD) / (1 + SECOND)),
        (WITH_ALTERNATIVES, ["x", "y", "a"], 1 / (1 + SECOND)),
    ],
)
def test_ndcg_counts_each_needed_tool_once_and_discounts_it_by_rank(
    query: Query, ranked: list[str], expected: float
) -> None:
    assert discounted_gain(query, ranked) == pytest.approx(expected)


@check_cases(
    ("query", "ranked", "expected"),
    [
        (ONE_NEED, ["b", "a"], [2]),
        (ONE_NEED, ["b"], [None]),
        (TWO_NEEDS, ["b", "c", "a"], [3, 1]),
        (WITH_ALTERNATIVES, ["c", "y", "a", "x"], [2, None]),
        (ONE_NEED, ["a", "a"], [1]),
        (Query("4", "…", ()), ["a"], []),
    ],
)
def test_needed_tool_with_alternatives_has_the_rank_of_the_best_ranked_alternative(
    query: Query, ranked: list[str], expected: list[int | None]
) -> None:
    assert ranks(query, ranked) == expected


@check_cases(
    ("values", "share", "expected"),
    [([3.0, 1.0, 2.0], 0.5, 2.0), ([3.0, 1.0, 2.0], 0.99, 3.0), ([5.0], 0.5, 5.0), ([2.0, 1.0], 0.5, 1.0)],
)
def test_percentile_returns_a_measured_value_without_interpolation(
    values: list[float], share: float, expected: float
) -> None:
    assert percentile(values, share) == expected


def test_ndcg_is_one_if_every_ranked_tool_is_needed_even_if_more_tools_are_needed_than_ranked() -> None:
    many = Query("1", "…", ("a", "b", "c"))
    assert discounted_gain(many, ["c", "a"], depth=2) == pytest.approx(1)


def test_ranking_metrics_do_not_modify_their_arguments() -> None:
    ranked = ["b", "a"]
    assert discounted_gain(TWO_NEEDS, ranked) == discounted_gain(TWO_NEEDS, ranked)
    assert ranked == ["b", "a"]
    assert TWO_NEEDS.needs() == [{"a"}, {"b"}]


def row(**changes: Any) -> dict[str, Any]:
    return {"id": "q1", "query": "book a table", "gold": ["book"], **changes}


def line(**changes: Any) -> str:
    return json.dumps(row(**changes), ensure_ascii=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "queries.jsonl"


def test_labelled_queries_are_loaded_in_file_order(file: Path) -> None:
    file.write_text(f"{line(id='b', kind='lexical')}\n\n   \n{line(id='a')}")
    assert load_queries(file) == [
        Query("b", "book a table", ("book",), kind="lexical"),
        Query("a", "book a table", ("book",)),
    ]


def test_gzipped_file_of_labelled_queries_gives_the_same_queries_as_the_plain_file(
    file: Path, tmp_path: Path
) -> None:
    file.write_text(line())
    packed = tmp_path / "queries.jsonl.gz"
    packed.write_bytes(gzip.compress(line().encode()))
    assert load_queries(packed) == load_queries(file)


def test_byte_order_mark_and_crlf_line_ends_in_a_query_file_are_not_part_of_its_queries(file: Path) -> None:
    lines = ["\ufeff" + line(query="one\u2028two"), line(id="q2"), ""]
    file.write_bytes("\r\n".join(lines).encode())
    first, second = load_queries(file)
    assert first.text == "one\u2028two"
    assert second.id == "q2"


def test_alternative_tools_of_a_query_can_be_a_mapping_by_needed_tool_or_a_single_list(file: Path) -> None:
    file.write_text(
        line(gold=["a", "b"], alternatives={"a": ["x"]}) + "\n" + line(gold=["a"], alternatives=["x", "y"])
    )
    first, second = load_queries(file)
    assert first.needs() == [{"a", "x"}, {"b"}]
    assert second.needs() == [{"a", "x", "y"}]


@pytest.mark.parametrize("none", [None, {}, []])
def test_query_with_a_missing_or_empty_list_of_alternative_tools_is_accepted(file: Path, none: Any) -> None:
    file.write_text(line(alternatives=none, kind=None, more=[1, 2]))
    assert load_queries(file) == [Query("q1", "book a table", ("book",))]


def test_candidates_of_a_labelled_query_are_loaded_only_with_scope_own_candidates_only(
    file: Path,
) -> None:
    own = {"candidates": ["a", "b"], "scope": "own_candidates_only"}
    file.write_text(line(**own) + "\n" + line(candidates=["a"]) + "\n" + line(candidates=["a"], scope="all"))
    first, second, third = load_queries(file)
    assert first.candidates == frozenset({"a", "b"})
    assert second.candidates is third.candidates is None


@pytest.mark.parametrize("identity", ["", "q", 7, 1.5])
def test_string_or_number_id_of_a_labelled_query_is_loaded_with_its_json_type(
    file: Path, identity: str | float
) -> None:
    file.write_text(line(id=identity))
    (query,) = load_queries(file)
    assert query.id == identity
    assert type(query.id) is type(identity)


def test_labelled_query_with_an_empty_list_of_gold_tools_needs_no_tool(file: Path) -> None:
    file.write_text(line(gold=[]))
    (query,) = load_queries(file)
    assert query.needs() == []


def test_gold_tool_listed_twice_in_a_labelled_query_is_counted_once(file: Path) -> None:
    file.write_text(line(gold=["a", "a"]))
    (query,) = load_queries(file)
    assert discounted_gain(query, ["a"]) == 1


def test_loading_an_empty_query_file_gives_no_queries(file: Path) -> None:
    file.write_text("")
    assert load_queries(file) == []


def test_shipped_queries_refer_to_tools_of_the_shipped_catalog() -> None:
    with as_file(files("toolfold").joinpath("tools/sample/queries.jsonl")) as shipped:
        wanted = {name for query in load_queries(shipped) for name in query.gold}
    assert wanted
    assert wanted <= {tool.original_name or tool.name for tool in sample_catalog()}


INVALID_LINES = {
    "not JSON": b"{oops",
    "not an object": b'["q1", "book a table", ["book"]]',
    "a number": b"7",
    "null": b"null",
    "not UTF-8": b'{"id": "\xff"}',
    "nested without end": b"[" * 100_000,
    "no id": json.dumps({"query": "x", "gold": ["a"]}).encode(),
    "no query": json.dumps({"id": "x", "gold": ["a"]}).encode(),
    "no gold": json.dumps({"id": "x", "query": "y"}).encode(),
    "an id that is none": line(id=None).encode(),
    "an id that is a list": line(id=["a"]).encode(),
    "an id that is true": line(id=True).encode(),
    "candidates that are missing": line(scope="own_candidates_only").encode(),
    "candidates that are a text": line(scope="own_candidates_only", candidates="book").encode(),
    "a query that is no text": line(query=None).encode(),
    "gold that is a text": line(gold="book").encode(),
    "gold that is none": line(gold=None).encode(),
    "gold that is numbers": line(gold=[1]).encode(),
    "alternatives that are a text": line(alternatives="book").encode(),
    "alternatives of a tool that are a text": line(alternatives={"book": "reserve"}).encode(),
    "alternatives that are numbers": line(alternatives=[1]).encode(),
}


@pytest.mark.parametrize("broken", INVALID_LINES.values(), ids=INVALID_LINES.keys())
def test_error_for_an_invalid_line_of_a_query_file_names_the_line_number(file: Path, broken: bytes) -> None:
    file.write_bytes(line().encode() + b"\n\n" + broken + b"\n" + line().encode())
    with pytest.raises(SourceError, match=r"queries\.jsonl, line 3: .") as failed:
        load_queries(file)
    assert len(str(failed.value)) < 500


def test_overlong_line_of_a_query_file_is_not_read_completely(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonlines, "MAX_LINE_BYTES", 1_000)
    packed = file.with_suffix(".gz")
    packed.write_bytes(gzip.compress(line().encode() + b"\n" + b" " * 2_000))
    with pytest.raises(SourceError, match="line 2: longer than 1,000 bytes"):
        load_queries(packed)


def test_error_in_a_truncated_gzip_query_file_names_the_line(file: Path) -> None:
    packed = file.with_suffix(".gz")
    packed.write_bytes(gzip.compress(line().encode())[:-12])
    with pytest.raises(SourceError, match=r"line 1: ."):
        load_queries(packed)


def test_query_file_with_gz_suffix_that_is_not_gzip_is_rejected(file: Path) -> None:
    packed = file.with_suffix(".gz")
    packed.write_text(line())
    with pytest.raises(SourceError, match=r"queries\.gz cannot be read as queries"):
        load_queries(packed)


def test_loading_a_missing_query_file_raises_an_error(file: Path) -> None:
    with pytest.raises(SourceError, match=r"queries\.jsonl cannot be read as queries"):
        load_queries(file)
