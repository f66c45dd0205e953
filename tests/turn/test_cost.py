"""Cost simulation: prompt caching of providers, and the requests of each strategy."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from toolfold.config.settings import ToolSearchSettings, ToolsSettings
from toolfold.selection.retrieval.tool_search import Retriever
from toolfold.selection.turn import Bridge, BridgeAnswers
from toolfold.selection.turn.answers import MAX_DESCRIPTION_CHARS
from toolfold.selection.turn.pricing import (
    PRICES,
    Bill,
    ModelCall,
    Prices,
    Segment,
    compute_bill,
    prices_for,
    read_prices,
)
from toolfold.selection.turn.request_cost import (
    PLACEMENTS,
    STRATEGIES,
    Call,
    Dialogue,
    DialogueMessage,
    DialogueTurn,
    ToolSizes,
    best_limit,
    best_placement,
    cheapest,
    count_shown,
    generate_dialogue,
    measure_tools,
    typical_dialogue,
)
from toolfold.selection.turn.tokens import TokenCounter
from toolfold.tools.catalog import sample_catalog

PAID = Prices(name="paid", input=4.0, cached_read=0.4, cache_write=5.0, output=20.0, minimum_prefix=100)
FREE = Prices(name="free", input=4.0, cached_read=1.0, output=20.0, minimum_prefix=100)
NONE = Prices(name="none", input=4.0, output=20.0)
BRIDGE = Bridge(BridgeAnswers(Retriever(None, None, None), ToolsSettings()))


def make_request(*segments: tuple[str, int], output: int = 0, at: float = 0.0, turn: int = 0) -> ModelCall:
    return ModelCall(tuple(Segment(*each) for each in segments), output, turn, at)


def cost_in_micro_dollars(*requests: ModelCall, prices: Prices) -> float:
    return round(compute_bill(requests, prices).dollars * 1_000_000, 6)


# Prefixes


def test_first_model_request_is_charged_at_the_prices_for_cache_writes_and_output() -> None:
    first = make_request(("a", 1000), output=10)
    assert cost_in_micro_dollars(first, prices=PAID) == 1000 * 5 + 10 * 20
    assert cost_in_micro_dollars(first, prices=FREE) == 1000 * 4 + 10 * 20
    assert cost_in_micro_dollars(first, prices=NONE) == 1000 * 4 + 10 * 20


def test_request_prefix_shared_with_an_earlier_request_is_charged_as_cache_read() -> None:
    first, second = make_request(("a", 1000), ("b", 500)), make_request(("a", 1000), ("b", 500), ("c", 200))
    total = compute_bill([first, second], PAID)
    assert (total.calls, total.input, total.cached) == (2, 3200, 1500)
    assert cost_in_micro_dollars(first, second, prices=PAID) == 1500 * 5 + 1500 * 0.4 + 200 * 5
    assert cost_in_micro_dollars(first, second, prices=NONE) == 3200 * 4


def test_request_that_differs_at_its_start_from_the_previous_request_is_charged_without_cache_hits() -> None:
    first, second = (
        make_request(("tools", 300), ("rest", 5000)),
        make_request(("other tools", 300), ("rest", 5000)),
    )
    assert compute_bill([first, second], PAID).cached == 0
    first, second = (
        make_request(("rest", 5000), ("tools", 300)),
        make_request(("rest", 5000), ("other tools", 300)),
    )
    assert compute_bill([first, second], PAID).cached == 5000


def test_request_equal_to_the_second_to_last_request_is_charged_as_cached() -> None:
    a, b = make_request(("a", 1000)), make_request(("b", 1000))
    assert [charge.cached for charge in compute_bill([a, b, a, b], PAID).charges] == [0, 0, 1000, 1000]


def test_request_segment_whose_token_count_changed_is_charged_as_not_cached() -> None:
    assert compute_bill([make_request(("a", 1000)), make_request(("a", 999))], PAID).cached == 0


def test_request_prefix_with_fewer_tokens_than_the_providers_minimum_is_not_cached() -> None:
    short = make_request(("a", 99))
    assert cost_in_micro_dollars(short, short, prices=PAID) == 2 * 99 * 4


def test_number_of_cached_tokens_is_rounded_down_to_a_multiple_of_the_cache_block_size() -> None:
    stepped = Prices(name="s", input=1.0, cached_read=0.5, output=0.0, minimum_prefix=1024, step=128)
    again = [make_request(("a", 1023)), make_request(("a", 1023))]
    assert compute_bill(again, stepped).cached == 0
    again = [make_request(("a", 1300)), make_request(("a", 1300))]
    assert compute_bill(again, stepped).cached == 1280


def test_cached_request_prefix_expires_after_its_lifetime_unless_it_is_used_again() -> None:
    def cached(*moments: float) -> list[int]:
        return [
            each.cached
            for each in compute_bill([make_request(("a", 500), at=at) for at in moments], PAID).charges
        ]

    assert cached(0, 300) == [0, 500]
    assert cached(0, 301) == [0, 0]
    assert cached(0, 250, 500) == [0, 500, 500]


def test_cost_estimate_multiplies_token_counts_by_the_factor_of_the_model() -> None:
    double = Prices(name="d", input=1.0, output=1.0, factor=2.0)
    total = compute_bill([make_request(("a", 100), output=10)], double)
    assert (total.input, total.output) == (200, 20)


REQUESTS = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), st.just(200)), min_size=1, max_size=6).map(
        lambda segments: make_request(*segments, output=5)
    ),
    max_size=8,
)


def shared_tokens(one: ModelCall, other: ModelCall) -> int:
    pairs = itertools.takewhile(
        lambda pair: pair[0] == pair[1], zip(one.segments, other.segments, strict=False)
    )
    return sum(each.tokens for each, _ in pairs)


@given(REQUESTS)
def test_cached_tokens_of_a_request_are_its_longest_prefix_shared_with_any_earlier_request(
    requests: list[ModelCall],
) -> None:
    for place, charge in enumerate(compute_bill(requests, PAID).charges):
        assert charge.cached == max(
            (shared_tokens(requests[place], each) for each in requests[:place]), default=0
        )


@given(REQUESTS)
def test_cost_with_a_prompt_cache_with_free_writes_never_exceeds_the_cost_without_a_cache(
    requests: list[ModelCall],
) -> None:
    assert compute_bill(requests, FREE).dollars <= compute_bill(requests, NONE).dollars + 1e-12


def test_cumulative_cost_by_turn_never_decreases_and_ends_at_the_total_cost() -> None:
    total = compute_bill([make_request(("a", 1000), turn=turn) for turn in (0, 0, 1, 3)], PAID)
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


def make_turn(*calls: str, ranked: tuple[str, ...] = ()) -> DialogueTurn:
    return DialogueTurn(30, tuple(Call(name, 20, 100) for name in calls), 50, ranked)


def simulate_requests(strategy: str, *turns: DialogueTurn) -> list[ModelCall]:
    return STRATEGIES[strategy](Dialogue(500, turns), SIZES)


def names(each: ModelCall) -> list[str]:
    return [segment.identity for segment in each.segments]


@check_cases(
    ("strategy", "calls"),
    [("eager", 2), ("eager slim", 2), ("search+describe", 4), ("search", 3)]
    + [(placement, 2) for placement in PLACEMENTS],
)
def test_simulated_tool_use_takes_two_to_four_model_calls_depending_on_the_strategy(
    strategy: str, calls: int
) -> None:
    assert len(simulate_requests(strategy, make_turn("t7", ranked=("t7", "t8")))) == calls


@check_cases("placement", PLACEMENTS)
def test_simulated_model_searches_for_a_tool_that_was_not_selected(placement: str) -> None:
    elsewhere = tuple(TOOLS[10:18])
    assert (
        len(simulate_requests(placement, make_turn("t7", ranked=elsewhere))) == 4
    )  # found by other words than the message's


@check_cases("strategy", ["search+describe", "search", *PLACEMENTS])
def test_simulated_model_does_not_search_again_for_a_tool_it_has_used_before(strategy: str) -> None:
    once = len(simulate_requests(strategy, make_turn("t7", ranked=("t7",))))
    twice = len(simulate_requests(strategy, make_turn("t7", ranked=("t7",)), make_turn("t7")))
    assert twice == once + 2


@check_cases("strategy", ["search+describe", "search"])
def test_simulated_model_never_searches_for_a_core_tool(strategy: str) -> None:
    assert len(simulate_requests(strategy, make_turn("t1"))) == 2


def test_cost_strategy_eager_sends_all_tools_in_each_request() -> None:
    for each in simulate_requests("eager", make_turn("t7"), make_turn()):
        assert names(each)[:40] == TOOLS
    assert simulate_requests("eager slim", make_turn())[0].segments[0].tokens == 150


def test_cost_strategy_replace_sends_only_selected_and_recently_used_tools() -> None:
    requests = simulate_requests("replace", make_turn("t7", ranked=("t7", "t8")), make_turn(ranked=("t9",)))
    assert names(requests[0])[:4] == ["the bridge", "t0", "t7", "t8"]
    assert names(requests[-1])[:4] == ["the bridge", "t0", "t7", "t9"]


def test_cost_strategy_append_rebuilds_the_tools_array_only_when_it_would_exceed_its_maximum() -> None:
    turns = [make_turn(ranked=tuple(TOOLS[start : start + 8])) for start in range(1, 33, 4)]
    arrays = [names(each)[: names(each).index("system")] for each in simulate_requests("append", *turns)]
    assert all(after[: len(before)] == before for before, after in itertools.pairwise(arrays))
    small = ToolSizes(
        **{**{key: getattr(SIZES, key) for key in ("full", "slim", "hit", "brief")}, "most_grown": 12}
    )
    arrays = [
        names(each)[: names(each).index("system")]
        for each in STRATEGIES["append"](Dialogue(500, tuple(turns)), small)
    ]
    assert max(map(len, arrays)) <= 13


def test_cost_strategy_tail_never_changes_sent_messages_and_sends_each_tool_schema_once() -> None:
    turns = [make_turn(f"t{start}", ranked=tuple(TOOLS[start : start + 8])) for start in range(1, 33, 4)]
    requests = [names(each) for each in simulate_requests("tail", *turns)]
    assert all(after[: len(before)] == before for before, after in itertools.pairwise(requests))
    schemas = [name for name in requests[-1] if name.startswith("schema of ")]
    assert len(schemas) == len(set(schemas)) > 30


def test_cost_strategy_tail_uses_fewer_tokens_with_one_line_signatures_than_with_whole_schemas() -> None:
    (compact,), (whole,) = (
        simulate_requests(each, make_turn(ranked=("t5",))) for each in ("tail", "tail whole")
    )
    assert (compact.segments[-1].tokens, whole.segments[-1].tokens) == (80, 150)


def test_cost_simulation_sends_at_most_the_configured_number_of_selected_tools() -> None:
    (only,) = simulate_requests("tail", make_turn(ranked=tuple(TOOLS[1:30])))
    assert sum(name.startswith("schema of ") for name in names(only)) == SIZES.shown


@check_cases("placement", PLACEMENTS)
def test_tools_selected_for_a_message_are_sent_in_a_cost_simulation(placement: str) -> None:
    selected = tuple(TOOLS[1:15])
    turns = [replace(make_turn(ranked=tuple(TOOLS[1:9])), selected=each) for each in (selected, ())]
    first, last = simulate_requests(placement, *turns)
    sent = {name.removeprefix("schema of ") for name in names(first)}
    assert set(selected) <= sent
    assert len(names(last)) - len(names(first)) <= 2, "no tools are added for a message that needs none"
    assert count_shown(Dialogue(500, tuple(turns)), SIZES) == [14, 0]
    assert count_shown(Dialogue(500, tuple(turns)), replace(SIZES, limit=3)) == [3, 0]


def test_tool_missing_from_the_catalog_is_ignored_in_a_cost_simulation() -> None:
    for strategy in STRATEGIES.values():
        assert strategy(Dialogue(10, (make_turn("gone", ranked=("gone", "t3")),)), SIZES)


def test_simulated_conversation_without_turns_costs_nothing() -> None:
    for strategy in STRATEGIES.values():
        assert compute_bill(strategy(Dialogue(10, ()), SIZES), PAID).dollars == 0


def test_signatures_take_fewer_tokens_than_search_results_and_slim_schemas_no_more_than_full() -> None:
    tools = sample_catalog()[:10]
    make_sizes = measure_tools(tools, TokenCounter(), ToolsSettings(), bridge=BRIDGE.tools)
    for tool in tools:
        assert 0 < make_sizes.brief[tool.name] < make_sizes.hit[tool.name]
        assert make_sizes.slim[tool.name] <= make_sizes.full[tool.name]


def test_token_count_of_the_one_line_signature_of_a_tool_is_limited_for_a_very_long_description() -> None:
    (tool,) = sample_catalog()[:1]
    long, longer = (replace(tool, description="word " * many) for many in (1_000, 2_000))
    brief = [
        measure_tools([each], TokenCounter(), ToolsSettings(), bridge=()).brief[tool.name]
        for each in (long, longer)
    ]
    assert brief[0] == brief[1] < MAX_DESCRIPTION_CHARS


def test_cost_measurement_uses_the_configured_pinned_tools_and_selection_limits() -> None:
    tools = sample_catalog()[:10]
    settings = ToolsSettings(
        pinned=("nobody", tools[0].name),
        rag_top_k=3,
        rag_append_max=20,
        tool_search=ToolSearchSettings(search_default_limit=2),
    )
    make_sizes = measure_tools(tools, TokenCounter(), settings, bridge=BRIDGE.tools)
    assert make_sizes.pinned == {tools[0].name}
    assert (make_sizes.shown, make_sizes.most_grown, make_sizes.hits) == (3, 20, 2)


def test_typical_simulated_conversation_uses_the_default_selection_limits_of_the_settings() -> None:
    measured, usual = (
        measure_tools([], TokenCounter(), ToolsSettings(), bridge=BRIDGE.tools),
        typical_dialogue()[1],
    )
    for each in ("shown", "most_grown", "hits", "bridge"):
        assert getattr(measured, each) == getattr(usual, each), each


def test_generated_conversation_is_the_same_for_the_same_seed() -> None:
    asked = [DialogueMessage(10, ("t1",), ("t1", "t2"))] * 5
    assert generate_dialogue(asked) == generate_dialogue(asked) != generate_dialogue(asked, seed=8)


# Choosing


def test_placement_mode_tail_is_cheapest_for_models_whose_cache_reads_cost_a_tenth_of_input() -> None:
    cheap = [prices for prices in PRICES if prices.cached_read <= prices.input * 0.1]
    assert [prices.name for prices in cheap] == [
        "claude-sonnet-4-6",
        "claude-opus-4-8",
        "gpt-5.4",
        "gemini-2.5-pro",
        "deepseek-chat",
    ]
    assert {best_placement(prices) for prices in cheap} == {"tail"}


def test_placement_mode_replace_is_cheapest_for_a_model_without_a_prompt_cache() -> None:
    assert best_placement(NONE) == "replace"


def make_sizes(slim: dict[str, int], *, told: dict[str, int]) -> ToolSizes:
    return ToolSizes(full=slim, slim=slim, hit=told, brief=told)


def two_messages(*, system: int, pause: float = 0.0) -> Dialogue:
    """Return a conversation of two messages, each of which finds one tool."""
    return Dialogue(
        system, (DialogueTurn(30, ranked=("large",)), DialogueTurn(30, ranked=("also",), pause=pause))
    )


def test_placement_of_tools_at_the_tail_is_cheapest_if_a_long_system_prompt_is_cached() -> None:
    tools = make_sizes({"also": 1_000, "large": 1_000}, told={"also": 1_000, "large": 1_000})
    assert best_placement(PAID, two_messages(system=20_000), tools) == "tail"


def test_placement_mode_replace_is_cheapest_if_the_prompt_cache_expires_between_messages() -> None:
    tools = make_sizes({"also": 1_000, "large": 1_000}, told={"also": 1_000, "large": 1_000})
    late = two_messages(system=20_000, pause=PAID.lifetime + 1)
    assert best_placement(PAID, late, tools) == "replace"


def test_placement_mode_append_is_cheapest_if_a_large_tool_is_selected_in_two_turns() -> None:
    tools = make_sizes({"also": 100, "large": 10_000}, told={"also": 100, "large": 20_000})
    both = DialogueTurn(30, ranked=("also", "large"))  # replaced, `also` stands in front of `large`
    dialogue = Dialogue(100, (DialogueTurn(30, ranked=("large",)), both))
    assert best_placement(PAID, dialogue, tools) == "append"


def test_selecting_one_tool_is_cheapest_if_the_first_hit_is_always_the_needed_tool() -> None:
    dialogue, tools = typical_dialogue()
    assert best_limit(PAID, "tail", dialogue, tools) == 1


def test_selecting_eight_tools_is_cheapest_if_the_eighth_hit_is_the_needed_tool() -> None:
    turns = tuple(make_turn(TOOLS[at + 7], ranked=tuple(TOOLS[at : at + 8])) for at in (2, 12, 22, 32))
    assert best_limit(NONE, "replace", Dialogue(20_000, turns), SIZES) == 8


def test_cheapest_strategies_are_grouped_by_model_for_a_given_number_of_turns() -> None:
    def spending(*dollars: float) -> Bill:
        prices = Prices(name="unit", input=1e6, output=0.0)
        return compute_bill(
            [
                make_request(("x", 1), turn=turn)
                for turn, much in enumerate(dollars)
                for _ in range(int(much))
            ],
            prices,
        )

    bills = {
        "m": {"early": spending(1, 5), "late": spending(2, 1)},
        "n": {"early": spending(1, 1), "late": spending(3, 3)},
    }
    assert cheapest(bills, 1) == {"early": ["m", "n"]}
    assert cheapest(bills, 2) == {"late": ["m"], "early": ["n"]}


# Prices


@check_cases(
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
def test_cost_of_a_model_without_listed_prices_uses_the_prices_of_its_model_family(
    model: str, name: str, kind: str
) -> None:
    prices = prices_for(model)
    assert (prices.name, prices.kind) == (name, kind)


def test_model_prices_are_read_from_settings() -> None:
    (prices,) = read_prices(
        {"m": {"input": 3, "output": 15, "cached_read": 0.3, "cache_write": 3.75, "step": 0}}
    )
    assert prices == Prices(name="m", input=3, output=15, cached_read=0.3, cache_write=3.75, step=1)


@check_cases(
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
def test_invalid_model_prices_are_rejected(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"m: |expected a map"):
        read_prices(wrong)
