"""A turn shows and calls what was granted and can work, and nothing else, until it ends."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from toolfold.authoring import build_tool
from toolfold.availability import Availability
from toolfold.errors import CallError, OutOfScope
from toolfold.model import Definition, Tool
from toolfold.registry import Registry, Snapshot
from toolfold.scope import Scope, Toolsets
from toolfold.turn import GrantCache, Turn, assemble
from toolfold.turn.grant import MAX_CACHED_GRANTS


def tool(name: str, **options: Any) -> Tool:
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


def shown(turn: Turn) -> list[str]:
    return [each["function"]["name"] for each in turn.definitions()]


def refusal(turn: Turn, name: str) -> str:
    with pytest.raises(OutOfScope) as caught:
        turn.tool(name)
    return str(caught.value)


# -- the gate -------------------------------------------------------------------------------------------


def test_what_was_granted_is_found() -> None:
    turn = turn_of(tool("a"), tool("b"), granted={"a"})
    assert turn.tool("a").name == "a"


def test_what_was_not_granted_is_not_found() -> None:
    turn = turn_of(tool("a"), tool("b"), granted={"a"})
    assert refusal(turn, "b") == "'b' is not available in this session. Call one of the tools you were given."


def test_where_there_is_a_search_the_model_is_sent_to_it() -> None:
    turn = replace(turn_of(tool("a")), searchable=True)
    assert refusal(turn, "zzzz") == "'zzzz' is not available in this session. Use tool_search to see what is."
    assert "Did you mean tool_search" in refusal(turn, "tool_serch")
    assert "tool_search" not in refusal(turn_of(tool("a")), "tool_serch")


def test_nothing_tells_a_tool_that_was_not_granted_from_one_that_does_not_exist() -> None:
    tools = [tool("slack_post"), tool("slack_read"), tool("mail_read")]
    with_it = turn_of(*tools, granted={"mail_read"})
    without_it = turn_of(tools[2])
    assert refusal(with_it, "slack_post") == refusal(without_it, "slack_post")
    assert "slack_read" not in refusal(with_it, "slack_rea")


def test_a_slip_of_the_pen_is_answered_with_what_was_meant() -> None:
    assert "Did you mean read_file?" in refusal(turn_of(tool("read_file"), tool("x")), "read_fle")


def test_an_empty_grant_grants_nothing() -> None:
    turn = turn_of(tool("a"), granted=set())
    assert shown(turn) == []
    refusal(turn, "a")


def test_the_gate_knows_a_tool_by_its_authors_name_and_grants_it_by_the_other() -> None:
    odd = "server.with dots/and a name " + "x" * 80
    turn = turn_of(tool(odd))
    assert turn.tool(odd) is turn.tool(shown(turn)[0])
    elsewhere = Turn(turn.snapshot, frozenset({"other"}))
    refusal(elsewhere, odd)


def by_author(name: str, original: str = "files/read") -> Tool:
    return replace(tool(name), original_name=original)


@pytest.mark.parametrize("stranger", ["a_read", "z_read", "files_read"])
def test_a_stranger_with_the_same_authors_name_does_not_hide_a_granted_tool(stranger: str) -> None:
    turn = turn_of(by_author("m_read"), by_author(stranger), granted={"m_read"})
    assert turn.tool("files/read").name == "m_read"


def test_a_stranger_whose_name_is_an_authors_name_does_not_hide_a_granted_tool() -> None:
    turn = turn_of(by_author("m_read", "read"), tool("read"), granted={"m_read"})
    assert turn.tool("read").name == "m_read"


def test_a_real_name_means_its_tool_whoever_else_was_called_so() -> None:
    turn = turn_of(by_author("m_read", "read"), tool("read"))
    assert turn.tool("read").name == "read"


def test_an_authors_name_that_several_granted_tools_have_is_ambiguous() -> None:
    tools = [by_author(name) for name in ("a_read", "m_read", "secret_read", "hidden_read")]
    turn = turn_of(*tools, granted={"a_read", "m_read", "hidden_read"}, hidden=["hidden_read"])
    with pytest.raises(CallError, match="'files/read' is ambiguous: call a_read or m_read by name"):
        turn.tool("files/read")


def test_a_hidden_tool_does_not_make_a_name_ambiguous() -> None:
    tools = [by_author("m_read"), by_author("hidden_read")]
    assert turn_of(*tools, hidden=["hidden_read"]).tool("files/read").name == "m_read"


def test_a_grant_of_a_name_that_does_not_exist_is_harmless() -> None:
    turn = turn_of(tool("a"), granted={"a", "ghost"})
    assert shown(turn) == ["a"]
    refusal(turn, "ghost")


# -- what is shown --------------------------------------------------------------------------------------


def test_tools_are_shown_in_the_order_of_their_names_whoever_came_first() -> None:
    assert shown(turn_of(tool("c"), tool("a"), tool("b"))) == ["a", "b", "c"]


def test_a_hidden_tool_is_not_shown_and_can_be_called() -> None:
    turn = turn_of(tool("a"), tool("b"), hidden=["b"])
    assert shown(turn) == ["a"]
    assert turn.tool("b").name == "b"


def test_a_hidden_tool_is_not_spoken_of() -> None:
    turn = turn_of(tool("list_tasks"), tool("list_secrets"), hidden=["list_secrets"])
    assert turn.find_visible("list_tasks").name == "list_tasks"
    with pytest.raises(OutOfScope) as caught:
        turn.find_visible("list_secrets")
    assert "Did you mean list_secrets" not in str(caught.value)
    assert "secrets" not in refusal(turn, "list_secret").replace("'list_secret'", "")


def test_a_tool_that_cannot_work_is_neither_shown_nor_callable_and_says_why() -> None:
    turn = turn_of(tool("a"), tool("b", check_fn=lambda: False))
    assert shown(turn) == ["a"]
    with pytest.raises(CallError, match="'b' cannot be used right now: its check said no") as caught:
        turn.tool("b")
    assert not isinstance(caught.value, OutOfScope)


def test_a_tool_that_cannot_work_is_not_suggested() -> None:
    turn = turn_of(tool("read_file"), tool("read_files", check_fn=lambda: False))
    assert "Did you mean read_file?" in refusal(turn, "read_filess")


def test_only_the_tools_of_the_session_are_checked() -> None:
    ran: list[str] = []

    def check(name: str) -> Callable[[], bool]:
        def run() -> bool:
            ran.append(name)
            return True

        return run

    turn_of(tool("a", check_fn=check("a")), tool("b", check_fn=check("b")), granted={"a"})
    assert ran == ["a"]


def test_a_turn_stays_as_it_was_while_the_registry_changes() -> None:
    registry = Registry()
    registry.add(tool("a"))
    turn = assemble(registry.snapshot(), frozenset({"a", "b"}), Availability(timeout=5))
    registry.remove("a")
    registry.add(tool("b"))
    assert shown(turn) == ["a"]
    assert turn.tool("a").name == "a"
    refusal(turn, "b")


def test_definitions_have_the_form_that_providers_take() -> None:
    schema = {
        "description": "Reads.",
        "parameters": {"type": "object", "properties": {"p": {"type": "string"}}, "required": ["p"]},
    }
    assert turn_of(tool("read", schema=schema)).definitions() == [
        {"type": "function", "function": {"name": "read", **schema}}
    ]


def test_a_caller_that_changes_its_definitions_changes_nobody_elses() -> None:
    turn = turn_of(tool("a"))
    mine = turn.definitions()
    mine[0]["function"]["name"] = "hijacked"
    with pytest.raises(TypeError, match="read-only"):
        mine[0]["function"]["parameters"]["type"] = "array"
    assert shown(turn) == ["a"]


# -- what a scope grants --------------------------------------------------------------------------------


def toolsets_of(*tools: Tool) -> Toolsets:
    return Toolsets(snapshot_of(tools))


def test_a_grant_is_worked_out_once_for_all_who_have_the_same_scope() -> None:
    grants, toolsets = GrantCache(), toolsets_of(tool("a"), tool("b"))
    first = grants.get_grant(toolsets, Scope(("t",)), frozenset())
    assert grants.get_grant(toolsets, Scope(("t",)), frozenset()) is first
    assert first.names == {"a", "b"}
    assert [each.name for each in first.tools] == ["a", "b"]


def test_other_scopes_and_other_tools_have_other_grants() -> None:
    grants, toolsets = GrantCache(), toolsets_of(tool("a"), tool("b"))
    assert grants.get_grant(toolsets, Scope(("t",), without=("b",)), frozenset()).names == {"a"}
    assert grants.get_grant(toolsets, Scope(("t",)).narrow([]), frozenset()).names == set()
    assert grants.get_grant(toolsets_of(tool("c")), Scope(("t",)), frozenset()).names == {"c"}
    assert grants.get_grant(toolsets, Scope(("t",)), frozenset()).names == {"a", "b"}


def test_an_agents_own_tool_is_shown_where_an_agent_offers_it_and_granted_everywhere() -> None:
    grants, toolsets = GrantCache(), toolsets_of(tool("a"), tool("todo", agent_level=True))
    without = grants.get_grant(toolsets, Scope(), frozenset())
    offered = grants.get_grant(toolsets, Scope(), frozenset({"todo"}))
    assert [each.name for each in without.tools] == ["a"]
    assert [each.name for each in offered.tools] == ["a", "todo"]
    assert without.names == offered.names == {"a", "todo"}


def test_a_long_chain_of_scopes_has_a_grant_like_any_other() -> None:
    scope = Scope(("t",))
    for _ in range(5_000):
        scope = scope.narrow()
    assert GrantCache().get_grant(toolsets_of(tool("a")), scope, frozenset()).names == {"a"}


def test_a_great_many_scopes_do_not_fill_the_memory() -> None:
    grants, toolsets = GrantCache(), toolsets_of(tool("a"))
    for number in range(MAX_CACHED_GRANTS * 2 + 5):
        scope = Scope(None, without=(f"x{number}",))
        assert grants.get_grant(toolsets, scope, frozenset()).names == {"a"}
    assert len(grants._held[1]) <= MAX_CACHED_GRANTS


# -- definitions that mention others --------------------------------------------------------------------


def mentions(definition: Definition, present: frozenset[str]) -> Definition:
    adapted = copy.deepcopy(definition)
    adapted["function"]["description"] = "can call " + ", ".join(sorted(present))
    return adapted


def described(turn: Turn, name: str) -> str:
    found = {each["function"]["name"]: each["function"]["description"] for each in turn.definitions()}
    return str(found[name])


def test_a_definition_mentions_only_the_tools_that_are_really_there() -> None:
    tools = [tool("code", adapt=mentions), tool("a"), tool("b"), tool("c", check_fn=lambda: False), tool("d")]
    turn = turn_of(*tools, granted={"code", "a", "c", "d"}, hidden=["d"])
    assert described(turn, "code") == "can call a, code"


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
def test_a_definition_that_cannot_be_adapted_is_shown_plain_and_the_others_are_not_disturbed(
    adapt: Any, caplog: pytest.LogCaptureFixture
) -> None:
    turn = turn_of(tool("code", adapt=adapt), tool("other"))
    with caplog.at_level(logging.ERROR):
        assert shown(turn) == ["code", "other"]
        assert described(turn, "code") == "does code"
    assert "could not be adapted" in caplog.text
