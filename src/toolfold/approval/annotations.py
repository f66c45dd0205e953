"""Convert the annotations of an MCP tool to effects.

Annotations are hints, not facts: they count if they make a tool look worse; if they make it look better,
only for servers that the configuration trusts. That distinction is made when a call is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolfold.model import Effect

__all__ = ["effects_of_annotations"]


def effects_of_annotations(annotations: Mapping[str, Any] | None) -> frozenset[Effect]:
    """Return the effects that annotations declare; of contradicting hints, the worse one.

    As the protocol defines, a tool that only says it is not read-only may be destructive. A tool without
    annotations has declared nothing.
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
