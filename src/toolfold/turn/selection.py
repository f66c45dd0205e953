"""Showing fewer tools: which of a turn's tools go to the model for this message.

Selection only hides. What it leaves out stays callable by name, because the turn still grants it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace

from toolfold.retrieval.bm25 import Bm25, Hit
from toolfold.turn.assembly import Turn

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Selection:
    """A turn that shows the chosen tools, and why they were chosen."""

    turn: Turn
    hits: tuple[Hit, ...]


def select(turn: Turn, message: str, *, top_k: int, pinned: Collection[str]) -> Selection:
    """The core and the pinned tools, and the `top_k` others that best match the message."""
    always = {tool.name for tool in turn.tools if tool.core or tool.name in pinned}
    hits = tuple(Bm25(tool for tool in turn.tools if tool.name not in always).rank(message, top_k))
    chosen = always | {hit.name for hit in hits}
    shown = [tool for tool in turn.tools if tool.name in chosen]
    return Selection(replace(turn, tools=shown), hits)
