"""The public agent class, which builds a conversation from a model name and the configuration."""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType

from toolfold.agent.agent_limits import AgentLimits
from toolfold.agent.conversation import AgentConversation, AgentDeps, TurnResult
from toolfold.agent.memory import FILE_NAME as MEMORY_FILE
from toolfold.agent.memory import Memory
from toolfold.agent.prompt import build_system_prompt
from toolfold.config import Config
from toolfold.core.authoring import ToolLike, as_tool
from toolfold.core.errors import ConfigError, NameTaken
from toolfold.core.scope import TOOL_RULE
from toolfold.core.types import Approver, Asker, GrantLimit
from toolfold.models.client import ModelClient
from toolfold.models.model_names import ModelName, build_client, parse_model_name
from toolfold.runtime.runtime import Runtime, open_runtime
from toolfold.runtime.session import Session
from toolfold.state.database import Database, open_database
from toolfold.state.store import SessionRecord, SessionStore, SqliteSessionStore
from toolfold.tools.skill_files import open_skill_library

STORE_FILE = "sessions.db"
MEMORY_TOOLSET = "memory"
"""Toolset whose sessions know the stored facts about the user."""
SKILLS_TOOLSET = "skills"
"""Toolset whose sessions are told which skills there are."""


def open_store(config: Config, database: Database | None = None) -> SessionStore:
    """Open the session store of the user: a local file, or the database that the setting `store` names.

    `database` is that database if it is open already; closing the store does not close it.
    """
    if used := database or open_database(config.store):
        from toolfold.state.store.postgres import PostgresSessionStore

        return PostgresSessionStore(used, owns_database=database is None)
    return SqliteSessionStore(config.paths.state_dir / STORE_FILE)


class Agent(AgentConversation):
    """A conversation with a model that may use tools. Use it in a `with` or `async with` statement.

    `model` is PROVIDER:MODEL or a client of your own; without it the configuration decides. `session_id`
    resumes a stored session. The agent has `tools` (typed functions, for example) and those of `toolsets`;
    without both, all that a session of its runtime has: no built-in tools, unless the user's settings were
    read. `approver` is asked before risky calls; `asker` puts questions of the model to the user.
    `grant_limits` restrict the tools further. Without `runtime` and `store` the agent opens and closes its
    own, with the default settings.
    """

    def __init__(
        self,
        model: str | ModelClient = "",
        *,
        tools: Iterable[ToolLike] | None = None,
        toolsets: Iterable[str] | None = None,
        disabled_toolsets: Iterable[str] = (),
        runtime: Runtime | None = None,
        store: SessionStore | None = None,
        session_id: str | None = None,
        instructions: str = "",
        limits: AgentLimits | None = None,
        approver: Approver | None = None,
        asker: Asker | None = None,
        context_tokens: int | None = None,
        stream_model: bool = True,
        grant_limits: Sequence[GrantLimit] = (),
    ) -> None:
        with ExitStack() as opened:  # closed if the rest fails
            self._own_runtime = None if runtime else opened.enter_context(open_runtime(approver=approver))
            self.runtime = runtime or self._own_runtime or open_runtime()
            config = self.runtime.config
            enabled = None if toolsets is None else tuple(toolsets)
            if tools is not None:
                enabled = (*_add_tools(self.runtime, tools), *(enabled or ()))
            self._own_store = None if store else open_store(config, self.runtime.database)
            if self._own_store is not None:
                weakref.finalize(self, self._own_store.close)  # also for an agent that is never closed
            used_store: SessionStore = store or self._own_store or open_store(config, self.runtime.database)
            record = used_store.load_session(session_id) if session_id else None
            if record is not None:  # files that the session wrote before are still judged when they are run
                self.runtime.approval.include_changes_since(record.created)
            client, name = _choose_model(model, record, config)
            auxiliary_client, auxiliary_model = _choose_auxiliary(config)
            limit = config.agent.memory_max_chars
            deps = AgentDeps(
                runtime=self.runtime,
                store=used_store,
                client=client,
                model=name,
                auxiliary_client=auxiliary_client,
                auxiliary_model=auxiliary_model,
                memory=Memory(config.paths.config_dir / MEMORY_FILE, max_chars=limit) if limit else None,
                approver=approver,
                asker=asker,
                context_tokens=context_tokens,
                stream_model=stream_model,
                delegates={
                    depth: asyncio.Semaphore(config.agent.max_delegates)
                    for depth in range(config.agent.max_delegation_depth)
                },
            )
            parent = self._open_limited_parent(grant_limits, record.toolsets if record else enabled, approver)
            if record is None:
                record = _create_record(deps, enabled, disabled_toolsets, instructions, parent)
            super().__init__(deps, record, limits, parent=parent)
            opened.pop_all()

    def _open_limited_parent(
        self, limits: Sequence[GrantLimit], toolsets: Iterable[str] | None, approver: Approver | None
    ) -> Session | None:
        """Open a parent session for the toolsets within the given limits; None if no limits are given."""
        if not limits:
            return None
        parent = self.runtime.session(toolsets, approver=approver)
        for limit in limits:
            parent = parent.delegate(limit.enabled, limit.disabled)
        return parent

    def run_sync(self, message: str) -> TurnResult:
        """Process a message like `run`, for callers that are not async."""
        return self.runtime.run_coroutine(self.run(message))

    async def change_model(self, model: str | ModelClient) -> None:
        """Continue the session with another model, given as PROVIDER:MODEL or as a client object."""
        client, name = _choose_model(model, None, self.runtime.config)
        await self._deps.client.close()
        self._deps.client, self._deps.model, self._setup = client, name, None
        record = self.history.record
        self.history.thread.close()
        self.history = await asyncio.to_thread(self._open_history, record)

    async def close(self) -> None:
        """Release the session and close the runtime and clients that the agent opened."""
        self.interrupt()
        async with AsyncExitStack() as opened:  # closes all of them, whatever fails
            if self._own_runtime is not None:
                opened.push_async_callback(asyncio.to_thread, self._own_runtime.close)
            if self._own_store is not None:
                opened.callback(self._own_store.close)
            if self._deps.auxiliary_client is not None:
                opened.push_async_callback(self._deps.auxiliary_client.close)
            opened.push_async_callback(self._deps.client.close)
            await self._release_in_thread()

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        own, self._own_runtime = self._own_runtime, None  # it runs the coroutine below
        try:
            self.runtime.run_coroutine(self.close())
        finally:
            if own is not None:
                own.close()


def _add_tools(runtime: Runtime, tools: Iterable[ToolLike]) -> list[str]:
    """Register tools, and return the rules that grant them. Raises NameTaken."""
    chosen, registered = [as_tool(each) for each in tools], runtime.registry.snapshot()
    for each in chosen:  # another agent may use the tool that has the name
        if registered.get(each.name, each) != each:
            raise NameTaken(each.name, registered[each.name].toolset)
    return [TOOL_RULE + each.name for each in runtime.registry.add_all(chosen)]


def _choose_model(
    model: str | ModelClient, record: SessionRecord | None, config: Config
) -> tuple[ModelClient, ModelName]:
    if not isinstance(model, str):
        return model, ModelName(model.name, model.model)
    text = model or (record.model if record else "") or config.agent.model
    if not text:
        raise ConfigError(
            "no model is configured",
            key="agent.model",
            hint="set a model: toolfold config set agent.model anthropic:claude-sonnet-4-6",
        )
    name = parse_model_name(text, config)
    return build_client(name, config), name


def _choose_auxiliary(config: Config) -> tuple[ModelClient | None, ModelName | None]:
    """Return the client and the name of the model configured for summaries; both None if there is none.

    Raises ConfigError if the model cannot be used.
    """
    key = "agent.auxiliary_model"
    if not config.agent.auxiliary_model:
        return None, None
    name = parse_model_name(config.agent.auxiliary_model, config, key=key)
    return build_client(name, config), name


def _create_record(
    deps: AgentDeps,
    enabled: tuple[str, ...] | None,
    disabled: Iterable[str],
    instructions: str,
    parent: Session | None,
) -> SessionRecord:
    disabled = tuple(disabled)
    # Before the session is stored: a session that cannot open must not become the newest one.
    _require_toolsets(deps.runtime, (*(enabled or ()), *disabled))
    scope = (
        parent.scope.narrow(enabled, disabled)
        if parent
        else deps.runtime.session(enabled, disabled_toolsets=disabled).scope
    )
    may_know = scope.covers(deps.runtime.toolsets(), MEMORY_TOOLSET)
    facts = deps.memory.read_facts() if deps.memory and may_know else ()
    has_skills = scope.covers(deps.runtime.toolsets(), SKILLS_TOOLSET)
    skills = open_skill_library(deps.runtime.config).list_skills() if has_skills else ()
    record = SessionRecord(
        id=secrets.token_hex(8),
        model=str(deps.model),
        dialect=deps.client.dialect.name,
        system=build_system_prompt(
            deps.runtime.config, facts=facts, skills=skills, instructions=instructions
        ),
        toolsets=enabled,
        disabled_toolsets=disabled,
    )
    deps.store.create_session(record)
    return record


def _require_toolsets(runtime: Runtime, names: Iterable[str]) -> None:
    """Raise UnknownToolset if one of the names is not a toolset."""
    toolsets = runtime.toolsets()
    # Only unknown names: `require` also warns about unconnected servers, as opening the session will.
    toolsets.require(name for name in names if not toolsets.knows(name))
