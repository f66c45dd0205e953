"""Agents of the chat page."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NoReturn

import pytest

from tests.conftest import RuntimeOpener
from toolfold.agent import Agent
from toolfold.core.events import Event, TurnFinished
from toolfold.safety.redaction import Redaction
from toolfold.serving.dashboard.chat_routes import ChatSessions


async def test_page_is_told_that_the_turn_has_ended_if_an_agent_fails(
    open_test_runtime: RuntimeOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_agent: Agent, _message: str) -> NoReturn:
        raise RuntimeError("the reply cannot be stored")

    monkeypatch.setattr(Agent, "run", fail)
    (tmp_path / "demo.json").write_text("[]")
    runtime = open_test_runtime({"agent": {"model": f"scripted:{tmp_path / 'demo.json'}"}})
    finished: asyncio.Queue[Event] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def receive(event: Event) -> None:
        loop.call_soon_threadsafe(finished.put_nowait, event)

    runtime.events.subscribe(receive, only=TurnFinished)
    chat = ChatSessions(runtime, Redaction())
    session = (await chat.send("", "hello"))["session"]
    event = await asyncio.wait_for(finished.get(), 60)
    assert isinstance(event, TurnFinished)
    assert (event.session_id, event.reason) == (session, "error")
    assert "the reply cannot be stored" in event.error
    assert not (await chat.describe(session))["is_working"]
    await chat.close()
