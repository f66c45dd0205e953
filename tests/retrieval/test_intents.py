"""Messages with several requests: how they are split, and how the rankings are merged."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.retrieval.catalog import CATALOG, make_tool
from tests.timing import cost_ratio
from toolfold.selection.retrieval.embedding import LightEmbedder
from toolfold.selection.retrieval.indexing import Indexer
from toolfold.selection.retrieval.intents import MAX_PARTS, merge_rankings, split_intents
from toolfold.selection.retrieval.text import WordTokenizer
from toolfold.selection.retrieval.tool_search import Searcher

WORDS = WordTokenizer()


@check_cases(
    ("message", "parts"),
    [
        ("cancel my morning flight and tell Ana quickly", ["cancel my morning flight", "tell Ana quickly"]),
        (
            "Draw a red fox. Then check the weather in Oslo!",
            ["Draw a red fox.", "Then check the weather in Oslo!"],
        ),
        (
            "list the open issues, close the oldest stale one",
            ["list the open issues", "close the oldest stale one"],
        ),
        ("storniere den Flug und schreib der Anna", ["storniere den Flug", "schreib der Anna"]),
        ("查看明天的天气。给安娜发消息", ["查看明天的天气。", "给安娜发消息"]),
        (
            "cancel my morning  flight\t and \r\n tell   Ana quickly",
            ["cancel my morning flight", "tell Ana quickly"],
        ),
        (
            "cancel my morning flight \r\n\n \n tell Ana quickly",
            ["cancel my morning flight", "tell Ana quickly"],
        ),
        ("check the weather in Oslo", []),
        ("thanks! check the weather in Oslo", []),
        ("salt and pepper", []),
        ("", []),
    ],
)
def test_message_with_several_requests_is_split_into_one_part_per_request(
    message: str, parts: list[str]
) -> None:
    assert split_intents(message, WORDS) == parts


@given(st.text(max_size=400))
def test_any_message_is_split_into_a_limited_number_of_parts_that_occur_in_the_message(
    message: str,
) -> None:
    parts = split_intents(message, WORDS)
    assert len(parts) <= MAX_PARTS
    said = " ".join(message.split())
    assert all(" ".join(part.split()) in said for part in parts)


def test_very_long_message_is_split_into_a_limited_number_of_parts() -> None:
    assert (
        len(split_intents("open the front door and then close the kitchen window. " * 20_000, WORDS))
        == MAX_PARTS
    )


@check_cases("blanks", [" ", "\t", " \n", "\u3000", " ,"])
def test_time_to_split_a_message_does_not_grow_quadratically_with_the_number_of_spaces(blanks: str) -> None:
    def split_blanks(count: int) -> None:
        many = blanks * (count // len(blanks))
        message = f"open the heavy front door slowly{many}now and knock at the kitchen table"
        for _ in range(20):
            assert len(split_intents(message, WORDS)) > 1

    assert cost_ratio(lambda: split_blanks(180), lambda: split_blanks(1_800)) < 30  # 100 where each tries all


def test_merged_ranking_puts_the_best_hit_per_request_before_lower_hits_for_the_whole_message() -> None:
    whole = np.array([4, 2, 7, 1, 9])
    wishes = [np.array([1, 3]), np.array([8]), np.zeros(0, np.int64)]
    assert merge_rankings(whole, wishes) == [4, 2, 1, 8, 7, 9]


def test_message_with_two_requests_finds_tools_for_both_even_if_eight_tools_match_one_of_them() -> None:
    """Eight tools for one request do not displace the tool for the other."""
    forecasts = [
        make_tool(f"weather_{position}", f"The weather forecast of the coming days for {position}")
        for position in ("alps", "coast", "city", "island", "lake", "valley", "desert", "forest")
    ]
    light = LightEmbedder()
    index = Indexer(light, None).index([*CATALOG, *forecasts])
    message = "what is the weather forecast for the coming days, and send a chat message to Ana"
    for mode in ("semantic", "hybrid"):
        names = [hit.name for hit in Searcher(light, None).search(index, message, mode=mode, limit=4)]
        assert "send_message" in names
        assert any("weather" in name for name in names)


def test_splitting_a_single_request_at_a_conjunction_does_not_prevent_finding_its_tool() -> None:
    light = LightEmbedder()
    index = Indexer(light, None).index(CATALOG)
    searcher = Searcher(light, None)
    split_blanks = searcher.search(
        index, "the weather in Oslo and Bergen please thank you", mode="semantic", limit=1
    )
    assert [hit.name for hit in split_blanks] == ["weather_forecast"]
