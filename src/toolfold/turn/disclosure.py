"""Progressive disclosure: which tools stand behind tool search, and when they do.

Decided anew for every turn, by what the tools of this turn cost the model of this session. Below the
threshold a turn passes through untouched. Only hides: a deferred tool can be called like any other.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from toolfold.config.settings import Tools
from toolfold.model import BRIDGE_NAMES, BRIDGE_SEARCH, Tool
from toolfold.turn.answers import source_of
from toolfold.turn.assembly import Turn
from toolfold.turn.bridge import Bridge
from toolfold.turn.grant import Grant
from toolfold.turn.tokens import TokenCounter
from toolfold.turn.weights import MOST_AT_ONCE, Weight, Weights

log = logging.getLogger(__name__)

UNKNOWN_WINDOW = 20_000
"""The tokens that may be shown to a model whose context window nobody knows."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether tools are deferred this time, and why."""

    active: bool
    reason: str
    deferrable: int = 0
    weight: Weight | None = None
    """What the deferrable tools cost, where the decision depends on it."""


@dataclass(slots=True)
class _Parts:
    """A grant, sorted by what may become of each tool. What is derived from it is filled in on demand."""

    names: frozenset[str]
    pinned: Sequence[Tool]
    kept: Sequence[Tool]
    """The pinned ones among them."""
    deferrable: Sequence[Tool]
    weight: Weight | None = None
    bridge: Sequence[Tool] | None = None


class Disclosure:
    """Applies the settings of one runtime to the turns of all its sessions."""

    def __init__(self, settings: Tools, bridge: Bridge) -> None:
        self._settings = settings.tool_search
        self._always = frozenset(self._settings.always_load)
        self._defer = frozenset(self._settings.defer)
        self._pinned = frozenset(settings.pinned)
        self._bridge = bridge
        self._weights = Weights()
        self._lock = threading.Lock()
        self._sorted: weakref.WeakKeyDictionary[Grant, _Parts] = weakref.WeakKeyDictionary()

    def __call__(
        self,
        grant: Grant,
        turn: Turn,
        *,
        context_tokens: int | None = None,
        chosen: Collection[str] | None = None,
    ) -> Turn:
        """The turn with what the model is to see: all of it or what was `chosen`, and the rest searchable."""
        verdict = self.judge(grant, turn, context_tokens)
        if verdict.active:
            disclosed = replace(turn, tools=self._shown(grant, turn, chosen), searchable=True)
        elif chosen is not None:
            disclosed = replace(turn, tools=self._likely(grant, turn, chosen))
        else:
            disclosed = turn
        self._tell(grant, turn, disclosed, verdict)
        return disclosed

    def judge(self, grant: Grant, turn: Turn, context_tokens: int | None) -> Verdict:
        """Whether this turn's tools are to be deferred for a model with such a context window."""
        mode = self._settings.enabled
        deferrable = self._deferrable(grant, turn)
        if mode == "off":
            return Verdict(False, "tool search is off", len(deferrable))
        if not deferrable:
            return Verdict(False, "no tool is deferrable")
        if mode == "on":
            return Verdict(True, "tool search is on", len(deferrable))
        limit, why = self._limit(context_tokens)
        weight = self._weight(grant, deferrable, limit)
        active = weight.known != "at most" and weight.tokens >= limit
        compared = "at or above" if active else "below"
        return Verdict(active, f"{weight} tokens are {compared} {why}", len(deferrable), weight)

    def _limit(self, context_tokens: int | None) -> tuple[int, str]:
        """The tokens from which on tools are deferred, and where that number comes from."""
        settings = self._settings
        if context_tokens is None:
            limit, why = UNKNOWN_WINDOW, f"{UNKNOWN_WINDOW:,}, for an unknown context window"
        else:
            limit = round(context_tokens * settings.threshold_pct / 100)
            why = f"{limit:,}, {settings.threshold_pct:g}% of the context window"
        if settings.threshold_tokens < limit:
            limit, why = settings.threshold_tokens, f"{settings.threshold_tokens:,}, the most for any window"
        return limit, why

    def _parts(self, grant: Grant) -> _Parts:
        with self._lock:
            parts = self._sorted.get(grant)
            if parts is None:
                parts = self._sorted[grant] = self._sort(grant.tools)
            return parts

    def _sort(self, tools: Sequence[Tool]) -> _Parts:
        pinned = [tool for tool in tools if self._is_pinned(tool)]
        always = {tool.name for tool in pinned}
        kept = [
            tool for tool in tools if tool.name in always or (tool.core and not _named(tool, self._defer))
        ]
        staying = {tool.name for tool in kept}
        deferrable = [tool for tool in tools if tool.name not in staying]
        return _Parts(frozenset(tool.name for tool in tools), pinned, kept, deferrable)

    def _is_pinned(self, tool: Tool) -> bool:
        if _named(tool, self._always):
            return True
        return _named(tool, self._pinned) and not _named(tool, self._defer)

    def _deferrable(self, grant: Grant, turn: Turn) -> Sequence[Tool]:
        return _working(self._parts(grant).deferrable, turn)

    def _weight(self, grant: Grant, deferrable: Sequence[Tool], enough: int) -> Weight:
        parts = self._parts(grant)
        if deferrable is not parts.deferrable:  # some cannot work now, which nobody should remember
            return self._weights.total(deferrable, enough)
        held = parts.weight
        if held is None or not _decides(held, enough):
            held = parts.weight = self._weights.total(deferrable, enough)
        return held

    def _shown(self, grant: Grant, turn: Turn, chosen: Collection[str] | None) -> list[Tool]:
        """What changes least stands first: a prompt cache holds as far as nothing changes."""
        parts = self._parts(grant)
        if parts.bridge is None:
            parts.bridge = self._bridge_tools(parts.deferrable)
        if chosen is None:
            return [*_working(parts.kept, turn), *parts.bridge]
        pinned = _working(parts.pinned, turn)
        others = {*chosen}.difference(tool.name for tool in pinned)
        return [*pinned, *parts.bridge, *self._likely(grant, turn, others)]

    def _likely(self, grant: Grant, turn: Turn, chosen: Collection[str]) -> list[Tool]:
        """The chosen tools, by name, of those that may be shown."""
        names = self._parts(grant).names
        return [
            turn.snapshot[name] for name in sorted(chosen) if name in names and name not in turn.unavailable
        ]

    def _bridge_tools(self, deferrable: Sequence[Tool]) -> Sequence[Tool]:
        listing = self._listing(deferrable)
        if not listing:
            return self._bridge.tools
        return [
            replace(tool, description=f"{tool.description} {listing}") if tool.name == BRIDGE_SEARCH else tool
            for tool in self._bridge.tools
        ]

    def _listing(self, deferrable: Sequence[Tool]) -> str:
        """The sources and their counts, within the budget. Of the grant, not of what can work just now:
        a server that comes and goes must not change the prompt."""
        mode, room = self._settings.listing, self._settings.listing_max_tokens
        if mode == "off":
            return ""
        entries = [f"{name} ({count})" for name, count in sorted(Counter(map(source_of, deferrable)).items())]
        named = len(entries)
        while named and TokenCounter().text(_listed(entries, named)) > room:
            named = 0 if mode == "auto" else named * 9 // 10
        return _listed(entries, named) if named else ""

    def _tell(self, grant: Grant, turn: Turn, disclosed: Turn, verdict: Verdict) -> None:
        if not log.isEnabledFor(logging.INFO):
            return
        if not verdict.active:
            log.info("tools kept: %d, deferred: 0; %s", len(disclosed.tools), verdict.reason)
            return
        deferrable = self._deferrable(grant, turn)
        enough = 0 if len(deferrable) <= MOST_AT_ONCE else UNKNOWN_WINDOW
        weight = verdict.weight or self._weight(grant, deferrable, enough)
        kept = {tool.name for tool in self._parts(grant).kept}
        likely = [tool for tool in disclosed.tools if tool.name not in kept and tool.name not in BRIDGE_NAMES]
        bridge = sum(map(self._weights.of, self._parts(grant).bridge or ()))
        spent = bridge + sum(map(self._weights.of, likely))
        log.info(
            "tools kept: %d, deferred: %d, tokens saved: %s after %d for the bridge; %s",
            *(len(disclosed.tools) - len(self._bridge.tools), len(deferrable) - len(likely)),
            *(replace(weight, tokens=weight.tokens - spent), bridge, verdict.reason),
        )


def _decides(weight: Weight, enough: int) -> bool:
    """Whether what is known of a weight tells on which side of `enough` it lies."""
    if weight.known == "exactly":
        return True
    return (weight.known == "at least") is (weight.tokens >= enough)


def _working(tools: Sequence[Tool], turn: Turn) -> Sequence[Tool]:
    """The same object where all of them can: ten thousand tools pass here for every message."""
    if not turn.unavailable:
        return tools
    working = [tool for tool in tools if tool.name not in turn.unavailable]
    return working if len(working) < len(tools) else tools


def _named(tool: Tool, names: Collection[str]) -> bool:
    """Whether a list of tools and toolsets means this one."""
    return tool.name in names or tool.toolset in names or (tool.original_name or tool.name) in names


def _listed(entries: Sequence[str], named: int) -> str:
    left = len(entries) - named
    more = f", and {left} more sources" if left else ""
    return f"Sources and how many tools each has: {', '.join(entries[:named])}{more}."
