"""`toolfold credentials`: manage the credentials of users for MCP servers."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.output import NotFound, escape_text, print_json, print_line, print_note, print_table
from toolfold.cli.server_commands import unknown_server_error
from toolfold.cli.shared_database import use_database
from toolfold.cli.user import open_users
from toolfold.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from toolfold.state.credentials import CredentialStore
    from toolfold.state.users import Directory

OWNER_TEXT = "(owner)"
"""Shown instead of a user for the credentials of the installation itself."""
LOGIN_TEXT = "(login)"
"""Shown instead of a name for a login with OAuth."""
MAX_INPUT_CHARS = 70_000

_user_option = click.option(
    "--user",
    metavar="NAME",
    help="The user that the credential belongs to. Without --user, the credential is used for sessions"
    " without a user, and to list the tools of the server.",
)


@click.group("credentials")
def command() -> None:
    """Store, list and remove encrypted credentials of users for MCP servers."""


@command.command("set")
@click.argument("server")
@click.argument("name")
@_user_option
@click.pass_obj
def set_credential(invocation: Invocation, server: str, name: str, user: str | None) -> None:
    """Store a credential, which is read from standard input or typed without being shown.

    The server's settings refer to it as ${user:NAME}.
    """
    require_per_user_server(invocation, server)
    user_id = find_user_id(invocation, user)
    store = open_store(invocation)
    store.set(user_id, server, name, _read_secret(name))
    print_line(f"stored {escape_text(name)} of {escape_text(user or OWNER_TEXT)} for {escape_text(server)}")


@command.command("list")
@click.option("--user", metavar="NAME", help="Show only the credentials of this user.")
@json_option
@click.pass_obj
def list_stored(invocation: Invocation, user: str | None, as_json: bool) -> None:
    """List stored credentials and logins without their values."""
    directory = open_users(invocation).directory()
    user_id = None if user is None else directory.require_user(user).id
    found = open_store(invocation).list_credentials(user_id)
    shown = [
        {
            "user": _name_user(each.user_id, directory),
            "server": each.server,
            "name": LOGIN_TEXT if each.is_login else each.name,
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
    """Remove one credential of a user for a server, or all of them and the login.

    `toolfold mcp logout SERVER --user NAME` removes only a login, and revokes it at its issuer.
    """
    user_id, store = find_user_id(invocation, user), open_store(invocation)
    removed = (
        store.remove_login(user_id, server) if name == LOGIN_TEXT else store.remove(user_id, server, name)
    )
    if not removed:
        raise NotFound(
            f"{user or OWNER_TEXT} has no such credential for {server!r}. Run `toolfold credentials list`."
        )
    print_line(f"removed {removed} of {escape_text(user or OWNER_TEXT)} for {escape_text(server)}")


@command.command("generate-key")
def generate_key() -> None:
    """Print a new random key for the setting credentials.keys."""
    from toolfold.state.credentials import make_key

    print_line(make_key())


@command.command("rotate-key")
@click.option(
    "--add",
    "step",
    flag_value="add",
    help="Add a new key to the key file and do nothing else. Afterwards, copy the file to "
    "the other replicas.",
)
@click.option(
    "--encrypt",
    "step",
    flag_value="encrypt",
    help="Encrypt all credentials again with the first key of the key file, and do nothing else.",
)
@click.option(
    "--retire",
    "step",
    flag_value="retire",
    help="Remove keys that encrypt no credential any more from the key file, and do nothing else.",
)
@click.pass_obj
def rotate_key(invocation: Invocation, step: str | None) -> None:
    """Encrypt all credentials with a new key.

    The new key is added to the key file, before the old ones. If credentials.keys is set, put a new key in
    front of the others there first; then this command encrypts everything with it.

    Replicas that share a database cannot read credentials whose key they do not have. Use three steps there:
    add a key with --add, copy the key file to every replica, then run this command with --encrypt.
    """
    from toolfold.config.atomic import lock_directory
    from toolfold.mcp.user_credentials import find_key_file
    from toolfold.state.database.opening import LOCAL_STORE

    config = invocation.load_config()
    has_file, is_shared = not config.credentials.keys, config.store != LOCAL_STORE
    if step in ("add", "retire") and not has_file:
        raise ConfigError(
            "the encryption keys are in the setting credentials.keys, which this command cannot change",
            key="credentials.keys",
            hint="change the setting credentials.keys; `toolfold credentials list` shows "
            "which keys are in use",
        )
    if step is None and has_file and is_shared:
        raise ConfigError(
            "replicas share the stored credentials, and a replica without the new key could not decrypt them",
            key="store",
            hint="run `toolfold credentials rotate-key --add`, copy the key file to every replica, then run"
            " `toolfold credentials rotate-key --encrypt`",
        )
    store, file = open_store(invocation), find_key_file(config)
    if has_file and not is_shared and step != "retire":
        _ = store.keys  # creates the first key
    with lock_directory(file.parent):  # a key that another process has just added must not be lost
        if step == "retire":
            _retire_keys(store, file)
            return
        if has_file and step != "encrypt":
            _add_key(file)
        if step != "add":
            _encrypt_all(open_store(invocation))  # another store: the first one has read the old keys


def _add_key(file: Path) -> None:
    """Add a new key to the key file."""
    from toolfold.state.credentials.keys import add_key

    print_line(f"added the key {add_key(file)} to {escape_text(str(file))}")


def _encrypt_all(store: CredentialStore) -> None:
    """Encrypt all credentials with the first key."""
    changed = store.rotate()
    print_line(f"{changed} credentials were encrypted with the key {store.keys.primary}")
    if len(store.keys.ids) > 1:
        print_note(
            "Once every replica has the new key, remove the old ones: from credentials.keys, or from the key"
            " file with `toolfold credentials rotate-key --retire`."
        )


def _retire_keys(store: CredentialStore, file: Path) -> None:
    """Remove from the key file all keys that encrypt no stored credential."""
    from toolfold.state.credentials.keys import remove_keys

    removed, left = remove_keys(file, store.list_key_ids())
    print_line(f"{removed} keys were removed from {escape_text(str(file))}; {left} are left")


def open_store(invocation: Invocation) -> CredentialStore:
    """Open the store of users' credentials."""
    from toolfold.mcp.user_credentials import open_credentials

    config = invocation.load_config()
    store = open_credentials(lambda: config, use_database(config))
    click.get_current_context().call_on_close(store.close)
    return store


def require_per_user_server(invocation: Invocation, server: str) -> None:
    """Raise an error unless the server exists and uses separate credentials for each user."""
    servers = invocation.load_config().mcp.servers
    if server not in servers:
        raise unknown_server_error(server, servers)
    if servers[server].credentials != "per-user":
        raise ConfigError(
            f"all users share the credentials of MCP server {server!r}; a user cannot have separate "
            "credentials",
            key=f"mcp.servers.{server}.credentials",
            hint=f"run `toolfold config edit` and give mcp.servers.{server}.credentials the value per-user",
        )


def find_user_id(invocation: Invocation, user: str | None) -> str:
    """Return the id of the named user; without a name, the id for credentials that belong to no user."""
    from toolfold.state.credentials import OWNER

    return OWNER if user is None else open_users(invocation).directory().require_user(user).id


def _name_user(user_id: str, directory: Directory) -> str:
    user = directory.users.get(user_id)
    return user.name if user else user_id or OWNER_TEXT


def _read_secret(name: str) -> str:
    """Read a secret from a pipe, or from the keyboard without showing it."""
    if sys.stdin.isatty():
        typed: str = click.prompt(name, hide_input=True, err=True)
        return typed
    return sys.stdin.read(MAX_INPUT_CHARS).rstrip("\r\n")
