"""Whether a message needs any tool: talk stays talk, wishes stay wishes, however they are put."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.retrieval.catalog import CATALOG
from toolfold.config.settings import DEFAULT_NEED_THRESHOLD
from toolfold.retrieval.lexical import Lexical
from toolfold.retrieval.need import Head, Need, nearness, traits
from toolfold.retrieval.ranking import NEVER, Legs, Scores
from toolfold.retrieval.text import Words

TALK = ("thanks!", "haha that's funny", "good morning", "ok, got it", "who are you?", "danke schön", "谢谢")
WISHES = (
    "remind me tonight at eight to call the dentist",
    "check what's running",
    "run the tests in ~/project and send me the log",
    "weather in Oslo tomorrow?",
    "send Ana a message that I am late",
    "thanks! now delete the old invoices from the shared folder",
)

need = functools.cache(Need.shipped)


@functools.cache
def lexical() -> Lexical:
    return Lexical.build(CATALOG, Words())


def legs(message: str, *dense: float) -> Legs:
    scores, best = lexical().scores(message)
    return Legs(scores, best, {"dense": np.array(dense, np.float32)} if dense else {})


@pytest.mark.parametrize("message", TALK)
def test_talk_needs_no_tool(message: str) -> None:
    assert need("text").probability(message, legs(message)) < DEFAULT_NEED_THRESHOLD


@pytest.mark.parametrize("message", WISHES)
def test_a_wish_needs_a_tool(message: str) -> None:
    assert need("text").probability(message, legs(message)) >= DEFAULT_NEED_THRESHOLD


@pytest.mark.parametrize("message", ["", "  \n\t", "\u3000"])
def test_a_message_without_words_needs_none(message: str) -> None:
    assert need("text").probability(message, legs(message)) == 0.0


def test_a_near_tool_speaks_for_a_need() -> None:
    message = "the third chord in A major"
    far, near = legs(message, *[0.2] * 8), legs(message, *[0.2] * 7, 0.8)
    judge = need("light")
    assert judge.probability(message, near) > judge.probability(message, far)


def test_what_is_not_granted_is_not_near() -> None:
    message = "what is in my inbox"
    hidden = legs(message, 0.3, 0.2, float(NEVER))
    alone = Legs(hidden.lexical, hidden.best_lexical, {"dense": np.array([0.3, 0.2], np.float32)})
    assert nearness(hidden, dense=True).tolist() == nearness(alone, dense=True).tolist()


def test_the_encoders_states_are_read_where_it_runs() -> None:
    message = "put the kettle on"
    near = legs(message, *[0.3] * 8)
    states: Scores = np.random.default_rng(3).normal(size=(6, 384)).astype(np.float32)
    assert need("encoder").probability(message, near, states) != need("encoder").probability(message, near)


@pytest.mark.parametrize("head", ["encoder", "light"])
def test_without_a_model_the_words_answer_alone(head: Head) -> None:
    message = "book a table for two on friday"
    assert need(head).probability(message, legs(message)) == need("text").probability(message, legs(message))


def test_only_the_beginning_of_a_long_message_is_read() -> None:
    message = "delete the old invoices " * 40
    assert np.array_equal(traits(message)[0], traits(message * 1000)[0])


@given(st.text(st.characters(), max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_text_has_a_probability(message: str) -> None:
    said = need("text").probability(message, legs("x"))
    assert 0.0 <= said <= 1.0
    places, shares = traits(message)
    assert len(places) == len(shares)
