"""Contracts of state that replicas share, each checked with files and with a PostgreSQL database.

Every contract gets two stores over the same state, as two processes have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from toolfold.database import Database, open_database
from toolfold.errors import ConfigError
from toolfold.gateway.tokens import SharedTokens, Tokens, TokenStore
from toolfold.sources.mcp.lock import LOCK_FILE, LockFile, Pin, PinStore, SharedPins
from toolfold.sources.mcp.tool_listing import ListedTool, parse_tool

WAIT_S = 60.0
Pair = tuple[Any, Any]


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(params=["files", "postgres"])
def databases(request: pytest.FixtureRequest) -> Iterator[tuple[Database, Database] | None]:
    """The databases of two replicas; None if state is in files."""
    if request.param == "files":
        yield None
        return
    url = request.getfixturevalue("database_url")
    with ExitStack() as stack:
        opened = [open_database(url) for _ in range(2)]
        for each in opened:
            assert each is not None
            stack.callback(each.close)
        yield opened[0], opened[1]  # type: ignore[misc]


class TestTokens:
    @pytest.fixture
    def stores(self, databases: tuple[Database, Database] | None, tmp_path: Path) -> Pair:
        if databases is None:
            return tuple(Tokens(tmp_path / "tokens.json") for _ in range(2))  # type: ignore[return-value]
        return tuple(map(SharedTokens, databases))  # type: ignore[return-value]

    def test_token_created_by_one_replica_is_accepted_by_the_other(self, stores: Pair) -> None:
        one, other = stores
        assert not other.are_in_use()
        token = one.add("bob", ["mcp-github"], may_use_keys=False)
        wait_until(lambda: other.find(token) is not None)
        found = other.find(token)
        assert (found.name, found.toolsets, found.may_use_keys) == ("bob", ("mcp-github",), False)
        assert other.is_valid(one.find(token))
        assert other.are_in_use()
        assert [each.name for each in other.list_clients()] == ["bob"]

    def test_token_revoked_by_one_replica_is_refused_by_the_other(self, stores: Pair) -> None:
        one, other = stores
        token = one.add("bob")
        wait_until(lambda: other.find(token) is not None)
        assert one.revoke("bob")
        assert one.find(token) is None
        wait_until(lambda: other.find(token) is None)
        assert not other.revoke("bob")
        assert other.are_in_use()  # clients still need a token

    def test_name_of_a_revoked_token_can_be_used_again(self, stores: Pair) -> None:
        one, other = stores
        first = one.add("bob")
        one.revoke("bob")
        second = other.add("bob")
        assert other.find(first) is None
        assert other.find(second) is not None

    def test_only_one_of_two_replicas_creates_a_token_for_a_name(self, stores: Pair) -> None:
        def add(store: TokenStore) -> bool:
            try:
                return bool(store.add("bob"))
            except ConfigError:
                return False

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(add, stores)) == [False, True]

    @pytest.mark.parametrize("wrong", ["", "tf_", "sha256:", "\ud800", "nul \0"])
    def test_unknown_token_is_not_found(self, stores: Pair, wrong: str) -> None:
        stores[0].add("bob")
        assert stores[0].find(wrong) is None
        assert not stores[0].revoke(wrong)


def test_shared_tokens_are_refused_if_revocations_may_be_unknown(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = open_database(database_url)
    assert database is not None
    tokens = SharedTokens(database)
    token = tokens.add("bob")
    assert tokens.find(token)
    monkeypatch.setattr("toolfold.gateway.tokens.MAX_STALE_S", -1.0)
    with pytest.raises(OSError, match="tokens cannot be checked"):
        tokens.find(token)
    database.close()


def test_database_contains_no_token(database_url: str) -> None:
    database = open_database(database_url)
    assert database is not None
    token = SharedTokens(database).add("bob")
    assert token.removeprefix("tf_") not in str(database.query("SELECT * FROM tokens"))
    database.close()


class TestPins:
    @pytest.fixture
    def stores(self, databases: tuple[Database, Database] | None, tmp_path: Path) -> Pair:
        if databases is None:
            return tuple(LockFile(tmp_path / LOCK_FILE) for _ in range(2))  # type: ignore[return-value]
        pins = [SharedPins(each) for each in databases]
        for database, store in zip(databases, pins, strict=True):
            database.on_change("pins", store.reload)
        return tuple(pins)  # type: ignore[return-value]

    def test_tool_accepted_by_one_replica_is_accepted_by_the_other(self, stores: Pair) -> None:
        one, other = stores
        assert other.pins("files") is None
        one.accept("files", [make_tool("read")])
        wait_until(
            lambda: other.pins("files") == {"read": Pin(make_tool("read").fingerprint, make_tool("read"))}
        )

    def test_new_server_is_pinned_once(self, stores: Pair) -> None:
        one, other = stores
        one.pin_new_server("files", [make_tool("read")])
        found = other.pin_new_server("files", [make_tool("read", "Deletes files.")])
        assert found["read"].fingerprint == make_tool("read").fingerprint
        assert one.pin_new_server("empty", []) == {}
        wait_until(lambda: other.pins("empty") == {})
        assert other.pins("unknown") is None

    def test_harmless_update_is_stored_beside_the_accepted_version(self, stores: Pair) -> None:
        one, other = stores
        one.accept("files", [make_tool("read")])
        compared = one.pins("files")
        newer = make_tool("read", "Reads one file.")
        one.record_updates("files", [newer], compared)
        wait_until(
            lambda: bool(other.pins("files")) and other.pins("files")["read"].accepts(newer.fingerprint)
        )
        assert other.pins("files")["read"].accepts(make_tool("read").fingerprint)

    def test_forgotten_server_is_forgotten_by_the_other_replica(self, stores: Pair) -> None:
        one, other = stores
        one.accept("files", [make_tool("read")])
        wait_until(lambda: other.pins("files") is not None)
        assert one.forget("files")
        assert not one.forget("files")
        wait_until(lambda: other.pins("files") is None)

    def test_tools_that_replicas_accept_at_the_same_time_are_all_kept(self, stores: Pair) -> None:
        def accept(number: int) -> None:
            stores[number % 2].accept("files", [make_tool(f"tool{number}")])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(accept, range(16)))
        for each in stores:
            store: PinStore = each
            wait_until(lambda: len(store.pins("files") or ()) == 16)  # noqa: B023 - called at once


def make_tool(name: str, description: str = "Reads a file.") -> ListedTool:
    return parse_tool({"name": name, "description": description})
