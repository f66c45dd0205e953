"""`toolfold credentials`: manage the credentials of users for MCP servers."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.output import NotFound, escape_text, print_json, print_line, print_note, print_table
from toolfold.cli.shared_database import use_database
from toolfold.cli.user import open_users
from toolfold.errors import ConfigError, closest_names, did_you_mean

if TYPE_CHECKING:
    from toolfold.credentials import CredentialStore
    from toolfold.users import Directory

OWNER_TEXT = "(owner)"
"""Shown instead of a user for the credentials of the installation itself."""
MAX_INPUT_CHARS = 70_000

_user_option = click.option(
    "--user",
    metavar="NAME",
    help="The user that the credential belongs to. Without it, the credential is that of the installation:"
    " for its own sessions, and to list the tools of the server.",
)


@click.group("credentials")
def command() -> None:
    """Store, list and remove credentials of users for MCP servers, encrypted."""


@command.command("set")
@click.argument("server")
@click.argument("name")
@_user_option
@click.pass_obj
def set_credential(invocation: Invocation, server: str, name: str, user: str | None) -> None:
    """Store a credential, which is read from standard input or typed without being shown.

    The server's settings refer to it as ${user:NAME}.
    """
    _require_per_user_server(invocation, server)
    user_id = _find_user_id(invocation, user)
    store = open_store(invocation)
    store.set(user_id, server, name, _read_secret(name))
    print_line(f"stored {escape_text(name)} of {escape_text(user or OWNER_TEXT)} for {escape_text(server)}")


@command.command("list")
@click.option("--user", metavar="NAME", help="Show only the credentials of this user.")
@json_option
@click.pass_obj
def list_stored(invocation: Invocation, user: str | None, as_json: bool) -> None:
    """List stored credentials without their values."""
    directory = open_users(invocation).directory()
    user_id = None if user is None else directory.require_user(user).id
    found = open_store(invocation).list_credentials(user_id)
    shown = [
        {
            "user": _name_user(each.user_id, directory),
            "server": each.server,
            "name": each.name,
            "key": each.key_id,
            "updated": each.updated,
        }
        for each in found
    ]
    if as_json:
        print_json(shown)
    elif not shown:
        print_note("there are no stored credentials. Store one with `toolfold credentials set SERVER NAME`.")
    else:
        rows = [
            (
                *(escape_text(str(each[column])) for column in ("user", "server", "name", "key")),
                time.strftime("%Y-%m-%d", time.localtime(float(str(each["updated"])))),
            )
            for each in shown
        ]
        print_table("Credentials", ["user", "server", "name", "key", "stored"], rows)


@command.command("remove")
@click.argument("server")
@click.argument("name", required=False)
@_user_option
@click.pass_obj
def remove(invocation: Invocation, server: str, name: str | None, user: str | None) -> None:
    """Remove a credential, or all of a user for a server."""
    user_id = _find_user_id(invocation, user)
    removed = open_store(invocation).remove(user_id, server, name)
    if not removed:
        raise NotFound(
            f"{user or OWNER_TEXT} has no such credential for {server!r}. Run `toolfold credentials list`."
        )
    print_line(f"removed {removed} of {escape_text(user or OWNER_TEXT)} for {escape_text(server)}")


@command.command("generate-key")
def generate_key() -> None:
    """Print a new random key for the setting credentials.keys."""
    from toolfold.credentials import make_key

    print_line(make_key())


@command.command("rotate-key")
@click.option("--retire", is_flag=True, help="Only remove keys from the key file that are no longer used.")
@click.pass_obj
def rotate_key(invocation: Invocation, retire: bool) -> None:
    """Encrypt all credentials with a new key.

    The new key is added to the key file, before the old ones. If credentials.keys is set, put a new key in
    front of the others there first; then this command encrypts everything with it.
    """
    from toolfold.credentials.keys import key_id_of, make_key, read_key_texts, write_keys
    from toolfold.sources.mcp.user_credentials import find_key_file

    config = invocation.load_config()
    file = find_key_file(config)
    if retire:
        _retire_keys(invocation)
        return
    if not config.credentials.keys:
        _ = open_store(invocation).keys  # creates the first key
        write_keys(file, [make_key(), *read_key_texts(file)])
        print_line(f"added the key {key_id_of(read_key_texts(file)[0])} to {escape_text(str(file))}")
    store = open_store(invocation)
    changed = store.rotate()
    print_line(f"{changed} credentials were encrypted with the key {store.keys.primary}")
    if len(store.keys.ids) > 1:
        print_note(
            "Once every replica has the new key, remove the old ones: from credentials.keys, or from the key"
            " file with `toolfold credentials rotate-key --retire`."
        )


def _retire_keys(invocation: Invocation) -> None:
    """Remove the keys from the key file that encrypt no stored credential."""
    from toolfold.credentials.keys import key_id_of, read_key_texts, write_keys
    from toolfold.sources.mcp.user_credentials import find_key_file

    config = invocation.load_config()
    if config.credentials.keys:
        raise ConfigError(
            "the keys are in credentials.keys, which this command cannot change",
            key="credentials.keys",
            hint="remove the old keys from that setting; `toolfold credentials list` shows which are in use",
        )
    store, file = open_store(invocation), find_key_file(config)
    used = {each.key_id for each in store.list_credentials()} | {store.keys.primary}
    texts = read_key_texts(file)
    kept = [each for each in texts if key_id_of(each) in used]
    write_keys(file, kept)
    removed = len(texts) - len(kept)
    print_line(f"{removed} keys were removed from {escape_text(str(file))}; {len(kept)} are left")


def open_store(invocation: Invocation) -> CredentialStore:
    """Open the stored credentials."""
    from toolfold.sources.mcp.user_credentials import open_credentials

    config = invocation.load_config()
    store = open_credentials(config, use_database(config))
    click.get_current_context().call_on_close(store.close)
    return store


def _require_per_user_server(invocation: Invocation, server: str) -> None:
    servers = invocation.load_config().mcp.servers
    if server not in servers:
        raise NotFound(f"there is no MCP server {server!r}.{did_you_mean(closest_names(server, servers))}")
    if servers[server].credentials != "per-user":
        raise ConfigError(
            f"all clients share the credentials of {server!r}",
            key=f"mcp.servers.{server}.credentials",
            hint=f"change that: toolfold config set mcp.servers.{server}.credentials per-user",
        )


def _find_user_id(invocation: Invocation, user: str | None) -> str:
    from toolfold.credentials import OWNER

    return OWNER if user is None else open_users(invocation).directory().require_user(user).id


def _name_user(user_id: str, directory: Directory) -> str:
    user = directory.users.get(user_id)
    return user.name if user else user_id or OWNER_TEXT


def _read_secret(name: str) -> str:
    """Read a secret without showing it: from a pipe, or typed by a person."""
    if sys.stdin.isatty():
        typed: str = click.prompt(name, hide_input=True, err=True)
        return typed
    return sys.stdin.read(MAX_INPUT_CHARS).rstrip("\r\n")
