"""Fake model that follows a script, for tests, examples and the demo.

Answers each model call with the next step of its script. A step is text, tool calls, an error, or a function
of the request that returns one of these. `load_script` reads the steps from a JSON file: the model
`scripted:FILE`.
"""

from __future__ import annotations

import asyncio
import json
import typing
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from toolfold.core.errors import ConfigError
from toolfold.core.types import Json, ToolCall, read_json
from toolfold.models import get_dialect
from toolfold.models.client import ReplyStream
from toolfold.models.dialect import Dialect, arguments_text
from toolfold.models.provider_errors import ProblemKind, ProviderError
from toolfold.models.reply import ModelRequest

CHARS_PER_DELTA = 24
MAX_SCRIPT_BYTES = 10_000_000


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """A scripted model reply with text and tool calls."""

    text: str = ""
    calls: Sequence[ToolCall] = ()
    usage: Json = field(default_factory=dict)
    """Token usage in the format of OpenAI's chat API; estimated if empty."""
    finish_reason: str = ""
    """Finish reason in the format of OpenAI's chat API, such as `length` for a reply that was cut."""


Step: TypeAlias = "str | ScriptedReply | ProviderError | Callable[[ModelRequest], str | ScriptedReply]"


class ScriptedProvider:
    """Model client that answers each call with the next step of a script."""

    name = "scripted"

    def __init__(self, steps: Iterable[Step], *, model: str = "scripted", delta_delay_s: float = 0.0) -> None:
        self.model = model
        self.requests: list[ModelRequest] = []
        """Every request received, for tests to look at."""
        self._steps = iter(steps)
        self._delay_s = delta_delay_s

    @property
    def dialect(self) -> Dialect:
        return get_dialect("openai")

    def stream(self, request: ModelRequest) -> ReplyStream:
        self.requests.append(request)
        return ReplyStream(self._replay(request), self.dialect.start_reply())

    async def _replay(self, request: ModelRequest) -> AsyncIterator[Json]:
        step = next(self._steps, "The script has ended.")
        if isinstance(step, ProviderError):
            raise step
        reply = step(request) if callable(step) else step
        if isinstance(reply, str):
            reply = ScriptedReply(reply)
        for start in range(0, len(reply.text), CHARS_PER_DELTA):
            yield _chunk({"content": reply.text[start : start + CHARS_PER_DELTA]})
            await asyncio.sleep(self._delay_s)
        for index, call in enumerate(reply.calls):
            function = {"name": call.name, "arguments": arguments_text(call)}
            yield _chunk({"tool_calls": [{"index": index, "id": call.id, "function": function}]})
        yield _chunk({}, reply.finish_reason or ("tool_calls" if reply.calls else "stop"))
        yield {"choices": [], "usage": reply.usage or _estimate_usage(request, reply), "model": self.model}

    async def list_models(self) -> list[Json]:
        return [{"id": self.model}]

    async def close(self) -> None:
        """Do nothing, because a script needs no connection."""


def _chunk(delta: Json, finish_reason: str | None = None) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def _estimate_usage(request: ModelRequest, reply: ScriptedReply) -> Json:
    sent = json.dumps([request.system, list(request.messages), list(request.tools)], default=str)
    written = reply.text + "".join(arguments_text(call) for call in reply.calls)
    return {"prompt_tokens": len(sent) // 4, "completion_tokens": len(written) // 4 + 1}


def load_script(file: Path) -> ScriptedProvider:
    """Return a model client that follows the script in a JSON file. Raises ConfigError.

    The file holds a list of steps, or an object with `steps` and `delta_delay_s`, the pause after each piece
    of text. A step is text, or an object with `text`, `calls` (each with `name` and `arguments`), `usage` and
    `finish_reason`,
    or one with `error` and its `kind`.
    """
    try:
        if file.stat().st_size > MAX_SCRIPT_BYTES:
            raise ValueError(f"the script of model replies is larger than {MAX_SCRIPT_BYTES:,} bytes")
        script = read_json(file.read_text(encoding="utf-8"))
        options = script if isinstance(script, dict) else {"steps": script}
        return ScriptedProvider(
            [_read_step(step) for step in options["steps"]],
            model=str(file),
            delta_delay_s=float(options.get("delta_delay_s", 0.0)),
        )
    except FileNotFoundError:
        raise ConfigError(
            f"the script of model replies {file} does not exist",
            key="agent.model",
            hint="write the model as scripted:FILE, with the path of an existing file",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file} is not a script of model replies: {error}",
            key="agent.model",
            hint='write a JSON list of steps, for example ["Hello.", {"calls": [{"name": "todo"}]}]',
        ) from None


def _read_step(step: Any) -> Step:
    if isinstance(step, str):
        return step
    if "error" in step:
        kind = step.get("kind", "server")
        if kind not in typing.get_args(ProblemKind):
            raise ValueError(f"{kind!r} is not a kind of error; use one of {typing.get_args(ProblemKind)}")
        return ProviderError(str(step["error"]), kind=kind)
    calls = [ToolCall(call["name"], call.get("arguments")) for call in step.get("calls", ())]
    return ScriptedReply(
        str(step.get("text", "")), calls, step.get("usage", {}), str(step.get("finish_reason", ""))
    )
