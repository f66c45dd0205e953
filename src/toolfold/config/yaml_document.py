"""Parse YAML text into a tree of values with their source locations.

Limited in size and depth, because a configuration file may come from a stranger's repository. Knows nothing
of which settings exist; `check` does.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from toolfold.core.errors import ConfigError, shorten

MAX_CONFIG_BYTES = 1 << 20
MAX_PROJECT_CONFIG_BYTES = 1 << 16
MAX_LINE_CHARS = 10_000
MAX_NODES = 50_000
MAX_DEPTH = 32

_CORE_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = frozenset(_CORE_TAG + name for name in ("str", "timestamp", "merge", "value"))
_ALLOWED_TAGS = MappingProxyType(
    {
        "scalar": _TEXT_TAGS | {_CORE_TAG + name for name in ("int", "float", "bool", "null")},
        "sequence": frozenset({_CORE_TAG + "seq"}),
        "mapping": frozenset({_CORE_TAG + "map"}),
    }
)


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """Origin of a setting: the kind of source, and the name of the file or environment variable."""

    source: str = ""
    name: str = ""
    line: int | None = None

    @property
    def file(self) -> str:
        """Return the name of the file, environment variable or argument, for error messages."""
        return self.name if self.source.endswith("file") else f"{self.source} {self.name}".strip()

    def __str__(self) -> str:
        return f"{self.source} {self.name}".strip() + (f":{self.line}" if self.line else "")

    def make_error(self, problem: str, line: int | None = None, hint: str = "") -> ConfigError:
        """Return a ConfigError that names this location; a line number is included only for files."""
        in_file = self.source.endswith("file")
        return ConfigError(problem, file=self.file, line=line if in_file else None, hint=hint)

    def with_line(self, line: int | None) -> SourceLocation:
        return SourceLocation(self.source, self.name, line)


@dataclass(frozen=True, slots=True)
class Node:
    """A value of a settings file with its source location. A mapping is a dict of nodes."""

    value: Any
    location: SourceLocation = SourceLocation()

    def to_python(self) -> Any:
        if isinstance(self.value, dict):
            return {name: child.to_python() for name, child in self.value.items()}
        return self.value

    def find(self, path: tuple[str | int, ...]) -> Node | None:
        node = self
        for name in path:
            if not isinstance(node.value, dict) or name not in node.value:
                return None
            node = node.value[name]
        return node

    def location_of(self, path: tuple[str | int, ...]) -> SourceLocation:
        """Return the source location of the setting at a path or, if it is not set, of its nearest parent."""
        node = self
        for name in path:
            if not isinstance(node.value, dict) or name not in node.value:
                break
            node = node.value[name]
        return node.location


def is_well_formed(text: str) -> bool:
    """Return True if a text has no lone surrogates, which cannot be encoded."""
    return not any("\ud800" <= each <= "\udfff" for each in text)


def node_from_value(value: Any, location: SourceLocation, depth: int = 0) -> Node:
    """Build a node from a Python value and its location."""
    if depth > MAX_DEPTH:
        raise location.make_error("the settings are nested too deeply")
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise location.make_error(f"{shorten(repr(name))} is not the name of a setting")
        return Node(
            {name: node_from_value(each, location, depth + 1) for name, each in value.items()}, location
        )
    if isinstance(value, (tuple, set, frozenset)):
        return Node(list(value), location)
    return Node(str(value) if isinstance(value, Path) else value, location)


def nest_node(path: tuple[str, ...], node: Node) -> Node:
    """Return a tree of settings that contains only the given node, nested below the keys of the path."""
    for name in reversed(path):
        node = Node({name: node}, node.location)
    return node


def merge_nodes(below: Node, above: Node) -> Node:
    """Merge two trees of settings: mappings key by key; other values of `above` replace those of `below`."""
    if not (isinstance(below.value, dict) and isinstance(above.value, dict)):
        return above
    items = dict(below.value)
    for name, child in above.value.items():
        items[name] = merge_nodes(items[name], child) if name in items else child
    return Node(items, above.location)


def read_settings_file(file: Path, source: str, *, limit: int = MAX_CONFIG_BYTES) -> Node:
    """Read and parse a settings file."""
    return parse_settings(read_text(file, limit=limit), SourceLocation(source, str(file)))


def read_text(file: Path, *, limit: int = MAX_CONFIG_BYTES) -> str:
    """Return the text of a file up to a size limit, without its byte order mark."""
    return decode_text(read_bytes(file, limit=limit), file)


def decode_text(data: bytes, file: Path) -> str:
    """Return the text of a file's content, without its byte order mark."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            "the file is not UTF-8 text", file=str(file), line=line, hint="save it as UTF-8"
        ) from None


def read_bytes(file: Path, *, limit: int = MAX_CONFIG_BYTES) -> bytes:
    """Return the content of a file up to a size limit."""
    data = _read_up_to(file, limit + 1)
    if len(data) > limit:
        size = "1 MiB" if limit == MAX_CONFIG_BYTES else f"{limit >> 10} KiB"
        raise ConfigError(f"the file is larger than {size}", file=str(file))
    return data


def _read_up_to(file: Path, count: int) -> bytes:
    try:
        mode = file.stat().st_mode
        # Reading a pipe could block forever. /dev/null, a character device, is used for "no file".
        if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
            raise ConfigError("the path is not a regular file", file=str(file))
        with file.open("rb") as stream:
            return stream.read(count)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"the file cannot be read: {reason}", file=str(file)) from None


def parse_settings(text: str, location: SourceLocation) -> Node:
    """Parse the text of a settings file to a tree of settings; an empty text gives an empty tree."""
    root = compose_yaml(text, location)
    if root is None or (root.id == "scalar" and root.tag == _CORE_TAG + "null"):
        return Node({}, location.with_line(1))
    if root.id != "mapping":
        line = root.start_mark.line + 1
        raise location.make_error(
            "the top level of the file must be a mapping", line, "write `name: value` lines"
        )
    return _NodeConverter(location).convert(root, location.with_line(1))


def parse_value(text: str, location: SourceLocation) -> Node:
    """Parse one value in YAML notation, from a command-line argument or an environment variable."""
    root = compose_yaml(text, location)
    return node_from_value(
        None if root is None else _NodeConverter(location).convert(root, location).to_python(), location
    )


def compose_yaml(text: str, location: SourceLocation) -> Any:
    """Return the YAML nodes of a text with their positions; None for an empty text."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        _check_line_lengths(text, location)
        _check_yaml_size(text, location)
        yaml = YAML(typ="safe", pure=True)
        yaml.composer.warn_double_anchors = False
        return yaml.compose(text)
    except YAMLError as error:
        raise _yaml_error(error, text, location) from None
    except ValueError:  # raised by ruamel for an escape beyond Unicode
        raise location.make_error("it contains an escape for a character that does not exist") from None


def _check_line_lengths(text: str, location: SourceLocation) -> None:
    """Raise ConfigError for long lines, because ruamel takes quadratic time for a long tag or anchor."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > MAX_LINE_CHARS:
            raise location.make_error(f"the line is longer than {MAX_LINE_CHARS} characters", number)


def _check_yaml_size(text: str, location: SourceLocation) -> None:
    """Raise ConfigError for deep or large YAML documents before they are parsed recursively."""
    from ruamel.yaml import YAML
    from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent

    depth = 0
    for count, event in enumerate(YAML(typ="safe", pure=True).parse(text)):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH or count > MAX_NODES:
            problem = "is nested too deeply" if depth > MAX_DEPTH else "has too many values"
            raise location.make_error(f"the YAML {problem}", event.start_mark.line + 1)


def _yaml_error(error: Any, text: str, location: SourceLocation) -> ConfigError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    before = text.count("\n", 0, getattr(error, "position", 0))
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be parsed"
    hint = "indent with spaces, not with tabs" if "'\\t'" in problem else ""
    line = (mark.line if mark is not None else before) + 1
    return location.make_error(f"this is not valid YAML: {problem}", line, hint)


class _NodeConverter:
    """Converts YAML nodes to Node and counts them, because aliases can make a small file very large."""

    def __init__(self, location: SourceLocation) -> None:
        from ruamel.yaml import YAML

        self._location = location
        self._left = MAX_NODES
        self._construct = YAML(typ="safe", pure=True).constructor.construct_object

    def convert(self, source: Any, location: SourceLocation, depth: int = 0) -> Node:
        if source.id != "mapping":
            return Node(self._convert_value(source, depth), location)
        self._check_node(source, depth)
        items: dict[str, Node] = {}
        for key, value in source.value:
            name = self._parse_key(key)
            if name in items:
                first = items[name].location.line
                raise self._error_at(f"{shorten(name)} is set twice", key, hint=f"first on line {first}")
            items[name] = self.convert(value, self._location.with_line(key.start_mark.line + 1), depth + 1)
        return Node(items, location)

    def _convert_value(self, source: Any, depth: int) -> Any:
        self._check_node(source, depth)
        if source.id == "sequence":
            return [self._convert_value(each, depth + 1) for each in source.value]
        if source.id == "mapping":
            return {
                self._parse_key(key): self._convert_value(value, depth + 1) for key, value in source.value
            }
        return self._convert_scalar(source)

    def _convert_scalar(self, source: Any) -> Any:
        if source.tag in _TEXT_TAGS:
            return source.value
        try:
            value = self._construct(source)
            str(value)  # raises ValueError for an integer that is too large to print
        except (ValueError, LookupError):
            problem = f"{shorten(source.value, 40)!r} cannot be read as a value"
            raise self._error_at(problem, source) from None
        return value

    def _parse_key(self, key: Any) -> str:
        if key.id != "scalar" or key.tag not in _TEXT_TAGS:
            what = shorten(str(key.value), 40) if key.id == "scalar" else f"a {key.id}"
            raise self._error_at(f"{what} is not the name of a setting", key, hint="names are text")
        if not is_well_formed(name := str(key.value)):
            raise self._error_at("the name of a setting contains a lone surrogate", key)
        return name

    def _check_node(self, source: Any, depth: int) -> None:
        self._left -= 1
        if source.tag not in _ALLOWED_TAGS[source.id]:
            raise self._error_at(f"the YAML tag {shorten(source.tag)} is not supported", source)
        if depth > MAX_DEPTH:
            raise self._error_at("the YAML is nested too deeply", source)
        if self._left < 0:
            raise self._error_at("the YAML aliases expand to too many values", source)

    def _error_at(self, problem: str, source: Any, *, hint: str = "") -> ConfigError:
        return self._location.make_error(problem, source.start_mark.line + 1, hint)
