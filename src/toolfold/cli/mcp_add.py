"""`toolfold mcp add`: a server on the command line, shown, asked about, written down and tried."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from toolfold.cli.allowing import allow_destructive_option, offer_to_allow
from toolfold.cli.app import FAILED, Invocation
from toolfold.cli.server_names import derive_name, is_launcher, is_url, starts_anything
from toolfold.cli.servers import (
    agreed,
    changing,
    describe,
    keep_private,
    key_of,
    probed,
    project_option,
    settings_file,
    show_tools,
    tools_that_destroy,
    yes_option,
)
from toolfold.cli.show import note, out, plain, warn

_DERIVED_NAME = "toolfold.derived_server_name"


class _WithCommand(click.Command):
    """Ends Toolfold's options where the server's command begins, and names a server that has no name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _with_dashes(self, _with_name(self, ctx, args)))


def _with_name(command: click.Command, ctx: click.Context, args: list[str]) -> list[str]:
    """Insert the derived name where the command line begins with the server's command or address."""
    end = args.index("--") if "--" in args else len(args)
    place = _word_place(args[:end], _options_with_values(command), 1)
    if place is None:
        place, target = end, args[end + 1 :]
    else:
        target = args[place:end]
        if end < len(args) or not _is_unnamed(target):
            return args
    if not target:
        return args
    ctx.meta[_DERIVED_NAME] = derive_name(target)
    return [*args[:place], ctx.meta[_DERIVED_NAME], *args[place:]]


def _is_unnamed(words: Sequence[str]) -> bool:
    """Whether the first word starts a server. It is a name in `docker docker run …` and `x https://…`."""
    return is_launcher(words[0]) and not (len(words) > 1 and starts_anything(words[1]))


def _with_dashes(command: click.Command, args: list[str]) -> list[str]:
    place = _word_place(args, _options_with_values(command), 2) if "--" not in args else None
    if place is None or is_url(args[place]):
        return args
    return [*args[:place], "--", *args[place:]]


def _options_with_values(command: click.Command) -> set[str]:
    options = (each for each in command.params if isinstance(each, click.Option))
    return {name for option in options if not option.is_flag for name in option.opts}


def _word_place(args: Sequence[str], with_values: set[str], number: int) -> int | None:
    """Return the place of the nth word that is neither an option nor the value of one."""
    words, place = 0, 0
    while place < len(args):
        if args[place] in with_values:
            place += 1
        elif not args[place].startswith("-"):
            words += 1
            if words == number:
                return place
        place += 1
    return None


@click.command("add", cls=_WithCommand, short_help="Add a server by its address or its command.")
@click.argument("name", metavar="[NAME]")
@click.argument("target", nargs=-1, required=True, metavar="URL | COMMAND [ARGUMENT]...")
@click.option(
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an environment variable for the server; ${NAME} is expanded.",
)
@click.option("--pass-env", multiple=True, metavar="NAME", help="A variable of yours it is given.")
@click.option(
    "--header",
    multiple=True,
    metavar="NAME:VALUE",
    help="Send a header with every request; ${NAME} is expanded.",
)
@click.option("--cwd", type=click.Path(file_okay=False, path_type=Path), help="The folder it starts in.")
@click.option("--transport", type=click.Choice(["http", "sse"]), help="How an address is reached.")
@click.option("--include", multiple=True, metavar="GLOB", help="Use only these of its tools.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="Leave these of its tools out.")
@click.option("--trust", type=click.Choice(["pin", "warn", "off"]), help="What becomes of changed tools.")
@click.option("--test/--no-test", default=True, help="Start it afterwards and show its tools.")
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
    **how: Any,
) -> int:
    """Add a server: the address of one that runs, or the command that starts one.

    Without a NAME, it is named after the package, image or address. Everything after the command is passed
    to it: options of Toolfold stand before it.

    You see what would be run and are asked; that is the approval of its tools as they are now.
    """
    from toolfold.config import set_value
    from toolfold.sources.mcp.importing import literal_secrets

    settings = _settings(target, how)
    file = settings_file(invocation, in_project)
    _require_free(invocation, name, file)
    _require_other(invocation, settings)
    if derived := click.get_current_context().meta.get(_DERIVED_NAME):
        example = plain(shlex.join(target[:2]))
        note(f"named {plain(derived)}. To choose another name: toolfold mcp add NAME {example} …")
    describe(name, settings)
    secrets = literal_secrets(settings)
    for key in secrets:
        warn(f"{key} is written out; a reference such as ${{NAME}} keeps it out of the file")
    if in_project and secrets:
        raise click.ClickException("a project's file is no place for secrets. Use references.")
    _require_answer(target, yes)
    if not agreed("Add it?", yes):
        out("nothing was added.")
        return FAILED
    if secrets:
        keep_private(file)
    with changing(invocation, file) as record:
        set_value(file, key_of(name), settings, record=record)
    out(f"added to {plain(str(file))}")
    if test:
        return _tried(invocation, name, allow_destructive=allow_destructive, ask=not yes)
    if allow_destructive:
        offer_to_allow(invocation, [name], allow=True)
    out(f"next: toolfold mcp test {plain(name)}")
    return 0


def _require_answer(target: Sequence[str], yes: bool) -> None:
    """Tell of a --yes that goes to the server, where it was likely meant for Toolfold."""
    if yes or "--yes" not in target[1:] or is_url(target[0]):
        return
    moved = (
        "--yes stands after the command and is passed to it. To answer Toolfold's question, write it before:"
    )
    if not sys.stdin.isatty():
        raise click.ClickException(f"This needs a terminal. {moved} toolfold mcp add --yes …")
    note(f"{moved} toolfold mcp add --yes …")


def _settings(target: Sequence[str], how: dict[str, Any]) -> dict[str, Any]:
    """What the words of the command line say, as a file would."""
    first = target[0]
    has_address = is_url(first)
    if has_address and len(target) > 1:
        raise click.UsageError("an address stands alone; what follows it is not understood")
    said: dict[str, Any] = {"url": first} if has_address else {"command": first, "args": list(target[1:])}
    said["env"] = dict(_pair(each, "=", "--env") for each in how["env"])
    said["headers"] = dict(_pair(each, ":", "--header") for each in how["header"])
    said |= {key: list(how[key]) for key in ("pass_env", "include", "exclude")}
    said |= {key: how[key] for key in ("transport", "trust")}
    said["cwd"] = str(Path(how["cwd"]).absolute()) if how["cwd"] else None
    settings = {key: value for key, value in said.items() if value}
    _require_usable(settings)
    return settings


def _pair(text: str, sign: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition(sign)
    if not found or not name.strip():
        raise click.UsageError(f"{option} is written NAME{sign}VALUE, not {text!r}")
    return name.strip(), value.strip() if sign == ":" else value


def _require_usable(settings: dict[str, Any]) -> None:
    from pydantic import ValidationError

    from toolfold.config.servers import usable

    try:
        usable(settings)
    except ValidationError as error:
        raise click.UsageError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def _require_free(invocation: Invocation, name: str, file: Path) -> None:
    from toolfold.config import written_value
    from toolfold.sources.mcp.importing import own_name

    if own_name(name) != name:
        raise click.UsageError(f"{name!r} cannot be the name of a server. Try {own_name(name)!r}.")
    if name in invocation.config().mcp.servers or written_value(file, key_of(name)) is not None:
        raise click.ClickException(
            f"there is a server {name!r} already. Take another name, or: toolfold mcp remove {name}"
        )


def _require_other(invocation: Invocation, settings: dict[str, Any]) -> None:
    from toolfold.cli.connect import own_addresses
    from toolfold.sources.mcp.importing import is_gateway

    if is_gateway(settings, own_addresses(invocation.config())):
        raise click.ClickException(
            "that is Toolfold's own gateway, which would stand behind itself and start itself for ever."
            " `toolfold connect` gives it to other programs."
        )


def _tried(invocation: Invocation, name: str, *, allow_destructive: bool, ask: bool) -> int:
    config = invocation.config()
    if name not in config.mcp.servers:  # the project it stands in is not trusted
        return 0
    (probe,) = probed(config, [name])
    if probe.problem:
        warn(f"{probe.problem}\nIt stays in the file. Mend it there and try again: toolfold mcp test {name}")
        return FAILED
    show_tools(probe)
    if destructive := tools_that_destroy(probe):
        offer_to_allow(invocation, [name], allow=allow_destructive, ask=ask, tools=destructive)
    if not probe.held:  # else it was told to look at those
        out('next: `toolfold search "…"` finds its tools, `toolfold connect` gives them to other programs.')
    return 0
