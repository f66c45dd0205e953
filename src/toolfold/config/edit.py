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

from toolfold.config.atomic import locked
from toolfold.config.authority import require_user
from toolfold.config.check import expand, from_text, settle, unfolded
from toolfold.config.describe import KeyPath, entries, field_at, names_at, not_a_setting
from toolfold.config.document import (
    MAX_BYTES,
    Node,
    Place,
    merged,
    nested,
    read_settings,
    read_text,
    written,
)
from toolfold.config.patch import assigned, removed
from toolfold.config.record import SettingsRecord, write_settings
from toolfold.config.trust import PROJECT_FILE
from toolfold.errors import ConfigError, nearest, shorten

PRIVATE_MODE = 0o600
"""The mode of settings files of a user, which may hold secrets."""


def written_value(file: Path, key: str) -> Any:
    """What a file itself says of a setting, whatever other layers say; None where it says nothing."""
    tree = _read(read_text(file) if file.exists() else "", file)
    node = tree.find(tuple(key.split(".")))
    return None if node is None else node.plain()


def set_value(
    file: Path, key: str, value: object, *, record: SettingsRecord | None = None
) -> tuple[str, ...]:
    """Write one setting into a file, which need not exist. Text is read as an argument would be.

    Returns what a person should know: that a number will be clamped, for one. `record` notes the change, so
    that a running runtime knows it for Toolfold's own.
    """
    path = tuple(key.split("."))
    field = field_at(path)
    if field is None:
        raise not_a_setting(path, names_at(path[:-1]))
    node = from_text(value, field, Place()) if isinstance(value, str) else written(value, Place())
    with _opened(file) as draft:
        _refuse_loss(draft, path, node)
        wanted = _put(draft.tree, path, node)
        remarks = _check_part(draft, wanted, path)
        _checked(wanted, file)
        remarks += draft.mode_remarks()
        draft.replace(assigned(draft.text, path, wanted.plain()), wanted, key, record)
    return remarks


def unset_value(file: Path, key: str, *, record: SettingsRecord | None = None) -> bool:
    """Take one setting out of a file. False if it is not in it."""
    path = tuple(key.split("."))
    if not file.exists():
        return _was_set(Node({}), path)
    with _opened(file) as draft:
        if not _was_set(draft.tree, path):
            return False
        path = _with_emptied_sections(draft, path)
        wanted = _dropped(draft.tree, path)
        _checked(wanted, file)
        draft.replace(removed(draft.text, path, wanted.plain()), wanted, key, record)
    return True


def rewrite(file: Path, text: str, *, record: SettingsRecord | None = None) -> tuple[str, ...]:
    """Replace a whole file by what a person wrote, if it can be used. Returns what they should know."""
    with _opened(file, anew=text) as draft:
        remarks = _checked(draft.tree, file) + draft.mode_remarks()
        write_settings(draft.file, text.encode(), record, mode=draft.mode)
    return remarks


@dataclass(frozen=True, slots=True)
class _Draft:
    """A file that is being changed."""

    file: Path
    text: str
    tree: Node
    newline: str

    def replace(self, text: str, wanted: Node, key: str, record: SettingsRecord | None) -> None:
        content = text.replace("\n", self.newline).encode()
        if len(content) > MAX_BYTES or not self._holds(text, wanted):
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

    def mode_remarks(self) -> tuple[str, ...]:
        """What to tell where the file was open to others and will not be."""
        if self.mode is None or os.name != "posix" or not self.file.exists():
            return ()
        before = stat.S_IMODE(self.file.stat().st_mode)
        if not before & (stat.S_IRWXG | stat.S_IRWXO):
            return ()
        return (f"others could read {self.file} (mode {before:04o}); now only you can ({PRIVATE_MODE:04o})",)

    def _holds(self, text: str, wanted: Node) -> bool:
        try:
            return bool(_read(text, self.file).plain() == wanted.plain())
        except ConfigError:
            return False


@contextmanager
def _opened(file: Path, *, anew: str | None = None) -> Iterator[_Draft]:
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
    with locked(target.parent):
        text = anew if anew is not None else read_text(target) if target.exists() else ""
        newline = "\r\n" if "\r\n" in text else "\n"
        text = text.replace("\r\n", "\n")
        yield _Draft(target, text, _read(text, file), newline)


def _read(text: str, file: Path) -> Node:
    return read_settings(text, Place("file", str(file)))


def _checked(tree: Node, file: Path) -> tuple[str, ...]:
    return tuple(settle(expand(tree, folder=file.parent, home=file.parent))[1])


def _check_part(draft: _Draft, wanted: Node, path: KeyPath) -> tuple[str, ...]:
    """Check the changed setting alone, so that remarks on other settings are not repeated.

    An entry that people name, such as a server, is checked as a whole: its settings depend on each other.
    """
    part = path[: _entry_depth(path)]
    node = wanted.find(part)
    try:
        return _checked(nested(part, node or Node(None)), draft.file)
    except ConfigError as error:
        is_new_server = part[:-1] == ("mcp", "servers") and part != path and draft.tree.find(part) is None
        if error.key != ".".join(part) or not is_new_server:
            raise
        raise _missing_entry(draft, part) from None


def _entry_depth(path: KeyPath) -> int:
    """The length of the path of the named entry that holds a setting, or of the path itself."""
    for depth in range(1, len(path)):
        field = field_at(path[:depth])
        if field is not None and entries(field) is not None:
            return depth + 1
    return len(path)


def _missing_entry(draft: _Draft, path: KeyPath) -> ConfigError:
    """The error for a setting of an entry that the file does not have."""
    section = draft.tree.find(path[:-1])
    names = list(section.value) if section is not None and isinstance(section.value, dict) else []
    near, key = nearest(path[-1], names, count=1), ".".join(path)
    hint = f"did you mean {near[0]}?" if near else f"in this file: {', '.join(names[:20]) or 'none'}"
    return ConfigError(f"there is no {shorten(key)}", key=key, file=str(draft.file), hint=hint)


def _was_set(tree: Node, path: KeyPath) -> bool:
    """A key that is no setting may still be in a file, and is then worth removing."""
    found = tree.find(path) is not None
    if not found and field_at(path) is None:
        raise not_a_setting(path, names_at(path[:-1]))
    return found


def _refuse_loss(draft: _Draft, path: KeyPath, node: Node) -> None:
    """A section that is set as a whole takes the place of the old one, with all that was in it."""
    before, key = draft.tree.find(path), ".".join(path)
    after = Node({}) if node.value is None else node
    if before is not None and merged(before, after).plain() != after.plain():
        raise ConfigError(
            f"{key} holds other settings, which would be lost",
            key=key,
            file=str(draft.file),
            hint=f"set one setting below {key} at a time, or unset {key} first",
        )


def _put(tree: Node, path: KeyPath, node: Node, above: KeyPath = ()) -> Node:
    if not path:
        return node
    field = field_at(above)
    opened = unfolded(tree, field) if field else tree
    items = dict(opened.value) if isinstance(opened.value, dict) else {}
    name = path[0]
    items[name] = _put(items.get(name, Node(None)), path[1:], node, (*above, name))
    return Node(items, tree.place)


def _dropped(tree: Node, path: KeyPath) -> Node:
    items = dict(tree.value)
    dropped = items.pop(path[0])
    if len(path) > 1:
        below = _dropped(dropped, path[1:])
        items[path[0]] = below if below.value else Node(None, below.place)  # `name:` with nothing below it
    return Node(items, tree.place)


def _with_emptied_sections(draft: _Draft, path: KeyPath) -> KeyPath:
    """The highest section that would be left empty, unless a person wrote comments into it.

    A toolset that has lost its last line is still a toolset, so it stays.
    """
    whole = path
    while len(whole) > 1 and path[0] != "toolsets" and _is_only_child(draft.tree, whole):
        whole = whole[:-1]
    kept = [removed(draft.text, each, _dropped(draft.tree, each).plain()) for each in (path, whole)]
    return whole if kept[0].count("#") == kept[1].count("#") else path


def _is_only_child(tree: Node, path: KeyPath) -> bool:
    parent = tree.find(path[:-1])
    return parent is not None and len(parent.value) == 1
