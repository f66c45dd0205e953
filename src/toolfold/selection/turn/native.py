"""Decide which requests use a provider's native loading of tools on demand.

Decides by the dialect and the model's name. Knows nothing of how such a request is written.
"""

from __future__ import annotations

import logging

from toolfold.core.errors import shorten
from toolfold.models import Dialect, DialectName

log = logging.getLogger(__name__)

MAX_WARNINGS = 100


class NativePolicy:
    """Decides whether requests use native tool loading; warns once per model that does not support it."""

    def __init__(self) -> None:
        self._warned: set[tuple[DialectName, str]] = set()

    def decide(self, requested: bool | None, configured: bool, *, dialect: Dialect, model: str) -> bool:
        """Return True if a request should use the provider's native loading of tools on demand.

        An explicit request for what the model lacks raises a ValueError; the setting only gives way.
        """
        if requested is not None:
            if requested and (problem := dialect.explain_missing_native(model)):
                raise ValueError(f"native: {problem}")
            return requested
        if not configured:
            return False
        problem = dialect.explain_missing_native(model) or _explain_unknown_vendor(dialect, model)
        if problem and (dialect.name, model) not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add((dialect.name, model))
            log.warning("tools.rag_native has no effect on this request: %s", problem)
        return not problem


def _explain_unknown_vendor(dialect: Dialect, model: str) -> str:
    """Return a hint to pass `native=True` if the model's vendor is unknown; otherwise empty."""
    if not dialect.is_other_vendor(model):
        return ""
    return f"it is unknown whether {shorten(model)!r} can load tools on demand (pass native=True if it can)"
