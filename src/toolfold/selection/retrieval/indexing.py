"""Keep the search index of a runtime's tools up to date, and their vectors in a store.

Embedding takes about 10 ms per text, so thousands of new tools take minutes. With `max_wait_s` a search gets
an index without the missing vectors, and a background thread computes them until `close`. Only the first
searches wait, in all not longer than `max_wait_s`. Each batch of vectors is stored, so that no text is
embedded again, in this process or another.
"""

from __future__ import annotations

import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from toolfold.core.types import Tool
from toolfold.selection.retrieval.embedding import Embedder, EmbeddingUnavailable, OutageLog
from toolfold.selection.retrieval.index import (
    EmbedTools,
    Index,
    IndexBuilder,
    PreviousIndex,
    Progress,
    embedded_messages,
    embedding_text,
    tool_checksum,
)
from toolfold.selection.retrieval.message_vectors import embed_with_messages
from toolfold.selection.retrieval.text import WordTokenizer
from toolfold.selection.retrieval.vector_store import VectorStore, document_checksum
from toolfold.selection.retrieval.vectors import PackedVectors

log = logging.getLogger(__name__)

MAX_INLINE_TEXTS = 64
"""Up to this many texts of new tools, definitions and example messages, are embedded before the search,
whatever `max_wait_s` is."""
MAX_UNEMBEDDED_SHARE = 0.2
"""If a larger share of the tools has no vector, the other vectors are not used either."""
_BATCH_TEXTS = 32
"""Texts that are embedded and stored at once; `close` waits until they are."""
_SHARED_READ_INTERVAL_S = 1.0
"""How often vectors of other processes are looked up while tools are embedded."""


class _Document(NamedTuple):
    """Text of a tool for the embedding model: its definition and its example messages."""

    text: str
    messages: tuple[str, ...]

    @property
    def texts(self) -> int:
        return 1 + len(self.messages)


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
        store: VectorStore | None,
        *,
        progress: Progress | None = None,
        outage_log: OutageLog | None = None,
        max_wait_s: float | None = None,
        on_change: Callable[[IndexState], None] | None = None,
    ) -> None:
        """Create an indexer; searches wait at most `max_wait_s` for vectors, without a limit if it is None.

        `on_change` is called when a search has to go on without all vectors, and when they are complete.
        Vectors that any process has computed are taken from `store`.
        """
        self._embedder, self._store, self._progress = embedder, store, progress
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
        self._tried_version = 0
        """Version of the stored vectors when tools were last embedded."""
        self._closed = threading.Event()

    def make_sibling(self, *, progress: Progress | None = None) -> Indexer:
        """Return an indexer for another set of tools with the same model and the same store.

        With `progress`, a search waits until all tools are embedded.
        """
        return Indexer(
            self._embedder,
            self._store,
            progress=progress,
            outage_log=self._outage_log,
            max_wait_s=None if progress else self._max_wait_s,
        )

    @property
    def embedder(self) -> Embedder | None:
        return self._embedder

    def has_index(self, tools: Sequence[Tool]) -> bool:
        """Return True if the index of exactly this sequence of tools is in memory."""
        with self._lock:
            return self._current is not None and self._current[0] is tools

    def index(self, tools: Sequence[Tool]) -> Index:
        """Return the index of the given tools; fast if the sequence is the same object as last time."""
        index, thread = self._find_index(tools)
        deadline = time.monotonic() + (self._max_wait_s or 0.0)
        # A thread that has ended may have embedded earlier tools only; then the next one does the rest.
        while thread is not None and self._has_ended(thread, deadline):
            index, thread = self._find_index(tools)
        if thread is not None and self._deferred_log.warn_once(f"{self._deferred_tools:,} tools"):
            self._report_state()
        return index

    def finish_index(self, tools: Sequence[Tool], timeout_s: float | None = None) -> IndexState:
        """Wait until all tools are embedded, whatever `max_wait_s` is; return the state of the index."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        _, thread = self._find_index(tools)
        while thread is not None:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                break
            _, thread = self._find_index(tools)
        return self.state()

    def is_embedding(self) -> bool:
        """Return True while tools of the current index are embedded in the background."""
        with self._lock:
            return self._deferred_tools > 0 and self._thread is not None

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
        """Stop the thread that embeds tools; the vectors computed so far are stored."""
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
        """Return True if a failed embedding model works again, or another process has computed vectors."""
        if self._embedder is None or not self._incomplete:
            return False
        if self._store is not None and self._store.version() != self._tried_version:
            return True
        try:
            self._embedder.embed(["tool"], "tool")
        except EmbeddingUnavailable:
            return False
        return True

    def _build_index(self, tools: Sequence[Tool]) -> Index:
        sums = self._compute_checksums(tools)
        previous = PreviousIndex.of(self._current[1]) if self._current else None
        index = self._make_builder(self._embed_tools).build(previous, tools, sums)
        if not self._deferred_tools:
            return index
        self._start_background_thread(tools, sums, index)
        # If most tools had no vector, the few with one would always rank first.
        return (
            replace(index, vectors=None)
            if self._deferred_tools > len(tools) * MAX_UNEMBEDDED_SHARE
            else index
        )

    def _make_builder(self, embed: EmbedTools) -> IndexBuilder:
        return IndexBuilder(self._words, embed, self._outage_log)

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
            embed = functools.partial(self._embed_tools, in_background=True)
            index = self._make_builder(embed).build(previous, tools, sums)
            with self._lock:  # if the tools have changed, the next index reuses this one
                self._current, self._deferred_tools = (tools, index), 0
            log.info("the embeddings of all %d tools are computed", len(tools))
            self._report_state()
        except _IndexerClosed:
            log.debug("closed before all tools were embedded; the next run continues")
        finally:
            with self._lock:
                self._thread = None

    def _embed_tools(self, tools: Sequence[Tool], *, in_background: bool = False) -> PackedVectors | None:
        """Return the tools' vectors; zero rows for tools that the background thread has to embed.

        If the model cannot compute them, log the outage, and return None if there are none at all.
        """
        if self._embedder is None:
            return None
        documents = [_Document(embedding_text(tool), embedded_messages(tool)) for tool in tools]
        rows = {document: row for row, document in enumerate(dict.fromkeys(documents))}
        order = np.array([rows[document] for document in documents], np.int64)
        found = _VectorRows(len(rows))
        try:
            for positions, part in self._find_vectors(self._embedder, list(rows), in_background):
                found.add(positions, part)
        except EmbeddingUnavailable as error:  # keep the vectors received so far
            self._outage_log.warn_once(str(error))
            self._incomplete = True
            if not found.packed.size:
                return None
        return found.packed.take_rows(order) if found.packed.size else PackedVectors.empty(0, 0)

    def _find_vectors(
        self, embedder: Embedder, documents: Sequence[_Document], in_background: bool
    ) -> Iterator[tuple[list[int], PackedVectors]]:
        """Yield document numbers and vectors in batches: stored vectors, then new vectors.

        If many are new and this is not the background thread, they are left to it.
        """
        left, sums = list(range(len(documents))), [document_checksum(*each) for each in documents]
        # Processes that start together begin at different tools, and take the rest from one another.
        first = random.randrange(len(left)) if left else 0  # noqa: S311
        left = left[first:] + left[:first]
        taken: dict[int, int] = {}  # position of a stored vector → its length
        while left:
            read_at = time.monotonic()
            for positions, part in self._read_stored(embedder, sums, left):
                yield positions, part
                taken |= dict.fromkeys(positions, part.width)
                left = [each for each in left if each not in taken]
            if not in_background and self._should_defer([documents[each] for each in left]):
                self._deferred_tools = len(left)
                return
            for positions, part in self._embed_batches(embedder, documents, left, in_background):
                if other := [each for each, width in taken.items() if width != part.width]:
                    # Another model has this name now: its vectors replace those in the store.
                    yield [], part.take_rows(np.zeros(0, np.int64))
                    left, taken = [*left, *other], {}
                    for again, vectors in self._embed_batches(embedder, documents, left, in_background):
                        yield again, vectors
                        self._write_stored(embedder, sums, again, vectors)
                    return
                yield positions, part
                self._write_stored(embedder, sums, positions, part)
                left = left[len(positions) :]
                if self._has_new_vectors(read_at):
                    break

    def _read_stored(
        self, embedder: Embedder, sums: Sequence[bytes], positions: Sequence[int]
    ) -> Iterator[tuple[list[int], PackedVectors]]:
        """Yield the positions and vectors of the documents that are in the store, if there are any."""
        if self._store is None:
            return
        self._tried_version = self._store.version()
        known, packed = self._store.read(embedder.name, [sums[each] for each in positions])
        if known:
            yield [positions[each] for each in known], packed

    def _write_stored(
        self, embedder: Embedder, sums: Sequence[bytes], positions: Sequence[int], part: PackedVectors
    ) -> None:
        if self._store is not None:
            self._store.write(embedder.name, [sums[each] for each in positions], part)

    def _should_defer(self, documents: Sequence[_Document]) -> bool:
        """Return True if embedding the documents would take longer than a search should wait."""
        return self._max_wait_s is not None and sum(each.texts for each in documents) > MAX_INLINE_TEXTS

    def _has_new_vectors(self, read_at: float) -> bool:
        """Return True if vectors were added to the store since this process last read them."""
        waited = time.monotonic() - read_at >= _SHARED_READ_INTERVAL_S
        return waited and self._store is not None and self._store.version() != self._tried_version

    def _embed_batches(
        self,
        embedder: Embedder,
        documents: Sequence[_Document],
        positions: Sequence[int],
        in_background: bool,
    ) -> Iterator[tuple[list[int], PackedVectors]]:
        total, done = len(documents), len(documents) - len(positions)
        for part in _split_batches(documents, positions):
            if in_background and (self._closed.is_set() or not threading.main_thread().is_alive()):
                raise _IndexerClosed
            if self._progress:
                self._progress(done, total)
            batch = [documents[position] for position in part]
            texts, messages = [each.text for each in batch], [each.messages for each in batch]
            yield part, PackedVectors.of(embed_with_messages(embedder, texts, messages))
            done += len(part)
        if self._progress and positions:
            self._progress(total, total)

    def _compute_checksums(self, tools: Sequence[Tool]) -> list[bytes]:
        """Return the tools' checksums, reusing those of tools seen in the last call."""
        previous = self._sums.get
        pairs = [previous(id(tool)) or (tool, tool_checksum(tool)) for tool in tools]
        self._sums = {id(pair[0]): pair for pair in pairs}
        return [pair[1] for pair in pairs]


def _split_batches(documents: Sequence[_Document], positions: Sequence[int]) -> Iterator[list[int]]:
    """Yield the positions in batches of about _BATCH_TEXTS texts."""
    batch: list[int] = []
    texts = 0
    for position in positions:
        batch.append(position)
        texts += documents[position].texts
        if texts >= _BATCH_TEXTS:
            yield batch
            batch, texts = [], 0
    if batch:
        yield batch


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
