"""The `terminal` toolset: run commands, and control background processes.

Defines the schemas and the answers. `toolfold.tools.environments` does the work. Commands, and input for a
process together with its earlier input, have been judged by approval before they arrive here.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from toolfold.core.errors import CallError, InvalidArguments
from toolfold.core.types import CallContext, Effect, Json, Meaning, PreToolCall, Source, Tool
from toolfold.tools.builtin import Services
from toolfold.tools.builtin._builtin import build_builtin_tool
from toolfold.tools.environments import (
    BackgroundProcess,
    CommandResult,
    Environment,
    ProcessNotice,
    TerminalSize,
)
from toolfold.tools.environments.command_output import decode_text, trim_partial_character
from toolfold.tools.environments.environment_thread import EnvironmentThread

SOURCE = Source("builtin", "terminal")
CODE_SOURCE = Source("builtin", "code")
_DIRECTORY_TOOLS = frozenset({(SOURCE, "terminal"), (CODE_SOURCE, "execute_code")})
"""Tools that start in the working directory of their task."""
_PROCESS_TOOL = (SOURCE, "process")
OVERHEAD_TIMEOUT_S = 60.0
"""Extra time of a call beyond its command, to connect and to terminate processes."""
MAX_WAIT_S = 600.0
DEFAULT_POLL_BYTES = 4_000
DEFAULT_LOG_BYTES = 20_000

_SIGNALS = ("INT", "TERM", "HUP", "QUIT", "KILL", "USR1", "USR2", "STOP", "CONT")
_ACTIONS = ("list", "poll", "wait", "log", "write", "signal", "kill")
_CONTROLS = re.compile(
    r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # colours, cursor
    r"|\x1b\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[()][0-9A-B]|\x1b[=>78cDEHMNOZ]"
)

_TERMINAL_SCHEMA: Json = {
    "description": (
        "Run a shell command. Returns its output (stderr included) and exit code. The working directory and"
        " exported variables persist for the next command. For long-running commands use background:"
        " you are notified when it ends. Use pty for programs that need a terminal."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "string", "minLength": 1, "maxLength": 1_000_000},
            "background": {
                "type": "boolean",
                "default": False,
                "description": "Start it and return at once with the name of the process.",
            },
            "pty": {"type": "boolean", "default": False, "description": "Run it in a pseudo-terminal."},
            "timeout": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "Seconds until it and its child processes are terminated. Not for background.",
            },
            "workdir": {
                "type": "string",
                "maxLength": 4_096,
                "description": "Directory for this command only.",
            },
            "task": {
                "type": "string",
                "maxLength": 200,
                "description": "A name: commands of another task have their own directory and variables.",
            },
            "watch": {
                "type": "array",
                "items": {"type": "string", "minLength": 1, "maxLength": 200},
                "maxItems": 20,
                "description": "For background: you are notified of output lines with one of these words.",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    },
}
_PROCESS_SCHEMA: Json = {
    "description": (
        "Control commands that run in the background: list them, poll one, wait for its end,"
        " read its log, write to its input, send it a signal, kill it."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "action": {"type": "string", "enum": list(_ACTIONS)},
            "process": {"type": "string", "maxLength": 64, "description": "Its name; not for list."},
            "timeout": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": MAX_WAIT_S,
                "default": 60,
                "description": "wait: seconds.",
            },
            "offset": {
                "type": "integer",
                "default": 0,
                "description": "log: first byte; negative: counted from the end.",
            },
            "limit": {"type": "integer", "minimum": 1, "maximum": 1_000_000, "default": DEFAULT_LOG_BYTES},
            "data": {
                "type": "string",
                "maxLength": 1_000_000,
                "description": "write: the text, including \\n.",
            },
            "close": {
                "type": "boolean",
                "default": False,
                "description": "write: close the input afterwards.",
            },
            "signal": {"type": "string", "enum": list(_SIGNALS), "default": "INT"},
        },
        "required": ["action"],
        "additionalProperties": False,
    },
}


def tools(services: Services) -> list[Tool]:
    """Return the tools `terminal` and `process` for one environment; empty if there is no environment."""
    if services.terminal is None:
        return []
    terminal = TerminalTool(services.terminal, services.max_command_s)
    processes = ProcessTool(services.terminal)
    return [
        build_builtin_tool(
            name="terminal",
            toolset="terminal",
            schema=_TERMINAL_SCHEMA,
            handler=terminal.run,
            check_fn=services.terminal.check,
            emoji="💻",
            effects=(Effect.EXECUTE, Effect.WRITE, Effect.NETWORK),
            judged_as={
                "command": Meaning.COMMAND,
                "workdir": Meaning.FOLDER,
                "task": Meaning.NOTE,
                "watch": Meaning.NOTE,
            },
            timeout=services.max_command_s + OVERHEAD_TIMEOUT_S,
            synonyms=("shell", "bash", "run", "execute", "command line", "script"),
            source=SOURCE,
        ),
        build_builtin_tool(
            name="process",
            toolset="terminal",
            schema=_PROCESS_SCHEMA,
            handler=processes.act,
            check_fn=services.terminal.check,
            emoji="⚙️",
            effects=(Effect.EXECUTE,),
            judged_as={
                "data": Meaning.INPUT,
                "context": Meaning.INPUT_CONTEXT,
                "process": Meaning.NOTE,
                "action": Meaning.NOTE,
                "signal": Meaning.NOTE,
            },
            precheck=processes.check_call,
            timeout=MAX_WAIT_S + OVERHEAD_TIMEOUT_S,
            synonyms=("background", "job", "daemon", "kill", "log", "signal"),
            source=SOURCE,
        ),
    ]


def needs_context(tool: Tool) -> bool:
    """Return True if approving a call of the tool needs its directory or the process's earlier input."""
    called = (tool.source, tool.name)
    return called == _PROCESS_TOOL or called in _DIRECTORY_TOOLS


def inject_workdir(terminal: EnvironmentThread) -> PreToolCall:
    """Return a hook that adds context for the approval decision to each call, such as the directory.

    For `terminal` and `execute_code` that is the absolute working directory: a task may have changed it, and
    `rm -r *` depends on it. For input to a process it is the earlier input, without which it cannot be
    understood.
    """

    async def add_context(tool: Tool, args: Json, context: CallContext) -> Json | None:
        if (tool.source, tool.name) == _PROCESS_TOOL:
            others = {name: value for name, value in args.items() if name != "context"}
            found = await _input_context(terminal, args) if args.get("action") == "write" else None
            return others if found is None else {**others, "context": found}
        if not needs_context(tool):
            return None
        here = terminal.environment.working_directory(get_task_name(args, context))
        wanted = args.get("workdir") or ""
        return {**args, "workdir": posixpath.normpath(posixpath.join(here, wanted))} if here else None

    return add_context


@dataclass(frozen=True, slots=True)
class TerminalTool:
    """Handler of the `terminal` tool, which runs commands."""

    terminal: EnvironmentThread
    max_timeout_s: float

    async def run(self, args: Json, context: CallContext) -> Json:
        if args.get("background"):
            return await self.terminal.run(
                lambda environment: self._start_process(environment, args, context)
            )
        return await self.terminal.run(lambda environment: self._run_command(environment, args, context))

    async def _run_command(self, environment: Environment, args: Json, context: CallContext) -> Json:
        timeout_s = min(args.get("timeout") or environment.limits.timeout_s, self.max_timeout_s)
        pty = bool(args.get("pty"))
        result = await environment.run(
            args["command"],
            task=get_task_name(args, context),
            directory=args.get("workdir") or "",
            timeout_s=timeout_s,
            pty=TerminalSize() if pty else None,
            output_dir=get_output_dir(context),
        )
        return _describe_result(result, timeout_s, pty=pty) | await _take_notices(environment, context)

    async def _start_process(self, environment: Environment, args: Json, context: CallContext) -> Json:
        process = await environment.start_process(
            args["command"],
            task=get_task_name(args, context),
            directory=args.get("workdir") or "",
            pty=TerminalSize() if args.get("pty") else None,
            watch_words=args.get("watch") or (),
        )
        note = "" if environment.backend.is_persistent else " It ends when this runtime closes."
        return {
            "process": process.name,
            "state": process.state,
            "note": f"You will be notified when it ends. Use the process tool to check on it.{note}",
        } | await _take_notices(environment, context)


@dataclass(frozen=True, slots=True)
class ProcessTool:
    """Handler of the `process` tool, which controls background processes."""

    terminal: EnvironmentThread

    def check_call(self, args: Json, _: CallContext) -> None:
        """Raise an error if an argument is missing, or input cannot be checked with the earlier input."""
        action, close = args["action"], args.get("close", False)
        if action != "list" and not args.get("process"):
            raise InvalidArguments(f"{action} needs the name of a process. Use action list to see the names.")
        if action != "write":
            return
        if not args.get("data") and not close:
            raise InvalidArguments("write needs data, or close.")
        context = args.get("context") or {}
        if "revision" not in context or bool(context.get("closes")) != close:
            raise CallError(
                "Nothing was written to the process:"
                " the new input could not be checked together with the earlier input."
            )

    async def act(self, args: Json, context: CallContext) -> Json:
        self.check_call(args, context)
        action = args["action"]
        actions: dict[str, Callable[[Environment, Json], Awaitable[Json]]] = {
            "list": self._list_processes,
            "poll": self._poll_process,
            "wait": self._wait_for_process,
            "log": self._read_log,
            "write": self._write_input,
            "signal": self._send_signal,
            "kill": self._kill_process,
        }

        async def work(environment: Environment) -> Json:
            return await actions[action](environment, args) | await _take_notices(environment, context)

        return await self.terminal.run(work)

    async def _list_processes(self, environment: Environment, _: Json) -> Json:
        return {"processes": [_describe_process(each) for each in await environment.processes.list_all()]}

    async def _poll_process(self, environment: Environment, args: Json) -> Json:
        return await _describe_with_output(environment, await environment.processes.get(args["process"]))

    async def _wait_for_process(self, environment: Environment, args: Json) -> Json:
        process = await environment.processes.wait(args["process"], args.get("timeout", 60))
        return await _describe_with_output(environment, process)

    async def _read_log(self, environment: Environment, args: Json) -> Json:
        process = await environment.processes.get(args["process"])
        offset = args.get("offset", 0)
        first = max(offset if offset >= 0 else process.written_bytes + offset, process.dropped_bytes)
        data = await environment.processes.read_log(process.name, first, args.get("limit", DEFAULT_LOG_BYTES))
        data = trim_partial_character(data) or data
        return {
            "output": _plain_text(data),
            "offset": first,
            "next_offset": first + len(data),
            "bytes": process.written_bytes,
        }

    async def _write_input(self, environment: Environment, args: Json) -> Json:
        data, close = args.get("data", ""), args.get("close", False)
        # The judged input must be the one that arrives: another call may have written since.
        await environment.processes.write(
            args["process"], data.encode(errors="replace"), close=close, revision=args["context"]["revision"]
        )
        return {"written": len(data)}

    async def _send_signal(self, environment: Environment, args: Json) -> Json:
        name = args.get("signal", "INT")
        await environment.processes.send_signal(args["process"], name)
        return {"sent": name}

    async def _kill_process(self, environment: Environment, args: Json) -> Json:
        return _describe_process(await environment.processes.kill(args["process"]))


async def _input_context(terminal: EnvironmentThread, args: Json) -> Json | None:
    """Return the earlier input of a process, which is needed to assess new input; None if it is unknown."""
    with contextlib.suppress(CallError):  # the call itself reports it
        log = await terminal.run(lambda place: place.processes.get_input_log(str(args.get("process"))))
        return {
            "command": log.command,
            "workdir": log.directory,
            "pty": log.pty,
            "before": [list(entry) for entry in log.entries],
            "unknown": log.incomplete_reason,
            "revision": log.revision,
            "closes": bool(args.get("close")),
        }
    return None


def get_task_name(args: Json, context: CallContext) -> str:
    """Return the name of a shell session: the Toolfold session id, followed by the task name."""
    return f"{context.session_id}/{args.get('task') or context.task_id or ''}"


def get_output_dir(context: CallContext) -> Path | None:
    """Return the directory for long command outputs, which this session can read."""
    return context.readable[0] if context.readable else None


def _describe_result(result: CommandResult, limit: float, *, pty: bool) -> Json:
    output = _CONTROLS.sub("", result.output).replace("\r\n", "\n") if pty else result.output
    answer: Json = {"output": output, "exit_code": result.exit_code, "workdir": result.directory}
    if result.timed_out:
        how = "but some of its processes may still run" if result.may_still_run else "with all its processes"
        answer["note"] = f"Terminated after {limit:g} s, {how}. Allow more time, or run it in the background."
    if result.output_file:
        answer |= {"bytes": result.total_bytes, "stored": str(result.output_file)}
    if result.lost_bytes:
        answer["lost_bytes"] = result.lost_bytes
    return answer


async def _describe_with_output(environment: Environment, process: BackgroundProcess) -> Json:
    first = max(0, process.written_bytes - DEFAULT_POLL_BYTES)
    data = await environment.processes.read_log(process.name, first, DEFAULT_POLL_BYTES)
    return {**_describe_process(process), "output": _plain_text(data)}


def _describe_process(process: BackgroundProcess) -> Json:
    answer: Json = {
        "process": process.name,
        "command": process.command[:500],
        "state": process.state,
        "bytes": process.written_bytes,
    }
    if process.exit_code is not None:
        answer["exit_code"] = process.exit_code
    if process.state == "lost":
        answer["note"] = (
            "It is gone without an exit code: the environment was restarted, or the process was killed."
        )
    return answer


def _plain_text(data: bytes) -> str:
    return _CONTROLS.sub("", decode_text(data)).replace("\r\n", "\n")


async def _take_notices(environment: Environment, context: CallContext) -> Json:
    """Return new notices about this session's background processes, each reported once."""
    with contextlib.suppress(CallError):
        if notices := await environment.processes.take_notices(f"{context.session_id}/"):
            return {"notices": [_describe_notice(each) for each in notices]}
    return {}


def _describe_notice(notice: ProcessNotice) -> Json:
    process = notice.process
    if notice.lines:
        return {"process": process.name, "lines": list(notice.lines)}
    return {key: value for key, value in _describe_process(process).items() if key != "bytes"}
