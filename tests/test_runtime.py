from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RuntimeOpener, recording_tool
from tests.gateway.harness import fault_server
from toolfold import CallContext, ConfigError, Runtime, ToolfoldError, open_runtime, tool
from toolfold.agent import LocalAgent
from toolfold.config import load_config
from toolfold.core.errors import NameTaken, ReservedName, UnknownToolset
from toolfold.core.types import Definition, Json


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def two_tools(runtime: Runtime, ran: list[str]) -> Runtime:
    runtime.registry.add(recording_tool("alpha_go", "alpha", ran))
    runtime.registry.add(recording_tool("beta_go", "beta", ran))
    return runtime


def usable_names(runtime: Runtime) -> set[str]:
    """Return the tools whose checks pass; some need programs that this machine may not have."""
    return {name for name, status in runtime.statuses().items() if status.usable}


def definition_names(definitions: list[Definition]) -> set[str]:
    return {each["function"]["name"] for each in definitions}


class TestToolDefinitions:
    def test_get_tool_definitions_returns_only_tools_of_the_enabled_toolsets(
        self, two_tools: Runtime
    ) -> None:
        assert definition_names(two_tools.get_tool_definitions(enabled_toolsets=["alpha", "beta"])) == {
            "alpha_go",
            "beta_go",
        }
        assert two_tools.get_tool_definitions(enabled_toolsets=[]) == []

    def test_get_tool_definitions_omits_tools_of_disabled_toolsets(self, two_tools: Runtime) -> None:
        left = definition_names(two_tools.get_tool_definitions(disabled_toolsets=["alpha", "file"]))
        assert left == usable_names(two_tools) - {"alpha_go", *two_tools.resolve_toolset("file")}
        assert "beta_go" in left

    def test_get_tool_definitions_returns_all_tools_by_default(self, two_tools: Runtime) -> None:
        assert definition_names(two_tools.get_tool_definitions()) == usable_names(two_tools)

    def test_get_tool_definitions_omits_a_toolset_that_is_both_enabled_and_disabled(
        self, two_tools: Runtime
    ) -> None:
        both = two_tools.get_tool_definitions(enabled_toolsets=["alpha", "beta"], disabled_toolsets=["beta"])
        assert definition_names(both) == {"alpha_go"}

    def test_legacy_toolset_name_file_tools_enables_or_disables_the_toolset_file(
        self, two_tools: Runtime
    ) -> None:
        assert (
            two_tools.get_tool_definitions(["file_tools"]) == two_tools.get_tool_definitions(["file"]) != []
        )
        assert "read_file" not in definition_names(
            two_tools.get_tool_definitions(disabled_toolsets=["file_tools"])
        )

    @pytest.mark.parametrize("argument", ["enabled_toolsets", "disabled_toolsets"])
    def test_get_tool_definitions_error_for_a_misspelled_toolset_suggests_the_right_name(
        self, argument: str, two_tools: Runtime
    ) -> None:
        with pytest.raises(UnknownToolset, match=r"there is no toolset 'betta'\. Did you mean beta\?"):
            two_tools.get_tool_definitions(**{argument: ["betta"]})  # type: ignore[arg-type]

    def test_get_tool_definitions_returns_the_openai_function_format_sorted_by_name(
        self, two_tools: Runtime
    ) -> None:
        found = two_tools.get_tool_definitions()
        assert json.loads(json.dumps(found)) == found
        assert [each["function"]["name"] for each in found] == sorted(definition_names(found))
        for each in found:
            assert each["type"] == "function"
            assert each["function"]["parameters"]["type"] == "object"

    def test_get_tool_definitions_omits_tools_whose_availability_check_fails(
        self, two_tools: Runtime
    ) -> None:
        two_tools.registry.add(recording_tool("broken", "alpha", [], check_fn=lambda: False))
        assert definition_names(two_tools.get_tool_definitions(["alpha"])) == {"alpha_go"}

    def test_get_tool_definitions_logs_nothing_in_quiet_mode(
        self, two_tools: Runtime, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.DEBUG, logger="toolfold"):
            two_tools.get_tool_definitions(["alpha"], quiet_mode=True)
            assert caplog.records == []
            two_tools.get_tool_definitions(["alpha"])
        assert "1 tools are available" in caplog.text

    def test_changing_the_result_of_get_tool_definitions_does_not_change_later_results(
        self, two_tools: Runtime
    ) -> None:
        (mine,) = two_tools.get_tool_definitions(["alpha"])
        mine["function"]["name"] = "changed"
        with pytest.raises(TypeError, match="read-only"):
            mine["function"]["parameters"]["properties"]["x"] = {}
        assert definition_names(two_tools.get_tool_definitions(["alpha"])) == {"alpha_go"}

    def test_function_that_adapts_a_tool_description_receives_only_the_names_of_listed_tools(
        self, two_tools: Runtime
    ) -> None:
        def adapt(definition: Definition, present: frozenset[str]) -> Definition:
            mentioned = " ".join(sorted(present))
            return {**definition, "function": {**definition["function"], "description": mentioned}}

        two_tools.registry.add(recording_tool("mentions", "alpha", [], adapt=adapt))

        def said(**toolsets: list[str]) -> str:
            found = two_tools.get_tool_definitions(**toolsets)  # type: ignore[arg-type]
            return next(
                str(e["function"]["description"]) for e in found if e["function"]["name"] == "mentions"
            )

        assert said(enabled_toolsets=["alpha", "beta"]) == "alpha_go beta_go mentions"
        assert said(enabled_toolsets=["alpha"]) == "alpha_go mentions"
        assert "beta_go" not in said(disabled_toolsets=["beta"])
        (by_name,) = two_tools.registry.get_definitions(["mentions"])
        assert by_name["function"]["description"] == "mentions"


class TestFunctionCalls:
    def test_handle_function_call_returns_json_text(self, two_tools: Runtime) -> None:
        assert two_tools.handle_function_call("alpha_go", {}) == '{"ran":"alpha_go"}'
        assert two_tools.handle_function_call("alpha_go", "{}") == '{"ran":"alpha_go"}'
        assert two_tools.handle_function_call("alpha_go") == '{"ran":"alpha_go"}'

    def test_handler_receives_the_task_id_and_user_task_passed_to_handle_function_call(
        self, runtime: Runtime
    ) -> None:
        def look(_: Json, context: CallContext) -> Json:
            return {"task": context.task_id, "user": context.user_task}

        runtime.registry.register(name="look", toolset="look", schema={}, handler=look)
        text = runtime.handle_function_call("look", {}, task_id="t1", user_task="plan a trip")
        assert json.loads(text) == {"task": "t1", "user": "plan a trip"}

    @pytest.mark.parametrize(
        "scope",
        [{"enabled_toolsets": ["alpha"]}, {"disabled_toolsets": ["beta"]}, {"enabled_toolsets": []}],
    )
    @pytest.mark.parametrize("through", ["beta_go", "tool_call"])
    def test_handle_function_call_rejects_a_tool_outside_the_enabled_toolsets(
        self, scope: dict[str, list[str]], through: str, two_tools: Runtime, ran: list[str]
    ) -> None:
        args = {"name": "beta_go"} if through == "tool_call" else {}
        for call in (two_tools.handle_function_call, two_tools.registry.dispatch):
            answer = json.loads(call(through, args, **scope))  # type: ignore[arg-type]
            assert answer["error"].startswith("'beta_go' is not available in this session.")
        assert ran == []

    def test_handle_function_call_with_an_unknown_toolset_returns_a_json_error(
        self, two_tools: Runtime, ran: list[str]
    ) -> None:
        text = two_tools.handle_function_call("alpha_go", {}, disabled_toolsets=["betta"])
        error = json.loads(text)["error"]
        assert error.startswith("Error executing alpha_go: there is no toolset 'betta'. Did you mean beta?")
        assert ran == []

    def test_handle_function_call_converts_and_validates_arguments_and_runs_post_hooks(
        self, runtime: Runtime
    ) -> None:
        runtime.registry.register(
            name="double",
            toolset="math",
            schema={"parameters": {"properties": {"n": {"type": "integer"}}, "required": ["n"]}},
            handler=lambda args: args["n"] * 2,
        )
        runtime.hooks.add("post_tool_call", lambda tool, args, result, context: {"answer": result.value})
        assert runtime.registry.dispatch("double", {"n": "21"}) == '{"answer":42}'
        assert "was not invoked" in json.loads(runtime.registry.dispatch("double", {}))["error"]

    def test_handle_function_call_refuses_a_destructive_tool_without_an_approver(
        self, two_tools: Runtime, ran: list[str]
    ) -> None:
        two_tools.registry.add(recording_tool("wipe", "alpha", ran, effects=["destructive"]))
        assert "nobody could be asked" in json.loads(two_tools.handle_function_call("wipe", {}))["error"]
        assert ran == []

    def test_handle_function_call_runs_a_destructive_tool_after_approval(
        self, open_test_runtime: RuntimeOpener, ran: list[str]
    ) -> None:
        runtime = open_test_runtime(approver=lambda request: request.tool.name == "wipe")
        runtime.registry.add(recording_tool("wipe", "alpha", ran, effects=["destructive"]))
        assert json.loads(runtime.handle_function_call("wipe", {})) == {"ran": "wipe"}

    @pytest.mark.parametrize(
        ("name", "args"),
        [
            (None, {}),
            ("", {}),
            ("x" * 100_000, {}),
            ("\ud800", {}),
            ("alpha_go", "not json"),
            ("alpha_go", []),
            ("alpha_go", 5),
            ("tool_call", None),
            ("tool_call", {"name": ["alpha_go"]}),
            ("tool_search", {"query": " "}),
        ],
        ids=lambda value: repr(value)[:20],
    )
    def test_handle_function_call_with_invalid_names_or_arguments_returns_a_short_json_error(
        self, name: Any, args: Any, two_tools: Runtime, ran: list[str]
    ) -> None:
        text = two_tools.handle_function_call(name, args)
        text.encode()
        assert json.loads(text)["error"]
        assert len(text) < 3_000
        assert ran == []

    def test_exception_in_a_handler_is_returned_as_a_json_error(self, runtime: Runtime) -> None:
        def fail(_: Json) -> None:
            raise ValueError("no such town")

        runtime.registry.register(name="fail", toolset="t", schema={}, handler=fail)
        assert json.loads(runtime.handle_function_call("fail", {})) == {
            "error": "Tool execution failed: ValueError: no such town"
        }

    @pytest.mark.parametrize("through", ["broken", "tool_call"])
    def test_handle_function_call_does_not_run_an_unavailable_tool(
        self, through: str, two_tools: Runtime, ran: list[str]
    ) -> None:
        two_tools.registry.add(recording_tool("broken", "alpha", ran, check_fn=lambda: False))
        text = two_tools.handle_function_call(through, {"name": "broken"} if through == "tool_call" else {})
        assert json.loads(text) == {"error": "'broken' cannot be used right now: its check returned false."}
        assert ran == []

    @pytest.mark.parametrize("name", ["todo", "memory", "session_search", "delegate_task"])
    def test_handle_function_call_of_an_agent_level_tool_such_as_todo_without_an_agent_fails(
        self, name: str, runtime: Runtime
    ) -> None:
        args = {"action": "add", "query": "x", "goal": "x"}
        needed = runtime.registry.snapshot()[name].parameters.get("required", [])
        text = runtime.handle_function_call(name, {key: args[key] for key in needed})
        assert json.loads(text) == {
            "error": f"{name!r} is run by the agent itself, and this session has no agent that offers it."
        }

    def test_large_result_stored_for_a_task_id_can_be_read_only_by_calls_with_that_task_id(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        runtime = open_test_runtime({"tools.result_max_chars": 1000})
        runtime.registry.register(name="long", toolset="t", schema={}, handler=lambda _: "word " * 1000)
        path = json.loads(runtime.handle_function_call("long", {}, task_id="None"))["stored"]
        assert "error" not in json.loads(
            runtime.handle_function_call("read_file", {"path": path}, task_id="None")
        )
        for other in ("another", None, "", "none"):
            text = runtime.handle_function_call("read_file", {"path": path}, task_id=other)
            assert "outside the workspace" in json.loads(text)["error"]


class TestToolsets:
    def test_resolve_toolset_returns_the_tools_of_included_toolsets_presets_and_legacy_names(
        self, two_tools: Runtime
    ) -> None:
        assert two_tools.resolve_toolset("file") == ["patch", "read_file", "search_files", "write_file"]
        assert two_tools.resolve_toolset("file_tools") == two_tools.resolve_toolset("file")
        assert {"read_file", "todo"} <= set(two_tools.resolve_toolset("toolfold-cli"))
        assert two_tools.resolve_toolset("all") == sorted(two_tools.registry.snapshot())
        assert two_tools.resolve_toolset("mcp-not-here-yet") == []

    def test_resolve_toolset_raises_an_error_for_an_unknown_toolset(self, two_tools: Runtime) -> None:
        with pytest.raises(UnknownToolset, match="Did you mean alpha"):
            two_tools.resolve_toolset("alpa")

    def test_toolset_is_available_if_at_least_one_of_its_tools_is_available(self, runtime: Runtime) -> None:
        works = threading.Event()
        works.set()
        runtime.registry.add(recording_tool("one", "probe", [], check_fn=lambda: False))
        assert not runtime.is_toolset_available("probe")
        runtime.registry.add(recording_tool("two", "probe", [], check_fn=works.is_set))
        assert runtime.is_toolset_available("probe")
        assert runtime.is_toolset_available("file")

    def test_toolset_without_tools_is_unavailable(self, runtime: Runtime) -> None:
        assert not runtime.is_toolset_available("mcp-not-here-yet")
        with pytest.raises(UnknownToolset, match="Did you mean file"):
            runtime.is_toolset_available("fil")

    def test_status_of_an_unavailable_tool_contains_the_exception_raised_by_its_availability_check(
        self, runtime: Runtime
    ) -> None:
        def explode() -> bool:
            raise OSError("no docker socket")

        runtime.registry.add(recording_tool("down", "probe", [], check_fn=explode))
        status = runtime.statuses(["down", "read_file", "no_such_tool"])
        assert status.keys() == {"down", "read_file"}
        assert (status["down"].available, status["read_file"].available) == (False, True)
        assert "no docker socket" in status["down"].reason
        assert runtime.statuses().keys() == runtime.registry.snapshot().keys()

    def test_session_can_be_opened_with_a_toolset_defined_in_the_settings(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        runtime = open_test_runtime({"toolsets.mine": {"tools": ["read_file"], "includes": ["todo"]}})
        assert runtime.session(["mine"]).granted() == {"read_file", "todo"}

    @pytest.mark.parametrize(
        "name", ["all", "file", "toolfold-gateway", "web_tools", "mcp-github", "brought"]
    )
    def test_toolset_in_the_settings_with_the_name_of_an_existing_toolset_raises_config_error(
        self, name: str, open_test_runtime: RuntimeOpener, home: Path
    ) -> None:
        (home / "plugins").mkdir()
        (home / "plugins" / "p.py").write_text(
            "def register(plugin): plugin.toolset('brought', tools=['read_file'])"
        )
        (home / "config.yaml").write_text(f"toolsets:\n  {name}:\n    tools: [write_file]\n")
        with pytest.raises(ConfigError) as refused:
            open_test_runtime()
        assert f"toolsets.{name}: this name is already in use" in str(refused.value)
        assert f"{home / 'config.yaml'}:2" in str(refused.value)


class TestConfiguredScope:
    async def test_tool_disabled_in_the_settings_is_hidden_from_all_sessions(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        runtime = open_test_runtime({"tools.disabled": ["write_file", "todo"]})
        assert runtime.switched_off() == {"write_file", "todo"}
        session = runtime.session(["all", "file", "todo"], agent=LocalAgent())
        assert {"write_file", "todo"}.isdisjoint(definition_names(session.definitions()))
        for each in (session, session.delegate(["file"])):
            assert not (await each.call("write_file", {"path": "x", "content": "y"})).ok
            assert not (await each.call("tool_call", {"name": "todo", "arguments": {}})).ok
        assert definition_names(runtime.get_tool_definitions(["file"])) == {
            "read_file",
            "patch",
            "search_files",
        }

    def test_tool_disabled_in_the_settings_does_not_run(
        self, open_test_runtime: RuntimeOpener, tmp_path: Path
    ) -> None:
        runtime = open_test_runtime({"tools.disabled": ["write_file"]})
        text = runtime.handle_function_call("write_file", {"path": "x.txt", "content": "y"})
        assert "not available" in json.loads(text)["error"]
        assert list(tmp_path.iterdir()) == []

    def test_tool_can_be_disabled_before_it_is_registered(
        self, open_test_runtime: RuntimeOpener, ran: list[str]
    ) -> None:
        runtime = open_test_runtime(
            {"tools.disabled": ["late", "odd name"], "tools.disabled_toolsets": ["mcp-x"]}
        )
        runtime.registry.add(recording_tool("late", "alpha", ran))
        runtime.registry.add(recording_tool("odd name", "alpha", ran))
        runtime.registry.add(recording_tool("x_go", "mcp-x", ran))
        assert runtime.session(["alpha", "mcp-x"]).granted() == set()
        for name in ("late", "odd name", "x_go"):
            assert "not available" in runtime.handle_function_call(name, {})
        assert ran == []

    def test_setting_enabled_toolsets_limits_the_tools_of_every_session_and_call(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        runtime = open_test_runtime({"tools.enabled_toolsets": ["todo"]})
        assert runtime.session().granted() == {"todo"}
        assert runtime.session(["file", "todo"]).granted() == {"todo"}
        assert definition_names(runtime.get_tool_definitions(["all"])) == {"todo"}
        assert "not available" in runtime.handle_function_call("read_file", {"path": "x"})

    @pytest.mark.parametrize("key", ["tools.enabled_toolsets", "tools.disabled_toolsets"])
    def test_enabling_an_unknown_toolset_in_the_settings_raises_config_error(
        self, key: str, open_test_runtime: RuntimeOpener, home: Path
    ) -> None:
        block, name = key.split(".")
        (home / "config.yaml").write_text(f"{block}:\n  {name}: [fiel]\n")
        with pytest.raises(ConfigError) as refused:
            open_test_runtime()
        assert f"{key}: there is no toolset 'fiel'. Did you mean file?" in str(refused.value)
        assert f"{home / 'config.yaml'}:2" in str(refused.value)
        assert refused.value.key == key

    def test_toolset_in_the_settings_that_includes_an_unknown_toolset_raises_config_error(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        with pytest.raises(ConfigError, match=r"toolsets\.risky: there is no toolset 'fiel'"):
            open_test_runtime(
                {"toolsets.risky": {"includes": ["fiel"]}, "tools.disabled_toolsets": ["risky"]}
            )

    def test_enabling_the_toolset_of_a_plugin_that_failed_to_load_logs_a_warning_instead_of_an_error(
        self, open_test_runtime: RuntimeOpener, home: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (home / "plugins").mkdir()
        (home / "plugins" / "weather.py").write_text("import no_such_package_anywhere")
        runtime = open_test_runtime({"tools.enabled_toolsets": ["weather", "file"]})
        assert runtime.session().granted() == set(runtime.resolve_toolset("file"))
        assert "tools.enabled_toolsets: there is no toolset 'weather'" in caplog.text

    def test_misspelled_name_of_a_disabled_tool_causes_a_warning(
        self, open_test_runtime: RuntimeOpener, caplog: pytest.LogCaptureFixture
    ) -> None:
        open_test_runtime({"tools.disabled": ["write_flie", "mcp_github_delete_everything"]})
        assert (
            "tools.disabled: there is no tool or toolset 'write_flie'. Did you mean write_file" in caplog.text
        )
        assert "mcp_github" not in caplog.text


class TestRuntimeRegistry:
    def test_get_definitions_omits_requested_tools_that_are_disabled_unavailable_or_unknown(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        runtime = open_test_runtime({"tools.disabled": ["patch"]})
        runtime.registry.add(recording_tool("broken", "t", [], check_fn=lambda: False))
        runtime.registry.add(recording_tool("odd name", "t", []))
        found = runtime.registry.get_definitions(["read_file", "patch", "broken", "odd name", "ghost"])
        odd = runtime.registry.snapshot().find("odd name")
        assert odd is not None
        assert definition_names(found) == {"read_file", odd.name}
        assert runtime.registry.get_definitions() == runtime.get_tool_definitions()

    def test_tools_registered_by_add_register_and_add_all_are_callable_and_can_be_removed(
        self, runtime: Runtime
    ) -> None:
        @tool(toolset="mine")
        def greet(name: str) -> str:
            """Say hello."""
            return f"hello {name}"

        runtime.registry.add(greet)
        runtime.registry.register(name="by_parts", toolset="mine", schema={}, handler=lambda _: "parts")
        runtime.registry.add_all([recording_tool("by_value", "mine", [])])
        assert runtime.resolve_toolset("mine") == ["by_parts", "by_value", "greet"]
        assert runtime.handle_function_call("greet", {"name": "Ada"}) == '{"result":"hello Ada"}'
        assert runtime.registry.remove("greet")
        assert not runtime.registry.remove("greet")
        assert "not available" in runtime.handle_function_call("greet", {"name": "Ada"})

    @pytest.mark.parametrize("name", ["tool_search", "tool_describe", "tool_call", "TOOL-CALL", "tool call"])
    def test_registering_a_tool_with_a_reserved_name_such_as_tool_search_is_rejected(
        self, name: str, runtime: Runtime
    ) -> None:
        before = runtime.registry.snapshot()
        with pytest.raises(ReservedName):
            runtime.registry.register(name=name, toolset="t", schema={}, handler=print)
        with pytest.raises(ReservedName):
            runtime.registry.add_all([recording_tool("innocent", "t", []), recording_tool(name, "t", [])])
        assert runtime.registry.snapshot().keys() == before.keys()

    def test_registering_a_tool_name_used_in_another_toolset_with_override_false_is_rejected(
        self, two_tools: Runtime
    ) -> None:
        with pytest.raises(NameTaken):
            two_tools.registry.add(recording_tool("alpha_go", "beta", []), override=False)
        assert two_tools.resolve_toolset("alpha") == ["alpha_go"]


class TestTwoRuntimes:
    def test_two_runtimes_share_no_tools_hooks_or_disabled_tools(
        self, open_test_runtime: RuntimeOpener, ran: list[str], home: Path
    ) -> None:
        first = open_test_runtime()
        second = open_test_runtime({"tools.disabled": ["patch"]})
        first.registry.add(recording_tool("only_first", "mine", ran))
        first.hooks.add("post_tool_call", lambda *_: {"hooked": True})
        assert "only_first" not in second.registry.snapshot()
        assert "not available" in second.handle_function_call("only_first", {})
        assert first.handle_function_call("only_first", {}) == '{"hooked":true}'
        second.registry.add(recording_tool("only_first", "mine", ran))
        assert second.handle_function_call("only_first", {}) == '{"ran":"only_first"}'
        assert "patch" in first.session().granted()
        assert "patch" not in second.session().granted()

    def test_result_stored_for_a_task_id_cannot_be_read_by_another_runtime_with_the_same_task_id(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        first, second = open_test_runtime({"tools.result_max_chars": 1000}), open_test_runtime()
        first.registry.register(name="long", toolset="t", schema={}, handler=lambda _: "word " * 1000)
        path = json.loads(first.handle_function_call("long", {}, task_id="same"))["stored"]
        text = second.handle_function_call("read_file", {"path": path}, task_id="same")
        assert "outside the workspace" in json.loads(text)["error"]

    def test_runtime_stays_usable_after_another_runtime_is_closed(
        self, open_test_runtime: RuntimeOpener, ran: list[str]
    ) -> None:
        first, second = open_test_runtime(), open_test_runtime()
        second.registry.add(recording_tool("go", "t", ran))
        assert second.session().call_sync("go").ok
        first.close()
        assert second.session().call_sync("go").ok

    def test_opening_a_runtime_and_calling_a_tool_writes_no_files(
        self, home: Path, tmp_path: Path, two_tools: Runtime
    ) -> None:
        two_tools.handle_function_call("alpha_go", {})
        two_tools.session().definitions()
        assert list(home.iterdir()) == []
        assert list(tmp_path.iterdir()) == []


class TestSyncAndAsync:
    @pytest.fixture
    def where(self, runtime: Runtime) -> Runtime:
        """Register a sync and an async tool that return the event loop and thread they run in."""

        async def in_loop(_args: Json, _context: CallContext) -> Json:
            return {"loop": id(asyncio.get_running_loop()), "thread": threading.get_ident()}

        def in_thread(_args: Json, _context: CallContext) -> Json:
            return {"thread": threading.get_ident()}

        runtime.registry.register(name="in_loop", toolset="where", schema={}, handler=in_loop)
        runtime.registry.register(name="in_thread", toolset="where", schema={}, handler=in_thread)
        return runtime

    def test_async_handlers_called_synchronously_in_one_thread_share_an_event_loop(
        self, where: Runtime
    ) -> None:
        session = where.session(["where"])
        first, second = (session.call_sync("in_loop").value for _ in range(2))
        assert first == second
        assert json.loads(where.handle_function_call("in_loop", {})) == first

    async def test_session_call_sync_returns_a_result_inside_a_running_event_loop(
        self, where: Runtime
    ) -> None:
        session = where.session(["where"])
        assert session.call_sync("in_loop").ok
        assert session.call_sync("in_thread").ok
        assert "loop" in json.loads(where.handle_function_call("in_loop", {}))
        results = session.call_all_sync([])
        assert results == []

    async def test_awaited_call_runs_async_handlers_in_the_loop_of_the_caller_and_sync_handlers_in_a_thread(
        self, where: Runtime
    ) -> None:
        session = where.session(["where"])
        assert (await session.call("in_loop")).value["loop"] == id(asyncio.get_running_loop())
        assert (await session.call("in_thread")).value["thread"] != threading.get_ident()

    def test_async_handlers_called_synchronously_in_four_threads_use_four_event_loops(
        self, where: Runtime
    ) -> None:
        session = where.session(["where"])
        session.assemble()
        together = threading.Barrier(4, timeout=60)

        def work() -> tuple[Any, Any]:
            together.wait()
            first, second = session.call_sync("in_loop"), session.call_sync("in_loop")
            together.wait()
            return first.value, second.value

        with ThreadPoolExecutor(4) as pool:
            pairs = [future.result(timeout=60) for future in [pool.submit(work) for _ in range(4)]]
        assert all(first == second for first, second in pairs)
        assert len({first["loop"] for first, _ in pairs}) == 4

    def test_sync_and_async_handlers_can_call_other_tools_of_their_session(self, where: Runtime) -> None:
        session = where.session(["where", "mcp-outer"])

        async def outer_async(_args: Json, _context: CallContext) -> Any:
            return (await session.call("in_thread")).ok and session.call_sync("in_loop").ok

        def outer_sync(_args: Json, _context: CallContext) -> Any:
            return session.call_sync("in_loop").ok and session.call_sync("in_thread").ok

        where.registry.register(name="outer_async", toolset="mcp-outer", schema={}, handler=outer_async)
        where.registry.register(name="outer_sync", toolset="mcp-outer", schema={}, handler=outer_sync)
        session.assemble()
        assert session.call_sync("outer_async").value is True
        assert session.call_sync("outer_sync").value is True

    def test_synchronously_used_runtime_can_be_closed_inside_a_running_event_loop(
        self, open_test_runtime: RuntimeOpener, ran: list[str]
    ) -> None:
        plain, asynchronous = open_test_runtime(), open_test_runtime()
        for runtime in (plain, asynchronous):
            runtime.registry.add(recording_tool("go", "t", ran))
            assert runtime.session().call_sync("go").ok

        async def leave() -> None:
            with plain:
                assert (await plain.session().call("go")).ok
            async with asynchronous:
                assert (await asynchronous.session().call("go")).ok

        asyncio.run(leave())
        assert len(ran) == 4

    def test_eight_threads_can_concurrently_register_tools_open_sessions_and_call_tools(
        self, runtime: Runtime, ran: list[str]
    ) -> None:
        def work(place: int) -> bool:
            own = f"own_{place}"
            runtime.registry.add(recording_tool(own, f"mcp-{place}", ran))
            session = runtime.session([f"mcp-{place}"])
            seen = definition_names(session.definitions())
            return seen == {own} and session.call_sync(own).ok and own in runtime.toolsets().snapshot

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(40), timeout=60))
        assert sorted(ran) == sorted(f"own_{place}" for place in range(40))

    def test_opening_and_closing_a_runtime_leaks_no_thread(
        self, open_test_runtime: RuntimeOpener, where: Runtime
    ) -> None:
        before = set(threading.enumerate())
        session = where.session(["where"])
        for _ in range(5):
            session.call_sync("in_loop")
            session.call_sync("in_thread")
        for thread in set(threading.enumerate()) - before:
            thread.join(timeout=60)
        assert set(threading.enumerate()) <= before


class TestSettingsOfCode:
    @pytest.fixture(autouse=True)
    def user_home(self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The user has settings in files and in the environment, and a plugin."""
        (home / "plugins").mkdir()
        (home / "plugins" / "mine.py").write_text("raise SystemExit('loaded')")
        (home / "config.yaml").write_text(
            "tools: {disabled: [patch]}\nmcp: {servers: {clock: {command: no}}}"
        )
        monkeypatch.setenv("TOOLFOLD_HOME", str(home))
        monkeypatch.setenv("TOOLFOLD_TOOLS__RAG_TOP_K", "3")
        monkeypatch.chdir(tmp_path)

    def test_runtime_opened_by_code_reads_no_settings_of_the_user_and_leaves_no_state(
        self, home: Path
    ) -> None:
        before = sorted(home.rglob("*"))
        with open_runtime() as runtime:
            state = runtime.config.paths.state_dir
            assert state.is_dir()
            assert runtime.config.tools.rag_top_k == 8
            assert not runtime.switched_off()
            assert not runtime.config.mcp.servers
            assert not [report for report in runtime.sources if report.kind != "builtin"]
            runtime.session(["file"]).call_sync("write_file", {"path": "a.txt", "content": "x"})
        assert not state.exists()
        assert sorted(home.rglob("*")) == before

    def test_state_directory_that_was_named_is_kept(self, tmp_path: Path) -> None:
        with open_runtime(state_dir="state") as runtime:
            assert runtime.config.paths.state_dir == tmp_path / "state"
            runtime.config.paths.state_dir.mkdir(exist_ok=True)
        assert (tmp_path / "state").is_dir()

    def test_user_settings_are_read_if_asked_for_and_arguments_precede_them(self, tmp_path: Path) -> None:
        with open_runtime(user_settings=True, top_k=5, settings={"plugins.enabled": False}) as runtime:
            assert runtime.config.workspace == tmp_path
            assert runtime.config.tools.rag_top_k == 5
            assert runtime.switched_off() == {"patch"}
            assert list(runtime.config.mcp.servers) == ["clock"]
            assert "read_file" in runtime.session().granted()

    def test_session_has_a_built_in_tool_only_if_its_toolset_is_named(self, ran: list[str]) -> None:
        with open_runtime(toolsets=["web"]) as runtime:
            runtime.registry.add_all(
                [recording_tool("own", "hr", ran), recording_tool("also_own", "terminal", ran)]
            )
            session = runtime.session()
            web = runtime.resolve_toolset("web")
            assert session.granted() == {"own", "also_own", *web}
            assert session.call_sync("own").ok
            for call in (
                session.call_sync("write_file", {"path": "a", "content": "b"}),
                session.call_sync("tool_call", {"name": "terminal", "arguments": {"command": "id"}}),
            ):
                assert "not available in this session" in (call.error or "")
            assert "not available" in runtime.handle_function_call("cronjob", {"action": "list"})
            assert "terminal" not in definition_names(runtime.get_tool_definitions(quiet_mode=True))
            assert runtime.session(["file"]).granted() >= {"read_file", "write_file"}

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            ({"selection": "hybird"}, "did you mean hybrid"),
            ({"toolsets": ["wbe"]}, "Did you mean web"),
            ({"settings": {"tools.max_paralel": 3}}, "did you mean max_parallel"),
            ({"user_settings": True, "state_dir": "state"}, "TOOLFOLD_HOME"),
        ],
    )
    def test_invalid_argument_is_reported_with_the_value_that_was_meant(
        self, arguments: dict[str, Any], problem: str
    ) -> None:
        with pytest.raises(ToolfoldError, match=problem):
            open_runtime(**arguments)

    def test_settings_of_the_user_stay_protected_from_a_runtime_that_does_not_use_them(
        self, home: Path
    ) -> None:
        with open_runtime(settings={"files.extra_roots": [str(home)]}) as runtime:
            session = runtime.session(["file", "terminal"])
            written = session.call_sync("write_file", {"path": str(home / "config.yaml"), "content": "x"})
            run = session.call_sync("terminal", {"command": f"echo x > {home / 'config.yaml'}"})
        assert not written.ok
        assert not run.ok
        assert "disabled" in (home / "config.yaml").read_text()

    def test_code_that_a_tool_call_runs_keeps_the_restrictions_of_the_user_and_gets_no_more_tools(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (home / "plugins" / "mine.py").unlink()
        monkeypatch.setenv("TOOLFOLD_RUN", "x")
        with open_runtime(approval_mode="off", state_dir="state") as runtime:
            assert runtime.config.approval.mode == "manual"
            assert runtime.switched_off() == {"patch"}
            assert not runtime.session().granted()
            assert "patch" not in runtime.session(["file"]).granted()

    def test_settings_of_the_user_are_protected_even_if_code_switches_approval_off(self, home: Path) -> None:
        file = home / "config.yaml"
        before = file.read_text()
        with open_runtime(approval_mode="off", workspace=home.parent) as runtime:
            session = runtime.session(["file", "terminal", "code_execution"])
            for name, args in {
                "write_file": {"path": str(file), "content": "x"},
                "terminal": {"command": f"cd {home} && echo x >> config.yaml"},
                "execute_code": {"code": f"open({str(file)!r}, 'w').write('x')"},
            }.items():
                assert not session.call_sync(name, args).ok, name
        assert file.read_text() == before

    def test_tools_of_a_server_named_in_code_have_the_names_that_clients_of_the_gateway_see(self) -> None:
        servers = {"notes": fault_server("--tools", "2")}
        with open_runtime(mcp_servers=servers, settings={"mcp.wait_seconds": 60}) as runtime:
            granted = runtime.session().granted()
            assert granted
            assert all(name.startswith("notes_") for name in granted)

    def test_call_that_needs_approval_is_refused_if_nobody_can_be_asked(self, tmp_path: Path) -> None:
        (tmp_path / "drafts").mkdir()
        with open_runtime() as runtime:
            done = runtime.session(["terminal"]).call_sync("terminal", {"command": "rm -rf drafts"})
        assert "nobody could be asked" in (done.error or "")
        assert (tmp_path / "drafts").is_dir()


def test_file_tools_of_a_runtime_read_and_write_only_inside_the_project_directory(
    runtime: Runtime, tmp_path: Path, home: Path
) -> None:
    (home / "outside.txt").write_text("secret")
    call: Callable[..., str] = runtime.handle_function_call
    assert "error" not in json.loads(call("write_file", {"path": "note.txt", "content": "hello\n"}))
    assert (tmp_path / "note.txt").read_text() == "hello\n"
    assert "1\\thello" in call("read_file", {"path": "note.txt"})
    assert "outside the workspace" in call("read_file", {"path": str(home / "outside.txt")})


def test_secret_in_the_reason_of_a_failed_availability_check_is_redacted(
    open_test_runtime: RuntimeOpener, home: Path
) -> None:
    secret = "pr0d/Zx81~Qw77-Lm20.Kd93+Rt55"

    def check() -> bool:
        raise OSError("GET https://api.example/" + "x" * 150 + f"?k={secret} failed")

    config = load_config(project=home, env={"TOOLFOLD_HOME": str(home / "h"), "SERVICE_API_KEY": secret})
    with open_runtime(config) as runtime:
        runtime.registry.add(recording_tool("probed", "alpha", [], check_fn=check))
        told = runtime.statuses(["probed"])["probed"].reason + runtime.handle_function_call("probed")
        session = runtime.session()
        told += session.assemble().unavailable["probed"]
        told += session.call_sync("tool_describe", {"names": ["probed", "read_file"]}).text
    assert "Zx81" not in told
    assert "GET https://api.example/" in told


def test_large_results_of_two_calls_without_a_task_id_are_stored_in_separate_directories(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime({"tools": {"result_max_chars": 1000}})
    runtime.registry.add(recording_tool("big", "hr", []))
    runtime.hooks.add("post_tool_call", lambda *_: "salary " * 1000)
    stored = [json.loads(runtime.handle_function_call("big"))["stored"] for _ in range(2)]
    assert Path(stored[0]).parent != Path(stored[1]).parent


def test_tool_in_a_toolset_named_like_a_preset_toolset_is_not_granted_with_the_preset_toolset(
    runtime: Runtime,
) -> None:
    runtime.registry.add(recording_tool("stranger", "toolfold-gateway", []))
    assert "stranger" not in runtime.session(["toolfold-gateway"]).granted()


class TestRuntimeFiles:
    """The runtime's settings and state are inside the workspace, as with the home directory as workspace."""

    @pytest.fixture
    def home(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A directory of this test only: those of other tests may contain many files."""
        home = tmp_path_factory.mktemp("around") / "home"
        home.mkdir()
        return home

    @pytest.fixture
    def around(self, open_test_runtime: RuntimeOpener, home: Path) -> Runtime:
        (home / "config.yaml").write_text("log_level: error\n")
        (home / "notes.txt").write_text("of the person")
        return open_test_runtime({"files": {"extra_roots": [str(home.parent)]}})

    @pytest.mark.parametrize(
        "inside", ["config.yaml", "plugins/evil.py", "state/trust.json", "cache/x", "state/results/a/b.txt"]
    )
    def test_file_tools_cannot_write_settings_and_state_of_the_runtime(
        self, around: Runtime, home: Path, inside: str
    ) -> None:
        before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
        answer = around.handle_function_call("write_file", {"path": str(home / inside), "content": "x"})
        assert "runtime's own" in json.loads(answer)["error"]
        after = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
        assert after.pop(home / "state" / "approvals.jsonl")  # only the rejection was recorded
        assert after == before

    def test_file_tools_cannot_read_or_search_settings_and_state_of_the_runtime(
        self, around: Runtime, home: Path
    ) -> None:
        read = around.handle_function_call("read_file", {"path": str(home / "config.yaml")})
        assert "Toolfold's own" in json.loads(read)["error"]
        mine = home.parent / "mine.yaml"
        mine.write_text("log_level: debug\n")
        search = {"pattern": "log_level", "path": str(home.parent)}
        found = json.loads(around.handle_function_call("search_files", search))["matches"]
        assert [match["file"] for match in found] == [str(mine)]

    def test_file_tools_cannot_access_runtime_files_through_a_symlink(
        self, around: Runtime, home: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "link").symlink_to(home)
        answer = around.handle_function_call("write_file", {"path": "link/config.yaml", "content": "x"})
        assert "error" in json.loads(answer)
        assert (home / "config.yaml").read_text() == "log_level: error\n"


def test_mcp_server_processes_are_stopped_if_opening_the_runtime_fails(home: Path, tmp_path: Path) -> None:
    program = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    file = tmp_path / "pid"
    server = {"command": sys.executable, "args": ["-c", program, str(file)]}
    settings = {
        "mcp.servers": {"slow": server},
        "mcp.wait_seconds": 5,
        "tools.enabled_toolsets": ["no_such_toolset"],
    }
    env = {"TOOLFOLD_HOME": str(home), "HOME": str(home), "PATH": os.environ["PATH"]}
    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match="no_such_toolset"):
        open_runtime(load_config(project=tmp_path, env=env, overrides=settings))
    assert file.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)
    assert {
        each.name for each in set(threading.enumerate()) - before if each.name.startswith("toolfold")
    } == set()


def test_database_connection_is_closed_if_opening_the_runtime_fails(
    home: Path, tmp_path: Path, database_url: str
) -> None:
    settings = {"store": database_url, "toolsets": {"file": {"tools": []}}}  # the name is in use
    env = {"TOOLFOLD_HOME": str(home), "HOME": str(home), "PATH": os.environ["PATH"]}
    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match="already in use"):
        open_runtime(load_config(project=tmp_path, env=env, overrides=settings))
    assert {
        each.name for each in set(threading.enumerate()) - before if each.name.startswith("toolfold")
    } == set()
