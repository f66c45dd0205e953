"""Use the SDK's check of HTTP headers only if a tool declares arguments that are also sent in headers.

For that comparison the SDK lists the caller's tools again for each call. Hardly any tool declares a header:
while none does, there is nothing to compare and the listing is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from weakref import WeakSet

from toolfold.core.registry import Snapshot
from toolfold.core.types import Tool

SchemaLookup = Callable[[str], None]


class HeaderCheck:
    """Decides if the SDK's slow header check is needed: only if a tool declares arguments in headers."""

    def __init__(self, tools: Callable[[], Snapshot]) -> None:
        self._tools = tools
        self._checked_snapshot: Snapshot | None = None
        self._has_declaration = False
        self._tools_without_headers: WeakSet[Tool] = WeakSet()
        """Tools that were checked before, so that a change of one tool among thousands is cheap."""

    @property
    def lookup(self) -> SchemaLookup | None:
        """Return an empty schema lookup, to skip the header check; None if a tool needs the check."""
        snapshot = self._tools()
        if self._checked_snapshot is not snapshot:
            self._has_declaration, self._checked_snapshot = self._find_declaration(snapshot), snapshot
        return None if self._has_declaration else _find_no_schema

    def _find_declaration(self, snapshot: Snapshot) -> bool:
        from mcp.shared.inbound import X_MCP_HEADER_KEY

        key = json.dumps(X_MCP_HEADER_KEY)
        for tool in snapshot.values():
            if tool in self._tools_without_headers:
                continue
            if key in json.dumps(tool.parameters):
                return True
            self._tools_without_headers.add(tool)
        return False


def _find_no_schema(_tool: str) -> None:
    return None
