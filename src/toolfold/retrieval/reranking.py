"""Rerank the tools found by keywords and vectors, with similarities from an embedding service.

One request per message. A tool's vector is requested once and cached in memory and in a file, under a
hash of the model name and the tool's text. On any failure there is no reranking and the first ranking is
used. The caller selects the shortlist and combines the rankings.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import re
import tempfile
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from toolfold.model import Tool
from toolfold.retrieval.array_files import open_arrays
from toolfold.retrieval.document import query_text
from toolfold.retrieval.embedding import Embedder, EmbeddingUnavailable, Matrix, OutageLog
from toolfold.retrieval.index import embedding_text

log = logging.getLogger(__name__)

SHORTLIST_SIZE = 50
"""Number of tools that are reranked."""
MAX_CACHED_VECTORS = 8_192
MAX_CACHE_FILES = 4
MAX_VECTOR_FILE_BYTES = 256 << 20
_FORMAT = 1
_BATCH_SIZE = 32
_KEY_BYTES = 16

Vector = NDArray[np.float16]


class Reranker:
    """Computes the similarity of shortlisted tools to a message with an embedding service."""

    def __init__(self, embedder: Embedder, directory: Path | None) -> None:
        self._embedder = embedder
        self._cache = VectorCache(embedder.name, directory)
        self._outage_log = OutageLog("search results are not reranked")
        self._keys: weakref.WeakKeyDictionary[Tool, bytes] = weakref.WeakKeyDictionary()

    def similarities(self, message: str, tools: Sequence[Tool]) -> Matrix | None:
        """Return each tool's similarity to the message, from -1 to 1; None if the service fails."""
        text = query_text(message)
        if not text or not tools:
            return None
        try:
            (query_vector,) = self._embedder.embed([text], "query")
            vectors = self._tool_vectors(tools, len(query_vector))
        except EmbeddingUnavailable as error:
            self._outage_log.warn_once(str(error))
            return None
        near: Matrix = vectors @ query_vector
        return near if near.any() else None

    def _tool_vectors(self, tools: Sequence[Tool], width: int) -> Matrix:
        keys = [self._cache_key(tool) for tool in tools]
        known = self._cache.find(keys, width)
        missing = {key: tool for key, tool in zip(keys, tools, strict=True) if key not in known}
        if missing:
            known |= self._fetch_missing(missing, width)
        return np.stack([known[key] for key in keys]).astype(np.float32)

    def _fetch_missing(self, tools: Mapping[bytes, Tool], width: int) -> dict[bytes, Vector]:
        """Embed tools without cached vectors; also cache vectors received before a failure."""
        found: dict[bytes, Vector] = {}
        keys = list(tools)
        try:
            for start in range(0, len(keys), _BATCH_SIZE):
                batch = keys[start : start + _BATCH_SIZE]
                found |= zip(batch, self._embed_batch([tools[key] for key in batch], width), strict=True)
        finally:
            self._cache.add(found)
        return found

    def _embed_batch(self, tools: Iterable[Tool], width: int) -> Vector:
        vectors = self._embedder.embed([embedding_text(tool) for tool in tools], "tool")
        if vectors.shape[1] != width:
            lengths = f"{vectors.shape[1]} numbers for tools but {width} for a message"
            raise EmbeddingUnavailable(f"{self._embedder.name} returned vectors of {lengths}")
        return vectors.astype(np.float16)

    def _cache_key(self, tool: Tool) -> bytes:
        key = self._keys.get(tool)
        if key is None:
            read = json.dumps([self._embedder.name, embedding_text(tool)]).encode()
            key = self._keys[tool] = hashlib.blake2b(read, digest_size=_KEY_BYTES).digest()
        return key


class VectorCache:
    """Cache of one model's vectors by key, in memory and in a file shared by several processes.

    The file is replaced atomically and validated on reading. If two processes write at the same moment,
    the vectors of one may be lost; they are then requested again.
    """

    def __init__(self, model: str, directory: Path | None) -> None:
        self._model = model
        self._file = directory / _file_name(model) if directory else None
        self._lock = threading.Lock()
        self._tool_vectors: dict[bytes, Vector] = {}
        """Least recently used first."""
        self._loaded_version: tuple[int, int] | None = None
        self._write_failure_log = OutageLog(
            "the vectors of tools cannot be cached and will be requested again"
        )

    def find(self, keys: Iterable[bytes], width: int) -> dict[bytes, Vector]:
        """Return the cached vectors of `width` dimensions for the given keys."""
        with self._lock:
            self._reload_if_changed()
            found = {key: self._tool_vectors[key] for key in keys if key in self._tool_vectors}
            found = {key: vector for key, vector in found.items() if len(vector) == width}
            for key, vector in found.items():
                del self._tool_vectors[key]
                self._tool_vectors[key] = vector
            return found

    def add(self, found: Mapping[bytes, Vector]) -> None:
        """Cache vectors; if there are too many, drop the least recently used ones."""
        if not found:
            return
        with self._lock:
            self._reload_if_changed()
            width = len(next(iter(found.values())))
            known = {**self._tool_vectors, **found}
            fitting = [(key, vector) for key, vector in known.items() if len(vector) == width]
            self._tool_vectors = dict(fitting[-MAX_CACHED_VECTORS:])
            self._write_file()

    def _reload_if_changed(self) -> None:
        """Read the cache file again if another process has replaced it."""
        if self._file is None or self._loaded_version == (now := _file_version(self._file)):
            return
        self._loaded_version = now
        try:
            self._tool_vectors = {**_read_vectors(self._file, self._model), **self._tool_vectors}
        except (FileNotFoundError, NotADirectoryError):
            return
        except Exception as error:  # a damaged file can raise almost anything
            log.warning("the cached vectors in %s cannot be used and are ignored: %s", self._file.name, error)

    def _write_file(self) -> None:
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            _replace_file(self._file, _serialize_vectors(self._tool_vectors, self._model))
            for old in sorted(self._file.parent.glob("*.npz"), key=_file_version, reverse=True)[
                MAX_CACHE_FILES:
            ]:
                old.unlink(missing_ok=True)
        except OSError as error:
            self._write_failure_log.warn_once(str(error))
        self._loaded_version = _file_version(self._file)


def _file_name(model: str) -> str:
    digest = hashlib.blake2b(model.encode(), digest_size=8).hexdigest()  # long names may share their start
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', model)[:32]}-{digest}.npz"


def _file_version(file: Path) -> tuple[int, int]:
    """Return a value that changes whenever the file is replaced."""
    try:
        found = file.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_ino)


def _serialize_vectors(vectors: Mapping[bytes, Vector], model: str) -> bytes:
    buffer = io.BytesIO()
    about = json.dumps({"format": _FORMAT, "model": model}).encode()
    np.savez(
        buffer,
        about=np.frombuffer(about, np.uint8),
        keys=np.frombuffer(b"".join(vectors), np.uint8).reshape(-1, _KEY_BYTES),
        vectors=np.stack(list(vectors.values())),
    )
    return buffer.getvalue()


def _read_vectors(file: Path, model: str) -> dict[bytes, Vector]:
    """Return the vectors in a cache file. Raises ValueError or KeyError if the file is invalid."""
    with open_arrays(file, MAX_VECTOR_FILE_BYTES) as stored:
        if json.loads(stored["about"].tobytes()) != {"format": _FORMAT, "model": model}:
            raise ValueError("the cache file was written by another version of Toolfold or for another model")
        keys, vectors = stored["keys"], stored["vectors"]
    is_valid = (
        keys.dtype == np.uint8
        and vectors.dtype == np.float16
        and vectors.ndim == 2
        and keys.shape == (min(len(vectors), MAX_CACHED_VECTORS), _KEY_BYTES)
        and bool(np.isfinite(vectors).all())
    )
    if not is_valid:
        raise ValueError("the sizes or types of the arrays in the cache file do not match")
    return {key.tobytes(): vector for key, vector in zip(keys, vectors, strict=True)}


def _replace_file(file: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".vectors-")
    try:
        with os.fdopen(descriptor, "wb") as temporary:
            temporary.write(content)
        Path(name).replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
