"""Report on loading one source of tools, for display."""

from __future__ import annotations

from dataclasses import dataclass

from toolfold.core.errors import shorten

LOADED = "loaded"
FAILED = "failed"
DISABLED = "disabled"
UNTRUSTED = "untrusted"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """Result of loading one source of tools: location, state, error and registered tools."""

    kind: str
    """`builtin`, `entry point`, `user folder` or `project folder`."""
    name: str
    state: str
    location: str = ""
    error: str = ""
    tools: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    toolsets: tuple[str, ...] = ()


def describe_exception(error: BaseException) -> str:
    """Return type and message of an exception, even if formatting the message raises."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    return shorten(text, 500)
