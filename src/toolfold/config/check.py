"""From what people wrote to settings that can be used, or to errors they can act on.

Expands short forms, clamps numbers, explains what is wrong. Knows nothing of files, variables and
trust: it is given one tree of values that know their places.
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
from toolfold.config.document import Node, SourceLocation, node_from_value, parse_value
from toolfold.config.kinds import Section
from toolfold.config.settings import BUILTIN_MODELS, Settings, expand_tool_search
from toolfold.errors import ConfigError, nearest, shorten

Transform = Callable[[Node, FieldInfo, KeyPath], Node | None]

_SEARCH_LIMIT = ("tools", "tool_search", "search_default_limit")
_EMBED_MODEL = ("tools", "rag_embed_model")


def build_settings(tree: Node) -> tuple[Settings, list[str]]:
    """The settings a tree stands for, and what a person should know about them."""
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
    """The tree with every known setting passed through `change`, which may drop it with None."""
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


def expand_shorthands(tree: Node, *, folder: Path, home: Path) -> Node:
    """Short forms in full, so that layers merge: relative paths are relative to `folder`."""
    return transform_settings(tree, lambda node, field, _: _expand_node(node, field, folder, home))


def _expand_node(node: Node, field: FieldInfo, folder: Path, home: Path) -> Node:
    found = base_type(field)
    if section_type(field) or found is dict:
        return _empty_if_null(expand_section(node, field))
    if found is Path:
        return Node(_make_absolute(node.value, folder, home), node.location)
    if found is tuple and node.value is None and not is_nullable(field):
        return Node([], node.location)
    if found is tuple and isinstance(node.value, list) and item_type(field) is Path:
        return Node([_make_absolute(each, folder, home) for each in node.value], node.location)
    return node


def expand_section(node: Node, field: FieldInfo) -> Node:
    """A section written as one word, as the map it stands for."""
    if field is not find_field(_SEARCH_LIMIT[:2]) or isinstance(node.value, dict):
        return node
    return node_from_value(expand_tool_search(node.value), node.location)


def _empty_if_null(node: Node) -> Node:
    """A section with nothing below its name holds nothing; it is not an error."""
    return Node({}, node.location) if node.value is None else node


def _make_absolute(value: Any, folder: Path, home: Path) -> Any:
    if not isinstance(value, str):
        return value
    if value == "~" or value.startswith("~/"):
        return str(home / value[2:])
    return str(folder / value)


def _clamp_number(node: Node, field: FieldInfo, path: KeyPath, warnings: list[str]) -> Node:
    limits, value = number_bounds(field), node.value
    # Only here: the tools block keeps the field's established shape, which forgives.
    if path[0] != "tools" or limits is None or not is_number(value):
        return node
    used = min(max(int(value) if base_type(field) is int else value, limits[0]), limits[1])
    if used != value:
        within = limits[0] <= value <= limits[1]
        why = f"it must be {describe_type(field) if within else f'from {limits[0]} to {limits[1]}'}"
        said = f"{'.'.join(path)} is {_format_number(value)}, but {why}: {used} is used instead"
        warnings.append(format_with_location(said, node.location))
    return Node(used, node.location)


def is_number(value: Any) -> bool:
    """Neither true nor infinity is one, whatever Python thinks."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _format_number(value: float) -> str:
    """Python refuses to print integers of more than 4300 digits."""
    return str(value) if abs(value) < 10**30 else "a very large number"


def _search_limit_warnings(settings: Settings, tree: Node) -> list[str]:
    search = settings.tools.tool_search
    node = tree.find(_SEARCH_LIMIT)
    wanted = node.value if node else type(search).model_fields["search_default_limit"].default
    if wanted == search.search_default_limit:
        return []
    said = f"{'.'.join(_SEARCH_LIMIT)} is {wanted}, more than max_search_limit"
    place = tree.location_of(_SEARCH_LIMIT)
    return [format_with_location(f"{said}; {search.search_default_limit} is used instead", place)]


def _model_name_warnings(settings: Settings, tree: Node) -> list[str]:
    """Any name may be a model of a service: a slip is no error here, and one later, when tools are sought."""
    name = settings.tools.rag_embed_model
    near = nearest(name, BUILTIN_MODELS, count=1)
    if name in BUILTIN_MODELS or not near or abs(len(near[0]) - len(name)) > 3:
        return []
    said = f"{'.'.join(_EMBED_MODEL)} is {shorten(repr(name), 60)}, taken for a service's model"
    return [format_with_location(f"{said}; did you mean {near[0]}?", tree.location_of(_EMBED_MODEL))]


def format_with_location(text: str, place: SourceLocation) -> str:
    """A sentence with the place it speaks of, in the form errors have."""
    return str(ConfigError(text, file=place.file, line=place.line))


def _explain_error(error: ErrorDetails, tree: Node) -> ConfigError:
    """One thing pydantic refused, said in our words."""
    loc = error["loc"]
    place = tree.location_of(loc)
    names = tuple(str(each) for each in loc if not isinstance(each, int))
    if error["type"] == "extra_forbidden":
        return unknown_setting_error(names, list_names(names[:-1]), file=place.file, line=place.line)
    if not names:
        return ConfigError("the name of a setting is not text", file=place.file)
    if names[-1] == "[key]":
        return _invalid_name_error(names[:-1], place)
    if error["type"] == "value_error" and isinstance(error["input"], dict):  # the block as a whole
        problem = f"{'.'.join(names)}: {error['ctx']['error']}"
        return ConfigError(problem, key=".".join(names), file=place.file, line=place.line)
    field = find_field(names)
    wanted = describe_type(field) if field else "something else"
    if field and isinstance(loc[-1], int):
        wanted = describe_item_type(field)
    key = ".".join(names) + "".join(f"[{each}]" for each in loc if isinstance(each, int))
    given = str(len(error["input"])) if error["type"] == "too_long" else _format_value(error["input"])
    problem = f"{key} must be {wanted}, not {given}"
    hint = _suggest_fix(field, error["input"]) if field else ""
    return ConfigError(problem, key=".".join(names), file=place.file, line=place.line, hint=hint)


def _invalid_name_error(path: Sequence[str], place: SourceLocation) -> ConfigError:
    of, hint = "tool", ""
    if path[0] == "toolsets":
        of, hint = "toolset", "use up to 64 letters, digits, _ and -"
    elif path[0] == "mcp":
        of, hint = "server", "use up to 40 letters, digits, _ and -"
    problem = f"{shorten(path[-1])!r} cannot be the name of a {of}"
    return ConfigError(problem, key=".".join(path), file=place.file, line=place.line, hint=hint)


def _format_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, (dict, list)):
        return "a map" if isinstance(value, dict) else "a list"
    if isinstance(value, int):
        return _format_number(value)
    return shorten(repr(value), 60)


def _suggest_fix(field: FieldInfo, value: Any) -> str:
    if limits := number_bounds(field):
        return f"use a number from {limits[0]} to {limits[1]}"
    near = nearest(value, literal_choices(field), count=1) if isinstance(value, str) else []
    return f"did you mean {near[0]}?" if near else ""


def _combine_errors(problems: Sequence[ConfigError]) -> ConfigError:
    """Every problem at once: nobody wants to start five times to find five typing errors."""
    ordered = sorted(problems, key=lambda each: (each.file, each.line or 0))
    if len(ordered) == 1:
        return ordered[0]
    first = ordered[0]
    error = ConfigError("\n".join(map(str, ordered)), key=first.key)
    error.file, error.line, error.hint = first.file, first.line, first.hint
    return error


def parse_text_value(text: str, field: FieldInfo | None, place: SourceLocation) -> Node:
    """The value a variable or an argument spells: text and paths as they are, the rest as YAML."""
    found = base_type(field) if field else None
    if field and found in (str, Path, Literal):
        empty = is_nullable(field) and text.strip().lower() in ("", "null")
        return Node(None if empty else text, place)
    if found is tuple and not text.lstrip().startswith("[") and text.strip() not in ("", "null"):
        return Node([part.strip() for part in text.split(",") if part.strip()], place)
    return parse_value(text, place)
