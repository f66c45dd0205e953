"""Names, descriptions and messages give the same terms in any spelling and script."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.thorough import try_examples
from tests.timing import run_with_limit
from toolfold.selection.retrieval.text import (
    ABBREVIATIONS,
    COMMON_WORDS,
    MAX_TEXT_CHARS,
    MAX_WORD_CHARS,
    WordTokenizer,
    words,
)

ANY_TEXT = st.text(st.characters(), max_size=60)


@pytest.fixture
def tokenizer() -> WordTokenizer:
    return WordTokenizer()


@check_cases(
    "name",
    ["get_user_name", "get-user-name", "getUserName", "GetUserName", "get.user/name", "GET_USER_NAME"],
)
def test_compound_words_in_camel_case_or_snake_case_or_kebab_case_give_the_same_search_terms(
    name: str,
) -> None:
    assert words(name) == ["get", "user", "name"]


def test_word_with_several_capitals_is_split_before_the_last_capital() -> None:
    assert words("parseHTMLPage") == ["parse", "html", "page"]
    assert words("listAWSInstances") == ["list", "aws", "instances"]


@check_cases(
    ("written", "plain"),
    [
        ("Café", "cafe"),
        ("réunión", "reunion"),
        ("Zürich", "zurich"),
        ("ｆｉｌｅ", "file"),
        ("İstanbul", "istanbul"),
    ],
)
def test_words_with_accents_or_full_width_letters_give_the_same_search_terms_as_ascii_words(
    written: str, plain: str
) -> None:
    assert words(written) == words(plain) == [plain]


def test_composed_and_decomposed_accents_give_equal_search_terms() -> None:
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
def test_search_terms_of_chinese_or_japanese_or_korean_text_are_overlapping_character_pairs(
    tokenizer: WordTokenizer, text: str, pairs: list[str]
) -> None:
    assert tokenizer.tokens(text) == pairs


def test_japanese_words_that_differ_only_in_voicing_marks_give_different_search_terms(
    tokenizer: WordTokenizer,
) -> None:
    assert tokenizer.tokens("がき") == ["がき"]
    assert tokenizer.tokens("がき") != tokenizer.tokens("かき")


def test_latin_words_inside_chinese_or_japanese_text_are_found(tokenizer: WordTokenizer) -> None:
    assert tokenizer.tokens("slackにメッセージを送る")[0] == "slack"
    assert "github" in tokenizer.tokens("请打开github页面")
    assert tokenizer.tokens("2024年") == ["2024", "年"]


def test_numbers_and_words_with_digits_are_single_search_terms(tokenizer: WordTokenizer) -> None:
    assert tokenizer.tokens("call 112 in 2026, s3 and v2") == ["call", "112", "in", "2026", "s3", "and", "v2"]


def test_abbreviation_and_its_long_form_give_the_same_search_term(tokenizer: WordTokenizer) -> None:
    assert ABBREVIATIONS["repo"] == "repository"
    assert all(tokenizer.tokens(short) == tokenizer.tokens(long) for short, long in ABBREVIATIONS.items())


def test_inflected_forms_of_a_word_give_the_same_search_term(tokenizer: WordTokenizer) -> None:
    (stem,) = set(tokenizer.tokens("create creates created creating"))
    assert tokenizer.tokens("Creating") == [stem]


def test_endings_after_an_apostrophe_are_not_search_terms() -> None:
    assert words("what's running, I’ll see; don't") == ["what", "running", "i", "see", "don"]


def test_common_words_are_not_search_terms_if_the_message_has_other_words(tokenizer: WordTokenizer) -> None:
    assert list(
        tokenizer.message_terms("could you please give me the weather").content_terms
    ) == tokenizer.tokens("weather")


def test_search_terms_of_a_message_are_mapped_to_the_original_words(
    tokenizer: WordTokenizer,
) -> None:
    message_terms = tokenizer.message_terms("Please send the MEETINGS 天气")
    assert message_terms.content_terms == {"send": "send", "meet": "meetings", "天气": "天气"}
    assert message_terms.all_terms == {"pleas", "send", "the", "meet", "天气"}


def test_search_terms_of_equal_messages_are_equal_and_of_different_messages_differ(
    tokenizer: WordTokenizer,
) -> None:
    assert (
        tokenizer.message_terms("open a file")
        == tokenizer.message_terms("open a file")
        != tokenizer.message_terms("close a file")
    )
    assert tokenizer.message_terms("open a file").all_terms == set(tokenizer.tokens("open a file"))


def test_common_words_are_search_terms_if_the_message_has_no_other_words(tokenizer: WordTokenizer) -> None:
    assert (
        list(tokenizer.message_terms("what is this").content_terms) == tokenizer.tokens("what is this") != []
    )
    assert {"what", "is", "this"} <= COMMON_WORDS


@pytest.mark.parametrize("text", ["", " \t\n", "___", "?!…", "\x00\x1f", "\ud800", "😀"])
def test_text_without_words_gives_no_search_terms(tokenizer: WordTokenizer, text: str) -> None:
    assert tokenizer.tokens(text) == []
    assert not tokenizer.message_terms(text).all_terms
    assert not tokenizer.message_terms(text).content_terms


def test_control_characters_in_a_text_separate_its_search_terms() -> None:
    assert words("open\x00file\x1b[31mred\r\nnow") == ["open", "file", "31mred", "now"]


@pytest.mark.parametrize(
    "text", ["word " * 220_000, "a" * 1_100_000, "天" * 1_100_000, "é" * 1_100_000, "aB" * 550_000]
)
def test_megabyte_of_text_is_truncated_quickly_before_tokenizing(tokenizer: WordTokenizer, text: str) -> None:
    tokens = run_with_limit(lambda: tokenizer.tokens(text))
    assert 0 < len(tokens) <= MAX_TEXT_CHARS
    assert max(map(len, tokens)) <= MAX_WORD_CHARS


def test_concurrent_threads_can_share_one_word_tokenizer(tokenizer: WordTokenizer) -> None:
    texts = [f"creating{n} meetings{n % 7} running searches 天气预报{n}" for n in range(300)]
    expected = [WordTokenizer().tokens(text) for text in texts[:20]]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: [tokenizer.tokens(text) for text in texts], range(8)))
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][:20] == expected


@given(ANY_TEXT)
@try_examples(150)
def test_search_terms_of_any_text_are_deterministic(text: str) -> None:
    tokenizer = WordTokenizer()
    tokens = tokenizer.tokens(text)
    assert tokens == tokenizer.tokens(text) == WordTokenizer().tokens(text)
    assert all(token and not any(char.isspace() for char in token) for token in tokens)
    assert (
        set(tokenizer.message_terms(text).content_terms)
        <= tokenizer.message_terms(text).all_terms
        == set(tokens)
    )
