"""A second opinion on a shortlist: how near an embedding service finds its tools to the message.

One request a message. A tool's vector is asked for once and then kept, in memory and in a file, under a
hash of the model's name and of the text it read. Whatever goes wrong, there is no second opinion and
the first one stands; which tools are on the shortlist, and what else orders them, is the caller's to say.
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
from toolfold.retrieval.document import query_text
from toolfold.retrieval.embedding import Embedder, EmbeddingUnavailable, Matrix, Outage
from toolfold.retrieval.index import embedded_text
from toolfold.retrieval.stored import arrays_in

log = logging.getLogger(__name__)

SHORTLIST = 50
"""How many hits are worth a second opinion."""
KEPT_VECTORS = 8_192
KEPT_FILES = 4
LARGEST_FILE = 256 << 20
_FORMAT = 1
_BATCH = 32
_KEY_BYTES = 16

Vector = NDArray[np.float16]


class Reranker:
    """Asks an embedding model about a shortlist."""

    def __init__(self, embedder: Embedder, folder: Path | None) -> None:
        self._embedder = embedder
        self._kept = KeptVectors(embedder.name, folder)
        self._outage = Outage("hits are not reranked")
        self._keys: weakref.WeakKeyDictionary[Tool, bytes] = weakref.WeakKeyDictionary()

    def similarities(self, message: str, tools: Sequence[Tool]) -> Matrix | None:
        """How near each tool is to the message, from -1 to 1; None, said once, where nobody can tell."""
        text = query_text(message)
        if not text or not tools:
            return None
        try:
            (asked,) = self._embedder.embed([text], "query")
            vectors = self._vectors(tools, len(asked))
        except EmbeddingUnavailable as error:
            self._outage.tell(str(error))
            return None
        near: Matrix = vectors @ asked
        return near if near.any() else None

    def _vectors(self, tools: Sequence[Tool], width: int) -> Matrix:
        keys = [self._key(tool) for tool in tools]
        known = self._kept.find(keys, width)
        missing = {key: tool for key, tool in zip(keys, tools, strict=True) if key not in known}
        if missing:
            known |= self._learnt(missing, width)
        return np.stack([known[key] for key in keys]).astype(np.float32)

    def _learnt(self, tools: Mapping[bytes, Tool], width: int) -> dict[bytes, Vector]:
        """Vectors nobody has asked for before. What came before a failure is kept all the same."""
        found: dict[bytes, Vector] = {}
        keys = list(tools)
        try:
            for start in range(0, len(keys), _BATCH):
                batch = keys[start : start + _BATCH]
                found |= zip(batch, self._embedded([tools[key] for key in batch], width), strict=True)
        finally:
            self._kept.add(found)
        return found

    def _embedded(self, tools: Iterable[Tool], width: int) -> Vector:
        vectors = self._embedder.embed([embedded_text(tool) for tool in tools], "tool")
        if vectors.shape[1] != width:
            lengths = f"{vectors.shape[1]} numbers for tools and of {width} for a message"
            raise EmbeddingUnavailable(f"{self._embedder.name} gave vectors of {lengths}")
        return vectors.astype(np.float16)

    def _key(self, tool: Tool) -> bytes:
        key = self._keys.get(tool)
        if key is None:
            read = json.dumps([self._embedder.name, embedded_text(tool)]).encode()
            key = self._keys[tool] = hashlib.blake2b(read, digest_size=_KEY_BYTES).digest()
        return key


class KeptVectors:
    """One model's vectors by key: in memory, and in a file that other processes read and add to.

    The file is replaced as a whole and read without trust. Two processes that write at the same moment may
    lose what one of them learnt, which is then asked for again.
    """

    def __init__(self, model: str, folder: Path | None) -> None:
        self._model = model
        self._file = folder / _file_name(model) if folder else None
        self._lock = threading.Lock()
        self._vectors: dict[bytes, Vector] = {}
        """The most lately used last."""
        self._seen: tuple[int, int] | None = None
        self._unkept = Outage("the vectors of tools cannot be kept and will be asked for again")

    def find(self, keys: Iterable[bytes], width: int) -> dict[bytes, Vector]:
        """Those of the vectors that are known and have this length."""
        with self._lock:
            self._read_what_is_new()
            found = {key: self._vectors[key] for key in keys if key in self._vectors}
            found = {key: vector for key, vector in found.items() if len(vector) == width}
            for key, vector in found.items():
                del self._vectors[key]
                self._vectors[key] = vector
            return found

    def add(self, found: Mapping[bytes, Vector]) -> None:
        """Keep these, and of the others as many as there is room for."""
        if not found:
            return
        with self._lock:
            self._read_what_is_new()
            width = len(next(iter(found.values())))
            known = {**self._vectors, **found}
            fitting = [(key, vector) for key, vector in known.items() if len(vector) == width]
            self._vectors = dict(fitting[-KEPT_VECTORS:])
            self._write()

    def _read_what_is_new(self) -> None:
        """What this or another process has kept since the last look."""
        if self._file is None or self._seen == (now := _state(self._file)):
            return
        self._seen = now
        try:
            self._vectors = {**_read(self._file, self._model), **self._vectors}
        except (FileNotFoundError, NotADirectoryError):
            return
        except Exception as error:  # what a broken file makes its readers raise is anyone's guess
            log.warning("the vectors kept in %s cannot be used and are ignored: %s", self._file.name, error)

    def _write(self) -> None:
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            _replace(self._file, _packed(self._vectors, self._model))
            for old in sorted(self._file.parent.glob("*.npz"), key=_state, reverse=True)[KEPT_FILES:]:
                old.unlink(missing_ok=True)
        except OSError as error:
            self._unkept.tell(str(error))
        self._seen = _state(self._file)


def _file_name(model: str) -> str:
    exactly = hashlib.blake2b(model.encode(), digest_size=8).hexdigest()  # long names may begin alike
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', model)[:32]}-{exactly}.npz"


def _state(file: Path) -> tuple[int, int]:
    """Differs whenever the file was replaced."""
    try:
        found = file.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_ino)


def _packed(vectors: Mapping[bytes, Vector], model: str) -> bytes:
    buffer = io.BytesIO()
    about = json.dumps({"format": _FORMAT, "model": model}).encode()
    np.savez(
        buffer,
        about=np.frombuffer(about, np.uint8),
        keys=np.frombuffer(b"".join(vectors), np.uint8).reshape(-1, _KEY_BYTES),
        vectors=np.stack(list(vectors.values())),
    )
    return buffer.getvalue()


def _read(file: Path, model: str) -> dict[bytes, Vector]:
    """The vectors in a file. Raises ValueError or KeyError for one that is not what it should be."""
    with arrays_in(file, LARGEST_FILE) as stored:
        if json.loads(stored["about"].tobytes()) != {"format": _FORMAT, "model": model}:
            raise ValueError("it was made by another version or model")
        keys, vectors = stored["keys"], stored["vectors"]
    sound = (
        keys.dtype == np.uint8
        and vectors.dtype == np.float16
        and vectors.ndim == 2
        and keys.shape == (min(len(vectors), KEPT_VECTORS), _KEY_BYTES)
        and bool(np.isfinite(vectors).all())
    )
    if not sound:
        raise ValueError("its parts do not fit together")
    return {key.tobytes(): vector for key, vector in zip(keys, vectors, strict=True)}


def _replace(file: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".vectors-")
    try:
        with os.fdopen(descriptor, "wb") as temporary:
            temporary.write(content)
        Path(name).replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
