"""Log which rule refuses a client's request.

The client itself gets the same response as for something that does not exist, after the same time: reasons
are found in a thread, and nobody waits for them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolfold.core.errors import ToolfoldError, shorten
from toolfold.core.types import Tool

if TYPE_CHECKING:
    from toolfold.runtime.runtime import Runtime
    from toolfold.serving.gateway.client_tokens import GatewayClient, TokenStore

log = logging.getLogger(__name__)

REPEAT_INTERVAL_S = 60.0
"""How often the reason for the same refusal is logged."""
MAX_TRACKED = 1_000
MAX_PENDING_LOOKUPS = 4
"""Reasons that are being found at the same time. Of more refusals, only the number is logged."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refused request of a client for a tool, resource or prompt that exists."""

    client: GatewayClient
    display_name: str
    requested: str
    granted: frozenset[str]
    """Names of the tools that the client may use."""
    find_tools: Callable[[], Iterable[Tool]]
    """Returns the tools that the client would need."""


class RefusalLog:
    """Logs the rules that refuse requests of clients. Used in one event loop."""

    def __init__(self, runtime: Runtime, tokens: TokenStore | None) -> None:
        self._runtime, self._tokens = runtime, tokens
        self._logged: dict[tuple[str, str], float] = {}
        self._pending = self._skipped = 0

    def note(self, refusal: Refusal) -> None:
        """Log why a client may not use an existing tool, resource or prompt."""
        now, key = time.monotonic(), (refusal.client.id, refusal.requested)
        if self._tokens is None:
            return
        if now - self._logged.get(key, float("-inf")) < REPEAT_INTERVAL_S:
            return
        if self._pending >= MAX_PENDING_LOOKUPS:
            self._skipped += 1
            return
        if len(self._logged) >= MAX_TRACKED:
            self._logged.clear()
        self._logged[key] = now
        self._pending += 1
        found = asyncio.get_running_loop().run_in_executor(None, self._log_reason, refusal)
        found.add_done_callback(self._finish)

    def _finish(self, found: asyncio.Future[None]) -> None:
        self._pending -= 1
        if self._skipped and not self._pending:
            log.info(
                "%s more refused requests of clients came at the same time; their reasons were not looked up",
                f"{self._skipped:,}",
            )
            self._skipped = 0
        if not found.cancelled() and (error := found.exception()) is not None:
            log.debug("the reason of a refusal could not be found: %s", error)

    def _log_reason(self, refusal: Refusal) -> None:
        from toolfold.serving.gateway.user_access import list_refusals

        refused = [tool for tool in refusal.find_tools() if tool.name not in refusal.granted]
        if not refused or self._tokens is None:
            return
        logged = refusal.display_name, shorten(refusal.requested)
        try:
            directory = self._tokens.users.directory()
        except (OSError, ToolfoldError) as error:
            log.info("client %s: %r is refused: %s", *logged, error)
            return
        toolsets = self._runtime.toolsets()
        configured = frozenset(toolsets.snapshot) - self._runtime.switched_off()
        reasons = list_refusals(refused[0].name, refusal.client, directory, toolsets, configured)
        if reasons:
            log.info("client %s: %r is refused: %s", *logged, "; ".join(reasons))
