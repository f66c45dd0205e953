"""Which of the servers that were found are new, and under which name each would be ours.

The same server in two programs is one. Two different servers of one name keep it apart by their program.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from toolfold.config.servers import McpServer, usable
from toolfold.sources.mcp.importing.found import Found, Place

LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class Candidate:
    """A server that could be taken over."""

    name: str
    found: Found
    also: tuple[Place, ...] = ()
    """Where the same was found again."""
    is_known: bool = False
    """Whether it stands in our settings already, word for word."""


def candidates(found: Iterable[Found], known: Mapping[str, McpServer]) -> tuple[Candidate, ...]:
    """What was found, each once, in its order; `known` are the servers there are."""
    chosen: dict[tuple[str, str], Candidate] = {}
    for each in found:
        server, name = usable(each.settings), own_name(each.name)
        same = name, server.model_dump_json()
        if same in chosen:
            twin = chosen[same]
            chosen[same] = replace(twin, also=(*twin.also, each.place))
        elif known.get(name) == server:
            chosen[same] = Candidate(name, each, is_known=True)
        else:
            taken = {*known, *(candidate.name for candidate in chosen.values())}
            chosen[same] = Candidate(_free(name, each.place, taken), each)
    return tuple(chosen.values())


def own_name(text: str) -> str:
    """A name that a server can have here. Dots would part a key of the settings in two."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", plain).strip("-_")[:LONGEST_NAME].strip("-_")
    return name or "server"


def _free(name: str, place: Place, taken: set[str]) -> str:
    """The name, or the name with that of its program, or with a number."""
    folded = {each.casefold() for each in taken}
    named = [name, _with(name, place.client), *(_with(name, f"{place.client}-{n}") for n in range(2, 1_000))]
    return next(each for each in named if each.casefold() not in folded)


def _with(name: str, ending: str) -> str:
    return f"{name[: LONGEST_NAME - len(ending) - 1].rstrip('-_')}-{ending}"
