"""Build the components of a runtime from its configuration.

`open_runtime` puts them together: first what needs only the configuration, then the tools, then the path of
all calls. Nothing here keeps state of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from shellverdict.execution_site import ExecutionSite
from shellverdict.rules import Rule
from toolfold.config import Config, get_trust_state, is_still_trusted
from toolfold.config.monitor import SettingsMonitor, watched_paths
from toolfold.config.record import SettingsRecord
from toolfold.core.errors import ConfigError
from toolfold.core.events import EventBus, IndexUpdated, SearchFailed
from toolfold.core.hooks import Hooks
from toolfold.core.loops import EventLoops
from toolfold.core.registry import Registry
from toolfold.core.scope import Toolsets
from toolfold.core.tool_processes import find_tool_call
from toolfold.core.toolset_names import Toolset
from toolfold.core.types import Approver, Source
from toolfold.core.validation import Validation
from toolfold.mcp.result_scanning import mark_injections, mark_page_injections
from toolfold.mcp.scan import find_injections
from toolfold.models.model_access import ModelAccess
from toolfold.models.model_names import find_embeddings_service
from toolfold.runtime.call_events import CallEvents
from toolfold.runtime.chat.chat_approver import ChatApprover, build_chat_approver
from toolfold.runtime.configured_scope import declare_toolsets
from toolfold.runtime.dispatch import Dispatch
from toolfold.runtime.results import ResultStore
from toolfold.safety.approval.approval_factory import build_approval
from toolfold.safety.approval.audit_log import DecisionLog
from toolfold.safety.approval.smart import Reviewer
from toolfold.safety.redaction import Redaction
from toolfold.selection.learning import UsageTracker
from toolfold.selection.retrieval.database_index import DatabaseIndex
from toolfold.selection.retrieval.embedding import Embedder, EndpointEmbedder, shipped_light_embedder
from toolfold.selection.retrieval.example_messages import ExampleMessages
from toolfold.selection.retrieval.index import Progress
from toolfold.selection.retrieval.indexing import IndexState
from toolfold.selection.retrieval.learned_messages import LearnedMessages
from toolfold.selection.retrieval.learned_store import open_learned
from toolfold.selection.retrieval.message_store import open_messages
from toolfold.selection.retrieval.multilingual import MultilingualEmbedder
from toolfold.selection.retrieval.need import Head, NeedClassifier
from toolfold.selection.retrieval.phrasebook import Phrasebook
from toolfold.selection.retrieval.ranking import Ranker
from toolfold.selection.retrieval.reranking import Reranker
from toolfold.selection.retrieval.shared_vectors import SharedVectors
from toolfold.selection.retrieval.synonyms import Synonyms
from toolfold.selection.retrieval.tool_search import Retriever
from toolfold.selection.retrieval.vector_store import VECTOR_DIRECTORY, VectorFile, VectorStore
from toolfold.state.database import Database, open_database
from toolfold.state.store.jobs import open_job_store
from toolfold.tools.builtin import OutsideText, Services
from toolfold.tools.builtin.rl_training import inject_parameters, starts_training
from toolfold.tools.builtin.terminal import CODE_SOURCE, inject_workdir, needs_context
from toolfold.tools.builtin.terminal import SOURCE as TERMINAL
from toolfold.tools.builtin_source import load_builtin
from toolfold.tools.environments import environment_factory as factory
from toolfold.tools.environments.environment_thread import EnvironmentThread
from toolfold.tools.files import Workspace
from toolfold.tools.internet.address_policy import AddressPolicy
from toolfold.tools.internet.browser_pool import BrowserPool
from toolfold.tools.openapi.api_tools import load_apis
from toolfold.tools.plugin_source import PluginDirectory, load_plugins
from toolfold.tools.scheduled_jobs import ScheduledJobs
from toolfold.tools.skill_files import open_skill_library
from toolfold.tools.source_report import SourceReport

log = logging.getLogger(__name__)

JOBS_FILE = "jobs.db"
_MIN_PATIENCE_S = 0.0
"""Least time that searches wait for new tools to be embedded, whatever the settings say; tests raise it."""


@dataclass(frozen=True, slots=True)
class RuntimeParts:
    """Components of a runtime that depend only on its configuration."""

    database: Database | None
    loops: EventLoops
    registry: Registry
    hooks: Hooks
    terminal: EnvironmentThread
    browser: BrowserPool
    events: CallEvents
    retriever: Retriever
    skill_search: Retriever
    jobs: ScheduledJobs
    chat: ChatApprover | None


def open_parts(config: Config, progress: Progress | None, opened: ExitStack) -> RuntimeParts:
    """Open the components of a runtime, and register them in `opened`, which closes them."""
    database = open_database(config.store)
    if database is not None:
        opened.callback(database.close)
    loops = EventLoops()
    opened.callback(loops.close)
    terminal = EnvironmentThread(factory.build_environment(config))
    opened.callback(terminal.close)
    browser = BrowserPool(config.browser, AddressPolicy.allowing(config.web.private_networks))
    opened.callback(browser.close)
    events = CallEvents(Redaction(config.secret_values()))
    retriever = _build_retriever(config, progress, events.bus, database)
    opened.callback(retriever.learned.close)
    opened.callback(retriever.close)
    skill_search = retriever.make_sibling()
    opened.callback(skill_search.close)
    job_store = open_job_store(config.paths.state_dir / JOBS_FILE, database)
    jobs = ScheduledJobs(job_store, config.cron, config.paths.current_dir)
    opened.callback(jobs.store.close)
    chat = build_chat_approver(config, loops)
    if chat is not None:
        opened.callback(chat.close)
    return RuntimeParts(
        database=database,
        loops=loops,
        registry=Registry(),
        hooks=Hooks(loops),
        terminal=terminal,
        browser=browser,
        events=events,
        retriever=retriever,
        skill_search=skill_search,
        jobs=jobs,
        chat=chat,
    )


@dataclass(frozen=True, slots=True)
class LoadedTools:
    """Result of loading tools: source reports, plugins' rules for dangerous commands, and toolsets."""

    reports: tuple[SourceReport, ...]
    rules: tuple[Rule, ...]
    plugin_toolsets: tuple[Toolset, ...]
    user_toolsets: tuple[Toolset, ...]


def load_tools(config: Config, parts: RuntimeParts) -> LoadedTools:
    """Register all tools and their hooks, except the tools of MCP servers."""
    registry, hooks = parts.registry, parts.hooks
    services = _build_services(config, parts)
    hooks.add_pre_hook(inject_workdir(parts.terminal), needs_context)
    hooks.add_pre_hook(inject_parameters(services), starts_training)
    reports = [
        *load_builtin(registry, services),
        *load_apis(registry, config, services.workspace, services.outside_text),
    ]
    rules: list[Rule] = []
    plugin_reports, plugin_toolsets = _load_plugins(config, registry, hooks, rules)
    user_toolsets = declare_toolsets(config, Toolsets(registry.snapshot(), plugin_toolsets))
    return LoadedTools(
        reports=(*reports, *plugin_reports),
        rules=tuple(rules),
        plugin_toolsets=tuple(plugin_toolsets),
        user_toolsets=tuple(user_toolsets),
    )


def _build_services(config: Config, parts: RuntimeParts) -> Services:
    """Return the services for handlers of built-in tools, such as files, terminal and browser."""
    return Services(
        workspace=_build_workspace(config),
        terminal=parts.terminal,
        max_command_s=config.terminal.max_timeout_seconds,
        web=config.web,
        environment=config.environment,
        outside_text=OutsideText(
            mark_injections,
            parts.events.redact.contains_known_secret,
            find_injections,
            mark_untrusted_page=mark_page_injections,
        ),
        messages=config.messages,
        images=config.images,
        speech=config.speech,
        models=ModelAccess(config),
        vision=config.vision,
        mixture=config.mixture,
        homeassistant=config.homeassistant,
        training=config.training,
        training_directory=config.paths.state_dir / "training",
        skills=open_skill_library(config),
        skill_search=parts.skill_search,
        jobs=parts.jobs,
        browser=parts.browser,
        browser_timeout_s=config.browser.timeout_seconds,
    )


def build_dispatch(
    config: Config,
    parts: RuntimeParts,
    rules: Sequence[Rule],
    monitor: SettingsMonitor | None,
    *,
    approver: Approver | None,
    reviewer: Reviewer | None,
) -> Dispatch:
    """Return the pipeline for all tool calls; `rules` are the plugins' rules for dangerous commands."""
    approval = build_approval(
        config,
        parts.loops,
        approver=approver,
        reviewer=reviewer,
        rules=rules,
        sites=_execution_sites(parts.terminal),
        events=parts.events,
        database=parts.database,
        chat=parts.chat,
    )
    return Dispatch(
        hooks=parts.hooks,
        validate=Validation(),
        approval=approval,
        loops=parts.loops,
        results=ResultStore(config.paths.state_dir / "results", max_chars=config.tools.result_max_chars),
        redact=parts.events.redact,
        events=parts.events,
        timeout=config.tools.timeout_seconds,
        max_parallel=config.tools.max_parallel,
        monitor=monitor,
        usage=UsageTracker(parts.retriever, parts.events.redact),
    )


def _execution_sites(terminal: EnvironmentThread) -> Mapping[tuple[Source, str], ExecutionSite]:
    """Return where each command tool runs its commands, for the approval check; empty if run locally."""
    backend = terminal.environment.backend
    shared = None if backend.shared_directories is None else tuple(backend.shared_directories)
    if not backend.has_own_files and shared is None:
        return {}
    site = ExecutionSite(
        name=backend.name, home=backend.home, has_own_files=backend.has_own_files, shared_directories=shared
    )
    return {
        (TERMINAL, "terminal"): site,
        (CODE_SOURCE, "execute_code"): site,
        (TERMINAL, "process"): replace(site, is_certain=False),
    }


def build_monitor(
    config: Config,
    record: SettingsRecord,
    terminal: EnvironmentThread,
    has_servers: Callable[[], bool],
    audit: DecisionLog,
) -> SettingsMonitor | None:
    """Return a monitor for settings changes during tool calls; None if a tool call started this process.

    Within a tool call, the outer runtime monitors them.
    """
    if find_tool_call():
        return None

    def report(path: str, during: str) -> None:
        reason = f"{path} was changed {during}, and not by Toolfold itself"
        entry = {"tool": "", "command": path, "rules": ["settings-changed"], "category": "self-protection"}
        judged = {"severity": "critical", "allowed": False, "by": "settings monitor", "answer": None}
        try:
            audit.write({**entry, **judged, "reason": reason, "why": reason})
        except (OSError, ConfigError):
            log.exception("cannot record the change of %s in the audit log", path)

    return SettingsMonitor(
        watched_paths(config),
        record,
        report=report,
        client_id=terminal.environment.client_id,
        has_servers=has_servers,
    )


def _build_retriever(
    config: Config, progress: Progress | None, bus: EventBus, database: Database | None
) -> Retriever:
    """Return the tool retriever, which loads its models and index at the first search."""
    model = config.tools.rag_embed_model
    ranker = "light" if model == "light" else "encoder"
    head: Head = "light" if model == "light" else "encoder" if model == "embedded" else "text"
    embedder = _build_embedder(config, model)
    shared = None if database is None else SharedVectors(database)
    store = shared or VectorFile(config.paths.cache_dir / VECTOR_DIRECTORY)
    # A caller that shows progress can wait for the whole index; a model's call cannot.
    max_wait_s = None if progress else max(config.tools.patience_seconds, _MIN_PATIENCE_S)

    def report_index(state: IndexState) -> None:
        bus.publish(IndexUpdated(tools=state.tools, embedded=state.embedded))

    return Retriever(
        embedder,
        lambda: Ranker.shipped(ranker),
        store,
        progress=progress,
        reranker=_build_reranker(config, store),
        synonyms=Synonyms(config.tools.synonyms),
        examples=_build_examples(config, database),
        need_classifier=lambda: NeedClassifier.shipped(head),
        learned=LearnedMessages(
            open_learned(config.paths.state_dir, database),
            half_life_days=config.tools.learn_half_life_days,
            find_instructions=find_injections,
        ),
        max_wait_s=max_wait_s,
        on_index_change=report_index,
        database_index=_build_database_index(
            config, database, embedder, shared, max_wait_s, report_index, bus
        ),
    )


def _build_database_index(
    config: Config,
    database: Database | None,
    embedder: Embedder,
    shared: SharedVectors | None,
    max_wait_s: float | None,
    on_change: Callable[[IndexState], None],
    bus: EventBus,
) -> DatabaseIndex | None:
    """Return the search index in the shared database; None if tools are searched in memory.

    Raises ConfigError if the settings ask for it, but name no database.
    """
    place = config.retrieval.index
    if database is None or shared is None:
        if place == "database":
            raise ConfigError(
                "the tools cannot be searched in a database, because `store` does not name a shared database",
                key="retrieval.index",
                hint="set `store` to the URL of a PostgreSQL database, or `retrieval.index: auto`",
            )
        return None
    if place == "memory":
        return None
    return DatabaseIndex(
        database,
        embedder,
        shared,
        place=place,
        max_wait_s=max_wait_s,
        on_change=on_change,
        on_failure=lambda reason: bus.publish(SearchFailed(reason=reason)),
    )


def _build_examples(config: Config, database: Database | None) -> ExampleMessages:
    """Return the example messages of tools, with the user's messages before the built-in messages."""
    if not config.tools.example_messages:
        return ExampleMessages()
    return ExampleMessages(open_messages(config.paths.state_dir, database), Phrasebook())


def _build_embedder(config: Config, name: str) -> Embedder:
    if name == "light":
        return shipped_light_embedder()
    return MultilingualEmbedder() if name == "embedded" else _build_endpoint(config, name)


def _build_reranker(config: Config, store: VectorStore) -> Reranker | None:
    settings = config.tools.tool_search.reranker
    if not settings.enabled:
        return None
    return Reranker(EndpointEmbedder(settings.endpoint, settings.model), store)


def _build_endpoint(config: Config, name: str) -> EndpointEmbedder:
    kind, _, model = name.partition(":")
    if kind != "auxiliary":
        return EndpointEmbedder(config.tools.tool_search.reranker.endpoint, name)
    url, key = find_embeddings_service(config)
    model = model or config.environment.get("OPENAI_EMBEDDING_MODEL") or "text-embedding-3-small"
    return EndpointEmbedder(url, model, key=key)


def _build_workspace(config: Config) -> Workspace:
    """Return the workspace of the file tools, which excludes Toolfold's private files."""
    return Workspace(config.workspace, config.files.extra_roots, private=config.own_paths)


def _load_plugins(
    config: Config, registry: Registry, hooks: Hooks, rules: list[Rule]
) -> tuple[list[SourceReport], list[Toolset]]:
    if not config.plugins.enabled:
        return [], []
    project = config.paths.project_dir
    directories = [
        PluginDirectory("user folder", config.plugins_folder),
        PluginDirectory("project folder", project / ".toolfold" / "plugins", _distrust_reason(config)),
    ]
    return load_plugins(
        registry, hooks, directories=directories, disabled=config.plugins.disabled, rules=rules
    )


def _distrust_reason(config: Config) -> str:
    reasons: Mapping[str, str] = {
        "trusted": "the current configuration was loaded without trusting it",
        "changed": "changed since you trusted it; review it, then run `toolfold plugins trust`",
        "untrusted": "not trusted; review it, then run `toolfold plugins trust`",
    }
    if is_still_trusted(config):  # again: it may have changed since the configuration was read
        return ""
    return reasons[get_trust_state(config.paths.project_dir, config.paths)]
