"""Tokens: lookup, revocation, storage as hashes and errors."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from toolfold.core.errors import ConfigError
from toolfold.serving.gateway.client_tokens import Tokens


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "gateway" / "tokens.json")


def test_looking_up_a_client_token_returns_its_client_name_and_toolsets(
    tokens: Tokens,
) -> None:
    token = tokens.add("bob", ["mcp-github"])
    found = tokens.find(token)
    assert found is not None
    assert (found.name, found.toolsets) == ("bob", ("mcp-github",))


def test_token_file_is_readable_only_by_its_owner_and_contains_no_token_in_plain_text(
    tokens: Tokens, tmp_path: Path
) -> None:
    token = tokens.add("bob")
    file = tmp_path / "gateway" / "tokens.json"
    assert token not in file.read_text()
    assert token.removeprefix("tf_") not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("wrong", ["", "tf_", "bob", "sha256:", "\ud800", "tf_" + "x" * 43])
def test_looking_up_an_unknown_client_token_returns_none(tokens: Tokens, wrong: str) -> None:
    tokens.add("bob")
    assert tokens.find(wrong) is None


def test_stored_hash_of_a_token_is_not_accepted_as_a_token(tokens: Tokens, tmp_path: Path) -> None:
    import json

    tokens.add("bob")
    kept = json.loads((tmp_path / "gateway" / "tokens.json").read_text())["bob"]["hash"]
    assert tokens.find(kept) is None


def test_token_revoked_by_another_process_is_refused_without_a_restart_of_the_gateway(
    tokens: Tokens, tmp_path: Path
) -> None:
    token = tokens.add("bob")
    assert tokens.find(token)
    assert Tokens(tmp_path / "gateway" / "tokens.json").revoke("bob")
    assert tokens.find(token) is None
    assert not tokens.revoke("bob")


def test_second_token_for_the_same_client_name_is_rejected(tokens: Tokens) -> None:
    tokens.add("bob")
    with pytest.raises(ConfigError, match="already"):
        tokens.add("bob")


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 65, "ä"])
def test_token_for_an_invalid_client_name_is_rejected(tokens: Tokens, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name"):
        tokens.add(name)


@pytest.mark.parametrize(
    "broken", ["", "{", "[]", '{"bob": {}}', '{"bob": {"hash": 1, "toolsets": [], "created": 0}}']
)
def test_looking_up_a_token_in_a_damaged_token_file_raises_config_error(
    tokens: Tokens, tmp_path: Path, broken: str
) -> None:
    token = tokens.add("bob")
    (tmp_path / "gateway" / "tokens.json").write_text(broken)
    with pytest.raises(ConfigError, match="cannot be read"):
        tokens.find(token)
