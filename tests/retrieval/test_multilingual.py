"""Messages in other languages: detected, and embedded by the model that knows the language."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.retrieval.catalog import CATALOG
from tests.thorough import try_examples
from toolfold.selection.retrieval.embedding import Encoder, LightEmbedder
from toolfold.selection.retrieval.indexing import Indexer
from toolfold.selection.retrieval.language_detection import FOREIGN_THRESHOLD, foreign_probability, is_latin
from toolfold.selection.retrieval.multilingual import LIGHT_SCALE, MultilingualEmbedder
from toolfold.selection.retrieval.tool_search import Searcher

ENCODER, LIGHT = Encoder(), LightEmbedder()
MODEL = MultilingualEmbedder(ENCODER, LIGHT)
ENGLISH = [
    "what's the weather like tomorrow",
    "list buckets",
    "hey could you please remind me tonight",
    "restart the nginx deployment in kube-system",
]
FOREIGN_MESSAGES = [
    "wie wird das Wetter morgen",
    "qué tiempo va a hacer mañana",
    "quel temps fera-t-il demain",
    "yarın hava nasıl olacak",
    "明天天气怎么样",
    "明日の天気は？",
    "내일 날씨 어때?",
    "какая завтра погода",
    "कल मौसम कैसा रहेगा",
    "ما هو الطقس غدا",
]


@check_cases("message", ENGLISH)
def test_english_messages_are_recognised_as_english(message: str) -> None:
    assert foreign_probability(message, ENCODER.pieces) < FOREIGN_THRESHOLD


@check_cases("message", FOREIGN_MESSAGES)
def test_messages_in_languages_other_than_english_are_recognised_as_not_english(message: str) -> None:
    assert foreign_probability(message, ENCODER.pieces) >= FOREIGN_THRESHOLD


def test_is_latin_is_true_for_accented_latin_text_and_digits_and_false_for_cyrillic() -> None:
    assert is_latin("größer, plus élevé")
    assert not is_latin("какая завтра погода в Oslo")
    assert is_latin("1234 !?")


@given(st.text(max_size=80))
@try_examples(60)
def test_probability_that_any_message_is_not_english_is_between_zero_and_one(text: str) -> None:
    assert 0 <= foreign_probability(text, ENCODER.pieces) <= 1


def test_english_message_is_embedded_by_the_english_model_only() -> None:
    for message in ENGLISH:
        (vector,) = MODEL.embed([message], "query")
        (encoded,) = ENCODER.embed([message], "query")
        np.testing.assert_array_equal(vector[:384], encoded)
        assert not vector[384:].any()


def test_tool_vector_concatenates_the_vectors_of_the_english_and_the_multilingual_model() -> None:
    (vector,) = MODEL.embed(["Read a file"], "tool")
    np.testing.assert_allclose(vector[384:], LIGHT.embed(["Read a file"], "tool")[0] * LIGHT_SCALE, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vector[:384]), 1, rtol=1e-4)


def test_multilingual_embedding_model_returns_no_vectors_for_an_empty_list_of_texts() -> None:
    assert MODEL.embed([], "tool").shape == (0, 384 + LIGHT.width)
    assert MODEL.embed([], "query").shape == (0, 384 + LIGHT.width)


@check_cases("message", [m for m in FOREIGN_MESSAGES if not m.startswith("कल")])
def test_message_in_another_language_finds_a_tool_described_in_english(message: str) -> None:
    index = Indexer(MODEL, None).index(CATALOG)
    names = [hit.name for hit in Searcher(MODEL, None).search(index, message, mode="semantic", limit=2)]
    assert "weather_forecast" in names
