"""What the list of tools of a gateway client saves is published, for the dashboard's figures."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.gateway.harness import serve_gateway
from tests.gateway.test_client_approval import servers
from toolfold.core.events import ToolsSelected
from toolfold.core.types import Tool
from toolfold.selection.turn.token_counts import ToolTokenCounts

TIMEOUT_S = 60.0


async def test_tokens_saved_by_a_shorter_tool_list_are_published_once_per_client_session(
    tmp_path: Path,
) -> None:
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


async def test_tool_list_is_sent_to_the_client_even_if_the_saved_tokens_cannot_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = threading.Event()
    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())
            logged.set()

    def fail(counts: ToolTokenCounts, tools: Sequence[Tool]) -> int:
        raise ValueError("no tokenizer")

    monkeypatch.setattr(ToolTokenCounts, "estimate", fail)
    handler = Handler(logging.WARNING)
    log = logging.getLogger("toolfold.serving.gateway.client_sessions")
    log.addHandler(handler)
    try:
        with serve_gateway(tmp_path / "home", servers(tmp_path)) as served:
            served.runtime.events.subscribe(lambda event: None, only=ToolsSelected)
            async with served.client() as client:
                assert (await client.list_tools()).tools
                assert logged.wait(TIMEOUT_S)
    finally:
        log.removeHandler(handler)
    assert messages == ["the tokens of a client's tool list could not be counted: no tokenizer"]
