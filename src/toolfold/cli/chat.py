"""`toolfold chat`: talk to an agent at a terminal, or through a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.activity import clean_line
from toolfold.cli.agent_options import (
    MODEL_SETUP_STEPS,
    NO_MODEL,
    AgentOpener,
    AgentOptions,
    agent_options,
)
from toolfold.cli.app import EXIT_BAD_CONFIG, EXIT_INTERRUPTED, Invocation
from toolfold.cli.chat_commands import ABOUT, ChatCommands
from toolfold.cli.chat_input import (
    HistoryFile,
    InputEnded,
    LineReader,
    MessageReader,
    PromptReader,
    suggest_words,
)
from toolfold.cli.chat_questions import ChatQuestions
from toolfold.cli.chat_screen import LiveScreen, PlainScreen, Screen
from toolfold.cli.output import escape_text, format_count, print_line, print_note
from toolfold.cli.run import interrupt_on_signals
from toolfold.core.errors import ConfigError, ToolfoldError
from toolfold.core.events import Event, ToolsSelected, TurnFinished
from toolfold.core.tool_processes import find_tool_call

if TYPE_CHECKING:
    from toolfold.agent import Agent
    from toolfold.config import Config
    from toolfold.state.store import SessionRecord

HISTORY_FILE = "chat_history"
DEMO_DELAY_S = 0.02
"""Pause after each piece of text of the scripted demo model, so that it looks like a real model."""


@click.command("chat")
@agent_options
@click.option(
    "--demo", is_flag=True, help="Try the chat with a scripted model and sample tools; needs no API key."
)
@click.pass_obj
def command(invocation: Invocation, options: AgentOptions, demo: bool) -> int:
    """Talk to an agent that uses your tools. /help lists the commands of the chat.

    Without a terminal, each line of standard input is one message, and the output is plain text.
    """
    if demo:
        return _run_demo(invocation, options)
    if not options.session and (problem := _find_model_problem(invocation.load_config(), options)):
        print_note(f"{escape_text(problem)}\n{escape_text(MODEL_SETUP_STEPS)}")
        if not (is_interactive() and click.confirm("Start the demo now?", default=True, err=True)):
            return EXIT_BAD_CONFIG
        return _run_demo(invocation, AgentOptions())
    return _run_chat(options.apply_to(invocation), options)


def _find_model_problem(config: Config, options: AgentOptions) -> str:
    """Return the reason why the chat's model cannot be used; empty if the model can be used."""
    from toolfold.models.model_names import build_client, parse_model_name

    text = options.model or config.agent.model
    if not text:
        return NO_MODEL
    try:
        build_client(parse_model_name(text, config), config)
    except ToolfoldError as error:
        problem = error.problem if isinstance(error, ConfigError) else str(error)
        return f"The model {text} cannot be used: {problem}."
    return ""


def is_interactive() -> bool:
    """Return True if input and output are a terminal that can redraw lines."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()
    return is_terminal and os.environ.get("TERM", "dumb") != "dumb"


def _run_chat(invocation: Invocation, options: AgentOptions) -> int:
    from toolfold.agent.agent import open_store

    screen = _open_screen()
    questions = _open_questions(screen)
    with (
        screen.hold_keys(),
        invocation.open_runtime(build_index=True, **_question_handlers(questions)) as runtime,
        contextlib.closing(open_store(runtime.config, runtime.database)) as store,
    ):
        asker = questions.clarify if questions else None
        chat = Chat(AgentOpener(runtime, store, options, asker=asker), screen)
        with chat.closing():
            return chat.run()


def _run_demo(invocation: Invocation, options: AgentOptions) -> int:
    """Run the chat with a scripted model in a temporary directory, without the user's settings."""
    from toolfold.cli.demo import open_demo_agents
    from toolfold.cli.demo_conversation import MESSAGES

    screen = _open_screen()
    handlers = _question_handlers(_open_questions(screen))
    with (
        screen.hold_keys(),
        open_demo_agents(invocation, options, delta_delay_s=DEMO_DELAY_S, **handlers) as opener,
    ):
        history = HistoryFile(opener.runtime.config.paths.state_dir / HISTORY_FILE)
        for message in reversed(MESSAGES):
            history.append(message)
        chat = Chat(opener, screen, suggestions=MESSAGES)
        with chat.closing():
            return chat.run()


def _open_questions(screen: Screen) -> ChatQuestions | None:
    """Create the object that asks the user questions at the terminal; None if nobody can be asked."""
    return ChatQuestions(screen) if isinstance(screen, LiveScreen) and not find_tool_call() else None


def _question_handlers(questions: ChatQuestions | None) -> dict[str, Any]:
    return {"approver": questions.approve, "elicit": questions.elicit} if questions else {}


def _open_screen() -> Screen:
    from rich.console import Console

    return LiveScreen(Console(highlight=False, emoji=False)) if is_interactive() else PlainScreen()


class Chat:
    """The loop of `toolfold chat`: reads messages and slash commands, and shows the agent's turns."""

    def __init__(self, opener: AgentOpener, screen: Screen, *, suggestions: Sequence[str] = ()) -> None:
        """Create a chat; `suggestions` are messages that the demo proposes to the user."""
        self.opener, self._screen, self._suggestions = opener, screen, suggestions
        self.agent: Agent = opener.open_first()
        self._created = set() if opener.options.session else {self.agent.session_id}
        """Sessions that this chat has created and not closed yet."""
        self.selection: ToolsSelected | None = None
        self.last_turn: TurnFinished | None = None
        self.tokens_saved = 0
        self.draft = ""
        """Text that the user can edit at the next prompt, such as the message that /undo has removed."""
        self._commands = ChatCommands(self)
        self._is_terminated = False
        self._reader = self._open_reader()

    def _open_reader(self) -> MessageReader:
        if not isinstance(self._screen, LiveScreen):
            return LineReader()
        file = self.opener.runtime.config.paths.state_dir / HISTORY_FILE
        return PromptReader(file, lambda text: suggest_words(text, ABOUT, self._commands.suggest_arguments))

    def run(self) -> int:
        """Read and answer messages until the input ends; return the exit code."""
        self._print_welcome()
        was_interrupted = False
        while not self._is_terminated:
            try:
                draft, self.draft = self.draft, ""
                text = self._reader.read(draft)
            except InputEnded:
                return 0
            except KeyboardInterrupt:
                if was_interrupted:
                    return 0
                was_interrupted = True
                print_line("[dim]Ctrl-C again or Ctrl-D leaves the chat.[/dim]")
                continue
            was_interrupted = False
            try:
                self._process(text)
            except InputEnded:
                return 0
        return EXIT_INTERRUPTED

    def _process(self, text: str) -> None:
        if not text.strip():
            return
        if self._commands.is_command(text):
            self._run_command(text)
            return
        try:
            self.opener.runtime.run_coroutine(self._run_turn(text))
        except ToolfoldError as error:
            print_line(f"[red]error:[/red] {escape_text(str(error))}")

    def _run_command(self, text: str) -> None:
        try:
            self._commands.run(text)
        except KeyboardInterrupt:
            print_line("[dim]the command was stopped.[/dim]")

    async def _run_turn(self, message: str) -> None:
        self._screen.start_turn(self.agent.session_id)
        try:
            with interrupt_on_signals(self.agent.interrupt, terminate=self._terminate):
                async for event in self.agent.stream(message, sub_agents=True):
                    self._record(event)
                    self._screen.show(event)
        finally:
            self._screen.end_turn()

    def _terminate(self) -> None:
        self._is_terminated = True
        self.agent.interrupt()

    def _record(self, event: Event) -> None:
        """Store the data of an event that slash commands such as /tools and /cost show later."""
        if event.session_id != self.agent.session_id:
            return
        if isinstance(event, ToolsSelected):
            self.selection = event
            self.tokens_saved += event.tokens_saved
        elif isinstance(event, TurnFinished):
            self.last_turn = event

    def start_session(self) -> None:
        """Close the current session and start a new session with the same model."""
        agent = self.opener.open_new(self.agent.model)
        self._created.add(agent.session_id)
        self._replace_agent(agent)

    def resume_session(self, record: SessionRecord) -> None:
        """Close the current session and continue the stored session."""
        self._replace_agent(self.opener.open_stored(record))

    def _replace_agent(self, agent: Agent) -> None:
        before, self.agent = self.agent, agent
        self._close_agent(before)
        self._print_session()

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Close the session at the end of a `with` block and print the command that continues it."""
        try:
            yield
        finally:
            session_id, has_messages = self.agent.session_id, bool(self.agent.history.messages)
            self._close_agent(self.agent)
            if has_messages and not self._suggestions and isinstance(self._screen, LiveScreen):
                print_line(f"[dim]continue this session: toolfold chat --session {session_id}[/dim]")

    def _close_agent(self, agent: Agent) -> None:
        """Close an agent; delete its session if this chat created the session and it never had a message."""
        session_id, store = agent.session_id, self.opener.store
        self.opener.runtime.run_coroutine(agent.close())
        if session_id in self._created:
            self._created.remove(session_id)
            if not store.load_session(session_id).turns:
                store.delete_session(session_id)
        self.selection, self.last_turn = None, None

    def _print_welcome(self) -> None:
        if isinstance(self._screen, LiveScreen):
            self._print_session()
            print_line("[dim]/help lists the commands. Ctrl-C stops a turn, Ctrl-D leaves.[/dim]")
            if self._suggestions:
                print_line("\nThis model is a script. Try one of these messages (↑ recalls them):")
            for message in self._suggestions:
                print_line(f"  {escape_text(message)}")

    def _print_session(self) -> None:
        tools = format_count(len(self.agent.session.assemble().offered), "tool")
        facts = f"{clean_line(self.agent.model, 200)} · {tools} · session {self.agent.session_id}"
        print_line(f"[bold]toolfold[/bold] [dim]{escape_text(facts)}[/dim]")
