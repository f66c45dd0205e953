"""What `toolfold eval` tells a person: the measures, the costs, and the worst messages with reasons.

Works on answers that were already given; asks the retriever again only to learn why one went wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

from toolfold.cli.show import counted, listed, out, table

if TYPE_CHECKING:
    from toolfold.cli.plot import Curve
    from toolfold.registry import Snapshot
    from toolfold.retrieval.judging import Query
    from toolfold.retrieval.search import Hit, Mode, Retriever

WORST = 8
DEPTHS = (1, 2, 3, 5, 8, 12, 20, 30, 50)
_MESSAGE_CHARS = 160


@dataclass(frozen=True, slots=True)
class Judged:
    """One message and what was found for it."""

    query: Query
    ranked: list[str]
    selected: list[str]
    """What would be shown for it; empty where no tool seems needed."""
    need: float
    """How likely it seems that it needs any tool."""
    ms: float


@dataclass(frozen=True)
class Measured:
    """All messages, judged, and what the tools cost."""

    tools: Snapshot
    judged: Sequence[Judged]
    mode: Mode
    depth: int
    costs: Mapping[str, int]

    @cached_property
    def needing(self) -> list[Judged]:
        """Those that need a tool."""
        return [each for each in self.judged if each.query.gold]

    @property
    def all_tokens(self) -> int:
        """What sending every tool costs."""
        return sum(self.costs.values())


def curve(mode: str, judged: Sequence[Judged], costs: Mapping[str, int]) -> Curve:
    """Recall against tokens, for messages that need a tool, as more and more of the ranked are sent."""
    from toolfold.cli.plot import Curve, Point
    from toolfold.retrieval.judging import recall

    longest = max(len(each.ranked) for each in judged)
    depths = [depth for depth in DEPTHS if depth <= longest] or [1]
    return Curve(
        mode,
        [
            Point(
                depth,
                fmean(sum(costs[name] for name in each.ranked[:depth]) for each in judged),
                fmean(recall(each.query, each.ranked, depth) for each in judged),
            )
            for depth in depths
        ],
    )


def tell(measured: Measured, retriever: Retriever) -> None:
    """The whole report, on standard output."""
    out(
        f"[bold]{counted(len(measured.tools), 'tool')}, {counted(len(measured.judged), 'message')},"
        f" {measured.mode}[/bold]\n"
    )
    if not measured.judged:
        return
    if measured.needing:
        _tell_quality(measured)
    else:
        out("No message has a `gold` tool, so there is no recall to measure.\n")
    table("", ("", ""), _costs(measured))
    if measured.needing:
        _tell_the_worst(measured, retriever)


def _tell_quality(measured: Measured) -> None:
    needing = measured.needing
    depths = sorted({1, 5, 8, measured.depth})
    kinds = sorted({each.query.kind for each in needing if each.query.kind})
    by_kind = [(kind, [each for each in needing if each.query.kind == kind]) for kind in kinds]
    groups = [("all", needing), *(by_kind if len(by_kind) > 1 else ())]
    table(
        "messages that need a tool",
        ("kind", "#count", *(f"#R@{depth}" for depth in depths), "#MRR", "#nDCG@10"),
        ((name, f"{len(group):,}", *_quality(group, depths)) for name, group in groups),
    )


def _quality(group: Sequence[Judged], depths: Sequence[int]) -> list[str]:
    from toolfold.retrieval.judging import discounted_gain, recall, reciprocal_rank

    figures = [
        *(fmean(recall(each.query, each.ranked, depth) for each in group) for depth in depths),
        fmean(reciprocal_rank(each.query, each.ranked) for each in group),
        fmean(discounted_gain(each.query, each.ranked) for each in group),
    ]
    return [f"{figure:.3f}" for figure in figures]


def _costs(measured: Measured) -> list[tuple[str, str]]:
    from toolfold.retrieval.judging import percentile

    judged, everything = measured.judged, measured.all_tokens
    sent = fmean(sum(measured.costs[name] for name in each.selected) for each in judged)
    times = [each.ms for each in judged]
    return [
        *_mistakes(measured),
        (
            "tokens sent a message",
            f"{sent:,.0f} of {everything:,} ({sent / everything:.1%}), {measured.depth} tools at most",
        ),
        (
            "CPU time a message",
            f"{percentile(times, 0.5):.2f} ms p50, {percentile(times, 0.99):.2f} ms p99",
        ),
    ]


def _mistakes(measured: Measured) -> list[tuple[str, str]]:
    """Tools shown where none is needed, and none shown where one is."""
    idle = [each for each in measured.judged if not each.query.gold]
    groups = (
        ("a tool needed, none selected", measured.needing, False),
        ("no tool needed, some selected", [e for e in idle if e.query.candidates is None], True),
        ("no own candidate fits, some selected", [e for e in idle if e.query.candidates], True),
    )
    return [
        (what, _share(sum(bool(each.selected) is wrong for each in group), len(group)))
        for what, group, wrong in groups
        if group
    ]


def _share(count: int, total: int) -> str:
    return f"{count / total:.1%} ({count:,} of {total:,})"


@dataclass(frozen=True, slots=True)
class _Miss:
    """A need of a message that was not served as well as it could be."""

    judged: Judged
    wanted: str
    serving: frozenset[str]
    rank: int | None

    @property
    def place(self) -> str:
        deepest = len(self.judged.ranked)
        return str(self.rank) if self.rank else f">{deepest}" if deepest >= DEPTHS[-1] else "none"

    @property
    def refused(self) -> bool:
        return not self.judged.selected

    @property
    def badness(self) -> float:
        return math.inf if self.refused or self.rank is None else self.rank


def _tell_the_worst(measured: Measured, retriever: Retriever) -> None:
    misses = [miss for each in measured.needing if (miss := _miss(each))]
    if not misses:
        out("Every message finds what it needs in the first place.")
        return
    # A tool that is not there says nothing about the search: such messages come last.
    misses.sort(key=lambda miss: (not miss.serving & measured.tools.keys(), -miss.badness))
    shown = misses[:WORST]
    of = f" of {len(misses):,}" if len(misses) > len(shown) else ""
    table(
        f"messages whose tool does not come first: the worst {len(shown)}{of}",
        ("#rank", "message → wanted", "in front of it, and why"),
        (
            (
                miss.place,
                f"{_shortened(miss)}\n→ {miss.wanted}",
                _reason(measured, retriever, miss),
            )
            for miss in shown
        ),
        ruled=True,
    )


def _miss(judged: Judged) -> _Miss | None:
    """The worst served need, unless the message's needs take the first places between them."""
    from toolfold.retrieval.judging import ranks

    query = judged.query
    served = zip(query.gold, map(frozenset, query.needs()), ranks(query, judged.ranked), strict=True)
    wanted, serving, rank = max(served, key=lambda each: each[2] or math.inf)
    if judged.selected and rank is not None and rank <= len(query.gold):
        return None
    return _Miss(judged, wanted, serving, rank)


def _shortened(miss: _Miss) -> str:
    text = " ".join(miss.judged.query.text[: _MESSAGE_CHARS * 2].split())
    return text if len(text) <= _MESSAGE_CHARS else f"{text[:_MESSAGE_CHARS]}…"


def _reason(measured: Measured, retriever: Retriever, miss: _Miss) -> str:
    query, lines = miss.judged.query, []
    front = _front(miss)
    if miss.refused and miss.judged.ranked:
        lines.append(f"taken for a message that needs no tool: a tool is {miss.judged.need:.0%} likely")
    if front:
        lines.append(f"behind {listed(front, 2)}")
    there = miss.serving & measured.tools.keys()
    if not there:
        lines.append("not in the catalog")
    elif query.candidates is not None and not there & query.candidates:
        lines.append("not among the message's own candidates")
    else:
        lines += _why_not(measured, retriever, query, there, front[:1])
    return "\n".join(lines)


def _front(miss: _Miss) -> list[str]:
    """What stands before the wanted tool and serves no other need of the message."""
    serving = set().union(*miss.judged.query.needs())
    before = miss.judged.ranked[: miss.rank - 1 if miss.rank else None]
    return [name for name in before if name not in serving]


def _why_not(
    measured: Measured, retriever: Retriever, query: Query, wanted: frozenset[str], first: Sequence[str]
) -> list[str]:
    """Which leg missed it, learnt by asking for it and the tool in front of it alone."""
    mode: Mode = measured.mode
    hits = retriever.find(measured.tools, query.text, mode=mode, limit=DEPTHS[-1], granted={*wanted, *first})
    missed = next((hit for hit in hits if hit.name in wanted), None)
    winner = next((hit for hit in hits if hit.name in first), None)
    told = [f"the message names {winner.name}"] if winner and winner.exact else []
    if mode != "semantic":
        told.append(_words(missed, winner))
    if missed and missed.similarity is not None:
        told.append(_similarity(missed.similarity, winner))
    return told


def _words(missed: Hit | None, winner: Hit | None) -> str:
    has = winner.matched if winner else ()
    if missed is None or not missed.matched:
        return f"no shared words; the first has {listed(has, 5)}" if has else "no shared words"
    more = [word for word in has if word not in missed.matched]
    shares = f"shares {listed(missed.matched, 5)}"
    return f"{shares}; the first also {listed(more, 5)}" if more else shares


def _similarity(similarity: float, winner: Hit | None) -> str:
    said = f"similarity {similarity:.2f}"
    if winner is None or winner.similarity is None:
        return said
    compared = "lower than" if similarity < winner.similarity else "not lower than"
    return f"{said}, {compared} the first's {winner.similarity:.2f}"
