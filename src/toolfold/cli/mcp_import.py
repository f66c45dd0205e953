"""`toolfold mcp import`: the servers other programs have, shown, asked about and taken over."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.approval.visible import visible
from toolfold.cli.app import Invocation, json_option
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
from toolfold.sources.mcp.importing import CLIENTS, Answer, Candidate, Place

if TYPE_CHECKING:
    from toolfold.config import Config

_TRIES = 3


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
@click.option("--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Read this file.")
@click.option("--no-secrets", is_flag=True, help="Write ${NAME} where a secret is written out.")
@project_option
@yes_option
@json_option
@click.pass_obj
def import_servers(
    invocation: Invocation,
    names: tuple[str, ...],
    clients: tuple[str, ...],
    file: Path | None,
    no_secrets: bool,
    in_project: bool,
    yes: bool,
    as_json_: bool,
) -> None:
    """Take over the servers that other programs have: all, or those you name.

    Looks for the files of Claude Desktop, Claude Code, Cursor, VS Code, Windsurf, Codex and Goose, yours and
    those of the project, shows what it found and asks. --yes takes over your own alone: a project's may come
    from a stranger, so those must be named. With --json, and without --yes, nothing is taken over.
    """
    from toolfold.sources.mcp.importing import candidates

    config = invocation.config()
    answers = _answers(config, clients, file)
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
    if as_json_:
        as_json(_as_json(answers, plans, chosen))
    else:
        _tell(chosen, new, target)


def _answers(config: Config, clients: Sequence[str], file: Path | None) -> list[Answer]:
    from toolfold.cli.connect import own_addresses
    from toolfold.sources.mcp.importing import existing, guessed, read, without_gateways

    project, environment = config.paths.project_dir, config.environment
    home = Path(environment.get("HOME") or Path.home())
    if file is not None:
        client = clients[0] if clients else guessed(file)
        places: Sequence[Place] = [Place(client, "user", file.absolute())]  # type: ignore[arg-type]
    else:
        places = existing(home=home, project=project, platform=sys.platform, environment=environment)
        places = [each for each in places if not clients or each.client in clients]
    addresses = own_addresses(config)
    return [without_gateways(read(each, home=home, project=project), addresses) for each in places]


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
        raise click.ClickException("nobody can be asked here. Look at the above, then repeat it with --yes.")
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
