"""Validate the values of settings files, and explain errors so that a person can fix them.

Expands short forms, clamps numbers and explains errors. Knows nothing of files, variables and trust: it gets
one tree of values with their source locations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from toolfold.config.describe import (
    KeyPath,
    base_type,
    describe_item_type,
    describe_type,
    entry_type,
    find_field,
    is_nullable,
    item_type,
    list_names,
    literal_choices,
    number_bounds,
    section_type,
    unknown_setting_error,
)
from toolfold.config.field_types import Section
from toolfold.config.settings import BUILTIN_MODELS, Settings, expand_tool_search
from toolfold.config.yaml_document import Node, SourceLocation, node_from_value, parse_value
from toolfold.core.errors import ConfigError, closest_names, shorten

Transform = Callable[[Node, FieldInfo, KeyPath], Node | None]

_SEARCH_LIMIT = ("tools", "tool_search", "search_default_limit")
_EMBED_MODEL = ("tools", "rag_embed_model")


def build_settings(tree: Node) -> tuple[Settings, list[str]]:
    """Validate a tree of values; return the settings and warnings for the user. Raises ConfigError."""
    warnings: list[str] = []
    tree = transform_settings(tree, lambda node, field, path: _clamp_number(node, field, path, warnings))
    try:
        settings = Settings.model_validate(tree.to_python())
    except ValidationError as error:
        problems = [_explain_error(each, tree) for each in error.errors(include_url=False)]
        raise _combine_errors(problems) from None
    warnings += _search_limit_warnings(settings, tree)
    warnings += _model_name_warnings(settings, tree)
    return settings, warnings


def transform_settings(
    node: Node, change: Transform, owner: type[Section] = Settings, path: KeyPath = ()
) -> Node:
    """Return a tree of settings with `change` applied to each; one for which it returns None is removed."""
    if not isinstance(node.value, dict):
        return node
    items: dict[str, Node] = {}
    for name, child in node.value.items():
        field = owner.model_fields.get(name)
        revised = child if field is None else _transform_node(child, change, field, (*path, name))
        if revised is not None:
            items[name] = revised
    return Node(items, node.location)


def _transform_node(node: Node, change: Transform, field: FieldInfo, path: KeyPath) -> Node | None:
    revised = change(node, field, path)
    if revised is None or not isinstance(revised.value, dict):
        return revised
    if inner := section_type(field):
        return transform_settings(revised, change, inner, path)
    if entry := entry_type(field):
        named = {
            name: transform_settings(_empty_if_null(child), change, entry, (*path, name))
            for name, child in revised.value.items()
        }
        return Node(named, revised.location)
    return revised


def expand_shorthands(tree: Node, *, directory: Path, home: Path) -> Node:
    """Expand short forms of settings so that files can be merged; paths are relative to `directory`."""
    return transform_settings(tree, lambda node, field, _: _expand_node(node, field, directory, home))


def _expand_node(node: Node, field: FieldInfo, directory: Path, home: Path) -> Node:
    found = base_type(field)
    if section_type(field) or found is dict:
        return _empty_if_null(expand_section(node, field))
    if found is Path:
        return Node(_make_absolute(node.value, directory, home), node.location)
    if found is tuple and node.value is None and not is_nullable(field):
        return Node([], node.location)
    if found is tuple and isinstance(node.value, list) and item_type(field) is Path:
        return Node([_make_absolute(each, directory, home) for each in node.value], node.location)
    return node


def expand_section(node: Node, field: FieldInfo) -> Node:
    """Expand a section that was written as one word, such as `tool_search: on`, to a mapping."""
    if field is not find_field(_SEARCH_LIMIT[:2]) or isinstance(node.value, dict):
        return node
    return node_from_value(expand_tool_search(node.value), node.location)


def _empty_if_null(node: Node) -> Node:
    """Return an empty section for a null value, which stands for a section without content."""
    return Node({}, node.location) if node.value is None else node


def _make_absolute(value: Any, directory: Path, home: Path) -> Any:
    if not isinstance(value, str):
        return value
    if value == "~" or value.startswith("~/"):
        return str(home / value[2:])
    return str(directory / value)


def _clamp_number(node: Node, field: FieldInfo, path: KeyPath, warnings: list[str]) -> Node:
    limits, value = number_bounds(field), node.value
    # Only in the tools section, whose established behaviour is to clamp numbers.
    if path[0] != "tools" or limits is None or not is_number(value):
        return node
    used = min(max(int(value) if base_type(field) is int else value, limits[0]), limits[1])
    if used != value:
        within = limits[0] <= value <= limits[1]
        why = f"it must be {describe_type(field) if within else f'from {limits[0]} to {limits[1]}'}"
        message = f"{'.'.join(path)} is {_format_number(value)}, but {why}: {used} is used instead"
        warnings.append(format_with_location(message, node.location))
    return Node(used, node.location)


def is_number(value: Any) -> bool:
    """Return True for finite numbers; False for booleans, infinity and values that are not numbers."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _format_number(value: float) -> str:
    """Format a number, even an integer with more than 4300 digits, which Python refuses to print."""
    return str(value) if abs(value) < 10**30 else "a very large number"


def _search_limit_warnings(settings: Settings, tree: Node) -> list[str]:
    search = settings.tools.tool_search
    node = tree.find(_SEARCH_LIMIT)
    wanted = node.value if node else type(search).model_fields["search_default_limit"].default
    if wanted == search.search_default_limit:
        return []
    message = f"{'.'.join(_SEARCH_LIMIT)} is {wanted}, more than max_search_limit"
    location = tree.location_of(_SEARCH_LIMIT)
    return [format_with_location(f"{message}; {search.search_default_limit} is used instead", location)]


def _model_name_warnings(settings: Settings, tree: Node) -> list[str]:
    """Warn if the name of the embedding model looks like a misspelled name of a built-in model."""
    name = settings.tools.rag_embed_model
    near = closest_names(name, BUILTIN_MODELS, count=1)
    if name.partition(":")[0] in BUILTIN_MODELS or not near or abs(len(near[0]) - len(name)) > 3:
        return []
    message = f"{'.'.join(_EMBED_MODEL)} is {shorten(repr(name), 60)}, used as the name of a service's model"
    return [format_with_location(f"{message}; did you mean {near[0]}?", tree.location_of(_EMBED_MODEL))]


def format_with_location(text: str, location: SourceLocation) -> str:
    """Return a message preceded by the file and line it is about, in the same format as errors."""
    return str(ConfigError(text, file=location.file, line=location.line))


def _explain_error(error: ErrorDetails, tree: Node) -> ConfigError:
    """Convert one validation error of pydantic to a ConfigError."""
    loc = error["loc"]
    location = tree.location_of(loc)
    names = tuple(str(each) for each in loc if not isinstance(each, int))
    if error["type"] == "extra_forbidden":
        return unknown_setting_error(names, list_names(names[:-1]), file=location.file, line=location.line)
    if not names:
        return ConfigError("the name of a setting must be text", file=location.file)
    if names[-1] == "[key]":
        return _invalid_name_error(names[:-1], location)
    key = ".".join(names) + "".join(f"[{each}]" for each in loc if isinstance(each, int))
    if error["type"] == "value_error":  # raised by a validator of ours, with its own message
        message = str(error["ctx"]["error"])
        problem = f"{key} {message}" if message.startswith("must ") else f"{key}: {message}"
        return ConfigError(problem, key=".".join(names), file=location.file, line=location.line)
    field = find_field(names)
    wanted = describe_type(field) if field else "something else"
    if field and isinstance(loc[-1], int):
        wanted = describe_item_type(field)
    elif field and is_number(error["input"]) and (limits := number_bounds(field)):
        wanted += f" from {limits[0]} to {limits[1]}"
    given = str(len(error["input"])) if error["type"] == "too_long" else _format_value(error["input"])
    problem = f"{key} must be {wanted}, not {given}"
    hint = _suggest_fix(field, error["input"]) if field else ""
    return ConfigError(problem, key=".".join(names), file=location.file, line=location.line, hint=hint)


def _invalid_name_error(path: Sequence[str], location: SourceLocation) -> ConfigError:
    of, hint = "tool", ""
    if path[0] == "toolsets":
        of, hint = "toolset", "use up to 64 letters, digits, _ and -"
    elif path[0] == "mcp":
        of, hint = "server", "use up to 40 letters, digits, _ and -"
    problem = f"{shorten(path[-1])!r} cannot be the name of a {of}"
    return ConfigError(problem, key=".".join(path), file=location.file, line=location.line, hint=hint)


def _format_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, int):
        return _format_number(value)
    return shorten(repr(value), 60)


def _suggest_fix(field: FieldInfo, value: Any) -> str:
    if (limits := number_bounds(field)) and not is_number(value):
        return f"use a number from {limits[0]} to {limits[1]}"
    near = closest_names(value, literal_choices(field), count=1) if isinstance(value, str) else []
    return f"did you mean {near[0]}?" if near else ""


def _combine_errors(problems: Sequence[ConfigError]) -> ConfigError:
    """Combine all configuration errors into one error, so that a person can fix them together."""
    ordered = sorted(problems, key=lambda each: (each.file, each.line or 0))
    if len(ordered) == 1:
        return ordered[0]
    first = ordered[0]
    error = ConfigError("\n".join(map(str, ordered)), key=first.key)
    error.file, error.line, error.hint = first.file, first.line, first.hint
    return error


def parse_text_value(text: str, field: FieldInfo | None, location: SourceLocation) -> Node:
    """Parse the text of an environment variable or argument as YAML, unless the setting is text or a path."""
    found = base_type(field) if field else None
    if field and found in (str, Path, Literal):
        empty = is_nullable(field) and text.strip().lower() in ("", "null")
        return Node(None if empty else text, location)
    if found is tuple and not text.lstrip().startswith("[") and text.strip() not in ("", "null"):
        return Node([part.strip() for part in text.split(",") if part.strip()], location)
    return parse_value(text, location)
