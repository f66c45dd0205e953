"""Subword tokenizers compared with the reference library."""

from __future__ import annotations

import gzip
import json
import random
import unicodedata
from importlib.resources import files

import pytest
from tokenizers import Tokenizer

from tests.cases import check_cases
from toolfold.selection.retrieval import subwords
from toolfold.selection.retrieval.subwords import MAX_WORD_CHARS, Unigram, WordPiece, split_words
from toolfold.tools.catalog import sample_catalog

ALL = 1_000_000

TEXTS = [
    "",
    " \t\r\n ",
    "Book a table for two at 19:30, please!",
    "getUserByID get_user-by.id GET /v1/users/{id}?page=2&size=50",
    "Où est la bibliothèque? Ça coûte 3,50 €… naïve façade Ångström Żółć",
    "Straße STRASSE ẞ ß",
    "ΟΔΟΣ ΣΑΣ όδος Ἀθῆναι",
    "İstanbul ısı I i",
    "Привет, мир! Ещё раз.",
    "日本語のテキスト、漢字とカナ。東京２０２５年",
    "帮我订一张明天去上海的火车票",
    "내일 오전 9시에 회의 잡아줘",
    "مرحبا بالعالم ١٢٣",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "שלום עולם",
    "👩‍👩‍👧‍👦 🇩🇪 👍🏽 ☕",
    "ﬁne ﬂow Ⅷ ½ ㎏ ｆｕｌｌ　ｗｉｄｔｈ",
    "e\u0301 = é, A\u030a = Å, \u0301alone",
    "zero\u200bwidth soft\u00adhyphen no\u00a0break line\u2028break \ufeffmark",
    "nul\x00bell\x07escape\x1b[31m del\x7f nel\x85 \ufffd",
    "3.14159 1_000_000 0xFF 2025-08-04T10:00:00Z +49 (0)30 123",
    "a" * MAX_WORD_CHARS,
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "!!!???...,,,;;;''\"\"``~~^^||\\\\//",
    "“quoted” ‘single’ «guillemets» – — ・",
]


@pytest.fixture(scope="module")
def bert() -> Tokenizer:
    return Tokenizer.from_str(_shipped("tokenizer.json").decode())


@pytest.fixture(scope="module")
def word_piece() -> WordPiece:
    numbers: dict[str, int] = json.loads(_shipped("tokenizer.json"))["model"]["vocab"]
    return WordPiece(sorted(numbers, key=numbers.__getitem__))


@pytest.fixture(scope="module")
def likely() -> Tokenizer:
    return Tokenizer.from_str(gzip.decompress(_shipped("static.tokenizer.json.gz")).decode())


@pytest.fixture(scope="module")
def unigram() -> Unigram:
    known = json.loads(gzip.decompress(_shipped("static.tokenizer.json.gz")))["model"]["vocab"][1:]
    return Unigram(dict(known), {piece: number for number, (piece, _) in enumerate(known, 1)})


def _shipped(name: str) -> bytes:
    return files("toolfold").joinpath("selection/retrieval/weights", name).read_bytes()


def agreed(texts: list[str], oracle: Tokenizer, ours: WordPiece | Unigram, *, dropped: int = -1) -> None:
    """Assert that each text is tokenized as by the library, except for the id of the unknown token."""
    for text, theirs in zip(texts, oracle.encode_batch(texts), strict=True):
        assert ours.ids(text, ALL) == [number for number in theirs.ids if number != dropped], repr(text)


@pytest.fixture(scope="module")
def fuzzed() -> list[str]:
    """Return texts of characters whose properties have not changed since Unicode 3.2."""
    before = unicodedata.ucd_3_2_0
    old = [chr(code) for code in range(0x2FA20) if before.category(chr(code)) not in ("Cn", "Cs", "Co")]
    steady = [char for char in old if before.category(char) == unicodedata.category(char)]
    pools = [
        steady,
        [char for char in steady if ord(char) < 0x3000],
        [char for char in steady if 0x370 <= ord(char) < 0x600],
        [char for char in steady if ord(char) < 0x250],
        [chr(code) for code in range(128)],
    ]
    chance = random.Random(20250804)
    texts = []
    for _ in range(1_500):
        pool = chance.choice(pools)
        size = chance.randrange(40)
        texts.append("".join(chance.choice(pool if chance.random() < 0.7 else " a1-S") for _ in range(size)))
    return texts


@pytest.fixture(scope="module")
def real() -> list[str]:
    """Return realistic texts: messages and descriptions."""
    queries = files("toolfold").joinpath("tools/sample/queries.jsonl").read_text("utf-8").splitlines()
    messages = [json.loads(line)["query"] for line in queries]
    return messages + [f"{tool.name} {tool.description}" for tool in sample_catalog()]


@check_cases("text", TEXTS)
def test_wordpiece_tokens_match_the_reference_library(
    bert: Tokenizer, word_piece: WordPiece, text: str
) -> None:
    agreed([text], bert, word_piece)


def test_wordpiece_tokens_of_real_texts_match_the_reference_library(
    bert: Tokenizer, word_piece: WordPiece, real: list[str]
) -> None:
    agreed(real, bert, word_piece)


def test_wordpiece_tokens_of_any_text_match_the_reference_library(
    bert: Tokenizer, word_piece: WordPiece, fuzzed: list[str]
) -> None:
    agreed(fuzzed, bert, word_piece)


@check_cases("text", TEXTS)
def test_unigram_tokens_match_the_reference_library(likely: Tokenizer, unigram: Unigram, text: str) -> None:
    agreed([text], likely, unigram, dropped=0)


def test_unigram_tokens_of_real_texts_match_the_reference_library(
    likely: Tokenizer, unigram: Unigram, real: list[str]
) -> None:
    agreed(real, likely, unigram, dropped=0)


def test_unigram_tokens_of_any_text_match_the_reference_library(
    likely: Tokenizer, unigram: Unigram, fuzzed: list[str]
) -> None:
    agreed(fuzzed, likely, unigram, dropped=0)


def test_overlong_word_is_an_unknown_token_in_wordpiece(bert: Tokenizer, word_piece: WordPiece) -> None:
    agreed(["x" * (MAX_WORD_CHARS + 1), f"a {'é' * 5_000} b"], bert, word_piece)


def test_overlong_word_is_truncated_in_unigram(unigram: Unigram) -> None:
    assert unigram.ids("ab" * MAX_WORD_CHARS, ALL) == unigram.ids("ab" * (MAX_WORD_CHARS // 2), ALL)


@check_cases("limit", [2, 3, 5, 64])
def test_wordpiece_token_limit_includes_start_and_end_tokens_as_in_the_reference_library(
    bert: Tokenizer, word_piece: WordPiece, limit: int
) -> None:
    text = "invoices of unbelievable customers, 1234 of them; " * 10
    bert.enable_truncation(limit)
    try:
        assert word_piece.ids(text, limit) == bert.encode(text).ids
    finally:
        bert.no_truncation()


@check_cases("limit", [1, 3, 64])
def test_unigram_tokenizer_returns_at_most_the_given_number_of_tokens(unigram: Unigram, limit: int) -> None:
    text = "invoices of unbelievable customers, 1234 of them; " * 10
    assert unigram.ids(text, limit) == unigram.ids(text, ALL)[:limit]


def test_special_token_written_in_a_text_is_tokenized_as_ordinary_text(word_piece: WordPiece) -> None:
    first, *between, last = word_piece.ids("[CLS] hello [SEP] [MASK]", ALL)
    assert {first, last}.isdisjoint(between)


@check_cases("text", ["\ud800", "a\udfffb", "\U0010ffff", "\ue000"])
def test_text_with_surrogates_or_private_use_characters_is_tokenized_without_an_error(
    word_piece: WordPiece, unigram: Unigram, text: str
) -> None:
    assert len(word_piece.ids(text, ALL)) >= 2
    assert isinstance(unigram.ids(text, ALL), list)


def test_subword_tokens_of_a_word_do_not_depend_on_upper_or_lower_case(
    word_piece: WordPiece, unigram: Unigram
) -> None:
    for ours in (word_piece, unigram):
        assert ours.ids("reticulating splines", ALL) == ours.ids("Reticulating  SPLINES", ALL)


def test_cache_of_tokenized_words_stays_within_its_limit_and_tokens_stay_correct(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subwords, "MAX_CACHED_WORDS", 2)
    ours = WordPiece(["[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "##a"])
    assert ours.ids("a b c aa a b c aa", ALL) == [1, 3, 4, 5, 3, 6, 3, 4, 5, 3, 6, 2]
    assert len(ours._cache) == 2


def test_wordpiece_makes_a_word_with_an_unknown_suffix_one_unknown_token() -> None:
    ours = WordPiece(["[UNK]", "[CLS]", "[SEP]", "ab", "##c"])
    assert ours.ids("abc abd", ALL) == [1, 3, 4, 0, 2]


def test_unigram_tokenizer_chooses_the_most_likely_split_and_not_the_longest_first_piece() -> None:
    scores = {"ab": -1.0, "abc": -9.0, "c": -1.0, "cd": -1.0, "d": -9.0}
    ours = Unigram(scores, {"ab": 1, "abc": 2, "c": 3, "cd": 4, "d": 5})
    assert ours.ids("abcd", ALL) == [1, 4]


def test_unigram_tokenizer_prefers_an_unlikely_subword_to_an_unknown_character() -> None:
    assert Unigram({"ab": -12.0, "a": 1.0}, {"ab": 1, "a": 2}).ids("ab", ALL) == [1]


def test_unigram_tokenizer_skips_characters_that_are_not_in_its_vocabulary() -> None:
    ours = Unigram({"ab": -1.0, "c": -1.0}, {"ab": 1, "c": 2})
    assert ours.ids("ab?c éab", ALL) == [1, 2, 1]


def test_final_capital_sigma_is_lowercased_to_a_non_final_sigma() -> None:
    ours = Unigram({"σ": -1.0, "ς": -1.0, "α": -1.0}, {"σ": 1, "ς": 2, "α": 3})
    assert ours.ids("ΣΑΣ σας", ALL) == [1, 3, 1, 1, 3, 2]


def test_text_is_split_into_words_at_white_space_and_punctuation() -> None:
    assert split_words("don't stop") == ["don", "'", "t", "stop"]
    assert split_words("«Où?»\u00a0là") == ["«", "Où", "?", "»", "là"]
    assert split_words("") == []
