"""Warn of users, teams and tokens in files that are not used because the setting `store` names a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolfold.cli.output import format_count, print_warning
from toolfold.core.errors import ToolfoldError
from toolfold.state.database.opening import LOCAL_STORE

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.state.database import Database


def warn_of_unused_files(config: Config, database: Database | None = None) -> None:
    """Print how many users, teams and tokens are in files on this machine, if a database is used instead.

    With `database`, those that it has already are not counted.
    """
    if config.store == LOCAL_STORE:
        return
    from toolfold.serving.gateway.client_tokens import Tokens, open_tokens

    try:
        tokens = Tokens(config.paths.state_dir / "gateway" / "tokens.json")
        directory, clients = tokens.users.directory(), tokens.list_clients()
    except ToolfoldError as error:  # the files are not needed, so the command must not fail
        print_warning(f"The files with users and tokens on this machine, which are not used: {error}")
        return
    used = None if database is None else open_tokens(config, database)
    counts = (
        (directory.users.keys() - (used.users.directory().users if used else ()), "user"),
        (directory.teams.keys() - (used.users.directory().teams if used else ()), "team"),
        (
            {each.id for each in clients} - {each.id for each in (used.list_clients() if used else ())},
            "token",
        ),
    )
    found = [format_count(len(each), name) for each, name in counts if each]
    if found:
        print_warning(
            f"{', '.join(found)} in files on this machine are not used, because the setting `store` names a"
            " database. Copy them into it with `toolfold store copy`, or unset `store` to use the files."
        )
