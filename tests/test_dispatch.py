"""The dispatch pipeline: its order, its error results, its limits, and parallel calls."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.conftest import RuntimeOpener
from toolfold.core.errors import CallError, InvalidArguments, Refused
from toolfold.core.hooks import POST, PRE, Hooks
from toolfold.core.loops import EventLoops
from toolfold.core.registry import Registry
from toolfold.core.types import (
    ApprovalRequest,
    Approver,
    CallContext,
    Content,
    Effect,
    Json,
    Media,
    SourceResponse,
    Tool,
    ToolCall,
    ToolResult,
)
from toolfold.core.validation import Validation
from toolfold.runtime.call_events import CallEvents
from toolfold.runtime.dispatch import Dispatch
from toolfold.runtime.results import ResultStore
from toolfold.safety.approval.gate import Approval
from toolfold.safety.redaction import HIDDEN, Redaction
from toolfold.selection.turn import Turn
from toolfold.tools.builtin.agent import tools as agent_tools

SECRET = "Kq7wZx3vT9nB2mLs8Yp4"
COUNT = {"properties": {"n": {"type": "integer"}}}


@dataclass
class Pipeline:
    """Real dispatch over a few tools with a record of its stages."""

    folder: Path
    loops: EventLoops = field(default_factory=EventLoops)
    registry: Registry = field(default_factory=Registry)
    events: list[tuple[str, Any]] = field(default_factory=list)
    approver: Approver | None = None
    granted: frozenset[str] | None = None
    timeout: float = 60
    hook_timeout: float = 60
    max_parallel: int = 8
    max_chars: int = 50_000

    def __post_init__(self) -> None:
        self.hooks = Hooks(self.loops, timeout=self.hook_timeout)

    def add(self, handler: Callable[..., Any], name: str = "probe", **options: Any) -> Tool:
        schema = options.pop("schema", {"properties": {}})
        return self.registry.register(name=name, toolset="t", schema=schema, handler=handler, **options)

    def recording(self, name: str = "probe", answer: Any = "done", **options: Any) -> Tool:
        def handler(args: Json, _context: CallContext) -> Any:
            self.events.append(("run", args))
            return answer

        return self.add(handler, name, **options)

    @property
    def dispatch(self) -> Dispatch:
        return Dispatch(
            hooks=self.hooks,
            validate=Validation(),
            approval=Approval(self.approver, self.loops, timeout=60),
            loops=self.loops,
            results=ResultStore(self.folder, max_chars=self.max_chars),
            redact=Redaction([SECRET]),
            events=CallEvents(Redaction([SECRET])),
            timeout=self.timeout,
            max_parallel=self.max_parallel,
        )

    @property
    def turn(self) -> Turn:
        snapshot = self.registry.snapshot()
        granted = frozenset(snapshot) if self.granted is None else self.granted
        return Turn(snapshot, granted, {}, [tool for tool in snapshot.ordered if tool.name in granted])

    async def call(self, name: str = "probe", arguments: Any = None, **context: Any) -> ToolResult:
        call = ToolCall(name, arguments, "call-1")
        result = await self.dispatch(self.turn, call, CallContext(session_id="session-1", **context))
        assert result.call_id == "call-1"
        json.loads(result.text).keys()  # always an object
        return result

    async def error(self, name: str = "probe", arguments: Any = None) -> str:
        """Return the error of a failing call, which must be the same in text and result."""
        result = await self.call(name, arguments)
        assert not result.ok
        assert json.loads(result.text)["error"] == result.error
        assert result.error is not None
        return result.error

    async def all(self, *calls: ToolCall) -> list[ToolResult]:
        return await self.dispatch.call_all(self.turn, calls, CallContext(session_id="session-1"))


@pytest.fixture
async def pipeline(tmp_path: Path) -> AsyncIterator[Pipeline]:
    made = Pipeline(tmp_path / "results")
    yield made
    made.loops.close()


@pytest.fixture
def short_settle_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolfold.core.loops.SETTLE_TIMEOUT_S", 0.05)


# -- the order ------------------------------------------------------------------------------------------


def record_stages(line: Pipeline) -> None:
    line.recording(schema=COUNT, effects=[Effect.DESTRUCTIVE])

    def before(tool: Tool, args: Json, _context: CallContext) -> None:
        line.events.append((f"before {tool.name}", args))

    def approve(request: ApprovalRequest) -> bool:
        line.events.append(("approve", request.args))
        return True

    def after(_tool: Tool, args: Json, result: ToolResult, _context: CallContext) -> None:
        line.events.append((f"after {result.value}", args))

    line.hooks.add(PRE, before)
    line.approver = approve
    line.hooks.add(POST, after)


async def test_call_runs_pre_hook_then_approval_then_handler_then_post_hook(pipeline: Pipeline) -> None:
    record_stages(pipeline)
    result = await pipeline.call("tool_call", {"name": "probe", "arguments": '{"n": "5"}'})
    assert result.text == '{"result":"done"}'
    assert pipeline.events == [
        ("before probe", {"n": 5}),  # unwrapped, found and coerced
        ("approve", {"n": 5}),  # approves the final arguments
        ("run", {"n": 5}),
        ("after done", {"n": 5}),
    ]


async def test_pre_hook_receives_arguments_converted_to_the_types_of_the_schema(pipeline: Pipeline) -> None:
    pipeline.recording(schema={"properties": {"force": {"type": "boolean"}, "argv": {"type": "array"}}})

    def guard(_tool: Tool, args: Json, _context: CallContext) -> None:
        if args.get("force") is True or "--evil" in args.get("argv", []):
            raise Refused("no")

    pipeline.hooks.add(PRE, guard)
    for spelled in ({"force": True}, {"force": "true"}, {"argv": '["--\\u0065vil"]'}):
        assert await pipeline.error(arguments=spelled) == "no"
    assert pipeline.events == []


async def test_pre_hook_receives_the_arguments_as_changed_by_the_previous_hook(pipeline: Pipeline) -> None:
    pipeline.recording(schema={"properties": {"force": {"type": "boolean"}}})
    seen: list[Json] = []
    pipeline.hooks.add(PRE, lambda _tool, _args, _context: {"force": "true"})
    pipeline.hooks.add(PRE, lambda _tool, args, _context: seen.append(args))
    await pipeline.call()
    assert seen == [{"force": True}]


async def test_no_hook_runs_for_a_tool_that_was_not_granted_to_the_session(pipeline: Pipeline) -> None:
    record_stages(pipeline)
    pipeline.granted = frozenset()
    for name, arguments in (("probe", {"n": 1}), ("tool_call", {"name": "probe", "arguments": {"n": 1}})):
        assert "is not available in this session" in await pipeline.error(name, arguments)
    assert pipeline.events == []


async def test_call_with_invalid_arguments_is_rejected_without_asking_the_approver(
    pipeline: Pipeline,
) -> None:
    record_stages(pipeline)
    assert "'probe' was not invoked" in await pipeline.error(arguments={"n": "five"})
    assert pipeline.events == [("before probe", {"n": "five"})]


async def test_call_with_arguments_that_are_not_json_is_rejected_without_running_hooks(
    pipeline: Pipeline,
) -> None:
    record_stages(pipeline)
    assert "not valid JSON" in await pipeline.error(arguments="{")
    assert pipeline.events == []


async def test_handler_does_not_run_if_the_approver_denies_the_call(pipeline: Pipeline) -> None:
    record_stages(pipeline)
    pipeline.approver = lambda _: False
    assert "the request was declined" in await pipeline.error(arguments={"n": 5})
    assert pipeline.events == [("before probe", {"n": 5})]


async def test_handler_that_needs_approval_does_not_run_without_an_approver(
    pipeline: Pipeline,
) -> None:
    pipeline.recording(effects=["destructive"])
    assert "nobody could be asked" in await pipeline.error()
    assert pipeline.events == []


async def test_call_does_not_run_if_its_approver_returns_a_truthy_value_other_than_true(
    pipeline: Pipeline,
) -> None:
    pipeline.recording(effects=["destructive"])
    answer: Any = "yes"
    pipeline.approver = lambda _: answer
    assert "the request was declined" in await pipeline.error()
    assert pipeline.events == []


async def test_call_does_not_run_if_its_approver_raises(pipeline: Pipeline) -> None:
    def fail(_: ApprovalRequest) -> bool:
        raise SystemExit

    pipeline.recording(effects=["destructive"])
    pipeline.approver = fail
    assert "the approval request failed" in await pipeline.error()
    assert pipeline.events == []


async def test_tool_call_bridge_runs_no_tool_if_its_own_arguments_are_invalid(
    pipeline: Pipeline,
) -> None:
    record_stages(pipeline)
    assert "needs `name`" in await pipeline.error("tool_call", {"name": "tool_call", "arguments": {}})
    assert "put n inside" in await pipeline.error("tool_call", {"name": "probe", "n": 1})
    assert pipeline.events == []


async def test_call_through_the_tool_call_bridge_returns_the_same_result_as_a_direct_call(
    pipeline: Pipeline,
) -> None:
    record_stages(pipeline)
    direct = await pipeline.call("probe", {"n": 5})
    events = list(pipeline.events)
    pipeline.events.clear()
    bridged = await pipeline.call("tool_call", {"name": "probe", "arguments": {"n": 5}})
    assert (bridged.text, bridged.name) == (direct.text, direct.name)
    assert pipeline.events == events


# -- hooks in the pipeline ----------------------------------------------------------------------------------


def raise_error(*_: object) -> NoReturn:
    raise ValueError("broken")


async def test_call_is_refused_if_a_pre_hook_raises(pipeline: Pipeline) -> None:
    record_stages(pipeline)
    pipeline.hooks.add(PRE, raise_error)
    assert await pipeline.error(arguments={"n": 1}) == (
        "the call of 'probe' was refused: the hook 'raise_error' failed: ValueError. The tool was not run."
    )
    assert [event for event, _ in pipeline.events] == ["before probe"]


async def test_call_is_refused_if_a_pre_hook_hangs(tmp_path: Path) -> None:
    line = Pipeline(tmp_path, hook_timeout=0.02)
    line.recording()
    go_on = threading.Event()
    line.hooks.add(PRE, lambda *_: go_on.wait(60))
    assert "did not answer within 0.02 s" in await line.error()
    go_on.set()
    assert line.events == []


async def test_result_of_a_call_refused_by_a_pre_hook_contains_the_reason_and_details_of_the_hook(
    pipeline: Pipeline,
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise Refused("only on weekdays", next_day="Monday")

    pipeline.recording()
    pipeline.hooks.add(PRE, refuse)
    result = await pipeline.call()
    assert json.loads(result.text) == {"error": "only on weekdays", "next_day": "Monday"}
    assert pipeline.events == []


async def test_arguments_rewritten_by_a_pre_hook_are_converted_to_schema_types_and_shown_for_approval(
    pipeline: Pipeline,
) -> None:
    record_stages(pipeline)
    pipeline.hooks.add(PRE, lambda *_: {"n": "7"})
    await pipeline.call(arguments={"n": 1})
    assert pipeline.events[1:3] == [("approve", {"n": 7}), ("run", {"n": 7})]


async def test_call_is_rejected_if_a_pre_hook_returns_invalid_arguments(
    pipeline: Pipeline,
) -> None:
    record_stages(pipeline)
    pipeline.hooks.add(PRE, lambda *_: {"n": "seven"})
    assert "'probe' was not invoked" in await pipeline.error(arguments={"n": 1})
    assert [event for event, _ in pipeline.events] == ["before probe"]


async def test_arguments_mutated_in_place_by_a_pre_hook_do_not_change_the_call(
    pipeline: Pipeline,
) -> None:
    given: list[Json] = []

    def before(_tool: Tool, args: Json, _context: CallContext) -> Json:
        rewritten = {"paths": [*args["paths"], "b"]}
        given.append(rewritten)
        args["paths"].append("evil, before")
        return rewritten

    def approve(request: ApprovalRequest) -> bool:
        given[0]["paths"].append("evil, kept from before")
        request.args["paths"].append("evil, approving")
        return True

    def handler(args: Json, _context: CallContext) -> str:
        pipeline.events.append(("run", list(args["paths"])))
        args["paths"].append("evil, running")
        return "done"

    pipeline.add(handler, effects=["destructive"], schema={"properties": {"paths": {"type": "array"}}})
    pipeline.hooks.add(PRE, before)
    pipeline.approver = approve
    pipeline.hooks.add(POST, lambda _tool, args, _result, _context: pipeline.events.append(("after", args)))
    mine = {"paths": ["a"]}
    await pipeline.call(arguments=mine)
    assert pipeline.events == [("run", ["a", "b"]), ("after", {"paths": ["a", "b"]})]
    assert mine == {"paths": ["a"]}


async def test_post_hook_can_replace_the_result(pipeline: Pipeline) -> None:
    pipeline.recording(answer={"n": 1})
    pipeline.hooks.add(POST, lambda _tool, _args, result, _context: {"n": result.value["n"] + 1})
    pipeline.hooks.add(POST, lambda _tool, _args, result, _context: [json.loads(result.text)["n"]])
    result = await pipeline.call()
    assert (result.text, result.value, result.ok) == ('{"result":[2]}', [2], True)


async def test_result_is_unchanged_if_a_post_hook_raises(pipeline: Pipeline) -> None:
    pipeline.recording(answer={"n": 1})
    pipeline.hooks.add(POST, raise_error)
    assert (await pipeline.call()).text == '{"n":1}'


async def test_tool_result_returned_by_a_post_hook_replaces_the_text_and_error_of_the_call(
    pipeline: Pipeline,
) -> None:
    pipeline.recording()
    pipeline.hooks.add(
        POST, lambda *_: ToolResult(call_id="someone else's", name="other", text="not { json", error="no")
    )
    result = await pipeline.call()
    assert (result.name, result.error) == ("probe", "no")
    assert json.loads(result.text) == {"result": "not { json"}


async def test_result_is_unchanged_if_a_post_hook_returns_the_result_object_it_was_given(
    pipeline: Pipeline,
) -> None:
    pipeline.recording(answer={"n": 1})
    before = await pipeline.call()
    pipeline.hooks.add(POST, lambda _tool, _args, result, _context: result)
    assert replace(await pipeline.call(), milliseconds=0) == replace(before, milliseconds=0)


async def test_large_result_returned_by_a_post_hook_is_truncated(pipeline: Pipeline) -> None:
    pipeline.recording()
    pipeline.max_chars = 1_000
    pipeline.hooks.add(POST, lambda *_: "x" * 5_000)
    result = await pipeline.call()
    assert len(result.text) <= 1_000
    assert result.stored is not None


async def test_post_hooks_run_for_calls_whose_handler_failed(pipeline: Pipeline) -> None:
    pipeline.add(raise_error)
    pipeline.hooks.add(
        POST, lambda _tool, _args, result, _context: pipeline.events.append(("after", result.error))
    )
    await pipeline.call()
    assert pipeline.events == [("after", "Tool execution failed: ValueError: broken")]


# -- error results -------------------------------------------------------------------------------


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class UnprintableRefusal(CallError):
    def __init__(self) -> None:  # without calling its parent's
        pass

    def __str__(self) -> str:
        raise RuntimeError("no words")


EXCEPTIONS: list[tuple[BaseException, str]] = [
    (ValueError("bad value"), "Tool execution failed: ValueError: bad value"),
    (KeyError("name"), "Tool execution failed: KeyError: 'name'"),
    (Exception(), "Tool execution failed: Exception: "),
    (TimeoutError("database"), "Tool execution failed: TimeoutError: database"),
    (SystemExit(3), "Tool execution failed: SystemExit: 3"),
    (asyncio.CancelledError(), "Tool execution failed: CancelledError: "),
    (GeneratorExit("x"), "Tool execution failed: GeneratorExit: x"),
    (BaseException("base"), "Tool execution failed: BaseException: base"),
    (RecursionError("deep"), "Tool execution failed: RecursionError: deep"),
    (MemoryError(), "Tool execution failed: MemoryError: "),
    (StopAsyncIteration("s"), "Tool execution failed: StopAsyncIteration: s"),
    (
        BaseExceptionGroup("g", [SystemExit()]),
        "Tool execution failed: BaseExceptionGroup: g (1 sub-exception)",
    ),
    (UnprintableError(), "Tool execution failed: UnprintableError: (no message)"),
    (CallError("no such file"), "no such file"),
    (InvalidArguments("not like this"), "not like this"),
    (UnprintableRefusal(), "(no message)"),
    (ValueError("half \ud800 a pair"), "Tool execution failed: ValueError: half \ufffd a pair"),
]


@pytest.mark.parametrize(("raised", "said"), EXCEPTIONS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("is_async", [False, True])
async def test_any_exception_of_a_handler_becomes_an_error_result(
    pipeline: Pipeline, raised: BaseException, said: str, is_async: bool
) -> None:
    def fail(_: Json) -> NoReturn:
        raise raised

    async def fail_later(_: Json) -> NoReturn:
        raise raised

    pipeline.add(fail_later if is_async else fail)
    assert await pipeline.error() == said


async def test_keyboard_interrupt_raised_by_a_sync_handler_becomes_an_error_result(
    pipeline: Pipeline,
) -> None:
    def fail(_: Json) -> NoReturn:
        raise KeyboardInterrupt

    pipeline.add(fail)
    assert await pipeline.error() == "Tool execution failed: KeyboardInterrupt: "


async def test_error_of_a_handler_becomes_a_json_result_with_type_and_message(pipeline: Pipeline) -> None:
    pipeline.add(raise_error)
    assert (await pipeline.call()).text == '{"error":"Tool execution failed: ValueError: broken"}'


async def test_exception_during_validation_is_logged_and_reported_as_an_execution_error(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline.recording()

    class Broken(Validation):
        def check(self, tool: Tool, args: Json) -> Json:
            raise RuntimeError("validator broke")

    dispatch = replace(pipeline.dispatch, validate=Broken())
    result = await dispatch(pipeline.turn, ToolCall("probe", {}, "id"), CallContext(session_id="s"))
    assert result.text == '{"error":"Error executing probe: validator broke"}'
    assert pipeline.events == []
    assert "dispatching 'probe' failed" in caplog.text


async def test_huge_error_message_of_a_handler_is_truncated(pipeline: Pipeline) -> None:
    def fail(_: Json) -> NoReturn:
        raise ValueError("x" * 10_000_000)

    pipeline.add(fail)
    said = await pipeline.error()
    assert said.startswith("Tool execution failed: ValueError: xxx")
    assert len(said) < 2_100


async def test_error_for_an_unknown_tool_with_a_huge_name_truncates_the_name(pipeline: Pipeline) -> None:
    assert len(await pipeline.error("n" * 1_000_000)) < 2_100


async def test_secrets_in_the_error_message_of_a_handler_are_redacted(pipeline: Pipeline) -> None:
    def fail(_: Json) -> NoReturn:
        raise ValueError(f"GET https://api/?key={SECRET} with token=hunter2222 failed")

    pipeline.add(fail)
    result = await pipeline.call()
    assert SECRET not in result.text
    assert "hunter2222" not in result.text
    assert result.error == (
        f"Tool execution failed: ValueError: GET https://api/?key={HIDDEN} with token={HIDDEN} failed"
    )


async def test_secrets_in_the_error_for_rejected_arguments_are_redacted(pipeline: Pipeline) -> None:
    pipeline.recording(schema=COUNT)
    assert SECRET not in (await pipeline.call(arguments={"n": SECRET})).text


async def test_call_error_details_that_are_too_large_are_omitted_from_the_result(
    pipeline: Pipeline,
) -> None:
    def fail(_: Json) -> NoReturn:
        raise CallError("too much", listing=list(range(100_000)))

    pipeline.add(fail)
    assert json.loads((await pipeline.call()).text) == {"error": "too much"}


async def test_call_error_details_that_contain_a_secret_are_omitted_from_the_result(
    pipeline: Pipeline,
) -> None:
    def fail(_: Json) -> NoReturn:
        raise CallError("it failed", output=["ran", f"curl -H {SECRET}"])

    pipeline.add(fail)
    assert json.loads((await pipeline.call()).text) == {"error": "it failed"}


async def test_call_error_details_with_a_thousand_lines_are_included_in_the_result(
    pipeline: Pipeline,
) -> None:
    def fail(_: Json) -> NoReturn:
        raise CallError("it failed", output="line\n" * 1_000)

    pipeline.add(fail)
    assert json.loads((await pipeline.call()).text)["output"] == "line\n" * 1_000


async def test_call_error_detail_named_error_does_not_replace_the_error_message(
    pipeline: Pipeline,
) -> None:
    def fail(_: Json) -> NoReturn:
        raise CallError("the message", error=SECRET, hint="try again")

    pipeline.add(fail)
    assert json.loads((await pipeline.call()).text) == {"error": "the message", "hint": "try again"}


async def test_error_for_rejected_arguments_includes_the_schema(pipeline: Pipeline) -> None:
    pipeline.recording(schema={"properties": {"n": {"type": "integer"}}, "required": ["n"]})
    answer = json.loads((await pipeline.call()).text)
    assert answer["parameters"]["required"] == ["n"]
    assert "was not invoked" in answer["error"]


@pytest.mark.parametrize("name", [None, 5, ["probe"], {}])
async def test_call_with_a_tool_name_that_is_not_a_string_returns_an_error(
    pipeline: Pipeline, name: Any
) -> None:
    pipeline.recording()
    assert "a call needs the name of a tool" in await pipeline.error(name)
    assert pipeline.events == []


@pytest.mark.parametrize("name", ["todo", "memory", "session_search", "delegate_task"])
async def test_calling_an_agent_level_tool_such_as_todo_without_an_agent_returns_an_error(
    pipeline: Pipeline, name: str
) -> None:
    services: Any = None
    pipeline.registry.add_all(agent_tools(services))
    needed = {"memory": {"action": "add"}, "session_search": {"query": "q"}, "delegate_task": {"goal": "g"}}
    assert await pipeline.error(name, needed.get(name)) == (
        f"'{name}' is run by the agent itself, and this session has no agent that offers it."
    )


async def test_handler_result_is_correct_even_if_the_option_is_async_is_wrong(
    pipeline: Pipeline,
) -> None:
    async def later(args: Json) -> Json:
        await asyncio.sleep(0)
        return {"via": "async"}

    pipeline.add(later, "async_one")
    pipeline.add(lambda args: later(args), "returns_awaitable")
    pipeline.add(lambda args: later(args), "declared_async", is_async=True)
    pipeline.add(lambda args: {"via": "async"}, "only_says_it_is_async", is_async=True)
    pipeline.add(later, "only_says_it_is_not", is_async=False)
    for name in pipeline.registry.snapshot():
        assert (await pipeline.call(name)).text == '{"via":"async"}', name


async def test_handler_result_with_values_that_json_cannot_represent_is_still_returned_as_json(
    pipeline: Pipeline,
) -> None:
    pipeline.recording(
        answer={"bad": object, "worse": UnprintableError(), "number": float("nan"), "half": "\ud800"}
    )
    answer = json.loads((await pipeline.call()).text)
    assert answer["number"] is None
    assert answer["half"] == "\ufffd"


async def test_handler_gets_session_id_call_id_task_id_and_user_task_in_its_context(
    pipeline: Pipeline,
) -> None:
    told: list[CallContext] = []
    pipeline.add(lambda args, context: told.append(context))
    await pipeline.call(task_id="task-1", user_task="tidy up")
    assert (told[0].session_id, told[0].call_id) == ("session-1", "call-1")
    assert (told[0].task_id, told[0].user_task) == ("task-1", "tidy up")


# -- time -----------------------------------------------------------------------------------------------


async def test_async_handler_that_times_out_is_cancelled_and_cleans_up(pipeline: Pipeline) -> None:
    async def endless(_args: Json, context: CallContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            pipeline.events.append(("cleaned up", context.session_id))

    pipeline.add(endless, timeout=0.02)
    assert await pipeline.error() == "Tool execution failed: Timeout: 'probe' did not end within 0.02 s."
    assert pipeline.events == [("cleaned up", "session-1")]


async def test_sync_handler_that_times_out_gets_its_cancelled_event_set_without_delaying_the_call(
    pipeline: Pipeline,
) -> None:
    noticed = threading.Event()

    def endless(_args: Json, context: CallContext) -> None:
        if context.cancelled.wait(60):
            noticed.set()

    pipeline.add(endless, timeout=0.02)
    assert await pipeline.error() == "Tool execution failed: Timeout: 'probe' did not end within 0.02 s."
    assert await asyncio.to_thread(noticed.wait, 60)


async def test_call_returns_at_its_timeout_even_if_the_sync_handler_keeps_blocking(
    pipeline: Pipeline,
) -> None:
    go_on = threading.Event()
    pipeline.add(lambda args: go_on.wait(180), timeout=0.02)
    async with asyncio.timeout(60):
        assert "did not end within" in await pipeline.error()
    go_on.set()


@pytest.mark.usefixtures("short_settle_timeout")
async def test_call_returns_at_its_timeout_even_if_the_async_handler_ignores_cancellation(
    pipeline: Pipeline,
) -> None:
    async def endless(_: Json) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    pipeline.add(endless, timeout=0.02)
    before = asyncio.all_tasks()
    async with asyncio.timeout(60):
        assert "did not end within 0.02 s" in await pipeline.error()
    assert asyncio.all_tasks() == before


async def test_timed_out_call_stays_an_error_if_its_handler_returns_a_value_later(
    pipeline: Pipeline,
) -> None:
    async def late(_: Json) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "too late"
        return "never"

    pipeline.add(late, timeout=0.02)
    assert "did not end within" in await pipeline.error()


async def test_tool_without_its_own_timeout_times_out_after_the_configured_timeout(
    pipeline: Pipeline,
) -> None:
    pipeline.timeout = 0.02
    pipeline.add(lambda args, context: context.cancelled.wait(60))
    assert "did not end within 0.02 s" in await pipeline.error()


async def test_timeout_of_a_tool_may_exceed_the_configured_timeout(pipeline: Pipeline) -> None:
    async def waits(_: Json) -> str:
        await asyncio.sleep(0.05)
        return "in time"

    pipeline.timeout = 0.01
    pipeline.add(waits, timeout=60)
    assert (await pipeline.call()).text == '{"result":"in time"}'


# -- cancellation ---------------------------------------------------------------------------------------


async def test_cancelling_a_call_cancels_an_async_handler(pipeline: Pipeline) -> None:
    inside = asyncio.Event()

    async def endless(_args: Json, context: CallContext) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            pipeline.events.append(("cleaned up", None))

    pipeline.add(endless)
    pipeline.hooks.add(POST, lambda *_: pipeline.events.append(("after", None)))
    task = asyncio.create_task(pipeline.call())
    await asyncio.wait_for(inside.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pipeline.events == [("cleaned up", None)]


async def test_cancelling_a_call_sets_the_cancelled_event_of_its_sync_handler(pipeline: Pipeline) -> None:
    inside, noticed = threading.Event(), threading.Event()

    def endless(_args: Json, context: CallContext) -> None:
        inside.set()
        if context.cancelled.wait(60):
            noticed.set()

    pipeline.add(endless)
    task = asyncio.create_task(pipeline.call())
    assert await asyncio.to_thread(inside.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(noticed.wait, 60)


async def test_handler_does_not_run_if_the_call_is_cancelled_while_waiting_for_approval(
    pipeline: Pipeline,
) -> None:
    inside = asyncio.Event()

    async def think(_: ApprovalRequest) -> bool:
        inside.set()
        await asyncio.Event().wait()
        return True

    pipeline.recording(effects=["destructive"])
    pipeline.approver = think
    task = asyncio.create_task(pipeline.call())
    await asyncio.wait_for(inside.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pipeline.events == []


async def test_cancelling_the_calls_of_one_model_reply_cancels_every_handler(pipeline: Pipeline) -> None:
    running: list[str] = []
    both = asyncio.Event()

    async def endless(args: Json) -> None:
        running.append("in")
        if len(running) == 2:
            both.set()
        try:
            await asyncio.Event().wait()
        finally:
            pipeline.events.append(("cleaned up", None))

    pipeline.add(endless, parallel=True)
    pipeline.recording("later")
    task = asyncio.create_task(pipeline.all(ToolCall("probe"), ToolCall("probe"), ToolCall("later")))
    await asyncio.wait_for(both.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pipeline.events == [("cleaned up", None)] * 2  # `later` never ran


# -- size -----------------------------------------------------------------------------------------------


async def test_large_tool_result_is_stored_in_a_file_and_returned_truncated(pipeline: Pipeline) -> None:
    lines = "\n".join(f"line {number}" for number in range(1, 20_001))
    pipeline.recording(answer=lines)
    pipeline.recording("read_file")
    result = await pipeline.call()
    answer = json.loads(result.text)
    assert result.ok
    assert len(result.text) <= pipeline.max_chars
    assert "line 1\n" in answer["head"]
    assert "line 20000" in answer["tail"]
    assert "read_file(path, offset, limit)" in answer["note"]
    assert result.stored == Path(answer["stored"])
    assert "line 10000" in result.stored.read_text()
    assert result.stored.parent == pipeline.folder / "session-1"
    assert stat.S_IMODE(result.stored.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(result.stored.stat().st_mode) == 0o600
    assert result.value == lines


async def test_truncated_result_mentions_the_tool_read_file_only_if_it_is_granted(pipeline: Pipeline) -> None:
    pipeline.recording(answer="x" * 100_000)
    pipeline.recording("read_file")
    pipeline.granted = frozenset({"probe"})
    assert "read_file" not in json.loads((await pipeline.call()).text)["note"]


async def test_small_tool_result_is_not_stored_in_a_file(pipeline: Pipeline) -> None:
    pipeline.recording(answer="x" * 1_000)
    result = await pipeline.call()
    assert result.stored is None
    assert not pipeline.folder.exists()


# -- results with media ---------------------------------------------------------------

IMAGE = Media(kind="image", mime_type="image/png", data=b"png", label="image 1")
SOUND = Media(kind="audio", mime_type="audio/mpeg", data=b"mp3", label="audio 1")
SOURCE = SourceResponse()
PAPER = Media(kind="file", mime_type="application/pdf", data=b"%PDF", label="file 1")


async def test_result_contains_images_and_the_original_response_object_in_addition_to_its_text(
    pipeline: Pipeline,
) -> None:
    source = SourceResponse()
    pipeline.recording(answer=Content(value="see image 1", blocks=(IMAGE,), raw=source))
    result = await pipeline.call()
    assert json.loads(result.text) == {"result": "see image 1"}
    assert (result.ok, result.value, result.media) == (True, "see image 1", (IMAGE,))
    assert result.raw is source
    assert not pipeline.folder.exists()


async def test_files_and_audio_returned_by_a_handler_are_stored_in_the_session_directory(
    pipeline: Pipeline,
) -> None:
    pipeline.recording(answer=Content(value={"pages": 2}, blocks=(PAPER, IMAGE, SOUND)))
    result = await pipeline.call()
    told = json.loads(result.text)
    assert told["result"] == {"pages": 2}
    assert [(each["file"], each["type"]) for each in told["files"]] == [
        ("file 1", "application/pdf"),
        ("audio 1", "audio/mpeg"),
    ]
    paper, sound = (Path(each["stored"]) for each in told["files"])
    assert (paper.read_bytes(), sound.read_bytes()) == (b"%PDF", b"mp3")
    assert (paper.suffix, sound.suffix, paper.parent) == (".pdf", ".mp3", pipeline.folder / "session-1")
    assert stat.S_IMODE(paper.stat().st_mode) == 0o600
    assert result.media == (IMAGE, SOUND)


async def test_result_contains_a_notice_if_a_file_returned_by_the_handler_could_not_be_stored(
    pipeline: Pipeline,
) -> None:
    pipeline.folder.write_text("no folder")
    pipeline.recording(answer=Content(value="done", blocks=(PAPER,)))
    told = json.loads((await pipeline.call()).text)
    assert told["result"] == "done"
    assert told["files"] == [{"file": "file 1", "type": "application/pdf", "note": "it could not be stored"}]


async def test_handler_content_with_is_error_becomes_an_error_result_and_keeps_its_images(
    pipeline: Pipeline,
) -> None:
    pipeline.recording(answer=Content(value="no such page", blocks=(IMAGE,), is_error=True))
    assert await pipeline.error() == "no such page"
    assert (await pipeline.call()).media == (IMAGE,)


async def test_json_error_value_returned_by_a_handler_reaches_the_model_unchanged(
    pipeline: Pipeline,
) -> None:
    pipeline.recording(answer=Content(value={"code": 404}, is_error=True))
    result = await pipeline.call()
    assert json.loads(result.text) == {"error": {"code": 404}}
    assert result.error == '{"code":404}'


async def test_secret_in_an_error_value_returned_by_a_handler_is_redacted(pipeline: Pipeline) -> None:
    pipeline.recording(answer=Content(value=f"login with {SECRET} failed", is_error=True))
    assert await pipeline.error() == f"login with {HIDDEN} failed"


async def test_large_error_returned_by_a_handler_is_stored_in_a_file_and_still_marked_as_an_error(
    pipeline: Pipeline,
) -> None:
    pipeline.max_chars = 5_000
    pipeline.recording(answer=Content(value="far too much. " * 1_000, is_error=True))
    result = await pipeline.call()
    told = json.loads(result.text)
    assert told["error"] == result.error
    assert result.stored is not None
    assert told["stored"] == str(result.stored)
    assert len(result.text) < 5_000


async def test_result_text_changed_by_a_post_hook_keeps_images_but_drops_the_original_response(
    pipeline: Pipeline,
) -> None:
    pipeline.recording(answer=Content(value="a word", blocks=(IMAGE,), raw=SOURCE))

    def quieter(_tool: Tool, _args: Json, result: ToolResult, _context: CallContext) -> ToolResult:
        return replace(result, text='{"result": "***"}')

    pipeline.hooks.add(POST, quieter)
    result = await pipeline.call()
    assert json.loads(result.text) == {"result": "***"}
    assert (result.media, result.raw) == ((IMAGE,), None)


async def test_post_hook_can_remove_an_image_from_a_result(pipeline: Pipeline) -> None:
    pipeline.recording(answer=Content(value="a word", blocks=(IMAGE,), raw=SOURCE))

    def blind(_tool: Tool, _args: Json, result: ToolResult, _context: CallContext) -> ToolResult:
        return replace(result, media=())

    pipeline.hooks.add(POST, blind)
    result = await pipeline.call()
    assert (result.media, result.raw) == ((), None)


async def test_content_with_is_error_returned_by_a_post_hook_marks_the_call_as_failed(
    pipeline: Pipeline,
) -> None:
    pipeline.recording()
    pipeline.hooks.add(POST, lambda *_: Content(value="not today", is_error=True))
    assert await pipeline.error() == "not today"


async def test_result_returned_unchanged_by_a_post_hook_keeps_images_and_original_response(
    pipeline: Pipeline,
) -> None:
    pipeline.recording(answer=Content(value="a word", blocks=(IMAGE,), raw=SOURCE))
    pipeline.hooks.add(POST, lambda _tool, _args, result, _context: result)
    result = await pipeline.call()
    assert (result.media, result.raw) == ((IMAGE,), SOURCE)


# -- parallel calls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
async def test_tools_marked_as_parallel_run_in_parallel(pipeline: Pipeline, is_async: bool) -> None:
    together = threading.Barrier(3)
    met = asyncio.Barrier(3)

    def meet(_: Json) -> str:
        together.wait(60)
        return "met"

    async def meet_async(_: Json) -> str:
        await asyncio.wait_for(met.wait(), 60)
        return "met"

    pipeline.add(meet_async if is_async else meet, parallel=True)
    results = await pipeline.all(*[ToolCall("probe") for _ in range(3)])
    assert [result.text for result in results] == ['{"result":"met"}'] * 3


@dataclass
class ConcurrencyCounter:
    """Handler that records how many of its calls run at the same time."""

    now: int = 0
    seen: list[int] = field(default_factory=list)

    async def __call__(self, _: Json) -> None:
        self.now += 1
        self.seen.append(self.now)
        for _turn in range(20):  # let parallel calls run
            await asyncio.sleep(0)
        self.now -= 1


async def test_only_adjacent_calls_of_parallel_tools_in_a_model_reply_run_in_parallel(
    pipeline: Pipeline,
) -> None:
    crowd = ConcurrencyCounter()
    both_run = asyncio.Barrier(2)

    async def wait_for_the_other(_: Json) -> None:
        crowd.now += 1
        crowd.seen.append(crowd.now)
        async with asyncio.timeout(60):
            await both_run.wait()
        crowd.now -= 1

    pipeline.add(crowd, "shared", parallel=True)
    pipeline.add(wait_for_the_other, "paired", parallel=True)
    pipeline.add(crowd, "alone")
    names = ["shared", "alone", "alone", "paired", "paired", "alone"]
    results = await pipeline.all(*[ToolCall(name) for name in names])
    assert [result.name for result in results] == names
    assert crowd.seen == [1, 1, 1, 1, 2, 1]  # only the two parallel neighbours overlapped


async def test_calls_of_a_non_parallel_tool_run_sequentially_in_the_order_of_the_reply(
    pipeline: Pipeline,
) -> None:
    pipeline.recording(schema={"properties": {"n": {"type": "integer"}}})
    await pipeline.all(*[ToolCall("probe", {"n": number}) for number in range(20)])
    assert pipeline.events == [("run", {"n": number}) for number in range(20)]


async def test_parallel_call_starts_only_after_the_preceding_non_parallel_call_has_ended(
    pipeline: Pipeline,
) -> None:
    async def slow(_: Json) -> None:
        for _turn in range(20):
            await asyncio.sleep(0)
        pipeline.events.append(("slow ended", None))

    pipeline.add(slow, "slow")
    pipeline.recording("shared", parallel=True)
    await pipeline.all(ToolCall("slow"), ToolCall("shared"))
    assert [event for event, _ in pipeline.events] == ["slow ended", "run"]


async def test_non_parallel_tool_called_through_the_tool_call_bridge_never_overlaps_another_call(
    pipeline: Pipeline,
) -> None:
    crowd = ConcurrencyCounter()
    pipeline.add(crowd, "alone")
    await pipeline.all(*[ToolCall("tool_call", {"name": "alone", "arguments": {}}) for _ in range(4)])
    assert crowd.seen == [1, 1, 1, 1]


async def test_results_of_a_model_reply_are_in_the_order_of_its_calls(pipeline: Pipeline) -> None:
    ended: list[int] = []
    gates = [asyncio.Event() for _ in range(4)]
    gates[3].set()

    async def backwards(args: Json) -> int:
        await asyncio.wait_for(gates[args["n"]].wait(), 60)
        ended.append(args["n"])
        gates[args["n"] - 1].set()
        return int(args["n"])

    pipeline.add(backwards, parallel=True, schema=COUNT)
    results = await pipeline.all(*[ToolCall("probe", {"n": number}, f"id-{number}") for number in range(4)])
    assert ended == [3, 2, 1, 0]
    assert [(result.call_id, result.value) for result in results] == [
        ("id-0", 0),
        ("id-1", 1),
        ("id-2", 2),
        ("id-3", 3),
    ]


async def test_number_of_parallel_calls_in_one_model_reply_is_limited_to_the_configured_maximum(
    pipeline: Pipeline,
) -> None:
    pipeline.max_parallel = 3
    inside, peak = 0, 0
    full = asyncio.Event()

    async def count(_: Json) -> None:
        nonlocal inside, peak
        inside += 1
        peak = max(peak, inside)
        if inside == 3:
            full.set()
        await asyncio.wait_for(full.wait(), 60)
        for _turn in range(10):
            await asyncio.sleep(0)
        inside -= 1

    pipeline.add(count, parallel=True)
    results = await pipeline.all(*[ToolCall("probe") for _ in range(12)])
    assert all(result.ok for result in results)
    assert peak == 3


async def test_failing_call_does_not_affect_other_calls_of_the_model_reply(pipeline: Pipeline) -> None:
    async def cancels_itself(_: Json) -> None:
        raise asyncio.CancelledError

    def exits(_: Json) -> NoReturn:
        raise SystemExit(1)

    nothing: Any = None
    pipeline.recording("good", parallel=True)
    pipeline.add(raise_error, "fails", parallel=True)
    pipeline.add(cancels_itself, "cancels", parallel=True)
    pipeline.add(exits, "exits", parallel=True)
    pipeline.add(lambda args, context: context.cancelled.wait(60), "hangs", parallel=True, timeout=0.02)
    names = ["good", "fails", "good", "cancels", "exits", "hangs", "missing", nothing, "good"]
    results = await pipeline.all(*[ToolCall(name) for name in names])
    assert [result.ok for result in results] == [name == "good" for name in names]


async def test_pre_hook_that_raises_cancelled_error_fails_only_one_call_of_the_model_reply(
    pipeline: Pipeline,
) -> None:
    async def moody(_tool: Tool, args: Json, _context: CallContext) -> None:
        if args["n"] == 1:
            raise asyncio.CancelledError

    pipeline.recording(schema=COUNT, parallel=True)
    pipeline.hooks.add(PRE, moody)
    results = await pipeline.all(*[ToolCall("probe", {"n": number}) for number in range(3)])
    assert [result.ok for result in results] == [True, False, True]


async def test_timed_out_call_does_not_cancel_other_calls_of_the_same_model_reply(
    pipeline: Pipeline,
) -> None:
    seen: list[bool] = []
    over = threading.Event()

    def patient(_args: Json, context: CallContext) -> None:
        over.wait(60)
        seen.append(context.cancelled.is_set())

    def endless(_args: Json, context: CallContext) -> None:
        context.cancelled.wait(60)
        over.set()

    pipeline.add(patient, "patient", parallel=True)
    pipeline.add(endless, "endless", parallel=True, timeout=0.02)
    results = await pipeline.all(ToolCall("patient"), ToolCall("endless"))
    assert [result.ok for result in results] == [True, False]
    assert seen == [False]


async def test_model_reply_without_calls_returns_no_results(
    pipeline: Pipeline,
) -> None:
    assert await pipeline.all() == []


# -- sync callers -----------------------------------------------------------------------------------


def test_async_client_cached_by_a_handler_stays_usable_in_later_sync_calls(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime()
    cached: dict[str, asyncio.Event] = {}

    async def use(_: Json) -> str:
        client = cached.setdefault("client", asyncio.Event())
        asyncio.get_running_loop().call_soon(client.set)
        await asyncio.wait_for(client.wait(), 60)  # an event of another loop would raise
        client.clear()
        return "used"

    runtime.registry.register(name="client", toolset="t", schema={}, handler=use)
    session = runtime.session(["t"])
    assert [session.call_sync("client").text for _ in range(3)] == ['{"result":"used"}'] * 3


async def test_call_sync_returns_the_result_even_inside_a_running_event_loop(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime()
    runtime.registry.register(name="probe", toolset="t", schema={}, handler=lambda args: "done")
    assert runtime.session(["t"]).call_sync("probe").text == '{"result":"done"}'


def test_concurrent_call_sync_in_sixteen_threads_returns_the_result_of_each_call(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime()

    async def double(args: Json) -> int:
        await asyncio.sleep(0)
        return int(args["n"]) * 2

    runtime.registry.register(name="double", toolset="t", schema=COUNT, handler=double)
    session = runtime.session(["t"])
    answers: dict[int, Any] = {}

    def work(number: int) -> None:
        answers[number] = session.call_sync("double", {"n": number}).value

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == {number: number * 2 for number in range(16)}


def test_ctrl_c_cancels_running_sync_and_async_handlers_and_leaks_no_thread(tmp_path: Path) -> None:
    script = """
        import asyncio, gc, threading
        from toolfold import load_config, open_runtime

        told = threading.Event()

        async def endless(args):
            try:
                await asyncio.Event().wait()
            finally:
                print("async cleaned up", flush=True)

        def blocking(args, context):
            print("ready", flush=True)
            if context.cancelled.wait(60):
                told.set()

        from toolfold import ToolCall
        with open_runtime(load_config()) as runtime:
            for name, handler in {"endless": endless, "blocking": blocking}.items():
                runtime.registry.register(name=name, toolset="t", schema={}, handler=handler, parallel=True)
            try:
                runtime.session(["t"]).call_all_sync([ToolCall("endless"), ToolCall("blocking")])
            except KeyboardInterrupt:
                print("told", told.wait(60), flush=True)
        for thread in threading.enumerate():
            if thread is not threading.main_thread():
                thread.join(60)
        gc.collect()
        print("threads", len(threading.enumerate()), flush=True)
    """
    env = {"TOOLFOLD_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    process = subprocess.Popen(
        [sys.executable, "-W", "error::ResourceWarning", "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n", process.communicate(timeout=60)[1]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, "")
    assert out == "async cleaned up\ntold True\nthreads 1\n"


async def test_tool_result_contains_the_duration_of_the_call(pipeline: Pipeline) -> None:
    pipeline.recording()
    begun = time.perf_counter()
    told = (await pipeline.call()).milliseconds
    assert 0 < told <= (time.perf_counter() - begun) * 1_000


async def test_duration_of_a_call_does_not_include_the_wait_for_approval(pipeline: Pipeline) -> None:
    waited: list[float] = []

    def approve(_: ApprovalRequest) -> bool:
        asked = time.perf_counter()
        while time.perf_counter() < asked + 0.05:
            pass
        waited.append(time.perf_counter() - asked)
        return True

    pipeline.recording(effects=[Effect.DESTRUCTIVE])
    pipeline.approver = approve
    begun = time.perf_counter()
    result = await pipeline.call()
    assert result.ok
    assert result.milliseconds <= (time.perf_counter() - begun - waited[0]) * 1_000
