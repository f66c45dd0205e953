"""Pre-hooks may stop or change a call; post-hooks may change only its result."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.cases import check_cases
from toolfold.authoring import build_tool
from toolfold.errors import Refused, ToolfoldError
from toolfold.hooks import POST, PRE, Hooks
from toolfold.loops import EventLoops
from toolfold.model import CallContext, Json, ToolResult

TOOL = build_tool(name="probe", toolset="t", schema={}, handler=lambda args: args)
CONTEXT = CallContext(session_id="s", call_id="c")
RESULT = ToolResult(call_id="c", name="probe", text="{}", value={"n": 1})


@pytest.fixture
async def loops() -> AsyncIterator[EventLoops]:
    made = EventLoops()
    yield made
    made.close()


@pytest.fixture
def hooks(loops: EventLoops) -> Hooks:
    return Hooks(loops, timeout=60)


@pytest.fixture
def short_timeout_hooks(loops: EventLoops, monkeypatch: pytest.MonkeyPatch) -> Hooks:
    """Hooks with a short timeout."""
    monkeypatch.setattr("toolfold.loops.SETTLE_TIMEOUT_S", 0.05)
    return Hooks(loops, timeout=0.05)


async def run_refused(hooks: Hooks, args: Json | None = None) -> str:
    with pytest.raises(Refused) as caught:
        await hooks.run_before(TOOL, args or {}, CONTEXT)
    return str(caught.value)


async def run_post_hooks(hooks: Hooks, args: Json | None = None, result: ToolResult = RESULT) -> ToolResult:
    def reshape(so_far: ToolResult, wanted: Any) -> ToolResult:
        return replace(so_far, value=wanted)

    return await hooks.run_after(TOOL, args or {}, result, CONTEXT, reshape)


# -- before ---------------------------------------------------------------------------------------------


async def test_arguments_are_unchanged_without_hooks(hooks: Hooks) -> None:
    assert await hooks.run_before(TOOL, {"a": 1}, CONTEXT) == {"a": 1}


async def test_hook_receives_tool_arguments_and_context(hooks: Hooks) -> None:
    told: list[object] = []
    hooks.add(PRE, lambda tool, args, context: told.extend([tool, args, context]))
    await hooks.run_before(TOOL, {"a": 1}, CONTEXT)
    assert told == [TOOL, {"a": 1}, CONTEXT]


async def test_hooks_run_in_order_and_each_gets_the_result_of_the_previous_one(hooks: Hooks) -> None:
    hooks.add(PRE, lambda _tool, args, _context: {"seen": [*args["seen"], "first"]})

    async def second(_tool: object, args: Json, _context: object) -> Json:
        return {"seen": [*args["seen"], "second"]}

    hooks.add(PRE, second)
    assert await hooks.run_before(TOOL, {"seen": []}, CONTEXT) == {"seen": ["first", "second"]}


async def test_refusal_by_a_hook_stops_later_hooks(hooks: Hooks) -> None:
    asked: list[str] = []

    def refuse(*_: object) -> None:
        raise Refused("not on a Sunday")

    hooks.add(PRE, refuse)
    hooks.add(PRE, lambda *_: asked.append("later"))
    assert await run_refused(hooks) == "not on a Sunday"
    assert asked == []


@pytest.mark.parametrize(
    "raised",
    [ValueError("x"), SystemExit(0), asyncio.CancelledError(), KeyError(), TimeoutError()],
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_any_failure_of_a_pre_hook_refuses_the_call(
    hooks: Hooks, raised: BaseException, is_async: bool
) -> None:
    asked: list[str] = []

    def fail(*_: object) -> None:
        raise raised

    async def fail_later(*_: object) -> None:
        raise raised

    hooks.add(PRE, fail_later if is_async else fail)
    hooks.add(PRE, lambda *_: asked.append("later"))
    name = "fail_later" if is_async else "fail"
    assert await run_refused(hooks) == (
        f"'probe' was refused: the check '{name}' failed: {type(raised).__name__}. It was not invoked."
    )
    assert asked == []


async def test_hook_failure_is_logged_but_not_shown_to_the_model(
    hooks: Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("internal address 10.0.0.1")

    hooks.add(PRE, fail)
    assert "10.0.0.1" not in await run_refused(hooks)
    assert "10.0.0.1" in caplog.text


@pytest.mark.parametrize("answer", [True, False, 0, "go on", ["a"], ("a", 1), object()])
async def test_invalid_result_of_a_pre_hook_refuses_the_call(hooks: Hooks, answer: object) -> None:
    hooks.add(PRE, lambda *_: answer)
    assert f"returned {type(answer).__name__} instead of arguments" in await run_refused(hooks)


async def test_empty_dict_is_a_valid_result_of_a_pre_hook(hooks: Hooks) -> None:
    hooks.add(PRE, lambda *_: {})
    assert await hooks.run_before(TOOL, {"a": 1}, CONTEXT) == {}


async def test_hanging_sync_hook_refuses_the_call(short_timeout_hooks: Hooks) -> None:
    go_on = threading.Event()

    def hang(*_: object) -> None:
        go_on.wait(60)

    short_timeout_hooks.add(PRE, hang)
    assert await run_refused(short_timeout_hooks) == (
        "'probe' was refused: the check 'hang' did not answer within 0.05 s. It was not invoked."
    )
    go_on.set()


async def test_async_hook_that_ignores_cancellation_refuses_the_call(short_timeout_hooks: Hooks) -> None:
    async def hang(*_: object) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    short_timeout_hooks.add(PRE, hang)
    async with asyncio.timeout(60):
        assert "did not answer" in await run_refused(short_timeout_hooks)


async def test_hook_cannot_change_a_call_by_mutating_its_arguments(hooks: Hooks) -> None:
    def meddle(_tool: object, args: Json, _context: object) -> None:
        args["path"] = "/etc/passwd"
        args["nested"]["list"].append("evil")

    hooks.add(PRE, meddle)
    args = {"path": "a", "nested": {"list": []}}
    assert await hooks.run_before(TOOL, args, CONTEXT) == {"path": "a", "nested": {"list": []}}
    assert args == {"path": "a", "nested": {"list": []}}


async def test_cancelling_the_caller_of_a_hook_is_not_a_refusal(hooks: Hooks) -> None:
    inside = asyncio.Event()

    async def wait(*_: object) -> None:
        inside.set()
        await asyncio.Event().wait()

    hooks.add(PRE, wait)
    task = asyncio.create_task(hooks.run_before(TOOL, {}, CONTEXT))
    await asyncio.wait_for(inside.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# -- after ----------------------------------------------------------------------------------------------


async def test_post_hook_may_replace_the_result(hooks: Hooks) -> None:
    hooks.add(POST, lambda _tool, _args, result, _context: {"n": result.value["n"] + 1})
    assert (await run_post_hooks(hooks)).value == {"n": 2}


async def test_post_hook_receives_the_previous_result(hooks: Hooks) -> None:
    hooks.add(POST, lambda *_: "without the secret")
    hooks.add(POST, lambda _tool, _args, result, _context: f"{result.value}, signed")
    assert (await run_post_hooks(hooks)).value == "without the secret, signed"


async def test_post_hook_returning_none_keeps_the_result(hooks: Hooks) -> None:
    told: list[object] = []
    hooks.add(POST, lambda tool, args, result, context: told.extend([tool, args, result, context]))
    assert await run_post_hooks(hooks, {"a": 1}) is RESULT
    assert told == [TOOL, {"a": 1}, RESULT, CONTEXT]


@pytest.mark.parametrize("raised", [ValueError("x"), SystemExit(0), asyncio.CancelledError(), Refused("no")])
@pytest.mark.parametrize("is_async", [False, True])
async def test_failing_post_hook_is_logged_and_the_result_kept(
    hooks: Hooks, raised: BaseException, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise raised

    async def fail_later(*_: object) -> None:
        raise raised

    hooks.add(POST, lambda *_: "made before")
    hooks.add(POST, fail_later if is_async else fail)
    hooks.add(POST, lambda _tool, _args, result, _context: f"{result.value}, and after")
    assert (await run_post_hooks(hooks)).value == "made before, and after"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_hanging_post_hook_is_abandoned_and_the_result_kept(short_timeout_hooks: Hooks) -> None:
    go_on = threading.Event()
    short_timeout_hooks.add(POST, lambda *_: go_on.wait(60))
    assert await run_post_hooks(short_timeout_hooks) is RESULT
    go_on.set()


async def test_post_hook_gets_a_copy_of_the_arguments(hooks: Hooks) -> None:
    def meddle(_tool: object, args: Json, _result: object, _context: object) -> None:
        args["nested"].clear()

    seen: list[Json] = []
    hooks.add(POST, meddle)
    hooks.add(POST, lambda _tool, args, _result, _context: seen.append(args))
    await run_post_hooks(hooks, {"nested": {"a": 1}})
    assert seen == [{"nested": {"a": 1}}]


# -- adding ---------------------------------------------------------------------------------------------


@check_cases(
    ("event", "hook", "problem"),
    [
        ("pre_tool", lambda: None, "unknown hook event 'pre_tool'; use pre_tool_call or post_tool_call"),
        (PRE, "not callable", "a hook must be callable, not str"),
    ],
)
def test_invalid_hook_is_rejected_when_added(event: str, hook: Callable[..., Any], problem: str) -> None:
    with pytest.raises(ToolfoldError, match=problem):
        Hooks(EventLoops()).add(event, hook)


async def test_hook_added_during_a_call_runs_from_the_next_call(hooks: Hooks) -> None:
    ran: list[str] = []

    def first(*_: object) -> None:
        ran.append("first")
        if len(ran) == 1:
            hooks.add(PRE, lambda *_: ran.append("second"))

    hooks.add(PRE, first)
    await hooks.run_before(TOOL, {}, CONTEXT)
    assert ran == ["first"]
    await hooks.run_before(TOOL, {}, CONTEXT)
    assert ran == ["first", "first", "second"]


async def test_pre_hook_is_run_only_for_the_tools_that_it_concerns(hooks: Hooks) -> None:
    seen: list[str] = []
    other = replace(TOOL, name="other")
    hooks.add_pre_hook(lambda tool, _args, _context: seen.append(tool.name), lambda tool: tool is TOOL)
    for tool in (TOOL, other):
        assert await hooks.run_before(tool, {"a": 1}, CONTEXT) == {"a": 1}
    assert seen == ["probe"]
