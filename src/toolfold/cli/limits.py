"""The command that limits how much a user or a team may use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import click

from toolfold.cli.access_rules import Account, ChangeAccount
from toolfold.cli.app import Invocation
from toolfold.cli.output import escape_text, print_line
from toolfold.users.directory import METERS, Meter

if TYPE_CHECKING:
    from toolfold.gateway.tokens import TokenStore
    from toolfold.model import Json
    from toolfold.users import Directory, Team, User


def add_limit_command(group: click.Group, kind: str, change_account: ChangeAccount[Account]) -> None:
    """Add `limit` to the commands for users or teams."""

    def limit(invocation: Invocation, name: str, **values: str | None) -> None:
        wanted = {cast(Meter, meter): value for meter, value in values.items() if value is not None}
        if not wanted:
            raise click.UsageError("set at least one limit")

        def change(account: Account) -> Account:
            limits = {**account.limits, **{meter: _parse(value) for meter, value in wanted.items()}}
            return replace(
                account, limits={meter: value for meter, value in limits.items() if value is not None}
            )

        change_account(invocation, name, change)
        print_line(f"changed the limits of the {kind} {escape_text(name)}")

    whose = "all members together use" if kind == "team" else "a user uses"
    command: click.Command = click.command(
        "limit", help=f"Limit how much {whose}. NUMBER is `none` for no limit. Days begin at 0:00 UTC."
    )(click.pass_obj(limit))
    command.params = [
        click.Argument(["name"]),
        *(
            click.Option([f"--{meter.replace('_', '-')}", meter], metavar="NUMBER", help=f"Most {text}.")
            for meter, text in METERS.items()
        ),
    ]
    group.add_command(command)


def _parse(value: str) -> float | None:
    if value == "none":
        return None
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number nor `none`") from None


def describe_limits(user: User, directory: Directory, tokens: TokenStore) -> list[Json]:
    """Return the limits of a user and its teams, and how much of each is used up."""
    from toolfold.users.quotas import team_account, user_account

    if tokens.quotas is None:
        return []
    owners: list[tuple[str, str, User | Team]] = [("user", user_account(user.id), user)]
    owners += [(f"team {each.name}", team_account(each.name), each) for each in directory.list_teams(user.id)]
    return [
        {"of": of, "meter": meter, "used": used, "limit": limit}
        for of, account, each in owners
        for meter, used, limit in tokens.quotas.describe(account, each.limits)
    ]
