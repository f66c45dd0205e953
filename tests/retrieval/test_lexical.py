"""The keyword leg: what a word counts for, and that a changed index is as good as a fresh one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.retrieval.catalog import made
from tests.timing import growth
from toolfold.model import Source, Tool, freeze
from toolfold.retrieval.lexical import Lexical, read
from toolfold.retrieval.text import Words

WORDS = Words()
VOCABULARY = ("alpha", "beta", "gamma", "delta", "omega")


def built(*tools: Tool) -> Lexical:
    return Lexical.build(tools, WORDS)


def scores(index: Lexical, query: str) -> list[float]:
    return [float(score) for score in index.scores(query)[0]]


def best(index: Lexical, query: str) -> int:
    return int(np.argmax(index.scores(query)[0]))


@pytest.mark.parametrize(
    ("more", "less"),
    [
        (made("zebra"), made("b", "zebra")),
        (made("a", title="zebra"), made("b", "zebra")),
        (made("a", synonyms=["zebra"]), made("b", "zebra")),
        (made("a", "zebra"), made("b", "", {"zebra": {}})),
        (made("a", "zebra"), made("b", "", {"x": {"description": "zebra"}})),
        (made("a", "zebra"), made("b", "", {"x": {"enum": ["zebra"]}})),
        (made("a", "zebra"), made("b", server="zebra")),
    ],
)
def test_a_word_counts_more_where_it_says_more(more: Tool, less: Tool) -> None:
    high, low = scores(built(more, less), "zebra")
    assert high > low > 0


def test_a_rarer_word_counts_more() -> None:
    index = built(
        made("a", "open file"), made("b", "open door"), made("c", "open door"), made("d", "close file")
    )
    common, rare = scores(index, "open close")[0], scores(index, "open close")[3]
    assert rare > common > 0


def test_a_word_said_twice_counts_more_but_not_twice() -> None:
    twice, once = scores(built(made("a", "zebra zebra x"), made("b", "zebra y x")), "zebra")
    assert once < twice < 2 * once


def test_the_same_word_in_a_shorter_description_counts_more() -> None:
    short, long = scores(built(made("a", "zebra"), made("b", "zebra " + "filler " * 50)), "zebra")
    assert short > long > 0


def test_a_word_said_twice_in_the_message_counts_once() -> None:
    index = built(made("a", "zebra"), made("b", "lion"))
    assert scores(index, "zebra zebra zebras") == scores(index, "zebra")


def test_no_tool_scores_more_than_one_that_matches_every_word() -> None:
    index = built(made("zebra_lion", "zebra lion zebra lion"), made("b", "lion"))
    found, best_possible = index.scores("zebra lion unicorn")
    assert 0 < float(found.max()) <= best_possible


def test_what_a_schema_says_is_found_at_any_sane_depth() -> None:
    inner = {
        "type": "object",
        "properties": {"nested_zebra": {"enum": ["lion", 3], "description": "some tiger"}},
    }
    tool = made("a", "", {"outer": {"type": "array", "items": inner}, "kinds": {"items": {"enum": ["puma"]}}})
    fields = read(tool)
    assert {"nested_zebra", "outer"} <= set(fields["parameters"].split())
    assert "tiger" in fields["parameter descriptions"]
    assert fields["values"].split() == ["lion", "puma"]


def test_what_a_schema_refers_to_or_offers_instead_is_found_too() -> None:
    schema = {
        "type": "object",
        "properties": {
            "animal": {"anyOf": [{"$ref": "#/$defs/Cat"}, {"type": "null"}]},
            "others": {"additionalProperties": {"description": "some tiger"}},
        },
        "allOf": [{"properties": {"hidden_panther": {"const": "leopard"}}}],
        "$defs": {"Cat": {"properties": {"zebra_stripes": {"oneOf": [{"enum": ["lion"]}]}}}},
    }
    fields = read(replace(made("a"), parameters=freeze(schema)))
    assert fields["parameters"].split() == ["animal", "zebra_stripes", "others", "hidden_panther"]
    assert fields["parameter descriptions"] == "some tiger"
    assert fields["values"].split() == ["lion", "leopard"]


@pytest.mark.parametrize(
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
def test_a_crooked_schema_is_no_obstacle(properties: dict[str, object]) -> None:
    tool = replace(made("a", "lion"), parameters=freeze({"properties": properties}))
    assert scores(built(tool), "lion zebra")[0] > 0


def test_a_schema_without_end_is_read_to_a_bound() -> None:
    schema: dict[str, object] = {"type": "string"}
    for level in range(60):
        schema = {"type": "object", "properties": {f"level{level}": schema}}
    assert len(read(made("a", "", {"x": schema}))["parameters"].split()) < 10


def test_tools_without_description_or_schema_are_found_by_name() -> None:
    index = built(made("list_pods"), made("weather"))
    assert best(index, "pods") == 0
    assert best(index, "weather") == 1


def test_an_empty_catalog_has_an_answer() -> None:
    found, _ = built().scores("anything at all")
    assert found.shape == (0,)


@pytest.mark.parametrize("query", ["", "  ", "?!", "\x00", "unheard"])
def test_a_query_without_a_known_word_finds_nothing(query: str) -> None:
    index = built(made("a", "zebra"))
    assert scores(index, query) == [0.0]
    assert index.matched(query, [0]) == [[]]


def test_the_words_that_matched_are_told_in_the_order_of_the_query() -> None:
    index = built(made("zebra_lion", "tiger"), made("puma"))
    assert index.matched("a lion, a puma and a zebra", [0, 1]) == [["lion", "zebra"], ["puma"]]


def test_the_words_that_matched_are_told_as_they_were_written() -> None:
    index = Lexical.build([made("a", "The parcel arrives broken.")], Words())
    assert index.matched("it arrived, breaking my parcels", [0]) == [["arrived", "parcels"]]


def test_ten_thousand_identical_tools_score_alike_and_soon() -> None:
    tool = made("same", "Does the same thing", {"path": {"description": "where"}})

    def score(count: int) -> None:
        built(*[tool] * count).scores("the same thing")

    assert growth(lambda: score(300), lambda: score(3_000)) < 40  # 10 in proportion, 100 where it is squared
    found, _ = built(*[tool] * 10_000).scores("the same thing")
    assert found.shape == (10_000,)
    assert float(found.min()) == float(found.max()) > 0


def covered(index: Lexical, query: str, *places: int) -> list[float]:
    return [float(share) for share in index.name_coverage(query, np.array(places, np.int64))]


def test_the_share_of_a_name_that_a_query_says() -> None:
    index = built(made("create_new_issue"), made("mcp_github_list_issues", server="github"), made("x" * 40))
    assert covered(index, "creating issues", 0, 1) == pytest.approx([2 / 3, 1 / 2])
    assert covered(index, "list the github issues", 1, 2, 0) == pytest.approx([1, 0, 1 / 3])
    assert covered(index, "", 0, 1, 2) == covered(index, "unheard", 0, 1, 2) == [0, 0, 0]
    assert covered(index, "issue") == []


def test_polite_words_in_a_name_count_where_the_query_says_them() -> None:
    assert covered(built(made("get_all")), "get them all", 0) == [1.0]


def test_a_name_of_more_words_than_any_is_covered_by_its_first_ones() -> None:
    index = built(made("_".join(f"w{n}" for n in range(15)) + "_again" * 3))
    assert covered(index, " ".join(f"w{n}" for n in range(15)), 0)[0] == pytest.approx(15 / 16)


def test_names_are_covered_in_a_changed_index_as_in_a_fresh_one() -> None:
    tools = [made(f"{word}_thing_{n}") for n, word in enumerate(VOCABULARY)]
    other = made("quite_another_name")
    changed = built(*tools).without([1, 3], 7).with_tools({3: other, 6: tools[1]})
    for query in ("beta thing", "another name", "delta 3", "omega"):
        fresh = built(tools[0], tools[2], other, tools[4], tools[1])
        assert covered(changed, query, 0, 2, 3, 4, 6) == covered(fresh, query, 0, 1, 2, 3, 4)
        assert covered(changed, query, 1, 5) == [0.0, 0.0]


def test_many_tools_put_in_at_once_are_as_good_as_one_by_one() -> None:
    tools = {n: made(f"tool_{n}", f"{VOCABULARY[n % 5]} thing {n % 3}") for n in range(40)}
    empty = built(*tools.values()).without(range(40), 40)
    at_once, one_by_one = empty.with_tools(tools), empty
    for place in sorted(tools, key=lambda n: n * 7 % 40):
        one_by_one = one_by_one.with_tools({place: tools[place]})
    for query in (*VOCABULARY, "thing 2", "tool 7"):
        assert scores(at_once, query) == scores(one_by_one, query)
        assert at_once.matched(query, range(40)) == one_by_one.matched(query, range(40))


def test_a_tool_taken_out_is_not_found_and_the_others_are_as_before() -> None:
    index = built(made("a", "zebra"), made("b", "zebra lion"), made("c", "lion"))
    left = index.without([1], 3)
    assert left.size == 3
    assert scores(left, "zebra lion")[1] == 0.0
    assert np.flatnonzero(left.scores("zebra")[0]).tolist() == [0]
    assert left.matched("lion", [1]) == [[]]
    assert scores(index, "zebra lion")[1] > 0, "the index it came from stays as it was"


def test_room_at_the_end_can_be_taken() -> None:
    index = built(made("a", "zebra")).without([], 3).with_tools({2: made("c", "zebra unicorn")})
    assert np.flatnonzero(index.scores("zebra")[0]).tolist() == [0, 2]
    assert np.flatnonzero(index.scores("unicorn")[0]).tolist() == [2]


def test_an_index_that_began_empty_can_be_filled() -> None:
    index = built().without([], 1).with_tools({0: made("a", "zebra")})
    assert scores(index, "zebra")[0] > 0


def test_a_tool_put_back_scores_exactly_as_in_a_fresh_index() -> None:
    tools = [made(f"tool_{n}", f"{word} thing") for n, word in enumerate(VOCABULARY)]
    fresh = built(*tools)
    changed = fresh.without([2], len(tools)).with_tools({2: tools[2]})
    for query in (*VOCABULARY, "thing", "tool 3 alpha"):
        assert scores(changed, query) == pytest.approx(scores(fresh, query))
        assert changed.matched(query, range(5)) == fresh.matched(query, range(5))


describing = st.lists(st.sampled_from(VOCABULARY), min_size=3, max_size=3)
changes = st.lists(st.tuples(st.integers(0, 5), st.none() | describing), max_size=8)


def described(place: int, said: Sequence[str]) -> Tool:
    """Tools whose fields are all of one length: averages stay what they were."""
    return made(f"tool_{place}", " ".join(said))


@given(st.lists(describing, min_size=6, max_size=6), changes)
@settings(max_examples=60, deadline=None)
def test_any_sequence_of_changes_ends_where_a_fresh_index_begins(
    start: list[list[str]], steps: list[tuple[int, list[str] | None]]
) -> None:
    tools: list[Tool | None] = [described(place, said) for place, said in enumerate(start)]
    index = built(*[tool for tool in tools if tool])
    for place, said in steps:
        index = index.without([place], 6)
        tools[place] = described(place, said) if said else None
        if said:
            index = index.with_tools({place: described(place, said)})
    kept = [place for place, tool in enumerate(tools) if tool]
    fresh = built(*[tool for tool in tools if tool])
    for query in (*VOCABULARY, "alpha omega", "tool 3"):
        changed = index.scores(query)[0]
        again = np.zeros(6, np.float32)
        again[kept] = fresh.scores(query)[0]
        assert np.array_equal(changed > 0, again > 0)
        assert index.matched(query, kept) == fresh.matched(query, range(len(kept)))
        if len(kept) == 6:
            assert changed == pytest.approx(again, rel=1e-5)


def test_of_a_servers_tool_the_name_that_its_author_chose_is_read() -> None:
    tool = replace(made("mcp_git_hub_open_x1y2", server="git.hub"), original_name="mcp__git.hub__open_issue")
    assert (read(tool)["name"], read(tool)["server"]) == ("open_issue", "git.hub")
    catalog = replace(tool, source=Source("catalog", "git.hub"))
    assert read(catalog)["name"] == "mcp__git.hub__open_issue"
