"""Sessions see only granted tools; toolsets may include others, and no later change extends a grant."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.conftest import recording_tool
from tests.thorough import try_examples
from toolfold.core.authoring import build_tool
from toolfold.core.errors import UnknownToolset
from toolfold.core.registry import Registry, Snapshot
from toolfold.core.scope import ALL, Scope, Toolsets
from toolfold.core.toolset_names import FOREIGN_PREFIX, LEGACY_NAMES, PRESETS, Toolset
from toolfold.core.types import Tool

modest = try_examples(60)


def tool(name: str, toolset: str) -> Tool:
    return build_tool(name=name, toolset=toolset, schema={}, handler=len)


def snapshot(**members: Iterable[str]) -> Snapshot:
    """Return a snapshot of toolsets with their tool names; `mcp_x` stands for the toolset `mcp-x`."""
    registry = Registry()
    for toolset, names in members.items():
        name = toolset.replace("mcp_", "mcp-")
        registry.add_all(tool(each, name) for each in names)
    return registry.snapshot()


@pytest.fixture
def toolsets() -> Toolsets:
    tools = snapshot(web=["search", "fetch"], file=["read", "write"], mcp_git=["commit"], terminal=["sh"])
    bundle = Toolset("research", "Reading.", tools=("read",), includes=("web",))
    return Toolsets(tools, [bundle])


# Resolution

TOOLS = [f"tool{number}" for number in range(6)]
NAMES = [f"set{number}" for number in range(6)]
graphs = st.fixed_dictionaries(
    {
        name: st.tuples(
            st.lists(st.sampled_from([*TOOLS, "missing"]), max_size=3),
            st.lists(st.sampled_from([*NAMES, "nowhere", "web_tools"]), max_size=4),
        )
        for name in NAMES
    }
)
homes = st.lists(st.sampled_from([*NAMES, "web"]), min_size=len(TOOLS), max_size=len(TOOLS))
Graph = Mapping[str, tuple[list[str], list[str]]]


def make_toolsets(graph: Graph, home: list[str]) -> Toolsets:
    registry = Registry()
    registry.add_all(tool(name, toolset) for name, toolset in zip(TOOLS, home, strict=True))
    declared = [Toolset(name, "", tuple(own), tuple(more)) for name, (own, more) in graph.items()]
    return Toolsets(registry.snapshot(), declared)


def naive_closure(graph: Graph, home: list[str], start: str) -> set[str]:
    """Return every tool of every reachable toolset, found by iterating until nothing is added."""
    reached = {start}
    while True:
        more = {
            "web" if include == "web_tools" else include
            for name in reached
            for include in graph.get(name, ([], []))[1]
        }
        if more <= reached:
            break
        reached |= more
    listed = {each for name in reached for each in graph.get(name, ([], []))[0]} - {"missing"}
    return listed | {name for name, toolset in zip(TOOLS, home, strict=True) if toolset in reached}


@modest
@given(graphs, homes)
def test_toolset_contains_the_tools_of_all_toolsets_it_includes(graph: Graph, home: list[str]) -> None:
    toolsets = make_toolsets(graph, home)
    for name in NAMES:
        assert toolsets.resolve(name) == naive_closure(graph, home, name)


def test_toolset_that_includes_itself_resolves_to_its_tools() -> None:
    loop = Toolset("loop", tools=("read",), includes=("loop",))
    assert Toolsets(snapshot(file=["read"]), [loop]).resolve("loop") == {"read"}


def test_toolsets_that_include_each_other_resolve_to_the_same_tools() -> None:
    ring = [Toolset(f"ring{n}", tools=(f"t{n}",), includes=(f"ring{(n + 1) % 50}",)) for n in range(50)]
    toolsets = Toolsets(snapshot(x=[f"t{n}" for n in range(50)]), ring)
    assert {toolsets.resolve(f"ring{n}") for n in range(50)} == {frozenset(f"t{n}" for n in range(50))}


def test_toolsets_included_by_several_paths_are_resolved_in_linear_time() -> None:
    # There are 2^200 paths from top to bottom.
    rungs = [Toolset(f"{side}{n}", includes=(f"a{n + 1}", f"b{n + 1}")) for n in range(200) for side in "ab"]
    toolsets = Toolsets(snapshot(a200=["left"], b200=["right"]), rungs)
    found: list[frozenset[str]] = []
    walker = threading.Thread(target=lambda: found.append(toolsets.resolve("a0")), daemon=True)
    walker.start()
    walker.join(60)
    assert found == [{"left", "right"}]


def test_long_chain_of_included_toolsets_does_not_overflow_the_stack() -> None:
    chain = [Toolset(f"c{n}", includes=(f"c{n + 1}",)) for n in range(10_000)]
    assert Toolsets(snapshot(c10000=["end"]), chain).resolve("c0") == {"end"}


def test_toolset_that_lists_the_original_name_of_a_renamed_tool_contains_that_tool() -> None:
    registry = Registry()
    odd = registry.add(tool("read.file", "file"))
    bundle = Toolset("bundle", tools=("read.file", "not.there"))
    assert Toolsets(registry.snapshot(), [bundle]).resolve("bundle") == {odd.name}


def test_toolset_declared_with_the_name_of_a_registered_toolset_extends_the_registered_toolset() -> None:
    declared = Toolset("web", tools=("read",))
    toolsets = Toolsets(snapshot(web=["search"], file=["read"]), [declared])
    assert toolsets.resolve("web") == {"search", "read"}


def test_toolset_named_all_contains_every_tool_also_when_another_toolset_includes_it() -> None:
    tools = snapshot(web=["search"], file=["read"])
    toolsets = Toolsets(tools, [Toolset("everything", includes=(ALL,))])
    assert toolsets.resolve(ALL) == toolsets.resolve("everything") == {"search", "read"}


@check_cases(
    ("legacy", "modern"),
    sorted(pair for pair in LEGACY_NAMES.items() if not pair[0].startswith(FOREIGN_PREFIX)),
)
def test_legacy_name_of_a_toolset_resolves_to_the_tools_of_the_renamed_toolset(
    legacy: str, modern: str
) -> None:
    registry = Registry()
    registry.add(tool("x", modern))
    toolsets = Toolsets(registry.snapshot())
    toolsets.require([legacy])
    assert toolsets.resolve(legacy) == {"x"}


def test_legacy_toolset_name_web_tools_is_an_alias_of_the_toolset_web() -> None:
    assert LEGACY_NAMES["web_tools"] == "web"


def test_registered_toolset_takes_precedence_over_a_legacy_alias_of_the_same_name() -> None:
    toolsets = Toolsets(snapshot(web=["search"], web_tools=["mine"]))
    assert toolsets.resolve("web_tools") == {"mine"}
    assert toolsets.resolve("web") == {"search"}


# Presets and names


def test_preset_toolsets_exist_for_cli_gateway_messaging_and_editor() -> None:
    assert [preset.name for preset in PRESETS] == [
        "toolfold-cli",
        "toolfold-gateway",
        "toolfold-messaging",
        "toolfold-editor",
    ]
    assert all(preset.description and preset.includes for preset in PRESETS)


@check_cases(
    ("preset", "has", "lacks"),
    [
        ("toolfold-cli", {"search", "read", "sh"}, {"send", "commit"}),
        ("toolfold-gateway", {"search"}, {"read", "sh", "send", "commit"}),
        ("toolfold-messaging", {"search", "send"}, {"commit"}),
        ("toolfold-editor", {"search", "read", "sh"}, {"send", "commit"}),
    ],
)
def test_each_preset_toolset_contains_only_the_tools_for_its_kind_of_client(
    preset: str, has: set[str], lacks: set[str]
) -> None:
    tools = snapshot(web=["search"], file=["read"], terminal=["sh"], messaging=["send"], mcp_git=["commit"])
    granted = Toolsets(tools).resolve(preset)
    assert has <= granted
    assert not granted & lacks


def test_settings_cannot_change_a_preset_toolset() -> None:
    tools = snapshot(web=["search"], terminal=["sh"])
    hostile = Toolset("toolfold-gateway", includes=("terminal", ALL))
    assert Toolsets(tools, [hostile]).resolve("toolfold-gateway") == {"search"}


def test_toolset_of_an_mcp_server_exists_while_the_server_is_connected(toolsets: Toolsets) -> None:
    assert toolsets.resolve("mcp-git") == {"commit"}


def test_requesting_the_toolset_of_a_disconnected_mcp_server_returns_no_tools_and_no_error(
    toolsets: Toolsets,
) -> None:
    toolsets.require(["mcp-late"])
    assert toolsets.resolve("mcp-late") == frozenset()


def test_error_for_an_unknown_toolset_names_the_most_similar_toolset(toolsets: Toolsets) -> None:
    with pytest.raises(UnknownToolset, match=r"no toolset 'reserch'\. Did you mean research\?"):
        toolsets.require(["web", "reserch"])


@pytest.mark.parametrize("name", ["", "WEB", "web ", "search", "mcp_git", "*"])
def test_invalid_toolset_name_is_rejected(toolsets: Toolsets, name: str) -> None:
    assert not toolsets.knows(name)
    with pytest.raises(UnknownToolset):
        toolsets.require([name])
    assert toolsets.resolve(name) == frozenset()


def test_requesting_a_built_in_or_preset_toolset_without_registered_tools_raises_no_error() -> None:
    Toolsets(snapshot()).require(["browser", "toolfold-cli", "web_tools", ALL])


def test_list_of_toolsets_contains_declared_registered_and_preset_toolsets_sorted_by_name(
    toolsets: Toolsets,
) -> None:
    listing = toolsets.listing()
    assert list(listing) == sorted(listing)
    assert {"research", "web", "mcp-git", "toolfold-cli"} <= set(listing)
    assert listing["research"] == Toolset("research", "Reading.", ("read",), ("web",))
    assert listing["web"].tools == ("fetch", "search")


# Grants

EVERYTHING = {"search", "fetch", "read", "write", "commit", "sh"}


@pytest.mark.parametrize(
    ("scope", "granted"),
    [
        (Scope(), EVERYTHING),
        (Scope(enabled=("web",)), {"search", "fetch"}),
        (Scope(enabled=("web", "file")), {"search", "fetch", "read", "write"}),
        (Scope(enabled=("research",)), {"search", "fetch", "read"}),
        (Scope(enabled=()), set()),
        (Scope(disabled=("web",)), {"read", "write", "commit", "sh"}),
        (Scope(disabled=("research",)), {"write", "commit", "sh"}),
        (Scope(disabled=("web_tools",)), {"read", "write", "commit", "sh"}),
        (Scope(disabled=(ALL,)), set()),
        (Scope(enabled=("research",), disabled=("web",)), {"read"}),
        (Scope(enabled=("web",), disabled=("web",)), set()),
        (Scope(enabled=("nowhere", "web")), {"search", "fetch"}),
        (Scope(without=("sh",)), EVERYTHING - {"sh"}),
        (Scope(without=("web", "commit")), {"read", "write", "sh"}),
        (Scope(without=("",)), EVERYTHING),
        (Scope(without=("not_there",)), EVERYTHING),
    ],
)
def test_scope_grants_all_or_only_enabled_toolsets_and_never_disabled_toolsets(
    toolsets: Toolsets, scope: Scope, granted: set[str]
) -> None:
    assert scope.granted(toolsets) == granted


def test_tool_disabled_before_its_registration_stays_disabled() -> None:
    scope = Scope(without=("sh", "mcp-git"))
    late = Toolsets(snapshot(terminal=["sh"], mcp_git=["commit"], web=["search"]))
    assert scope.granted(late) == {"search"}


def test_tool_can_be_disabled_by_its_original_name() -> None:
    registry = Registry()
    registry.add(tool("danger.zone", "x"))
    registry.add(tool("fine", "x"))
    assert Scope(without=("danger.zone",)).granted(Toolsets(registry.snapshot())) == {"fine"}


def test_disabling_an_original_name_shared_by_two_tools_disables_both() -> None:
    registry = Registry()
    for server in ("one", "two"):
        registry.add(replace(tool(f"{server}_drop", f"mcp-{server}"), original_name="drop"))
    assert Scope(without=("drop",)).granted(Toolsets(registry.snapshot())) == frozenset()


def test_disabling_a_legacy_toolset_name_disables_the_renamed_toolset_and_any_toolset_of_that_name() -> None:
    scope = Scope(disabled=("web_tools",))
    later = Toolsets(snapshot(web=["search"], web_tools=["decoy"], file=["read"]))
    assert scope.granted(later) == {"read"}


def test_tool_registered_later_is_granted_only_if_the_scope_includes_its_toolset() -> None:
    registry = Registry()
    registry.add(tool("search", "web"))
    scope = Scope(enabled=("web", "mcp-late"))
    registry.add_all([tool("fetch", "web"), tool("sh", "terminal"), tool("commit", "mcp-late")])
    assert scope.granted(Toolsets(registry.snapshot())) == {"search", "fetch", "commit"}


def test_assigning_to_an_attribute_of_a_scope_raises_an_error() -> None:
    scope: Any = Scope(enabled=("web",)).narrow()
    for field, value in (("enabled", None), ("parent", None), ("disabled", ())):
        with pytest.raises(AttributeError):
            setattr(scope, field, value)


# Narrowing

toolset_names = st.sampled_from([*NAMES, ALL, "web", "nowhere", "toolfold-cli"])
name_lists = st.lists(toolset_names, max_size=3)
rules = st.tuples(st.none() | name_lists, name_lists, st.lists(st.sampled_from([*TOOLS, *NAMES]), max_size=2))


@modest
@given(graphs, homes, st.lists(rules, min_size=1, max_size=4))
@example(
    {name: ([], []) for name in NAMES},
    ["set0"] * len(TOOLS),
    [([], ["set0"], []), ([ALL], [], []), (None, [], [])],
)
def test_narrowed_scope_grants_only_tools_allowed_by_both_the_original_scope_and_the_new_rule(
    graph: Graph,
    home: list[str],
    chain: list[tuple[list[str] | None, list[str], list[str]]],
) -> None:
    toolsets = make_toolsets(graph, home)
    scope = Scope()
    for enabled, disabled, without in chain:
        child = scope.narrow(enabled, disabled, without)
        alone = Scope().narrow(enabled, disabled, without)
        assert child.granted(toolsets) == scope.granted(toolsets) & alone.granted(toolsets)
        scope = child


@modest
@given(graphs, homes, name_lists, name_lists)
def test_arbitrary_scope_grants_tools_of_enabled_toolsets_that_are_in_no_disabled_toolset(
    graph: Graph, home: list[str], enabled: list[str], disabled: list[str]
) -> None:
    toolsets = make_toolsets(graph, home)
    granted = {name for each in enabled for name in toolsets.resolve(each)}
    removed = {name for each in disabled for name in toolsets.resolve(each)}
    everything = set(toolsets.snapshot)
    assert Scope().granted(toolsets) == everything
    assert Scope(tuple(enabled)).granted(toolsets) == granted
    assert Scope(None, tuple(disabled)).granted(toolsets) == everything - removed
    assert Scope(tuple(enabled), tuple(disabled)).granted(toolsets) == granted - removed
    assert Scope(tuple(disabled), tuple(enabled)).granted(toolsets) == removed - granted


def test_scope_narrowed_to_the_same_or_more_toolsets_grants_exactly_the_tools_of_its_parent(
    toolsets: Toolsets,
) -> None:
    parent = Scope(enabled=("web",), disabled=(), without=("fetch",))
    for child in (parent.narrow(), parent.narrow([ALL]), parent.narrow(["web", "terminal"])):
        assert child.granted(toolsets) == {"search"}


def test_narrowing_a_scope_cannot_enable_a_disabled_toolset(toolsets: Toolsets) -> None:
    child = Scope(disabled=("terminal",)).narrow(["terminal", "web"], disabled=[])
    assert child.granted(toolsets) == {"search", "fetch"}


def test_narrowed_scope_does_not_grant_later_toolsets_that_its_parent_did_not_enable() -> None:
    child = Scope(enabled=("web",)).narrow(["web", "mcp-late"])
    later = Toolsets(snapshot(web=["search"], mcp_late=["commit"]))
    assert child.granted(later) == {"search"}


def test_scope_narrowed_5000_times_grants_only_tools_of_the_original_scope(
    toolsets: Toolsets,
) -> None:
    scope = Scope(enabled=("web",))
    for _ in range(5_000):
        scope = scope.narrow([ALL])
    assert scope.granted(toolsets) == {"search", "fetch"}


def test_scope_rejects_a_single_string_where_a_list_of_toolsets_is_expected() -> None:
    for names in ({"enabled": "web"}, {"disabled": "web"}, {"without": "web"}):
        with pytest.raises(TypeError, match="not the string 'web'"):
            Scope().narrow(**names)


def test_appending_to_the_list_of_toolsets_after_creating_a_scope_does_not_change_the_scope(
    toolsets: Toolsets,
) -> None:
    wanted = ["web"]
    scope = Scope().narrow(wanted)
    wanted.append("terminal")
    assert scope.granted(toolsets) == {"search", "fetch"}


def test_toolset_that_lists_an_original_name_shared_by_two_tools_contains_neither_of_the_tools() -> None:
    registry = Registry()
    registry.add(replace(tool("mine_read", "mcp-mine"), original_name="files/read"))
    bundle = Toolset("review", "", ("files/read",))
    assert Toolsets(registry.snapshot(), [bundle]).resolve("review") == {"mine_read"}
    registry.add(replace(tool("evil_read", "mcp-evil"), original_name="files/read"))
    assert Toolsets(registry.snapshot(), [bundle]).resolve("review") == frozenset()
    named = Toolset("review", "", ("mine_read",))
    assert Toolsets(registry.snapshot(), [named]).resolve("review") == {"mine_read"}


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("hermes-cli", "toolfold-cli"),
        ("hermes-telegram", "toolfold-messaging"),
        ("hermes-acp", "toolfold-editor"),
    ],
)
def test_preset_of_another_runtime_means_the_preset_here_and_logs_its_name(
    name: str, preset: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry()
    for toolset in ("file", "messaging"):
        registry.add(recording_tool(f"use_{toolset}", toolset, []))
    toolsets = Toolsets(registry.snapshot())
    toolsets.require([name])
    assert toolsets.resolve(name) == toolsets.resolve(preset) != frozenset()
    assert preset in caplog.text
