"""Tools that a message calls by name.

A name that nobody writes by chance (`create_issue`, `get-event`, `users.list`) means the tool wherever it
stands, one that only a hump sets apart (`getUser`) where it is written with that hump. Anything else, an
everyday word (`process`, `check-in`, `real-time`), a number or a figure of speech (`2026`, `q4`, `e.g.`),
means the tool only when it is marked: in backticks, after "use", or before "tool". Names are their authors'
to choose, so none can take over a conversation by being a word of every message, nor a server by giving many
tools one name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from toolfold.model import MCP_SOURCE, Tool
from toolfold.retrieval.text import COMMON

LONGEST = 1_000_000
MOST_CHANGES = 256
MOST_NAMESAKES = 4
"""How many tools of one toolset a word can name."""
_CANDIDATE = re.compile(r"[^\W_][\w.:/-]{0,199}")
_LATIN = re.compile(r"[A-Za-z0-9][\w.:/-]*", re.A)
_APART = re.compile(r"[\W_]+")
_AMOUNT = re.compile(r"\d+[^\W\d_]*")
_SHORT_CODE = re.compile(r"[^\W\d_]{1,3}\d{1,4}[^\W\d_]{0,2}")
_HUMP = re.compile(r"[a-z0-9][A-Z]")
_MARKED_BEFORE = re.compile(
    r"(?:[`'\"“‘]|\b(?:use|using|call|calling|invoke|invoking|run|via|through)\s+(?:the\s+)?)$", re.I
)
_MARKED_AFTER = re.compile(r"(?:\s+(?:tool|function|command)\b|\()", re.I)
_QUOTED_AFTER = re.compile(r"[`'\"”’]")

# How tools are named and people do not write: an order, then what it is about.
_ORDERS = frozenset(
    """add analyze append archive assign book build cancel change check clear clone close compare compute
    convert copy count create delete deploy describe detect disable download drop edit enable execute export
    extract fetch filter find format generate get import insert inspect install invite invoke list load lock
    lookup make manage merge move open parse patch pause play publish pull push put query read remove rename
    replace reply reset resolve respond restart restore resume retrieve run save scan schedule search select
    send set share show start stop submit subscribe summarize sync toggle track train transfer translate
    trigger update upgrade upload validate verify view watch write""".split()  # noqa: SIM905
)
# What joins an order or another word to one that everybody writes: check-in, real-time, user-friendly.
_JOINED_LAST = frozenset(
    """across again ahead along around aside away back based behind by class com day down driven effective
    efficient end fi fold forward free friendly hoc hour income js known less level like line long made minute
    month net old only org party profit proof quality ready related resolution round scale side sized specific
    style term through tier time together under versa wide wise year
    moi toi tu vous nous je il ils elle ce le la les lui se lo os as lhe""".split()  # noqa: SIM905
)
_JOINED_FIRST = frozenset(
    """ad anti auto best bi brand co cross deep eco eight ex far fast first five four front full half hard
    high inter last long low mid micro mini mono multi must near new next nine non old part pre pro quasi
    re real second self semi seven short six slow soft sub ten third three top tri two ultra un under vice
    wi work year""".split()  # noqa: SIM905
)
_LAST_OF_A_TOOL = frozenset("all class day level line many month one style time year".split())  # noqa: SIM905
_SAYINGS = frozenset(
    {
        "check-list",
        "copy-paste",
        "open-source",
        "post-mortem",
        "read-write",
        "run-time",
        "set-top",
        "stop-gap",
    }
)


@dataclass(frozen=True, slots=True)
class _Called:
    """The tools that one word may mean."""

    marked: Sequence[int]
    """Where it is marked: all of them."""
    anywhere: Sequence[int]
    spelled: Mapping[str, Sequence[int]]
    """Where it is written in just this way."""


class Names:
    """Every way in which the tools of an index may be called by name."""

    def __init__(self, tools: Sequence[Tool | None]) -> None:
        self._tools = tools
        self._places: dict[str, int | list[int]] = {}  # most are of one tool, and a list each is much
        self._called: dict[str, _Called] = {}
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
        taken: set[int] = set()  # a word that comes again says nothing new
        text = message[:LONGEST]
        for start, end in _words(text):
            for places in self._meant(text, start, end):
                if id(places) not in taken:
                    taken.add(id(places))
                    found.update(dict.fromkeys(places))
        return list(found)

    def _meant(self, text: str, start: int, end: int) -> Iterator[Sequence[int]]:
        """Whom this word means, in up to three ways."""
        written = text[start:end]
        name = written.casefold()
        if name not in self._places:
            return
        called = self._called.get(name) or self._calling(name)
        yield called.anywhere
        yield called.spelled.get(written, ())
        if len(called.anywhere) < len(called.marked) and _is_marked(text, start, end):
            yield called.marked

    def _calling(self, name: str) -> _Called:
        """Which tools this name means. Each is judged by its own spelling, whatever the others are called."""
        places = list(self._few_of_each_set(self._at(name), name))
        anywhere: list[int] = []
        spelled: dict[str, list[int]] = {}
        for place, tool in places:
            spellings = [each for each in _spellings(tool) if each.casefold() == name]
            if any(map(_is_telling, spellings)):
                anywhere.append(place)
                continue
            for each in filter(_HUMP.search, spellings):
                spelled.setdefault(each, []).append(place)
        return self._called.setdefault(name, _Called([place for place, _ in places], anywhere, spelled))

    def _few_of_each_set(self, places: Iterable[int], name: str) -> Iterator[tuple[int, Tool]]:
        """Those of just this name, then in the order of their names, wherever they stand in the index.

        Counted by toolset: one that a session may not see takes no room from one that it may.
        """
        tools = [(place, tool) for place in places if (tool := self._tools[place])]
        tools.sort(key=lambda each: (each[1].name.casefold() != name, each[1].name))
        taken: Counter[tuple[str, str]] = Counter()
        for place, tool in tools:
            whose = (tool.source.name, tool.toolset)
            taken[whose] += 1
            if taken[whose] <= MOST_NAMESAKES:
                yield place, tool


def _spellings(tool: Tool) -> set[str]:
    """The tool's names, and its own part of a name that begins with its server's."""
    name = tool.name
    spellings = {name, tool.original_name or name}
    for server in (tool.source.name, tool.toolset.removeprefix("mcp-")):
        if server and server in name and (own := _own_part(name, server)) and _sets_apart(own):
            spellings.add(own)
    if tool.source.kind == MCP_SOURCE and _sets_apart(tool.own_name):
        spellings.add(tool.own_name)
    return spellings


def _own_part(name: str, server: str) -> str:
    """What follows the server's name and one separator: there may be many tools that differ in more."""
    separator = "__" if name.startswith("mcp__") else "_"
    rest = name.removeprefix("mcp" + separator).removeprefix(server)
    own = rest.removeprefix(separator)
    return own if own != rest and not own.startswith("_") else ""


def _words(text: str) -> Iterator[tuple[int, int]]:
    """Where there may be a name."""
    for match in _CANDIDATE.finditer(text):
        yield from _trimmed(match)


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


def _sets_apart(name: str) -> bool:
    return _is_telling(name) or _HUMP.search(name) is not None


def _is_telling(name: str) -> bool:
    """Whether nobody would write this by chance, in capitals or not."""
    parts = [part for part in _APART.split(name.casefold()) if part]
    if all(map(_AMOUNT.fullmatch, parts)):
        return False  # 2026, 24/7, 10am
    if len(parts) == 1:
        return not parts[0].isalpha() and not _SHORT_CODE.fullmatch(parts[0])  # q4, v2, s3, b2b, k8s
    if "_" in name.strip("_"):
        return True
    return "-".join(parts) not in _SAYINGS and _is_no_compound(parts)


def _is_no_compound(parts: Sequence[str]) -> bool:
    """Whether words that are joined, by anything but an underscore, are not such that people join."""
    first, last = parts[0], parts[-1]
    if _is_usual(last) or last in _JOINED_LAST:  # check-in, long-term; but delete-many, get-current-time
        return first in _ORDERS and last in _LAST_OF_A_TOOL
    if not _ORDERS.isdisjoint(parts[:-1]):
        return True  # get-event, add-to-cart, api-delete-a-block
    if len(parts) == 2:
        return not (_is_usual(first) or first in _JOINED_FIRST or last.endswith(("ed", "ing")))
    telling = [part for part in parts if not _is_usual(part)]
    return len(telling) == len(parts) or len(telling) > 2  # not text-to-speech, state-of-the-art


def _is_usual(part: str) -> bool:
    """Whether half of all compound words have such a part."""
    return len(part) < 2 or part.isdigit() or part in COMMON


def _is_marked(text: str, start: int, end: int) -> bool:
    before = _MARKED_BEFORE.search(text, max(0, start - 24), start)
    if before is None:
        return _MARKED_AFTER.match(text, end) is not None
    quoted = not before.group()[-1].isspace()
    return not quoted or _QUOTED_AFTER.match(text, end) is not None
