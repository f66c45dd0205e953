"""What a server offers, as plain data: its tools as it lists them, bounded and read without trust.

A server's answer is foreign. What has no usable name is left out and told of; what is too large is
refused; nothing here decides whether a tool is shown. Knows no connection and no registry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolfold.errors import shorten
from toolfold.model import FrozenDict, Json, encodable, freeze

MOST_TOOLS = 5_000
LARGEST_TOOL = 200_000  # characters of JSON: as much as is looked through
LONGEST_NAME = 512
DEEPEST = 64

_EMPTY: FrozenDict = FrozenDict({"type": "object", "properties": FrozenDict()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One tool, as its server describes it."""

    name: str
    title: str = ""
    description: str = ""
    input_schema: FrozenDict = field(default_factory=lambda: _EMPTY)
    output_schema: FrozenDict | None = None
    annotations: FrozenDict = field(default_factory=FrozenDict)
    fingerprint: str = field(init=False, repr=False, compare=False)
    """The same for the same words and schemas, whatever the order of keys and the spelling of numbers.

    Worked out once: it is looked at in every listing and before every call.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "fingerprint", self._digest())

    def plain(self) -> Json:
        """As it would stand in a `tools/list` answer."""
        said: Json = {"name": self.name, "description": self.description, "inputSchema": self.input_schema}
        if self.title:
            said["title"] = self.title
        if self.output_schema is not None:
            said["outputSchema"] = self.output_schema
        if self.annotations:
            said["annotations"] = self.annotations
        return said

    def _digest(self) -> str:
        return "sha256:" + hashlib.sha256(canonical_json(self.plain()).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All that a server said of itself."""

    offers: tuple[Offer, ...] = ()
    instructions: str = ""
    has_resources: bool = False
    """Whether it lists a resource or a template of resources; to declare that it can is not enough."""
    has_prompts: bool = False
    protocol: str = ""
    version: str = ""
    """Its own name and version, as it gives them."""
    problems: tuple[str, ...] = ()
    """What was wrong with the answer, for people."""


def read_offers(tools: Iterable[Mapping[str, Any]]) -> tuple[tuple[Offer, ...], tuple[str, ...]]:
    """The tools of a `tools/list` answer, and what is wrong with those that are left out.

    Of two with one name the first counts: a second cannot take its place.
    """
    offers: dict[str, Offer] = {}
    problems: list[str] = []
    for place, tool in enumerate(tools, 1):
        if len(offers) >= MOST_TOOLS:
            problems.append(f"it lists more than {MOST_TOOLS:,} tools; the rest is left out")
            break
        try:
            offer = read_offer(tool)
        except ValueError as error:
            problems.append(f"the tool {place} of its list is left out: {error}")
            continue
        if offer.name in offers:
            problems.append(f"it lists {shorten(offer.name, 80)!r} twice; only the first is used")
        else:
            offers[offer.name] = offer
    return tuple(offers.values()), tuple(problems)


def read_offer(tool: Mapping[str, Any]) -> Offer:
    """One tool. Raises ValueError with the reason why it cannot be used."""
    name = tool.get("name") if isinstance(tool, Mapping) else None
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME:
        raise ValueError("it has no usable name")
    name = encodable(name)
    said = shorten(name, 80)
    if is_deeper_than(tool, DEEPEST):
        raise ValueError(f"{said!r} is nested deeper than {DEEPEST} levels")
    try:
        size = len(json.dumps(tool))
        schema = tool.get("inputSchema")
        if schema is not None and not isinstance(schema, Mapping):
            raise ValueError(f"{said!r} has an inputSchema that is no object")
        offer = Offer(
            name=name,
            title=_text(tool.get("title")) or _text((tool.get("annotations") or {}).get("title")),
            description=_text(tool.get("description")),
            input_schema=_schema(schema),
            output_schema=_schema(out) if isinstance(out := tool.get("outputSchema"), Mapping) else None,
            annotations=freeze(dict(tool.get("annotations") or {})),
        )
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{said!r} cannot be read: {error}") from None
    if size > LARGEST_TOOL:
        raise ValueError(f"{said!r} is larger than {LARGEST_TOOL:,} characters")
    return offer


def _schema(schema: Mapping[str, Any] | None) -> FrozenDict:
    frozen: FrozenDict = freeze(dict(schema or _EMPTY))
    return frozen if frozen.get("type") == "object" else FrozenDict({**frozen, "type": "object"})


def canonical_json(value: Any) -> str:
    """Write a JSON value in one way, whatever the order of its keys and the spelling of its numbers."""
    return json.dumps(_spelled_once(value), sort_keys=True, ensure_ascii=True, separators=(",", ":"))


def _spelled_once(value: Any) -> Any:
    """With each number written one way: JSON knows no difference between 1, 1.0 and 1e0."""
    if isinstance(value, Mapping):
        return {key: _spelled_once(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_spelled_once(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _text(value: Any) -> str:
    return encodable(value) if isinstance(value, str) else ""


def is_deeper_than(value: Any, most: int) -> bool:
    """Whether a JSON value is nested deeper than this."""
    level: list[Any] = [value]
    for _ in range(most):
        level = [
            inner
            for each in level
            if isinstance(each, (Mapping, list, tuple))
            for inner in (each.values() if isinstance(each, Mapping) else each)
        ]
        if not level:
            return False
    return True
