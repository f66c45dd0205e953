"""Run user-defined functions (hooks) before and after every tool call.

A `pre_tool_call` hook may refuse the call or rewrite its arguments; if it fails, the call is refused,
because it may be a safety check. A `post_tool_call` hook may replace the result; if it fails, that is
logged and the result is kept, because the tool has already run.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

from toolfold.core.errors import Refused, ToolfoldError
from toolfold.core.loops import MAX_CHECK_THREADS, CallTimeout, EscapedException, EventLoops
from toolfold.core.types import CallContext, Json, PostToolCall, PreToolCall, Tool, ToolResult

log = logging.getLogger(__name__)

PRE = "pre_tool_call"
POST = "post_tool_call"
Reshape = Callable[[ToolResult, Any], ToolResult]


class Hooks:
    """The hooks of one runtime, in the order they were added."""

    def __init__(self, loops: EventLoops, *, timeout: float = 30.0) -> None:
        self._loops, self._timeout = loops, timeout
        self._pre: tuple[tuple[PreToolCall, Callable[[Tool], bool]], ...] = ()
        self._post: tuple[PostToolCall, ...] = ()

    def add(self, event: str, hook: Callable[..., Any]) -> None:
        """Add a hook for `pre_tool_call` or `post_tool_call`."""
        if not callable(hook):
            raise ToolfoldError(f"a hook must be callable, not {type(hook).__name__}")
        if event == PRE:
            self.add_pre_hook(hook)
        elif event == POST:
            self._post = (*self._post, hook)
        else:
            raise ToolfoldError(f"unknown hook event {event!r}; use {PRE} or {POST}")

    def add_pre_hook(self, hook: PreToolCall, concerns: Callable[[Tool], bool] = lambda _: True) -> None:
        """Add a `pre_tool_call` hook that runs only for tools for which `concerns` returns True."""
        self._pre = (*self._pre, (hook, concerns))

    async def run_before(
        self, tool: Tool, args: Json, context: CallContext, read: Callable[[Json], Json] = dict
    ) -> Json:
        """Run the `pre_tool_call` hooks and return the resulting arguments. Raises Refused.

        Rewritten arguments are parsed again before the next hook, so that each judges what would run.
        """
        for hook in (each for each, concerns in self._pre if concerns(tool)):
            answer = await self._call_pre_hook(hook, tool, args, context)
            args = args if answer is None else read(answer)
        return args

    async def run_after(
        self, tool: Tool, args: Json, result: ToolResult, context: CallContext, reshape: Reshape
    ) -> ToolResult:
        """Run the `post_tool_call` hooks and return the final result."""
        for hook in self._post:
            try:
                answer = await self._call_hook(hook, tool, copy.deepcopy(args), result, context)
                result = result if answer is None else reshape(result, answer)
            except Exception:
                log.exception("post_tool_call hook %s failed; the result is kept", _hook_name(hook))
        return result

    async def _call_pre_hook(
        self, hook: PreToolCall, tool: Tool, args: Json, context: CallContext
    ) -> Json | None:
        try:
            answer = await self._call_hook(hook, tool, copy.deepcopy(args), context)
        except Refused:
            raise
        except CallTimeout:
            raise _refusal(tool, hook, f"did not answer within {self._timeout:g} s") from None
        except Exception as error:
            log.exception("pre_tool_call hook %s failed; the call is refused", _hook_name(hook))
            cause = error.original if isinstance(error, EscapedException) else error
            raise _refusal(tool, hook, f"failed: {type(cause).__name__}") from error
        if answer is None or isinstance(answer, dict):
            return answer
        raise _refusal(tool, hook, f"returned {type(answer).__name__} instead of arguments")

    async def _call_hook(self, hook: Callable[..., Any], *parts: Any) -> Any:
        return await self._loops.call_with_timeout(self._timeout, hook, *parts, max_threads=MAX_CHECK_THREADS)


def _refusal(tool: Tool, hook: object, what: str) -> Refused:
    return Refused(
        f"the call of {tool.name!r} was refused: the hook {_hook_name(hook)!r} {what}. The tool was not run."
    )


def _hook_name(hook: object) -> str:
    return getattr(hook, "__name__", type(hook).__name__)
