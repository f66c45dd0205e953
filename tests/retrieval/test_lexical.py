"""Keyword index: term weights, and equality of updated and fresh indexes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.retrieval.catalog import make_tool
from tests.thorough import try_examples
from tests.timing import cost_ratio
from toolfold.core.types import Source, Tool, freeze
from toolfold.selection.retrieval.lexical import KeywordIndex, field_texts
from toolfold.selection.retrieval.text import WordTokenizer

WORDS = WordTokenizer()
VOCABULARY = ("alpha", "beta", "gamma", "delta", "omega")


def build(*tools: Tool) -> KeywordIndex:
    return KeywordIndex.build(tools, WORDS)


def scores(index: KeywordIndex, query: str) -> list[float]:
    return [float(score) for score in index.scores(query)[0]]


def best(index: KeywordIndex, query: str) -> int:
    return int(np.argmax(index.scores(query)[0]))


@check_cases(
    ("more", "less"),
    [
        (make_tool("zebra"), make_tool("b", "zebra")),
        (make_tool("a", title="zebra"), make_tool("b", "zebra")),
        (make_tool("a", synonyms=["zebra"]), make_tool("b", "zebra")),
        (make_tool("a", "zebra"), make_tool("b", "", {"zebra": {}})),
        (make_tool("a", "zebra"), make_tool("b", "", {"x": {"description": "zebra"}})),
        (make_tool("a", "zebra"), make_tool("b", "", {"x": {"enum": ["zebra"]}})),
        (make_tool("a", "zebra"), make_tool("b", server="zebra")),
    ],
)
def test_word_scores_higher_in_a_name_or_title_or_synonym_than_in_a_description_or_parameter(
    more: Tool, less: Tool
) -> None:
    high, low = scores(build(more, less), "zebra")
    assert high > low > 0


def test_rare_query_word_scores_higher_than_a_common_query_word() -> None:
    index = build(
        make_tool("a", "open file"),
        make_tool("b", "open door"),
        make_tool("c", "open door"),
        make_tool("d", "close file"),
    )
    common, rare = scores(index, "open close")[0], scores(index, "open close")[3]
    assert rare > common > 0


def test_word_repeated_in_a_description_scores_higher_but_less_than_double() -> None:
    twice, once = scores(build(make_tool("a", "zebra zebra x"), make_tool("b", "zebra y x")), "zebra")
    assert once < twice < 2 * once


def test_word_scores_higher_in_a_shorter_description() -> None:
    short, long = scores(build(make_tool("a", "zebra"), make_tool("b", "zebra " + "filler " * 50)), "zebra")
    assert short > long > 0


def test_word_repeated_in_the_query_does_not_raise_keyword_scores() -> None:
    index = build(make_tool("a", "zebra"), make_tool("b", "lion"))
    assert scores(index, "zebra zebra zebras") == scores(index, "zebra")


def test_keyword_scores_do_not_exceed_the_reported_maximum_possible_score() -> None:
    index = build(make_tool("zebra_lion", "zebra lion zebra lion"), make_tool("b", "lion"))
    found, best_possible = index.scores("zebra lion unicorn")
    assert 0 < float(found.max()) <= best_possible


def test_names_and_descriptions_and_enum_values_of_nested_parameters_are_indexed_as_keywords() -> None:
    inner = {
        "type": "object",
        "properties": {"nested_zebra": {"enum": ["lion", 3], "description": "some tiger"}},
    }
    tool = make_tool(
        "a", "", {"outer": {"type": "array", "items": inner}, "kinds": {"items": {"enum": ["puma"]}}}
    )
    fields = field_texts(tool)
    assert {"nested_zebra", "outer"} <= set(fields["parameters"].split())
    assert "tiger" in fields["parameter descriptions"]
    assert fields["values"].split() == ["lion", "puma"]


def test_parameters_in_schema_references_and_any_of_alternatives_are_indexed_as_keywords() -> None:
    schema = {
        "type": "object",
        "properties": {
            "animal": {"anyOf": [{"$ref": "#/$defs/Cat"}, {"type": "null"}]},
            "others": {"additionalProperties": {"description": "some tiger"}},
        },
        "allOf": [{"properties": {"hidden_panther": {"const": "leopard"}}}],
        "$defs": {"Cat": {"properties": {"zebra_stripes": {"oneOf": [{"enum": ["lion"]}]}}}},
    }
    fields = field_texts(replace(make_tool("a"), parameters=freeze(schema)))
    assert fields["parameters"].split() == ["animal", "zebra_stripes", "others", "hidden_panther"]
    assert fields["parameter descriptions"] == "some tiger"
    assert fields["values"].split() == ["lion", "leopard"]


@check_cases(
    "properties",
    [
        {"x": None},
        {"x": True},
        {"x": []},
        {"x": {"enum": "zebra"}},
        {"x": {"description": ["zebra"]}},
        {"x": {"properties": 3}},
    ],
)
def test_tool_with_a_malformed_schema_is_found_by_its_description(properties: dict[str, object]) -> None:
    tool = replace(make_tool("a", "lion"), parameters=freeze({"properties": properties}))
    assert scores(build(tool), "lion zebra")[0] > 0


def test_recursive_tool_schema_is_indexed_up_to_a_limit() -> None:
    schema: dict[str, object] = {"type": "string"}
    for level in range(60):
        schema = {"type": "object", "properties": {f"level{level}": schema}}
    assert len(field_texts(make_tool("a", "", {"x": schema}))["parameters"].split()) < 10


def test_tools_without_description_or_schema_are_found_by_name() -> None:
    index = build(make_tool("list_pods"), make_tool("weather"))
    assert best(index, "pods") == 0
    assert best(index, "weather") == 1


def test_keyword_index_without_tools_returns_no_scores() -> None:
    found, _ = build().scores("anything at all")
    assert found.shape == (0,)


@check_cases("query", ["", "  ", "?!", "\x00", "unheard"])
def test_every_tool_scores_zero_for_a_query_without_indexed_words(query: str) -> None:
    index = build(make_tool("a", "zebra"))
    assert scores(index, query) == [0.0]
    assert index.matched(query, [0]) == [[]]


def test_matched_words_of_a_hit_are_in_query_order() -> None:
    index = build(make_tool("zebra_lion", "tiger"), make_tool("puma"))
    assert index.matched("a lion, a puma and a zebra", [0, 1]) == [["lion", "zebra"], ["puma"]]


def test_matched_words_of_a_hit_are_spelled_as_in_the_query_and_not_stemmed() -> None:
    index = KeywordIndex.build([make_tool("a", "The parcel arrives broken.")], WordTokenizer())
    assert index.matched("it arrived, breaking my parcels", [0]) == [["arrived", "parcels"]]


@pytest.mark.thorough
def test_ten_thousand_identical_tools_get_equal_scores_in_time_proportional_to_their_number() -> None:
    tool = make_tool("same", "Does the same thing", {"path": {"description": "where"}})

    def score(count: int) -> None:
        build(*[tool] * count).scores("the same thing")

    assert (
        cost_ratio(lambda: score(300), lambda: score(3_000)) < 40
    )  # 10 in proportion, 100 where it is squared
    found, _ = build(*[tool] * 10_000).scores("the same thing")
    assert found.shape == (10_000,)
    assert float(found.min()) == float(found.max()) > 0


def name_coverage_of(index: KeywordIndex, query: str, *positions: int) -> list[float]:
    return [float(share) for share in index.name_coverage(query, np.array(positions, np.int64))]


def test_name_coverage_is_the_share_of_words_of_a_tool_name_that_occur_in_the_query() -> None:
    index = build(
        make_tool("create_new_issue"),
        make_tool("mcp_github_list_issues", server="github"),
        make_tool("x" * 40),
    )
    assert name_coverage_of(index, "creating issues", 0, 1) == pytest.approx([2 / 3, 1 / 2])
    assert name_coverage_of(index, "list the github issues", 1, 2, 0) == pytest.approx([1, 0, 1 / 3])
    assert name_coverage_of(index, "", 0, 1, 2) == name_coverage_of(index, "unheard", 0, 1, 2) == [0, 0, 0]
    assert name_coverage_of(index, "issue") == []


def test_tool_name_of_only_common_words_is_fully_covered_by_a_query_with_those_words() -> None:
    assert name_coverage_of(build(make_tool("get_all")), "get them all", 0) == [1.0]


def test_name_coverage_counts_only_the_first_sixteen_words_of_a_long_tool_name() -> None:
    index = build(make_tool("_".join(f"w{n}" for n in range(15)) + "_again" * 3))
    assert name_coverage_of(index, " ".join(f"w{n}" for n in range(15)), 0)[0] == pytest.approx(15 / 16)


def test_name_coverage_in_an_updated_keyword_index_equals_name_coverage_in_a_new_index() -> None:
    tools = [make_tool(f"{word}_thing_{n}") for n, word in enumerate(VOCABULARY)]
    other = make_tool("quite_another_name")
    changed = build(*tools).without([1, 3], 7).with_tools({3: other, 6: tools[1]})
    for query in ("beta thing", "another name", "delta 3", "omega"):
        fresh = build(tools[0], tools[2], other, tools[4], tools[1])
        assert name_coverage_of(changed, query, 0, 2, 3, 4, 6) == name_coverage_of(
            fresh, query, 0, 1, 2, 3, 4
        )
        assert name_coverage_of(changed, query, 1, 5) == [0.0, 0.0]


def test_keyword_scores_are_the_same_whether_tools_are_added_together_or_one_by_one() -> None:
    tools = {n: make_tool(f"tool_{n}", f"{VOCABULARY[n % 5]} thing {n % 3}") for n in range(40)}
    empty = build(*tools.values()).without(range(40), 40)
    at_once, one_by_one = empty.with_tools(tools), empty
    for position in sorted(tools, key=lambda n: n * 7 % 40):
        one_by_one = one_by_one.with_tools({position: tools[position]})
    for query in (*VOCABULARY, "thing 2", "tool 7"):
        assert scores(at_once, query) == scores(one_by_one, query)
        assert at_once.matched(query, range(40)) == one_by_one.matched(query, range(40))


def test_removing_a_tool_from_the_keyword_index_does_not_change_results_for_other_tools() -> None:
    index = build(make_tool("a", "zebra"), make_tool("b", "zebra lion"), make_tool("c", "lion"))
    left = index.without([1], 3)
    assert left.size == 3
    assert scores(left, "zebra lion")[1] == 0.0
    assert np.flatnonzero(left.scores("zebra")[0]).tolist() == [0]
    assert left.matched("lion", [1]) == [[]]
    assert scores(index, "zebra lion")[1] > 0, "the index it came from stays as it was"


def test_tool_appended_to_the_keyword_index_is_found_by_its_words() -> None:
    index = build(make_tool("a", "zebra")).without([], 3).with_tools({2: make_tool("c", "zebra unicorn")})
    assert np.flatnonzero(index.scores("zebra")[0]).tolist() == [0, 2]
    assert np.flatnonzero(index.scores("unicorn")[0]).tolist() == [2]


def test_tools_can_be_added_to_an_empty_keyword_index() -> None:
    index = build().without([], 1).with_tools({0: make_tool("a", "zebra")})
    assert scores(index, "zebra")[0] > 0


def test_tool_removed_and_added_again_scores_as_in_a_new_index() -> None:
    tools = [make_tool(f"tool_{n}", f"{word} thing") for n, word in enumerate(VOCABULARY)]
    fresh = build(*tools)
    changed = fresh.without([2], len(tools)).with_tools({2: tools[2]})
    for query in (*VOCABULARY, "thing", "tool 3 alpha"):
        assert scores(changed, query) == pytest.approx(scores(fresh, query))
        assert changed.matched(query, range(5)) == fresh.matched(query, range(5))


describing = st.lists(st.sampled_from(VOCABULARY), min_size=3, max_size=3)
changes = st.lists(st.tuples(st.integers(0, 5), st.none() | describing), max_size=8)


def make_described_tool(position: int, said: Sequence[str]) -> Tool:
    """Return a tool with fields of constant length, so that the averages do not change."""
    return make_tool(f"tool_{position}", " ".join(said))


@given(st.lists(describing, min_size=6, max_size=6), changes)
@try_examples(60)
def test_keyword_index_after_any_sequence_of_changes_equals_a_newly_built_index(
    start: list[list[str]], steps: list[tuple[int, list[str] | None]]
) -> None:
    tools: list[Tool | None] = [make_described_tool(position, said) for position, said in enumerate(start)]
    index = build(*[tool for tool in tools if tool])
    for position, said in steps:
        index = index.without([position], 6)
        tools[position] = make_described_tool(position, said) if said else None
        if said:
            index = index.with_tools({position: make_described_tool(position, said)})
    kept = [position for position, tool in enumerate(tools) if tool]
    fresh = build(*[tool for tool in tools if tool])
    for query in (*VOCABULARY, "alpha omega", "tool 3"):
        changed = index.scores(query)[0]
        again = np.zeros(6, np.float32)
        again[kept] = fresh.scores(query)[0]
        assert np.array_equal(changed > 0, again > 0)
        assert index.matched(query, kept) == fresh.matched(query, range(len(kept)))
        if len(kept) == 6:
            assert changed == pytest.approx(again, rel=1e-5)


def test_mcp_tool_is_indexed_by_its_original_name() -> None:
    tool = replace(
        make_tool("mcp_git_hub_open_x1y2", server="git.hub"), original_name="mcp__git.hub__open_issue"
    )
    assert (field_texts(tool)["name"], field_texts(tool)["server"]) == ("open_issue", "git.hub")
    catalog = replace(tool, source=Source("catalog", "git.hub"))
    assert field_texts(catalog)["name"] == "mcp__git.hub__open_issue"
