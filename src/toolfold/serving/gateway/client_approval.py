"""Ask the user of an MCP client for approval, through the client.

Clients of the handshake revisions are asked during the call, by elicitation. Clients of the newest revision
get an "input required" result, collect the answer and repeat the call; until then the call is paused here.
Accepting the form allows the call once unless the user chose another answer in it. Declining or closing the
form, a timeout, and an answer that was not offered all refuse the call. Clients without a user interface
decline or close the form by themselves and do not report that they did.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from toolfold.core.types import Answer, ApprovalRequest, Json, ToolResult
from toolfold.safety.approval.prompting import QuestionUnanswered
from toolfold.safety.approval.safe_text import make_visible, shorten_middle

if TYPE_CHECKING:
    import mcp_types

    from toolfold.serving.gateway.client_channels import RequestContext

RequireUser = Callable[[], Awaitable[None]]
"""Raises UntrustedClient if the client that made the request must not answer for the user."""

MAX_PAUSED_CALLS = 64
PAUSE_TIMEOUT_S = 300.0
MAX_COMMAND_CHARS = 4_000
INPUT_KEY = "toolfold"
GATEWAY_STATE_PREFIX = "toolfold:"
"""Prefix of the request states of paused calls, as opposed to the states of servers."""
SERVER_STATE_PREFIX = "server:"


def build_question(request: ApprovalRequest) -> tuple[str, Json]:
    """Return the message and the form schema with which a client asks its user for approval."""
    what = request.command or json.dumps(request.args, ensure_ascii=False, default=str)
    part = request.part if request.part.strip() != request.command.strip() else ""
    lines = [
        f"Allow {request.tool.name!r} to run?",
        make_visible(shorten_middle(what, MAX_COMMAND_CHARS)),
        *([f"The part that matters: {make_visible(shorten_middle(part, 500))}"] if part else []),
        f"Why you are asked: {make_visible(request.reason)}",
        *(f"Also: {make_visible(each)}" for each in request.also[:5]),
    ]
    offered = _offered_answers(request)
    lines += ["Accept to allow it, decline to refuse it."]
    if not offered:
        return "\n".join(lines), {"type": "object", "properties": {}}
    choice = {
        "type": "string",
        "title": "Allow",
        "description": "What your permission covers, if you accept.",
        "enum": [each.value for each in offered],
        "enumNames": [_explain_answer(each, request) for each in offered],
        "default": offered[0].value,
    }
    return "\n".join(lines), {"type": "object", "properties": {"answer": choice}}


def parse_answer(action: str, content: object, request: ApprovalRequest) -> Answer:
    """Return the user's approval answer in an elicitation result; accepting without a choice allows one call.

    Raises QuestionUnanswered if the client gives no sign that a person answered.
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
    """Return the answers that a user can choose for an approval question, least permissive first.

    Refusing is the client's own button. Answers that are written to the configuration are left out: a client
    answers for itself, not for every other client.
    """
    return [each for each in (Answer.ONCE, Answer.SESSION, Answer.KIND) if each in request.answers]


def _explain_answer(answer: Answer, request: ApprovalRequest) -> str:
    """Return a text that says which calls an approval answer permits, and for how long."""
    if answer is Answer.ONCE:
        return "this call only"
    if answer is Answer.SESSION:
        covered = make_visible(request.session_covers) or "the same call again"
        return f"this and {covered}, until the client disconnects"
    kinds = shorten_middle(", ".join(map(make_visible, request.kinds)), 200)
    return f"every {kinds}, until the client disconnects"


class PausedCall:
    """Call that may pause to ask its client a question, and continues when the client repeats the call."""

    def __init__(self, name: str, args: Json | None, require_user: RequireUser) -> None:
        self.name, self.args = name, args
        self._require_user = require_user
        self.created = time.monotonic()
        self._question_lock = asyncio.Lock()
        self._request: mcp_types.InputRequest | None = None
        self._has_paused_or_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._response: asyncio.Future[Json] | None = None
        self._task: asyncio.Task[ToolResult] | None = None

    def start(self, work: Coroutine[Any, Any, ToolResult]) -> None:
        self._task = asyncio.create_task(self._run(work))
        self._task.add_done_callback(lambda _: self._wake_waiter())  # it may be cancelled before it starts

    async def _run(self, work: Coroutine[Any, Any, ToolResult]) -> ToolResult:
        try:
            return await work
        finally:
            self._wake_waiter()  # one turn of the loop earlier than the callback of the task

    def _wake_waiter(self) -> None:
        if not self._has_paused_or_ended.done():
            self._has_paused_or_ended.set_result(None)

    async def ask_client(self, request: mcp_types.InputRequest) -> Json:
        """Send a request to the client and return its response, which it sends when repeating its call."""
        async with self._question_lock:  # one question at a time
            self._response = asyncio.get_running_loop().create_future()
            self._request = request
            self._wake_waiter()
            return await self._response

    async def approve(self, request: ApprovalRequest) -> Answer:
        """Ask the client's user for approval.

        Raises UntrustedClient if, before or after the question, the client may not answer for the user.
        """
        await self._require_user()
        response = await self.ask_client(_build_elicitation(request))
        await self._require_user()
        return parse_answer(str(response.get("action")), response.get("content"), request)

    async def wait(self) -> ToolResult | None:
        """Wait for the result of the call; return None if the client must first answer a request."""
        assert self._task is not None  # noqa: S101 - start() comes first
        try:
            if not self._task.done():
                await self._has_paused_or_ended
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self._task.result() if self._task.done() else None

    @property
    def request(self) -> mcp_types.InputRequest:
        """Return the request that the client must answer, after `wait` has returned None."""
        assert self._request is not None  # noqa: S101 - the call has paused for it
        return self._request

    def resume(
        self, responses: Mapping[str, mcp_types.InputResponse] | None, require_user: RequireUser
    ) -> None:
        """Continue a paused call with the client's responses; they may arrive on another connection."""
        self._require_user = require_user
        response = (responses or {}).get(INPUT_KEY)
        self._request, self._has_paused_or_ended = None, asyncio.get_running_loop().create_future()
        if self._response is not None and not self._response.done():
            self._response.set_result({} if response is None else response.model_dump(by_alias=True))

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class PausedCalls:
    """Paused calls of one client, each stored under a random string with which the client resumes it."""

    def __init__(self) -> None:
        self._calls: dict[str, PausedCall] = {}

    def __len__(self) -> int:
        self._drop_expired()
        return len(self._calls)

    def __contains__(self, state: str | None) -> bool:
        """Return True if there is a paused call for this resumption string."""
        return state in self._calls

    def add(self, call: PausedCall) -> str:
        """Store a paused call and return the random string with which the client resumes it."""
        self._drop_expired()
        state = GATEWAY_STATE_PREFIX + secrets.token_urlsafe(24)
        self._calls[state] = call
        return state

    def take(self, state: str, name: str, args: Json | None) -> PausedCall | None:
        """Remove and return a paused call; cancel it and return None if tool or arguments differ."""
        call = self._calls.pop(state, None)
        if call is None or (call.name, call.args) == (name, args):
            return call
        call.cancel()
        return None

    def close(self) -> None:
        for call in self._calls.values():
            call.cancel()
        self._calls.clear()

    def _drop_expired(self) -> None:
        oldest = time.monotonic() - PAUSE_TIMEOUT_S
        for state, call in list(self._calls.items()):
            if call.created < oldest or len(self._calls) >= MAX_PAUSED_CALLS:
                self._calls.pop(state).cancel()


def elicitation_approver(
    context: RequestContext, require_user: RequireUser
) -> Callable[[ApprovalRequest], Coroutine[Any, Any, Answer]]:
    """Return an approver that asks the client's user by elicitation while the call is in progress."""

    async def approve(request: ApprovalRequest) -> Answer:
        await require_user()
        message, schema = build_question(request)
        try:
            result = await context.session.elicit_form(message, schema, related_request_id=context.request_id)
        except Exception as error:
            raise QuestionUnanswered("the client could not show the question") from error
        return parse_answer(result.action, result.content, request)

    return approve


def _build_elicitation(request: ApprovalRequest) -> mcp_types.ElicitRequest:
    import mcp_types

    message, schema = build_question(request)
    return mcp_types.ElicitRequest(
        params=mcp_types.ElicitRequestFormParams(message=message, requested_schema=schema)
    )


def build_input_required(request: mcp_types.InputRequest, state: str) -> mcp_types.InputRequiredResult:
    """Return a result that asks a client to answer a request and repeat its call with `state`."""
    import mcp_types

    return mcp_types.InputRequiredResult(input_requests={INPUT_KEY: request}, request_state=state)
