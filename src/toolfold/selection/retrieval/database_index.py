"""Search among more tools than fit into memory, with candidates from the shared database.

A thread publishes the tools of this process and their vectors. A search looks up some hundred candidates
among the tools that are granted, and returns a small index of them, with the statistics of all tools, which
is then searched like any other. What the database returns is checked once more: only tools that this process
has and that are granted become candidates.
"""

from __future__ import annotations

import bisect
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toolfold.core.errors import ToolfoldError
from toolfold.core.types import Tool
from toolfold.selection.retrieval.candidate_queries import (
    CandidateQuery,
    FoundRows,
    NearestQuery,
    ScopeFilter,
    VectorTable,
)
from toolfold.selection.retrieval.catalog_rows import Ids
from toolfold.selection.retrieval.embedding import Embedder, EmbeddingUnavailable, Matrix, OutageLog
from toolfold.selection.retrieval.exact import list_mentions
from toolfold.selection.retrieval.index import (
    CatalogSample,
    Index,
    embedded_messages,
    embedding_text,
    tool_checksum,
)
from toolfold.selection.retrieval.indexing import IndexState
from toolfold.selection.retrieval.lexical import KeywordIndex
from toolfold.selection.retrieval.message_vectors import embed_with_messages
from toolfold.selection.retrieval.ranking import CANDIDATES_PER_LEG, Positions
from toolfold.selection.retrieval.shared_catalog import BATCH_SIZE, SEARCH_TIMEOUT_S, SharedCatalog, hash_name
from toolfold.selection.retrieval.shared_vectors import SharedVectors
from toolfold.selection.retrieval.text import WordTokenizer
from toolfold.selection.retrieval.vector_store import document_checksum
from toolfold.selection.retrieval.vectors import PackedVectors, Vectors
from toolfold.state.database import Database, DatabaseError

log = logging.getLogger(__name__)

IndexPlace = Literal["auto", "memory", "database"]

MAX_MEMORY_TOOLS = 100_000
"""Number of tools up to which `auto` searches in memory."""
MAX_EXACT_TOOLS = 4_000
"""If no more tools are granted, all of them are compared, without the index of vectors."""
MAX_CONNECTIONS = 4
"""Connections for searches, so that they do not take those of approvals and sessions."""
CANDIDATES = CANDIDATES_PER_LEG + 32
MAX_SERVER_CANDIDATES = 96
MAX_SERVERS = 2
NEAREST_TO_EARLIER = 12
MAX_MENTIONS = 500
SAMPLE_SIZE = 512
MAX_CACHED_GRANTS = 64
RETRY_INTERVAL_S = 2.0
"""Time after a failed search in which the database is not asked again."""
PUBLISH_RETRY_S = 5.0
LOG_INTERVAL_S = 10.0
LOGGED_TOOLS = 10_000
"""If more tools are published, the log tells how far that is."""
REFRESH_INTERVAL_S = 86_400.0
"""How often stored tools are marked as used, so that other processes do not remove them."""
_EMBED_BATCH = 64


class IndexUnavailable(ToolfoldError):
    """The search index in the database is currently unavailable."""


@dataclass(frozen=True, slots=True, eq=False)
class MessageLookup:
    """Message with its vectors and conversation, for looking up candidate tools."""

    message: str
    parts: Sequence[str] = ()
    vectors: Matrix | None = None
    """Of the message, then of its parts; None to search by keywords alone."""
    earlier_texts: Sequence[str] = ()
    earlier_vectors: Sequence[Matrix] = ()
    used: Sequence[str] = ()
    """Names of the tools that the conversation has called, latest first."""


@dataclass(frozen=True, slots=True, eq=False)
class _Grant:
    """Tools that a session may use, as positions in the index and as an SQL condition."""

    mask: NDArray[np.bool_]
    scope: ScopeFilter
    sample: Matrix
    """Vectors of some of the tools."""


@dataclass(frozen=True, slots=True, eq=False)
class _PublishedTools:
    """Tools of this process that are stored in the shared database."""

    tools: Sequence[Tool]
    """Sorted by name."""
    sums: NDArray[np.void]
    ids: Ids
    keys: NDArray[np.int64]
    """One row per tool: the numbers of its toolset and of its server."""
    others: NDArray[np.int64]
    """Tools of other processes: number and toolset."""
    last_id: int = 0
    """Highest number of a tool in the database when `others` was read."""
    table: VectorTable | None = None
    embedded: int = 0
    order: Positions = field(default_factory=lambda: np.zeros(0, np.int64))
    """Positions in the order of the tools' numbers."""
    grants: dict[frozenset[str] | None, _Grant] = field(default_factory=dict)

    def find_position(self, name: str) -> int | None:
        """Return the index position of the tool with the given name."""
        at = bisect.bisect_left(self.tools, name, key=lambda tool: tool.name)
        return at if at < len(self.tools) and self.tools[at].name == name else None

    def find_positions(self, ids: Sequence[int]) -> list[int]:
        """Return the index positions of tools given by database id; -1 for tools not in this process."""
        wanted = np.asarray(ids, np.int64)
        if not len(self.order):
            return [-1] * len(wanted)
        at = np.searchsorted(self.ids, wanted, sorter=self.order).clip(max=len(self.order) - 1)
        positions = self.order[at]
        found: list[int] = np.where(self.ids[positions] == wanted, positions, -1).tolist()
        return found


class DatabaseIndex:
    """Search index of this process's tools in the shared database. Thread-safe."""

    def __init__(
        self,
        database: Database,
        embedder: Embedder | None,
        shared: SharedVectors,
        *,
        place: IndexPlace = "auto",
        max_wait_s: float | None = None,
        on_change: Callable[[IndexState], None] | None = None,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        """Create the search index; the first search reads the database.

        `max_wait_s` limits how long a search waits until the tools are published; None waits for all.
        `on_failure` is called with the reason when a search cannot use the database.
        """
        self.words = WordTokenizer()
        self._place, self._embedder, self._shared = place, embedder, shared
        self._max_wait_s, self._on_change, self._on_failure = max_wait_s, on_change, on_failure
        self._database = database.with_limits(
            max_connections=MAX_CONNECTIONS, statement_timeout_s=max(30.0, SEARCH_TIMEOUT_S)
        )
        self._catalog = SharedCatalog(self._database, self.words)
        self._lock, self._closed = threading.Condition(), threading.Event()
        self._published: _PublishedTools | None = None
        self._wanted: Sequence[Tool] = ()
        self._complete: Sequence[Tool] | None = None
        """The tools that are published with all vectors."""
        self._publish_at = self._refresh_at = self._wait_left_s = 0.0
        self._thread: threading.Thread | None = None
        self._progress = (0, 0)
        self._log_at = 0.0
        self._problem = ""
        self._retry_at = 0.0
        self._outage_log = OutageLog("tools in the database are found by keywords only")
        self._unsubscribe = database.on_change("catalog", self._read_changes) if place != "memory" else None

    def serves(self, tools: int) -> bool:
        """Return True if a catalog of this size is searched in the database, not in memory."""
        return self._place == "database" or (self._place == "auto" and tools > MAX_MEMORY_TOOLS)

    def state(self) -> IndexState | None:
        """Return the numbers of tools and of vectors in the database; None if the database is not used."""
        published = self._published
        return None if published is None else IndexState(len(published.tools), published.embedded)

    def publish(self, tools: Sequence[Tool], *, wait: bool = False) -> _PublishedTools | None:
        """Start to store tools, sorted by name, in the database; return the tools stored so far."""
        with self._lock:
            if self._complete is tools and time.monotonic() < self._refresh_at:
                return self._published
            if self._wanted is not tools:
                self._wanted, self._publish_at, self._wait_left_s = tools, 0.0, self._max_wait_s or 0.0
            can_start = self._thread is None and time.monotonic() >= self._publish_at
            if can_start and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="toolfold-catalog", daemon=True)
                self._thread.start()
            if wait:
                self._wait_until_published(tools)
            return self._published

    def finish(self, tools: Sequence[Tool], timeout_s: float | None = None) -> IndexState:
        """Wait until the tools are stored with all vectors, or until that fails; return the state."""
        self.publish(tools)
        with self._lock:
            self._lock.wait_for(lambda: self._thread is None, timeout_s)
        return self.state() or IndexState(len(tools), 0)

    def is_publishing(self) -> bool:
        """Return True while tools or vectors are stored in the background."""
        return self._thread is not None

    def _wait_until_published(self, tools: Sequence[Tool]) -> None:
        """Wait until the tools are fully stored or, if a time limit is set, until they are searchable."""
        if self._max_wait_s is None:
            self._lock.wait_for(lambda: self._thread is None)
            return
        started = time.monotonic()
        self._lock.wait_for(
            lambda: self._thread is None or (self._published and self._published.tools is tools),
            self._wait_left_s,
        )
        self._wait_left_s = max(0.0, self._wait_left_s - (time.monotonic() - started))

    def find(
        self,
        tools: Sequence[Tool],
        lookup: MessageLookup,
        granted: frozenset[str] | None,
        *,
        names: Sequence[str] = (),
    ) -> Index:
        """Return a small index of candidate tools for a message, among the tools that the session may use.

        Raises IndexUnavailable if the database fails, or if the tools are not published yet.
        """
        try:
            published = self.publish(tools, wait=True)
            if published is None:
                done, total = self._progress
                problem = self._problem or f"{done:,} of {total or len(tools):,} tools are in it"
                raise IndexUnavailable(
                    f"The search index in the database is not complete yet: {problem}. Try again later."
                )
            if time.monotonic() < self._retry_at:
                raise IndexUnavailable(self._describe_failure(self._problem))
            return self._find_candidates(published, lookup, granted, names)
        except DatabaseError as error:
            self._problem, self._retry_at = str(error), time.monotonic() + RETRY_INTERVAL_S
            raise self._fail(self._describe_failure(self._problem)) from error
        except IndexUnavailable as error:
            raise self._fail(str(error)) from error

    def close(self) -> None:
        """Stop the background thread, cancel a running SQL statement and close the database connections."""
        self._closed.set()
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._database.close()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(SEARCH_TIMEOUT_S)

    def _describe_failure(self, problem: str) -> str:
        return (
            f"Tools cannot be searched in the database now: {problem}"
            " A tool whose name is known can still be called."
        )

    def _fail(self, problem: str) -> IndexUnavailable:
        if self._on_failure is not None:
            self._on_failure(problem)
        return IndexUnavailable(problem)

    def _find_candidates(
        self,
        published: _PublishedTools,
        lookup: MessageLookup,
        granted: frozenset[str] | None,
        names: Sequence[str],
    ) -> Index:
        grant = self._find_grant(published, granted)
        table = self._usable_table(published, grant, lookup)
        used = [at for name in lookup.used if (at := published.find_position(name)) is not None]
        extra = [at for name in names if (at := published.find_position(name)) is not None]
        query = CandidateQuery(
            texts=[
                list(self.words.message_terms(text).content_terms)
                for text in (lookup.message, *lookup.parts, *lookup.earlier_texts)
            ],
            nearest=_list_nearest(lookup, [int(published.keys[at, 1]) for at in used]) if table else [],
            mentions=list_mentions(lookup.message, MAX_MENTIONS),
            ids=[int(published.ids[at]) for at in (*used, *extra) if grant.mask[at]],
            limit=CANDIDATES,
            partial_names=[word for word in lookup.message.casefold()[:500].split() if len(word) > 2],
        )
        return self._make_index(
            published, grant, table, self._catalog.find_candidates(query, grant.scope, table)
        )

    def _usable_table(
        self, published: _PublishedTools, grant: _Grant, lookup: MessageLookup
    ) -> VectorTable | None:
        """Return the table of tool vectors; None if it is not indexed yet or is for another embedding model.

        Without an index, comparing a message with the vectors of all tools would take too long.
        A search by keywords uses the vectors of candidates to recognise duplicates.
        """
        table = published.table
        if table is None or lookup.vectors is None:
            return table
        if table.width != lookup.vectors.shape[1]:
            return None
        return table if table.is_ready or grant.scope.only is not None else None

    def _make_index(
        self, published: _PublishedTools, grant: _Grant, table: VectorTable | None, found: FoundRows
    ) -> Index:
        positions = published.find_positions(found.ids)
        rows = [row for row, position in enumerate(positions) if position >= 0 and grant.mask[position]]
        rows.sort(key=positions.__getitem__)  # equal scores are ordered as in an index of all tools
        tools = [published.tools[positions[row]] for row in rows]
        statistics = found.statistics
        lexical = KeywordIndex.of_candidates(
            tools, [found.weights[row] for row in rows], self.words, statistics
        )
        vectors = None
        if table is not None and found.vectors is not None and rows:
            vectors = Vectors.of(PackedVectors.of(found.vectors[rows]))
        sums = [published.sums[positions[row]].tobytes() for row in rows]
        sample = CatalogSample(len(published.tools), grant.sample)
        return replace(Index.of(tools, sums, lexical, vectors), sample=sample)

    def _find_grant(self, published: _PublishedTools, names: frozenset[str] | None) -> _Grant:
        """Return the cached index positions of the session's tools, and the SQL condition for them."""
        with self._lock:
            found = published.grants.pop(names, None)
        if found is None:
            found = self._build_grant(published, names)
        with self._lock:
            published.grants[names] = found
            while len(published.grants) > MAX_CACHED_GRANTS:
                del published.grants[next(iter(published.grants))]
        return found

    def _build_grant(self, published: _PublishedTools, names: frozenset[str] | None) -> _Grant:
        tools = published.tools
        if names is None:
            mask = np.ones(len(tools), bool)
        else:
            mask = np.fromiter((tool.name in names for tool in tools), bool, len(tools))
        ids = published.ids[mask]
        sample: Matrix = np.zeros((0, 0), np.float32)
        if published.table is not None:
            drawn = ids[:: max(1, len(ids) // SAMPLE_SIZE)][:SAMPLE_SIZE]
            sample = self._catalog.read_vectors(published.table, drawn.tolist())
        return _Grant(
            mask, make_scope_filter(published.ids, published.keys[:, 0], mask, published.others), sample
        )

    def _read_changes(self) -> None:
        """Find tools added by other processes, and check whether the vector index is ready."""
        published = self._published
        if published is None:
            return
        embedder = self._embedder if published.table else None
        table = self._catalog.find_vectors(embedder.name) if embedder else None
        others, last_id = self._find_others(published.ids, published.others, published.last_id)
        with self._lock:
            if self._published is published:
                self._published = replace(
                    published, others=others, last_id=last_id, table=table or published.table, grants={}
                )

    def _find_others(self, ids: Ids, known: NDArray[np.int64], last_id: int) -> tuple[NDArray[np.int64], int]:
        """Return the ids and toolsets of other processes' tools, and the highest tool id in the database.

        `known` are those with an id up to `last_id`.
        """
        added, toolsets = self._catalog.list_tools(last_id)
        new = ~np.isin(added, ids)
        found = np.concatenate((known, np.column_stack((added[new], toolsets[new]))))
        return found, int(added.max(initial=last_id))

    def _run(self) -> None:
        """Store the current tools in the database; repeat if the tools change during that time."""
        tools, is_complete = self._wanted, False
        try:
            while not self._closed.is_set():
                tools = self._wanted
                is_complete = self._try_publish(tools)
                if not is_complete or self._wanted is tools:
                    return
        finally:
            with self._lock:
                self._complete = tools if is_complete else None
                self._publish_at = time.monotonic() + PUBLISH_RETRY_S
                self._refresh_at = time.monotonic() + REFRESH_INTERVAL_S
                self._thread = None
                self._lock.notify_all()

    def _try_publish(self, tools: Sequence[Tool]) -> bool:
        """Store the tools and their vectors in the database; return False if that failed."""
        try:
            self._publish_tools(tools)
        except (DatabaseError, EmbeddingUnavailable) as error:
            self._problem = str(error)
            if not self._closed.is_set():
                self._outage_log.warn_once(str(error))
            return False
        except Exception:
            log.exception("the search index in the database could not be built")
            return False
        self._problem = ""
        return not self._closed.is_set()

    def _publish_tools(self, tools: Sequence[Tool]) -> None:
        """Store the tools and then their vectors; searches can use both as soon as they are stored."""
        sums = [tool_checksum(tool) for tool in tools]
        ids = self._add_tools(tools, sums)
        keys = np.empty((len(tools), 2), np.int64)
        keys[:, 0] = np.fromiter((hash_name(tool.toolset) for tool in tools), np.int64, len(tools))
        keys[:, 1] = np.fromiter((hash_name(tool.server) for tool in tools), np.int64, len(tools))
        table = self._catalog.find_vectors(self._embedder.name) if self._embedder else None
        others, last_id = self._find_others(ids, np.zeros((0, 2), np.int64), 0)
        published = _PublishedTools(
            tools=tools,
            sums=np.array(sums, "V16"),
            ids=ids,
            keys=keys,
            others=others,
            last_id=last_id,
            table=table,
            order=np.argsort(ids, kind="stable"),
        )
        missing = self._catalog.find_unembedded(table, ids) if table else ids
        self._set_published(replace(published, embedded=len(ids) - len(missing)))
        self._catalog.note_use(ids)
        if self._embedder is not None:
            self._add_vectors(self._embedder, published, missing)
        while self._catalog.remove_unused() and not self._closed.is_set():
            pass

    def _add_tools(self, tools: Sequence[Tool], sums: Sequence[bytes]) -> Ids:
        """Store the tools that are not in the database yet; return the ids of all tools."""
        ids: Ids = np.zeros(len(sums), np.int64)
        for start in range(0, len(sums), BATCH_SIZE):
            part = sums[start : start + BATCH_SIZE]
            known = self._catalog.find_ids(part)
            ids[start : start + len(part)] = [known.get(each, 0) for each in part]
        missing = np.flatnonzero(ids == 0)
        if len(missing):
            self._catalog.prepare_bulk_load(tools, len(missing))
        for start in range(0, len(missing), BATCH_SIZE):
            self._report_progress("tools", len(tools) - len(missing) + start, len(tools))
            part_of = missing[start : start + BATCH_SIZE].tolist()
            known = self._catalog.add_tools(
                [tools[each] for each in part_of], [sums[each] for each in part_of]
            )
            ids[part_of] = [known[sums[each]] for each in part_of]
        if len(missing) or not self._catalog.has_word_indexes():
            self._report_progress("tools", len(tools), len(tools))
            self._catalog.build_word_indexes()
        return ids

    def _report_progress(self, what: str, done: int, total: int) -> None:
        """Log the progress of storing tools, at intervals. Raises DatabaseError if the index was closed."""
        if self._closed.is_set():
            raise DatabaseError("the index was closed")
        self._progress = done, total
        if time.monotonic() >= self._log_at and total > LOGGED_TOOLS:
            self._log_at = time.monotonic() + LOG_INTERVAL_S
            log.info("building the database search index: %s, %s of %s", what, f"{done:,}", f"{total:,}")

    def _add_vectors(self, embedder: Embedder, published: _PublishedTools, missing: Ids) -> None:
        positions = np.flatnonzero(np.isin(published.ids, missing))
        table, done = published.table, len(published.ids) - len(positions)
        for start in range(0, len(positions), BATCH_SIZE):
            self._report_progress("vectors", done, len(published.ids))
            part = positions[start : start + BATCH_SIZE]
            vectors = self._embed([published.tools[each] for each in part], embedder)
            if table is None or table.width != vectors.shape[1]:
                table = self._catalog.open_vectors(embedder.name, vectors.shape[1])
            self._catalog.add_vectors(table, published.ids[part], published.keys[part], vectors)
            done += len(part)
            self._set_published(replace(published, table=table, embedded=done, grants={}))
        if table is not None and not table.is_ready:
            log.info("building the database index of %s vectors for tool search", f"{len(published.ids):,}")
            self._catalog.build_index(table)
            table = self._catalog.find_vectors(embedder.name)
        self._set_published(replace(published, table=table, embedded=len(published.ids), grants={}))
        if self._on_change is not None:
            self._on_change(IndexState(len(published.ids), len(published.ids)))

    def _embed(self, tools: Sequence[Tool], embedder: Embedder) -> Matrix:
        """Return the vectors of tools, computing only those that no replica has computed yet."""
        documents = [(embedding_text(tool), embedded_messages(tool)) for tool in tools]
        sums = [document_checksum(*each) for each in documents]
        known, packed = self._shared.read(embedder.name, sums)
        left = sorted(set(range(len(tools))) - set(known))
        parts = []
        for start in range(0, len(left), _EMBED_BATCH):
            part = left[start : start + _EMBED_BATCH]
            new = PackedVectors.of(
                embed_with_messages(
                    embedder, [documents[each][0] for each in part], [documents[each][1] for each in part]
                )
            )
            self._shared.write(embedder.name, [sums[each] for each in part], new)
            parts.append((part, new))
        if known and all(new.width == packed.width for _, new in parts):
            parts.append((known, packed))
        found: Matrix = np.zeros((len(tools), parts[0][1].width), np.float32)
        for part, new in parts:
            found[part] = new.dequantize()
        return found

    def _set_published(self, published: _PublishedTools) -> None:
        with self._lock:
            self._published = published
            self._lock.notify_all()


def make_scope_filter(
    ids: Ids, toolsets: NDArray[np.int64], mask: NDArray[np.bool_], others: NDArray[np.int64]
) -> ScopeFilter:
    """Return the SQL condition that selects exactly the tools in `mask`.

    `toolsets` has the toolset of each tool, `others` number and toolset of tools that are not in `ids`.
    """
    count = int(mask.sum())
    if count <= MAX_EXACT_TOOLS:
        return ScopeFilter.of_tools(ids[mask])
    if len(ids) - count + len(others) <= MAX_EXACT_TOOLS:  # shorter than a list of all toolsets
        return ScopeFilter.of_all_but(np.concatenate((ids[~mask], others[:, 0])))
    numbers, of_tool = np.unique(toolsets, return_inverse=True)
    total = np.bincount(of_tool, minlength=len(numbers))
    granted = np.bincount(of_tool[mask], minlength=len(numbers))
    is_whole = (granted > 0) & (total - granted <= granted)
    hidden = ids[is_whole[of_tool] & ~mask]
    foreign = others[np.isin(others[:, 1], numbers[is_whole]), 0]
    return ScopeFilter.of_toolsets(
        numbers[is_whole], np.concatenate((hidden, foreign)), ids[~is_whole[of_tool] & mask]
    )


def _list_nearest(lookup: MessageLookup, servers: Sequence[int]) -> list[NearestQuery]:
    """Return the vector searches for a message, its parts and earlier messages, and for each used server."""
    vectors = [] if lookup.vectors is None else [each for each in lookup.vectors if each.any()]
    found = [NearestQuery(vector, CANDIDATES) for vector in vectors]
    found += [NearestQuery(vector, NEAREST_TO_EARLIER) for vector in lookup.earlier_vectors]
    for server in list(dict.fromkeys(servers))[:MAX_SERVERS] if vectors else ():
        found.append(NearestQuery(vectors[0], MAX_SERVER_CANDIDATES, server))
    return found
