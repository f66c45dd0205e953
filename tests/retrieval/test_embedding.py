"""Embedding models: the shipped ones, an endpoint over a real socket, and a Python function."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.cases import check_cases
from tests.retrieval.endpoint import (
    MAX_HEADERS,
    EmbeddingRequest,
    RequestHandler,
    Server,
    answer_500,
    answer_normally,
    answer_with,
    answer_with_ssh_banner,
    close_connection_early,
    close_connection_mid_body,
    count_letters,
    hang,
    limit_batch,
    rows,
    run_server,
    trickling_headers,
)
from toolfold.selection.retrieval.embedding import (
    MAX_LIGHT_TOKENS,
    MAX_QUERY_TOKENS,
    MAX_TOOL_TOKENS,
    Embedder,
    EmbeddingUnavailable,
    Encoder,
    EndpointEmbedder,
    FunctionEmbedder,
    Kind,
    LightEmbedder,
    Matrix,
    normalize_rows,
)
from toolfold.selection.retrieval.vectors import MAX_DIMENSIONS


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with run_server() as server:
        yield server


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder()


@pytest.fixture(scope="module")
def light() -> LightEmbedder:
    return LightEmbedder()


@pytest.fixture(params=["encoder", "light"])
def shipped(request: pytest.FixtureRequest) -> Embedder:
    model: Embedder = request.getfixturevalue(request.param)
    return model


def lengths(vectors: Matrix) -> list[float]:
    return [float(length) for length in np.linalg.norm(vectors, axis=1)]


# Shipped models


@pytest.mark.parametrize("kind", ["query", "tool"])
def test_shipped_embedding_model_returns_one_unit_vector_per_text(shipped: Embedder, kind: Kind) -> None:
    texts = ["send an email", "weather", "a much longer text about invoices, customers and their orders"]
    vectors = shipped.embed(texts, kind)
    assert vectors.dtype == np.float32
    assert vectors.shape == (3, vectors.shape[1])
    assert lengths(vectors) == pytest.approx([1, 1, 1], abs=1e-3)


def test_shipped_embedding_model_gives_equal_vectors_for_the_same_texts(shipped: Embedder) -> None:
    texts = ["book a table for two", "translate this"]
    assert np.array_equal(shipped.embed(texts, "query"), shipped.embed(texts, "query"))


def test_shipped_embedding_model_preserves_the_order_of_texts(shipped: Embedder) -> None:
    texts = [" ".join(["invoice"] * (1 + n * 7 % 20)) + f" number {n}" for n in range(20)]
    together = shipped.embed(texts, "tool")
    for position in (0, 3, 19):
        (alone,) = shipped.embed([texts[position]], "tool")
        nearest = int(np.argmax(together @ alone))
        assert nearest == position


@check_cases(
    ("message", "meant", "stranger"),
    [
        ("what will it be like outside tomorrow", "Get the weather forecast.", "Delete a git branch."),
        ("drop Anna a line that I am late", "Send a message to a contact.", "Resize an image."),
        ("how much money is on my account", "Show the balance of a bank account.", "Play a song."),
    ],
)
def test_encoder_model_finds_a_paraphrase_more_similar_than_an_unrelated_text(
    encoder: Encoder, message: str, meant: str, stranger: str
) -> None:
    (query_vector,) = encoder.embed([message], "query")
    near, far = encoder.embed([meant, stranger], "tool") @ query_vector
    assert near > far


@check_cases(
    ("message", "meant", "stranger"),
    [
        ("weather forecast for tomorrow", "Get the weather of the next days.", "Delete a git branch."),
        ("send an email to Anna", "Send a message to a contact.", "Resize an image."),
        ("bank account balance", "How much money is on an account.", "Play a song."),
    ],
)
def test_light_embedding_model_finds_a_paraphrase_more_similar_than_an_unrelated_text(
    light: LightEmbedder, message: str, meant: str, stranger: str
) -> None:
    (query_vector,) = light.embed([message], "query")
    near, far = light.embed([meant, stranger], "tool") @ query_vector
    assert near > far


def test_shipped_embedding_model_returns_no_vectors_for_an_empty_list_of_texts(shipped: Embedder) -> None:
    assert len(shipped.embed([], "tool")) == 0


@pytest.mark.parametrize(
    "text", ["", "   ", "\x00\x1b[31m", "\ud800", "🦜" * 50, "日本語のテキスト", "a" * 50_000, "!?" * 2_000]
)
def test_shipped_embedding_model_gives_finite_vectors_for_empty_long_and_non_latin_texts(
    shipped: Embedder, text: str
) -> None:
    (vector,) = shipped.embed([text], "query")
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) <= 1.001


@check_cases(("kind", "limit"), [("query", MAX_QUERY_TOKENS), ("tool", MAX_TOOL_TOKENS)])
def test_encoder_model_ignores_text_beyond_its_token_limit(encoder: Encoder, kind: Kind, limit: int) -> None:
    start = "book a table " * limit
    one, other = encoder.embed([start + "for two", start + "and delete everything"], kind)
    assert one @ other == pytest.approx(1, abs=1e-4)


def test_encoder_returns_one_vector_for_the_whole_message_and_one_for_each_given_part(
    encoder: Encoder,
) -> None:
    parts = ["find a flight from Vienna to Oslo", "send Ana the details by email"]
    read = encoder.read(" and then ".join(parts), parts)
    alone = encoder.embed([" and then ".join(parts), *parts], "query")
    np.testing.assert_array_equal(read.vectors[0], alone[0])
    np.testing.assert_allclose(np.linalg.norm(read.vectors, axis=1), 1, rtol=1e-4)
    similarities = read.vectors[1:] @ alone[1:].T
    assert (similarities.argmax(1) == [0, 1]).all()


def test_part_of_a_message_beyond_the_token_limit_is_embedded_separately(
    encoder: Encoder,
) -> None:
    part = "delete all expired invoices"
    read = encoder.read("book a table " * MAX_QUERY_TOKENS + part, [part])
    np.testing.assert_array_equal(read.vectors[1:], encoder.embed([part], "query"))


def test_light_embedding_model_ignores_text_beyond_its_length_limit(light: LightEmbedder) -> None:
    start = "book a table " * MAX_LIGHT_TOKENS
    one, other = light.embed([start + "for two", start + "and delete everything"], "query")
    assert np.array_equal(one, other)


def test_text_without_known_subwords_has_a_zero_vector_in_the_light_model(light: LightEmbedder) -> None:
    assert not light.embed(["", "\x00"], "query").any()


def test_encoder_and_light_embedding_model_have_different_names(encoder: Embedder, light: Embedder) -> None:
    assert encoder.name != light.name


def test_constructing_a_shipped_embedding_model_loads_no_weights() -> None:
    assert Encoder()._cached_model is None
    assert LightEmbedder()._cached_model is None


def test_embedding_model_is_loaded_once_by_concurrent_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    model, loads = LightEmbedder(), []
    load = model._load_model

    def counted() -> Any:
        loads.append(1)
        return load()

    monkeypatch.setattr(model, "_load_model", counted)
    threads = [threading.Thread(target=model.embed, args=(["hello"], "query")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == [1]


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("0", "0"), ("1", "1")])
def test_onnxruntime_telemetry_is_disabled_before_import_unless_the_user_has_configured_telemetry(
    given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", given or "")
    if given is None:
        monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    monkeypatch.setitem(
        sys.modules, "onnxruntime", None
    )  # so that the import fails, and nothing happens later
    with pytest.raises(EmbeddingUnavailable):
        Encoder().embed(["text"], "query")
    assert os.environ["ORT_DISABLE_TELEMETRY"] == expected


def test_error_for_missing_onnxruntime_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EmbeddingUnavailable, match="needs the package onnxruntime"):
        Encoder().embed(["hello"], "query")


# An endpoint


def test_request_to_an_embedding_endpoint_has_the_openai_format(server: Server) -> None:
    vectors = EndpointEmbedder(server.url, "some-model", timeout=60).embed(["a", "b"], "query")
    ((path, headers, body),) = server.requests
    assert path == "/v1/embeddings"
    assert headers["Content-Type"] == "application/json"
    assert "Authorization" not in headers
    assert body == {"model": "some-model", "input": ["a", "b"]}
    assert vectors.tolist() == [[1, 0, 0], [0, 1, 0]]


def test_vectors_from_an_embedding_endpoint_are_normalized(server: Server) -> None:
    vectors = EndpointEmbedder(server.url, "m", timeout=60).embed(["aaabbbb", "c" * 9], "tool")
    assert vectors.dtype == np.float32
    assert vectors == pytest.approx(np.array([[0.6, 0.8, 0], [0, 0, 1]]))


@pytest.mark.parametrize("key", ["sk-secret", "  sk-secret\n"])
def test_embedding_api_key_is_sent_as_bearer_token(server: Server, key: str) -> None:
    EndpointEmbedder(server.url, "m", key=key, timeout=60).embed(["a"], "query")
    assert server.requests[0][1]["Authorization"] == "Bearer sk-secret"


@pytest.mark.parametrize("key", ["sk-se\ncret", "sk-sé€cret", "sk-se\x00cret"])
def test_embedding_api_key_with_characters_invalid_in_a_header_is_neither_sent_nor_put_in_errors(
    server: Server, key: str
) -> None:
    with pytest.raises(EmbeddingUnavailable, match="not allowed in a header") as failed:
        EndpointEmbedder(server.url, "m", key=key, timeout=60).embed(["a"], "query")
    assert "cret" not in str(failed.value)
    assert server.requests == []


def test_secrets_in_the_embedding_url_are_not_shown_in_errors() -> None:
    for url in ("http://anna:sk-secret@127.0.0.1:9/v1", "http://127.0.0.1:9/v1?key=sk-secret#sk-secret"):
        endpoint = EndpointEmbedder(url, "m")
        assert endpoint.name == "m at http://127.0.0.1:9/v1"
        with pytest.raises(EmbeddingUnavailable) as failed:
            endpoint.embed(["a"], "query")
        assert "secret" not in str(failed.value)
        assert "anna" not in str(failed.value)


def test_query_string_of_the_embedding_url_is_part_of_the_request(server: Server) -> None:
    EndpointEmbedder(f"{server.url}?api-version=1", "m", timeout=60).embed(["a"], "query")
    assert server.requests[0][0] == "/v1/embeddings?api-version=1"


@pytest.mark.parametrize(
    ("model", "query", "tool"),
    [
        ("nomic-embed-text", "search_query: a", "search_document: a"),
        ("nomic-embed-text-v2-moe:latest", "search_query: a", "search_document: a"),
        ("nomic-ai/nomic-embed-text-v1.5", "search_query: a", "search_document: a"),
        ("intfloat/multilingual-e5-small", "query: a", "passage: a"),
        ("text-embedding-3-small", "a", "a"),
        ("all-minilm-e55", "a", "a"),
    ],
)
def test_query_and_document_prefixes_of_nomic_and_e5_models_are_added_to_embedded_texts(
    server: Server, model: str, query: str, tool: str
) -> None:
    endpoint = EndpointEmbedder(server.url, model, timeout=60)
    endpoint.embed(["a"], "query")
    endpoint.embed(["a"], "tool")
    assert server.received_texts == [[query], [tool]]


def test_many_texts_are_embedded_in_batches_and_returned_in_order(server: Server) -> None:
    texts = ["a" * (n % 3) + "b" * (1 + n % 2) + "c" * n for n in range(7)]
    vectors = EndpointEmbedder(server.url, "m", batch=3, timeout=60).embed(texts, "tool")
    assert server.received_texts == [texts[:3], texts[3:6], texts[6:]]
    assert vectors == pytest.approx(normalize_rows(np.array(count_letters(texts), np.float32)))


def test_embedding_endpoint_gets_no_request_for_an_empty_list_of_texts(server: Server) -> None:
    assert len(EndpointEmbedder(server.url, "m", timeout=60).embed([], "tool")) == 0
    assert server.requests == []


def test_embeddings_in_a_response_are_ordered_by_their_index(server: Server) -> None:
    data = [{"index": 2, "embedding": [0, 0, 1]}, {"index": 0, "embedding": [1, 0, 0]}]
    server.handler = answer_with({"data": [*data, {"index": 1, "embedding": [0, 1, 0]}]})
    assert (
        EndpointEmbedder(server.url, "m", timeout=60).embed(["x", "y", "z"], "tool").tolist()
        == np.eye(3).tolist()
    )


def test_embeddings_without_an_index_keep_the_order_of_the_response(server: Server) -> None:
    server.handler = answer_with({"data": [{"embedding": [0, 1]}, {"embedding": [1, 0]}]})
    assert EndpointEmbedder(server.url, "m", timeout=60).embed(["x", "y"], "tool").tolist() == [
        [0, 1],
        [1, 0],
    ]


def test_zero_vector_from_an_embedding_endpoint_stays_zero(server: Server) -> None:
    assert EndpointEmbedder(server.url, "m", timeout=60).embed(["xyz"], "query").tolist() == [[0, 0, 0]]


def test_texts_with_lone_surrogates_are_sent_to_the_embedding_endpoint(server: Server) -> None:
    EndpointEmbedder(server.url, "m", timeout=60).embed(["a\ud800", "日本"], "query")
    assert server.requests[0][2]["input"] == ["a\ud800", "日本"]


INVALID_RESPONSES: dict[str, Any] = {
    "not JSON": b"<html>welcome</html>",
    "nothing": b"",
    "not UTF-8": b"\xff\xfe\xfa",
    "a list": [[1, 2], [3, 4]],
    "very long vectors": rows([1] * (MAX_DIMENSIONS + 1), [1] * (MAX_DIMENSIONS + 1)),
    "no data": {"object": "list"},
    "an error in a good answer": {"error": {"message": "model not found"}},
    "too few": rows([1, 2]),
    "too many": rows([1, 2], [3, 4], [5, 6]),
    "no embedding": {"data": [{"index": 0}, {"index": 1}]},
    "not objects": {"data": [[1, 2], [3, 4]]},
    "base64": rows("AACAPwAAAEA=", "AACAPwAAAEA="),
    "empty vectors": rows([], []),
    "lengths that differ": rows([1, 2], [1, 2, 3]),
    "words for numbers": rows(["one", 2], [3, 4]),
    "none for numbers": rows([None, 2], [3, 4]),
    "NaN": b'{"data": [{"embedding": [NaN, 1]}, {"embedding": [1, 2]}]}',
    "infinity": b'{"data": [{"embedding": [Infinity, 1]}, {"embedding": [1, 2]}]}',
    "more than a float holds": rows([1e300, 1], [1, 2]),
    "more than any float holds": rows([10**400, 1], [1, 2]),
    "nested without end": b"[" * 100_000,
    "one index twice": {"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [2]}]},
    "an index that is none": {"data": [{"index": "x", "embedding": [1]}, {"index": 0, "embedding": [2]}]},
    "an index beyond the end": {"data": [{"index": 0, "embedding": [1]}, {"index": 9, "embedding": [2]}]},
}


@pytest.mark.parametrize("answer", INVALID_RESPONSES.values(), ids=INVALID_RESPONSES.keys())
def test_embedding_endpoint_with_an_invalid_response_is_reported_as_unavailable(
    server: Server, answer: Any
) -> None:
    server.handler = answer_with(answer)
    with pytest.raises(
        EmbeddingUnavailable, match=r"m at http://127\.0\.0\.1.* is not available: ."
    ) as failed:
        EndpointEmbedder(server.url, "m", timeout=60).embed(["x", "y"], "query")
    assert len(str(failed.value)) < 400


def test_embedding_endpoint_that_changes_vector_length_between_batches_is_reported_as_unavailable(
    server: Server,
) -> None:
    def shrinking(request: EmbeddingRequest) -> None:
        request.send(json.dumps(rows([1.0] * (5 - len(server.requests)))).encode())

    server.handler = shrinking
    with pytest.raises(EmbeddingUnavailable, match="vectors of different lengths"):
        EndpointEmbedder(server.url, "m", batch=1, timeout=60).embed(["x", "y"], "tool")


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_embedding_endpoint_that_answers_with_an_http_error_is_reported_as_unavailable(
    server: Server, status: int
) -> None:
    server.handler = lambda request: request.send(b'{"error": "no"}', status)
    with pytest.raises(EmbeddingUnavailable, match=f"HTTP Error {status}"):
        EndpointEmbedder(server.url, "m", key="sk-secret", timeout=60).embed(["x"], "query")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_of_an_embedding_request_is_not_followed_to_protect_the_api_key(
    server: Server, status: int
) -> None:
    server.handler = lambda request: request.send(b"", status, location="/elsewhere")
    with pytest.raises(EmbeddingUnavailable, match=f"HTTP Error {status}"):
        EndpointEmbedder(server.url, "m", key="sk-secret", timeout=60).embed(["x"], "query")
    assert [path for path, _, _ in server.requests] == ["/v1/embeddings"]


def test_embedding_endpoint_slower_than_the_timeout_is_reported_as_unavailable(server: Server) -> None:
    server.handler = hang
    with pytest.raises(EmbeddingUnavailable, match="timed out"):
        EndpointEmbedder(server.url, "m", timeout=0.1).embed(["x"], "query")


def test_embedding_request_times_out_even_if_the_response_body_arrives_byte_by_byte(server: Server) -> None:
    def trickle(request: EmbeddingRequest) -> None:
        request.send(b"", length=100_000)
        while not server.ended.wait(0.02):  # or until nobody listens any more
            request.wfile.write(b" ")

    server.handler = trickle
    with pytest.raises(EmbeddingUnavailable, match="timed out"):
        EndpointEmbedder(server.url, "m", timeout=0.3).embed(["x"], "query")


def test_embedding_request_times_out_even_if_the_response_headers_arrive_byte_by_byte(
    server: Server,
) -> None:
    sent: list[int] = []
    server.handler = trickling_headers(sent)
    with pytest.raises(EmbeddingUnavailable, match="timed out"):
        EndpointEmbedder(server.url, "m", timeout=0.5).embed(["x"], "query")
    assert len(sent) < MAX_HEADERS


def test_endless_response_of_an_embedding_endpoint_is_aborted_with_a_too_long_error(server: Server) -> None:
    written: list[int] = []

    def flood(request: EmbeddingRequest) -> None:
        request.send(b"", length=1 << 40)
        written.extend(request.wfile.write(b" " * 100_000) for _ in range(1_000))

    server.handler = flood
    with pytest.raises(EmbeddingUnavailable, match="too long"):
        EndpointEmbedder(server.url, "m", timeout=20).embed(["x"], "query")
    assert sum(written) < 50_000_000


@pytest.mark.parametrize("fault", [close_connection_early, close_connection_mid_body, answer_with_ssh_banner])
def test_embedding_endpoint_that_breaks_the_connection_is_reported_as_unavailable(
    server: Server, fault: RequestHandler
) -> None:
    server.handler = fault
    with pytest.raises(EmbeddingUnavailable, match="is not available"):
        EndpointEmbedder(server.url, "m", timeout=60).embed(["x"], "query")


@check_cases(
    "url",
    ["", "localhost", "ftp://127.0.0.1/v1", "file:///etc/passwd", "data:,{}", "http://", "http://a b/c"],
)
def test_embedding_endpoint_whose_url_is_not_http_is_never_contacted(url: str) -> None:
    with pytest.raises(EmbeddingUnavailable):
        EndpointEmbedder(url, "m").embed(["x"], "query")


def test_embedding_endpoint_that_refuses_the_connection_is_reported_as_unavailable(server: Server) -> None:
    gone = Server()
    gone.server_close()
    with pytest.raises(EmbeddingUnavailable, match="is not available"):
        EndpointEmbedder(gone.url, "m").embed(["x"], "query")


class Clock:
    """Clock that a test advances by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def batch_sizes(server: Server) -> list[int]:
    return [len(texts) for texts in server.received_texts]


def error_text(endpoint: EndpointEmbedder, texts: Sequence[str] = ("a",)) -> str:
    with pytest.raises(EmbeddingUnavailable) as failed:
        endpoint.embed(texts, "query")
    return str(failed.value)


def test_failed_embedding_endpoint_gets_no_request_until_its_backoff_time_has_passed(server: Server) -> None:
    clock = Clock()
    endpoint = EndpointEmbedder(server.url, "m", clock=clock, timeout=60)
    server.handler = answer_500
    error_text(endpoint)
    server.handler = answer_normally
    assert "HTTP Error 500" in error_text(endpoint)
    assert len(server.requests) == 1
    clock.now += 5
    assert endpoint.embed(["a"], "query").tolist() == [[1, 0, 0]]
    endpoint.embed(["b"], "query")
    assert len(server.requests) == 3


def test_error_for_a_failed_embedding_endpoint_states_the_reason_and_the_seconds_until_the_retry(
    server: Server,
) -> None:
    clock = Clock()
    endpoint = EndpointEmbedder(server.url, "m", clock=clock, timeout=60)
    server.handler = answer_500
    error_text(endpoint)
    clock.now += 1.5
    assert error_text(endpoint).endswith("Internal Server Error (next attempt in 4 s)")


def test_backoff_of_an_embedding_endpoint_grows_with_repeated_failures(server: Server) -> None:
    clock = Clock()
    endpoint = EndpointEmbedder(server.url, "m", clock=clock, timeout=60)
    server.handler = answer_500
    asked_at: list[float] = []
    for _ in range(1_200):
        error_text(endpoint)
        if len(server.requests) > len(asked_at):
            asked_at.append(clock.now)
        clock.now += 1
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked_at)]
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]


def test_backoff_of_an_embedding_endpoint_is_reset_after_a_successful_request(server: Server) -> None:
    clock = Clock()
    endpoint = EndpointEmbedder(server.url, "m", clock=clock, timeout=60)
    for pause in (5, 10, 20):
        server.handler = answer_500
        error_text(endpoint)
        clock.now += pause
    server.handler = answer_normally
    endpoint.embed(["a"], "query")
    server.handler = answer_500
    error_text(endpoint)
    server.handler = answer_normally
    clock.now += 5
    endpoint.embed(["a"], "query")


def test_first_embedding_request_after_a_failure_contains_only_one_text(
    server: Server,
) -> None:
    clock = Clock()
    endpoint = EndpointEmbedder(server.url, "m", clock=clock, timeout=60)
    server.handler = answer_500
    error_text(endpoint, "abc")
    clock.now += 5
    error_text(endpoint, "abc")
    server.handler = answer_normally
    clock.now += 10
    assert endpoint.embed("abc", "tool").tolist() == np.eye(3).tolist()
    assert batch_sizes(server) == [3, 1, 1, 2]


def test_other_threads_get_the_error_while_one_thread_retries_a_failed_embedding_endpoint(
    server: Server,
) -> None:
    clock = Clock()
    endpoint = EndpointEmbedder(server.url, "m", clock=clock, timeout=60)
    server.handler = answer_500
    error_text(endpoint)
    clock.now += 5
    others: list[str] = []

    def ask_meanwhile(request: EmbeddingRequest) -> None:
        others.append(error_text(endpoint))
        answer_normally(request)

    server.handler = ask_meanwhile
    endpoint.embed(["a"], "query")
    assert len(others) == 1
    assert len(server.requests) == 2


def test_concurrent_failed_requests_to_an_embedding_endpoint_increase_its_backoff_only_once(
    server: Server,
) -> None:
    clock, together = Clock(), threading.Barrier(3)
    endpoint = EndpointEmbedder("http://127.0.0.1:9/", "m", clock=clock)
    inner = endpoint._request_vectors

    def in_step(texts: list[str]) -> Matrix:
        together.wait(60)
        return inner(texts)

    endpoint._request_vectors = in_step  # type: ignore[method-assign]
    threads = [threading.Thread(target=error_text, args=(endpoint,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert error_text(endpoint).endswith("(next attempt in 5 s)")


@pytest.mark.parametrize("status", [400, 413, 422])
def test_batch_of_texts_that_an_embedding_endpoint_rejects_as_too_large_is_halved(
    server: Server, status: int
) -> None:
    server.handler = limit_batch(5, status)
    endpoint = EndpointEmbedder(server.url, "m", batch=16, timeout=60)
    texts = ["a" * n + "b" * (n % 7) for n in range(1, 21)]
    vectors = endpoint.embed(texts, "tool")
    assert vectors == pytest.approx(normalize_rows(np.array(count_letters(texts), np.float32)))
    assert batch_sizes(server) == [16, 8, 4, 4, 4, 4, 4]


def test_batch_size_that_an_embedding_endpoint_accepted_is_used_for_the_next_texts(server: Server) -> None:
    server.handler = limit_batch(4, 413)
    endpoint = EndpointEmbedder(server.url, "m", batch=8, timeout=60)
    endpoint.embed("abcabcab", "tool")
    server.requests.clear()
    endpoint.embed("abcabcab", "tool")
    assert batch_sizes(server) == [4, 4]


def test_batch_that_an_embedding_endpoint_keeps_rejecting_is_halved_down_to_one_text(server: Server) -> None:
    server.handler = limit_batch(0, 400)
    endpoint = EndpointEmbedder(server.url, "m", batch=8, timeout=60)
    assert "HTTP Error 400" in error_text(endpoint, "abcabcab")
    assert batch_sizes(server) == [8, 4, 2, 1]
    server.requests.clear()
    error_text(endpoint, "abcabcab")
    assert batch_sizes(server) == []


def test_batch_after_an_embedding_timeout_has_half_as_many_texts(server: Server) -> None:
    clock, given_up = Clock(), threading.Event()

    def slow(request: EmbeddingRequest) -> None:
        if len(request.body["input"]) > 2:
            given_up.wait(60)
        answer_normally(request)

    server.handler = slow
    endpoint = EndpointEmbedder(server.url, "m", batch=4, timeout=3, clock=clock)
    assert "timed out" in error_text(endpoint, "abca")
    given_up.set()
    clock.now += 5
    assert len(endpoint.embed("abca", "tool")) == 4
    assert batch_sizes(server) == [4, 1, 2, 1]


def test_embedding_endpoints_with_different_models_or_urls_have_different_names() -> None:
    endpoints = [
        EndpointEmbedder("http://a/", "m"),
        EndpointEmbedder("http://b/", "m"),
        EndpointEmbedder("http://a/", "n"),
    ]
    assert len({each.name for each in endpoints}) == 3


# A function


def test_python_function_can_be_the_embedding_model_and_its_vectors_are_normalized() -> None:
    model = FunctionEmbedder(count_letters, "letters")
    assert model.name == "letters"
    assert model.embed(["aaabbbb"], "query") == pytest.approx(np.array([[0.6, 0.8, 0]]))


def test_embedding_function_without_a_name_is_named_after_its_type() -> None:
    class Model:
        def __call__(self, texts: Sequence[str]) -> Matrix:
            return np.ones((len(texts), 2), np.float32)

    assert FunctionEmbedder(Model()).name == "Model"
    assert FunctionEmbedder(count_letters).name == "count_letters"


@pytest.mark.parametrize(
    "answer",
    [
        *(None, [], [1, 2], [[1, 2]], [[1, 2]] * 3, [[], []], [[1, 2], [1]], [["a"], ["b"]], [[[1]], [[2]]]),
        pytest.param([[1] * (MAX_DIMENSIONS + 1)] * 2, id="very long vectors"),
    ],
)
def test_embedding_function_that_does_not_return_vectors_is_reported_as_unavailable(answer: Any) -> None:
    with pytest.raises(EmbeddingUnavailable, match=r"^mine (returned|failed)"):
        FunctionEmbedder(lambda texts: answer, "mine").embed(["x", "y"], "query")


@check_cases("number", [float("nan"), float("inf")])
def test_embedding_function_that_returns_nan_is_reported_as_unavailable(number: float) -> None:
    with pytest.raises(EmbeddingUnavailable, match="not a finite number"):
        FunctionEmbedder(lambda texts: [[number, 1]], "mine").embed(["x"], "query")


def test_embedding_function_that_raises_an_exception_is_reported_as_unavailable() -> None:
    def broken(texts: Sequence[str]) -> None:
        raise KeyError("no such model")

    with pytest.raises(EmbeddingUnavailable, match=r"broken failed: .*no such model"):
        FunctionEmbedder(broken).embed(["x"], "query")


# Normalization


def test_vectors_with_very_large_numbers_are_normalized_without_overflow() -> None:
    assert normalize_rows(np.array([[3e38, 3e38]], np.float32)) == pytest.approx(np.array([[0.5**0.5] * 2]))


def test_normalizing_a_zero_vector_keeps_it_zero() -> None:
    assert normalize_rows(np.zeros((2, 3), np.float32)).tolist() == [[0, 0, 0], [0, 0, 0]]
