"""Embedding models, which turn texts into unit vectors.

Two models ship with the package and need no network: the encoder and the light model. The default combines
both, see `multilingual`. Any server with an OpenAI-compatible `/v1/embeddings` endpoint, or any Python
function, can replace them. A model that cannot answer raises EmbeddingUnavailable; the caller decides what
happens then.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import logging
import math
import os
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file
from importlib.resources.abc import Traversable
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from toolfold.core.errors import SourceError, error_message, shorten
from toolfold.core.json_http import REQUEST_ERRORS, JsonEndpoint, redact_url
from toolfold.selection.retrieval.subwords import Unigram, WordPiece
from toolfold.selection.retrieval.vectors import MAX_DIMENSIONS
from toolfold.selection.retrieval.weight_files import load_arrays, shipped_weights

log = logging.getLogger(__name__)

Matrix = NDArray[np.float32]
Kind = Literal["query", "tool"]

MAX_QUERY_TOKENS = 64
MAX_TOOL_TOKENS = 112
MAX_LIGHT_TOKENS = 256
_INITIAL_BACKOFF_S, _MAX_BACKOFF_S = 5.0, 300.0
_SIZE_ERROR_STATUSES = frozenset({400, 413, 422})
_MAX_FLOAT32 = float(np.finfo(np.float32).max)


class EmbeddingUnavailable(SourceError):
    """The embedding model cannot compute vectors now, for example because its server is down."""


class OutageLog:
    """Log that reports an outage of the embedding model only once, however many components notice it."""

    def __init__(self, consequence: str = "tools are found by keywords only") -> None:
        self._consequence, self._warned = consequence, False

    def warn_once(self, problem: str) -> bool:
        """Log a problem as a warning, the first time only; return True if it was logged."""
        is_first = not self._warned
        if is_first:
            self._warned = True
            log.warning("%s: %s", self._consequence, problem)
        return is_first


class Embedder(Protocol):
    """Model that turns texts into vectors."""

    @property
    def name(self) -> str:
        """Return the model's name, which is part of the index file's name: each model has its own index."""

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:
        """Return one unit vector per text, in the same order."""


@dataclass(frozen=True, slots=True, eq=False)
class QueryEncoding:
    """Vectors of a message and of its parts, and the hidden states of the message's tokens."""

    vectors: Matrix
    """The message's vector, then one row per part."""
    states: Matrix | None = None
    """Hidden states of the message from the model's lower layers, one row per token."""


@runtime_checkable
class QueryEncoder(Protocol):
    """Embedder that also returns the hidden states of a message's tokens."""

    def read(self, message: str, parts: Sequence[str] = ()) -> QueryEncoding:
        """Return the vectors of a message and of its parts, and the hidden states of its tokens."""


class Encoder:
    """Small English transformer, trained on pairs of a message and the tool it needs."""

    name = "encoder-3"

    def __init__(self, *, threads: int = 1, weights: Traversable | None = None) -> None:
        self._threads, self._weights = threads, weights or shipped_weights()
        self._lock = threading.Lock()
        self._cached_model: tuple[Any, WordPiece] | None = None

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:
        session, pieces = self._get_model()
        limit = MAX_QUERY_TOKENS if kind == "query" else MAX_TOOL_TOKENS
        vectors: Matrix = np.zeros((len(texts), 384), np.float32)
        # One by one: faster than a padded batch, and no text influences the vector of another.
        for position, text in enumerate(texts):
            vectors[position] = _run_session(session, pieces.ids(text, limit)).vector
        return vectors

    def read(self, message: str, parts: Sequence[str] = ()) -> QueryEncoding:
        """Return the vectors of a message and of its parts, and the hidden states of the message's tokens.

        The model runs once: the vector of a part is the mean of its tokens' states in the message. A part
        beyond the tokens that the model reads is embedded by itself.
        """
        session, pieces = self._get_model()
        ids = pieces.ids(message, MAX_QUERY_TOKENS)
        whole = _run_session(session, ids)
        rows = [whole.vector]
        end = 1
        for part in parts:
            own = pieces.ids(part, MAX_QUERY_TOKENS)
            start = _find_sequence(ids, own[1:-1], end)
            if start is None:
                rows.append(_run_session(session, own).vector)
            else:
                end = start + len(own) - 2
                rows.append(normalize_rows(whole.tokens[start:end].sum(0, keepdims=True))[0])
        return QueryEncoding(np.stack(rows), whole.states)

    def message_mean(self) -> Matrix:
        """Return the mean vector of the example messages that ship with the package."""
        return read_message_mean(self._weights, "encoder", 384)

    def pieces(self, word: str) -> int:
        """Return the number of subword pieces in a word; 1 if the vocabulary contains the whole word."""
        return self._get_model()[1].count(word)

    def _get_model(self) -> tuple[Any, WordPiece]:
        with self._lock:
            if self._cached_model is None:
                self._cached_model = self._load_model()
            return self._cached_model

    def _load_model(self) -> tuple[Any, WordPiece]:
        onnxruntime = _import_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        with as_file(self._weights.joinpath("encoder.onnx")) as model:
            session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        described = json.loads(self._weights.joinpath("tokenizer.json").read_bytes())
        numbers: dict[str, int] = described["model"]["vocab"]
        return session, WordPiece(sorted(numbers, key=numbers.__getitem__))


@functools.cache
def shipped_encoder() -> Encoder:
    """Return the encoder; the whole process shares one instance, because each instance takes 40 MB."""
    return Encoder()


def _import_onnxruntime() -> Any:
    """Import onnxruntime with its telemetry disabled.

    By default it writes a device id and an event database to the user's cache directory and looks up the
    address of a collector about ten seconds later. It reads this environment variable during import;
    calling its `disable_telemetry_events` afterwards is too late. A value that the user has set is not
    overwritten.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise EmbeddingUnavailable(
            f"the encoder needs the package onnxruntime, which cannot be imported: {error}"
        ) from None
    return onnxruntime


class _EncoderOutput(NamedTuple):
    """Encoder output for a text: its vector and the hidden states of its tokens."""

    vector: Matrix
    states: Matrix
    """States of the tokens after the lower layers."""
    tokens: Matrix
    """States of the tokens after the last layer, whose mean is the vector."""


def _run_session(session: Any, ids: Sequence[int]) -> _EncoderOutput:
    row = np.array([ids], np.int64)
    outputs = session.run(None, {"ids": row})
    return _EncoderOutput(*(each[0] for each in outputs))


def _find_sequence(ids: Sequence[int], wanted: Sequence[int], start: int) -> int | None:
    """Return the position of a sequence of token ids, at `start` or later; None if it does not occur."""
    if not wanted:
        return None
    last = len(ids) - len(wanted)
    return next((at for at in range(start, last) if ids[at : at + len(wanted)] == wanted), None)


class LightEmbedder:
    """Embedding model that adds up one vector per token. Takes 0.1 ms per text, at lower quality."""

    name = "light-1"
    width = 192

    def __init__(self, *, weights: Traversable | None = None) -> None:
        self._weights = weights or shipped_weights()
        self._lock = threading.Lock()
        self._cached_model: tuple[Any, Matrix, Unigram] | None = None

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:  # noqa: ARG002  (both are read alike)
        rows, scales, pieces = self._get_model()
        vectors: Matrix = np.zeros((len(texts), rows.shape[1]), np.float32)
        for position, text in enumerate(texts):
            ids = np.array(pieces.ids(text, MAX_LIGHT_TOKENS), np.intp)
            if len(ids):
                vectors[position] = (rows[ids] * scales[ids]).sum(0)
        return normalize_rows(vectors)

    def message_mean(self) -> Matrix:
        """Return the mean vector of the example messages that ship with the package."""
        return read_message_mean(self._weights, "light", self.width)

    def _get_model(self) -> tuple[Any, Matrix, Unigram]:
        with self._lock:
            if self._cached_model is None:
                self._cached_model = self._load_model()
            return self._cached_model

    def _load_model(self) -> tuple[Any, Matrix, Unigram]:
        weights = self._weights
        stored = load_arrays(weights.joinpath("static.arrays"))
        rows, scales = stored["rows"], stored["scales"].astype(np.float32)[:, None]
        packed = weights.joinpath("static.tokenizer.json.gz").read_bytes()
        pieces = json.loads(gzip.decompress(packed))["model"]["vocab"]
        scores = dict(pieces[1:])  # the first piece is the unknown token
        return rows, scales, Unigram(scores, {piece: n for n, (piece, _) in enumerate(pieces) if n})


@functools.cache
def shipped_light_embedder() -> LightEmbedder:
    """Return the light model that all runtimes of the process share, because loading it takes 40 ms."""
    return LightEmbedder()


class EndpointEmbedder:
    """Embedding model behind an OpenAI-compatible `/v1/embeddings` endpoint: Ollama, vLLM or a provider.

    After a failure the endpoint is not contacted for a while, so that an unreachable server does not cost
    every message a timeout. If the server rejects a request as too large, later requests use smaller
    batches.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str = "",
        timeout: float = 5.0,
        batch: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = f"{model} at {redact_url(url)}"
        self._model, self._batch = model, batch
        self._exchange = JsonEndpoint(url, key=key, timeout=timeout)
        self._backoff = _Backoff(clock)

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:
        left = [self._task_prefix(kind) + text for text in texts]
        parts: list[Matrix] = []
        while left:
            with self._backoff.attempt() as is_probe:
                part = self._embed_first_batch(left[: 1 if is_probe else self._batch])
            parts.append(part)
            del left[: len(part)]
        if len({part.shape[1] for part in parts}) > 1:
            raise EmbeddingUnavailable(f"{self.name} returned vectors of different lengths")
        return normalize_rows(np.concatenate(parts)) if parts else np.zeros((0, 0), np.float32)

    def _embed_first_batch(self, texts: list[str]) -> Matrix:
        """Embed the first texts, as many as the server accepts in one request."""
        count = len(texts)
        while True:
            try:
                vectors = self._request_vectors(texts[:count])
            except _RequestTooLarge:
                if count == 1:
                    raise
                count //= 2
            else:
                if count < len(texts):
                    self._batch = count
                return vectors

    def _task_prefix(self, kind: Kind) -> str:
        """Return the prefix that this model family expects before a query or a document."""
        if "nomic" in self._model:
            return "search_query: " if kind == "query" else "search_document: "
        if "e5" in self._model.split("/")[-1].split("-"):
            return "query: " if kind == "query" else "passage: "
        return ""

    def _request_vectors(self, texts: list[str]) -> Matrix:
        try:
            most = 256 * 1024 * len(texts) + 65_536
            return _parse_embeddings(
                self._exchange({"model": self._model, "input": texts}, max_bytes=most), len(texts)
            )
        except urllib.error.HTTPError as error:
            kind = _RequestTooLarge if error.code in _SIZE_ERROR_STATUSES else EmbeddingUnavailable
            raise kind(self._describe_error(error)) from None
        except TimeoutError as error:
            if len(texts) > 1:  # reachable but slow: send smaller batches
                self._batch = max(self._batch // 2, 1)
            raise EmbeddingUnavailable(self._describe_error(error)) from error
        except REQUEST_ERRORS as error:
            raise EmbeddingUnavailable(self._describe_error(error)) from error

    def _describe_error(self, error: Exception) -> str:
        return f"{self.name} is not available: {shorten(error_message(error))}"


class _RequestTooLarge(EmbeddingUnavailable):
    """The embedding server rejected a request, maybe because it was too large."""


class _Backoff:
    """Exponential backoff after failed requests to an embedding server, reset by the first success."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._failures, self._retry_at, self._problem = 0, 0.0, ""

    @contextlib.contextmanager
    def attempt(self) -> Iterator[bool]:
        """Run one request in a `with` block; yield True if it is a retry after failed requests.

        Raises EmbeddingUnavailable during the backoff.
        """
        failures = self._start_attempt()
        try:
            yield failures > 0
        except EmbeddingUnavailable as error:
            self._record_outcome(failures + 1, str(error))  # concurrent failures count as one
            raise
        self._record_outcome(0)

    def _start_attempt(self) -> int:
        with self._lock:
            left = self._retry_at - self._clock()
            if self._failures and left > 0:
                raise EmbeddingUnavailable(f"{self._problem} (next attempt in {math.ceil(left)} s)")
            self._schedule_retry()  # only one waiting thread sends the probe
            return self._failures

    def _record_outcome(self, failures: int, problem: str = "") -> None:
        with self._lock:
            self._failures, self._problem = failures, problem or self._problem
            self._schedule_retry()

    def _schedule_retry(self) -> None:
        pause = min(_INITIAL_BACKOFF_S * 2 ** min(self._failures - 1, 30), _MAX_BACKOFF_S)
        self._retry_at = self._clock() + pause


class FunctionEmbedder:
    """Embedding model that calls a Python function given by the user."""

    def __init__(self, function: Callable[[Sequence[str]], Any], name: str | None = None) -> None:
        self.name = name or str(getattr(function, "__qualname__", type(function).__name__))
        self._function = function

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:  # noqa: ARG002  (the function takes texts only)
        try:
            found = np.asarray(self._function(texts), np.float32)
        except Exception as error:  # user code: whatever it raises, keyword search still works
            raise EmbeddingUnavailable(f"{self.name} failed: {shorten(str(error))}") from error
        if found.ndim != 2 or len(found) != len(texts) or not found.shape[1]:
            raise EmbeddingUnavailable(
                f"{self.name} returned an array of shape {found.shape} for {len(texts)} texts"
            )
        if found.shape[1] > MAX_DIMENSIONS:
            raise EmbeddingUnavailable(
                f"{self.name} returned vectors of more than {MAX_DIMENSIONS:,} numbers"
            )
        if not np.isfinite(found).all():
            raise EmbeddingUnavailable(f"{self.name} returned a value that is not a finite number")
        return normalize_rows(found)


def read_message_mean(weights: Traversable, model: str, width: int) -> Matrix:
    """Return a model's mean vector of example messages; a zero vector if the weights contain none."""
    file = weights.joinpath("message_means.arrays")
    return load_arrays(file)[model] if file.is_file() else np.zeros(width, np.float32)


def normalize_rows(vectors: Matrix) -> Matrix:
    """Scale each row of a matrix to length one; a zero row stays zero."""
    precise = vectors.astype(np.float64)  # squares may overflow float32
    lengths = np.sqrt(np.vecdot(precise, precise))[:, None]
    scaled: Matrix = (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)
    return scaled


def _parse_embeddings(answer: Any, count: int) -> Matrix:
    """Return the vectors in an endpoint's response, in the order of the texts. Raises ValueError."""
    data = answer.get("data") if isinstance(answer, Mapping) else None
    if not isinstance(data, list) or len(data) != count:
        raise ValueError(f"the response does not contain {count} embeddings")
    if not all(isinstance(each, Mapping) and isinstance(each.get("embedding"), list) for each in data):
        raise ValueError("an item of the response of the embedding server has no embedding")
    by_index = {str(each.get("index", position)): each["embedding"] for position, each in enumerate(data)}
    if by_index.keys() != set(map(str, range(count))):
        raise ValueError("the response of the embedding server does not have one embedding for each text")
    rows = [by_index[str(position)] for position in range(count)]
    if len({len(row) for row in rows}) != 1 or not rows[0]:
        raise ValueError("the embeddings have different lengths")
    if len(rows[0]) > MAX_DIMENSIONS:
        raise ValueError(f"the embeddings have more than {MAX_DIMENSIONS:,} numbers")
    if not all(isinstance(x, (int, float)) and abs(x) <= _MAX_FLOAT32 for row in rows for x in row):
        raise ValueError("an embedding contains a value that is not a number")
    return np.asarray(rows, np.float32)
