"""`toolfold user` and `toolfold team`: add, list, disable and remove users; tokens of users."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from tests.cli.conftest import Toolfold
from tests.cli.test_mcp import SmallServer, make_tool, small  # noqa: F401 - a fixture
from toolfold import open_runtime
from toolfold.config import load_config
from toolfold.config.allowed_tool_entries import AllowedTool
from toolfold.safety.approval.allowed_tools import build_allowed_tools
from toolfold.serving.gateway.client_tokens import open_tokens
from toolfold.state.store.jobs import Job, open_job_store


def test_user_list_and_user_show_commands_print_teams_and_token_names_of_a_user(toolfold: Toolfold) -> None:
    assert toolfold("user", "add", "ann", "--admin").code == 0
    assert toolfold("team", "add", "red").code == 0
    assert toolfold("team", "join", "red", "ann").code == 0
    token = toolfold("token", "add", "laptop", "--user", "ann").out.strip()
    (listed,) = json.loads(toolfold("user", "list", "--json").out)
    assert (listed["name"], listed["teams"], listed["tokens"]) == ("ann", ["red"], ["laptop"])
    shown = toolfold("user", "show", "ann").out
    assert "administrator" in shown
    assert "laptop" in shown
    assert token not in shown
    assert json.loads(toolfold("token", "list", "--json").out)[0]["user"] == "ann"
    assert json.loads(toolfold("team", "list", "--json").out) == [
        {"name": "red", "members": ["ann"], "share_learned": False, "allowed": [], "denied": [], "limits": {}}
    ]


def test_user_can_be_disabled_and_enabled_and_the_user_remove_command_also_removes_the_tokens(
    toolfold: Toolfold,
) -> None:
    toolfold("user", "add", "ann")
    toolfold("token", "add", "laptop", "--user", "ann")
    toolfold("user", "disable", "ann")
    assert "disabled" in toolfold("user", "list").out
    toolfold("user", "enable", "ann")
    assert "disabled" not in toolfold("user", "list").out
    assert toolfold("user", "remove", "ann", "--yes").code == 0
    assert json.loads(toolfold("token", "list", "--json").out) == []
    assert json.loads(toolfold("user", "list", "--json").out) == []


@pytest.mark.parametrize("way", ["command", "store"])
def test_removing_a_user_or_token_deletes_the_scheduled_jobs_and_allowed_tools_of_its_clients(
    toolfold: Toolfold, way: str
) -> None:
    toolfold("user", "add", "ann")
    toolfold("token", "add", "laptop", "--user", "ann")
    toolfold("token", "add", "desk")
    clients = ("laptop", "user:ann", "desk", "other")
    tokens = open_tokens(load_config(), None)  # before the entries are added, like that of a running gateway
    build_allowed_tools(load_config()).add(*(AllowedTool("tool", "wipe", client=each) for each in clients))
    with closing(open_job_store(load_config().paths.state_dir / "jobs.db", None)) as jobs:
        for client in clients:
            jobs.add_job(Job(prompt="p", schedule="daily", times={}, zone="UTC", client=client), max_jobs=10)
        if way == "command":
            assert toolfold("user", "remove", "ann", "--yes").code == 0
            assert toolfold("token", "revoke", "desk").code == 0
        else:
            tokens.users.remove_user("ann")
            assert tokens.revoke("desk")
        assert [job.client for job in jobs.list_jobs()] == ["other"]
    assert tokens.list_clients() == []
    assert load_config().approval.allowed_tools == ("tool:wipe:destructive client=other",)


def test_token_revoke_command_fails_and_lists_tool_permissions_that_could_not_be_deleted(
    toolfold: Toolfold, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolfold("token", "add", "desk")
    monkeypatch.setenv("TOOLFOLD_APPROVAL__ALLOWED_TOOLS", '["tool:wipe:destructive client=desk"]')
    done = toolfold("token", "revoke", "desk")
    assert done.code != 0
    assert "tool:wipe:destructive client=desk" in done.err
    assert "access has ended" in done.err
    assert json.loads(toolfold("token", "list", "--json").out) == []


def test_user_remove_and_team_remove_commands_without_a_terminal_require_the_option_yes(
    toolfold: Toolfold,
) -> None:
    toolfold("user", "add", "ann")
    toolfold("team", "add", "red")
    for kind, name in (("user", "ann"), ("team", "red")):
        done = toolfold(kind, "remove", name)
        assert done.code == 1
        assert "--yes" in done.err
        assert len(json.loads(toolfold(kind, "list", "--json").out)) == 1


def test_team_leave_and_team_remove_commands_print_how_the_access_of_former_members_changes(
    toolfold: Toolfold,
) -> None:
    for name in ("ann", "bob"):
        toolfold("user", "add", name)
    toolfold("team", "add", "red")
    assert "members may use only what" in toolfold("team", "allow", "red", "web").err
    toolfold("team", "deny", "red", "tool:terminal")
    toolfold("team", "limit", "red", "--calls-per-day", "50")
    assert "ann may use only web from now on" in toolfold("team", "join", "red", "ann").err
    toolfold("team", "join", "red", "bob")
    toolfold("user", "allow", "bob", "file")
    left = toolfold("team", "leave", "red", "ann").err
    assert "ann may use everything that is not denied from now on (before: only web)" in left
    assert "is no longer denied tool:terminal" in left
    assert "No longer limited by the team: 50 calls per day" in left
    removed = toolfold("team", "remove", "red", "--yes").err
    assert "bob may no longer use web, unless another rule allows it" in removed
    assert "ann" not in removed


def test_first_tool_rule_of_a_team_causes_a_restriction_warning_even_after_a_model_rule(
    toolfold: Toolfold,
) -> None:
    toolfold("team", "add", "red")
    assert "members may use only what" not in toolfold("team", "allow", "red", "model:gpt-*").err
    assert "members may use only what" in toolfold("team", "allow", "red", "web").err
    assert "members may use only what" not in toolfold("team", "allow", "red", "file").err


def test_user_allow_command_warns_that_the_first_allow_rule_limits_the_user_to_that_toolset(
    toolfold: Toolfold,
) -> None:
    toolfold("user", "add", "ann")
    assert "ann may use only web from now on" in toolfold("user", "allow", "ann", "web").err
    assert "ann may also use file" in toolfold("user", "allow", "ann", "file").err


def test_user_set_command_can_change_role_and_limits_and_identity_of_a_user_at_once(
    toolfold: Toolfold,
) -> None:
    toolfold("user", "add", "ann")
    identity = ("--issuer", "https://login.example", "--subject", "7")
    assert toolfold("user", "set", "ann", "--admin", "--calls-per-day", "9", *identity).code == 0
    shown = json.loads(toolfold("user", "show", "ann", "--json").out)
    assert (shown["admin"], shown["disabled"], shown["subject"]) == (True, False, "7")
    assert [(each["meter"], each["limit"]) for each in shown["limits"]] == [("calls_per_day", 9)]
    assert "disabled" in toolfold("user", "set", "ann", "--no-admin", "--disabled").out
    shown = json.loads(toolfold("user", "show", "ann", "--json").out)
    assert (shown["admin"], shown["disabled"], shown["subject"]) == (False, True, "7")
    assert toolfold("user", "set", "ann").code == 2
    assert toolfold("user", "set", "ann", "--subject", "").code == 3  # an issuer without a subject
    assert toolfold("user", "set", "anne", "--admin").code == 4


def test_team_show_command_prints_members_and_access_rules_and_limits_of_a_team(toolfold: Toolfold) -> None:
    toolfold("user", "add", "ann")
    toolfold("team", "add", "red")
    toolfold("team", "join", "red", "ann")
    toolfold("team", "deny", "red", "web")
    toolfold("team", "limit", "red", "--calls-per-day", "50")
    shown = toolfold("team", "show", "red").out
    for line in ("members   ann", "allowed   no rule", "denied    web", "used      0 of 50 calls per day"):
        assert line in shown
    found = json.loads(toolfold("team", "show", "red", "--json").out)
    assert (found["members"], found["limits"][0]["limit"]) == (["ann"], 50)
    assert toolfold("team", "show", "rde").code == 4


def test_command_for_an_unknown_user_or_team_exits_with_code_4_and_suggests_a_similar_name(
    toolfold: Toolfold,
) -> None:
    toolfold("user", "add", "annette")
    for command in (("user", "show", "anette"), ("token", "add", "laptop", "--user", "anette")):
        done = toolfold(*command)
        assert done.code == 4
        assert "Did you mean annette?" in done.err
    assert json.loads(toolfold("token", "list", "--json").out) == []
    assert toolfold("team", "join", "red", "annette").code == 4


def test_team_set_command_with_option_share_learned_shares_learned_messages_within_the_team(
    toolfold: Toolfold,
) -> None:
    toolfold("team", "add", "red")
    assert "private" in toolfold("team", "list").out
    assert toolfold("team", "set", "red", "--share-learned", "on").code == 0
    assert "shared" in toolfold("team", "list").out
    assert toolfold("team", "remove", "red", "--yes").code == 0
    assert json.loads(toolfold("team", "list", "--json").out) == []


def test_access_rules_can_be_set_and_explained_and_removed_with_user_and_team_commands(
    toolfold: Toolfold,
) -> None:
    toolfold("user", "add", "ann")
    toolfold("team", "add", "red")
    toolfold("team", "join", "red", "ann")
    assert toolfold("user", "allow", "ann", "web", "tool:terminal").code == 0
    assert toolfold("team", "deny", "red", "tool:web_search").code == 0
    shown = json.loads(toolfold("user", "show", "ann", "--json").out)
    assert (shown["allowed"], shown["denied"]) == (["web", "tool:terminal"], [])
    explained = json.loads(toolfold("user", "explain", "ann", "web_search", "--json").out)
    assert not explained["granted"]
    assert "team red denies tool:web_search" in explained["refused_by"]
    assert "no rule allows it" in toolfold("user", "explain", "ann", "read_file").out
    assert "user ann allows tool:terminal" in toolfold("user", "explain", "ann", "terminal").out
    assert toolfold("user", "unset", "ann", "--all").code == 0
    assert json.loads(toolfold("user", "show", "ann", "--json").out)["allowed"] == []


def test_user_deny_command_rejects_a_rule_for_an_unknown_tool_or_server_or_toolset(
    toolfold: Toolfold,
) -> None:
    toolfold("user", "add", "ann")
    for rule in ("wbe", "server:missing", "mcp-missing"):
        assert toolfold("user", "deny", "ann", rule).code == 4
    assert toolfold("user", "deny", "ann", "tool:").code == 3
    assert json.loads(toolfold("user", "show", "ann", "--json").out)["denied"] == []
    assert toolfold("user", "explain", "ann", "missing").code == 4
    assert "no MCP server" in toolfold("user", "deny", "ann", "server:missing").err
    assert "Did you mean terminal?" in toolfold("user", "deny", "ann", "tool:terminl").err
    refused = toolfold("user", "unset", "ann", "tool:terminal")
    assert refused.code == 4
    assert "Did you mean tool:terminl?" in refused.err
    assert toolfold("user", "unset", "ann", "tool:terminl").code == 0


def test_usage_limits_of_a_user_can_be_set_and_shown_and_removed_with_user_commands(
    toolfold: Toolfold,
) -> None:
    toolfold("user", "add", "ann")
    toolfold("team", "add", "red")
    toolfold("team", "join", "red", "ann")
    assert toolfold("user", "limit", "ann", "--calls-per-minute", "60", "--cost-per-day", "2.5").code == 0
    assert toolfold("team", "limit", "red", "--calls-per-day", "1000").code == 0
    shown = toolfold("user", "show", "ann").out
    assert "0 of 60 calls per minute (user)" in shown
    assert "may use   everything; local tools only with tokens that name them" in shown
    assert "ann may not use terminal" in toolfold("user", "explain", "ann", "terminal").out
    assert "0 of 1,000 calls per day (team red)" in shown
    assert toolfold("user", "limit", "ann", "--calls-per-minute", "none").code == 0
    limits = json.loads(toolfold("user", "show", "ann", "--json").out)["limits"]
    assert [(each["meter"], each["limit"]) for each in limits] == [
        ("cost_per_day", 2.5),
        ("calls_per_day", 1000),
    ]
    toolfold("user", "disable", "ann")
    assert "may use   nothing" in toolfold("user", "show", "ann").out
    for wrong in ("many", "-1", "nan"):
        assert toolfold("user", "limit", "ann", "--calls-per-day", wrong).code in (2, 3)
    assert toolfold("user", "limit", "ann").code == 2


def test_user_explain_command_says_that_a_tool_is_disabled_or_needs_review_and_how_to_enable_it(
    toolfold: Toolfold,
    small: SmallServer,  # noqa: F811
) -> None:
    toolfold("user", "add", "ann")
    assert toolfold("mcp", "add", "small", "--yes", *small.command).code == 0

    def explain(tool: str) -> str:
        done = toolfold("user", "explain", "ann", tool)
        assert done.code == 0, done.err
        return done.out

    assert "ann may use small_read" in explain("small_read")
    toolfold("tools", "disable", "small_read")
    assert "ann may not use small_read" in explain("small_read")
    assert "toolfold tools enable small_read" in explain("small_read")
    toolfold("tools", "enable", "small_read")
    toolfold("mcp", "disable", "small", "write")
    for name in ("small_write", "mcp_small_write"):
        assert f"ann may not use {name}" in explain(name)
        assert "toolfold mcp enable small write" in explain(name)
    toolfold("mcp", "enable", "small", "write")
    small.set_tools(make_tool("read"), make_tool("write"), make_tool("erase"))
    toolfold("mcp", "test")
    assert "it is held" in explain("small_erase")
    assert "toolfold mcp review small" in explain("small_erase")
    toolfold("mcp", "disable", "small")
    assert "the MCP server small is disabled" in explain("small_read")
    assert "toolfold mcp enable small" in explain("small_read")
    assert toolfold("user", "explain", "ann", "other_tool").code == 4


def test_rules_about_models_and_api_keys_can_be_set_and_shown_and_explained_with_user_commands(
    toolfold: Toolfold,
) -> None:
    toolfold("user", "add", "ann")
    allowed = toolfold("user", "allow", "ann", "model:gpt-*")
    assert allowed.code == 0
    assert "ann may use only model:gpt-* from now on (before: every model that is not denied)" in allowed.err
    assert toolfold("user", "deny", "ann", "model:gpt-5*", "key:*").code == 0
    shown = toolfold("user", "show", "ann").out
    assert "may use   everything" in shown
    assert "models    model:gpt-*, except model:gpt-5*" in shown
    assert "keys      all, except key:*" in shown
    assert "ann may use model:gpt-4o" in toolfold("user", "explain", "ann", "model:gpt-4o").out
    assert "user ann denies model:gpt-5*" in toolfold("user", "explain", "ann", "model:gpt-5.4").out
    assert "user ann denies key:*" in toolfold("user", "explain", "ann", "key:openai").out
    assert "no rule allows model:o1" in toolfold("user", "explain", "ann", "model:o1").out
    assert toolfold("user", "deny", "ann", "key:opnai").code == 4
    assert toolfold("token", "add", "laptop", "--user", "ann", "--deny", "model:x").code == 3


def test_user_show_command_says_how_models_without_a_known_price_count_towards_a_cost_limit(
    toolfold: Toolfold,
) -> None:
    toolfold("user", "add", "ann")
    assert "proxy.prices" not in toolfold("user", "show", "ann").out
    toolfold("user", "limit", "ann", "--cost-per-day", "2")
    shown = toolfold("user", "show", "ann").out
    assert "counts 12 times the most expensive listed model of its provider" in shown
    assert "proxy.prices" in shown


def test_users_without_allow_rules_may_use_no_tool_or_model_if_the_default_access_is_deny(
    toolfold: Toolfold,
) -> None:
    toolfold("config", "set", "gateway.default_access", "deny")
    toolfold("user", "add", "ann")
    shown = toolfold("user", "show", "ann").out
    assert "may use   nothing" in shown
    assert "models    none" in shown
    explained = toolfold("user", "explain", "ann", "web_search").out
    assert "no rule allows it (gateway.default_access is deny)" in explained
    assert "ann may also use web" in toolfold("user", "allow", "ann", "web").err
    assert "ann may use web_search" in toolfold("user", "explain", "ann", "web_search").out


def test_adding_a_user_of_an_unconfigured_identity_provider_prints_the_settings_to_configure(
    toolfold: Toolfold,
) -> None:
    identity = ("--issuer", "https://login.example", "--subject", "7")
    for command in (("add", "ann"), ("set", "ann")):
        done = toolfold("user", *command, *identity)
        assert done.code == 0
        assert "No settings name the identity provider https://login.example" in done.err
        assert "gateway.oauth.issuer" in done.err
        assert "dashboard.oidc" in done.err
    oauth = '{"issuer": "https://login.example", "resource": "https://tools.example/mcp"}'
    assert toolfold("config", "set", "gateway.oauth", oauth).code == 0
    assert "identity provider" not in toolfold("user", "set", "ann", *identity).err
    near = toolfold("user", "set", "ann", "--issuer", "https://login.example/", "--subject", "7")
    assert "Did you mean https://login.example?" in near.err


def test_revoking_a_token_without_a_user_deletes_the_messages_learned_from_its_client(
    toolfold: Toolfold,
) -> None:
    toolfold("token", "add", "desk")
    with open_runtime(load_config()) as runtime:
        tools = runtime.registry.snapshot()
        for client, text in (("desk", "put the secret plans on the disk"), ("other", "note down a recipe")):
            runtime.retriever.learn(tools, tools["write_file"], [text], client=client, origin="search")
    listed = toolfold("learned", "list", "--json").json
    assert {each["client"] for each in listed} == {"desk", "other"}
    assert toolfold("token", "revoke", "desk").code == 0
    assert {each["client"] for each in toolfold("learned", "list", "--json").json} == {"other"}


def test_user_allow_warns_of_a_remaining_deny_rule_and_user_unset_can_remove_only_that_rule(
    toolfold: Toolfold,
) -> None:
    toolfold("user", "add", "ann")
    toolfold("team", "add", "red")
    toolfold("team", "join", "red", "ann")
    toolfold("user", "deny", "ann", "key:openai")
    toolfold("team", "deny", "red", "file")
    allowed = toolfold("user", "allow", "ann", "key:openai").err
    assert "ann may use nothing from now on (before: every key of a provider" in allowed
    assert "key:openai is still denied, because user ann denies key:openai" in allowed
    assert "toolfold user unset ann key:openai --only deny" in allowed
    of_team = toolfold("user", "allow", "ann", "tool:read_file").err
    assert "tool:read_file is still denied, because team red denies file" in of_team
    assert "still denied" not in toolfold("user", "allow", "ann", "web").err
    done = toolfold("user", "unset", "ann", "key:openai", "--only", "deny")
    assert "removed from the user ann: deny key:openai" in done.out
    assert "ann may use key:openai" in toolfold("user", "explain", "ann", "key:openai").out
    again = toolfold("user", "unset", "ann", "key:openai", "--only", "deny")
    assert again.code == 4
    assert "has no rule that denies 'key:openai'" in again.err


def test_user_unset_command_removes_and_prints_both_the_allow_rule_and_the_deny_rule(
    toolfold: Toolfold,
) -> None:
    toolfold("user", "add", "ann")
    toolfold("user", "deny", "ann", "key:openai")
    toolfold("user", "allow", "ann", "key:openai")
    done = toolfold("user", "unset", "ann", "key:openai")
    assert "removed from the user ann: allow key:openai, deny key:openai" in done.out


def test_user_explain_command_prints_rules_of_a_nonexistent_tool_and_rejects_server_names(
    toolfold: Toolfold,
) -> None:
    toolfold("user", "add", "ann")
    toolfold("team", "add", "red")
    toolfold("team", "join", "red", "ann")
    toolfold("team", "deny", "red", "tool:tickets_delete")
    missing = toolfold("user", "explain", "ann", "tickets_delete")
    assert missing.code == 4
    assert "A rule is stored for it (team red denies tool:tickets_delete)" in missing.err
    assert "toolfold tools list" in missing.err
    assert toolfold("user", "explain", "ann", "tool:web_search").code == 0
    server = toolfold("user", "explain", "ann", "server:tickets")
    assert server.code == 2
    assert "name one of them" in server.err


def test_setting_a_usage_limit_of_zero_warns_that_all_use_is_refused(toolfold: Toolfold) -> None:
    toolfold("user", "add", "ann")
    for command in ("limit", "set"):
        done = toolfold("user", command, "ann", "--calls-per-day", "0", "--tokens-per-day", "5")
        assert done.code == 0
        assert "A limit of 0 refuses everything that it counts (--calls-per-day)" in done.err
    assert "refuses" not in toolfold("user", "limit", "ann", "--calls-per-day", "1").err
