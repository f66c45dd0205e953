"""Changing one setting in a file, and nothing else in it.

What would be written is checked as settings, and read back to hold exactly the wanted change, before
the file is replaced; where it does not, the file is left to the person who wrote it.
Knows nothing of layers: it changes the file it is given, whether or not another one overrules it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolfold.config.atomic import lock_directory
from toolfold.config.authority import require_user
from toolfold.config.check import build_settings, expand_section, expand_shorthands, parse_text_value
from toolfold.config.describe import KeyPath, entry_type, find_field, list_names, unknown_setting_error
from toolfold.config.document import (
    MAX_CONFIG_BYTES,
    Node,
    SourceLocation,
    merge_nodes,
    nest_node,
    node_from_value,
    parse_settings,
    read_text,
)
from toolfold.config.patch import remove_yaml_value, set_yaml_value
from toolfold.config.record import SettingsRecord, write_settings
from toolfold.config.trust import PROJECT_FILE
from toolfold.errors import ConfigError, nearest, shorten

PRIVATE_MODE = 0o600
"""The mode of settings files of a user, which may hold secrets."""


def read_file_value(file: Path, key: str) -> Any:
    """What a file itself says of a setting, whatever other layers say; None where it says nothing."""
    tree = _parse_text(read_text(file) if file.exists() else "", file)
    node = tree.find(tuple(key.split(".")))
    return None if node is None else node.to_python()


def set_value(
    file: Path, key: str, value: object, *, record: SettingsRecord | None = None
) -> tuple[str, ...]:
    """Write one setting into a file, which need not exist. Text is read as an argument would be.

    Returns what a person should know: that a number will be clamped, for one. `record` notes the change, so
    that a running runtime knows it for Toolfold's own.
    """
    path = tuple(key.split("."))
    field = find_field(path)
    if field is None:
        raise unknown_setting_error(path, list_names(path[:-1]))
    node = (
        parse_text_value(value, field, SourceLocation())
        if isinstance(value, str)
        else node_from_value(value, SourceLocation())
    )
    with _open_draft(file) as draft:
        _require_no_loss(draft, path, node)
        wanted = _set_node(draft.tree, path, node)
        remarks = _check_part(draft, wanted, path)
        _check_tree(wanted, file)
        remarks += draft.mode_warnings()
        draft.write(set_yaml_value(draft.text, path, wanted.to_python()), wanted, key, record)
    return remarks


def unset_value(file: Path, key: str, *, record: SettingsRecord | None = None) -> bool:
    """Take one setting out of a file. False if it is not in it."""
    path = tuple(key.split("."))
    if not file.exists():
        return _is_set(Node({}), path)
    with _open_draft(file) as draft:
        if not _is_set(draft.tree, path):
            return False
        path = _widen_to_empty_sections(draft, path)
        wanted = _remove_node(draft.tree, path)
        _check_tree(wanted, file)
        draft.write(remove_yaml_value(draft.text, path, wanted.to_python()), wanted, key, record)
    return True


def replace_settings(file: Path, text: str, *, record: SettingsRecord | None = None) -> tuple[str, ...]:
    """Replace a whole file by what a person wrote, if it can be used. Returns what they should know."""
    with _open_draft(file, new_text=text) as draft:
        remarks = _check_tree(draft.tree, file) + draft.mode_warnings()
        write_settings(draft.file, text.encode(), record, mode=draft.mode)
    return remarks


@dataclass(frozen=True, slots=True)
class _FileDraft:
    """A file that is being changed."""

    file: Path
    text: str
    tree: Node
    newline: str

    def write(self, text: str, wanted: Node, key: str, record: SettingsRecord | None) -> None:
        content = text.replace("\n", self.newline).encode()
        if len(content) > MAX_CONFIG_BYTES or not self._reads_back_as(text, wanted):
            raise ConfigError(
                f"{key} cannot be changed without changing something else in the file",
                key=key,
                file=str(self.file),
                hint="change it by hand",
            )
        write_settings(self.file, content, record, mode=self.mode)

    @property
    def mode(self) -> int | None:
        """The mode to write with. None keeps that of a project's file, which is shared."""
        return None if self.file.name == PROJECT_FILE else PRIVATE_MODE

    def mode_warnings(self) -> tuple[str, ...]:
        """What to tell where the file was open to others and will not be."""
        if self.mode is None or os.name != "posix" or not self.file.exists():
            return ()
        before = stat.S_IMODE(self.file.stat().st_mode)
        if not before & (stat.S_IRWXG | stat.S_IRWXO):
            return ()
        return (f"others could read {self.file} (mode {before:04o}); now only you can ({PRIVATE_MODE:04o})",)

    def _reads_back_as(self, text: str, wanted: Node) -> bool:
        try:
            return bool(_parse_text(text, self.file).to_python() == wanted.to_python())
        except ConfigError:
            return False


@contextmanager
def _open_draft(file: Path, *, new_text: str | None = None) -> Iterator[_FileDraft]:
    """The file, or the one a link leads to, or what is to stand there, with every other writer kept out."""
    try:
        target = file.resolve()
    except (OSError, RuntimeError):  # which of them a link to itself raises depends on Python
        raise ConfigError("the link leads nowhere", file=str(file)) from None
    # A stranger's repository may hold its settings file as a link to a file of yours.
    if file.name == PROJECT_FILE and not target.is_relative_to(file.parent.resolve()):
        raise ConfigError(
            "the link leads out of the project's folder", file=str(file), hint=f"change {target} itself"
        )
    require_user(f"changing {target}")
    with lock_directory(target.parent):
        text = new_text if new_text is not None else read_text(target) if target.exists() else ""
        newline = "\r\n" if "\r\n" in text else "\n"
        text = text.replace("\r\n", "\n")
        yield _FileDraft(target, text, _parse_text(text, file), newline)


def _parse_text(text: str, file: Path) -> Node:
    return parse_settings(text, SourceLocation("file", str(file)))


def _check_tree(tree: Node, file: Path) -> tuple[str, ...]:
    return tuple(build_settings(expand_shorthands(tree, folder=file.parent, home=file.parent))[1])


def _check_part(draft: _FileDraft, wanted: Node, path: KeyPath) -> tuple[str, ...]:
    """Check the changed setting alone, so that remarks on other settings are not repeated.

    An entry that people name, such as a server, is checked as a whole: its settings depend on each other.
    """
    part = path[: _entry_depth(path)]
    node = wanted.find(part)
    try:
        return _check_tree(nest_node(part, node or Node(None)), draft.file)
    except ConfigError as error:
        is_new_server = part[:-1] == ("mcp", "servers") and part != path and draft.tree.find(part) is None
        if error.key != ".".join(part) or not is_new_server:
            raise
        raise _missing_entry(draft, part) from None


def _entry_depth(path: KeyPath) -> int:
    """The length of the path of the named entry that holds a setting, or of the path itself."""
    for depth in range(1, len(path)):
        field = find_field(path[:depth])
        if field is not None and entry_type(field) is not None:
            return depth + 1
    return len(path)


def _missing_entry(draft: _FileDraft, path: KeyPath) -> ConfigError:
    """The error for a setting of an entry that the file does not have."""
    section = draft.tree.find(path[:-1])
    names = list(section.value) if section is not None and isinstance(section.value, dict) else []
    near, key = nearest(path[-1], names, count=1), ".".join(path)
    hint = f"did you mean {near[0]}?" if near else f"in this file: {', '.join(names[:20]) or 'none'}"
    return ConfigError(f"there is no {shorten(key)}", key=key, file=str(draft.file), hint=hint)


def _is_set(tree: Node, path: KeyPath) -> bool:
    """A key that is no setting may still be in a file, and is then worth removing."""
    found = tree.find(path) is not None
    if not found and find_field(path) is None:
        raise unknown_setting_error(path, list_names(path[:-1]))
    return found


def _require_no_loss(draft: _FileDraft, path: KeyPath, node: Node) -> None:
    """A section that is set as a whole takes the place of the old one, with all that was in it."""
    before, key = draft.tree.find(path), ".".join(path)
    after = Node({}) if node.value is None else node
    if before is not None and merge_nodes(before, after).to_python() != after.to_python():
        raise ConfigError(
            f"{key} holds other settings, which would be lost",
            key=key,
            file=str(draft.file),
            hint=f"set one setting below {key} at a time, or unset {key} first",
        )


def _set_node(tree: Node, path: KeyPath, node: Node, above: KeyPath = ()) -> Node:
    if not path:
        return node
    field = find_field(above)
    opened = expand_section(tree, field) if field else tree
    items = dict(opened.value) if isinstance(opened.value, dict) else {}
    name = path[0]
    items[name] = _set_node(items.get(name, Node(None)), path[1:], node, (*above, name))
    return Node(items, tree.location)


def _remove_node(tree: Node, path: KeyPath) -> Node:
    items = dict(tree.value)
    dropped = items.pop(path[0])
    if len(path) > 1:
        below = _remove_node(dropped, path[1:])
        items[path[0]] = below if below.value else Node(None, below.location)  # `name:` with nothing below it
    return Node(items, tree.location)


def _widen_to_empty_sections(draft: _FileDraft, path: KeyPath) -> KeyPath:
    """The highest section that would be left empty, unless a person wrote comments into it.

    A toolset that has lost its last line is still a toolset, so it stays.
    """
    whole = path
    while len(whole) > 1 and path[0] != "toolsets" and _is_only_child(draft.tree, whole):
        whole = whole[:-1]
    kept = [
        remove_yaml_value(draft.text, each, _remove_node(draft.tree, each).to_python())
        for each in (path, whole)
    ]
    return whole if kept[0].count("#") == kept[1].count("#") else path


def _is_only_child(tree: Node, path: KeyPath) -> bool:
    parent = tree.find(path[:-1])
    return parent is not None and len(parent.value) == 1
