"""Register tools, detect name collisions, and provide immutable snapshots.

`Registry` takes changes; a `Snapshot` maps names to tools, has a generation number and never changes. Knows
nothing of scope, availability or models.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from toolfold.core.authoring import ToolLike, as_tool, build_tool
from toolfold.core.errors import InvalidTool, NameTaken, ReservedName
from toolfold.core.invisible_characters import clean_schema, remove_invisible
from toolfold.core.naming import is_accepted, is_reserved, short_names
from toolfold.core.types import Tool

log = logging.getLogger(__name__)


class Snapshot(Mapping[str, Tool]):
    """All tools registered at one moment. Immutable, so that threads and sessions can share it."""

    def __init__(self, tools: Mapping[str, Tool], generation: int) -> None:
        self._tools = tools
        self._generation = generation

    @property
    def generation(self) -> int:
        """Return a number that increases with every change of the registry."""
        return self._generation

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def find(self, name: str) -> Tool | None:
        """Return the tool registered under a name; without one, the latest tool with this original name."""
        return self._tools.get(name) or next(reversed(self._by_other_name.get(name, ())), None)

    def named(self, name: str) -> Sequence[Tool]:
        """Return the tools with this name: the one registered under it, then others originally named so."""
        others = self._by_other_name.get(name, ())
        real = self._tools.get(name)
        return others if real is None else [real, *(tool for tool in others if tool is not real)]

    @functools.cached_property
    def _by_other_name(self) -> dict[str, list[Tool]]:
        tools: dict[str, list[Tool]] = {}
        for tool in self._tools.values():
            for name in tool.names[1:]:
                tools.setdefault(name, []).append(tool)
        return tools

    @functools.cached_property
    def ordered(self) -> tuple[Tool, ...]:
        """Return all tools sorted by name, so that the registration order does not change the prompt."""
        return tuple(self._tools[name] for name in sorted(self._tools))

    @functools.cached_property
    def agent_level(self) -> frozenset[str]:
        """Return the names of the tools that the agent itself runs, such as `todo`."""
        return frozenset(name for name, tool in self._tools.items() if tool.agent_level)

    @functools.cached_property
    def toolsets(self) -> Mapping[str, frozenset[str]]:
        """Return the names of the registered tools by toolset."""
        members: dict[str, set[str]] = {}
        for name, tool in self._tools.items():
            members.setdefault(tool.toolset, set()).add(name)
        return MappingProxyType({toolset: frozenset(names) for toolset, names in members.items()})


class Registry:
    """Registers tools from any thread and returns snapshots."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tools: dict[str, Tool] = {}
        self._generation = 0
        self._snapshot = Snapshot({}, 0)
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change, in the thread that made it; it must return quickly."""
        self._listeners.append(listener)

    def register(self, *, override: bool = True, **definition: Any) -> Tool:
        """Register a tool from name, schema and handler; see `toolfold.core.authoring.build_tool`."""
        return self.add(build_tool(**definition), override=override)

    def add(self, tool: ToolLike, *, override: bool = True) -> Tool:
        """Register a tool and return it with its registered name."""
        value = _clean_text(as_tool(tool))
        with self._changing():
            placement = _place_tool(self._tools, value, override)
            self._generation += 1
        _warn_replaced(placement)
        return placement.tool

    def add_all(self, tools: Iterable[ToolLike], *, override: bool = True) -> list[Tool]:
        """Register all of the tools, or none if one is rejected."""
        values = [
            _clean_text(as_tool(tool)) for tool in tools
        ]  # before the lock, because the caller's code runs here
        with self._changing():
            return self._replace_tools(dict(self._tools), values, override)

    def remove(self, name: str) -> bool:
        """Remove a tool by its registered or original name; return False if it does not exist."""
        with self._changing():
            found = self._tools.pop(name, None) or self._tools.pop(
                _find_short_name(self._tools, name) or "", None
            )
            self._generation += found is not None
            return found is not None

    def replace_toolset(self, toolset: str, tools: Iterable[Tool]) -> list[Tool]:
        """Replace all tools of a toolset by the given tools, atomically."""
        values = [_clean_text(as_tool(tool)) for tool in tools]
        with self._changing():
            others = {name: tool for name, tool in self._tools.items() if tool.toolset != toolset}
            return self._replace_tools(others, values, override=True)

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the current tools; the same object until the tools change."""
        with self._lock:
            if self._snapshot.generation != self._generation:
                self._snapshot = Snapshot(MappingProxyType(dict(self._tools)), self._generation)
            return self._snapshot

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock during a change, and call the listeners afterwards if the tools are others."""
        with self._lock:
            before = self._generation
            yield
            changed = self._generation != before
        for listener in self._listeners if changed else ():
            listener()

    def _replace_tools(self, tools: dict[str, Tool], added: Iterable[Tool], override: bool) -> list[Tool]:
        """Add tools to a mapping, and atomically make this mapping the content of the registry."""
        placements = [_place_tool(tools, tool, override) for tool in added]
        if tools != self._tools:
            self._tools = tools
            self._generation += 1
        for each in placements:
            _warn_replaced(each)
        return [each.tool for each in placements]


@dataclass(frozen=True, slots=True)
class _Placement:
    """A newly registered tool with its final name, and the tool that it replaced, if any."""

    tool: Tool
    replaced: Tool | None


def _clean_text(tool: Tool) -> Tool:
    """Return the tool without invisible characters in its texts.

    A model would read them, but a person would not see them.
    """
    description, parameters = remove_invisible(tool.description), clean_schema(tool.parameters)
    if description == tool.description and parameters is tool.parameters:
        return tool
    return replace(tool, description=description, parameters=parameters)


def _place_tool(tools: dict[str, Tool], tool: Tool, override: bool) -> _Placement:
    named = _with_accepted_name(tools, tool)
    current = tools.get(named.name)
    replaced = current if current and _tool_identity(current) != _tool_identity(named) else None
    if replaced and not override:
        raise NameTaken(named.name, replaced.toolset)
    tools[named.name] = named
    return _Placement(named, replaced)


def _tool_identity(tool: Tool) -> tuple[str, str]:
    """Return the toolset and original name, which identify later versions of the same tool."""
    return tool.toolset, tool.original_name


def _warn_replaced(placement: _Placement) -> None:
    tool, replaced = placement.tool, placement.replaced
    if replaced:
        log.warning(
            "tool %r of toolset %r (%s) replaces the tool of the same name of toolset %r (%s)",
            *(tool.name, tool.toolset, tool.source, replaced.toolset, replaced.source),
        )


def _with_accepted_name(tools: Mapping[str, Tool], tool: Tool) -> Tool:
    """Return the tool with a unique name that all providers accept."""
    original = tool.original_name or tool.name
    if not isinstance(original, str) or not original.strip():
        raise InvalidTool("a tool needs a name")
    if any(is_reserved(name) for name in {original, tool.name}):
        raise ReservedName(original)
    if is_accepted(tool.name):
        return tool
    for name in short_names(original):
        if name not in tools or tools[name].original_name == original:
            return replace(tool, name=name, original_name=original)
    raise InvalidTool(f"no short form of {original!r} is free")


def _find_short_name(tools: Mapping[str, Tool], original: str) -> str | None:
    """Return the registered short name of a tool with this original name; None if there is none."""
    held = (name for name in short_names(original) if name in tools)
    return next((name for name in held if tools[name].original_name == original), None)
