"""Build and own all components of Toolfold, and open sessions.

The only module where all components meet. There are no singletons: two runtimes in one process share
nothing. Methods known from other tool runtimes are provided too, each a thin layer over a session.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

from toolfold.config import Config, default_config, load_config
from toolfold.config.changes import (
    SettingsChanges,
    compare_settings,
    hold_edits,
    keep_fixed_settings,
)
from toolfold.config.live import LoadedSettings, SettingsFollower, SettingsWatch
from toolfold.config.monitor import require_accepted
from toolfold.config.record import SettingsRecord
from toolfold.config.settings import ToolsSettings
from toolfold.core.authoring import ToolLike
from toolfold.core.availability import Availability, Status
from toolfold.core.errors import ConfigError, error_message, shorten
from toolfold.core.events import ConfigReloaded, EventBus
from toolfold.core.registry import Registry, Snapshot
from toolfold.core.scope import TOOL_RULE, Scope, Toolsets
from toolfold.core.tool_processes import Beacon, find_tool_call
from toolfold.core.types import (
    BUILTIN_SOURCE,
    AgentServices,
    Approver,
    Caller,
    Definition,
    GrantLimit,
    Json,
    Tool,
)
from toolfold.mcp.elicitation import Elicit, InteractionCallbacks, Sampler
from toolfold.mcp.pool import McpServers
from toolfold.models.model_table import find_limits
from toolfold.runtime.configured_scope import SynonymCheck, build_scope, declare_toolsets
from toolfold.runtime.dispatch import Dispatch
from toolfold.runtime.index_updates import IndexUpdates
from toolfold.runtime.parts import (
    LoadedTools,
    RuntimeParts,
    build_dispatch,
    build_monitor,
    load_tools,
    open_parts,
)
from toolfold.runtime.results import ResultStore, render
from toolfold.runtime.session import Session, SessionDeps, SessionLimit
from toolfold.runtime.telemetry import open_readers
from toolfold.safety.approval.approval_factory import build_audit
from toolfold.safety.approval.gate import Approval
from toolfold.safety.approval.smart import Reviewer
from toolfold.selection.retrieval.index import Progress
from toolfold.selection.retrieval.indexing import IndexState
from toolfold.selection.retrieval.tool_search import Retriever
from toolfold.selection.turn import (
    Bridge,
    BridgeAnswers,
    Disclosure,
    Grant,
    Selector,
    assemble,
    render_definitions,
)
from toolfold.selection.turn.deferral import Deferral
from toolfold.selection.turn.request_builder import RequestPolicy
from toolfold.selection.turn.token_counts import ToolTokenCounts
from toolfold.tools.source_report import LOADED

log = logging.getLogger(__name__)

Value = TypeVar("Value")


def open_runtime(
    config: Config | None = None,
    *,
    selection: Literal["auto", "eager", "hybrid", "semantic", "keyword"] | None = None,
    top_k: int | None = None,
    tool_search: bool | Literal["auto"] | None = None,
    toolsets: Iterable[str] | None = None,
    mcp_servers: Mapping[str, Mapping[str, object]] | None = None,
    providers: Mapping[str, Mapping[str, object]] | None = None,
    workspace: Path | str | None = None,
    approval_mode: Literal["manual", "smart", "off"] | None = None,
    tool_timeout: float | None = None,
    settings: Mapping[str, object] | None = None,
    state_dir: Path | str | None = None,
    user_settings: bool = False,
    approver: Approver | None = None,
    reviewer: Reviewer | None = None,
    progress: Progress | None = None,
    elicit: Elicit | None = None,
    sampler: Sampler | None = None,
    behind_gateway: bool = False,
    client_names: bool | None = None,
    build_index: bool = True,
) -> Runtime:
    """Build a runtime. Close it, or use it in a `with` statement.

    Uses the defaults and these arguments. `user_settings` reads the settings files and environment variables
    of the command line as well, and then `state_dir` is the user's. `settings` are any others by their keys:
    `{"tools.max_parallel": 4}`. `toolsets` are those of the built-in tools that a session has without naming
    them: none. State is kept in `state_dir`, by default until the runtime is closed. A `config` from
    `load_config` replaces all of these.

    `approver` decides what a person must confirm; `reviewer` is the model that `approval.mode: smart`
    asks first, instead of the configured one. `progress` receives the number of indexed tools and the
    total while an index is built. `elicit` answers questions of MCP servers to a person, and `sampler`
    their requests to a model; without them these are declined. `behind_gateway` is for a runtime whose
    tools are called by MCP clients, which add their own tool prefix and ask their own users. `client_names`
    names the tools of MCP servers as those clients see them, `git_status` instead of `mcp_git_status`; this
    is the default without a `config`. `build_index`
    builds the search index in the background, as soon as there are enough tools for a search.
    """
    given = {
        "tools.selection": selection,
        "tools.rag_top_k": top_k,
        "tools.tool_search": tool_search,
        "mcp.servers": mcp_servers,
        "providers": providers,
        "files.workspace": None if workspace is None else str(workspace),
        "approval.mode": approval_mode,
        "tools.timeout_seconds": tool_timeout,
    }
    overrides = {key: value for key, value in given.items() if value is not None} | dict(settings or {})
    with ExitStack() as opened:  # closes what was opened if the rest fails
        temporary_dir = None
        client_names = config is None if client_names is None else client_names
        if toolsets is None and not user_settings and (config is None or config.loaded_with is None):
            toolsets = ()
        if config is not None:
            if overrides or state_dir or user_settings:
                raise ConfigError("a configuration already has all settings", hint="load_config(overrides=…)")
        elif user_settings or find_tool_call():  # code that a tool call runs keeps the user's restrictions
            if state_dir and user_settings:
                raise ConfigError("state_dir is that of the user settings", hint="set TOOLFOLD_HOME instead")
            config = load_config(overrides=overrides)
        else:
            if not state_dir:
                state_dir = temporary_dir = Path(tempfile.mkdtemp(prefix="toolfold-"))
                opened.callback(shutil.rmtree, temporary_dir, ignore_errors=True)
            config = default_config(overrides, state_dir=Path(state_dir))
        record = SettingsRecord(config.paths.state_dir)
        require_accepted(config, record)
        parts = open_parts(config, progress, opened)
        tools = load_tools(config, parts)
        if find_tool_call():
            elicit = None  # the tool call itself would answer
        mcp = McpServers(
            config,
            parts.registry,
            database=parts.database,
            callbacks=InteractionCallbacks(elicit=elicit, sampler=sampler, loops=parts.loops),
            behind_gateway=behind_gateway,
            client_names=client_names,
        )
        opened.callback(mcp.close)
        monitor = build_monitor(
            config,
            record,
            parts.terminal,
            lambda: mcp.has_started_programs,
            build_audit(config, parts.database),
        )
        dispatch = build_dispatch(config, parts, tools.rules, monitor, approver=approver, reviewer=reviewer)
        # Before any server starts: the first state must not contain a server's changes.
        follower = SettingsFollower(config, record, monitor) if monitor and config.loaded_with else None
        mcp.open()
        mcp.settle()
        runtime = Runtime(
            config,
            parts,
            tools,
            dispatch,
            mcp,
            behind_gateway=behind_gateway,
            follower=follower,
            toolsets=toolsets,
            temporary_dir=temporary_dir,
        )
        if build_index and progress is None:
            runtime._index_updates.start()
        opened.pop_all()  # from now on the runtime closes them
        return runtime


class Runtime:
    """Runtime that owns all components and opens sessions; created by `open_runtime`."""

    def __init__(
        self,
        config: Config,
        parts: RuntimeParts,
        tools: LoadedTools,
        dispatch: Dispatch,
        mcp: McpServers,
        *,
        behind_gateway: bool = False,
        follower: SettingsFollower | None = None,
        toolsets: Iterable[str] | None = None,
        temporary_dir: Path | None = None,
    ) -> None:
        """Create a runtime from its components; `follower` reloads changed settings.

        `toolsets` are those of the built-in tools that a session has without naming them; None means all.
        `temporary_dir` is deleted when the runtime is closed.
        """
        self.database = parts.database
        """The database that replicas share; None if all state is in files of this machine."""
        self.config = config
        """The settings in force."""
        self._loaded_config = config
        self._held_settings: frozenset[str] = frozenset()
        """Changed settings that are used only after a restart: an MCP server could have changed them."""
        self._behind_gateway = behind_gateway
        self._follower = follower
        self._settings_watch: SettingsWatch | None = None
        self._settings_lock = threading.Lock()
        self.settings_version = 0
        """Number that increases whenever changed settings take effect."""
        self._browser, self._skill_search, self.jobs = parts.browser, parts.skill_search, parts.jobs
        self._chat = parts.chat
        self.terminal = parts.terminal
        self.mcp = mcp
        self.hooks = dispatch.hooks
        self.events: EventBus = dispatch.events.bus
        self.approval: Approval = dispatch.approval
        self.sources = tools.reports
        self.registry = RuntimeRegistry(self, parts.registry)
        self.retriever = parts.retriever
        self.usage = dispatch.usage
        """Learns from the use of tools; None if nothing is observed."""
        self._registry, self._dispatch = parts.registry, dispatch
        self._plugin_toolsets = tools.plugin_toolsets
        self._declared = (*tools.plugin_toolsets, *tools.user_toolsets)
        self._availability = Availability(
            timeout=config.availability.timeout_seconds,
            grace=config.availability.grace_seconds,
            redact=dispatch.redact,
        )
        self._toolsets = Toolsets(parts.registry.snapshot(), self._declared)
        self._default_toolsets = None if toolsets is None else tuple(toolsets)
        self._toolsets.require(self._default_toolsets or ())
        self._synonym_check = SynonymCheck(config.tools.synonyms)
        self._synonym_check.check(self._toolsets)
        self._preview_weights = ToolTokenCounts()
        self._id = secrets.token_hex(8)
        self._deps = self._build_deps(config, self._build_scope(config, self._toolsets), dispatch)
        self._smallest_window: int | None = None
        """The smallest context window of a session so far."""
        self._index_updates = IndexUpdates(parts.registry, parts.retriever, self._may_search)
        mcp.on_servers_changed = self._handle_changed_servers
        if parts.database is not None:
            mcp.follow_shared_pins(parts.database)
            mcp.follow_shared_listings()
        dispatch.results.prune()
        self._delete_state: Callable[[], object] = (
            weakref.finalize(self, shutil.rmtree, temporary_dir, ignore_errors=True)
            if temporary_dir
            else lambda: None
        )
        self._beacon = Beacon()
        self._close_readers = open_readers(config, self.events)  # last: it starts threads

    def _build_scope(self, config: Config, toolsets: Toolsets) -> Scope:
        all_loaded = all(report.state == LOADED for report in self.sources)
        return build_scope(config, toolsets, all_loaded=all_loaded)

    def _build_deps(self, config: Config, scope: Scope, dispatch: Dispatch) -> SessionDeps:
        """Return the components for sessions that are opened with the given settings."""
        self.retriever.learned.enabled = config.tools.learn_from_use
        self.retriever.learned.half_life_days = config.tools.learn_half_life_days
        disclosing = _build_disclosing(
            config.tools, self.retriever, ToolTokenCounts(), behind_gateway=self._behind_gateway
        )
        return SessionDeps(
            config=config,
            availability=self._availability,
            dispatch=dispatch,
            **disclosing,
            toolsets=self.toolsets,
            scope=scope,
            latest=lambda: self._deps,
            awaiting=self.mcp.held_tool_names,
            explain_missing=self.mcp.explain_missing_tools,
            wait_for_tool=self.mcp.wait_for_tool,
            release=lambda session_id: self._browser.release(f"{session_id}/"),
        )

    def _may_search(self) -> bool:
        """Return True if a session may select or search tools, as far as its context window is known."""
        deps, agent = self._deps, self.config.agent
        limits = find_limits(agent.model)
        windows = (self._smallest_window, agent.context_tokens or (limits.context if limits else None))
        toolsets = Toolsets(self._registry.snapshot(), self._declared)
        grant = Grant.from_names(toolsets.snapshot, deps.scope.granted(toolsets))
        return deps.disclosure.may_search(grant, min(filter(None, windows), default=None))

    def wait_for_index_sync(self, timeout_s: float | None = None) -> IndexState:
        """Build the search index and wait until all tools are embedded; return its state.

        `is_complete` is False after `timeout_s` seconds, or if the embedding model is not available.
        """
        return self.retriever.finish_index(self._registry.snapshot(), timeout_s)

    async def wait_for_index(self, timeout_s: float | None = None) -> IndexState:
        """Wait for the search index like `wait_for_index_sync`, without blocking the event loop."""
        return await self._dispatch.loops.run_in_thread(lambda: self.wait_for_index_sync(timeout_s))

    def check_settings(self) -> tuple[str, ...]:
        """Apply changes of the settings files now and return descriptions of them. Never raises.

        Reads nothing while no file has changed. An invalid file, and a change that a tool call has made,
        leave all settings as they are and are logged.
        """
        follower = self._follower
        if follower is None:
            return ()
        with self._settings_lock:
            loaded = follower.load() if follower.has_changed() else None
            if loaded is None:
                return ()
            try:
                changes = self._use_settings(loaded)
            except ConfigError as error:
                log.warning("the changed settings are not used: %s", error)
                return ()
            follower.accept(loaded)
        if changes:
            log.info("settings have changed: %s", ", ".join(changes))
            self.events.publish(ConfigReloaded(changes=changes))
        return changes

    def watch_settings(self) -> None:
        """Start a thread that applies every change of the settings files within a second."""
        with self._settings_lock:
            if self._follower is not None and self._settings_watch is None:
                self._settings_watch = SettingsWatch(self._follower.has_changed, self.check_settings)

    def _use_settings(self, loaded: LoadedSettings) -> tuple[str, ...]:
        """Apply settings to all components that can change without a restart.

        Raises ConfigError before any change.
        """
        before, config = self.config, keep_fixed_settings(self.config, loaded.config)
        is_own_change = loaded.is_own_change or not self.mcp.has_started_programs
        config, held = hold_edits(before, config, self._held_settings, is_own_change=is_own_change)
        changes = compare_settings(self._loaded_config, loaded.config)
        user = declare_toolsets(
            config, Toolsets(self._registry.snapshot(), self._plugin_toolsets), before.toolsets
        )
        declared = (*self._plugin_toolsets, *user)
        toolsets = Toolsets(self._registry.snapshot(), declared)
        scope = self._build_scope(config, toolsets)
        self._log_settings(loaded.config, changes, held)
        self._held_settings = held
        self._loaded_config = loaded.config
        if changes.live:
            dispatch = replace(
                self._dispatch,
                results=ResultStore(
                    config.paths.state_dir / "results", max_chars=config.tools.result_max_chars
                ),
                timeout=config.tools.timeout_seconds,
                max_parallel=config.tools.max_parallel,
            )
            self._dispatch, self._declared, self._toolsets = dispatch, declared, toolsets
            self._deps = self._build_deps(config, scope, dispatch)
        self.config = config
        servers = self.mcp.update(config)
        if loaded.changed_locks:
            self.mcp.publish_all_reviewed()
        self.approval.use_own_servers(self.mcp.find_own_servers())
        self.settings_version += 1
        self._index_updates.request()
        in_use = compare_settings(before, config).live
        return (*(f"{key} changed" for key in in_use), *servers)

    def _log_settings(self, config: Config, changes: SettingsChanges, held: frozenset[str]) -> None:
        for warning in config.warnings:
            if warning not in self._loaded_config.warnings:
                log.warning("%s", warning)
        if changes.fixed:
            log.warning("changed settings that take effect after a restart: %s", ", ".join(changes.fixed))
        if new := held - self._held_settings:
            log.warning(
                "%s: the file was edited while MCP servers were running, one of which could have edited it,"
                " so the change takes effect after a restart. Next time use `toolfold mcp set` or"
                " `toolfold config set`, which take effect immediately",
                ", ".join(sorted(new)),
            )

    def session(
        self,
        toolsets: Iterable[str] | None = None,
        *,
        disabled_toolsets: Iterable[str] = (),
        agent: AgentServices | None = None,
        approver: Approver | None = None,
        context_tokens: int | None = None,
        client: str = "",
        caller: Caller | None = None,
        id: str | None = None,  # noqa: A002 - the name callers expect
        find_limit: Callable[[], GrantLimit] | None = None,
    ) -> Session:
        """Open a session with the given toolsets, limited to the toolsets allowed by the configuration.

        `context_tokens` is the context window of its model; None if unknown. `client` names the owner of
        the session if several clients share the runtime, and `caller` is that client for approval.
        `find_limit` returns what that client may use now; a change takes effect in the next turn.
        """
        deps = self._deps  # read once: changed settings replace it
        limit = SessionLimit.open(find_limit, deps.scope) if find_limit else None
        base = deps.scope if limit is None else limit.scope
        scope = self._narrow_scope(base, toolsets, disabled_toolsets)
        session = Session(
            deps,
            scope,
            agent=agent,
            approver=approver,
            context_tokens=context_tokens,
            client=client,
            caller=caller,
            id=id,
            limit=limit,
        )
        if context_tokens and (self._smallest_window is None or context_tokens < self._smallest_window):
            self._smallest_window = context_tokens
            self._index_updates.request()
        return session

    def preview_session(
        self,
        settings: ToolsSettings,
        toolsets: Iterable[str] | None = None,
        *,
        context_tokens: int | None = None,
    ) -> Session:
        """Open a session with different tool selection settings, to preview the tools sent to a model.

        It is granted what `session` would grant, and shows tools as an agent would, not as the gateway does.
        """
        current = self._deps
        config = current.config.model_copy(update={"tools": settings})
        disclosing = _build_disclosing(settings, self.retriever, self._preview_weights, behind_gateway=False)
        deps = replace(current, config=config, latest=None, **disclosing)
        scope = self._narrow_scope(deps.scope, toolsets, ())
        return Session(deps, scope, context_tokens=context_tokens)

    def build_foreign_deps(
        self, snapshot: Snapshot, settings: ToolsSettings, retriever: Retriever, weights: ToolTokenCounts
    ) -> SessionDeps:
        """Return the components of sessions whose tools are run by a client instead of this runtime.

        Nothing of this runtime's own tools is granted to such a session.
        """
        config = self.config.model_copy(update={"tools": settings})
        toolsets, usage = Toolsets(snapshot), self.usage
        return SessionDeps(
            config=config,
            availability=self._availability,
            dispatch=replace(self._dispatch, usage=usage and usage.with_retriever(retriever)),
            **_build_disclosing(settings, retriever, weights, behind_gateway=False),
            toolsets=lambda: toolsets,
        )

    def toolsets(self) -> Toolsets:
        """Return all current toolsets."""
        snapshot = self._registry.snapshot()
        toolsets = self._toolsets
        if toolsets.snapshot is not snapshot:
            self._toolsets = toolsets = Toolsets(snapshot, self._declared)
            self._synonym_check.check(toolsets)
        return toolsets

    def get_tool_definitions(
        self,
        enabled_toolsets: Iterable[str] | None = None,
        disabled_toolsets: Iterable[str] | None = None,
        quiet_mode: bool = False,
    ) -> list[Definition]:
        """Return the tools array of the enabled toolsets; by default, of all except disabled toolsets.

        The schemas are shared and read-only, which is fast for many tools; `session.definitions()` returns
        copies.
        """
        scope = self._narrow_scope(self._deps.scope, enabled_toolsets, disabled_toolsets)
        return render_definitions(self._offered_tools(self.toolsets(), scope, quiet_mode))

    def offered(self, quiet: bool = False) -> Sequence[Tool]:
        """Return the tools that are allowed by the configuration and available now."""
        return self._offered_tools(self.toolsets(), self._deps.scope, quiet)

    def _narrow_scope(
        self, base: Scope, enabled: Iterable[str] | None, disabled: Iterable[str] | None
    ) -> Scope:
        """Return the scope for the given toolsets; without `enabled`, without the other built-in tools."""
        toolsets, removed = self.toolsets(), Scope().narrow(disabled=disabled or ()).disabled
        if enabled is None and self._default_toolsets is not None:
            snapshot = toolsets.snapshot
            builtin = {name for name, tool in snapshot.items() if tool.source.kind == BUILTIN_SOURCE}
            left_out = builtin.difference(*map(toolsets.resolve, self._default_toolsets))
            for name, members in snapshot.toolsets.items():
                out = members & left_out
                removed += (name,) if out == members else tuple(TOOL_RULE + each for each in sorted(out))
        return base.delegated(toolsets, enabled, removed)

    def _offered_tools(self, toolsets: Toolsets, scope: Scope, quiet: bool) -> Sequence[Tool]:
        turn = assemble(toolsets.snapshot, scope.granted(toolsets), self._availability)
        if not quiet:
            log.info("%d tools are available, %d are not", len(turn.tools), len(turn.unavailable))
        return turn.tools

    def handle_function_call(
        self,
        name: str,
        args: Json | str | None = None,
        task_id: str | None = None,
        user_task: str | None = None,
        enabled_toolsets: Iterable[str] | None = None,
        disabled_toolsets: Iterable[str] | None = None,
    ) -> str:
        """Run one tool call and return the JSON text for the model. Never raises."""
        try:
            deps = self._deps
            scope = self._narrow_scope(deps.scope, enabled_toolsets, disabled_toolsets)
            session = Session(deps, scope, id=self._task_session_id(task_id))
            return session.call_sync(name, args, task_id=task_id, user_task=user_task).text
        except Exception as error:  # invalid arguments of the caller; the model still gets JSON
            problem = f"Error executing {shorten(str(name))}: {error_message(error)}"
            return render({"error": self._dispatch.redact(problem)})

    def resolve_toolset(self, name: str) -> list[str]:
        """Return the tools of a toolset sorted by name, with included toolsets and legacy names resolved."""
        self.toolsets().require([name])
        return sorted(self.toolsets().resolve(name))

    def is_toolset_available(self, name: str) -> bool:
        """Return True if at least one tool of the toolset can be used now."""
        return any(status.usable for status in self.statuses(self.resolve_toolset(name)).values())

    def statuses(self, names: Iterable[str] | None = None) -> dict[str, Status]:
        """Return the availability of each tool by name, with the reason if it is unavailable."""
        snapshot = self._registry.snapshot()
        tools = [snapshot[name] for name in (snapshot if names is None else names) if name in snapshot]
        checked = self._availability.statuses(tools)
        return {tool.name: checked.get(tool.name, Status(True)) for tool in tools}

    def switched_off(self) -> frozenset[str]:
        """Return the existing tools that the configuration allows in no session."""
        toolsets = self.toolsets()
        return frozenset(toolsets.snapshot) - self._deps.scope.granted(toolsets)

    def run_coroutine(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        """Run a coroutine on the runtime's event loop and wait for it, from any thread."""
        return self._dispatch.loops.run(coroutine)

    def close(self) -> None:
        """Stop all components of this runtime. Its sessions must not be used afterwards."""
        self._index_updates.stop()
        if self._settings_watch is not None:
            self._settings_watch.close()
        if self._chat is not None:
            self._chat.close()
        self.mcp.close()
        if self.usage is not None:
            self.usage.wait()
        self._skill_search.close()
        self.retriever.close()
        self._index_updates.wait()
        self.retriever.learned.close()
        self._browser.close()
        self.jobs.store.close()
        self.terminal.close()
        self._dispatch.loops.close()
        self._close_readers()
        self._beacon.close()
        if self.database is not None:
            self.database.close()
        self._delete_state()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Runtime:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _handle_changed_servers(self, changes: tuple[str, ...]) -> None:
        """Publish an event for servers that were added or removed in this runtime."""
        self.approval.use_own_servers(self.mcp.find_own_servers())
        self.events.publish(ConfigReloaded(changes=changes))

    def _task_session_id(self, task_id: str | None) -> str:
        """Return the session id for a task; a random id if there is no task.

        Calls of one task share it, so that later calls can read stored results of earlier ones.
        """
        if task_id is None:
            return f"call-{secrets.token_hex(8)}"
        digest = hashlib.sha256(f"{self._id} {task_id!r}".encode(errors="replace")).hexdigest()
        return f"task-{digest[:16]}"


class RuntimeRegistry:
    """Registry of a runtime's tools, which can also return tool definitions and run calls."""

    def __init__(self, runtime: Runtime, registry: Registry) -> None:
        self._runtime, self._registry = runtime, registry

    def register(self, *, override: bool = True, **definition: Any) -> Tool:
        """Register a tool from name, schema and handler; see `toolfold.build_tool`."""
        return self._registry.register(override=override, **definition)

    def add(self, tool: ToolLike, *, override: bool = True) -> Tool:
        """Register a tool, a function decorated with `@tool`, or a typed function."""
        return self._registry.add(tool, override=override)

    def add_all(self, tools: Iterable[ToolLike], *, override: bool = True) -> list[Tool]:
        """Register all of the tools, or none if one is rejected."""
        return self._registry.add_all(tools, override=override)

    def remove(self, name: str) -> bool:
        """Remove a tool; return False if it does not exist."""
        return self._registry.remove(name)

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the registered tools."""
        return self._registry.snapshot()

    def get_definitions(self, names: Iterable[str] | None = None, quiet: bool = False) -> list[Definition]:
        """Return read-only definitions of the named tools that are allowed and available now."""
        offered = self._runtime.offered(quiet)
        if names is None:
            return render_definitions(offered)
        wanted = {tool.name for name in names if (tool := self.snapshot().find(name))}
        return render_definitions(tool for tool in offered if tool.name in wanted)

    def dispatch(self, name: str, args: Json | str | None = None, **options: Any) -> str:
        """Run one call through the dispatch pipeline and return the JSON text for the model."""
        return self._runtime.handle_function_call(name, args, **options)


class _Disclosing(TypedDict):
    """Components of a session that decide which tools are visible to the model."""

    bridge: Bridge
    disclosure: Disclosure
    selector: Selector
    requests: RequestPolicy


def _build_disclosing(
    settings: ToolsSettings, retriever: Retriever, weights: ToolTokenCounts, *, behind_gateway: bool
) -> _Disclosing:
    bridge, deferral = Bridge(BridgeAnswers(retriever, settings)), Deferral(settings)
    selector = Selector(settings, retriever, deferral=deferral, weights=weights)
    return {
        "bridge": bridge,
        "disclosure": Disclosure(
            settings, bridge, deferral=deferral, weights=weights, behind_gateway=behind_gateway
        ),
        "selector": selector,
        "requests": RequestPolicy(settings, selector, bridge),
    }
