"""Records of the sample services, and what the arguments of a call mean for them.

`sample/services.json` has one line for each tool, such as `list event from<end to>start`: an action, a kind
of record, and the meaning of each argument.

    arg:field      the argument filters or sets this field (an argument without a rule: the field of its name)
    arg<=field     filters: the argument is at most the field; also >= < >
    arg~field      filters: the field (`*`: any field) has these words; arg*field: matches a pattern with %
    arg?field      filters: if the argument is true, the field must be true; arg|field: unless it is true
    arg!field      filters: unless the argument is true, the field must not be true
    arg%field      filters: the field is as true as the argument, which is false by default
    arg$field      filters by a query, arg&field by a label selector, arg#field by conditions
    arg+=field     adds to a list, arg-=field removes from it
    arg/field:a:b  sets the field to a if the argument is true, otherwise to b
    field=value    sets the field; for lists, the field must have this value (@now, @today: the current time)
    -arg           has no effect; +kind adds related records; ^field sorts by a field (^-field: descending)
    @kind          a new record gets the fields of the named record of this kind
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolfold.core.errors import CallError, shorten
from toolfold.core.types import Json
from toolfold.tools.sample.queries import (
    COMPARISONS,
    NOW,
    IssueQuery,
    compare,
    contains_words,
    equals,
    get_texts,
    matches_condition,
    matches_labels,
    matches_pattern,
    matches_text,
)

MAX_RECORDS = 1_000
"""Maximum number of records of one kind, so that a model in a loop cannot fill the memory."""

_RULE = re.compile(r"([\w.-]+?)(<=|>=|\+=|-=|[:~<>=?!%$&#|*/])(.+)")


@dataclass(frozen=True, slots=True)
class ToolRules:
    """What a tool of a sample service does: its line in the data, parsed."""

    action: str
    kind: str = ""
    arguments: tuple[tuple[str, str, str], ...] = ()
    """Argument, operator and field."""
    constants: tuple[tuple[str, Any], ...] = ()
    ignored: frozenset[str] = frozenset()
    related: tuple[str, ...] = ()
    copied: str = ""
    """Kind of a named record whose fields a new record gets."""
    order: str = ""
    words: tuple[str, ...] = ()
    """Words without an operator: for `total` the fields to group by and to sum."""

    @classmethod
    def parse(cls, line: str) -> ToolRules:
        """Parse the line of a tool."""
        action, *rest = line.split()
        parts: dict[str, list[Any]] = {each: [] for each in ("arguments", "constants", "ignored", "related")}
        words, copied, order = [], "", ""
        for token in rest[1:]:
            rule = _RULE.fullmatch(token)
            if token[0] in "-+^@":
                if token[0] in "-+":
                    parts["ignored" if token[0] == "-" else "related"].append(token[1:])
                copied, order = (
                    token[1:] if token[0] == "@" else copied,
                    token[1:] if token[0] == "^" else order,
                )
            elif rule and rule[2] == "=":
                parts["constants"].append((rule[1], _parse_constant(rule[3])))
            elif rule:
                parts["arguments"].append((rule[1], rule[2], rule[3]))
            else:
                words.append(token)
        return cls(
            action,
            rest[0] if rest else "",
            tuple(parts["arguments"]),
            tuple(parts["constants"]),
            frozenset(parts["ignored"]),
            tuple(parts["related"]),
            copied,
            order,
            tuple(words),
        )


@dataclass
class ServiceRecords:
    """The records of one sample service, and what its argument names refer to."""

    records: dict[str, dict[str, Json]]
    refs: Mapping[str, str]
    """Kind of record that an argument names by its id."""
    ids: Mapping[str, str]
    """Templates of the ids of new records."""
    options: frozenset[str]
    """Arguments that change only how a result is shown."""
    next_number: int
    shapes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """An example value of each field, by kind."""
    mirrors: dict[str, list[str]] = field(default_factory=dict)
    """Fields that repeat the id of their record, by kind."""

    def __post_init__(self) -> None:
        for kind, items in self.records.items():
            rows = list(items.values())
            self.shapes[kind] = {name: value for row in rows for name, value in row.items()}
            self.mirrors[kind] = [
                name for name in self.shapes[kind] if all(row.get(name) == row["id"] for row in rows)
            ]

    def get(self, kind: str, record_id: Any) -> Json:
        """Return a record. Raises CallError with known ids if there is none."""
        own = self.records.get(kind, {})
        if str(record_id) in own:
            return own[str(record_id)]
        for record in own.values():  # a name is understood as well
            if isinstance(record_id, str) and equals(record.get("name"), record_id):
                return record
        known = ", ".join(list(own)[:5])
        name = kind.replace("_", " ")
        hint = f" There is {known}." if known else ""
        raise CallError(f"There is no {name} {shorten(str(record_id))!r} in the sample data.{hint}")

    def add(self, kind: str, fields: Json) -> Json:
        """Add a record with a new id. Raises CallError if there are too many."""
        own = self.records.setdefault(kind, {})
        if len(own) >= MAX_RECORDS:
            raise CallError(
                f"The sample service has {MAX_RECORDS:,} records of this kind, which is the limit."
            )
        record_id = self.make_id(kind, fields)
        while str(record_id) in own:
            self.next_number += 1
            record_id = self.make_id(kind, fields)
        self.next_number += 1
        record = {**fields, "id": record_id, **dict.fromkeys(self.mirrors.get(kind, ()), record_id)}
        own[str(record_id)] = {"id": record.pop("id"), **record}
        return own[str(record_id)]

    def make_id(self, kind: str, fields: Json) -> Any:
        """Return the id of the next record of a kind."""
        template = self.ids.get(kind, f"{kind}-{{n}}")
        if template.startswith("#"):
            return self.next_number
        named = {key: str(value) for key, value in fields.items()}
        prefix = re.sub("[^A-Z]", "", named.get("project", "").upper())[:8]
        return template.format_map(
            {**named, "n": self.next_number, "project": prefix if len(prefix) > 1 else "HAR"}
        )

    def shape(self, kind: str, name: str, value: Any) -> Any:
        """Return a value in the form that other records of the kind have."""
        example = self.shapes.get(kind, {}).get(name)
        if isinstance(example, list):
            items = value if isinstance(value, list) else [value]
            plain = all(isinstance(each, str) for each in example)
            return [_unwrap(each) for each in items] if plain else items
        if isinstance(value, list) and len(value) == 1 and isinstance(example, str):
            value = value[0]
        return _unwrap(value) if isinstance(example, (str, int, float)) else value


@dataclass
class SampleCall:
    """One call of a tool of a sample service, while it runs."""

    data: ServiceRecords
    rules: ToolRules
    args: Json
    answer: Any = None

    @property
    def kind(self) -> str:
        return self.rules.kind

    @property
    def own(self) -> dict[str, Json]:
        return self.data.records.setdefault(self.kind, {})

    def check_references(self) -> None:
        """Raise CallError if an argument names a record that does not exist."""
        names = dict(self.rules.constants).get("new", "")
        name, _, flag = str(names).partition("?")
        for argument, value in _walk_leaves(self.args):
            if not (kind := self.data.refs.get(argument)) or value is None:
                continue
            is_missing = str(value) not in self.data.records.get(kind, {})
            if is_missing and argument == name and (not flag or self.args.get(flag)):
                self.data.records[kind][str(value)] = {"id": value, argument: value}
            else:
                self.data.get(kind, value)

    def find_targets(self, kind: str = "") -> list[Json]:
        """Return the records of a kind (the tool's own) that the arguments name first."""
        kind = kind or self.kind
        given = list(_walk_leaves(self.args))
        for name, referenced in self.data.refs.items():
            values = [value for argument, value in given if argument == name and value is not None]
            if referenced == kind and values and name not in self.rules.ignored:
                return [self.data.get(kind, each) for each in values]
        return []

    def require_targets(self) -> list[Json]:
        """Return the records that the arguments name. Raises CallError if they name none."""
        found = self.find_targets()
        if not found:
            known = ", ".join(list(self.own)[:5])
            kind = self.kind.replace("_", " ")
            raise CallError(f"The arguments name no {kind} of the sample data. There is {known or 'none'}.")
        return found

    def read_fields(self) -> Iterator[tuple[str, str, Any]]:
        """Yield field, operator and value for each argument that concerns the fields of a record."""
        ruled = {name.partition(".")[0] for name, _, _ in self.rules.arguments}
        for name, sign, target in self.rules.arguments:
            value = self._find_argument(name)
            if value is not None or sign in "|!%/":
                yield target, sign, value
        for name, value in self.args.items():
            if name not in ruled | self.rules.ignored | self.data.options and value is not None:
                yield name, ":", value

    def _find_argument(self, name: str) -> Any:
        value: Any = self.args
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def make_fields(self) -> Json:
        """Return the fields of a new or changed record: those of the tool, then those of the arguments."""
        fields: Json = {}
        for name, value in self.rules.constants:
            if name not in ("key", "new"):
                fields[name] = self.data.shape(self.kind, name, value)
        for name, sign, value in self.read_fields():
            if sign == ":":
                fields[name] = self.data.shape(self.kind, name, value)
                if isinstance(value, dict) and {"value", "currency"} <= value.keys():
                    fields["currency"] = value["currency"]
            elif sign == "/":
                target, when_true, when_false = name.split(":")
                chosen = when_true if value else when_false
                if chosen:
                    fields[target] = _parse_constant(chosen)
        return fields

    def change(self, record: Json, fields: Json | None = None) -> Json:
        """Change a record by the call's arguments; the id stays."""
        own = {"id", *self.data.mirrors.get(self.kind, ())}
        targets = {name for name, kind in self.data.refs.items() if kind == self.kind}
        named = {str(each["id"]) for each in self.find_targets()}
        for name, value in (self.make_fields() if fields is None else fields).items():
            is_name = name in targets and named.issuperset(
                map(str, value if isinstance(value, list) else [value])
            )
            if name not in own and not is_name:
                record[name] = value
        for name, sign, value in self.read_fields():
            if sign in ("+=", "-="):
                items = [_unwrap(each) for each in (value if isinstance(value, list) else [value])]
                kept = [each for each in record.get(name) or [] if each not in items]
                record[name] = kept + items if sign == "+=" else kept
        return record

    def select(self) -> list[Json]:
        """Return the records that match the arguments."""
        found = [each for each in self.own.values() if self._matches(each)]
        query = next((IssueQuery(value) for _, sign, value in self.read_fields() if sign == "$"), None)
        if query is not None:
            found = [each for each in found if query.matches(each)]
        order = query.order if query and query.order else self.rules.order
        if order:
            name = order.removeprefix("-")
            found.sort(
                key=lambda each: str(each.get(name, "")),
                reverse=order.startswith("-") or bool(query and query.descending),
            )
        return found

    def _matches(self, record: Json) -> bool:
        fixed = all(equals(record.get(name), value) for name, value in self.rules.constants)
        return fixed and all(_test_field(record, *rule) for rule in self.read_fields())

    def add_related(self, result: Json, records: list[Json]) -> Json:
        """Add the records of other kinds that refer to the records of a result; if none can, all of them."""
        found = {str(each["id"]) for each in records} | {
            str(value) for name, value in self.args.items() if name in self.data.refs
        }
        for kind in self.rules.related:
            items = self.data.records.get(kind, {}).values()
            linked = [each for each in items if str(each["id"]) not in found and found & set(get_texts(each))]
            has_links = any(self.kind == self.data.refs.get(name) for each in items for name in each)
            result[make_plural(kind)] = linked if has_links else list(items)
        return result


def _test_field(record: Json, name: str, sign: str, value: Any) -> bool:
    found = record.get(name)
    tests: Mapping[str, Callable[[], bool]] = {
        ":": lambda: equals(found, value),
        "~": lambda: (
            matches_text(record, value)
            if name == "*"
            else contains_words(" ".join(get_texts(found or "")), value)
        ),
        "*": lambda: matches_pattern(found, value),
        "?": lambda: bool(found) or not value,
        "|": lambda: bool(found) or bool(value),
        "!": lambda: not found or bool(value),
        "%": lambda: bool(found) is bool(value),
        "&": lambda: matches_labels(found or {}, value),
        "#": lambda: all(matches_condition(record, each) for each in value),
        "$": lambda: True,
    }
    return compare(value, sign, found) if sign in COMPARISONS else tests[sign]()


def _parse_constant(text: str) -> Any:
    special = {"true": True, "false": False, "@now": NOW, "@today": NOW[:10]}
    if text in special:
        return special[text]
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text.replace("_", " ") if text.startswith("(") else text


def _unwrap(value: Any) -> Any:
    """Return the plain value of an object such as `{"dateTime": …}`, `{"email": …}` or an amount."""
    if not isinstance(value, dict):
        return value
    if {"value", "currency"} <= value.keys():
        return float(value["value"])
    return next((value[key] for key in ("dateTime", "date", "email") if key in value), value)


def _walk_leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and value of every plain value in the arguments; items of a list have its name."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _walk_leaves(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from _walk_leaves(each, name)
    else:
        yield name, value


def make_plural(kind: str) -> str:
    return kind[:-1] + "ies" if kind.endswith("y") else kind if kind.endswith("s") else kind + "s"
