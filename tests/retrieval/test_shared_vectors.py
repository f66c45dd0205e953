"""Vectors of tools that replicas share: each tool is embedded once, whatever happens to the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.retrieval.catalog import CountingModel, make_tool
from toolfold.selection.retrieval.embedding import EmbeddingUnavailable, Kind, Matrix
from toolfold.selection.retrieval.indexing import Indexer
from toolfold.selection.retrieval.shared_vectors import SharedVectors
from toolfold.selection.retrieval.vector_store import VectorFile
from toolfold.state.database import Database, open_database

WAIT_S = 60.0


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(params=["files", "postgres"])
def databases(request: pytest.FixtureRequest) -> Iterator[tuple[Database, Database] | None]:
    """The databases of two replicas; None if state is in files."""
    if request.param == "files":
        yield None
        return
    url = request.getfixturevalue("database_url")
    with ExitStack() as stack:
        opened = [open_database(url) for _ in range(2)]
        for each in opened:
            assert each is not None
            stack.callback(each.close)
        yield opened[0], opened[1]  # type: ignore[misc]


TOOLS = tuple(make_tool(f"tool_{number}", f"counts {number} sheep") for number in range(150))


class UnavailableModel(CountingModel):
    """Embedder that never answers, like a service that this replica cannot reach."""

    def __init__(self) -> None:
        super().__init__()
        self.name = self.embedder.name

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:
        raise EmbeddingUnavailable("the service does not answer")


class TestToolVectors:
    """Vectors are in a file of the machine, or in the database of all replicas."""

    @pytest.fixture
    def open_indexer(
        self, databases: tuple[Database, Database] | None, tmp_path: Path
    ) -> Iterator[Callable[..., Indexer]]:
        with ExitStack() as stack:
            if databases is None:
                shared: list[SharedVectors | None] = [None, None]
            else:
                shared = [SharedVectors(each) for each in databases]
            opened: list[SharedVectors] = [each for each in shared if each]

            def open_one(number: int, model: Any) -> Indexer:
                directory = tmp_path / "index" if databases is None else tmp_path / f"index-{number}"
                indexer = Indexer(model, shared[number] or VectorFile(directory))
                stack.callback(indexer.close)
                return indexer

            for each in opened:
                stack.callback(each.close)
            yield open_one

    def test_tools_embedded_by_one_replica_are_not_embedded_again_by_another_replica(
        self, open_indexer: Callable[..., Indexer], databases: tuple[Database, Database] | None
    ) -> None:
        first, second = CountingModel(), CountingModel()
        one = open_indexer(0, first.embedder).index(TOOLS)
        wait_until(lambda: databases is None or count_vectors(databases[0]) == len(TOOLS))
        other = open_indexer(1, second.embedder).index(TOOLS)
        assert len(first.texts) == len(TOOLS)
        assert second.texts == []
        assert one.vectors is not None
        assert other.vectors is not None
        assert (one.vectors.packed.numbers == other.vectors.packed.numbers).all()
        assert (one.vectors.packed.scales == other.vectors.packed.scales).all()

    def test_replica_embeds_only_tools_for_which_no_other_replica_has_stored_vectors(
        self, open_indexer: Callable[..., Indexer], databases: tuple[Database, Database] | None
    ) -> None:
        open_indexer(0, CountingModel().embedder).index(TOOLS[:100])
        wait_until(lambda: databases is None or count_vectors(databases[0]) == 100)
        second = CountingModel()
        index = open_indexer(1, second.embedder).index(TOOLS)
        assert len(second.texts) == len(TOOLS) - 100
        assert index.vectors is not None
        assert index.vectors.packed.has_vector.all()


def count_vectors(database: Database) -> int:
    return int(database.query("SELECT count(*) AS count FROM tool_vectors")[0]["count"])


class TestVectorsInTheDatabase:
    @pytest.fixture
    def stores(self, database_url: str) -> Iterator[tuple[Database, SharedVectors, SharedVectors]]:
        with ExitStack() as stack:
            opened = [open_database(database_url) for _ in range(2)]
            shared = []
            for each in opened:
                assert each is not None
                stack.callback(each.close)
                shared.append(SharedVectors(each))
                stack.callback(shared[-1].close)
            assert opened[0] is not None
            yield opened[0], shared[0], shared[1]

    def test_replica_whose_model_fails_searches_with_the_vectors_of_another_replica(
        self, stores: tuple[Database, SharedVectors, SharedVectors]
    ) -> None:
        _, one, other = stores
        failing = Indexer(UnavailableModel(), other)
        assert failing.index(TOOLS).vectors is None
        Indexer(CountingModel().embedder, one).index(TOOLS)

        def is_embedded() -> bool:
            vectors = failing.index(TOOLS).vectors
            return vectors is not None and bool(vectors.packed.has_vector.all())

        wait_until(is_embedded)

    def test_two_replicas_that_start_together_each_embed_a_part_of_the_tools(
        self, stores: tuple[Database, SharedVectors, SharedVectors]
    ) -> None:
        database, *shared = stores
        tools = tuple(make_tool(f"shared_{number}", f"weighs {number} stones") for number in range(1_000))
        models = [CountingModel(), CountingModel()]

        def build(number: int) -> Any:
            return Indexer(models[number].embedder, shared[number]).index(tools)

        with ThreadPoolExecutor(2) as pool:
            one, other = pool.map(build, range(2))
        assert one.vectors.packed.has_vector.all()
        assert (one.vectors.packed.numbers == other.vectors.packed.numbers).all()
        wait_until(lambda: count_vectors(database) == len(tools))

    def test_replica_embeds_all_tools_itself_if_the_database_fails(
        self, stores: tuple[Database, SharedVectors, SharedVectors], caplog: pytest.LogCaptureFixture
    ) -> None:
        database, one, _ = stores
        database.execute("ALTER TABLE tool_vectors RENAME TO hidden")
        model = CountingModel()
        index = Indexer(model.embedder, one).index(TOOLS)
        assert index.vectors is not None
        assert len(model.texts) == len(TOOLS)
        assert "tools are embedded here" in caplog.text
        database.execute("ALTER TABLE hidden RENAME TO tool_vectors")

    def test_tools_whose_stored_vectors_are_damaged_or_of_another_model_are_embedded_again(
        self, stores: tuple[Database, SharedVectors, SharedVectors]
    ) -> None:
        database, one, other = stores
        Indexer(CountingModel().embedder, one).index(TOOLS)
        wait_until(lambda: count_vectors(database) == len(TOOLS))
        database.execute(
            "UPDATE tool_vectors SET numbers = 'short' WHERE checksum IN"
            " (SELECT checksum FROM tool_vectors ORDER BY checksum LIMIT 5)"
        )
        database.execute(
            "UPDATE tool_vectors SET scale = 'NaN' WHERE checksum IN"
            " (SELECT checksum FROM tool_vectors ORDER BY checksum DESC LIMIT 5)"
        )
        model = CountingModel()
        index = Indexer(model.embedder, other).index(TOOLS)
        assert index.vectors is not None
        assert index.vectors.packed.has_vector.all()
        assert len(model.texts) == 10
