"""Convert the annotations of an MCP tool (`destructiveHint` …) to effects.

Annotations are hints, not facts: they count if they make a tool look worse; if they make it look better,
only for servers that the configuration trusts. That distinction is made when a call is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolfold.core.types import Effect

__all__ = ["effects_of_annotations"]


def effects_of_annotations(annotations: Mapping[str, Any] | None) -> frozenset[Effect]:
    """Return the effects that a tool's annotations declare; the worse of two contradicting hints applies.

    As the protocol defines, a tool that only says it is not read-only may be destructive. A tool without
    annotations has declared nothing.
    """
    hints = {name: value for name, value in (annotations or {}).items() if isinstance(value, bool)}
    is_read_only = hints.get("readOnlyHint")
    is_destructive = hints.get("destructiveHint", is_read_only is False)
    effects: set[Effect] = set()
    if is_destructive:
        effects |= {Effect.WRITE, Effect.DESTRUCTIVE}
    elif is_read_only:
        effects.add(Effect.READ)
    elif "destructiveHint" in hints:
        effects.add(Effect.WRITE)
    if hints.get("openWorldHint"):
        effects.add(Effect.NETWORK)
    return frozenset(effects)
