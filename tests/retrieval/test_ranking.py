"""Rank fusion, ranker features that do not depend on the grant, and the learned ranker."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.cases import check_cases
from tests.thorough import try_examples
from toolfold.selection.retrieval.ranking import (
    EXCLUDED_SCORE,
    RRF_K,
    Legs,
    Positions,
    Ranker,
    Scores,
    best_positions,
    count_probable,
    features,
    fuse_reciprocal_ranks,
)

some_scores = arrays.arrays(
    np.float32, st.integers(0, 80), elements=st.sampled_from([-1e9, -1.0, 0.0, 0.25, 0.5, 1.0, 7.0])
)


def positions(*numbers: int) -> Positions:
    return np.array(numbers, np.int64)


def floats(*numbers: float) -> Scores:
    return np.array(numbers, np.float32)


@given(some_scores, st.integers(0, 100))
@try_examples(200)
def test_best_positions_returns_the_first_positions_of_a_full_sort_by_score(
    scores: Scores, depth: int
) -> None:
    full = sorted(range(len(scores)), key=lambda position: (-float(scores[position]), position))
    assert best_positions(scores, depth).tolist() == full[:depth]


def test_combined_score_of_a_tool_is_the_sum_of_its_reciprocal_ranks_in_all_rankings() -> None:
    fused = fuse_reciprocal_ranks([positions(3, 1, 2), positions(1, 3, 0)], 5)
    assert fused.tolist() == pytest.approx(
        [1 / (RRF_K + 2), 1 / (RRF_K + 1) + 1 / RRF_K, 1 / (RRF_K + 2), 1 / RRF_K + 1 / (RRF_K + 1), 0]
    )


def test_empty_ranking_does_not_change_the_combined_reciprocal_rank_scores() -> None:
    alone = fuse_reciprocal_ranks([positions(2, 0)], 3)
    assert np.array_equal(alone, fuse_reciprocal_ranks([positions(2, 0), positions()], 3))
    assert fuse_reciprocal_ranks([], 3).tolist() == [0, 0, 0]


@given(st.permutations(range(12)))
@try_examples(50)
def test_combining_two_equal_rankings_gives_the_same_ranking(order: list[int]) -> None:
    fused = fuse_reciprocal_ranks([positions(*order), positions(*order)], 12)
    assert best_positions(fused, 12).tolist() == order


def test_ranker_features_have_one_finite_row_per_candidate_tool() -> None:
    legs = Legs(floats(0, 3, 1, 0), 6.0, {"dense": floats(0.1, 0.9, -0.2, 0.4)})
    rows = features(legs, positions(1, 2, 3), floats(1, 0, 0.5))
    assert rows.shape[0] == 3
    assert rows.dtype == np.float32
    assert np.isfinite(rows).all()


def test_ranker_features_of_granted_tools_do_not_depend_on_ungranted_tools() -> None:
    lexical, dense = floats(0, 3, 1, 0), floats(0.1, 0.9, -0.2, 0.4)
    alone = features(Legs(lexical, 6.0, {"dense": dense}), positions(1, 2, 3), floats(1, 0, 0))
    hidden = np.full(50, EXCLUDED_SCORE, np.float32)
    among = Legs(
        np.concatenate((lexical, np.zeros(50, np.float32))), 6.0, {"dense": np.concatenate((dense, hidden))}
    )
    assert features(among, positions(1, 2, 3), floats(1, 0, 0)) == pytest.approx(alone)


@check_cases("dense", [{}, {"dense": floats(0, 0, 0)}, {"dense": floats(-1, -1, -1)}])
def test_ranker_features_are_finite_if_all_candidates_have_equal_scores(dense: dict[str, Scores]) -> None:
    rows = features(Legs(floats(0, 0, 0), 0.0, dense), positions(0, 1, 2), floats(0, 0, 0))
    assert np.isfinite(rows).all()


def test_ranker_score_of_a_feature_row_depends_only_on_the_values_of_this_row() -> None:
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


@check_cases("name", ["encoder", "light"])
def test_shipped_ranker_prefers_a_tool_found_by_keywords_and_by_similarity(name: str) -> None:
    legs = Legs(floats(0, 9, 1, 0), 10.0, {"dense": floats(0.1, 0.9, 0.2, 0.1)})
    scores = Ranker.shipped(name)(features(legs, positions(0, 1, 2, 3), floats(0, 1, 0, 0)))
    assert int(np.argmax(scores)) == 1


def test_loading_the_shipped_ranker_of_an_unknown_embedding_model_raises_file_not_found() -> None:
    with pytest.raises(FileNotFoundError, match="ranker-of-nobody"):
        Ranker.shipped("of-nobody")


def test_count_probable_returns_the_number_of_tools_with_scores_far_above_the_other_scores() -> None:
    assert count_probable(floats(9, 0, 0, 0)) == 1
    assert count_probable(floats(0, 0, 0, 0)) == 4
    assert count_probable(floats(1, 5, 5, 0)) == 2
    assert count_probable(floats()) == 0
