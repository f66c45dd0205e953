"""Tools that a message calls by name.

A name with an underscore, a hyphen, a digit or a hump in it means the tool wherever it stands. An
everyday word that is also a tool (`process`, `memory`) means the tool only when it is marked: in
backticks, after "use", or before "tool".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from toolfold.model import Tool

LONGEST = 1_000_000
MOST_CHANGES = 256
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
        self._tools = tools
        self._places: dict[str, int | list[int]] = {}  # most are of one tool, and a list each is much
        self._telling: dict[str, bool] = {}
        for place, tool in enumerate(tools):
            for name in _spellings(tool) if tool else ():
                self._add(place, name)

    def changed(self, tools: Sequence[Tool | None], places: Collection[int]) -> Names:
        """The names of these tools, which differ from those here in some places."""
        if len(places) > MOST_CHANGES:
            return Names(tools)
        names = Names(())
        names._tools, names._places = tools, dict(self._places)
        for place in places:
            names._leave(place, self._tools[place] if place < len(self._tools) else None)
        for place in places:
            names._take(place, tools[place])
        return names

    def _add(self, place: int, name: str) -> None:
        folded = name.casefold()
        others = self._places.setdefault(name if folded == name else folded, place)
        if isinstance(others, list):
            others.append(place)
        elif others != place:
            self._places[folded] = [others, place]

    def _at(self, name: str) -> Sequence[int]:
        places = self._places.get(name, ())
        return (places,) if isinstance(places, int) else places

    def _leave(self, place: int, tool: Tool | None) -> None:
        for name in {name.casefold() for name in _spellings(tool)} if tool else ():
            self._places[name] = [each for each in self._at(name) if each != place]
            if not self._places[name]:
                del self._places[name]

    def _take(self, place: int, tool: Tool | None) -> None:
        for name in {name.casefold() for name in _spellings(tool)} if tool else ():
            self._places[name] = sorted([*self._at(name), place])

    def named_in(self, message: str) -> list[int]:
        """The places of tools the message names, in its order."""
        found: dict[int, None] = {}
        text = message[:LONGEST]
        for match in _CANDIDATE.finditer(text):
            for start, end in _trimmed(match):
                name = text[start:end].casefold()
                if name in self._places and (self._tells(name) or _is_marked(text, start, end)):
                    found.update(dict.fromkeys(self._at(name)))
        return list(found)

    def _tells(self, name: str) -> bool:
        """Whether any tool of this name spells it as nobody would by chance."""
        known = self._telling.get(name)
        if known is None:
            tools = filter(None, (self._tools[place] for place in self._at(name)))
            spelled = (each for tool in tools for each in _spellings(tool) if each.casefold() == name)
            known = self._telling[name] = any(map(_is_telling, spelled))
        return known


def _spellings(tool: Tool) -> set[str]:
    """The tool's names, and its own part of a name that begins with its server's."""
    name = tool.name
    spellings = {name, tool.original_name or name}
    for server in (tool.source.name, tool.toolset.removeprefix("mcp-")):
        if server and server in name and (own := _own_part(name, server)) and _is_telling(own):
            spellings.add(own)
    return spellings


def _own_part(name: str, server: str) -> str:
    rest = name.removeprefix("mcp_").removeprefix("_").removeprefix(server)
    return rest.lstrip("_") if rest.startswith("_") else ""


def _trimmed(match: re.Match[str]) -> Iterator[tuple[int, int]]:
    """The word as it stands, without the punctuation around it, and without a script that has no spaces."""
    yield match.span()
    word = match.group()
    if word.isascii() and word.isalnum():
        return
    bare = word.rstrip(".:/-_")
    if len(bare) < len(word):
        yield match.start(), match.start() + len(bare)
    if not bare.isascii():
        for part in _LATIN.finditer(bare):
            yield match.start() + part.start(), match.start() + part.end()


def _is_telling(name: str) -> bool:
    """Whether nobody would write this by chance."""
    return "_" in name or not _PLAIN.fullmatch(name) or _HUMP.search(name) is not None


def _is_marked(text: str, start: int, end: int) -> bool:
    before = _MARKED_BEFORE.search(text, max(0, start - 24), start)
    if before is None:
        return _MARKED_AFTER.match(text, end) is not None
    quoted = not before.group()[-1].isspace()
    return not quoted or _QUOTED_AFTER.match(text, end) is not None
