"""Ask the user of an MCP client for approval, through the client.

Older clients are asked in the middle of a call (elicitation). Newer ones are told that input is required,
answer, and make the same call again; meanwhile the call waits here. Accepting the form allows the call once
unless another answer was chosen in it; declining it, closing it, no answer in time and an answer that was not
offered refuse the call. Clients without a screen decline or close the form by themselves, and do not say so.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from toolfold.approval.asking import QuestionUnanswered
from toolfold.approval.visible import brief, visible
from toolfold.model import Answer, ApprovalRequest, Json

if TYPE_CHECKING:
    import mcp_types

RequireUser = Callable[[], Awaitable[None]]

MOST_WAITING = 64
SECONDS = 300.0
LONGEST = 4_000
KEY = "toolfold"
OWN = "toolfold:"
"""What the states of our own calls begin with; those of the servers behind us begin with `SERVERS`."""
SERVERS = "server:"


def question(request: ApprovalRequest) -> tuple[str, Json]:
    """Build the message and the form that a client shows its user."""
    what = request.command or json.dumps(request.args, ensure_ascii=False, default=str)
    part = request.part if request.part.strip() != request.command.strip() else ""
    lines = [
        f"Allow {request.tool.name!r} to run?",
        visible(brief(what, LONGEST)),
        *([f"The part that matters: {visible(brief(part, 500))}"] if part else []),
        f"Why you are asked: {visible(request.reason)}",
        *(f"Also: {visible(each)}" for each in request.also[:5]),
    ]
    offered = _offered_answers(request)
    lines += ["Accept to allow it, decline to refuse it."]
    if not offered:
        return "\n".join(lines), {"type": "object", "properties": {}}
    choice = {
        "type": "string",
        "title": "Allow",
        "description": "How far your permission reaches, if you accept.",
        "enum": [each.value for each in offered],
        "enumNames": [_explain_answer(each, request) for each in offered],
        "default": offered[0].value,
    }
    return "\n".join(lines), {"type": "object", "properties": {"answer": choice}}


def heard(action: str, content: Any, request: ApprovalRequest) -> Answer:
    """Return the user's answer. Accepting without a choice allows the call once.

    Raises QuestionUnanswered where it is not known that a person answered.
    """
    if action == "decline":
        raise QuestionUnanswered("the client declined (some clients do so without showing the question)")
    if action != "accept":
        raise QuestionUnanswered("the client did not answer the question")
    if not (content is None or isinstance(content, dict)):
        return Answer.DENY
    offered = {each.value: each for each in _offered_answers(request)}
    choice = (content or {}).get("answer", Answer.ONCE.value)
    return offered.get(choice, Answer.DENY) if isinstance(choice, str) else Answer.DENY


def _offered_answers(request: ApprovalRequest) -> list[Answer]:
    """The permissions to choose from, the narrowest first.

    Refusing is the client's own button. Answers that are written to the configuration are left out: a client
    answers for itself, not for every other client.
    """
    return [each for each in (Answer.ONCE, Answer.SESSION, Answer.KIND) if each in request.answers]


def _explain_answer(answer: Answer, request: ApprovalRequest) -> str:
    """What one of the permissions covers, for the user to choose by."""
    if answer is Answer.ONCE:
        return "this call only"
    if answer is Answer.SESSION:
        covered = visible(request.session_covers) or "the same call again"
        return f"this and {covered}, until the client disconnects"
    kinds = brief(", ".join(map(visible, request.kinds)), 200)
    return f"every {kinds}, until the client disconnects"


class Waiting:
    """A call that may stop to ask its client something, and goes on when it is made again."""

    def __init__(self, name: str, args: Json | None, require_user: RequireUser) -> None:
        """`require_user` raises UntrustedClient where whoever makes the call must not answer for the user."""
        self.name, self.args = name, args
        self._require_user = require_user
        self.since = time.monotonic()
        self._turn = asyncio.Lock()
        self._asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answer: asyncio.Future[Any] | None = None
        self._task: asyncio.Task[Any] | None = None

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        self._task = asyncio.create_task(work)

    async def ask(self, request: Any) -> Any:
        """Ask the client, with a request of the protocol; waits until the call has been made again."""
        async with self._turn:  # one question at a time
            self._answer = asyncio.get_running_loop().create_future()
            self._asked.set_result(request)
            return await self._answer

    async def approve(self, request: ApprovalRequest) -> Answer:
        """For approval: ask the client's user. Who asks and who answers must both be trusted."""
        await self._require_user()
        said = await self.ask(_form(request))
        await self._require_user()
        return heard(str(said.get("action")), said.get("content"), request)

    async def outcome(self) -> tuple[bool, Any]:
        """What came of it: False and a question that must be asked first, or True and the result."""
        assert self._task is not None  # noqa: S101 - started before anybody waits
        try:
            await asyncio.wait({self._task, self._asked}, return_when="FIRST_COMPLETED")
        except asyncio.CancelledError:
            self.give_up()
            raise
        return (True, self._task.result()) if self._task.done() else (False, self._asked.result())

    def answer(self, responses: Any, require_user: RequireUser) -> None:
        """The client has come back with this, maybe by another connection; go on."""
        self._require_user = require_user
        said = (responses or {}).get(KEY)
        plain = said if isinstance(said, dict) else said.model_dump(by_alias=True) if said is not None else {}
        self._asked = asyncio.get_running_loop().create_future()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(plain)

    def give_up(self) -> None:
        if self._task is not None:
            self._task.cancel()


class WaitingRoom:
    """The calls of one client that wait for an answer, by a state nobody can guess."""

    def __init__(self) -> None:
        self._calls: dict[str, Waiting] = {}

    def __len__(self) -> int:
        self._forget_old()
        return len(self._calls)

    def keep(self, call: Waiting) -> str:
        """The state under which the call is found again."""
        self._forget_old()
        state = OWN + secrets.token_urlsafe(24)
        self._calls[state] = call
        return state

    def take(self, state: str, name: str, args: Json | None) -> Waiting | None:
        """The call that waits under this state, if it is the same call."""
        found = self._calls.pop(state, None)
        if found is None or (found.name, found.args) == (name, args):
            return found
        found.give_up()
        return None

    def close(self) -> None:
        for call in self._calls.values():
            call.give_up()
        self._calls.clear()

    def _forget_old(self) -> None:
        oldest = time.monotonic() - SECONDS
        for state, call in list(self._calls.items()):
            if call.since < oldest or len(self._calls) >= MOST_WAITING:
                self._calls.pop(state).give_up()


def asked_in_the_middle(
    context: Any, require_user: RequireUser
) -> Callable[[ApprovalRequest], Coroutine[Any, Any, Answer]]:
    """An approver that asks an older client while the call is under way."""

    async def approve(request: ApprovalRequest) -> Answer:
        await require_user()
        words, form = question(request)
        try:
            said = await context.session.elicit_form(words, form, related_request_id=context.request_id)
        except Exception as error:
            raise QuestionUnanswered("the client could not show the question") from error
        return heard(said.action, said.content, request)

    return approve


def _form(request: ApprovalRequest) -> mcp_types.ElicitRequest:
    import mcp_types

    words, form = question(request)
    return mcp_types.ElicitRequest(
        params=mcp_types.ElicitRequestFormParams(message=words, requested_schema=form)
    )


def to_be_asked(request: Any, state: str) -> mcp_types.InputRequiredResult:
    """What a newer client is told."""
    import mcp_types

    return mcp_types.InputRequiredResult(input_requests={KEY: request}, request_state=state)
