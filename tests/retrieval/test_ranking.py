"""One order out of several: ranks fused, features that mean the same under any grant, a small network."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from toolfold.retrieval.ranking import (
    NEVER,
    RRF_K,
    Legs,
    Places,
    Ranker,
    Scores,
    best_places,
    features,
    reciprocal_ranks,
)

some_scores = arrays.arrays(
    np.float32, st.integers(0, 80), elements=st.sampled_from([-1e9, -1.0, 0.0, 0.25, 0.5, 1.0, 7.0])
)


def places(*numbers: int) -> Places:
    return np.array(numbers, np.int64)


def floats(*numbers: float) -> Scores:
    return np.array(numbers, np.float32)


@given(some_scores, st.integers(0, 100))
@settings(max_examples=200, deadline=None)
def test_the_best_places_are_those_of_a_full_sort(scores: Scores, depth: int) -> None:
    full = sorted(range(len(scores)), key=lambda place: (-float(scores[place]), place))
    assert best_places(scores, depth).tolist() == full[:depth]


def test_a_tool_high_in_any_leg_is_high_in_the_result() -> None:
    fused = reciprocal_ranks([places(3, 1, 2), places(1, 3, 0)], 5)
    assert fused.tolist() == pytest.approx(
        [1 / (RRF_K + 2), 1 / (RRF_K + 1) + 1 / RRF_K, 1 / (RRF_K + 2), 1 / RRF_K + 1 / (RRF_K + 1), 0]
    )


def test_a_leg_that_says_nothing_changes_nothing() -> None:
    alone = reciprocal_ranks([places(2, 0)], 3)
    assert np.array_equal(alone, reciprocal_ranks([places(2, 0), places()], 3))
    assert reciprocal_ranks([], 3).tolist() == [0, 0, 0]


@given(st.permutations(range(12)))
@settings(max_examples=50, deadline=None)
def test_legs_that_agree_are_believed(order: list[int]) -> None:
    fused = reciprocal_ranks([places(*order), places(*order)], 12)
    assert best_places(fused, 12).tolist() == order


def test_every_candidate_has_a_row_of_numbers() -> None:
    legs = Legs(floats(0, 3, 1, 0), 6.0, {"dense": floats(0.1, 0.9, -0.2, 0.4)})
    rows = features(legs, places(1, 2, 3), floats(1, 0, 0.5))
    assert rows.shape[0] == 3
    assert rows.dtype == np.float32
    assert np.isfinite(rows).all()


def test_what_is_not_granted_does_not_change_the_features_of_what_is() -> None:
    lexical, dense = floats(0, 3, 1, 0), floats(0.1, 0.9, -0.2, 0.4)
    alone = features(Legs(lexical, 6.0, {"dense": dense}), places(1, 2, 3), floats(1, 0, 0))
    hidden = np.full(50, NEVER, np.float32)
    among = Legs(
        np.concatenate((lexical, np.zeros(50, np.float32))), 6.0, {"dense": np.concatenate((dense, hidden))}
    )
    assert features(among, places(1, 2, 3), floats(1, 0, 0)) == pytest.approx(alone)


@pytest.mark.parametrize("dense", [{}, {"dense": floats(0, 0, 0)}, {"dense": floats(-1, -1, -1)}])
def test_legs_without_an_opinion_give_finite_features(dense: dict[str, Scores]) -> None:
    rows = features(Legs(floats(0, 0, 0), 0.0, dense), places(0, 1, 2), floats(0, 0, 0))
    assert np.isfinite(rows).all()


def test_a_ranker_scores_row_by_row() -> None:
    ranker = Ranker(
        {
            "mean": floats(1, 0),
            "spread": floats(2, 1),
            "inner": np.array([[1.0], [0.0]], np.float32),
            "inner_bias": floats(0),
            "outer": floats(10),
            "direct": floats(0, 1),
        }
    )
    rows = np.array([[3, 0], [1, 5], [-9, 0]], np.float32)
    assert ranker(rows).tolist() == [10.0, 5.0, 0.0]
    assert ranker(rows[:0]).shape == (0,)


@pytest.mark.parametrize("name", ["encoder", "light"])
def test_a_shipped_ranker_believes_a_candidate_that_both_legs_do(name: str) -> None:
    legs = Legs(floats(0, 9, 1, 0), 10.0, {"dense": floats(0.1, 0.9, 0.2, 0.1)})
    scores = Ranker.shipped(name)(features(legs, places(0, 1, 2, 3), floats(0, 1, 0, 0)))
    assert int(np.argmax(scores)) == 1


def test_a_ranker_that_was_never_made_is_not_found() -> None:
    with pytest.raises(FileNotFoundError, match="ranker-of-nobody"):
        Ranker.shipped("of-nobody")
