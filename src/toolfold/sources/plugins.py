"""Plugins: other people's tools, hooks, toolsets and rules for approval.

Three places, in this order: Python entry points (group `toolfold.plugins`), the user's folder, and the
project's folder, the last only when the user has trusted it. A plugin is a module with one function,
`register(plugin)`. What it brings is taken over when that function has returned, all or nothing.
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
from toolfold.authoring import NO_TOOLSET, ToolFunction, build_tool
from toolfold.errors import SourceError
from toolfold.hooks import POST, PRE, Hooks
from toolfold.model import Source, Tool
from toolfold.registry import Registry
from toolfold.scope import Toolset, Toolsets
from toolfold.sources.imports import import_file
from toolfold.sources.report import DISABLED, FAILED, LOADED, UNTRUSTED, SourceReport, reason

log = logging.getLogger(__name__)

ENTRY_POINTS = "toolfold.plugins"


class Plugin:
    """What a plugin's `register(plugin)` is given: the whole contract."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tools: list[Tool] = []
        self._hooks: list[tuple[str, Callable[..., Any]]] = []
        self._toolsets: list[Toolset] = []
        self._rules: list[Rule] = []

    def register(self, **definition: Any) -> None:
        """Bring a tool, from the same parts as `build_tool`; its toolset is the plugin's own."""
        self.add(build_tool(**{"toolset": self.name, **definition}))

    def add(self, tool: Tool | ToolFunction[..., Any]) -> None:
        """Bring a tool by value, or a function decorated with `@tool`."""
        value = tool.tool if isinstance(tool, ToolFunction) else tool
        if not isinstance(value, Tool):
            raise SourceError(f"expected a Tool or a @tool function, not {type(value).__name__}")
        toolset = self.name if value.toolset == NO_TOOLSET else value.toolset
        source = Source("plugin", self.name)
        self._tools.append(replace(value, toolset=toolset, source=source, core=False))

    def hook(self, event: str, hook: Callable[..., Any]) -> None:
        """Bring a `pre_tool_call` or `post_tool_call` hook."""
        if event not in (PRE, POST) or not callable(hook):
            raise SourceError(f"there is no hook {event!r}; use {PRE} or {POST} with a callable")
        self._hooks.append((event, hook))

    def toolset(
        self, name: str, *, tools: Iterable[str] = (), includes: Iterable[str] = (), description: str = ""
    ) -> None:
        """Bring a named bundle of tools and other toolsets."""
        if not name or not isinstance(name, str) or not isinstance(description, str):
            raise SourceError("a toolset has a name and a description, both text")
        self._toolsets.append(Toolset(name, description, _names(tools), _names(includes)))

    def rule(self, **table: Any) -> None:
        """Bring a rule that names what somebody must see before it runs, with the keys of `approval.rules`.

        Its name gets the plugin's in front, so that it cannot pass for another's.
        """
        try:
            rule = read_rule({**table, "name": f"{self.name}:{table.get('name') or len(self._rules) + 1}"})
        except RuleError as error:
            raise SourceError(str(error)) from None
        if rule.name in (each.name for each in self._rules):
            raise SourceError(f"it brings two rules called {rule.name!r}")
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
class PluginFolder:
    """A folder of plugins: `name.py` files and packages."""

    kind: str
    path: Path
    distrust: str = ""
    """Why it may not be loaded; empty where it may."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    kind: str
    name: str
    location: str
    load: Callable[[], Any]
    distrust: str = ""


def load_plugins(
    registry: Registry,
    hooks: Hooks,
    *,
    folders: Iterable[PluginFolder],
    disabled: Collection[str] = (),
    rules: list[Rule] | None = None,
) -> tuple[list[SourceReport], list[Toolset]]:
    """Load every plugin there is. Returns what became of each, and the toolsets they brought.

    Their tools, hooks and rules are added to the registry, to `hooks` and to `rules`.
    """
    reports: list[SourceReport] = []
    toolsets: list[Toolset] = []
    for candidate in (*_entry_points(), *_in_folders(folders)):
        report, brought = _load(candidate, registry, hooks, disabled, toolsets)
        reports.append(report)
        if brought is not None:
            toolsets += brought.toolsets
            if rules is not None:
                rules += brought.rules
    return reports, toolsets


def _entry_points() -> Iterator[_Candidate]:
    seen: set[str] = set()
    for installed in importlib.metadata.distributions():
        try:
            points = installed.entry_points.select(group=ENTRY_POINTS)
        except Exception as error:  # anything may lie on sys.path
            log.warning("the entry points of a package cannot be read: %s", reason(error))
            continue
        package = _package_name(installed) if points else ""
        if package and package in seen:
            continue  # Python would import the copy that comes first on sys.path
        seen.add(package)
        for point in points:
            yield _Candidate("entry point", point.name, f"{package} {point.value}".strip(), point.load)


def _package_name(installed: importlib.metadata.Distribution) -> str:
    try:
        return installed.name or ""
    except Exception:  # a half-installed package has no metadata to name it
        return ""


def _in_folders(folders: Iterable[PluginFolder]) -> Iterator[_Candidate]:
    for folder in folders:
        try:
            yield from list(_in_folder(folder))
        except OSError as error:
            yield _Candidate(
                folder.kind,
                folder.path.name,
                str(folder.path),
                partial(_fail, error),
                folder.distrust,
            )


def _in_folder(folder: PluginFolder) -> Iterator[_Candidate]:
    for path in sorted(folder.path.iterdir()) if folder.path.is_dir() else ():
        package = path / "__init__.py"
        file = package if package.is_file() else path
        if file.suffix == ".py" and file.is_file() and not path.name.startswith(("_", ".")):
            yield _Candidate(folder.kind, path.stem, str(path), partial(import_file, file), folder.distrust)


def _load(
    candidate: _Candidate,
    registry: Registry,
    hooks: Hooks,
    disabled: Collection[str],
    declared: Sequence[Toolset],
) -> tuple[SourceReport, Plugin | None]:
    report = SourceReport(kind=candidate.kind, name=candidate.name, location=candidate.location, state=LOADED)
    if candidate.name in disabled:
        return replace(report, state=DISABLED), None
    if candidate.distrust:
        return replace(report, state=UNTRUSTED, error=candidate.distrust), None
    plugin = Plugin(candidate.name)
    try:
        _register(candidate.load(), plugin)
        _require_new_toolsets(plugin, Toolsets(registry.snapshot(), declared))
        tools = registry.add_all(plugin.tools)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, a native extension's panic: no plugin ends the runtime
        log.warning("plugin %r is skipped: %s", candidate.name, reason(error))
        return replace(report, state=FAILED, error=reason(error)), None
    for event, hook in plugin.hooks:
        hooks.add(event, hook)
    return replace(
        report,
        tools=tuple(tool.name for tool in tools),
        hooks=tuple(event for event, _ in plugin.hooks),
        toolsets=tuple(each.name for each in plugin.toolsets),
    ), plugin


def _register(loaded: Any, plugin: Plugin) -> None:
    register = getattr(loaded, "register", loaded)
    if not callable(register) or inspect.iscoroutinefunction(register):
        raise SourceError("it has no plain function register(plugin)")
    register(plugin)


def _require_new_toolsets(plugin: Plugin, toolsets: Toolsets) -> None:
    for name in (each.name for each in plugin.toolsets):
        if toolsets.is_taken(name):
            raise SourceError(f"it brings a toolset {name!r}, a name that has a meaning already")


def _names(given: Iterable[str]) -> tuple[str, ...]:
    names = () if isinstance(given, str) else tuple(given)
    if isinstance(given, str) or not all(isinstance(each, str) for each in names):
        raise SourceError("a toolset takes lists of names of tools and of toolsets")
    return names


def _fail(error: OSError) -> NoReturn:
    raise error
