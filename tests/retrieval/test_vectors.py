"""Quantized vectors, and exact and approximate similarity search."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cases import check_cases
from toolfold.selection.retrieval.ranking import EXCLUDED_SCORE, best_positions
from toolfold.selection.retrieval.vectors import Matrix, PackedVectors, Vectors

NONE_HIDDEN = np.zeros(0, np.int64)
WIDTH = 192
MANY = 4_000


@pytest.fixture(autouse=True)
def soon_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolfold.selection.retrieval.vectors.MAX_EXACT_NUMBERS", 1_000 * WIDTH)


def random_rows(size: int, seed: int = 3, width: int = WIDTH) -> Matrix:
    """Return unit rows with uneven variance per direction, like embeddings."""
    chance = np.random.default_rng(seed)
    rows = chance.normal(size=(size, width)).astype(np.float32) * (
        0.985 ** np.arange(width, dtype=np.float32)
    )
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


@pytest.fixture
def many() -> Vectors:
    return Vectors.of(PackedVectors.of(random_rows(MANY)))


def best(scores: Matrix, depth: int = 64) -> list[int]:
    return list(map(int, best_positions(scores, depth)))


def test_vectors_quantized_to_8_bits_differ_from_the_originals_by_less_than_0_002() -> None:
    rows = random_rows(50)
    assert np.abs(PackedVectors.of(rows).dequantize() - rows).max() < 0.002


def test_tool_with_a_zero_vector_is_treated_as_having_no_vector() -> None:
    rows = random_rows(3)
    rows[1] = 0
    assert PackedVectors.of(rows).has_vector.tolist() == [True, False, True]
    assert PackedVectors.empty(2, 4).has_vector.tolist() == [False, False]


def test_similarities_in_a_small_index_are_exact_dot_products() -> None:
    vectors = Vectors.of(PackedVectors.of(random_rows(100)))
    (query_vector,) = random_rows(1, seed=9)
    scores = vectors.similarities(query_vector, np.array([7]), np.zeros(100, np.float32))
    expected = vectors.packed.dequantize() @ query_vector
    expected[7] = EXCLUDED_SCORE
    assert scores == pytest.approx(expected, abs=1e-6)


def test_approximate_search_finds_the_most_similar_vectors_with_exact_scores(many: Vectors) -> None:
    assert many.sketch is not None
    exact = many.packed.dequantize()
    for query_vector in random_rows(20, seed=9):
        scores = many.similarities(query_vector, NONE_HIDDEN, np.zeros(MANY, np.float32))
        wanted = exact @ query_vector
        assert best(scores, 16) == best(wanted, 16)
        assert scores[best(scores)] == pytest.approx(wanted[best(scores)], abs=1e-5)


def test_approximate_search_computes_exact_similarities_for_the_best_keyword_matches(many: Vectors) -> None:
    (query_vector,) = random_rows(1, seed=11)
    beside = np.zeros(MANY, np.float32)
    beside[[5, 500, 3_000]] = 1
    scores = many.similarities(query_vector, NONE_HIDDEN, beside)
    wanted = many.packed.take_rows(np.array([5, 500, 3_000])).dequantize() @ query_vector
    assert scores[[5, 500, 3_000]] == pytest.approx(wanted, abs=1e-5)


def test_approximate_search_gives_excluded_tools_the_lowest_score(many: Vectors) -> None:
    (query_vector,) = random_rows(1, seed=12)
    hidden = np.arange(40, MANY)
    scores = many.similarities(query_vector, hidden, np.ones(MANY, np.float32))
    assert (scores[hidden] == EXCLUDED_SCORE).all()
    assert scores[:40] == pytest.approx(
        many.packed.take_rows(np.arange(40)).dequantize() @ query_vector, abs=1e-5
    )


def test_approximate_search_returns_similarity_one_for_all_identical_vectors() -> None:
    vectors = Vectors.of(PackedVectors.of(np.full((MANY, WIDTH), WIDTH**-0.5, np.float32)))
    scores = vectors.similarities(
        np.full(WIDTH, WIDTH**-0.5, np.float32), NONE_HIDDEN, np.zeros(MANY, np.float32)
    )
    assert scores == pytest.approx(1.0, abs=0.02)


@check_cases("size", [300, MANY])
def test_updated_vector_index_finds_the_same_best_matches_as_a_newly_built_index(size: int) -> None:
    rows = random_rows(size)
    before = Vectors.of(PackedVectors.of(rows[: size - 10]))
    positions = np.array([3, *range(size - 10, size)])
    after = before.with_rows(size, positions, PackedVectors.of(rows[positions] * -1))
    changed = rows.copy()
    changed[positions] *= -1
    (query_vector,) = random_rows(1, seed=13)
    nobody = np.zeros(size, np.float32)
    scores = after.similarities(query_vector, NONE_HIDDEN, nobody)
    assert best(scores, 8) == best(
        Vectors.of(PackedVectors.of(changed)).similarities(query_vector, NONE_HIDDEN, nobody), 8
    )
    assert before.size == size - 10, "the rows they came from stay as they were"
