"""`toolfold credentials`: store, list and remove credentials, and replace their key."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Done, Toolfold


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


def test_credential_is_stored_and_listed_without_its_value(store: Toolfold, toolfold: Toolfold) -> None:
    done = store("very-secret", "git", "TOKEN", "--user", "ann")
    assert done.code == 0
    assert "very-secret" not in done.out + done.err
    assert store("for-listing", "git", "TOKEN").code == 0
    assert [(each["user"], each["name"]) for each in list_stored(toolfold)] == [
        ("(owner)", "TOKEN"),
        ("ann", "TOKEN"),
    ]
    assert "very-secret" not in toolfold("credentials", "list").out


def test_credential_for_an_unknown_server_or_one_with_shared_credentials_is_refused(
    store: Toolfold, toolfold: Toolfold
) -> None:
    assert store("x", "gti", "TOKEN", "--user", "ann").code == 4
    assert store("x", "git", "TOKEN", "--user", "nobody").code != 0
    toolfold("config", "set", "mcp.servers.git.credentials", "shared")
    done = store("x", "git", "TOKEN", "--user", "ann")
    assert done.code == 3
    assert "share the credentials" in done.err
    assert list_stored(toolfold) == []


def test_credentials_can_be_removed_one_by_one_and_are_removed_with_their_user(
    store: Toolfold, toolfold: Toolfold
) -> None:
    for name in ("ONE", "TWO", "THREE"):
        store("secret", "git", name, "--user", "ann")
    assert toolfold("credentials", "remove", "git", "ONE", "--user", "ann").code == 0
    assert toolfold("credentials", "remove", "git", "ONE", "--user", "ann").code == 4
    assert len(list_stored(toolfold)) == 2
    assert toolfold("user", "remove", "ann").code == 0
    assert list_stored(toolfold) == []


def test_rotate_key_encrypts_credentials_with_a_new_key_and_can_remove_the_old_key(
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


def test_missing_encryption_key_is_reported_and_the_credential_is_kept(
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
