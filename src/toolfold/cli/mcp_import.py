"""`toolfold mcp import`: import the MCP servers of other programs after confirmation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.allow_tools import allow_destructive_option, confirm_destructive, offer_to_allow
from toolfold.cli.app import Invocation, json_option
from toolfold.cli.connect import home_directory
from toolfold.cli.output import (
    NotFound,
    escape_text,
    format_count,
    print_json,
    print_line,
    print_note,
    print_table,
    print_warning,
)
from toolfold.cli.server_commands import (
    changing_settings,
    print_server,
    project_option,
    read_new_listings,
    restrict_to_owner,
    server_key,
    settings_file,
    yes_option,
)
from toolfold.cli.server_names import derive_name
from toolfold.core.errors import ConfigError
from toolfold.mcp.importing import CLIENTS, ClientConfigFile, ImportCandidate, ImportResult
from toolfold.safety.approval.safe_text import make_visible

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.mcp.importing.merging import SettingDifference

_MAX_ATTEMPTS = 3
_STDIN = Path("-")


@dataclass(frozen=True, slots=True)
class _ImportPlan:
    """Plan for importing one server: the settings to write."""

    candidate: ImportCandidate
    settings: dict[str, Any]
    secrets: tuple[str, ...]
    """Keys whose values contain a secret in plain text."""
    variables: tuple[str, ...]
    """Environment variables that the user must set because their secrets were not imported."""


@click.command("import", short_help="Import the MCP servers of other programs.")
@click.argument("names", nargs=-1)
@click.option(
    "--from",
    "clients",
    multiple=True,
    type=click.Choice(list(CLIENTS)),
    help="Import only from this program. Repeatable.",
)
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Read this file, or - for JSON on standard input.",
)
@click.option(
    "--name", help="With --file: name of the server, if the file describes one server without a name."
)
@click.option(
    "--no-secrets",
    is_flag=True,
    help="Replace plain-text secrets with references to environment variables (${NAME}).",
)
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
    as_json: bool,
) -> None:
    """Import the MCP servers of other programs: all of them, or those you name.

    Reads the settings of Claude Desktop, Claude Code, Cursor, VS Code, Windsurf, Codex, Goose and others,
    both yours and the project's, shows the servers and asks which to import. --yes imports only your own
    servers: a project's may come from someone else, so name those you want. With --json but without --yes,
    nothing is imported.

    --file reads a settings file or JSON as printed in READMEs: {"mcpServers": …}, {"servers": …},
    {"mcp": …}, "name": {"command": …}, or a single {"command": …} that --name names.
    """
    from toolfold.mcp.importing import build_candidates

    if name is not None and file is None:
        raise click.UsageError("--name can be used only with --file")
    config = invocation.load_config()
    answers = [_read_file_option(config, clients, file, name)] if file else _read_clients(config, clients)
    if file and answers[0].problem and not answers[0].servers:
        raise ConfigError(answers[0].problem, file=str(file))
    found = build_candidates((each for answer in answers for each in answer.servers), config.mcp.servers)
    plans = [_make_plan(each, no_secrets or in_project) for each in _filter_by_name(found, names, answers)]
    new = [each for each in plans if not each.candidate.is_known]
    if not as_json:
        _print_plans(answers, plans)
    chosen = _select_unattended(new, names, file) if yes else [] if as_json else _prompt_for_plans(new)
    if in_project:
        chosen = _drop_plans_with_secrets(chosen)
    ask = not yes and sys.stdin.isatty()
    chosen = _merge_plans(chosen, config, ask=ask, quiet=as_json)
    target = settings_file(invocation, in_project)
    if chosen:
        allow = allow_destructive or (ask and confirm_destructive())
        with changing_settings(invocation, target):
            for each in chosen:
                _write_plan(each, target, config, in_project)
        imported = [each.candidate.name for each in chosen]
        read_new_listings(invocation, imported, quiet=as_json)
        offer_to_allow(invocation, imported, allow=allow, quiet=as_json)
    if as_json:
        print_json(_result_as_json(answers, plans, chosen))
    else:
        _print_result(chosen, new, target)


def _read_clients(config: Config, clients: Sequence[str]) -> list[ImportResult]:
    from toolfold.cli.connect import gateway_urls
    from toolfold.mcp.importing import find_config_files, read_client_file, reject_gateways

    home, project = home_directory(config), config.paths.project_dir
    places = find_config_files(
        home=home, project=project, platform=sys.platform, environment=config.environment
    )
    addresses = gateway_urls(config)
    return [
        reject_gateways(read_client_file(each, home=home, project=project), addresses)
        for each in places
        if not clients or each.client_name in clients
    ]


def _read_file_option(config: Config, clients: Sequence[str], file: Path, name: str | None) -> ImportResult:
    """Read the servers in the --file option: a program's settings file, or a JSON snippet."""
    from toolfold.cli.connect import gateway_urls
    from toolfold.config.yaml_document import read_text
    from toolfold.mcp.importing import guess_client, read_client_file, read_snippet, reject_gateways

    home, project = home_directory(config), config.paths.project_dir
    client = clients[0] if clients else guess_client(file)
    place = ClientConfigFile(client, "user", file if file == _STDIN else file.absolute(), is_named=True)  # type: ignore[arg-type]
    answer = ImportResult(place) if file == _STDIN else read_client_file(place, home=home, project=project)
    is_json = file.suffix not in (".toml", ".yaml", ".yml")
    if is_json and not (answer.servers or answer.rejected or clients):
        try:
            text = _read_stdin() if file == _STDIN else read_text(file)
        except ConfigError as error:
            return ImportResult(place, problem=error.problem)
        answer = read_snippet(
            text,
            place,
            home=home,
            project=project,
            name_entry=lambda words: name or derive_name(words),
        )
    return reject_gateways(answer, gateway_urls(config))


def _read_stdin() -> str:
    """Return the text of standard input. Raises ConfigError if it is too long."""
    from toolfold.config.yaml_document import MAX_CONFIG_BYTES

    content = sys.stdin.buffer.read(MAX_CONFIG_BYTES + 1)
    if len(content) > MAX_CONFIG_BYTES:
        raise ConfigError(f"standard input is longer than {MAX_CONFIG_BYTES:,} bytes")
    return content.decode("utf-8", "replace")


def _filter_by_name(
    found: Sequence[ImportCandidate], names: Sequence[str], answers: Sequence[ImportResult]
) -> list[ImportCandidate]:
    unusable = {each.name: each.reason for answer in answers for each in answer.rejected}
    for name in names:
        if not any(name in (each.name, each.server.name) for each in found):
            if name in unusable:
                raise click.ClickException(
                    f"{make_visible(name)} cannot be imported: {make_visible(unusable[name])}"
                )
            raise NotFound(
                f"no server {name!r} was found in other programs. To list all: toolfold mcp import --json"
            )
    return [each for each in found if not names or each.name in names or each.server.name in names]


def _make_plan(candidate: ImportCandidate, without_secrets: bool) -> _ImportPlan:
    from toolfold.mcp.importing import find_literal_secrets, replace_secrets

    settings, variables = dict(candidate.server.settings), tuple[str, ...]()
    if without_secrets:
        settings, variables = replace_secrets(candidate.name, settings)
    return _ImportPlan(candidate, settings, find_literal_secrets(settings), variables)


def _select_unattended(
    new: Sequence[_ImportPlan], names: Sequence[str], file: Path | None
) -> list[_ImportPlan]:
    """Return the servers that --yes imports; a project's server only if it is named explicitly."""
    mine = [
        each
        for each in new
        if file or each.candidate.server.source.scope == "user" or each.candidate.name in names
    ]
    if len(mine) < len(new):
        print_note(
            f"{format_count(len(new) - len(mine), 'server')} of the project skipped: name"
            " those you want to import"
        )
    return mine


def _drop_plans_with_secrets(chosen: Sequence[_ImportPlan]) -> list[_ImportPlan]:
    """Leave out servers whose settings contain a secret, because other people can read a project's file."""
    for each in chosen:
        if each.secrets:
            print_warning(
                f"{each.candidate.name} is skipped: {', '.join(each.secrets)} contains a secret in plain text"
            )
    return [each for each in chosen if not each.secrets]


def _prompt_for_plans(new: Sequence[_ImportPlan]) -> list[_ImportPlan]:
    """Ask the user for the numbers of the servers to import, and return the plans for these servers."""
    if not new:
        return []
    if not sys.stdin.isatty():
        raise click.ClickException(
            "Confirmation needs a terminal. Check the list above, then repeat with --yes."
        )
    for _ in range(_MAX_ATTEMPTS):
        answer_text = click.prompt(
            "Which servers to import? all, none, or numbers such as 1,3", default="all", err=True
        )
        if (chosen := _parse_selection(answer_text, new)) is not None:
            return chosen
        print_note("Please answer with all, none or numbers from the list above.")
    return []


def _parse_selection(answer_text: str, new: Sequence[_ImportPlan]) -> list[_ImportPlan] | None:
    word = answer_text.strip().lower()
    if word in ("all", "none"):
        return list(new) if word == "all" else []
    numbers = word.replace(",", " ").split()
    if not all(each.isdecimal() and 0 < int(each) <= len(new) for each in numbers):
        return None
    return [new[number - 1] for number in sorted({int(each) for each in numbers})]


def _merge_plans(
    chosen: Sequence[_ImportPlan], config: Config, *, ask: bool, quiet: bool
) -> list[_ImportPlan]:
    """Merge entries for the same server, which programs may start in other directories or environments.

    An entry for a server that is configured already is left out. Without `ask`, entries stay separate if both
    have a value for the same setting, or if one of a project would add values.
    """
    from toolfold.cli.server_commands import dump_settings
    from toolfold.config.servers_settings import parse_server_settings
    from toolfold.mcp.importing import compare_servers, find_literal_secrets, merge_settings, server_target

    kept: dict[str, _ImportPlan] = {}
    for plan in chosen:
        name, target = plan.candidate.name, server_target(parse_server_settings(plan.settings))
        same = {
            key: dump_settings(each)
            for key, each in config.mcp.servers.items()
            if server_target(each) == target
        }
        same |= {
            key: each.settings
            for key, each in kept.items()
            if server_target(parse_server_settings(each.settings)) == target
        }
        if not same:
            kept[name] = plan
            continue
        compared = {key: compare_servers(settings, plan.settings) for key, settings in same.items()}
        base = min(
            same, key=lambda key: (sum(each.is_conflict for each in compared[key]), len(compared[key]))
        )
        differences, is_planned = compared[base], base in kept
        may_add = is_planned and plan.candidate.server.source.scope == "user"
        is_harmless = not any(each.is_conflict or (each.second and not may_add) for each in differences)
        if not quiet:
            _print_differences(base, name, differences)
        question = f"Import one server, {base}, for both?" if is_planned else f"Leave {name} out?"
        if not (click.confirm(question, default=is_harmless, err=True) if ask else is_harmless):
            kept[name] = plan
            continue
        if not quiet:
            print_note(f"{escape_text(name)} is not imported separately.")
        if is_planned:
            merged = merge_settings(same[base], plan.settings)
            variables = tuple(dict.fromkeys((*kept[base].variables, *plan.variables)))
            kept[base] = replace(
                kept[base], settings=merged, secrets=find_literal_secrets(merged), variables=variables
            )
    return list(kept.values())


def _print_differences(first: str, second: str, differences: Sequence[SettingDifference]) -> None:
    """Print what two entries for the same server do not have in common."""
    difference = " with different settings:" if differences else "."
    print_note(f"{escape_text(first)} and {escape_text(second)} are the same server{difference}")
    for each in differences:
        values = (make_visible(value) or "(not set)" for value in (each.first, each.second))
        print_note(escape_text(f"  {make_visible(each.key)}: {' / '.join(values)}"))


def _write_plan(plan: _ImportPlan, file: Path, config: Config, in_project: bool) -> None:
    from toolfold.config import set_value
    from toolfold.config.record import SettingsRecord

    settings = dict(plan.settings)
    if in_project and settings.get("cwd") == str(config.paths.project_dir):
        settings["cwd"] = "."  # the project's path differs on other machines
    if plan.secrets and not in_project:
        restrict_to_owner(file)
    record = SettingsRecord(config.paths.state_dir)
    set_value(file, server_key(plan.candidate.name), settings, record=record)


def _print_plans(answers: Sequence[ImportResult], plans: Sequence[_ImportPlan]) -> None:
    for answer in answers:
        if answer.problem:
            print_warning(f"{answer.source.file}: {make_visible(answer.problem)}")
        for remark in answer.remarks:
            print_note(f"{escape_text(str(answer.source.file))}: {escape_text(make_visible(remark))}")
    unusable = [each for answer in answers for each in answer.rejected]
    if unusable:
        print_table(
            "servers that cannot be imported",
            ("server", "from", "reason"),
            (
                (
                    make_visible(each.name),
                    _source_title(each.source),
                    make_visible(each.reason),
                )
                for each in unusable
            ),
        )
    known = [each.candidate.name for each in plans if each.candidate.is_known]
    if known:
        print_line(f"already configured: {escape_text(', '.join(known))}")
    new = [each for each in plans if not each.candidate.is_known]
    if not new:
        print_line(
            f"nothing new to import (read {format_count(len(answers), 'settings file')} of other programs)."
        )
        if not answers:
            titles = ", ".join(each.title for each in CLIENTS.values())
            print_line(
                f"searched for settings of: {titles}. Use `--file PATH` for another file, or"
                " `toolfold mcp add`."
            )
        return
    for number, each in enumerate(new, 1):
        heading = f"{number}  {each.candidate.name}, from {_client_titles(each.candidate)}"
        print_server(heading, each.settings, _plan_remarks(each))


def _plan_remarks(plan: _ImportPlan) -> Sequence[str]:
    found = plan.candidate.server
    remarks = list(found.remarks)
    if found.name != plan.candidate.name:
        remarks.insert(0, f"its name in the program is {found.name!r}")
    if plan.variables:
        remarks.append(f"its secrets are not imported: set {', '.join(plan.variables)}")
    if plan.secrets:
        remarks.append(
            f"{', '.join(plan.secrets)} contains a secret in plain text (use --no-secrets to leave it out)"
        )
    return remarks


def _client_titles(candidate: ImportCandidate) -> str:
    places = (candidate.server.source, *candidate.duplicate_sources)
    return ", ".join(dict.fromkeys(map(_source_title, places)))


def _source_title(source: ClientConfigFile) -> str:
    """Return the program whose settings a server comes from, or the file that the user has named."""
    if source.file == _STDIN:
        return "standard input"
    if source.is_named:
        return make_visible(source.file.name)
    return CLIENTS[source.client_name].title + (" (project)" if source.scope == "project" else "")


def _print_result(chosen: Sequence[_ImportPlan], new: Sequence[_ImportPlan], file: Path) -> None:
    if not chosen:
        if new:
            print_line("nothing was imported.")
        return
    names = ", ".join(each.candidate.name for each in chosen)
    print_line(f"{format_count(len(chosen), 'server')} imported into {escape_text(str(file))}: {names}")
    print_line("next: let a program use them with `toolfold connect PROGRAM`")


def _result_as_json(
    answers: Sequence[ImportResult], plans: Sequence[_ImportPlan], chosen: Sequence[_ImportPlan]
) -> dict[str, Any]:
    from toolfold.mcp.importing import redact_settings

    imported = {each.candidate.name for each in chosen}
    return {
        "found": [
            {
                "name": each.candidate.name,
                "called": each.candidate.server.name,
                "client": each.candidate.server.source.client_name,
                "scope": each.candidate.server.source.scope,
                "file": str(each.candidate.server.source.file),
                "settings": redact_settings(each.settings),
                "secrets": list(each.secrets),
                "remarks": list(_plan_remarks(each)),
                "known": each.candidate.is_known,
                "imported": each.candidate.name in imported,
            }
            for each in plans
        ],
        "unusable": [
            {
                "name": each.name,
                "client": each.source.client_name,
                "file": str(each.source.file),
                "why": each.reason,
            }
            for answer in answers
            for each in answer.rejected
        ],
        "problems": [
            {"file": str(answer.source.file), "problem": answer.problem}
            for answer in answers
            if answer.problem
        ],
    }
