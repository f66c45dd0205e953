"""Names, descriptions and messages meet in the same words, whatever their spelling and script."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.timing import in_time
from toolfold.retrieval.text import COMMON, LONGEST, LONGEST_WORD, SPELLED_OUT, Words, words

ANY_TEXT = st.text(st.characters(), max_size=60)


@pytest.fixture
def cutter() -> Words:
    return Words()


@pytest.mark.parametrize(
    "name",
    ["get_user_name", "get-user-name", "getUserName", "GetUserName", "get.user/name", "GET_USER_NAME"],
)
def test_every_way_to_write_a_compound_name_reads_alike(name: str) -> None:
    assert words(name) == ["get", "user", "name"]


def test_a_run_of_capitals_is_one_word_and_the_next_begins_with_its_last_capital() -> None:
    assert words("parseHTMLPage") == ["parse", "html", "page"]
    assert words("listAWSInstances") == ["list", "aws", "instances"]


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("Café", "cafe"),
        ("réunión", "reunion"),
        ("Zürich", "zurich"),
        ("ｆｉｌｅ", "file"),
        ("İstanbul", "istanbul"),
    ],
)
def test_accents_and_wide_letters_do_not_keep_words_apart(written: str, plain: str) -> None:
    assert words(written) == words(plain) == [plain]


def test_composed_and_decomposed_accents_are_the_same() -> None:
    assert words("e\u0301te\u0301") == words("\u00e9t\u00e9") == ["ete"]


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("天气预报", ["天气", "气预", "预报"]),
        ("日历", ["日历"]),
        ("雨", ["雨"]),
        ("カレンダー", ["カレ", "レン", "ンダ", "ダー"]),
        ("날씨를", ["날씨", "씨를"]),
    ],
)
def test_chinese_japanese_and_korean_become_overlapping_pairs(
    cutter: Words, text: str, pairs: list[str]
) -> None:
    assert cutter.tokens(text) == pairs


def test_voiced_kana_are_not_taken_for_accents(cutter: Words) -> None:
    assert cutter.tokens("がき") == ["がき"]
    assert cutter.tokens("がき") != cutter.tokens("かき")


def test_latin_words_written_into_a_script_without_spaces_are_found(cutter: Words) -> None:
    assert cutter.tokens("slackにメッセージを送る")[0] == "slack"
    assert "github" in cutter.tokens("请打开github页面")
    assert cutter.tokens("2024年") == ["2024", "年"]


def test_numbers_stay_whole(cutter: Words) -> None:
    assert cutter.tokens("call 112 in 2026, s3 and v2") == ["call", "112", "in", "2026", "s3", "and", "v2"]


def test_an_abbreviation_meets_the_word_it_stands_for(cutter: Words) -> None:
    assert SPELLED_OUT["repo"] == "repository"
    assert all(cutter.tokens(short) == cutter.tokens(long) for short, long in SPELLED_OUT.items())


def test_endings_do_not_keep_words_apart(cutter: Words) -> None:
    (stem,) = set(cutter.tokens("create creates created creating"))
    assert cutter.tokens("Creating") == [stem]


def test_shortened_words_leave_no_letters_behind() -> None:
    assert words("what's running, I’ll see; don't") == ["what", "running", "i", "see", "don"]


def test_polite_words_do_not_count_when_others_say_more(cutter: Words) -> None:
    assert list(cutter.said("could you please give me the weather").telling) == cutter.tokens("weather")


def test_a_message_is_told_with_the_words_it_was_written_in(cutter: Words) -> None:
    said = cutter.said("Please send the MEETINGS 天气")
    assert said.telling == {"send": "send", "meet": "meetings", "天气": "天气"}
    assert said.every == {"pleas", "send", "the", "meet", "天气"}


def test_a_message_asked_for_again_is_not_another_ones(cutter: Words) -> None:
    assert cutter.said("open a file") == cutter.said("open a file") != cutter.said("close a file")
    assert cutter.said("open a file").every == set(cutter.tokens("open a file"))


def test_a_message_of_nothing_but_polite_words_keeps_them(cutter: Words) -> None:
    assert list(cutter.said("what is this").telling) == cutter.tokens("what is this") != []
    assert {"what", "is", "this"} <= COMMON


@pytest.mark.parametrize("text", ["", " \t\n", "___", "?!…", "\x00\x1f", "\ud800", "😀"])
def test_text_without_a_word_has_no_tokens(cutter: Words, text: str) -> None:
    assert cutter.tokens(text) == []
    assert not cutter.said(text).every
    assert not cutter.said(text).telling


def test_control_characters_part_words() -> None:
    assert words("open\x00file\x1b[31mred\r\nnow") == ["open", "file", "31mred", "now"]


@pytest.mark.parametrize(
    "text", ["word " * 220_000, "a" * 1_100_000, "天" * 1_100_000, "é" * 1_100_000, "aB" * 550_000]
)
def test_a_megabyte_is_read_up_to_a_bound_and_soon(cutter: Words, text: str) -> None:
    tokens = in_time(lambda: cutter.tokens(text))
    assert 0 < len(tokens) <= LONGEST
    assert max(map(len, tokens)) <= LONGEST_WORD


def test_threads_share_one_cutter_and_agree(cutter: Words) -> None:
    texts = [f"creating{n} meetings{n % 7} running searches 天气预报{n}" for n in range(300)]
    expected = [Words().tokens(text) for text in texts[:20]]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: [cutter.tokens(text) for text in texts], range(8)))
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][:20] == expected


@given(ANY_TEXT)
@settings(max_examples=150, deadline=None)
def test_any_text_is_cut_into_words_without_spaces_the_same_way_twice(text: str) -> None:
    cutter = Words()
    tokens = cutter.tokens(text)
    assert tokens == cutter.tokens(text) == Words().tokens(text)
    assert all(token and not any(char.isspace() for char in token) for token in tokens)
    assert set(cutter.said(text).telling) <= cutter.said(text).every == set(tokens)
