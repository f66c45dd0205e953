"""`toolfold user`: manage the users of the gateway."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.access_rules import add_rule_commands
from toolfold.cli.app import EXIT_FAILED, Invocation, json_option
from toolfold.cli.limits import (
    add_limit_command,
    describe_limits,
    make_limit_options,
    parse_limits,
    print_usage,
    print_zero_limits,
    with_limits,
)
from toolfold.cli.output import (
    NotFound,
    escape_text,
    print_json,
    print_line,
    print_note,
    print_table,
    print_warning,
)
from toolfold.cli.server_commands import confirm, yes_option
from toolfold.cli.shared_database import use_database
from toolfold.cli.unused_files import warn_of_unused_files
from toolfold.core.errors import closest_names, did_you_mean
from toolfold.state.users import User
from toolfold.state.users.directory import KEY_RULE, MODEL_RULE

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.core.types import Json
    from toolfold.serving.gateway.client_tokens import GatewayClient, TokenStore
    from toolfold.serving.gateway.user_access import AccessExplanation
    from toolfold.state.users import Directory, UserStore


@click.group("user")
def command() -> None:
    """Add, list, disable and remove users of the gateway, and set what they may use."""


@command.command("add")
@click.argument("name")
@click.option("--issuer", default="", metavar="URL", help="URL of the user's identity provider.")
@click.option("--subject", default="", metavar="ID", help="The user's identifier at the identity provider.")
@click.option("--admin", "is_admin", is_flag=True, help="Make the user an administrator.")
@click.pass_obj
def add(invocation: Invocation, name: str, issuer: str, subject: str, is_admin: bool) -> None:
    """Add a user. Create tokens for it with `toolfold token add CLIENT --user NAME`."""
    open_users(invocation).add_user(name, issuer=issuer, subject=subject, is_admin=is_admin)
    print_line(f"added the user {escape_text(name)}")
    _warn_unknown_issuer(invocation, name, issuer)
    if not subject:
        print_note(f"Create a token for a client of this user: toolfold token add CLIENT --user {name}")


@command.command("list")
@json_option
@click.pass_obj
def list_users(invocation: Invocation, as_json: bool) -> None:
    """List all users."""
    tokens = open_user_tokens(invocation)
    directory = tokens.users.directory()
    users = sorted(directory.users.values(), key=lambda each: each.name)
    if as_json:
        print_json([describe_user(each, directory, tokens.list_clients()) for each in users])
        return
    if not users:
        print_note("there are no users. Add one with `toolfold user add NAME`.")
        warn_of_unused_files(invocation.load_config(quiet=True))
        return
    rows = [
        (
            escape_text(each.name),
            escape_text(", ".join(team.name for team in directory.list_teams(each.id))),
            describe_state(each),
            time.strftime("%Y-%m-%d", time.localtime(each.created)),
        )
        for each in users
    ]
    print_table("Users", ["user", "teams", "state", "created"], rows)


@command.command("show")
@click.argument("name")
@json_option
@click.pass_obj
def show(invocation: Invocation, name: str, as_json: bool) -> None:
    """Show a user with its teams and tokens."""
    tokens = open_user_tokens(invocation)
    directory = tokens.users.directory()
    user = directory.require_user(name)
    found = describe_user(user, directory, tokens.list_clients())
    limits = describe_limits(user, directory, tokens)
    if as_json:
        print_json({**found, "limits": limits})
        return
    print_line(f"user      {escape_text(user.name)} ({describe_state(user)})")
    if user.subject:
        print_line(f"identity  {escape_text(user.subject)} of {escape_text(user.issuer)}")
    limit = directory.find_limit(user.id)
    everything = "everything; local tools only with tokens that name them"
    allowed = everything if limit.enabled is None else ", ".join(limit.enabled) or "nothing"
    print_line(f"may use   {escape_text(allowed)}")
    if limit.disabled:
        print_line(f"except    {escape_text(', '.join(limit.disabled))}")
    _print_model_rules(directory, user)
    print_line(f"teams     {escape_text(', '.join(found['teams'])) or 'none'}")
    print_line(f"tokens    {escape_text(', '.join(found['tokens'])) or 'none'}")
    print_usage(limits)


def _print_model_rules(directory: Directory, user: User) -> None:
    """Print the rules on which models and model provider keys a user may use; nothing without rules."""
    for label, kind in (("models", MODEL_RULE), ("keys", KEY_RULE)):
        rules = directory.find_model_rules(user.id, kind)
        if rules.enabled is not None or rules.disabled:
            allowed = "all" if rules.enabled is None else ", ".join(rules.enabled) or "none"
            denied = f", except {', '.join(rules.disabled)}" if rules.disabled else ""
            print_line(f"{label:<10}{escape_text(allowed + denied)}")


@command.command("disable")
@click.argument("name")
@click.pass_obj
def disable(invocation: Invocation, name: str) -> None:
    """Refuse all tokens and logins of a user, until the user is enabled again."""
    open_users(invocation).set_disabled(name, True)
    print_line(f"the user {escape_text(name)} is disabled")


@command.command("enable")
@click.argument("name")
@click.pass_obj
def enable(invocation: Invocation, name: str) -> None:
    """Accept the tokens and logins of a disabled user again."""
    open_users(invocation).set_disabled(name, False)
    print_line(f"the user {escape_text(name)} is enabled")


@command.command("remove")
@click.argument("name")
@yes_option
@click.pass_obj
def remove(invocation: Invocation, name: str, yes: bool) -> int:
    """Remove a user with its tokens, credentials, scheduled jobs and learned messages."""
    tokens = open_user_tokens(invocation)
    directory = tokens.users.directory()
    found = describe_user(directory.require_user(name), directory, tokens.list_clients())
    print_note(
        f"user {escape_text(name)}, teams: {escape_text(', '.join(found['teams'])) or 'none'}, tokens:"
        f" {escape_text(', '.join(found['tokens'])) or 'none'}"
    )
    print_note("The tokens, credentials, scheduled jobs and learned messages of the user are deleted too.")
    if not confirm("Remove this user?", yes):
        print_line("nothing was removed.")
        return EXIT_FAILED
    tokens.users.remove_user(name)
    print_line(f"removed the user {escape_text(name)}, its tokens, credentials and learned messages")
    return 0


def set_options(
    invocation: Invocation,
    name: str,
    is_admin: bool | None,
    is_disabled: bool | None,
    issuer: str | None,
    subject: str | None,
    **limits: str | None,
) -> None:
    wanted = parse_limits(limits)
    given = {"is_admin": is_admin, "is_disabled": is_disabled, "issuer": issuer, "subject": subject}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if not changes and not wanted:
        raise click.UsageError("nothing to change: give at least one option")
    change_user(invocation, name, lambda user: with_limits(replace(user, **changes), wanted))
    user = open_users(invocation).directory().require_user(name)
    print_line(f"changed the user {escape_text(name)} ({describe_state(user)})")
    print_zero_limits(wanted)
    _warn_unknown_issuer(invocation, name, issuer or "")


def _warn_unknown_issuer(invocation: Invocation, name: str, issuer: str) -> None:
    """Print a warning if the settings do not accept logins at the identity provider of a user."""
    config = invocation.load_config(quiet=True)
    known = {config.gateway.oauth.issuer: "gateway.oauth", config.dashboard.oidc.issuer: "dashboard.oidc"}
    if not issuer or issuer in known:
        return
    near = did_you_mean(closest_names(issuer, [each for each in known if each]))
    print_warning(
        f"No settings name the identity provider {issuer}, so {name} cannot log in yet.{near} The URL must be"
        " the same in every character. Configure it: gateway.oauth.issuer and gateway.oauth.resource for"
        " clients of the gateway, dashboard.oidc for the dashboard (docs/logins.md)."
    )


_set_command: click.Command = click.command(
    "set",
    help="Change whether a user is an administrator or disabled, the user's identity, or the "
    "user's limits. Options that are not given stay as they are. Use `none` as NUMBER "
    "for no limit.",
)(click.pass_obj(set_options))
_set_command.params = [
    click.Argument(["name"]),
    click.Option(["--admin/--no-admin", "is_admin"], default=None, help="Make the user an administrator."),
    click.Option(
        ["--disabled/--enabled", "is_disabled"], default=None, help="Refuse the user's tokens and logins."
    ),
    click.Option(["--issuer"], metavar="URL", help="URL of the user's identity provider."),
    click.Option(
        ["--subject"],
        metavar="ID",
        help="The user's identifier at the identity provider. To remove the identity, give"
        " --issuer '' and --subject ''.",
    ),
    *make_limit_options(),
]
command.add_command(_set_command)


@command.command("explain")
@click.argument("name")
@click.argument("tool")
@json_option
@click.pass_obj
def explain(invocation: Invocation, name: str, tool: str, as_json: bool) -> None:
    """Show whether a user may use a tool, and which rules decide that.

    TOOL may also be model:NAME, a model of the model proxy, or key:PROVIDER.
    """
    if tool.startswith("server:"):
        raise click.UsageError(
            f"{tool!r} names all tools of a server; name one of them: `toolfold tools list` lists all tools"
        )
    tool = tool.removeprefix("tool:")
    from toolfold.serving.gateway.client_tokens import LOGIN_CLIENT_PREFIX

    tokens = open_user_tokens(invocation)
    user = tokens.users.directory().require_user(name)
    if tool.startswith((MODEL_RULE, KEY_RULE)):
        answer = _explain_model(tokens, user, tool)
    else:
        answer = _explain_tool(invocation, tokens, user, tool)
    if as_json:
        print_json({"user": name, "granted": answer.is_granted, **asdict(answer)})
        return
    verdict = "may use" if answer.is_granted else "may not use"
    print_line(f"{escape_text(name)} {verdict} {escape_text(answer.tool)}")
    for reason in answer.refused_by or answer.allowed_by or ("no rule limits this user",):
        print_line(f"  {escape_text(reason)}")
    for token, reason in answer.tokens:
        how = "a login" if token == LOGIN_CLIENT_PREFIX + name else f"the token {token}"
        print_line(f"  not with {escape_text(how)}: {escape_text(reason)}")


def _explain_tool(invocation: Invocation, tokens: TokenStore, user: User, tool: str) -> AccessExplanation:
    """Explain whether a user may use a tool. Raises NotFound if the tool does not exist."""
    from toolfold.cli.missing_tools import explain_missing_tool
    from toolfold.serving.gateway.user_access import AccessExplanation, explain_access

    with invocation.open_runtime(behind_gateway=True) as runtime:
        toolsets = runtime.toolsets()
        found = toolsets.snapshot.named(tool)
        if not found:
            if reason := explain_missing_tool(runtime, tool):
                return AccessExplanation(tool, (), (reason,))
            near = did_you_mean(closest_names(tool, toolsets.snapshot))
            rules = _describe_stored_rules(tokens.users.directory(), user, f"tool:{tool}")
            raise NotFound(f"there is no tool {tool!r}.{near}{rules} `toolfold tools list` lists all tools.")
        configured = frozenset(toolsets.snapshot) - runtime.switched_off()
        clients = [*tokens.list_clients(), *_describe_login(user, runtime.config)]
        directory = tokens.users.directory()
        return explain_access(found[0].name, user, directory, toolsets, configured, clients)


def _describe_stored_rules(directory: Directory, user: User, rule: str) -> str:
    """Return a sentence about stored rules for a tool that does not exist; empty if there are none."""
    levels = directory.list_levels(user.id)
    found = [f"{level} allows {rule}" for level, each in levels if rule in each.allowed]
    found += [f"{level} denies {rule}" for level, each in levels if rule in each.denied]
    return (
        f" A rule is stored for it ({', '.join(found)}), which applies as soon as it exists." if found else ""
    )


def _explain_model(tokens: TokenStore, user: User, rule: str) -> AccessExplanation:
    """Explain whether a user may use a model, or the configured key of a model provider."""
    from toolfold.serving.gateway.user_access import AccessExplanation

    directory = tokens.users.directory()
    kind = MODEL_RULE if rule.startswith(MODEL_RULE) else KEY_RULE
    if directory.find_active(user.id) is None:
        return AccessExplanation(rule, (), (f"the user {user.name} is disabled",))
    reason = directory.explain_rules(user.id, kind, rule.removeprefix(kind))
    limit = directory.find_model_rules(user.id, kind)
    allowed = (f"allowed are {', '.join(limit.enabled)}",) if limit.enabled and not reason else ()
    refused = () if kind == MODEL_RULE else _list_keyless_tokens(tokens, user)
    return AccessExplanation(rule, allowed, (reason,) if reason else (), refused)


def _list_keyless_tokens(tokens: TokenStore, user: User) -> tuple[tuple[str, str], ...]:
    """Return the tokens of a user that do not give access to the configured keys of model providers."""
    why = "it was created with --no-models, or for some toolsets only"
    own = (each for each in tokens.list_clients() if each.user_id == user.id)
    return tuple((each.name, why) for each in own if not each.may_use_keys)


def _describe_login(user: User, config: Config) -> list[GatewayClient]:
    """Return a one-element list with the client of a user's OAuth login; empty if the user cannot log in."""
    from toolfold.serving.gateway.client_tokens import LOGIN_CLIENT_PREFIX, GatewayClient

    oauth = config.gateway.oauth
    if not oauth.issuer or user.issuer != oauth.issuer:
        return []
    return [GatewayClient(LOGIN_CLIENT_PREFIX + user.name, oauth.toolsets, user_id=user.id, is_login=True)]


def change_user(
    invocation: Invocation, name: str, change: Callable[[User], User]
) -> tuple[Directory, Directory]:
    """Apply the function `change` to the named user; return all users before and after the change."""
    users = open_users(invocation)
    before = users.directory()
    users.change_user(name, change)
    return before, users.directory()


add_rule_commands(command, "user", change_user)
add_limit_command(command, "user", change_user)


def describe_state(user: User) -> str:
    """Return whether a user is disabled or an administrator, as text."""
    if user.is_disabled:
        return "disabled"
    return "administrator" if user.is_admin else "active"


def describe_user(user: User, directory: Directory, clients: list[GatewayClient]) -> Json:
    """Return a user as JSON with the names of its teams and tokens."""
    return {
        "id": user.id,
        "name": user.name,
        "issuer": user.issuer,
        "subject": user.subject,
        "admin": user.is_admin,
        "disabled": user.is_disabled,
        "created": user.created,
        "allowed": list(user.allowed),
        "denied": list(user.denied),
        "teams": [team.name for team in directory.list_teams(user.id)],
        "tokens": [each.name for each in clients if each.user_id == user.id],
    }


def open_users(invocation: Invocation) -> UserStore:
    """Open the store of users and teams, in the shared database or in a local file."""
    return open_user_tokens(invocation).users


def open_user_tokens(invocation: Invocation) -> TokenStore:
    """Open the store of access tokens, with the users that own them."""
    from toolfold.serving.gateway.client_tokens import open_tokens

    config = invocation.load_config(quiet=True)
    return open_tokens(config, use_database(config))
