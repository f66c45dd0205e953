"""`toolfold run`: let an agent work on one message, for scripts."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

import click

from toolfold.cli.activity import CallLines, clean_text, format_selection, format_spending
from toolfold.cli.agent_options import (
    MODEL_SETUP_STEPS,
    NO_MODEL,
    AgentOpener,
    AgentOptions,
    agent_options,
)
from toolfold.cli.app import EXIT_BAD_CONFIG, EXIT_FAILED, EXIT_INTERRUPTED, Invocation
from toolfold.cli.output import escape_text, format_json_line, print_note
from toolfold.core.events import Event, ToolFinished, ToolsSelected, TurnFinished
from toolfold.core.tool_processes import find_tool_call
from toolfold.models.provider_errors import ProviderError

if TYPE_CHECKING:
    from toolfold.agent import Agent

EXIT_LIMIT, EXIT_PROVIDER, EXIT_REFUSED = 5, 6, 7
MAX_MESSAGE_CHARS = 5_000_000

_UNASKED = (
    "calls were refused because nobody could be asked. Run this command in a terminal to be asked, or with"
    " --yes to allow them."
)
_EPILOG = """\b
Exit codes:
  0    the model answered
  1    failed for another reason
  2    wrong usage
  3    invalid configuration, no model, or no key
  4    the session or a toolset does not exist
  5    a limit on steps, tokens, time, cost, output or repeated failures was reached
  6    the model provider failed
  7    the model answered, but at least one of its tool calls was refused
  130  interrupted by a signal
"""


@click.command("run", epilog=_EPILOG)
@click.argument("message")
@agent_options
@click.option("--json", "as_json", is_flag=True, help="Print every event as one line of JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Do not print tool calls and usage to standard error.")
@click.option(
    "--demo", is_flag=True, help="Use sample tools and, without --model, a scripted model; needs no API key."
)
@click.pass_obj
def command(
    invocation: Invocation, message: str, options: AgentOptions, as_json: bool, quiet: bool, demo: bool
) -> int:
    """Let an agent work on MESSAGE (`-` to read standard input) and print its answer.

    Standard output has only the answer; tool calls and usage are printed to standard error. If nobody can
    be asked for approval, calls that need it are refused.
    """
    text = _read_message(message)
    if not (demo or options.session or options.model or invocation.load_config().agent.model):
        print_note(f"{NO_MODEL}\n{escape_text(MODEL_SETUP_STEPS)}")
        return EXIT_BAD_CONFIG
    printer = EventPrinter(sys.stdout) if as_json else AnswerPrinter(sys.stdout, quiet=quiet)
    try:
        return _run(options.apply_to(invocation), text, options, printer, ask=message != "-", demo=demo)
    except ProviderError as error:  # for example, its package is not installed
        print_note(f"[red]error:[/red] {escape_text(str(error))}")
        return EXIT_PROVIDER


def _read_message(message: str) -> str:
    text = sys.stdin.read(MAX_MESSAGE_CHARS + 1) if message == "-" else message
    if not text.strip():
        raise click.UsageError("the message is empty")
    if len(text) > MAX_MESSAGE_CHARS:
        raise click.UsageError(f"the message has more than {MAX_MESSAGE_CHARS:,} characters")
    return text


def _run(
    invocation: Invocation,
    message: str,
    options: AgentOptions,
    printer: TurnPrinter,
    *,
    ask: bool,
    demo: bool,
) -> int:
    from toolfold.cli.approval_prompt import ApprovalPrompt
    from toolfold.cli.elicitation_prompt import ElicitationPrompt

    can_ask = ask and sys.stdin.isatty() and sys.stderr.isatty() and not find_tool_call()
    handlers: dict[str, Any] = {}
    if can_ask:
        handlers = {"approver": ApprovalPrompt(), "elicit": ElicitationPrompt()}
    with (
        (_open_demo if demo else _open_agents)(invocation, options, handlers) as opener,
        redirect_stdout(sys.stderr),  # standard output is for the answer only
        opener.open_first() as agent,
    ):
        return opener.runtime.run_coroutine(_run_turn(agent, message, printer))


@contextlib.contextmanager
def _open_agents(
    invocation: Invocation, options: AgentOptions, handlers: dict[str, Any]
) -> Iterator[AgentOpener]:
    from toolfold.agent.agent import open_store

    with (
        invocation.open_runtime(build_index=True, **handlers) as runtime,
        contextlib.closing(open_store(runtime.config, runtime.database)) as store,
    ):
        yield AgentOpener(runtime, store, options)


def _open_demo(
    invocation: Invocation, options: AgentOptions, handlers: dict[str, Any]
) -> AbstractContextManager[AgentOpener]:
    from toolfold.cli.demo import open_demo_agents

    return open_demo_agents(invocation, options, **handlers)


async def _run_turn(agent: Agent, message: str, printer: TurnPrinter) -> int:
    """Run one agent turn for the message, print its events and return the exit code."""
    from toolfold.safety.approval.prompting import NOBODY_ASKED

    printer.start(agent.session_id)
    code = EXIT_FAILED
    refused = unasked = False
    with interrupt_on_signals(agent.interrupt):
        async for event in agent.stream(message, sub_agents=True):
            printer.print(event)
            if isinstance(event, ToolFinished) and event.refused:
                refused, unasked = True, unasked or NOBODY_ASKED in (event.error or "")
            if isinstance(event, TurnFinished) and event.session_id == agent.session_id:
                code = find_exit_code(event, refused=refused)
    if unasked:
        print_note(f"[yellow]note:[/yellow] {_UNASKED}")
    return code


def find_exit_code(finished: TurnFinished, *, refused: bool) -> int:
    """Return the exit code of `toolfold run`, which depends on why the agent turn ended."""
    match finished.reason:
        case "completed":
            return EXIT_REFUSED if refused else 0
        case "interrupted":
            return EXIT_INTERRUPTED
        case "error" | "empty_reply":
            return EXIT_PROVIDER
    return EXIT_LIMIT


@contextlib.contextmanager
def interrupt_on_signals(
    interrupt: Callable[[], None], *, terminate: Callable[[], None] | None = None
) -> Iterator[None]:
    """Call `interrupt` on SIGINT (Ctrl-C), SIGTERM and SIGHUP during a `with` block.

    If `terminate` is given, it is called instead on SIGTERM and SIGHUP.
    """
    loop = asyncio.get_running_loop()
    # Windows has no SIGHUP.
    ending = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    actions = dict.fromkeys(ending, terminate or interrupt)
    actions[signal.SIGINT] = interrupt
    before = {number: signal.getsignal(number) for number in actions}
    for number, action in actions.items():
        _handle_signal(loop, number, action)
    try:
        yield
    finally:
        for number, handler in before.items():
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _handle_signal(loop: asyncio.AbstractEventLoop, number: int, action: Callable[[], None]) -> None:
    """Register `action` as the event loop's handler of a signal."""
    try:
        loop.add_signal_handler(number, action)
    except NotImplementedError:  # Windows
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(action))


class TurnPrinter:
    """Interface for printing the events of one agent turn."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def start(self, session_id: str) -> None:
        """Prepare for the events of a turn of the session `session_id`."""

    def print(self, event: Event) -> None:
        """Print one event of an agent turn."""
        raise NotImplementedError

    def _write(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()


class EventPrinter(TurnPrinter):
    """Prints every event of a turn as one line of JSON."""

    def print(self, event: Event) -> None:
        self._write(format_json_line(event.to_json()))


class AnswerPrinter(TurnPrinter):
    """Prints the answer to standard output and, unless `quiet`, the agent's actions to standard error."""

    def __init__(self, out: TextIO, *, quiet: bool = False) -> None:
        super().__init__(out)
        self._quiet = quiet
        self._started = time.monotonic()
        self._lines = CallLines("")
        self._selection = ""

    def start(self, session_id: str) -> None:
        self._lines = CallLines(session_id)

    def print(self, event: Event) -> None:
        if line := self._lines.read(event):
            self._note(str(line))
        if not self._lines.is_own(event):
            return
        if isinstance(event, ToolsSelected):
            self._print_selection(event)
        elif isinstance(event, TurnFinished):
            self._print_end(event)

    def _print_selection(self, event: ToolsSelected) -> None:
        line = format_selection(event)
        if line != self._selection:  # the same for most model calls of a turn
            self._selection = line
            self._note(line)

    def _print_end(self, event: TurnFinished) -> None:
        if event.text:
            self._write(clean_text(event.text) if self._out.isatty() else event.text)
        if event.error:
            print_note(f"[red]error:[/red] {escape_text(event.error)}")
        seconds = time.monotonic() - self._started
        self._note(f"session {event.session_id} · {format_spending(event, seconds)}")

    def _note(self, line: str) -> None:
        if not self._quiet:
            print_note(f"[dim]{escape_text(line)}[/dim]")
