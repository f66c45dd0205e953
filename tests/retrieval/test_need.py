"""Probability that a message needs a tool: low for small talk, high for requests."""

from __future__ import annotations

import functools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.retrieval.catalog import CATALOG
from tests.thorough import try_examples
from toolfold.config.settings import DEFAULT_NEED_THRESHOLD
from toolfold.selection.retrieval.lexical import KeywordIndex
from toolfold.selection.retrieval.need import Head, NeedClassifier, catalog_similarity, hashed_features
from toolfold.selection.retrieval.ranking import EXCLUDED_SCORE, Legs, Scores
from toolfold.selection.retrieval.text import WordTokenizer

SMALL_TALK = (
    "thanks!",
    "haha that's funny",
    "good morning",
    "ok, got it",
    "who are you?",
    "danke schön",
    "谢谢",
)
REQUESTS = (
    "remind me tonight at eight to call the dentist",
    "check what's running",
    "run the tests in ~/project and send me the log",
    "weather in Oslo tomorrow?",
    "send Ana a message that I am late",
    "thanks! now run the shell command that deletes old logs",
)

need = functools.cache(NeedClassifier.shipped)


@functools.cache
def lexical() -> KeywordIndex:
    return KeywordIndex.build(CATALOG, WordTokenizer())


def legs(message: str, *dense: float) -> Legs:
    scores, best = lexical().scores(message)
    return Legs(scores, best, {"dense": np.array(dense, np.float32)} if dense else {})


@check_cases("message", SMALL_TALK)
def test_small_talk_is_classified_as_needing_no_tool(message: str) -> None:
    assert need("text").probability(message, legs(message)) < DEFAULT_NEED_THRESHOLD


@check_cases("message", REQUESTS)
def test_request_is_classified_as_needing_a_tool(message: str) -> None:
    assert need("text").probability(message, legs(message)) >= DEFAULT_NEED_THRESHOLD


@check_cases("message", ["", "  \n\t", "\u3000"])
def test_message_without_words_is_classified_as_needing_no_tool(message: str) -> None:
    assert need("text").probability(message, legs(message)) == 0.0


def test_probability_that_a_tool_is_needed_is_higher_if_a_tool_is_similar_to_the_message() -> None:
    message = "the third chord in A major"
    far, near = legs(message, *[0.2] * 8), legs(message, *[0.2] * 7, 0.8)
    need_classifier = need("light")
    assert need_classifier.probability(message, near) > need_classifier.probability(message, far)


def test_ungranted_tools_do_not_affect_the_probability_that_a_tool_is_needed() -> None:
    message = "what is in my inbox"
    hidden = legs(message, 0.3, 0.2, float(EXCLUDED_SCORE))
    alone = Legs(hidden.lexical, hidden.best_lexical, {"dense": np.array([0.3, 0.2], np.float32)})
    assert catalog_similarity(hidden, dense=True).tolist() == catalog_similarity(alone, dense=True).tolist()


def test_probability_that_a_tool_is_needed_depends_on_the_hidden_states_of_the_encoder() -> None:
    message = "put the kettle on"
    near = legs(message, *[0.3] * 8)
    states: Scores = np.random.default_rng(3).normal(size=(6, 384)).astype(np.float32)
    assert need("encoder").probability(message, near, states) != need("encoder").probability(message, near)


@check_cases("head", ["encoder", "light"])
def test_probability_that_a_tool_is_needed_depends_only_on_the_text_if_there_are_no_embeddings(
    head: Head,
) -> None:
    message = "book a table for two on friday"
    assert need(head).probability(message, legs(message)) == need("text").probability(message, legs(message))


def test_features_of_the_tool_need_classifier_ignore_text_beyond_a_length_limit() -> None:
    message = "delete the old invoices " * 40
    assert np.array_equal(hashed_features(message)[0], hashed_features(message * 1000)[0])


@given(st.text(st.characters(), max_size=200))
@try_examples(100)
def test_any_text_gives_a_valid_probability_of_needing_a_tool(message: str) -> None:
    said = need("text").probability(message, legs("x"))
    assert 0.0 <= said <= 1.0
    positions, shares = hashed_features(message)
    assert len(positions) == len(shares)
