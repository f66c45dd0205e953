r"""What a terminal makes of the characters that are typed into it.

Resolves what every terminal and line editor does alike: return ends a line, delete takes back a character,
Ctrl-U the line, Ctrl-C drops the line and interrupts, Ctrl-D at the start of a line ends the input. Whatever
else edits (arrow keys, completion, Ctrl-R, Ctrl-W…) depends on the program that reads: it is unclear.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from shellverdict.interactive.process_input import SIGNAL

__all__ = ["Event", "Transcript", "transcribe"]

EventKind = Literal["line", "break", "end"]

_INTERRUPTS = frozenset({"INT", "QUIT"})
_DELETE, _KILL, _INTERRUPT, _END = "\x7f", "\x15", "\x03", "\x04"
_EDITING = frozenset({_DELETE, _KILL})


@dataclass(frozen=True, slots=True)
class Event:
    """A line that has ended, an interrupt, or the end of the input."""

    kind: EventKind
    text: str = ""


@dataclass(slots=True)
class Transcript:
    """Everything a process was given, as events, and the line that has not ended."""

    events: list[Event] = field(default_factory=list)
    partial: str = ""
    unclear: str = ""
    """The first key whose effect cannot be told, where there is one."""
    edited: bool = False
    """Whether keys were resolved that another program could take as plain characters."""

    def end_line(self) -> None:
        self.events.append(Event("line", self.partial))
        self.partial = ""


def transcribe(entries: Iterable[tuple[str, str]], *, pty: bool, editing: bool = True) -> Transcript:
    """Turn writes and signals into lines. Without `editing`, delete and Ctrl-U count as plain characters."""
    found = Transcript()
    for kind, text in entries:
        if kind == SIGNAL:
            _interrupt(found, text)
        elif pty:
            _type(found, text, editing)
        else:
            _feed(found, text)
    return found


def _interrupt(found: Transcript, signal: str) -> None:
    if signal in _INTERRUPTS:
        found.events.append(Event("break"))


def _feed(found: Transcript, text: str) -> None:
    """A pipe: bytes arrive as they are; shells skip NUL."""
    *lines, rest = text.replace("\0", "").split("\n")
    for line in lines:
        found.partial += line
        found.end_line()
    found.partial += rest


def _type(found: Transcript, text: str, editing: bool) -> None:
    for key in text:
        if key in "\r\n":
            found.end_line()
        elif key in _EDITING:
            found.edited = True
            if editing:
                found.partial = found.partial[:-1] if key == _DELETE else ""
        elif key == _INTERRUPT:
            found.partial = ""
            found.events.append(Event("break"))
        elif key == _END and not found.partial:
            found.events.append(Event("end"))
        elif key.isprintable() or (key == "\t" and not found.partial.strip()) or ord(key) > 0x9F:
            found.partial += key
        else:
            found.unclear = found.unclear or name_of(key)


def name_of(key: str) -> str:
    """The name of a control character, as people say it."""
    names = {"\x1b": "an escape sequence (such as an arrow key)", "\t": "the tab key", "\x08": "backspace"}
    return names.get(key) or (f"Ctrl-{chr(ord(key) + 64)}" if ord(key) < 32 else f"U+{ord(key):04X}")


def new_events(before: Transcript, after: Transcript) -> Iterator[Event]:
    """The events that a write added."""
    return iter(after.events[len(before.events) :])
