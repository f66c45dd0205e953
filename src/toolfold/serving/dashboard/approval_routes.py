"""Approval questions that wait for an answer in the dashboard.

A question is asked only while a page is open, here, in another process of the user or on another replica,
or if it is announced in a chat; otherwise nobody can answer, and the call is refused at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from toolfold.core.types import Answer, ApprovalRequest, Json
from toolfold.safety.approval.answer_texts import ANSWER_LABELS, explain_answer
from toolfold.safety.approval.prompting import QuestionUnanswered
from toolfold.safety.approval.safe_text import make_visible, shorten_middle
from toolfold.safety.redaction import Redaction

MAX_PENDING = 200
MAX_SHOWN_CHARS = 8_000
CHECK_INTERVAL_S = 1.0
RELOAD_TIMEOUT_S = 10.0
"""How long questions wait for a page to come back after the last one was closed."""
MAX_COMMAND_CHARS = 8_000
MAX_REASON_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """An approval question that waits for an answer, and the event loop in which the tool call waits."""

    id: str
    request: ApprovalRequest
    future: asyncio.Future[Answer]
    loop: asyncio.AbstractEventLoop
    at: float = field(default_factory=time.time)


class QuestionExchange:
    """Exchange of approval questions with other processes; does nothing by default. Thread-safe."""

    def has_other_pages(self) -> bool:
        """Return True if a dashboard page is open in another process, where a person can answer questions."""
        return False

    def add(self, question_id: str, description: Json, answers: tuple[str, ...]) -> None:
        """Show an approval question of this process on the pages of other processes."""

    def remove(self, question_id: str) -> None:
        """Withdraw an approval question of this process from the pages of other processes."""

    def update_page(self) -> None:
        """Notify the other processes that a dashboard page was opened or closed in this process."""

    def list_remote(self) -> list[Json]:
        """Return the open approval questions of other processes."""
        return []

    def answer(self, question_id: str, answer: str) -> bool:  # noqa: ARG002
        """Answer a question of another process; return False if it is not open there. May block."""
        return False

    def close(self) -> None:
        """End the exchange, and withdraw the questions of this process."""


def make_page_approver(config_secrets: tuple[str, ...], *, is_announced: bool = False) -> PageApprover:
    """Return an approver that asks in the dashboard; the runtime must be opened with this approver.

    `is_announced` says that questions are sent to a chat too, so that somebody may open a page for them.
    """
    return PageApprover(Redaction(config_secrets, max_chars=MAX_SHOWN_CHARS), is_announced=is_announced)


class PageApprover:
    """Approver that asks a runtime's approval questions in the dashboard. Thread-safe."""

    def __init__(self, redact: Redaction, *, is_announced: bool = False) -> None:
        self._redact, self._is_announced = redact, is_announced
        self._lock = threading.Lock()
        self._pending: dict[str, PendingApproval] = {}
        self.is_page_open: Callable[[], bool] = lambda: False
        """Tells whether a signed-in page of this process is open that would show a question."""
        self.exchanges: list[QuestionExchange] = []
        """Exchanges with replicas, and with other processes of the user."""
        self.name_user: Callable[[str], str] = lambda _user_id: ""
        """Function that returns the name of the gateway's user with an id."""

    async def __call__(self, request: ApprovalRequest, /) -> Answer:
        """Show an approval question and wait for its answer. Raises QuestionUnanswered if no page is open."""
        loop = asyncio.get_running_loop()
        pending = PendingApproval(secrets.token_urlsafe(12), request, loop.create_future(), loop)
        with self._lock:
            if not self._can_ask() or len(self._pending) >= MAX_PENDING:
                raise QuestionUnanswered("nobody could be asked for approval")
            self._pending[pending.id] = pending
        offered = tuple(each.value for each in _order_answers(request.answers))
        for exchange in self.exchanges:
            exchange.add(pending.id, self._describe(pending), offered)
        try:
            return await self._wait_for_answer(pending)
        finally:
            with self._lock:
                self._pending.pop(pending.id, None)
            for exchange in self.exchanges:
                exchange.remove(pending.id)

    def _can_ask(self) -> bool:
        """Return True if a page that can show approval questions is open anywhere, or may be opened."""
        return (
            self._is_announced
            or self.is_page_open()
            or any(each.has_other_pages() for each in self.exchanges)
        )

    async def _wait_for_answer(self, pending: PendingApproval) -> Answer:
        """Wait for the answer to an approval question while a dashboard page is open or being reloaded."""
        last_open = time.monotonic()
        while not pending.future.done():
            await asyncio.wait({pending.future}, timeout=CHECK_INTERVAL_S)
            if self._can_ask():
                last_open = time.monotonic()
            elif time.monotonic() - last_open > RELOAD_TIMEOUT_S and not pending.future.done():
                raise QuestionUnanswered("the dashboard was closed before somebody answered")
        return pending.future.result()

    def answer(self, pending_id: str, answer: str) -> bool:
        """Answer an approval question; return False if it is no longer open or does not offer this answer.

        Blocks if the question waits in another process.
        """
        with self._lock:
            is_own = pending_id in self._pending
        if is_own:
            return self.answer_own(pending_id, answer)
        return any(each.answer(pending_id, answer) for each in self.exchanges)

    def answer_own(self, pending_id: str, answer: str) -> bool:
        """Answer an approval question that was asked by this process."""
        with self._lock:
            pending = self._pending.get(pending_id)
        chosen = next((each for each in Answer if each.value == answer), None)
        if pending is None or chosen is None or chosen not in (*pending.request.answers, Answer.DENY):
            return False
        pending.loop.call_soon_threadsafe(_resolve, pending.future, chosen)
        return True

    def list_pending(self) -> list[Json]:
        """Return the open approval questions of all processes as JSON data, oldest first, without secrets."""
        # A replica on the same machine shows its questions in both ways. An own question always wins.
        found = {question["id"]: question for each in self.exchanges for question in each.list_remote()}
        found |= {question["id"]: question for question in self.list_own()}
        return sorted(found.values(), key=lambda each: float(each["at"]))

    def list_own(self) -> list[Json]:
        """Return the open approval questions of this process as JSON data, oldest first."""
        with self._lock:
            pending = list(self._pending.values())
        return [self._describe(each) for each in pending]

    def update_pages(self) -> None:
        """Notify other processes that a page was opened or closed in this one."""
        for each in self.exchanges:
            each.update_page()

    def close(self) -> None:
        """End the exchanges with other processes."""
        for each in self.exchanges:
            each.close()

    def _describe(self, pending: PendingApproval) -> Json:
        request = pending.request
        redact = self._redact.with_secrets_from(request.command)
        command = request.command or json.dumps(request.args, ensure_ascii=False, indent=1, default=str)

        def show(text: str, limit: int = MAX_REASON_CHARS) -> str:
            return make_visible(shorten_middle(redact(text), limit))

        return {
            "id": pending.id,
            "at": pending.at,
            "tool": make_visible(request.tool.name),
            "emoji": request.tool.emoji,
            "session": request.session_id,
            "client": make_visible(request.client),
            "user": make_visible(self.name_user(request.user_id)),
            "process": os.getpid(),
            "is_command": bool(request.command),
            "command": show(command, MAX_COMMAND_CHARS),
            "part": show(request.part) if request.part.strip() != request.command.strip() else "",
            "reason": show(request.reason),
            "also": [show(each) for each in request.also[:10]],
            "severity": request.severity,
            "category": request.category,
            "rules": list(request.rules),
            "answers": [
                {
                    "value": each.value,
                    "text": ANSWER_LABELS[each],
                    "meaning": redact(explain_answer(each, request)),
                }
                for each in _order_answers(request.answers)
            ],
        }


def _order_answers(answers: tuple[Answer, ...]) -> list[Answer]:
    return [each for each in ANSWER_LABELS if each in answers or each is Answer.DENY]


def _resolve(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)
