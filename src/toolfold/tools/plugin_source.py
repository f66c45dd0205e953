"""Load plugins, which add tools, hooks, toolsets and approval rules.

Plugins come from Python entry points (group `toolfold.plugins`), the user's directory, and the project's
directory if the user trusts it. A plugin is a module with a function `register(plugin)`. What it registers
takes effect only after that function has returned, all or nothing.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from shellverdict.errors import RuleError
from shellverdict.rules import Rule
from shellverdict.rules.loading import read_rule
from toolfold.core.authoring import DEFAULT_TOOLSET, ToolFunction, build_tool
from toolfold.core.errors import SourceError
from toolfold.core.hooks import POST, PRE, Hooks
from toolfold.core.registry import Registry
from toolfold.core.scope import Toolsets
from toolfold.core.toolset_names import Toolset
from toolfold.core.types import Source, Tool
from toolfold.tools.source_import import import_file
from toolfold.tools.source_report import (
    DISABLED,
    FAILED,
    LOADED,
    UNTRUSTED,
    SourceReport,
    describe_exception,
)

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "toolfold.plugins"


class Plugin:
    """Interface passed to the `register(plugin)` function of a plugin."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tools: list[Tool] = []
        self._hooks: list[tuple[str, Callable[..., Any]]] = []
        self._toolsets: list[Toolset] = []
        self._rules: list[Rule] = []

    def register(self, **definition: Any) -> None:
        """Register a tool with the arguments of `build_tool`; the default toolset is the plugin's name."""
        self.add(build_tool(**{"toolset": self.name, **definition}))

    def add(self, tool: Tool | ToolFunction[..., Any]) -> None:
        """Register a Tool or a function decorated with `@tool`."""
        value = tool.tool if isinstance(tool, ToolFunction) else tool
        if not isinstance(value, Tool):
            raise SourceError(f"expected a Tool or a @tool function, not {type(value).__name__}")
        toolset = self.name if value.toolset == DEFAULT_TOOLSET else value.toolset
        source = Source("plugin", self.name)
        self._tools.append(replace(value, toolset=toolset, source=source, core=False))

    def hook(self, event: str, hook: Callable[..., Any]) -> None:
        """Register a `pre_tool_call` or `post_tool_call` hook."""
        if event not in (PRE, POST) or not callable(hook):
            raise SourceError(f"unknown hook {event!r}; use {PRE} or {POST} with a callable")
        self._hooks.append((event, hook))

    def toolset(
        self, name: str, *, tools: Iterable[str] = (), includes: Iterable[str] = (), description: str = ""
    ) -> None:
        """Register a toolset that groups tools and other toolsets."""
        if not name or not isinstance(name, str) or not isinstance(description, str):
            raise SourceError("the name and the description of a toolset must be strings")
        self._toolsets.append(Toolset(name, description, _check_names(tools), _check_names(includes)))

    def rule(self, **table: Any) -> None:
        """Register an approval rule, with the same keys as an entry of the setting `approval.rules`.

        The plugin's name is prepended to its name, so that it cannot imitate another rule.
        """
        try:
            rule = read_rule({**table, "name": f"{self.name}:{table.get('name') or len(self._rules) + 1}"})
        except RuleError as error:
            raise SourceError(str(error)) from None
        if rule.name in (each.name for each in self._rules):
            raise SourceError(f"the plugin registers two rules named {rule.name!r}")
        self._rules.append(rule)

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(self._rules)

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(self._tools)

    @property
    def hooks(self) -> tuple[tuple[str, Callable[..., Any]], ...]:
        return tuple(self._hooks)

    @property
    def toolsets(self) -> tuple[Toolset, ...]:
        return tuple(self._toolsets)


@dataclass(frozen=True, slots=True)
class PluginDirectory:
    """Directory of plugins: `name.py` files and packages."""

    kind: str
    path: Path
    distrust_reason: str = ""
    """Reason why the directory must not be loaded; empty if it may be."""


@dataclass(frozen=True, slots=True)
class _PluginCandidate:
    kind: str
    name: str
    location: str
    load: Callable[[], Any]
    distrust_reason: str = ""


def load_plugins(
    registry: Registry,
    hooks: Hooks,
    *,
    directories: Iterable[PluginDirectory],
    disabled: Collection[str] = (),
    rules: list[Rule] | None = None,
) -> tuple[list[SourceReport], list[Toolset]]:
    """Load all plugins; return a report for each plugin, and the registered toolsets.

    Their tools, hooks and rules are added to the registry, to `hooks` and to `rules`.
    """
    reports: list[SourceReport] = []
    toolsets: list[Toolset] = []
    for candidate in (*_iter_entry_points(), *_iter_directories(directories)):
        report, plugin = _load_plugin(candidate, registry, hooks, disabled, toolsets)
        reports.append(report)
        if plugin is not None:
            toolsets += plugin.toolsets
            if rules is not None:
                rules += plugin.rules
    return reports, toolsets


def _iter_entry_points() -> Iterator[_PluginCandidate]:
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        try:
            # Parsing the entry points of every package would take longer than finding them.
            if ENTRY_POINT_GROUP not in (distribution.read_text("entry_points.txt") or ""):
                continue
            points = distribution.entry_points.select(group=ENTRY_POINT_GROUP)
        except Exception as error:  # sys.path may contain broken packages
            log.warning("skipped a package whose entry points cannot be read: %s", describe_exception(error))
            continue
        package = _package_name(distribution) if points else ""
        if package and package in seen:
            continue  # Python imports the first copy on sys.path
        seen.add(package)
        for point in points:
            yield _PluginCandidate("entry point", point.name, f"{package} {point.value}".strip(), point.load)


def _package_name(distribution: importlib.metadata.Distribution) -> str:
    try:
        return distribution.name or ""
    except Exception:  # a partly installed package has no metadata
        return ""


def _iter_directories(folders: Iterable[PluginDirectory]) -> Iterator[_PluginCandidate]:
    for directory in folders:
        try:
            yield from list(_iter_directory(directory))
        except OSError as error:
            yield _PluginCandidate(
                directory.kind,
                directory.path.name,
                str(directory.path),
                partial(_raise_error, error),
                directory.distrust_reason,
            )


def _iter_directory(directory: PluginDirectory) -> Iterator[_PluginCandidate]:
    for path in sorted(directory.path.iterdir()) if directory.path.is_dir() else ():
        package = path / "__init__.py"
        file = package if package.is_file() else path
        if file.suffix == ".py" and file.is_file() and not path.name.startswith(("_", ".")):
            yield _PluginCandidate(
                directory.kind, path.stem, str(path), partial(import_file, file), directory.distrust_reason
            )


def _load_plugin(
    candidate: _PluginCandidate,
    registry: Registry,
    hooks: Hooks,
    disabled: Collection[str],
    declared: Sequence[Toolset],
) -> tuple[SourceReport, Plugin | None]:
    report = SourceReport(kind=candidate.kind, name=candidate.name, location=candidate.location, state=LOADED)
    if candidate.name in disabled:
        return replace(report, state=DISABLED), None
    if candidate.distrust_reason:
        return replace(report, state=UNTRUSTED, error=candidate.distrust_reason), None
    plugin = Plugin(candidate.name)
    try:
        _call_register(candidate.load(), plugin)
        _require_new_toolsets(plugin, Toolsets(registry.snapshot(), declared))
        tools = registry.add_all(plugin.tools)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit and native errors: a plugin must not end the runtime
        log.warning("skipped the plugin %r: %s", candidate.name, describe_exception(error))
        return replace(report, state=FAILED, error=describe_exception(error)), None
    for event, hook in plugin.hooks:
        hooks.add(event, hook)
    return replace(
        report,
        tools=tuple(tool.name for tool in tools),
        hooks=tuple(event for event, _ in plugin.hooks),
        toolsets=tuple(each.name for each in plugin.toolsets),
    ), plugin


def _call_register(loaded: Any, plugin: Plugin) -> None:
    register = getattr(loaded, "register", loaded)
    if not callable(register) or inspect.iscoroutinefunction(register):
        raise SourceError("the plugin has no synchronous function register(plugin)")
    register(plugin)


def _require_new_toolsets(plugin: Plugin, toolsets: Toolsets) -> None:
    for name in (each.name for each in plugin.toolsets):
        if toolsets.is_taken(name):
            raise SourceError(f"the plugin registers a toolset {name!r}, but that name is already in use")


def _check_names(names: Iterable[str]) -> tuple[str, ...]:
    checked = () if isinstance(names, str) else tuple(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in checked):
        raise SourceError("`tools` and `includes` of a toolset must be lists of names")
    return checked


def _raise_error(error: OSError) -> NoReturn:
    raise error
