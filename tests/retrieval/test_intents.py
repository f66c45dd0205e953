"""A message with several wishes: where it is cut, and which parts get a place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.retrieval.catalog import CATALOG, made
from tests.timing import growth
from toolfold.retrieval.embedding import Light
from toolfold.retrieval.indexing import Indexer
from toolfold.retrieval.intents import MOST_PARTS, parts_of, shared_out
from toolfold.retrieval.search import Searcher
from toolfold.retrieval.text import Words

WORDS = Words()


@pytest.mark.parametrize(
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
def test_a_message_is_cut_where_another_wish_may_begin(message: str, parts: list[str]) -> None:
    assert parts_of(message, WORDS) == parts


@given(st.text(max_size=400))
def test_parts_are_few_and_lie_in_the_message(message: str) -> None:
    parts = parts_of(message, WORDS)
    assert len(parts) <= MOST_PARTS
    said = " ".join(message.split())
    assert all(" ".join(part.split()) in said for part in parts)


def test_a_very_long_message_has_few_parts() -> None:
    assert (
        len(parts_of("open the front door and then close the kitchen window. " * 20_000, WORDS)) == MOST_PARTS
    )


@pytest.mark.parametrize("blanks", [" ", "\t", " \n", "\u3000", " ,"])
def test_many_blanks_are_cut_as_soon_as_few(blanks: str) -> None:
    def cut(count: int) -> None:
        many = blanks * (count // len(blanks))
        message = f"open the heavy front door slowly{many}now and knock at the kitchen table"
        for _ in range(20):
            assert len(parts_of(message, WORDS)) > 1

    assert growth(lambda: cut(180), lambda: cut(1_800)) < 30  # 100 where each tries all


def test_each_wish_comes_before_the_rest_and_nothing_is_lost() -> None:
    whole = np.array([4, 2, 7, 1, 9])
    wishes = [np.array([1, 3]), np.array([8]), np.zeros(0, np.int64)]
    assert shared_out(whole, wishes) == [4, 2, 1, 8, 7, 9]


def test_every_wish_of_a_message_is_found_among_many_tools_of_one() -> None:
    """Eight tools about one wish do not crowd out the other."""
    forecasts = [
        made(f"weather_{place}", f"The weather forecast of the coming days for {place}")
        for place in ("alps", "coast", "city", "island", "lake", "valley", "desert", "forest")
    ]
    light = Light()
    index = Indexer(light, None).index([*CATALOG, *forecasts])
    message = "what is the weather forecast for the coming days, and send a chat message to Ana"
    for mode in ("semantic", "hybrid"):
        names = [hit.name for hit in Searcher(light, None).search(index, message, mode=mode, limit=4)]
        assert "send_message" in names
        assert any("weather" in name for name in names)


def test_what_shares_a_conjunction_but_no_wish_keeps_its_order() -> None:
    light = Light()
    index = Indexer(light, None).index(CATALOG)
    searcher = Searcher(light, None)
    cut = searcher.search(index, "the weather in Oslo and Bergen please thank you", mode="semantic", limit=1)
    assert [hit.name for hit in cut] == ["weather_forecast"]
