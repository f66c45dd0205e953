"""Resources, resource templates and prompts of MCP servers, as they were last listed.

Kept on disk, so that a list can be given without starting a server. A server that is started or that says
that a list has changed is asked again for what is kept of it. Questions run in the servers' own loop and go
to the process that all clients share: what a client's own process lists is seen by that client alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from toolfold.config.servers import McpServer
from toolfold.model import Json
from toolfold.sources.mcp.faults import ServerFailed
from toolfold.sources.mcp.kept import ListingCache

LIST_TIMEOUT_S = 10.0
MAX_PAGES = 20
MAX_ITEMS = 5_000
MAX_ITEM_CHARS = 50_000  # of JSON
MAX_LIST_CHARS = 2_000_000

ITEM_LISTS: Mapping[str, tuple[str, str]] = {
    "resources/list": ("resources", "resources"),
    "resources/templates/list": ("resources", "resource_templates"),
    "prompts/list": ("prompts", "prompts"),
}
"""Method → the kind of list that servers say has changed, and where the items stand in the answer."""

Ask = Callable[[str, str, Json], Awaitable[Any]]
"""Asks a server for one page: its name, the method, the parameters."""


class ItemLists:
    """The lists of all servers."""

    def __init__(
        self,
        kept: ListingCache,
        settings: Mapping[str, McpServer],
        ask: Ask,
        tell: Callable[[str, str], None],
    ) -> None:
        """`tell` is called with the server and the kind of a list that has changed."""
        self._kept, self._settings, self._ask, self._tell = kept, settings, ask, tell
        self._known: dict[str, dict[str, list[Json]]] = {}
        self._asking: dict[tuple[str, str], asyncio.Task[bool]] = {}
        self._awaited: set[tuple[str, str]] = set()
        """Lists that somebody was given without: they are told of when they come."""

    async def items(self, server: str, method: str, wait: float) -> list[Any]:
        """Return what is known. A list that was never asked for is waited for, but not for long."""
        if method not in self._lists(server):
            task = self._refresh(server, method)
            _, late = await asyncio.wait({task}, timeout=min(wait, LIST_TIMEOUT_S))
            if late:
                self._awaited.add((server, method))
        return self.known_items(server, method)

    def known_items(self, server: str, method: str) -> list[Any]:
        """Return what is known, as the SDK's types. Starts nothing."""
        return _validated(method, self._lists(server).get(method, ()))

    def refresh(self, server: str, kind: str = "") -> bool:
        """Ask again for the lists that are known, or for those of one kind. False if there are none."""
        known = [each for each in self._lists(server) if kind in ("", ITEM_LISTS[each][0])]
        for method in known:
            self._refresh(server, method)
        return bool(known)

    def _lists(self, server: str) -> dict[str, list[Json]]:
        if server not in self._known:
            self._known[server] = self._kept.read_item_lists(server, self._settings[server])
        return self._known[server]

    def _refresh(self, server: str, method: str) -> asyncio.Task[bool]:
        """Ask for a list; those who want it at the same time share one question."""
        key = server, method
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._asked(server, method))
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        return task

    async def _asked(self, server: str, method: str) -> bool:
        """Return whether the server has answered."""
        try:
            async with asyncio.timeout(self._settings[server].connect_timeout_seconds + LIST_TIMEOUT_S):
                items = await all_pages(lambda params: self._ask(server, method, params), method)
        except (ServerFailed, TimeoutError):
            return False
        lists, plain = self._lists(server), [_plain(item) for item in items]
        before, lists[method] = lists.get(method), plain
        if before != plain:
            written = {key: list(value) for key, value in lists.items()}
            await asyncio.to_thread(self._kept.write_item_lists, server, self._settings[server], written)
        if (before or []) != plain and (before is not None or (server, method) in self._awaited):
            self._tell(server, ITEM_LISTS[method][0])
        self._awaited.discard((server, method))
        return True


async def all_pages(page: Callable[[Json], Awaitable[Any]], method: str) -> list[Any]:
    """Ask for page after page, within the limits of this module."""
    items: list[Any] = []
    cursor: str | None = None
    left = MAX_LIST_CHARS
    for _ in range(MAX_PAGES):
        answer = await page({"cursor": cursor} if cursor else {})
        for item in getattr(answer, ITEM_LISTS[method][1]):
            left -= (size := len(item.model_dump_json()))
            if left > 0 and size <= MAX_ITEM_CHARS:
                items.append(item)
        cursor = answer.next_cursor
        if cursor is None or len(items) >= MAX_ITEMS or left <= 0:
            break
    return items[:MAX_ITEMS]


def _plain(item: Any) -> Json:
    plain: Json = item.model_dump(mode="json", by_alias=True, exclude_none=True)
    return plain


def _validated(method: str, items: Sequence[Json]) -> list[Any]:
    """Return the items as the SDK's types; what was kept in another form is left out."""
    import mcp_types
    from pydantic import BaseModel, ValidationError

    types: dict[str, type[BaseModel]] = {
        "resources/list": mcp_types.Resource,
        "resources/templates/list": mcp_types.ResourceTemplate,
        "prompts/list": mcp_types.Prompt,
    }
    found: list[Any] = []
    for item in items:
        try:
            found.append(types[method].model_validate(item, by_name=False))
        except ValidationError:
            continue
    return found
