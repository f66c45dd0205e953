"""Ask a person for approval of a tool call, with a timeout; equal questions are asked only once.

Anything that prevents an answer (nobody there, no answer in time, a failing request, an answer that was
not offered) is a refusal. Calls that wait for the same question share its answer, and an answer that
covers other questions withdraws them. How the person is reached is up to the approver: any function, a
queue or a prompt. A chat can be asked as well; the first answer counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol

from toolfold.core.errors import shorten
from toolfold.core.loops import MAX_CHECK_THREADS, CallTimeout, EventLoops
from toolfold.core.types import Answer, ApprovalRequest, Approver
from toolfold.safety.approval.chain import DecidedBy, Decision

log = logging.getLogger(__name__)

__all__ = ["NOBODY_ASKED", "Chat", "PendingQuestions", "QuestionUnanswered", "UntrustedClient", "ask"]

NOBODY_ASKED = "nobody could be asked for approval"
_ANSWER_GRACE_S = 5.0
CHAT_DELAY_S = 1.0
"""How long the approver is asked alone: one that decides by itself causes no message in the chat."""
_LEFT_TO_OTHERS = frozenset({DecidedBy.UNANSWERED, DecidedBy.FAILED})


class QuestionUnanswered(Exception):
    """Raised by an approver if nobody answered the approval question.

    The message completes "it needs approval, and …".
    """


class UntrustedClient(Exception):
    """Raised by an approver if the process that would answer may have been started by a tool.

    The message completes "it needs approval, and …".
    """

    def __init__(self, why: str, is_tool_call: bool = False) -> None:
        super().__init__(why)
        self.station = DecidedBy.TOOL_CALL if is_tool_call else DecidedBy.NOBODY


class Chat(Protocol):
    """Approver that asks in a chat, besides the approver of the session."""

    takes_answers: bool
    """Whether a question can be answered in the chat, and not only where it was asked otherwise."""

    async def __call__(self, request: ApprovalRequest, /) -> Answer: ...


async def ask(
    approver: Approver | None,
    request: ApprovalRequest,
    loops: EventLoops,
    seconds: float,
    chat: Chat | None = None,
) -> Decision:
    """Ask the approver and the chat whether a tool call may run, and return the answer as a decision."""
    try:
        if approver is None and chat is not None and chat.takes_answers:
            return _by_chat(await _ask_one(chat, request, loops, seconds))
        if approver is None:
            return Decision(False, DecidedBy.NOBODY, f"{request.reason}, and {NOBODY_ASKED}")
        if chat is None:
            return await _ask_one(approver, request, loops, seconds)
        return await _ask_both(approver, chat, request, loops, seconds)
    finally:
        request.withdrawn.set()


async def _ask_both(
    approver: Approver, chat: Chat, request: ApprovalRequest, loops: EventLoops, seconds: float
) -> Decision:
    """Return the first answer of the approver or the chat; a refusal wins if both answer at once."""
    own = asyncio.create_task(_ask_one(approver, request, loops, seconds))
    tasks = {own}
    try:
        await asyncio.wait(tasks, timeout=min(CHAT_DELAY_S, seconds))
        if own.done() and own.result().decided_by not in _LEFT_TO_OTHERS:
            return own.result()
        in_chat = asyncio.create_task(_ask_one(chat, request, loops, seconds))
        tasks.add(in_chat)
        pending = tasks
        while True:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            decisions = [_by_chat(each.result()) if each is in_chat else each.result() for each in done]
            answers = [each for each in decisions if each.decided_by not in _LEFT_TO_OTHERS]
            if answers or not pending:
                return min(answers or decisions, key=lambda each: each.allowed)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.wait(tasks)


def _by_chat(decision: Decision) -> Decision:
    """Return the decision with the chat as the place of the answer."""
    return (
        replace(decision, decided_by=DecidedBy.CHAT) if decision.decided_by is DecidedBy.PERSON else decision
    )


async def _ask_one(
    approver: Approver, request: ApprovalRequest, loops: EventLoops, seconds: float
) -> Decision:
    try:
        returned = await loops.call_with_timeout(seconds, approver, request, max_threads=MAX_CHECK_THREADS)
    except CallTimeout:
        return Decision(False, DecidedBy.TIME, f"there was no answer within {seconds:g} s")
    except QuestionUnanswered as error:
        return Decision(False, DecidedBy.UNANSWERED, f"{request.reason}, and {error}")
    except UntrustedClient as error:
        return Decision(False, error.station, f"{request.reason}, and {error}")
    except Exception:
        log.exception("the approval request for %r failed; the call is refused", request.tool.name)
        return Decision(False, DecidedBy.FAILED, "the approval request failed")
    return _decision_from_answer(returned, request)


def _decision_from_answer(returned: object, request: ApprovalRequest) -> Decision:
    answer = Answer.ONCE if returned is True else returned
    if not isinstance(returned, (bool, Answer)):
        log.error("%s", _invalid_answer_message(returned, request.tool.name))
    if not isinstance(answer, Answer) or answer is Answer.DENY:
        return Decision(False, DecidedBy.PERSON, "the request was declined", Answer.DENY)
    if answer not in request.answers:
        return Decision(False, DecidedBy.PERSON, f"the answer {answer.value!r} was not one of those offered")
    return Decision(True, DecidedBy.PERSON, "the request was approved", answer)


def _invalid_answer_message(returned: object, tool: str) -> str:
    """Return a log message about an approver that returned an invalid answer, such as "yes"."""
    what = (
        shorten(repr(returned), 80)
        if type(returned) in (str, int, type(None))
        else f"a {type(returned).__name__}"
    )
    known = ", ".join(f"Answer.{each.name}" for each in Answer)
    return (
        f"the approver returned {what} for {tool!r}, which counts as a refusal:"
        f" it must return True, False or a toolfold.Answer ({known})"
    )


class PendingQuestions:
    """Approval questions waiting for an answer, so that equal questions of several calls are asked once.

    Callers may wait in different threads, each with its own event loop.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[object, list[_AnswerWaiter]] = {}
        self._listeners: dict[object, set[_AnswerWaiter]] = {}

    async def ask_once(
        self, key: object, ask_now: Callable[[], Awaitable[Decision]], *, seconds: float
    ) -> Decision:
        """Ask an approval question, or wait for the answer if another tool call is already asking it.

        If the asking caller is cancelled, the next one in line asks again.
        """
        while True:
            waiting = self._join_queue(key)
            if waiting is None:
                return await self._ask_and_share(key, ask_now)
            try:
                decision = await asyncio.wait_for(waiting.future, seconds + _ANSWER_GRACE_S)
            except TimeoutError:
                return Decision(False, DecidedBy.TIME, f"there was no answer within {seconds:g} s")
            if decision is not None:
                return decision

    async def ask_unless_decided(
        self, topic: object, asking: Coroutine[Any, Any, Decision], decide: Callable[[], Decision | None]
    ) -> Decision:
        """Wait for an approval answer; withdraw the question if `decide` returns a decision first."""
        task = asyncio.create_task(asking)
        try:
            while True:
                notification = self._add_listener(topic)
                waited: set[asyncio.Future[Any]] = {task, notification.future}
                try:
                    done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    self._remove_listener(topic, notification)
                if task in done:
                    return task.result()
                if decision := decide():
                    return decision
        finally:
            task.cancel()
            await asyncio.wait({task})

    def notify_waiting(self, topic: object) -> None:
        """Wake all tool calls that wait on `topic`, so that each checks if it still needs approval."""
        with self._lock:
            listening = list(self._listeners.get(topic, ()))
        for each in listening:
            each.set_result(None)

    def _add_listener(self, topic: object) -> _AnswerWaiter:
        waiting = _AnswerWaiter()
        with self._lock:
            self._listeners.setdefault(topic, set()).add(waiting)
        return waiting

    def _remove_listener(self, topic: object, waiting: _AnswerWaiter) -> None:
        with self._lock:
            others = self._listeners.get(topic, set())
            others.discard(waiting)
            if not others:
                self._listeners.pop(topic, None)

    async def _ask_and_share(self, key: object, ask_now: Callable[[], Awaitable[Decision]]) -> Decision:
        decision: Decision | None = None
        try:
            decision = await ask_now()
            return decision
        finally:
            with self._lock:
                waiting = self._waiters.pop(key)
            for each in waiting:
                each.set_result(decision)

    def _join_queue(self, key: object) -> _AnswerWaiter | None:
        """Return a waiter if another call is already asking the approval question `key`; otherwise None."""
        with self._lock:
            queue = self._waiters.get(key)
            if queue is None:
                self._waiters[key] = []
                return None
            waiting = _AnswerWaiter()
            queue.append(waiting)
            return waiting


class _AnswerWaiter:
    """Waiter for the answer to an approval question that another tool call has asked. Thread-safe."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Decision | None] = self._loop.create_future()

    def set_result(self, decision: Decision | None) -> None:
        with contextlib.suppress(RuntimeError):  # that loop is closed, so nothing waits there
            self._loop.call_soon_threadsafe(self._set_future, decision)

    def _set_future(self, decision: Decision | None) -> None:
        if not self.future.done():
            self.future.set_result(decision)
