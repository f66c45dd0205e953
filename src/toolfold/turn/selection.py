"""Showing fewer tools: which of a turn's tools go to the model for this message.

Selection only hides. What it leaves out stays callable by name, because the turn still grants it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from toolfold.retrieval.search import Hit, Mode, Retriever
from toolfold.turn.assembly import Turn


@dataclass(frozen=True, slots=True)
class Selection:
    """A turn that shows the chosen tools, and why they were chosen."""

    turn: Turn
    hits: tuple[Hit, ...]


def select(
    turn: Turn, message: str, retriever: Retriever, *, mode: Mode, top_k: int, pinned: Collection[str]
) -> Selection:
    """The pinned tools, and the `top_k` others that fit the message best."""
    always = {tool.name for tool in turn.tools if tool.name in pinned}
    others = [tool.name for tool in turn.tools if tool.name not in always]
    hits = retriever.find(turn.snapshot, message, mode=mode, limit=top_k, granted=others)
    chosen = always | {hit.name for hit in hits}
    shown = [tool for tool in turn.tools if tool.name in chosen]
    return Selection(replace(turn, tools=shown), tuple(hits))
