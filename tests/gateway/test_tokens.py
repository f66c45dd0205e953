"""Tokens let in whom they were made for, and cannot be read back."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from toolfold.errors import ConfigError
from toolfold.gateway.tokens import Tokens


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "gateway" / "tokens.json")


def test_a_token_is_known_by_its_owner_and_grants_what_it_was_made_for(tokens: Tokens) -> None:
    token = tokens.add("bob", ["mcp-github"])
    found = tokens.find(token)
    assert found is not None
    assert (found.name, found.toolsets) == ("bob", ("mcp-github",))


def test_what_is_kept_is_not_the_token_and_only_its_owner_can_read_it(tokens: Tokens, tmp_path: Path) -> None:
    token = tokens.add("bob")
    file = tmp_path / "gateway" / "tokens.json"
    assert token not in file.read_text()
    assert token.removeprefix("tf_") not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("wrong", ["", "tf_", "bob", "sha256:", "\ud800", "tf_" + "x" * 43])
def test_anything_else_is_nobodys(tokens: Tokens, wrong: str) -> None:
    tokens.add("bob")
    assert tokens.find(wrong) is None


def test_the_hash_itself_opens_nothing(tokens: Tokens, tmp_path: Path) -> None:
    import json

    tokens.add("bob")
    kept = json.loads((tmp_path / "gateway" / "tokens.json").read_text())["bob"]["hash"]
    assert tokens.find(kept) is None


def test_a_revoked_token_is_nobodys_at_once_also_for_a_gateway_that_runs(
    tokens: Tokens, tmp_path: Path
) -> None:
    token = tokens.add("bob")
    assert tokens.find(token)
    assert Tokens(tmp_path / "gateway" / "tokens.json").revoke("bob")
    assert tokens.find(token) is None
    assert not tokens.revoke("bob")


def test_one_name_has_one_token(tokens: Tokens) -> None:
    tokens.add("bob")
    with pytest.raises(ConfigError, match="already"):
        tokens.add("bob")


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 65, "ä"])
def test_a_name_is_one_that_can_be_shown(tokens: Tokens, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name"):
        tokens.add(name)


@pytest.mark.parametrize(
    "broken", ["", "{", "[]", '{"bob": {}}', '{"bob": {"hash": 1, "toolsets": [], "created": 0}}']
)
def test_a_broken_file_is_an_error_and_lets_nobody_in(tokens: Tokens, tmp_path: Path, broken: str) -> None:
    token = tokens.add("bob")
    (tmp_path / "gateway" / "tokens.json").write_text(broken)
    with pytest.raises(ConfigError, match="cannot be read"):
        tokens.find(token)
