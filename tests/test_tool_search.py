"""Tool search in real sessions: function, isolation and invalid input."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.conftest import RuntimeOpener
from tests.thorough import try_examples
from toolfold import CallContext, Refused, Runtime, Session, ToolCall, ToolResult, open_runtime
from toolfold.agent import LocalAgent
from toolfold.config import load_config
from toolfold.core.types import BRIDGE_NAMES, ApprovalRequest, Json, Tool

BRIDGE = ["tool_search", "tool_describe", "tool_call"]
SETTINGS = {"tools.tool_search.enabled": "on", "tools.rag_embed_model": "light", "plugins.enabled": False}
PATH = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "depth": {"type": "integer", "minimum": 1}},
    "required": ["path"],
    "additionalProperties": False,
}


def add(runtime: Runtime, name: str, toolset: str, ran: list[Any], **options: Any) -> Tool:
    def handler(args: Json, _context: CallContext) -> Json:
        ran.append((name, args))
        return {"ran": name}

    schema = {"description": options.pop("description", f"{name} of {toolset}")}
    schema["parameters"] = options.pop("parameters", PATH)
    return runtime.registry.register(name=name, toolset=toolset, schema=schema, handler=handler, **options)


@pytest.fixture
def ran() -> list[Any]:
    return []


@pytest.fixture
def desk(open_test_runtime: RuntimeOpener, ran: list[Any]) -> Runtime:
    """Runtime with two deferred servers of two tools each, and its own core tools."""
    runtime = open_test_runtime(SETTINGS)
    add(runtime, "hub_list_folder", "mcp-hub", ran, description="List the files of a folder.")
    add(runtime, "hub_wipe", "mcp-hub", ran, description="Erase a folder.", effects=["destructive"])
    add(runtime, "vault_open", "mcp-vault", ran, description="Open the vault's folder.")
    add(runtime, "vault_list", "mcp-vault", ran, description="List what the vault has.")
    return runtime


def shown_names(session: Session, message: str = "") -> list[str]:
    return [each["function"]["name"] for each in session.definitions(message)]


def parse_answer(result: ToolResult) -> Any:
    return json.loads(result.text)


def found_names(session: Session, query: str, **args: Any) -> list[str]:
    result = session.call_sync("tool_search", {"query": query, **args})
    assert result.ok, result.text
    return [match["name"] for match in parse_answer(result)["matches"]]


# -- a conversation -------------------------------------------------------------------------------------


def test_tool_found_by_tool_search_can_be_called_through_the_tool_call_bridge(
    desk: Runtime, ran: list[Any]
) -> None:
    session = desk.session(["mcp-hub", "file"])
    assert shown_names(session) == ["patch", "read_file", "search_files", "write_file", *BRIDGE]
    (match, *_) = parse_answer(session.call_sync("tool_search", {"query": "list a folder"}))["matches"]
    assert match["signature"] == "(path: string, depth?: integer)"
    result = session.call_sync("tool_call", {"name": match["name"], "arguments": {"path": "/a"}})
    assert (result.ok, result.name, parse_answer(result)) == (
        True,
        "hub_list_folder",
        {"ran": "hub_list_folder"},
    )
    assert ran == [("hub_list_folder", {"path": "/a"})]


def test_tool_search_repeats_a_description_only_if_it_is_no_longer_in_the_messages(desk: Runtime) -> None:
    session = desk.session(["mcp-hub"])
    asked = [{"role": "user", "content": "list a folder"}]
    session.request(asked)
    first = session.call_sync("tool_search", {"query": "list a folder", "limit": 1})
    call = {"id": "c1", "type": "function", "function": {"name": "tool_search", "arguments": "{}"}}
    session.request(
        [
            *asked,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": first.text},
        ]
    )
    again = session.call_sync("tool_search", {"query": "list a folder", "limit": 1})
    assert parse_answer(again)["matches"] == [{"name": "hub_list_folder", "note": "Described above."}]
    session.request([{"role": "user", "content": "Summary of the conversation. Go on."}])
    anew = session.call_sync("tool_search", {"query": "list a folder", "limit": 1})
    assert parse_answer(anew) == parse_answer(first)


def test_error_for_invalid_arguments_in_the_tool_call_bridge_contains_their_path_and_the_schema(
    desk: Runtime, ran: list[Any]
) -> None:
    session = desk.session(["mcp-hub"])
    arguments = {"name": "hub_list_folder", "arguments": {"path": "/a", "depth": 0}}
    result = session.call_sync("tool_call", arguments)
    assert result.error == ("'hub_list_folder' was not invoked: at /depth: 0 is less than the minimum of 1.")
    assert parse_answer(result)["parameters"] == PATH
    assert result.name == "hub_list_folder"
    assert ran == []


def test_deferred_tool_can_be_called_directly_by_its_name(desk: Runtime, ran: list[Any]) -> None:
    session = desk.session()
    assert "hub_list_folder" not in shown_names(session)
    assert session.call_sync("hub_list_folder", {"path": "/a"}).ok
    assert ran == [("hub_list_folder", {"path": "/a"})]


@pytest.mark.parametrize("arguments", [None, "", "  ", "{}", {}])
def test_tool_call_bridge_with_null_blank_or_empty_arguments_runs_a_tool_without_parameters(
    arguments: Any, desk: Runtime, ran: list[Any]
) -> None:
    add(desk, "hub_ping", "mcp-hub", ran, parameters={})
    assert desk.session().call_sync("tool_call", {"name": "hub_ping", "arguments": arguments}).ok
    assert ran == [("hub_ping", {})]


def test_tool_search_and_tool_describe_return_results_before_the_first_turn(desk: Runtime) -> None:
    session = desk.session(["mcp-hub"])
    assert found_names(session, "list a folder")[0] == "hub_list_folder"
    assert parse_answer(session.call_sync("tool_describe", {"name": "hub_wipe"}))["parameters"] == PATH
    assert json.loads(desk.handle_function_call("tool_search", {"query": "hub_wipe"}))["matches"]


def test_results_of_several_bridge_calls_in_one_model_reply_keep_the_order_of_the_calls(
    desk: Runtime, ran: list[Any]
) -> None:
    calls = [
        ToolCall("tool_search", {"query": "list a folder"}),
        ToolCall("tool_call", {"name": "hub_list_folder", "arguments": {"path": "/"}}),
        ToolCall("tool_describe", {"name": "vault_open"}),
        ToolCall("tool_call", {"name": "vault_open", "arguments": {"path": "/"}}),
    ]
    results = desk.session(["mcp-hub"]).call_all_sync(calls)
    assert [result.ok for result in results] == [True, True, False, False]
    assert [result.call_id for result in results] == [call.id for call in calls]
    assert [name for name, _ in ran] == ["hub_list_folder"]


# -- core tools ---------------------------------------------------------------


def search(session: Session, query: str, **args: Any) -> Json:
    return dict(parse_answer(session.call_sync("tool_search", {"query": query, **args})))


@pytest.mark.parametrize("assembled", [True, False])
def test_tool_search_results_exclude_core_tools_which_are_always_in_the_request(
    desk: Runtime, assembled: bool
) -> None:
    session = desk.session(["mcp-hub", "file"])
    if assembled:
        session.assemble()
    answered = search(session, "read_file write a file patch search files list folder", limit=20)
    assert {match["name"] for match in answered["matches"]} <= {"hub_list_folder", "hub_wipe"}
    assert found_names(session, "read_file") != ["read_file"]


@pytest.mark.parametrize("assembled", [True, False])
def test_tool_search_for_a_core_tool_advises_calling_the_tool_directly(
    desk: Runtime, assembled: bool
) -> None:
    session = desk.session(["mcp-hub", "file"])
    if assembled:
        session.assemble()
    answered = search(session, "read_file")
    assert answered["direct"] == ["read_file"]
    assert "not through tool_call" in answered["note"]
    assert "direct" not in search(session, "hub_wipe")


@pytest.mark.parametrize("assembled", [True, False])
def test_core_tool_called_through_the_tool_call_bridge_runs(
    desk: Runtime, assembled: bool, ran: list[Any]
) -> None:
    add(desk, "own_list", "own", ran, core=True)
    session = desk.session(["mcp-hub", "own"])
    if assembled:
        session.assemble()
    wrapped = ToolCall("tool_call", {"name": "own_list", "arguments": {"path": "/"}})
    for result in (session.call_sync(wrapped.name, wrapped.arguments), *session.call_all_sync([wrapped])):
        assert (result.name, result.error) == ("own_list", None)
    assert len(ran) == 2


def test_core_tool_outside_the_grant_cannot_be_called_through_the_tool_call_bridge(
    desk: Runtime, ran: list[Any]
) -> None:
    add(desk, "own_list", "own", ran, core=True)
    result = desk.session(["mcp-hub"]).call_sync(
        "tool_call", {"name": "own_list", "arguments": {"path": "/"}}
    )
    assert "is not available in this session" in str(result.error)
    assert ran == []


def test_tool_in_the_setting_always_load_is_visible_and_not_searched(
    open_test_runtime: RuntimeOpener, ran: list[Any]
) -> None:
    runtime = open_test_runtime(SETTINGS | {"tools.tool_search.always_load": ["hub_go"]})
    add(runtime, "hub_go", "mcp-hub", ran)
    add(runtime, "hub_stop", "mcp-hub", ran)
    session = runtime.session(["mcp-hub"])
    assert shown_names(session) == ["hub_go", *BRIDGE]
    assert found_names(session, "hub_go") == ["hub_stop"]
    assert session.call_sync("tool_call", {"name": "hub_go", "arguments": {"path": "/"}}).ok


def test_core_tool_deferred_by_a_setting_can_be_found_and_called_through_the_bridge_tools(
    open_test_runtime: RuntimeOpener, ran: list[Any]
) -> None:
    runtime = open_test_runtime(SETTINGS | {"tools.tool_search.defer": ["own_list"]})
    add(runtime, "own_list", "own", ran, core=True)
    session = runtime.session(["own"])
    assert shown_names(session) == BRIDGE
    assert found_names(session, "own_list") == ["own_list"]
    assert session.call_sync("tool_call", {"name": "own_list", "arguments": {"path": "/"}}).ok


def test_unselected_core_tool_can_be_found_and_called_through_the_bridge_tools(
    open_test_runtime: RuntimeOpener, ran: list[Any]
) -> None:
    """A core tool that is not shown cannot be called directly, so tool search must not advise that."""
    runtime = open_test_runtime(SETTINGS | {"tools.selection": "keyword", "tools.rag_top_k": 1})
    add(runtime, "own_list", "own", ran, core=True)
    add(runtime, "hub_go", "mcp-hub", ran)
    session = runtime.session(["own", "mcp-hub", "file"])
    assert "own_list" not in shown_names(session, "hub go")
    assert "own_list" in found_names(session, "own list")
    assert session.call_sync("tool_call", {"name": "own_list", "arguments": {"path": "/"}}).ok
    assert "read_file" in shown_names(session, "hub go")
    assert "read_file" not in found_names(session, "read a file", limit=20)


def test_tool_search_result_contains_the_number_of_deferred_tools_granted_to_the_session(
    desk: Runtime,
) -> None:
    narrow, wide = desk.session(["mcp-hub", "file"]), desk.session(["mcp-hub", "mcp-vault", "file"])
    for _ in range(2):
        assert search(narrow, "folder", limit=1)["total_available"] == 2
        assert search(wide, "folder")["total_available"] == 4
        narrow.assemble()
        wide.assemble()
    assert search(desk.session([]), "folder")["total_available"] == 0


# -- hooks, approval and logs ------------------------------------------------------------------


def test_hooks_of_a_call_through_the_tool_call_bridge_receive_the_inner_tool_and_its_arguments(
    desk: Runtime, ran: list[Any]
) -> None:
    before: list[str] = []
    after: list[str] = []
    desk.hooks.add("pre_tool_call", lambda tool, _args, _context: before.append(tool.name))
    desk.hooks.add("post_tool_call", lambda _tool, _args, result, _context: after.append(result.name))
    session = desk.session()
    session.call_sync("tool_search", {"query": "folder"})
    session.call_sync("tool_describe", {"name": "hub_wipe"})
    session.call_sync("tool_call", {"name": "hub_list_folder", "arguments": {"path": "/"}})
    assert before == after == ["tool_search", "tool_describe", "hub_list_folder"]


def test_pre_hook_can_refuse_a_tool_search_call(desk: Runtime) -> None:
    def nothing_about_vaults(tool: Tool, args: Json, _context: CallContext) -> None:
        if tool.name == "tool_search" and "vault" in args["query"]:
            raise Refused("Not that.")

    desk.hooks.add("pre_tool_call", nothing_about_vaults)
    assert desk.session().call_sync("tool_search", {"query": "the vault"}).error == "Not that."
    assert desk.session().call_sync("tool_search", {"query": "a folder"}).ok


def test_approval_request_for_a_call_through_the_tool_call_bridge_names_the_inner_tool(
    desk: Runtime, ran: list[Any]
) -> None:
    asked: list[tuple[str, Json]] = []

    def refuse(request: ApprovalRequest) -> bool:
        asked.append((request.tool.name, request.args))
        return False

    session = desk.session(approver=refuse)
    result = session.call_sync("tool_call", {"name": "hub_wipe", "arguments": '{"path": "/a"}'})
    assert "the request was declined" in str(result.error)
    assert asked == [("hub_wipe", {"path": "/a"})]
    assert ran == []


def test_log_line_of_a_call_through_the_tool_call_bridge_contains_the_name_of_the_inner_tool(
    desk: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_args: Json) -> None:
        raise RuntimeError("broken")

    desk.registry.register(name="hub_fails", toolset="mcp-hub", schema={}, handler=fails)
    with caplog.at_level("INFO"):
        result = desk.session().call_sync("tool_call", {"name": "hub_fails", "arguments": {}})
    assert result.error == "Tool execution failed: RuntimeError: broken"
    assert "tool 'hub_fails' raised" in caplog.text
    assert "tool_call" not in caplog.text


def test_hanging_tool_search_returns_an_error_after_the_tool_timeout(
    open_test_runtime: RuntimeOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = open_test_runtime(SETTINGS | {"tools.timeout_seconds": 0.2})
    add(runtime, "hub_go", "mcp-hub", [])
    hanging = threading.Event()
    monkeypatch.setattr(runtime.retriever, "answer", lambda *_, **__: hanging.wait(60))
    try:
        result = runtime.session().call_sync("tool_search", {"query": "x"})
    finally:
        hanging.set()
    assert "'tool_search' did not end within 0.2 s" in str(result.error)


# -- context window ----------------------------------------------------------------------------


def test_tools_are_deferred_only_in_a_session_with_a_small_context_window(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime(SETTINGS | {"tools.tool_search.enabled": "auto"})
    for number in range(5):
        add(runtime, f"hub_{number}", "mcp-hub", [])
    small, large, unknown = (
        runtime.session(["mcp-hub"], context_tokens=window) for window in (2_000, 500_000, None)
    )
    for _ in range(2):  # they do not affect each other
        assert shown_names(small) == BRIDGE
        assert shown_names(large) == shown_names(unknown) == [f"hub_{number}" for number in range(5)]


def test_delegated_session_defers_tools_according_to_the_context_window_of_its_parent(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime(SETTINGS | {"tools.tool_search.enabled": "auto"})
    for number in range(5):
        add(runtime, f"hub_{number}", "mcp-hub", [])
    parent = runtime.session(["mcp-hub"], context_tokens=2_000)
    assert shown_names(parent.delegate()) == BRIDGE
    assert len(shown_names(parent.delegate(context_tokens=500_000))) == 5


@pytest.mark.parametrize("window", [0, -5])
def test_opening_a_session_with_a_non_positive_context_window_raises_an_error(
    window: int, desk: Runtime
) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        desk.session(context_tokens=window)
    with pytest.raises(ValueError, match="must be positive"):
        desk.session(context_tokens=5).delegate(context_tokens=window)


def test_tools_added_or_removed_during_a_turn_take_effect_in_the_next_turn(
    desk: Runtime, ran: list[Any]
) -> None:
    session = desk.session(["mcp-hub", "mcp-late"])
    assert shown_names(session) == BRIDGE
    add(desk, "late_flower", "mcp-late", ran, description="Water the flowers.")
    assert "late_flower" not in found_names(session, "late_flower")
    session.assemble()
    assert found_names(session, "water flowers")[0] == "late_flower"
    desk.registry.remove("late_flower")
    assert found_names(session, "water flowers")[0] == "late_flower"  # fixed until the turn ends
    session.assemble()
    assert "late_flower" not in found_names(session, "water flowers")
    for name in ("hub_wipe", "hub_list_folder"):
        desk.registry.remove(name)
    assert shown_names(session) == []


def test_selected_tools_are_listed_and_unselected_tools_are_found_by_tool_search(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime(SETTINGS | {"tools.selection": "keyword", "tools.rag_top_k": 1})
    for name in ("water_plants", "book_flight", "send_invoice"):
        add(runtime, name, "mcp-hub", [])
    session = runtime.session()
    pinned = ["read_file", "search_files", "terminal"]
    assert shown_names(session, "book a flight") == [*pinned, *BRIDGE, "book_flight"]
    assert shown_names(session, "water the plants") == [*pinned, *BRIDGE, "water_plants"]
    assert found_names(session, "send an invoice")[0] == "send_invoice"


# -- scope ----------------------------------------------------------------------------------------------


def call_by_all_routes(session: Session, name: str) -> Iterator[ToolResult]:
    """Return the results of every way in which a model may try to reach a tool."""
    yield session.call_sync(name, {"path": "/"})
    yield session.call_sync("tool_call", {"name": name, "arguments": {"path": "/"}})
    yield session.call_sync("tool_call", {"tool": name, "arguments": '{"path": "/"}'})
    yield session.call_sync("tool_describe", {"name": name})
    yield session.call_all_sync([ToolCall("tool_call", {"name": name, "arguments": {"path": "/"}})])[0]


@pytest.mark.parametrize("assembled", [True, False])
@pytest.mark.parametrize("name", ["vault_open", "no_such_tool"])
def test_ungranted_tool_returns_the_same_error_when_called_directly_or_through_the_tool_call_bridge(
    name: str, assembled: bool, desk: Runtime, ran: list[Any]
) -> None:
    scoped = desk.session(["mcp-hub"])
    for session in (scoped, scoped.delegate(), scoped.delegate(["mcp-vault"]), scoped.delegate(["all"])):
        if assembled:
            session.assemble()
        for result in call_by_all_routes(session, name):
            assert str(result.error).startswith(f"{name!r} is not available in this session.")
            assert "vault_list" not in result.text
        assert name not in found_names(session, name)
    assert ran == []


def test_tool_search_never_reveals_ungranted_tools(desk: Runtime) -> None:
    session = desk.session(["mcp-hub"])
    for query in ("open the vault", "vault_open", "valt_opn", "list what the vault has"):
        text = session.call_sync("tool_search", {"query": query, "limit": 20}).text
        assert "vault_" not in text.replace(query, "")
        assert '"vault"' not in text


def test_tool_search_returns_no_results_in_a_session_without_granted_tools(
    desk: Runtime, ran: list[Any]
) -> None:
    session = desk.session([])
    assert shown_names(session) == []
    assert found_names(session, "list a folder") == []
    assert not any(result.ok for result in call_by_all_routes(session, "hub_list_folder"))
    assert ran == []


def test_disabled_tools_cannot_be_found_by_tool_search_or_called_through_the_tool_call_bridge(
    open_test_runtime: RuntimeOpener, ran: list[Any]
) -> None:
    runtime = open_test_runtime(SETTINGS | {"tools.disabled": ["hub_wipe", "mcp-vault"]})
    for name, toolset in (("hub_wipe", "mcp-hub"), ("vault_open", "mcp-vault"), ("hub_go", "mcp-hub")):
        add(runtime, name, toolset, ran)
    session = runtime.session()
    assert found_names(session, "hub_wipe vault_open hub_go", limit=1) == ["hub_go"]
    assert not {"hub_wipe", "vault_open"} & {*found_names(session, "hub_wipe vault_open", limit=20)}
    for name in ("hub_wipe", "vault_open"):
        assert not any(result.ok for result in call_by_all_routes(session, name))
    assert ran == []


def test_settings_named_always_load_and_defer_do_not_grant_tools_outside_the_toolsets_of_a_session(
    open_test_runtime: RuntimeOpener, ran: list[Any]
) -> None:
    lists = {"tools.tool_search.always_load": ["vault_open"], "tools.tool_search.defer": ["vault_list"]}
    runtime = open_test_runtime(SETTINGS | lists)
    for name in ("vault_open", "vault_list"):
        add(runtime, name, "mcp-vault", ran)
    add(runtime, "hub_go", "mcp-hub", ran)
    session = runtime.session(["mcp-hub"])
    assert shown_names(session) == BRIDGE
    for name in ("vault_open", "vault_list"):
        assert not any(result.ok for result in call_by_all_routes(session, name))
    assert ran == []


def test_tool_searches_of_a_session_with_more_toolsets_do_not_extend_the_tools_of_another_session(
    desk: Runtime, ran: list[Any]
) -> None:
    narrow, wide = desk.session(["mcp-hub"]), desk.session(["mcp-hub", "mcp-vault"])
    before = narrow.assemble()
    assert "vault_open" in found_names(wide, "open the vault")
    wide.call_sync("tool_call", {"name": "vault_open", "arguments": {"path": "/"}})
    wide.delegate(["mcp-vault"]).assemble()
    assert narrow.assemble().granted == before.granted == {"hub_list_folder", "hub_wipe"}
    assert "vault_open" not in found_names(narrow, "open the vault")
    assert not narrow.call_sync("tool_call", {"name": "vault_open", "arguments": {"path": "/"}}).ok
    assert [name for name, _ in ran] == ["vault_open"]


def test_todo_tool_of_an_agent_session_is_absent_from_a_session_without_an_agent(desk: Runtime) -> None:
    plain, agent = desk.session(), desk.session(agent=LocalAgent())
    assert "todo" not in shown_names(plain)
    assert "todo" in shown_names(agent)
    assert "todo" not in shown_names(plain)
    assert "todo" not in found_names(plain, "todo")


def test_turn_can_begin_after_computing_the_granted_tools_raised_an_exception(
    desk: Runtime, monkeypatch: pytest.MonkeyPatch, ran: list[Any]
) -> None:
    session = desk.session(["mcp-hub"])

    def fails(_self: object, _toolsets: object) -> frozenset[str]:
        raise OSError("just now")

    with monkeypatch.context() as patch:
        patch.setattr(type(session.scope), "granted", fails)
        with pytest.raises(OSError, match="just now"):
            session.assemble()
    assert shown_names(session) == BRIDGE
    assert session.call_sync("tool_call", {"name": "hub_list_folder", "arguments": {"path": "/"}}).ok
    assert not session.call_sync("tool_call", {"name": "vault_open", "arguments": {"path": "/"}}).ok


def run_concurrently(work: list[Callable[[], None]]) -> None:
    """Run threads that start at the same moment, and raise what one of them raised."""
    gate, problems = threading.Barrier(len(work)), list[BaseException]()

    def one(each: Callable[[], None]) -> None:
        gate.wait()
        try:
            each()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=one, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if problems:
        raise problems[0]


def test_sessions_searching_in_parallel_threads_find_only_tools_of_their_granted_toolsets(
    open_test_runtime: RuntimeOpener,
) -> None:
    ran: list[tuple[str, str]] = []
    runtime = open_test_runtime(SETTINGS)

    def handler(_args: Json, context: CallContext, name: str) -> str:
        ran.append((context.session_id, name))
        return name

    for owner in ("ann", "bob", "cat"):
        for number in range(4):
            name = f"{owner}_note_{number}"
            runtime.registry.register(
                name=name,
                toolset=f"mcp-{owner}",
                schema={"description": "A note."},
                handler=lambda args, context, name=name: handler(args, context, name),
            )
    sessions = {owner: runtime.session([f"mcp-{owner}"]) for owner in ("ann", "bob", "cat")}

    def work(owner: str, session: Session) -> None:
        others = sorted(sessions.keys() - {owner})
        for number in range(4):
            session.assemble("a note")
            names = found_names(session, "note", limit=20)
            assert sorted(names) == [f"{owner}_note_{each}" for each in range(4)]
            assert session.call_sync("tool_call", {"name": names[number], "arguments": {}}).ok
            for other in others:
                result = session.call_sync("tool_call", {"name": f"{other}_note_{number}", "arguments": {}})
                assert "is not available in this session" in str(result.error)

    def churn() -> None:
        for number in range(20):
            runtime.registry.register(
                name=f"passing_{number}", toolset="mcp-dan", schema={}, handler=lambda _: None
            )
            runtime.registry.remove(f"passing_{number}")

    run_concurrently([churn, *(lambda o=o, s=s: work(o, s) for o, s in sessions.items())])
    by_id = {session.id: owner for owner, session in sessions.items()}
    assert len(ran) == 12
    assert all(name.startswith(by_id[session_id]) for session_id, name in ran)


# -- invalid input ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, list[Any]]]:
    home = tmp_path_factory.mktemp("home")
    ran: list[Any] = []
    config = load_config(project=home, env={"TOOLFOLD_HOME": str(home)}, overrides=SETTINGS)
    with open_runtime(config) as runtime:
        add(runtime, "hub_list_folder", "mcp-hub", ran)
        add(runtime, "vault_open", "mcp-vault", ran)
        session = runtime.session(["mcp-hub"])
        session.assemble()
        yield session, ran


def call_error(bad: tuple[Session, list[Any]], name: Any, arguments: Any) -> str:
    """Return the error of a call that must not run; check that it is short JSON without a traceback."""
    session, ran = bad
    ran.clear()
    result = session.call_sync(name, arguments)
    assert ran == []
    result.text.encode()
    assert parse_answer(result)["error"] == result.error
    assert result.error
    assert len(result.text) < 12_000
    assert "Error executing" not in result.error
    assert "Tool execution failed" not in result.error
    assert session.call_sync("tool_call", {"name": "hub_list_folder", "arguments": {"path": "/"}}).ok
    return result.error


def make_nested(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = {"path": value}
    return value


WRONG: dict[str, tuple[str, Any]] = {
    "no arguments": ("tool_call", None),
    "a list": ("tool_call", []),
    "a number": ("tool_call", 5),
    "no json": ("tool_call", "name=hub_list_folder"),
    "half a json": ("tool_call", '{"name": "hub_list_folder", "arguments": {"path": "/"'),
    "no name": ("tool_call", {"arguments": {"path": "/"}}),
    "a name that is a list": ("tool_call", {"name": ["hub_list_folder"], "arguments": {"path": "/"}}),
    "a name that is a number": ("tool_call", {"name": 1, "arguments": {"path": "/"}}),
    "a blank name": ("tool_call", {"name": " ", "arguments": {"path": "/"}}),
    "an unknown name": ("tool_call", {"name": "hub_unknown", "arguments": {"path": "/"}}),
    "a megabyte of name": ("tool_call", {"name": "x" * 1_000_000, "arguments": {"path": "/"}}),
    "arguments that are a list": ("tool_call", {"name": "hub_list_folder", "arguments": ["/"]}),
    "arguments that are a number": ("tool_call", {"name": "hub_list_folder", "arguments": 5}),
    "arguments that are text": ("tool_call", {"name": "hub_list_folder", "arguments": "/"}),
    "arguments beside": ("tool_call", {"name": "hub_list_folder", "path": "/"}),
    "arguments by another word": ("tool_call", {"name": "hub_list_folder", "input": {"path": "/"}}),
    "arguments of another type": ("tool_call", {"name": "hub_list_folder", "arguments": {"path": 5}}),
    "arguments too many": ("tool_call", {"name": "hub_list_folder", "arguments": {"path": "/", "x": 1}}),
    "arguments too few": ("tool_call", {"name": "hub_list_folder", "arguments": {}}),
    "not a number": ("tool_call", '{"name": "hub_list_folder", "arguments": {"path": "/", "depth": NaN}}'),
    "not a number, parsed": (
        "tool_call",
        {"name": "hub_list_folder", "arguments": {"path": "/", "depth": math.nan}},
    ),
    "a key twice": (
        "tool_call",
        '{"name": "nothing", "name": "hub_list_folder", "arguments": {"path": "/"}}',
    ),
    "an argument twice": (
        "tool_call",
        {"name": "hub_list_folder", "arguments": '{"path": "/a", "path": "/b"}'},
    ),
    "deep arguments": ("tool_call", {"name": "hub_list_folder", "arguments": make_nested(90)}),
    "very deep json": ("tool_call", '{"name":' * 100_000),
    "deep json arguments": ("tool_call", {"name": "hub_list_folder", "arguments": '{"path":' * 50_000}),
    "half a surrogate pair": ("tool_call", {"name": "hub_list_folder", "arguments": {"path": "\ud800"}}),
    "a name of half a pair": ("tool_call", {"name": "hub_list_folder\udc00", "arguments": {"path": "/"}}),
    "megabytes of arguments": (
        "tool_call",
        {"name": "hub_list_folder", "arguments": {"path": "/", "x": "y" * 5_000_000}},
    ),
    "too many megabytes": ("tool_call", " " * 11_000_000 + "{}"),
    "a bridge in two bridges": (
        "tool_call",
        {
            "name": "tool_call",
            "arguments": {"name": "tool_call", "arguments": {"name": "hub_list_folder", "arguments": {}}},
        },
    ),
    "a search in a bridge": ("tool_call", {"name": "tool_search", "arguments": {"query": "x"}}),
    "a search for a number": ("tool_search", {"query": 5}),
    "a search for a list": ("tool_search", {"query": ["x"]}),
    "a search for an object": ("tool_search", {"query": {"query": "x"}}),
    "a search for nothing": ("tool_search", {"query": ""}),
    "a search without a query": ("tool_search", None),
    "a search for a list of numbers": ("tool_search", {"queries": [1, 2]}),
    "a search for a megabyte": ("tool_search", {"query": "folder " * 200_000}),
    "a search for a surrogate": ("tool_search", {"query": "\ud800"}),
    "a search of many queries": ("tool_search", {"queries": [str(number) for number in range(10_000)]}),
    "a search with an odd limit": ("tool_search", {"query": "x", "limit": "many"}),
    "a search with no number for a limit": ("tool_search", '{"query": "x", "limit": Infinity}'),
    "a description of a number": ("tool_describe", {"name": 5}),
    "a description of nothing": ("tool_describe", {}),
    "a description of an unknown name": ("tool_describe", {"name": "hub_unknown"}),
    "a description of what was not granted": ("tool_describe", {"name": "vault_open"}),
    "a description of a bridge": ("tool_describe", {"name": "tool_call"}),
    "a description of very many": ("tool_describe", {"names": [f"n{number}" for number in range(10_000)]}),
}


@check_cases("kind", sorted(WRONG))
def test_bridge_tool_called_with_malformed_arguments_returns_an_error_and_runs_no_tool(
    kind: str, bad: tuple[Session, list[Any]]
) -> None:
    call_error(bad, *WRONG[kind])


@check_cases(
    "name",
    [
        "hub_list_fоlder",  # with a Cyrillic о
        "hub_list_folder\u200b",
        "hub＿list＿folder",
        "HUB_LIST_FOLDER",
        "hub-list-folder",
        "hub_list_folder()",
        "functions.hub_list_folder",
        "\u202ehub_list_folder",
    ],
)
def test_tool_call_bridge_runs_no_tool_for_a_name_that_only_resembles_a_tool_name(
    name: str, bad: tuple[Session, list[Any]]
) -> None:
    error = call_error(bad, "tool_call", {"name": name, "arguments": {"path": "/"}})
    assert "is not available in this session" in error


@check_cases("name", ["tооl_call", "Tool_Call", "tool_call ", "tool-call", "ｔｏｏｌ_ｃａｌｌ"])
def test_call_of_a_tool_whose_name_looks_like_tool_call_is_rejected(
    name: str, bad: tuple[Session, list[Any]]
) -> None:
    arguments = {"name": "hub_list_folder", "arguments": {"path": "/"}}
    assert "is not available in this session" in call_error(bad, name, arguments)


NAMES = st.sampled_from(["hub_list_folder", "vault_open", *BRIDGE, "hub_list_folder ", "no_such"])
JUNK = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), NAMES, st.text(st.characters(), max_size=8)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["name", "names", "tool", "arguments", "query", "queries", "limit", "path", "depth", "\ud800"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)
ARGUMENTS = st.one_of(
    JUNK,
    JUNK.map(json.dumps),
    st.fixed_dictionaries({"name": st.one_of(NAMES, JUNK), "arguments": JUNK}),
    st.fixed_dictionaries({"name": NAMES, "arguments": JUNK.map(json.dumps)}),
    st.fixed_dictionaries({}, optional={"query": JUNK, "queries": JUNK, "limit": JUNK, "names": JUNK}),
    st.text(st.characters(), max_size=40),
)


@try_examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(bridge=st.sampled_from(BRIDGE), arguments=ARGUMENTS)
def test_bridge_tools_return_json_for_arbitrary_arguments_and_run_no_tool_with_invalid_ones(
    bridge: str, arguments: Any, bad: tuple[Session, list[Any]]
) -> None:
    session, ran = bad
    ran.clear()
    result = session.call_sync(bridge, arguments)
    result.text.encode()
    assert ("error" in parse_answer(result)) is (result.error is not None)
    assert "Error executing" not in str(result.error)
    assert "Tool execution failed" not in str(result.error)
    if bridge != "tool_call" or result.error is not None:
        assert ran == []
    for name, args in ran:  # it was granted, with valid arguments
        assert name == "hub_list_folder"
        assert isinstance(args["path"], str)
        assert args.keys() <= PATH["properties"].keys()  # type: ignore[attr-defined]
    if bridge == "tool_search" and result.ok:
        assert {match["name"] for match in parse_answer(result)["matches"]} <= {"hub_list_folder"}
    assert result.name in {*BRIDGE_NAMES} or result.name == "hub_list_folder" or not result.ok


def test_result_of_tool_describe_does_not_reveal_a_secret_in_the_reason_of_a_failed_check(
    home: Path, ran: list[Any]
) -> None:
    secret = "hunter2-super-secret-value"

    def check() -> bool:
        raise RuntimeError(f"login failed with {secret}")

    env = {"TOOLFOLD_HOME": str(home / "h"), "MY_API_KEY": secret}
    with open_runtime(load_config(project=home, env=env, overrides=SETTINGS)) as runtime:
        add(runtime, "locked", "mcp-hub", ran, check_fn=check)
        add(runtime, "open_one", "mcp-hub", ran)
        session = runtime.session()
        for args in ({"name": "locked"}, {"names": ["locked", "open_one"]}):
            text = session.call_sync("tool_describe", args).text
            assert "cannot be used right now" in text
            assert secret not in text


def test_agent_level_tools_are_neither_described_nor_suggested_in_a_session_without_an_agent(
    desk: Runtime, ran: list[Any]
) -> None:
    add(desk, "hub_plan", "mcp-hub", ran, agent_level=True)
    session = desk.session(["mcp-hub"])
    for _ in range(2):  # outside and inside a turn
        described = session.call_sync("tool_describe", {"name": "hub_plan"})
        missing = session.call_sync("tool_describe", {"name": "hub_pl@n"})
        assert described.error == (missing.error or "").replace("hub_pl@n", "hub_plan")
        among = session.call_sync("tool_describe", {"names": ["hub_plan", "hub_list_folder"]})
        assert list(parse_answer(among)["errors"]) == ["hub_plan"]
        assert "hub_plan" not in (session.call_sync("hub_plam", {}).error or "")
        session.assemble()


def test_unavailable_tool_called_by_an_original_name_shared_with_another_tool_does_not_run(
    desk: Runtime, ran: list[Any]
) -> None:
    for name, toolset, works in (("hub_read", "mcp-hub", False), ("vault_read", "mcp-vault", True)):
        made = add(desk, name, toolset, ran, parameters={}, check_fn=lambda works=works: works)
        desk.registry.add(replace(made, original_name="files/read"))
    result = desk.session(["mcp-hub"]).call_sync("files/read", {})
    assert result.error == "'hub_read' cannot be used right now: its check returned false."
    assert ran == []


def test_tool_search_before_the_first_turn_returns_the_parameter_signatures_of_found_tools(
    desk: Runtime,
) -> None:
    session = desk.session(["mcp-hub"])
    (match, *_) = parse_answer(session.call_sync("tool_search", {"query": "list the files of a folder"}))[
        "matches"
    ]
    assert match["signature"].startswith("(path: string")
    assert "note" not in match


@pytest.mark.parametrize(
    ("model", "context_tokens", "is_deferred"),
    [
        ("gpt-4", None, True),  # 8,192 tokens
        ("openai/gpt-4.1", None, False),  # 1,047,576 tokens
        ("unknown-model", None, False),  # below 20,000 tokens
        ("gpt-4", 1_000_000, False),  # the session's own window comes first
    ],
)
def test_tools_are_deferred_only_in_a_request_to_a_model_with_a_small_context_window(
    open_test_runtime: RuntimeOpener, model: str, context_tokens: int | None, is_deferred: bool
) -> None:
    runtime = open_test_runtime({"tools.selection": "eager", "plugins.enabled": False})
    for number in range(20):
        add(runtime, f"hub_{number}", "mcp-hub", [], description="Lists the files of a folder. " * 10)
    session = runtime.session(["mcp-hub"], context_tokens=context_tokens)
    request = session.request([{"role": "user", "content": "list the files"}], model=model)
    assert request.turn.searchable is is_deferred
