"""Loading of the MCP SDK, which is large and therefore loaded when it is first needed.

Its packages import each other. While one thread imports `mcp` and another a package below it, each waits for
the other's import lock, and Python ends that by handing out a module that is not complete: both imports fail.
Whoever may be the first to need the SDK in a thread calls `load_sdk`; then every import waits for the same
lock, and what is imported below `mcp` afterwards finds it complete.
"""

from __future__ import annotations

from importlib import import_module

from toolfold.errors import SourceError


def load_sdk() -> None:
    """Import the SDK, or wait until another thread has. Takes a while the first time."""
    import_module("mcp")


def require_methods(owner: object, *names: str) -> None:
    """Raise SourceError where the SDK lacks a private method that is replaced: a limit would not hold."""
    missing = [name for name in names if not callable(getattr(owner, name, None))]
    if missing:
        kind = owner if isinstance(owner, type) else type(owner)
        raise SourceError(
            f"the installed version of the package mcp is not supported: {kind.__name__} has no "
            f"{', '.join(missing)}. Install a version that this release of Toolfold was tested with."
        )
