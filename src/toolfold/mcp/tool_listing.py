"""Parse and limit the tools that an MCP server lists, before they are trusted.

Tools without a usable name and tools that exceed a limit are left out and reported. Does not decide whether a
tool may be used. Knows no connection and no registry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolfold.core.errors import shorten
from toolfold.core.types import FrozenDict, Json, freeze, make_encodable

MAX_LISTED_TOOLS = 5_000
MAX_TOOL_CHARS = 200_000  # of JSON: the scan limit
MAX_TOOL_NAME_CHARS = 512
MAX_SCHEMA_DEPTH = 64

_EMPTY_SCHEMA: FrozenDict = FrozenDict({"type": "object", "properties": FrozenDict()})


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTool:
    """One tool as described by its MCP server."""

    name: str
    title: str = ""
    description: str = ""
    input_schema: FrozenDict = field(default_factory=lambda: _EMPTY_SCHEMA)
    output_schema: FrozenDict | None = None
    annotations: FrozenDict = field(default_factory=FrozenDict)
    fingerprint: str = field(init=False, repr=False, compare=False)
    """Hash of texts and schemas, independent of the order of keys and the notation of numbers.

    Computed once: it is compared for every listing and before every call.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "fingerprint", self._compute_fingerprint())

    def to_json(self) -> Json:
        """Return the tool as an entry of a `tools/list` result."""
        plain: Json = {"name": self.name, "description": self.description, "inputSchema": self.input_schema}
        if self.title:
            plain["title"] = self.title
        if self.output_schema is not None:
            plain["outputSchema"] = self.output_schema
        if self.annotations:
            plain["annotations"] = self.annotations
        return plain

    def _compute_fingerprint(self) -> str:
        return "sha256:" + hashlib.sha256(canonical_json(self.to_json()).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Listing of an MCP server: its tools, instructions and capabilities."""

    tools: tuple[ListedTool, ...] = ()
    instructions: str = ""
    has_resources: bool = False
    """True if the server lists a resource or a template; declaring the capability is not enough."""
    has_prompts: bool = False
    protocol: str = ""
    version: str = ""
    """Name and version of the server, as it reports them."""
    problems: tuple[str, ...] = ()
    """Problems found in the list, for display."""


def parse_tools(tools: Iterable[Mapping[str, Any]]) -> tuple[tuple[ListedTool, ...], tuple[str, ...]]:
    """Parse a `tools/list` result; return the valid tools, and a description of each problem found.

    If two tools have the same name, the first is used.
    """
    parsed: dict[str, ListedTool] = {}
    problems: list[str] = []
    for position, tool in enumerate(tools, 1):
        if len(parsed) >= MAX_LISTED_TOOLS:
            problems.append(f"it lists more than {MAX_LISTED_TOOLS:,} tools; the rest is dropped")
            break
        try:
            listed = parse_tool(tool)
        except ValueError as error:
            problems.append(f"the tool {position} of its list is dropped: {error}")
            continue
        if listed.name in parsed:
            problems.append(f"it lists {shorten(listed.name, 80)!r} twice; only the first is used")
        else:
            parsed[listed.name] = listed
    return tuple(parsed.values()), tuple(problems)


def parse_tool(tool: Mapping[str, Any]) -> ListedTool:
    """Parse one tool of a server. Raises ValueError with the reason if it cannot be used."""
    name = tool.get("name") if isinstance(tool, Mapping) else None
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_TOOL_NAME_CHARS:
        raise ValueError("it has no usable name")
    name = make_encodable(name)
    label = shorten(name, 80)
    if is_deeper_than(tool, MAX_SCHEMA_DEPTH):
        raise ValueError(f"{label!r} is nested deeper than {MAX_SCHEMA_DEPTH} levels")
    try:
        size = len(json.dumps(tool))
        schema = tool.get("inputSchema")
        if schema is not None and not isinstance(schema, Mapping):
            raise ValueError(f"{label!r} has an inputSchema that is not an object")
        listed = ListedTool(
            name=name,
            title=_text_or_empty(tool.get("title"))
            or _text_or_empty((tool.get("annotations") or {}).get("title")),
            description=_text_or_empty(tool.get("description")),
            input_schema=_freeze_schema(schema),
            output_schema=_freeze_schema(out)
            if isinstance(out := tool.get("outputSchema"), Mapping)
            else None,
            annotations=freeze(dict(tool.get("annotations") or {})),
        )
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{label!r} cannot be parsed: {error}") from None
    if size > MAX_TOOL_CHARS:
        raise ValueError(f"{label!r} is larger than {MAX_TOOL_CHARS:,} characters")
    return listed


def _freeze_schema(schema: Mapping[str, Any] | None) -> FrozenDict:
    frozen: FrozenDict = freeze(dict(schema or _EMPTY_SCHEMA))
    return frozen if frozen.get("type") == "object" else FrozenDict({**frozen, "type": "object"})


def canonical_json(value: Any) -> str:
    """Serialize a JSON value independently of key order and number notation."""
    return json.dumps(_normalize_numbers(value), sort_keys=True, ensure_ascii=True, separators=(",", ":"))


def _normalize_numbers(value: Any) -> Any:
    """Convert integral floats to int, because 1, 1.0 and 1e0 are the same number in JSON."""
    if isinstance(value, Mapping):
        return {key: _normalize_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_normalize_numbers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _text_or_empty(value: Any) -> str:
    return make_encodable(value) if isinstance(value, str) else ""


def is_deeper_than(value: Any, max_depth: int) -> bool:
    """Return True if a JSON value is nested deeper than `max_depth`."""
    level: list[Any] = [value]
    for _ in range(max_depth):
        level = [
            inner
            for each in level
            if isinstance(each, (Mapping, list, tuple))
            for inner in (each.values() if isinstance(each, Mapping) else each)
        ]
        if not level:
            return False
    return True
