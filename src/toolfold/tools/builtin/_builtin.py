"""Build built-in tools: they are never deferred, and mention other tools only where those can be called.

A description mentions another tool in a placeholder, `{NAME? text}` or `{NAME? text | other text}`. The text
is shown if the turn has the tool NAME, and the other text or nothing if not.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from toolfold.core.authoring import build_tool
from toolfold.core.types import Adapt, Definition, Json, Tool

_MENTION = re.compile(r"\{(\w+)\?([^{}|]*)(?:\|([^{}|]*))?\}")
_NO_TOOLS: frozenset[str] = frozenset()


def build_builtin_tool(*, schema: Json, **fields: Any) -> Tool:
    """Build a tool that is never deferred, from the arguments of `build_tool`.

    Without other tools, the placeholders in the descriptions of the schema are left out.
    """
    plain = _resolve_mentions(schema, _NO_TOOLS)
    adapt = None if plain == schema else _make_adapt(schema)
    return build_tool(schema=plain, core=True, adapt=adapt, **fields)


def _make_adapt(schema: Json) -> Adapt:
    def adapt(definition: Definition, present: frozenset[str]) -> Definition:
        return {**definition, "function": {**definition["function"], **_resolve_mentions(schema, present)}}

    return adapt


def _resolve_mentions(value: Any, present: Collection[str]) -> Any:
    """Return a part of a schema in which the placeholders of all descriptions are resolved."""
    if isinstance(value, list):
        return [_resolve_mentions(each, present) for each in value]
    if not isinstance(value, dict):
        return value
    resolved = {}
    for key, each in value.items():
        if key == "description" and isinstance(each, str):
            text = _MENTION.sub(lambda found: found[2 if found[1] in present else 3] or "", each)
            if text := text.strip():
                resolved[key] = text
        else:
            resolved[key] = _resolve_mentions(each, present)
    return resolved
