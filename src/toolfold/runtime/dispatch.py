"""The pipeline of every tool call, from the model's arguments to the result for the model.

Its order is a safety property, so it is written out once, in `Dispatch._run_pipeline`. Bridge calls are
unwrapped before, so that errors name the real tool. All callers reach tools through this module; there is
no other way in.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from toolfold.config.monitor import CallWatch, SettingsMonitor
from toolfold.core.errors import CallError, Refused, ToolFailed, error_message
from toolfold.core.hooks import Hooks
from toolfold.core.json_limits import is_large
from toolfold.core.loops import CallTimeout, EscapedException, EventLoops
from toolfold.core.types import (
    MCP_SOURCE,
    CallContext,
    Content,
    Effect,
    Handler,
    Json,
    Media,
    Tool,
    ToolCall,
    ToolResult,
    make_encodable,
    read_json,
)
from toolfold.core.validation import Validation
from toolfold.runtime.call_events import CallEvents
from toolfold.runtime.results import ResultStore, render
from toolfold.safety.approval.gate import Approval
from toolfold.safety.redaction import Redaction
from toolfold.selection.learning import UsageTracker
from toolfold.selection.turn import Turn, unwrap

log = logging.getLogger(__name__)

READ_TOOL = "read_file"
Slot: TypeAlias = AbstractAsyncContextManager[Any]
NO_SLOT: Final = contextlib.nullcontext()
MAX_FAILURE_CHARS = 10_000
MAX_NESTING = 4
"""Maximum depth of tool calls that handlers make while they run."""
MAX_FILES = 64
"""Maximum number of audio and other files of one result that are stored on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Runs every tool call through the same sequence of checks; see `_run_pipeline`."""

    hooks: Hooks
    validate: Validation
    approval: Approval
    loops: EventLoops
    results: ResultStore
    redact: Redaction
    events: CallEvents
    timeout: float = 120.0
    max_parallel: int = 8
    monitor: SettingsMonitor | None = None
    usage: UsageTracker | None = None
    """Learns from successful calls which tools belong to which messages."""

    async def __call__(
        self, turn: Turn, call: ToolCall, context: CallContext, *, slot: Slot = NO_SLOT
    ) -> ToolResult:
        """Run one tool call. Raises only on cancellation; all other errors become results.

        `slot` is held only while the handler runs, so that waiting for a person does not block other calls.
        """
        clock, refused = _CallClock(), False
        try:
            call = unwrap(call)
            result = await self._run_pipeline(turn, call, replace(context, call_id=call.id), slot, clock)
        except CallError as error:
            result, refused = self._result_from_error(call, error), isinstance(error, Refused)
            if refused:
                await self._check_settings(call)
        except asyncio.CancelledError:
            self._finish_cancelled(call, context, clock)
            raise
        except Exception as error:
            log.exception("dispatching %r failed", call.name)
            result = self._result_from_message(call, f"Error executing {call.name}: {error_message(error)}")
        result = replace(result, milliseconds=clock.read_milliseconds())
        registered = isinstance(call.name, str) and bool(turn.snapshot.named(call.name))
        self.events.finish(call, result, context, refused=refused, registered=registered)
        if self.usage is not None:
            self.usage.observe_call(turn, call, result, context)
        return result

    def _finish_cancelled(self, call: ToolCall, context: CallContext, clock: _CallClock) -> None:
        result = self._result_from_message(call, "The call was cancelled.")
        self.events.finish(call, replace(result, milliseconds=clock.read_milliseconds()), context)

    async def _run_pipeline(
        self, turn: Turn, call: ToolCall, context: CallContext, slot: Slot, clock: _CallClock
    ) -> ToolResult:
        tool = turn.tool(call.name)  # scope check
        _require_nestable(tool, context)
        read = functools.partial(self.validate.read, tool)
        args = await self.hooks.run_before(tool, read(call.arguments), context, read)  # may refuse, rewrite
        args = self.validate.check(tool, args)  # schema check of the final arguments
        self.events.start(tool, args, context)
        context = replace(context, nested=_NestedCalls(self, turn, context))
        with clock.paused():
            await self.approval.require(tool, args, context)  # approval of the final arguments
        async with slot, self._watch_settings(tool, context) as watch:
            with self.events.follow_progress(tool, context) as report:
                context = replace(context, report_progress=report)
                result = await self._run_handler(turn, tool, call, args, context)
        result = _with_notice(result, watch.notice)
        return await self._run_post_hooks(turn, tool, args, result, context)

    async def _check_settings(self, call: ToolCall) -> None:
        """Detect settings that processes of earlier calls have changed, even if this call may not run."""
        if self.monitor is not None:
            watch = self.monitor.watch_call(f"{call.name} (refused)", executes=False, noted=False)
            async with self.loops.enter_nowait(watch):
                pass

    def _watch_settings(self, tool: Tool, context: CallContext) -> AbstractAsyncContextManager[CallWatch]:
        """Monitor the settings files while the tool runs, unless the tool is read-only."""
        if self.monitor is None or _only_reads(tool):
            return contextlib.nullcontext(CallWatch())
        call = f"{tool.name} (call {context.call_id}, session {context.session_id})"
        executes, noted = Effect.EXECUTE in tool.effects, bool(tool.effects) or tool.source.kind == MCP_SOURCE
        return self.loops.enter_nowait(self.monitor.watch_call(call, executes=executes, noted=noted))

    async def call_all(
        self,
        turn: Turn,
        calls: Sequence[ToolCall],
        context: CallContext,
        *,
        on_result: Callable[[ToolResult], None] | None = None,
    ) -> list[ToolResult]:
        """Run the calls of one model reply, in parallel if the tools allow it; return results in call order.

        `on_result` receives each result as soon as it is there.
        """
        results: dict[int, ToolResult] = {}
        slots = asyncio.Semaphore(self.max_parallel)

        async def run_one(place: int) -> None:
            results[place] = await self(turn, calls[place], _copy_context(context), slot=slots)
            if on_result is not None:
                on_result(results[place])

        for group in self._group_calls(turn, calls):
            async with asyncio.TaskGroup() as tasks:
                for place in group:
                    tasks.create_task(run_one(place))
        return [results[place] for place in range(len(calls))]

    def _group_calls(self, turn: Turn, calls: Sequence[ToolCall]) -> list[list[int]]:
        """Group consecutive calls that may run in parallel; every other call forms its own group."""
        groups: list[list[int]] = []
        open_group = False
        for index, call in enumerate(calls):
            is_parallel = _is_parallel(turn, call)
            if is_parallel and open_group:
                groups[-1].append(index)
            else:
                groups.append([index])
            open_group = is_parallel
        return groups

    async def _run_handler(
        self, turn: Turn, tool: Tool, call: ToolCall, args: Json, context: CallContext
    ) -> ToolResult:
        call = call if call.name == tool.name else replace(call, name=tool.name)
        try:
            value = await self._call_handler(tool, args, context)
        except CallError as error:
            return self._result_from_error(call, error)
        except Exception as error:
            log.info("tool %r raised", tool.name, exc_info=True)
            cause = error.original if isinstance(error, EscapedException) else error
            return self._result_from_message(
                call, f"Tool execution failed: {type(cause).__name__}: {error_message(cause)}"
            )
        make_result = functools.partial(self._build_result, turn, tool, call.id, value, context)
        if is_large(value.value if isinstance(value, Content) else value) or _has_many_files(value):
            return await self.loops.run_in_thread(make_result)  # slow, so not on the event loop
        return make_result()

    async def _call_handler(self, tool: Tool, args: Json, context: CallContext) -> Any:
        """Run a tool's handler and return its return value. Raises ToolFailed on timeout."""
        limit = tool.timeout or self.timeout
        handler = functools.partial(_call_async, tool.handler) if tool.is_async else tool.handler
        own_args = copy.deepcopy(args)  # the handler may change its arguments; hooks get the original ones
        try:
            if tool.source.kind == MCP_SOURCE and tool.is_async:  # this handler is Toolfold's own
                return await self.loops.await_with_timeout(
                    limit, _call_async(tool.handler, own_args, context)
                )
            return await self.loops.call_with_timeout(limit, handler, own_args, context)
        except asyncio.CancelledError:
            context.cancelled.set()
            raise
        except CallTimeout:
            context.cancelled.set()
            problem = f"Timeout: {tool.name!r} did not end within {limit:g} s."
            raise ToolFailed(f"Tool execution failed: {problem}") from None

    async def _run_post_hooks(
        self, turn: Turn, tool: Tool, args: Json, result: ToolResult, context: CallContext
    ) -> ToolResult:
        def reshape(current: ToolResult, wanted: Any) -> ToolResult:
            if not isinstance(wanted, ToolResult):
                return self._build_result(turn, tool, current.call_id, wanted, context)
            shaped = self._build_result(turn, tool, current.call_id, wanted.text, context)
            is_same = _is_same_output(wanted, current)
            return replace(
                shaped,
                value=_get_hook_value(wanted, current),
                error=wanted.error,
                stored=shaped.stored or wanted.stored,
                media=wanted.media,
                raw=wanted.raw if is_same else None,
                whole_text=current.whole_text if is_same else shaped.whole_text,
            )

        return await self.hooks.run_after(tool, args, result, context, reshape)

    def _build_result(
        self, turn: Turn, tool: Tool, call_id: str, value: Any, context: CallContext
    ) -> ToolResult:
        content = value if isinstance(value, Content) else Content(value=value)
        answer = {"error": content.value} if content.is_error else content.value
        if files := self._store_files(tool, content.blocks, context):
            answer = {**(answer if content.is_error else {"result": answer}), "files": files}
        reader = READ_TOOL if READ_TOOL in turn.granted and READ_TOOL not in turn.unavailable else None
        whole = render(answer)
        text, stored = self.results.truncate(
            whole, name=tool.name, session_id=context.session_id, reader=reader
        )
        result = ToolResult(
            call_id=call_id,
            name=tool.name,
            text=text,
            value=content.value,
            stored=stored,
            media=tuple(each for each in content.blocks if each.kind != "file"),
            raw=content.raw,
            whole_text=None if text == whole else whole,
        )
        return self._mark_failed(result, content) if content.is_error else result

    def _store_files(self, tool: Tool, blocks: Sequence[Media], context: CallContext) -> list[Json]:
        """Store files and audio of a result on disk for the session, because most models reject them."""
        files: list[Json] = []
        wanted = [each for each in blocks if each.kind != "image"]
        for each in wanted[:MAX_FILES]:
            path = self.results.store_file(
                each.data, name=tool.name, mime_type=each.mime_type, session_id=context.session_id
            )
            where = {"stored": str(path)} if path else {"note": "it could not be stored"}
            files.append({"file": each.label, "type": each.mime_type, **where})
        if len(wanted) > MAX_FILES:
            files.append({"note": f"{len(wanted) - MAX_FILES:,} more items were not stored"})
        return files

    def _mark_failed(self, result: ToolResult, content: Content) -> ToolResult:
        """Return a result marked as failed and without secrets, for a tool that reported a failure."""
        message = content.value if isinstance(content.value, str) else render(content.value)
        error = make_encodable(self.redact(message))
        if result.stored:  # start and end alone would not show the failure
            return replace(result, text=render({"error": error, "stored": str(result.stored)}), error=error)
        text = render({"error": error}) if self.redact.contains_secret(result.text) else result.text
        return replace(result, text=text, error=error)

    def _result_from_error(self, call: ToolCall, error: CallError) -> ToolResult:
        """Return the tool result for an error with a message for the model."""
        result = self._result_from_message(call, error_message(error))
        message = {"error": result.error}
        text = render(message | getattr(error, "details", {}) | message)
        if len(text) > MAX_FAILURE_CHARS or self.redact.contains_secret(text):
            return result  # details are optional: omit them if they are long or contain a secret
        return replace(result, text=text)

    def _result_from_message(self, call: ToolCall, message: str) -> ToolResult:
        message = make_encodable(self.redact(message))
        return ToolResult(call_id=call.id, name=call.name, text=render({"error": message}), error=message)


class _CallClock:
    """Measures how long a call takes, without the time in which it waits for a person's approval."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time that the block takes."""
        paused = time.perf_counter()
        try:
            yield
        finally:
            self._started += time.perf_counter() - paused

    def read_milliseconds(self) -> float:
        return (time.perf_counter() - self._started) * 1000


@dataclass(frozen=True, slots=True)
class _NestedCalls:
    """Runs the tool calls that a tool's handler makes, with the tools of the turn in which it started."""

    dispatch: Dispatch
    turn: Turn
    context: CallContext
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def tools(self) -> Sequence[Tool]:
        turn = self.turn
        return [tool for tool in turn.snapshot.ordered if not tool.standalone and turn.may_call(tool)]

    async def __call__(self, name: str, arguments: Json | str | None = None) -> ToolResult:
        parent = self.context
        call = ToolCall(name, arguments, f"{parent.call_id}.{next(self.numbers)}")
        context = replace(
            _copy_context(parent),
            parents=(*parent.parents, parent.call_id),
            nested=None,
            surface=None,
            # The client has asked its user about the outer call, not about this one.
            caller=replace(parent.caller, asks_user=False),
        )
        return await self.dispatch(self.turn, call, context)


def _require_nestable(tool: Tool, context: CallContext) -> None:
    """Raise CallError if the tool must not be called inside another call, or calls nest too deeply."""
    if context.parents and tool.standalone:
        raise CallError(f"{tool.name!r} can be called only directly, not from code or from another tool.")
    if len(context.parents) > MAX_NESTING:
        raise CallError(f"{tool.name!r} was not run: calls are nested more than {MAX_NESTING} levels deep.")


def _has_many_files(value: Any) -> bool:
    return isinstance(value, Content) and len(value.blocks) > 4


def _is_same_output(one: ToolResult, other: ToolResult) -> bool:
    has_same_text = (one.text, one.error, one.media) == (other.text, other.error, other.media)
    return has_same_text and one.value is other.value


def _get_hook_value(wanted: ToolResult, current: ToolResult) -> Any:
    """Return the value of a hook's result; parse it from the text if the hook changed only the text.

    Otherwise text that the hook removed from the result could still be read from the value.
    """
    if wanted.text == current.text or wanted.value is not current.value:
        return wanted.value
    try:
        return read_json(wanted.text)
    except ValueError:
        return wanted.text


def _only_reads(tool: Tool) -> bool:
    """Return True if a tool is known to be read-only; the claim of an MCP server is not trusted."""
    harmless = tool.effects <= {Effect.READ, Effect.NETWORK}
    return bool(tool.effects) and harmless and tool.source.kind != MCP_SOURCE


def _with_notice(result: ToolResult, notice: str) -> ToolResult:
    """Return a tool result whose text starts with a notice from the runtime."""
    if not notice:
        return result
    text = render({"notice": notice, "result": result.text})
    whole = result.whole_text and render({"notice": notice, "result": result.whole_text})
    return replace(result, text=text, raw=None, whole_text=whole)


def _is_parallel(turn: Turn, call: ToolCall) -> bool:
    try:
        return turn.tool(unwrap(call).name).parallel
    except CallError:
        return True  # it will fail before it runs


def _copy_context(context: CallContext) -> CallContext:
    """Return a copy of the call context with a separate cancellation event."""
    return replace(context, cancelled=type(context.cancelled)())


async def _call_async(handler: Handler, args: Json, context: CallContext) -> Any:
    answer = handler(args, context)
    return await answer if inspect.isawaitable(answer) else answer
