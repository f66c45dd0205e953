"""Changing YAML text: one entry of a map put in, entries taken out, as our own settings are changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from toolfold.config import patch


def assigned(text: str, section: str, name: str, whole: Mapping[str, Any]) -> str:
    """The text with the entry as it is in `whole`, the values the text shall have."""
    return _kept_lines(text, lambda plain: patch.set_yaml_value(plain, (section, name), whole))


def removed(text: str, section: str, names: Collection[str], whole: Mapping[str, Any]) -> str:
    """The text without these entries, which `whole` no longer has."""

    def cut(plain: str) -> str:
        for name in names:
            plain = patch.remove_yaml_value(plain, (section, name), whole)
        return plain

    return _kept_lines(text, cut)


def _kept_lines(text: str, change: Any) -> str:
    """Lines that all end as on Windows end so afterwards."""
    is_windows = "\r\n" in text and text.count("\r\n") == text.count("\n")
    changed: str = change(text.replace("\r\n", "\n") if is_windows else text)
    return changed.replace("\n", "\r\n") if is_windows else changed
