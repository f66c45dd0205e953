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
from toolfold.core.authoring import build_tool
from toolfold.core.errors import Refused, ToolfoldError
from toolfold.core.hooks import POST, PRE, Hooks
from toolfold.core.loops import EventLoops
from toolfold.core.types import CallContext, Json, ToolResult

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
    monkeypatch.setattr("toolfold.core.loops.SETTLE_TIMEOUT_S", 0.05)
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


async def test_arguments_of_a_call_are_unchanged_if_there_are_no_hooks(hooks: Hooks) -> None:
    assert await hooks.run_before(TOOL, {"a": 1}, CONTEXT) == {"a": 1}


async def test_pre_hook_receives_the_tool_the_arguments_and_the_context_of_the_call(hooks: Hooks) -> None:
    told: list[object] = []
    hooks.add(PRE, lambda tool, args, context: told.extend([tool, args, context]))
    await hooks.run_before(TOOL, {"a": 1}, CONTEXT)
    assert told == [TOOL, {"a": 1}, CONTEXT]


async def test_pre_hooks_run_in_registration_order_and_each_receives_the_arguments_of_the_previous_hook(
    hooks: Hooks,
) -> None:
    hooks.add(PRE, lambda _tool, args, _context: {"seen": [*args["seen"], "first"]})

    async def second(_tool: object, args: Json, _context: object) -> Json:
        return {"seen": [*args["seen"], "second"]}

    hooks.add(PRE, second)
    assert await hooks.run_before(TOOL, {"seen": []}, CONTEXT) == {"seen": ["first", "second"]}


async def test_pre_hooks_do_not_run_after_a_pre_hook_that_refused_the_call(hooks: Hooks) -> None:
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
async def test_call_is_refused_if_a_pre_hook_raises_any_exception(
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
        f"the call of 'probe' was refused: the hook '{name}' failed: {type(raised).__name__}."
        " The tool was not run."
    )
    assert asked == []


async def test_exception_of_a_pre_hook_is_logged_but_not_shown_to_the_model(
    hooks: Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("internal address 10.0.0.1")

    hooks.add(PRE, fail)
    assert "10.0.0.1" not in await run_refused(hooks)
    assert "10.0.0.1" in caplog.text


@pytest.mark.parametrize("answer", [True, False, 0, "go on", ["a"], ("a", 1), object()])
async def test_call_is_refused_if_a_pre_hook_returns_a_value_other_than_a_dict_or_none(
    hooks: Hooks, answer: object
) -> None:
    hooks.add(PRE, lambda *_: answer)
    assert f"returned {type(answer).__name__} instead of arguments" in await run_refused(hooks)


async def test_empty_dict_returned_by_a_pre_hook_replaces_the_arguments(hooks: Hooks) -> None:
    hooks.add(PRE, lambda *_: {})
    assert await hooks.run_before(TOOL, {"a": 1}, CONTEXT) == {}


async def test_call_is_refused_if_a_sync_pre_hook_hangs(short_timeout_hooks: Hooks) -> None:
    go_on = threading.Event()

    def hang(*_: object) -> None:
        go_on.wait(60)

    short_timeout_hooks.add(PRE, hang)
    assert await run_refused(short_timeout_hooks) == (
        "the call of 'probe' was refused: the hook 'hang' did not answer within 0.05 s. The tool was not run."
    )
    go_on.set()


async def test_call_is_refused_if_an_async_pre_hook_hangs_and_ignores_cancellation(
    short_timeout_hooks: Hooks,
) -> None:
    async def hang(*_: object) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    short_timeout_hooks.add(PRE, hang)
    async with asyncio.timeout(60):
        assert "did not answer" in await run_refused(short_timeout_hooks)


async def test_pre_hook_that_mutates_its_arguments_in_place_does_not_change_the_arguments_of_the_call(
    hooks: Hooks,
) -> None:
    def meddle(_tool: object, args: Json, _context: object) -> None:
        args["path"] = "/etc/passwd"
        args["nested"]["list"].append("evil")

    hooks.add(PRE, meddle)
    args = {"path": "a", "nested": {"list": []}}
    assert await hooks.run_before(TOOL, args, CONTEXT) == {"path": "a", "nested": {"list": []}}
    assert args == {"path": "a", "nested": {"list": []}}


async def test_cancelling_a_call_during_its_pre_hook_raises_cancelled_error_instead_of_a_refusal(
    hooks: Hooks,
) -> None:
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


async def test_value_returned_by_a_post_hook_replaces_the_result(hooks: Hooks) -> None:
    hooks.add(POST, lambda _tool, _args, result, _context: {"n": result.value["n"] + 1})
    assert (await run_post_hooks(hooks)).value == {"n": 2}


async def test_post_hook_receives_the_result_as_changed_by_the_previous_post_hook(hooks: Hooks) -> None:
    hooks.add(POST, lambda *_: "without the secret")
    hooks.add(POST, lambda _tool, _args, result, _context: f"{result.value}, signed")
    assert (await run_post_hooks(hooks)).value == "without the secret, signed"


async def test_result_is_unchanged_if_a_post_hook_returns_none(hooks: Hooks) -> None:
    told: list[object] = []
    hooks.add(POST, lambda tool, args, result, context: told.extend([tool, args, result, context]))
    assert await run_post_hooks(hooks, {"a": 1}) is RESULT
    assert told == [TOOL, {"a": 1}, RESULT, CONTEXT]


@pytest.mark.parametrize("raised", [ValueError("x"), SystemExit(0), asyncio.CancelledError(), Refused("no")])
@pytest.mark.parametrize("is_async", [False, True])
async def test_result_is_unchanged_and_an_error_is_logged_if_a_post_hook_raises(
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


async def test_result_is_unchanged_if_a_post_hook_hangs_until_its_timeout(short_timeout_hooks: Hooks) -> None:
    go_on = threading.Event()
    short_timeout_hooks.add(POST, lambda *_: go_on.wait(60))
    assert await run_post_hooks(short_timeout_hooks) is RESULT
    go_on.set()


async def test_post_hook_that_mutates_its_arguments_does_not_affect_the_next_post_hook(hooks: Hooks) -> None:
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
def test_hook_for_an_unknown_event_or_without_a_callable_is_rejected(
    event: str, hook: Callable[..., Any], problem: str
) -> None:
    with pytest.raises(ToolfoldError, match=problem):
        Hooks(EventLoops()).add(event, hook)


async def test_hook_added_while_hooks_of_a_call_are_running_takes_effect_at_the_next_call(
    hooks: Hooks,
) -> None:
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


async def test_pre_hook_with_a_tool_filter_runs_only_for_tools_that_the_filter_accepts(hooks: Hooks) -> None:
    seen: list[str] = []
    other = replace(TOOL, name="other")
    hooks.add_pre_hook(lambda tool, _args, _context: seen.append(tool.name), lambda tool: tool is TOOL)
    for tool in (TOOL, other):
        assert await hooks.run_before(tool, {"a": 1}, CONTEXT) == {"a": 1}
    assert seen == ["probe"]
