"""What became of a source, for people."""

from __future__ import annotations

from dataclasses import dataclass

from toolfold.errors import shorten

LOADED = "loaded"
FAILED = "failed"
DISABLED = "disabled"
UNTRUSTED = "untrusted"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """One source: where it is, how it fared and what it brought."""

    kind: str
    """`builtin`, `entry point`, `user folder` or `project folder`."""
    name: str
    state: str
    location: str = ""
    error: str = ""
    tools: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    toolsets: tuple[str, ...] = ()


def reason(error: BaseException) -> str:
    """Why a source failed. The exception is foreign code too: its message may raise in turn."""
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:
        said = type(error).__name__
    return shorten(said, 500)
