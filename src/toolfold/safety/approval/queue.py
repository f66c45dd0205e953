"""Queue of approval questions that a web page, a bot or a gateway answers.

An `ApprovalQueue` is an approver: pass it to a runtime or a session. The front end lists the questions
and answers by id. An id is random and valid for one answer to one question; afterwards, or when nothing
waits for the answer any more, it is stale. Thread-safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from toolfold.core.errors import ToolfoldError, shorten
from toolfold.core.types import Answer, ApprovalRequest, Json
from toolfold.safety.approval.safe_text import make_visible, shorten_middle

log = logging.getLogger(__name__)

__all__ = ["ApprovalQueue", "Question", "StaleQuestion"]

MAX_QUESTIONS = 1_000


class StaleQuestion(ToolfoldError):
    """Raised when an approval question is not pending: it was answered, timed out, or never existed."""

    def __init__(self, question_id: str) -> None:
        super().__init__(f"there is no pending question {shorten(question_id, 60)!r}; nothing was changed")


@dataclass(frozen=True, slots=True)
class Question:
    """Pending approval question, and the time at which it was asked (seconds since 1970)."""

    id: str
    request: ApprovalRequest
    since: float

    def as_json(self) -> Json:
        """Return the approval question as JSON for a web page, with deceptive characters escaped."""
        request = self.request
        return {
            "id": self.id,
            "since": self.since,
            "session": request.session_id,
            "tool": request.tool.name,
            "arguments": {
                make_visible(name): make_visible(shorten_middle(str(each)))
                for name, each in request.args.items()
            },
            "command": make_visible(shorten_middle(request.command)),
            "part": make_visible(shorten_middle(request.part)),
            "reason": make_visible(request.reason),
            "also": [make_visible(each) for each in request.also],
            "category": request.category,
            "severity": request.severity,
            "kinds": [make_visible(each) for each in request.kinds],
            "covers": make_visible(shorten_middle(request.covers)),
            "answers": [answer.value for answer in request.answers],
        }


@dataclass(slots=True)
class _OpenQuestion:
    question: Question
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Answer] = field(init=False)

    def __post_init__(self) -> None:
        self.future = self.loop.create_future()

    def set_answer(self, answer: Answer) -> None:
        if not self.future.done():
            self.future.set_result(answer)


class ApprovalQueue:
    """Queue of approval questions that another part of the program answers; can be used as an approver.

    `changed` is called, in the thread of the change, whenever the list of questions changes. `make_id`
    returns the id of a new question, which nobody must be able to guess.
    """

    def __init__(
        self,
        *,
        most: int = MAX_QUESTIONS,
        changed: Callable[[], None] | None = None,
        make_id: Callable[[], str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._max_questions, self._changed, self._clock = most, changed, clock
        self._make_id = make_id or _make_id
        self._lock = threading.Lock()
        self._open: dict[str, _OpenQuestion] = {}

    async def __call__(self, request: ApprovalRequest, /) -> Answer:
        """Ask for approval and wait for an answer. If the caller stops waiting, the question is withdrawn."""
        question = Question(self._make_id(), request, self._clock())
        waiting = _OpenQuestion(question, asyncio.get_running_loop())
        with self._lock:
            if len(self._open) >= self._max_questions:
                raise ToolfoldError(f"there are already {self._max_questions:,} pending approval requests")
            if question.id in self._open:
                raise ToolfoldError("two approval questions must not have the same id")
            self._open[question.id] = waiting
        try:
            self._notify_changed()
            return await waiting.future
        finally:
            with self._lock:
                self._open.pop(question.id, None)
            self._notify_changed()

    def pending(self, session_id: str | None = None) -> tuple[Question, ...]:
        """Return the pending approval questions, oldest first."""
        with self._lock:
            questions = [each.question for each in self._open.values()]
        return tuple(each for each in questions if session_id in (None, each.request.session_id))

    def answer(self, question_id: str, answer: Answer | str | bool) -> None:
        """Answer a pending approval question. Raises StaleQuestion if the question is not pending.

        Raises ToolfoldError if the answer was not offered.
        """
        with self._lock:
            waiting = self._open.get(question_id)
            if waiting is None:
                raise StaleQuestion(question_id)
            parsed = _parse_answer(
                answer, waiting.question.request
            )  # an invalid answer leaves the question open
            del self._open[question_id]
        with contextlib.suppress(RuntimeError):  # its loop is closed, so nothing waits
            waiting.loop.call_soon_threadsafe(waiting.set_answer, parsed)

    def _notify_changed(self) -> None:
        if self._changed is None:
            return
        try:
            self._changed()
        except Exception:  # the question itself does not depend on it
            log.exception("the callback for a changed approval queue failed")


def _make_id() -> str:
    return secrets.token_urlsafe(16)


def _parse_answer(answer: Answer | str | bool, request: ApprovalRequest) -> Answer:
    value = (
        {True: Answer.ONCE, False: Answer.DENY}.get(answer, answer) if isinstance(answer, bool) else answer
    )
    offered = {each.value: each for each in (*request.answers, Answer.DENY)}
    parsed = offered.get(value) if isinstance(value, str) else None
    if parsed is None:
        raise ToolfoldError(f"{shorten(str(answer), 40)!r} is not a valid answer: use {', '.join(offered)}")
    return parsed
