"""Search for the tools that a message needs: score tools, combine rankings, put named tools first.

A session's grant is a mask: tools outside of it are never candidates, in any leg. Knows nothing of language
models, prompts or what happens with the result.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toolfold.core.registry import Snapshot
from toolfold.core.types import Tool
from toolfold.selection.retrieval.context import (
    MAX_EARLIER_MESSAGES,
    MESSAGING_REQUESTS,
    NO_CONTEXT,
    Context,
    ContextInput,
    ContextRanker,
    Cues,
    EarlierMessages,
    UsedTools,
    asks_to_notify,
    context_features,
    is_own_request,
    merge_with_message,
    need_features,
    resolve_repetition,
)
from toolfold.selection.retrieval.database_index import (
    MAX_MEMORY_TOOLS,
    DatabaseIndex,
    IndexUnavailable,
    MessageLookup,
)
from toolfold.selection.retrieval.document import query_text
from toolfold.selection.retrieval.embedding import (
    Embedder,
    EmbeddingUnavailable,
    Matrix,
    OutageLog,
    QueryEncoder,
    QueryEncoding,
)
from toolfold.selection.retrieval.example_messages import ExampleMessages
from toolfold.selection.retrieval.index import GrantMask, Index, Progress
from toolfold.selection.retrieval.indexing import BackgroundStart, Indexer, IndexState
from toolfold.selection.retrieval.intents import SIMILARITY_MARGIN, merge_rankings, split_intents
from toolfold.selection.retrieval.learned_messages import LearnedMessages
from toolfold.selection.retrieval.learned_store import Origin
from toolfold.selection.retrieval.near_duplicates import demote_duplicates
from toolfold.selection.retrieval.need import NeedClassifier
from toolfold.selection.retrieval.ranking import (
    CANDIDATES_PER_LEG,
    EXCLUDED_SCORE,
    Legs,
    Positions,
    Ranker,
    Scores,
    best_positions,
    count_probable,
    features,
    fuse_reciprocal_ranks,
    sorted_unique,
)
from toolfold.selection.retrieval.reranking import SHORTLIST_SIZE, Reranker
from toolfold.selection.retrieval.synonyms import Synonyms
from toolfold.selection.retrieval.text import WordTokenizer
from toolfold.selection.retrieval.vector_store import VectorStore

Mode = Literal["keyword", "semantic", "hybrid", "rerank"]
Mask = NDArray[np.bool_]
MAX_KEPT_VECTORS = 256
MAX_KEPT_MESSAGE_CHARS = 4_000
MAX_LEARNED_CANDIDATES = 128
"""Tools with learned messages that are candidates of every search in the database."""
MAX_FALLBACK_TOOLS = 5_000
"""Up to so many tools are indexed in memory by the search that finds the database unavailable."""
_RERANKER = "reranker"


@dataclass(frozen=True, slots=True)
class Hit:
    """One ranked tool, with the reasons for its rank."""

    name: str
    matched: tuple[str, ...] = ()
    """Words that the tool shares with the message."""
    similarity: float | None = None
    """Similarity in the semantic leg, from -1 to 1."""
    exact: bool = False
    """True if the message names the tool."""
    from_context: bool = False
    """True if the conversation suggests it, while the message alone would not find it."""
    learned: float = 0.0
    """What messages learned from use have added to the similarity or, by keywords, to the match."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Ranked tools for a message, and the probability that the message needs any tool."""

    hits: tuple[Hit, ...]
    need: float = 1.0
    """Probability that the message needs a tool."""
    probable: int = 0
    """Number of the best tools among which the right one very probably is; 0 if it is unknown."""

    @property
    def by_keywords(self) -> bool:
        """True if the tools were found by keywords only, without vectors."""
        return all(hit.similarity is None for hit in self.hits)

    def needed(self, threshold: float) -> bool:
        """Return True if tools should be offered: the message names a tool or probably needs one."""
        return self.need >= threshold or any(hit.exact for hit in self.hits)


@dataclass(frozen=True, slots=True, eq=False)
class _LegScores:
    """Scores of all tools for a message or a part of it, by keywords and by similarity."""

    text: str
    legs: Legs
    states: Matrix | None = None
    vector: Matrix | None = None
    gains: Scores | None = None
    """What messages learned from use have added to the scores."""


@dataclass(frozen=True, slots=True, eq=False)
class RankedInContext:
    """Candidate tools for a message in a conversation, with their features and scores."""

    given: ContextInput
    candidates: Positions
    rows: Scores
    """Features, one row per candidate."""
    scores: Scores


@dataclass(frozen=True, slots=True, eq=False)
class _IndexSearch:
    """Result of a search in one index: the hits, and the scores that show whether a tool is needed."""

    whole: _LegScores
    in_context: RankedInContext | None
    hits: tuple[Hit, ...]
    probable: int
    """See `SearchResult.probable`."""


class Searcher:
    """Scores tools by keywords and by vector similarity, and ranks them."""

    def __init__(
        self,
        embedder: Embedder | None,
        ranker: Callable[[], Ranker] | None,
        *,
        outage_log: OutageLog | None = None,
        reranker: Reranker | None = None,
        need_classifier: Callable[[], NeedClassifier] | None = None,
        context_ranker: Callable[[], ContextRanker] = ContextRanker.shipped,
        learned: LearnedMessages | None = None,
    ) -> None:
        self._embedder, self._reranker = embedder, reranker
        self._learned = learned
        self._context_ranker = functools.cache(context_ranker)
        self._earlier_vectors: dict[str, Matrix] = {}
        self._recent_encoding: tuple[tuple[str, ...], QueryEncoding | None] = ((), None)
        """The message encoded last to look up candidates, which are ranked with the same vectors."""
        self._query_encoder: QueryEncoder | None = embedder if isinstance(embedder, QueryEncoder) else None
        self._ranker = functools.cache(ranker) if ranker else None
        self._need_classifier = functools.cache(need_classifier) if need_classifier else None
        self._outage_log = outage_log or OutageLog()

    def answer(
        self,
        index: Index,
        message: str,
        *,
        mode: Mode = "hybrid",
        limit: int = 8,
        granted: Iterable[str] | None = None,
        context: Context = NO_CONTEXT,
        client: str | None = None,
    ) -> SearchResult:
        """Return the best tools that the session may use, and the probability that the message needs a tool.

        `context` is what was said and done before the message; it affects the ranking and the probability.
        `client` is whose use of tools the ranking learns from; None ranks without what was learned.
        """
        message, context = resolve_repetition(message, context)
        grant = self._grant_for(index, granted, client, mode)
        found = self._search_index(index, message, mode, limit, grant, context)
        whole, ranked, hits = found.whole, found.in_context, found.hits
        need = self._need_probability(whole)
        if ranked is not None and self._need_classifier is not None:
            # Without known calls the network lacks its main evidence, so the words decide.
            if not ranked.given.used.positions and Cues.of(message).continues:
                return SearchResult(hits, 1.0, found.probable)
            if asks_to_notify(message):
                return SearchResult(hits, 1.0, found.probable)
            row = need_features(ranked.scores, ranked.rows, need)
            in_context = self._context_ranker().need_probability(
                message, row, dense=bool(whole.legs.dense), states=whole.states
            )
            # A new topic has little in common with the conversation. Remarks look alike, so for other
            # messages the conversation decides.
            need = max(need, in_context) if is_own_request(message, need) else in_context
        return SearchResult(hits, need, found.probable)

    def search(
        self,
        index: Index,
        message: str,
        *,
        mode: Mode = "hybrid",
        limit: int = 8,
        granted: Iterable[str] | None = None,
        client: str | None = None,
    ) -> list[Hit]:
        """Return the best tools for a message, best first, among the tools that the session may use."""
        grant = self._grant_for(index, granted, client, mode)
        return list(self._search_index(index, message, mode, limit, grant).hits)

    def _grant_for(
        self, index: Index, granted: Iterable[str] | None, client: str | None, mode: Mode
    ) -> GrantMask:
        """Return the tools that a search may return, with score gains from the client's learned messages."""
        grant = index.grant(granted)
        if self._learned is None or client is None:
            return grant
        embedder = self._embedder if index.vectors is not None and mode != "keyword" else None
        gains = self._learned.for_client(index, client, embedder)
        return grant if gains is None else replace(grant, gains=gains)

    def rank_in_context(
        self, index: Index, message: str, mode: Mode, granted: Iterable[str] | None, context: Context
    ) -> tuple[RankedInContext | None, float, Matrix | None]:
        """Rank tools in context for training; return them, the probability of need, and the token states."""
        grant = index.grant(granted)
        whole = self._score_legs(index, message, mode, grant, in_parts=False)[0]
        ranked = self._rank_in_context(index, whole, mode, grant, context)
        return ranked, self._need_probability(whole), whole.states

    def _search_index(
        self,
        index: Index,
        message: str,
        mode: Mode,
        limit: int,
        grant: GrantMask,
        context: Context = NO_CONTEXT,
    ) -> _IndexSearch:
        whole, *parts = self._score_legs(index, message, mode, grant)
        ranked_in_context = self._rank_in_context(index, whole, mode, grant, context)
        if whole.legs.dense and context and asks_to_notify(message):
            vectors = self._read_earlier(index, MESSAGING_REQUESTS)
            parts += [
                _hybrid_query(index, text, vector, grant)
                for text, vector in zip(MESSAGING_REQUESTS, vectors, strict=False)
            ]
        alone, scores = self._rank_with_scores(index, whole, mode)
        first = alone
        if ranked_in_context is not None:
            scores = ranked_in_context.scores
            best = ranked_in_context.candidates[(-ranked_in_context.scores).argsort(kind="stable")]
            first = merge_with_message(best, alone, message)
        order = merge_rankings(first, self._intent_rankings(index, whole.legs, parts, mode))
        named = [position for position in index.names.find_named(message) if grant.mask[position]]
        ranked = _move_auxiliary_last(index, demote_duplicates(index, order, limit))
        positions = list(dict.fromkeys((*named, *ranked)))[:limit]
        if not positions:
            positions = _match_partial_names(index, message, grant.mask)[:limit]
        hits = tuple(_make_hits(index, message, whole, positions, frozenset(named)))
        if ranked_in_context is not None:
            found_alone = set(alone[:limit].tolist())
            marked = zip(positions, hits, strict=True)
            hits = tuple(replace(hit, from_context=position not in found_alone) for position, hit in marked)
        probable = 0 if scores is None else count_probable(scores)
        return _IndexSearch(whole, ranked_in_context, hits, probable)

    def _rank_in_context(
        self, index: Index, whole: _LegScores, mode: Mode, grant: GrantMask, context: Context
    ) -> RankedInContext | None:
        """Return the candidates scored in the context of the conversation; None if there is no context."""
        legs = whole.legs
        if not context or _RERANKER in legs.dense:
            return None
        used = UsedTools.find(index, context.used)
        earlier = self._compare_earlier(index, whole, grant, context)
        if not used.positions and not earlier.similarities:
            return None
        given = ContextInput(index, whole.text, legs, used, earlier)
        candidates = given.candidates(self._rank_tools(index, whole, mode), grant.mask)
        if not len(candidates):
            return None
        rows = context_features(given, candidates, self._base_scores(index, whole, mode, candidates))
        return RankedInContext(given, candidates, rows, self._context_ranker()(rows, dense=bool(legs.dense)))

    def _base_scores(self, index: Index, query: _LegScores, mode: Mode, candidates: Positions) -> Scores:
        """Return the scores of candidates for the message alone; only their order is meaningful."""
        legs = query.legs
        dense = next(iter(legs.dense.values()), None)
        if dense is None:
            return legs.lexical[candidates]
        if mode == "semantic":
            return dense[candidates]
        if self._ranker is None:
            rankings = [_keyword_matches(legs.lexical, CANDIDATES_PER_LEG), *_nearest_positions(legs)]
            return fuse_reciprocal_ranks(rankings, len(legs.lexical))[candidates]
        return self._ranker()(features(legs, candidates, index.lexical.name_coverage(query.text, candidates)))

    def _compare_earlier(
        self, index: Index, whole: _LegScores, grant: GrantMask, context: Context
    ) -> EarlierMessages:
        """Return the similarities of all tools to the earlier messages of the conversation."""
        messages = context.earlier[:MAX_EARLIER_MESSAGES]
        if not whole.legs.dense:
            return EarlierMessages([_keyword_scores(index, message, grant).lexical for message in messages])
        vectors = self._read_earlier(index, messages)
        if not vectors or index.vectors is None or whole.vector is None:
            return EarlierMessages()
        compare = functools.partial(
            index.vectors.similarities, hidden=grant.hidden, keyword_scores=whole.legs.lexical
        )
        combined = (whole.vector + vectors[0]) * np.float32(0.5)
        sample = index.sample
        usual = [sample.similarities(vector) for vector in (*vectors, combined)] if sample else []
        return EarlierMessages([compare(vector) for vector in vectors], compare(combined), usual)

    def _keep_vector(self, message: str, vector: Matrix) -> None:
        """Cache the vector of a message for later messages of the conversation."""
        if len(message) > MAX_KEPT_MESSAGE_CHARS:
            return
        if len(self._earlier_vectors) >= MAX_KEPT_VECTORS:
            self._earlier_vectors = {}  # another thread may be reading the old ones
        self._earlier_vectors[message] = vector

    def _read_earlier(self, index: Index | None, messages: Sequence[str]) -> list[Matrix]:
        """Return the vectors of earlier messages, most of which are cached."""
        known = self._earlier_vectors
        missing = [message for message in messages if message not in known]
        encoding = self._encode(index, missing) if missing else None
        if encoding is not None:
            for message, vector in zip(missing, encoding.vectors, strict=True):
                self._keep_vector(message, vector)
            known = self._earlier_vectors
        return [known[message] for message in messages if message in known and known[message].any()]

    def legs(
        self, index: Index, message: str, granted: Iterable[str] | None, client: str | None = None
    ) -> dict[str, dict[str, float]]:
        """Return the tools' scores by method (keywords, similarity), best first, for display."""
        grant = self._grant_for(index, granted, client, "hybrid")
        query = self._score_legs(index, message, "hybrid", grant, in_parts=False)[0]
        legs, dense = query.legs, next(iter(query.legs.dense.values()), None)
        found = {"keyword": _scores_by_name(index, legs.lexical, 0.0)}
        if dense is None:
            return found
        positions, scores = self._fuse_legs(index, query)
        fused = np.full(len(legs.lexical), EXCLUDED_SCORE, np.float32)
        fused[positions] = scores
        semantic = _scores_by_name(index, dense, float(EXCLUDED_SCORE))
        return {**found, "semantic": semantic, "fused": _scores_by_name(index, fused, float(EXCLUDED_SCORE))}

    def _score_legs(
        self, index: Index, message: str, mode: Mode, grant: GrantMask, *, in_parts: bool = True
    ) -> list[_LegScores]:
        """Score the tools for a whole message, then for each of its parts that may be a separate request."""
        if mode == "rerank" and self._reranker is not None:
            first = self._score_legs(index, message, "hybrid", grant, in_parts=False)[0]
            if second := self._rerank_scores(index, message, first.legs):
                return [_LegScores(message, replace(first.legs, dense=second))]
        if mode == "keyword":
            return [_keyword_query(index, message, grant)]
        texts = [message, *(split_intents(message, index.lexical.words) if in_parts else ())]
        encoding = self._encode(index, texts, are_parts=True)
        if encoding is None or index.vectors is None or not encoding.vectors[0].any():
            return [_keyword_query(index, message, grant)]
        self._keep_vector(message, encoding.vectors[0])
        read = [(text, vector) for text, vector in zip(texts, encoding.vectors, strict=True) if vector.any()]
        query = [_hybrid_query(index, text, vector, grant) for text, vector in read]
        return [replace(query[0], states=encoding.states), *query[1:]]

    def _need_probability(self, whole: _LegScores) -> float:
        if self._need_classifier is None:
            return 1.0
        # The classifier was not trained on the similarity scale of an external service.
        legs = replace(whole.legs, dense={}) if _RERANKER in whole.legs.dense else whole.legs
        return self._need_classifier().probability(whole.text, legs, whole.states)

    def _intent_rankings(
        self, index: Index, whole: Legs, parts: Sequence[_LegScores], mode: Mode
    ) -> Iterator[Positions]:
        """Yield a ranking for each message part that matches a tool about as well as the whole message."""
        if not parts:
            return
        near_enough = _max_similarity(whole) - SIMILARITY_MARGIN
        for part in parts:
            if _max_similarity(part.legs) <= near_enough:
                continue
            order = self._rank_tools(index, part, mode)
            if len(order) and any(each[order[0]] > near_enough for each in part.legs.dense.values()):
                yield order

    def _rerank_scores(self, index: Index, message: str, legs: Legs) -> Mapping[str, Scores]:
        """Return the reranker's scores for the best tools; empty if the reranker is unavailable."""
        if self._reranker is None:
            return {}
        positions = _shortlist_positions(legs)
        tools = {position: tool for position in positions if (tool := index.tools[position])}
        similarities = self._reranker.similarities(message, list(tools.values()))
        if similarities is None:
            return {}
        scores = np.full(len(legs.lexical), EXCLUDED_SCORE, np.float32)
        scores[list(tools)] = similarities
        return {_RERANKER: scores}

    def describe(
        self, message: str, mode: Mode, words: WordTokenizer, context: Context = NO_CONTEXT
    ) -> MessageLookup:
        """Return a message with its parts, vectors and earlier messages, for a database lookup."""
        message, context = resolve_repetition(message, context)
        earlier = context.earlier[:MAX_EARLIER_MESSAGES]
        parts = [] if mode == "keyword" else split_intents(message, words)
        encoding = None if mode == "keyword" else self._encode(None, [message, *parts], are_parts=True)
        if encoding is None or not encoding.vectors[0].any():
            return MessageLookup(message, earlier_texts=earlier, used=context.used)
        self._recent_encoding = (message, *parts), encoding
        self._keep_vector(message, encoding.vectors[0])
        before = self._read_earlier(None, earlier)
        more = [(encoding.vectors[0] + before[0]) * np.float32(0.5)] if before else []
        if context and asks_to_notify(message):
            more += self._read_earlier(None, MESSAGING_REQUESTS)
        return MessageLookup(
            message, parts, encoding.vectors, earlier_vectors=[*before, *more], used=context.used
        )

    def _encode(
        self, index: Index | None, messages: Sequence[str], *, are_parts: bool = False
    ) -> QueryEncoding | None:
        """Return the vectors of messages; None if the model is unavailable or does not match the index.

        If `are_parts`, all messages after the first are parts of it, which takes less time.
        """
        if self._embedder is None or (index is not None and index.vectors is None):
            return None
        encoding = self._run_encoder(messages, are_parts)
        vectors = None if index is None else index.vectors
        if encoding is not None and vectors is not None and encoding.vectors.shape[1] != vectors.width:
            self._outage_log.warn_once("the index contains vectors of another length than the model returns")
            return None
        return encoding

    def _run_encoder(self, messages: Sequence[str], are_parts: bool) -> QueryEncoding | None:
        recent, encoding = self._recent_encoding
        if are_parts and encoding is not None and recent == tuple(messages):
            return encoding
        texts = [query_text(message) for message in messages]
        if not texts[0] or self._embedder is None:
            return None
        try:
            if self._query_encoder and are_parts:
                return self._query_encoder.read(texts[0], texts[1:])
            return QueryEncoding(self._embedder.embed(texts, "query"))
        except EmbeddingUnavailable as error:
            self._outage_log.warn_once(str(error))
            return None

    def _rank_tools(self, index: Index, query: _LegScores, mode: Mode) -> Positions:
        return self._rank_with_scores(index, query, mode)[0]

    def _rank_with_scores(
        self, index: Index, query: _LegScores, mode: Mode
    ) -> tuple[Positions, Scores | None]:
        """Return the best tools, best first, and the scores of the trained ranker if it was used."""
        legs = query.legs
        if not legs.dense:
            return _keyword_matches(legs.lexical, CANDIDATES_PER_LEG), None
        if _RERANKER in legs.dense:
            keyword = _keyword_matches(legs.lexical, CANDIDATES_PER_LEG)
            return np.concatenate((_nearest_positions(legs)[0], keyword)), None
        if mode == "semantic":
            return _nearest_positions(legs)[0], None
        positions, scores = self._fuse_legs(index, query)
        return positions[(-scores).argsort(kind="stable")], scores if self._ranker else None

    def _fuse_legs(self, index: Index, query: _LegScores) -> tuple[Positions, Scores]:
        """Return the best tools by keywords and by similarity, with their combined scores."""
        legs = query.legs
        lexical, dense = _keyword_matches(legs.lexical, CANDIDATES_PER_LEG), _nearest_positions(legs)
        candidates = sorted_unique(np.concatenate((lexical, *dense)))
        if self._ranker is None:
            return candidates, fuse_reciprocal_ranks([lexical, *dense], len(legs.lexical))[candidates]
        if not len(candidates):
            return candidates, np.zeros(0, np.float32)
        named = index.lexical.name_coverage(query.text, candidates)
        return candidates, self._ranker()(features(legs, candidates, named))


def _shortlist_positions(legs: Legs) -> list[int]:
    """Return the positions of tools to rerank: the best by keywords and by similarity, alternating."""
    rankings = [_keyword_matches(legs.lexical, SHORTLIST_SIZE), *_nearest_positions(legs)]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*(each.tolist() for each in rankings)))
    distinct = dict.fromkeys(position for position in in_turn if position is not None)
    return list(itertools.islice(distinct, SHORTLIST_SIZE))


def _nearest_positions(legs: Legs) -> list[Positions]:
    """Return the index positions of the tools most similar to the message, one list per embedding."""
    best = [(best_positions(each, CANDIDATES_PER_LEG), each) for each in legs.dense.values()]
    return [positions[scores[positions] > EXCLUDED_SCORE] for positions, scores in best]


def _keyword_scores(index: Index, text: str, grant: GrantMask) -> Legs:
    """Return the scores of all tools by keywords alone."""
    lexical, best = index.lexical.scores(text)
    lexical[grant.hidden] = 0
    return Legs(lexical, best, {}, index.sample.tools if index.sample else 0)


def _hybrid_scores(index: Index, text: str, vector: Matrix, grant: GrantMask) -> Legs:
    """Return the scores of all tools by keywords and by vector similarity."""
    alone = _keyword_scores(index, text, grant)
    if index.vectors is None:
        return alone
    similarities = index.vectors.similarities(vector, grant.hidden, alone.lexical)
    usual = {"dense": index.sample.similarities(vector)} if index.sample else {}
    return replace(alone, dense={"dense": similarities}, usual=usual)


def _keyword_query(index: Index, text: str, grant: GrantMask) -> _LegScores:
    """Return the keyword scores of all tools, including the gains from example and learned messages.

    They are raised by example messages like the text, and by what was learned from use.
    """
    legs = _keyword_scores(index, text, grant)
    matches = index.message_matches().gains(index.lexical.words, text)
    if matches is not None:
        matches[grant.hidden] = 0
        legs = replace(legs, lexical=legs.lexical + matches * np.float32(legs.best_lexical))
    gains = grant.gains.keyword_gains(index.lexical.words, text) if grant.gains else None
    if gains is None:
        return _LegScores(text, legs)
    gains[grant.hidden] = 0
    raised = legs.lexical + gains * np.float32(legs.best_lexical)
    return _LegScores(text, replace(legs, lexical=raised), gains=gains)


def _hybrid_query(index: Index, text: str, vector: Matrix, grant: GrantMask) -> _LegScores:
    """Return the scores of all tools by keywords and by similarity, including gains from learned messages."""
    legs = _hybrid_scores(index, text, vector, grant)
    gains = grant.gains.similarity_gains(vector) if grant.gains else None
    if gains is None:
        return _LegScores(text, legs, vector=vector)
    gains[grant.hidden] = 0
    raised = {name: scores + gains for name, scores in legs.dense.items()}
    return _LegScores(text, replace(legs, dense=raised), vector=vector, gains=gains)


def _max_similarity(legs: Legs) -> float:
    """Return the highest similarity of any tool to the message."""
    return max((float(each.max(initial=EXCLUDED_SCORE)) for each in legs.dense.values()), default=0.0)


def _scores_by_name(index: Index, scores: Scores, floor: float) -> dict[str, float]:
    order = best_positions(scores, len(scores))
    placed = (
        (index.tools[position], float(scores[position]))
        for position in map(int, order)
        if scores[position] > floor
    )
    return {tool.name: score for tool, score in placed if tool}


def _keyword_matches(lexical: Scores, count: int) -> Positions:
    """Return the best tools by keywords, without tools that share no word with the message."""
    sharing = (lexical > 0).nonzero()[0]
    return sharing[best_positions(lexical[sharing], count)]


def _match_partial_names(index: Index, message: str, mask: Mask) -> list[int]:
    """Return tools whose name contains a word of the message, if nothing else matches the message."""
    wanted = [word for word in message.casefold()[:500].split() if len(word) > 2]
    return [
        position
        for name, position in sorted(index.by_name.items())
        if mask[position] and any(word in name.casefold() for word in wanted)
    ]


def _move_auxiliary_last(index: Index, positions: Sequence[int]) -> list[int]:
    """Move auxiliary tools, such as resource readers, to the end of a ranking."""
    auxiliary = index.auxiliary_positions()
    if auxiliary.isdisjoint(positions):
        return list(positions)
    return sorted(positions, key=auxiliary.__contains__)


def _make_hits(
    index: Index, message: str, whole: _LegScores, positions: Sequence[int], named: Collection[int]
) -> Iterator[Hit]:
    """Yield a search hit for each tool position, with the matched words and the similarity."""
    dense = next(iter(whole.legs.dense.values()), None)
    similarities = (
        [float(EXCLUDED_SCORE)] * len(positions) if dense is None else dense[list(positions)].tolist()
    )
    words = index.lexical.matched(message, positions)
    for position, shared, similarity in zip(positions, words, similarities, strict=True):
        tool = index.tools[position]
        shown_similarity = similarity if similarity > EXCLUDED_SCORE else None
        learned = 0.0 if whole.gains is None else float(whole.gains[position])
        yield Hit(
            tool.name if tool else "", tuple(shared), shown_similarity, position in named, learned=learned
        )


class Retriever:
    """Searches the registered tools for those that a message needs; entry point of this package."""

    def __init__(
        self,
        embedder: Embedder | None,
        ranker: Callable[[], Ranker] | None,
        store: VectorStore | None,
        *,
        progress: Progress | None = None,
        reranker: Reranker | None = None,
        synonyms: Synonyms | None = None,
        examples: ExampleMessages | None = None,
        need_classifier: Callable[[], NeedClassifier] | None = None,
        learned: LearnedMessages | None = None,
        max_wait_s: float | None = None,
        on_index_change: Callable[[IndexState], None] | None = None,
        database_index: DatabaseIndex | None = None,
    ) -> None:
        """Create a retriever; searches wait at most `max_wait_s` for vectors, without a limit if it is None.

        With a limit, the remaining tools are embedded in a thread: call `close` to stop it.
        `on_index_change` is called when a search goes on without all vectors, and when they are complete.
        Vectors that any process has computed are taken from `store`. With `database_index`, so many tools as
        its settings say are searched in the database.
        """
        outage_log = OutageLog()
        self._synonyms = synonyms or Synonyms()
        self.examples = examples or ExampleMessages()
        """Example messages of tools, which are part of the index."""
        self.learned = learned or LearnedMessages(None)
        """Messages learned from use, which raise the scores of tools in a search."""
        self._embedder = embedder
        self._indexer = Indexer(
            embedder,
            store,
            progress=progress,
            outage_log=outage_log,
            max_wait_s=max_wait_s,
            on_change=on_index_change,
        )
        self._store = store
        self._database_index = database_index
        self._background = BackgroundStart()
        self._keyword_indexer = Indexer(None, None)
        self._searcher = Searcher(
            embedder,
            ranker,
            outage_log=outage_log,
            reranker=reranker,
            need_classifier=need_classifier,
            learned=self.learned,
        )

    def make_sibling(self, *, progress: Progress | None = None) -> Retriever:
        """Return a retriever for another set of tools with the same models; the caller closes it.

        Both share the stored vectors. With `progress`, a search waits until all tools are embedded, and
        ends with the exception that `progress` raises.
        """
        sibling = copy.copy(self)
        sibling._indexer = self._indexer.make_sibling(progress=progress)
        sibling._keyword_indexer = self._keyword_indexer.make_sibling()
        sibling._background = BackgroundStart()
        sibling._store = None  # its indexer uses it; this retriever closes it
        sibling._database_index = None  # tools of skills and clients are few, and not those of all replicas
        return sibling

    def finish_index(self, snapshot: Snapshot, timeout_s: float | None = None) -> IndexState:
        """Wait until all tools are indexed and embedded, at most `timeout_s`; return the index's state."""
        tools = self._list_tools(snapshot)
        if self._database_index is not None and self._database_index.serves(len(tools)):
            return self._database_index.finish(tools, timeout_s)
        return self._indexer.finish_index(tools, timeout_s)

    def is_building_index(self) -> bool:
        """Return True while tools are being embedded in the background."""
        published = self._database_index is not None and self._database_index.is_publishing()
        return published or self._indexer.is_embedding()

    def index_state(self) -> IndexState:
        """Return the number of tools in the index, and the number of tools found by similarity."""
        state = self._database_index.state() if self._database_index is not None else None
        return state or self._indexer.state()

    def find(
        self,
        snapshot: Snapshot,
        message: str,
        *,
        mode: Mode,
        limit: int,
        granted: Iterable[str] | None = None,
        client: str | None = None,
    ) -> list[Hit]:
        """Return the best tools for a message, best first, among the tools that the session may use.

        `client` is whose use of tools the ranking learns from; None ranks without what was learned.
        """
        granted = None if granted is None else frozenset(granted)
        return self._searcher.search(
            self._find_index(snapshot, message, mode, granted, client=client),
            message,
            mode=mode,
            limit=limit,
            granted=granted,
            client=client,
        )

    def answer(
        self,
        snapshot: Snapshot,
        message: str,
        *,
        mode: Mode,
        limit: int,
        granted: Iterable[str] | None = None,
        context: Context = NO_CONTEXT,
        client: str | None = None,
    ) -> SearchResult:
        """Return the tools that `find` returns, and the probability that the message needs a tool.

        `context` is what was said and done before the message, if it belongs to a conversation.
        """
        granted = None if granted is None else frozenset(granted)
        return self._searcher.answer(
            self._find_index(snapshot, message, mode, granted, context, client),
            message,
            mode=mode,
            limit=limit,
            granted=granted,
            context=context,
            client=client,
        )

    def legs(
        self,
        snapshot: Snapshot,
        message: str,
        *,
        granted: Iterable[str] | None = None,
        client: str | None = None,
    ) -> dict[str, dict[str, float]]:
        """Return the tools' scores by ranking method (keywords, similarity), best first."""
        granted = None if granted is None else frozenset(granted)
        index = self._find_index(snapshot, message, "hybrid", granted, client=client)
        return self._searcher.legs(index, message, granted, client)

    def learn(
        self,
        snapshot: Snapshot,
        tool: Tool,
        texts: Sequence[str],
        *,
        client: str,
        origin: Origin,
        is_new_request: bool = True,
    ) -> str:
        """Learn the text in `texts` that best matches a successfully called tool.

        Returns why nothing was learned; empty if something was. Embeds the text if the model is in use.
        """
        index = self._find_index(snapshot, "\n".join(texts), "keyword", None, names=(tool.name,))
        position = index.by_name.get(tool.name)
        if position is None:
            return "the tool is not registered"
        best = max(texts, key=lambda text: float(index.lexical.scores(text)[0][position]), default="")
        problem = self.learned.learn(
            index, tool, best, client=client, origin=origin, is_new_request=is_new_request
        )
        if not problem and index.vectors is not None and self._embedder is not None:
            self.learned.embed_missing(self._embedder)  # now, so that the next search does not wait for it
        return problem

    def count_misses(
        self, snapshot: Snapshot, text: str, *, client: str, called: frozenset[str], offered: frozenset[str]
    ) -> None:
        """Lower the learned scores of tools that were offered but not called for similar texts."""
        index = self._find_index(snapshot, text, "keyword", None, names=tuple(offered))
        self.learned.count_misses(index, text, client=client, called=called, offered=offered)

    def close(self) -> None:
        """Stop the background threads that build the index."""
        if self._database_index is not None:
            self._database_index.close()
        self._background.wait()
        self._indexer.close()
        if self._store is not None:
            self._store.close()

    def _list_tools(self, snapshot: Snapshot) -> Sequence[Tool]:
        """Return the tools with their synonyms and example messages added."""
        return self._synonyms.add_synonyms(self.examples.add_messages(snapshot.ordered))

    def _find_index(
        self,
        snapshot: Snapshot,
        message: str,
        mode: Mode,
        granted: frozenset[str] | None,
        context: Context = NO_CONTEXT,
        client: str | None = None,
        names: Sequence[str] = (),
    ) -> Index:
        """Return the index to search: of all tools in memory, or of candidate tools from the database.

        The tools with the given `names` are candidates if they are granted.
        """
        tools = self._list_tools(snapshot)
        database = self._database_index
        if database is None or not database.serves(len(tools)):
            if mode == "keyword" and not self._indexer.has_index(tools):
                return self._keyword_indexer.index(tools)  # neither loads the model nor embeds
            return self._indexer.index(tools)
        learned = [] if client is None else self.learned.list_tool_names(MAX_LEARNED_CANDIDATES)
        try:
            lookup = self._searcher.describe(message, mode, database.words, context)
            return database.find(tools, lookup, granted, names=(*names, *learned))
        except IndexUnavailable as error:
            return self._find_fallback(tools, error)

    def _find_fallback(self, tools: Sequence[Tool], error: IndexUnavailable) -> Index:
        """Return a keyword index in memory, for searches during a database failure.

        Building the index of many tools takes seconds: until that is done, raises `error`.
        """
        if self._keyword_indexer.has_index(tools) or len(tools) <= MAX_FALLBACK_TOOLS:
            return self._keyword_indexer.index(tools)
        if len(tools) <= MAX_MEMORY_TOOLS:
            self._background.run(lambda: self._keyword_indexer.index(tools))
        raise error
