"""Rank tools higher for texts similar to those that preceded successful calls of the tools.

A learned message adds to the similarity of its tool to a query in proportion to how close the query is to
the message. The addition is bounded, halves with every half-life without use, and shrinks when the tool was
found but others were called. Messages of other clients count much less than a client's own, and fully only if
several clients agree. A tool that is called after most messages gains nothing: its calls say nothing about a
message.

Messages are checked by `find_problem` before they are stored, and belong to a definition: they do not apply
to another server's tool, nor after the description has been rewritten.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolfold.core.types import USER_LEARNER_PREFIX, Tool
from toolfold.core.untrusted_text import PassageFinder, find_nothing
from toolfold.selection.retrieval.context import Cues
from toolfold.selection.retrieval.document import query_text
from toolfold.selection.retrieval.embedding import Embedder, EmbeddingUnavailable, Matrix, OutageLog
from toolfold.selection.retrieval.example_messages import (
    MAX_MESSAGE_CHARS,
    MIN_DEFINITION_SIMILARITY,
    MIN_MESSAGE_CHARS,
    MIN_SKETCH_SIMILARITY,
    MessageChecker,
    clean_message,
    definition_checksum,
    description_sketch,
    sketch_similarity,
)
from toolfold.selection.retrieval.index import Index
from toolfold.selection.retrieval.learned_store import LearnedMessage, LearnedMessageStore, Origin
from toolfold.selection.retrieval.ranking import Positions, Scores
from toolfold.selection.retrieval.text import WordTokenizer

log = logging.getLogger(__name__)

LOCAL_CLIENT = ""
"""The client of sessions, agents and commands on this machine that do not use a gateway or proxy."""
DAY_S = 86_400.0
EXPIRY_HALF_LIVES = 4
"""A message that was not used for this many half-lives is removed."""
MAX_GAIN = 0.2
"""What a client's own messages can add at most to the similarity of a tool, which is at most 1."""
MAX_SHARED_GAIN = 0.06
"""What messages of other clients can add at most, when AGREEING_CLIENTS have similar ones."""
AGREEING_CLIENTS = 3
MIN_SHARING_USERS = 2
"""Number of other members of a team who must have similar messages before these count for a user."""
MIN_CLOSENESS = 0.3
"""Similarity of a query to a message from which the message has an effect."""
MIN_DISTINCT_MESSAGES = 2
"""A tool gains nothing from fewer distinct messages of a client: one call may be a mistake."""
MIN_REQUESTS_FOR_SHARE = 10
"""Number of a client's requests from which the share of them that called a tool reduces the tool's gain."""
MISS_SIMILARITY = 0.85
"""Similarity from which a message counts as the same request as another one."""
MAX_KEYWORD_GAIN = 0.5
"""What messages add at most to a keyword score, as a share of the score of a perfect match."""
MIN_KEYWORD_OVERLAP = 0.5
MIN_OWN_WORDS = 2
MAX_VECTORS_PER_SEARCH = 64
"""Number of messages without a vector that one search embeds."""
REFRESH_INTERVAL_S = 3_600.0
_MAX_PLACED_INDEXES = 8
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class LearnedSummary:
    """Number of messages learned for a tool, and the time of their last use."""

    messages: int = 0
    clients: int = 0
    last_used: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the number of learned messages and the date of their last use as JSON data."""
        last = time.strftime("%Y-%m-%d", time.localtime(self.last_used)) if self.messages else None
        return {"messages": self.messages, "clients": self.clients, "last_used": last}


class LearnedMessages:
    """Messages learned from tool calls, which raise the tools' scores for similar messages. Thread-safe.

    A file that cannot be read or written disables learning with a warning; searches go on without it.
    """

    def __init__(
        self,
        store: LearnedMessageStore | None,
        *,
        half_life_days: float = 60.0,
        find_instructions: PassageFinder = find_nothing,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.enabled = store is not None
        """False: nothing is learned, and what was learned has no effect."""
        self.half_life_days = half_life_days
        self.find_sharing: Callable[[str], frozenset[str]] = lambda _learner: frozenset()
        """Returns the users whose messages are also used for a user, by the names of both as learners."""
        self._store, self._find_instructions, self._clock = store, find_instructions, clock
        self._lock = threading.Lock()
        self._version: object = None
        self._loaded_at = 0.0
        self._rows: tuple[LearnedMessage, ...] = ()
        self._totals: dict[tuple[str, str, str], int] = {}
        self._placed: dict[tuple[int, str], tuple[Index, _PlacedMessages]] = {}
        self._outage_log = OutageLog("messages learned from use are not used")

    def version(self, client: str = "") -> object:
        """Return a value that changes when new learned messages may change the result of a search."""
        if self._store is None or not self.enabled:
            return None
        try:
            now = int(self._clock() // REFRESH_INTERVAL_S)
            return self._store.version(), now, self._find_sharing_users(client) if client else None
        except (sqlite3.Error, OSError) as error:
            self._outage_log.warn_once(str(error))
            return None

    def for_client(self, index: Index, client: str, embedder: Embedder | None = None) -> ClientGains | None:
        """Return the score gains for a client's searches; None if no message was learned.

        With `embedder`, messages without a vector are embedded first, up to MAX_VECTORS_PER_SEARCH.
        """
        if self._store is None or not self.enabled:
            return None
        try:
            self._reload_if_changed()
            if not self._rows:
                return None
            if embedder is not None:
                self.embed_missing(embedder)
            return ClientGains(
                self._place_messages(index, embedder), client, self._find_sharing_users(client)
            )
        except (sqlite3.Error, OSError, EmbeddingUnavailable) as error:
            self._outage_log.warn_once(str(error))
            return None

    def _find_sharing_users(self, client: str) -> frozenset[str] | None:
        """Return the users whose messages affect a user's searches; None if the client belongs to no user."""
        return self.find_sharing(client) if client.startswith(USER_LEARNER_PREFIX) else None

    def learn(
        self,
        index: Index,
        tool: Tool,
        text: str,
        *,
        client: str,
        origin: Origin,
        is_new_request: bool = True,
    ) -> str:
        """Store a text that preceded a tool call; return why it was rejected, empty if it was stored.

        `is_new_request` is False if the text was already learned for another tool that was called after it.
        """
        if self._store is None or not self.enabled:
            return "learning is off"
        cleaned = clean_message(text)
        if problem := self.find_problem(index, tool, cleaned):
            return problem
        now = self._clock()
        expire_before = now - EXPIRY_HALF_LIVES * self.half_life_days * DAY_S
        message = LearnedMessage(
            client=client,
            server=tool.server,
            tool=tool.own_name,
            name=tool.name,
            checksum=definition_checksum(tool.own_name, tool.description),
            sketch=description_sketch(tool.description).hex(),
            text=cleaned,
            origin=origin,
            first_used=now,
            last_used=now,
        )
        try:
            self._store.add(message, expire_before=expire_before, is_new_request=is_new_request)
        except (sqlite3.Error, OSError) as error:
            self._outage_log.warn_once(str(error))
            return f"it cannot be stored: {error}"
        return ""

    def find_problem(self, index: Index, tool: Tool, text: str) -> str:
        """Return why a text may not be stored as a learned message for a tool; empty if it may be stored."""
        checker = MessageChecker(index.tools, self._find_instructions, names=index.names)
        if problem := checker.find_problem(tool, text, text):
            return problem
        cues = Cues.of(text)
        if cues.continues or cues.corrects:
            return "it refers to an earlier message"
        return "it has too few words of its own" if cues.own_words < MIN_OWN_WORDS else ""

    def count_misses(
        self, index: Index, text: str, *, client: str, called: frozenset[str], offered: frozenset[str]
    ) -> None:
        """Count a miss for learned messages similar to `text` whose tools were offered but not called."""
        if self._store is None or not self.enabled:
            return
        try:
            missed = self._find_missed(index, text, client, offered - called)
            if missed:
                self._store.add_misses(missed)
        except (sqlite3.Error, OSError) as error:
            self._outage_log.warn_once(str(error))

    def _find_missed(self, index: Index, text: str, client: str, names: frozenset[str]) -> list[int]:
        """Return the ids of a client's learned messages for the named tools that are similar to `text`."""
        self._reload_if_changed()
        placed, words = self._place_messages(index, None), index.lexical.words
        cleaned = clean_message(text)
        terms = _content_terms(words, cleaned)
        return [
            row.id
            for row, position in zip(placed.rows, placed.positions.tolist(), strict=True)
            if row.client == client
            and (tool := index.tools[position]) is not None
            and tool.name in names
            and _is_same_request(row.text, cleaned, terms, words)
        ]

    def find(self, tool: Tool) -> list[LearnedMessage]:
        """Return the messages learned for a tool, most recently used first."""
        if self._store is None:
            return []
        try:
            self._reload_if_changed()
        except (sqlite3.Error, OSError) as error:
            self._outage_log.warn_once(str(error))
        return [row for row in self._rows if _belongs_to(row, tool)]

    def list_tool_names(self, limit: int) -> list[str]:
        """Return the names of tools for which messages were learned, most recently used first."""
        if self._store is None or not self.enabled:
            return []
        try:
            self._reload_if_changed()
        except (sqlite3.Error, OSError) as error:
            self._outage_log.warn_once(str(error))
        rows = sorted(self._rows, key=lambda row: -row.last_used)
        return list(dict.fromkeys(row.name for row in rows))[:limit]

    def summarize(self, tool: Tool) -> LearnedSummary:
        """Return the number of messages learned for a tool, and the time of their last use."""
        rows = self.find(tool)
        clients = len({row.client for row in rows})
        return LearnedSummary(len(rows), clients, max((row.last_used for row in rows), default=0.0))

    def close(self) -> None:
        """Close the file of learned messages."""
        if self._store is not None:
            self._store.close()

    def _reload_if_changed(self) -> None:
        version = self.version()
        with self._lock:
            if self._store is not None and version != self._version:
                self._rows = tuple(row for row in self._store.load() if _is_valid_text(row.text))
                self._totals = self._store.load_totals()
                self._version = version
                self._placed.clear()

    def embed_missing(self, embedder: Embedder) -> None:
        """Compute and store missing vectors of learned messages, at most MAX_VECTORS_PER_SEARCH."""
        self._reload_if_changed()
        missing = [row for row in self._rows if row.model != embedder.name][:MAX_VECTORS_PER_SEARCH]
        if not missing or self._store is None:
            return
        vectors = embedder.embed([query_text(row.text) for row in missing], "query").astype(np.float16)
        self._store.set_vectors(
            embedder.name, {row.id: vector.tobytes() for row, vector in zip(missing, vectors, strict=True)}
        )
        self._reload_if_changed()

    def _place_messages(self, index: Index, embedder: Embedder | None) -> _PlacedMessages:
        with self._lock:
            key = id(index), embedder.name if embedder else ""
            known, placed = self._placed.get(key, (None, None))
            if placed is None or known is not index:
                weights = [self._weight(row) for row in self._rows]
                placed = _PlacedMessages.of(index, self._rows, weights, key[1])
                if len(self._placed) >= _MAX_PLACED_INDEXES:
                    self._placed.clear()
                self._placed[key] = index, placed
            return placed

    def _weight(self, row: LearnedMessage) -> float:
        """Return a learned message's weight from 0 to 1, lower for an old or misleading message."""
        age = max(0.0, self._clock() - row.last_used)
        decay: float = 0.5 ** (age / (self.half_life_days * DAY_S))
        if age > EXPIRY_HALF_LIVES * self.half_life_days * DAY_S:
            return 0.0
        return decay * self._selectivity(row) * row.uses / (row.uses + row.misses)

    def _selectivity(self, row: LearnedMessage) -> float:
        """Return the share of a client's requests that did not call the tool; 1 if there are few requests."""
        requests = self._totals.get((row.client, "", ""), 0)
        if requests < MIN_REQUESTS_FOR_SHARE:
            return 1.0
        return max(0.0, 1 - self._totals.get((row.client, row.server, row.tool), 0) / requests)


@dataclass(frozen=True, slots=True, eq=False)
class _PlacedMessages:
    """Learned messages for the tools of an index, as arrays with one row per message."""

    rows: tuple[LearnedMessage, ...]
    size: int
    """Number of positions of the index."""
    positions: Positions
    strengths: Scores
    """Weight of each message, reduced by how little its tool's messages say; 0 has no effect."""
    groups: NDArray[np.int64]
    """Number of the pair of client and tool that each message belongs to."""
    group_clients: tuple[str, ...]
    group_positions: Positions
    vectors: Matrix
    """One unit vector per message; zero if it has none."""
    terms: dict[str, list[int]] = field(default_factory=dict)
    """Word → messages that contain it."""
    term_counts: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, index: Index, rows: Sequence[LearnedMessage], weights: Sequence[float], model: str
    ) -> _PlacedMessages:
        by_key = {(tool.server, tool.own_name): number for number, tool in enumerate(index.tools) if tool}
        found = [
            (row, position, weight)
            for row, weight in zip(rows, weights, strict=True)
            if weight > 0
            and (position := by_key.get((row.server, row.tool))) is not None
            and (tool := index.tools[position]) is not None
            and _belongs_to(row, tool)
        ]
        positions = np.array([position for _, position, _ in found], np.int64)
        vectors = _read_vectors([row for row, _, _ in found], model, index)
        keys = [(row.client, position) for row, position, _ in found]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        strengths = np.array([weight for _, _, weight in found], np.float32)
        strengths *= _has_enough_messages(keys)
        strengths *= _fits_definition(index, positions, vectors)
        terms: dict[str, list[int]] = defaultdict(list)
        counts: list[int] = []
        for number, (row, _, _) in enumerate(found):
            own = _content_terms(index.lexical.words, row.text)
            counts.append(len(own))
            for term in own:
                terms[term].append(number)
        return cls(
            tuple(row for row, _, _ in found),
            len(index.tools),
            positions,
            strengths,
            np.array([numbers[key] for key in keys], np.int64),
            tuple(client for client, _ in numbers),
            np.array([position for _, position in numbers], np.int64),
            vectors,
            dict(terms),
            tuple(counts),
        )


@dataclass(frozen=True, slots=True, eq=False)
class ClientGains:
    """Score gains of tools in one client's searches, computed from learned messages."""

    messages: _PlacedMessages
    client: str
    sharing: frozenset[str] | None = None
    """Other users whose messages count; None for all clients that are no users."""

    def similarity_gains(self, vector: Matrix) -> Scores | None:
        """Return the amounts to add to the tools' similarities to a query; None if all are 0."""
        vectors = self.messages.vectors
        length = float(np.sqrt(np.vecdot(vector, vector)))
        if not len(vectors) or vectors.shape[1] != len(vector) or length < _EPSILON:
            return None
        similarities = vectors @ (vector / np.float32(length))
        closeness = np.clip((similarities - MIN_CLOSENESS) / (1 - MIN_CLOSENESS), 0, 1)
        return self._combine(closeness.astype(np.float32), MAX_GAIN, MAX_SHARED_GAIN)

    def keyword_gains(self, words: WordTokenizer, text: str) -> Scores | None:
        """Return the amounts to add to the tools' keyword scores, as shares of a perfect match's score."""
        asked = _content_terms(words, text)
        shared = Counter(row for term in asked for row in self.messages.terms.get(term, ()))
        if not shared:
            return None
        closeness = np.zeros(len(self.messages.positions), np.float32)
        for row, count in shared.items():
            overlap = count / max(len(asked), self.messages.term_counts[row])
            closeness[row] = overlap if overlap >= MIN_KEYWORD_OVERLAP else 0.0
        return self._combine(closeness, MAX_KEYWORD_GAIN, MAX_KEYWORD_GAIN * MAX_SHARED_GAIN / MAX_GAIN)

    def _combine(self, closeness: Scores, own_limit: float, shared_limit: float) -> Scores | None:
        """Return the score gain of each tool from learned messages of this client and other clients."""
        placed = self.messages
        best = np.zeros(len(placed.group_positions), np.float32)
        np.maximum.at(best, placed.groups, closeness * placed.strengths)
        if not best.any():
            return None
        is_own = np.array([client == self.client for client in placed.group_clients])
        own, others = np.zeros(placed.size, np.float32), np.zeros(placed.size, np.float32)
        np.maximum.at(own, placed.group_positions[is_own], best[is_own])
        is_shared = np.array([self._is_shared(client) for client in placed.group_clients])
        np.add.at(others, placed.group_positions[is_shared], best[is_shared])
        if self.sharing is not None:
            others *= self._has_enough_members(best, is_shared)
        shared = np.minimum(others / AGREEING_CLIENTS, 1) * np.float32(shared_limit)
        gains: Scores = np.maximum(own * np.float32(own_limit), shared)
        return gains

    def _is_shared(self, client: str) -> bool:
        """Return True if messages learned from `client` also raise scores in this client's searches."""
        if self.sharing is None:
            return client != self.client and not client.startswith(USER_LEARNER_PREFIX)
        return client != self.client and client in self.sharing

    def _has_enough_members(self, best: Scores, is_shared: NDArray[np.bool_]) -> Scores:
        """Return 1 for each tool that several users requested in words similar to the query, otherwise 0.

        What a single user has asked could be guessed from the ranking.
        """
        members = np.zeros(self.messages.size, np.float32)
        np.add.at(members, self.messages.group_positions[is_shared], (best[is_shared] > 0).astype(np.float32))
        return (members >= MIN_SHARING_USERS).astype(np.float32)


def _has_enough_messages(keys: Sequence[tuple[str, int]]) -> Scores:
    """Return 1 for each message of a client with enough distinct messages for the same tool, otherwise 0."""
    counts = Counter(keys)
    return np.array([counts[key] >= MIN_DISTINCT_MESSAGES for key in keys], np.float32)


def _fits_definition(index: Index, positions: Positions, vectors: Matrix) -> Scores:
    """Return 1 for each message that matches its tool's definition or cannot be compared, otherwise 0."""
    fits = np.ones(len(positions), np.float32)
    if index.vectors is None or not len(positions) or vectors.shape[1] != index.vectors.width:
        return fits
    tools = index.vectors.packed.take_rows(positions).dequantize()
    fits[(np.vecdot(tools, vectors) < MIN_DEFINITION_SIMILARITY) & vectors.any(1)] = 0
    return fits


def _read_vectors(rows: Sequence[LearnedMessage], model: str, index: Index) -> Matrix:
    """Return the unit vectors of messages; zero for messages not embedded by this model."""
    width = index.vectors.width if index.vectors is not None else 0
    vectors = np.zeros((len(rows), width), np.float32)
    for number, row in enumerate(rows):
        if model and row.model == model and len(row.vector) == 2 * width:
            vectors[number] = np.frombuffer(row.vector, np.float16)
    vectors[~np.isfinite(vectors).all(1)] = 0
    unit: Matrix = vectors / np.maximum(np.sqrt(np.vecdot(vectors, vectors))[:, None], _EPSILON)
    return unit.astype(np.float32)


def _belongs_to(row: LearnedMessage, tool: Tool) -> bool:
    """Return True if a message was learned for this tool of this server, with a similar description."""
    if (row.server, row.tool) != (tool.server, tool.own_name):
        return False
    if row.checksum == definition_checksum(tool.own_name, tool.description):
        return True
    similarity = sketch_similarity(bytes.fromhex(row.sketch), description_sketch(tool.description))
    return similarity >= MIN_SKETCH_SIMILARITY


def _content_terms(words: WordTokenizer, text: str) -> frozenset[str]:
    return frozenset(words.message_terms(text).content_terms)


def _is_same_request(known: str, text: str, terms: frozenset[str], words: WordTokenizer) -> bool:
    """Return True if two texts have nearly all of their words in common."""
    if known == text:
        return True
    others = _content_terms(words, known)
    return len(terms & others) >= MISS_SIMILARITY * max(len(terms), len(others), 1)


def _is_valid_text(text: str) -> bool:
    return MIN_MESSAGE_CHARS <= len(text) <= MAX_MESSAGE_CHARS and clean_message(text) == text
