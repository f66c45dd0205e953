"""How a client's person is asked, through the client: may this run?

Older clients are asked in the middle of a call. Newer ones are told that more is needed, answer, and make
the same call again; meanwhile the call waits here. Nobody to ask, no answer in time or an answer that was
not offered is a no: that is for approval to say, and it is told nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from toolfold.errors import shown
from toolfold.model import Answer, ApprovalRequest, Json

if TYPE_CHECKING:
    import mcp_types

MOST_WAITING = 64
SECONDS = 300.0
KEY = "toolfold_approval"
OWN = "toolfold:"
"""What the states of our own calls begin with; those of the servers behind us begin with `SERVERS`."""
SERVERS = "server:"


def question(request: ApprovalRequest) -> tuple[str, Json]:
    """The words and the form that a client shows its person."""
    what = request.command or json.dumps(request.args, ensure_ascii=False, default=str)
    lines = [
        f"May {request.tool.name!r} run?",
        shown(what, 4_000),
        f"Why you are asked: {request.reason}",
        *(f"Also: {each}" for each in request.also[:5]),
    ]
    offered = [each.value for each in request.answers]
    answer = {"type": "string", "title": "Answer", "enum": offered, "default": Answer.DENY.value}
    return "\n".join(lines), {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}


def heard(action: str, content: Any, request: ApprovalRequest) -> Answer:
    """What the person said, if it is one of the answers that were offered."""
    said = content.get("answer") if action == "accept" and isinstance(content, dict) else None
    offered = {each.value: each for each in request.answers}
    return offered.get(said, Answer.DENY) if isinstance(said, str) else Answer.DENY


class Waiting:
    """A call that may stop to ask, and goes on when it is made again."""

    def __init__(self, name: str, args: Json | None) -> None:
        self.name, self.args = name, args
        self.since = time.monotonic()
        self._asked: asyncio.Future[ApprovalRequest] = asyncio.get_running_loop().create_future()
        self._answer: asyncio.Future[Answer] | None = None
        self._task: asyncio.Task[Any] | None = None

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        self._task = asyncio.create_task(work)

    async def approve(self, request: ApprovalRequest) -> Answer:
        """For approval: waits until the client has made the call again."""
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        if not self._asked.done():
            self._asked.set_result(request)
        return await self._answer

    async def outcome(self) -> ApprovalRequest | Any:
        """What came of it: a question that must be asked first, or the result."""
        assert self._task is not None  # noqa: S101 - started before anybody waits
        try:
            await asyncio.wait({self._task, self._asked}, return_when="FIRST_COMPLETED")
        except asyncio.CancelledError:
            self.give_up()
            raise
        return self._task.result() if self._task.done() else self._asked.result()

    def answer(self, said: Answer) -> None:
        """The client has asked; go on."""
        self._asked = asyncio.get_running_loop().create_future()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(said)

    def give_up(self) -> None:
        if self._task is not None:
            self._task.cancel()


class WaitingRoom:
    """The calls of one client that wait for an answer, by a state nobody can guess."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[Waiting, ApprovalRequest]] = {}

    def keep(self, call: Waiting, request: ApprovalRequest) -> str:
        """The state under which the call is found again."""
        self._forget_old()
        state = OWN + secrets.token_urlsafe(24)
        self._calls[state] = call, request
        return state

    def take(self, state: str, name: str, args: Json | None) -> tuple[Waiting, ApprovalRequest] | None:
        """The call that waits under this state, if it is the same call."""
        found = self._calls.pop(state, None)
        if found is None or (found[0].name, found[0].args) != (name, args):
            if found is not None:
                found[0].give_up()
            return None
        return found

    def close(self) -> None:
        for call, _ in self._calls.values():
            call.give_up()
        self._calls.clear()

    def _forget_old(self) -> None:
        oldest = time.monotonic() - SECONDS
        for state, (call, _) in list(self._calls.items()):
            if call.since < oldest or len(self._calls) >= MOST_WAITING:
                self._calls.pop(state)[0].give_up()


def asked_in_the_middle(context: Any) -> Callable[[ApprovalRequest], Coroutine[Any, Any, Answer]]:
    """An approver that asks an older client while the call is under way."""

    async def approve(request: ApprovalRequest) -> Answer:
        words, form = question(request)
        with contextlib.suppress(Exception):  # a client that cannot answer has not said yes
            said = await context.session.elicit_form(words, form, related_request_id=context.request_id)
            return heard(said.action, said.content, request)
        return Answer.DENY

    return approve


def to_be_asked(request: ApprovalRequest, state: str) -> mcp_types.InputRequiredResult:
    """What a newer client is told."""
    import mcp_types

    words, form = question(request)
    params = mcp_types.ElicitRequestFormParams(message=words, requested_schema=form)
    return mcp_types.InputRequiredResult(
        input_requests={KEY: mcp_types.ElicitRequest(params=params)}, request_state=state
    )


def answered(responses: Any, request: ApprovalRequest) -> Answer:
    """What a newer client brought back."""
    said = (responses or {}).get(KEY)
    plain = said if isinstance(said, dict) else said.model_dump(by_alias=True) if said is not None else {}
    return heard(str(plain.get("action")), plain.get("content"), request)
