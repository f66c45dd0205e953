"""Keep the search index of a runtime's tools up to date, in memory and on disk.

Files are written atomically. A file that is damaged, foreign or of another model is rebuilt. Embedding
takes about 10 ms per tool, so thousands of new tools take minutes. With `max_wait_s` a search gets an
index without the missing vectors, and a background thread computes them until `close`. Only the first
searches wait, in all not longer than `max_wait_s`. Progress is saved, and the next run continues from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from toolfold.model import Tool
from toolfold.retrieval.embedding import Embedder, EmbeddingUnavailable, OutageLog
from toolfold.retrieval.index import (
    EmbedTools,
    Index,
    IndexBuilder,
    PreviousIndex,
    Progress,
    SaveVectors,
    embedded_messages,
    embedding_text,
    tool_checksum,
)
from toolfold.retrieval.index_cache import IndexCache, read_index, write_index
from toolfold.retrieval.message_vectors import embed_with_messages
from toolfold.retrieval.shared_vectors import SharedVectors, document_checksum
from toolfold.retrieval.text import WordTokenizer
from toolfold.retrieval.vectors import PackedVectors

log = logging.getLogger(__name__)

MAX_CACHE_FILES = 6
MAX_INLINE_TEXTS = 64
"""Up to this many texts of new tools, definitions and example messages, are embedded before the search,
whatever `max_wait_s` is."""
MAX_UNEMBEDDED_SHARE = 0.2
"""If a larger share of the tools has no vector, the other vectors are not used either."""
_BATCH_SIZE = 64
_CHECKPOINT_INTERVAL_S = 10.0
MAX_CHECKPOINT_SHARE = 0.1
"""Share of the time of embedding in which the partly built index may be saved; that of a million tools takes
seconds."""
_SHARED_READ_INTERVAL_S = 1.0
"""How often vectors of other replicas are looked up while tools are embedded."""
_CHECKSUM_BYTES = 16


class _Document(NamedTuple):
    """Text of a tool for the embedding model: its definition and its example messages."""

    text: str
    messages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IndexState:
    """Number of tools in an index, and number of tools that can be found by similarity."""

    tools: int
    embedded: int
    waited_s: float = 0.0
    """How long searches have waited for the vectors."""

    @property
    def is_complete(self) -> bool:
        return self.embedded >= self.tools


class _IndexerClosed(BaseException):
    """Raised in the background thread to stop it; a BaseException, so that error handlers do not catch it."""


class BackgroundStart:
    """Starts index builds in a background thread, one build at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def run(self, build: Callable[[], object]) -> None:
        """Call `build` in a thread, unless an earlier call is still running; log errors."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                # Not a daemon: the interpreter would stop it in the middle of an inference at exit.
                self._thread = threading.Thread(
                    target=_run_logged, args=(build,), name="toolfold-index-start"
                )
                self._thread.start()

    def wait(self) -> None:
        """Wait until the thread that builds an index has finished."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()


def _run_logged(build: Callable[[], object]) -> None:
    try:
        build()
    except Exception:
        log.warning("the search index could not be built in the background", exc_info=True)


class Indexer:
    """Provides the search index of the current tools; embeds new tools in the background if necessary."""

    def __init__(
        self,
        embedder: Embedder | None,
        directory: Path | None,
        *,
        progress: Progress | None = None,
        outage_log: OutageLog | None = None,
        max_wait_s: float | None = None,
        on_change: Callable[[IndexState], None] | None = None,
        shared: SharedVectors | None = None,
    ) -> None:
        """Create an indexer; searches wait at most `max_wait_s` for vectors, without a limit if it is None.

        `on_change` is called when a search has to go on without all vectors, and when they are complete.
        With `shared`, vectors that any replica has computed are taken from the database.
        """
        self._embedder, self._directory, self._progress = embedder, directory, progress
        self._outage_log = outage_log or OutageLog()
        self._deferred_log = OutageLog("new tools are found by keywords only until they are embedded")
        self._max_wait_s = max_wait_s
        self._words = WordTokenizer()
        self._lock = threading.Lock()
        self._sums: dict[int, tuple[Tool, bytes]] = {}
        self._current: tuple[Sequence[Tool], Index] | None = None
        self._incomplete = False
        self._deferred_tools = 0
        self._thread: threading.Thread | None = None
        self._wait_left_s = self._waited_s = 0.0
        self._on_change = on_change
        self._shared = shared
        self._tried_version = 0
        """Version of the shared vectors when tools were last embedded."""
        self._closed = threading.Event()

    def make_sibling(self, directory: str, *, progress: Progress | None = None) -> Indexer:
        """Return an indexer for another set of tools with the same model, stored in a subdirectory.

        With `progress`, a search waits until all tools are embedded.
        """
        return Indexer(
            self._embedder,
            self._directory and self._directory / directory,
            progress=progress,
            outage_log=self._outage_log,
            max_wait_s=None if progress else self._max_wait_s,
            shared=self._shared,
        )

    @property
    def embedder(self) -> Embedder | None:
        return self._embedder

    def has_index(self, tools: Sequence[Tool]) -> bool:
        """Return True if the index of exactly this sequence of tools is in memory."""
        with self._lock:
            return self._current is not None and self._current[0] is tools

    def index(self, tools: Sequence[Tool], *, wait: bool = True) -> Index:
        """Return the index of the given tools; fast if the sequence is the same object as last time.

        `wait=False` only starts the computation of missing vectors.
        """
        index, thread = self._find_index(tools)
        deadline = time.monotonic() + (self._max_wait_s or 0.0)
        # A thread that has ended may have embedded earlier tools only; then the next one does the rest.
        while wait and thread is not None and self._has_ended(thread, deadline):
            index, thread = self._find_index(tools)
        if wait and thread is not None and self._deferred_log.warn_once(f"{self._deferred_tools:,} tools"):
            self._report_state()
        return index

    def _find_index(self, tools: Sequence[Tool]) -> tuple[Index, threading.Thread | None]:
        """Return the index of the tools, and the thread that computes missing vectors (None if complete)."""
        with self._lock:
            return self._current_index(tools), self._thread if self._deferred_tools else None

    def state(self) -> IndexState:
        """Return the number of tools in the current index, and the number of tools with a vector."""
        with self._lock:
            return self._current_state()

    def _current_state(self) -> IndexState:
        if self._current is None:
            return IndexState(0, 0)
        tools, index = self._current
        if index.vectors is None:
            return IndexState(len(tools), 0, self._waited_s)
        embedded = index.vectors.packed.has_vector
        return IndexState(len(tools), int(embedded[list(index.by_name.values())].sum()), self._waited_s)

    def _has_ended(self, thread: threading.Thread, deadline: float) -> bool:
        """Wait for a thread, at most `max_wait_s` in total over all searches; return True if it has ended."""
        started = time.monotonic()
        thread.join(max(0.0, min(self._wait_left_s, deadline - started)))
        waited = time.monotonic() - started
        self._wait_left_s = max(0.0, self._wait_left_s - waited)
        self._waited_s += waited
        return not thread.is_alive()

    def _report_state(self) -> None:
        if self._on_change is not None:
            self._on_change(self.state())

    def close(self) -> None:
        """Stop the thread that embeds tools, and save the vectors computed so far."""
        self._closed.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _current_index(self, tools: Sequence[Tool]) -> Index:
        if self._current is None or self._current[0] is not tools or self._can_retry_embedding():
            self._incomplete, self._deferred_tools = False, 0
            self._current = (tools, self._build_index(tools))
        return self._current[1]

    def _can_retry_embedding(self) -> bool:
        """Return True if a failed embedding model works again, or another replica has computed vectors."""
        if self._embedder is None or not self._incomplete:
            return False
        if self._shared is not None and self._shared.version() != self._tried_version:
            return True
        try:
            self._embedder.embed(["tool"], "tool")
        except EmbeddingUnavailable:
            return False
        return True

    def _build_index(self, tools: Sequence[Tool]) -> Index:
        sums = self._compute_checksums(tools)
        previous = self._find_previous(sums)
        index = self._make_builder(sums, self._embed_or_defer).build(previous, tools, sums)
        if not self._deferred_tools:
            self._save_if_changed(previous, index, sums)
            return index
        self._start_background_thread(tools, sums, index)
        # If most tools had no vector, the few with one would always rank first.
        return (
            replace(index, vectors=None)
            if self._deferred_tools > len(tools) * MAX_UNEMBEDDED_SHARE
            else index
        )

    def _find_previous(self, sums: Sequence[bytes]) -> PreviousIndex | None:
        """Return the index to update: the current one or, if it is missing or lacks tools, a saved one."""
        if self._current is None:
            return self._load_cached(sums)
        current = PreviousIndex.of(self._current[1])
        has_new_tools = not set(sums).issubset(current.checksums)
        if has_new_tools and self._directory is not None and self._file_path(sums).exists():
            return self._load_cached(sums) or current
        return current

    def _make_builder(self, sums: Sequence[bytes], embed: EmbedTools) -> IndexBuilder:
        return IndexBuilder(self._words, embed, self._outage_log, lambda cache: self._save_index(cache, sums))

    def _start_background_thread(self, tools: Sequence[Tool], sums: Sequence[bytes], index: Index) -> None:
        """Start a background thread that embeds the tools that have no vectors yet.

        If one is running, it finishes first and the next search continues.
        """
        if self._thread is None and not self._closed.is_set():
            self._wait_left_s, self._waited_s = self._max_wait_s or 0.0, 0.0
            # Not a daemon: the interpreter would stop it in the middle of an inference at exit.
            self._thread = threading.Thread(
                target=self._finish_in_background, args=(tools, sums, index), name="toolfold-index"
            )
            self._thread.start()

    def _finish_in_background(self, tools: Sequence[Tool], sums: Sequence[bytes], before: Index) -> None:
        previous = PreviousIndex.of(before)
        try:
            index = self._make_builder(sums, self._embed_in_background).build(previous, tools, sums)
            self._save_if_changed(previous, index, sums)
            with self._lock:  # if the tools have changed, the next index reuses this one
                self._current, self._deferred_tools = (tools, index), 0
            log.info("the embeddings of all %d tools are computed", len(tools))
            self._report_state()
        except _IndexerClosed:
            log.debug("closed before all tools were embedded; the next run continues")
        finally:
            with self._lock:
                self._thread = None

    def _embed_or_defer(self, tools: Sequence[Tool], save_vectors: SaveVectors) -> PackedVectors | None:
        """Embed the tools now, or return None to leave many tools to a background thread."""
        texts = sum(1 + len(tool.messages) for tool in tools)
        if self._embedder is None or self._max_wait_s is None or texts <= MAX_INLINE_TEXTS:
            return self._embed_tools(tools, save_vectors)
        self._deferred_tools = len(tools)
        return None

    def _embed_in_background(self, tools: Sequence[Tool], save_vectors: SaveVectors) -> PackedVectors | None:
        return self._embed_tools(tools, save_vectors, in_background=True)

    def _embed_tools(
        self, tools: Sequence[Tool], save_vectors: SaveVectors, *, in_background: bool = False
    ) -> PackedVectors | None:
        """Return the tools' vectors; if the model cannot compute them, log the outage and return None."""
        if self._embedder is None:
            return None
        documents = [_Document(embedding_text(tool), embedded_messages(tool)) for tool in tools]
        rows = {document: row for row, document in enumerate(dict.fromkeys(documents))}
        order = np.array([rows[document] for document in documents], np.int64)
        found = _VectorRows(len(rows))
        checkpoints = _CheckpointTimer()
        try:
            for positions, part in self._find_vectors(self._embedder, list(rows), in_background):
                found.add(positions, part)
                if checkpoints.is_due():
                    save_vectors(found.packed.take_rows(order))
                    checkpoints.restart()
        except EmbeddingUnavailable as error:  # keep the vectors received so far
            self._outage_log.warn_once(str(error))
            self._incomplete = True
            if not found.packed.size:
                return None
        except BaseException:
            if found.packed.size:
                save_vectors(found.packed.take_rows(order))
            raise
        return found.packed.take_rows(order) if found.packed.size else PackedVectors.empty(0, 0)

    def _find_vectors(
        self, embedder: Embedder, documents: Sequence[_Document], in_background: bool
    ) -> Iterator[tuple[list[int], PackedVectors]]:
        """Yield document numbers and vectors in batches: vectors from other replicas, then new vectors."""
        if self._shared is None:
            yield from self._embed_batches(embedder, documents, range(len(documents)), in_background)
            return
        left, sums = list(range(len(documents))), [document_checksum(*each) for each in documents]
        # Replicas that start together begin at different tools, and take the rest from one another.
        first = random.randrange(len(left)) if left else 0  # noqa: S311
        left = left[first:] + left[:first]
        taken: dict[int, int] = {}  # position of a shared vector → its length
        while left:
            read_at, self._tried_version = time.monotonic(), self._shared.version()
            known, packed = self._shared.read(embedder.name, [sums[each] for each in left])
            if known:
                positions = [left[each] for each in known]
                yield positions, packed
                taken |= dict.fromkeys(positions, packed.width)
                left = [each for each in left if each not in taken]
            for positions, part in self._embed_batches(embedder, documents, left, in_background):
                if other := [each for each, width in taken.items() if width != part.width]:
                    # Another model has this name now: its vectors replace those in the database.
                    yield [], part.take_rows(np.zeros(0, np.int64))
                    yield from self._embed_batches(embedder, documents, [*left, *other], in_background)
                    return
                yield positions, part
                self._shared.write(embedder.name, [sums[each] for each in positions], part)
                left = left[len(positions) :]
                if self._has_new_vectors(read_at):
                    break

    def _has_new_vectors(self, read_at: float) -> bool:
        """Return True if other replicas have added vectors since this process last read them."""
        waited = time.monotonic() - read_at >= _SHARED_READ_INTERVAL_S
        return waited and self._shared is not None and self._shared.version() != self._tried_version

    def _embed_batches(
        self,
        embedder: Embedder,
        documents: Sequence[_Document],
        positions: Sequence[int],
        in_background: bool,
    ) -> Iterator[tuple[list[int], PackedVectors]]:
        total = len(documents)
        for start in range(0, len(positions), _BATCH_SIZE):
            if in_background and (self._closed.is_set() or not threading.main_thread().is_alive()):
                raise _IndexerClosed
            if self._progress:
                self._progress(total - len(positions) + start, total)
            part = list(positions[start : start + _BATCH_SIZE])
            batch = [documents[position] for position in part]
            yield (
                part,
                PackedVectors.of(
                    embed_with_messages(
                        embedder, [each.text for each in batch], [each.messages for each in batch]
                    )
                ),
            )
        if self._progress and positions:
            self._progress(total, total)

    def _compute_checksums(self, tools: Sequence[Tool]) -> list[bytes]:
        """Return the tools' checksums, reusing those of tools seen in the last call."""
        previous = self._sums.get
        pairs = [previous(id(tool)) or (tool, tool_checksum(tool)) for tool in tools]
        self._sums = {id(pair[0]): pair for pair in pairs}
        return [pair[1] for pair in pairs]

    def _load_cached(self, sums: Sequence[bytes]) -> PreviousIndex | None:
        for file in self._cached_files(sums):
            try:
                previous = PreviousIndex(*read_index(file, self._model_name(), self._words))
            except FileNotFoundError:
                continue  # another process has deleted it
            except Exception as error:  # a damaged file can raise almost anything
                log.warning("the search index %s cannot be used and is rebuilt: %s", file.name, error)
                if not isinstance(error, OSError):
                    _delete_file(file)
                continue
            with contextlib.suppress(OSError):  # the directory may be read-only
                os.utime(file)
            return previous
        return None

    def _cached_files(self, sums: Sequence[bytes]) -> list[Path]:
        """Return up to two index files to load: the file for these tools, then the newest other file."""
        if self._directory is None:
            return []
        try:
            found = sorted(
                self._directory.glob(f"{self._file_prefix()}*.npz"), key=_modified_time, reverse=True
            )
        except OSError as error:
            log.warning("the search indexes in %s cannot be read: %s", self._directory, error)
            return []
        wanted = self._file_path(sums)
        return sorted(found, key=lambda each: each != wanted)[:2]

    def _save_if_changed(self, previous: PreviousIndex | None, index: Index, sums: Sequence[bytes]) -> None:
        vectors_came = previous is not None and previous.vectors is None and index.vectors is not None
        if previous is None or vectors_came or set(sums).difference(previous.checksums):
            vectors = index.vectors
            packed, sketch = (vectors.packed, vectors.sketch) if vectors else (None, None)
            self._save_index(IndexCache(index.checksums, index.lexical, packed, sketch), sums)

    def _save_index(self, cache: IndexCache, sums: Sequence[bytes]) -> None:
        if self._directory is None:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            write_index(self._file_path(sums), cache, self._model_name())
            old = sorted(self._directory.glob("*.npz"), key=_modified_time, reverse=True)[MAX_CACHE_FILES:]
            for file in old:
                file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the search index could not be saved and will be rebuilt next time: %s", error)

    def _model_name(self) -> str:
        return self._embedder.name if self._embedder else "none"

    def _file_prefix(self) -> str:
        model = self._model_name()
        digest = hashlib.blake2b(
            model.encode(), digest_size=4
        ).hexdigest()  # long names may share their start
        return f"{re.sub(r'[^A-Za-z0-9]+', '-', model)[:32]}-{digest}-"

    def _file_path(self, sums: Sequence[bytes]) -> Path:
        every = np.sort(np.frombuffer(b"".join(sums), f"S{_CHECKSUM_BYTES}"))  # independent of the order
        digest = hashlib.blake2b(every.tobytes(), digest_size=12).hexdigest()
        return (self._directory or Path()) / f"{self._file_prefix()}{digest}.npz"


class _CheckpointTimer:
    """Decides when to save a partly built index, so that saving takes at most a tenth of the build time."""

    def __init__(self) -> None:
        self._due_at = time.monotonic() + _CHECKPOINT_INTERVAL_S
        self._started = 0.0

    def is_due(self) -> bool:
        """Return True if the index should be saved now; call `restart` after saving."""
        self._started = time.monotonic()
        return self._started >= self._due_at

    def restart(self) -> None:
        """Schedule the next checkpoint according to the duration of the last checkpoint."""
        now = time.monotonic()
        self._due_at = now + max(_CHECKPOINT_INTERVAL_S, (now - self._started) / MAX_CHECKPOINT_SHARE)


class _VectorRows:
    """Matrix of vectors that is filled in batches; rows without a vector are zero."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.packed = PackedVectors.empty(0, 0)
        """Empty before the first part."""

    def add(self, positions: Sequence[int], part: PackedVectors) -> None:
        """Store vectors in the given rows, or clear all rows if none are given. Raises ValueError."""
        if not positions or not self.packed.size:
            self.packed = PackedVectors.empty(self._size, part.width)
        if self.packed.width != part.width:
            raise ValueError("the model returned vectors of different lengths")
        self.packed.numbers[positions], self.packed.scales[positions] = part.numbers, part.scales


def _delete_file(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink()


def _modified_time(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
