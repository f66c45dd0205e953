"""Credentials of users: one contract, checked with a file and with a PostgreSQL database.

Every test gets a function that opens a store over the same state, as several processes do.
"""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.store.test_shared_state import wait_until
from toolfold.core.errors import ConfigError
from toolfold.state.credentials import (
    OWNER,
    CredentialKeys,
    CredentialStore,
    SharedCredentialStore,
    SqliteCredentialStore,
    UnreadableCredential,
    load_keys,
)
from toolfold.state.database import open_database

ONE, TWO = bytes(range(32)), bytes(range(32, 64))
OpenStore = Callable[..., CredentialStore]


@pytest.fixture(params=["sqlite", "postgres"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Return a function that opens the credentials with the given keys."""
    is_file = request.param == "sqlite"
    url = "" if is_file else request.getfixturevalue("database_url")
    with ExitStack() as stack:

        def open_with(*keys: bytes) -> CredentialStore:
            store: CredentialStore
            if is_file:
                store = SqliteCredentialStore(
                    tmp_path / "credentials.db", lambda: CredentialKeys(keys or (ONE,))
                )
            else:
                database = open_database(url)
                assert database is not None
                stack.callback(database.close)
                store = SharedCredentialStore(database, lambda: CredentialKeys(keys or (ONE,)))
            stack.callback(store.close)
            return store

        yield open_with


def test_credentials_are_separate_for_each_user_and_server(open_store: OpenStore) -> None:
    store = open_store()
    store.set("ann", "git", "TOKEN", "a-git")
    store.set("ann", "mail", "TOKEN", "a-mail")
    store.set("bob", "git", "TOKEN", "b-git")
    store.set(OWNER, "git", "TOKEN", "owner")
    assert store.load("ann", "git") == {"TOKEN": "a-git"}
    assert store.load("bob", "git") == {"TOKEN": "b-git"}
    assert store.load(OWNER, "git") == {"TOKEN": "owner"}
    assert store.load("bob", "mail") == {}
    assert [each.owner for each in store.list_credentials("ann")] == [
        ("ann", "git", "TOKEN"),
        ("ann", "mail", "TOKEN"),
    ]


def test_credential_written_through_one_store_object_can_be_read_through_another_store_object(
    open_store: OpenStore,
) -> None:
    one, other = open_store(), open_store()
    assert other.find_version("ann", "git") == ""
    one.set("ann", "git", "TOKEN", "first")
    wait_until(lambda: other.find_version("ann", "git") != "")
    before = other.find_version("ann", "git")
    assert other.load("ann", "git") == {"TOKEN": "first"}
    one.set("ann", "git", "TOKEN", "second")
    wait_until(lambda: other.find_version("ann", "git") != before)
    assert other.load("ann", "git") == {"TOKEN": "second"}
    assert one.remove("ann", "git") == 1
    wait_until(lambda: other.find_version("ann", "git") == "")
    assert one.remove("ann", "git") == 0


def test_list_key_ids_returns_the_keys_that_encrypt_stored_credentials_and_logins(
    open_store: OpenStore,
) -> None:
    old, new = open_store(ONE), open_store(TWO)
    assert old.list_key_ids() == set()
    old.set("ann", "git", "TOKEN", "secret")
    old.set("bob", "git", "TOKEN", "secret")
    assert old.list_key_ids() == {old.keys.primary}
    new.save_login("ann", "git", "first", "login", is_new=True)
    assert old.list_key_ids() == {old.keys.primary, new.keys.primary}


def test_all_credentials_of_a_user_can_be_removed(open_store: OpenStore) -> None:
    store = open_store()
    for user, server, name in (
        ("ann", "git", "A"),
        ("ann", "git", "B"),
        ("ann", "mail", "A"),
        ("bob", "x", "A"),
    ):
        store.set(user, server, name, "secret")
    assert store.remove("ann", "git", "A") == 1
    assert store.remove("ann") == 2
    assert [each.owner for each in store.list_credentials()] == [("bob", "x", "A")]


def test_stored_credentials_do_not_contain_the_secret_in_clear_text(open_store: OpenStore) -> None:
    store = open_store()
    store.set("ann", "git", "TOKEN", "very-secret-value")
    store.set("ann", "git", "OTHER", "very-secret-value")
    values = [each.value for each in store.list_credentials()]
    assert "very-secret-value" not in repr(values)
    assert values[0].split(".")[2] != values[1].split(".")[2]


def test_encrypted_credential_copied_to_another_user_or_server_or_name_cannot_be_decrypted(
    open_store: OpenStore,
) -> None:
    store = open_store()
    store.set("ann", "git", "TOKEN", "secret")
    (stored,) = store.list_credentials()
    for owner in (("bob", "git", "TOKEN"), ("ann", "mail", "TOKEN"), ("ann", "git", "OTHER")):
        with pytest.raises(UnreadableCredential, match="copied from another"):
            store.keys.decrypt(stored.value, owner)


def test_loading_credentials_with_the_wrong_key_raises_and_leaves_them_readable_with_the_right_key(
    open_store: OpenStore,
) -> None:
    open_store(ONE).set("ann", "git", "TOKEN", "secret")
    wrong = open_store(TWO)
    with pytest.raises(UnreadableCredential, match="which is not configured here") as raised:
        wrong.load("ann", "git")
    assert "secret" not in str(raised.value)
    with pytest.raises(UnreadableCredential):
        wrong.rotate()
    assert open_store(ONE).load("ann", "git") == {"TOKEN": "secret"}


def test_key_rotation_encrypts_all_credentials_with_the_new_key_and_the_old_key_can_be_removed(
    open_store: OpenStore,
) -> None:
    old = open_store(ONE)
    for number in range(5):
        old.set(f"user{number}", "git", "TOKEN", f"secret{number}")
    both = open_store(TWO, ONE)
    assert both.rotate() == 5
    assert both.rotate() == 0
    new = open_store(TWO)
    assert {each.key_id for each in new.list_credentials()} == {new.keys.primary}
    assert new.load("user3", "git") == {"TOKEN": "secret3"}


def test_key_rotation_changes_no_credential_if_one_credential_cannot_be_decrypted(
    open_store: OpenStore,
) -> None:
    open_store(ONE).set("ann", "git", "TOKEN", "one")
    lost = bytes(range(64, 96))
    open_store(lost).set("bob", "git", "TOKEN", "two")
    before = open_store(ONE).list_credentials()
    with pytest.raises(UnreadableCredential):
        open_store(TWO, ONE).rotate()
    assert open_store(ONE).list_credentials() == before


@pytest.mark.parametrize(("name", "secret"), [("1A", "x"), ("A-B", "x"), ("", "x"), ("A", ""), ("A", "x\0")])
def test_credentials_with_invalid_names_or_values_are_refused(
    open_store: OpenStore, name: str, secret: str
) -> None:
    with pytest.raises(ConfigError):
        open_store().set("ann", "git", name, secret)


def test_credential_file_and_key_file_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    keys = load_keys("", tmp_path / "keys" / "credentials.key", may_create=True)
    store = SqliteCredentialStore(tmp_path / "credentials.db", lambda: keys)
    store.set("ann", "git", "TOKEN", "very-secret-value")
    store.close()
    for file in (tmp_path / "keys" / "credentials.key", tmp_path / "credentials.db"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert b"very-secret-value" not in (tmp_path / "credentials.db").read_bytes()
    again = load_keys("", tmp_path / "keys" / "credentials.key", may_create=True)
    assert again.ids == keys.ids


def test_key_file_readable_by_other_users_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "credentials.key"
    load_keys("", file, may_create=True)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="other users of this machine"):
        load_keys("", file, may_create=True)


@pytest.mark.parametrize("text", ["short", "AAAA", "%%%", "=" * 44])
def test_invalid_encryption_keys_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        load_keys(text, tmp_path / "unused", may_create=True)


def test_missing_key_file_that_may_not_be_created_raises_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_keys("", tmp_path / "missing", may_create=False)


def test_loading_a_credential_whose_stored_value_is_damaged_raises_unreadable_credential(
    tmp_path: Path,
) -> None:
    store = SqliteCredentialStore(tmp_path / "credentials.db", lambda: CredentialKeys((ONE,)))
    store.set("ann", "git", "TOKEN", "secret")
    (stored,) = store.list_credentials()
    for value in (stored.value[:-8] + "AAAAAAA=", stored.value[:20], "v1", "plain"):
        with sqlite3.connect(tmp_path / "credentials.db") as db:
            db.execute("UPDATE credentials SET value = ?", (value,))
        db.close()
        with pytest.raises(UnreadableCredential):
            store.load("ann", "git")
    store.close()


def test_credential_moved_to_another_user_in_the_database_is_refused(open_store: OpenStore) -> None:
    store: Any = open_store()
    store.set("ann", "git", "TOKEN", "secret")
    (stored,) = store.list_credentials()
    store._write([type(stored)("bob", "git", "TOKEN", stored.value, 0.0)])
    with pytest.raises(UnreadableCredential):
        store.load("bob", "git")


def test_opening_a_credential_file_that_is_not_a_database_raises_config_error(tmp_path: Path) -> None:
    file = tmp_path / "credentials.db"
    file.write_bytes(b"not a database" * 100)
    with pytest.raises(ConfigError, match="the credentials cannot be opened"):
        SqliteCredentialStore(file, lambda: CredentialKeys([ONE]))
