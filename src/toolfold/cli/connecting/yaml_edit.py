"""Set or remove entries of a section in YAML text, and leave all other text unchanged."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from toolfold.config import patch


def set_entry(text: str, section: str, name: str, document: Mapping[str, Any]) -> str:
    """Return the YAML text with one entry of a section set; `document` is the parsed YAML afterwards."""
    return preserve_newlines(text, lambda plain: patch.set_yaml_value(plain, (section, name), document))


def remove_entries(text: str, section: str, names: Collection[str], document: Mapping[str, Any]) -> str:
    """Return the YAML text without some entries of a section; `document` is the parsed YAML afterwards."""

    def remove_all(plain: str) -> str:
        for name in names:
            plain = patch.remove_yaml_value(plain, (section, name), document)
        return plain

    return preserve_newlines(text, remove_all)


def preserve_newlines(text: str, change: Any) -> str:
    """Apply the function `change` to a text, and preserve CRLF line ends."""
    uses_crlf = "\r\n" in text and text.count("\r\n") == text.count("\n")
    changed: str = change(text.replace("\r\n", "\n") if uses_crlf else text)
    return changed.replace("\n", "\r\n") if uses_crlf else changed
