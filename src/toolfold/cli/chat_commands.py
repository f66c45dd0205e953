"""The slash commands of `toolfold chat`, such as /tools, /cost and /undo."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from toolfold.cli.activity import clean_line, format_selection
from toolfold.cli.agent_options import find_session
from toolfold.cli.chat_input import InputEnded
from toolfold.cli.output import NotFound, escape_text, format_count, print_line, print_table
from toolfold.cli.transcripts import format_entry, format_time, read_transcript
from toolfold.core.errors import ToolfoldError, closest_names, did_you_mean

if TYPE_CHECKING:
    from toolfold.cli.chat import Chat
    from toolfold.core.events import Usage
    from toolfold.state.store import SessionRecord

MAX_LISTED_SESSIONS = 10
MAX_LISTED_TOOLS = 40
MAX_RECALLED_ENTRIES = 6
_COMMAND = re.compile(r"/[a-z]+(?=\s|$)")

ABOUT: Mapping[str, str] = {
    "/tools": "list the tools of this session; /tools WORD lists those with WORD in name or description",
    "/why": "show why these tools were sent with the latest message",
    "/cost": "show tokens, dollars and what the selection of tools saved",
    "/model": "show the model; /model PROVIDER:MODEL continues with another one",
    "/resume": "list stored sessions; /resume ID continues one",
    "/new": "start a new session",
    "/undo": "take back the latest message and its answer, and edit it again",
    "/help": "show this list",
    "/exit": "leave the chat (also /quit, Ctrl-D)",
}
KEYS = (
    "Enter sends · Alt-Enter, Ctrl-J or \\ + Enter: new line · Tab completes · ↑ ↓: earlier messages\n"
    "Ctrl-C stops the turn, or clears the line; twice on an empty line it leaves the chat"
)


class ChatCommands:
    """Runs the slash commands that a user types in a chat."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._runners: Mapping[str, Callable[[str], None]] = {
            "/tools": self._list_tools,
            "/why": self._explain_selection,
            "/cost": self._show_cost,
            "/model": self._change_model,
            "/resume": self._resume,
            "/new": lambda _: self._chat.start_session(),
            "/undo": self._undo,
            "/help": self._show_help,
            "/": self._show_help,
            "/exit": self._leave,
            "/quit": self._leave,
        }

    def is_command(self, text: str) -> bool:
        """Return True for a slash command, False for a message, even one that starts with a path (/tmp)."""
        return _COMMAND.match(text) is not None or text.strip() == "/"

    def run(self, text: str) -> None:
        """Run a slash command and print its errors. Raises InputEnded if the command leaves the chat."""
        name, *argument = text.split(maxsplit=1)
        runner = self._runners.get(name)
        try:
            if runner is None:
                near = _suggest_command(name)
                raise NotFound(f"there is no command {name}.{near} /help lists all commands.")
            runner("".join(argument).strip())
        except NotFound as error:
            _print_problem(error.message)
        except ToolfoldError as error:
            _print_problem(str(error))

    def suggest_arguments(self, command: str) -> Iterable[tuple[str, str]]:
        """Return completions, each with a description, for the argument of a slash command."""
        if command == "/resume":
            return [
                (record.id, clean_line(record.title, 60))
                for record in self._chat.opener.store.list_sessions(limit=20)
            ]
        return self._suggest_models() if command == "/model" else []

    def _suggest_models(self) -> list[tuple[str, str]]:
        from toolfold.models.model_names import has_key, known_providers

        config = self._chat.opener.runtime.config
        used = [record.model for record in self._chat.opener.store.list_sessions(limit=20)]
        names = dict.fromkeys([config.agent.model, *used])
        suggestions = [(clean_line(name, 100), "used before") for name in names if name]
        providers = [name for name in known_providers(config) if has_key(name, config)]
        return [*suggestions, *((f"{name}:", "provider") for name in providers)]

    def _list_tools(self, words: str) -> None:
        chat = self._chat
        turn = chat.agent.session.assemble()
        names = sorted(turn.offered_names | turn.unavailable.keys())
        wanted = [
            tool
            for name in names
            if (tool := turn.snapshot.get(name))
            and words.casefold() in f"{tool.name} {tool.description}".casefold()
        ]
        if not wanted:
            raise NotFound(f"no tool of this session has {words!r} in its name or description.")
        sent = frozenset(chat.selection.shown) if chat.selection else frozenset[str]()
        statuses = chat.opener.runtime.statuses(tool.name for tool in wanted[:MAX_LISTED_TOOLS])
        rows = []
        for tool in wanted[:MAX_LISTED_TOOLS]:
            status = statuses[tool.name]
            state = "sent" if tool.name in sent else "callable" if status.usable else f"no: {status.reason}"
            rows.append((tool.name, tool.toolset, clean_line(state, 80), clean_line(tool.description, 80)))
        unavailable = sum(tool.name in turn.unavailable for tool in wanted)
        title = format_count(len(wanted) - unavailable, "tool")
        title += f", {unavailable:,} more not available" if unavailable else ""
        print_table(title, ("tool", "toolset", "state", "description"), rows)
        if len(wanted) > MAX_LISTED_TOOLS:
            print_line(f"and {len(wanted) - MAX_LISTED_TOOLS:,} more; /tools WORD lists some of them")

    def _explain_selection(self, _: str) -> None:
        selection = self._chat.selection
        if selection is None:
            raise NotFound("no message was sent yet in this chat.")
        print_line(f"{format_selection(selection)}.")
        names = dict.fromkeys((*selection.shown, *selection.reasons))
        if not names or len(names) == selection.available:
            return
        print_table(
            "",
            ("tool", "why it was sent"),
            ((name, clean_line(selection.reasons.get(name, "always sent"), 200)) for name in names),
        )

    def _show_cost(self, _: str) -> None:
        agent, last = self._chat.agent, self._chat.last_turn
        total = None if last is not None and last.cost is None else agent.total_cost
        rows = [("this session since it was opened", *_format_usage(agent.total_usage, total))]
        if last is not None:
            rows.insert(0, ("latest message", *_format_usage(last.usage, last.cost)))
        print_table("", ("", "#input tokens", "#cached", "#output tokens", "#dollars"), rows)
        saved = self._chat.tokens_saved
        print_line(f"Sending fewer tools saved {saved:,} input tokens in this chat.")

    def _change_model(self, name: str) -> None:
        chat = self._chat
        opener = chat.opener
        if name:
            opener.runtime.run_coroutine(opener.change_model(chat.agent, name))
        print_line(f"model: {escape_text(clean_line(chat.agent.model, 200))}")
        if opener.client_model and chat.agent.model != opener.client_model:
            print_line(f"[dim]/model {escape_text(opener.client_model)} returns to the demo model.[/dim]")

    def _resume(self, text: str) -> None:
        chat = self._chat
        listed = chat.opener.store.list_sessions(limit=MAX_LISTED_SESSIONS)
        if not text:
            _print_sessions(listed, chat.agent.session_id)
            return
        is_number = text.isdecimal() and 0 < int(text) <= len(listed)
        record = listed[int(text) - 1] if is_number else find_session(chat.opener.store, text)
        if record.id == chat.agent.session_id:
            raise NotFound("this session is already open.")
        chat.resume_session(record)
        entries = read_transcript(record, chat.opener.store.load_messages(record.id))
        for entry in entries[-MAX_RECALLED_ENTRIES:]:
            print_line(f"[dim]{escape_text(format_entry(entry))}[/dim]")

    def _undo(self, _: str) -> None:
        message = self._chat.agent.undo()
        if not message:
            raise NotFound("there is no message to take back.")
        self._chat.draft = message
        print_line(f"taken back: {escape_text(clean_line(message, 200))}")
        print_line("[dim]What tools have done is not undone.[/dim]")

    def _show_help(self, _: str) -> None:
        print_table("", ("", ""), ABOUT.items())
        print_line(f"[dim]{escape_text(KEYS)}[/dim]")

    def _leave(self, _: str) -> None:
        raise InputEnded


def _suggest_command(name: str) -> str:
    # Without the slash, which would make every short name similar to every other.
    known = (command.removeprefix("/") for command in ABOUT)
    return did_you_mean([f"/{near}" for near in closest_names(name.removeprefix("/"), known)])


def _print_sessions(records: list[SessionRecord], current: str) -> None:
    print_table(
        "",
        ("#", "id", "last used", "first message"),
        (
            (
                str(number),
                record.id + (" (this one)" if record.id == current else ""),
                format_time(record.updated),
                clean_line(record.title, 60),
            )
            for number, record in enumerate(records, 1)
        ),
    )
    print_line("continue one: /resume NUMBER or /resume ID")


def _format_usage(usage: Usage, cost: float | None) -> tuple[str, str, str, str]:
    dollars = "unknown" if cost is None else f"{cost:.4f}"
    return (f"{usage.input_tokens:,}", f"{usage.cached_tokens:,}", f"{usage.output_tokens:,}", dollars)


def _print_problem(problem: str) -> None:
    print_line(f"[yellow]{escape_text(problem)}[/yellow]")
