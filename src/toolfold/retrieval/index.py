"""Both legs' indexes of a set of tools, built once, changed in place of being rebuilt, kept on disk.

A tool's checksum covers everything a leg reads of it. Tools whose checksum is known cost nothing: their
vectors and postings are taken over, from memory or from a file of an earlier run. Files are written
atomically and read without trust: one that is broken, foreign or of another model is built anew.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolfold.model import Tool
from toolfold.retrieval.document import tool_text
from toolfold.retrieval.embedding import Embedder, EmbeddingUnavailable, Matrix, Outage
from toolfold.retrieval.exact import Names
from toolfold.retrieval.lexical import FIELDS, Lexical
from toolfold.retrieval.text import Words

log = logging.getLogger(__name__)

FORMAT = 1
KEPT_FILES = 6
LARGEST_FILE = 1 << 30
_FEW = 64
_SMALL = 256
_BATCH = 256

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """What the legs know of a set of tools. A place without a tool is empty."""

    tools: tuple[Tool | None, ...]
    checksums: tuple[bytes, ...]
    lexical: Lexical
    vectors: Matrix | None
    names: Names
    by_name: Mapping[str, int]
    seats: tuple[str, ...]
    """The name of the tool at each place; empty where there is none."""
    _name_tokens: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tools: Sequence[Tool | None],
        checksums: Sequence[bytes],
        lexical: Lexical,
        vectors: Matrix | None,
    ) -> Index:
        seats = tuple(tool.name if tool else "" for tool in tools)
        by_name = {name: place for place, name in enumerate(seats) if name}
        return cls(tuple(tools), tuple(checksums), lexical, vectors, Names(tools), by_name, seats)

    def name_tokens(self, place: int) -> tuple[str, ...]:
        """The words of a tool's own name; cut when first asked for, since few of many ever are."""
        found = self._name_tokens.get(place)
        if found is None:
            found = self._name_tokens[place] = tuple(self.lexical.words.tokens(_own_name(self.tools[place])))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What is left of an earlier index: by checksum, so that it does not matter whose tools they were."""

    checksums: tuple[bytes, ...]
    lexical: Lexical
    vectors: Matrix | None


class Indexer:
    """Keeps the index of one runtime's tools in step with its registry."""

    def __init__(
        self,
        embedder: Embedder | None,
        folder: Path | None,
        *,
        progress: Progress | None = None,
        outage: Outage | None = None,
    ) -> None:
        self._embedder, self._folder, self._progress = embedder, folder, progress
        self._outage = outage or Outage()
        self._words = Words()
        self._lock = threading.Lock()
        self._sums: weakref.WeakKeyDictionary[Tool, bytes] = weakref.WeakKeyDictionary()
        self._current: tuple[Sequence[Tool], Index] | None = None

    @property
    def embedder(self) -> Embedder | None:
        return self._embedder

    def index(self, tools: Sequence[Tool]) -> Index:
        """The index of these tools. The same sequence again costs nothing."""
        with self._lock:
            if self._current is None or self._current[0] is not tools:
                self._current = (tools, self._built(tools))
            return self._current[1]

    def _built(self, tools: Sequence[Tool]) -> Index:
        sums = [self._checksum(tool) for tool in tools]
        if self._current is not None:
            before = self._current[1]
            known: _Known | None = _Known(before.checksums, before.lexical, before.vectors)
        else:
            known = self._load(sums)
        index = self._changed(known, tools, sums) if known else self._fresh(tools, sums, {})
        vectors_came = known is not None and known.vectors is None and index.vectors is not None
        if known is None or vectors_came or set(sums) - set(known.checksums):
            self._save(index)
        return index

    def _changed(self, known: _Known, tools: Sequence[Tool], sums: Sequence[bytes]) -> Index:
        """The known index with what is new put in and what is gone taken out."""
        places = {checksum: place for place, checksum in enumerate(known.checksums) if checksum}
        if not _is_worth_changing(known, places, sums):
            vectors = known.vectors
            reused = {s: vectors[places[s]] for s in sums if s in places} if vectors is not None else {}
            return self._fresh(tools, sums, reused)
        seats: list[Tool | None] = [None] * len(known.checksums)
        new: list[Tool] = []
        for tool, checksum in zip(tools, sums, strict=True):
            place = places.pop(checksum, None)
            if place is None:
                new.append(tool)
            else:
                seats[place] = tool
        return self._reseated(known, seats, new)

    def _reseated(self, known: _Known, seats: list[Tool | None], new: list[Tool]) -> Index:
        empty = [place for place, tool in enumerate(seats) if tool is None]
        room = empty[: len(new)] + list(range(len(seats), len(seats) + len(new) - len(empty)))
        seats += [None] * max(0, len(new) - len(empty))
        lexical = known.lexical
        if empty or len(seats) != lexical.size:
            lexical = lexical.without(empty, len(seats))
        for place, tool in zip(room, new, strict=True):
            seats[place] = tool
            lexical = lexical.with_tool(place, tool)
        vectors = self._revectored(known.vectors, seats, dict(zip(room, new, strict=True)))
        sums = [self._checksum(tool) if tool else b"" for tool in seats]
        return Index.of(seats, _with_vectors(sums, vectors), lexical, vectors)

    def _revectored(
        self, before: Matrix | None, seats: Sequence[Tool | None], new: Mapping[int, Tool]
    ) -> Matrix | None:
        if before is None:
            return self._embedded([tool for tool in seats if tool], len(seats), seats)
        vectors: Matrix = np.zeros((len(seats), before.shape[1]), np.float32)
        vectors[: len(before)] = before
        for place in new:
            vectors[place] = 0.0
        fresh = self._embed(list(new.values()))
        if fresh is None:
            return vectors
        if len(fresh) and fresh.shape[1] != before.shape[1]:
            return self._revectored(None, seats, {})
        for place, vector in zip(new, fresh, strict=True):
            vectors[place] = vector
        return vectors

    def _embedded(self, tools: Sequence[Tool], size: int, seats: Sequence[Tool | None]) -> Matrix | None:
        found = self._embed(tools)
        if found is None or not len(found):
            return None
        vectors: Matrix = np.zeros((size, found.shape[1]), np.float32)
        vectors[[place for place, tool in enumerate(seats) if tool]] = found
        return vectors

    def _fresh(self, tools: Sequence[Tool], sums: Sequence[bytes], reused: Mapping[bytes, Any]) -> Index:
        lexical = Lexical.build(tools, self._words)
        missing = [tool for tool, checksum in zip(tools, sums, strict=True) if checksum not in reused]
        found = self._embed(missing)
        width = len(next(iter(reused.values()))) if reused else 0
        if found is None and reused:
            found = np.zeros((len(missing), width), np.float32)
        elif found is not None and len(found) and width not in (0, found.shape[1]):
            return self._fresh(tools, sums, {})  # the model has changed under its name
        vectors = None
        if found is not None and len(sums):
            answers = iter(found)
            vectors = np.stack([reused[s] if s in reused else next(answers) for s in sums])
        return Index.of(tools, _with_vectors(sums, vectors), lexical, vectors)

    def _embed(self, tools: Sequence[Tool]) -> Matrix | None:
        """The tools' vectors; None, said once, where the model cannot answer."""
        if self._embedder is None:
            return None
        parts = []
        try:
            for start in range(0, len(tools), _BATCH):
                if self._progress:
                    self._progress(start, len(tools))
                texts = [embedded_text(tool) for tool in tools[start : start + _BATCH]]
                parts.append(_restored(*_packed(self._embedder.embed(texts, "tool"))))
        except EmbeddingUnavailable as error:
            self._outage.tell(str(error))
            return None
        if self._progress and tools:
            self._progress(len(tools), len(tools))
        return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)

    def _checksum(self, tool: Tool) -> bytes:
        found = self._sums.get(tool)
        if found is None:
            found = self._sums[tool] = checksum(tool)
        return found

    def _load(self, sums: Sequence[bytes]) -> _Known | None:
        for file in self._candidates(sums):
            try:
                known = _read(file, self._model_name(), self._words)
            except FileNotFoundError:
                continue  # another process has made room
            except Exception as error:  # what a broken file makes its readers raise is anyone's guess
                log.warning("the index %s cannot be used and is built anew: %s", file.name, error)
                if not isinstance(error, OSError):
                    _remove(file)
                continue
            with contextlib.suppress(OSError):  # of a folder that may only be read
                os.utime(file)
            return known
        return None

    def _candidates(self, sums: Sequence[bytes]) -> list[Path]:
        """The file of these very tools, if there is one, and the latest of others."""
        if self._folder is None:
            return []
        try:
            found = sorted(self._folder.glob(f"{self._prefix()}*.npz"), key=_modified, reverse=True)
        except OSError as error:
            log.warning("the index kept in %s cannot be read: %s", self._folder, error)
            return []
        wanted = self._file(sums)
        return sorted(found, key=lambda each: each != wanted)[:2]

    def _save(self, index: Index) -> None:
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            _write(self._file(index.checksums), index, self._model_name())
            old = sorted(self._folder.glob("*.npz"), key=_modified, reverse=True)[KEPT_FILES:]
            for file in old:
                file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the index could not be kept, it will be built again next time: %s", error)

    def _model_name(self) -> str:
        return self._embedder.name if self._embedder else "none"

    def _prefix(self) -> str:
        model = self._model_name()
        exactly = hashlib.blake2b(model.encode(), digest_size=4).hexdigest()  # long names may begin alike
        return f"{re.sub(r'[^A-Za-z0-9]+', '-', model)[:32]}-{exactly}-"

    def _file(self, sums: Sequence[bytes]) -> Path:
        whole = hashlib.blake2b(b"".join(sorted(s for s in sums if s)), digest_size=12).hexdigest()
        return (self._folder or Path()) / f"{self._prefix()}{whole}.npz"


def _with_vectors(sums: Sequence[bytes], vectors: Matrix | None) -> list[bytes]:
    """Without the checksums of tools that could not be embedded: they stay new until they can."""
    if vectors is None:
        return list(sums)
    there = np.abs(vectors).max(1, initial=0.0) > 0
    return [checksum if there[place] else b"" for place, checksum in enumerate(sums)]


def _own_name(tool: Tool | None) -> str:
    """The tool's name without its server's, which all its neighbours share."""
    if tool is None:
        return ""
    server = tool.source.name or tool.toolset.removeprefix("mcp-")
    name = tool.original_name or tool.name
    return name.removeprefix("mcp_").removeprefix(server) or name


def embedded_text(tool: Tool) -> str:
    """What an embedding model reads of a tool."""
    server = tool.source.name or tool.toolset.removeprefix("mcp-")
    words = (tool.title, *tool.synonyms) if tool.title else tool.synonyms
    return tool_text(tool.original_name or tool.name, tool.description, tool.parameters, server, words)


def checksum(tool: Tool) -> bytes:
    """Covers everything that a leg reads of a tool."""
    parts = (tool.name, tool.original_name, tool.title, tool.toolset, tool.source.name, tool.description)
    text = json.dumps([FORMAT, *parts, *tool.synonyms, tool.parameters], separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _is_worth_changing(known: _Known, places: Mapping[bytes, int], sums: Sequence[bytes]) -> bool:
    """Whether most of a large index stays. Any other is soon built, and then its averages are its own."""
    new = len(set(sums) - places.keys())
    if not new and len(places) == len(sums):
        return True
    return len(sums) > _SMALL and new <= max(_FEW, len(sums) // 5) and len(known.checksums) < 2 * len(sums)


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink()


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _packed(vectors: Matrix) -> tuple[NDArray[np.int8], Matrix]:
    """A byte a number, a scale a row. Fresh vectors go through it too: the first run orders like the next."""
    scales = (np.abs(vectors).max(1, initial=1e-9) / 127).astype(np.float32)
    return np.round(vectors / scales[:, None]).astype(np.int8), scales


def _restored(packed: NDArray[np.int8], scales: Matrix) -> Matrix:
    restored: Matrix = packed.astype(np.float32) * scales[:, None]
    return restored


def _write(file: Path, index: Index, model: str) -> None:
    lexical = index.lexical
    arrays: dict[str, NDArray[Any]] = {
        "about": np.frombuffer(json.dumps(_about(index, model)).encode(), np.uint8),
        "checksums": np.frombuffer(b"".join(s or bytes(16) for s in index.checksums), np.uint8),
        "terms": np.frombuffer("\n".join(lexical.terms).encode(), np.uint8),
        "starts": lexical.starts,
        "places": lexical.places,
        "weights": lexical.weights.astype(np.float16),
    }
    if index.vectors is not None:
        arrays["vectors"], arrays["scales"] = _packed(index.vectors)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".index-")
    try:
        with os.fdopen(descriptor, "wb") as temporary:
            temporary.write(buffer.getbuffer())
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _about(index: Index, model: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "model": model,
        "size": index.lexical.size,
        "lengths": dict(index.lexical.lengths),
    }


def _read(file: Path, model: str, words: Words) -> _Known:
    """The index in a file. Raises ValueError or KeyError for one that is not what it should be."""
    if file.stat().st_size > LARGEST_FILE:
        raise ValueError("it is too large")
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
        about = json.loads(stored["about"].tobytes())
        if about.get("format") != FORMAT or about.get("model") != model:
            raise ValueError("it was made by another version or model")
        sums = stored["checksums"].tobytes()
        checksums = tuple(
            sums[start : start + 16].strip(b"\0") and sums[start : start + 16]
            for start in range(0, len(sums), 16)
        )
        terms = stored["terms"].tobytes().decode().split()
        lexical = Lexical(
            words=words,
            size=int(about["size"]),
            terms={term: number for number, term in enumerate(terms)},
            starts=stored["starts"],
            places=stored["places"],
            weights=stored["weights"].astype(np.float32),
            lengths=about["lengths"],
        )
        vectors = None
        if "vectors" in stored:
            vectors = _restored(stored["vectors"], stored["scales"])
        _require_whole(lexical, checksums, vectors)
        return _Known(checksums, lexical, vectors)


def _require_whole(lexical: Lexical, checksums: Sequence[bytes], vectors: Matrix | None) -> None:
    starts, places = lexical.starts, lexical.places
    sound = (
        lexical.size == len(checksums)
        and len(starts) == len(lexical.terms) + 1
        and starts[0] == 0
        and starts[-1] == len(places) == len(lexical.weights)
        and bool((np.diff(starts) >= 0).all())
        and (not len(places) or (places.min() >= 0 and places.max() < lexical.size))
        and bool(np.isfinite(lexical.weights).all())
        and all(lexical.lengths[name] > 0 for name in FIELDS)
        and (vectors is None or (len(vectors) == lexical.size and bool(np.isfinite(vectors).all())))
    )
    if not sound:
        raise ValueError("its parts do not fit together")
