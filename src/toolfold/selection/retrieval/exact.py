"""Find tools that a message mentions by name.

A distinctive name (`create_issue`, `get-event`, `users.list`) counts as a mention wherever it occurs; a
camel-case name (`getUser`) only in that spelling. Any other name, such as an ordinary word (`process`,
`check-in`, `real-time`), a number or an abbreviation (`2026`, `q4`, `e.g.`), counts only if it is marked:
in backticks or quotes, after "use", or before "tool". Authors choose tool names freely, so these rules
prevent a tool from matching every message because its name is a common word, and a server from taking all
hits by giving many tools the same name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from toolfold.core.types import MCP_SOURCE, Tool
from toolfold.selection.retrieval.text import COMMON_WORDS

MAX_MESSAGE_CHARS = 1_000_000
MAX_INCREMENTAL_CHANGES = 256
MAX_NAMESAKES_PER_TOOLSET = 4
"""Number of tools of one toolset that one name can match."""
_CANDIDATE = re.compile(r"[^\W_][\w.:/-]{0,199}")
_LATIN = re.compile(r"[A-Za-z0-9][\w.:/-]*", re.A)
_SEPARATORS = re.compile(r"[\W_]+")
_AMOUNT = re.compile(r"\d+[^\W\d_]*")
_SHORT_CODE = re.compile(r"[^\W\d_]{1,3}\d{1,4}[^\W\d_]{0,2}")
_CAMEL_BOUNDARY = re.compile(r"[a-z0-9][A-Z]")
_MARKED_BEFORE = re.compile(
    r"(?:[`'\"“‘]|\b(?:use|using|call|calling|invoke|invoking|run|via|through)\s+(?:the\s+)?)$", re.I
)
_MARKED_AFTER = re.compile(r"(?:\s+(?:tool|function|command)\b|\()", re.I)
_QUOTED_AFTER = re.compile(r"[`'\"”’]")

# Verbs that begin a tool name: in prose, verb and object are rarely joined.
_COMMAND_VERBS = frozenset(
    """add analyze append archive assign book build cancel change check clear clone close compare compute
    convert copy count create delete deploy describe detect disable download drop edit enable execute export
    extract fetch filter find format generate get import insert inspect install invite invoke list load lock
    lookup make manage merge move open parse patch pause play publish pull push put query read remove rename
    replace reply reset resolve respond restart restore resume retrieve run save scan schedule search select
    send set share show start stop submit subscribe summarize sync toggle track train transfer translate
    trigger update upgrade upload validate verify view watch write""".split()  # noqa: SIM905
)
# Parts of ordinary compound words: check-in, real-time, user-friendly.
_COMPOUND_ENDINGS = frozenset(
    """across again ahead along around aside away back based behind by class com day down driven effective
    efficient end fi fold forward free friendly hoc hour income js known less level like line long made minute
    month net old only org party profit proof quality ready related resolution round scale side sized specific
    style term through tier time together under versa wide wise year
    moi toi tu vous nous je il ils elle ce le la les lui se lo os as lhe""".split()  # noqa: SIM905
)
_COMPOUND_BEGINNINGS = frozenset(
    """ad anti auto best bi brand co cross deep eco eight ex far fast first five four front full half hard
    high inter last long low mid micro mini mono multi must near new next nine non old part pre pro quasi
    re real second self semi seven short six slow soft sub ten third three top tri two ultra un under vice
    wi work year""".split()  # noqa: SIM905
)
_TOOL_NAME_ENDINGS = frozenset("all class day level line many month one style time year".split())  # noqa: SIM905
_COMMON_COMPOUNDS = frozenset(
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
class _NameMatches:
    """Tools that a name in a message can refer to, as positions in the index."""

    marked: Sequence[int]
    """All tools with the name; they match where the message marks the word as a name."""
    anywhere: Sequence[int]
    """Tools with a distinctive name; match everywhere."""
    exact_spelling: Mapping[str, Sequence[int]]
    """Tools that match only this spelling, by spelling."""


class NameIndex:
    """Index of all names by which the tools of a catalog can be mentioned."""

    def __init__(self, tools: Sequence[Tool | None]) -> None:
        self._tools = tools
        self._positions: dict[str, int | list[int]] = {}  # an int saves memory: most names have one tool
        self._matches: dict[str, _NameMatches] = {}
        for position, tool in enumerate(tools):
            for name in _name_spellings(tool) if tool else ():
                self._add_position(position, name)

    def changed(self, tools: Sequence[Tool | None], positions: Collection[int]) -> NameIndex:
        """Return a copy of the name index, updated for the tools at the index positions `positions`."""
        if len(positions) > MAX_INCREMENTAL_CHANGES:
            return NameIndex(tools)
        names = NameIndex(())
        names._tools, names._positions = tools, dict(self._positions)
        for position in positions:
            names._remove_tool(position, self._tools[position] if position < len(self._tools) else None)
        for position in positions:
            names._add_tool(position, tools[position])
        return names

    def _add_position(self, position: int, name: str) -> None:
        folded = name.casefold()
        others = self._positions.setdefault(name if folded == name else folded, position)
        if isinstance(others, list):
            others.append(position)
        elif others != position:
            self._positions[folded] = [others, position]

    def _positions_of(self, name: str) -> Sequence[int]:
        positions = self._positions.get(name, ())
        return (positions,) if isinstance(positions, int) else positions

    def _remove_tool(self, position: int, tool: Tool | None) -> None:
        for name in {name.casefold() for name in _name_spellings(tool)} if tool else ():
            self._positions[name] = [each for each in self._positions_of(name) if each != position]
            if not self._positions[name]:
                del self._positions[name]

    def _add_tool(self, position: int, tool: Tool | None) -> None:
        for name in {name.casefold() for name in _name_spellings(tool)} if tool else ():
            self._positions[name] = sorted([*self._positions_of(name), position])

    def find_named(self, message: str) -> list[int]:
        """Return the index positions of tools named in the message, in order of appearance."""
        found: dict[int, None] = {}
        taken: set[int] = set()  # skips repeated words
        text = message[:MAX_MESSAGE_CHARS]
        for start, end in _candidate_spans(text):
            for positions in self._match_word(text, start, end):
                if id(positions) not in taken:
                    taken.add(id(positions))
                    found.update(dict.fromkeys(positions))
        return list(found)

    def _match_word(self, text: str, start: int, end: int) -> Iterator[Sequence[int]]:
        """Yield lists of index positions of tools whose name is the word at `start:end`."""
        word = text[start:end]
        name = word.casefold()
        if name not in self._positions:
            return
        matches = self._matches.get(name) or self._find_matches(name)
        yield matches.anywhere
        yield matches.exact_spelling.get(word, ())
        if len(matches.anywhere) < len(matches.marked) and _is_marked(text, start, end):
            yield matches.marked

    def _find_matches(self, name: str) -> _NameMatches:
        """Return the tools that a name in a message can refer to, and cache them."""
        positions = list(self._limit_per_toolset(self._positions_of(name), name))
        anywhere: list[int] = []
        exact_spelling: dict[str, list[int]] = {}
        for position, tool in positions:
            spellings = [each for each in _name_spellings(tool) if each.casefold() == name]
            if any(map(_is_distinctive, spellings)):
                anywhere.append(position)
                continue
            for each in filter(_CAMEL_BOUNDARY.search, spellings):
                exact_spelling.setdefault(each, []).append(position)
        return self._matches.setdefault(
            name, _NameMatches([position for position, _ in positions], anywhere, exact_spelling)
        )

    def _limit_per_toolset(self, positions: Iterable[int], name: str) -> Iterator[tuple[int, Tool]]:
        """Yield the tools called `name`, exact matches first, at most MAX_NAMESAKES_PER_TOOLSET per toolset.

        Counting per toolset keeps tools that a session may not use from displacing tools that it may use.
        """
        tools = [(position, tool) for position in positions if (tool := self._tools[position])]
        tools.sort(key=lambda each: (each[1].name.casefold() != name, each[1].name))
        taken: Counter[tuple[str, str]] = Counter()
        for position, tool in tools:
            toolset = (tool.source.name, tool.toolset)
            taken[toolset] += 1
            if taken[toolset] <= MAX_NAMESAKES_PER_TOOLSET:
                yield position, tool


def list_mentions(message: str, limit: int) -> list[str]:
    """Return at most `limit` casefolded parts of a message that may be tool names."""
    text = message[:MAX_MESSAGE_CHARS]
    found: dict[str, None] = {}
    for start, end in _candidate_spans(text):
        found[text[start:end].casefold()] = None
        if len(found) >= limit:
            break
    return list(found)


def list_spellings(tool: Tool) -> list[str]:
    """Return the casefolded names by which a message can mention a tool."""
    return sorted({name.casefold() for name in _name_spellings(tool)})


def _name_spellings(tool: Tool) -> set[str]:
    """Return the tool's names, with and without the server prefix."""
    name = tool.name
    spellings = {name, tool.original_name or name}
    spellings.update(filter(_is_recognizable, (tool.listed_name, tool.alias)))
    for server in (tool.source.name, tool.toolset.removeprefix("mcp-")):
        if (
            server
            and server in name
            and (own := _strip_server_prefix(name, server))
            and _is_recognizable(own)
        ):
            spellings.add(own)
    if tool.source.kind == MCP_SOURCE and _is_recognizable(tool.own_name):
        spellings.add(tool.own_name)
    return spellings


def _strip_server_prefix(name: str, server: str) -> str:
    """Return a tool name without its server prefix; empty if the name has no server prefix."""
    separator = "__" if name.startswith("mcp__") else "_"
    rest = name.removeprefix("mcp" + separator).removeprefix(server)
    own = rest.removeprefix(separator)
    return own if own != rest and not own.startswith("_") else ""


def _candidate_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) spans of a text that may be a tool name."""
    for match in _CANDIDATE.finditer(text):
        yield from _trimmed_spans(match)


def _trimmed_spans(match: re.Match[str]) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) spans within a matched word that may be a tool name.

    These are the whole match, the match without trailing punctuation, and each Latin-script part.
    """
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


def _is_recognizable(name: str) -> bool:
    """Return True if a tool name can be recognised in a message: it is distinctive or in camel case."""
    return _is_distinctive(name) or _CAMEL_BOUNDARY.search(name) is not None


def _is_distinctive(name: str) -> bool:
    """Return True if a tool name is unlikely to occur in a message by chance, in any capitalization."""
    parts = [part for part in _SEPARATORS.split(name.casefold()) if part]
    if all(map(_AMOUNT.fullmatch, parts)):
        return False  # 2026, 24/7, 10am
    if len(parts) == 1:
        return not parts[0].isalpha() and not _SHORT_CODE.fullmatch(parts[0])  # q4, v2, s3, b2b, k8s
    if "_" in name.strip("_"):
        return True
    return "-".join(parts) not in _COMMON_COMPOUNDS and _is_unlikely_compound(parts)


def _is_unlikely_compound(parts: Sequence[str]) -> bool:
    """Return True if a name written as one word is not an ordinary compound word."""
    first, last = parts[0], parts[-1]
    if (
        _is_common_part(last) or last in _COMPOUND_ENDINGS
    ):  # check-in, long-term; but delete-many, get-current-time
        return first in _COMMAND_VERBS and last in _TOOL_NAME_ENDINGS
    if not _COMMAND_VERBS.isdisjoint(parts[:-1]):
        return True  # get-event, add-to-cart, api-delete-a-block
    if len(parts) == 2:
        return not (_is_common_part(first) or first in _COMPOUND_BEGINNINGS or last.endswith(("ed", "ing")))
    uncommon = [part for part in parts if not _is_common_part(part)]
    return len(uncommon) == len(parts) or len(uncommon) > 2  # not text-to-speech, state-of-the-art


def _is_common_part(part: str) -> bool:
    """Return True if a part of a tool name is a single character, a number or a very common word."""
    return len(part) < 2 or part.isdigit() or part in COMMON_WORDS


def _is_marked(text: str, start: int, end: int) -> bool:
    before = _MARKED_BEFORE.search(text, max(0, start - 24), start)
    if before is None:
        return _MARKED_AFTER.match(text, end) is not None
    quoted = not before.group()[-1].isspace()
    return not quoted or _QUOTED_AFTER.match(text, end) is not None
