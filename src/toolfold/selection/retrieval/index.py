"""Build the keyword and vector index of a set of tools, and update it when the tools change.

A tool's checksum covers everything that the index contains of it. Vectors and postings of tools with a
known checksum are reused. `indexing` decides when an index is rebuilt, and where vectors are stored.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from toolfold.core.types import Tool
from toolfold.selection.retrieval.document import query_text, tool_text
from toolfold.selection.retrieval.embedding import Matrix, OutageLog
from toolfold.selection.retrieval.exact import NameIndex
from toolfold.selection.retrieval.example_messages import MAX_MESSAGES
from toolfold.selection.retrieval.lexical import KeywordIndex
from toolfold.selection.retrieval.message_matches import MessageMatches
from toolfold.selection.retrieval.ranking import Positions, Scores
from toolfold.selection.retrieval.text import WordTokenizer
from toolfold.selection.retrieval.vectors import PackedVectors, Vectors

MAX_CACHED_GRANTS = 16
_MAX_INCREMENTAL_TOOLS = 64
_MAX_REBUILD_TOOLS = 256
_FORMAT = 4
"""Part of a tool's checksum, which is also its key in the shared database."""

Progress = Callable[[int, int], None]
EmbedTools = Callable[[Sequence[Tool]], PackedVectors | None]
"""Returns the tools' vectors, zero rows for missing ones, or None if none is available now."""


class ScoreGains(Protocol):
    """Score gains of tools that a client has used successfully for similar messages."""

    def similarity_gains(self, vector: Matrix) -> Scores | None:
        """Return the amounts to add to the tools' similarities to a query; None if all are 0."""

    def keyword_gains(self, words: WordTokenizer, text: str) -> Scores | None:
        """Return the amounts to add to the tools' keyword scores, as shares of a perfect match's score."""


@dataclass(frozen=True, slots=True, eq=False)
class GrantMask:
    """Mask of the index positions whose tools a session may use."""

    mask: NDArray[np.bool_]
    hidden: Positions
    """Positions of tools that the session may not see."""
    gains: ScoreGains | None = None
    """What was learned from the use of tools, for the client that searches."""


@dataclass(frozen=True, slots=True, eq=False)
class CatalogSample:
    """Size and sample vectors of a whole catalog, for an index that contains only some of its tools."""

    tools: int
    vectors: Matrix
    """Vectors of tools drawn evenly from those that are granted; no rows if there are none."""

    def similarities(self, vector: Matrix) -> Scores:
        """Return the similarities of the sample tools to a vector."""
        found: Scores = np.vecdot(self.vectors, vector)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """Keyword and vector index of a set of tools; positions of removed tools may be empty."""

    tools: tuple[Tool | None, ...]
    checksums: tuple[bytes, ...]
    lexical: KeywordIndex
    vectors: Vectors | None
    names: NameIndex
    by_name: Mapping[str, int]
    sample: CatalogSample | None = None
    """Set if the index contains only candidates of a larger catalog."""
    _grants: dict[frozenset[str] | None, GrantMask] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _servers: list[Positions] = field(default_factory=list)
    _auxiliary: list[frozenset[int]] = field(default_factory=list)
    _matches: list[MessageMatches] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        tools: Sequence[Tool | None],
        checksums: Sequence[bytes],
        lexical: KeywordIndex,
        vectors: Vectors | None,
        names: NameIndex | None = None,
    ) -> Index:
        by_name = {tool.name: position for position, tool in enumerate(tools) if tool}
        return cls(tuple(tools), tuple(checksums), lexical, vectors, names or NameIndex(tools), by_name)

    def grant(self, names: Iterable[str] | None) -> GrantMask:
        """Return the index positions of the named tools; of all tools if `names` is None.

        Cached: a session repeats the same set.
        """
        wanted = None if names is None else frozenset(names)
        with self._lock:
            found = self._grants.pop(wanted, None)
        if found is None:
            found = self._build_grant(wanted)
        with self._lock:
            self._grants[wanted] = found
            while len(self._grants) > MAX_CACHED_GRANTS:
                del self._grants[next(iter(self._grants))]
        return found

    def auxiliary_positions(self) -> frozenset[int]:
        """Return the index positions of auxiliary tools, such as tools that read a server's resources."""
        if not self._auxiliary:
            found = (position for position, tool in enumerate(self.tools) if tool and tool.is_auxiliary)
            self._auxiliary.append(frozenset(found))
        return self._auxiliary[0]

    def message_matches(self) -> MessageMatches:
        """Return the index of the tools' example messages; it is built on first use."""
        if not self._matches:
            self._matches.append(MessageMatches.of(self.tools, self.lexical.words))
        return self._matches[0]

    def server_numbers(self) -> Positions:
        """Return for each tool a number that identifies its server."""
        if not self._servers:
            numbers: dict[str, int] = {}
            servers = (_server_key(tool) if tool else "" for tool in self.tools)
            self._servers.append(
                np.fromiter((numbers.setdefault(each, len(numbers)) for each in servers), np.int64)
            )
        return self._servers[0]

    def _build_grant(self, names: frozenset[str] | None) -> GrantMask:
        mask = np.zeros(len(self.tools), bool)
        mask[list(self._granted_positions(names))] = True
        return GrantMask(mask, np.flatnonzero(~mask))

    def _granted_positions(self, names: frozenset[str] | None) -> Iterable[int]:
        if names is None:
            return self.by_name.values()
        if len(names) > len(self.by_name):
            return (position for name, position in self.by_name.items() if name in names)
        found = map(self.by_name.get, names)
        return (position for position in found if position is not None)


@dataclass(frozen=True, slots=True, eq=False)
class PreviousIndex:
    """Parts of an earlier index that can be reused for unchanged tools."""

    checksums: tuple[bytes, ...]
    lexical: KeywordIndex
    vectors: Vectors | None
    names: NameIndex

    @classmethod
    def of(cls, index: Index) -> PreviousIndex:
        return cls(index.checksums, index.lexical, index.vectors, index.names)


@dataclass(frozen=True, slots=True)
class IndexBuilder:
    """Builds a search index from the previous index; only new tools are embedded."""

    words: WordTokenizer
    embed: EmbedTools
    outage_log: OutageLog

    def build(self, previous: PreviousIndex | None, tools: Sequence[Tool], sums: Sequence[bytes]) -> Index:
        """Return the search index of the tools; `sums` are their checksums."""
        if previous is None:
            return self._build_from_scratch(tools, sums)
        return self._update_index(previous, tools, sums)

    def _update_index(self, previous: PreviousIndex, tools: Sequence[Tool], sums: Sequence[bytes]) -> Index:
        """Update the previous index: add new tools and remove missing ones."""
        positions = {
            tool_checksum: position
            for position, tool_checksum in enumerate(previous.checksums)
            if tool_checksum
        }
        if not _should_update(previous, positions, sums):
            return self._build_from_scratch(tools, sums, previous.vectors, positions)
        slots: list[Tool | None] = [None] * len(previous.checksums)
        slot_checksums = [b""] * len(previous.checksums)
        new: list[tuple[Tool, bytes]] = []
        for tool, tool_checksum in zip(tools, sums, strict=True):
            position = positions.pop(tool_checksum, None)
            if position is None:
                new.append((tool, tool_checksum))
            else:
                slots[position], slot_checksums[position] = tool, tool_checksum
        return self._assign_positions(previous, slots, slot_checksums, new)

    def _assign_positions(
        self,
        previous: PreviousIndex,
        slots: list[Tool | None],
        sums: list[bytes],
        new: Sequence[tuple[Tool, bytes]],
    ) -> Index:
        empty = [position for position, tool in enumerate(slots) if tool is None]
        targets = empty[: len(new)] + list(range(len(slots), len(slots) + len(new) - len(empty)))
        more = max(0, len(new) - len(empty))
        slots += [None] * more
        sums += [b""] * more
        for position, (tool, tool_checksum) in zip(targets, new, strict=True):
            slots[position], sums[position] = tool, tool_checksum
        lexical = previous.lexical
        if empty or more:
            lexical = lexical.without(empty, len(slots))
        added = {position: tool for position, (tool, _) in zip(targets, new, strict=True)}
        lexical = lexical.with_tools(added)
        vectors = self._vectors_or_none(lambda: self._update_vectors(previous.vectors, slots, added))
        names = previous.names.changed(slots, {*empty, *targets})
        return Index.of(slots, _embedded_checksums(sums, vectors), lexical, vectors, names)

    def _update_vectors(
        self, before: Vectors | None, slots: Sequence[Tool | None], new: Mapping[int, Tool]
    ) -> Vectors | None:
        if before is None:
            every = {position: tool for position, tool in enumerate(slots) if tool}
            return self._embed_all(every, len(slots))
        if not new and before.size == len(slots):
            return before
        fresh = self.embed(list(new.values()))
        if fresh is None or not fresh.size:
            fresh = PackedVectors.empty(len(new), before.width)
        elif fresh.width != before.width:  # another model has the same name now
            return self._update_vectors(None, slots, {})
        return before.with_rows(len(slots), _position_array(new), fresh)

    def _embed_all(self, tools: Mapping[int, Tool], size: int) -> Vectors | None:
        found = self.embed(list(tools.values()))
        if found is None or not found.size:
            return None
        return Vectors.of(_set_rows(size, _position_array(tools), found))

    def _build_from_scratch(
        self,
        tools: Sequence[Tool],
        sums: Sequence[bytes],
        previous: Vectors | None = None,
        positions: Mapping[bytes, int] = MappingProxyType({}),
    ) -> Index:
        """Rebuild the keyword index, and reuse vectors that are already computed."""
        lexical = KeywordIndex.build(tools, self.words)
        vectors = self._vectors_or_none(lambda: self._reuse_vectors(tools, sums, previous, positions))
        return Index.of(tools, _embedded_checksums(sums, vectors), lexical, vectors)

    def _reuse_vectors(
        self,
        tools: Sequence[Tool],
        sums: Sequence[bytes],
        previous: Vectors | None,
        positions: Mapping[bytes, int],
    ) -> Vectors | None:
        reused = (
            {position: positions[s] for position, s in enumerate(sums) if s in positions} if previous else {}
        )
        if previous is None or not reused:
            return self._embed_all(dict(enumerate(tools)), len(tools))
        rows = previous.packed.take_rows(np.fromiter(reused.values(), np.int64))
        old = _set_rows(len(tools), _position_array(reused), rows)
        missing = {position: tool for position, tool in enumerate(tools) if position not in reused}
        return self._update_vectors(Vectors.of(old), tools, missing)

    def _vectors_or_none(self, work: Callable[[], Vectors | None]) -> Vectors | None:
        """Return the vectors computed by `work`; None if it fails, so that keyword search still works."""
        try:
            return work()
        except Exception as error:  # for example, out of memory
            self.outage_log.warn_once(f"{type(error).__name__}: {error}")
            return None


def _set_rows(size: int, positions: Positions, rows: PackedVectors) -> PackedVectors:
    """Return a matrix with `size` rows, and with `rows` stored at `positions`."""
    return PackedVectors.empty(0, rows.width).with_rows(size, positions, rows)


def _embedded_checksums(sums: Sequence[bytes], vectors: Vectors | None) -> Sequence[bytes]:
    """Clear the checksums of tools that have no vector yet, so that the next update embeds them."""
    if vectors is None or (has_vector := vectors.packed.has_vector).all():
        return sums
    return [tool_checksum if has_vector[position] else b"" for position, tool_checksum in enumerate(sums)]


def _server_key(tool: Tool) -> str:
    """Return the name of a tool's server, derived from the tool's name if it is not given."""
    server = tool.server
    prefix, separator, _ = tool.name.partition("__")
    return prefix if separator and prefix and server in ("", "catalog") else server


def _position_array(of: Mapping[int, Any]) -> Positions:
    return np.fromiter(of, np.int64, len(of))


def embedding_text(tool: Tool) -> str:
    """Return a tool's text for the embedding model."""
    words = (tool.title, *tool.synonyms) if tool.title else tool.synonyms
    return tool_text(tool.own_name, tool.description, tool.parameters, tool.server, words)


def embedded_messages(tool: Tool) -> tuple[str, ...]:
    """Return the example messages of a tool that are used to compute its vector."""
    return tuple(query_text(message) for message in tool.messages[:MAX_MESSAGES])


def tool_checksum(tool: Tool) -> bytes:
    """Return a hash of all of a tool's data that the index contains."""
    names = (tool.name, tool.original_name, tool.title, tool.toolset, tool.source.name)
    others = tuple(filter(None, (tool.listed_name, tool.alias)))
    text = repr((_FORMAT, *names, *others, tool.description, tool.synonyms, tool.parameters, tool.messages))
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).digest()


def _should_update(previous: PreviousIndex, positions: Mapping[bytes, int], sums: Sequence[bytes]) -> bool:
    """Return True to update the index instead of rebuilding it: if no tools or few of many have changed."""
    new = len(set(sums) - positions.keys())
    if not new and len(positions) == len(sums):
        return True
    return (
        len(sums) > _MAX_REBUILD_TOOLS
        and new <= max(_MAX_INCREMENTAL_TOOLS, len(sums) // 5)
        and len(previous.checksums) < 2 * len(sums)
    )
