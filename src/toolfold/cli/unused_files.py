"""Warn of users, teams and tokens in files that are not used because the setting `store` names a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolfold.cli.output import format_count, print_warning
from toolfold.core.errors import ToolfoldError
from toolfold.state.database.opening import LOCAL_STORE

if TYPE_CHECKING:
    from pathlib import Path


def warn_of_unused_files(store: str, state_dir: Path) -> None:
    """Print how many users, teams and tokens are in files on this machine, if a database is used instead."""
    if store == LOCAL_STORE:
        return
    from toolfold.serving.gateway.client_tokens import Tokens

    try:
        tokens = Tokens(state_dir / "gateway" / "tokens.json")
        directory, clients = tokens.users.directory(), tokens.list_clients()
    except ToolfoldError as error:  # the files are not needed, so the command must not fail
        print_warning(f"The files with users and tokens on this machine, which are not used: {error}")
        return
    counts = ((directory.users, "user"), (directory.teams, "team"), (clients, "token"))
    found = [format_count(len(each), name) for each, name in counts if each]
    if found:
        print_warning(
            f"{', '.join(found)} in files on this machine are not used, because the setting `store` names a"
            " database. Add them there again with `toolfold user add`, `team add` and `token add`, or unset"
            " `store` to use the files."
        )
