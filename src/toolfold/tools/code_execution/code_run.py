"""Run Python code in a terminal environment and run the tools that the code calls, within limits.

Reads the frames that `relay.py` writes. A frame starts with the secret token of this run, which the executed
code does not get; a line without the token, such as a message of the shell, counts as output. Knows nothing
of tools and approval: the caller provides the function that makes the tool calls.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import functools
import json
import secrets
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from toolfold.core.errors import CallError
from toolfold.core.json_limits import find_excess
from toolfold.core.types import Json, read_json
from toolfold.tools.environments import Environment, RunningCommand
from toolfold.tools.environments.command_output import OutputBuffer
from toolfold.tools.environments.end_mark import NO_DIRECTORY_CODE

MAX_FRAME_BYTES = 4_000_000
MAX_NUMBER_DIGITS = 18
COMMAND_NOT_FOUND = 127
_LINE_END = b"\n"

CallTool = Callable[[str, Json], Awaitable[Json]]
"""Calls a tool by name with arguments; returns `{"value": …}` or `{"error": message}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLimits:
    """Limits on time, output and tool calls of one execution of code."""

    timeout_s: float = 300.0
    """Maximum run time of the code; the time of its tool calls does not count."""
    max_calls: int = 100
    max_request_bytes: int = 2_000_000
    """Maximum size of the arguments of one tool call."""
    max_reply_bytes: int = 8_000_000
    """Maximum size of the result of one tool call."""
    max_output_bytes: int = 10_000_000
    """Maximum output of the code; further output is dropped. Only a part is shown to the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeResult:
    """Result of one execution of code: output, exit code and number of tool calls."""

    output: OutputBuffer
    exit_code: int | None
    """Exit code of the code; None if it was terminated at the time limit."""
    calls: int
    """The number of tool calls that the code made."""
    dropped_bytes: int = 0
    """Number of output bytes that were dropped because of the output limit."""


class CodeRun:
    """One execution of a piece of code. Its methods must run in the terminal environment's event loop."""

    def __init__(self, environment: Environment, call_tool: CallTool, limits: CodeLimits) -> None:
        self._environment, self._call_tool, self._limits = environment, call_tool, limits
        self._token = secrets.token_hex(16)
        self._calls = self._dropped_bytes = 0
        self._has_started = False

    async def run(
        self,
        code: str,
        tools: Mapping[str, Sequence[str]],
        *,
        task: str,
        directory: str = "",
        output_dir: Path | None = None,
    ) -> CodeResult:
        """Run the code until it ends or its time limit is reached, then terminate all processes it started.

        `tools` are the names of the functions that the code can import, each with its parameters. Raises
        CallError if the code cannot be started.
        """
        limits = self._environment.limits
        output = OutputBuffer(
            max_bytes=limits.max_shown_bytes,
            directory=output_dir,
            max_file_bytes=min(limits.max_stored_bytes, 2 * self._limits.max_output_bytes),
        )
        setup = self._build_setup(code, tools)
        exit_code: int | None = None
        try:
            exit_code = await self._environment.interact(
                f"python3 -I -c {shlex.quote(load_source('relay'))}",
                lambda running: self._converse(running, setup, output),
                task=task,
                directory=directory,
            )
        except TimeoutError:
            pass  # exit_code stays None
        finally:
            output.finish()
        self._require_started(exit_code, output)
        return CodeResult(
            output=output, exit_code=exit_code, calls=self._calls, dropped_bytes=self._dropped_bytes
        )

    def _build_setup(self, code: str, tools: Mapping[str, Sequence[str]]) -> bytes:
        setup = {
            "token": self._token,
            "child": load_source("child"),
            "code": code,
            "tools": {name: list(parameters) for name, parameters in tools.items()},
            "max_output_bytes": self._limits.max_output_bytes,
            "max_request_bytes": self._limits.max_request_bytes,
        }
        return json.dumps(setup).encode() + _LINE_END

    def _require_started(self, exit_code: int | None, output: OutputBuffer) -> None:
        if self._has_started:
            return
        if exit_code == NO_DIRECTORY_CODE:
            raise CallError(output.text().strip())
        name = self._environment.backend.name
        if exit_code == COMMAND_NOT_FOUND:
            raise CallError(
                f"Code was not run: there is no python3 in the environment ({name}). Install it there."
            )
        raise CallError(
            f"Code was not run: python3 could not be started ({name}): {output.text().strip()[:2000]}"
        )

    async def _converse(self, running: RunningCommand, setup: bytes, output: OutputBuffer) -> None:
        """Collect the output of the code and answer its tool calls, one at a time, until the code ends."""
        async with asyncio.timeout(self._limits.timeout_s) as clock:
            await running.write(setup)
            async for kind, content in self._read_frames(running):
                if kind == b"C":
                    async with _paused(clock):
                        reply = await self._answer_call(content)
                    await running.write(reply)
                elif kind == b"R":
                    self._has_started = True
                elif kind == b"D" and content.isdigit():
                    self._dropped_bytes = int(content[:18])
                elif kind == b"O":
                    self._add_output(output, _decode_base64(content))
                elif not kind:
                    self._add_output(output, content)

    def _add_output(self, output: OutputBuffer, data: bytes) -> None:
        room = max(0, 2 * self._limits.max_output_bytes - output.total_bytes)
        output.append(data[:room])
        self._dropped_bytes += len(data) - min(room, len(data))

    async def _read_frames(self, running: RunningCommand) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield each message from `relay.py` as its kind and content; other output gets an empty kind."""
        prefix, pending = self._token.encode() + b" ", b""
        while data := await running.read():
            *lines, pending = (pending + data).split(_LINE_END)
            for line in lines:
                yield _split_frame(prefix, line + _LINE_END)
            if len(pending) > MAX_FRAME_BYTES:
                yield b"", pending
                pending = b""
        if pending:
            yield b"", pending

    async def _answer_call(self, line: bytes) -> bytes:
        number, request = _split_request(line)
        encode = functools.partial(_encode_reply, number)
        self._calls += 1
        if self._calls > self._limits.max_calls:
            self._calls = self._limits.max_calls
            return encode({"error": f"the limit of {self._limits.max_calls} tool calls is reached"})
        try:
            name, arguments = _parse_request(request)
        except ValueError as error:
            return encode({"error": f"the request is invalid: {error}"})
        reply = encode(await self._call_tool(name, arguments))
        if len(reply) > self._limits.max_reply_bytes:
            return encode({"error": f"the result of {name} is too large ({len(reply):,} bytes)"})
        return reply


@functools.cache
def load_source(name: str) -> str:
    """Return the source of `child.py` or `relay.py`, which run in the terminal environment."""
    return resources.files("toolfold.tools.code_execution").joinpath(f"{name}.py").read_text("utf-8")


@contextlib.asynccontextmanager
async def _paused(clock: asyncio.Timeout) -> AsyncIterator[None]:
    """Stop the clock of a time limit during an `async with` block."""
    loop, deadline = asyncio.get_running_loop(), clock.when()
    left = 0.0 if deadline is None else deadline - loop.time()
    clock.reschedule(None)
    yield
    clock.reschedule(loop.time() + left)


def _split_frame(prefix: bytes, line: bytes) -> tuple[bytes, bytes]:
    if not line.startswith(prefix):
        return b"", line
    kind, _, content = line[len(prefix) : -1].partition(b" ")
    return kind or b"?", content


def _parse_request(request: bytes) -> tuple[str, Json]:
    """Return the tool name and arguments in a request of the code. Raises ValueError if it is invalid."""
    if excess := find_excess(request):
        raise ValueError(excess)
    try:
        parsed = read_json(request.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    name, arguments = (
        (parsed.get("name"), parsed.get("arguments")) if isinstance(parsed, dict) else (None, None)
    )
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("the tool call request must have a tool name and arguments")
    return name, arguments


def _split_request(line: bytes) -> tuple[int, bytes]:
    """Return the number and the JSON of a tool call request; the number is 0 if it is missing or invalid."""
    number, _, request = line.partition(b" ")
    is_valid = number.isdigit() and len(number) <= MAX_NUMBER_DIGITS
    return (int(number), request) if is_valid else (0, b"")


def _encode_reply(number: int, reply: Json) -> bytes:
    # The first line break ends a reply of which the code, interrupted by a signal, has read only a part.
    return _LINE_END + json.dumps({"id": number, **reply}, ensure_ascii=True).encode() + _LINE_END


def _decode_base64(content: bytes) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        return b""
