"""What the list of tools of a gateway client saves is published, for the dashboard's figures."""

from __future__ import annotations

import queue
from pathlib import Path

from tests.gateway.harness import serve_gateway
from tests.gateway.test_client_approval import servers
from toolfold.events import ToolsSelected

TIMEOUT_S = 60.0


async def test_tokens_saved_in_the_list_of_a_client_are_published_once(tmp_path: Path) -> None:
    events: queue.Queue[ToolsSelected] = queue.Queue()
    searching = {"tools.tool_search.enabled": "on"}
    with serve_gateway(tmp_path / "home", servers(tmp_path), **searching) as served:
        served.runtime.events.subscribe(events.put, only=ToolsSelected)  # type: ignore[arg-type]
        async with served.client() as client:
            listed = [tool.name for tool in (await client.list_tools()).tools]
            await client.list_tools()
            event = events.get(timeout=TIMEOUT_S)
    assert "tool_search" in listed
    assert event.tool_search
    assert event.available > len(event.shown)
    assert event.tokens > 0
    assert events.empty()
