"""Both legs' indexes of a set of tools, built once, changed in place of being rebuilt, kept on disk.

A tool's checksum covers everything a leg reads of it. Tools whose checksum is known cost nothing: their
vectors and postings are taken over, from memory or from a file of an earlier run. Files are written
atomically and read without trust: one that is broken, foreign or of another model is built anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolfold.model import Tool
from toolfold.retrieval.document import tool_text
from toolfold.retrieval.embedding import Embedder, EmbeddingUnavailable, Outage
from toolfold.retrieval.exact import Names
from toolfold.retrieval.lexical import FIELDS, LONGEST_NAME, Lexical
from toolfold.retrieval.ranking import Places
from toolfold.retrieval.stored import arrays_in
from toolfold.retrieval.text import Words
from toolfold.retrieval.vectors import WIDEST, Packed, Sketch, Vectors

log = logging.getLogger(__name__)

FORMAT = 2
KEPT_FILES = 6
KEPT_GRANTS = 16
LARGEST_FILE = 1 << 30
_FEW = 64
_SMALL = 256
_BATCH = 256
_NO_SUM = bytes(16)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Grant:
    """Which places a session may see."""

    mask: NDArray[np.bool_]
    hidden: Places
    """The others."""


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """What the legs know of a set of tools. A place without a tool is empty."""

    tools: tuple[Tool | None, ...]
    checksums: tuple[bytes, ...]
    lexical: Lexical
    vectors: Vectors | None
    names: Names
    by_name: Mapping[str, int]
    _grants: dict[frozenset[str] | None, Grant] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(
        cls,
        tools: Sequence[Tool | None],
        checksums: Sequence[bytes],
        lexical: Lexical,
        vectors: Vectors | None,
        names: Names | None = None,
    ) -> Index:
        by_name = {tool.name: place for place, tool in enumerate(tools) if tool}
        return cls(tuple(tools), tuple(checksums), lexical, vectors, names or Names(tools), by_name)

    def grant(self, names: Iterable[str] | None) -> Grant:
        """The places of these names; of all tools for None. A session asks with the same set every time."""
        wanted = None if names is None else frozenset(names)
        with self._lock:
            found = self._grants.pop(wanted, None)
        if found is None:
            found = self._granted(wanted)
        with self._lock:
            self._grants[wanted] = found
            while len(self._grants) > KEPT_GRANTS:
                del self._grants[next(iter(self._grants))]
        return found

    def _granted(self, names: frozenset[str] | None) -> Grant:
        of_name = self.by_name.get
        places = self.by_name.values() if names is None else map(of_name, names)
        mask = np.zeros(len(self.tools), bool)
        mask[[place for place in places if place is not None]] = True
        return Grant(mask, np.flatnonzero(~mask))


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What is left of an earlier index: by checksum, so that it does not matter whose tools they were."""

    checksums: tuple[bytes, ...]
    lexical: Lexical
    vectors: Vectors | None
    names: Names | None = None
    """Those of an index in memory."""


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
        self._sums: dict[int, tuple[Tool, bytes]] = {}
        self._current: tuple[Sequence[Tool], Index] | None = None
        self._incomplete = False

    @property
    def embedder(self) -> Embedder | None:
        return self._embedder

    def index(self, tools: Sequence[Tool]) -> Index:
        """The index of these tools. The same sequence again costs nothing."""
        with self._lock:
            if self._current is None or self._current[0] is not tools or self._may_catch_up():
                self._incomplete = False
                self._current = (tools, self._built(tools))
            return self._current[1]

    def _may_catch_up(self) -> bool:
        """Whether a model that failed while tools were embedded answers again."""
        if self._embedder is None or not self._incomplete:
            return False
        try:
            self._embedder.embed(["tool"], "tool")
        except EmbeddingUnavailable:
            return False
        return True

    def _built(self, tools: Sequence[Tool]) -> Index:
        sums = self._checksums(tools)
        if self._current is not None:
            before = self._current[1]
            known: _Known | None = _Known(before.checksums, before.lexical, before.vectors, before.names)
        else:
            known = self._load(sums)
        index = self._changed_or_fresh(known, tools, sums) if known else self._fresh(tools, sums)
        vectors_came = known is not None and known.vectors is None and index.vectors is not None
        if known is None or vectors_came or set(sums).difference(known.checksums):
            self._save(index)
        return index

    def _changed_or_fresh(self, known: _Known, tools: Sequence[Tool], sums: Sequence[bytes]) -> Index:
        try:
            return self._changed(known, tools, sums)
        except Exception as error:  # a file may be broken in ways that only its use shows
            log.warning("the known index cannot be used and is built anew: %s", error)
            return self._fresh(tools, sums)

    def _changed(self, known: _Known, tools: Sequence[Tool], sums: Sequence[bytes]) -> Index:
        """The known index with what is new put in and what is gone taken out."""
        places = {checksum: place for place, checksum in enumerate(known.checksums) if checksum}
        if not _is_worth_changing(known, places, sums):
            return self._fresh(tools, sums, known.vectors, places)
        seats: list[Tool | None] = [None] * len(known.checksums)
        seated = [b""] * len(known.checksums)
        new: list[tuple[Tool, bytes]] = []
        for tool, checksum in zip(tools, sums, strict=True):
            place = places.pop(checksum, None)
            if place is None:
                new.append((tool, checksum))
            else:
                seats[place], seated[place] = tool, checksum
        return self._reseated(known, seats, seated, new)

    def _reseated(
        self, known: _Known, seats: list[Tool | None], sums: list[bytes], new: Sequence[tuple[Tool, bytes]]
    ) -> Index:
        empty = [place for place, tool in enumerate(seats) if tool is None]
        room = empty[: len(new)] + list(range(len(seats), len(seats) + len(new) - len(empty)))
        more = max(0, len(new) - len(empty))
        seats += [None] * more
        sums += [b""] * more
        for place, (tool, checksum) in zip(room, new, strict=True):
            seats[place], sums[place] = tool, checksum
        lexical = known.lexical
        if empty or more:
            lexical = lexical.without(empty, len(seats))
        added = {place: tool for place, (tool, _) in zip(room, new, strict=True)}
        vectors = self._if_possible(lambda: self._revectored(known.vectors, seats, added))
        names = known.names.changed(seats, {*empty, *room}) if known.names else None
        return Index.of(seats, _with_vectors(sums, vectors), lexical.with_tools(added), vectors, names)

    def _revectored(
        self, before: Vectors | None, seats: Sequence[Tool | None], new: Mapping[int, Tool]
    ) -> Vectors | None:
        if before is None:
            return self._embedded({place: tool for place, tool in enumerate(seats) if tool}, len(seats))
        if not new and before.size == len(seats):
            return before
        fresh = self._embed(list(new.values()))
        if fresh is None or not fresh.size:
            fresh = Packed.empty(len(new), before.width)
        elif fresh.width != before.width:  # the model has changed under its name
            return self._revectored(None, seats, {})
        return before.with_rows(len(seats), _places(new), fresh)

    def _embedded(self, tools: Mapping[int, Tool], size: int) -> Vectors | None:
        found = self._embed(list(tools.values()))
        if found is None or not found.size:
            return None
        return Vectors.of(Packed.empty(size, found.width).with_rows(size, _places(tools), found))

    def _fresh(
        self,
        tools: Sequence[Tool],
        sums: Sequence[bytes],
        known: Vectors | None = None,
        places: Mapping[bytes, int] = MappingProxyType({}),
    ) -> Index:
        """Built anew but for the vectors that are known."""
        lexical = Lexical.build(tools, self._words)
        vectors = self._if_possible(lambda: self._fresh_vectors(tools, sums, known, places))
        return Index.of(tools, _with_vectors(sums, vectors), lexical, vectors)

    def _fresh_vectors(
        self, tools: Sequence[Tool], sums: Sequence[bytes], known: Vectors | None, places: Mapping[bytes, int]
    ) -> Vectors | None:
        reused = {place: places[s] for place, s in enumerate(sums) if s in places} if known else {}
        if known is None or not reused:
            return self._embedded(dict(enumerate(tools)), len(tools))
        rows = known.packed.taken(np.fromiter(reused.values(), np.int64))
        old = Packed.empty(len(tools), known.width).with_rows(len(tools), _places(reused), rows)
        missing = {place: tool for place, tool in enumerate(tools) if place not in reused}
        return self._revectored(Vectors.of(old), tools, missing)

    def _if_possible(self, work: Callable[[], Vectors | None]) -> Vectors | None:
        """The vectors, or none: whatever a model does, its failure must not take the keywords along."""
        try:
            return work()
        except Exception as error:  # such as memory that does not suffice
            self._outage.tell(f"{type(error).__name__}: {error}")
            return None

    def _embed(self, tools: Sequence[Tool]) -> Packed | None:
        """The tools' vectors; None, said once, where the model cannot answer."""
        if self._embedder is None:
            return None
        texts = [embedded_text(tool) for tool in tools]
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        parts: list[Packed] = []
        try:
            parts.extend(self._embedded_parts(self._embedder, list(rows)))  # what came before a failure stays
        except EmbeddingUnavailable as error:
            self._outage.tell(str(error))
            self._incomplete = True
            if not parts:
                return None
            parts.append(Packed.empty(len(rows) - sum(part.size for part in parts), parts[0].width))
        if not parts:
            return Packed.empty(0, 0)
        found = Packed(np.concatenate([p.numbers for p in parts]), np.concatenate([p.scales for p in parts]))
        return found if len(rows) == len(texts) else found.taken(np.array([rows[text] for text in texts]))

    def _embedded_parts(self, embedder: Embedder, texts: Sequence[str]) -> Iterator[Packed]:
        for start in range(0, len(texts), _BATCH):
            if self._progress:
                self._progress(start, len(texts))
            yield Packed.of(embedder.embed(texts[start : start + _BATCH], "tool"))
        if self._progress and texts:
            self._progress(len(texts), len(texts))

    def _checksums(self, tools: Sequence[Tool]) -> list[bytes]:
        """The tools' checksums. Those of the tools that were here before are known."""
        known = self._sums.get
        pairs = [known(id(tool)) or (tool, checksum(tool)) for tool in tools]
        self._sums = {id(pair[0]): pair for pair in pairs}
        return [pair[1] for pair in pairs]

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
        every = np.sort(np.frombuffer(b"".join(sums), f"S{len(_NO_SUM)}"))  # in any order the same file
        whole = hashlib.blake2b(every.tobytes(), digest_size=12).hexdigest()
        return (self._folder or Path()) / f"{self._prefix()}{whole}.npz"


def _with_vectors(sums: Sequence[bytes], vectors: Vectors | None) -> list[bytes]:
    """Without the checksums of tools that could not be embedded: they stay new until they can."""
    if vectors is None or vectors.packed.present.all():
        return list(sums)
    present = vectors.packed.present
    return [checksum if present[place] else b"" for place, checksum in enumerate(sums)]


def _places(of: Mapping[int, Any]) -> Places:
    return np.fromiter(of, np.int64, len(of))


def embedded_text(tool: Tool) -> str:
    """What an embedding model reads of a tool."""
    words = (tool.title, *tool.synonyms) if tool.title else tool.synonyms
    return tool_text(tool.original_name or tool.name, tool.description, tool.parameters, tool.server, words)


def checksum(tool: Tool) -> bytes:
    """Covers everything that a leg reads of a tool."""
    names = (tool.name, tool.original_name, tool.title, tool.toolset, tool.source.name)
    text = repr((FORMAT, *names, tool.description, tool.synonyms, tool.parameters))
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).digest()


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


def _write(file: Path, index: Index, model: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".index-")
    try:
        with os.fdopen(descriptor, "wb") as temporary:
            np.savez(temporary, **_arrays(index, model))  # type: ignore[arg-type]
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _arrays(index: Index, model: str) -> dict[str, NDArray[Any]]:
    lexical, vectors = index.lexical, index.vectors
    arrays: dict[str, NDArray[Any]] = {
        "about": np.frombuffer(json.dumps(_about(index, model)).encode(), np.uint8),
        "checksums": np.frombuffer(b"".join(s or _NO_SUM for s in index.checksums), np.uint8),
        "terms": np.frombuffer("\n".join(lexical.terms).encode(), np.uint8),
        "starts": lexical.starts,
        "places": lexical.places,
        "weights": lexical.weights.astype(np.float16),
        "names": lexical.names,
    }
    if vectors is not None:
        arrays |= {"vectors": vectors.packed.numbers, "scales": vectors.packed.scales}
        if vectors.sketch is not None:
            arrays |= {"directions": vectors.sketch.directions, "sketch": vectors.sketch.rows}
    return arrays


def _about(index: Index, model: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "model": model,
        "size": index.lexical.size,
        "lengths": dict(index.lexical.lengths),
    }


def _read(file: Path, model: str, words: Words) -> _Known:
    """The index in a file. Raises ValueError or KeyError for one that is not what it should be."""
    with arrays_in(file, LARGEST_FILE) as stored:
        about = json.loads(stored["about"].tobytes())
        if about.get("format") != FORMAT or about.get("model") != model:
            raise ValueError("it was made by another version or model")
        sums = np.frombuffer(stored["checksums"].tobytes(), "V16").tolist()
        terms = stored["terms"].tobytes().decode().split()
        lexical = Lexical(
            words=words,
            size=int(about["size"]),
            terms=dict(zip(terms, range(len(terms)), strict=True)),
            starts=stored["starts"],
            places=stored["places"],
            weights=_stored_weights(stored["weights"]),
            names=stored["names"],
            lengths=about["lengths"],
        )
        if len(lexical.terms) != len(terms):
            raise ValueError("it has a term twice")
        _require_whole(lexical, len(sums))
        vectors = _stored_vectors(stored, len(sums)) if "vectors" in stored else None
    _try_out(lexical, vectors)
    return _Known(tuple(b"" if s == _NO_SUM else s for s in sums), lexical, vectors)


def _try_out(lexical: Lexical, vectors: Vectors | None) -> None:
    """Ask what every search asks: a file that gets past the checks and cannot answer must not stay."""
    places = np.arange(min(lexical.size, _FEW))
    message = " ".join([*lexical.terms][:_FEW])
    scores, _ = lexical.scores(message)
    lexical.matched(message, places.tolist())
    lexical.name_coverage(message, places)
    if vectors is not None:
        vectors.near(np.ones(vectors.width, np.float32), places[:0], scores)


def _stored_weights(weights: NDArray[Any]) -> NDArray[np.float32]:
    if weights.dtype != np.float16 or weights.ndim != 1 or not ((weights >= 0) & (weights <= 1)).all():
        raise ValueError("its weights are not weights")
    return weights.astype(np.float32)


def _stored_vectors(stored: Mapping[str, NDArray[Any]], size: int) -> Vectors:
    numbers, scales = stored["vectors"], stored["scales"]
    sound = numbers.dtype == np.int8 and numbers.ndim == 2 and len(numbers) == size
    sound = sound and 0 < numbers.shape[1] <= WIDEST
    sketch = None
    if "sketch" in stored:
        sketch = Sketch(stored["directions"], stored["sketch"])
        sound = sound and sketch.rows.ndim == 2
        sound = sound and _is_finite(sketch.directions, (numbers.shape[1], sketch.rows.shape[1]))
        sound = sound and _is_finite(sketch.rows, (size, sketch.rows.shape[1]))
    if not (sound and _is_finite(scales, (size,)) and bool((scales >= 0).all())):
        raise ValueError("its vectors are not whole")
    return Vectors.of(Packed(numbers, scales), sketch)


def _is_finite(array: NDArray[Any], shape: tuple[int, ...]) -> bool:
    return array.dtype == np.float32 and array.shape == shape and bool(np.isfinite(array).all())


def _require_whole(lexical: Lexical, size: int) -> None:
    sound = (
        lexical.size == size
        and _are_rows(lexical.starts, len(lexical.terms), lexical.places, size)
        and lexical.names.shape == (size, LONGEST_NAME)
        and _are_numbers(lexical.names, -1, len(lexical.terms))
        and len(lexical.weights) == len(lexical.places)
        and all(_is_length(lexical.lengths[name]) for name in FIELDS)
    )
    if not sound:
        raise ValueError("its parts do not fit together")


def _is_length(length: Any) -> bool:
    return isinstance(length, (int, float)) and 0 < length < np.inf


def _are_rows(starts: NDArray[Any], rows: int, numbers: NDArray[Any], below: int) -> bool:
    """Whether `starts` cuts `numbers` into so many rows, and all of them are numbers of something."""
    return (
        starts.dtype == np.int64
        and numbers.ndim == 1
        and starts.shape == (rows + 1,)
        and starts[0] == 0
        and starts[-1] == len(numbers)
        and bool((np.diff(starts) >= 0).all())
        and _are_numbers(numbers, 0, below)
    )


def _are_numbers(numbers: NDArray[Any], lowest: int, below: int) -> bool:
    if numbers.dtype != np.int32:
        return False
    return not numbers.size or bool(numbers.min() >= lowest and numbers.max() < below)
