"""Parse other clients' configuration files: JSON with or without comments, TOML and YAML.

The files may come from an untrusted repository, so size and depth are limited, and every error is a
ConfigError. Knows nothing of servers.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolfold.config.yaml_document import MAX_CONFIG_BYTES, SourceLocation, parse_value, read_text
from toolfold.core.errors import ConfigError
from toolfold.core.types import Json

# Claude Code stores its whole history in the file that contains its servers.
MAX_BYTES_WITH_HISTORY = 32 << 20
# tomllib needs memory quadratic in the number of parts of a key, and holds it for a whole table.
MAX_TOML_CHARS = 1 << 18
MAX_TOML_DOTS_PER_LINE = 100

# Each pattern also matches without its end, so that matching stays linear.
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
_COMMENTS = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_TRAILING_COMMAS = re.compile(rf"({_STRING})|,(?=\s*[\]}}])", re.DOTALL)


def read_document(file: Path, *, with_history: bool = False) -> Json:
    """Return the top-level mapping of a configuration file; empty for an empty file. Raises ConfigError."""
    text = read_text(file, limit=MAX_BYTES_WITH_HISTORY if with_history else MAX_CONFIG_BYTES)
    return parse_document(text, file)


def parse_document(text: str, file: Path) -> Json:
    """Return the top-level mapping of a text; the suffix of `file` selects the format."""
    if not text.strip():
        return {}
    try:
        document = _select_parser(file)(text)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise ConfigError(f"the file cannot be read: {why}", file=str(file)) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError("the top level of the file must be a mapping", file=str(file))
    return document


def strip_comments(text: str) -> str:
    """Return JSON without comments and trailing commas."""
    stripped = _COMMENTS.sub(lambda match: match[1] or " ", text)
    return _TRAILING_COMMAS.sub(lambda match: match[1] or "", stripped)


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
        raise ValueError(f"the TOML text is longer than {MAX_TOML_CHARS:,} characters, which is the limit")
    if any(line.count(".") > MAX_TOML_DOTS_PER_LINE for line in text.split("\n")):
        raise ValueError(
            f"a line of the TOML text has more than {MAX_TOML_DOTS_PER_LINE} dots, which is the limit"
        )
    return tomllib.loads(text)
