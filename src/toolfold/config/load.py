"""Load the configuration: user file, project file, environment and arguments, merged.

The only code that looks for settings on disk and in environment variables. Nothing is cached: each
`load_config` reads everything again and returns a frozen Config.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic.fields import FieldInfo

from toolfold.config.call_notes import find_unaccepted
from toolfold.config.check import (
    build_settings,
    expand_shorthands,
    format_with_location,
    is_number,
    parse_text_value,
    transform_settings,
)
from toolfold.config.describe import KeyPath, can_grant, find_field, list_keys, project_rule
from toolfold.config.directories import HOME_VARIABLE, locate_directories
from toolfold.config.fingerprints import ABSENT, fingerprint_bytes
from toolfold.config.project_trust import PROJECT_FILE, TrustState, fingerprint_project, get_trust_state
from toolfold.config.record import ADVICE, PendingChange, SettingsRecord
from toolfold.config.servers_settings import McpServerSettings
from toolfold.config.settings import Config, LoadArguments, Paths, Settings
from toolfold.config.yaml_document import (
    MAX_PROJECT_CONFIG_BYTES,
    Node,
    SourceLocation,
    decode_text,
    merge_nodes,
    nest_node,
    node_from_value,
    parse_settings,
    read_bytes,
    read_settings_file,
)
from toolfold.core.errors import ConfigError, closest_names, did_you_mean
from toolfold.core.tool_processes import find_tool_call

log = logging.getLogger(__name__)

Overrides = Mapping[str, object] | Sequence[str]

USER_FILE = "config.yaml"
_VARIABLE_PREFIX = "TOOLFOLD_"
_CONFIG_VARIABLE = "TOOLFOLD_CONFIG"
_ARGUMENT_LOCATION = SourceLocation("argument")


def load_config(
    *,
    project: Path | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Overrides = (),
    user_file: Path | None = None,
    trusted: bool | None = None,
) -> Config:
    """Return the effective settings, merged from user file, project file, environment and overrides.

    The file of an untrusted project cannot grant anything; `trusted` replaces the stored decision.
    """
    environment = dict(os.environ if env is None else env)
    paths = locate_paths(project=project, env=environment, user_file=user_file)
    state: TrustState = _resolve_trust(trusted, paths)
    home = _home_directory(environment)
    chosen = user_file is not None or bool(environment.get(_CONFIG_VARIABLE))
    tree = _user_layer(paths, home, required=chosen)
    warnings: list[str] = []
    if paths.project_file is not None:
        layer = _project_layer(paths.project_file, home)
        tree = merge_nodes(tree, _restrict_layer(layer, tree, state, warnings))
    # One layer per variable and argument, so that `tool_search=off` does not replace
    # `tool_search.threshold_pct=5`.
    in_tool_call = find_tool_call()
    for layer in (*_environment_layers(environment, warnings), *_override_layers(overrides)):
        expanded = expand_shorthands(layer, directory=_working_directory(), home=home)
        if in_tool_call:  # like an untrusted project, it may only restrict
            expanded = _restrict_layer(expanded, tree, "untrusted", warnings)
        tree = merge_nodes(tree, expanded)
    return _build_config(
        tree,
        paths,
        environment,
        warnings,
        project_trusted=state == "trusted",
        project_vouched_for=trusted is True,
        loaded_with=_keep_arguments(overrides, paths, bool(user_file), trusted),
    )


def default_config(overrides: Mapping[str, object], *, state_dir: Path) -> Config:
    """Return the default settings with overrides. Reads no settings file and no `TOOLFOLD_` setting.

    Plugins are off, all state is in `state_dir`, and only the cache is shared with other runtimes.
    """
    environment = dict(os.environ)
    user = locate_paths(env=environment)
    state_dir = _working_directory() / state_dir
    paths = replace(
        user,
        config_dir=state_dir,
        state_dir=state_dir,
        user_file=state_dir / USER_FILE,
        project_file=None,
        user_paths=(user.config_dir, user.state_dir, user.user_file),
    )
    tree, home = Node({}), _home_directory(environment)
    for layer in _override_layers({"plugins.enabled": False, **overrides}):
        tree = merge_nodes(tree, expand_shorthands(layer, directory=_working_directory(), home=home))
    return _build_config(tree, paths, environment)


def _build_config(
    tree: Node, paths: Paths, environment: Mapping[str, str], warnings: Sequence[str] = (), **more: Any
) -> Config:
    settings, more_warnings = build_settings(tree)
    return Config(
        **{name: getattr(settings, name) for name in Settings.model_fields},
        paths=paths,
        warnings=(*warnings, *more_warnings),
        origins=MappingProxyType(_find_origins(settings, tree)),
        environment=MappingProxyType(dict(environment)),
        **more,
    )


def reload_config(config: Config, directory: Path | None = None) -> Config:
    """Return the effective settings as the files are now, with the same environment and arguments.

    `directory` is the working directory, if it should be another one. The argument `trusted=True` applies
    neither to another project nor to this one if its settings or plugins have changed. Raises ConfigError,
    also if the configuration was not loaded by `load_config`.
    """
    arguments = config.loaded_with
    if arguments is None:
        raise ConfigError("this configuration was not read from files, so it cannot be reloaded")
    working_directory = directory or config.paths.current_dir
    project = _find_project(working_directory)[1]
    needs_decision = arguments.trusted is True and (
        project != config.paths.project_dir or _fingerprint(project) != arguments.trusted_fingerprint
    )
    return load_config(
        project=working_directory,
        env=config.environment,
        overrides=arguments.overrides,
        user_file=arguments.user_file,
        trusted=None if needs_decision else arguments.trusted,
    )


def _keep_arguments(
    overrides: Overrides, paths: Paths, has_user_file: bool, trusted: bool | None
) -> LoadArguments:
    if isinstance(overrides, str):
        overrides = (overrides,)
    kept = overrides if isinstance(overrides, Mapping) else tuple(overrides)
    fingerprint = _fingerprint(paths.project_dir) if trusted else ""
    return LoadArguments(kept, paths.user_file if has_user_file else None, trusted, fingerprint)


def _fingerprint(project: Path) -> str:
    try:
        return fingerprint_project(project)
    except ConfigError as error:  # never equal to another one
        return f"{secrets.token_hex(8)}: {error}"


def check_server(name: str, settings: McpServerSettings | Mapping[str, object]) -> McpServerSettings:
    """Validate server settings that were passed as an argument, and return them. Raises ConfigError."""
    value = settings.model_dump(exclude_unset=True) if isinstance(settings, McpServerSettings) else settings
    tree = node_from_value({"mcp": {"servers": {name: dict(value)}}}, _ARGUMENT_LOCATION)
    home = _home_directory(os.environ)
    built, _ = build_settings(expand_shorthands(tree, directory=_working_directory(), home=home))
    return built.mcp.servers[name]


def locate_paths(
    *, project: Path | None = None, env: Mapping[str, str] | None = None, user_file: Path | None = None
) -> Paths:
    """Return the paths of all files and directories of Toolfold. Reads and creates nothing."""
    environment = os.environ if env is None else env
    config_dir, state_dir, cache_dir = locate_directories(environment, _working_directory())
    chosen = environment.get(_CONFIG_VARIABLE)
    file = user_file or (Path(chosen) if chosen else config_dir / USER_FILE)
    current = _working_directory() / (project or "")
    project_file, project_dir = _find_project(current)
    return Paths(
        config_dir=config_dir,
        state_dir=state_dir,
        cache_dir=cache_dir,
        user_file=_working_directory() / file,
        project_file=None if project_file and _is_same_file(project_file, file) else project_file,
        project_dir=project_dir,
        current_dir=current,
    )


def _find_project(start: Path) -> tuple[Path | None, Path]:
    """Return the project's settings file, if any, and the directory that contains this file or `.git`."""
    for directory in (start, *start.parents):
        if _test_path(directory / PROJECT_FILE, Path.is_file):
            return directory / PROJECT_FILE, directory
        if _test_path(directory / ".git", Path.exists):
            return None, directory
    return None, start


def _test_path(path: Path, test: Callable[[Path], bool]) -> bool:
    """Return the result of a test such as `Path.is_file`; False if the path cannot be accessed."""
    try:
        return test(path)
    except OSError:
        return False


def _is_same_file(one: Path, other: Path) -> bool:
    return _test_path(other, Path.exists) and _test_path(one, other.samefile)


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigError("the working directory does not exist any more") from None


def _home_directory(environment: Mapping[str, str]) -> Path:
    if home := environment.get("HOME"):
        return Path(home)
    try:
        return Path.home()
    except RuntimeError:
        return _working_directory()


def _resolve_trust(trusted: bool | None, paths: Paths) -> TrustState:
    if trusted is None:
        return get_trust_state(paths.project_dir, paths)
    return "trusted" if trusted else "untrusted"


def _user_layer(paths: Paths, home: Path, *, required: bool) -> Node:
    file, content = paths.user_file, None
    if required or _test_path(file, Path.exists):
        content = read_bytes(file)
    if change := _find_unaccepted(paths, content):
        if not change.restorable:
            raise ConfigError(str(change), hint=ADVICE)
        content = None if change.before is None else change.before.encode("utf-8", "surrogateescape")
        log.warning("%s. The settings before the change are used; %s", change, ADVICE)
    if content is None:
        return Node({})
    tree = parse_settings(decode_text(content, file), SourceLocation("user file", str(file)))
    return expand_shorthands(tree, directory=file.parent, home=home)


def _find_unaccepted(paths: Paths, content: bytes | None) -> PendingChange | None:
    """Return the change in the content of the user's settings file that the user has not accepted yet."""
    fingerprint = ABSENT if content is None else fingerprint_bytes(content)
    if content is not None and not _test_path(paths.user_file, Path.is_file):
        return None  # /dev/null, for example
    try:
        return find_unaccepted(SettingsRecord(paths.state_dir), paths.user_file, fingerprint)
    except ConfigError as error:  # no runtime starts without the record
        log.debug("%s", error)
        return None


def _project_layer(file: Path, home: Path) -> Node:
    return expand_shorthands(
        read_settings_file(file, "project file", limit=MAX_PROJECT_CONFIG_BYTES),
        directory=file.parent,
        home=home,
    )


def _restrict_layer(layer: Node, below: Node, state: TrustState, warnings: list[str]) -> Node:
    """Drop those settings of a project's file that would allow more than the user's settings do.

    Lists that restrict are never replaced: what the user disabled stays disabled in every project.
    """
    directory = Path(layer.location.name).parent

    def restrain(node: Node, field: FieldInfo, path: KeyPath) -> Node | None:
        before = below.find(path)
        if objection := _find_objection(node, before, field, state, directory):
            warnings.append(format_with_location(f"{'.'.join(path)} {objection}", node.location))
            return None
        return _narrow_list(node, before, project_rule(field))

    return transform_settings(layer, restrain)


def _find_objection(
    node: Node, below: Node | None, field: FieldInfo, state: TrustState, directory: Path
) -> str:
    """Return the reason why a project's file may not set a setting to its value; empty if it is permitted.

    Trust covers the content of the project's files, not of the paths that its settings point to; so some
    settings are refused even from a trusted project.
    """
    rule, trusted = project_rule(field), state == "trusted"
    until = "until you trust the project" + (" again: it has changed" if state == "changed" else "")
    if rule == "never":
        return "is ignored in a project: only your own settings file may set it"
    if can_grant(field) and not trusted:
        return f"is ignored {until}"
    if rule == "lowers" and not trusted and _is_raised(node, below, field):
        return f"may only be lowered {until}"
    if rule == "inside" and not _is_inside(node, directory):
        return "is ignored: it points outside of the project's directory"
    return ""


def _is_raised(node: Node, below: Node | None, field: FieldInfo) -> bool:
    limit = below.value if below and is_number(below.value) else field.default
    return is_number(node.value) and bool(node.value > limit)


def _is_inside(node: Node, directory: Path) -> bool:
    """Return True if all paths of a setting are inside the directory, after links are resolved."""
    named = node.value if isinstance(node.value, list) else [node.value]
    try:
        found = [Path(each).resolve() for each in named if isinstance(each, str)]
        return all(each.is_relative_to(directory.resolve()) and not _has_link(each) for each in found)
    except (OSError, RuntimeError, ValueError):  # a link to itself before Python 3.13, or not a path
        return False


def _has_link(resolved: Path) -> bool:
    """Return True if a resolved path still has a link: one that leads to itself, since Python 3.13."""
    return any(each.is_symlink() for each in (resolved, *resolved.parents))


def _narrow_list(node: Node, below: Node | None, rule: str) -> Node:
    """Merge a project's list setting with the user's, so that the project can only add restrictions."""
    before = below.value if below else None
    if not rule or not isinstance(before, list):
        return node
    now = node.value
    if rule == "adds" and isinstance(now, list):
        lost = [each for each in before if each not in now]
        return Node([*lost, *now], node.location) if lost else node
    if rule == "narrows" and (now is None or isinstance(now, list)):
        narrowed = before if now is None else [each for each in now if each in before]
        return node if narrowed == now else Node(narrowed, node.location)
    return node


def _environment_layers(environment: Mapping[str, str], warnings: list[str]) -> Iterator[Node]:
    """Yield settings from environment variables: `TOOLFOLD_TOOLS__RAG_TOP_K=12` sets `tools.rag_top_k`.

    Empty variables are ignored.
    """
    for name, text in sorted(environment.items()):
        if not name.startswith(_VARIABLE_PREFIX) or name in (HOME_VARIABLE, _CONFIG_VARIABLE) or not text:
            continue
        path = tuple(name.removeprefix(_VARIABLE_PREFIX).lower().split("__"))
        if len(path) == 1 and path[0] not in Settings.model_fields:
            warnings += _misspelling_warnings(name)
        else:
            yield nest_node(
                path, parse_text_value(text, find_field(path), SourceLocation("environment", name))
            )


def _misspelling_warnings(name: str) -> list[str]:
    """Return a warning for each environment variable that looks like a misspelled variable of Toolfold."""
    known = [
        HOME_VARIABLE,
        _CONFIG_VARIABLE,
        *(_VARIABLE_PREFIX + each.upper() for each in Settings.model_fields),
    ]
    near = closest_names(name, known, count=1)
    close = [each for each in near if abs(len(each) - len(name)) <= 2 and each[9:11] == name[9:11]]
    return [f"{name} is not a setting and is ignored.{did_you_mean(close)}"] if close else []


def _override_layers(overrides: Overrides) -> Iterator[Node]:
    if isinstance(overrides, Mapping):
        for name, node in node_from_value(overrides, _ARGUMENT_LOCATION).value.items():
            yield nest_node(_split_key(name), node)
        return
    for text in [overrides] if isinstance(overrides, str) else overrides:
        key, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(f"{text!r} has no value", file="argument", hint="write key=value")
        path = _split_key(key.strip())
        yield nest_node(path, parse_text_value(value.strip(), find_field(path), _ARGUMENT_LOCATION))


def _split_key(key: str) -> KeyPath:
    return tuple(key.split("."))


def _find_origins(settings: Settings, tree: Node) -> dict[str, str]:
    """Return the source location of each effective setting."""
    keys = [*list_keys(), *(f"toolsets.{name}" for name in settings.toolsets)]
    keys += [f"mcp.servers.{name}" for name in settings.mcp.servers]
    found = {key: tree.find(_split_key(key)) for key in keys}
    return {key: str(node.location) if node else "default" for key, node in found.items()}
