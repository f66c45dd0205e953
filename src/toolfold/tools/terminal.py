"""The `terminal` toolset: run a command, and look after those that run in the background.

How a model calls these, and in which words it is answered. The work is done in `toolfold.environments`.
What a command would do is judged before it gets here, and so is text for a process, together with all that it
was given before.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from toolfold.authoring import build_tool
from toolfold.environments import BackgroundProcess, CommandResult, Environment, ProcessNotice, TerminalSize
from toolfold.environments.environment_thread import EnvironmentThread
from toolfold.environments.output import decode_text, trim_partial_character
from toolfold.errors import CallError, InvalidArguments
from toolfold.model import CallContext, Effect, Json, Meaning, PreToolCall, Source, Tool
from toolfold.tools import Services

SOURCE = Source("builtin", "terminal")
SPARE_SECONDS = 60.0
"""What a call may take beyond its command: to reach the place, and to end there what must end."""
LONGEST_WAIT = 600.0
POLLED_BYTES = 4_000
LOGGED_BYTES = 20_000

_SIGNALS = ("INT", "TERM", "HUP", "QUIT", "KILL", "USR1", "USR2", "STOP", "CONT")
_ACTIONS = ("list", "poll", "wait", "log", "write", "signal", "kill")
_CONTROLS = re.compile(
    r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # colours, cursor
    r"|\x1b\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[()][0-9A-B]|\x1b[=>78cDEHMNOZ]"
)

_TERMINAL: Json = {
    "description": (
        "Run a shell command. Answers its output (errors included) and exit code. The working directory and"
        " exported variables stay for the next command. For what runs long or does not end, use background:"
        " you are told when it ends. Use pty for programs that want a terminal."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "string", "minLength": 1, "maxLength": 1_000_000},
            "background": {
                "type": "boolean",
                "default": False,
                "description": "Start it and answer at once with the name of the process.",
            },
            "pty": {"type": "boolean", "default": False, "description": "Run it in a terminal of its own."},
            "timeout": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "Seconds until it is ended, with all that it started. Not for background.",
            },
            "workdir": {
                "type": "string",
                "maxLength": 4_096,
                "description": "Where to run it, as after a cd.",
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
                "description": "For background: you are told of lines of its output with one of these words.",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    },
}
_PROCESS: Json = {
    "description": (
        "Look after commands that terminal started in the background: list them, poll one, wait for its end,"
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
                "maximum": LONGEST_WAIT,
                "default": 60,
                "description": "wait: seconds.",
            },
            "offset": {
                "type": "integer",
                "default": 0,
                "description": "log: the first byte; below 0, counted from the end.",
            },
            "limit": {"type": "integer", "minimum": 1, "maximum": 1_000_000, "default": LOGGED_BYTES},
            "data": {
                "type": "string",
                "maxLength": 1_000_000,
                "description": "write: the text, \\n and all.",
            },
            "context": {"type": "object", "description": "Set by the runtime: leave out."},
            "close": {"type": "boolean", "default": False, "description": "write: nothing will follow."},
            "signal": {"type": "string", "enum": list(_SIGNALS), "default": "INT"},
        },
        "required": ["action"],
        "additionalProperties": False,
    },
}


def tools(services: Services) -> list[Tool]:
    """Both tools, bound to one place; none where there is no place."""
    if services.terminal is None:
        return []
    terminal = Terminal(services.terminal, services.longest_command)
    processes = ProcessTool(services.terminal)
    return [
        build_tool(
            name="terminal",
            toolset="terminal",
            schema=_TERMINAL,
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
            core=True,
            timeout=services.longest_command + SPARE_SECONDS,
            synonyms=("shell", "bash", "run", "execute", "command line", "script"),
            source=SOURCE,
        ),
        build_tool(
            name="process",
            toolset="terminal",
            schema=_PROCESS,
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
            core=True,
            timeout=LONGEST_WAIT + SPARE_SECONDS,
            synonyms=("background", "job", "daemon", "kill", "log", "signal"),
            source=SOURCE,
        ),
    ]


def located(terminal: EnvironmentThread) -> PreToolCall:
    """A hook that writes into each call what is to be judged of it.

    A task may have gone anywhere since its first command, and `rm -r *` is not the same everywhere. What is
    written to a process means something only together with what it was given before.
    """

    async def where_it_runs(tool: Tool, args: Json, context: CallContext) -> Json | None:
        if tool.source == SOURCE and tool.name == "process":
            others = {name: value for name, value in args.items() if name != "context"}
            found = await _input_context(terminal, args) if args.get("action") == "write" else None
            return others if found is None else {**others, "context": found}
        if tool.source != SOURCE or tool.name != "terminal":
            return None
        here = terminal.environment.working_directory(_task(args, context))
        wanted = args.get("workdir") or ""
        return {**args, "workdir": posixpath.normpath(posixpath.join(here, wanted))} if here else None

    return where_it_runs


@dataclass(frozen=True, slots=True)
class Terminal:
    """The handler of `terminal`."""

    place: EnvironmentThread
    longest: float

    async def run(self, args: Json, context: CallContext) -> Json:
        if args.get("background"):
            return await self.place.run(lambda environment: self._start(environment, args, context))
        return await self.place.run(lambda environment: self._run(environment, args, context))

    async def _run(self, environment: Environment, args: Json, context: CallContext) -> Json:
        limit = min(args.get("timeout") or environment.limits.timeout_s, self.longest)
        pty = bool(args.get("pty"))
        done = await environment.run(
            args["command"],
            task=_task(args, context),
            directory=args.get("workdir") or "",
            timeout_s=limit,
            pty=TerminalSize() if pty else None,
            output_dir=_outputs(context),
        )
        return _told(done, limit, pty=pty) | await _news(environment, context)

    async def _start(self, environment: Environment, args: Json, context: CallContext) -> Json:
        process = await environment.start_process(
            args["command"],
            task=_task(args, context),
            directory=args.get("workdir") or "",
            pty=TerminalSize() if args.get("pty") else None,
            watch_words=args.get("watch") or (),
        )
        note = "" if environment.backend.is_persistent else " It ends with this runtime."
        return {
            "process": process.name,
            "state": process.state,
            "note": f"You will be told when it ends. See what it does with process.{note}",
        } | await _news(environment, context)


@dataclass(frozen=True, slots=True)
class ProcessTool:
    """The handler of `process`."""

    place: EnvironmentThread

    async def act(self, args: Json, context: CallContext) -> Json:
        action = args["action"]
        if action != "list" and not args.get("process"):
            raise InvalidArguments(f"{action} needs the name of a process. List them to see the names.")
        actions: dict[str, Callable[[Environment, Json], Awaitable[Json]]] = {
            "list": self._list,
            "poll": self._poll,
            "wait": self._wait,
            "log": self._log,
            "write": self._write,
            "signal": self._signal,
            "kill": self._kill,
        }

        async def work(environment: Environment) -> Json:
            return await actions[action](environment, args) | await _news(environment, context)

        return await self.place.run(work)

    async def _list(self, environment: Environment, _: Json) -> Json:
        return {"processes": [_described(each) for each in await environment.processes.list_all()]}

    async def _poll(self, environment: Environment, args: Json) -> Json:
        return await _seen(environment, await environment.processes.get(args["process"]))

    async def _wait(self, environment: Environment, args: Json) -> Json:
        process = await environment.processes.wait(args["process"], args.get("timeout", 60))
        return await _seen(environment, process)

    async def _log(self, environment: Environment, args: Json) -> Json:
        process = await environment.processes.get(args["process"])
        offset = args.get("offset", 0)
        first = max(offset if offset >= 0 else process.written_bytes + offset, process.dropped_bytes)
        data = await environment.processes.read_log(process.name, first, args.get("limit", LOGGED_BYTES))
        data = trim_partial_character(data) or data
        return {
            "output": _plain(data),
            "offset": first,
            "next_offset": first + len(data),
            "bytes": process.written_bytes,
        }

    async def _write(self, environment: Environment, args: Json) -> Json:
        data, close = args.get("data", ""), args.get("close", False)
        if not data and not close:
            raise InvalidArguments("write needs data, or close.")
        context = args.get("context") or {}
        if "revision" not in context or bool(context.get("closes")) != close:
            raise CallError("The write was not judged together with the earlier input, so it was not done.")
        # What was judged must be what arrives: another call may have written since.
        await environment.processes.write(
            args["process"], data.encode(errors="replace"), close=close, revision=context["revision"]
        )
        return {"written": len(data)}

    async def _signal(self, environment: Environment, args: Json) -> Json:
        name = args.get("signal", "INT")
        await environment.processes.send_signal(args["process"], name)
        return {"sent": name}

    async def _kill(self, environment: Environment, args: Json) -> Json:
        return _described(await environment.processes.kill(args["process"]))


async def _input_context(terminal: EnvironmentThread, args: Json) -> Json | None:
    """What a write to a process must be judged with; None where there is no such process."""
    with contextlib.suppress(CallError):  # which the call itself will say
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


def _task(args: Json, context: CallContext) -> str:
    """Of this session only: nobody walks into another's directory by its name."""
    return f"{context.session_id}/{args.get('task') or context.task_id or ''}"


def _outputs(context: CallContext) -> Path | None:
    """Where this session can read what is too long to be shown."""
    return context.readable[0] if context.readable else None


def _told(done: CommandResult, limit: float, *, pty: bool) -> Json:
    output = _CONTROLS.sub("", done.output).replace("\r\n", "\n") if pty else done.output
    answer: Json = {"output": output, "exit_code": done.exit_code, "workdir": done.directory}
    if done.timed_out:
        how = "but something of it may still run" if done.may_still_run else "with all that it started"
        answer["note"] = (
            f"It was ended after {limit:g} s, {how}. Give it more time, or run it in the background."
        )
    if done.output_file:
        answer |= {"bytes": done.total_bytes, "stored": str(done.output_file)}
    if done.lost_bytes:
        answer["lost_bytes"] = done.lost_bytes
    return answer


async def _seen(environment: Environment, process: BackgroundProcess) -> Json:
    first = max(0, process.written_bytes - POLLED_BYTES)
    data = await environment.processes.read_log(process.name, first, POLLED_BYTES)
    return {**_described(process), "output": _plain(data)}


def _described(process: BackgroundProcess) -> Json:
    answer: Json = {
        "process": process.name,
        "command": process.command[:500],
        "state": process.state,
        "bytes": process.written_bytes,
    }
    if process.exit_code is not None:
        answer["exit_code"] = process.exit_code
    if process.state == "lost":
        answer["note"] = "It is gone, and nobody noted how: the place was restarted, or it was killed."
    return answer


def _plain(data: bytes) -> str:
    return _CONTROLS.sub("", decode_text(data)).replace("\r\n", "\n")


async def _news(environment: Environment, context: CallContext) -> Json:
    """What happened to this session's processes, told once, beside the answer to whatever is asked next."""
    with contextlib.suppress(CallError):
        if notices := await environment.processes.take_notices(f"{context.session_id}/"):
            return {"notices": [_noticed(each) for each in notices]}
    return {}


def _noticed(notice: ProcessNotice) -> Json:
    process = notice.process
    if notice.lines:
        return {"process": process.name, "lines": list(notice.lines)}
    return {key: value for key, value in _described(process).items() if key != "bytes"}
