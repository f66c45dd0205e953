"""Process one user message: call the model and run its tool calls until it answers.

`TurnLoop.run` is read from top to bottom. Every tool is reached through `Session.call_all`, so that scope,
hooks, validation and approval apply as everywhere. Every step is stored before the next one starts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from toolfold.agent.agent_limits import FailureCounter, TurnBudget
from toolfold.agent.compression import (
    KEPT_SHARE,
    WriteTranscript,
    count_message_tokens,
    find_cut,
    write_summary,
)
from toolfold.agent.drafts import DraftWriter
from toolfold.agent.history import SessionHistory
from toolfold.core.errors import CallError
from toolfold.core.events import (
    ContextCompressed,
    Event,
    ModelReplied,
    ModelRetried,
    StopReason,
    TextReceived,
    ThinkingReceived,
    ToolsSelected,
)
from toolfold.core.types import BRIDGE_CALL, BRIDGE_NAMES, Json, ToolCall, ToolResult
from toolfold.core.validation import parse_arguments
from toolfold.models.client import ModelClient, ReplyStream, RetryPolicy, call_model
from toolfold.models.model_table import default_output_tokens
from toolfold.models.provider_errors import ProviderError
from toolfold.models.reply import Delta, ModelRequest, Reply, TextDelta
from toolfold.runtime.results import render
from toolfold.runtime.session import Session
from toolfold.selection.turn import unwrap
from toolfold.selection.turn.placement import Request
from toolfold.selection.turn.pricing import cost_of_call, find_prices
from toolfold.selection.turn.tokens import TokenCounter, compact, tokenizer_for

log = logging.getLogger(__name__)

CONTINUE_NOTICE = (
    "Your answer was cut {limit}. Continue it exactly where it stopped, without repeating anything."
)
ANSWER_BRIEFLY_NOTICE = "Your reply was cut {limit}, before the answer began. Answer now, briefly."
EMPTY_NOTICE = "Your reply was empty. Answer the user, or call a tool."
CUT_CALL = (
    "Your reply was cut {limit}, before this call was complete. It was not run, and the same call will be cut"
    " again. Write less in one call. For a long file: write_file with the first part, then write_file with"
    " append=true for each further part."
)

UNKNOWN_CONTEXT_TOKENS = 128_000
"""Size of the context window that is assumed if the model's is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSetup:
    """The model of a session, with its client and options."""

    client: ModelClient
    model: str
    context_tokens: int | None = None
    max_output_tokens: int | None = None
    retries: RetryPolicy = RetryPolicy()  # noqa: RUF009 - immutable
    stream: bool = True
    auxiliary: ModelSetup | None = None
    """The model that writes summaries, if it differs from `model`."""


class TurnLoop:
    """Loop of one turn: calls the model and its tools until the user message is answered. Use it once."""

    def __init__(
        self,
        session: Session,
        history: SessionHistory,
        setup: ModelSetup,
        budget: TurnBudget,
        *,
        publish: Callable[[Event], None],
        compress_at: float = 0.75,
        export_state: Callable[[], Json] = dict,
    ) -> None:
        self._session, self._history, self._setup, self._budget = session, history, setup, budget
        self._publish, self._compress_at, self._export_state = publish, compress_at, export_state
        self._counter = TokenCounter(tokenizer_for(setup.model))
        self._stream: ReplyStream | None = None
        self._draft: DraftWriter | None = None
        self._request: Request | None = None
        self._tools_tokens = 0
        self._results: dict[str, ToolResult] = {}
        self._failures = FailureCounter(budget.limits.max_repeated_failures)
        self._answer = ""
        """Text of the answer so far; a cut answer continues in the next reply."""
        self._was_asked_again = False

    async def run(self) -> tuple[StopReason, str, str]:
        """Call the model and its tools until it answers without a tool call, or a limit is reached.

        Returns why the turn ended, the answer and, if there is a problem, its description.
        """
        while (reached := self._budget.exceeded()) is None:
            await self._compress_if_needed()
            request = await self._prepare_request()
            reply = await self._call_model(request)
            if reply is None:
                continue  # the history was too long and has been compressed
            await self._history.add_reply(reply, state=self._export_state())
            if not reply.calls:
                if ending := await self._finish_or_ask_again(reply):
                    return ending
                continue
            self._answer = ""
            results = await self._run_calls(reply)
            await self._history.add_results(results, request.answer(*results), state=self._export_state())
            if self._failures.problem:
                return "repeated_failure", "", self._failures.problem
        return reached, self._answer, ""

    async def _finish_or_ask_again(self, reply: Reply) -> tuple[StopReason, str, str] | None:
        """Return how the turn ends with this answer; None if the model was asked to complete it."""
        self._answer += reply.text
        if reply.finish_reason == "refusal" and not self._answer.strip():
            return "error", "", "the model refused to answer and gave no reason"
        if reply.is_cut:
            limit = self._describe_output_limit(reply)
            ending: tuple[StopReason, str, str] = "output_limit", self._answer, f"the answer was cut {limit}"
            notice = CONTINUE_NOTICE if reply.text.strip() else ANSWER_BRIEFLY_NOTICE
            notice = notice.format(limit=limit)
        elif not reply.text.strip():
            ending, notice = ("empty_reply", self._answer, "the model returned an empty reply"), EMPTY_NOTICE
        else:
            return "completed", self._answer, ""
        if self._was_asked_again:
            return ending
        self._was_asked_again = True
        await self._history.add_notice(notice)
        return None

    def _describe_output_limit(self, reply: Reply) -> str:
        tokens = reply.usage.output_tokens or self._setup.max_output_tokens
        return f"at {tokens:,} output tokens" if tokens else "at the output limit"

    async def _prepare_request(self) -> Request:
        dialect = self._history.dialect
        request = await self._session.prepare_request(
            self._history.messages, model=self._setup.model, form=dialect.name, cache=True
        )
        self._request = request
        self._publish_selection(request)
        return request

    def _publish_selection(self, request: Request) -> None:
        turn = request.turn
        tokens = self._tools_tokens = self._counter.text(compact(request.tools)) if request.tools else 0
        whole = self._counter.definitions(tool.definition() for tool in turn.offered)
        selection = turn.selection
        self._publish(
            ToolsSelected(
                session_id=self._session.id,
                turn=self._history.turn,
                shown=tuple(tool.name for tool in turn.tools if tool.name not in BRIDGE_NAMES),
                reasons=dict(selection.why) if selection else {},
                available=len(turn.offered),
                tool_search=turn.searchable,
                tokens=tokens,
                tokens_saved=max(0, whole - tokens),
                why=turn.why,
            )
        )

    async def _call_model(self, request: Request) -> Reply | None:
        """Return the model's reply; None if the request was too long, so that the history was compressed."""
        setup, started = self._setup, time.perf_counter()
        history = self._history
        draft = self._draft = DraftWriter(history.thread, history.save_draft, self._publish_text)

        def receive(delta: Delta) -> None:
            if isinstance(delta, TextDelta):
                draft.add(delta.text)
            else:
                self._publish_thinking(delta.text)

        try:
            reply = await call_model(
                setup.client,
                ModelRequest(
                    model=setup.model,
                    system=self._history.record.system,
                    messages=request.messages,
                    tools=request.tools,
                    max_output_tokens=setup.max_output_tokens,
                    stream=setup.stream,
                    headers=request.headers,
                ),
                on_delta=receive,
                on_retry=self._publish_retry,
                on_stream=self._remember_stream,
                retries=setup.retries,
            )
        except ProviderError as error:
            if error.kind != "context_length" or not await self._compress():
                raise
            return None
        await draft.finish()
        self._stream = None
        self._count_reply(reply, time.perf_counter() - started, setup)
        return reply

    def _publish_thinking(self, text: str) -> None:
        self._publish(ThinkingReceived(session_id=self._session.id, turn=self._history.turn, text=text))

    def _publish_text(self, text: str) -> None:
        self._publish(TextReceived(session_id=self._session.id, turn=self._history.turn, text=text))

    def _publish_retry(self, attempt: int, delay: float, error: ProviderError) -> None:
        self._publish(
            ModelRetried(
                session_id=self._session.id,
                turn=self._history.turn,
                attempt=attempt,
                delay_s=delay,
                reason=str(error),
            )
        )

    def _remember_stream(self, stream: ReplyStream) -> None:
        self._stream = stream

    def _count_reply(
        self,
        reply: Reply,
        seconds: float,
        setup: ModelSetup,
        purpose: Literal["answer", "summary"] = "answer",
    ) -> None:
        cost = cost_of_call(reply.usage, find_prices(setup.model))
        self._budget.add_call(reply.usage, cost)
        self._publish(
            ModelReplied(
                session_id=self._session.id,
                turn=self._history.turn,
                model=reply.model or setup.model,
                usage=reply.usage,
                cost=cost,
                duration_s=seconds,
                calls=tuple(name for call in reply.calls if (name := real_tool_name(call))),
                provider=setup.client.name,
                purpose=purpose,
            )
        )

    async def _run_calls(self, reply: Reply) -> list[ToolResult]:
        complete, cut = _split_cut_call(reply)
        await self._history.start_calls(complete)
        self._results = {}
        results = await self._session.call_all(complete, on_result=self._keep_result)
        counted = [
            self._failures.add_result(call, result) for call, result in zip(complete, results, strict=True)
        ]
        if cut is None:
            return counted
        problem = CUT_CALL.format(limit=self._describe_output_limit(reply))
        result = ToolResult(call_id=cut.id, name=cut.name, text=render({"error": problem}), error=problem)
        # Each attempt is cut at another place, so the arguments do not tell that it is the same call.
        return [*counted, self._failures.add_result(replace(cut, arguments=None), result)]

    def _keep_result(self, result: ToolResult) -> None:
        self._results[result.call_id] = result
        self._history.keep_result(result)

    async def interrupt(self) -> str:
        """Make the history valid after a cancellation, and return the text of the unfinished reply."""
        text = ""
        if self._draft is not None:
            await self._draft.finish()
        if self._stream is not None:
            reply = self._stream.reply
            text, self._stream = reply.text, None
            await self._history.add_reply(reply)
        request = self._request
        dialect = self._history.dialect
        await self._history.complete_calls(
            self._results,
            lambda results: request.answer(*results) if request else dialect.render_results(results),
        )
        return text

    async def _compress_if_needed(self) -> None:
        """Compress the history if input and reply together might not fit into the context window."""
        setup = self._setup
        window = setup.context_tokens or UNKNOWN_CONTEXT_TOKENS
        output = setup.max_output_tokens or default_output_tokens(setup.model, window)
        fixed = self._counter.text(self._history.record.system) + self._tools_tokens
        used = fixed + count_message_tokens(self._history.messages, self._counter)
        if used > min(window * self._compress_at, window - output):
            await self._compress()

    async def _compress(self) -> bool:
        """Replace the oldest messages by a summary; return False if nothing can be replaced."""
        window = self._setup.context_tokens or UNKNOWN_CONTEXT_TOKENS
        history = self._history
        before = count_message_tokens(history.messages, self._counter)
        keep = int(min(window, before) * KEPT_SHARE)
        cut = find_cut(history.entries, self._counter, keep_tokens=keep)
        if not cut:
            return False
        count_before = len(history.messages)
        summary = await write_summary(history.entries, cut, history.dialect, self._summarise)
        await history.replace_oldest(cut, summary)
        self._publish(
            ContextCompressed(
                session_id=self._session.id,
                turn=history.turn,
                messages_before=count_before,
                messages_after=len(history.messages),
                tokens_before=before,
                tokens_after=count_message_tokens(history.messages, self._counter),
            )
        )
        return True

    async def _summarise(self, instruction: str, write_transcript: WriteTranscript) -> str:
        """Write a summary with the model configured for summaries or, without one, the session's model."""
        if self._setup.auxiliary is not None:
            try:
                return await self._summarise_with(self._setup.auxiliary, instruction, write_transcript)
            except ProviderError as error:
                log.warning("%s wrote no summary (%s)", self._setup.auxiliary.model, error)
        return await self._summarise_with(self._setup, instruction, write_transcript)

    async def _summarise_with(
        self, setup: ModelSetup, instruction: str, write_transcript: WriteTranscript
    ) -> str:
        started = time.perf_counter()
        reply = await call_model(
            setup.client,
            ModelRequest(
                model=setup.model,
                system=instruction,
                messages=[setup.client.dialect.user_message(write_transcript(setup.context_tokens))],
                stream=setup.stream,
            ),
            on_delta=lambda _: None,
            on_retry=self._publish_retry,
            on_stream=lambda _: None,
            retries=setup.retries,
        )
        self._count_reply(reply, time.perf_counter() - started, setup, "summary")
        return reply.text


def _split_cut_call(reply: Reply) -> tuple[Sequence[ToolCall], ToolCall | None]:
    """Return the complete calls of a reply, and the last one if the output limit has cut it."""
    *complete, last = reply.calls
    if not reply.is_cut or _has_whole_arguments(last):
        return reply.calls, None
    return complete, last


def _has_whole_arguments(call: ToolCall) -> bool:
    if not call.arguments:  # the limit was reached before the first argument
        return False
    try:
        parse_arguments(call.name, call.arguments)
    except CallError:
        return False
    return True


def real_tool_name(call: ToolCall) -> str:
    """Return the name of the tool run by a call; empty for a tool search or a malformed call."""
    if call.name != BRIDGE_CALL:
        return "" if call.name in BRIDGE_NAMES else call.name
    try:
        return unwrap(call).name
    except Exception:  # a malformed call: dispatch will tell the model what is wrong with it
        return ""
