"""Simulated services for the tools of the sample catalog, in memory, with the same data at every start.

Every result says that it is sample data. The words in a tool's name decide whether the tool lists, reads,
creates, changes or deletes records; some tools return a fixed answer instead. Nothing leaves the process.
"""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from typing import Any

from toolfold.errors import CallError, shorten
from toolfold.model import Json

MAX_RECORDS = 1_000
"""Maximum number of records of one kind, so that a model in a loop cannot fill the memory."""
MAX_LISTED = 50
SAMPLE_NOTE = "sample data: no real service was used"

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_ID_WORDS = frozenset({"id", "key", "number", "locator"})
_TEXT_ARGUMENTS = frozenset({"query", "text", "q", "qql", "pattern", "keyword", "name_contains"})
_SIZE_ARGUMENTS = frozenset({"limit", "page_size", "per_page", "first", "maxResults"})


class SampleServices:
    """All simulated services of the sample catalog with their records. Thread-safe."""

    def __init__(self) -> None:
        self._services: dict[str, SampleService] | None = None
        self._lock = threading.Lock()

    def call(self, service: str, tool: str, args: Json) -> Json:
        """Run a tool of a simulated service. Raises CallError if a record does not exist."""
        with self._lock:
            if self._services is None:
                self._services = _load_services()
            return {**self._services[service].call(tool, args), "note": SAMPLE_NOTE}


def _load_services() -> dict[str, SampleService]:
    data = json.loads(files("toolfold").joinpath("sample/services.json").read_text("utf-8"))
    actions = {word: action for action, words in data["actions"].items() for word in words.split()}
    return {name: SampleService(actions, **parts) for name, parts in data["services"].items()}


class SampleService:
    """One simulated service: its records by kind, and fixed responses of some tools."""

    def __init__(
        self, actions: Mapping[str, str], *, records: dict[str, list[Json]], answers: dict[str, Json]
    ) -> None:
        """Create a service; `actions` maps words in tool names, such as `get`, to actions."""
        self._actions = actions
        self._records = {kind: {each["id"]: each for each in items} for kind, items in records.items()}
        self._first_kinds = frozenset(records)
        self._answers = answers
        self._created = 0

    def call(self, tool: str, args: Json) -> Json:
        """Run a tool of this service and return its simulated result."""
        if tool in self._answers:
            return copy.deepcopy(self._answers[tool])
        words = [word.lower() for word in _WORD.findall(tool)]
        kind = self._find_kind(words)
        return copy.deepcopy(self._choose_action(words)(kind, args))

    def _choose_action(self, words: list[str]) -> Callable[[str, Json], Json]:
        """Return the action for the words of a tool name: delete, list, read, create or (default) change."""
        named = {self._actions[word] for word in words if word in self._actions}
        actions = {"delete": self._delete, "list": self._list, "read": self._read, "create": self._add}
        return next((action for name, action in actions.items() if name in named), self._change)

    def _find_kind(self, words: list[str]) -> str:
        """Return the kind of record named in a tool name, such as `invoice`; the longest if several match."""
        singular = {_singular(word) for word in words}
        known = [kind for kind in self._records if {_singular(each) for each in kind.split()} <= singular]
        if known:
            return max(known, key=len)
        rest = [word for word in words if word not in self._actions]
        return _singular(rest[-1] if rest else words[-1])

    def _list(self, kind: str, args: Json) -> Json:
        found = [each for each in self._records.get(kind, {}).values() if _matches(each, args)]
        limit = next((value for name, value in args.items() if name in _SIZE_ARGUMENTS), MAX_LISTED)
        return {_plural(kind): found[: min(limit, MAX_LISTED)], "total": len(found)}

    def _read(self, kind: str, args: Json) -> Json:
        record = self._find_record(kind, args, any_id=True)
        if record is None:
            return self._list(kind, {})
        return {kind.replace(" ", "_"): record}

    def _change(self, kind: str, args: Json) -> Json:
        """Change the record whose id is in the arguments; without an id, add the arguments as a record."""
        record = self._find_record(kind, args)
        if record is None:
            return self._add(kind, args)
        record |= {name: value for name, value in args.items() if value != record["id"]}
        return {"changed": record}

    def _delete(self, kind: str, args: Json) -> Json:
        record = self._find_record(kind, args)
        if record is None:
            raise CallError(f"The arguments contain no id of a {kind} in the sample data.{self._hint(kind)}")
        for records in self._records.values():
            if records.get(record["id"]) is record:
                del records[record["id"]]
        return {"removed": record}

    def _add(self, kind: str, args: Json) -> Json:
        records = self._records.setdefault(kind, {})
        if len(records) >= MAX_RECORDS:
            raise CallError(
                f"The sample service has {MAX_RECORDS:,} records of this kind, which is the limit."
            )
        self._created += 1
        record = {"id": f"{kind.replace(' ', '-')}-new-{self._created}", **args}
        records[record["id"]] = record
        return {"created": record}

    def _find_record(self, kind: str, args: Json, *, any_id: bool = False) -> Json | None:
        """Return the record whose id is a value in the arguments; None if the arguments contain no id.

        Raises CallError if an id argument of this kind (with `any_id`, of any kind) matches no record.
        """
        own = self._records.get(kind, {})
        searched = [own] if kind in self._first_kinds else [own, *self._records.values()]
        for name, value in args.items():
            for records in searched:
                if isinstance(value, (str, int)) and str(value) in records:
                    return records[str(value)]
            if _is_id(name, None if any_id else kind) and isinstance(value, str):
                known = self._hint(kind)
                raise CallError(f"There is no {kind} {shorten(value)!r} in the sample data.{known}")
        return None

    def _hint(self, kind: str) -> str:
        ids = list(self._records.get(kind, {}))[:5]
        return f" There is {', '.join(ids)}." if ids else ""


def _matches(record: Json, args: Json) -> bool:
    """Return True if a record matches the arguments: equal field values, and at least one search word."""
    for name, value in args.items():
        if name in _TEXT_ARGUMENTS and isinstance(value, str):
            text = " ".join(_texts(record)).lower()
            words = [word for word in re.findall(r"\w+", value.lower()) if len(word) > 2]
            if words and not any(word in text for word in words):
                return False
        elif name in record and isinstance(value, (str, int)) and record[name] != value:
            return False
    return True


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    else:
        yield str(value)


def _is_id(argument: str, kind: str | None) -> bool:
    """Return True if an argument such as `invoice_id` is an id; with `kind`, an id of that kind."""
    *words, last = [word.lower() for word in _WORD.findall(argument)] or [""]
    return last in _ID_WORDS and (kind is None or set(words) <= set(kind.split()))


def _singular(word: str) -> str:
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _plural(kind: str) -> str:
    name = kind.replace(" ", "_")
    return name[:-1] + "ies" if name.endswith("y") else name if name.endswith("s") else name + "s"
