"""`toolfold mcp add`: show a server, write it to the settings after confirmation, and test it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from toolfold.cli.allow_tools import allow_destructive_option, offer_to_allow
from toolfold.cli.app import EXIT_FAILED, Invocation
from toolfold.cli.output import escape_text, print_line, print_note, print_warning
from toolfold.cli.server_commands import (
    changing_settings,
    confirm,
    list_destructive_tools,
    print_server,
    print_tools,
    probe_servers,
    project_option,
    restrict_to_owner,
    server_key,
    settings_file,
    yes_option,
)
from toolfold.cli.server_names import derive_name, is_command_or_url, is_launcher, is_url

_DERIVED_NAME = "toolfold.derived_server_name"


class _AddCommand(click.Command):
    """Command parser for `mcp add`: the options of `mcp add` end where the server's command begins."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _insert_separator(self, _insert_derived_name(self, ctx, args)))


def _insert_derived_name(command: click.Command, ctx: click.Context, args: list[str]) -> list[str]:
    """Insert a derived server name if the arguments begin with a command or URL instead of a name."""
    end = args.index("--") if "--" in args else len(args)
    position = _find_word(args[:end], _options_with_values(command), 1)
    if position is None:
        position, target = end, args[end + 1 :]
    else:
        target = args[position:end]
        if end < len(args) or not _starts_with_launcher(target):
            return args
    if not target:
        return args
    ctx.meta[_DERIVED_NAME] = derive_name(target)
    return [*args[:position], ctx.meta[_DERIVED_NAME], *args[position:]]


def _starts_with_launcher(words: Sequence[str]) -> bool:
    """Return True if `mcp add` was given no server name: the first word is already the command or URL."""
    return is_launcher(words[0]) and not (len(words) > 1 and is_command_or_url(words[1]))


def _insert_separator(command: click.Command, args: list[str]) -> list[str]:
    position = _find_word(args, _options_with_values(command), 2) if "--" not in args else None
    if position is None or is_url(args[position]):
        return args
    return [*args[:position], "--", *args[position:]]


def _options_with_values(command: click.Command) -> set[str]:
    options = (each for each in command.params if isinstance(each, click.Option))
    return {name for option in options if not option.is_flag for name in option.opts}


def _find_word(args: Sequence[str], with_values: set[str], number: int) -> int | None:
    """Return the index of the nth word that is neither an option nor an option's value."""
    words, position = 0, 0
    while position < len(args):
        if args[position] in with_values:
            position += 1
        elif not args[position].startswith("-"):
            words += 1
            if words == number:
                return position
        position += 1
    return None


@click.command("add", cls=_AddCommand, short_help="Add a server by its URL or command.")
@click.argument("name", metavar="[NAME]")
@click.argument("target", nargs=-1, required=True, metavar="URL | COMMAND [ARGUMENT]...")
@click.option(
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an environment variable for the server; ${NAME} is expanded.",
)
@click.option(
    "--pass-env",
    multiple=True,
    metavar="NAME",
    help="Pass this variable from your environment to the server. Repeatable.",
)
@click.option(
    "--header",
    multiple=True,
    metavar="NAME:VALUE",
    help="Send a header with every request to the server; ${NAME} is expanded.",
)
@click.option(
    "--cwd", type=click.Path(file_okay=False, path_type=Path), help="Working directory of the server."
)
@click.option("--transport", type=click.Choice(["http", "sse"]), help="Transport for a URL.")
@click.option(
    "--include",
    multiple=True,
    metavar="GLOB",
    help="Use only tools of the server that match this pattern. Repeatable.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="GLOB",
    help="Leave out tools of the server that match this pattern. Repeatable.",
)
@click.option(
    "--trust",
    type=click.Choice(["pin", "warn", "off"]),
    help="What happens to tools that change later: `pin` disables them until you accept "
    "them, `warn` logs a warning, `off` accepts them.",
)
@click.option("--test/--no-test", default=True, help="After adding the server, start it and list its tools.")
@allow_destructive_option
@project_option
@yes_option
@click.pass_obj
def add(
    invocation: Invocation,
    /,
    name: str,
    target: tuple[str, ...],
    test: bool,
    allow_destructive: bool,
    in_project: bool,
    yes: bool,
    **options: Any,
) -> int:
    """Add a server: the URL of a running server, or the command that starts one.

    Without NAME, the name is derived from the package, image or URL. Everything after the command is passed
    to it, so write Toolfold's options before it.

    The server is shown and added only after you confirm it, which also approves its current tools.
    """
    from toolfold.config import set_value
    from toolfold.mcp.importing import find_literal_secrets

    settings = _build_settings(target, options)
    file = settings_file(invocation, in_project)
    _require_unused_name(invocation, name, file)
    _reject_own_gateway(invocation, settings)
    if derived := click.get_current_context().meta.get(_DERIVED_NAME):
        example = escape_text(shlex.join(target[:2]))
        print_note(
            f"the server is named {escape_text(derived)}. To choose another name: toolfold"
            f" mcp add NAME {example} …"
        )
    print_server(name, settings)
    secrets = find_literal_secrets(settings)
    for key in secrets:
        print_warning(
            f"{key} contains a secret in plain text; write ${{NAME}} to read it from an environment variable"
        )
    if in_project and secrets:
        raise click.ClickException(
            "secrets must not be written to a project's settings file. Write ${NAME} instead."
        )
    _check_misplaced_yes(target, yes)
    if not confirm("Add this server?", yes):
        print_line("nothing was added.")
        return EXIT_FAILED
    if secrets:
        restrict_to_owner(file)
    with changing_settings(invocation, file) as record:
        set_value(file, server_key(name), settings, record=record)
    print_line(f"added to {escape_text(str(file))}")
    if test:
        _test_server(invocation, name, allow_destructive=allow_destructive, ask=not yes)
        return 0
    if allow_destructive:
        offer_to_allow(invocation, [name], allow=True)
    print_line(f"next: toolfold mcp test {escape_text(name)}")
    return 0


def _check_misplaced_yes(target: Sequence[str], yes: bool) -> None:
    """Report a --yes that was passed to the server but was probably meant for Toolfold."""
    if yes or "--yes" not in target[1:] or is_url(target[0]):
        return
    moved = (
        "--yes after the server's command is passed to the server. To confirm the addition, write it first:"
    )
    if not sys.stdin.isatty():
        raise click.ClickException(f"Confirmation needs a terminal. {moved} toolfold mcp add --yes …")
    print_note(f"{moved} toolfold mcp add --yes …")


def _build_settings(target: Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
    """Convert the command line of `mcp add` to server settings as written in a settings file."""
    first = target[0]
    has_address = is_url(first)
    if has_address and len(target) > 1:
        raise click.UsageError(f"unexpected arguments after the URL: {shlex.join(target[1:])}")
    values: dict[str, Any] = {"url": first} if has_address else {"command": first, "args": list(target[1:])}
    values["env"] = dict(_parse_pair(each, "=", "--env") for each in options["env"])
    values["headers"] = dict(_parse_pair(each, ":", "--header") for each in options["header"])
    values |= {key: list(options[key]) for key in ("pass_env", "include", "exclude")}
    values |= {key: options[key] for key in ("transport", "trust")}
    values["cwd"] = str(Path(options["cwd"]).absolute()) if options["cwd"] else None
    settings = {key: value for key, value in values.items() if value}
    _validate_settings(settings)
    return settings


def _parse_pair(text: str, sign: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition(sign)
    if not found or not name.strip():
        raise click.UsageError(f"{option} needs the form NAME{sign}VALUE, not {text!r}")
    return name.strip(), value.strip() if sign == ":" else value


def _validate_settings(settings: dict[str, Any]) -> None:
    from pydantic import ValidationError

    from toolfold.config.servers_settings import parse_server_settings

    try:
        parse_server_settings(settings)
    except ValidationError as error:
        raise click.UsageError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def _require_unused_name(invocation: Invocation, name: str, file: Path) -> None:
    from toolfold.config import read_file_value
    from toolfold.mcp.importing import normalise_server_name

    if normalise_server_name(name) != name:
        raise click.UsageError(f"{name!r} is not a valid server name. Try {normalise_server_name(name)!r}.")
    if name in invocation.load_config().mcp.servers or read_file_value(file, server_key(name)) is not None:
        raise click.ClickException(
            f"a server named {name!r} already exists. Choose another name, or run: toolfold mcp remove {name}"
        )


def _reject_own_gateway(invocation: Invocation, settings: dict[str, Any]) -> None:
    from toolfold.cli.connect import gateway_urls
    from toolfold.mcp.importing import is_gateway

    if is_gateway(settings, gateway_urls(invocation.load_config())):
        raise click.ClickException(
            "this is Toolfold's own gateway, which would start itself endlessly."
            " To use it in another program, run `toolfold connect`."
        )


def _test_server(invocation: Invocation, name: str, *, allow_destructive: bool, ask: bool) -> None:
    config = invocation.load_config()
    if name not in config.mcp.servers:  # its project is not trusted
        return
    (probe,) = probe_servers(config, [name])
    if probe.problem:
        print_warning(
            f"{probe.problem}\nThe server was added anyway. Fix its settings and run:"
            f" toolfold mcp test {name}"
        )
        return
    print_tools(probe)
    if destructive := list_destructive_tools(probe):
        offer_to_allow(invocation, [name], allow=allow_destructive, ask=ask, tools=destructive)
    if not probe.held:  # otherwise the next step is the review
        print_line(
            'next: search its tools with `toolfold search "…"`, or use them in another program with'
            " `toolfold connect`."
        )
