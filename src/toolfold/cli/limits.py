"""The command `limit`, which limits the usage of a user or a team."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import click

from toolfold.cli.access_rules import Account, ChangeAccount
from toolfold.cli.app import Invocation
from toolfold.cli.output import escape_text, print_line, print_note
from toolfold.state.users.directory import METERS, Meter

if TYPE_CHECKING:
    from toolfold.core.types import Json
    from toolfold.serving.gateway.client_tokens import TokenStore
    from toolfold.state.users import Directory, Team, User
    from toolfold.state.users.quotas import Quotas


UNKNOWN_PRICES = (
    "a model without a known price counts 12 times the most expensive listed model of its provider;"
    " set its price in proxy.prices"
)


def add_limit_command(group: click.Group, kind: str, change_account: ChangeAccount[Account]) -> None:
    """Add `limit` to the commands for users or teams."""

    def limit(invocation: Invocation, name: str, **values: str | None) -> None:
        wanted = parse_limits(values)
        if not wanted:
            raise click.UsageError("set at least one limit")
        change_account(invocation, name, lambda account: with_limits(account, wanted))
        print_line(f"changed the limits of the {kind} {escape_text(name)}")
        print_zero_limits(wanted)

    whose = "all members together use" if kind == "team" else "a user uses"
    command: click.Command = click.command(
        "limit", help=f"Limit how much {whose}. Use `none` as NUMBER for no limit. Days begin at 0:00 UTC."
    )(click.pass_obj(limit))
    command.params = [click.Argument(["name"]), *make_limit_options()]
    group.add_command(command)


def make_limit_options() -> list[click.Option]:
    """Return one command-line option for each quantity that can be limited."""
    return [
        click.Option([f"--{meter.replace('_', '-')}", meter], metavar="NUMBER", help=f"Most {text}.")
        for meter, text in METERS.items()
    ]


def parse_limits(values: Mapping[str, str | None]) -> dict[Meter, float | None]:
    """Return the limits given as options; None for a limit to remove. Raises BadParameter."""
    return {cast(Meter, meter): _parse(value) for meter, value in values.items() if value is not None}


def print_zero_limits(wanted: Mapping[Meter, float | None]) -> None:
    """Print which of the new limits are 0; such a limit refuses everything that it counts."""
    zero = [f"--{meter.replace('_', '-')}" for meter, value in wanted.items() if value == 0]
    if zero:
        print_note(
            f"A limit of 0 refuses everything that it counts ({', '.join(zero)}). For no limit, write `none`."
        )


def with_limits(account: Account, wanted: Mapping[Meter, float | None]) -> Account:
    """Return a copy of a user or team with changed limits."""
    limits = {**account.limits, **wanted}
    return replace(account, limits={meter: value for meter, value in limits.items() if value is not None})


def _parse(value: str) -> float | None:
    if value == "none":
        return None
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number nor `none`") from None


def describe_limits(user: User, directory: Directory, tokens: TokenStore) -> list[Json]:
    """Return the limits of a user and its teams, and how much of each is used up."""
    from toolfold.state.users.quotas import team_account, user_account

    if tokens.quotas is None:
        return []
    owners: list[tuple[str, str, User | Team]] = [("user", user_account(user.id), user)]
    owners += [(f"team {each.name}", team_account(each.name), each) for each in directory.list_teams(user.id)]
    return _describe_usage(owners, tokens.quotas)


def describe_team_limits(team: Team, tokens: TokenStore) -> list[Json]:
    """Return the limits of a team, and how much of each its members have used up."""
    from toolfold.state.users.quotas import team_account

    if tokens.quotas is None:
        return []
    return _describe_usage([(f"team {team.name}", team_account(team.name), team)], tokens.quotas)


def _describe_usage(owners: list[tuple[str, str, User | Team]], quotas: Quotas) -> list[Json]:
    return [
        {"of": of, "meter": meter, "used": used, "limit": limit}
        for of, account, each in owners
        for meter, used, limit in quotas.describe(account, each.limits)
    ]


def print_usage(limits: Sequence[Json]) -> None:
    """Print one line for each limit of a user or team, with the amount that is used up."""
    from toolfold.state.users.quotas import format_amount

    for each in limits:
        amounts = f"{format_amount(each['used'])} of {format_amount(each['limit'])}"
        text = f"{amounts} {METERS[each['meter']]} ({each['of']})"
        print_line(f"used      {escape_text(text)}")
    if any(each["meter"] == "cost_per_day" for each in limits):
        print_line(f"prices    {UNKNOWN_PRICES}")
