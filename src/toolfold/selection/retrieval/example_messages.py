"""Example messages for tools: typical user messages for which a tool is needed.

They come from the phrasebook that ships with the package and from `toolfold enrich`, and are added only to
the tools in the search index. A record belongs to a definition, not to a server: it is found by a checksum of
the tool's name and description or, after small changes of the description, by a sketch of its words.

A tool must not be able to promote itself by its messages. `check_messages` rejects messages that name other
tools or contain instructions; `message_vectors` limits how far messages can move a tool's vector.
"""

from __future__ import annotations

import hashlib
import re
import threading
import unicodedata
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from toolfold.core.types import Json, Tool
from toolfold.core.untrusted_text import PassageFinder, find_nothing
from toolfold.selection.retrieval.document import clean_text
from toolfold.selection.retrieval.exact import NameIndex

MAX_MESSAGES = 8
"""Messages per tool."""
MIN_MESSAGE_CHARS, MAX_MESSAGE_CHARS = 4, 240
MAX_MESSAGE_WORDS = 45
MIN_SKETCH_SIMILARITY = 0.5
"""Estimated share of common words from which a changed description counts as a new version."""
MIN_DESCRIPTION_WORDS = 3
"""A shorter description says too little: a record then applies to the tool of the same server only."""
MIN_DEFINITION_SIMILARITY = 0.1
"""Least similarity of a message to the definition of its tool.

Of the phrasebook's English messages, 2% are below, and 72% of the pairs of a message and another tool.
"""
MAX_OTHER_LEAD = 0.15
"""How much more similar a message may be to another tool's definition than to that of its own tool.

Of messages written for the sample catalog, 4% exceed it, of messages of other tools 92%.
"""


@dataclass(frozen=True, slots=True)
class MessageFit:
    """Fit of an example message: similarity to its own tool's definition and to the closest other tool's."""

    own: float
    """Similarity to the definition of the tool, from -1 to 1."""
    best_other: float = -1.0
    other: str = ""
    """Name of the other tool whose definition is most similar to the message."""

    @property
    def problem(self) -> str:
        """Return why a message is rejected as an example message for its tool; empty if it is accepted."""
        if self.own < MIN_DEFINITION_SIMILARITY:
            return "it does not fit the tool's definition"
        if self.best_other - self.own > MAX_OTHER_LEAD:
            return f"it fits the definition of {self.other} better"
        return ""


MeasureFit = Callable[[Tool, Sequence[str]], Sequence[MessageFit]]
"""Returns how well each message fits a tool's definition."""
_MAX_SKETCH_CHARS = 2_000
_SKETCH_BYTES = 32
_CHECKSUM_BYTES = 12
_PREFIX_MARK, _PREFIX_SEPARATORS = "__", "_-.:/"
_WORD = re.compile(r"[^\W_]+")
_UNCLEAN = re.compile(r"[<`*#|\]]|\s\s|^\s|\s$")
_INSTRUCTIONS = re.compile(
    r"\b(?:ignore|disregard|forget|override)\s+(?:\w+\s+){0,2}(?:instructions?|rules?|prompts?|messages?|tools?)\b"
    r"|\b(?:always|never|only|must|should)\s+(?:use|call|choose|select|prefer|pick|invoke|rank)\b"
    r"|\b(?:use|call|choose|select|prefer|pick|invoke)\s+(?:this|the\s+following)\s+(?:tool|function)\b"
    r"|\b(?:instead\s+of|rather\s+than)\s+(?:any|every|all|the)\s+other\s+(?:tools?|functions?|servers?)\b"
    r"|\b(?:for|to)\s+(?:any|every|all)\s+(?:messages?|requests?|questions?|user\s+messages?)\b"
    r"|\b(?:system\s+prompt|as\s+an?\s+(?:ai|assistant|language\s+model))\b|<\/?[a-z_]+>|\{\{",
    re.IGNORECASE,
)


_INSTRUCTIONS_PROBLEM = "it contains instructions for a model"


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """Example messages of one tool definition and their author, stored as one line of JSON."""

    server: str
    tool: str
    """The author's name of the tool, without the prefix of its server."""
    checksum: str
    sketch: str
    messages: tuple[str, ...]
    model: str = ""
    """The model that wrote the messages; empty in the phrasebook."""
    date: str = ""

    @classmethod
    def of(cls, tool: Tool, messages: Iterable[str], *, model: str = "", date: str = "") -> MessageRecord:
        """Create a record of example messages for a tool."""
        return cls(
            server=tool.server,
            tool=tool.own_name,
            checksum=definition_checksum(tool.own_name, tool.description),
            sketch=description_sketch(tool.description).hex(),
            messages=tuple(messages)[:MAX_MESSAGES],
            model=model,
            date=date,
        )

    @classmethod
    def parse(cls, row: Any) -> MessageRecord:
        """Parse a record of example messages from a JSON object. Raises ValueError if it is invalid."""
        if not isinstance(row, dict):
            raise ValueError("each line of the file of example messages must be a JSON object")
        texts = {key: row.get(key, "") for key in ("server", "tool", "checksum", "sketch", "model", "date")}
        if not all(isinstance(text, str) and len(text) <= 1_000 for text in texts.values()):
            raise ValueError(f"{', '.join(texts)} must be short texts")
        if not re.fullmatch(r"[0-9a-f]{24}", texts["checksum"]):
            raise ValueError("the field `checksum` must have 24 hexadecimal digits")
        if not re.fullmatch(r"[0-9a-f]{64}", texts["sketch"]):
            raise ValueError("the field `sketch` must have 64 hexadecimal digits")
        messages = row.get("messages")
        if not isinstance(messages, list) or not all(isinstance(each, str) for each in messages):
            raise ValueError("`messages` must be a list of strings")
        cleaned = [clean_message(each) for each in messages[:MAX_MESSAGES]]
        return cls(**texts, messages=tuple(dict.fromkeys(each for each in cleaned if _has_valid_size(each))))

    def to_json(self) -> Json:
        """Return the record of example messages as a JSON object without empty values."""
        return {key: value for key, value in asdict(self).items() if value}


def definition_checksum(name: str, description: str) -> str:
    """Return a hash of a tool's name and description, ignoring white space."""
    text = f"{name}\n{' '.join(description.split())}"
    digest = hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=_CHECKSUM_BYTES)
    return digest.hexdigest()


def description_sketch(description: str) -> bytes:
    """Return a MinHash of the words of a description.

    The share of equal bytes in two of them estimates how many words two descriptions have in common.
    """
    hashes = [
        hashlib.blake2b(word.encode("utf-8", "backslashreplace"), digest_size=2 * _SKETCH_BYTES).digest()
        for word in _description_words(description)
    ]
    if not hashes:
        return bytes(_SKETCH_BYTES)
    table = np.frombuffer(b"".join(hashes), "<u2").reshape(-1, _SKETCH_BYTES)
    return bytes((table.min(0) & 0xFF).tolist())


def sketch_similarity(one: bytes, other: bytes) -> float:
    """Return the estimated share of words that two descriptions have in common, from 0 to 1."""
    return sum(a == b for a, b in zip(one, other, strict=True)) / _SKETCH_BYTES


def _description_words(description: str) -> set[str]:
    return set(_WORD.findall(description[:_MAX_SKETCH_CHARS].casefold()))


class MessageCatalog:
    """Catalog in which the example messages for a tool's definition can be looked up."""

    def __init__(self, records: Iterable[MessageRecord]) -> None:
        self._by_checksum: dict[str, list[MessageRecord]] = defaultdict(list)
        self._by_name: dict[str, list[MessageRecord]] = defaultdict(list)
        for record in records:
            self._by_checksum[record.checksum].append(record)
            self._by_name[record.tool].append(record)

    def find(self, tool: Tool) -> MessageRecord | None:
        """Return the example messages written for a tool's definition, or for a similar version of it."""
        found = (self._find_named(tool, name) for name in _names_without_prefix(tool))
        return next((record for record in found if record), None)

    def _find_named(self, tool: Tool, name: str) -> MessageRecord | None:
        """Return the example messages written for a tool with this name and a similar description."""
        named = self._by_name.get(name)
        if not named:
            return None
        exact = self._by_checksum.get(definition_checksum(name, tool.description), ())
        own = [record for record in (*exact, *named) if record.server == tool.server]
        if len(_description_words(tool.description)) < MIN_DESCRIPTION_WORDS:
            return next((record for record in exact if record in own), None)
        if exact:
            return next((record for record in exact if record in own), exact[0])
        sketch = description_sketch(tool.description)
        similar = [(sketch_similarity(sketch, bytes.fromhex(record.sketch)), record) for record in named]
        score, best = max(similar, key=lambda each: (each[0], each[1].server == tool.server))
        return best if score >= MIN_SKETCH_SIMILARITY else None


def _names_without_prefix(tool: Tool) -> Iterable[str]:
    """Return the tool's name on its server, and that name without a prefix such as `github__`.

    Catalog files and gateways often put the server's name before that of the tool.
    """
    names = [tool.own_name]
    if _has_prefix(tool.own_name, tool.server):
        names.append(tool.own_name[len(tool.server) :].lstrip(_PREFIX_SEPARATORS))
    return dict.fromkeys((*names, tool.own_name.rpartition(_PREFIX_MARK)[2]))


def _has_prefix(name: str, server: str) -> bool:
    return name.startswith(server) and name[len(server) :].startswith(tuple(_PREFIX_SEPARATORS))


class MessageSource:
    """Interface of a source of example messages; `version` changes whenever the messages change."""

    def version(self) -> object:
        """Return a value that changes with the example messages. Must be fast: every search calls it."""
        return None

    def load(self) -> Iterable[MessageRecord]:
        """Return the example messages of this source, one record per tool definition."""
        return ()


class ExampleMessages:
    """Example messages for the tools in the search index, from several sources in order of priority."""

    def __init__(self, *sources: MessageSource) -> None:
        self._sources = sources
        self._lock = threading.Lock()
        self._version: object = None
        self._catalogs: tuple[MessageCatalog, ...] = ()
        self._added: weakref.WeakKeyDictionary[Tool, Tool] = weakref.WeakKeyDictionary()
        self._current: tuple[Sequence[Tool], Sequence[Tool]] | None = None

    def find(self, tool: Tool) -> MessageRecord | None:
        """Return the record of a tool's example messages and their author; None if there is none."""
        with self._lock:
            self._reload_if_changed()
            return self._find_record(tool)

    def list_records(self, tool: Tool) -> list[MessageRecord]:
        """Return the example messages for a tool from all sources, starting with those that searches use."""
        with self._lock:
            self._reload_if_changed()
            used = self._find_record(tool)
            found = (catalog.find(tool) for catalog in self._catalogs)
            others = [record for record in found if record and record.messages and record is not used]
            return [used, *others] if used else others

    def add_messages(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Return the tools with their example messages added.

        Cached: equal input objects give the same output objects until the messages change.
        """
        if not self._sources:
            return tools
        with self._lock:
            self._reload_if_changed()
            if self._current is None or self._current[0] is not tools:
                self._current = (tools, tuple(map(self._add_to_tool, tools)))
            return self._current[1]

    def _reload_if_changed(self) -> None:
        version = tuple(source.version() for source in self._sources)
        if version != self._version:
            self._version, self._current = version, None
            self._catalogs = tuple(MessageCatalog(source.load()) for source in self._sources)
            self._added.clear()

    def _find_record(self, tool: Tool) -> MessageRecord | None:
        """Return a tool's example messages from the first source with an exact match, else with any match.

        Otherwise a message stored for one server would replace the shipped ones for exactly this definition.
        """
        found = (catalog.find(tool) for catalog in self._catalogs)
        records = [record for record in found if record and record.messages]
        return next((each for each in records if _is_certain(each, tool)), next(iter(records), None))

    def _add_to_tool(self, tool: Tool) -> Tool:
        added = self._added.get(tool)
        if added is None:
            record = self._find_record(tool)
            # The author's own messages count for nothing if others wrote some: those were checked.
            added = replace(tool, messages=record.messages) if record else tool
            if added is not tool:
                self._added[tool] = added
        return added


def _is_certain(record: MessageRecord, tool: Tool) -> bool:
    """Return True if example messages were written for exactly this tool's server or definition."""
    checksums = {definition_checksum(name, tool.description) for name in _names_without_prefix(tool)}
    return record.server == tool.server or record.checksum in checksums


@dataclass(frozen=True, slots=True)
class CheckedMessages:
    """Accepted example messages for a tool, and rejected messages with the reasons."""

    accepted: tuple[str, ...]
    rejected: Mapping[str, str]


class MessageChecker:
    """Checks example messages that a model wrote for the tools of a catalog."""

    def __init__(
        self,
        tools: Sequence[Tool | None],
        find_instructions: PassageFinder = find_nothing,
        measure_fit: MeasureFit | None = None,
        *,
        names: NameIndex | None = None,
    ) -> None:
        """Create a checker; `find_instructions` finds text in messages that gives a model instructions.

        `measure_fit` tells how well messages fit the tools' definitions; without it that is not checked.
        `names` is the index of the tools' names, if the caller has one.
        """
        self._tools, self._names = tuple(tools), names or NameIndex(tools)
        self._find_instructions, self._measure_fit = find_instructions, measure_fit

    def check(self, tool: Tool, messages: Iterable[str]) -> CheckedMessages:
        """Return the acceptable example messages for a tool, without duplicates."""
        accepted: dict[str, str] = {}
        rejected: dict[str, str] = {}
        for message in messages:
            text = clean_message(message)
            if problem := self.find_problem(tool, text, message):
                rejected[text[:MAX_MESSAGE_CHARS]] = problem
            else:
                accepted.setdefault(text.casefold(), text)
        messages = tuple(accepted.values())[:MAX_MESSAGES]
        unfitting = self._find_unfitting(tool, messages)
        fitting = tuple(text for text in messages if text not in unfitting)
        return CheckedMessages(fitting, rejected | unfitting)

    def _find_unfitting(self, tool: Tool, messages: tuple[str, ...]) -> dict[str, str]:
        """Return the messages that do not fit the tool's definition, with reasons; all if most do not fit."""
        if self._measure_fit is None or not messages:
            return {}
        fits = zip(messages, self._measure_fit(tool, messages), strict=True)
        unfitting = {text: fit.problem for text, fit in fits if fit.problem}
        if 2 * len(unfitting) <= len(messages):
            return unfitting
        return dict.fromkeys(messages, "most of the tool's messages do not fit its definition") | unfitting

    def find_problem(self, tool: Tool, text: str, raw: str) -> str:
        """Return why a message is rejected as an example message for a tool; empty if it is accepted.

        `raw` is the message before it was cleaned.
        """
        if problem := find_text_problem(text, raw):
            return problem
        if self._find_instructions(text):
            return _INSTRUCTIONS_PROBLEM
        named = (self._tools[position] for position in self._names.find_named(text))
        other = next((each.name for each in named if each and each.own_name != tool.own_name), "")
        return f"it names the tool {other}" if other else ""


def find_text_problem(text: str, raw: str = "") -> str:
    """Return why a text cannot be an example message; empty if it can. `raw` is the uncleaned text."""
    if not _has_valid_size(text):
        return f"it must have {MIN_MESSAGE_CHARS} to {MAX_MESSAGE_CHARS} characters"
    if len(text.split()) > MAX_MESSAGE_WORDS:
        return f"it has more than {MAX_MESSAGE_WORDS} words"
    return _INSTRUCTIONS_PROBLEM if _INSTRUCTIONS.search((raw or text)[: 4 * MAX_MESSAGE_CHARS]) else ""


def clean_message(message: str) -> str:
    """Return a message as one line of normalised text without control characters and markup."""
    if message.isprintable() and not _UNCLEAN.search(message) and unicodedata.is_normalized("NFC", message):
        return message  # nearly all messages of the phrasebook, which is read at the first search
    return clean_text(unicodedata.normalize("NFC", message[: 4 * MAX_MESSAGE_CHARS]))


def _has_valid_size(text: str) -> bool:
    return MIN_MESSAGE_CHARS <= len(text) <= MAX_MESSAGE_CHARS
