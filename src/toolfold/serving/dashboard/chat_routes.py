"""The chat page: runs agents in the dashboard's process and publishes their progress as events."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolfold.core.errors import ToolfoldError, error_message
from toolfold.core.events import TurnFinished
from toolfold.core.types import Json
from toolfold.serving.dashboard.texts import show_line, show_prose
from toolfold.serving.gateway.request_bodies import RequestRefused

if TYPE_CHECKING:
    from toolfold.agent import Agent
    from toolfold.agent.conversation import TurnResult
    from toolfold.models.client import ModelClient
    from toolfold.runtime.runtime import Runtime
    from toolfold.safety.redaction import Redaction
    from toolfold.state.store import SessionStore

log = logging.getLogger(__name__)

MAX_AGENTS = 8
MAX_MESSAGE_CHARS = 50_000
MAX_SESSIONS = 30
MAX_MESSAGES = 200


class ChatSessions:
    """Runs agents for the chat page, each in a separate session."""

    def __init__(
        self,
        runtime: Runtime,
        redact: Redaction,
        *,
        client: ModelClient | None = None,
        suggestions: Sequence[str] = (),
    ) -> None:
        """Run agents with the model of the settings, or with `client`; `suggestions` are messages to try."""
        self._runtime, self._redact, self._client = runtime, redact, client
        self._suggestions = suggestions
        self._store_lock = threading.Lock()
        self._store: SessionStore | None = None
        self._agents: dict[str, Agent] = {}
        self._turns: dict[str, asyncio.Task[TurnResult]] = {}

    async def describe(self, session_id: str) -> Json:
        """Return the configured model, recent sessions, and the messages of one session."""
        store = await asyncio.to_thread(self._open_store)
        records = await asyncio.to_thread(store.list_sessions, limit=MAX_SESSIONS)
        messages = await asyncio.to_thread(store.load_messages, session_id) if session_id else []
        return {
            "model": self._client.model if self._client else self._runtime.config.agent.model,
            "suggestions": list(self._suggestions),
            "sessions": [
                {"id": each.id, "title": show_line(self._redact(each.title), 80), "updated": each.updated}
                for each in records
                if each.turns or each.id in self._agents
            ],
            "messages": [
                {"role": each.role, "text": show_prose(self._redact(each.text))}
                for each in messages[-MAX_MESSAGES:]
                if each.role in ("user", "assistant") and each.text.strip()
            ],
            "is_working": session_id in self._turns,
        }

    async def send(self, session_id: str, message: str) -> Json:
        """Start an agent turn for a message and return the session id without waiting for the answer."""
        if not message.strip() or len(message) > MAX_MESSAGE_CHARS:
            raise RequestRefused(400, f"Enter a message of at most {MAX_MESSAGE_CHARS:,} characters.")
        if session_id in self._turns:
            raise RequestRefused(409, "The agent is still working on the previous message.")
        agent = self._agents.get(session_id) or await self._open_agent(session_id)
        task = asyncio.create_task(agent.run(message))
        self._turns[agent.session_id] = task
        task.add_done_callback(lambda done: self._finish(agent.session_id, done))
        return {"session": agent.session_id}

    async def stop(self, session_id: str) -> Json:
        """Interrupt the agent of a session."""
        if session_id in self._agents:
            self._agents[session_id].interrupt()
        return {}

    async def close(self) -> None:
        """Interrupt and close all agents."""
        for agent in self._agents.values():
            agent.interrupt()
        await asyncio.gather(*self._turns.values(), return_exceptions=True)
        for agent in self._agents.values():
            await agent.close()
        if self._store is not None:
            self._store.close()

    async def _open_agent(self, session_id: str) -> Agent:
        from toolfold.agent import Agent

        await self._close_idle_agent()
        store = await asyncio.to_thread(self._open_store)
        try:
            agent = await asyncio.to_thread(
                lambda: Agent(
                    self._client or "", runtime=self._runtime, store=store, session_id=session_id or None
                )
            )
        except ToolfoldError as error:
            raise RequestRefused(409, self._redact(str(error))) from None
        self._agents[agent.session_id] = agent
        return agent

    async def _close_idle_agent(self) -> None:
        """Close the oldest idle agent if there are too many. Raises RequestRefused if all are working."""
        if len(self._agents) < MAX_AGENTS:
            return
        idle = next((each for each in self._agents if each not in self._turns), None)
        if idle is None:
            raise RequestRefused(503, f"{MAX_AGENTS} agents are working. Wait until one has finished.")
        await self._agents.pop(idle).close()

    def _open_store(self) -> SessionStore:
        from toolfold.agent.agent import open_store

        with self._store_lock:  # several requests may need the store at the same time
            if self._store is None:
                self._store = open_store(self._runtime.config, self._runtime.database)
            return self._store

    def _finish(self, session_id: str, done: asyncio.Task[TurnResult]) -> None:
        self._turns.pop(session_id, None)
        if not done.cancelled() and (error := done.exception()):
            problem = self._redact(error_message(error))
            log.error("an agent of the dashboard failed: %s", problem)
            # The page waits for the end of the turn.
            self._runtime.events.publish(
                TurnFinished(session_id=session_id, turn=0, reason="error", error=problem)
            )
