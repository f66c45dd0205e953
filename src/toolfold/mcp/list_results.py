"""Repair the lists of tools, resources and prompts that MCP servers return, entry by entry.

The SDK validates the result of `tools/list`, `resources/list`, `resources/templates/list` and `prompts/list`
as a whole, so that one malformed entry would make all others unusable. Here each entry is validated
separately: malformed optional fields are removed, unusable entries are dropped, and both are reported. Works
on plain data; knows no connection.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from toolfold.core.errors import shorten
from toolfold.core.types import Json
from toolfold.mcp.tool_listing import MAX_SCHEMA_DEPTH, is_deeper_than

PROBLEMS_KEY = "toolfold.problems"
"""Key in a result's `_meta` with the list of problems."""
MAX_PROBLEMS = 100
MAX_LISTED = 10_000
"""Tools, resources, templates or prompts that are kept of one page."""
_MAX_VALUE_CHARS = 60


class UnusableEntry(ValueError):
    """Raised if an entry of a server's list must be dropped; the message gives the reason."""


class _Kind(NamedTuple):
    noun: str
    key: str
    """Field of the list result that contains the entries."""
    identifier: str
    """The field that an entry must have."""
    repair: Callable[[Json, str, list[str]], None]
    """Function that repairs an entry in place for a protocol revision, and adds problems to a list."""


def repair_list_result(method: str, protocol: str, result: Any) -> Any:
    """Return a server's list with only valid entries; add descriptions of the problems to its `_meta`.

    The result of any other method is returned unchanged.
    """
    kind = _KINDS.get(method)
    if kind is None or not isinstance(result, Mapping):
        return result
    problems: list[str] = []
    entries = _read_entries(kind, result.get(kind.key), problems)
    models = _entry_models(method, protocol, kind.key)
    usable = list(_repair_entries(kind, entries, protocol, models, problems))
    return {
        **result,
        **_repair_envelope(result, problems),
        kind.key: usable,
        "_meta": _add_problems(result, problems),
    }


def list_problems(page: Any) -> list[str]:
    """Return the problems that `repair_list_result` found in one page of a list."""
    return list((getattr(page, "meta", None) or {}).get(PROBLEMS_KEY, ()))


def _add_problems(result: Mapping[str, Any], problems: Sequence[str]) -> Json:
    meta = result.get("_meta")
    listed = problems[:MAX_PROBLEMS]
    if len(problems) > MAX_PROBLEMS:
        listed = [*listed, f"and {len(problems) - MAX_PROBLEMS:,} more problems"]
    return {**(meta if isinstance(meta, Mapping) else {}), PROBLEMS_KEY: listed}


def _read_entries(kind: _Kind, value: Any, problems: list[str]) -> Sequence[Any]:
    if isinstance(value, list):
        if len(value) > MAX_LISTED:
            problems.append(f"{len(value) - MAX_LISTED:,} more {kind.noun}s are dropped")
        return value[:MAX_LISTED]
    if value is not None:  # some languages encode an empty list as null
        problems.append(f"its list of {kind.noun}s is {_describe_value(value)} instead of a list")
    return ()


def _repair_envelope(result: Mapping[str, Any], problems: list[str]) -> Json:
    """Return a list result's cursor and caching fields, repaired to be valid in every protocol revision."""
    cursor = result.get("nextCursor")
    if cursor is not None and not isinstance(cursor, str):
        problems.append(
            f"its nextCursor is {_describe_value(cursor)} instead of text; the rest cannot be listed"
        )
        cursor = None
    ttl, scope = result.get("ttlMs"), result.get("cacheScope")
    is_number = isinstance(ttl, int) and not isinstance(ttl, bool)
    return {
        "nextCursor": cursor or None,
        "ttlMs": ttl if is_number else 0,
        "cacheScope": scope if scope in ("public", "private") else "private",
    }


def _repair_entries(
    kind: _Kind, entries: Iterable[Any], protocol: str, models: Sequence[type[Any]], problems: list[str]
) -> Iterable[Json]:
    for position, entry in enumerate(entries, 1):
        entry_problems: list[str] = []
        name = _name_of(kind, entry, position)
        try:
            yield _repair_entry(kind, entry, protocol, models, entry_problems)
        except UnusableEntry as error:
            entry_problems = [f"is dropped: {error}"]
        problems += [f"{name} {each}" for each in entry_problems]


def _repair_entry(
    kind: _Kind, entry: Any, protocol: str, models: Sequence[type[Any]], entry_problems: list[str]
) -> Json:
    if not isinstance(entry, Mapping):
        raise UnusableEntry(f"it is {_describe_value(entry)} instead of an object")
    identifier = entry.get(kind.identifier)
    if not isinstance(identifier, str) or not identifier.strip():
        raise UnusableEntry(f"it has no usable {kind.identifier}")
    if is_deeper_than(entry, MAX_SCHEMA_DEPTH):
        raise UnusableEntry(f"it is nested deeper than {MAX_SCHEMA_DEPTH} levels")
    repaired = dict(entry)
    kind.repair(repaired, protocol, entry_problems)
    for model in models:
        _remove_malformed(repaired, model, entry_problems)
    return repaired


def _remove_malformed(entry: Json, model: type[Any], entry_problems: list[str]) -> None:
    """Remove fields of an entry that fail validation. Raises UnusableEntry if a required field is invalid."""
    from pydantic import ValidationError

    for _ in range(2):  # twice: removing one field may reveal another problem
        try:
            model.model_validate(entry, by_name=False)
            return
        except ValidationError as error:
            locations = [each["loc"] for each in error.errors(include_url=False, include_input=False)]
        for key in dict.fromkeys(str(location[0]) for location in locations if location):
            if key not in entry:
                raise UnusableEntry(f"it has no {key}")
            _remove_field(
                entry,
                key,
                [location[1] for location in locations if location[0] == key and len(location) > 1],
            )
            entry_problems.append(f"has a malformed {key}, which is ignored")
    raise UnusableEntry("it does not follow the protocol")


def _remove_field(entry: Json, key: str, inner: Sequence[Any]) -> None:
    """Remove a field of an entry, or only the malformed elements if the field is a list."""
    value = entry[key]
    if key == "inputSchema":
        raise UnusableEntry(
            f"its inputSchema is malformed at {shorten(str(inner[0] if inner else ''), 80)!r}"
        )
    if isinstance(value, list) and inner and all(isinstance(each, int) for each in inner):
        entry[key] = [each for index, each in enumerate(value) if index not in inner]
    else:
        del entry[key]


def _repair_tool(tool: Json, protocol: str, entry_problems: list[str]) -> None:
    tool["inputSchema"] = _repair_input_schema(tool.get("inputSchema"), entry_problems)
    _require_valid_headers(tool["inputSchema"], protocol)
    output = tool.get("outputSchema")
    if output is None:
        tool.pop("outputSchema", None)
    elif not _is_json_schema(output):
        del tool["outputSchema"]
        entry_problems.append("has a malformed outputSchema, which is ignored")


def _require_valid_headers(schema: Json, protocol: str) -> None:
    """Raise UnusableEntry for an invalid `x-mcp-header`, because clients must drop such a tool."""
    from mcp.shared.inbound import find_invalid_x_mcp_header
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    if protocol in MODERN_PROTOCOL_VERSIONS and (reason := find_invalid_x_mcp_header(schema)) is not None:
        raise UnusableEntry(f"its inputSchema has an invalid x-mcp-header: {shorten(str(reason), 120)}")


def _repair_input_schema(schema: Any, entry_problems: list[str]) -> Json:
    """Return a valid object schema for a tool's input. Raises UnusableEntry for a contradictory schema."""
    if schema is None or schema is True or schema == []:  # PHP encodes an empty object as []
        schema = {}
    if not isinstance(schema, Mapping):
        raise UnusableEntry(f"its inputSchema is {_describe_value(schema)} instead of an object")
    repaired = {key: value for key, value in schema.items() if value is not None or key not in _NULLABLE}
    kind = repaired.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise UnusableEntry(f"its inputSchema has the type {_describe_value(kind)} instead of 'object'")
    repaired["type"] = "object"
    if "properties" in repaired:
        repaired["properties"] = _repair_properties(repaired["properties"], entry_problems)
    required = repaired.get("required", [])
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        del repaired["required"]
        entry_problems.append("has a malformed inputSchema.required, which is ignored")
    return repaired


def _repair_properties(properties: Any, entry_problems: list[str]) -> Json:
    if properties == []:
        return {}
    if not isinstance(properties, Mapping):
        raise UnusableEntry(
            f"its inputSchema.properties is {_describe_value(properties)} instead of an object"
        )
    invalid = [name for name, each in properties.items() if not isinstance(each, (Mapping, bool))]
    entry_problems += [
        f"has no schema for its parameter {shorten(name, 80)!r}, so that any value is accepted"
        for name in invalid
    ]
    return {**properties, **{name: {} for name in invalid}}


def _is_json_schema(schema: Any) -> bool:
    """Return True if the value is a valid JSON Schema."""
    import jsonschema_rs

    if not isinstance(schema, Mapping):
        return False
    try:
        return bool(jsonschema_rs.meta.is_valid(dict(schema)))
    except Exception:  # an unknown `$schema`: validate as the newest draft
        rest = {key: value for key, value in schema.items() if key != "$schema"}
    try:
        return bool(jsonschema_rs.meta.is_valid(rest))
    except Exception:
        return False


def _name_by(field: str) -> Callable[[Json, str, list[str]], None]:
    """Return a function that sets the missing name of a list entry to the value of its field `field`."""

    def repair(entry: Json, _protocol: str, _found: list[str]) -> None:
        if not isinstance(entry.get("name"), str):
            entry["name"] = entry[field]

    return repair


def _no_repair(_entry: Json, _protocol: str, _found: list[str]) -> None:
    """Do nothing: validation already removes the malformed fields of this kind of entry."""


def _name_of(kind: _Kind, entry: Any, position: int) -> str:
    name = entry.get(kind.identifier) if isinstance(entry, Mapping) else None
    named = (
        f" {shorten(name, 80)!r}" if isinstance(name, str) and name.strip() else f" {position} of its list"
    )
    return f"the {kind.noun}{named}"


def _describe_value(value: Any) -> str:
    """Describe a value of the wrong type for an error message."""
    if isinstance(value, str):
        return repr(shorten(value, _MAX_VALUE_CHARS))
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return "a number"
    return "a list" if isinstance(value, list) else "an object"


def _entry_models(method: str, protocol: str, key: str) -> list[type[Any]]:
    """Return the SDK classes that validate an entry of a list."""
    from mcp_types.methods import MONOLITH_RESULTS, SERVER_RESULTS

    results = SERVER_RESULTS.get((method, protocol)), MONOLITH_RESULTS.get(method)
    fields = (
        field
        for result in results
        for name, field in getattr(result, "model_fields", {}).items()
        if (field.alias or name) == key
    )
    return [get_args(field.annotation)[0] for field in fields]


_NULLABLE = frozenset({"type", "properties", "required", "$schema"})
_KINDS: Mapping[str, _Kind] = {
    "tools/list": _Kind("tool", "tools", "name", _repair_tool),
    "resources/list": _Kind("resource", "resources", "uri", _name_by("uri")),
    "resources/templates/list": _Kind(
        "resource template", "resourceTemplates", "uriTemplate", _name_by("uriTemplate")
    ),
    "prompts/list": _Kind("prompt", "prompts", "name", _no_repair),
}
