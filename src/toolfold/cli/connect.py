"""`toolfold connect`: the gateway in another program's settings, shown, asked about, written and undone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from toolfold.approval.visible import brief, visible
from toolfold.cli.app import FAILED, Invocation
from toolfold.cli.servers import agreed, changing, describe, keep_private, key_of, yes_option
from toolfold.cli.show import counted, note, out, plain, warn
from toolfold.errors import ConfigError
from toolfold.sources.mcp.importing import CLIENTS

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.connecting import Original, Step, Steps, Way
    from toolfold.sources.mcp.importing import Candidate
    from toolfold.sources.mcp.importing.found import Client

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
_LONGEST_LINE = 300
_MAX_LISTED_SERVERS = 8
_SECTIONS = {
    "env": ("env", "envs", "environment"),
    "headers": ("headers", "http_headers"),
    "oauth": ("oauth", "auth"),
}
# Where the gateway looks for its settings. A client may start it without these variables.
_DIRECTORY_VARIABLES = (
    "TOOLFOLD_HOME",
    "TOOLFOLD_CONFIG",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
)
_CLIENT_NOTES: Mapping[Client, str] = {
    "codex": "Codex asks before each tool_call. To leave approval to Toolfold alone, add to config.toml:\n"
    '    [mcp_servers.{name}.tools.tool_call]\n    approval_mode = "approve"',
    "claude-code": "Claude Code asks before each new tool. To leave approval to Toolfold alone, allow"
    " mcp__{name} in its /permissions.",
    "gemini": "Gemini CLI asks before each new tool. To leave approval to Toolfold alone, add"
    ' "trust": true to the entry. It starts servers only in folders that you trust.',
    "opencode": "opencode runs tools without asking: calls that need approval are refused unless"
    " you allow them with `toolfold approvals`.",
}


@dataclass(frozen=True, slots=True)
class _Options:
    """What was said on the command line."""

    client: Client
    name: str
    yes: bool
    uvx: bool
    url: str
    token_variable: str
    replaces: bool


@click.command("connect")
@click.argument("client", metavar="PROGRAM", type=click.Choice(list(CLIENTS)))
@click.option("--name", default="toolfold", show_default=True, help="What the gateway is called there.")
@click.option("--uvx", is_flag=True, help="Let it be started by `uvx toolfold`.")
@click.option("--http", "url", default="", metavar="URL", help="Reach a gateway that runs: `toolfold serve`.")
@click.option("--token-env", default="", metavar="NAME", help="The variable that holds the token for it.")
@click.option("--replace", "replaces", is_flag=True, help="Also move its own MCP servers behind Toolfold.")
@click.option("--undo", is_flag=True, help="Put the file back as it was.")
@click.option("--keep-changes", is_flag=True, help="With --undo: leave what else was changed since.")
@click.option("--file", type=click.Path(path_type=Path), help="Change this file of it, not the usual one.")
@yes_option
@click.pass_obj
def command(
    invocation: Invocation,
    client: Client,
    name: str,
    uvx: bool,
    url: str,
    token_env: str,
    replaces: bool,
    undo: bool,
    keep_changes: bool,
    file: Path | None,
    yes: bool,
) -> int:
    """Let another program use Toolfold: write it into that program's own settings.

    PROGRAM is claude-desktop, claude-code, cursor, vscode, windsurf, codex, gemini, opencode or goose.

    You see the change and are asked. The file as it was lies beside it, and --undo puts it back.
    """
    from toolfold.connecting import Steps

    options = _Options(client, name, yes, uvx, url, token_env, replaces)
    _require_sense(options, undo=undo, keep_changes=keep_changes)
    config = invocation.config()
    steps = Steps(steps_file(config))
    chosen = file.absolute() if file else None
    if undo:
        return _undo(config, steps, steps.last(client, chosen), options, keep_changes=keep_changes)
    return _connect(invocation, config, steps, chosen or usual_file(config, client), options)


def steps_file(config: Config) -> Path:
    """Where it is kept what was connected."""
    return config.paths.state_dir / "connected.json"


def own_addresses(config: Config) -> list[str]:
    """Where gateways of this machine are: as the settings say, and as programs were told from here."""
    from toolfold.connecting import Steps, address_in
    from toolfold.gateway.web import is_loopback

    host = config.gateway.host
    addresses = [f"http://{f'[{host}]' if ':' in host else host}:{config.gateway.port}/mcp"]
    with suppress(ConfigError, ValueError):  # a record that cannot be read is for `doctor` to tell of
        told = [address_in(each.entry) for each in Steps(steps_file(config)).all()]
        # A gateway of another machine is a server like any other.
        addresses += [each for each in told if is_loopback(urlsplit(each).hostname or "")]
    return addresses


def home_of(config: Config) -> Path:
    """The folder that the programs' own files lie below."""
    return Path(config.environment.get("HOME") or Path.home())


def usual_file(config: Config, client: Client) -> Path:
    """The file in which a program keeps its user's servers."""
    from toolfold.sources.mcp.importing import own_file

    return own_file(client, home=home_of(config), platform=sys.platform, environment=config.environment)


def _require_sense(options: _Options, *, undo: bool, keep_changes: bool) -> None:
    from toolfold.sources.mcp.importing import own_name

    if own_name(options.name) != options.name:
        raise click.UsageError(f"{options.name!r} cannot be the name. Try {own_name(options.name)!r}.")
    if keep_changes and not undo:
        raise click.UsageError("--keep-changes says how to --undo")
    if undo and (options.url or options.replaces or options.uvx or options.token_variable):
        raise click.UsageError("--undo stands alone: what was done is known")
    if options.uvx and options.url:
        raise click.UsageError("--uvx starts a gateway, and --http reaches one: give one of the two")
    if options.token_variable and not options.url:
        raise click.UsageError("--token-env is for --http: a gateway that is started needs no token")
    _require_address(options)


def _require_address(options: _Options) -> None:
    from toolfold.gateway.web import is_loopback

    if not options.url:
        return
    try:
        parts = urlsplit(options.url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_address = False
    if not is_address:
        raise click.UsageError("--http takes an address such as http://127.0.0.1:8765/mcp")
    if parts.password or parts.username:
        raise click.UsageError("the address must not hold a password: name a variable with --token-env")
    variable = options.token_variable
    if variable and not (variable.isidentifier() and variable.isascii()):
        raise click.UsageError("--token-env takes the name of a variable, never the token itself")
    if not variable and not is_loopback(parts.hostname or ""):
        warn("a gateway beyond this machine wants a token: `toolfold token add NAME`, then --token-env")


def _warn_of_missing_token(config: Config, options: _Options) -> None:
    from toolfold.config.record import SettingsRecord
    from toolfold.gateway.tokens import Tokens

    if not options.url or options.token_variable or config.gateway.allow_anonymous:
        return
    state = config.paths.state_dir
    if Tokens(state / "gateway" / "tokens.json", SettingsRecord(state)).are_in_use():
        warn("clients of the gateway need a token: `toolfold token add NAME`, then --token-env")


def _connect(invocation: Invocation, config: Config, steps: Steps, file: Path, options: _Options) -> int:
    from toolfold.connecting import changed, entry_of, opened, opened_again

    _warn_of_missing_token(config, options)
    title = CLIENTS[options.client].title
    way = _way(invocation, config, options)
    original = opened(options.client, file)
    moving = _moving(config, original, way, options) if options.replaces else []
    entry = entry_of(options.client, options.name, replace(way, passed=_needed(config, moving)))
    moved = tuple(each.found.name for each in moving)
    content = changed(original, options.name, entry, dict.fromkeys(moved))
    if content == original.data:
        out(f"{title} uses Toolfold already: {plain(str(file))}")
        return 0
    _tell_of_place(original)
    for each in moving:
        describe(f"{each.name}, moved behind Toolfold", each.found.settings, _remarks(each))
    _show(config, original, original.text, content.decode("utf-8-sig"))
    if not agreed(_question(moving, file), options.yes):
        out("nothing was changed.")
        return FAILED
    original = opened_again(original)
    content = changed(original, options.name, entry, dict.fromkeys(moved))
    _import(invocation, moving)
    step = steps.take(
        original,
        content,
        name=options.name,
        entry=entry,
        moved=moved,
        imported=tuple(each.name for each in moving),
    )
    _tell(step, options)
    _report_remaining(original, moved, options)
    return 0


def _way(invocation: Invocation, config: Config, options: _Options) -> Way:
    from toolfold.connecting import Way, command_of, here, with_path

    if options.url:
        return Way(url=with_path(options.url), token_variable=options.token_variable)
    words = command_of(here(config.environment), with_uvx=options.uvx)
    if invocation.project is not None:
        serve = len(words) - 2
        words = (*words[:serve], "--project", str(invocation.project.absolute()), *words[serve:])
    return Way(words, _environment_to_pass(config))


def _environment_to_pass(config: Config) -> dict[str, str]:
    """The variables that decide which settings the gateway reads, for clients that do not inherit them."""
    environment, secrets = config.environment, set(config.secret_values())
    given = {name: environment.get(name) for name in _DIRECTORY_VARIABLES}
    found = {name: str(Path(value).absolute()) for name, value in given.items() if value}
    for name, value in sorted(environment.items()):
        if not (name.startswith("TOOLFOLD_") and "__" in name and value):
            continue
        if value in secrets:
            warn(f"{name} looks like a secret and is not written to the file: set it where the client starts")
        else:
            found[name] = value
    return found


def _moving(config: Config, original: Original, way: Way, options: _Options) -> list[Candidate]:
    """The program's own servers, but for those that cannot be ours and for the gateway itself."""
    from toolfold.sources.mcp.importing import candidates, is_gateway

    answer = original.answer(home_of(config))
    for unusable in answer.unusable:
        note(f"{plain(visible(unusable.name))} stays where it is: {plain(visible(unusable.why))}")
    for remark in answer.remarks:
        note(plain(visible(remark)))
    addresses = [*own_addresses(config), way.url]
    own = [
        each
        for each in answer.found
        if each.name in original.servers
        and each.name != options.name
        and not is_gateway(each.settings, addresses)
    ]
    return list(candidates(own, config.mcp.servers))


def _needed(config: Config, moving: Sequence[Candidate]) -> tuple[str, ...]:
    from toolfold.config.servers import usable
    from toolfold.connecting import needed_by

    servers = [*config.mcp.servers.values(), *(usable(each.found.settings) for each in moving)]
    return needed_by(each for each in servers if each.enabled)


def _remarks(candidate: Candidate) -> Sequence[str]:
    from toolfold.sources.mcp.importing import literal_secrets

    remarks = list(candidate.found.remarks)
    if candidate.is_known:
        remarks.append("is behind Toolfold already")
    if candidate.found.name != candidate.name:
        remarks.insert(0, f"is called {candidate.found.name!r} there")
    if secrets := literal_secrets(candidate.found.settings):
        remarks.append(f"a secret is written out in {', '.join(secrets)}, and will be in Toolfold's file")
    return remarks


def _question(moving: Sequence[Candidate], file: Path) -> str:
    if not moving:
        return f"Change {file}?"
    return f"Approve {counted(len(moving), 'server')}, and change {file}?"


def _import(invocation: Invocation, moving: Sequence[Candidate]) -> None:
    """First ours, then theirs: whatever goes wrong in between, no server is lost."""
    from toolfold.config import set_value
    from toolfold.sources.mcp.importing import literal_secrets

    new = [each for each in moving if not each.is_known]
    file = invocation.paths().user_file
    if not new:
        return
    if any(literal_secrets(each.found.settings) for each in new):
        keep_private(file)
    with changing(invocation, file) as record:
        for each in new:
            set_value(file, key_of(each.name), dict(each.found.settings), record=record)
    out(f"{counted(len(new), 'server')} written to {plain(str(file))}")


def _tell_of_place(original: Original) -> None:
    title = CLIENTS[original.client].title
    if original.file != original.target:
        note(f"{plain(str(original.file))} is a link: {plain(str(original.target))} is changed.")
    if original.data is None and not original.file.parent.exists():
        warn(f"{title} seems not to be installed: there is no {original.file.parent} yet")


def _tell(step: Step, options: _Options) -> None:
    title = CLIENTS[options.client].title
    out(f"{title} uses Toolfold: {plain(step.file)}")
    if step.backup:
        out(f"  as it was: {plain(step.backup)}")
    if options.token_variable:
        out(f"  set {options.token_variable} where {title} is started: toolfold token add {step.client}")
    out(f"next: restart {title}, then `toolfold doctor`. Back again: toolfold connect {step.client} --undo")


def _report_remaining(original: Original, moved: Sequence[str], options: _Options) -> None:
    """Say which servers the client still starts itself: their tools are listed in full beside ours."""
    remaining = [name for name in original.servers if name != options.name and name not in moved]
    if remaining:
        title = CLIENTS[options.client].title
        names = plain(visible(", ".join(remaining[:_MAX_LISTED_SERVERS])))
        more = (
            f" and {len(remaining) - _MAX_LISTED_SERVERS} more"
            if len(remaining) > _MAX_LISTED_SERVERS
            else ""
        )
        note(
            f"{title} still starts {names}{more} itself, with all their tools."
            f" Move them behind Toolfold: toolfold connect {options.client} --replace"
        )
    if about := _CLIENT_NOTES.get(options.client):
        note(plain(about.format(name=options.name)))


def _undo(config: Config, steps: Steps, step: Step | None, options: _Options, *, keep_changes: bool) -> int:
    from toolfold.connecting import ChangedSince

    title = CLIENTS[options.client].title
    if step is None:
        out(f"there is nothing to undo: {title} was not connected from here.")
        return 0
    try:
        now, content = steps.without(step) if keep_changes else steps.undone(step)
    except ChangedSince as error:
        _show(config, error.original, error.left, error.original.text, ("as it was left", "as it is now"))
        raise
    if content == now.data:
        steps.undo(step, now, content)
        out(f"{plain(step.file)} is as it was already.")
        return 0
    _show(config, now, now.text, "" if content is None else content.decode("utf-8-sig"))
    question = (
        f"Delete {step.file}, which was not there before?" if content is None else f"Change {step.file}?"
    )
    if not agreed(question, options.yes):
        out("nothing was changed.")
        return FAILED
    if keep_changes:
        now, content = steps.without(step, before=now)
    steps.undo(step, now, content)
    became = "is gone" if content is None else "is as it was"
    _tell_undone(config, step, f"no longer has {step.name}" if keep_changes else became)
    return 0


def _tell_undone(config: Config, step: Step, became: str) -> None:
    out(f"{plain(step.file)} {plain(became)}.")
    if step.backup and Path(step.backup).exists():
        out(f"  the backup stays: {plain(step.backup)}")
    if remaining := [name for name in step.imported if name in config.mcp.servers]:
        out(f"  still behind Toolfold as well: {plain(', '.join(remaining))} (toolfold mcp remove NAME)")


def _show(
    config: Config, original: Original, before: str, after: str, titles: tuple[str, str] | None = None
) -> None:
    """The change, without anybody's secrets."""
    from toolfold.connecting import difference
    from toolfold.redaction import Redaction

    file = str(original.file)
    titles = titles or ("nothing" if original.data is None else file, file)
    lines = list(difference(before, after, titles=titles))
    if any(len(line) > _LONGEST_LINE for line in lines):
        lines = list(difference(_laid_out(before), _laid_out(after), titles=titles))
    secrets = {word for text in (before, after) for word in _secrets_in(original, text)}
    redact = Redaction([*config.secret_values(), *secrets], longest=10 * _LONGEST_LINE)
    for line in lines:
        shown = plain(visible(brief(redact(line.expandtabs(2)), _LONGEST_LINE)))
        colour = _COLOURS.get(line[:1])
        out(f"[{colour}]{shown}[/{colour}]" if colour else shown)


def _laid_out(text: str) -> str:
    """JSON in lines that a person can read; the file keeps its own."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _secrets_in(original: Original, text: str) -> Iterator[str]:
    """The secrets that stand written out in the entries of a text of that file."""
    try:
        entries = replace(original, data=text.encode()).servers.values()
    except ConfigError:
        return
    for entry in entries:
        if isinstance(entry, dict):
            yield from _secret_words({key: _united(entry, names) for key, names in _SECTIONS.items()})
            args = entry.get("args")
            yield from _secret_words({"args": args if isinstance(args, list) else []})


def _united(entry: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """The text of sections that are one to us, whatever a program calls them."""
    maps = (entry[name] for name in names if isinstance(entry.get(name), dict))
    return {key: value for each in maps for key, value in each.items() if isinstance(value, str)}


def _secret_words(settings: Mapping[str, Any]) -> Iterator[str]:
    """The very words that must not be shown."""
    from toolfold.sources.mcp.importing import veiled

    shown = veiled(settings)
    for section in _SECTIONS:
        for name, value in settings.get(section, {}).items():
            if shown.get(section, {}).get(name) != value:
                yield value
                yield from value.split()[1:]
    words = zip(settings.get("args", ()), shown.get("args", ()), strict=False)
    yield from (str(word) for word, seen in words if str(word) != seen)
