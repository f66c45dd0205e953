"""Every tool of every server has a unique, valid name, independent of the order of servers."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.thorough import try_examples
from toolfold.core.authoring import build_tool
from toolfold.core.naming import is_accepted
from toolfold.core.registry import Registry
from toolfold.core.types import Source, Tool
from toolfold.mcp.tool_names import ToolNames

modest = try_examples(150)
servers = st.from_regex(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,38}[A-Za-z0-9])?", fullmatch=True)
tools = st.text(st.characters(exclude_categories=()), min_size=1, max_size=120)
# Few letters, so that names often are prefixes of each other.
alike = st.from_regex(r"[ab](?:[ab_.]{0,5}[ab])?", fullmatch=True)


def tool(names: ToolNames, server: str, own: str) -> Tool:
    known = names.names_of(server, own)
    made = build_tool(
        name=known.agent,
        toolset=f"mcp-{server}",
        schema={},
        handler=lambda args: own,
        source=Source("mcp", server),
    )
    return replace(made, original_name=known.original)


def test_names_of_an_mcp_tool_for_clients_and_agents_combine_server_name_and_tool_name() -> None:
    assert ToolNames(["github"]).names_of("github", "create_issue").all == (
        "github_create_issue",
        "mcp_github_create_issue",
        "mcp__github__create_issue",
    )


def test_prefix_setting_of_a_server_changes_tool_names_for_gateway_clients_but_not_for_agents() -> None:
    names = ToolNames(["git", "web"], prefixes={"git": "", "web": "www."}, taken=["read_file"])
    assert names.names_of("git", "git_push").client == "git_push"
    assert names.names_of("git", "git_push").agent == "mcp_git_git_push"
    assert names.names_of("git", "read_file").client not in ("read_file", "")  # a built-in tool has the name
    assert is_accepted(names.names_of("web", "get").client)


def test_tool_name_for_gateway_clients_never_starts_with_the_agent_prefix_mcp() -> None:
    names = ToolNames(["mcp", "mcp_hub", "free", "github"], prefixes={"free": "", "hub": "mcp_"})
    agent = names.names_of("github", "delete").agent
    assert agent == "mcp_github_delete"
    for server, own in [
        ("mcp", "github_delete"),
        ("free", agent),
        ("hub", "github_delete"),
        ("mcp_hub", "x"),
    ]:
        client = names.names_of(server, own).client
        assert not client.startswith("mcp_")
        assert is_accepted(client)


def test_find_own_name_removes_the_server_prefix_from_every_spelling_of_a_tool_name() -> None:
    names = ToolNames(["git"])
    for spelling in ("push", "git_push", "mcp_git_push", "mcp__git__push"):
        assert names.find_own_name("git", spelling, ["pull", "push"]) == "push"
    assert names.find_own_name("git", "git_fetch", ["pull", "push"]) is None


@modest
@given(servers, tools)
@example("my.server", "x")
@example("s" * 40, "t" * 40)
@example("s", "\ud800")
@example("s", "a/b.c:d e")
def test_combined_server_and_tool_names_are_always_accepted_by_model_providers(server: str, own: str) -> None:
    names = ToolNames([server]).names_of(server, own)
    assert is_accepted(names.client)
    assert is_accepted(names.agent)


def test_tool_name_that_two_servers_would_share_is_given_to_the_server_with_the_longer_name() -> None:
    names = ToolNames(["a", "a_b"])
    assert names.names_of("a_b", "c").agent == "mcp_a_b_c"
    assert names.names_of("a", "b_c").agent.startswith("mcp_a_b_c_")
    assert names.names_of("a", "c").agent == "mcp_a_c"  # only ambiguous names get a digest


@modest
@given(st.lists(st.tuples(alike, alike), unique=True, min_size=1, max_size=20), st.randoms())
@example([("a", "b_a"), ("a_b", "a")], Random(0))
@example([("a__b", "a"), ("a", "b__a")], Random(0))
def test_tool_names_are_unique_across_servers_and_independent_of_the_order_of_servers(
    offered: list[tuple[str, str]], random: Random
) -> None:
    listed = [server for server, _ in offered]
    names = {pair: ToolNames(listed).names_of(*pair) for pair in offered}
    assert len({each.agent for each in names.values()}) == len(offered)
    assert len({each.client for each in names.values()}) == len(offered)
    random.shuffle(listed)
    assert names == {pair: ToolNames(listed).names_of(*pair) for pair in reversed(offered)}


@modest
@given(servers, tools, tools)
@example("s", "a.b", "a_b")
@example("s", "a" * 100, "a" * 101)
def test_tools_of_one_server_with_different_original_names_never_get_the_same_name(
    server: str, one: str, other: str
) -> None:
    assume(one != other)
    names = ToolNames([server])
    assert names.names_of(server, one).agent != names.names_of(server, other).agent


def test_mcp_tool_is_found_by_its_double_underscore_name_mcp__server__tool() -> None:
    registry, names = Registry(), ToolNames(["git.hub", "a", "a_b"])
    for server, own in [("git.hub", "issue/create"), ("a", "b_c"), ("a_b", "c")]:
        registry.add(tool(names, server, own))
    snapshot = registry.snapshot()
    for server, own in [("git.hub", "issue/create"), ("a", "b_c"), ("a_b", "c")]:
        found = snapshot.find(f"mcp__{server}__{own}")
        assert found is not None
        assert (found.server, found.own_name) == (server, own)
    assert len(snapshot) == 3
