"""`toolfold token`: create, list and revoke tokens."""

from __future__ import annotations

import json

from tests.cli.conftest import Toolfold


def test_new_token_is_printed_by_the_token_add_command_and_not_by_the_token_list_command(
    toolfold: Toolfold,
) -> None:
    token = toolfold("token", "add", "laptop").out.strip()
    assert token.startswith("tf_")
    listed = json.loads(toolfold("token", "list", "--json").out)
    assert [each["name"] for each in listed] == ["laptop"]
    assert token not in toolfold("token", "list").out


def test_token_add_command_with_an_unknown_toolset_creates_no_token(toolfold: Toolfold) -> None:
    assert toolfold("mcp", "add", "--no-test", "--yes", "git", "run").code == 0
    done = toolfold("token", "add", "laptop", "--toolset", "mcp-gti")
    assert done.code == 4
    assert "Did you mean mcp-git?" in done.err
    assert json.loads(toolfold("token", "list", "--json").out) == []


def test_token_revoke_command_removes_a_token_and_fails_for_an_unknown_client_name(
    toolfold: Toolfold,
) -> None:
    toolfold("token", "add", "laptop")
    assert toolfold("token", "revoke", "laptop").code == 0
    done = toolfold("token", "revoke", "laptop")
    assert done.code == 4
    assert "there is no token for 'laptop'" in done.err


def test_creating_the_first_token_warns_that_every_client_now_needs_a_token(toolfold: Toolfold) -> None:
    assert "every client of `toolfold serve` needs a token" in toolfold("token", "add", "laptop").err
    assert "every client" not in toolfold("token", "add", "desktop").err
    assert "last token" not in toolfold("token", "revoke", "desktop").err
    assert "Clients still need one" in toolfold("token", "revoke", "laptop").err


def test_token_limited_to_toolsets_can_use_models_only_if_created_with_the_option_models(
    toolfold: Toolfold,
) -> None:
    toolfold("token", "add", "whole")
    toolfold("token", "add", "limited", "--toolset", "web")
    toolfold("token", "add", "allowed", "--toolset", "web", "--models")
    listed = json.loads(toolfold("token", "list", "--json").out)
    assert {each["name"]: each["models"] for each in listed} == {
        "whole": True,
        "limited": False,
        "allowed": True,
    }
    assert "with its own key" in toolfold("token", "list").out
