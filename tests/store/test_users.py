"""Users and teams: one contract, checked with a file and with a PostgreSQL database.

Every test gets two stores over the same state, as two processes have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.store.test_shared_state import wait_until
from toolfold.config.record import SettingsRecord
from toolfold.core.errors import ConfigError, UnknownAccount
from toolfold.serving.gateway.client_tokens import SharedTokens, Tokens, TokenStore
from toolfold.serving.gateway.http_app import make_access_policy
from toolfold.serving.gateway.request_bodies import RequestRefused
from toolfold.state.database import Database, DatabaseUnavailable, open_database
from toolfold.state.database.connections import Row
from toolfold.state.database.migrations import LATEST, migrate
from toolfold.state.users import FileUserStore, SharedUserStore, UserStore

ISSUER = "https://id.example.com/realms/one"


@pytest.fixture(params=["file", "postgres"])
def tokens(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[TokenStore, TokenStore]]:
    """The tokens, with their users, of two replicas."""
    if request.param == "file":
        yield Tokens(tmp_path / "tokens.json"), Tokens(tmp_path / "tokens.json")
        return
    url = request.getfixturevalue("database_url")
    with ExitStack() as stack:
        yield open_shared(url, stack), open_shared(url, stack)


def open_shared(url: str, stack: ExitStack) -> SharedTokens:
    database = open_database(url)
    assert database is not None
    stack.callback(database.close)
    return SharedTokens(database)


@pytest.fixture
def stores(tokens: tuple[TokenStore, TokenStore]) -> tuple[UserStore, UserStore]:
    return tokens[0].users, tokens[1].users


Stores = tuple[UserStore, UserStore]


def test_user_added_by_one_replica_is_known_to_the_other(stores: Stores) -> None:
    one, other = stores
    user = one.add_user("ann@example.com", issuer=ISSUER, subject="42", is_admin=True)
    wait_until(lambda: other.find_identity(ISSUER, "42") == user)
    assert other.directory().find_user("ann@example.com") == user
    assert other.directory().find_active(user.id) == user
    assert user.is_admin
    assert not user.is_disabled
    assert other.find_identity(ISSUER, "43") is None
    assert other.find_identity("", "") is None


def test_lookup_with_an_empty_issuer_or_subject_finds_no_user(stores: Stores) -> None:
    one, _ = stores
    one.add_user("ann")
    one.add_user("bob")
    assert one.find_identity("", "") is None
    assert one.find_identity(ISSUER, "") is None


def test_disabled_user_is_found_by_identity_but_excluded_from_active_users(stores: Stores) -> None:
    one, other = stores
    user = one.add_user("ann", issuer=ISSUER, subject="42")
    assert one.set_disabled("ann", True).is_disabled
    wait_until(lambda: (found := other.find_identity(ISSUER, "42")) is not None and found.is_disabled)
    assert other.directory().find_active(user.id) is None
    other.set_disabled("ann", False)
    wait_until(lambda: one.directory().find_active(user.id) == user)


def test_new_user_with_the_name_of_a_removed_user_gets_a_different_id(stores: Stores) -> None:
    one, other = stores
    first = one.add_user("ann", issuer=ISSUER, subject="42")
    one.add_team("red")
    one.join_team("red", "ann")
    other.remove_user("ann")
    second = other.add_user("ann", issuer=ISSUER, subject="42")
    assert second.id != first.id
    assert other.directory().find_active(first.id) is None
    assert other.directory().teams["red"].members == frozenset()


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 129, "ä", "nul\0"])
def test_invalid_name_of_a_user_or_team_is_rejected(stores: Stores, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a user"):
        stores[0].add_user(name)
    with pytest.raises(ConfigError, match="cannot be the name of a team"):
        stores[0].add_team(name)
    assert not stores[0].directory().users
    assert not stores[0].directory().teams


def test_two_users_cannot_have_the_same_name_or_external_identity(stores: Stores) -> None:
    one, other = stores
    one.add_user("ann", issuer=ISSUER, subject="42")
    with pytest.raises(ConfigError, match="already exists"):
        other.add_user("ann")
    with pytest.raises(ConfigError, match="already belongs to the user 'ann'"):
        other.add_user("bob", issuer=ISSUER, subject="42")
    with pytest.raises(ConfigError, match="both an issuer and a subject"):
        other.add_user("bob", issuer=ISSUER)
    with pytest.raises(ConfigError, match="printable"):
        other.add_user("bob", issuer=ISSUER, subject="4\0002")
    other.add_user("bob", issuer=ISSUER + "/other", subject="42")
    with pytest.raises(ConfigError, match="already belongs"):
        other.change_user("bob", lambda user: replace(user, issuer=ISSUER))


def test_users_can_join_and_leave_teams(stores: Stores) -> None:
    one, other = stores
    ann = one.add_user("ann")
    one.add_team("red")
    one.add_team("blue")
    one.join_team("red", "ann")
    one.join_team("blue", "ann")
    one.join_team("blue", "ann")
    wait_until(lambda: [each.name for each in other.directory().list_teams(ann.id)] == ["blue", "red"])
    other.leave_team("red", "ann")
    other.remove_team("blue")
    wait_until(lambda: one.directory().list_teams(ann.id) == ())
    with pytest.raises(ConfigError, match="not a member"):
        other.leave_team("red", "ann")
    with pytest.raises(ConfigError, match="already exists"):
        other.add_team("red")


def test_setting_share_learned_of_a_team_changed_by_one_replica_is_seen_by_the_other(stores: Stores) -> None:
    one, other = stores
    one.add_team("red")
    assert not one.directory().teams["red"].share_learned
    one.change_team("red", lambda team: replace(team, share_learned=True))
    wait_until(lambda: "red" in (teams := other.directory().teams) and teams["red"].share_learned)


def test_error_for_an_unknown_user_or_team_suggests_similar_names(stores: Stores) -> None:
    one, _ = stores
    one.add_user("annette")
    one.add_team("red")
    with pytest.raises(UnknownAccount, match="Did you mean annette"):
        one.set_disabled("anette", True)
    with pytest.raises(UnknownAccount, match="no team 'rde'"):
        one.join_team("rde", "annette")
    with pytest.raises(UnknownAccount, match="no user 'bob'"):
        one.join_team("red", "bob")
    with pytest.raises(UnknownAccount):
        one.remove_user("bob")
    with pytest.raises(UnknownAccount):
        one.remove_team("blue")


def test_users_and_team_members_added_concurrently_by_two_replicas_are_all_stored(stores: Stores) -> None:
    stores[0].add_team("red")

    def add(number: int) -> None:
        stores[number % 2].add_user(f"user{number}")
        stores[number % 2].join_team("red", f"user{number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(12)))
    for each in stores:
        wait_until(lambda: len(each.directory().teams["red"].members) == 12)  # noqa: B023 - called at once


def test_users_are_unchanged_if_the_callback_that_edits_them_raises(stores: Stores) -> None:
    one, _ = stores
    user = one.add_user("ann")
    before = one.directory()
    with pytest.raises(ZeroDivisionError):
        one.edit(lambda directory: directory.without_user(user.id) and 1 / 0)  # type: ignore[arg-type,return-value]
    assert one.directory() == before


def test_token_of_a_user_is_refused_while_the_user_is_disabled(tokens: tuple[TokenStore, TokenStore]) -> None:
    one, other = tokens
    user = one.users.add_user("ann")
    token, plain = one.add("laptop", user_id=user.id), one.add("shared")
    wait_until(lambda: other.find(token) is not None)
    client = other.find(token)
    assert client is not None
    assert client.user_id == user.id
    one.users.set_disabled("ann", True)
    assert one.find(token) is None
    wait_until(lambda: other.find(token) is None)
    assert not other.is_valid(client)
    assert other.find(plain) is not None
    one.users.set_disabled("ann", False)
    wait_until(lambda: other.find(token) == client)


def test_token_of_a_removed_user_is_refused_and_its_name_can_be_reused(
    tokens: tuple[TokenStore, TokenStore],
) -> None:
    one, other = tokens
    user = one.users.add_user("ann")
    token, plain = one.add("laptop", user_id=user.id), one.add("shared")
    wait_until(lambda: other.find(token) is not None)
    one.users.remove_user("ann")
    wait_until(lambda: other.find(token) is None)
    assert [each.name for each in one.list_clients()] == ["shared"]
    assert one.find(plain) is not None
    assert one.add("laptop")


def test_users_file_is_readable_by_its_owner_only_and_edits_by_other_programs_are_ignored(
    tmp_path: Path,
) -> None:
    file, record = tmp_path / "gateway" / "users.json", SettingsRecord(tmp_path)
    running, command = FileUserStore(file, record), FileUserStore(file, record)
    user = command.add_user("ann")
    command.set_disabled("ann", True)
    assert running.directory().find_active(user.id) is None
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text(file.read_text().replace('"disabled": true', '"disabled": false'))
    assert running.directory().find_active(user.id) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"users": {"a": {"name": "x"}}, "teams": {}}', "\xff"])
def test_reading_a_damaged_users_file_raises_config_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "users.json"
    file.write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match="cannot be read"):
        FileUserStore(file).directory()


def test_user_tokens_are_refused_if_users_were_not_read_from_the_database_recently(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        tokens = open_shared(database_url, stack)
        token = tokens.add("laptop", user_id=tokens.users.add_user("ann").id)
        assert tokens.find(token)
        assert isinstance(tokens.users, SharedUserStore)
        monkeypatch.setattr(tokens.users._copy, "max_stale_s", -1.0)
        with pytest.raises(DatabaseUnavailable, match="users cannot be checked"):
            tokens.find(token)


def test_undoing_the_user_migration_deletes_user_tokens_and_keeps_other_tokens(
    database_url: str,
) -> None:
    database = open_database(database_url)
    assert database is not None
    tokens = SharedTokens(database)
    tokens.add("laptop", user_id=tokens.users.add_user("ann").id)
    plain = tokens.add("shared")
    migrate(database, 9)
    migrate(database, LATEST)
    assert [each.name for each in tokens.list_clients()] == ["shared"]
    assert tokens.find(plain) is not None
    database.close()


def test_undoing_the_usage_limit_migration_disables_users_who_have_personal_or_team_limits(
    database_url: str,
) -> None:
    database = open_database(database_url)
    assert database is not None
    users = SharedTokens(database).users
    for name in ("ann", "bob", "eve"):
        users.add_user(name)
    users.add_team("red")
    users.join_team("red", "bob")
    users.change_user("ann", lambda each: replace(each, limits={"calls_per_day": 5.0}))
    users.change_team("red", lambda each: replace(each, limits={"calls_per_day": 5.0}))
    migrate(database, 16)
    rows = database.query("SELECT name FROM users WHERE disabled ORDER BY name")
    assert [each["name"] for each in rows] == ["ann", "bob"]
    migrate(database, LATEST)
    database.close()


class _ChangedAfterReading(Database):
    """A database in which another replica changes something right after tokens were read once."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.change: Callable[[], object] | None = None

    def query(self, statement: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[Row]:
        result = super().query(statement, values)
        if self.change and "hash" in statement:
            change, self.change = self.change, None
            change()
        return result


def test_token_revoked_while_another_replica_reads_all_tokens_is_refused_by_that_replica(
    database_url: str,
) -> None:
    with ExitStack() as stack:
        first = open_shared(database_url, stack)
        token = first.add("bob")
        database = _ChangedAfterReading(database_url)
        stack.callback(database.close)
        listening = threading.Event()
        database.on_change("ready", listening.set)
        assert listening.wait(60)  # after connecting, the listener reads everything again
        database.change = lambda: first.revoke("bob")
        second = SharedTokens(database)
        wait_until(lambda: second.find(token) is None)


def test_user_store_keeps_its_users_in_memory_if_another_program_damages_the_users_file(
    tmp_path: Path,
) -> None:
    file, record = tmp_path / "users.json", SettingsRecord(tmp_path / "state")
    store = FileUserStore(file, record)
    user = store.add_user("ann")
    assert store.directory().find_active(user.id) == user
    file.write_text("{damaged")
    assert store.directory().find_active(user.id) == user


def test_requests_with_a_user_token_get_status_503_if_the_users_file_is_damaged(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    token = tokens.add("laptop", user_id=tokens.users.add_user("ann").id)
    (tmp_path / "users.json").write_text("{damaged")
    started = Tokens(tmp_path / "tokens.json")
    policy = make_access_policy("127.0.0.1", started, toolsets=None, hosts=(), origins=())
    with pytest.raises(RequestRefused, match="cannot be read") as refused:
        policy.find_token_client(token)
    assert refused.value.status == 503
    assert not policy.is_accepted({"authorization": f"Bearer {token}"})
