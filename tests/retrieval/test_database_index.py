"""Search with candidates from the shared database: the results of a search in memory, within the grant."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.postgres import PostgresServer, run_postgres
from tests.retrieval.catalog import CATALOG, CountingModel, make_tool
from toolfold import ConfigError, Runtime, load_config, open_runtime
from toolfold.core.registry import Snapshot
from toolfold.core.types import Tool
from toolfold.selection.retrieval import database_index, shared_catalog
from toolfold.selection.retrieval.candidate_queries import MAX_MATCHES, plan_word_groups
from toolfold.selection.retrieval.context import Context
from toolfold.selection.retrieval.database_index import DatabaseIndex, IndexUnavailable, make_scope_filter
from toolfold.selection.retrieval.embedding import LightEmbedder
from toolfold.selection.retrieval.learned_messages import LearnedMessages
from toolfold.selection.retrieval.learned_store import open_learned
from toolfold.selection.retrieval.lexical import TermStatistics
from toolfold.selection.retrieval.need import NeedClassifier
from toolfold.selection.retrieval.ranking import Ranker
from toolfold.selection.retrieval.shared_catalog import SharedCatalog
from toolfold.selection.retrieval.shared_vectors import SharedVectors
from toolfold.selection.retrieval.text import WordTokenizer
from toolfold.selection.retrieval.tool_search import Retriever, SearchResult
from toolfold.selection.retrieval.vector_store import VectorStore
from toolfold.state.database import Database, open_database

WAIT_S = 60.0
ACTIONS = ("list", "create", "delete", "export", "approve", "archive")
THINGS = (
    "invoice",
    "parcel",
    "meeting",
    "photo",
    "contract",
    "shipment",
    "sensor",
    "recipe",
    "ticket",
    "exam",
)
PLACES = ("bank", "clinic", "school", "airline", "museum")
MESSAGES = (
    "please export the invoice of our clinic",
    "approve a contract at the bank and then archive the photo in the museum",
    "what is the weather tomorrow?",
    "thanks, that was great",
    "use bank_list_invoice",
    "delete `parcel`",
    "sensor",
    "",
)


def make_catalog() -> tuple[Tool, ...]:
    made = [
        make_tool(
            f"{place}_{action}_{thing}",
            f"{action.title()} a {thing} in the {place} system",
            {f"{thing}_id": {"type": "string", "description": f"Identifier of the {thing}"}},
            toolset=place,
            server=place,
        )
        for place in PLACES
        for action in ACTIONS
        for thing in THINGS
    ]
    return (*made, *CATALOG)


TOOLS = Snapshot({tool.name: tool for tool in make_catalog()}, 1)
EMBEDDER = LightEmbedder()


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.02)


def make_retriever(store: VectorStore | None = None, **options: Any) -> Retriever:
    return Retriever(
        EMBEDDER,
        lambda: Ranker.shipped("light"),
        store,
        need_classifier=lambda: NeedClassifier.shipped("light"),
        **options,
    )


Open = Callable[..., Retriever]


@pytest.fixture(scope="module")
def shared_url(postgres: PostgresServer) -> str:
    return postgres.create_database()


@pytest.fixture(scope="module")
def module_database(shared_url: str) -> Iterator[Database]:
    database = open_database(shared_url)
    assert database is not None
    yield database
    database.close()


@pytest.fixture(scope="module")
def in_memory() -> Iterator[Retriever]:
    retriever = make_retriever()
    retriever.find(TOOLS, "warm up", mode="hybrid", limit=1)  # with vectors, which also tell duplicates
    yield retriever
    retriever.close()


@pytest.fixture(scope="module")
def in_database(module_database: Database) -> Iterator[Retriever]:
    shared = SharedVectors(module_database)
    index = DatabaseIndex(module_database, EMBEDDER, shared, place="database")
    retriever = make_retriever(shared, database_index=index)
    yield retriever
    retriever.close()


@pytest.fixture
def open_retriever(database: Database) -> Iterator[Open]:
    with ExitStack() as stack:

        def open_one(embedder: Any = EMBEDDER, **options: Any) -> Retriever:
            shared = SharedVectors(database)
            index = DatabaseIndex(database, embedder, shared, place="database", **options)
            retriever = Retriever(embedder, lambda: Ranker.shipped("light"), shared, database_index=index)
            stack.callback(retriever.close)
            return retriever

        yield open_one


def list_names(result: SearchResult) -> list[str]:
    return [hit.name for hit in result.hits]


class TestSameResultsAsInMemory:
    @pytest.mark.parametrize("mode", ["hybrid", "keyword", "semantic"])
    @pytest.mark.parametrize("granted", [None, frozenset(list(TOOLS)[::3])], ids=["all", "a third"])
    def test_database_search_returns_the_same_hits_as_in_memory_search(
        self, in_memory: Retriever, in_database: Retriever, mode: Any, granted: frozenset[str] | None
    ) -> None:
        for message in MESSAGES:
            one = in_memory.answer(TOOLS, message, mode=mode, limit=8, granted=granted)
            other = in_database.answer(TOOLS, message, mode=mode, limit=8, granted=granted)
            assert abs(one.need - other.need) < 0.01, message
            assert list_names(one)[:1] == list_names(other)[:1], message
            assert len(set(list_names(one)) & set(list_names(other))) >= 0.8 * len(one.hits), message
            assert [hit.exact for hit in one.hits] == [hit.exact for hit in other.hits], message

    def test_database_search_with_a_vector_index_returns_the_same_hits_as_in_memory_search(
        self, in_memory: Retriever, in_database: Retriever, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(database_index, "MAX_EXACT_TOOLS", 20)  # few enough that HNSW is used
        granted = frozenset(name for name in TOOLS if name.startswith(("bank", "clinic")))
        for message in MESSAGES[:4]:
            one = in_memory.answer(TOOLS, message, mode="hybrid", limit=8, granted=granted)
            other = in_database.answer(TOOLS, message, mode="hybrid", limit=8, granted=granted)
            assert list_names(one)[:1] == list_names(other)[:1], message
            assert len(set(list_names(one)) & set(list_names(other))) >= 6, message

    def test_follow_up_message_has_the_same_top_hit_in_database_search_as_in_memory_search(
        self, in_memory: Retriever, in_database: Retriever
    ) -> None:
        context = Context(("list the parcels of the airline",), ("airline_list_parcel",))
        one = in_memory.answer(TOOLS, "now delete it", mode="hybrid", limit=8, context=context)
        other = in_database.answer(TOOLS, "now delete it", mode="hybrid", limit=8, context=context)
        assert list_names(one)[0] == list_names(other)[0]
        assert abs(one.need - other.need) < 0.05

    def test_database_search_returns_separate_rankings_by_keywords_and_by_similarity_and_combined(
        self, in_database: Retriever
    ) -> None:
        legs = in_database.legs(TOOLS, "export an invoice")
        assert list(legs) == ["keyword", "semantic", "fused"]
        assert "export_invoice" in next(iter(legs["fused"]))


class TestGrant:
    """A session finds only what it was granted, and what it was not granted takes no places."""

    @pytest.mark.parametrize("exact", [10_000, 20], ids=["few tools", "many tools"])
    @pytest.mark.parametrize("message", [*MESSAGES[:3], "bank_list_invoice school_list_invoice"])
    def test_database_search_never_finds_ungranted_tools(
        self, in_database: Retriever, monkeypatch: pytest.MonkeyPatch, exact: int, message: str
    ) -> None:
        monkeypatch.setattr(database_index, "MAX_EXACT_TOOLS", exact)
        granted = frozenset(name for name in TOOLS if name.startswith(("school", "museum"))) - {
            "school_list_invoice"
        }
        for mode in ("hybrid", "keyword", "semantic"):
            hits = in_database.find(TOOLS, message, mode=mode, limit=200, granted=granted)
            assert {hit.name for hit in hits} <= granted
        legs = in_database.legs(TOOLS, message, granted=granted)
        assert {name for leg in legs.values() for name in leg} <= granted

    def test_search_does_not_find_ungranted_tools_that_were_used_earlier(
        self, in_database: Retriever
    ) -> None:
        granted = frozenset(name for name in TOOLS if name.startswith("school"))
        context = Context(("list the invoices of the bank",), ("bank_list_invoice",))
        found = in_database.answer(
            TOOLS, "delete it", mode="hybrid", limit=50, granted=granted, context=context
        )
        assert set(list_names(found)) <= granted

    def test_granted_tool_is_found_among_400_ungranted_tools_that_match_better(
        self, open_retriever: Open
    ) -> None:
        hidden = [make_tool(f"hidden_{n}", "export the invoice", toolset="hidden") for n in range(400)]
        shown = make_tool("shown", "export the invoice of a customer as a file", toolset="shown")
        tools = Snapshot({tool.name: tool for tool in [*hidden, shown]}, 1)
        retriever = open_retriever()
        for mode in ("hybrid", "keyword", "semantic"):
            hits = retriever.find(
                tools,
                "export the invoice",
                mode=mode,
                limit=8,
                granted=frozenset({"shown"}),
            )
            assert [hit.name for hit in hits] == ["shown"]

    def test_changing_descriptions_of_ungranted_tools_does_not_change_search_hits(
        self, in_database: Retriever
    ) -> None:
        granted = frozenset(name for name in TOOLS if name.startswith("school"))
        changed = {
            name: tool if name in granted else make_tool(name, "nothing to see", toolset=tool.toolset)
            for name, tool in TOOLS.items()
        }
        message = "archive the photo of the school"
        one = in_database.find(TOOLS, message, mode="semantic", limit=8, granted=granted)
        other = in_database.find(Snapshot(changed, 2), message, mode="semantic", limit=8, granted=granted)
        assert [hit.name for hit in one] == [hit.name for hit in other]

    def test_tools_that_only_another_replica_registered_in_the_same_toolset_are_not_found(
        self, open_retriever: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(database_index, "MAX_EXACT_TOOLS", 5)
        mine = [make_tool(f"mine_{n}", f"weigh parcel {n}", toolset="post") for n in range(20)]
        theirs = [make_tool(f"theirs_{n}", "weigh parcel", toolset="post") for n in range(200)]
        one, other = open_retriever(), open_retriever()
        one.find(Snapshot({tool.name: tool for tool in mine}, 1), "warm up", mode="hybrid", limit=1)
        other.find(Snapshot({tool.name: tool for tool in theirs}, 1), "warm up", mode="hybrid", limit=1)
        snapshot = Snapshot({tool.name: tool for tool in mine}, 1)
        found = one.find(snapshot, "weigh parcel", mode="hybrid", limit=50)
        assert found
        assert all(hit.name.startswith("mine") for hit in found)

    def test_search_finds_nothing_if_no_tool_is_granted(self, in_database: Retriever) -> None:
        found = in_database.answer(TOOLS, "export an invoice", mode="hybrid", limit=8, granted=frozenset())
        assert found.hits == ()

    @pytest.mark.parametrize("share", [0.05, 0.5, 0.95, 1.0])
    @pytest.mark.parametrize("max_listed", [3, 100])
    def test_sql_condition_selects_exactly_the_granted_tools(
        self, database: Database, monkeypatch: pytest.MonkeyPatch, share: float, max_listed: int
    ) -> None:
        monkeypatch.setattr(database_index, "MAX_EXACT_TOOLS", max_listed)
        generator = np.random.default_rng(7)
        ids, toolsets = np.arange(1, 401), generator.integers(0, 9, 400)
        mask = generator.random(400) < share
        others = np.column_stack((np.arange(1_000, 1_050), generator.integers(0, 12, 50)))
        condition, values = make_scope_filter(ids, toolsets, mask, others).condition("id")
        values["ids"], values["sets"] = (
            [*ids.tolist(), *others[:, 0].tolist()],
            [
                *toolsets.tolist(),
                *others[:, 1].tolist(),
            ],
        )
        rows = database.query(
            "SELECT id FROM unnest(%(ids)s::bigint[], %(sets)s::bigint[]) AS rows (id, toolset)"
            f" WHERE {condition}",
            values,
        )
        assert {row["id"] for row in rows} == set(ids[mask].tolist())


NASTY = (
    "'); DROP TABLE catalog; --",
    "%s %(only)s %(words)s",
    "a' | 'b & ! <-> :*",
    "nul \0 and \ud800 surrogate",
    "\\' \\\\ \x1f unit",
    "$$; SELECT pg_sleep(60); $$",
    "ﷺ" * 300,
)


class TestHostileText:
    @pytest.mark.parametrize("text", NASTY)
    def test_message_with_sql_syntax_is_searched_as_text(self, in_database: Retriever, text: str) -> None:
        for mode in ("hybrid", "keyword"):
            in_database.answer(TOOLS, f"{text} invoice `{text}`", mode=mode, limit=8)
        assert in_database.find(TOOLS, "export the invoice", mode="keyword", limit=1)

    def test_tool_definition_with_sql_syntax_is_stored_as_text(
        self, open_retriever: Open, database: Database
    ) -> None:
        tools = {
            f"tool_{number}": make_tool(
                f"tool_{number}",
                f"{text} invoice",
                {text: {"type": "string", "description": text}},
                server=text,
            )
            for number, text in enumerate(NASTY)
        }
        retriever = open_retriever()
        found = retriever.find(Snapshot(tools, 1), "invoice", mode="keyword", limit=20)
        assert {hit.name for hit in found} == set(tools)
        assert database.query("SELECT count(*) AS n FROM catalog") == [{"n": len(tools)}]


class TestReplicas:
    def test_second_replica_embeds_only_the_message_and_finds_the_same_tools_as_the_first(
        self, open_retriever: Open
    ) -> None:
        first, second = CountingModel(), CountingModel()
        one, other = open_retriever(first.embedder), open_retriever(second.embedder)
        found = one.find(TOOLS, "export an invoice", mode="semantic", limit=5)
        assert len(first.texts) == len(TOOLS) + 1
        again = other.find(TOOLS, "export an invoice", mode="semantic", limit=5)
        assert second.take_count() == 1  # the message
        assert [hit.name for hit in found] == [hit.name for hit in again]

    def test_two_replicas_that_start_together_store_each_tool_once_in_the_database(
        self, open_retriever: Open, database: Database
    ) -> None:
        retrievers = [open_retriever(), open_retriever()]
        threads = [
            threading.Thread(target=each.find, args=(TOOLS, "invoice"), kwargs={"mode": "hybrid", "limit": 1})
            for each in retrievers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        rows = database.query("SELECT count(*) AS n FROM catalog")
        assert rows == [{"n": len(TOOLS)}]
        total = database.query("SELECT tools FROM catalog_terms WHERE term = ''")
        assert total == [{"tools": len(TOOLS)}]
        for each in retrievers:
            assert each.find(TOOLS, "export the invoice", mode="hybrid", limit=1)

    def test_tool_with_a_changed_description_is_found_by_the_new_words_and_not_by_the_old(
        self, open_retriever: Open
    ) -> None:
        retriever = open_retriever()
        retriever.find(TOOLS, "warm up", mode="hybrid", limit=1)
        changed = dict(TOOLS) | {
            "bank_list_invoice": make_tool("bank_list_invoice", "Paint the fence green", toolset="bank")
        }
        snapshot = Snapshot(changed, 2)
        found = retriever.find(snapshot, "paint the fence", mode="keyword", limit=5)
        assert [hit.name for hit in found] == ["bank_list_invoice"]
        found = retriever.find(snapshot, "export the invoice", mode="hybrid", limit=5)
        assert all("invoice" in hit.name for hit in found)

    def test_tools_unused_for_60_days_and_their_word_counts_are_removed_from_the_database(
        self, open_retriever: Open, database: Database
    ) -> None:
        open_retriever().find(TOOLS, "warm up", mode="keyword", limit=1)
        database.execute("UPDATE catalog_uses SET used = CURRENT_DATE - 60")
        removed = SharedCatalog(database, WordTokenizer()).remove_unused()
        assert removed == len(TOOLS)
        counts = database.query("SELECT sum(abs(tools)) AS n FROM catalog_terms")
        assert int(counts[0]["n"]) == 0

    def test_word_indexes_are_built_after_a_bulk_load_of_tools_and_before_the_search(
        self, open_retriever: Open, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shared_catalog, "MIN_BULK_TOOLS", 10)
        during: list[bool] = []
        add = SharedCatalog.add_tools

        def add_and_check(catalog: SharedCatalog, *values: Any) -> dict[bytes, int]:
            during.append(catalog.has_word_indexes())
            return add(catalog, *values)

        monkeypatch.setattr(SharedCatalog, "add_tools", add_and_check)
        found = open_retriever().find(TOOLS, "export the invoice of the clinic", mode="hybrid", limit=1)
        assert found[0].name == "clinic_export_invoice"
        assert during == [False]
        assert SharedCatalog(database, WordTokenizer()).has_word_indexes()

    def test_next_replica_builds_the_word_indexes_missing_after_an_interrupted_load(
        self, open_retriever: Open, database: Database
    ) -> None:
        open_retriever().find(TOOLS, "warm up", mode="keyword", limit=1)
        for name in shared_catalog.WORD_INDEXES:
            database.execute(f"DROP INDEX {name}")
        catalog = SharedCatalog(database, WordTokenizer())
        assert not catalog.has_word_indexes()
        open_retriever().find(TOOLS, "warm up", mode="keyword", limit=1)
        assert catalog.has_word_indexes()

    def test_replicas_that_build_the_word_indexes_at_the_same_time_all_succeed(
        self, database: Database, database_url: str
    ) -> None:
        database.execute(
            "INSERT INTO catalog (checksum, name, toolset, server, spellings, words)"
            " SELECT decode(md5(n::text), 'hex'), 't' || n, 1, 1, ARRAY['t' || n],"
            " to_tsvector('simple', 'word' || n || ' word' || n %% 97) FROM generate_series(1, 20000) AS n"
        )
        for name in shared_catalog.WORD_INDEXES:
            database.execute(f"DROP INDEX {name}")
        problems: list[Exception] = []

        def build(replica: Database, start: threading.Barrier) -> None:
            start.wait(WAIT_S)
            try:
                SharedCatalog(replica, WordTokenizer()).build_word_indexes()
            except Exception as error:
                problems.append(error)

        with ExitStack() as stack:
            replicas = [open_database(database_url) for _ in range(3)]
            start = threading.Barrier(len(replicas))
            threads = []
            for each in replicas:
                assert each is not None
                stack.callback(each.close)
                threads.append(threading.Thread(target=build, args=(each, start)))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(WAIT_S)
        assert problems == []
        assert SharedCatalog(database, WordTokenizer()).has_word_indexes()

    def test_word_indexes_are_not_dropped_when_a_replica_adds_tools_to_a_filled_database(
        self, open_retriever: Open, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shared_catalog, "MIN_BULK_TOOLS", 10)
        open_retriever().find(Snapshot({"one": make_tool("one", "First")}, 1), "x", mode="keyword", limit=1)
        catalog = SharedCatalog(database, WordTokenizer())
        catalog.prepare_bulk_load(TOOLS.ordered, len(TOOLS))
        assert catalog.has_word_indexes()

    def test_tool_called_for_a_message_is_found_in_the_database_for_a_similar_message(
        self, database: Database, tmp_path: Path
    ) -> None:
        shared = SharedVectors(database)
        index = DatabaseIndex(database, EMBEDDER, shared, place="database")
        learned = LearnedMessages(open_learned(tmp_path, database))
        retriever = make_retriever(shared, database_index=index, learned=learned)
        tool = TOOLS["museum_archive_exam"]
        for text in ("tidy up the old papers of graduates", "tidy up the papers of former graduates"):
            assert not retriever.learn(TOOLS, tool, [text], client="bob", origin="message")
        found = retriever.find(TOOLS, "tidy up the graduates papers", mode="hybrid", limit=3, client="bob")
        assert found[0].name == "museum_archive_exam"
        assert found[0].learned > 0
        retriever.close()
        learned.close()


class TestFailures:
    def test_search_falls_back_to_keywords_in_memory_while_the_database_is_stopped(
        self, tmp_path: Any
    ) -> None:
        failures: list[str] = []
        with run_postgres() as server:
            database = open_database(server.create_database())
            assert database is not None
            shared = SharedVectors(database)
            index = DatabaseIndex(database, EMBEDDER, shared, place="database", on_failure=failures.append)
            retriever = make_retriever(shared, database_index=index)
            first = retriever.find(TOOLS, "export the invoice of the clinic", mode="hybrid", limit=3)
            assert first[0].similarity is not None
            server.stop()
            found = retriever.find(TOOLS, "export the invoice of the clinic", mode="hybrid", limit=3)
            assert found[0].name == "clinic_export_invoice"
            assert found[0].similarity is None
            assert len(failures) == 1
            assert "cannot be used now" in failures[0]
            server.start()

            def is_back() -> bool:
                return retriever.find(TOOLS, "export", mode="hybrid", limit=1)[0].similarity is not None

            wait_until(is_back)
            retriever.close()
            database.close()

    def test_error_for_a_failed_database_search_says_that_tools_can_still_be_called_by_name(
        self, open_retriever: Open, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("toolfold.selection.retrieval.tool_search.MAX_FALLBACK_TOOLS", 10)
        monkeypatch.setattr("toolfold.selection.retrieval.tool_search.MAX_MEMORY_TOOLS", 10)
        retriever = open_retriever()
        retriever.find(TOOLS, "warm up", mode="hybrid", limit=1)
        database.execute("ALTER TABLE catalog RENAME TO hidden")
        with pytest.raises(IndexUnavailable, match="A tool whose name is known can still be called"):
            retriever.find(TOOLS, "export the invoice", mode="hybrid", limit=3)
        database.execute("ALTER TABLE hidden RENAME TO catalog")

    def test_database_search_that_times_out_falls_back_to_keyword_search(
        self, open_retriever: Open, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        retriever = open_retriever()
        retriever.find(TOOLS, "warm up", mode="hybrid", limit=1)
        monkeypatch.setitem(shared_catalog._SETTINGS, "statement_timeout", "1ms")
        with database.connect() as connection:
            connection.execute("LOCK TABLE catalog IN ACCESS EXCLUSIVE MODE")
            found = retriever.find(TOOLS, "export the invoice", mode="hybrid", limit=3)
        assert found[0].similarity is None

    def test_tools_are_found_by_keywords_while_the_embedding_model_fails(self, open_retriever: Open) -> None:
        model = CountingModel()
        model.broken = True
        found = open_retriever(model.embedder).find(TOOLS, "export the invoice", mode="hybrid", limit=3)
        assert found[0].similarity is None
        assert "invoice" in found[0].name

    def test_setting_retrieval_index_to_database_without_a_database_raises_a_config_error(
        self, tmp_path: Any
    ) -> None:
        config = load_config(
            project=tmp_path,
            env={"TOOLFOLD_HOME": str(tmp_path)},
            overrides=["retrieval.index=database", "plugins.enabled=false"],
        )
        with pytest.raises(ConfigError, match="store"):
            open_runtime(config)


class TestRuntime:
    def test_runtime_searches_in_the_database_if_retrieval_index_is_set_to_database(
        self, database_url: str, tmp_path: Any
    ) -> None:
        config = load_config(
            project=tmp_path,
            env={"TOOLFOLD_HOME": str(tmp_path)},
            overrides=[
                f"store={database_url}",
                "retrieval.index=database",
                "tools.rag_embed_model=light",
                "plugins.enabled=false",
            ],
        )
        with open_runtime(config, build_index=False) as runtime:
            assert isinstance(runtime, Runtime)
            snapshot = runtime.registry.snapshot()
            found = runtime.retriever.find(snapshot, "read a file", mode="hybrid", limit=3)
            assert "read_file" in [hit.name for hit in found]
            assert runtime.database is not None
            rows = runtime.database.query("SELECT count(*) AS n FROM catalog")
            assert rows == [{"n": len(snapshot)}]


def count_expected(group: Sequence[str], statistics: TermStatistics) -> float:
    expected = float(statistics.tools)
    for term in group:
        expected *= statistics.frequencies[term] / statistics.tools
    return expected


def test_query_planner_groups_common_words_so_that_each_group_matches_few_tools() -> None:
    statistics = TermStatistics(
        1_000_000, {"rare": 12, "invoice": 25_000, "export": 50_000, "system": 900_000}
    )
    groups = plan_word_groups(["export", "invoice", "rare", "system", "unknown"], statistics)
    assert ("rare",) in groups
    assert ("invoice", "export") in groups
    assert all(count_expected(group, statistics) <= MAX_MATCHES for group in groups)
    assert not any("unknown" in group for group in groups)


def test_query_planner_combines_more_words_if_many_groups_would_match_too_many_tools_together() -> None:
    terms = [f"term{number}" for number in range(8)]
    statistics = TermStatistics(1_000_000, dict.fromkeys(terms, 30_000))
    groups = plan_word_groups(terms, statistics)
    assert groups
    assert sum(count_expected(group, statistics) for group in groups) <= MAX_MATCHES
    assert {len(group) for group in groups} == {3}  # all pairs together would match 25,000 tools


def test_query_planner_puts_words_that_nearly_all_tools_contain_into_one_group() -> None:
    statistics = TermStatistics(1_000_000, {"system": 900_000, "edition": 950_000})
    assert plan_word_groups(["edition", "system"], statistics) == [("system", "edition")]
