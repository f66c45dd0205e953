"""Other programs' files as plain data: JSON with or without comments, TOML, YAML.

The files may come with a stranger's repository, so their size and depth are bounded and every way in which
they can be broken is a ConfigError. Knows nothing of servers.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolfold.config.document import MAX_CONFIG_BYTES, SourceLocation, parse_value, read_text
from toolfold.errors import ConfigError
from toolfold.model import Json

# One program keeps its whole history in the file that names its servers.
MAX_BYTES_WITH_HISTORY = 32 << 20
# The reader of TOML needs memory by the square of the parts of a key, and keeps it for a whole table.
MAX_TOML_CHARS = 1 << 18
MAX_TOML_DOTS_PER_LINE = 100

# Each piece also matches where its end is missing, so that no character is looked at twice.
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
_COMMENTS = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_TRAILING_COMMAS = re.compile(rf"({_STRING})|,(?=\s*[\]}}])", re.DOTALL)


def read_document(file: Path, *, with_history: bool = False) -> Json:
    """The map a file holds; an empty file holds none. Raises ConfigError."""
    text = read_text(file, limit=MAX_BYTES_WITH_HISTORY if with_history else MAX_CONFIG_BYTES)
    return parse_document(text, file)


def parse_document(text: str, file: Path) -> Json:
    """The map a text holds, read as the file's name says."""
    if not text.strip():
        return {}
    try:
        held = _select_parser(file)(text)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise ConfigError(f"the file cannot be read: {why}", file=str(file)) from None
    if held is None:
        return {}
    if not isinstance(held, dict):
        raise ConfigError("the file holds no map", file=str(file))
    return held


def strip_comments(text: str) -> str:
    """JSON as editors let people write it, as JSON: comments and commas before a closing bracket are gone."""
    bare = _COMMENTS.sub(lambda found: found[1] or " ", text)
    return _TRAILING_COMMAS.sub(lambda found: found[1] or "", bare)


def _select_parser(file: Path) -> Callable[[str], Any]:
    if file.suffix == ".toml":
        return _parse_toml
    if file.suffix in (".yaml", ".yml"):
        return lambda text: parse_value(text, SourceLocation("file", str(file))).to_python()
    return _parse_json


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        if len(text) > MAX_CONFIG_BYTES:
            raise
        return json.loads(strip_comments(text))


def _parse_toml(text: str) -> Any:
    if len(text) > MAX_TOML_CHARS:
        raise ValueError(f"it is longer than {MAX_TOML_CHARS:,} characters")
    if any(line.count(".") > MAX_TOML_DOTS_PER_LINE for line in text.split("\n")):
        raise ValueError(f"a line has more than {MAX_TOML_DOTS_PER_LINE} dots")
    return tomllib.loads(text)
