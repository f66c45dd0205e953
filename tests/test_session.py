from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import RuntimeOpener, recording_tool
from tests.thorough import try_examples
from toolfold import (
    ApprovalRequest,
    Content,
    Media,
    Runtime,
    Session,
    ToolCall,
    ToolResult,
    open_runtime,
    tool,
)
from toolfold.agent import LocalAgent
from toolfold.config import load_config
from toolfold.core.errors import UnknownToolset
from toolfold.core.types import Definition
from toolfold.selection.turn.placement import Request

UNACCEPTED_NAME = "hidden.tool/with odd:name"


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def three_tools(runtime: Runtime, ran: list[str]) -> Runtime:
    """Register three toolsets of one tool each; the last has a name that providers do not accept."""
    runtime.registry.add(recording_tool("alpha_go", "alpha", ran))
    runtime.registry.add(recording_tool("beta_go", "beta", ran))
    runtime.registry.add(recording_tool(UNACCEPTED_NAME, "gamma", ran))
    return runtime


def shown_names(definitions: list[Definition]) -> list[str]:
    return [each["function"]["name"] for each in definitions]


def parse_error(result: ToolResult) -> Any:
    return json.loads(result.text)


class TestScopeCheck:
    def test_session_lists_only_tools_of_its_granted_toolsets(self, three_tools: Runtime) -> None:
        assert shown_names(three_tools.session(["alpha"]).definitions()) == ["alpha_go"]

    async def test_session_can_call_tools_of_its_granted_toolsets(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        result = await three_tools.session(["alpha"]).call("alpha_go")
        assert parse_error(result) == {"ran": "alpha_go"}
        assert ran == ["alpha_go"]

    async def test_session_cannot_call_tools_outside_its_granted_toolsets(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        result = await three_tools.session(["alpha"]).call("beta_go", {})
        assert result.error == (
            "'beta_go' is not available in this session. Call one of the tools you were given."
        )
        assert parse_error(result) == {"error": result.error}
        assert ran == []

    @pytest.mark.parametrize(
        "arguments",
        [
            {"name": "beta_go", "arguments": {}},
            {"name": " beta_go "},
            '{"name": "beta_go", "arguments": "{}"}',
            json.dumps('{"name": "beta_go"}'),
            {"name": "tool_call", "arguments": {"name": "beta_go"}},
            {"name": "alpha_go", "arguments": {}, "beta_go": {}},
        ],
    )
    async def test_tool_call_bridge_cannot_run_a_tool_that_was_not_granted_to_the_session(
        self, arguments: Any, three_tools: Runtime, ran: list[str]
    ) -> None:
        result = await three_tools.session(["alpha"]).call("tool_call", arguments)
        assert result.error is not None
        assert ran == []

    async def test_tool_call_bridge_runs_a_tool_that_was_granted_to_the_session(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        result = await three_tools.session(["alpha"]).call("tool_call", {"name": "alpha_go", "arguments": {}})
        assert (result.ok, result.name) == (True, "alpha_go")
        assert ran == ["alpha_go"]

    async def test_ungranted_tool_cannot_be_called_by_its_original_name(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        session = three_tools.session(["alpha"])
        for name in (UNACCEPTED_NAME, three_tools.resolve_toolset("gamma")[0]):
            assert not (await session.call(name)).ok
            assert not (await session.call("tool_call", {"name": name})).ok
        assert ran == []

    async def test_granted_tool_can_be_called_by_its_original_name(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        assert (await three_tools.session(["gamma"]).call(UNACCEPTED_NAME)).ok
        assert ran == [UNACCEPTED_NAME]

    @pytest.mark.parametrize("name", ["BETA_GO", "beta_go\n", "beta_go\u200b", "", " ", "*", "all", "beta"])
    async def test_ungranted_tool_cannot_be_called_by_similar_names(
        self, name: str, three_tools: Runtime, ran: list[str]
    ) -> None:
        assert not (await three_tools.session(["alpha"]).call(name)).ok
        assert ran == []

    async def test_error_for_an_unknown_tool_name_suggests_only_granted_tools(
        self, three_tools: Runtime
    ) -> None:
        three_tools.registry.add(recording_tool("beta_gone", "alpha", []))
        session = three_tools.session(["alpha"])
        assert "Did you mean beta_gone?" in str((await session.call("beta_go")).error)
        assert "beta_go" not in str((await session.call("beta_g0ne")).error).replace("beta_gone", "")

    async def test_calls_of_ungranted_tools_in_a_model_reply_are_rejected_and_granted_tools_run(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        session = three_tools.session(["alpha"])
        calls = [ToolCall("beta_go"), ToolCall("alpha_go"), ToolCall("tool_call", {"name": "beta_go"})]
        results = await session.call_all(calls)
        assert [result.ok for result in results] == [False, True, False]
        assert [result.call_id for result in results] == [call.id for call in calls]
        assert ran == ["alpha_go"]

    async def test_session_opened_with_an_empty_toolset_list_has_no_callable_tools(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        session = three_tools.session([])
        assert session.definitions() == []
        assert not (await session.call("alpha_go")).ok
        assert ran == []

    async def test_tools_of_toolsets_disabled_for_a_session_are_neither_listed_nor_callable(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        session = three_tools.session(["alpha", "beta"], disabled_toolsets=["beta"])
        assert session.granted() == {"alpha_go"}
        assert not (await session.call("beta_go")).ok
        assert ran == []

    def test_assigning_another_scope_to_a_session_raises_an_error(self, three_tools: Runtime) -> None:
        session = three_tools.session(["alpha"])
        with pytest.raises(AttributeError):
            session.scope = three_tools.session().scope  # type: ignore[misc]

    @pytest.mark.parametrize("where", ["enabled", "disabled"])
    def test_error_for_opening_a_session_with_an_unknown_toolset_suggests_a_similar_name(
        self, where: str, three_tools: Runtime
    ) -> None:
        with pytest.raises(UnknownToolset, match=r"there is no toolset 'alpah'\. Did you mean alpha\?"):
            _ = (
                three_tools.session(["alpah"])
                if where == "enabled"
                else three_tools.session(disabled_toolsets=["alpah"])
            )

    async def test_granted_tool_can_be_called_after_rejected_calls_in_the_same_session(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        session = three_tools.session(["alpha"])
        assert not (await session.call("beta_go")).ok
        assert not (await session.call("tool_call", "not json")).ok
        assert (await session.call("alpha_go")).ok


class TestDelegation:
    async def test_delegated_session_can_be_limited_to_some_toolsets_of_its_parent(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        child = three_tools.session(["alpha", "beta"]).delegate(["beta"])
        assert shown_names(child.definitions()) == ["beta_go"]
        assert not (await child.call("alpha_go")).ok
        assert (await child.call("beta_go")).ok
        assert ran == ["beta_go"]

    async def test_delegated_session_cannot_get_toolsets_that_its_parent_session_lacks(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        parent = three_tools.session(["alpha"])
        for child in (
            parent.delegate(["beta"]),
            parent.delegate(["all"]),
            parent.delegate(["alpha", "beta", "toolfold-cli"]),
            parent.delegate().delegate(["beta", "alpha"]),
        ):
            assert child.granted() <= {"alpha_go"}
            assert not (await child.call("beta_go")).ok
            assert not (await child.call("tool_call", {"name": "beta_go"})).ok
            assert not (await child.call(UNACCEPTED_NAME)).ok
        assert ran == []

    def test_delegated_session_has_all_toolsets_of_its_parent_by_default(self, three_tools: Runtime) -> None:
        parent = three_tools.session(["alpha", "beta"])
        assert parent.delegate().granted() == parent.granted() == {"alpha_go", "beta_go"}

    def test_toolsets_disabled_for_the_parent_stay_disabled_in_a_delegated_session(
        self, three_tools: Runtime
    ) -> None:
        parent = three_tools.session(disabled_toolsets=["beta"])
        assert "beta_go" not in parent.delegate(["beta", "alpha"]).granted()
        assert "alpha_go" not in parent.delegate(disabled_toolsets=["alpha"]).delegate(["alpha"]).granted()

    def test_delegated_session_has_a_different_session_id_from_its_parent(self, three_tools: Runtime) -> None:
        parent = three_tools.session(agent=LocalAgent())
        child = parent.delegate()
        assert child.id != parent.id
        assert child.agent is None

    async def test_delegated_session_asks_the_approver_of_its_parent_session(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        asked: list[ApprovalRequest] = []

        def refuse(request: ApprovalRequest) -> bool:
            asked.append(request)
            return False

        three_tools.registry.add(recording_tool("wipe", "alpha", ran, effects=["destructive"]))
        child = three_tools.session(["alpha"], approver=refuse).delegate()
        result = await child.call("wipe")
        assert result.error is not None
        assert "the request was declined" in result.error
        assert [request.session_id for request in asked] == [child.id]
        assert ran == []

    def test_delegating_with_an_unknown_toolset_raises_an_error(self, three_tools: Runtime) -> None:
        with pytest.raises(UnknownToolset, match="Did you mean beta"):
            three_tools.session().delegate(disabled_toolsets=["bta"])


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    home = tmp_path_factory.mktemp("home")
    with open_runtime(load_config(project=home, env={"TOOLFOLD_HOME": str(home)})) as runtime:
        for place in range(6):
            runtime.registry.add(recording_tool(f"tool_{place}", f"set_{place % 4}", []))
        yield runtime


GRANTS = st.none() | st.lists(
    st.sampled_from([*(f"set_{place}" for place in range(4)), "all", "file", "toolfold-cli", "mcp-later"]),
    max_size=4,
)


@given(chain=st.lists(st.tuples(GRANTS, GRANTS), min_size=1, max_size=5))
@try_examples(60)
def test_each_session_in_a_delegation_chain_has_at_most_the_tools_of_its_parent(
    chain: list[tuple[list[str] | None, list[str] | None]], many: Runtime
) -> None:
    enabled, disabled = chain[0]
    session: Session = many.session(enabled, disabled_toolsets=disabled or ())
    for enabled, disabled in chain[1:]:
        child = session.delegate(enabled, disabled or ())
        assert child.granted() <= session.granted()
        assert set(shown_names(child.definitions())) <= session.granted()
        session = child


class TestTurn:
    def test_tool_registered_during_a_session_appears_in_the_next_turn(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        waiting, other = three_tools.session(["mcp-late"]), three_tools.session(["alpha"])
        assert shown_names(waiting.definitions()) == []
        three_tools.registry.add(recording_tool("late_go", "mcp-late", ran))
        assert shown_names(waiting.definitions()) == ["late_go"]
        assert shown_names(other.definitions()) == ["alpha_go"]
        assert not other.call_sync("late_go").ok
        assert ran == []

    async def test_tool_registered_during_a_turn_does_not_appear_in_that_turn(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        session = three_tools.session(["alpha"])
        session.assemble()
        three_tools.registry.add(recording_tool("alpha_late", "alpha", ran))
        assert not (await session.call("alpha_late")).ok
        assert ran == []
        session.assemble()
        assert (await session.call("alpha_late")).ok

    async def test_tool_replaced_in_the_registry_during_a_turn_takes_effect_in_the_next_turn(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        session = three_tools.session(["alpha"])
        turn = session.assemble()
        three_tools.registry.remove("alpha_go")
        changed: list[str] = []
        three_tools.registry.add(recording_tool("alpha_go", "alpha", changed))
        three_tools.registry.remove("beta_go")
        assert (await session.call("alpha_go")).ok
        assert (ran, changed) == (["alpha_go"], [])
        assert [each.name for each in turn.tools] == ["alpha_go"]
        session.assemble()
        await session.call("alpha_go")
        assert (ran, changed) == (["alpha_go"], ["alpha_go"])

    async def test_tool_moved_to_a_toolset_outside_the_session_is_not_listed_in_the_next_turn(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        session = three_tools.session(["alpha"])
        session.assemble()
        stolen: list[str] = []
        three_tools.registry.add(recording_tool("alpha_go", "beta", stolen))
        assert (await session.call("alpha_go")).ok
        session.assemble()
        assert not (await session.call("alpha_go")).ok
        assert (ran, stolen) == (["alpha_go"], [])

    async def test_call_outside_a_turn_can_use_a_tool_registered_after_the_session_was_opened(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        session = three_tools.session(["alpha"])
        assert (await session.call("alpha_go")).ok
        three_tools.registry.add(recording_tool("alpha_late", "alpha", ran))
        assert (await session.call("alpha_late")).ok
        assert ran == ["alpha_go", "alpha_late"]

    async def test_tool_with_a_failing_availability_check_is_neither_listed_nor_run(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        three_tools.registry.add(recording_tool("broken", "alpha", ran, check_fn=lambda: False))
        session = three_tools.session(["alpha"])
        assert shown_names(session.definitions()) == ["alpha_go"]
        assert (
            await session.call("broken")
        ).error == "'broken' cannot be used right now: its check returned false."
        assert not (await session.call("tool_call", {"name": "broken"})).ok
        assert ran == []

    @pytest.mark.parametrize("through", ["broken", "tool_call"])
    def test_tool_with_a_failing_availability_check_called_outside_a_turn_does_not_run(
        self, through: str, three_tools: Runtime, ran: list[str]
    ) -> None:
        three_tools.registry.add(recording_tool("broken", "alpha", ran, check_fn=lambda: False))
        session = three_tools.session(["alpha"])
        result = session.call_sync(through, {"name": "broken"} if through == "tool_call" else {})
        assert result.error == "'broken' cannot be used right now: its check returned false."
        assert ran == []

    def test_call_outside_a_turn_checks_the_availability_of_the_called_tool_only(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        checked: list[str] = []
        three_tools.registry.add(
            recording_tool("probed", "alpha", ran, check_fn=lambda: checked.append("probed"))
        )
        session = three_tools.session(["alpha"])
        assert session.call_sync("alpha_go").ok
        assert checked == []

    def test_tool_with_a_failing_check_cannot_be_called_after_a_successful_call_of_another_tool(
        self, three_tools: Runtime, ran: list[str]
    ) -> None:
        three_tools.registry.add(recording_tool("broken", "alpha", ran, check_fn=lambda: False))
        session = three_tools.session(["alpha"])
        assert session.call_sync("alpha_go").ok
        assert "cannot be used right now" in (session.call_sync("broken").error or "")
        assert ran == ["alpha_go"]

    def test_description_adapted_to_listed_tools_mentions_only_tools_available_in_the_session(
        self, runtime: Runtime
    ) -> None:
        def describe(session: Session) -> str:
            found = {each["function"]["name"]: each["function"] for each in session.definitions()}
            return str(found["execute"]["description"])

        def adapt(definition: Definition, present: frozenset[str]) -> Definition:
            there = sorted(present & {"web_search", "read_file", "execute"})
            return {**definition, "function": {**definition["function"], "description": " ".join(there)}}

        runtime.registry.add(recording_tool("execute", "code", [], adapt=adapt))
        runtime.registry.add(recording_tool("web_search", "web", [], check_fn=lambda: False))
        assert describe(runtime.session(["code", "file", "web"])) == "execute read_file"
        assert describe(runtime.session(["code"])) == "execute"

    def test_description_of_a_builtin_tool_mentions_only_available_tools(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        def description(runtime: Runtime) -> str:
            found = {each["function"]["name"]: each["function"] for each in runtime.session().definitions()}
            return str(found["write_file"]["description"])

        assert "use patch" in description(open_test_runtime())
        assert "patch" not in description(open_test_runtime({"tools.disabled": ["patch"]}))

    async def test_async_method_prepare_returns_the_same_tool_definitions_as_the_sync_methods_of_a_session(
        self, three_tools: Runtime
    ) -> None:
        session = three_tools.session(["alpha", "beta"])
        assert (await session.prepare()).definitions() == session.definitions()

    async def test_async_prepare_request_builds_the_same_request_as_sync_code_without_blocking_the_loop(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        loop_went_on = threading.Event()
        patient = {"availability.timeout_seconds": 60}
        runtime = open_test_runtime({"tools.selection": "keyword", "tools.rag_placement": "tail", **patient})
        check = partial(loop_went_on.wait, 50)
        runtime.registry.add(recording_tool("book_flight", "office", [], check_fn=check))
        history = [{"role": "user", "content": "book a flight"}]
        asyncio.get_running_loop().call_soon(loop_went_on.set)
        prepared = await runtime.session(["office"]).prepare_request(history, form="anthropic", cache=True)
        assert isinstance(prepared, Request)
        assert "book_flight" in prepared.tail
        direct = runtime.session(["office"]).request(history, form="anthropic", cache=True)
        assert (prepared.tools, prepared.messages) == (direct.tools, direct.messages)


class TestGrace:
    """A tool whose check starts to fail stays listed for a while, but does not run."""

    @pytest.fixture
    def check(self) -> dict[str, Any]:
        return {"works": True, "runs": 0}

    @pytest.fixture
    def flaky(self, open_test_runtime: RuntimeOpener, check: dict[str, Any], ran: list[str]) -> Runtime:
        def probe() -> bool:
            check["runs"] += 1
            if not check["works"]:
                raise ConnectionError("port 5432 refused")
            return True

        runtime = open_test_runtime({"availability.timeout_seconds": 60})
        runtime.registry.add(recording_tool("ask_base", "base", ran, check_fn=probe))
        runtime.registry.add(recording_tool("beside", "base", ran))
        return runtime

    def refused(self, result: ToolResult) -> bool:
        assert result.error is not None
        assert result.error.startswith("'ask_base' cannot be used right now: its check failed:")
        assert "port 5432 refused" in result.error
        return True

    def test_tool_listed_only_because_of_the_grace_period_cannot_be_called(
        self, flaky: Runtime, check: dict[str, Any], ran: list[str]
    ) -> None:
        session = flaky.session(["base"])
        session.assemble()
        check["works"] = False
        assert shown_names(session.definitions()) == ["ask_base", "beside"]
        assert self.refused(session.call_sync("ask_base"))
        assert self.refused(session.call_sync("tool_call", {"name": "ask_base", "arguments": {}}))
        calls = [ToolCall("ask_base"), ToolCall("beside")]
        first, second = session.call_all_sync(calls)
        assert self.refused(first)
        assert second.ok
        assert ran == ["beside"]

    def test_tool_in_the_grace_period_cannot_be_called_outside_a_turn(
        self, flaky: Runtime, check: dict[str, Any], ran: list[str]
    ) -> None:
        assert flaky.session(["base"]).call_sync("ask_base").ok
        check["works"] = False
        assert self.refused(flaky.session(["base"]).call_sync("ask_base"))
        assert "cannot be used right now" in flaky.handle_function_call("ask_base")
        assert ran == ["ask_base"]

    def test_tool_in_the_grace_period_can_be_called_when_its_availability_check_passes_again(
        self, flaky: Runtime, check: dict[str, Any], ran: list[str]
    ) -> None:
        session = flaky.session(["base"])
        session.assemble()
        check["works"] = False
        session.assemble()
        check["works"] = True
        assert session.call_sync("ask_base").ok
        assert session.call_all_sync([ToolCall("ask_base")])[0].ok
        assert ran == ["ask_base", "ask_base"]

    def test_calling_one_tool_does_not_rerun_the_failed_availability_check_of_another_tool(
        self, flaky: Runtime, check: dict[str, Any]
    ) -> None:
        session = flaky.session(["base"])
        session.assemble()
        check["works"] = False
        session.assemble()
        before = check["runs"]
        assert session.call_sync("beside").ok
        assert check["runs"] == before

    def test_tool_in_the_grace_period_is_found_by_tool_search_and_tool_describe(
        self, flaky: Runtime, check: dict[str, Any]
    ) -> None:
        session = flaky.session(["base"])
        session.assemble()
        check["works"] = False
        session.assemble()
        assert parse_error(session.call_sync("tool_describe", {"name": "ask_base"}))["name"] == "ask_base"
        matches = parse_error(session.call_sync("tool_search", {"query": "ask_base"}))["matches"]
        assert matches[0]["name"] == "ask_base"

    def test_toolset_whose_tools_are_all_in_the_grace_period_is_unavailable(
        self, open_test_runtime: RuntimeOpener, check: dict[str, Any]
    ) -> None:
        runtime = open_test_runtime({"availability.timeout_seconds": 60})
        probe = lambda: check["works"]  # noqa: E731
        runtime.registry.add(recording_tool("ask_base", "base", [], check_fn=probe))
        assert runtime.is_toolset_available("base")
        check["works"] = False
        assert runtime.statuses(["ask_base"])["ask_base"].available
        assert not runtime.is_toolset_available("base")


class TestSelection:
    @pytest.fixture
    def selective(self, open_test_runtime: RuntimeOpener, ran: list[str]) -> Runtime:
        runtime = open_test_runtime(
            {"tools.selection": "keyword", "tools.rag_top_k": 1, "tools.pinned": ["send_invoice"]}
        )
        for name in ("send_invoice", "book_flight", "water_plants"):
            runtime.registry.add(recording_tool(name, "office", ran))
        return runtime

    def test_tools_selected_for_a_message_are_listed_in_addition_to_pinned_tools(
        self, selective: Runtime
    ) -> None:
        session = selective.session(["office"])
        assert shown_names(session.definitions("please book a flight")) == ["book_flight", "send_invoice"]
        assert shown_names(session.definitions("water the plants")) == ["send_invoice", "water_plants"]

    async def test_granted_tool_that_was_not_selected_for_the_message_can_still_be_called(
        self, selective: Runtime, ran: list[str]
    ) -> None:
        session = selective.session(["office"])
        assert "water_plants" not in shown_names(session.definitions("book a flight"))
        assert (await session.call("water_plants")).ok
        assert ran == ["water_plants"]

    async def test_pinned_tool_is_listed_only_in_sessions_that_have_been_granted_it(
        self, selective: Runtime, ran: list[str]
    ) -> None:
        selective.registry.add(recording_tool("book_hotel", "travel", ran))
        session = selective.session(["travel"])
        assert shown_names(session.definitions("send_invoice for the hotel")) == ["book_hotel"]
        assert not (await session.call("send_invoice")).ok
        assert ran == []

    def test_all_granted_tools_are_listed_if_the_turn_has_no_user_message(self, selective: Runtime) -> None:
        names = shown_names(selective.session(["office"]).definitions())
        assert names == ["book_flight", "send_invoice", "water_plants"]

    def test_tool_removed_while_a_request_is_built_stays_in_that_request_but_not_in_the_next(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        runtime = open_test_runtime(
            {"tools.selection": "keyword", "tools.pinned": ["send_invoice"], "tools.rag_placement": "tail"}
        )

        def leaves() -> bool:
            runtime.registry.remove("send_invoice")
            return True

        runtime.registry.add(recording_tool("send_invoice", "office", []))
        runtime.registry.add(recording_tool("book_flight", "office", [], check_fn=leaves))
        session = runtime.session(["office"])
        history = [{"role": "user", "content": "book a flight"}]
        first, second = session.request(history), session.request(history)
        assert "send_invoice" in first.turn.granted
        assert "send_invoice" in shown_names(first.tools)
        assert "send_invoice" not in shown_names(second.tools)

    @pytest.mark.parametrize("placement", ["replace", "append"])
    def test_agent_level_tool_is_omitted_from_requests_after_the_agent_is_removed_from_the_session(
        self, open_test_runtime: RuntimeOpener, placement: str
    ) -> None:
        runtime = open_test_runtime(
            {
                "tools.selection": "keyword",
                "tools.rag_need": "off",
                "tools.pinned": [],
                "tools.rag_placement": placement,
            }
        )
        session = runtime.session(agent=LocalAgent())
        history = [{"role": "user", "content": "write a todo list"}]
        assert "todo" in shown_names(session.request(history).tools)
        session.agent = None
        assert "todo" not in shown_names(session.request(history).tools)


class TestLargeResults:
    @pytest.fixture
    def large(self, open_test_runtime: RuntimeOpener) -> Runtime:
        runtime = open_test_runtime({"tools.result_max_chars": 1000})
        runtime.registry.register(
            name="long_list", toolset="long", schema={}, handler=lambda _: [f"row {n}" for n in range(2000)]
        )
        return runtime

    def test_session_can_read_its_stored_large_result_with_read_file(self, large: Runtime) -> None:
        session = large.session(["long", "file"])
        answer = parse_error(session.call_sync("long_list"))
        assert answer["truncated"] is True
        assert "read_file" in answer["note"]
        read = session.call_sync("read_file", {"path": answer["stored"], "offset": 1500, "limit": 5})
        assert read.ok
        assert "row 149" in read.text

    def test_stored_large_result_of_one_session_cannot_be_read_by_another_session(
        self, large: Runtime, open_test_runtime: RuntimeOpener
    ) -> None:
        session = large.session(["long", "file"])
        path = parse_error(session.call_sync("long_list"))["stored"]
        assert Path(path).is_file()
        for other in (large.session(), session.delegate(), open_test_runtime().session()):
            refused = other.call_sync("read_file", {"path": path})
            assert "is outside the workspace" in str(refused.error)
            assert "row" not in refused.text
            found = other.call_sync("search_files", {"pattern": "row", "path": str(Path(path).parent)})
            assert not found.ok

    def test_write_file_cannot_write_into_the_directory_of_stored_large_results(self, large: Runtime) -> None:
        session = large.session(["long", "file"])
        path = Path(parse_error(session.call_sync("long_list"))["stored"])
        before = path.read_bytes()
        assert not (session.call_sync("write_file", {"path": str(path), "content": "x"})).ok
        assert not (session.call_sync("write_file", {"path": f"{path}.new", "content": "x"})).ok
        assert path.read_bytes() == before
        assert list(path.parent.iterdir()) == [path]

    def test_truncated_result_in_a_session_without_read_file_does_not_suggest_read_file(
        self, large: Runtime
    ) -> None:
        answer = parse_error(large.session(["long"]).call_sync("long_list"))
        assert "read_file" not in answer["note"]


def test_result_of_a_tool_that_returns_text_and_an_image_contains_both(runtime: Runtime) -> None:
    image = Media(kind="image", mime_type="image/png", data=b"png", label="image 1")

    @tool
    def plot(series: list[float]) -> Content:
        """Draw a line through numbers."""
        return Content(value=f"{len(series)} points in image 1", blocks=(image,))

    runtime.registry.add(plot)
    result = runtime.session().call_sync("plot", {"series": [1, 2]})
    assert (parse_error(result), result.media) == ({"result": "2 points in image 1"}, (image,))


def test_changing_the_tool_definitions_of_a_request_does_not_change_later_requests(
    runtime: Runtime,
) -> None:
    session = runtime.session(["file"])
    request = session.request([{"role": "user", "content": "hello"}])
    for take in (
        session.definitions,
        session.assemble().definitions,
        lambda: request.tools,
    ):
        taken = take()
        before = json.dumps(session.definitions())
        parameters = taken[0]["function"]["parameters"]
        assert type(parameters) is dict
        parameters["properties"].clear()
        parameters.setdefault("required", []).append("changed")
        assert json.dumps(session.definitions()) == before


def test_request_with_an_unknown_provider_format_raises_an_error_that_lists_the_known_formats(
    runtime: Runtime,
) -> None:
    with pytest.raises(ValueError, match="openai, anthropic, responses"):
        runtime.session().request([{"role": "user", "content": "hi"}], form="bogus")  # type: ignore[arg-type]
