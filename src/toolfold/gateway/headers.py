"""Whether any tool wants arguments repeated in headers, which the SDK then compares with every call.

For that it lists the tools of whoever calls, anew with each call, as only the caller's own may be spoken of.
Hardly any tool declares a header: while none does, there is nothing to compare and nothing is listed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from weakref import WeakSet

from toolfold.model import Tool
from toolfold.registry import Snapshot

Lookup = Callable[[str], None]


class HeaderCheck:
    """What the SDK is told of where schemas come from, by the tools there are now."""

    def __init__(self, tools: Callable[[], Snapshot]) -> None:
        self._tools = tools
        self._read: Snapshot | None = None
        self._is_declared = False
        self._without: WeakSet[Tool] = WeakSet()
        """Tools that were read before, so that one more among ten thousand is soon looked at."""

    @property
    def lookup(self) -> Lookup | None:
        """One that finds nothing to compare; None where the caller's own tools must be listed."""
        snapshot = self._tools()
        if self._read is not snapshot:
            self._is_declared, self._read = self._declares(snapshot), snapshot
        return None if self._is_declared else _nothing

    def _declares(self, snapshot: Snapshot) -> bool:
        from mcp.shared.inbound import X_MCP_HEADER_KEY

        key = json.dumps(X_MCP_HEADER_KEY)
        for tool in snapshot.values():
            if tool in self._without:
                continue
            if key in json.dumps(tool.parameters):
                return True
            self._without.add(tool)
        return False


def _nothing(_tool: str) -> None:
    return None
