"""Tools for measurements of scale: real definitions first, then variants of them.

Variant number n of a tool is the tool of a similar product. Where the name and the description have a noun
in common, it is replaced in both by the noun of another domain (`list_tickets` → `list_invoices`). The name
starts with a product (`clinic3_…`), the description ends with a sentence about it, and the tool belongs to
the product's server, together with the variants of the other tools of its server. Parameters are those of the
real tool and share its memory. No random numbers are used: the same real tools always have the same variants.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from toolfold.core.types import Source, Tool
from toolfold.tools.catalog import load_catalog

ACTIONS = (
    "list", "read", "create", "update", "archive", "export", "share", "tag", "approve", "cancel", "assign",
    "compare", "convert", "schedule", "verify", "restore", "merge", "publish", "translate", "summarize",
)  # fmt: skip
OBJECTS = (
    "invoice", "parcel", "ticket", "report", "meeting", "branch", "photo", "order", "contract", "payment",
    "customer", "employee", "shipment", "sensor", "recipe", "playlist", "flight", "hotel", "policy", "claim",
    "dashboard", "database", "container", "certificate", "campaign", "survey", "lesson", "exam", "patient",
    "prescription", "vehicle", "route", "warehouse", "budget", "forecast", "article", "comment", "channel",
    "subscription", "refund",
)  # fmt: skip
PLACES = (
    "bank", "shop", "clinic", "school", "airline", "library", "factory", "city", "farm", "studio", "museum",
    "port", "lab", "agency", "union",
)  # fmt: skip
MAX_NAME_CHARS = 64
MIN_NOUN_CHARS = 4
_VERBS = frozenset((
    *ACTIONS, "delete", "remove", "search", "find", "fetch", "send", "show", "count", "describe", "insert",
    "patch", "start", "stop", "check", "calculate", "generate", "with", "from", "into", "this", "that",
))  # fmt: skip
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NOUN = "\0"


def load_tools(catalog: Path, size: int | None = None) -> dict[str, Tool]:
    """Return the tools of a catalog file by name; with `size`, so many: fewer, or variants of them, too."""
    real = load_catalog(catalog)[:size]
    tools = {tool.name: tool for tool in real}
    if size is None:
        return tools
    for tool in make_variants(real):
        if len(tools) >= size:
            break
        name = _find_free_name(tool.name, tools)
        tools[name] = tool if name == tool.name else replace(tool, name=name)
    return tools


def make_variants(real: Sequence[Tool]) -> Iterator[Tool]:
    """Yield an endless series of variants: the first one of each tool, then the second one of each …"""
    templates = [_find_noun(tool) for tool in real]
    servers = {name: number for number, name in enumerate(dict.fromkeys(tool.server for tool in real))}
    for edition in itertools.count(1):
        sources = {  # the tools of a server stay together
            name: Source("catalog", f"{name}-{PLACES[(number + edition) % len(PLACES)]}{edition}")
            for name, number in servers.items()
        }
        for number, (tool, (name, description)) in enumerate(zip(real, templates, strict=True)):
            thing = OBJECTS[(7 * number + 11 * edition) % len(OBJECTS)]
            place = PLACES[(servers[tool.server] + edition) % len(PLACES)]
            source = sources[tool.server]
            yield replace(
                tool,
                name=f"{place}{edition}_{name.replace(_NOUN, thing)}"[:MAX_NAME_CHARS],
                original_name="",
                description=f"{description.replace(_NOUN, thing)} In the {place} system, edition {edition}.",
                toolset=f"mcp-{source.name}",
                source=source,
            )


def _find_noun(tool: Tool) -> tuple[str, str]:
    """Return name and description of a tool with a mark in place of the noun that they have in common."""
    found = {word.lower().removesuffix("s") for word in _WORDS.findall(tool.name)}
    words = sorted(found, key=lambda word: (len(word), word))  # the order of a set differs between processes
    text = tool.description.lower()
    for word in reversed(words):
        if len(word) >= MIN_NOUN_CHARS and word not in _VERBS and word in text:
            pattern = re.compile(re.escape(word), re.IGNORECASE)
            return pattern.sub(_NOUN, tool.name), pattern.sub(_NOUN, tool.description)
    return tool.name, tool.description


def _find_free_name(name: str, taken: dict[str, Tool]) -> str:
    """Return a name that no tool has, by adding a number if necessary."""
    if name not in taken:
        return name
    return next(
        free
        for number in itertools.count(2)
        if (free := f"{name[: MAX_NAME_CHARS - 8]}_{number}") not in taken
    )
