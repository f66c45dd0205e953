"""`toolfold team`: manage groups of users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from toolfold.cli.access_rules import add_rule_commands
from toolfold.cli.app import Invocation, json_option
from toolfold.cli.limits import add_limit_command
from toolfold.cli.output import escape_text, print_json, print_line, print_note, print_table
from toolfold.cli.user import open_users
from toolfold.users import Team

if TYPE_CHECKING:
    from toolfold.model import Json
    from toolfold.users import Directory


@click.group("team")
def command() -> None:
    """Add, list and remove teams; change their members and what these may use."""


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
    help="Use what tool search learns from one member for all members. They never see each other's text.",
)
@click.pass_obj
def set_options(invocation: Invocation, name: str, share_learned: str) -> None:
    """Change the settings of a team."""
    shares = share_learned == "on"
    open_users(invocation).change_team(name, lambda team: replace(team, share_learned=shares))
    print_line(f"members of {escape_text(name)} {'share' if shares else 'do not share'} learned messages")


@command.command("remove")
@click.argument("name")
@click.pass_obj
def remove(invocation: Invocation, name: str) -> None:
    """Remove a team. Its members stay users."""
    open_users(invocation).remove_team(name)
    print_line(f"removed the team {escape_text(name)}")


@command.command("join")
@click.argument("name")
@click.argument("user")
@click.pass_obj
def join(invocation: Invocation, name: str, user: str) -> None:
    """Make a user a member of a team."""
    open_users(invocation).join_team(name, user)
    print_line(f"{escape_text(user)} is a member of the team {escape_text(name)}")


@command.command("leave")
@click.argument("name")
@click.argument("user")
@click.pass_obj
def leave(invocation: Invocation, name: str, user: str) -> None:
    """Remove a user from a team."""
    open_users(invocation).leave_team(name, user)
    print_line(f"{escape_text(user)} is no longer a member of the team {escape_text(name)}")


def change_team(invocation: Invocation, name: str, change: Callable[[Team], Team]) -> None:
    """Apply a change to the team with the given name."""
    open_users(invocation).change_team(name, change)


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
