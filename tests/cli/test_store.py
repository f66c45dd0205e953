"""`toolfold store`, and what `toolfold config set` says about running gateways and unused files."""

from __future__ import annotations

import os
import time

import pytest

from tests.cli.conftest import Toolfold
from tests.postgres import PostgresServer
from toolfold.config import load_config
from toolfold.serving.gateway.status import StatusFile

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
