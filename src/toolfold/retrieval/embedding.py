"""The semantic leg's models: from texts to unit vectors.

Two models come with the package and need nothing from outside: the encoder and the light one; the default
is both, see `polyglot`. Any endpoint that speaks OpenAI's `/v1/embeddings`, and any Python function, can
stand in their place. A model that cannot answer raises EmbeddingUnavailable; what to do then is the
caller's to say.
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
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from toolfold.errors import SourceError, error_message, shorten
from toolfold.exchange import FAILURES, Exchange, tellable
from toolfold.retrieval.pieces import Unigram, WordPiece
from toolfold.retrieval.vectors import WIDEST

log = logging.getLogger(__name__)

Matrix = NDArray[np.float32]
Kind = Literal["query", "tool"]

QUERY_TOKENS = 64
TOOL_TOKENS = 112
LIGHT_TOKENS = 256
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
_REFUSES_SIZE = frozenset({400, 413, 422})
_LARGEST = float(np.finfo(np.float32).max)


class EmbeddingUnavailable(SourceError):
    """The model cannot answer now."""


class Outage:
    """Says that a model is away and what follows from it, once, whichever part of the search notices."""

    def __init__(self, consequence: str = "tools are found by keywords only") -> None:
        self._consequence, self._said = consequence, False

    def tell(self, problem: str) -> None:
        """Log it, unless it was."""
        if not self._said:
            self._said = True
            log.warning("%s: %s", self._consequence, problem)


class Embedder(Protocol):
    """The whole contract of a semantic leg."""

    @property
    def name(self) -> str:
        """Part of the index's checksum: another model, another index."""

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:
        """One unit vector a text, in their order."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What a model makes of messages."""

    vectors: Matrix
    states: Matrix | None = None
    """What the model's lowest layers made of each token of the first: how it is said, not only what."""


@runtime_checkable
class Reader(Protocol):
    """A semantic leg that also tells how a message is said."""

    def read(self, messages: Sequence[str]) -> Reading:
        """The messages, in their order."""


class Encoder:
    """A small transformer trained on messages and the tools they meant. Reads English."""

    name = "encoder-2"

    def __init__(self, *, threads: int = 1, weights: Traversable | None = None) -> None:
        self._threads, self._weights = threads, weights or shipped_weights()
        self._lock = threading.Lock()
        self._loaded: tuple[Any, WordPiece] | None = None

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:
        session, pieces = self._model()
        limit = QUERY_TOKENS if kind == "query" else TOOL_TOKENS
        vectors: Matrix = np.zeros((len(texts), 384), np.float32)
        for place, text in enumerate(texts):  # one by one: faster than padded, and no text changes another's
            vectors[place], _ = _run(session, pieces.ids(text, limit))
        return vectors

    def read(self, messages: Sequence[str]) -> Reading:
        """The messages, and what the lowest layers made of the first."""
        session, pieces = self._model()
        found = [_run(session, pieces.ids(text, QUERY_TOKENS)) for text in messages]
        vectors: Matrix = np.zeros((len(found), 384), np.float32)
        for place, (vector, _) in enumerate(found):
            vectors[place] = vector
        return Reading(vectors, found[0][1] if found else None)

    def pieces(self, word: str) -> int:
        """Into how many pieces this model cuts a word: one, if it knows it."""
        return self._model()[1].count(word)

    def _model(self) -> tuple[Any, WordPiece]:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> tuple[Any, WordPiece]:
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
    """The one that search and scan share: each of its own would be 40 MB more."""
    return Encoder()


def _import_onnxruntime() -> Any:
    """Import the inference engine, without its telemetry.

    Otherwise it writes a device id and a database of events to the user's cache folder, and looks up the
    address of a collector some ten seconds later. It reads this variable while it is imported; its own
    `disable_telemetry_events` comes too late. Whoever has set the variable has decided.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise EmbeddingUnavailable(f"the encoder needs the package onnxruntime: {error}") from None
    return onnxruntime


def _run(session: Any, ids: Sequence[int]) -> tuple[Matrix, Matrix | None]:
    """The vector of a text, and what the lowest layers leave of its tokens, where the model tells."""
    row = np.array([ids], np.int64)
    vectors, *states = session.run(None, {"ids": row, "mask": np.ones_like(row)})
    return vectors[0], states[0][0] if states else None


class Light:
    """A vector a token, added up: a tenth of a millisecond, for a part of the quality."""

    name = "light-1"
    width = 192

    def __init__(self, *, weights: Traversable | None = None) -> None:
        self._weights = weights or shipped_weights()
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Matrix, Unigram] | None = None

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:  # noqa: ARG002  (both are read alike)
        rows, scales, pieces = self._model()
        vectors: Matrix = np.zeros((len(texts), rows.shape[1]), np.float32)
        for place, text in enumerate(texts):
            ids = np.array(pieces.ids(text, LIGHT_TOKENS), np.intp)
            if len(ids):
                vectors[place] = (rows[ids] * scales[ids]).sum(0)
        return unit(vectors)

    def _model(self) -> tuple[Any, Matrix, Unigram]:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> tuple[Any, Matrix, Unigram]:
        weights = self._weights
        with weights.joinpath("static.npz").open("rb") as file, np.load(file) as stored:
            rows, scales = stored["rows"], stored["scales"].astype(np.float32)[:, None]
        packed = weights.joinpath("static.tokenizer.json.gz").read_bytes()
        pieces = json.loads(gzip.decompress(packed))["model"]["vocab"]
        scores = dict(pieces[1:])  # the first stands for what is unknown
        return rows, scales, Unigram(scores, {piece: n for n, (piece, _) in enumerate(pieces) if n})


class Endpoint:
    """Any server that speaks OpenAI's `/v1/embeddings`: Ollama, vLLM, a provider.

    After a failure it is left alone for a while, so that one that is away does not cost every message its
    time limit. What it refuses as too much at once is sent in smaller batches from then on.
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
        self.name = f"{model} at {tellable(url)}"
        self._model, self._batch = model, batch
        self._exchange = Exchange(url, key=key, timeout=timeout)
        self._patience = _Patience(clock)

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:
        left = [self._prefix(kind) + text for text in texts]
        parts: list[Matrix] = []
        while left:
            with self._patience.attempt() as is_probe:
                part = self._at_once(left[: 1 if is_probe else self._batch])
            parts.append(part)
            del left[: len(part)]
        if len({part.shape[1] for part in parts}) > 1:
            raise EmbeddingUnavailable(f"{self.name} answered with vectors of different lengths")
        return unit(np.concatenate(parts)) if parts else np.zeros((0, 0), np.float32)

    def _at_once(self, texts: list[str]) -> Matrix:
        """The vectors of the first of the texts: as many as the server takes in one request."""
        count = len(texts)
        while True:
            try:
                vectors = self._ask(texts[:count])
            except _TooMuch:
                if count == 1:
                    raise
                count //= 2
            else:
                if count < len(texts):
                    self._batch = count
                return vectors

    def _prefix(self, kind: Kind) -> str:
        """What models of this family were trained to read before a query and before a document."""
        if "nomic" in self._model:
            return "search_query: " if kind == "query" else "search_document: "
        if "e5" in self._model.split("/")[-1].split("-"):
            return "query: " if kind == "query" else "passage: "
        return ""

    def _ask(self, texts: list[str]) -> Matrix:
        try:
            most = 256 * 1024 * len(texts) + 65_536
            return _vectors(self._exchange({"model": self._model, "input": texts}, most=most), len(texts))
        except urllib.error.HTTPError as error:
            kind = _TooMuch if error.code in _REFUSES_SIZE else EmbeddingUnavailable
            raise kind(self._problem(error)) from None
        except TimeoutError as error:
            if len(texts) > 1:  # it was reached and is slow: less at once next time
                self._batch = max(self._batch // 2, 1)
            raise EmbeddingUnavailable(self._problem(error)) from error
        except FAILURES as error:
            raise EmbeddingUnavailable(self._problem(error)) from error

    def _problem(self, error: Exception) -> str:
        return f"{self.name} does not answer: {shorten(error_message(error))}"


class _TooMuch(EmbeddingUnavailable):
    """The server refuses the request in a way that may be about its size."""


class _Patience:
    """How long one that failed is left alone: longer after every failure, until it answers."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._failures, self._until, self._problem = 0, 0.0, ""

    @contextlib.contextmanager
    def attempt(self) -> Iterator[bool]:
        """Around each request: true for the one that finds out whether the server is back.

        Raises EmbeddingUnavailable where it is too early to ask.
        """
        failures = self._begin()
        try:
            yield failures > 0
        except EmbeddingUnavailable as error:
            self._note(failures + 1, str(error))  # several that fail together are one failure
            raise
        self._note(0)

    def _begin(self) -> int:
        with self._lock:
            left = self._until - self._clock()
            if self._failures and left > 0:
                raise EmbeddingUnavailable(f"{self._problem} (it is asked again in {math.ceil(left)} s)")
            self._rest()  # of all who wait for it, one asks
            return self._failures

    def _note(self, failures: int, problem: str = "") -> None:
        with self._lock:
            self._failures, self._problem = failures, problem or self._problem
            self._rest()

    def _rest(self) -> None:
        pause = min(_FIRST_PAUSE * 2 ** min(self._failures - 1, 30), _LONGEST_PAUSE)
        self._until = self._clock() + pause


class Function:
    """Any Python function from texts to vectors."""

    def __init__(self, function: Callable[[Sequence[str]], Any], name: str | None = None) -> None:
        self.name = name or str(getattr(function, "__qualname__", type(function).__name__))
        self._function = function

    def embed(self, texts: Sequence[str], kind: Kind) -> Matrix:  # noqa: ARG002  (it sees texts only)
        try:
            found = np.asarray(self._function(texts), np.float32)
        except Exception as error:  # whatever it raises, the other leg can still answer
            raise EmbeddingUnavailable(f"{self.name} failed: {shorten(str(error))}") from error
        if found.ndim != 2 or len(found) != len(texts) or not found.shape[1]:
            raise EmbeddingUnavailable(f"{self.name} gave {found.shape} for {len(texts)} texts")
        if found.shape[1] > WIDEST:
            raise EmbeddingUnavailable(f"{self.name} gave vectors of more than {WIDEST:,} numbers")
        if not np.isfinite(found).all():
            raise EmbeddingUnavailable(f"{self.name} gave what is not a number")
        return unit(found)


def shipped_weights() -> Traversable:
    """Where the models that come with the package lie."""
    return files("toolfold").joinpath("retrieval/weights")


def unit(vectors: Matrix) -> Matrix:
    """Scaled to length one; what has no direction stays zero."""
    exactly = vectors.astype(np.float64)  # squares may be huge
    lengths = np.sqrt(np.vecdot(exactly, exactly))[:, None]
    scaled: Matrix = (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)
    return scaled


def _vectors(answer: Any, count: int) -> Matrix:
    """The vectors of an endpoint's answer, in the order of what was sent. Raises ValueError."""
    data = answer.get("data") if isinstance(answer, Mapping) else None
    if not isinstance(data, list) or len(data) != count:
        raise ValueError(f"expected {count} embeddings")
    if not all(isinstance(each, Mapping) and isinstance(each.get("embedding"), list) for each in data):
        raise ValueError("an embedding is missing")
    placed = {str(each.get("index", place)): each["embedding"] for place, each in enumerate(data)}
    if placed.keys() != set(map(str, range(count))):
        raise ValueError("embeddings that do not say which text they belong to")
    rows = [placed[str(place)] for place in range(count)]
    if len({len(row) for row in rows}) != 1 or not rows[0]:
        raise ValueError("embeddings of different lengths")
    if len(rows[0]) > WIDEST:
        raise ValueError(f"embeddings of more than {WIDEST:,} numbers")
    if not all(isinstance(x, (int, float)) and abs(x) <= _LARGEST for row in rows for x in row):
        raise ValueError("an embedding that is not numbers")
    return np.asarray(rows, np.float32)
