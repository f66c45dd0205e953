"""Describe the names, types and allowed values of the settings in words.

Walks the settings classes for code that names settings rather than uses them: the loader, its errors,
`toolfold config schema`. Knows no values but the defaults and those of a config that is passed in.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from toolfold.config.field_types import Section
from toolfold.config.settings import Settings
from toolfold.core.errors import ConfigError, closest_names, shorten

KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """Description of one setting."""

    key: str
    type: str
    default: Any
    description: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    grants: bool = False

    @property
    def range(self) -> str:
        return "" if self.low is None else f"from {self.low} to {self.high}"


def describe_settings() -> list[Setting]:
    """Return a description of every setting, in the order in which the settings are defined."""
    return list(_walk_settings(Settings, ()))


@functools.cache
def list_keys() -> tuple[str, ...]:
    """Return the dotted keys of all settings, except keys of entries named by the user, such as servers."""
    return tuple(each.key for each in describe_settings() if "<name>" not in each.key)


def _walk_settings(owner: type[Section], path: KeyPath) -> Iterator[Setting]:
    for name, field in owner.model_fields.items():
        below = (*path, name)
        if inner := section_type(field):
            yield from _walk_settings(inner, below)
        elif entry := entry_type(field):
            for each in _walk_settings(entry, (*below, "<name>")):
                yield Setting(each.key, each.type, each.default, each.description, grants=can_grant(field))
        else:
            yield _describe_field(".".join(below), field)


def _describe_field(key: str, field: FieldInfo) -> Setting:
    default = field.get_default(call_default_factory=True, validated_data={})
    low, high = number_bounds(field) or (None, None)
    return Setting(
        key=key,
        type=describe_type(field),
        default=list(default) if isinstance(default, tuple) else default,
        description=field.description or "",
        choices=literal_choices(field),
        low=low,
        high=high,
        grants=can_grant(field),
    )


def build_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a configuration file, for editors."""
    schema = Settings.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Toolfold"}


def get_value(config: Settings, key: str) -> Any:
    """Return the value of a dotted key: a setting or a whole section. Raises ConfigError."""
    value: Any = config
    path = tuple(key.split("."))
    for depth, name in enumerate(path):
        if isinstance(value, Section):
            known: Collection[str] = Settings.model_fields if depth == 0 else type(value).model_fields
        else:
            known = value if isinstance(value, dict) else ()
        if name not in known:
            raise unknown_setting_error(path[: depth + 1], known)
        value = getattr(value, name) if isinstance(value, Section) else value[name]
    return value


def unknown_setting_error(
    path: Sequence[str], known: Collection[str], *, file: str = "", line: int | None = None
) -> ConfigError:
    """Return the error for a setting that does not exist; it suggests the most similar name."""
    key = ".".join(path)
    near = closest_names(path[-1], known, count=1)
    elsewhere = [each.key for each in describe_settings() if each.key.rpartition(".")[2] == path[-1]]
    candidates = near or elsewhere or closest_names(key, (each.key for each in describe_settings()), count=1)
    if candidates:
        hint = f"did you mean {' or '.join(candidates)}?"
    else:
        hint = f"known here: {', '.join(known)}" if known else "it has no settings below it"
    return ConfigError(f"{shorten(key)} is not a setting", key=key, file=file, line=line, hint=hint)


def section_type(field: FieldInfo) -> type[Section] | None:
    """Return the section class that is the type of a settings field; None if it is not a section."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def entry_type(field: FieldInfo) -> type[Section] | None:
    """Return the class of the entries in a mapping setting, such as servers; None for other settings."""
    held = value_field(field)
    return section_type(held) if held else None


def value_field(field: FieldInfo) -> FieldInfo | None:
    """Return the field that describes each value of a mapping setting, such as one server of `mcp.servers`.

    Returns None if the setting is not such a mapping.
    """
    if get_origin(field.annotation) is not dict:
        return None
    return FieldInfo.from_annotation(get_args(field.annotation)[1])


def find_field(path: Sequence[str]) -> FieldInfo | None:
    """Return the settings field at a path of keys; None if there is none.

    For a named entry, such as `mcp.servers.NAME`, it is the field that contains all entries.
    """
    owner: type[Section] | None = Settings
    field: FieldInfo | None = None
    names = iter(path)
    for name in names:
        field = owner.model_fields.get(name) if owner else None
        if field is None:
            return None
        owner = section_type(field)
        if (held := value_field(field)) and next(names, None) is not None:
            owner = section_type(held)
            field = field if owner else held
    return field


def list_names(path: Sequence[str]) -> tuple[str, ...]:
    """Return the keys that may be written in the section at a path; `()` if it is not a section."""
    if not path:
        return tuple(Settings.model_fields)
    field = find_field(path)
    if field is None:
        return ()
    owner = section_type(field) or (entry_type(field) if len(path) > 1 else None)
    return tuple(owner.model_fields) if owner else ()


def can_grant(field: FieldInfo) -> bool:
    """Return True if a setting can give tools or servers more permissions."""
    return _schema_extra(field).get("grants") is True


def project_rule(field: FieldInfo) -> str:
    """Return the restriction on a setting in a project's settings file; empty if there is none."""
    return str(_schema_extra(field).get("in_project", ""))


def _schema_extra(field: FieldInfo) -> Mapping[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def number_bounds(field: FieldInfo) -> tuple[float, float] | None:
    """Return the minimum and maximum of a numeric setting; None if it has no bounds."""
    low = [each.ge for each in field.metadata if hasattr(each, "ge")]
    high = [each.le for each in field.metadata if hasattr(each, "le")]
    return (low[0], high[0]) if low and high else None


def literal_choices(field: FieldInfo) -> tuple[str, ...]:
    """Return the words that a setting with a fixed set of values accepts."""
    annotation = _strip_annotation(field.annotation)
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def is_nullable(field: FieldInfo) -> bool:
    return NoneType in get_args(field.annotation)


def base_type(field: FieldInfo) -> Any:
    """Return the plain type of a setting, such as `int` for `int | None`, or `tuple` for a list."""
    return get_origin(bare := _strip_annotation(field.annotation)) or bare


def item_type(field: FieldInfo) -> Any:
    """Return the type of the items of a list setting."""
    return _strip_annotation(get_args(_strip_annotation(field.annotation))[0])


def _strip_annotation(annotation: Any) -> Any:
    """Return a type annotation without `| None` and without constraints."""
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(each for each in get_args(annotation) if each is not NoneType)
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def describe_type(field: FieldInfo) -> str:
    """Return the type of a setting in words."""
    found = base_type(field)
    if found is Literal:
        *most, last = literal_choices(field)
        return f"{', '.join(most)} or {last}"
    if found is tuple:
        words = _describe_list_type(field)
    elif found is dict and not entry_type(field):
        words = "a mapping of lists"
    else:
        words = type_name(found)
    return f"{words} or null" if is_nullable(field) else words


def _describe_list_type(field: FieldInfo) -> str:
    if limit := _max_length(field.metadata):
        return f"a list of at most {limit} words or phrases"
    if get_origin(item_type(field)) is dict:
        return "a list of mappings"
    return "a list of paths" if item_type(field) is Path else "a list of names"


def describe_item_type(field: FieldInfo) -> str:
    """Return the type of the items of a list setting in words."""
    item = get_args(_strip_annotation(field.annotation))[0]
    if get_origin(item) is Literal:
        return f"one of {', '.join(get_args(item))}"
    limit = _max_length(get_args(item)[1:])
    return f"text of 1 to {limit} characters" if limit else type_name(item_type(field))


def _max_length(metadata: Sequence[Any]) -> int | None:
    """Return the maximum length from a field's constraints; None if there is none."""
    return next((each.max_length for each in metadata if getattr(each, "max_length", None)), None)


def type_name(type_: object) -> str:
    words: dict[object, str] = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        Path: "a path",
    }
    return words.get(type_, "a mapping of settings")
