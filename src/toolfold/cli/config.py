"""`toolfold config`: show every setting and its origin, and change settings."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.config_changes import accept, restore
from toolfold.cli.output import (
    escape_text,
    format_count,
    print_json,
    print_line,
    print_note,
    print_table,
    print_warning,
)
from toolfold.core.errors import ConfigError

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.config.field_types import Section

_MAX_TEXT_CHARS = 20_000
COMMON_SETTINGS = frozenset(
    {
        "tools.selection",
        "tools.rag_top_k",
        "tools.pinned",
        "tools.tool_search.enabled",
        "tools.disabled",
        "tools.enabled_toolsets",
        "files.workspace",
        "approval.mode",
        "terminal.backend",
        "terminal.network",
        "web.search.backend",
        "mcp.enabled",
        "gateway.port",
        "gateway.default_access",
        "dashboard.port",
        "agent.model",
        "agent.max_turn_cost",
        "store",
        "log_level",
    }
)
_project_option = click.option(
    "--in-project", is_flag=True, help="Change the project's toolfold.yaml instead of your own settings."
)


@click.group("config")
def command() -> None:
    """Show and change settings."""


@command.command("show")
@click.option("--all", "show_all", is_flag=True, help="Show every setting.")
@json_option
@click.pass_obj
def show(invocation: Invocation, show_all: bool, as_json: bool) -> None:
    """Show the settings that you changed and the common ones, and where each value comes from."""
    from toolfold.config import get_value

    config = invocation.load_config()
    rows = [
        (key, _redact_value(key, get_value(config, key)), _find_origin(config, key))
        for key in _setting_keys(config)
    ]
    if as_json:
        print_json({key: {"value": value, "from": origin} for key, value, origin in rows})
        return
    shown = [row for row in rows if show_all or row[0] in COMMON_SETTINGS or row[2] != "default"]
    print_table(
        "settings",
        ("key", "value", "from"),
        ((key, _format_value(value), origin) for key, value, origin in shown),
        no_wrap="key",
    )
    if len(shown) < len(rows):
        more = format_count(len(rows) - len(shown), "more setting")
        print_line(f"{more}, all with default values: `toolfold config show --all`.")
    print_line(f"your file: {escape_text(str(config.paths.user_file))}")
    if config.paths.project_file:
        trusted = "" if config.project_trusted else " (not trusted)"
        print_line(f"project file: {escape_text(str(config.paths.project_file))}{trusted}")


@command.command("get")
@click.argument("key")
@json_option
@click.pass_obj
def get_one(invocation: Invocation, key: str, as_json: bool) -> None:
    """Print one setting, or a whole section."""
    from toolfold.config import get_value

    value = _redact_value(key, get_value(invocation.load_config(), key))
    if as_json or isinstance(value, dict):
        print_json(value)
    else:
        click.echo(_format_value(value))


@command.command("set")
@click.argument("key")
@click.argument("value")
@_project_option
@click.pass_obj
def set_one(invocation: Invocation, key: str, value: str, in_project: bool) -> None:
    """Write one setting. Comments and the order of the file are kept."""
    from toolfold.cli.server_commands import restrict_to_owner
    from toolfold.config import set_value

    file = _settings_file(invocation, in_project)
    if in_project and _redact_value(key, value) != value:
        restrict_to_owner(file)
        print_warning("secrets should not be written to a project's settings file; write ${NAME} instead.")
    try:
        remarks = set_value(file, key, value, record=invocation.settings_record())
    except ConfigError as error:
        raise error if in_project else _add_project_hint(invocation, error) from None
    for remark in remarks:
        print_warning(remark)
    print_line(f"{escape_text(key)} is set in {escape_text(str(file))}")
    _print_restart_note(invocation, key)
    if key == "store":
        from toolfold.cli.unused_files import warn_of_unused_files

        warn_of_unused_files(invocation.load_config(quiet=True))


@command.command("unset", short_help="Remove one setting from the file.")
@click.argument("key")
@_project_option
@click.pass_obj
def unset_one(invocation: Invocation, key: str, in_project: bool) -> None:
    """Remove one setting from the file, so that its default applies again."""
    from toolfold.config import unset_value

    file = _settings_file(invocation, in_project)
    was_set = unset_value(file, key, record=invocation.settings_record())
    print_line(
        f"{escape_text(key)} {'is no longer' if was_set else 'was not'} set in {escape_text(str(file))}"
    )
    if was_set:
        _print_restart_note(invocation, key)


@command.command("edit")
@_project_option
@click.pass_obj
def edit(invocation: Invocation, in_project: bool) -> None:
    """Open the settings file in your editor. It is saved only if it is valid."""
    from toolfold.config import replace_settings

    file = _settings_file(invocation, in_project)
    text = file.read_text(encoding="utf-8") if file.exists() else _template_text()
    while True:
        written = click.edit(text, extension=".yaml")
        if written is None:
            print_line("nothing changed")
            return
        try:
            replace_settings(file, written, record=invocation.settings_record())
        except ConfigError as error:
            if not sys.stdin.isatty():
                raise
            print_note(f"[red]error:[/red] {escape_text(str(error))}")
            if not click.confirm("Edit again? (no discards your changes)", default=True, err=True):
                return
            text = written
        else:
            print_line(f"saved {escape_text(str(file))}")
            return


command.add_command(accept)
command.add_command(restore)


@command.command("schema")
@json_option
def schema(as_json: bool) -> None:
    """List every setting with type, default and description. With --json, print a JSON Schema for editors."""
    from toolfold.config import build_json_schema, describe_settings

    if as_json:
        print_json(build_json_schema())
        return
    print_table(
        "all settings",
        ("key", "type", "default", "description"),
        (
            (
                each.key,
                " | ".join(each.choices) or " ".join(part for part in (each.type, each.range) if part),
                _format_value(_to_plain_data(each.default)),
                each.description,
            )
            for each in describe_settings()
        ),
        no_wrap="key",
    )


def _print_restart_note(invocation: Invocation, key: str) -> None:
    """Print that running gateways must be restarted, if a changed setting takes effect only then."""
    from toolfold.config.changes import needs_restart
    from toolfold.serving.gateway.status import read_statuses

    running = read_statuses(invocation.paths().state_dir / "gateway" / "status")
    if running and needs_restart(key):
        processes = ", ".join(str(each["pid"]) for each in running)
        print_note(
            f"A gateway is running (process {processes}): restart it, because a change of {escape_text(key)}"
            " takes effect at its next start."
        )


def _find_origin(config: Config, key: str) -> str:
    """Return the origin of a setting: file and line, environment variable, argument or `default`.

    All keys of a named entry, such as a server, have the origin of the entry.
    """
    parts = key.split(".")
    bundle = ".".join(parts[: 3 if parts[0] == "mcp" else 2])
    return config.origins.get(key) or config.origins.get(bundle, "default")


def _setting_keys(config: Config) -> Iterator[str]:
    """Yield the key of every setting that has a value.

    The key of a server's or toolset's setting contains its name: `mcp.servers.git.command`.
    """
    from toolfold.config import describe_settings

    for setting in describe_settings():
        block, named, rest = setting.key.partition(".<name>")
        if not named:
            yield setting.key
        elif block == "toolsets":
            yield from (f"{block}.{name}{rest}" for name in config.toolsets)
        else:  # show only the settings of a server or API that were set
            named_entries: Mapping[str, Mapping[str, Section]] = {
                "mcp.servers": config.mcp.servers,
                "apis": config.apis,
            }
            yield from (
                f"{block}.{name}{rest}"
                for name, entry in named_entries.get(block, {}).items()
                if rest.strip(".").split(".")[0] in entry.model_fields_set
            )


def _settings_file(invocation: Invocation, in_project: bool) -> Path:
    """Return the settings file to change, without loading it, so that an invalid file can be repaired."""
    from toolfold.config import PROJECT_FILE, locate_paths

    paths = locate_paths(project=invocation.project)
    return paths.project_file or paths.project_dir / PROJECT_FILE if in_project else paths.user_file


def _add_project_hint(invocation: Invocation, error: ConfigError) -> ConfigError:
    """Add a hint to the error if the entry that was not found is in the project's settings file."""
    from toolfold.config import read_file_value

    other = _settings_file(invocation, True)
    if not error.problem.startswith("there is no ") or read_file_value(other, error.key) is None:
        return error
    hint = f"it is defined in {other}: repeat the command with --in-project"
    return ConfigError(error.problem, key=error.key, file=error.file, hint=hint)


def _template_text() -> str:
    from toolfold.config import describe_settings

    lines = ("# Toolfold's settings. `toolfold config schema` lists them all, for example:", "# tools:")
    examples = [s for s in describe_settings() if s.key in ("tools.selection", "tools.rag_top_k")]
    return "\n".join(
        (*lines, *(f"#   {s.key.split('.')[-1]}: {s.default}   # {s.description}" for s in examples), "")
    )


def _redact_value(key: str, value: Any) -> Any:
    """Return a setting's value with plain-text secrets redacted."""
    from toolfold.safety.redaction import Redaction

    return Redaction(max_chars=_MAX_TEXT_CHARS).redact_setting(
        key.rpartition(".")[2], _without_server_secrets(key, value)
    )


def _without_server_secrets(key: str, value: Any) -> Any:
    path, plain_value = key.split("."), _to_plain_data(value)
    if path == ["mcp"]:
        return {**plain_value, "servers": _without_server_secrets("mcp.servers", value.servers)}
    if path == ["mcp", "servers"]:
        return {name: _without_server_secrets(f"{key}.{name}", each) for name, each in value.items()}
    if path[:2] != ["mcp", "servers"]:
        return plain_value
    from toolfold.mcp.importing import redact_settings

    for name in reversed(path[3:]):
        plain_value = {name: plain_value}
    found = {**plain_value, **redact_settings(plain_value)}
    for name in path[3:]:
        found = found[name]
    return found


def _to_plain_data(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {key: _to_plain_data(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain_data(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _format_value(value: Any) -> str:
    if value is None or value in ("", (), [], {}):
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(each) for each in value)
    return str(value)
