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

from toolfold.config.document import MAX_BYTES, Place, read_text, read_value
from toolfold.errors import ConfigError
from toolfold.model import Json

# One program keeps its whole history in the file that names its servers.
MOST_BYTES_WITH_HISTORY = 32 << 20
# The reader of TOML needs memory by the square of the parts of a key, and keeps it for a whole table.
MOST_TOML = 1 << 18
MOST_DOTS = 100

# Each piece also matches where its end is missing, so that no character is looked at twice.
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
_COMMENTS = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_LAST_COMMAS = re.compile(rf"({_STRING})|,(?=\s*[\]}}])", re.DOTALL)


def read_document(file: Path, *, with_history: bool = False) -> Json:
    """The map a file holds; an empty file holds none. Raises ConfigError."""
    text = read_text(file, limit=MOST_BYTES_WITH_HISTORY if with_history else MAX_BYTES)
    return parse(text, file)


def parse(text: str, file: Path) -> Json:
    """The map a text holds, read as the file's name says."""
    if not text.strip():
        return {}
    try:
        held = _parser(file)(text)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise ConfigError(f"the file cannot be read: {why}", file=str(file)) from None
    if held is None:
        return {}
    if not isinstance(held, dict):
        raise ConfigError("the file holds no map", file=str(file))
    return held


def without_comments(text: str) -> str:
    """JSON as editors let people write it, as JSON: comments and commas before a closing bracket are gone."""
    bare = _COMMENTS.sub(lambda found: found[1] or " ", text)
    return _LAST_COMMAS.sub(lambda found: found[1] or "", bare)


def _parser(file: Path) -> Callable[[str], Any]:
    if file.suffix == ".toml":
        return _toml
    if file.suffix in (".yaml", ".yml"):
        return lambda text: read_value(text, Place("file", str(file))).plain()
    return _json


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        if len(text) > MAX_BYTES:
            raise
        return json.loads(without_comments(text))


def _toml(text: str) -> Any:
    if len(text) > MOST_TOML:
        raise ValueError(f"it is longer than {MOST_TOML:,} characters")
    if any(line.count(".") > MOST_DOTS for line in text.split("\n")):
        raise ValueError(f"a line has more than {MOST_DOTS} dots")
    return tomllib.loads(text)
