"""Stored OAuth logins: one contract, checked with files, encrypted in SQLite and encrypted in PostgreSQL.

Also the links with which users log in, in memory and in PostgreSQL.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.postgres import run_postgres
from tests.store.test_shared_state import wait_until
from toolfold.core.errors import ConfigError
from toolfold.mcp.oauth import unsaved_logins
from toolfold.mcp.oauth.login_store import (
    DeletedLogins,
    EncryptedLoginStore,
    FileLoginStore,
    Login,
    LoginStore,
)
from toolfold.mcp.oauth.unsaved_logins import UnsavedLogins
from toolfold.serving.gateway import login_links
from toolfold.serving.gateway.login_links import LocalLoginLinks, LoginLink, LoginLinks, SharedLoginLinks
from toolfold.state.credentials import (
    OWNER,
    CredentialKeys,
    CredentialStore,
    SharedCredentialStore,
    SqliteCredentialStore,
    load_keys,
)
from toolfold.state.credentials.keys import add_key, remove_keys
from toolfold.state.database import Database, open_database

ONE, TWO = bytes(range(32)), bytes(range(32, 64))
URL = "https://notes.example/mcp"
OpenLogins = Callable[..., LoginStore]
OpenCredentials = Callable[..., CredentialStore]


def make_login(token: str = "token-1", *, login_id: str = "first", **fields: object) -> Login:
    login = Login(
        server="notes",
        url=URL,
        issuer="https://issuer.example",
        client={"client_id": "us"},
        tokens={"access_token": token, "refresh_token": f"refresh-{token}", "scope": "read"},
        obtained=1.0,
        id=login_id,
    )
    return replace(login, **fields)  # type: ignore[arg-type]


@pytest.fixture(params=["sqlite", "postgres"])
def open_credentials(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenCredentials]:
    """Return a function that opens the credentials with the given keys, as another process does."""
    url = request.getfixturevalue("database_url") if request.param == "postgres" else ""
    with ExitStack() as stack:

        def open_with(*keys: bytes, load: Callable[[], CredentialKeys] | None = None) -> CredentialStore:
            store: CredentialStore
            load = load or (lambda: CredentialKeys(keys or (ONE,)))
            if not url:
                store = SqliteCredentialStore(tmp_path / "c.db", load)
            else:
                opened = open_database(url)
                assert opened is not None
                stack.callback(opened.close)
                store = SharedCredentialStore(opened, load)
            stack.callback(store.close)
            return store

        yield open_with


@pytest.fixture(params=["files", "sqlite", "postgres"])
def open_logins(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenLogins]:
    """Return a function that opens the logins of the installation, as another process does."""
    with ExitStack() as stack:

        def open_one() -> LoginStore:
            if request.param == "files":
                return FileLoginStore(tmp_path / "oauth")
            if request.param == "sqlite":
                store: CredentialStore = SqliteCredentialStore(
                    tmp_path / "c.db", lambda: CredentialKeys([ONE])
                )
            else:
                opened = open_database(request.getfixturevalue("database_url"))
                assert opened is not None
                stack.callback(opened.close)
                store = SharedCredentialStore(opened, lambda: CredentialKeys([ONE]))
            stack.callback(store.close)
            return EncryptedLoginStore(lambda: store, OWNER)

        yield open_one


class TestContract:
    def test_login_stored_by_one_process_is_found_by_another_only_for_the_same_url(
        self, open_logins: OpenLogins
    ) -> None:
        one, other = open_logins(), open_logins()
        assert other.find("notes", URL) is None
        one.save(make_login(), is_new=True)
        assert other.find("notes", URL) == make_login()
        assert other.find("notes", "https://other.example/mcp") is None
        assert other.find("mail", URL) is None

    def test_refreshed_tokens_are_immediately_visible_to_other_processes(
        self, open_logins: OpenLogins
    ) -> None:
        one, other = open_logins(), open_logins()
        one.save(make_login(), is_new=True)
        other.save(make_login("token-2"))
        found = one.find("notes", URL)
        assert found is not None
        assert (found.token, found.refresh_token) == ("token-2", "refresh-token-2")

    def test_login_version_changes_with_a_new_login_but_not_with_a_refresh(
        self, open_logins: OpenLogins
    ) -> None:
        one, other = open_logins(), open_logins()
        assert other.find_version("notes") == ""
        one.save(make_login(), is_new=True)
        wait_until(lambda: other.find_version("notes") != "")
        version = other.find_version("notes")
        one.save(make_login("token-2"))
        assert one.find_version("notes") == version
        one.save(make_login("token-3", login_id="second"), is_new=True)
        wait_until(lambda: other.find_version("notes") not in ("", version))
        found = other.find("notes", URL)
        assert found is not None
        assert found.id == "second"

    def test_login_deleted_or_replaced_during_a_refresh_is_not_restored(
        self, open_logins: OpenLogins
    ) -> None:
        one, other = open_logins(), open_logins()
        one.save(make_login(), is_new=True)
        assert [each.token for each in other.delete("notes").readable] == ["token-1"]
        one.save(make_login("token-2"))
        assert other.find("notes", URL) is None
        assert other.delete("notes") == DeletedLogins(0)
        other.save(make_login("token-3", login_id="second"), is_new=True)
        one.save(make_login("token-4"))
        found = other.find("notes", URL)
        assert found is not None
        assert found.token == "token-3"

    async def test_only_one_process_at_a_time_can_lock_an_operation_on_a_login(
        self, open_logins: OpenLogins
    ) -> None:
        one, other = open_logins(), open_logins()
        async with one.hold("notes", "renewal", 10.0, duration_s=60.0):
            with pytest.raises(TimeoutError):
                async with other.hold("notes", "renewal", 0.3, duration_s=60.0):
                    pass
            async with other.hold("mail", "renewal", 10.0, duration_s=60.0):
                pass
        async with other.hold("notes", "renewal", 10.0, duration_s=60.0):
            pass


class TestEncryptedLogins:
    def test_login_of_a_user_is_not_used_for_other_users_or_as_the_shared_login_of_all_users(
        self, open_credentials: OpenCredentials
    ) -> None:
        store = open_credentials()
        ann, bob, owner = (EncryptedLoginStore(lambda: store, each) for each in ("ann", "bob", OWNER))
        ann.save(make_login("token-of-ann"), is_new=True)
        assert bob.find("notes", URL) is None
        assert owner.find("notes", URL) is None
        bob.save(make_login("token-of-bob", login_id="other"), is_new=True)
        found = ann.find("notes", URL)
        assert found is not None
        assert found.token == "token-of-ann"
        assert bob.delete("notes").readable[0].token == "token-of-bob"
        assert ann.find("notes", URL) is not None

    def test_login_is_listed_without_tokens_and_not_loaded_as_a_credential(
        self, open_credentials: OpenCredentials
    ) -> None:
        store = open_credentials()
        EncryptedLoginStore(lambda: store, "ann").save(make_login(), is_new=True)
        store.set("ann", "notes", "TOKEN", "secret")
        listed = store.list_credentials("ann")
        assert [(each.name, each.is_login) for each in listed] == [("TOKEN", False), ("login:first", True)]
        assert "token-1" not in repr(listed)
        assert store.load("ann", "notes") == {"TOKEN": "secret"}

    def test_removing_the_credentials_of_a_user_removes_the_login(
        self, open_credentials: OpenCredentials
    ) -> None:
        store, other = open_credentials(), open_credentials()
        for user in ("ann", "bob"):
            EncryptedLoginStore(lambda: store, user).save(make_login(), is_new=True)
        assert store.remove("ann", "notes", "TOKEN") == 0
        assert store.remove("ann") == 1
        assert EncryptedLoginStore(lambda: other, "ann").find("notes", URL) is None
        assert EncryptedLoginStore(lambda: other, "bob").find("notes", URL) is not None
        wait_until(lambda: other.find_version("ann", "notes") == "")

    def test_key_rotation_encrypts_logins_with_the_new_key(self, open_credentials: OpenCredentials) -> None:
        EncryptedLoginStore(lambda: open_credentials(ONE), "ann").save(make_login(), is_new=True)
        both = open_credentials(TWO, ONE)
        both.set("ann", "notes", "TOKEN", "secret")
        assert both.rotate() == 1
        new = open_credentials(TWO)
        assert EncryptedLoginStore(lambda: new, "ann").find("notes", URL) == make_login()
        assert {each.key_id for each in new.list_credentials()} == {new.keys.primary}
        old = open_credentials(ONE)
        assert EncryptedLoginStore(lambda: old, "ann").find("notes", URL) is None

    def test_running_process_encrypts_new_and_refreshed_logins_with_a_replaced_key(
        self, open_credentials: OpenCredentials, tmp_path: Path
    ) -> None:
        file = tmp_path / "credentials.key"
        load_keys("", file, may_create=True)
        running = open_credentials(load=lambda: load_keys("", file, may_create=False))
        logins = EncryptedLoginStore(lambda: running, "ann")
        logins.save(make_login(), is_new=True)
        old = running.keys.primary
        new = add_key(file)
        administration = open_credentials(load=lambda: load_keys("", file, may_create=False))
        assert administration.rotate() == 1
        remove_keys(file, administration.list_key_ids())
        for is_new in (False, True):
            logins.save(make_login("token-2"), is_new=is_new)
            assert administration.list_key_ids() == {new} != {old}
            found = EncryptedLoginStore(lambda: administration, "ann").find("notes", URL)
            assert found == make_login("token-2")

    def test_requiring_encryption_keys_raises_config_error_after_the_key_file_is_deleted(
        self, open_credentials: OpenCredentials, tmp_path: Path
    ) -> None:
        file = tmp_path / "credentials.key"
        load_keys("", file, may_create=True)
        store = open_credentials(load=lambda: load_keys("", file, may_create=False))
        logins = EncryptedLoginStore(lambda: store, "ann")
        logins.require_keys()
        file.unlink()
        with pytest.raises(ConfigError, match="cannot be read"):
            logins.require_keys()

    def test_lock_on_a_login_expires_if_its_process_has_ended(
        self, open_credentials: OpenCredentials
    ) -> None:
        store = open_credentials()

        async def hold_twice() -> None:
            logins = EncryptedLoginStore(lambda: store, "ann")
            held = logins.hold("notes", "renewal", 1.0, duration_s=0.2)
            await held.__aenter__()  # its process ends before it releases the lease
            async with EncryptedLoginStore(lambda: store, "ann").hold(
                "notes", "renewal", 10.0, duration_s=1.0
            ):
                pass

        asyncio.run(hold_twice())

    def test_fresh_version_lookup_returns_the_login_version_just_stored_by_another_process(
        self, open_credentials: OpenCredentials
    ) -> None:
        store, other = open_credentials(), open_credentials()
        for login_id in ("first", "second"):
            EncryptedLoginStore(lambda: store, "ann").save(make_login(login_id=login_id), is_new=True)
            version = other.find_version("ann", "notes", is_fresh=True)
            assert version == store.find_version("ann", "notes") != ""
        store.remove("ann")
        assert other.find_version("ann", "notes", is_fresh=True) == ""


def _is_waiting_for_lock(database: Database) -> bool:
    """Return True if any connection to the database waits for a lock."""
    return bool(database.query("SELECT 1 AS one FROM pg_locks WHERE NOT granted"))


def _read_token(logins: LoginStore) -> str:
    """Return the stored access token; empty if the database cannot be reached."""
    try:
        found = logins.find("notes", URL)
    except ConfigError:
        return ""
    return found.token if found else ""


class TestInDatabase:
    def test_encrypted_login_copied_to_another_user_or_server_is_rejected(
        self, database: Database, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = SharedCredentialStore(database, lambda: CredentialKeys([ONE]))
        ann, bob = (EncryptedLoginStore(lambda: store, each) for each in ("ann", "bob"))
        ann.save(make_login("token-of-ann"), is_new=True)
        bob.save(make_login("token-of-bob"), is_new=True)
        database.execute(
            "UPDATE logins SET (name, value) = (SELECT name, value FROM logins WHERE user_id = 'ann')"
            " WHERE user_id = 'bob'"
        )
        assert bob.find("notes", URL) is None
        assert "copied from another user or server" in caplog.text
        database.execute("UPDATE logins SET server = 'mail' WHERE user_id = 'ann'")
        assert ann.find("mail", URL) is None
        assert "token-of" not in caplog.text

    def test_refreshed_login_is_used_even_if_storing_it_fails_and_is_stored_later(
        self, database: Database, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = SharedCredentialStore(database, lambda: CredentialKeys([ONE]))
        logins, other = (EncryptedLoginStore(lambda: store, "ann") for _ in range(2))
        logins.save(make_login(), is_new=True)
        database.execute("ALTER TABLE logins ADD CONSTRAINT broken CHECK (updated = 0) NOT VALID")
        logins.save(make_login("token-2"))
        assert "will be stored later" in caplog.text
        assert logins.find("notes", URL) == make_login("token-2")
        assert other.find("notes", URL) == make_login()
        database.execute("ALTER TABLE logins DROP CONSTRAINT broken")
        wait_until(lambda: other.find("notes", URL) == make_login("token-2"))
        assert logins.find("notes", URL) == make_login("token-2")

    def test_login_refreshed_while_the_database_is_down_is_stored_after_the_database_restarts(self) -> None:
        with run_postgres() as postgres, ExitStack() as stack:
            url = postgres.create_database()
            stores = []
            for _ in range(2):
                opened = open_database(url)
                assert opened is not None
                stack.callback(opened.close)
                stores.append(SharedCredentialStore(opened, lambda: CredentialKeys([ONE])))
            logins, other = (EncryptedLoginStore(lambda each=each: each, "ann") for each in stores)  # type: ignore[misc]
            logins.save(make_login(), is_new=True)
            postgres.stop()
            logins.save(make_login("token-2", obtained=2.0))
            postgres.start()
            wait_until(lambda: _read_token(other) == "token-2")

    def test_delayed_save_of_a_refreshed_login_keeps_newer_tokens_of_another_replica(
        self, database: Database
    ) -> None:
        store = SharedCredentialStore(database, lambda: CredentialKeys([ONE]))
        unsaved = UnsavedLogins()
        logins = EncryptedLoginStore(lambda: store, "ann", unsaved)
        logins.save(make_login(), is_new=True)
        newer = make_login("token-3", obtained=3.0)
        database.execute("ALTER TABLE logins ADD CONSTRAINT broken CHECK (updated = 0) NOT VALID")
        logins.save(make_login("token-2", obtained=2.0))
        database.execute("ALTER TABLE logins DROP CONSTRAINT broken")
        EncryptedLoginStore(lambda: store, "ann").save(newer)
        unsaved.close()
        assert logins.find("notes", URL) == newer

    def test_refreshed_logins_not_yet_stored_are_stored_on_close_unless_they_were_deleted(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(unsaved_logins, "RETRY_INTERVAL_S", 600.0)
        store, unsaved = SharedCredentialStore(database, lambda: CredentialKeys([ONE])), UnsavedLogins()
        ann, bob = (EncryptedLoginStore(lambda: store, each, unsaved) for each in ("ann", "bob"))
        for each in (ann, bob):
            each.save(make_login(), is_new=True)
        database.execute("ALTER TABLE logins ADD CONSTRAINT broken CHECK (updated = 0) NOT VALID")
        for each in (ann, bob):
            each.save(make_login("token-2"))
        database.execute("ALTER TABLE logins DROP CONSTRAINT broken")
        assert bob.delete("notes").count == 1
        unsaved.close()
        assert EncryptedLoginStore(lambda: store, "ann").find("notes", URL) == make_login("token-2")
        assert EncryptedLoginStore(lambda: store, "bob").find("notes", URL) is None

    @pytest.mark.parametrize("is_cancelled", [False, True])
    async def test_login_lock_granted_after_its_caller_timed_out_or_was_cancelled_is_released(
        self, database: Database, *, is_cancelled: bool
    ) -> None:
        store = SharedCredentialStore(database, lambda: CredentialKeys([ONE]))
        logins = EncryptedLoginStore(lambda: store, "ann")

        async def hold(timeout_s: float) -> None:
            async with logins.hold("notes", "renewal", timeout_s, duration_s=600.0):
                pass

        with closing(database.connect()) as blocker:
            blocker.execute("LOCK TABLE login_leases")
            holding = asyncio.create_task(hold(60.0 if is_cancelled else 0.5))
            await asyncio.to_thread(wait_until, lambda: _is_waiting_for_lock(database))
            if is_cancelled:
                holding.cancel()
            with pytest.raises(asyncio.CancelledError if is_cancelled else TimeoutError):
                await holding
            blocker.rollback()
        await hold(5.0)

    def test_storing_a_login_does_not_make_replicas_read_all_credentials_again(
        self, database: Database
    ) -> None:
        store = SharedCredentialStore(database, lambda: CredentialKeys([ONE]))
        topics: list[str] = []
        for topic in ("credentials", "logins"):
            database.on_change(topic, partial(topics.append, topic))
        store.save_login("ann", "notes", "first", "text", is_new=True)
        wait_until(lambda: "logins" in topics)
        topics.clear()
        store.save_login("ann", "notes", "second", "text", is_new=True)
        wait_until(lambda: "logins" in topics)
        assert "credentials" not in topics
        assert store.remove_login("ann", "notes")
        assert store.find_version("ann", "notes") == ""

    def test_failure_to_store_a_new_login_raises_config_error(self, database: Database) -> None:
        store = SharedCredentialStore(database, lambda: CredentialKeys([ONE]))
        database.execute("ALTER TABLE logins ADD CONSTRAINT broken CHECK (updated = 0) NOT VALID")
        with pytest.raises(ConfigError, match="cannot be stored now"):
            EncryptedLoginStore(lambda: store, "ann").save(make_login(), is_new=True)

    @pytest.mark.parametrize("text", ["{", "[]", '{"version": 9}', json.dumps({"version": 1, "id": 5})])
    def test_damaged_login_is_ignored_and_the_log_asks_to_log_in_again(
        self, database: Database, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = SharedCredentialStore(database, lambda: CredentialKeys([ONE]))
        store.save_login("ann", "notes", "first", text, is_new=True)
        assert EncryptedLoginStore(lambda: store, "ann").find("notes", URL) is None
        assert "log in again" in caplog.text

    def test_oversized_login_is_not_stored(self, database: Database) -> None:
        store = SharedCredentialStore(database, lambda: CredentialKeys([ONE]))
        with pytest.raises(ConfigError, match="characters"):
            store.save_login("ann", "notes", "first", "x" * 500_001, is_new=True)


class TestLinks:
    @pytest.fixture(params=["memory", "postgres"])
    def links(self, request: pytest.FixtureRequest) -> LoginLinks:
        if request.param == "memory":
            return LocalLoginLinks()
        return SharedLoginLinks(request.getfixturevalue("database"))

    def test_login_link_returns_its_user_and_server_only_once(self, links: LoginLinks) -> None:
        code = links.create("ann", "notes")
        assert len(code) >= 43
        assert links.find(code) == links.find(code) == LoginLink("ann", "notes")
        assert links.use(code) == LoginLink("ann", "notes")
        assert links.use(code) is None
        assert links.find(code) is None

    @pytest.mark.parametrize("code", ["", "callback", "\ud800", "x" * 10_000, "nul \0"])
    def test_unknown_login_link_is_invalid(self, links: LoginLinks, code: str) -> None:
        links.create("ann", "notes")
        assert links.find(code) is None
        assert links.use(code) is None

    def test_login_link_is_invalid_after_its_lifetime(
        self, links: LoginLinks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(login_links, "LINK_LIFETIME_S", 0.0)
        code = links.create("ann", "notes")
        assert links.find(code) is None
        assert links.use(code) is None

    def test_oldest_login_links_above_the_limit_for_all_users_become_invalid(
        self, links: LoginLinks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(login_links, "MAX_LINKS", 3)
        codes = [links.create(f"user{number}", "notes") for number in range(5)]
        assert [links.find(each) is not None for each in codes] == [False, False, True, True, True]

    def test_oldest_login_links_of_a_user_above_the_limit_per_user_become_invalid(
        self, links: LoginLinks
    ) -> None:
        of_bob = links.create("bob", "notes")
        codes = [links.create("ann", "notes") for _ in range(login_links.MAX_LINKS_PER_USER + 2)]
        assert [links.find(each) is not None for each in codes[:4]] == [False, False, True, True]
        assert links.find(codes[-1]) is not None
        assert links.find(of_bob) is not None
