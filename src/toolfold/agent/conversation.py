"""Conversation of an agent: turns, interruption, undo, and delegation to sub-agents.

Works on a session that is already open in the store. Decides nothing about tools: scope, selection,
approval and dispatch belong to the runtime's session.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sqlite3
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolfold.agent.agent_limits import AgentLimits, TurnBudget
from toolfold.agent.agent_services import AgentTools
from toolfold.agent.convert import convert_history
from toolfold.agent.history import SessionHistory
from toolfold.agent.loop import ModelSetup, TurnLoop
from toolfold.agent.memory import Memory
from toolfold.agent.prompt import build_system_prompt
from toolfold.core.errors import CallError, ToolfoldError, error_message
from toolfold.core.events import Event, StopReason, TurnFinished, TurnStarted, Usage
from toolfold.core.types import Approver, Asker, Json
from toolfold.models import get_dialect
from toolfold.models.client import ModelClient
from toolfold.models.model_names import ModelName, find_context_tokens, find_published_context
from toolfold.models.model_table import default_output_tokens
from toolfold.runtime.runtime import Runtime
from toolfold.runtime.session import Session
from toolfold.state.store import SessionInUse, SessionRecord, SessionStore

log = logging.getLogger(__name__)

CLAIM_RENEWAL_S = 20.0
MAX_TITLE_CHARS = 80
MAX_DELEGATE_STEPS = 30
_LAST_EVENTS_TIMEOUT_S = 0.2
_DELEGATE_INSTRUCTIONS = (
    "You work on one task for another agent and cannot ask questions. Your last message is the report that it"
    " receives: state what you found or did, with the values it needs, and what you could not do."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """Outcome of one user message to an agent."""

    text: str
    reason: StopReason
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    """Dollars; None if the model's price is unknown."""
    error: str = ""

    @property
    def ok(self) -> bool:
        """Return True if the model has completed its answer."""
        return self.reason == "completed"


@dataclass(slots=True, kw_only=True)
class AgentDeps:
    """Components shared by an agent and its sub-agents."""

    runtime: Runtime
    store: SessionStore
    client: ModelClient
    model: ModelName
    auxiliary_client: ModelClient | None = None
    auxiliary_model: ModelName | None = None
    """The model that writes summaries, if it differs from `model`."""
    memory: Memory | None
    approver: Approver | None = None
    asker: Asker | None = None
    context_tokens: int | None = None
    stream_model: bool = True
    delegates: Mapping[int, asyncio.Semaphore]
    """Limit on parallel sub-agents, one per nesting depth, so that a sub-agent cannot wait for itself."""


class AgentConversation:
    """A conversation with a model that may use tools."""

    def __init__(
        self,
        deps: AgentDeps,
        record: SessionRecord,
        limits: AgentLimits | None = None,
        *,
        parent: Session | None = None,
        depth: int = 0,
    ) -> None:
        """Open a conversation. Without `limits`, each turn uses the limits of the current settings."""
        self._deps, self._fixed_limits, self._depth = deps, limits, depth
        self._settings = deps.runtime.config.agent
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._task: asyncio.Task[Any] | None = None
        self._budget: TurnBudget | None = None
        self._setup: ModelSetup | None = None
        self._is_interrupted = False
        self.total_usage, self.total_cost = Usage(), 0.0
        deps.store.claim_session(record.id, self._owner)
        may_delegate = depth < self._settings.max_delegation_depth
        self._tools = AgentTools(
            record.id,
            deps.store,
            memory=deps.memory,
            delegate=self._delegate if may_delegate else None,
            asker=deps.asker if depth == 0 else None,  # a sub-agent reports to its parent instead
        )
        self._tools.todos.restore(record.state.get("todos", []))
        self.session = self._open_session(record, parent)
        if "requests" in record.state:
            self.session.restore_state(record.state["requests"])
        self.history = self._open_history(record)

    def _open_session(self, record: SessionRecord, parent: Session | None) -> Session:
        if parent is not None:
            return parent.delegate(record.toolsets, record.disabled_toolsets, agent=self._tools, id=record.id)
        return self._deps.runtime.session(
            record.toolsets,
            disabled_toolsets=record.disabled_toolsets,
            agent=self._tools,
            approver=self._deps.approver,
            id=record.id,
        )

    def _open_history(self, record: SessionRecord) -> SessionHistory:
        """Load the stored messages, converted if the session used another provider's format."""
        deps, dialect = self._deps, self._deps.client.dialect
        if record.dialect != dialect.name:
            old = get_dialect(record.dialect)
            SessionHistory(deps.store, record, old)  # makes it valid first
            converted = convert_history(deps.store.load_messages(record.id), old, dialect)
            deps.store.change_model(record.id, str(deps.model), dialect.name, converted)
        elif record.model != str(deps.model):
            deps.store.change_model(record.id, str(deps.model), dialect.name, None)
        record = replace(record, model=str(deps.model), dialect=dialect.name)
        return SessionHistory(deps.store, record, dialect)

    @property
    def session_id(self) -> str:
        """Return the id of the stored session, with which it can be resumed."""
        return self.history.record.id

    @property
    def model(self) -> str:
        """Return the name of the current model, as PROVIDER:MODEL."""
        return str(self._deps.model)

    async def run(self, message: str) -> TurnResult:
        """Process a message until the model answers, a limit is reached or `interrupt` is called."""
        if self._task is not None:
            raise ToolfoldError("the agent is already working on a message")
        self._is_interrupted = False
        setup = await self._prepare_interruptibly()
        if setup is None:
            turn = self.history.turn + 1  # the message is not stored: the next one gets this number
            self._publish_start(turn, message)
            return self._finish_turn(turn, TurnResult(text="", reason="interrupted"))
        turn = await self.history.add_user_message(message)
        await self._set_title()
        budget = self._budget = TurnBudget(self._fixed_limits or AgentLimits.from_settings(self._settings))
        self._publish_start(turn, message)
        loop = TurnLoop(
            self.session,
            self.history,
            setup,
            budget,
            publish=self._publish,
            compress_at=self._settings.compress_at_percent / 100,
            export_state=self._export_state,
        )
        try:
            reason, text, error = await self._run_loop(loop, budget)
        finally:
            self._task = self._budget = None
        state = self._export_state()
        await self.history.thread.run(lambda: self._deps.store.save_state(self.session_id, state))
        self.total_usage += budget.usage
        self.total_cost += budget.cost or 0.0
        return self._finish_turn(
            turn, TurnResult(text=text, reason=reason, usage=budget.usage, cost=budget.cost, error=error)
        )

    def _publish_start(self, turn: int, message: str) -> None:
        self._publish(
            TurnStarted(
                session_id=self.session_id,
                turn=turn,
                message=message,
                model=self.model,
                parent_session_id=self.history.record.parent,
            )
        )

    def _finish_turn(self, turn: int, result: TurnResult) -> TurnResult:
        self._publish(
            TurnFinished(
                session_id=self.session_id,
                turn=turn,
                reason=result.reason,
                text=result.text,
                usage=result.usage,
                cost=result.cost,
                error=result.error,
            )
        )
        return result

    async def _run_loop(self, loop: TurnLoop, budget: TurnBudget) -> tuple[StopReason, str, str]:
        """Call the model and its tools alternately; leave a valid history even after a cancellation."""
        task = asyncio.create_task(loop.run())
        self._task = task
        renewal = asyncio.create_task(self._renew_claim())
        try:
            done, _ = await asyncio.wait({task}, timeout=max(0.0, budget.seconds_left))
            if not done:
                await _cancel(task)
                return "time_limit", await loop.interrupt(), ""
            return task.result()
        except asyncio.CancelledError:
            await _cancel(task)
            text = await loop.interrupt()
            if not self._is_interrupted:  # somebody cancelled the caller, not the turn
                raise
            return "interrupted", text, ""
        except ToolfoldError as error:
            return "error", await loop.interrupt(), error_message(error)
        except BaseException:
            await loop.interrupt()
            raise
        finally:
            renewal.cancel()

    def interrupt(self) -> None:
        """Stop processing the current message and leave a valid message history.

        Call it from the agent's event loop.
        """
        if self._task is not None:
            self._is_interrupted = True
            self._task.cancel()

    async def stream(self, message: str, *, sub_agents: bool = False) -> AsyncIterator[Event]:
        """Process a message and yield the events of the session until the turn is finished.

        `sub_agents` includes all events of the runtime, and so those of the agents it delegates to.
        """
        with self._deps.runtime.events.stream(None if sub_agents else self.session_id) as events:
            work = asyncio.create_task(self.run(message))
            try:
                async for event in _until_finished(events, work, self.session_id):
                    yield event
                await work
            finally:
                if not work.done():
                    self.interrupt()
                    await asyncio.wait({work})

    def undo(self) -> str:
        """Remove the newest turn from the history and return its message; tool effects are not undone."""
        return self.history.undo_turn()

    def release(self) -> None:
        """Release the session, so that other processes can open it. In a coroutine, use `close` instead."""
        self.session.close()
        self.history.thread.close()
        self._deps.store.release_session(self.session_id, self._owner)

    async def _release_in_thread(self) -> None:
        """Release the session like `release`, without blocking the event loop."""
        self.session.close()
        thread, store = self.history.thread, self._deps.store
        await thread.finish(lambda: store.release_session(self.session_id, self._owner))

    async def _follow_settings(self) -> None:
        """Apply settings that changed since the last turn, but keep the session's model."""
        runtime = self._deps.runtime
        if self._depth == 0:  # a sub-agent works within a turn of its parent
            await asyncio.to_thread(runtime.check_settings)
            await asyncio.to_thread(runtime.mcp.settle)  # new servers list their tools first
        if runtime.config.agent != self._settings:
            self._settings, self._setup = runtime.config.agent, None

    async def _prepare_interruptibly(self) -> ModelSetup | None:
        """Prepare the next turn; return None if `interrupt` is called during the preparation.

        Sets `_task` before anything is awaited, so that no second message can start.
        """
        task = self._task = asyncio.create_task(self._prepare_turn())
        try:
            setup = await task
        except asyncio.CancelledError:
            if not self._is_interrupted:  # somebody cancelled the caller, not the turn
                raise
            return None
        finally:
            task.cancel()
            self._task = None
        return None if self._is_interrupted else setup

    async def _prepare_turn(self) -> ModelSetup:
        await self._follow_settings()  # may wait for MCP servers
        return await self._prepare_model()  # may wait for a provider's model listing

    async def _prepare_model(self) -> ModelSetup:
        deps = self._deps
        if self._setup is None:
            tokens = deps.context_tokens
            if tokens is None:
                tokens = await find_context_tokens(deps.model, deps.runtime.config, deps.client)
            self._setup = ModelSetup(
                client=deps.client,
                model=deps.model.model,
                context_tokens=tokens,
                max_output_tokens=self._choose_output_limit(tokens),
                stream=deps.stream_model,
                auxiliary=await self._prepare_auxiliary(),
            )
            self.session.set_context_tokens(tokens)
        return self._setup

    def _choose_output_limit(self, context_tokens: int | None) -> int | None:
        """Return the output limit to send; None if the provider does not need one and none is set."""
        if self._settings.max_output_tokens or not self._deps.client.dialect.requires_output_limit:
            return self._settings.max_output_tokens
        return default_output_tokens(self._deps.model.model, context_tokens)

    async def _prepare_auxiliary(self) -> ModelSetup | None:
        deps = self._deps
        if deps.auxiliary_client is None or deps.auxiliary_model is None:
            return None
        return ModelSetup(
            client=deps.auxiliary_client,
            model=deps.auxiliary_model.model,
            context_tokens=await find_published_context(deps.auxiliary_model, deps.auxiliary_client),
            stream=deps.stream_model,
        )

    def _publish(self, event: Event) -> None:
        self._deps.runtime.events.publish(event)

    def _export_state(self) -> Json:
        return {"requests": self.session.export_state(), "todos": self._tools.todos.export()}

    async def _set_title(self) -> None:
        record = self.history.record
        if record.title:
            return
        title = " ".join(self.history.first_text.split())[:MAX_TITLE_CHARS]
        self.history.record = replace(record, title=title)
        store = self._deps.store
        await self.history.thread.run(lambda: store.save_state(record.id, record.state, title=title))

    async def _renew_claim(self) -> None:
        while True:
            await asyncio.sleep(CLAIM_RENEWAL_S)
            try:
                await self.history.thread.run(
                    lambda: self._deps.store.claim_session(self.session_id, self._owner)
                )
            except SessionInUse as error:  # for example, this machine was asleep
                log.warning("the agent was interrupted because another process uses its session: %s", error)
                self.interrupt()
                return
            except (OSError, sqlite3.Error) as error:
                log.warning("the reservation of session %s could not be renewed: %s", self.session_id, error)

    async def _delegate(self, args: Json) -> Json:
        """Delegate a task to a sub-agent with a narrower scope, and return its report."""
        budget = self._budget
        if budget is None:
            raise CallError("tasks can be delegated only while the agent works on a message.")
        async with self._deps.delegates[self._depth]:
            limits = budget.remaining(max_steps=MAX_DELEGATE_STEPS)
            record = self._describe_delegated(args)
            await self.history.thread.run(lambda: self._deps.store.create_session(record))
            child = AgentConversation(self._deps, record, limits, parent=self.session, depth=self._depth + 1)
            try:
                result = await child.run(args["goal"])
            finally:
                await child._release_in_thread()
            budget.add_delegated(result.usage, result.cost)
        outcome = {} if result.ok else {"stopped": result.reason, "error": result.error}
        return {"report": result.text, "session": child.session_id, **outcome}

    def _describe_delegated(self, args: Json) -> SessionRecord:
        toolsets = args.get("toolsets")
        return SessionRecord(
            id=secrets.token_hex(8),
            model=self.model,
            dialect=self._deps.client.dialect.name,
            system=build_system_prompt(self._deps.runtime.config, instructions=_DELEGATE_INSTRUCTIONS),
            parent=self.session_id,
            toolsets=None if toolsets is None else tuple(toolsets),
        )


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})


async def _until_finished(
    events: AsyncIterator[Event], work: asyncio.Task[TurnResult], session_id: str
) -> AsyncIterator[Event]:
    """Yield the events of a session until its turn is finished."""
    while True:
        following = asyncio.ensure_future(anext(events))
        await asyncio.wait({following, work}, return_when=asyncio.FIRST_COMPLETED)
        if not following.done():
            # The last events may still be on their way to the queue.
            await asyncio.wait({following}, timeout=_LAST_EVENTS_TIMEOUT_S)
        if not following.done():
            following.cancel()
            return
        event = following.result()
        yield event
        if isinstance(event, TurnFinished) and event.session_id == session_id:
            return
