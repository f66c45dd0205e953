"""`toolfold team`: manage groups of users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from toolfold.cli.access_rules import add_rule_commands, print_access_changes
from toolfold.cli.app import EXIT_FAILED, Invocation, json_option
from toolfold.cli.limits import add_limit_command, describe_team_limits, print_usage
from toolfold.cli.output import escape_text, print_json, print_line, print_note, print_table
from toolfold.cli.server_commands import confirm, yes_option
from toolfold.cli.user import open_user_tokens, open_users
from toolfold.state.users import Team

if TYPE_CHECKING:
    from toolfold.core.types import Json
    from toolfold.state.users import Directory


@click.group("team")
def command() -> None:
    """Add, show and remove teams; change their members and what the members may use."""


@command.command("add")
@click.argument("name")
@click.pass_obj
def add(invocation: Invocation, name: str) -> None:
    """Add a team without members."""
    open_users(invocation).add_team(name)
    print_line(f"added the team {escape_text(name)}")
    print_note(f"Add members: toolfold team join {name} USER")


@command.command("list")
@json_option
@click.pass_obj
def list_teams(invocation: Invocation, as_json: bool) -> None:
    """List all teams with their members."""
    directory = open_users(invocation).directory()
    teams = [describe_team(directory.teams[name], directory) for name in sorted(directory.teams)]
    if as_json:
        print_json(teams)
        return
    if not teams:
        print_note("there are no teams. Add one with `toolfold team add NAME`.")
        return
    rows = [
        (
            escape_text(each["name"]),
            escape_text(", ".join(each["members"])),
            escape_text(", ".join((*each["allowed"], *(f"not {rule}" for rule in each["denied"])))),
            "shared" if each["share_learned"] else "private",
        )
        for each in teams
    ]
    print_table("Teams", ["team", "members", "rules", "learned messages"], rows)


@command.command("set")
@click.argument("name")
@click.option(
    "--share-learned",
    type=click.Choice(["on", "off"]),
    required=True,
    help="Let the tool search of each member learn from the messages of other members, whose texts "
    "remain unreadable for the others.",
)
@click.pass_obj
def set_options(invocation: Invocation, name: str, share_learned: str) -> None:
    """Change the settings of a team."""
    shares = share_learned == "on"
    open_users(invocation).change_team(name, lambda team: replace(team, share_learned=shares))
    print_line(f"members of {escape_text(name)} {'share' if shares else 'do not share'} learned messages")


@command.command("show")
@click.argument("name")
@json_option
@click.pass_obj
def show(invocation: Invocation, name: str, as_json: bool) -> None:
    """Show a team with its members, rules and limits."""
    tokens = open_user_tokens(invocation)
    directory = tokens.users.directory()
    team = directory.require_team(name)
    found, limits = describe_team(team, directory), describe_team_limits(team, tokens)
    if as_json:
        print_json({**found, "limits": limits})
        return
    print_line(f"team      {escape_text(team.name)}")
    print_line(f"members   {escape_text(', '.join(found['members'])) or 'none'}")
    print_line(f"allowed   {escape_text(', '.join(team.allowed)) or 'no rule'}")
    print_line(f"denied    {escape_text(', '.join(team.denied)) or 'no rule'}")
    print_line(f"learned   {'shared between members' if team.share_learned else 'private to each member'}")
    print_usage(limits)


@command.command("remove")
@click.argument("name")
@yes_option
@click.pass_obj
def remove(invocation: Invocation, name: str, yes: bool) -> int:
    """Remove a team with its rules and limits. Its members are not removed."""
    users = open_users(invocation)
    directory = users.directory()
    found = describe_team(directory.require_team(name), directory)
    print_note(
        f"team {escape_text(name)}, members: {escape_text(', '.join(found['members'][:20])) or 'none'}"
        f"{' …' if len(found['members']) > 20 else ''}"
    )
    print_note("The rules and limits of the team are deleted too:")
    print_access_changes(directory, directory.without_team(name))
    print_lost_limits(directory.teams[name])
    if not confirm("Remove this team?", yes):
        print_line("nothing was removed.")
        return EXIT_FAILED
    users.remove_team(name)
    print_line(f"removed the team {escape_text(name)}")
    return 0


@command.command("join")
@click.argument("name")
@click.argument("user")
@click.pass_obj
def join(invocation: Invocation, name: str, user: str) -> None:
    """Make a user a member of a team."""
    users = open_users(invocation)
    before = users.directory()
    users.join_team(name, user)
    print_access_changes(before, users.directory())
    print_line(f"{escape_text(user)} is a member of the team {escape_text(name)}")


@command.command("leave")
@click.argument("name")
@click.argument("user")
@click.pass_obj
def leave(invocation: Invocation, name: str, user: str) -> None:
    """Remove a user from a team, and show how that changes what the user may use."""
    users = open_users(invocation)
    before = users.directory()
    users.leave_team(name, user)
    print_access_changes(before, users.directory())
    print_lost_limits(before.teams[name])
    print_line(f"{escape_text(user)} is no longer a member of the team {escape_text(name)}")


def print_lost_limits(team: Team) -> None:
    """Print the limits of a team that a user leaves, because they no longer apply to the user."""
    from toolfold.state.users.quotas import format_limit

    if team.limits:
        texts = [format_limit(limit, meter) for meter, limit in team.limits.items()]
        print_note(f"No longer limited by the team: {', '.join(texts)}.")


def change_team(
    invocation: Invocation, name: str, change: Callable[[Team], Team]
) -> tuple[Directory, Directory]:
    """Apply a change to the named team; return all users and teams before and after the change."""
    users = open_users(invocation)
    before = users.directory()
    users.change_team(name, change)
    return before, users.directory()


add_rule_commands(command, "team", change_team)
add_limit_command(command, "team", change_team)


def describe_team(team: Team, directory: Directory) -> Json:
    """Return a team as JSON with the names of its members."""
    members = sorted(directory.users[each].name for each in team.members if each in directory.users)
    return {
        "name": team.name,
        "members": members,
        "share_learned": team.share_learned,
        "allowed": list(team.allowed),
        "denied": list(team.denied),
        "limits": dict(team.limits),
    }
