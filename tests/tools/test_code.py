"""The execute_code tool, called through a session, as a model does; and attacks on it by the code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RuntimeOpener, recording_tool
from tests.environments.backend_kinds import busybox_options, find_traces
from tests.environments.servers import SERVERS
from tests.environments.test_contract import wait_until_gone
from toolfold import (
    Agent,
    ApprovalRequest,
    Refused,
    Runtime,
    Session,
    ToolCall,
    build_tool,
    load_config,
    open_runtime,
)
from toolfold.agent import LocalAgent
from toolfold.core.events import Event, ToolFinished, ToolStarted
from toolfold.core.types import CallContext, Caller, Content, Json, Media, Tool, ToolResult
from toolfold.models.scripted import ScriptedProvider, ScriptedReply, Step
from toolfold.state.store import SqliteSessionStore
from toolfold.tools.code_execution.code_run import _paused

BUILTIN = ["code_execution", "file", "terminal"]
TOOLSETS = [*BUILTIN, "harbour"]


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    """Stop the servers that the tests have started."""
    yield
    SERVERS.close()


def run_code(session: Session, code: str, **args: Any) -> Json:
    result = session.call_sync("execute_code", {"code": code, **args})
    assert result.ok, result.error
    answer: Json = json.loads(result.text)
    return answer


def code_error(session: Session, code: str, **args: Any) -> str:
    result = session.call_sync("execute_code", {"code": code, **args})
    assert result.error is not None, result.text
    return result.error


def attempt(call: str) -> str:
    """Return code that calls a tool and prints the error if the call fails."""
    return (
        f"import toolfold_tools\ntry:\n    print('RAN', toolfold_tools.{call})\n"
        "except toolfold_tools.ToolError as error:\n    print(error)\n"
    )


def count_boats(seen: list[Json] | None = None, **options: Any) -> Tool:
    def handler(args: Json, _: CallContext) -> Json:
        if seen is not None:
            seen.append(args)
        return {"pier": args["pier"], "boats": 3}

    schema = {
        "description": "Count the boats at a pier.",
        "parameters": {
            "type": "object",
            "properties": {"pier": {"type": "string"}},
            "required": ["pier"],
            "additionalProperties": False,
        },
    }
    return build_tool(name="count_boats", toolset="harbour", schema=schema, handler=handler, **options)


@pytest.fixture
def session(runtime: Runtime) -> Session:
    runtime.registry.add(count_boats())
    return runtime.session(TOOLSETS)


def test_execute_code_returns_the_printed_output_of_the_code(session: Session) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)"
    assert run_code(session, code) == {"output": "out\nerr\n", "exit_code": 3, "tool_calls": 0}


def test_traceback_of_executed_code_contains_only_lines_of_the_executed_code(session: Session) -> None:
    answer = run_code(session, "def fail():\n    raise ValueError('no boat')\nfail()")
    assert answer["exit_code"] == 1
    assert answer["output"].startswith(
        'Traceback (most recent call last):\n  File "<code>", line 3, in <module>\n'
    )
    assert "    fail()\n" in answer["output"]
    assert answer["output"].endswith("ValueError: no boat\n")


def test_executed_code_starts_in_the_working_directory_of_the_session(
    session: Session, tmp_path: Path
) -> None:
    (tmp_path / "piers").mkdir()
    (tmp_path / "piers/north.py").write_text("BOATS = 3\n")
    session.call_sync("terminal", {"command": "cd piers"})
    assert run_code(session, "import north\nprint(north.BOATS)")["output"] == "3\n"
    assert run_code(session, "import os\nprint(os.getcwd())", workdir="..")["output"] == f"{tmp_path}\n"
    assert session.call_sync("terminal", {"command": "pwd"}).value["output"] == f"{tmp_path}/piers\n"
    assert "nowhere" in code_error(session, "print(1)", workdir="nowhere")


def test_executed_code_works_if_the_working_directory_has_files_named_like_standard_modules(
    session: Session, tmp_path: Path
) -> None:
    for name in ("json", "socket", "threading", "base64", "toolfold_tools", "linecache"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('replaced')\n")
    answer = run_code(
        session, "from toolfold_tools import count_boats\nprint(count_boats(pier='north')['boats'])"
    )
    assert answer == {"output": "3\n", "exit_code": 0, "tool_calls": 1}


def test_executed_code_can_call_tools_as_python_functions_that_return_python_data(
    session: Session, tmp_path: Path
) -> None:
    (tmp_path / "log.txt").write_text("one\ntwo\n")
    code = (
        "from toolfold_tools import count_boats, terminal, read_file, call_tool\n"
        "total = sum(count_boats(pier)['boats'] for pier in ['north', 'south'])\n"
        "print(total, terminal(command='echo hi')['output'].strip(), read_file(path='log.txt')['path'])\n"
        "print(call_tool('count_boats', {'pier': 'west'}), call_tool('count_boats', pier='east')['pier'])\n"
    )
    answer = run_code(session, code)
    assert answer["output"] == "6 hi log.txt\n{'pier': 'west', 'boats': 3} east\n"
    assert answer["tool_calls"] == 6


def test_events_of_tool_calls_by_executed_code_have_the_execute_code_call_as_parent(
    session: Session, runtime: Runtime
) -> None:
    events: list[Event] = []
    runtime.events.subscribe(events.append)
    run_code(session, "from toolfold_tools import *\ncount_boats('north')\ncount_boats('south')")
    started = [each for each in events if isinstance(each, ToolStarted)]
    outer = started[0].call_id
    assert [
        (each.tool, each.parent_id, each.call_id, each.arguments.get("pier")) for each in started[1:]
    ] == [
        ("count_boats", outer, f"{outer}.1", "north"),
        ("count_boats", outer, f"{outer}.2", "south"),
    ]
    finished = [(each.tool, each.ok) for each in events if isinstance(each, ToolFinished)]
    assert finished == [("count_boats", True), ("count_boats", True), ("execute_code", True)]


@pytest.mark.thorough
def test_executed_code_can_call_deferred_tools_that_are_not_in_the_models_request(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime({"tools": {"tool_search": {"enabled": "on"}}})
    runtime.registry.add(count_boats())
    session = runtime.session(TOOLSETS)
    shown = {each["function"]["name"] for each in session.definitions()}
    assert "execute_code" in shown
    assert "count_boats" not in shown
    code = "from toolfold_tools import count_boats, tool_search\nprint(count_boats('north')['boats'])"
    code += "\nprint([each['name'] for each in tool_search(query='boats at a pier')['matches']][0])"
    assert run_code(session, code)["output"] == "3\ncount_boats\n"


def test_executed_code_receives_a_large_tool_result_completely(session: Session, runtime: Runtime) -> None:
    lines = [f"line {number}" for number in range(100_000)]
    runtime.registry.add(
        build_tool(
            name="dump",
            toolset="harbour",
            schema={"description": "Dump."},
            handler=lambda _: {"lines": lines},
        )
    )
    assert (
        run_code(session, "from toolfold_tools import dump\nprint(len(dump()['lines']))")["output"]
        == "100000\n"
    )


def add_log(runtime: Runtime, answer: Any) -> None:
    """Add a tool `read_log` that returns the given answer."""
    runtime.registry.add(
        build_tool(
            name="read_log", toolset="harbour", schema={"description": "Read."}, handler=lambda _: answer
        )
    )


@pytest.mark.parametrize("length", [10, 400_000])
def test_executed_code_does_not_receive_text_that_a_hook_removed_from_a_tool_result(
    session: Session, runtime: Runtime, length: int
) -> None:
    def mask(tool: Tool, args: Json, result: ToolResult, context: CallContext) -> ToolResult:
        return replace(result, text=result.text.replace("123-45-6789", "***"))

    add_log(runtime, "123-45-6789 " + "x" * length)
    runtime.hooks.add("post_tool_call", mask)
    code = "from toolfold_tools import read_log\nlog = str(read_log())\nprint('***' in log, '6789' in log)"
    assert run_code(session, code)["output"] == "True False\n"
    assert "6789" not in str(session.call_sync("read_log", {}).value)


def test_executed_code_receives_a_large_tool_result_completely_if_a_hook_does_not_change_it(
    session: Session, runtime: Runtime
) -> None:
    add_log(runtime, {"log": "x" * 400_000})
    runtime.hooks.add("post_tool_call", lambda tool, args, result, context: replace(result))
    assert (
        run_code(session, "from toolfold_tools import read_log\nprint(len(read_log()['log']))")["output"]
        == "400000\n"
    )


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("length", [10, 400_000])
def test_short_and_large_tool_results_with_files_have_the_same_structure_in_executed_code(
    session: Session, runtime: Runtime, length: int
) -> None:
    chart = Media(kind="file", mime_type="text/plain", data=b"chart", label="chart")
    add_log(runtime, Content(value="x" * length, blocks=(chart,)))
    code = (
        "from toolfold_tools import read_log\nlog = read_log()\n"
        "print(len(log['result']), open(log['files'][0]['stored']).read())"
    )
    assert run_code(session, code)["output"] == f"{length} chart\n"


@pytest.mark.thorough
def test_type_annotations_in_executed_code_are_evaluated_to_types_and_not_stored_as_strings(
    session: Session,
) -> None:
    code = "def moor(pier: int): pass\nprint(moor.__annotations__['pier'] is int)"
    assert run_code(session, code)["output"] == "True\n"


@pytest.mark.thorough
def test_tool_calls_of_executed_code_receive_the_correct_results_after_an_interrupted_call(
    session: Session, runtime: Runtime, tmp_path: Path
) -> None:
    def wait(_: Json, context: CallContext) -> Json:
        while not (tmp_path / "interrupted").exists():
            assert not context.cancelled.wait(0.05)
        return {"waited": True}

    runtime.registry.add(
        build_tool(name="wait", toolset="harbour", schema={"description": "Wait."}, handler=wait)
    )
    code = (
        "import signal\nfrom toolfold_tools import count_boats, wait\n"
        "def interrupt(*_): raise InterruptedError\n"
        "signal.signal(signal.SIGALRM, interrupt)\nsignal.setitimer(signal.ITIMER_REAL, 0.5)\n"
        "try:\n    wait()\nexcept InterruptedError:\n    open('interrupted', 'w').close()\n"
        "print(count_boats('north'))\nprint(count_boats('south'))"
    )
    assert run_code(session, code)["output"] == (
        "{'pier': 'north', 'boats': 3}\n{'pier': 'south', 'boats': 3}\n"
    )


@pytest.mark.thorough
def test_executed_code_that_exits_without_reading_tool_results_causes_no_traceback(
    session: Session,
) -> None:
    code = (
        "import gc\n"
        "connection = [each for each in gc.get_objects() if type(each).__name__ == 'Connection'][0]\n"
        'request = b\'1 {"name": "count_boats", "arguments": {"pier": "north"}}\\n\'\n'
        "for _ in range(3000): connection.socket.sendall(request)\n"
        "print('sent')"
    )
    assert run_code(session, code)["output"] == "sent\n"


class TestNoBypass:
    """Executed code can call only the tools of its session, with the same checks as the model's calls."""

    def test_executed_code_cannot_call_an_ungranted_tool(self, runtime: Runtime) -> None:
        ran: list[str] = []
        runtime.registry.add(recording_tool("sink_boat", "navy", ran))
        session = runtime.session(BUILTIN)
        for call in ("sink_boat()", "call_tool('sink_boat')", "tool_call(name='sink_boat', arguments={})"):
            assert (
                "'sink_boat' is not available in this session" in run_code(session, attempt(call))["output"]
            )
        assert ran == []

    def test_toolfold_tools_module_in_executed_code_contains_only_granted_tools(
        self, runtime: Runtime
    ) -> None:
        runtime.registry.add(recording_tool("sink_boat", "navy", []))
        runtime.registry.add(count_boats())
        session = runtime.session(["code_execution", "harbour"])
        answer = run_code(session, "import toolfold_tools\nprint(toolfold_tools.__all__)")
        assert answer["output"] == "['ToolError', 'call_tool', 'count_boats']\n"

    @pytest.mark.parametrize(
        "call",
        ["execute_code(code='print(1)')", "tool_call(name='execute_code', arguments={'code': 'print(1)'})"],
    )
    def test_executed_code_cannot_call_execute_code(
        self, open_test_runtime: RuntimeOpener, call: str
    ) -> None:
        runtime = open_test_runtime({"tools": {"tool_search": {"enabled": "on", "defer": ["execute_code"]}}})
        output = run_code(runtime.session(BUILTIN), attempt(call))["output"]
        assert "'execute_code' can be called only directly" in output

    async def test_executed_code_cannot_call_delegate_task(self, runtime: Runtime, tmp_path: Path) -> None:
        steps: list[Step] = [
            ScriptedReply(
                calls=[ToolCall("execute_code", {"code": attempt("delegate_task(goal='multiply')")})]
            ),
            "Done.",
        ]
        with contextlib.closing(SqliteSessionStore(tmp_path / "sessions.db")) as store:
            agent = Agent(ScriptedProvider(steps), runtime=runtime, store=store)
            assert (await agent.run("Go")).text == "Done."
            assert "'delegate_task' can be called only directly" in agent.history.messages[2]["content"]
            assert len(store.list_sessions()) == 1

    def test_todo_tool_called_by_executed_code_changes_the_todo_list_of_the_agent(
        self, runtime: Runtime
    ) -> None:
        agent = LocalAgent()
        session = runtime.session(["code_execution", "todo"], agent=agent)
        item = {"id": "1", "content": "Moor", "status": "pending"}
        run_code(session, f"from toolfold_tools import todo\ntodo(todos=[{item!r}])")
        assert [each["content"] for each in agent.todos.export()] == ["Moor"]

    def test_tool_calls_of_executed_code_can_be_refused_by_hooks_and_by_argument_validation(
        self, runtime: Runtime
    ) -> None:
        seen: list[Json] = []
        runtime.registry.add(count_boats(seen))

        def refuse_south(_tool: Tool, args: Json, _context: CallContext) -> None:
            if args.get("pier") == "south":
                raise Refused("The south pier is closed.")

        runtime.hooks.add("pre_tool_call", refuse_south)
        session = runtime.session(TOOLSETS)
        assert (
            run_code(session, attempt("count_boats(pier='south')"))["output"] == "The south pier is closed.\n"
        )
        assert "pier" in run_code(session, attempt("count_boats(pear='north')"))["output"]
        assert seen == []

    def test_tool_calls_of_executed_code_need_the_same_approval_as_calls_of_the_model(
        self, open_test_runtime: RuntimeOpener, tmp_path: Path
    ) -> None:
        (tmp_path / "notes").mkdir()
        (tmp_path / "notes/a").write_text("a")
        asked: list[ApprovalRequest] = []

        def refuse(request: ApprovalRequest) -> bool:
            asked.append(request)
            return False

        session = open_test_runtime(approver=refuse).session(BUILTIN)
        output = run_code(session, attempt("terminal(command='rm -rf notes')"))["output"]
        assert "was refused" in output
        assert [(each.tool.name, each.command) for each in asked] == [("terminal", "rm -rf notes")]
        assert (tmp_path / "notes/a").exists()

    def test_risky_tool_calls_of_executed_code_are_not_run_without_an_approver(
        self, session: Session, tmp_path: Path
    ) -> None:
        (tmp_path / "notes").mkdir()
        output = run_code(session, attempt("terminal(command='rm -rf notes')"))["output"]
        assert "nobody could be asked" in output
        assert (tmp_path / "notes").exists()

    def test_tool_request_printed_by_executed_code_is_treated_as_output_and_calls_no_tool(
        self, session: Session
    ) -> None:
        token = secrets.token_hex(16)
        request = json.dumps({"name": "count_boats", "arguments": {"pier": "north"}})
        code = (
            "import os\n"
            f"frame = {token + ' C ' + request!r}\n"
            "print(frame, flush=True)\n"
            "with open(f'/proc/{os.getppid()}/fd/1', 'w') as relay:\n    print(frame, file=relay)\n"
        )
        answer = run_code(session, code)
        assert answer["output"].count(request) == 2
        assert answer["tool_calls"] == 0

    def test_tool_request_of_executed_code_cannot_choose_its_call_id_or_session(
        self, session: Session, runtime: Runtime
    ) -> None:
        events: list[Event] = []
        runtime.events.subscribe(events.append)
        forged = {"name": "count_boats", "arguments": {"pier": "north"}, "id": "stolen", "call_id": "stolen"}
        forged |= {"session_id": "other", "parents": []}
        code = (
            "import json, toolfold_tools\n"
            "connection = toolfold_tools.call_tool.__closure__[0].cell_contents\n"
            f"connection.socket.sendall(b'7 ' + json.dumps({forged!r}).encode() + b'\\n')\n"
            "print(connection.read_line().decode() or connection.read_line().decode())\n"
        )
        assert '"boats": 3' in run_code(session, code)["output"]
        nested = [each for each in events if isinstance(each, ToolStarted) and each.tool == "count_boats"]
        outer = next(each for each in events if isinstance(each, ToolStarted) and each.tool == "execute_code")
        assert [(each.call_id, each.session_id) for each in nested] == [(f"{outer.call_id}.1", session.id)]

    @pytest.mark.parametrize(
        "line",
        [
            "7 ",
            "7 not json",
            "7 []",
            '7 {"name": 1, "arguments": {}}',
            '7 {"name": "x"}',
            '7 {"name": "x", "arguments": NaN}',
            "7 " + "[" * 2000,
            '{"name": "count_boats", "arguments": {"pier": "north"}}',
            '-7 {"name": "count_boats", "arguments": {"pier": "north"}}',
            f'{"7" * 5000} {{"name": "count_boats", "arguments": {{"pier": "north"}}}}',
        ],
    )
    def test_malformed_tool_requests_of_executed_code_are_answered_with_an_error(
        self, session: Session, line: str
    ) -> None:
        code = (
            "import toolfold_tools\n"
            "connection = toolfold_tools.call_tool.__closure__[0].cell_contents\n"
            f"connection.socket.sendall({line!r}.encode() + b'\\n')\n"
            "print(connection.read_line().decode() or connection.read_line().decode())\n"
            "print(toolfold_tools.count_boats('north')['boats'])\n"
        )
        output = run_code(session, code)["output"]
        assert "the request is invalid" in output
        assert output.endswith("3\n")

    def test_processes_started_by_executed_code_cannot_call_tools(self, session: Session) -> None:
        code = (
            "import os, sys\nfrom toolfold_tools import *\n"
            "if os.fork() == 0:\n"
            "    try:\n        print(count_boats('north'))\n"
            "    except ToolError as error:\n        print(error)\n"
            "    os._exit(0)\n"
            "os.wait()\n"
        )
        answer = run_code(session, code)
        assert "only by the code itself" in answer["output"]
        assert answer["tool_calls"] == 0

    def test_calls_by_executed_code_need_approval_even_if_the_client_asks_its_user_before_direct_calls(
        self, runtime: Runtime
    ) -> None:
        ran: list[str] = []
        runtime.registry.add(recording_tool("sink_boat", "navy", ran, effects=("destructive",)))
        session = runtime.session(["code_execution", "navy"], caller=Caller("editor", asks_user=True))
        assert session.call_sync("sink_boat").ok
        assert "nobody could be asked" in run_code(session, attempt("sink_boat()"))["output"]
        assert ran == ["sink_boat"]


class TestApprovalOfTheCode:
    """The code is judged before it runs, like the argument of `python3 -c`."""

    def test_code_with_an_always_blocked_command_is_not_executed_even_if_approved(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        session = open_test_runtime(approver=lambda _: True).session(BUILTIN)
        error = code_error(session, "import os\nos.system('rm -rf /usr')")
        assert "always blocked" in error

    def test_risky_code_is_not_executed_without_an_approver(self, session: Session, tmp_path: Path) -> None:
        (tmp_path / "notes").mkdir()
        error = code_error(session, "import shutil\nshutil.rmtree('notes')")
        assert "nobody could be asked" in error
        assert (tmp_path / "notes").exists()

    def test_approval_request_for_risky_code_contains_the_code_and_the_affected_directory(
        self, open_test_runtime: RuntimeOpener, tmp_path: Path
    ) -> None:
        (tmp_path / "piers/notes").mkdir(parents=True)
        asked: list[ApprovalRequest] = []

        def approve(request: ApprovalRequest) -> bool:
            asked.append(request)
            return True

        session = open_test_runtime(approver=approve).session(BUILTIN)
        session.call_sync("terminal", {"command": "cd piers"})
        code = "import shutil\nshutil.rmtree('notes')\nprint('gone')"
        assert run_code(session, code)["output"] == "gone\n"
        (request,) = asked
        assert request.tool.name == "execute_code"
        assert request.args["code"] == code
        assert str(tmp_path / "piers") in request.reason  # a long path is shortened at its end
        assert not (tmp_path / "piers/notes").exists()

    @pytest.mark.parametrize("padding", [20_000, 50_000])
    def test_long_code_is_judged_to_its_end(self, session: Session, padding: int) -> None:
        comment = f"# {'x' * padding}\n"
        assert run_code(session, f"{comment}print(1)")["output"] == "1\n"
        assert "was not run" in code_error(session, f"{comment}import shutil\nshutil.rmtree('/etc')")


class TestLimits:
    def test_time_limit_terminates_executed_code_and_its_processes(self, session: Session) -> None:
        token = f"token{secrets.token_hex(8)}"
        code = f"import subprocess\nprint('started')\nsubprocess.run(['sh', '-c', 'sleep 600; : {token}'])"
        answer = run_code(session, code, timeout=10)
        assert answer["exit_code"] is None
        assert answer["note"].startswith("Terminated after 10 s")
        assert find_traces(token) == []

    async def test_duration_of_tool_calls_is_excluded_from_the_time_limit_of_executed_code(self) -> None:
        async with asyncio.timeout(0.2) as clock:
            async with _paused(clock):
                await asyncio.sleep(0.4)
            assert clock.when() is not None
        assert not clock.expired()

    def test_background_processes_of_executed_code_are_terminated_when_the_code_exits(
        self, session: Session
    ) -> None:
        token = f"token{secrets.token_hex(8)}"
        code = f"import subprocess\nsubprocess.Popen(['sh', '-c', 'sleep 600; : {token}'])\nprint('done')"
        assert run_code(session, code)["output"] == "done\n"
        assert find_traces(token) == []

    def test_long_output_of_executed_code_is_shortened_and_stored(self, session: Session) -> None:
        answer = run_code(session, "print('begin')\nprint('x' * 1_000_000)\nprint('end')")
        assert answer["output"].startswith("begin\n")
        assert answer["output"].endswith("end\n")
        assert len(answer["output"]) < 50_000
        assert Path(answer["stored"]).stat().st_size == answer["bytes"] == 1_000_011

    @pytest.mark.thorough
    def test_output_of_executed_code_beyond_10_megabytes_is_dropped_and_its_size_is_reported(
        self, session: Session
    ) -> None:
        answer = run_code(session, "for _ in range(15):\n    print('x' * 1_000_000)")
        assert answer["bytes"] == 10_000_000
        assert answer["lost_bytes"] == 15 * 1_000_001 - 10_000_000

    def test_executed_code_receives_an_error_for_tool_calls_beyond_the_limit_of_100(
        self, runtime: Runtime
    ) -> None:
        seen: list[Json] = []
        runtime.registry.add(count_boats(seen))
        code = (
            "from toolfold_tools import *\n"
            "failed = 0\n"
            "for _ in range(110):\n"
            "    try:\n        count_boats('north')\n"
            "    except ToolError as error:\n        failed, last = failed + 1, error\n"
            "print(failed, last)\n"
        )
        answer = run_code(runtime.session(TOOLSETS), code)
        assert answer["output"] == "10 the limit of 100 tool calls is reached\n"
        assert len(seen) == answer["tool_calls"] == 100

    def test_executed_code_that_calls_a_tool_with_too_large_arguments_fails_with_an_explanation(
        self, session: Session
    ) -> None:
        answer = run_code(session, "from toolfold_tools import *\ncount_boats('x' * 3_000_000)")
        assert "too large" in answer["output"]
        assert answer["exit_code"] != 0

    @pytest.mark.thorough(keep=2)
    @pytest.mark.parametrize(
        ("code", "exit_code"),
        [
            ("import os\nos._exit(7)", 7),
            ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", 137),
            ("import ctypes\nctypes.string_at(0)", 139),
            ("import os\nos.closerange(0, 100)", 0),
        ],
    )
    def test_execute_code_returns_output_and_exit_code_if_the_code_exits_or_crashes(
        self, open_test_runtime: RuntimeOpener, code: str, exit_code: int
    ) -> None:
        session = open_test_runtime(approver=lambda _: True).session(BUILTIN)
        answer = run_code(session, f"print('begin')\n{code}")
        assert answer["output"].startswith("begin\n")
        assert answer["exit_code"] == exit_code

    def test_execute_code_returns_a_result_if_the_code_kills_its_parent_process(
        self, open_test_runtime: RuntimeOpener
    ) -> None:
        session = open_test_runtime(approver=lambda _: True).session(BUILTIN)
        answer = run_code(session, "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)")
        assert answer["exit_code"] == 137
        assert run_code(session, "print('works')")["output"] == "works\n"

    async def test_cancelling_execute_code_kills_the_code_and_its_running_tool_call(
        self, runtime: Runtime
    ) -> None:
        started, cancelled = asyncio.Event(), asyncio.Event()

        async def wait(_: Json) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        runtime.registry.add(
            build_tool(name="wait_forever", toolset="harbour", schema={"description": "Wait."}, handler=wait)
        )
        token = f"token{secrets.token_hex(8)}"
        code = (
            "import subprocess\nfrom toolfold_tools import wait_forever\n"
            f"subprocess.Popen(['sh', '-c', 'sleep 600; : {token}'])\nwait_forever()\n"
        )
        call = asyncio.create_task(runtime.session(TOOLSETS).call("execute_code", {"code": code}))
        async with asyncio.timeout(120):
            await started.wait()
            assert find_traces(token) != []
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await cancelled.wait()
            await wait_until_gone(token)


def test_tool_calls_from_several_threads_of_executed_code_run_one_at_a_time(runtime: Runtime) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def handler(_: Json) -> Json:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1
        return {"ok": True}

    runtime.registry.add(
        build_tool(name="step", toolset="harbour", schema={"description": "s"}, handler=handler)
    )
    code = (
        "from concurrent.futures import ThreadPoolExecutor\nfrom toolfold_tools import step\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    print(sum(each['ok'] for each in pool.map(lambda _: step(), range(20))))\n"
    )
    assert run_code(runtime.session(TOOLSETS), code)["output"] == "20\n"
    assert most == 1


def open_backend(tmp_path: Path, home: Path, settings: Json, env: dict[str, str]) -> Runtime:
    config = load_config(
        project=tmp_path,
        env={"TOOLFOLD_HOME": str(home), "HOME": str(home), "PATH": os.environ["PATH"], **env},
        overrides={"terminal": settings},
    )
    return open_runtime(config)


@pytest.mark.thorough(keep=("local", "sandbox"))
@pytest.mark.parametrize("backend", ["local", "sandbox", "docker", "ssh"])
def test_executed_code_calls_tools_in_every_terminal_backend(
    backend: str, tmp_path: Path, home: Path
) -> None:
    settings: Json = {"backend": backend}
    env: dict[str, str] = {}
    if backend == "docker":
        options = SERVERS.docker_with_python()
        settings |= {"image": options["image"], "keep": False}
        env["DOCKER_HOST"] = options["DOCKER_HOST"]
    if backend == "ssh":
        ssh = SERVERS.ssh()
        settings["ssh"] = {
            "host": ssh["host"],
            "port": int(ssh["port"]),
            "identity": ssh["identity"],
            "known_hosts": ssh["known_hosts"],
        }
    with open_backend(tmp_path, home, settings, env) as runtime:
        status = runtime.statuses(["execute_code"])["execute_code"]
        if backend == "sandbox" and not status.usable:
            pytest.skip(status.reason)
        seen: list[Json] = []
        runtime.registry.add(count_boats(seen))
        session = runtime.session(TOOLSETS)
        code = (
            "import os\nfrom toolfold_tools import *\nprint(count_boats('north')['boats'], os.getcwd())\n"
            "print(terminal(command='pwd')['output'])\n"
        )
        answer = run_code(session, code + attempt("sink_boat()"))
        first, second, _, refusal, _ = answer["output"].split("\n")
        assert first == f"3 {second}"
        assert "'sink_boat' is not available" in refusal
        assert answer["exit_code"] == 0
        assert seen == [{"pier": "north"}]


def test_execute_code_fails_with_a_clear_error_if_the_terminal_environment_has_no_python(
    tmp_path: Path, home: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with (
        busybox_options(place) as options,
        open_backend(tmp_path, home, {"backend": "local"}, {"PATH": options["path"]}) as runtime,
    ):
        error = code_error(runtime.session(BUILTIN), "print(1)")
        assert "there is no python3 in the environment (local)" in error
