"""Bills follow what a provider remembers of earlier requests, and each strategy sends what it would."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfold.config.settings import ToolSearchSettings, ToolsSettings
from toolfold.retrieval.search import Retriever
from toolfold.sources import sample_catalog
from toolfold.turn import Bridge, BridgeAnswers
from toolfold.turn.answers import MAX_DESCRIPTION_CHARS
from toolfold.turn.cost import (
    PLACEMENTS,
    STRATEGIES,
    Call,
    Dialogue,
    DialogueMessage,
    DialogueTurn,
    ToolSizes,
    best_placement,
    best_shown,
    cheapest,
    generate_dialogue,
    measure_tools,
    typical_dialogue,
)
from toolfold.turn.pricing import (
    PRICES,
    Bill,
    ModelCall,
    Prices,
    Segment,
    compute_bill,
    prices_for,
    read_prices,
)
from toolfold.turn.tokens import TokenCounter

PAID = Prices(name="paid", input=4.0, cached_read=0.4, cache_write=5.0, output=20.0, minimum_prefix=100)
FREE = Prices(name="free", input=4.0, cached_read=1.0, output=20.0, minimum_prefix=100)
NONE = Prices(name="none", input=4.0, output=20.0)
BRIDGE = Bridge(BridgeAnswers(Retriever(None, None, None), ToolsSettings()))


def request(*segments: tuple[str, int], output: int = 0, at: float = 0.0, turn: int = 0) -> ModelCall:
    return ModelCall(tuple(Segment(*each) for each in segments), output, turn, at)


def millionths(*requests: ModelCall, prices: Prices) -> float:
    return round(compute_bill(requests, prices).dollars * 1_000_000, 6)


# Prefixes


def test_a_first_request_is_written_and_its_output_paid() -> None:
    first = request(("a", 1000), output=10)
    assert millionths(first, prices=PAID) == 1000 * 5 + 10 * 20
    assert millionths(first, prices=FREE) == 1000 * 4 + 10 * 20
    assert millionths(first, prices=NONE) == 1000 * 4 + 10 * 20


def test_what_begins_like_an_earlier_request_is_read_from_the_cache() -> None:
    first, second = request(("a", 1000), ("b", 500)), request(("a", 1000), ("b", 500), ("c", 200))
    total = compute_bill([first, second], PAID)
    assert (total.calls, total.input, total.cached) == (2, 3200, 1500)
    assert millionths(first, second, prices=PAID) == 1500 * 5 + 1500 * 0.4 + 200 * 5
    assert millionths(first, second, prices=NONE) == 3200 * 4


def test_a_change_at_the_front_pays_for_everything_behind_it() -> None:
    first, second = request(("tools", 300), ("rest", 5000)), request(("other tools", 300), ("rest", 5000))
    assert compute_bill([first, second], PAID).cached == 0
    first, second = request(("rest", 5000), ("tools", 300)), request(("rest", 5000), ("other tools", 300))
    assert compute_bill([first, second], PAID).cached == 5000


def test_any_earlier_request_may_be_the_one_that_is_remembered() -> None:
    a, b = request(("a", 1000)), request(("b", 1000))
    assert [charge.cached for charge in compute_bill([a, b, a, b], PAID).charges] == [0, 0, 1000, 1000]


def test_the_same_name_with_another_size_is_another_text() -> None:
    assert compute_bill([request(("a", 1000)), request(("a", 999))], PAID).cached == 0


def test_a_short_prefix_is_not_remembered_and_not_charged_as_written() -> None:
    short = request(("a", 99))
    assert millionths(short, short, prices=PAID) == 2 * 99 * 4


def test_a_prefix_counts_in_whole_steps() -> None:
    stepped = Prices(name="s", input=1.0, cached_read=0.5, output=0.0, minimum_prefix=1024, step=128)
    again = [request(("a", 1023)), request(("a", 1023))]
    assert compute_bill(again, stepped).cached == 0
    again = [request(("a", 1300)), request(("a", 1300))]
    assert compute_bill(again, stepped).cached == 1280


def test_a_prefix_is_forgotten_after_its_lifetime_and_kept_by_use() -> None:
    def cached(*moments: float) -> list[int]:
        return [
            each.cached for each in compute_bill([request(("a", 500), at=at) for at in moments], PAID).charges
        ]

    assert cached(0, 300) == [0, 500]
    assert cached(0, 301) == [0, 0]
    assert cached(0, 250, 500) == [0, 500, 500]


def test_tokens_are_those_of_the_model() -> None:
    double = Prices(name="d", input=1.0, output=1.0, factor=2.0)
    total = compute_bill([request(("a", 100), output=10)], double)
    assert (total.input, total.output) == (200, 20)


REQUESTS = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), st.just(200)), min_size=1, max_size=6).map(
        lambda segments: request(*segments, output=5)
    ),
    max_size=8,
)


def shared(one: ModelCall, other: ModelCall) -> int:
    pairs = itertools.takewhile(
        lambda pair: pair[0] == pair[1], zip(one.segments, other.segments, strict=False)
    )
    return sum(each.tokens for each, _ in pairs)


@given(REQUESTS)
def test_what_is_cached_is_the_longest_prefix_of_any_request_before(requests: list[ModelCall]) -> None:
    for place, charge in enumerate(compute_bill(requests, PAID).charges):
        assert charge.cached == max((shared(requests[place], each) for each in requests[:place]), default=0)


@given(REQUESTS)
def test_a_cache_with_free_writes_never_costs_more_than_none(requests: list[ModelCall]) -> None:
    assert compute_bill(requests, FREE).dollars <= compute_bill(requests, NONE).dollars + 1e-12


def test_the_dollars_by_turn_end_in_the_whole() -> None:
    total = compute_bill([request(("a", 1000), turn=turn) for turn in (0, 0, 1, 3)], PAID)
    spent = total.by_turn()
    assert len(spent) == 4
    assert spent == sorted(spent)
    assert math.isclose(spent[-1], total.dollars)
    assert Bill(()).by_turn() == []


# Strategies

TOOLS = [f"t{number}" for number in range(40)]
SIZES = ToolSizes(
    full=dict.fromkeys(TOOLS, 200),
    slim=dict.fromkeys(TOOLS, 150),
    hit=dict.fromkeys(TOOLS, 80),
    brief=dict.fromkeys(TOOLS, 40),
    core=frozenset({"t0", "t1"}),
    pinned=frozenset({"t0"}),
)


def exchange(*calls: str, ranked: tuple[str, ...] = ()) -> DialogueTurn:
    return DialogueTurn(30, tuple(Call(name, 20, 100) for name in calls), 50, ranked)


def sent(strategy: str, *turns: DialogueTurn) -> list[ModelCall]:
    return STRATEGIES[strategy](Dialogue(500, turns), SIZES)


def names(each: ModelCall) -> list[str]:
    return [segment.identity for segment in each.segments]


@pytest.mark.parametrize(
    ("strategy", "calls"),
    [("eager", 2), ("eager slim", 2), ("search+describe", 4), ("search", 3)]
    + [(placement, 2) for placement in PLACEMENTS],
)
def test_one_tool_takes_as_many_model_calls_as_its_strategy_says(strategy: str, calls: int) -> None:
    assert len(sent(strategy, exchange("t7", ranked=("t7", "t8")))) == calls


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_tool_that_was_not_selected_is_searched(placement: str) -> None:
    elsewhere = tuple(TOOLS[10:18])
    assert (
        len(sent(placement, exchange("t7", ranked=elsewhere))) == 4
    )  # found by other words than the message's


@pytest.mark.parametrize("strategy", ["search+describe", "search", *PLACEMENTS])
def test_a_tool_once_known_is_called_at_once(strategy: str) -> None:
    once = len(sent(strategy, exchange("t7", ranked=("t7",))))
    twice = len(sent(strategy, exchange("t7", ranked=("t7",)), exchange("t7")))
    assert twice == once + 2


@pytest.mark.parametrize("strategy", ["search+describe", "search"])
def test_a_core_tool_is_never_searched(strategy: str) -> None:
    assert len(sent(strategy, exchange("t1"))) == 2


def test_eager_sends_every_tool_every_time() -> None:
    for each in sent("eager", exchange("t7"), exchange()):
        assert names(each)[:40] == TOOLS
    assert sent("eager slim", exchange())[0].segments[0].tokens == 150


def test_replace_shows_this_messages_tools_and_those_used_before() -> None:
    requests = sent("replace", exchange("t7", ranked=("t7", "t8")), exchange(ranked=("t9",)))
    assert names(requests[0])[:4] == ["the bridge", "t0", "t7", "t8"]
    assert names(requests[-1])[:4] == ["the bridge", "t0", "t7", "t9"]


def test_append_only_grows_until_it_begins_anew() -> None:
    turns = [exchange(ranked=tuple(TOOLS[start : start + 8])) for start in range(1, 33, 4)]
    arrays = [names(each)[: names(each).index("system")] for each in sent("append", *turns)]
    assert all(after[: len(before)] == before for before, after in itertools.pairwise(arrays))
    small = ToolSizes(
        **{**{key: getattr(SIZES, key) for key in ("full", "slim", "hit", "brief")}, "most_grown": 12}
    )
    arrays = [
        names(each)[: names(each).index("system")]
        for each in STRATEGIES["append"](Dialogue(500, tuple(turns)), small)
    ]
    assert max(map(len, arrays)) <= 13


def test_tail_never_changes_what_was_sent_and_sends_a_schema_once() -> None:
    turns = [exchange(f"t{start}", ranked=tuple(TOOLS[start : start + 8])) for start in range(1, 33, 4)]
    requests = [names(each) for each in sent("tail", *turns)]
    assert all(after[: len(before)] == before for before, after in itertools.pairwise(requests))
    schemas = [name for name in requests[-1] if name.startswith("schema of ")]
    assert len(schemas) == len(set(schemas)) > 30


def test_a_compact_tail_costs_what_signatures_do() -> None:
    (compact,), (whole,) = (sent(each, exchange(ranked=("t5",))) for each in ("tail", "tail whole"))
    assert (compact.segments[-1].tokens, whole.segments[-1].tokens) == (80, 150)


def test_no_more_tools_are_shown_than_a_selection_has() -> None:
    (only,) = sent("tail", exchange(ranked=tuple(TOOLS[1:30])))
    assert sum(name.startswith("schema of ") for name in names(only)) == SIZES.shown


def test_a_tool_that_the_catalog_lost_since_costs_nothing_and_stops_nothing() -> None:
    for strategy in STRATEGIES.values():
        assert strategy(Dialogue(10, (exchange("gone", ranked=("gone", "t3")),)), SIZES)


def test_a_conversation_without_turns_costs_nothing() -> None:
    for strategy in STRATEGIES.values():
        assert compute_bill(strategy(Dialogue(10, ()), SIZES), PAID).dollars == 0


def test_tools_are_measured_in_every_form() -> None:
    tools = sample_catalog()[:10]
    sizes = measure_tools(tools, TokenCounter(), ToolsSettings(), bridge=BRIDGE.tools)
    for tool in tools:
        assert 0 < sizes.brief[tool.name] < sizes.hit[tool.name]
        assert sizes.slim[tool.name] <= sizes.full[tool.name]


def test_a_long_description_is_measured_as_it_is_cut_for_a_search() -> None:
    (tool,) = sample_catalog()[:1]
    long, longer = (replace(tool, description="word " * many) for many in (1_000, 2_000))
    brief = [
        measure_tools([each], TokenCounter(), ToolsSettings(), bridge=()).brief[tool.name]
        for each in (long, longer)
    ]
    assert brief[0] == brief[1] < MAX_DESCRIPTION_CHARS


def test_tools_are_shown_as_the_settings_say() -> None:
    tools = sample_catalog()[:10]
    settings = ToolsSettings(
        pinned=("nobody", tools[0].name),
        rag_top_k=3,
        rag_append_max=20,
        tool_search=ToolSearchSettings(search_default_limit=2),
    )
    sizes = measure_tools(tools, TokenCounter(), settings, bridge=BRIDGE.tools)
    assert sizes.pinned == {tools[0].name}
    assert (sizes.shown, sizes.most_grown, sizes.hits) == (3, 20, 2)


def test_what_no_settings_say_is_their_default_and_the_real_bridge() -> None:
    measured, usual = (
        measure_tools([], TokenCounter(), ToolsSettings(), bridge=BRIDGE.tools),
        typical_dialogue()[1],
    )
    for each in ("shown", "most_grown", "hits", "bridge"):
        assert getattr(measured, each) == getattr(usual, each), each


def test_an_imagined_conversation_is_the_same_each_time() -> None:
    asked = [DialogueMessage(10, ("t1",), ("t1", "t2"))] * 5
    assert generate_dialogue(asked) == generate_dialogue(asked) != generate_dialogue(asked, seed=8)


# Choosing


def test_where_prefixes_are_remembered_cheaply_a_selection_goes_to_the_tail() -> None:
    cheap = [prices for prices in PRICES if prices.cached_read <= prices.input * 0.1]
    assert [prices.name for prices in cheap] == [
        "claude-sonnet-4-6",
        "claude-opus-4-8",
        "gpt-5.4",
        "gemini-2.5-pro",
        "deepseek-chat",
    ]
    assert {best_placement(prices) for prices in cheap} == {"tail"}


def test_where_nothing_is_remembered_the_shortest_request_is_the_cheapest() -> None:
    assert best_placement(NONE) == "replace"


def sizes(slim: dict[str, int], *, told: dict[str, int]) -> ToolSizes:
    return ToolSizes(full=slim, slim=slim, hit=told, brief=told)


def two_messages(*, system: int, pause: float = 0.0) -> Dialogue:
    """Each finds a tool of its own."""
    return Dialogue(
        system, (DialogueTurn(30, ranked=("large",)), DialogueTurn(30, ranked=("also",), pause=pause))
    )


def test_behind_a_long_prompt_the_tail_is_cheapest() -> None:
    tools = sizes({"also": 1_000, "large": 1_000}, told={"also": 1_000, "large": 1_000})
    assert best_placement(PAID, two_messages(system=20_000), tools) == "tail"


def test_where_the_cache_has_forgotten_what_is_no_longer_sent_is_cheapest() -> None:
    tools = sizes({"also": 1_000, "large": 1_000}, told={"also": 1_000, "large": 1_000})
    late = two_messages(system=20_000, pause=PAID.lifetime + 1)
    assert best_placement(PAID, late, tools) == "replace"


def test_a_large_tool_that_stays_is_cheapest_at_the_front_of_an_array_that_grows() -> None:
    tools = sizes({"also": 100, "large": 10_000}, told={"also": 100, "large": 20_000})
    both = DialogueTurn(30, ranked=("also", "large"))  # replaced, `also` stands in front of `large`
    dialogue = Dialogue(100, (DialogueTurn(30, ranked=("large",)), both))
    assert best_placement(PAID, dialogue, tools) == "append"


def test_where_the_first_tool_found_is_the_right_one_a_selection_of_one_is_cheapest() -> None:
    dialogue, tools = typical_dialogue()
    assert best_shown(PAID, "tail", dialogue, tools) == 1


def test_where_the_eighth_tool_found_is_the_right_one_a_selection_of_eight_is_cheapest() -> None:
    turns = tuple(exchange(TOOLS[at + 7], ranked=tuple(TOOLS[at : at + 8])) for at in (2, 12, 22, 32))
    assert best_shown(NONE, "replace", Dialogue(20_000, turns), SIZES) == 8


def test_the_cheapest_is_named_for_each_model_and_length() -> None:
    def spending(*dollars: float) -> Bill:
        prices = Prices(name="unit", input=1e6, output=0.0)
        return compute_bill(
            [request(("x", 1), turn=turn) for turn, much in enumerate(dollars) for _ in range(int(much))],
            prices,
        )

    bills = {
        "m": {"early": spending(1, 5), "late": spending(2, 1)},
        "n": {"early": spending(1, 1), "late": spending(3, 3)},
    }
    assert cheapest(bills, 1) == {"early": ["m", "n"]}
    assert cheapest(bills, 2) == {"late": ["m"], "early": ["n"]}


# Prices


@pytest.mark.parametrize(
    ("model", "name", "kind"),
    [
        ("anthropic/claude-sonnet-4-6", "claude-sonnet-4-6", "cache, paid writes"),
        ("claude-haiku-4-5", "claude-sonnet-4-6", "cache, paid writes"),
        ("claude-opus-4-6", "claude-opus-4-8", "cache, paid writes"),
        ("gpt-4o-mini", "gpt-4o", "cache, free writes"),
        ("openai/gpt-5-mini", "gpt-5.4", "cache, free writes"),
        ("deepseek-reasoner", "deepseek-chat", "cache, free writes"),
        ("my-own-model", "my-own-model", "no cache"),
        ("", "unknown", "no cache"),
    ],
)
def test_a_model_has_the_prices_of_its_family(model: str, name: str, kind: str) -> None:
    prices = prices_for(model)
    assert (prices.name, prices.kind) == (name, kind)


def test_prices_are_read_as_people_write_them() -> None:
    (prices,) = read_prices(
        {"m": {"input": 3, "output": 15, "cached_read": 0.3, "cache_write": 3.75, "step": 0}}
    )
    assert prices == Prices(name="m", input=3, output=15, cached_read=0.3, cache_write=3.75, step=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        [],
        None,
        {"m": 5},
        {"m": {"input": 1}},
        {"m": {"input": "1", "output": 1}},
        {"m": {"input": True, "output": 1}},
        {"m": {"input": -1, "output": 1}},
        {"m": {"input": math.nan, "output": 1}},
        {"m": {"input": 1, "output": 1, "inptu": 1}},
        {"m": {"input": 1, "output": 1, "name": "other"}},
    ],
)
def test_prices_that_make_no_sense_are_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"m: |expected a map"):
        read_prices(wrong)
