"""`toolfold credentials`: store, list and remove credentials, and replace their key."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Done, Toolfold
from toolfold.state.credentials import SqliteCredentialStore
from toolfold.state.credentials.keys import MAX_KEYS, load_keys, make_key


@pytest.fixture
def store(toolfold: Toolfold, monkeypatch: pytest.MonkeyPatch) -> Toolfold:
    """Run `toolfold credentials set …` with a secret, the first argument, as standard input."""
    toolfold("user", "add", "ann")
    toolfold("mcp", "add", "--no-test", "--yes", "git", "run")
    toolfold("config", "set", "mcp.servers.git.credentials", "per-user")

    def call(*arguments: str) -> Done:
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{arguments[0]}\n"))
        return toolfold("credentials", "set", *arguments[1:])

    return call


def list_stored(toolfold: Toolfold) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(toolfold("credentials", "list", "--json").out)
    return found


def test_credential_stored_for_a_user_is_listed_without_its_value(
    store: Toolfold, toolfold: Toolfold
) -> None:
    done = store("very-secret", "git", "TOKEN", "--user", "ann")
    assert done.code == 0
    assert "very-secret" not in done.out + done.err
    assert store("for-listing", "git", "TOKEN").code == 0
    assert [(each["user"], each["name"]) for each in list_stored(toolfold)] == [
        ("(owner)", "TOKEN"),
        ("ann", "TOKEN"),
    ]
    assert "very-secret" not in toolfold("credentials", "list").out


def test_user_credential_is_refused_for_an_unknown_server_or_a_server_with_shared_credentials(
    store: Toolfold, toolfold: Toolfold
) -> None:
    assert store("x", "gti", "TOKEN", "--user", "ann").code == 4
    assert store("x", "git", "TOKEN", "--user", "nobody").code != 0
    toolfold("config", "set", "mcp.servers.git.credentials", "shared")
    done = store("x", "git", "TOKEN", "--user", "ann")
    assert done.code == 3
    assert "share the credentials" in done.err
    assert list_stored(toolfold) == []


def test_credentials_remove_command_deletes_one_credential_and_user_remove_command_deletes_all(
    store: Toolfold, toolfold: Toolfold
) -> None:
    for name in ("ONE", "TWO", "THREE"):
        store("secret", "git", name, "--user", "ann")
    assert toolfold("credentials", "remove", "git", "ONE", "--user", "ann").code == 0
    assert toolfold("credentials", "remove", "git", "ONE", "--user", "ann").code == 4
    assert len(list_stored(toolfold)) == 2
    assert toolfold("user", "remove", "ann", "--yes").code == 0
    assert list_stored(toolfold) == []


def test_mcp_logout_deletes_a_stored_login_even_if_the_login_cannot_be_decrypted(
    store: Toolfold, toolfold: Toolfold, home: Path
) -> None:
    store("secret", "git", "TOKEN", "--user", "ann")
    user_id = json.loads(toolfold("user", "list", "--json").out)[0]["id"]
    file = home / "credentials.key"
    credentials = SqliteCredentialStore(
        home / "state/credentials.db", lambda: load_keys("", file, may_create=False)
    )
    credentials.save_login(user_id, "git", "first", "{}", is_new=True)
    file.write_text(make_key())
    done = toolfold("mcp", "logout", "git", "--user", "ann")
    assert (done.code, done.out.strip()) == (0, "logged out of git")
    assert "not be revoked" in done.err
    assert credentials.list_credentials()[0].name == "TOKEN"
    assert "there was no stored login" in toolfold("mcp", "logout", "git", "--user", "ann").out
    credentials.close()


def test_rotate_key_command_reencrypts_stored_credentials_and_can_remove_the_old_key(
    store: Toolfold, toolfold: Toolfold, home: Path
) -> None:
    store("secret", "git", "TOKEN", "--user", "ann")
    before = list_stored(toolfold)[0]["key"]
    assert "1 credentials were encrypted" in toolfold("credentials", "rotate-key").out
    after = list_stored(toolfold)[0]["key"]
    assert after != before
    (file,) = home.rglob("credentials.key")
    assert len(file.read_text().split()) == 2
    assert "1 keys were removed" in toolfold("credentials", "rotate-key", "--retire").out
    assert len(file.read_text().split()) == 1
    assert "0 credentials were encrypted" not in toolfold("credentials", "rotate-key").out


def test_rotate_key_command_is_refused_if_the_key_file_already_has_the_maximum_number_of_keys(
    store: Toolfold, toolfold: Toolfold, home: Path
) -> None:
    store("secret", "git", "TOKEN", "--user", "ann")
    (file,) = home.rglob("credentials.key")
    file.write_text(file.read_text() + "".join(f"{make_key()}\n" for _ in range(MAX_KEYS - 1)))
    done = toolfold("credentials", "rotate-key")
    assert done.code == 3
    assert "rotate-key --retire" in done.err
    assert len(file.read_text().split()) == MAX_KEYS
    file.write_text(file.read_text() + make_key())  # too many, as an older version could write them
    assert toolfold("credentials", "rotate-key", "--retire").code == 0
    assert len(file.read_text().split()) == 1
    assert "1 credentials were encrypted" in toolfold("credentials", "rotate-key").out


def test_rotate_key_command_can_add_a_key_first_and_encrypt_credentials_with_the_key_later(
    store: Toolfold, toolfold: Toolfold, home: Path
) -> None:
    store("secret", "git", "TOKEN", "--user", "ann")
    before = list_stored(toolfold)[0]["key"]
    assert "added the key" in toolfold("credentials", "rotate-key", "--add").out
    assert list_stored(toolfold)[0]["key"] == before
    assert "1 credentials were encrypted" in toolfold("credentials", "rotate-key", "--encrypt").out
    assert list_stored(toolfold)[0]["key"] != before
    (file,) = home.rglob("credentials.key")
    assert len(file.read_text().split()) == 2


def test_rotate_key_command_without_option_add_is_refused_if_replicas_share_a_database(
    toolfold: Toolfold,
) -> None:
    toolfold("config", "set", "store", "postgresql://toolfold@127.0.0.1:1/toolfold")
    done = toolfold("credentials", "rotate-key")
    assert done.code == 3
    assert "rotate-key --add" in done.err


def test_rotate_key_command_fails_without_data_loss_if_the_key_of_a_stored_credential_is_missing(
    store: Toolfold, toolfold: Toolfold, home: Path
) -> None:
    store("secret", "git", "TOKEN", "--user", "ann")
    (file,) = home.rglob("credentials.key")
    key = file.read_text()
    file.write_text(toolfold("credentials", "generate-key").out)
    done = toolfold("credentials", "rotate-key")
    assert done.code == 3
    assert "which is not configured here" in done.err
    file.write_text(key)
    assert toolfold("credentials", "rotate-key").code == 0
