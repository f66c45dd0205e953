"""A turn lists and calls only granted, available tools, and does not change until it ends."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.cases import check_cases
from toolfold.core.authoring import build_tool
from toolfold.core.availability import Availability
from toolfold.core.errors import CallError, OutOfScope
from toolfold.core.registry import Registry, Snapshot
from toolfold.core.scope import Scope, Toolsets
from toolfold.core.types import Definition, Tool
from toolfold.selection.turn import GrantCache, Turn, assemble
from toolfold.selection.turn.grant import MAX_CACHED_GRANTS


def make_tool(name: str, **options: Any) -> Tool:
    schema = options.pop("schema", {"description": f"does {name}"})
    return build_tool(name=name, toolset="t", schema=schema, handler=lambda args: args, **options)


def snapshot_of(tools: Iterable[Tool]) -> Snapshot:
    registry = Registry()
    registry.add_all(tools)
    return registry.snapshot()


def turn_of(*tools: Tool, granted: set[str] | None = None, hidden: Iterable[str] = ()) -> Turn:
    snapshot = snapshot_of(tools)
    names = frozenset(snapshot) if granted is None else frozenset(granted)
    return assemble(snapshot, names, Availability(timeout=5), hidden=frozenset(hidden))


def listed_names(turn: Turn) -> list[str]:
    return [each["function"]["name"] for each in turn.definitions()]


def error_text(turn: Turn, name: str) -> str:
    with pytest.raises(OutOfScope) as caught:
        turn.tool(name)
    return str(caught.value)


# -- the gate -------------------------------------------------------------------------------------------


def test_granted_tool_is_found_by_its_name() -> None:
    turn = turn_of(make_tool("a"), make_tool("b"), granted={"a"})
    assert turn.tool("a").name == "a"


def test_ungranted_tool_is_not_found_by_its_name() -> None:
    turn = turn_of(make_tool("a"), make_tool("b"), granted={"a"})
    assert (
        error_text(turn, "b") == "'b' is not available in this session. Call one of the tools you were given."
    )


def test_error_for_an_unknown_tool_name_suggests_using_tool_search() -> None:
    turn = replace(turn_of(make_tool("a")), searchable=True)
    assert (
        error_text(turn, "zzzz") == "'zzzz' is not available in this session. Use tool_search to see "
        "which tools are available."
    )
    assert "Did you mean tool_search" in error_text(turn, "tool_serch")
    assert "tool_search" not in error_text(turn_of(make_tool("a")), "tool_serch")


def test_calling_an_ungranted_tool_gives_the_same_error_as_calling_a_tool_that_does_not_exist() -> None:
    tools = [make_tool("slack_post"), make_tool("slack_read"), make_tool("mail_read")]
    with_it = turn_of(*tools, granted={"mail_read"})
    without_it = turn_of(tools[2])
    assert error_text(with_it, "slack_post") == error_text(without_it, "slack_post")
    assert "slack_read" not in error_text(with_it, "slack_rea")


def test_error_for_a_misspelt_tool_name_suggests_the_correct_name() -> None:
    assert "Did you mean read_file?" in error_text(
        turn_of(make_tool("read_file"), make_tool("x")), "read_fle"
    )


def test_session_without_granted_tools_cannot_call_any_tool() -> None:
    turn = turn_of(make_tool("a"), granted=set())
    assert listed_names(turn) == []
    error_text(turn, "a")


def test_tool_can_be_called_by_its_original_name() -> None:
    odd = "server.with dots/and a name " + "x" * 80
    turn = turn_of(make_tool(odd))
    assert turn.tool(odd) is turn.tool(listed_names(turn)[0])
    elsewhere = Turn(turn.snapshot, frozenset({"other"}))
    error_text(elsewhere, odd)


def make_tool_with_original_name(name: str, original: str = "files/read") -> Tool:
    return replace(make_tool(name), original_name=original)


@check_cases("stranger", ["a_read", "z_read", "files_read"])
def test_original_name_shared_by_a_granted_and_an_ungranted_tool_resolves_to_the_granted_tool(
    stranger: str,
) -> None:
    turn = turn_of(
        make_tool_with_original_name("m_read"), make_tool_with_original_name(stranger), granted={"m_read"}
    )
    assert turn.tool("files/read").name == "m_read"


def test_granted_tool_is_found_by_its_original_name_even_if_an_ungranted_tool_has_the_same_name() -> None:
    turn = turn_of(make_tool_with_original_name("m_read", "read"), make_tool("read"), granted={"m_read"})
    assert turn.tool("read").name == "m_read"


def test_tool_name_takes_precedence_over_an_equal_original_name_of_another_tool() -> None:
    turn = turn_of(make_tool_with_original_name("m_read", "read"), make_tool("read"))
    assert turn.tool("read").name == "read"


def test_error_for_an_original_name_shared_by_two_granted_tools_lists_both_tools() -> None:
    tools = [
        make_tool_with_original_name(name) for name in ("a_read", "m_read", "secret_read", "hidden_read")
    ]
    turn = turn_of(*tools, granted={"a_read", "m_read", "hidden_read"}, hidden=["hidden_read"])
    with pytest.raises(
        CallError, match="'files/read' could mean several tools: call a_read or m_read by its full name"
    ):
        turn.tool("files/read")


def test_original_name_shared_by_a_listed_and_a_hidden_tool_resolves_to_the_listed_tool() -> None:
    tools = [make_tool_with_original_name("m_read"), make_tool_with_original_name("hidden_read")]
    assert turn_of(*tools, hidden=["hidden_read"]).tool("files/read").name == "m_read"


def test_granted_tool_that_is_not_registered_is_neither_listed_nor_found() -> None:
    turn = turn_of(make_tool("a"), granted={"a", "ghost"})
    assert listed_names(turn) == ["a"]
    error_text(turn, "ghost")


# -- what is shown --------------------------------------------------------------------------------------


def test_visible_tools_are_listed_in_name_order() -> None:
    assert listed_names(turn_of(make_tool("c"), make_tool("a"), make_tool("b"))) == ["a", "b", "c"]


def test_granted_tool_that_is_hidden_from_the_list_can_still_be_called() -> None:
    turn = turn_of(make_tool("a"), make_tool("b"), hidden=["b"])
    assert listed_names(turn) == ["a"]
    assert turn.tool("b").name == "b"


def test_error_for_an_unknown_tool_name_does_not_suggest_a_tool_that_is_not_listed() -> None:
    turn = turn_of(make_tool("list_tasks"), make_tool("list_secrets"), hidden=["list_secrets"])
    assert turn.find_visible("list_tasks").name == "list_tasks"
    with pytest.raises(OutOfScope) as caught:
        turn.find_visible("list_secrets")
    assert "Did you mean list_secrets" not in str(caught.value)
    assert "secrets" not in error_text(turn, "list_secret").replace("'list_secret'", "")


def test_unavailable_tool_is_not_listed_and_the_error_for_calling_it_states_the_reason() -> None:
    turn = turn_of(make_tool("a"), make_tool("b", check_fn=lambda: False))
    assert listed_names(turn) == ["a"]
    with pytest.raises(CallError, match="'b' cannot be used right now: its check returned false") as caught:
        turn.tool("b")
    assert not isinstance(caught.value, OutOfScope)


def test_unavailable_tool_is_not_suggested_for_a_misspelt_name() -> None:
    turn = turn_of(make_tool("read_file"), make_tool("read_files", check_fn=lambda: False))
    assert "Did you mean read_file?" in error_text(turn, "read_filess")


def test_availability_checks_run_only_for_granted_tools() -> None:
    ran: list[str] = []

    def check(name: str) -> Callable[[], bool]:
        def run() -> bool:
            ran.append(name)
            return True

        return run

    turn_of(make_tool("a", check_fn=check("a")), make_tool("b", check_fn=check("b")), granted={"a"})
    assert ran == ["a"]


def test_tools_of_a_running_turn_do_not_change_with_the_registry() -> None:
    registry = Registry()
    registry.add(make_tool("a"))
    turn = assemble(registry.snapshot(), frozenset({"a", "b"}), Availability(timeout=5))
    registry.remove("a")
    registry.add(make_tool("b"))
    assert listed_names(turn) == ["a"]
    assert turn.tool("a").name == "a"
    error_text(turn, "b")


def test_tool_definitions_of_a_turn_have_the_openai_format() -> None:
    schema = {
        "description": "Reads.",
        "parameters": {"type": "object", "properties": {"p": {"type": "string"}}, "required": ["p"]},
    }
    assert turn_of(make_tool("read", schema=schema)).definitions() == [
        {"type": "function", "function": {"name": "read", **schema}}
    ]


def test_modifying_returned_tool_definitions_does_not_change_definitions_returned_later() -> None:
    turn = turn_of(make_tool("a"))
    mine = turn.definitions()
    mine[0]["function"]["name"] = "hijacked"
    mine[0]["function"]["parameters"]["type"] = "array"
    assert listed_names(turn) == ["a"]
    assert turn.definitions()[0]["function"]["parameters"]["type"] == "object"


# -- what a scope grants --------------------------------------------------------------------------------


def toolsets_of(*tools: Tool) -> Toolsets:
    return Toolsets(snapshot_of(tools))


def test_granted_tools_of_equal_scopes_are_computed_once_and_cached() -> None:
    grants, toolsets = GrantCache(), toolsets_of(make_tool("a"), make_tool("b"))
    first = grants.get_grant(toolsets, Scope(("t",)), frozenset())
    assert grants.get_grant(toolsets, Scope(("t",)), frozenset()) is first
    assert first.names == {"a", "b"}
    assert [each.name for each in first.tools] == ["a", "b"]


def test_granted_tools_are_computed_again_if_the_scope_or_the_registered_tools_change() -> None:
    grants, toolsets = GrantCache(), toolsets_of(make_tool("a"), make_tool("b"))
    assert grants.get_grant(toolsets, Scope(("t",), without=("b",)), frozenset()).names == {"a"}
    assert grants.get_grant(toolsets, Scope(("t",)).narrow([]), frozenset()).names == set()
    assert grants.get_grant(toolsets_of(make_tool("c")), Scope(("t",)), frozenset()).names == {"c"}
    assert grants.get_grant(toolsets, Scope(("t",)), frozenset()).names == {"a", "b"}


def test_agent_level_tool_is_granted_but_listed_only_if_the_agent_offers_it() -> None:
    grants, toolsets = GrantCache(), toolsets_of(make_tool("a"), make_tool("todo", agent_level=True))
    without = grants.get_grant(toolsets, Scope(), frozenset())
    offered = grants.get_grant(toolsets, Scope(), frozenset({"todo"}))
    assert [each.name for each in without.tools] == ["a"]
    assert [each.name for each in offered.tools] == ["a", "todo"]
    assert without.names == offered.names == {"a", "todo"}


def test_granted_tools_can_be_computed_for_a_scope_narrowed_5000_times() -> None:
    scope = Scope(("t",))
    for _ in range(5_000):
        scope = scope.narrow()
    assert GrantCache().get_grant(toolsets_of(make_tool("a")), scope, frozenset()).names == {"a"}


def test_cache_of_granted_tools_contains_at_most_the_maximum_number_of_scopes() -> None:
    grants, toolsets = GrantCache(), toolsets_of(make_tool("a"))
    for number in range(MAX_CACHED_GRANTS * 2 + 5):
        scope = Scope(None, without=(f"x{number}",))
        assert grants.get_grant(toolsets, scope, frozenset()).names == {"a"}
    assert len(grants._held[1]) <= MAX_CACHED_GRANTS


# -- definitions that mention others --------------------------------------------------------------------


def mentions(definition: Definition, present: frozenset[str]) -> Definition:
    adapted = copy.deepcopy(definition)
    adapted["function"]["description"] = "can call " + ", ".join(sorted(present))
    return adapted


def get_description(turn: Turn, name: str) -> str:
    found = {each["function"]["name"]: each["function"]["description"] for each in turn.definitions()}
    return str(found[name])


def test_adapted_tool_description_mentions_only_tools_that_are_available_in_the_turn() -> None:
    tools = [
        make_tool("code", adapt=mentions),
        make_tool("a"),
        make_tool("b"),
        make_tool("c", check_fn=lambda: False),
        make_tool("d"),
    ]
    turn = turn_of(*tools, granted={"code", "a", "c", "d"}, hidden=["d"])
    assert get_description(turn, "code") == "can call a, code"


def fails(_definition: Definition, _present: frozenset[str]) -> Definition:
    raise RuntimeError("broken")


def changes_the_shared_schema(definition: Definition, _present: frozenset[str]) -> Definition:
    definition["function"]["parameters"]["type"] = "array"
    return definition


def answers_nothing(_definition: Definition, _present: frozenset[str]) -> Any:
    return None


def answers_another_shape(_definition: Definition, _present: frozenset[str]) -> Definition:
    return {"name": "code"}


def takes_another_name(definition: Definition, _present: frozenset[str]) -> Definition:
    definition["function"]["name"] = "tool_search"
    return definition


@pytest.mark.parametrize(
    "adapt", [fails, changes_the_shared_schema, answers_nothing, answers_another_shape, takes_another_name]
)
def test_original_tool_description_is_listed_if_the_function_that_rewrites_it_fails(
    adapt: Any, caplog: pytest.LogCaptureFixture
) -> None:
    turn = turn_of(make_tool("code", adapt=adapt), make_tool("other"))
    with caplog.at_level(logging.ERROR):
        assert listed_names(turn) == ["code", "other"]
        assert get_description(turn, "code") == "does code"
    assert "could not be adapted" in caplog.text
