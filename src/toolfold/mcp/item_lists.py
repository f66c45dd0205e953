"""Resources, resource templates and prompts of MCP servers, cached from the last listing.

Cached on disk, so that a list can be returned without starting a server. The cached lists are fetched again
when a server starts or reports a change. Requests run in the servers' event loop and go to the process that
all clients share; items of a client's own process are visible to that client only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from toolfold.config.servers_settings import McpServerSettings
from toolfold.core.types import Json
from toolfold.mcp.faults import ServerFailed
from toolfold.mcp.listing_cache import ListingCache

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
"""Method → the kind of list that servers report as changed, and the result field with the items."""

FetchPage = Callable[[str, str, Json], Awaitable[Any]]
"""Fetches one page: server name, method, parameters."""


class ItemLists:
    """Cached lists of resources, templates and prompts of all MCP servers."""

    def __init__(
        self,
        cache: ListingCache,
        settings: Mapping[str, McpServerSettings],
        fetch_page: FetchPage,
        notify: Callable[[str, str], None],
    ) -> None:
        """Create empty lists; `notify` is called with server and kind of list when a list has changed."""
        self._cache, self._settings, self._fetch_page, self._notify = cache, settings, fetch_page, notify
        self._known: dict[str, dict[str, list[Json]]] = {}
        self._fetch_tasks: dict[tuple[str, str], asyncio.Task[bool]] = {}
        self._awaited: set[tuple[str, str]] = set()
        """Lists that were not fetched in time; clients are notified when they arrive."""

    def use_settings(self, settings: Mapping[str, McpServerSettings], changed: Iterable[str]) -> None:
        """Apply changed server settings, and discard the cached lists of the changed servers."""
        self._settings = settings
        for server in changed:
            self._known.pop(server, None)

    async def get_items(self, server: str, method: str, wait: float) -> list[Any]:
        """Return the cached entries of a list; if it is not cached, fetch it within `wait` seconds."""
        if method not in self._cached_lists(server):
            task = self._start_fetch(server, method)
            _, late = await asyncio.wait({task}, timeout=min(wait, LIST_TIMEOUT_S))
            if late:
                self._awaited.add((server, method))
        return self.cached_items(server, method)

    def cached_items(self, server: str, method: str) -> list[Any]:
        """Return the cached entries of a list as SDK objects, without starting the server."""
        return _parse_items(method, self._cached_lists(server).get(method, ()))

    def refresh(self, server: str, kind: str = "") -> bool:
        """Refetch the cached lists of a server, or only those of `kind`; return False if none is cached."""
        methods = [each for each in self._cached_lists(server) if kind in ("", ITEM_LISTS[each][0])]
        for method in methods:
            self._start_fetch(server, method)
        return bool(methods)

    def _cached_lists(self, server: str) -> dict[str, list[Json]]:
        settings = self._settings.get(server)
        if settings is None:  # it was removed meanwhile
            return {}
        if server not in self._known:
            self._known[server] = self._cache.read_item_lists(server, settings)
        return self._known[server]

    def _start_fetch(self, server: str, method: str) -> asyncio.Task[bool]:
        """Fetch a list of the server; concurrent callers share one request."""
        key = server, method
        task = self._fetch_tasks.get(key)
        if task is None:
            task = self._fetch_tasks[key] = asyncio.create_task(self._fetch_list(server, method))
            task.add_done_callback(lambda _: self._fetch_tasks.pop(key, None))
        return task

    async def _fetch_list(self, server: str, method: str) -> bool:
        """Fetch and store one list of a server, such as its prompts; return False if that fails."""
        settings = self._settings.get(server)
        if settings is None:  # it was removed meanwhile
            return False
        try:
            async with asyncio.timeout(settings.connect_timeout_seconds + LIST_TIMEOUT_S):
                items = await fetch_all_pages(lambda params: self._fetch_page(server, method, params), method)
        except (ServerFailed, TimeoutError):
            return False
        if self._settings.get(server) is not settings:
            return False
        lists, plain = self._cached_lists(server), [_item_to_json(item) for item in items]
        before, lists[method] = lists.get(method), plain
        if before != plain:
            written = {key: list(value) for key, value in lists.items()}
            await asyncio.to_thread(self._cache.write_item_lists, server, settings, written)
        if (before or []) != plain and (before is not None or (server, method) in self._awaited):
            self._notify(server, ITEM_LISTS[method][0])
        self._awaited.discard((server, method))
        return True


async def fetch_all_pages(page: Callable[[Json], Awaitable[Any]], method: str) -> list[Any]:
    """Fetch all pages of a server's list, within limits."""
    items: list[Any] = []
    cursor: str | None = None
    left = MAX_LIST_CHARS
    for _ in range(MAX_PAGES):
        result = await page({"cursor": cursor} if cursor else {})
        for item in getattr(result, ITEM_LISTS[method][1]):
            left -= (size := len(item.model_dump_json()))
            if left > 0 and size <= MAX_ITEM_CHARS:
                items.append(item)
        cursor = result.next_cursor
        if cursor is None or len(items) >= MAX_ITEMS or left <= 0:
            break
    return items[:MAX_ITEMS]


def _item_to_json(item: Any) -> Json:
    plain: Json = item.model_dump(mode="json", by_alias=True, exclude_none=True)
    return plain


def _parse_items(method: str, items: Sequence[Json]) -> list[Any]:
    """Return list entries as SDK objects, without entries that fail validation."""
    import mcp_types
    from pydantic import BaseModel, ValidationError

    types: dict[str, type[BaseModel]] = {
        "resources/list": mcp_types.Resource,
        "resources/templates/list": mcp_types.ResourceTemplate,
        "prompts/list": mcp_types.Prompt,
    }
    parsed: list[Any] = []
    for item in items:
        try:
            parsed.append(types[method].model_validate(item, by_name=False))
        except ValidationError:
            continue
    return parsed
