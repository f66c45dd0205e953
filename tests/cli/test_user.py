"""`toolfold user` and `toolfold team`: add, list, disable and remove users; tokens of users."""

from __future__ import annotations

import json
from contextlib import closing

from tests.cli.conftest import Toolfold
from toolfold.approval.allowed_tools import build_allowed_tools
from toolfold.config import load_config
from toolfold.config.allowed_tools import AllowedTool
from toolfold.store.jobs import Job, open_job_store


def test_user_is_listed_with_its_teams_and_tokens(toolfold: Toolfold) -> None:
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


def test_user_is_disabled_enabled_and_removed_with_its_tokens(toolfold: Toolfold) -> None:
    toolfold("user", "add", "ann")
    toolfold("token", "add", "laptop", "--user", "ann")
    toolfold("user", "disable", "ann")
    assert "disabled" in toolfold("user", "list").out
    toolfold("user", "enable", "ann")
    assert "disabled" not in toolfold("user", "list").out
    assert toolfold("user", "remove", "ann").code == 0
    assert json.loads(toolfold("token", "list", "--json").out) == []
    assert json.loads(toolfold("user", "list", "--json").out) == []


def test_removing_a_user_removes_the_scheduled_jobs_of_its_clients_only(toolfold: Toolfold) -> None:
    toolfold("user", "add", "ann")
    toolfold("token", "add", "laptop", "--user", "ann")
    toolfold("token", "add", "desk")
    with closing(open_job_store(load_config().paths.state_dir / "jobs.db", None)) as jobs:
        for client in ("laptop", "user:ann", "desk", ""):
            job = Job(prompt="p", schedule="daily", times={}, zone="UTC", client=client)
            jobs.add_job(job, max_jobs=10)
        assert toolfold("user", "remove", "ann").code == 0
        assert {job.client for job in jobs.list_jobs()} == {"desk", ""}


def test_new_client_does_not_get_the_allowed_tools_of_a_removed_client(toolfold: Toolfold) -> None:
    toolfold("user", "add", "ann")
    for client in ("laptop", "desk", "other"):
        toolfold("token", "add", client, *(("--user", "ann") if client == "laptop" else ()))
    entries = [f"tool:wipe:destructive client={each}" for each in ("laptop", "user:ann", "desk", "other")]
    build_allowed_tools(load_config()).add(*map(AllowedTool.parse, entries))
    assert toolfold("user", "remove", "ann").code == 0
    assert toolfold("token", "revoke", "desk").code == 0
    assert load_config().approval.allowed_tools == (entries[3],)


def test_unknown_user_or_team_is_reported_with_exit_code_4(toolfold: Toolfold) -> None:
    toolfold("user", "add", "annette")
    for command in (("user", "show", "anette"), ("token", "add", "laptop", "--user", "anette")):
        done = toolfold(*command)
        assert done.code == 4
        assert "Did you mean annette?" in done.err
    assert json.loads(toolfold("token", "list", "--json").out) == []
    assert toolfold("team", "join", "red", "annette").code == 4


def test_team_shares_learned_messages_only_if_sharing_is_turned_on(toolfold: Toolfold) -> None:
    toolfold("team", "add", "red")
    assert "private" in toolfold("team", "list").out
    assert toolfold("team", "set", "red", "--share-learned", "on").code == 0
    assert "shared" in toolfold("team", "list").out
    assert toolfold("team", "remove", "red").code == 0
    assert json.loads(toolfold("team", "list", "--json").out) == []


def test_access_rules_of_users_and_teams_can_be_set_explained_and_removed(toolfold: Toolfold) -> None:
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


def test_misspelt_access_rule_is_rejected(toolfold: Toolfold) -> None:
    toolfold("user", "add", "ann")
    for rule in ("wbe", "server:missing", "mcp-missing"):
        assert toolfold("user", "deny", "ann", rule).code == 4
    assert toolfold("user", "deny", "ann", "tool:").code == 3
    assert json.loads(toolfold("user", "show", "ann", "--json").out)["denied"] == []
    assert toolfold("user", "explain", "ann", "missing").code == 4


def test_usage_limits_of_a_user_can_be_set_shown_and_removed(toolfold: Toolfold) -> None:
    toolfold("user", "add", "ann")
    toolfold("team", "add", "red")
    toolfold("team", "join", "red", "ann")
    assert toolfold("user", "limit", "ann", "--calls-per-minute", "60", "--cost-per-day", "2.5").code == 0
    assert toolfold("team", "limit", "red", "--calls-per-day", "1000").code == 0
    shown = toolfold("user", "show", "ann").out
    assert "0 of 60 calls per minute (user)" in shown
    assert "may use   everything" in shown
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
