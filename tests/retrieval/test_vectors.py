"""Vectors are kept small and compared exactly where it counts, however many there are."""

from __future__ import annotations

import numpy as np
import pytest

from toolfold.retrieval.ranking import NEVER, best_places
from toolfold.retrieval.vectors import Matrix, Packed, Vectors

NOBODY = np.zeros(0, np.int64)
WIDTH = 192
MANY = 4_000


@pytest.fixture(autouse=True)
def soon_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolfold.retrieval.vectors.MOST_WHOLE", 1_000 * WIDTH)


def drawn(size: int, seed: int = 3, width: int = WIDTH) -> Matrix:
    """Unit rows that differ much in some directions and little in others, as embeddings do."""
    chance = np.random.default_rng(seed)
    rows = chance.normal(size=(size, width)).astype(np.float32) * (
        0.985 ** np.arange(width, dtype=np.float32)
    )
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


@pytest.fixture
def many() -> Vectors:
    return Vectors.of(Packed.of(drawn(MANY)))


def best(scores: Matrix, depth: int = 64) -> list[int]:
    return list(map(int, best_places(scores, depth)))


def test_a_byte_a_number_is_near_enough() -> None:
    rows = drawn(50)
    assert np.abs(Packed.of(rows).restored() - rows).max() < 0.002


def test_a_vector_without_direction_is_told_from_others() -> None:
    rows = drawn(3)
    rows[1] = 0
    assert Packed.of(rows).present.tolist() == [True, False, True]
    assert Packed.empty(2, 4).present.tolist() == [False, False]


def test_few_vectors_are_compared_exactly() -> None:
    vectors = Vectors.of(Packed.of(drawn(100)))
    (asked,) = drawn(1, seed=9)
    scores = vectors.near(asked, np.array([7]), np.zeros(100, np.float32))
    expected = vectors.packed.restored() @ asked
    expected[7] = NEVER
    assert scores == pytest.approx(expected, abs=1e-6)


def test_of_many_vectors_the_nearest_are_found_and_told_exactly(many: Vectors) -> None:
    assert many.sketch is not None
    exact = many.packed.restored()
    for asked in drawn(20, seed=9):
        scores = many.near(asked, NOBODY, np.zeros(MANY, np.float32))
        wanted = exact @ asked
        assert best(scores, 16) == best(wanted, 16)
        assert scores[best(scores)] == pytest.approx(wanted[best(scores)], abs=1e-5)


def test_of_many_vectors_the_best_of_another_leg_are_told_exactly(many: Vectors) -> None:
    (asked,) = drawn(1, seed=11)
    beside = np.zeros(MANY, np.float32)
    beside[[5, 500, 3_000]] = 1
    scores = many.near(asked, NOBODY, beside)
    wanted = many.packed.taken(np.array([5, 500, 3_000])).restored() @ asked
    assert scores[[5, 500, 3_000]] == pytest.approx(wanted, abs=1e-5)


def test_of_many_vectors_only_those_not_hidden_are_found(many: Vectors) -> None:
    (asked,) = drawn(1, seed=12)
    hidden = np.arange(40, MANY)
    scores = many.near(asked, hidden, np.ones(MANY, np.float32))
    assert (scores[hidden] == NEVER).all()
    assert scores[:40] == pytest.approx(many.packed.taken(np.arange(40)).restored() @ asked, abs=1e-5)


def test_many_vectors_that_are_all_alike_are_an_answer_too() -> None:
    vectors = Vectors.of(Packed.of(np.full((MANY, WIDTH), WIDTH**-0.5, np.float32)))
    scores = vectors.near(np.full(WIDTH, WIDTH**-0.5, np.float32), NOBODY, np.zeros(MANY, np.float32))
    assert scores == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("size", [300, MANY])
def test_rows_put_in_later_are_compared_as_if_they_had_always_been_there(size: int) -> None:
    rows = drawn(size)
    before = Vectors.of(Packed.of(rows[: size - 10]))
    places = np.array([3, *range(size - 10, size)])
    after = before.with_rows(size, places, Packed.of(rows[places] * -1))
    changed = rows.copy()
    changed[places] *= -1
    (asked,) = drawn(1, seed=13)
    nobody = np.zeros(size, np.float32)
    scores = after.near(asked, NOBODY, nobody)
    assert best(scores, 8) == best(Vectors.of(Packed.of(changed)).near(asked, NOBODY, nobody), 8)
    assert before.size == size - 10, "the rows they came from stay as they were"
