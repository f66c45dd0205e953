"""`toolfold mcp import`: the servers other programs have, shown, asked about and taken over."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.approval.visible import visible
from toolfold.cli.allowing import allow_destructive_option, offer_to_allow
from toolfold.cli.app import Invocation, json_option
from toolfold.cli.connect import home_of
from toolfold.cli.server_names import derive_name
from toolfold.cli.servers import (
    changing,
    describe,
    keep_private,
    key_of,
    project_option,
    settings_file,
    yes_option,
)
from toolfold.cli.show import NotFound, as_json, counted, note, out, plain, table, warn
from toolfold.errors import ConfigError
from toolfold.sources.mcp.importing import CLIENTS, Answer, Candidate, Place

if TYPE_CHECKING:
    from toolfold.config import Config

_TRIES = 3
_STDIN = Path("-")


@dataclass(frozen=True, slots=True)
class _Plan:
    """What would be written for one server."""

    candidate: Candidate
    settings: dict[str, Any]
    secrets: tuple[str, ...]
    """What stands written out in it."""
    variables: tuple[str, ...]
    """What a person must set, because a secret was left behind."""


@click.command("import", short_help="Take over the servers that other programs have.")
@click.argument("names", nargs=-1)
@click.option(
    "--from", "clients", multiple=True, type=click.Choice(list(CLIENTS)), help="Only this program's."
)
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Read this file, or JSON from standard input (-).",
)
@click.option("--name", help="The name of a single entry that has none, with --file.")
@click.option("--no-secrets", is_flag=True, help="Write ${NAME} where a secret is written out.")
@allow_destructive_option
@project_option
@yes_option
@json_option
@click.pass_obj
def import_servers(
    invocation: Invocation,
    names: tuple[str, ...],
    clients: tuple[str, ...],
    file: Path | None,
    name: str | None,
    no_secrets: bool,
    allow_destructive: bool,
    in_project: bool,
    yes: bool,
    as_json_: bool,
) -> None:
    """Take over the servers that other programs have: all, or those you name.

    Looks for the files of Claude Desktop, Claude Code, Cursor, VS Code, Windsurf, Codex and Goose, yours and
    those of the project, shows what it found and asks. --yes takes over your own alone: a project's may come
    from a stranger, so those must be named. With --json, and without --yes, nothing is taken over.

    --file takes settings files and JSON as READMEs print it: {"mcpServers": …}, {"servers": …}, {"mcp": …},
    "name": {"command": …}, or a single {"command": …}, which --name names.
    """
    from toolfold.sources.mcp.importing import candidates

    if name is not None and file is None:
        raise click.UsageError("--name is for a single entry that --file reads")
    config = invocation.config()
    answers = [_read_named(config, clients, file, name)] if file else _answers(config, clients)
    found = candidates((each for answer in answers for each in answer.found), config.mcp.servers)
    plans = [_plan(each, no_secrets or in_project) for each in _named(found, names, answers)]
    new = [each for each in plans if not each.candidate.is_known]
    if not as_json_:
        _show(answers, plans)
    chosen = _unasked(new, names, file) if yes else [] if as_json_ else _chosen(new)
    if in_project:
        chosen = _without_secrets(chosen)
    target = settings_file(invocation, in_project)
    if chosen:
        with changing(invocation, target):
            for each in chosen:
                _write(each, target, config, in_project)
        imported = [each.candidate.name for each in chosen]
        offer_to_allow(invocation, imported, allow=allow_destructive, ask=not yes, quiet=as_json_)
    if as_json_:
        as_json(_as_json(answers, plans, chosen))
    else:
        _tell(chosen, new, target)


def _answers(config: Config, clients: Sequence[str]) -> list[Answer]:
    from toolfold.cli.connect import own_addresses
    from toolfold.sources.mcp.importing import existing, read, without_gateways

    home, project = home_of(config), config.paths.project_dir
    places = existing(home=home, project=project, platform=sys.platform, environment=config.environment)
    addresses = own_addresses(config)
    return [
        without_gateways(read(each, home=home, project=project), addresses)
        for each in places
        if not clients or each.client in clients
    ]


def _read_named(config: Config, clients: Sequence[str], file: Path, name: str | None) -> Answer:
    """Read the file that --file names: as its program's, or else as a copied snippet."""
    from toolfold.cli.connect import own_addresses
    from toolfold.config.document import read_text
    from toolfold.sources.mcp.importing import guessed, read, read_snippet, without_gateways

    home, project = home_of(config), config.paths.project_dir
    client = clients[0] if clients else guessed(file)
    place = Place(client, "user", file if file == _STDIN else file.absolute())  # type: ignore[arg-type]
    answer = Answer(place) if file == _STDIN else read(place, home=home, project=project)
    is_json = file.suffix not in (".toml", ".yaml", ".yml")
    if is_json and not (answer.found or answer.unusable or clients):
        try:
            text = _standard_input() if file == _STDIN else read_text(file)
        except ConfigError as error:
            return Answer(place, problem=error.problem)
        answer = read_snippet(
            text,
            place,
            home=home,
            project=project,
            name_entry=lambda words: name or derive_name(words),
        )
    return without_gateways(answer, own_addresses(config))


def _standard_input() -> str:
    """Return what was piped in, of bounded size."""
    from toolfold.config.document import MAX_BYTES

    content = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ConfigError(f"standard input is longer than {MAX_BYTES:,} bytes")
    return content.decode("utf-8", "replace")


def _named(found: Sequence[Candidate], names: Sequence[str], answers: Sequence[Answer]) -> list[Candidate]:
    unusable = {each.name: each.why for answer in answers for each in answer.unusable}
    for name in names:
        if not any(name in (each.name, each.found.name) for each in found):
            if name in unusable:
                raise click.ClickException(f"{visible(name)} is left out: {visible(unusable[name])}")
            raise NotFound(
                f"no program has a server {name!r}. `toolfold mcp import --json` shows all of them."
            )
    return [each for each in found if not names or each.name in names or each.found.name in names]


def _plan(candidate: Candidate, without_secrets: bool) -> _Plan:
    from toolfold.sources.mcp.importing import literal_secrets, referring

    settings, variables = dict(candidate.found.settings), tuple[str, ...]()
    if without_secrets:
        settings, variables = referring(candidate.name, settings)
    return _Plan(candidate, settings, literal_secrets(settings), variables)


def _unasked(new: Sequence[_Plan], names: Sequence[str], file: Path | None) -> list[_Plan]:
    """Those that --yes takes: a stranger's only by the very name it would have here."""
    mine = [
        each
        for each in new
        if file or each.candidate.found.place.scope == "user" or each.candidate.name in names
    ]
    if len(mine) < len(new):
        note(f"{counted(len(new) - len(mine), 'server')} of the project left out: name those you want")
    return mine


def _without_secrets(chosen: Sequence[_Plan]) -> list[_Plan]:
    """A secret among arguments cannot be referred to, and a project's file is read by others."""
    for each in chosen:
        if each.secrets:
            warn(f"{each.candidate.name} is left out: a secret is written out in {', '.join(each.secrets)}")
    return [each for each in chosen if not each.secrets]


def _chosen(new: Sequence[_Plan]) -> list[_Plan]:
    """Those a person wants, by their numbers."""
    if not new:
        return []
    if not sys.stdin.isatty():
        raise click.ClickException("This needs a terminal. Look at the above, then repeat it with --yes.")
    for _ in range(_TRIES):
        said = click.prompt("Import which? all, none, or numbers such as 1,3", default="none", err=True)
        if (chosen := _numbered(said, new)) is not None:
            return chosen
        note("Please answer with all, none or numbers from above.")
    return []


def _numbered(said: str, new: Sequence[_Plan]) -> list[_Plan] | None:
    word = said.strip().lower()
    if word in ("all", "none", ""):
        return list(new) if word == "all" else []
    numbers = word.replace(",", " ").split()
    if not all(each.isdecimal() and 0 < int(each) <= len(new) for each in numbers):
        return None
    return [new[number - 1] for number in sorted({int(each) for each in numbers})]


def _write(plan: _Plan, file: Path, config: Config, in_project: bool) -> None:
    from toolfold.config import set_value
    from toolfold.config.record import SettingsRecord

    settings = dict(plan.settings)
    if in_project and settings.get("cwd") == str(config.paths.project_dir):
        settings["cwd"] = "."  # others have the project elsewhere
    if plan.secrets and not in_project:
        keep_private(file)
    record = SettingsRecord(config.paths.state_dir)
    set_value(file, key_of(plan.candidate.name), settings, record=record)


def _show(answers: Sequence[Answer], plans: Sequence[_Plan]) -> None:
    for answer in answers:
        if answer.problem:
            warn(f"{answer.place.file}: {visible(answer.problem)}")
        for remark in answer.remarks:
            note(f"{plain(str(answer.place.file))}: {plain(visible(remark))}")
    unusable = [each for answer in answers for each in answer.unusable]
    if unusable:
        table(
            "what cannot be used",
            ("server", "in", "why"),
            ((visible(each.name), CLIENTS[each.place.client].title, visible(each.why)) for each in unusable),
        )
    known = [each.candidate.name for each in plans if each.candidate.is_known]
    if known:
        out(f"here already: {plain(', '.join(known))}")
    new = [each for each in plans if not each.candidate.is_known]
    if not new:
        out(f"nothing new to import ({counted(len(answers), 'file')} of other programs found).")
        if not answers:
            titles = ", ".join(each.title for each in CLIENTS.values())
            out(f"looked for: {titles}. `--file PATH` reads another file, `toolfold mcp add` adds a server.")
        return
    for number, each in enumerate(new, 1):
        heading = f"{number}  {each.candidate.name}, from {_where(each.candidate)}"
        describe(heading, each.settings, _remarks(each))


def _remarks(plan: _Plan) -> Sequence[str]:
    found = plan.candidate.found
    remarks = list(found.remarks)
    if found.name != plan.candidate.name:
        remarks.insert(0, f"is called {found.name!r} there")
    if plan.variables:
        remarks.append(f"its secrets stay behind: set {', '.join(plan.variables)}")
    if plan.secrets:
        remarks.append(
            f"a secret is written out in {', '.join(plan.secrets)} (--no-secrets leaves it behind)"
        )
    return remarks


def _where(candidate: Candidate) -> str:
    if candidate.found.place.file == _STDIN:
        return "standard input"
    places = (candidate.found.place, *candidate.also)
    titles = dict.fromkeys(
        CLIENTS[each.client].title + (" (project)" if each.scope == "project" else "") for each in places
    )
    return ", ".join(titles)


def _tell(chosen: Sequence[_Plan], new: Sequence[_Plan], file: Path) -> None:
    if not chosen:
        if new:
            out("nothing was imported.")
        return
    out(f"{counted(len(chosen), 'server')} imported into {plain(str(file))}")
    out("next: toolfold mcp test")


def _as_json(answers: Sequence[Answer], plans: Sequence[_Plan], chosen: Sequence[_Plan]) -> dict[str, Any]:
    from toolfold.sources.mcp.importing import veiled

    return {
        "found": [
            {
                "name": each.candidate.name,
                "called": each.candidate.found.name,
                "client": each.candidate.found.place.client,
                "scope": each.candidate.found.place.scope,
                "file": str(each.candidate.found.place.file),
                "settings": veiled(each.settings),
                "secrets": list(each.secrets),
                "remarks": list(_remarks(each)),
                "known": each.candidate.is_known,
                "imported": each in chosen,
            }
            for each in plans
        ],
        "unusable": [
            {"name": each.name, "client": each.place.client, "file": str(each.place.file), "why": each.why}
            for answer in answers
            for each in answer.unusable
        ],
        "problems": [
            {"file": str(answer.place.file), "problem": answer.problem}
            for answer in answers
            if answer.problem
        ],
    }
