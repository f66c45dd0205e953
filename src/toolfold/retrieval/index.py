"""Both legs' indexes of a set of tools, and how one becomes the next.

A tool's checksum covers everything a leg reads of it. Tools whose checksum is known cost nothing: their
vectors and postings are taken over. Where indexes come from, and when a new one is due, `indexing` says.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolfold.model import Tool
from toolfold.retrieval.document import tool_text
from toolfold.retrieval.embedding import Outage
from toolfold.retrieval.exact import Names
from toolfold.retrieval.kept import FORMAT, IndexCache
from toolfold.retrieval.lexical import Lexical
from toolfold.retrieval.ranking import Places
from toolfold.retrieval.text import Words
from toolfold.retrieval.vectors import Packed, Vectors

log = logging.getLogger(__name__)

KEPT_GRANTS = 16
_FEW = 64
_SMALL = 256

Progress = Callable[[int, int], None]
SoFar = Callable[[Packed], None]
"""Is told the tools' vectors while they come, those still to come without a direction."""
Embed = Callable[[Sequence[Tool], SoFar], Packed | None]
"""The tools' vectors; None where there are none now."""


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
class Known:
    """What is left of an earlier index: by checksum, so that it does not matter whose tools they were."""

    checksums: tuple[bytes, ...]
    lexical: Lexical
    vectors: Vectors | None
    names: Names | None = None
    """Those of an index in memory."""

    @classmethod
    def of(cls, index: Index) -> Known:
        return cls(index.checksums, index.lexical, index.vectors, index.names)


def _nowhere(kept: IndexCache) -> None:
    """Where an index that is not finished is kept, if nobody says otherwise."""


@dataclass(frozen=True, slots=True)
class Builder:
    """Makes an index of tools out of what is known and what a model says of the others."""

    words: Words
    embed: Embed
    outage: Outage
    keep: Callable[[IndexCache], None] = _nowhere
    """Is given the index as far as it has come, while a model takes its time."""

    def built(self, known: Known | None, tools: Sequence[Tool], sums: Sequence[bytes]) -> Index:
        """The index of these tools, whose checksums these are."""
        if known is None:
            return self._fresh(tools, sums)
        try:
            return self._changed(known, tools, sums)
        except Exception as error:  # a file may be broken in ways that only its use shows
            log.warning("the known index cannot be used and is built anew: %s", error)
            return self._fresh(tools, sums)

    def _changed(self, known: Known, tools: Sequence[Tool], sums: Sequence[bytes]) -> Index:
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
        self, known: Known, seats: list[Tool | None], sums: list[bytes], new: Sequence[tuple[Tool, bytes]]
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
        lexical = lexical.with_tools(added)
        so_far = self._keeping(sums, lexical)
        vectors = self._if_possible(lambda: self._revectored(known.vectors, seats, added, so_far))
        names = known.names.changed(seats, {*empty, *room}) if known.names else None
        return Index.of(seats, _of_read(sums, vectors), lexical, vectors, names)

    def _revectored(
        self, before: Vectors | None, seats: Sequence[Tool | None], new: Mapping[int, Tool], so_far: SoFar
    ) -> Vectors | None:
        if before is None:
            every = {place: tool for place, tool in enumerate(seats) if tool}
            return self._embedded(every, len(seats), so_far)
        if not new and before.size == len(seats):
            return before
        packed, size, places = before.packed, len(seats), _places(new)

        def some(rows: Packed) -> None:
            if rows.width == packed.width:
                so_far(_joined(packed, size, places, rows))

        fresh = self.embed(list(new.values()), some)
        if fresh is None or not fresh.size:
            fresh = Packed.empty(len(new), before.width)
        elif fresh.width != before.width:  # the model has changed under its name
            return self._revectored(None, seats, {}, so_far)
        return before.with_rows(size, places, fresh)

    def _embedded(self, tools: Mapping[int, Tool], size: int, so_far: SoFar) -> Vectors | None:
        places = _places(tools)
        found = self.embed(list(tools.values()), lambda rows: so_far(_joined(None, size, places, rows)))
        if found is None or not found.size:
            return None
        return Vectors.of(_joined(None, size, places, found))

    def _fresh(
        self,
        tools: Sequence[Tool],
        sums: Sequence[bytes],
        known: Vectors | None = None,
        places: Mapping[bytes, int] = MappingProxyType({}),
    ) -> Index:
        """Built anew but for the vectors that are known."""
        lexical = Lexical.build(tools, self.words)
        so_far = self._keeping(sums, lexical)
        vectors = self._if_possible(lambda: self._fresh_vectors(tools, sums, known, places, so_far))
        return Index.of(tools, _of_read(sums, vectors), lexical, vectors)

    def _fresh_vectors(
        self,
        tools: Sequence[Tool],
        sums: Sequence[bytes],
        known: Vectors | None,
        places: Mapping[bytes, int],
        so_far: SoFar,
    ) -> Vectors | None:
        reused = {place: places[s] for place, s in enumerate(sums) if s in places} if known else {}
        if known is None or not reused:
            return self._embedded(dict(enumerate(tools)), len(tools), so_far)
        rows = known.packed.taken(np.fromiter(reused.values(), np.int64))
        old = _joined(None, len(tools), _places(reused), rows)
        missing = {place: tool for place, tool in enumerate(tools) if place not in reused}
        return self._revectored(Vectors.of(old), tools, missing, so_far)

    def _if_possible(self, work: Callable[[], Vectors | None]) -> Vectors | None:
        """The vectors, or none: whatever a model does, its failure must not take the keywords along."""
        try:
            return work()
        except Exception as error:  # such as memory that does not suffice
            self.outage.tell(f"{type(error).__name__}: {error}")
            return None

    def _keeping(self, sums: Sequence[bytes], lexical: Lexical) -> SoFar:
        return lambda packed: self.keep(IndexCache(_of_present(sums, packed), lexical, packed))


def _joined(before: Packed | None, size: int, places: Places, rows: Packed) -> Packed:
    """Rows at these places among those that were there."""
    return (before or Packed.empty(0, rows.width)).with_rows(size, places, rows)


def _of_read(sums: Sequence[bytes], vectors: Vectors | None) -> Sequence[bytes]:
    return _of_present(sums, vectors.packed) if vectors else sums


def _of_present(sums: Sequence[bytes], packed: Packed) -> Sequence[bytes]:
    """Without the checksums of tools that have not been embedded: they stay new until they are."""
    present = packed.present
    if present.all():
        return sums
    return [checksum if present[place] else b"" for place, checksum in enumerate(sums)]


def _places(of: Mapping[int, Any]) -> Places:
    return np.fromiter(of, np.int64, len(of))


def embedded_text(tool: Tool) -> str:
    """What an embedding model reads of a tool."""
    words = (tool.title, *tool.synonyms) if tool.title else tool.synonyms
    return tool_text(tool.own_name, tool.description, tool.parameters, tool.server, words)


def checksum(tool: Tool) -> bytes:
    """Covers everything that a leg reads of a tool."""
    names = (tool.name, tool.original_name, tool.title, tool.toolset, tool.source.name)
    text = repr((FORMAT, *names, tool.description, tool.synonyms, tool.parameters))
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).digest()


def _is_worth_changing(known: Known, places: Mapping[bytes, int], sums: Sequence[bytes]) -> bool:
    """Whether most of a large index stays. Any other is soon built, and then its averages are its own."""
    new = len(set(sums) - places.keys())
    if not new and len(places) == len(sums):
        return True
    return len(sums) > _SMALL and new <= max(_FEW, len(sums) // 5) and len(known.checksums) < 2 * len(sums)
