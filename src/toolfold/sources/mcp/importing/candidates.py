"""Which of the servers that were found are new, and under which name each would be ours.

The same server in two programs is one. Two different servers of one name keep it apart by their program.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from toolfold.config.servers import McpServerSettings, parse_server_settings
from toolfold.sources.mcp.importing.types import ClientConfigFile, ImportedServer

MAX_NAME_LENGTH = 40


@dataclass(frozen=True, slots=True)
class ImportCandidate:
    """A server that could be taken over."""

    name: str
    server: ImportedServer
    duplicate_sources: tuple[ClientConfigFile, ...] = ()
    """Where the same was found again."""
    is_known: bool = False
    """Whether it stands in our settings already, word for word."""


def build_candidates(
    found: Iterable[ImportedServer], known: Mapping[str, McpServerSettings]
) -> tuple[ImportCandidate, ...]:
    """What was found, each once, in its order; `known` are the servers there are."""
    chosen: dict[tuple[str, str], ImportCandidate] = {}
    for each in found:
        server, name = parse_server_settings(each.settings), normalise_server_name(each.name)
        same = name, server.model_dump_json()
        if same in chosen:
            twin = chosen[same]
            chosen[same] = replace(twin, duplicate_sources=(*twin.duplicate_sources, each.source))
        elif known.get(name) == server:
            chosen[same] = ImportCandidate(name, each, is_known=True)
        else:
            taken = {*known, *(candidate.name for candidate in chosen.values())}
            chosen[same] = ImportCandidate(_choose_free_name(name, each.source, taken), each)
    return tuple(chosen.values())


def normalise_server_name(text: str) -> str:
    """A name that a server can have here. Dots would part a key of the settings in two."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", plain).strip("-_")[:MAX_NAME_LENGTH].strip("-_")
    return name or "server"


def _choose_free_name(name: str, place: ClientConfigFile, taken: set[str]) -> str:
    """The name, or the name with that of its program, or with a number."""
    folded = {each.casefold() for each in taken}
    named = [
        name,
        _append_suffix(name, place.client_name),
        *(_append_suffix(name, f"{place.client_name}-{n}") for n in range(2, 1_000)),
    ]
    return next(each for each in named if each.casefold() not in folded)


def _append_suffix(name: str, ending: str) -> str:
    return f"{name[: MAX_NAME_LENGTH - len(ending) - 1].rstrip('-_')}-{ending}"
