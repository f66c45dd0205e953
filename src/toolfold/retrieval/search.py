"""Finding tools for a message: the legs asked, their answers made one, exact names first.

A session's grant is a mask: tools outside of it are never candidates, in any leg. Knows nothing of
models, prompts or what is done with the answer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toolfold.registry import Snapshot
from toolfold.retrieval.copies import spread_out
from toolfold.retrieval.document import query_text
from toolfold.retrieval.embedding import Embedder, EmbeddingUnavailable, Matrix, Outage, Reader, Reading
from toolfold.retrieval.index import Grant, Index, Progress
from toolfold.retrieval.indexing import Indexer
from toolfold.retrieval.intents import NEARLY, parts_of, shared_out
from toolfold.retrieval.need import Need
from toolfold.retrieval.ranking import (
    DEPTH,
    NEVER,
    Legs,
    Places,
    Ranker,
    Scores,
    best_places,
    distinct,
    features,
    reciprocal_ranks,
)
from toolfold.retrieval.reranking import SHORTLIST, Reranker
from toolfold.retrieval.synonyms import Synonyms

Mode = Literal["keyword", "semantic", "hybrid", "rerank"]
Mask = NDArray[np.bool_]
_SECOND_OPINION = "second opinion"


@dataclass(frozen=True, slots=True)
class Hit:
    """One ranked tool, with enough to tell a person why."""

    name: str
    matched: tuple[str, ...] = ()
    """The words it shares with the message."""
    similarity: float | None = None
    """How near the semantic leg found it, from -1 to 1."""
    exact: bool = False
    """The message names it."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a message found, and whether it wanted anything."""

    hits: tuple[Hit, ...]
    need: float = 1.0
    """How likely it is that the message needs any tool."""

    def needed(self, threshold: float) -> bool:
        """Whether tools should be shown for it at all. A tool that is named always is."""
        return self.need >= threshold or any(hit.exact for hit in self.hits)


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """A message or a part of it, and what the legs say."""

    text: str
    legs: Legs
    states: Matrix | None = None


class Searcher:
    """Asks the legs and orders what they find."""

    def __init__(
        self,
        embedder: Embedder | None,
        ranker: Callable[[], Ranker] | None,
        *,
        outage: Outage | None = None,
        reranker: Reranker | None = None,
        judge: Callable[[], Need] | None = None,
    ) -> None:
        self._embedder, self._reranker = embedder, reranker
        self._reader: Reader | None = embedder if isinstance(embedder, Reader) else None
        self._ranker = functools.cache(ranker) if ranker else None
        self._judge = functools.cache(judge) if judge else None
        self._outage = outage or Outage()

    def answer(
        self,
        index: Index,
        message: str,
        *,
        mode: Mode = "hybrid",
        limit: int = 8,
        granted: Iterable[str] | None = None,
    ) -> SearchResult:
        """The best tools for a message, best first, out of those granted."""
        whole, hits = self._found(index, message, mode, limit, granted)
        return SearchResult(hits, self._need(whole))

    def search(
        self,
        index: Index,
        message: str,
        *,
        mode: Mode = "hybrid",
        limit: int = 8,
        granted: Iterable[str] | None = None,
    ) -> list[Hit]:
        """Only the tools of the answer, for who knows that some are needed."""
        return list(self._found(index, message, mode, limit, granted)[1])

    def _found(
        self, index: Index, message: str, mode: Mode, limit: int, granted: Iterable[str] | None
    ) -> tuple[_Asked, tuple[Hit, ...]]:
        grant = index.grant(granted)
        whole, *parts = self._asked(index, message, mode, grant)
        order = shared_out(self._order(index, whole, mode), self._wishes(index, whole.legs, parts, mode))
        named = [place for place in index.names.named_in(message) if grant.mask[place]]
        ranked = _auxiliary_last(index, spread_out(index, order, limit))
        places = list(dict.fromkeys((*named, *ranked)))[:limit]
        if not places:
            places = _by_part_of_name(index, message, grant.mask)[:limit]
        return whole, tuple(_hits(index, message, whole.legs, places, frozenset(named)))

    def legs(self, index: Index, message: str, granted: Iterable[str] | None) -> dict[str, dict[str, float]]:
        """Leg → what it gives every tool that it finds, best first: to tell a person, not to choose by."""
        grant = index.grant(granted)
        asked = self._asked(index, message, "hybrid", grant, in_parts=False)[0]
        legs, dense = asked.legs, next(iter(asked.legs.dense.values()), None)
        found = {"keyword": _by_name(index, legs.lexical, 0.0)}
        if dense is None:
            return found
        places, scores = self._fused(index, asked)
        fused = np.full(len(legs.lexical), NEVER, np.float32)
        fused[places] = scores
        semantic = _by_name(index, dense, float(NEVER))
        return {**found, "semantic": semantic, "fused": _by_name(index, fused, float(NEVER))}

    def _asked(
        self, index: Index, message: str, mode: Mode, grant: Grant, *, in_parts: bool = True
    ) -> list[_Asked]:
        """The message as a whole, then what may be wishes of their own in it."""
        if mode == "rerank":
            lexical = _Asked(message, _keywords(index, message, grant))
            if second := self._second_opinion(index, message, lexical.legs.lexical):
                return [replace(lexical, legs=replace(lexical.legs, dense=second))]
        if mode == "keyword":
            return [_Asked(message, _keywords(index, message, grant))]
        texts = [message, *(parts_of(message, index.lexical.words) if in_parts else ())]
        reading = self._reading(index, texts)
        if reading is None or index.vectors is None or not reading.vectors[0].any():
            return [_Asked(message, _keywords(index, message, grant))]
        read = [(text, vector) for text, vector in zip(texts, reading.vectors, strict=True) if vector.any()]
        asked = [_Asked(text, _both(index, text, vector, grant)) for text, vector in read]
        return [replace(asked[0], states=reading.states), *asked[1:]]

    def _need(self, whole: _Asked) -> float:
        if self._judge is None:
            return 1.0
        # A service's similarities are on a scale of their own, which the judge has not learned.
        legs = replace(whole.legs, dense={}) if _SECOND_OPINION in whole.legs.dense else whole.legs
        return self._judge().probability(whole.text, legs, whole.states)

    def _wishes(self, index: Index, whole: Legs, parts: Sequence[_Asked], mode: Mode) -> Iterator[Places]:
        """What the parts find that come as near to a tool as the whole message does to any."""
        if not parts:
            return
        near_enough = _highest(whole) - NEARLY
        for part in parts:
            if _highest(part.legs) <= near_enough:
                continue
            order = self._order(index, part, mode)
            if len(order) and any(each[order[0]] > near_enough for each in part.legs.dense.values()):
                yield order

    def _second_opinion(self, index: Index, message: str, lexical: Scores) -> Mapping[str, Scores]:
        """How near a service finds the tools that share most with the message; nothing where it fails."""
        if self._reranker is None:
            return {}
        places = map(int, _sharing_words(lexical, SHORTLIST))
        tools = {place: tool for place in places if (tool := index.tools[place])}
        near = self._reranker.similarities(message, list(tools.values()))
        if near is None:
            return {}
        scores = np.full(len(lexical), NEVER, np.float32)
        scores[list(tools)] = near
        return {_SECOND_OPINION: scores}

    def _reading(self, index: Index, messages: Sequence[str]) -> Reading | None:
        """The messages as the model sees them; None where it cannot, which is said once."""
        if self._embedder is None or index.vectors is None:
            return None
        texts = [query_text(message) for message in messages]
        if not texts[0]:
            return None
        try:
            if self._reader:
                reading = self._reader.read(texts)
            else:
                reading = Reading(self._embedder.embed(texts, "query"))
        except EmbeddingUnavailable as error:
            self._outage.tell(str(error))
            return None
        if reading.vectors.shape[1] != index.vectors.width:
            self._outage.tell("the index was made with vectors of another length")
            return None
        return reading

    def _order(self, index: Index, asked: _Asked, mode: Mode) -> Places:
        legs = asked.legs
        if not legs.dense:
            return _sharing_words(legs.lexical, DEPTH)
        if _SECOND_OPINION in legs.dense:
            return np.concatenate((_nearest(legs)[0], _sharing_words(legs.lexical, DEPTH)))
        if mode == "semantic":
            return _nearest(legs)[0]
        places, scores = self._fused(index, asked)
        return places[(-scores).argsort(kind="stable")]

    def _fused(self, index: Index, asked: _Asked) -> tuple[Places, Scores]:
        """The candidates of both legs, and what their fusion gives each."""
        legs = asked.legs
        lexical, dense = _sharing_words(legs.lexical, DEPTH), _nearest(legs)
        candidates = distinct(np.concatenate((lexical, *dense)))
        if self._ranker is None:
            return candidates, reciprocal_ranks([lexical, *dense], len(legs.lexical))[candidates]
        if not len(candidates):
            return candidates, np.zeros(0, np.float32)
        named = index.lexical.name_coverage(asked.text, candidates)
        return candidates, self._ranker()(features(legs, candidates, named))


def _nearest(legs: Legs) -> list[Places]:
    """The tools nearest to the message, by each way of telling."""
    best = [(best_places(each, DEPTH), each) for each in legs.dense.values()]
    return [places[scores[places] > NEVER] for places, scores in best]


def _keywords(index: Index, text: str, grant: Grant) -> Legs:
    """What the keyword leg says by itself."""
    lexical, best = index.lexical.scores(text)
    lexical[grant.hidden] = 0
    return Legs(lexical, best, {})


def _both(index: Index, text: str, vector: Matrix, grant: Grant) -> Legs:
    """What the keyword leg and the semantic leg say."""
    alone = _keywords(index, text, grant)
    if index.vectors is None:
        return alone
    return Legs(
        alone.lexical,
        alone.best_lexical,
        {"dense": index.vectors.near(vector, grant.hidden, alone.lexical)},
    )


def _highest(legs: Legs) -> float:
    """How near the nearest tool is."""
    return max((float(each.max(initial=NEVER)) for each in legs.dense.values()), default=0.0)


def _by_name(index: Index, scores: Scores, floor: float) -> dict[str, float]:
    order = best_places(scores, len(scores))
    placed = (
        (index.tools[place], float(scores[place])) for place in map(int, order) if scores[place] > floor
    )
    return {tool.name: score for tool, score in placed if tool}


def _sharing_words(lexical: Scores, count: int) -> Places:
    """The tools that share most with the message, of those that share anything."""
    sharing = (lexical > 0).nonzero()[0]
    return sharing[best_places(lexical[sharing], count)]


def _by_part_of_name(index: Index, message: str, mask: Mask) -> list[int]:
    """Where no leg finds anything: names that contain a word of the message as it stands."""
    wanted = [word for word in message.casefold()[:500].split() if len(word) > 2]
    return [
        place
        for name, place in sorted(index.by_name.items())
        if mask[place] and any(word in name.casefold() for word in wanted)
    ]


def _auxiliary_last(index: Index, places: Sequence[int]) -> list[int]:
    """The same places in the same order, with auxiliary tools behind all others."""

    def is_auxiliary(place: int) -> bool:
        tool = index.tools[place]
        return tool is not None and tool.is_auxiliary

    return sorted(places, key=is_auxiliary)


def _hits(
    index: Index, message: str, legs: Legs, places: Sequence[int], named: Collection[int]
) -> Iterator[Hit]:
    """The tools in these places, with what tells why."""
    dense = next(iter(legs.dense.values()), None)
    near = [float(NEVER)] * len(places) if dense is None else dense[list(places)].tolist()
    words = index.lexical.matched(message, places)
    for place, shared, similarity in zip(places, words, near, strict=True):
        tool = index.tools[place]
        told = similarity if similarity > NEVER else None
        yield Hit(tool.name if tool else "", tuple(shared), told, place in named)


class Retriever:
    """What the rest of the house asks: tools for a message, out of a snapshot, for one session."""

    def __init__(
        self,
        embedder: Embedder | None,
        ranker: Callable[[], Ranker] | None,
        folder: Path | None,
        *,
        progress: Progress | None = None,
        reranker: Reranker | None = None,
        synonyms: Synonyms | None = None,
        judge: Callable[[], Need] | None = None,
        patience: float | None = None,
    ) -> None:
        """`patience` is how many seconds a search waits for new tools to be embedded; None waits for all.

        Whoever sets it must `close`: the rest of them is embedded in a thread.
        """
        outage = Outage()
        self._synonyms = synonyms or Synonyms()
        self._indexer = Indexer(embedder, folder, progress=progress, outage=outage, patience=patience)
        self._searcher = Searcher(embedder, ranker, outage=outage, reranker=reranker, judge=judge)

    def find(
        self,
        snapshot: Snapshot,
        message: str,
        *,
        mode: Mode,
        limit: int,
        granted: Iterable[str] | None = None,
    ) -> list[Hit]:
        """The best tools for a message, best first, out of those granted."""
        return self._searcher.search(self._index(snapshot), message, mode=mode, limit=limit, granted=granted)

    def answer(
        self,
        snapshot: Snapshot,
        message: str,
        *,
        mode: Mode,
        limit: int,
        granted: Iterable[str] | None = None,
    ) -> SearchResult:
        """As `find`, with how likely it is that the message needs any of them."""
        return self._searcher.answer(self._index(snapshot), message, mode=mode, limit=limit, granted=granted)

    def legs(
        self, snapshot: Snapshot, message: str, *, granted: Iterable[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Leg → what it gives every tool that it finds, best first."""
        return self._searcher.legs(self._index(snapshot), message, granted)

    def close(self) -> None:
        """End what is done beside searches."""
        self._indexer.close()

    def _index(self, snapshot: Snapshot) -> Index:
        return self._indexer.index(self._synonyms.added_to(snapshot.ordered))
