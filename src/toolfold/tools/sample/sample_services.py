"""Simulated services for the tools of the sample catalog: one consistent world in memory.

The same calls always give the same results, apart from the dates. Every result says that it is sample data;
nothing leaves the process. `sample/services.json` has the records of each service and what its tools do with
them.
"""

from __future__ import annotations

import copy
import datetime
import json
import re
import threading
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

from toolfold.core.errors import CallError
from toolfold.core.types import Json
from toolfold.tools.sample.actions import ACTIONS, READING_ACTIONS
from toolfold.tools.sample.queries import NOW
from toolfold.tools.sample.sample_records import SampleCall, ServiceRecords, ToolRules

SAMPLE_NOTE = "sample data: no real service was used"

_DRY_RUN = frozenset({"dry_run", "simulate"})
_DATE = re.compile(r"(?<!\d)(\d{4})-(\d{2})(?:-(\d{2}))?(?!\d)")


class SampleServices:
    """All simulated services of the sample catalog with their records. Thread-safe.

    `today` is the current date for callers, who see every date of the sample data moved accordingly. By
    default it is the date of the sample data.
    """

    def __init__(self, today: datetime.date | None = None) -> None:
        self._services: dict[str, SampleService] | None = None
        self._own_today = datetime.date.fromisoformat(NOW[:10])
        self._today = today or self._own_today
        self._lock = threading.Lock()

    def call(self, service: str, tool: str, args: Json) -> Json:
        """Run a tool of a simulated service. Raises CallError if a record does not exist."""
        with self._lock:
            own_args = _move_dates(args, self._today, self._own_today)
            try:
                result = self._load()[service].call(tool, own_args)
            except CallError as error:
                message = _move_dates(str(error), self._own_today, self._today)
                raise CallError(message, **error.details) from None
            return {**_move_dates(result, self._own_today, self._today), "note": SAMPLE_NOTE}

    def is_read_only(self, service: str, tool: str) -> bool:
        """Return True if a tool of a simulated service changes nothing."""
        with self._lock:
            return self._load()[service].is_read_only(tool)

    def _load(self) -> dict[str, SampleService]:
        if self._services is None:
            self._services = _load_services()
        return self._services


def _move_dates(value: Any, old: datetime.date, new: datetime.date) -> Any:
    """Return JSON data with each date and month moved as far as the new date is from the old one."""
    if old == new:
        return value
    if isinstance(value, dict):
        return {key: _move_dates(each, old, new) for key, each in value.items()}
    if isinstance(value, list):
        return [_move_dates(each, old, new) for each in value]

    def move(found: re.Match[str]) -> str:
        year, month, day = found.groups()
        try:
            if day:
                return str(datetime.date.fromisoformat(found[0]) + (new - old))
            months = (int(year) + new.year - old.year) * 12 + int(month) - 1 + new.month - old.month
            return str(datetime.date(months // 12, months % 12 + 1, 1))[:7]
        except (ValueError, OverflowError):  # digits that are not a date
            return found[0]

    return _DATE.sub(move, value) if isinstance(value, str) else value


def _load_services() -> dict[str, SampleService]:
    data = json.loads(files("toolfold").joinpath("tools/sample/services.json").read_text("utf-8"))
    return {name: SampleService(data["options"].split(), **parts) for name, parts in data["services"].items()}


class SampleService:
    """One simulated service: its records by kind, and what each of its tools does with them."""

    def __init__(
        self,
        options: Iterable[str],
        *,
        ids: Mapping[str, str],
        refs: Mapping[str, str],
        records: Mapping[str, list[Json]],
        tools: Mapping[str, str],
        answers: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
        groups: Mapping[str, str] | None = None,
        first: int = 100,
    ) -> None:
        """Create a service from its part of the data; `first` is the number of the first new record.

        `groups` names arguments that accept a group of records, such as a room, and the field with the group.
        """
        by_id = {kind: {str(each["id"]): each for each in items} for kind, items in records.items()}
        self.data = ServiceRecords(by_id, refs, ids, frozenset(options), first)
        self._tools = {name: ToolRules.parse(line) for name, line in tools.items()}
        self._answers, self._defaults, self._groups = answers or {}, defaults or {}, groups or {}

    def call(self, tool: str, args: Json) -> Json:
        """Run a tool of this service and return its simulated result."""
        rules, args = self._tools[tool], self._expand_groups(args)
        call = SampleCall(self.data, rules, args | self._find_defaults(rules, args), self._answers.get(tool))
        if any(args.get(each) for each in _DRY_RUN):
            call.data = copy.deepcopy(self.data)
        call.check_references()
        result = copy.deepcopy(ACTIONS[rules.action](call))
        return {"dry_run": True, **result} if call.data is not self.data else result

    def is_read_only(self, tool: str) -> bool:
        """Return True if a tool changes no record."""
        return self._tools[tool].action in READING_ACTIONS

    def _expand_groups(self, args: Json) -> Json:
        """Return arguments with each group replaced by those of its records that have a field of the call."""
        for name in self._groups.keys() & args.keys():
            records = self.data.records[self.data.refs[name]]
            members = {
                each: [
                    key
                    for key, record in records.items()
                    if record.get(self._groups[name]) == each and args.keys() & record.keys()
                ]
                for each in args[name]
            }
            args = args | {name: [key for each, found in members.items() for key in found or [each]]}
        return args

    def _find_defaults(self, rules: ToolRules, args: Json) -> Json:
        """Return default values for a call that names no record, such as the signed-in employee."""
        known = self.data.shapes.get(rules.kind, {}) if rules.action in ("list", "add") else {}
        return {
            name: value
            for name, value in self._defaults.items()
            if name not in args and (name in known or self.data.refs.get(name) == rules.kind)
        }
