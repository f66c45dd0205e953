"""Select tools for the conversation before the model is called.

Selection only hides: what it leaves out stays callable. The latest message is searched in the context of
what was said and called before.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from toolfold.config.settings import ToolsSettings
from toolfold.core.types import Tool
from toolfold.selection.retrieval.context import Context
from toolfold.selection.retrieval.tool_search import Hit, Mode, Retriever, SearchResult
from toolfold.selection.turn.assembly import Turn
from toolfold.selection.turn.companions import find_companions
from toolfold.selection.turn.deferral import Deferral
from toolfold.selection.turn.grant import Grant
from toolfold.selection.turn.recent_messages import MAX_EARLIER_CHARS, Conversation
from toolfold.selection.turn.token_counts import ToolTokenCounts

log = logging.getLogger(__name__)

MAX_TOOLS_WITH_COMPANIONS = 3
"""The number of the best tools whose look-up tools are selected as well."""
MAX_REUSED_TOOLS = 4
"""The number of previously used tools that stay selected."""
BRIDGE = "bridge"
"""The mode of a selection that found nothing although a tool is needed: the model has to search."""

NAMED = "named in the message"
FITS = "fits the message"
FITTED = "fits the conversation"
LEARNED = "fits the message, as learned from use"
USED = "used before"
COMPANION = "looks up what a selected tool requires"
TOO_LARGE = "would take more than rag_max_tokens"

_MAX_NAMED_TOOLS = 1_000
_MAX_CACHED_ANSWERS = 64

_AnswerKey: TypeAlias = tuple[str, frozenset[str], Context, str, object]


@dataclass(frozen=True, slots=True)
class Selection:
    """Tools selected for a message in addition to the tools always listed, each with a reason."""

    names: tuple[str, ...]
    """Names of the selected tools, best first."""
    hits: tuple[Hit, ...]
    """Matches of the latest message, shown or not."""
    need: float
    needed: bool
    """True if the message needs a tool, by itself or as the continuation of an earlier one."""
    why: Mapping[str, str]
    leg: str
    """The search mode that answered: the configured one or its fallback."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Tools that a limit excluded, with the reason."""
    count: int = 0
    """Number of the best tools that were to be selected: more if it is uncertain which ones are right."""
    search_s: float = 0.0
    """Seconds that encoding and searching for the message took; 0 if its result was known."""


@dataclass(frozen=True, slots=True)
class _MessageResult:
    """The search result for one message, and its search mode."""

    found: SearchResult
    leg: str
    needed: bool
    search_s: float = 0.0
    """Seconds that encoding and searching took; 0 if the result is a cached one."""

    @property
    def named(self) -> list[str]:
        return [hit.name for hit in self.found.hits if hit.exact]


class Selector:
    """Selects tools for the messages of all sessions of a runtime."""

    def __init__(
        self,
        settings: ToolsSettings,
        retriever: Retriever,
        *,
        deferral: Deferral | None = None,
        weights: ToolTokenCounts | None = None,
    ) -> None:
        self._settings, self._retriever = settings, retriever
        selection = settings.selection
        self._mode: Mode = "hybrid" if selection == "auto" or selection == "eager" else selection
        self._sorted = deferral or Deferral(settings)
        self._weights = weights or ToolTokenCounts()
        self._lock = threading.Lock()
        self._fields: weakref.WeakKeyDictionary[Grant, _GrantCandidates] = weakref.WeakKeyDictionary()
        self._logged_modes: set[str] = set()

    def pinned(self, grant: Grant) -> Sequence[Tool]:
        """Return the tools that are always listed, regardless of the selection."""
        return self._sorted(grant).pinned

    def __call__(
        self, grant: Grant, turn: Turn, conversation: Conversation, *, client: str = ""
    ) -> Selection:
        """Select the tools for the newest message of a conversation.

        `client` is whose use of tools the ranking learns from; empty for users of this machine.
        """
        field = self._candidates_of(grant)
        competing = field.competing(turn)
        used = _find_reusable(turn, conversation.used_tools, competing)
        context = _resolve_context(turn, conversation.context())
        latest = conversation.user_texts[-1] if conversation.user_texts else ""
        answer = self._search_message(field, turn, latest, competing, context, client)
        if answer is None:
            return Selection(used, (), 1.0, True, dict.fromkeys(used, USED), BRIDGE)
        found = answer.found
        if not answer.needed and not conversation.in_progress:
            return Selection((), found.hits, found.need, False, {}, answer.leg, search_s=answer.search_s)
        fitting = {hit.name: _reason(hit, used) for hit in found.hits}
        count = self._settings.count_selected(found.probable)
        best = list(fitting)[: min(count, MAX_TOOLS_WITH_COMPANIONS)]
        companions = [each for name in best for each in field.companions(turn, name, competing)]
        why, left_out = self._apply_limits(turn, answer.named, fitting, used, count, companions)
        leg = answer.leg if why else BRIDGE
        return Selection(tuple(why), found.hits, found.need, True, why, leg, left_out, count, answer.search_s)

    def _candidates_of(self, grant: Grant) -> _GrantCandidates:
        with self._lock:
            field = self._fields.get(grant)
            if field is None:
                pinned = frozenset(tool.name for tool in self.pinned(grant))
                field = self._fields[grant] = _GrantCandidates(pinned)
            return field

    def _search_message(
        self,
        field: _GrantCandidates,
        turn: Turn,
        message: str,
        competing: frozenset[str],
        context: Context,
        client: str,
    ) -> _MessageResult | None:
        """Return the search result for one message, or None if no search mode works."""
        key = message, competing, context, client, self._retriever.learned.version(client)
        if (known := field.answers.get(key)) is not None:
            return known
        for mode in dict.fromkeys((self._mode, "keyword")):
            try:
                answer = self._search_with_mode(turn, message, competing, mode, context, client)
            except Exception:  # the index or the model may fail; another mode may still work
                self._log_failure(mode)
                continue
            self._logged_modes.discard(mode)
            if answer.leg == self._mode and len(message) <= MAX_EARLIER_CHARS:
                field.remember(key, replace(answer, search_s=0.0))
            return answer
        return None

    def _search_with_mode(
        self,
        turn: Turn,
        message: str,
        competing: frozenset[str],
        mode: Mode,
        context: Context,
        client: str,
    ) -> _MessageResult:
        limit = 2 * self._settings.max_selected + 8  # some may be too large
        started = time.perf_counter()
        ask = functools.partial(self._retriever.answer, context=context, client=client)
        found = ask(turn.snapshot, message, mode=mode, limit=limit, granted=competing)
        if len(found.hits) == limit and found.hits[-1].exact:
            found = ask(turn.snapshot, message, mode=mode, limit=_MAX_NAMED_TOOLS, granted=competing)
        search_s = time.perf_counter() - started
        by_words = mode != "keyword" and found.hits and found.by_keywords
        needed = found.needed(self._settings.need_threshold)
        return _MessageResult(found, "keyword" if by_words else mode, needed, search_s)

    def _log_failure(self, mode: str) -> None:
        """Log a failed search with traceback, once per search mode until it succeeds again."""
        if mode not in self._logged_modes:
            self._logged_modes.add(mode)
            log.exception("selecting tools by %s failed", mode)

    def _apply_limits(
        self,
        turn: Turn,
        named: Sequence[str],
        fitting: Mapping[str, str],
        used: Sequence[str],
        count: int,
        companions: Sequence[str],
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Apply the limits on count and tokens; return the selected tools, and those over the token budget.

        Named tools are always in. Reused tools may take half of the token budget, fitting ones the rest;
        companions come last and take what is left.
        """
        room = _TokenBudget(turn, self._settings.rag_max_tokens, self._weights)
        for name in named:
            room.take(name)
        half = self._settings.rag_max_tokens // 2
        kept = {name for name in used if name not in named and room.try_take(name, leaving=half)}
        places = count - len(named)
        best: list[str] = []
        for name in fitting:
            if len(best) >= places:
                break
            if name not in named and (name in kept or room.try_take(name)):
                best.append(name)
        chosen = dict.fromkeys(named, NAMED) | {name: fitting[name] for name in best}
        chosen |= {name: USED for name in used if name in kept and name not in chosen}
        new = [name for name in dict.fromkeys(companions) if name not in chosen]
        chosen |= {name: COMPANION for name in new if room.try_take(name)}
        return chosen, {name: TOO_LARGE for name in room.refused if name not in chosen}


class _GrantCandidates:
    """Cache of the candidate tools and recent search results for one set of granted tools."""

    def __init__(self, pinned: frozenset[str]) -> None:
        self._pinned = pinned
        self._last: tuple[frozenset[str], frozenset[str]] | None = None
        self._companions: dict[str, Sequence[str]] = {}
        self.answers: dict[_AnswerKey, _MessageResult] = {}

    def competing(self, turn: Turn) -> frozenset[str]:
        """Return the names of the candidate tools for a message.

        Unavailable tools and tools that are always shown are left out. The set is cached until the
        available tools change.
        """
        unavailable = frozenset(turn.unavailable)
        last = self._last
        if last is None or last[0] != unavailable:
            names = turn.offered_names - self._pinned
            self._last, self._companions = (last := (unavailable, names)), {}
        return last[1]

    def companions(self, turn: Turn, name: str, competing: frozenset[str]) -> Sequence[str]:
        """Return the look-up tools of its toolset that a tool depends on, among the candidates."""
        known = self._companions
        if name not in known:
            tools = turn.snapshot
            toolset = tools[name].toolset
            others = (tools[each] for each in competing if tools[each].toolset == toolset)
            known[name] = find_companions(tools[name], others)
        return known[name]

    def remember(self, key: _AnswerKey, answer: _MessageResult) -> None:
        answers = self.answers
        if len(answers) >= _MAX_CACHED_ANSWERS:
            self.answers = answers = {}  # another thread may be reading the old ones
        answers[key] = answer


class _TokenBudget:
    """Remaining tokens for selected tools, counted exactly only if a decision depends on it."""

    def __init__(self, turn: Turn, tokens: int, weights: ToolTokenCounts) -> None:
        self._tools, self._left, self._weights = turn.snapshot, tokens, weights
        self._estimates: dict[str, int] = {}
        """Tools that were added with an estimate of their tokens, which is probably too high."""
        self.refused: list[str] = []

    def take(self, name: str) -> None:
        """Charge a tool's tokens to the budget, even if they exceed it."""
        self._estimates[name] = guess = self._weights.estimate_upper_bound(self._tools[name])
        self._left -= guess

    def try_take(self, name: str, *, leaving: int = 0) -> bool:
        """Charge a tool to the budget if at least `leaving` tokens remain; otherwise return False."""
        self.take(name)
        while self._left < leaving <= self._left + sum(self._estimates.values()):
            self._replace_estimate(max(self._estimates, key=self._estimates.__getitem__))
        if self._left >= leaving:
            return True
        self._left += self._estimates.pop(name, 0) or self._weights.count_tool(self._tools[name])
        self.refused.append(name)
        return False

    def _replace_estimate(self, name: str) -> None:
        """Replace a tool's estimated token count by the exact count."""
        self._left += self._estimates.pop(name) - self._weights.count_tool(self._tools[name])


def _find_reusable(turn: Turn, used: Sequence[str], competing: frozenset[str]) -> tuple[str, ...]:
    """Return tools called earlier in the conversation that may be selected again, latest first."""
    names = dict.fromkeys(_resolve_name(turn, name) for name in reversed(used))
    return tuple(name for name in names if name in competing)[:MAX_REUSED_TOOLS]


def _resolve_name(turn: Turn, name: str) -> str:
    """Return the registered name of a granted tool; the given name if it is unknown or ambiguous."""
    if name in turn.granted:
        return name
    granted = [tool.name for tool in turn.snapshot.named(name) if tool.name in turn.granted]
    return granted[0] if len(granted) == 1 else name


def _reason(hit: Hit, used: Sequence[str]) -> str:
    """Return the reason for selecting a tool that a search found."""
    if not hit.from_context:
        return LEARNED if hit.learned > 0 else FITS
    return USED if hit.name in used else FITTED


def _resolve_context(turn: Turn, context: Context) -> Context:
    """Return the context of a message, with the called tools listed by their registered names."""
    return Context(context.earlier, tuple(_resolve_name(turn, name) for name in context.used))
