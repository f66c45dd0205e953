"""Who is asked, how long, how often, and what counts as an answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from shellverdict.verdict import Verdict
from tests.approval.cases import SHELL, finding, verdict_on
from toolfold.approval.call_analysis import CallAnalyzer
from toolfold.approval.chain import DecisionChain
from toolfold.approval.gate import Approval
from toolfold.approval.queue import ApprovalQueue, Question, StaleQuestion
from toolfold.authoring import build_tool
from toolfold.errors import Refused, ToolfoldError
from toolfold.loops import EventLoops
from toolfold.model import Answer, ApprovalRequest, Approver, CallContext, Json, Tool

COMMAND = "rm -rf build"


@pytest.fixture
async def loops() -> AsyncIterator[EventLoops]:
    made = EventLoops()
    yield made
    made.close()


def flagging(command: str, *, cwd: str | None = None, variables: object = None) -> Verdict:
    return verdict_on(command, finding())


def approval(approver: Approver | None, loops: EventLoops, **options: Any) -> Approval:
    return Approval(approver, loops, analyzer=CallAnalyzer(flagging), **{"timeout": 60, **options})


async def run(
    station: Approval, command: str = COMMAND, session: str = "s", tool: Tool = SHELL, **args: Any
) -> bool:
    """Whether the call may run."""
    try:
        await station.require(tool, {"command": command, **args}, CallContext(session_id=session))
    except Refused:
        return False
    return True


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (it is another loop's or thread's doing)
            await asyncio.sleep(0.002)


class Person:
    """Somebody who always answers the same, and remembers the questions."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, list[ApprovalRequest]()

    def __call__(self, request: ApprovalRequest) -> Any:
        self.asked.append(request)
        return self.answer


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("said", "named"),
    [("yes", "'yes'"), (None, "None"), (1, "1"), ("once", "'once'"), (Unprintable(), "a Un")],
)
async def test_an_answer_of_another_kind_is_a_no_and_the_log_says_what_to_return(
    loops: EventLoops, caplog: pytest.LogCaptureFixture, said: Any, named: str
) -> None:
    assert not await run(approval(Person(said), loops))
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert f"the approver returned {named}" in record.message
    assert "it must return True, False or a toolfold.Answer (Answer.ONCE, " in record.message


@pytest.mark.parametrize("said", [True, False, Answer.ONCE, Answer.DENY])
async def test_an_answer_is_nothing_to_log(
    loops: EventLoops, caplog: pytest.LogCaptureFixture, said: Any
) -> None:
    assert await run(approval(Person(said), loops)) == (said in (True, Answer.ONCE))
    assert caplog.records == []


async def test_the_question_names_the_command_the_part_and_the_reason(loops: EventLoops) -> None:
    person = Person(True)
    assert await run(approval(person, loops))
    (asked,) = person.asked
    assert (asked.command, asked.part, asked.reason) == (COMMAND, "rm", "reason of delete-folder")
    assert (asked.category, asked.severity, asked.covers) == ("fs-delete", "low", COMMAND)


@pytest.mark.parametrize("answer", [True, Answer.ONCE])
async def test_once_is_asked_again(loops: EventLoops, answer: Any) -> None:
    person = Person(answer)
    station = approval(person, loops)
    assert await run(station)
    assert await run(station)
    assert len(person.asked) == 2


@pytest.mark.parametrize("answer", [Answer.SESSION, Answer.KIND])
async def test_what_was_granted_to_a_session_is_not_asked_again_there(
    loops: EventLoops, answer: Answer
) -> None:
    person = Person(answer)
    station = approval(person, loops)
    assert await run(station)
    assert await run(station)
    assert len(person.asked) == 1
    assert await run(station, session="another")
    assert len(person.asked) == 2


@pytest.mark.parametrize("answer", [Answer.DENY, "session", "always", 1, None, ["once"], Answer.ALWAYS])
async def test_what_is_no_offered_answer_is_a_no_and_grants_nothing(loops: EventLoops, answer: Any) -> None:
    person = Person(answer)
    station = approval(person, loops)  # without a file, "always" is not offered
    assert not await run(station)
    person.answer = False
    assert not await run(station)
    assert len(person.asked) == 2


async def test_a_session_with_somebody_else_to_ask_keeps_its_grants(loops: EventLoops) -> None:
    one, other = Person(Answer.SESSION), Person(False)
    station = approval(one, loops)
    assert await run(station)
    assert await run(station.with_approver(other))
    assert other.asked == []
    assert not await run(station.with_approver(other), "rm -rf src")


async def test_a_judge_that_raises_means_asking(loops: EventLoops, caplog: pytest.LogCaptureFixture) -> None:
    def broken(command: str, *, cwd: str | None = None, variables: object = None) -> Verdict:
        raise ZeroDivisionError

    person = Person(True)
    for mode in ("manual", "smart", "off"):
        station = Approval(person, loops, analyzer=CallAnalyzer(broken), chain=DecisionChain(mode=mode))
        assert await run(station, "ls")
    assert len(person.asked) == 3
    assert person.asked[0].answers == (Answer.ONCE, Answer.DENY)
    assert not await run(Approval(None, loops, analyzer=CallAnalyzer(broken)), "ls")


class TestTogether:
    async def test_calls_that_wait_for_the_same_share_one_question(self, loops: EventLoops) -> None:
        queue = ApprovalQueue()
        station = approval(queue, loops)
        calls = [asyncio.create_task(run(station)) for _ in range(5)]
        await eventually(lambda: len(queue.pending()) == 1)
        (question,) = queue.pending()
        queue.answer(question.id, Answer.ONCE)
        assert await asyncio.gather(*calls) == [True] * 5
        assert queue.pending() == ()

    async def test_a_no_is_shared_too(self, loops: EventLoops) -> None:
        queue = ApprovalQueue()
        station = approval(queue, loops)
        calls = [asyncio.create_task(run(station)) for _ in range(3)]
        await eventually(lambda: len(queue.pending()) == 1)
        queue.answer(queue.pending()[0].id, False)
        assert await asyncio.gather(*calls) == [False] * 3

    async def test_another_command_session_or_folder_is_another_question(self, loops: EventLoops) -> None:
        queue = ApprovalQueue()
        station = approval(queue, loops)
        calls = [
            asyncio.create_task(each)
            for each in (
                run(station),
                run(station, "rm -rf src"),
                run(station, session="another"),
                run(station, workdir="/elsewhere"),
            )
        ]
        await eventually(lambda: len(queue.pending()) == 4)
        for question in queue.pending():
            queue.answer(question.id, question.request.command == COMMAND)
        assert await asyncio.gather(*calls) == [True, False, True, True]

    async def test_what_has_no_shape_is_never_taken_for_the_same(self, loops: EventLoops) -> None:
        queue = ApprovalQueue()
        analyzer = CallAnalyzer(
            lambda command, *, cwd=None, variables=None: verdict_on(command, finding(), shape="")
        )
        station = Approval(queue, loops, analyzer=analyzer)
        calls = [asyncio.create_task(run(station)) for _ in range(3)]
        await eventually(lambda: len(queue.pending()) == 3)
        for question in queue.pending():
            queue.answer(question.id, Answer.DENY)
        assert await asyncio.gather(*calls) == [False] * 3

    async def test_when_the_one_who_asked_is_cancelled_the_next_asks(self, loops: EventLoops) -> None:
        queue = ApprovalQueue()
        station = approval(queue, loops)
        first = asyncio.create_task(run(station))
        await eventually(lambda: len(queue.pending()) == 1)
        old = queue.pending()[0].id
        second = asyncio.create_task(run(station))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await eventually(lambda: [q.id for q in queue.pending()] not in ([], [old]))
        queue.answer(queue.pending()[0].id, True)
        assert await second

    async def test_an_answer_that_covers_other_questions_takes_them_back(self, loops: EventLoops) -> None:
        queue = ApprovalQueue()
        station = approval(queue, loops)
        calls = [asyncio.create_task(run(station, f"rm -rf {name}")) for name in "abc"]
        stranger = asyncio.create_task(run(station, "rm -rf a", session="another"))
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

    async def test_an_answer_that_covers_nothing_else_leaves_the_others_waiting(
        self, loops: EventLoops
    ) -> None:
        queue = ApprovalQueue()
        station = approval(queue, loops)
        calls = [asyncio.create_task(run(station, f"rm -rf {name}")) for name in "ab"]
        await eventually(lambda: len(queue.pending()) == 2)
        first, second = queue.pending()
        queue.answer(first.id, Answer.SESSION)
        await eventually(lambda: sum(call.done() for call in calls) == 1)
        assert queue.pending() == (second,)
        queue.answer(second.id, Answer.DENY)
        assert sorted(await asyncio.gather(*calls)) == [False, True]

    async def test_an_approver_can_see_that_nobody_waits_any_more(self, loops: EventLoops) -> None:
        asked: list[ApprovalRequest] = []

        async def never(request: ApprovalRequest) -> bool:
            asked.append(request)
            assert not request.withdrawn.is_set()
            return await asyncio.Event().wait()

        assert not await run(approval(never, loops, timeout=0.05))
        assert asked[0].withdrawn.is_set()

    def test_threads_with_loops_of_their_own_share_a_question(self) -> None:
        loops, queue = EventLoops(), ApprovalQueue()
        station = approval(queue, loops)
        done: list[bool] = []
        threads = [threading.Thread(target=lambda: done.append(loops.run(run(station)))) for _ in range(8)]
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
    async def waiting(self, queue: ApprovalQueue, loops: EventLoops) -> asyncio.Task[bool]:
        task = asyncio.create_task(run(approval(queue, loops)))
        await eventually(lambda: len(queue.pending()) == 1)
        return task

    async def test_an_answer_is_given_by_id_from_another_thread(self, loops: EventLoops) -> None:
        queue = ApprovalQueue()
        task = await self.waiting(queue, loops)
        await asyncio.to_thread(queue.answer, queue.pending()[0].id, "once")
        assert await task

    async def test_an_id_is_good_for_one_answer(self, loops: EventLoops) -> None:
        queue = ApprovalQueue()
        task = await self.waiting(queue, loops)
        (question,) = queue.pending()
        queue.answer(question.id, Answer.DENY)
        with pytest.raises(StaleQuestion):
            queue.answer(question.id, Answer.ONCE)
        assert not await task

    @pytest.mark.parametrize("made_up", ["", "1", "x" * 500])
    async def test_an_unknown_id_is_refused(self, loops: EventLoops, made_up: str) -> None:
        queue = ApprovalQueue()
        task = await self.waiting(queue, loops)
        with pytest.raises(StaleQuestion):
            queue.answer(made_up, True)
        queue.answer(queue.pending()[0].id, False)
        assert not await task

    async def test_an_answer_after_the_time_limit_is_refused(self, loops: EventLoops) -> None:
        seen: list[Question] = []
        queue = ApprovalQueue(changed=lambda: seen.extend(queue.pending()))
        assert not await run(approval(queue, loops, timeout=0.05))
        assert queue.pending() == ()
        with pytest.raises(StaleQuestion):
            queue.answer(seen[0].id, Answer.ONCE)

    async def test_a_cancelled_call_takes_its_question_along(self, loops: EventLoops) -> None:
        queue = ApprovalQueue()
        task = await self.waiting(queue, loops)
        (question,) = queue.pending()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert queue.pending() == ()
        with pytest.raises(StaleQuestion):
            queue.answer(question.id, Answer.ONCE)

    @pytest.mark.parametrize("answer", ["always", "yes", "", Answer.ALWAYS, 1])
    async def test_an_answer_that_was_not_offered_leaves_the_question_open(
        self, loops: EventLoops, answer: Any
    ) -> None:
        queue = ApprovalQueue()
        task = await self.waiting(queue, loops)
        (question,) = queue.pending()
        with pytest.raises(ToolfoldError):
            queue.answer(question.id, answer)
        assert queue.pending() == (question,)
        queue.answer(question.id, Answer.ONCE)
        assert await task

    async def test_ids_are_never_used_twice(self, loops: EventLoops) -> None:
        queue, seen = ApprovalQueue(), set[str]()
        for _ in range(20):
            task = await self.waiting(queue, loops)
            (question,) = queue.pending()
            seen.add(question.id)
            queue.answer(question.id, False)
            await task
        assert len(seen) == 20

    async def test_a_full_queue_means_no(self, loops: EventLoops, caplog: pytest.LogCaptureFixture) -> None:
        queue = ApprovalQueue(most=1)
        task = await self.waiting(queue, loops)
        assert not await run(approval(queue, loops), "rm -rf src")
        queue.answer(queue.pending()[0].id, True)
        assert await task

    async def test_a_page_gets_everything_in_visible_characters(self, loops: EventLoops) -> None:
        queue = ApprovalQueue()
        command = "rm -rf a\u202eb\r\x1b[2K"
        task = asyncio.create_task(run(approval(queue, loops), command))
        await eventually(lambda: len(queue.pending()) == 1)
        (question,) = queue.pending()
        shown = question.as_json()
        assert shown["command"] == "rm -rf a‹U+202E›b‹CR›‹ESC›[2K"
        assert shown["answers"] == ["once", "session", "kind", "deny"]
        assert question.request.command == command
        queue.answer(question.id, False)
        await task

    async def test_whoever_shows_them_is_told_when_questions_come_and_go(self, loops: EventLoops) -> None:
        told: list[int] = []
        queue = ApprovalQueue(changed=lambda: told.append(len(queue.pending())))
        task = await self.waiting(queue, loops)
        queue.answer(queue.pending()[0].id, True)
        await task
        assert told == [1, 0]

    async def test_the_questions_of_one_session_can_be_listed(self, loops: EventLoops) -> None:
        queue = ApprovalQueue()
        task = await self.waiting(queue, loops)
        assert len(queue.pending("s")) == 1
        assert queue.pending("another") == ()
        queue.answer(queue.pending()[0].id, False)
        await task


def test_what_is_asked_about_a_tool_without_commands_is_the_very_call() -> None:
    wipe = build_tool(name="wipe", toolset="t", schema={}, handler=lambda args: args, effects=["destructive"])
    args: Json = {"b": [1, 2], "a": "x"}
    analysis = CallAnalyzer().analyze(wipe, args)
    assert analysis.key == 'tool:wipe {"a": "x", "b": [1, 2]}'
