"""Change one setting in a file, and leave all other text unchanged.

The new content is validated, and parsed again to make sure that it has exactly the intended change, before
the file is replaced; otherwise the file stays as it is. Knows nothing of layers: it changes the given file,
whether or not another one overrides it.
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
from toolfold.config.patch import remove_yaml_value, set_yaml_value
from toolfold.config.project_trust import PROJECT_FILE
from toolfold.config.record import SettingsRecord, write_settings
from toolfold.config.yaml_document import (
    MAX_CONFIG_BYTES,
    Node,
    SourceLocation,
    merge_nodes,
    nest_node,
    node_from_value,
    parse_settings,
    read_text,
)
from toolfold.core.errors import ConfigError, closest_names, shorten

PRIVATE_MODE = 0o600
"""Mode of a user's settings files, which may contain secrets."""


def read_file_value(file: Path, key: str) -> Any:
    """Return the value of a setting as written in one settings file; None if the file does not set it."""
    tree = _parse_text(read_text(file) if file.exists() else "", file)
    node = tree.find(tuple(key.split(".")))
    return None if node is None else node.to_python()


def set_value(
    file: Path, key: str, value: object, *, record: SettingsRecord | None = None
) -> tuple[str, ...]:
    """Write one setting to a file, which need not exist. A string is parsed as on the command line.

    Returns warnings for the user, such as that a number will be clamped. `record` notes the change, so that a
    running runtime recognises it as made by Toolfold.
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
        warnings = _check_part(draft, wanted, path)
        _check_tree(wanted, file)
        warnings += draft.mode_warnings()
        draft.write(set_yaml_value(draft.text, path, wanted.to_python()), wanted, key, record)
    return warnings


def unset_value(file: Path, key: str, *, record: SettingsRecord | None = None) -> bool:
    """Remove one setting from a file; return False if the file does not set it."""
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
    """Replace the whole content of a settings file if it is valid; return warnings for the user."""
    with _open_draft(file, new_text=text) as draft:
        warnings = _check_tree(draft.tree, file) + draft.mode_warnings()
        write_settings(draft.file, text.encode(), record, mode=draft.mode)
    return warnings


@dataclass(frozen=True, slots=True)
class _FileDraft:
    """Draft of a settings file that is being changed."""

    file: Path
    text: str
    tree: Node
    newline: str

    def write(self, text: str, wanted: Node, key: str, record: SettingsRecord | None) -> None:
        content = text.replace("\n", self.newline).encode()
        if len(content) > MAX_CONFIG_BYTES or not self._reads_back_as(text, wanted):
            raise ConfigError(
                f"{key} cannot be changed without changing other parts of the file",
                key=key,
                file=str(self.file),
                hint="edit the file by hand",
            )
        write_settings(self.file, content, record, mode=self.mode)

    @property
    def mode(self) -> int | None:
        """Return the file mode for writing the settings; None keeps the mode, for a project's file."""
        return None if self.file.name == PROJECT_FILE else PRIVATE_MODE

    def mode_warnings(self) -> tuple[str, ...]:
        """Return a warning if other users can read the settings file now but not after the change."""
        if self.mode is None or os.name != "posix" or not self.file.exists():
            return ()
        before = stat.S_IMODE(self.file.stat().st_mode)
        if not before & (stat.S_IRWXG | stat.S_IRWXO):
            return ()
        return (
            f"others could read {self.file} (mode {before:04o}); now only you can (mode {PRIVATE_MODE:04o})",
        )

    def _reads_back_as(self, text: str, wanted: Node) -> bool:
        try:
            return bool(_parse_text(text, self.file).to_python() == wanted.to_python())
        except ConfigError:
            return False


@contextmanager
def _open_draft(file: Path, *, new_text: str | None = None) -> Iterator[_FileDraft]:
    """Lock a settings file and yield a draft that can be changed, with the current text or `new_text`."""
    try:
        target = file.resolve()
    except (
        OSError,
        RuntimeError,
    ):  # a link to itself; which error is raised depends on the version of Python
        raise ConfigError("the settings file is a link that cannot be resolved", file=str(file)) from None
    # The settings file of a stranger's repository may be a link to one of the user's files.
    if file.name == PROJECT_FILE and not target.is_relative_to(file.parent.resolve()):
        raise ConfigError(
            "the settings file is a link that points outside of the project's directory",
            file=str(file),
            hint=f"change {target} itself",
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
    return tuple(build_settings(expand_shorthands(tree, directory=file.parent, home=file.parent))[1])


def _check_part(draft: _FileDraft, wanted: Node, path: KeyPath) -> tuple[str, ...]:
    """Validate only the changed setting; return the warnings about it.

    A named entry, such as a server, is validated as a whole: its settings depend on each other.
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
    """Return how many keys of a path lead to a named entry: 3 for `mcp.servers.NAME.command`.

    Without a named entry, it is the length of the path.
    """
    for depth in range(1, len(path)):
        field = find_field(path[:depth])
        if field is not None and entry_type(field) is not None:
            return depth + 1
    return len(path)


def _missing_entry(draft: _FileDraft, path: KeyPath) -> ConfigError:
    """Return the error for a named entry, such as a server, that the settings file does not contain."""
    section = draft.tree.find(path[:-1])
    names = list(section.value) if section is not None and isinstance(section.value, dict) else []
    near, key = closest_names(path[-1], names, count=1), ".".join(path)
    hint = f"did you mean {near[0]}?" if near else f"in this file: {', '.join(names[:20]) or 'none'}"
    return ConfigError(f"there is no {shorten(key)}", key=key, file=str(draft.file), hint=hint)


def _is_set(tree: Node, path: KeyPath) -> bool:
    """Return True if the settings file sets the key at the path. Raises ConfigError for an unknown key."""
    is_set = tree.find(path) is not None
    if not is_set and find_field(path) is None:
        raise unknown_setting_error(path, list_names(path[:-1]))
    return is_set


def _require_no_loss(draft: _FileDraft, path: KeyPath, node: Node) -> None:
    """Raise ConfigError if replacing a section would remove settings that the file contains."""
    before, key = draft.tree.find(path), ".".join(path)
    after = Node({}) if node.value is None else node
    if before is not None and merge_nodes(before, after).to_python() != after.to_python():
        raise ConfigError(
            f"{key} contains other settings, which would be lost",
            key=key,
            file=str(draft.file),
            hint=f"set the parts of {key} one at a time, such as {key}.NAME, or unset {key} first",
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
        items[path[0]] = below if below.value else Node(None, below.location)  # written as `name:`
    return Node(items, tree.location)


def _widen_to_empty_sections(draft: _FileDraft, path: KeyPath) -> KeyPath:
    """Return the path to remove: the setting, or the outermost section that would be empty without it.

    An empty toolset is still a toolset, so it stays.
    """
    whole = path
    while len(whole) > 1 and path[0] != "toolsets" and _is_only_child(draft.tree, whole):
        whole = whole[:-1]
    results = [
        remove_yaml_value(draft.text, each, _remove_node(draft.tree, each).to_python())
        for each in (path, whole)
    ]
    return whole if results[0].count("#") == results[1].count("#") else path


def _is_only_child(tree: Node, path: KeyPath) -> bool:
    parent = tree.find(path[:-1])
    return parent is not None and len(parent.value) == 1
