"""Tools that a message calls by name.

A name with an underscore, a hyphen, a digit or a hump in it means the tool wherever it stands. An
everyday word that is also a tool (`process`, `memory`) means the tool only when it is marked: in
backticks, after "use", or before "tool".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from toolfold.model import Tool

LONGEST = 1_000_000
_CANDIDATE = re.compile(r"[^\W_][\w.:/-]{0,199}")
_LATIN = re.compile(r"[A-Za-z0-9][\w.:/-]*", re.A)
_PLAIN = re.compile(r"[^\W\d_]+")
_HUMP = re.compile(r"[a-z0-9][A-Z]")
_MARKED_BEFORE = re.compile(
    r"(?:[`'\"“‘]|\b(?:use|using|call|calling|invoke|invoking|run|via|through)\s+(?:the\s+)?)$", re.I
)
_MARKED_AFTER = re.compile(r"(?:\s+(?:tool|function|command)\b|\()", re.I)
_QUOTED_AFTER = re.compile(r"[`'\"”’]")


class Names:
    """Every way in which the tools of an index may be called by name."""

    def __init__(self, tools: Sequence[Tool | None]) -> None:
        self._places: dict[str, list[int]] = {}
        self._telling: set[str] = set()
        for place, tool in enumerate(tools):
            for name in _spellings(tool) if tool else ():
                folded = name.casefold()
                self._places.setdefault(folded, []).append(place)
                if _is_telling(name):
                    self._telling.add(folded)

    def named_in(self, message: str) -> list[int]:
        """The places of tools the message names, in its order."""
        found: dict[int, None] = {}
        text = message[:LONGEST]
        for match in _CANDIDATE.finditer(text):
            for start, end in _trimmed(match):
                name = text[start:end].casefold()
                if name in self._places and (name in self._telling or _is_marked(text, start, end)):
                    found.update(dict.fromkeys(self._places[name]))
        return list(found)


def _spellings(tool: Tool) -> set[str]:
    """The tool's names, and its own part of a name that begins with its server's."""
    spellings = {tool.name, tool.original_name or tool.name}
    for server in {tool.source.name, tool.toolset.removeprefix("mcp-")} - {""}:
        if server not in tool.name:
            continue
        for prefix in (f"mcp__{server}__", f"mcp_{server}_", f"{server}__", f"{server}_"):
            if tool.name.startswith(prefix) and _is_telling(tool.name[len(prefix) :]):
                spellings.add(tool.name[len(prefix) :])
    return spellings


def _trimmed(match: re.Match[str]) -> Iterator[tuple[int, int]]:
    """The word as it stands, without the punctuation around it, and without a script that has no spaces."""
    yield match.span()
    bare = match.group().rstrip(".:/-_")
    if len(bare) < len(match.group()):
        yield match.start(), match.start() + len(bare)
    if not bare.isascii():
        for part in _LATIN.finditer(bare):
            yield match.start() + part.start(), match.start() + part.end()


def _is_telling(name: str) -> bool:
    """Whether nobody would write this by chance."""
    return not _PLAIN.fullmatch(name) or _HUMP.search(name) is not None


def _is_marked(text: str, start: int, end: int) -> bool:
    before = _MARKED_BEFORE.search(text, max(0, start - 24), start)
    if before is None:
        return _MARKED_AFTER.match(text, end) is not None
    quoted = not before.group()[-1].isspace()
    return not quoted or _QUOTED_AFTER.match(text, end) is not None
