"""Marking of text that comes from outside: from MCP servers, web pages and search results.

A marker is a function that returns a text with suspicious parts marked as data. This module applies one to
all texts of a value; which parts are suspicious is the marker's decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolfold.model import make_encodable

__all__ = ["MAX_VALUE_DEPTH", "TextMarker", "leave_unmarked", "mark_texts"]

TextMarker = Callable[[str], str]

MAX_VALUE_DEPTH = 64


def leave_unmarked(text: str) -> str:
    """Return the text unchanged."""
    return text


def mark_texts(value: Any, mark: TextMarker, depth: int = 0) -> Any:
    """Return a value with every text in it marked."""
    if depth > MAX_VALUE_DEPTH:
        return "… (nested too deeply)"
    if isinstance(value, str):
        return mark(make_encodable(value))
    if isinstance(value, Mapping):
        return {
            mark(make_encodable(str(key))): mark_texts(each, mark, depth + 1) for key, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [mark_texts(each, mark, depth + 1) for each in value]
    return value
