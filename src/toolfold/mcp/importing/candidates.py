"""Select the servers that can be imported and give each server a unique name.

Identical servers of two clients become one; different servers with the same name get the client's name added.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from toolfold.config.servers_settings import McpServerSettings, parse_server_settings
from toolfold.mcp.importing.import_types import ClientConfigFile, ImportedServer

MAX_NAME_LENGTH = 40


@dataclass(frozen=True, slots=True)
class ImportCandidate:
    """An MCP server that could be imported, with the name it would get."""

    name: str
    server: ImportedServer
    duplicate_sources: tuple[ClientConfigFile, ...] = ()
    """Other files that contain the same server."""
    is_known: bool = False
    """True if the same server is already configured."""


def build_candidates(
    servers: Iterable[ImportedServer], known: Mapping[str, McpServerSettings]
) -> tuple[ImportCandidate, ...]:
    """Return one import candidate per distinct server; `known` are the servers already configured."""
    chosen: dict[tuple[str, str], ImportCandidate] = {}
    for imported in servers:
        server, name = parse_server_settings(imported.settings), normalise_server_name(imported.name)
        key = name, server.model_dump_json()
        if key in chosen:
            first = chosen[key]
            chosen[key] = replace(first, duplicate_sources=(*first.duplicate_sources, imported.source))
        elif known.get(name) == server:
            chosen[key] = ImportCandidate(name, imported, is_known=True)
        else:
            taken = {*known, *(candidate.name for candidate in chosen.values())}
            chosen[key] = ImportCandidate(_choose_free_name(name, imported.source, taken), imported)
    return tuple(chosen.values())


def normalise_server_name(text: str) -> str:
    """Return a valid server name; dots are replaced because they separate configuration keys."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", plain).strip("-_")[:MAX_NAME_LENGTH].strip("-_")
    return name or "server"


def _choose_free_name(name: str, source: ClientConfigFile, taken: set[str]) -> str:
    """Return the name if it is free; otherwise append the client's name and, if necessary, a number."""
    folded = {each.casefold() for each in taken}
    options = [
        name,
        _append_suffix(name, source.client_name),
        *(_append_suffix(name, f"{source.client_name}-{n}") for n in range(2, 1_000)),
    ]
    return next(option for option in options if option.casefold() not in folded)


def _append_suffix(name: str, suffix: str) -> str:
    return f"{name[: MAX_NAME_LENGTH - len(suffix) - 1].rstrip('-_')}-{suffix}"
