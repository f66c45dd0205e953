"""An agent whose sessions are in a database: writes wait for the database without blocking other work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.gateway.harness import TIMEOUT_S
from toolfold import Runtime
from toolfold.agent import Agent
from toolfold.core.events import Event, TextReceived
from toolfold.models.scripted import ScriptedProvider
from toolfold.state.database import Database
from toolfold.state.store.postgres import PostgresSessionStore


@contextmanager
def lock_session(url: str, session_id: str) -> Iterator[None]:
    """Keep all writes to a session waiting."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT 1 FROM toolfold.sessions WHERE id = %s FOR UPDATE", (session_id,))
        yield


async def wait_for_blocked_write(url: str) -> None:
    """Wait, in the event loop of the agent, until the database keeps a write waiting."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    async with asyncio.timeout(TIMEOUT_S):
        with psycopg.connect(url, autocommit=True) as connection:
            while not connection.execute(query).fetchone()[0]:  # type: ignore[index]  # noqa: ASYNC110 - polls
                await asyncio.sleep(0.01)


async def test_event_loop_stays_responsive_while_a_database_write_is_blocked(
    runtime: Runtime, database: Database, database_url: str
) -> None:
    store = PostgresSessionStore(database)
    async with Agent(ScriptedProvider(["Hello."]), runtime=runtime, store=store) as agent:
        with lock_session(database_url, agent.session_id):
            turn = asyncio.create_task(agent.run("Hi"))
            await wait_for_blocked_write(database_url)  # runs in the same event loop
            assert not turn.done()
            assert agent.history.messages == []  # nothing counts as said before it is stored
        assert (await turn).text == "Hello."
    assert [each.text for each in store.load_messages(agent.session_id)] == ["Hi", "Hello."]


async def test_text_of_a_streamed_answer_is_stored_in_the_database_before_it_is_displayed(
    runtime: Runtime, database: Database
) -> None:
    store = PostgresSessionStore(database)
    shown: list[str] = []
    stored: list[str] = []

    def receive(event: Event) -> None:
        if isinstance(event, TextReceived):
            shown.append(event.text)
            stored.append(store.load_draft(event.session_id))

    runtime.events.subscribe(receive)
    text = "word " * 300
    async with Agent(ScriptedProvider([text]), runtime=runtime, store=store) as agent:
        result = await agent.run("Talk")
    assert result.text.strip() == "".join(shown).strip() == text.strip()
    for number, draft in enumerate(stored):
        assert draft.startswith("".join(shown[: number + 1]))


async def test_cancelled_turn_waits_for_its_database_write_and_keeps_the_stored_message_in_the_history(
    runtime: Runtime, database: Database, database_url: str
) -> None:
    store = PostgresSessionStore(database)
    agent = Agent(ScriptedProvider(["Hello."]), runtime=runtime, store=store)
    with lock_session(database_url, agent.session_id):
        turn = asyncio.create_task(agent.run("Hi"))
        await wait_for_blocked_write(database_url)
        turn.cancel()
        await asyncio.sleep(0)
        assert not turn.done()  # the write cannot be taken back, so it is waited for
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert [each.text for each in agent.history.entries] == ["Hi"]
    assert [each.text for each in store.load_messages(agent.session_id)] == ["Hi"]
    await agent.close()


async def test_session_can_be_reopened_after_a_database_error_while_closing_its_agent(
    runtime: Runtime, database: Database
) -> None:
    store = PostgresSessionStore(database)
    agent = Agent(ScriptedProvider([]), runtime=runtime, store=store)

    def fail() -> None:
        raise OSError("the disk is full")

    agent.history.thread.submit(fail)
    with pytest.raises(OSError, match="disk is full"):
        await agent.close()
    async with Agent(ScriptedProvider([]), runtime=runtime, store=store, session_id=agent.session_id):
        pass  # a session that is not released cannot be opened
