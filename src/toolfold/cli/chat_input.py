"""Reads the user's chat messages: at a terminal with history and completion, from a pipe line by line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

PROMPT = "› "
CONTINUATION = "  "
MAX_HISTORY_ENTRIES = 1_000
MAX_MESSAGE_CHARS = 5_000_000

Suggest = Callable[[str], Iterable[tuple[str, str]]]
"""Given the text before the cursor, returns completions of its last word, each with a description."""


class InputEnded(Exception):
    """The user's input has ended; there will be no more messages."""


class MessageReader(Protocol):
    """Interface for reading the user's chat messages."""

    def read(self, default: str = "") -> str:
        """Return the user's next message; the initial text is `default`. Raises InputEnded."""


class LineReader:
    """Reads each line of standard input as one message; a backslash at a line's end adds the next line."""

    def read(self, default: str = "") -> str:  # noqa: ARG002 - nothing can be edited here
        if sys.stdin.isatty():
            sys.stderr.write("> ")
            sys.stderr.flush()
        lines: list[str] = []
        while True:
            line = sys.stdin.readline(MAX_MESSAGE_CHARS)
            if not line and not lines:
                raise InputEnded
            text = line.rstrip("\n")
            lines.append(text.removesuffix("\\"))
            if not text.endswith("\\") or not line:
                return "\n".join(lines)


class PromptReader:
    """Reads messages at a terminal, with line editing, history and completion."""

    def __init__(self, history_file: Path, suggest: Suggest) -> None:
        self._session = _build_session(history_file, suggest)

    def read(self, default: str = "") -> str:
        try:
            return self._session.prompt(default=default)
        except EOFError:
            raise InputEnded from None


def _build_session(history_file: Path, suggest: Suggest) -> PromptSession[str]:
    from prompt_toolkit import PromptSession

    return PromptSession(
        message=PROMPT,
        multiline=True,
        prompt_continuation=CONTINUATION,
        history=_build_history(HistoryFile(history_file)),
        completer=_build_completer(suggest),
        complete_while_typing=True,
        key_bindings=_build_key_bindings(),
        enable_suspend=True,
        mouse_support=False,
    )


def _build_key_bindings() -> KeyBindings:
    """Return the key bindings: Enter sends, Alt-Enter starts a new line, Ctrl-C clears."""
    from prompt_toolkit.filters import completion_is_selected
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter", filter=~completion_is_selected)
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.current_line_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("enter", filter=completion_is_selected)
    def accept_completion(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def start_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def clear_or_leave(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return keys


def _build_completer(suggest: Suggest) -> Completer:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    class SuggestionCompleter(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:  # noqa: ARG002
            text = document.text_before_cursor
            word = text.rpartition(" ")[2]
            for suggestion, about in suggest(text):
                yield Completion(suggestion, start_position=-len(word), display_meta=about)

    return SuggestionCompleter()


def _build_history(file: HistoryFile) -> History:
    from prompt_toolkit.history import History

    class StoredHistory(History):
        def load_history_strings(self) -> Iterable[str]:
            return reversed(file.read())

        def store_string(self, string: str) -> None:
            file.append(string)

    return StoredHistory()


class HistoryFile:
    """File with the messages of earlier chats, one JSON string per line, readable only by the user."""

    def __init__(self, file: Path, *, max_entries: int = MAX_HISTORY_ENTRIES) -> None:
        self._file, self._max_entries = file, max_entries

    def read(self) -> list[str]:
        """Return the newest messages, oldest first. Lines that are not JSON strings are ignored."""
        try:
            lines = self._file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        if len(lines) > 2 * self._max_entries:
            self._write(lines[-self._max_entries :])
        return [text for line in lines[-self._max_entries :] if (text := _read_string(line))]

    def append(self, text: str) -> None:
        """Add a message to the history file; write errors are ignored."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError:
            return
        try:
            os.write(descriptor, f"{json.dumps(text)}\n".encode())
        finally:
            os.close(descriptor)

    def _write(self, lines: list[str]) -> None:
        from toolfold.config.atomic import replace_file

        replace_file(self._file, "".join(f"{line}\n" for line in lines).encode(), mode=0o600)


def _read_string(line: str) -> str:
    try:
        value = json.loads(line)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""


def suggest_words(
    text: str, commands: Mapping[str, str], arguments: Callable[[str], Iterable[tuple[str, str]]]
) -> Iterator[tuple[str, str]]:
    """Yield completions for the slash command, or its first argument, that is being typed."""
    if not text.startswith("/") or "\n" in text:
        return
    command, separator, word = text.partition(" ")
    candidates = arguments(command) if separator else commands.items()
    wanted = word if separator else command
    if " " not in word:
        yield from ((name, about) for name, about in candidates if name.startswith(wanted) and name != wanted)
