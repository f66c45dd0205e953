"""Reranking of a shortlist by a real endpoint on the loopback interface."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import RuntimeOpener
from tests.retrieval.catalog import CountingModel, make_tool
from tests.retrieval.endpoint import (
    EmbeddingRequest,
    RequestHandler,
    Server,
    answer_500,
    answer_normally,
    answer_with,
    close_connection_early,
    close_connection_mid_body,
    hang,
    rows,
    run_server,
)
from toolfold.core.registry import Registry, Snapshot
from toolfold.core.types import Tool
from toolfold.selection.retrieval.embedding import EndpointEmbedder
from toolfold.selection.retrieval.reranking import SHORTLIST_SIZE, Reranker
from toolfold.selection.retrieval.tool_search import Hit, Mode, Retriever
from toolfold.selection.retrieval.vector_store import FILE_NAME, VectorFile

A, B, C = (make_tool(letter * 4) for letter in "abc")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with run_server() as server:
        yield server


class Clock:
    """Clock that advances by an hour per reading, so that a failed endpoint is retried at once."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 3_600
        return self._now


def reranker(server: Server, folder: Path | None, model: str = "m") -> Reranker:
    store = VectorFile(folder) if folder else None
    return Reranker(EndpointEmbedder(server.url, model, timeout=60, clock=Clock()), store)


def order(reranker: Reranker, message: str, tools: Sequence[Tool]) -> list[str]:
    found = reranker.similarities(message, tools)
    assert found is not None
    return [tools[position].name for position in np.argsort(-found, kind="stable")]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# Similarities


def test_reranking_orders_tools_by_similarity_of_their_vectors_to_the_message(
    server: Server, tmp_path: Path
) -> None:
    second = reranker(server, tmp_path)
    assert order(second, "bb a", [A, B, C]) == ["bbbb", "aaaa", "cccc"]
    assert order(second, "cc b", [A, B, C]) == ["cccc", "bbbb", "aaaa"]


def test_similarities_for_reranking_are_returned_in_the_order_of_the_given_tools(server: Server) -> None:
    found = reranker(server, None).similarities("aaabbbb", [C, B, A])
    assert found == pytest.approx([0, 0.8, 0.6], abs=1e-3)


def test_tool_listed_twice_is_embedded_once_for_reranking(server: Server) -> None:
    assert reranker(server, None).similarities("a", [A, A, B]) == pytest.approx([1, 1, 0])
    assert [len(texts) for texts in server.received_texts] == [1, 2]


@pytest.mark.parametrize("message", ["", "  \n", "\x00"])
def test_reranking_a_blank_message_sends_no_request(server: Server, message: str) -> None:
    assert reranker(server, None).similarities(message, [A]) is None
    assert server.received_texts == []


def test_reranking_an_empty_list_of_tools_sends_no_request(server: Server) -> None:
    assert reranker(server, None).similarities("a", []) is None
    assert server.received_texts == []


def test_message_with_a_zero_vector_is_not_reranked_and_causes_no_warning(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    assert reranker(server, None).similarities("xyz", [A, B]) is None
    assert warnings(caplog) == []


def test_megabyte_message_is_truncated_before_it_is_sent_for_reranking(server: Server) -> None:
    reranker(server, None).similarities("a" * 1_000_000, [A])
    assert len(server.received_texts[0][0]) < 1_000


# Requests


def test_reranking_tools_with_cached_vectors_sends_one_request_per_message(
    server: Server, tmp_path: Path
) -> None:
    second = reranker(server, tmp_path)
    second.similarities("a", [A, B, C])
    server.requests.clear()
    for message in ("b", "c", "b again"):
        second.similarities(message, [C, A, B])
    assert server.received_texts == [["b"], ["c"], ["b again"]]


def test_only_tools_without_cached_vectors_are_embedded_for_reranking(server: Server, tmp_path: Path) -> None:
    second = reranker(server, tmp_path)
    second.similarities("a", [A, B])
    server.requests.clear()
    second.similarities("a", [A, B, C])
    assert server.received_texts == [["a"], ["user cccc"]]


def test_changed_tool_is_embedded_again_for_reranking(server: Server, tmp_path: Path) -> None:
    second = reranker(server, tmp_path)
    second.similarities("a", [A])
    assert order(second, "b", [replace(A, description="bbb bbb"), C])[0] == "aaaa"
    assert server.received_texts[-1] == ["user aaaa. bbb bbb", "user cccc"]


def test_many_tools_are_embedded_in_batches_for_reranking(server: Server, tmp_path: Path) -> None:
    tools = [make_tool(f"a{number}") for number in range(70)]
    reranker(server, tmp_path).similarities("a", tools)
    assert [len(texts) for texts in server.received_texts] == [1, 32, 32, 6]


# Cache


def test_another_process_reuses_vectors_cached_for_reranking(server: Server, tmp_path: Path) -> None:
    first = reranker(server, tmp_path).similarities("a b", [A, B, C])
    server.requests.clear()
    again = reranker(server, tmp_path).similarities("a b", [A, B, C])
    assert server.received_texts == [["a b"]]
    assert first is not None
    assert again is not None
    assert first.tolist() == again.tolist()


def test_two_processes_share_tool_vectors_cached_for_reranking(server: Server, tmp_path: Path) -> None:
    one, other = reranker(server, tmp_path), reranker(server, tmp_path)
    one.similarities("a", [A])
    other.similarities("a", [B])
    one.similarities("a", [C])
    server.requests.clear()
    for each in (one, other, reranker(server, tmp_path)):
        each.similarities("a", [A, B, C])
    assert server.received_texts == [["a"]] * 3


def test_reranking_cache_written_by_concurrent_processes_stays_readable(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def learn(number: int) -> None:
        second = Reranker(EndpointEmbedder(server.url, "m", timeout=60), VectorFile(tmp_path))
        for each in range(5):
            second.similarities("a", [make_tool(f"a{number}x{each}")])

    threads = [threading.Thread(target=learn, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.requests.clear()
    names = [f"a{number}x{each}" for number in range(4) for each in range(5)]
    reranker(server, tmp_path).similarities("a", [make_tool(name) for name in names])
    assert server.received_texts == [["a"]]
    assert warnings(caplog) == []


def test_reranking_vector_cache_is_separate_for_each_embedding_model(server: Server, tmp_path: Path) -> None:
    reranker(server, tmp_path, "one").similarities("a", [A])
    server.requests.clear()
    reranker(server, tmp_path, "other").similarities("a", [A])
    assert server.received_texts == [["a"], ["user aaaa"]]


def test_tools_cached_for_reranking_are_embedded_again_if_the_vector_length_changes(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reranker(server, tmp_path).similarities("a", [A, B])

    def longer(request: EmbeddingRequest) -> None:
        vectors = ([text.count("b"), text.count("a"), 0, 0] for text in request.body["input"])
        answer_with(rows(*vectors))(request)

    server.handler = longer
    second = reranker(server, tmp_path)
    assert order(second, "a", [B, A]) == ["aaaa", "bbbb"]
    server.requests.clear()
    second.similarities("b", [A, B])
    assert server.received_texts == [["b"]]
    assert warnings(caplog) == []


def test_damaged_file_of_vectors_for_reranking_is_replaced_with_one_warning(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reranker(server, tmp_path).similarities("a", [A, B])
    (tmp_path / FILE_NAME).write_bytes(b"not a database" * 100)
    server.requests.clear()
    assert order(reranker(server, tmp_path), "b", [A, B]) == ["bbbb", "aaaa"]
    assert len(server.received_texts) == 2
    (notice,) = warnings(caplog)
    assert "cannot be used and is rebuilt" in notice
    reranker(server, tmp_path).similarities("b", [A, B])
    assert len(server.received_texts) == 3


def test_reranking_continues_with_one_warning_if_its_vector_cache_cannot_be_written(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    second = reranker(server, taken)
    second.similarities("a", [A])
    assert order(second, "b", [A, B]) == ["bbbb", "aaaa"]
    (notice,) = warnings(caplog)
    assert "cannot be stored" in notice


# Failures


def is_about_tools(request: EmbeddingRequest) -> bool:
    return bool(request.body["input"][0].startswith("user "))


def of_two_lengths(request: EmbeddingRequest) -> None:
    """Answer an embedding request with shorter vectors for messages than for tools."""
    vector = [1.0, 2.0] if is_about_tools(request) else [1.0]
    answer_with(rows(*[vector] * len(request.body["input"])))(request)


def only_messages(request: EmbeddingRequest) -> None:
    answer_500(request) if is_about_tools(request) else answer_normally(request)


FAULTS: dict[str, RequestHandler] = {
    "time limit": hang,
    "server error": answer_500,
    "not found": lambda request: request.send(b"", 404),
    "refused": lambda request: request.send(b"", 400),
    "hung up": close_connection_early,
    "hung up halfway": close_connection_mid_body,
    "not JSON": answer_with(b"<html>"),
    "no vectors": answer_with({"data": []}),
    "not numbers": answer_with(rows(["x"])),
    "two lengths": of_two_lengths,
    "tools only": only_messages,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_reranking_is_skipped_with_only_one_warning_if_every_embedding_request_fails(
    server: Server, caplog: pytest.LogCaptureFixture, fault: RequestHandler
) -> None:
    server.handler = fault
    second = Reranker(EndpointEmbedder(server.url, "m", timeout=0.3), None)
    for _ in range(3):
        assert second.similarities("a", [A, B]) is None
    (said,) = warnings(caplog)
    assert said.startswith("search results are not reranked: m at http://127.0.0.1")


def test_search_results_are_not_reranked_if_the_reranking_endpoint_is_unreachable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    second = Reranker(EndpointEmbedder("http://127.0.0.1:9/v1/embeddings", "m"), None)
    assert second.similarities("a", [A]) is None
    assert len(warnings(caplog)) == 1


def test_reranking_service_is_used_again_after_recovering_from_a_failure(server: Server) -> None:
    second = reranker(server, None)
    server.handler = answer_500
    assert second.similarities("a", [A, B]) is None
    server.handler = answer_normally
    assert order(second, "b", [A, B]) == ["bbbb", "aaaa"]


def test_tool_vectors_received_before_a_failed_reranking_request_are_cached(
    server: Server, tmp_path: Path
) -> None:
    tools = [make_tool(f"a{number}") for number in range(40)]
    server.handler = lambda request: (
        answer_normally(request) if len(server.requests) < 3 else answer_500(request)
    )
    assert reranker(server, tmp_path).similarities("a", tools) is None
    server.handler = answer_normally
    server.requests.clear()
    assert reranker(server, tmp_path).similarities("a", tools) is not None
    assert [len(texts) for texts in server.received_texts] == [1, 8]


# Search


def snapshot(*tools: Tool) -> Snapshot:
    registry = Registry()
    registry.add_all(tools)
    return registry.snapshot()


LETTER_TOOLS = snapshot(
    make_tool("one", "zoo zoo zoo b"),
    make_tool("two", "zoo aaaa"),
    make_tool("three", "zoo zoo c"),
    make_tool("four", "aaaaaaaa"),
)


def search(
    reranker: Reranker | None,
    message: str,
    mode: Mode = "rerank",
    tools: Snapshot = LETTER_TOOLS,
    limit: int = 8,
) -> list[Hit]:
    retriever = Retriever(CountingModel().embedder, None, None, reranker=reranker)
    return retriever.find(tools, message, mode=mode, limit=limit)


def names(hits: Sequence[Hit]) -> list[str]:
    return [hit.name for hit in hits]


def test_hits_of_keyword_and_vector_search_are_reordered_by_reranking_similarity(server: Server) -> None:
    hits = search(reranker(server, None), "zoo a c c")
    assert names(hits) == ["three", "four", "two", "one"]
    assert names(search(None, "zoo a c c", "keyword")) != names(hits)
    assert [hit.similarity for hit in hits] == pytest.approx([0.894, 0.447, 0.447, 0], abs=2e-3)
    assert [hit.name for hit in hits if not hit.matched] == ["four"]


def test_keyword_hits_are_reranked_if_there_is_no_embedding_model(server: Server) -> None:
    retriever = Retriever(None, None, None, reranker=reranker(server, None))
    hits = retriever.find(LETTER_TOOLS, "zoo a c c", mode="rerank", limit=8)
    assert names(hits) == ["three", "two", "one"]


def test_tool_named_in_the_message_stays_first_after_reranking(server: Server) -> None:
    assert names(search(reranker(server, None), "zoo a: use `three`"))[0] == "three"


def test_search_modes_other_than_rerank_do_not_contact_the_reranking_service(server: Server) -> None:
    modes: tuple[Mode, ...] = ("keyword", "semantic", "hybrid")
    for mode in modes:
        search(reranker(server, None), "zoo a", mode)
    assert server.received_texts == []


def test_number_of_hits_sent_for_reranking_is_limited_to_the_shortlist_size(server: Server) -> None:
    many = snapshot(*(make_tool(f"zoo_a{number}") for number in range(SHORTLIST_SIZE + 5)))
    hits = search(reranker(server, None), "zoo a", tools=many, limit=SHORTLIST_SIZE + 5)
    assert sum(map(len, server.received_texts)) == 1 + SHORTLIST_SIZE
    assert len(set(names(hits))) == SHORTLIST_SIZE + 5
    assert [hit.similarity for hit in hits] == pytest.approx([1.0] * SHORTLIST_SIZE + [None] * 5)


def test_search_returns_hybrid_hits_if_the_reranking_vector_of_the_message_is_zero(server: Server) -> None:
    assert names(search(reranker(server, None), "qqqq")) == names(search(None, "qqqq", "hybrid")) != []


def test_search_mode_rerank_returns_hybrid_hits_if_no_reranking_service_is_configured() -> None:
    assert names(search(None, "zoo a")) == names(search(None, "zoo a", "hybrid"))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_search_mode_rerank_returns_hybrid_hits_if_the_reranking_service_fails(
    server: Server, fault: RequestHandler
) -> None:
    server.handler = fault
    failing = Reranker(EndpointEmbedder(server.url, "m", timeout=0.3), None)
    assert names(search(failing, "zoo a")) == names(search(None, "zoo a", "hybrid"))


# Configuration


def settings(server: Server, enabled: bool) -> dict[str, object]:
    return {
        "tools.rag_embed_model": "light",
        "tools.tool_search.reranker.enabled": enabled,
        "tools.tool_search.reranker.endpoint": server.url,
        "tools.tool_search.reranker.model": "nomic-embed-text-v2-moe",
    }


def test_runtime_reranks_with_the_service_from_the_settings_and_caches_its_vectors(
    server: Server, open_test_runtime: RuntimeOpener
) -> None:
    for _ in range(2):
        runtime = open_test_runtime(settings(server, enabled=True))
        runtime.retriever.find(runtime.registry.snapshot(), "read a file", mode="rerank", limit=3)
    message, *tools, again = server.received_texts
    assert message == again == ["search_query: read a file"]
    assert tools
    assert all(text.startswith("search_document: ") for batch in tools for text in batch)
    assert server.requests[0][2]["model"] == "nomic-embed-text-v2-moe"


def test_reranking_service_that_is_disabled_in_the_settings_gets_no_request(
    server: Server, open_test_runtime: RuntimeOpener
) -> None:
    runtime = open_test_runtime(settings(server, enabled=False))
    assert runtime.retriever.find(runtime.registry.snapshot(), "read a file", mode="rerank", limit=3)
    assert server.received_texts == []
