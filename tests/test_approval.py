"""A destructive tool runs only if exactly that call is approved explicitly and in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolfold.core.authoring import build_tool
from toolfold.core.errors import Refused
from toolfold.core.loops import EventLoops
from toolfold.core.types import Answer, ApprovalRequest, CallContext, Effect, Json, Tool
from toolfold.safety.approval import gate
from toolfold.safety.approval.gate import Approval

CONTEXT = CallContext(session_id="session-1")
NOT_RUN = "It was not run. Do not retry it unless the user asks you to."


def tool_with(*effects: Effect) -> Tool:
    return build_tool(name="probe", toolset="t", schema={}, handler=lambda args: args, effects=effects)


DESTRUCTIVE_TOOL = tool_with(Effect.WRITE, Effect.DESTRUCTIVE)


@pytest.fixture
async def loops() -> AsyncIterator[EventLoops]:
    created = EventLoops()
    yield created
    created.close()


async def refusal(approval: Approval, args: Json | None = None) -> str:
    with pytest.raises(Refused) as caught:
        await approval.require(DESTRUCTIVE_TOOL, args or {}, CONTEXT)
    return str(caught.value)


async def test_call_of_a_destructive_tool_is_refused_without_an_approver(loops: EventLoops) -> None:
    assert await refusal(Approval(None, loops)) == (
        "'probe' was not run: probe declares that it can destroy data,"
        " and nobody could be asked for approval."
        " Do not retry it unless the user asks you to."
    )


@pytest.mark.parametrize("effect", [Effect.READ, Effect.WRITE, Effect.EXECUTE, Effect.NETWORK])
async def test_tool_with_only_read_or_write_effects_runs_without_approval(
    loops: EventLoops, effect: Effect
) -> None:
    asked: list[ApprovalRequest] = []

    def refuse(request: ApprovalRequest) -> bool:
        asked.append(request)
        return False

    await Approval(refuse, loops).require(tool_with(effect), {}, CONTEXT)
    assert asked == []


@pytest.mark.parametrize(
    "effect", [Effect.DESTRUCTIVE, Effect.SEND, Effect.SPEND, Effect.CONTROL, Effect.SCHEDULE]
)
async def test_tool_with_an_effect_that_needs_approval_is_refused_without_an_approver(
    loops: EventLoops, effect: Effect
) -> None:
    with pytest.raises(Refused, match="nobody could be asked"):
        await Approval(None, loops).require(tool_with(effect), {}, CONTEXT)


async def test_call_of_a_destructive_tool_runs_after_the_approver_allows_it(loops: EventLoops) -> None:
    await Approval(lambda _: True, loops).require(DESTRUCTIVE_TOOL, {}, CONTEXT)


async def test_async_approver_is_awaited(loops: EventLoops) -> None:
    async def yes(_: ApprovalRequest) -> bool:
        await asyncio.sleep(0)
        return True

    async def no(_: ApprovalRequest) -> bool:
        await asyncio.sleep(0)
        return False

    await Approval(yes, loops).require(DESTRUCTIVE_TOOL, {}, CONTEXT)
    assert "the request was declined" in await refusal(Approval(no, loops))


@pytest.mark.parametrize("answer", [False, None, 0, 1, "yes", "y", "true", [True], {"ok": True}, object()])
async def test_call_is_refused_unless_the_approver_returns_an_explicit_approval(
    loops: EventLoops, answer: Any
) -> None:
    assert await refusal(Approval(lambda _: answer, loops)) == (
        f"'probe' was refused: the request was declined. {NOT_RUN}"
    )


async def test_approval_request_contains_the_tool_and_the_arguments_of_the_call(loops: EventLoops) -> None:
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> bool:
        asked.append(request)
        return True

    await Approval(approve, loops).require(DESTRUCTIVE_TOOL, {"path": "a"}, CONTEXT)
    assert asked == [
        ApprovalRequest(
            DESTRUCTIVE_TOOL,
            {"path": "a"},
            "probe declares that it can destroy data",
            "session-1",
            category="data-loss",
            severity="medium",
            rules=("destructive:probe",),
            kinds=("call of probe",),
            covers='tool:probe {"path": "a"}',
            answers=(Answer.ONCE, Answer.SESSION, Answer.KIND, Answer.DENY),
        )
    ]


async def test_approver_cannot_change_the_arguments_of_the_call(loops: EventLoops) -> None:
    def change_arguments(request: ApprovalRequest) -> bool:
        request.args["paths"].append("/")
        return True

    args = {"paths": ["a"]}
    await Approval(change_arguments, loops).require(DESTRUCTIVE_TOOL, args, CONTEXT)
    assert args == {"paths": ["a"]}


@pytest.mark.parametrize(
    "raised", [ValueError("x"), SystemExit(0), asyncio.CancelledError(), EOFError(), TimeoutError()]
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_call_is_refused_if_the_approver_raises_an_exception(
    loops: EventLoops, raised: BaseException, is_async: bool
) -> None:
    def fail(_: ApprovalRequest) -> bool:
        raise raised

    async def fail_later(_: ApprovalRequest) -> bool:
        raise raised

    assert await refusal(Approval(fail_later if is_async else fail, loops)) == (
        f"'probe' was refused: the approval request failed. {NOT_RUN}"
    )


async def test_call_is_refused_if_the_approver_does_not_answer_in_time(loops: EventLoops) -> None:
    release = threading.Event()

    def hang(_: ApprovalRequest) -> bool:
        return release.wait(60)

    assert await refusal(Approval(hang, loops, timeout=0.05)) == (
        "'probe' was not run: there was no answer within 0.05 s. Do not retry it unless the user asks you to."
    )
    release.set()


async def test_call_is_refused_after_the_timeout_even_if_the_approver_ignores_cancellation(
    loops: EventLoops, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_: ApprovalRequest) -> bool:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    monkeypatch.setattr("toolfold.core.loops.SETTLE_TIMEOUT_S", 0.05)
    async with asyncio.timeout(60):
        assert "there was no answer" in await refusal(Approval(hang, loops, timeout=0.05))


async def test_approval_given_after_the_timeout_does_not_run_the_call(
    loops: EventLoops, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(_: ApprovalRequest) -> bool:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return True
        return True

    monkeypatch.setattr("toolfold.core.loops.SETTLE_TIMEOUT_S", 5)
    assert "there was no answer" in await refusal(Approval(late, loops, timeout=0.01))


async def test_check_whether_this_process_runs_inside_a_tool_call_is_made_once_for_all_approvals(
    loops: EventLoops, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups: list[str] = []

    def find_parent() -> str:
        lookups.append("look")
        return ""

    monkeypatch.setattr(gate, "find_tool_call", find_parent)
    approval = Approval(lambda _: True, loops)
    for path in "abc":
        await approval.require(DESTRUCTIVE_TOOL, {"path": path}, CONTEXT)
    assert lookups == ["look"]
