"""Approval requests: who is asked, how often, timeouts, and which answers are valid."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from shellverdict.verdict import Verdict
from tests.approval.cases import SHELL, finding, verdict_on
from toolfold.core.authoring import build_tool
from toolfold.core.errors import Refused, ToolfoldError
from toolfold.core.loops import EventLoops
from toolfold.core.types import Answer, ApprovalRequest, Approver, CallContext, Json, Tool
from toolfold.safety.approval.call_analysis import CallAnalyzer
from toolfold.safety.approval.chain import DecisionChain
from toolfold.safety.approval.gate import Approval
from toolfold.safety.approval.queue import ApprovalQueue, Question, StaleQuestion

COMMAND = "rm -rf build"


@pytest.fixture
async def loops() -> AsyncIterator[EventLoops]:
    created = EventLoops()
    yield created
    created.close()


def flag_everything(
    command: str, *, cwd: str | None = None, variables: object = None, earlier_files: object = None
) -> Verdict:
    return verdict_on(command, finding())


def approval(approver: Approver | None, loops: EventLoops, **options: Any) -> Approval:
    return Approval(approver, loops, analyzer=CallAnalyzer(flag_everything), **{"timeout": 60, **options})


async def is_allowed(
    gate: Approval, command: str = COMMAND, session: str = "s", tool: Tool = SHELL, **args: Any
) -> bool:
    """Return True if the call may run."""
    try:
        await gate.require(tool, {"command": command, **args}, CallContext(session_id=session))
    except Refused:
        return False
    return True


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (changed by another loop or thread)
            await asyncio.sleep(0.002)


class FixedAnswer:
    """Approver that always gives the same answer and records the requests."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, list[ApprovalRequest]()

    def __call__(self, request: ApprovalRequest) -> Any:
        self.asked.append(request)
        return self.answer


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("answer", "described_as"),
    [("yes", "'yes'"), (None, "None"), (1, "1"), ("once", "'once'"), (Unprintable(), "a Un")],
)
async def test_invalid_answer_of_an_approver_refuses_the_call_and_logs_the_valid_answers(
    loops: EventLoops, caplog: pytest.LogCaptureFixture, answer: Any, described_as: str
) -> None:
    assert not await is_allowed(approval(FixedAnswer(answer), loops))
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert f"the approver returned {described_as}" in record.message
    assert "it must return True, False or a toolfold.Answer (Answer.ONCE, " in record.message


@pytest.mark.parametrize("answer", [True, False, Answer.ONCE, Answer.DENY])
async def test_yes_and_no_answers_of_an_approver_decide_the_call_without_a_warning(
    loops: EventLoops, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    assert await is_allowed(approval(FixedAnswer(answer), loops)) == (answer in (True, Answer.ONCE))
    assert caplog.records == []


async def test_approval_request_contains_the_command_its_dangerous_part_and_the_reason(
    loops: EventLoops,
) -> None:
    person = FixedAnswer(True)
    assert await is_allowed(approval(person, loops))
    (asked,) = person.asked
    assert (asked.command, asked.part, asked.reason) == (COMMAND, "rm", "reason of delete-folder")
    assert (asked.category, asked.severity, asked.covers) == ("fs-delete", "low", COMMAND)


@pytest.mark.parametrize("answer", [True, Answer.ONCE])
async def test_next_call_of_a_command_approved_for_one_call_asks_the_approver_again(
    loops: EventLoops, answer: Any
) -> None:
    person = FixedAnswer(answer)
    gate = approval(person, loops)
    assert await is_allowed(gate)
    assert await is_allowed(gate)
    assert len(person.asked) == 2


@pytest.mark.parametrize("answer", [Answer.SESSION, Answer.KIND])
async def test_next_call_of_a_command_approved_for_the_session_does_not_ask_the_approver_again(
    loops: EventLoops, answer: Answer
) -> None:
    person = FixedAnswer(answer)
    gate = approval(person, loops)
    assert await is_allowed(gate)
    assert await is_allowed(gate)
    assert len(person.asked) == 1
    assert await is_allowed(gate, session="another")
    assert len(person.asked) == 2


@pytest.mark.parametrize("answer", [Answer.DENY, "session", "always", 1, None, ["once"], Answer.ALWAYS])
async def test_approver_answer_that_was_not_offered_refuses_the_call_and_is_not_stored(
    loops: EventLoops, answer: Any
) -> None:
    person = FixedAnswer(answer)
    gate = approval(person, loops)  # without a file, "always" is not offered
    assert not await is_allowed(gate)
    person.answer = False
    assert not await is_allowed(gate)
    assert len(person.asked) == 2


async def test_session_approval_still_applies_after_switching_to_another_approver(
    loops: EventLoops,
) -> None:
    one, other = FixedAnswer(Answer.SESSION), FixedAnswer(False)
    gate = approval(one, loops)
    assert await is_allowed(gate)
    assert await is_allowed(gate.with_approver(other))
    assert other.asked == []
    assert not await is_allowed(gate.with_approver(other), "rm -rf src")


async def test_command_needs_approval_if_the_command_analysis_raises_an_error(
    loops: EventLoops, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(
        command: str, *, cwd: str | None = None, variables: object = None, earlier_files: object = None
    ) -> Verdict:
        raise ZeroDivisionError

    person = FixedAnswer(True)
    for mode in ("manual", "smart", "off"):
        gate = Approval(person, loops, analyzer=CallAnalyzer(broken), chain=DecisionChain(mode=mode))
        assert await is_allowed(gate, "ls")
    assert len(person.asked) == 3
    assert person.asked[0].answers == (Answer.ONCE, Answer.DENY)
    assert not await is_allowed(Approval(None, loops, analyzer=CallAnalyzer(broken)), "ls")


class TestConcurrentCalls:
    async def test_equal_concurrent_calls_share_one_approval_question(self, loops: EventLoops) -> None:
        queue = ApprovalQueue()
        gate = approval(queue, loops)
        calls = [asyncio.create_task(is_allowed(gate)) for _ in range(5)]
        await eventually(lambda: len(queue.pending()) == 1)
        (question,) = queue.pending()
        queue.answer(question.id, Answer.ONCE)
        assert await asyncio.gather(*calls) == [True] * 5
        assert queue.pending() == ()

    async def test_refusing_a_shared_approval_question_refuses_all_waiting_calls(
        self, loops: EventLoops
    ) -> None:
        queue = ApprovalQueue()
        gate = approval(queue, loops)
        calls = [asyncio.create_task(is_allowed(gate)) for _ in range(3)]
        await eventually(lambda: len(queue.pending()) == 1)
        queue.answer(queue.pending()[0].id, False)
        assert await asyncio.gather(*calls) == [False] * 3

    async def test_calls_that_differ_in_command_session_or_directory_ask_separate_approval_questions(
        self, loops: EventLoops
    ) -> None:
        queue = ApprovalQueue()
        gate = approval(queue, loops)
        calls = [
            asyncio.create_task(each)
            for each in (
                is_allowed(gate),
                is_allowed(gate, "rm -rf src"),
                is_allowed(gate, session="another"),
                is_allowed(gate, workdir="/elsewhere"),
            )
        ]
        await eventually(lambda: len(queue.pending()) == 4)
        for question in queue.pending():
            queue.answer(question.id, question.request.command == COMMAND)
        assert await asyncio.gather(*calls) == [True, False, True, True]

    async def test_equal_commands_with_parts_known_only_at_run_time_ask_separate_approval_questions(
        self, loops: EventLoops
    ) -> None:
        queue = ApprovalQueue()
        analyzer = CallAnalyzer(
            lambda command, *, cwd=None, variables=None, earlier_files=None: verdict_on(
                command, finding(), shape=""
            )
        )
        gate = Approval(queue, loops, analyzer=analyzer)
        calls = [asyncio.create_task(is_allowed(gate)) for _ in range(3)]
        await eventually(lambda: len(queue.pending()) == 3)
        for question in queue.pending():
            queue.answer(question.id, Answer.DENY)
        assert await asyncio.gather(*calls) == [False] * 3

    async def test_waiting_call_asks_a_new_approval_question_if_the_call_that_asked_first_is_cancelled(
        self, loops: EventLoops
    ) -> None:
        queue = ApprovalQueue()
        gate = approval(queue, loops)
        first = asyncio.create_task(is_allowed(gate))
        await eventually(lambda: len(queue.pending()) == 1)
        old = queue.pending()[0].id
        second = asyncio.create_task(is_allowed(gate))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await eventually(lambda: [q.id for q in queue.pending()] not in ([], [old]))
        queue.answer(queue.pending()[0].id, True)
        assert await second

    async def test_approving_a_kind_of_risk_also_answers_open_questions_of_that_kind_in_the_same_session(
        self, loops: EventLoops
    ) -> None:
        queue = ApprovalQueue()
        gate = approval(queue, loops)
        calls = [asyncio.create_task(is_allowed(gate, f"rm -rf {name}")) for name in "abc"]
        stranger = asyncio.create_task(is_allowed(gate, "rm -rf a", session="another"))
        await eventually(lambda: len(queue.pending()) == 4)
        first, second, *_ = queue.pending("s")
        queue.answer(first.id, Answer.KIND)
        assert await asyncio.gather(*calls) == [True, True, True]
        with pytest.raises(StaleQuestion):
            queue.answer(second.id, Answer.DENY)
        (left,) = queue.pending()
        assert left.request.session_id == "another"
        queue.answer(left.id, Answer.DENY)
        assert not await stranger

    async def test_approving_one_command_for_a_session_leaves_the_question_about_another_command_open(
        self, loops: EventLoops
    ) -> None:
        queue = ApprovalQueue()
        gate = approval(queue, loops)
        calls = [asyncio.create_task(is_allowed(gate, f"rm -rf {name}")) for name in "ab"]
        await eventually(lambda: len(queue.pending()) == 2)
        first, second = queue.pending()
        queue.answer(first.id, Answer.SESSION)
        await eventually(lambda: sum(call.done() for call in calls) == 1)
        assert queue.pending() == (second,)
        queue.answer(second.id, Answer.DENY)
        assert sorted(await asyncio.gather(*calls)) == [False, True]

    async def test_approval_request_that_is_not_answered_in_time_is_marked_as_withdrawn(
        self, loops: EventLoops
    ) -> None:
        asked: list[ApprovalRequest] = []

        async def never(request: ApprovalRequest) -> bool:
            asked.append(request)
            assert not request.withdrawn.is_set()
            return await asyncio.Event().wait()

        assert not await is_allowed(approval(never, loops, timeout=0.05))
        assert asked[0].withdrawn.is_set()

    def test_equal_calls_in_threads_with_separate_event_loops_share_an_approval_question(self) -> None:
        loops, queue = EventLoops(), ApprovalQueue()
        gate = approval(queue, loops)
        done: list[bool] = []
        threads = [
            threading.Thread(target=lambda: done.append(loops.run(is_allowed(gate)))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        answered = 0
        while any(thread.is_alive() for thread in threads):
            for question in queue.pending():
                queue.answer(question.id, Answer.SESSION)
                answered += 1
            threads[0].join(0.002)
        assert done == [True] * 8
        assert answered == 1
        loops.close()


class TestQueue:
    async def start_waiting_call(self, queue: ApprovalQueue, loops: EventLoops) -> asyncio.Task[bool]:
        task = asyncio.create_task(is_allowed(approval(queue, loops)))
        await eventually(lambda: len(queue.pending()) == 1)
        return task

    async def test_queued_approval_question_can_be_answered_by_its_id_from_another_thread(
        self, loops: EventLoops
    ) -> None:
        queue = ApprovalQueue()
        task = await self.start_waiting_call(queue, loops)
        await asyncio.to_thread(queue.answer, queue.pending()[0].id, "once")
        assert await task

    async def test_second_answer_to_an_approval_question_is_rejected(self, loops: EventLoops) -> None:
        queue = ApprovalQueue()
        task = await self.start_waiting_call(queue, loops)
        (question,) = queue.pending()
        queue.answer(question.id, Answer.DENY)
        with pytest.raises(StaleQuestion):
            queue.answer(question.id, Answer.ONCE)
        assert not await task

    @pytest.mark.parametrize("unknown_id", ["", "1", "x" * 500])
    async def test_answer_to_an_approval_question_with_an_unknown_id_is_rejected(
        self, loops: EventLoops, unknown_id: str
    ) -> None:
        queue = ApprovalQueue()
        task = await self.start_waiting_call(queue, loops)
        with pytest.raises(StaleQuestion):
            queue.answer(unknown_id, True)
        queue.answer(queue.pending()[0].id, False)
        assert not await task

    async def test_answer_to_an_approval_question_after_its_timeout_is_rejected(
        self, loops: EventLoops
    ) -> None:
        seen: list[Question] = []
        queue = ApprovalQueue(changed=lambda: seen.extend(queue.pending()))
        assert not await is_allowed(approval(queue, loops, timeout=0.05))
        assert queue.pending() == ()
        with pytest.raises(StaleQuestion):
            queue.answer(seen[0].id, Answer.ONCE)

    async def test_cancelling_a_call_removes_its_approval_question_from_the_queue(
        self, loops: EventLoops
    ) -> None:
        queue = ApprovalQueue()
        task = await self.start_waiting_call(queue, loops)
        (question,) = queue.pending()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert queue.pending() == ()
        with pytest.raises(StaleQuestion):
            queue.answer(question.id, Answer.ONCE)

    @pytest.mark.parametrize("answer", ["always", "yes", "", Answer.ALWAYS, 1])
    async def test_invalid_answer_to_an_approval_question_is_rejected_and_the_question_stays_open(
        self, loops: EventLoops, answer: Any
    ) -> None:
        queue = ApprovalQueue()
        task = await self.start_waiting_call(queue, loops)
        (question,) = queue.pending()
        with pytest.raises(ToolfoldError):
            queue.answer(question.id, answer)
        assert queue.pending() == (question,)
        queue.answer(question.id, Answer.ONCE)
        assert await task

    async def test_ids_of_approval_questions_are_unique(self, loops: EventLoops) -> None:
        queue, seen = ApprovalQueue(), set[str]()
        for _ in range(20):
            task = await self.start_waiting_call(queue, loops)
            (question,) = queue.pending()
            seen.add(question.id)
            queue.answer(question.id, False)
            await task
        assert len(seen) == 20

    async def test_call_is_refused_if_the_approval_queue_is_full(
        self, loops: EventLoops, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = ApprovalQueue(most=1)
        task = await self.start_waiting_call(queue, loops)
        assert not await is_allowed(approval(queue, loops), "rm -rf src")
        queue.answer(queue.pending()[0].id, True)
        assert await task

    async def test_control_and_bidi_characters_are_escaped_in_the_json_of_an_approval_question(
        self, loops: EventLoops
    ) -> None:
        queue = ApprovalQueue()
        command = "rm -rf a\u202eb\r\x1b[2K"
        task = asyncio.create_task(is_allowed(approval(queue, loops), command))
        await eventually(lambda: len(queue.pending()) == 1)
        (question,) = queue.pending()
        shown = question.as_json()
        assert shown["command"] == "rm -rf a‹U+202E›b‹CR›‹ESC›[2K"
        assert shown["answers"] == ["once", "session", "kind", "deny"]
        assert question.request.command == command
        queue.answer(question.id, False)
        await task

    async def test_callback_is_called_when_approval_questions_are_added_to_or_removed_from_the_queue(
        self, loops: EventLoops
    ) -> None:
        lengths: list[int] = []
        queue = ApprovalQueue(changed=lambda: lengths.append(len(queue.pending())))
        task = await self.start_waiting_call(queue, loops)
        queue.answer(queue.pending()[0].id, True)
        await task
        assert lengths == [1, 0]

    async def test_approval_queue_can_be_filtered_by_session(self, loops: EventLoops) -> None:
        queue = ApprovalQueue()
        task = await self.start_waiting_call(queue, loops)
        assert len(queue.pending("s")) == 1
        assert queue.pending("another") == ()
        queue.answer(queue.pending()[0].id, False)
        await task


def test_session_approval_key_of_a_tool_without_commands_contains_all_arguments() -> None:
    wipe = build_tool(name="wipe", toolset="t", schema={}, handler=lambda args: args, effects=["destructive"])
    args: Json = {"b": [1, 2], "a": "x"}
    analysis = CallAnalyzer().analyze(wipe, args)
    assert analysis.key == 'tool:wipe {"a": "x", "b": [1, 2]}'
