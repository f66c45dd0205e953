"""`toolfold config`: every setting in force, where it comes from, and changing it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.config_changes import accept, restore
from toolfold.cli.show import as_json, note, out, plain, table
from toolfold.errors import ConfigError

if TYPE_CHECKING:
    from toolfold.config import Config

_MAX_TEXT_CHARS = 20_000
_project_option = click.option(
    "--in-project", is_flag=True, help="Write the project's toolfold.yaml instead of your own file."
)


@click.group("config")
def command() -> None:
    """Show and change settings."""


@command.command("show")
@json_option
@click.pass_obj
def show(invocation: Invocation, as_json_: bool) -> None:
    """Show every setting in force and where it comes from."""
    from toolfold.config import get

    config = invocation.config()
    rows = [(key, _shown(key, get(config, key)), _origin(config, key)) for key in _keys(config)]
    if as_json_:
        as_json({key: {"value": value, "from": origin} for key, value, origin in rows})
        return
    table(
        "settings in force",
        ("key", "value", "from"),
        ((key, _words(value), origin) for key, value, origin in rows),
        whole="key",
    )
    out(f"your file: {plain(str(config.paths.user_file))}")
    if config.paths.project_file:
        trusted = "" if config.project_trusted else " (not trusted)"
        out(f"project file: {plain(str(config.paths.project_file))}{trusted}")


@command.command("get")
@click.argument("key")
@json_option
@click.pass_obj
def get_one(invocation: Invocation, key: str, as_json_: bool) -> None:
    """Print one setting, or a whole section."""
    from toolfold.config import get

    value = _shown(key, get(invocation.config(), key))
    if as_json_ or isinstance(value, dict):
        as_json(value)
    else:
        click.echo(_words(value))


@command.command("set")
@click.argument("key")
@click.argument("value")
@_project_option
@click.pass_obj
def set_one(invocation: Invocation, key: str, value: str, in_project: bool) -> None:
    """Write one setting. Comments and the order of the file stay."""
    from toolfold.cli.servers import keep_private
    from toolfold.config import set_value

    file = _file(invocation, in_project)
    if in_project and _shown(key, value) != value:
        keep_private(file)
        note("[yellow]warning:[/yellow] a project's file is no place for secrets; write ${NAME} instead.")
    try:
        remarks = set_value(file, key, value, record=invocation.record())
    except ConfigError as error:
        raise error if in_project else _found_in_project(invocation, error) from None
    for remark in remarks:
        note(f"[yellow]warning:[/yellow] {plain(remark)}")
    out(f"{plain(key)} is set in {plain(str(file))}")


@command.command("unset")
@click.argument("key")
@_project_option
@click.pass_obj
def unset_one(invocation: Invocation, key: str, in_project: bool) -> None:
    """Take one setting out of the file, so that its default counts again."""
    from toolfold.config import unset_value

    file = _file(invocation, in_project)
    was = unset_value(file, key, record=invocation.record())
    out(f"{plain(key)} {'is no longer' if was else 'was not'} set in {plain(str(file))}")


@command.command("edit")
@_project_option
@click.pass_obj
def edit(invocation: Invocation, in_project: bool) -> None:
    """Open the file in your editor; it is replaced only when what you wrote can be used."""
    from toolfold.config import rewrite

    file = _file(invocation, in_project)
    text = file.read_text(encoding="utf-8") if file.exists() else _starting_text()
    while True:
        written = click.edit(text, extension=".yaml")
        if written is None:
            out("nothing changed")
            return
        try:
            rewrite(file, written, record=invocation.record())
        except ConfigError as error:
            if not sys.stdin.isatty():
                raise
            note(f"[red]error:[/red] {plain(str(error))}")
            if not click.confirm("Edit again? (no: your changes are dropped)", default=True, err=True):
                return
            text = written
        else:
            out(f"saved {plain(str(file))}")
            return


command.add_command(accept)
command.add_command(restore)


@command.command("schema")
@json_option
def schema(as_json_: bool) -> None:
    """Every setting there is: type, default, what it does. With --json, a JSON Schema for editors."""
    from toolfold.config import describe, json_schema

    if as_json_:
        as_json(json_schema())
        return
    table(
        "every setting",
        ("key", "type", "default", "what it does"),
        (
            (
                each.key,
                " | ".join(each.choices) or " ".join(part for part in (each.type, each.range) if part),
                _words(_plain_value(each.default)),
                each.description,
            )
            for each in describe()
        ),
        whole="key",
    )


def _origin(config: Config, key: str) -> str:
    """Where a value was written; a bundle is written as a whole."""
    parts = key.split(".")
    bundle = ".".join(parts[: 3 if parts[0] == "mcp" else 2])
    return config.origins.get(key) or config.origins.get(bundle, "default")


def _keys(config: Config) -> Iterator[str]:
    """Every key there is a value for: those of bundles once for each bundle."""
    from toolfold.config import describe

    for setting in describe():
        block, named, rest = setting.key.partition(".<name>")
        if not named:
            yield setting.key
        elif block == "toolsets":
            yield from (f"{block}.{name}{rest}" for name in config.toolsets)
        else:  # a server has many settings, and few of them are anybody's
            yield from (
                f"{block}.{name}{rest}"
                for name, server in config.mcp.servers.items()
                if rest.strip(".").split(".")[0] in server.model_fields_set
            )


def _file(invocation: Invocation, in_project: bool) -> Path:
    """The file to change; found without loading it, so that a broken one can be mended."""
    from toolfold.config import PROJECT_FILE, locate

    paths = locate(project=invocation.project)
    return paths.project_file or paths.project_dir / PROJECT_FILE if in_project else paths.user_file


def _found_in_project(invocation: Invocation, error: ConfigError) -> ConfigError:
    """The error, with a hint where the missing entry stands in the project's file."""
    from toolfold.config import written_value

    other = _file(invocation, True)
    if not error.problem.startswith("there is no ") or written_value(other, error.key) is None:
        return error
    hint = f"it stands in {other}: repeat it with --in-project"
    return ConfigError(error.problem, key=error.key, file=error.file, hint=hint)


def _starting_text() -> str:
    from toolfold.config import describe

    lines = ("# Toolfold's settings. `toolfold config schema` lists them all, for example:", "# tools:")
    examples = [s for s in describe() if s.key in ("tools.selection", "tools.rag_top_k")]
    return "\n".join(
        (*lines, *(f"#   {s.key.split('.')[-1]}: {s.default}   # {s.description}" for s in examples), "")
    )


def _shown(key: str, value: Any) -> Any:
    """The value as people may see it: without secrets, wherever they are written out."""
    from toolfold.redaction import Redaction

    return Redaction(longest=_MAX_TEXT_CHARS).setting(
        key.rpartition(".")[2], _without_server_secrets(key, value)
    )


def _without_server_secrets(key: str, value: Any) -> Any:
    path, plain_value = key.split("."), _plain_value(value)
    if path == ["mcp"]:
        return {**plain_value, "servers": _without_server_secrets("mcp.servers", value.servers)}
    if path == ["mcp", "servers"]:
        return {name: _without_server_secrets(f"{key}.{name}", each) for name, each in value.items()}
    if path[:2] != ["mcp", "servers"]:
        return plain_value
    from toolfold.sources.mcp.importing import veiled

    for name in reversed(path[3:]):
        plain_value = {name: plain_value}
    found = {**plain_value, **veiled(plain_value)}
    for name in path[3:]:
        found = found[name]
    return found


def _plain_value(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {key: _plain_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_value(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _words(value: Any) -> str:
    if value is None or value in ((), [], {}):
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(each) for each in value)
    return str(value)
