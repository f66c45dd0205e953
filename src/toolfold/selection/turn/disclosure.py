"""Decide whether tools are deferred to tool search, and which tool definitions the model sees.

Decided for every turn from the tokens of its tools and the model's context window. Below the threshold a
turn is passed through unchanged. Deferred tools stay callable.
"""

from __future__ import annotations

import logging
import operator
import threading
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from toolfold.config.settings import ToolsSettings
from toolfold.core.types import BRIDGE_NAMES, BRIDGE_SEARCH, Tool
from toolfold.safety.redaction import NO_SECRETS
from toolfold.selection.turn.answers import source_name
from toolfold.selection.turn.assembly import Turn, select_showable
from toolfold.selection.turn.bridge import Bridge
from toolfold.selection.turn.deferral import Deferral, ToolPartition
from toolfold.selection.turn.grant import Grant
from toolfold.selection.turn.token_counts import MAX_COUNTED_TOOLS, TokenCount, ToolTokenCounts
from toolfold.selection.turn.tokens import TokenCounter

log = logging.getLogger(__name__)

UNKNOWN_CONTEXT_LIMIT_TOKENS = 20_000
"""The tokens that may be shown to a model whose context window nobody knows."""


@dataclass(frozen=True, slots=True)
class DisclosureDecision:
    """Decision whether tools are deferred to tool search and selected in a turn, with its reason."""

    active: bool
    """True if tools are deferred to tool search."""
    reason: str
    weight: TokenCount | None = None
    """The tokens of the deferrable tools, if the decision depends on them."""
    selects: bool = False
    """True if tools are selected for each message."""
    adds_search: bool = False
    """True if all tools are shown, and tool search for tools that are not known yet."""
    forced: bool = False
    """True if the selection failed: the model has to search, and keeps the tools that are never deferred."""


class Disclosure:
    """Decides which tools the model sees in each turn, according to the settings of a runtime."""

    def __init__(
        self,
        settings: ToolsSettings,
        bridge: Bridge,
        *,
        deferral: Deferral | None = None,
        weights: ToolTokenCounts | None = None,
        behind_gateway: bool = False,
    ) -> None:
        self._max_tools = settings.tool_search.max_shown_tools(behind_gateway=behind_gateway)
        self._settings, self._selection = settings.tool_search, settings.selection
        self._behind_gateway = behind_gateway
        self._sorted = deferral or Deferral(settings)
        self._weights = weights or ToolTokenCounts()
        self._shown_bridge = _BridgeListing(settings, bridge)
        self._lock = threading.Lock()
        self._summaries: weakref.WeakKeyDictionary[Grant, _LoggedDecision] = weakref.WeakKeyDictionary()
        """The last logged decision for each grant: the same one is made for every request of a client."""

    def __call__(
        self,
        grant: Grant,
        turn: Turn,
        decision: DisclosureDecision,
        chosen: Collection[str] | None = None,
    ) -> Turn:
        """Return the turn with only the tools visible to the model; other tools can be found by search.

        `chosen` are the pinned and selected tools; None if no tools are selected.
        """
        turn = replace(turn, why=decision.reason, selects=decision.selects)
        if decision.active:
            visible = self._visible_tools(grant, turn, chosen, decision.forced)
            turn = self._show_tools(grant, turn, visible, searchable=True)
        elif chosen is not None and not decision.forced:
            turn = self._show_tools(grant, turn, select_showable(grant, turn, sorted(chosen)))
        elif decision.adds_search:
            bridge = self._shown_bridge(grant, self._sorted(grant))
            turn = self._show_tools(grant, turn, [*turn.tools, *bridge], searchable=True)
        self._log_decision(grant, turn, decision)
        return turn

    def always_shown(self, grant: Grant) -> frozenset[str]:
        """Return the names of the session's tools that are never deferred to tool search."""
        return self._sorted(grant).kept_names

    def _show_tools(
        self, grant: Grant, turn: Turn, tools: Sequence[Tool], *, searchable: bool = False
    ) -> Turn:
        """Return a copy of the turn in which the model sees only the given tools.

        Search finds core tools only if they are not visible.
        """
        direct = self.always_shown(grant).intersection(tool.name for tool in tools)
        return replace(turn, tools=tools, searchable=searchable, direct=direct)

    def decide(
        self, grant: Grant, turn: Turn, context_tokens: int | None, *, is_incomplete: bool = False
    ) -> DisclosureDecision:
        """Decide whether tools are deferred to tool search and selected, given the model's context window.

        `is_incomplete` means that the tools of a server are not known yet.
        """
        decision = self._decide_deferral(grant, turn, context_tokens)
        selects = decision.active if self._selection == "auto" else self._selection != "eager"
        # Many clients of a gateway ignore changes of the list: they search for the tools of late servers.
        can_search = self._behind_gateway and self._settings.enabled != "off"
        adds_search = is_incomplete and can_search and not decision.active
        return replace(decision, selects=selects, adds_search=adds_search)

    def decide_forced(self, grant: Grant, turn: Turn) -> DisclosureDecision:
        """Return the decision for a turn whose tools could not be selected: the model has to search."""
        parts = self._sorted(grant)
        deferrable = len(parts.deferrable) > len(parts.find_unavailable(turn))
        reason = "tools could not be selected" if deferrable else "no tool is deferrable"
        return DisclosureDecision(deferrable, reason, selects=True, forced=True)

    def may_search(self, grant: Grant, context_tokens: int | None) -> bool:
        """Return True if tools of the grant are selected for messages, or deferred if all of them work."""
        if self._selection in ("hybrid", "semantic"):
            return True
        return self._decide_deferral(grant, Turn(grant.snapshot, grant.names), context_tokens).active

    def _decide_deferral(self, grant: Grant, turn: Turn, context_tokens: int | None) -> DisclosureDecision:
        mode = self._settings.enabled
        parts = self._sorted(grant)
        if mode == "off":
            return DisclosureDecision(False, "tool search is off")
        if len(parts.deferrable) == len(parts.find_unavailable(turn)):
            return DisclosureDecision(False, "no tool is deferrable")
        if mode == "on":
            return DisclosureDecision(True, "tool search is on")
        count = len(parts.deferrable) - len(parts.find_unavailable(turn))
        if self._max_tools is not None and count > self._max_tools:
            return DisclosureDecision(True, f"{count:,} tools are more than the limit of {self._max_tools:,}")
        limit, why = self._token_limit(context_tokens)
        weight = parts.count_tokens(turn, self._weights, limit)
        active = weight.known != "at most" and weight.tokens >= limit
        compared = "at or above" if active else "below"
        return DisclosureDecision(active, f"{weight} tokens are {compared} the threshold of {why}", weight)

    def _token_limit(self, context_tokens: int | None) -> tuple[int, str]:
        """Return the token limit above which tools are deferred, and the origin of the limit."""
        settings = self._settings
        if context_tokens is None:
            limit, why = (
                UNKNOWN_CONTEXT_LIMIT_TOKENS,
                f"{UNKNOWN_CONTEXT_LIMIT_TOKENS:,}, for an unknown context window",
            )
        else:
            limit = round(context_tokens * settings.threshold_pct / 100)
            why = f"{limit:,}, {settings.threshold_pct:g}% of the context window"
        if settings.threshold_tokens < limit:
            limit, why = settings.threshold_tokens, f"{settings.threshold_tokens:,}, the most for any window"
        return limit, why

    def _visible_tools(
        self, grant: Grant, turn: Turn, chosen: Collection[str] | None, forced: bool
    ) -> list[Tool]:
        """Return the visible tools, rarely changing tools first, so that prompt caches stay valid."""
        parts = self._sorted(grant)
        bridge = self._shown_bridge(grant, parts)
        if chosen is None:
            return [*_available_tools(parts.kept, turn), *bridge]
        first = _available_tools(parts.kept if forced else parts.pinned, turn)
        others = {*chosen}.difference(tool.name for tool in first)
        return [*first, *bridge, *select_showable(grant, turn, sorted(others))]

    def _log_decision(self, grant: Grant, turn: Turn, verdict: DisclosureDecision) -> None:
        """Log one line per turn: visible tools, deferred tools, saved tokens and the reason."""
        if not log.isEnabledFor(logging.INFO):
            return
        with self._lock:
            last = self._summaries.get(grant)
        if last is None or not last.is_for(turn, verdict):
            summary = self._summarize_decision(grant, turn, verdict)
            last = _LoggedDecision(turn.offered, turn.tools, verdict, summary)
            with self._lock:
                self._summaries[grant] = last
        log.info("%s", last.summary, extra={NO_SECRETS: True})  # it consists of numbers and fixed texts

    def _summarize_decision(self, grant: Grant, turn: Turn, verdict: DisclosureDecision) -> str:
        shown = frozenset(tool.name for tool in turn.tools)
        hidden = [tool for tool in turn.offered if tool.name not in shown]
        bridge = [tool for tool in turn.tools if tool.name in BRIDGE_NAMES]
        deferrable = self._sorted(grant).deferrable if verdict.active else {}
        deferred = sum(tool.name in deferrable for tool in hidden)
        enough = 0 if len(hidden) <= MAX_COUNTED_TOOLS else UNKNOWN_CONTEXT_LIMIT_TOKENS
        weight = self._weights.count_until(hidden, enough) if hidden else TokenCount(0)
        spent = sum(map(self._weights.count_tool, bridge))
        unselected = f", not selected: {len(hidden) - deferred}" if len(hidden) > deferred else ""
        after = f" after {spent} for the bridge" if bridge else ""
        saved = replace(weight, tokens=weight.tokens - spent)
        kept = len(turn.tools) - len(bridge)
        return (
            f"tools kept: {kept}, deferred: {deferred}{unselected}, tokens saved: {saved}{after};"
            f" {verdict.reason}"
        )


@dataclass(frozen=True, slots=True)
class _LoggedDecision:
    """The last logged decision about deferring tools, and the tools that it was made for."""

    offered: Sequence[Tool]
    shown: Sequence[Tool]
    verdict: DisclosureDecision
    summary: str

    def is_for(self, turn: Turn, verdict: DisclosureDecision) -> bool:
        """Return True if another turn has the same tools and decision, so that logging it is redundant."""
        return (
            turn.offered is self.offered
            and len(turn.tools) == len(self.shown)
            and all(map(operator.is_, turn.tools, self.shown))
            and verdict == self.verdict
        )


class _BridgeListing:
    """Definitions of `tool_search`, `tool_describe` and `tool_call`, with an optional list of sources."""

    def __init__(self, settings: ToolsSettings, bridge: Bridge) -> None:
        self._listing = settings.tool_search.listing
        self._room = settings.tool_search.listing_max_tokens
        self._bridge = bridge
        self._lock = threading.Lock()
        self._listed: weakref.WeakKeyDictionary[Grant, Sequence[Tool]] = weakref.WeakKeyDictionary()

    def __call__(self, grant: Grant, parts: ToolPartition) -> Sequence[Tool]:
        if self._listing == "off":
            return self._bridge.tools
        with self._lock:
            if grant not in self._listed:
                self._listed[grant] = self._add_listing(self._list_sources(parts.deferrable.values()))
            return self._listed[grant]

    def _add_listing(self, listing: str) -> Sequence[Tool]:
        return [
            replace(tool, description=f"{tool.description} {listing}".rstrip())
            if tool.name == BRIDGE_SEARCH
            else tool
            for tool in self._bridge.tools
        ]

    def _list_sources(self, tools: Iterable[Tool]) -> str:
        """Return a list of tool sources with their tool counts, limited by the token budget.

        Counts come from the grant, not from what works now: a flapping server must not change the prompt.
        """
        entries = [f"{name} ({count})" for name, count in sorted(Counter(map(source_name, tools)).items())]
        counter = TokenCounter()
        named = len(entries)
        while named and counter.text(_listing_text(entries, named)) > self._room:
            named = 0 if self._listing == "auto" else named * 9 // 10
        return _listing_text(entries, named) if named else ""


def _listing_text(entries: Sequence[str], named: int) -> str:
    left = len(entries) - named
    more = f", and {left} more sources" if left else ""
    return f"Sources and how many tools each has: {', '.join(entries[:named])}{more}."


def _available_tools(tools: Sequence[Tool], turn: Turn) -> Sequence[Tool]:
    return [tool for tool in tools if tool.name not in turn.unavailable] if turn.unavailable else tools
