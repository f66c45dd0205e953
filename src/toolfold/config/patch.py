"""Change or remove one value in YAML text, and leave all other text unchanged.

Edits the text at the positions of the YAML nodes, so comments, order, quotes and indentation stay. Does not
support all of YAML: the caller must parse the result again.
"""

from __future__ import annotations

import json
import re
from typing import Any

from toolfold.config.describe import KeyPath
from toolfold.config.yaml_document import SourceLocation, compose_yaml

_PLAIN_SCALAR = re.compile(r"(?:[A-Za-z]|\.{0,2}/|~/)[\w./~:@+-]*(?<!:)", re.ASCII)
_LIST_DASH = re.compile(" *- +")
_RESERVED_WORDS = frozenset({"null", "true", "false"})


def set_yaml_value(text: str, path: KeyPath, whole: Any) -> str:
    """Return the YAML text with the value at the path changed; `whole` is the document after the change."""
    root = compose_yaml(text, SourceLocation())
    if root is None or _is_empty(root):
        start = text if not text or text.endswith("\n") else text + "\n"
        return start + _render_block(path, _value_at(whole, path), 0) + "\n"
    if not _is_block_mapping(root):
        return text[: root.start_mark.index] + render_value(whole) + text[root.end_mark.index :]
    mapping = root
    for depth, name in enumerate(path):
        pair, rest = _find_pair(mapping, name), path[depth + 1 :]
        if pair is None:
            return _insert_key(text, mapping, path[depth:], _value_at(whole, path))
        if rest and _is_empty(pair[1]):
            end = _line_end(text, _after_colon(text, pair[0]))
            block = _render_block(rest, _value_at(whole, path), pair[0].start_mark.column + 2)
            return f"{text[:end]}\n{block}{text[end:]}"
        if not rest or not _is_block_mapping(pair[1]):
            return _replace_value(text, pair, _value_at(whole, path[: depth + 1]))
        mapping = pair[1]
    return text


def remove_yaml_value(text: str, path: KeyPath, whole: Any) -> str:
    """Return the YAML text without the value at the path; `whole` is the document after the removal."""
    root = compose_yaml(text, SourceLocation())
    if not _is_block_mapping(root):
        return text[: root.start_mark.index] + render_value(whole) + text[root.end_mark.index :]
    mapping = root
    for depth, name in enumerate(path):
        pair = _find_pair(mapping, name)
        if pair is None:
            return text
        if depth == len(path) - 1:
            start = _line_start(text, pair[0].start_mark.index)
            return text[:start] + text[_line_end(text, _pair_end(text, pair)) + 1 :]
        if not _is_block_mapping(pair[1]):
            return _replace_value(text, pair, _value_at(whole, path[: depth + 1]))
        mapping = pair[1]
    return text


def render_value(value: Any) -> str:
    """Render a value as YAML on one line, in the simplest safe notation."""
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{render_value(key)}: {render_value(each)}" for key, each in value.items()) + "}"
        )
    if isinstance(value, list):
        return f"[{', '.join(map(render_value, value))}]"
    if isinstance(value, str):
        bare = _PLAIN_SCALAR.fullmatch(value) and value.lower() not in _RESERVED_WORDS
        return value if bare else f'"{"".join(map(_escape_character, value))}"'
    return json.dumps(value)


def _escape_character(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08X}"


def _render_block(path: KeyPath, value: Any, indent: int) -> str:
    lines = [" " * (indent + 2 * depth) + f"{render_value(name)}:" for depth, name in enumerate(path)]
    return "\n".join(lines) + " " + render_value(value)


def _insert_key(text: str, mapping: Any, path: KeyPath, value: Any) -> str:
    """Insert a key right below the last key of its YAML mapping, before comments that follow."""
    end = _line_end(text, _pair_end(text, mapping.value[-1]))
    indent = mapping.value[0][0].start_mark.column
    return f"{text[:end]}\n{_render_block(path, value, indent)}{text[end:]}"


def _replace_value(text: str, pair: tuple[Any, Any], value: Any) -> str:
    key, node = pair
    colon = _after_colon(text, key)
    new = " " + render_value(value)
    if _is_empty(node):
        return text[:colon] + new + text[colon:]
    if not _is_alias(pair) and (changed := _replace_list_items(text, node, value)) is not None:
        return changed
    start, end = node.start_mark.index, _pair_end(text, pair)
    if node.id != "scalar" and not node.flow_style:
        # Remove the block below the key, but keep comments between the key and the block.
        between = text[colon : _line_start(text, start) - 1]
        return text[:colon] + new + between + text[_line_end(text, end) :]
    return text[:start] + (new if text[start - 1] == ":" else new[1:]) + text[end:]


def _replace_list_items(text: str, node: Any, value: Any) -> str | None:
    """Return the text with a YAML block list changed, keeping the lines of unchanged items.

    None if no item stays, or if an item is not a scalar on its own line.
    """
    if node.id != "sequence" or node.flow_style or not isinstance(value, list):
        return None
    lines = [_item_line_span(text, item) for item in node.value]
    wanted, dropped = list(value), list[tuple[int, int]]()
    for item, line in zip(node.value, lines, strict=True):
        if line is None:
            return None
        if wanted and item.value == wanted[0]:
            wanted.pop(0)
        else:
            dropped.append(line)
    if len(dropped) == len(lines) or lines[-1] is None:
        return None
    end, indent = lines[-1][1], " " * node.start_mark.column
    text = text[:end] + "".join(f"\n{indent}- {render_value(each)}" for each in wanted) + text[end:]
    for start, stop in reversed(dropped):
        text = text[:start] + text[stop + 1 :]
    return text


def _item_line_span(text: str, item: Any) -> tuple[int, int] | None:
    """Return the start and end of a YAML list item's line; None if the item is not exactly one line."""
    start, end = item.start_mark.index, _node_end(text, item)
    begin = _line_start(text, start)
    simple = item.id == "scalar" and _LIST_DASH.fullmatch(text, begin, start) and "\n" not in text[start:end]
    return (begin, _line_end(text, end)) if simple else None


def _pair_end(text: str, pair: tuple[Any, Any]) -> int:
    """Return the end position of a YAML key-value pair, without the comments that follow."""
    key, node = pair
    if _is_alias(pair) or _is_empty(node):
        return _after_colon(text, key)
    return _node_end(text, node)


def _is_alias(pair: tuple[Any, Any]) -> bool:
    key, node = pair
    return bool(node.start_mark.index < key.start_mark.index)


def _node_end(text: str, node: Any) -> int:
    start, end = node.start_mark.index, node.end_mark.index
    if node.id == "scalar":
        return int(start + len(text[start:end].rstrip()))
    if node.flow_style:
        return int(end)
    last = node.value[-1]
    return _pair_end(text, last) if node.id == "mapping" else _node_end(text, last)


def _find_pair(mapping: Any, name: str) -> tuple[Any, Any] | None:
    return next((pair for pair in mapping.value if pair[0].value == name), None)


def _is_empty(node: Any) -> bool:
    return bool(node.id == "scalar" and node.value == "" and not node.style)


def _is_block_mapping(node: Any) -> bool:
    return bool(node.id == "mapping" and not node.flow_style)


def _after_colon(text: str, key: Any) -> int:
    return text.find(":", key.end_mark.index) + 1


def _line_start(text: str, index: int) -> int:
    return text.rfind("\n", 0, index) + 1


def _line_end(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end


def _value_at(whole: Any, path: KeyPath) -> Any:
    for name in path:
        whole = whole[name]
    return whole
