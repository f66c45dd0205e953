"""Set and remove single settings in a program's settings file, and leave all other text unchanged.

A setting is given by its path, with dots between the keys. The new content is parsed again and must differ by
the wanted settings only; otherwise the change is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolfold.cli.connecting import json_edit, toml_edit
from toolfold.cli.connecting.change_log import FileChange
from toolfold.cli.connecting.client_file import (
    ClientFile,
    ProgramName,
    encode_content,
    is_equal,
    load_file,
)
from toolfold.cli.connecting.model_programs import find_program, get_setting
from toolfold.cli.connecting.yaml_edit import preserve_newlines
from toolfold.config import patch
from toolfold.core.errors import ConfigError
from toolfold.core.types import Json
from toolfold.mcp.importing.documents import parse_document


def open_settings_file(program: ProgramName, file: Path) -> ClientFile:
    """Read the settings file of a program. Raises ConfigError if Toolfold cannot parse or change it."""
    described = find_program(program)
    if file.suffix not in described.suffixes:
        raise ConfigError(
            f"{described.title} stores its settings in {described.suffixes[0]} files;"
            " this file has another suffix",
            file=str(file),
        )
    settings_file = load_file(program, file)
    _ = settings_file.document
    return settings_file


def build_settings_content(settings_file: ClientFile, settings: Mapping[str, Any]) -> bytes:
    """Return the content of a settings file with settings changed; the value None removes a setting.

    Raises ConfigError if that would change anything else.
    """
    text, document = settings_file.text, settings_file.document
    for path, value in settings.items():
        if is_equal(get_setting(document, path), value):
            continue
        keys = tuple(path.split("."))
        document = _change_document(document, keys, value)
        text = _change_text(text, settings_file.file.suffix, keys, value, document)
    _require_exact_change(settings_file, text, document)
    return encode_content(settings_file, text)


class SettingsEditor:
    """Sets the base URLs of model APIs in programs' settings files, and restores the previous values."""

    def load(self, change: FileChange) -> ClientFile:
        return load_file(change.client, Path(change.file))

    def open(self, change: FileChange) -> ClientFile:
        return open_settings_file(change.client, Path(change.file))

    def reopen(self, seen: ClientFile) -> ClientFile:
        return open_settings_file(seen.client, seen.file)

    def repeat(self, before: ClientFile, change: FileChange) -> bytes:
        return build_settings_content(before, change.entry)

    def revert(self, current: ClientFile, before: ClientFile | None, change: FileChange) -> bytes:
        """Return the settings file's content with the previous values, except for settings edited since."""
        previous = before.document if before else {}
        document = current.document
        return build_settings_content(
            current,
            {
                path: get_setting(previous, path)
                for path, value in change.entry.items()
                if is_equal(get_setting(document, path), value)
            },
        )


def _change_text(text: str, suffix: str, keys: tuple[str, ...], value: Any, document: Json) -> str:
    """Return a settings file's text with one setting changed; `document` is the parsed file afterwards."""
    if suffix == ".toml":
        return _change_toml(text, keys, value)
    if suffix in (".yaml", ".yml"):
        change = patch.remove_yaml_value if value is None else patch.set_yaml_value
        return preserve_newlines(text, lambda plain: change(plain, keys, document))
    if value is None:
        return json_edit.remove_members(text, keys[:-1], keys[-1:])
    return json_edit.set_value(text, keys, value)


def _change_toml(text: str, keys: tuple[str, ...], value: Any) -> str:
    if len(keys) == 1:
        return (
            toml_edit.remove_value(text, keys[0])
            if value is None
            else toml_edit.set_value(text, keys[0], value)
        )
    section, name = keys
    if value is None:
        return toml_edit.remove_tables(text, section, (name,))
    return toml_edit.set_table(text, section, name, value)


def _change_document(document: Json, keys: tuple[str, ...], value: Any) -> Json:
    """Return parsed settings with one setting changed, or removed if the value is None."""
    key, *rest = keys
    changed = dict(document)
    if rest:
        inner = changed.get(key)
        if inner is None and value is None:
            return changed
        if inner is not None and not isinstance(inner, dict):
            raise ConfigError(f"{key} is not a mapping in the program's file", hint="correct it by hand")
        changed[key] = _change_document(inner or {}, tuple(rest), value)
    elif value is None:
        changed.pop(key, None)
    else:
        changed[key] = copy.deepcopy(value)
    return changed


def _require_exact_change(settings_file: ClientFile, text: str, expected: Json) -> None:
    try:
        is_exact = is_equal(
            _without_empty(parse_document(text, settings_file.file)), _without_empty(expected)
        )
    except ConfigError:
        is_exact = False
    if not is_exact:
        raise ConfigError(
            "the settings cannot be changed without changing other parts of the file",
            file=str(settings_file.file),
            hint="edit the file by hand as described in docs/proxy.md",
        )


def _without_empty(document: Any) -> Any:
    """Return parsed settings without empty mappings, which can remain after a setting was removed."""
    if not isinstance(document, dict):
        return document
    kept = {key: _without_empty(value) for key, value in document.items()}
    return {key: value for key, value in kept.items() if value != {}}
