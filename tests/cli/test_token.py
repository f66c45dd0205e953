"""Tokens of the gateway from the command line: made once, listed without themselves, revoked."""

from __future__ import annotations

import json

from tests.cli.conftest import Toolfold


def test_a_token_is_shown_once_and_listed_without_itself(toolfold: Toolfold) -> None:
    token = toolfold("token", "add", "laptop").out.strip()
    assert token.startswith("tf_")
    listed = json.loads(toolfold("token", "list", "--json").out)
    assert [each["name"] for each in listed] == ["laptop"]
    assert token not in toolfold("token", "list").out


def test_a_typo_in_a_toolset_makes_no_token(toolfold: Toolfold) -> None:
    assert toolfold("mcp", "add", "--no-test", "--yes", "git", "run").code == 0
    done = toolfold("token", "add", "laptop", "--toolset", "mcp-gti")
    assert done.code == 4
    assert "Did you mean mcp-git?" in done.err
    assert json.loads(toolfold("token", "list", "--json").out) == []


def test_a_revoked_client_is_gone_and_a_stranger_cannot_be_revoked(toolfold: Toolfold) -> None:
    toolfold("token", "add", "laptop")
    assert toolfold("token", "revoke", "laptop").code == 0
    done = toolfold("token", "revoke", "laptop")
    assert done.code == 4
    assert "nobody called laptop" in done.err


def test_the_first_token_says_that_every_client_needs_one(toolfold: Toolfold) -> None:
    assert "every client of `toolfold serve` needs a token" in toolfold("token", "add", "laptop").err
    assert "every client" not in toolfold("token", "add", "desktop").err
    assert "last token" not in toolfold("token", "revoke", "desktop").err
    assert "Clients still need one" in toolfold("token", "revoke", "laptop").err
