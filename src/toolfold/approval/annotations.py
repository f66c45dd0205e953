"""What an MCP server says of its own tools, as effects.

Hints, not facts: they are heard where they make a tool look worse; where they make it look better, only
servers that the configuration trusts are believed. That difference is made where a call is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolfold.model import Effect

__all__ = ["effects_of_annotations"]


def effects_of_annotations(annotations: Mapping[str, Any] | None) -> frozenset[Effect]:
    """The effects that a tool's annotations declare; of contradicting hints, the worse one.

    As the protocol has it, a tool that says it does not only read, and no more, may destroy. One that says
    nothing at all has declared nothing.
    """
    hints = {name: value for name, value in (annotations or {}).items() if isinstance(value, bool)}
    reads = hints.get("readOnlyHint")
    destroys = hints.get("destructiveHint", reads is False)
    found: set[Effect] = set()
    if destroys:
        found |= {Effect.WRITE, Effect.DESTRUCTIVE}
    elif reads:
        found.add(Effect.READ)
    elif "destructiveHint" in hints:
        found.add(Effect.WRITE)
    if hints.get("openWorldHint"):
        found.add(Effect.NETWORK)
    return frozenset(found)
