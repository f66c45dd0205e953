"""`toolfold token`: manage the access tokens of the gateway's clients."""

from __future__ import annotations

import time

import click

from toolfold.cli.access_rules import require_known_rules
from toolfold.cli.app import Invocation, json_option
from toolfold.cli.output import NotFound, escape_text, print_json, print_line, print_note, print_table
from toolfold.cli.user import open_user_tokens


@click.group("token")
def command() -> None:
    """Create, list and revoke access tokens for clients of the gateway."""


@command.command("add")
@click.argument("name")
@click.option(
    "--toolset",
    "toolsets",
    multiple=True,
    metavar="NAME",
    help="Allow only this toolset, server:NAME or tool:NAME. Repeatable.",
)
@click.option(
    "--deny",
    "denied",
    multiple=True,
    metavar="NAME",
    help="Refuse this toolset, server:NAME or tool:NAME, even if a rule allows it. Repeatable.",
)
@click.option(
    "--models/--no-models",
    "may_use_keys",
    default=None,
    help="Allow the client to use your configured keys of model providers, through the model proxy."
    " Allowed by default, unless --toolset limits the client.",
)
@click.option(
    "--user",
    metavar="NAME",
    help="The user that the token belongs to. The token is refused while the user is disabled.",
)
@click.pass_obj
def add(
    invocation: Invocation,
    name: str,
    toolsets: tuple[str, ...],
    denied: tuple[str, ...],
    may_use_keys: bool | None,
    user: str | None,
) -> None:
    """Create a token for a client. It is shown only once."""
    if rules := (*toolsets, *denied):
        require_known_rules(invocation, rules)
    tokens = open_user_tokens(invocation)
    is_first = not tokens.are_in_use()
    user_id = "" if user is None else tokens.users.directory().require_user(user).id
    token = tokens.add(name, toolsets or None, may_use_keys=may_use_keys, user_id=user_id, denied=denied)
    print_note(f"Token for {escape_text(name)}. Store it now; it cannot be shown again:")
    print_line(token)
    print_note(f"Clients send the token as `Authorization: Bearer {token[:6]}…`.")
    if is_first:
        print_note(
            "From now on, every client of `toolfold serve` needs a token, unless"
            " gateway.allow_anonymous is set."
        )


@command.command("list")
@json_option
@click.pass_obj
def list_tokens(invocation: Invocation, as_json: bool) -> None:
    """List the clients that have a token."""
    tokens = open_user_tokens(invocation)
    clients, users = tokens.list_clients(), tokens.users.directory().users
    if as_json:
        print_json(
            [
                {
                    "name": each.name,
                    "toolsets": each.toolsets,
                    "created": each.created,
                    "denied": each.denied,
                    "models": each.may_use_keys,
                    "user": users[each.user_id].name if each.user_id in users else None,
                }
                for each in clients
            ]
        )
        return
    if not clients:
        print_note("no tokens exist. Create one with `toolfold token add NAME`.")
        return
    rows = [
        (
            escape_text(each.name),
            escape_text(", ".join(each.toolsets)) if each.toolsets else "all except local tools",
            "yes" if each.may_use_keys else "with its own key",
            escape_text(users[each.user_id].name) if each.user_id in users else "",
            time.strftime("%Y-%m-%d", time.localtime(each.created)),
        )
        for each in clients
    ]
    print_table("Clients of the gateway", ["client", "toolsets", "models", "user", "created"], rows)


@command.command("revoke")
@click.argument("name")
@click.pass_obj
def revoke(invocation: Invocation, name: str) -> None:
    """Revoke a client's token. Its next request is refused.

    Its scheduled jobs are removed, and so is what was allowed to this client only.
    """
    tokens = open_user_tokens(invocation)
    if not tokens.revoke(name):
        raise NotFound(f"there is no token for {name!r}. `toolfold token list` lists all clients.")
    print_line(f"the token of {escape_text(name)} is revoked")
    if not tokens.list_clients():
        print_note("That was the last token. Clients still need one, unless gateway.allow_anonymous is set.")
