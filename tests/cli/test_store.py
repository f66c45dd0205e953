"""`toolfold store`, and what `toolfold config set` says about running gateways and unused files."""

from __future__ import annotations

import os
import shlex
import time
from contextlib import closing

import pytest

from tests.cli.conftest import Toolfold
from tests.postgres import PostgresServer
from toolfold.config import load_config
from toolfold.config.monitor import SettingsMonitor, WatchedPath
from toolfold.config.record import SettingsRecord
from toolfold.mcp.lock import LockFile
from toolfold.mcp.tool_listing import parse_tool
from toolfold.mcp.user_credentials import open_credentials
from toolfold.serving.gateway.client_tokens import SharedTokens
from toolfold.serving.gateway.status import StatusFile
from toolfold.state.database import Database, open_database

UNUSED = "1 user, 1 token in files on this machine are not used"


def test_commands_warn_that_users_and_tokens_in_local_files_are_unused_with_a_database(
    toolfold: Toolfold, database_url: str
) -> None:
    toolfold("user", "add", "ann")
    toolfold("token", "add", "laptop", "--user", "ann")
    assert "not used" not in toolfold("config", "set", "store", "local").err
    done = toolfold("config", "set", "store", database_url)
    assert done.code == 0
    assert UNUSED in done.err
    assert UNUSED in toolfold("store", "status").err
    assert UNUSED in toolfold("user", "list").err
    toolfold("user", "add", "bob")
    assert "not used" not in toolfold("user", "list").err


@pytest.fixture
def filled(toolfold: Toolfold, database_url: str) -> Toolfold:
    """Users, a team, tokens, a credential and a job in files, and a database that does not have them."""
    for words in (
        "user add ann --admin",
        "user add bob",
        "user deny bob tool:terminal",
        "team add web",
        "team join web ann",
        "token add laptop --user ann",
        "token add free --toolset memory",
        "mcp add --no-test --yes web https://web.example/mcp",
        "config set mcp.servers.web.credentials per-user",
        "cron add '30 8 * * 1-5' look",
    ):
        done = toolfold(*shlex.split(words))
        assert done.code == 0, (words, done.err)
    config = load_config()
    with closing(open_credentials(lambda: config, None)) as credentials:
        credentials.set("", "web", "TOKEN", "of the installation")
    tool = parse_tool({"name": "look", "description": "Looks.", "inputSchema": {"type": "object"}})
    LockFile(config.paths.config_dir / "toolfold.lock", SettingsRecord(config.paths.state_dir)).accept(
        "web", [tool]
    )
    assert toolfold("config", "set", "store", database_url).code == 0
    return toolfold


def copy_counts(toolfold: Toolfold, *options: str) -> dict[str, tuple[int, int, int]]:
    """Return how many objects were copied, there already and in conflict, by kind."""
    return {
        each["kind"]: (len(each["copied"]), len(each["present"]), len(each["conflicts"]))
        for each in toolfold("store", "copy", "--json", *options).json["reports"]
    }


def test_store_copy_copies_users_teams_tokens_and_what_belongs_to_them_into_the_database(
    filled: Toolfold,
) -> None:
    expected = {
        "users": (2, 0, 0),
        "teams": (1, 0, 0),
        "tokens": (2, 0, 0),
        "servers with accepted tools": (1, 0, 0),
        "credentials and logins of users": (1, 0, 0),
        "logins of the installation": (0, 0, 0),
        "scheduled jobs": (1, 0, 0),
    }
    assert copy_counts(filled, "--dry-run") == expected
    assert filled("user", "list", "--json").json == []
    assert copy_counts(filled) == expected
    assert copy_counts(filled) == {kind: (0, count, 0) for kind, (count, _, _) in expected.items()}
    assert "not used" not in filled("store", "status").err
    users = {each["name"]: each for each in filled("user", "list", "--json").json}
    assert (users["ann"]["admin"], users["ann"]["teams"], users["ann"]["tokens"]) == (
        True,
        ["web"],
        ["laptop"],
    )
    assert [each["server"] for each in filled("credentials", "list", "--json").json] == ["web"]
    assert len(filled("cron", "list", "--json").json) == 1
    config = load_config()
    database = open_database(config.store)
    assert database is not None
    with closing(database):
        assert open_credentials(lambda: config, database).load("", "web") == {"TOKEN": "of the installation"}


def test_store_copy_accepts_the_copied_tokens(toolfold: Toolfold, database_url: str) -> None:
    token = toolfold("token", "add", "laptop").out.strip()
    toolfold("config", "set", "store", database_url)
    assert toolfold("store", "copy").code == 0
    with closing(Database(database_url)) as database:
        found = SharedTokens(database).find(token)
        assert found is not None
        assert found.name == "laptop"


def test_store_copy_changes_nothing_that_the_database_has_and_reports_the_conflict(filled: Toolfold) -> None:
    assert filled("user", "add", "ann").code == 0
    done = filled("store", "copy")
    assert done.code == 1
    shown = " ".join(done.out.split())
    assert "a user named 'ann' already exists" in shown
    assert "its member ann is another user in the database" in shown
    assert "its user is not in the database" in shown
    users = {each["name"]: each for each in filled("user", "list", "--json").json}
    assert not users["ann"]["admin"]
    assert [each["name"] for each in filled("token", "list", "--json").json] == ["free"]


def test_store_copy_does_not_add_a_revoked_token_again(toolfold: Toolfold, database_url: str) -> None:
    toolfold("token", "add", "laptop")
    toolfold("config", "set", "store", database_url)
    assert toolfold("store", "copy").code == 0
    assert toolfold("token", "revoke", "laptop").code == 0
    assert copy_counts(toolfold)["tokens"] == (0, 0, 1)
    assert toolfold("token", "list", "--json").json == []


def test_store_copy_refuses_a_token_file_that_a_tool_call_has_changed(
    toolfold: Toolfold, database_url: str
) -> None:
    toolfold("token", "add", "laptop")
    toolfold("config", "set", "store", database_url)
    state = load_config().paths.state_dir
    file = state / "gateway" / "tokens.json"
    with SettingsMonitor([WatchedPath(file)], SettingsRecord(state)).watch_call("a call"):
        file.write_text(file.read_text().replace("laptop", "forged"))
    done = toolfold("store", "copy")
    assert done.code == 3
    assert "toolfold config accept" in done.err
    assert toolfold("token", "list", "--json").json == []


def test_store_copy_without_a_database_says_how_to_name_one(toolfold: Toolfold) -> None:
    done = toolfold("store", "copy")
    assert done.code == 3
    assert "toolfold config set store" in done.err


def test_store_status_says_that_a_missing_database_must_be_created(
    toolfold: Toolfold, postgres: PostgresServer
) -> None:
    toolfold("config", "set", "store", postgres.url("missing"))
    done = toolfold("store", "status")
    assert done.code != 0
    assert "Create the database first (createdb)" in done.err
    assert "Check that it runs" not in done.err


@pytest.mark.parametrize(
    ("key", "value", "is_fixed"),
    [("gateway.default_access", "deny", True), ("tools.rag_top_k", "7", False)],
)
def test_config_set_says_whether_a_running_gateway_must_be_restarted_for_the_setting(
    toolfold: Toolfold, key: str, value: str, is_fixed: bool
) -> None:
    assert "restart" not in toolfold("config", "set", key, value).err
    folder = load_config().paths.state_dir / "gateway" / "status"
    with StatusFile(folder, dict):
        end = time.monotonic() + 60
        while not (folder / f"{os.getpid()}.json").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        for command in (("set", key, value), ("unset", key)):
            shown = toolfold("config", *command).err
            assert ("restart it" in shown) is is_fixed
            assert (str(os.getpid()) in shown) is is_fixed
