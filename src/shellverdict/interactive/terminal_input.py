"""Convert characters typed at a terminal into lines.

Handles what all terminals and line editors do alike: return ends a line, delete removes a character, Ctrl-U
the line, Ctrl-C drops the line and interrupts, Ctrl-D at the start of a line ends the input. Other editing
keys (arrow keys, completion, Ctrl-R, Ctrl-W…) depend on the program and are reported as unclear.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from shellverdict.interactive.process_input import SIGNAL

__all__ = ["InputEvent", "Transcript", "transcribe"]

InputEventKind = Literal["line", "break", "end"]

_INTERRUPTS = frozenset({"INT", "QUIT"})
_DELETE, _KILL, _INTERRUPT, _END = "\x7f", "\x15", "\x03", "\x04"
_EDITING = frozenset({_DELETE, _KILL})


@dataclass(frozen=True, slots=True)
class InputEvent:
    """Event in the input of a process: a finished line, an interrupt (Ctrl-C), or the end of the input."""

    kind: InputEventKind
    text: str = ""


@dataclass(slots=True)
class Transcript:
    """Transcript of all input of a process: a list of events, such as lines, and the unfinished last line."""

    events: list[InputEvent] = field(default_factory=list)
    partial: str = ""
    unclear_key: str = ""
    """Name of the first key whose effect is unknown; empty if there is none."""
    has_editing: bool = False
    """True if editing keys were applied that some programs would treat as ordinary characters."""

    def end_line(self) -> None:
        self.events.append(InputEvent("line", self.partial))
        self.partial = ""


def transcribe(entries: Iterable[tuple[str, str]], *, pty: bool, editing: bool = True) -> Transcript:
    """Convert the writes and signals that a process received into input lines.

    Without `editing`, delete and Ctrl-U are ordinary characters.
    """
    transcript = Transcript()
    for kind, text in entries:
        if kind == SIGNAL:
            _apply_signal(transcript, text)
        elif pty:
            _apply_keys(transcript, text, editing)
        else:
            _append_piped(transcript, text)
    return transcript


def _apply_signal(transcript: Transcript, signal: str) -> None:
    if signal in _INTERRUPTS:
        transcript.events.append(InputEvent("break"))


def _append_piped(transcript: Transcript, text: str) -> None:
    """Append bytes that were written to a pipe; drop NUL bytes, as shells do."""
    *lines, rest = text.replace("\0", "").split("\n")
    for line in lines:
        transcript.partial += line
        transcript.end_line()
    transcript.partial += rest


def _apply_keys(transcript: Transcript, text: str, editing: bool) -> None:
    for key in text:
        if key in "\r\n":
            transcript.end_line()
        elif key in _EDITING:
            transcript.has_editing = True
            if editing:
                transcript.partial = transcript.partial[:-1] if key == _DELETE else ""
        elif key == _INTERRUPT:
            transcript.partial = ""
            transcript.events.append(InputEvent("break"))
        elif key == _END and not transcript.partial:
            transcript.events.append(InputEvent("end"))
        elif key.isprintable() or (key == "\t" and not transcript.partial.strip()) or ord(key) > 0x9F:
            transcript.partial += key
        else:
            transcript.unclear_key = transcript.unclear_key or key_name(key)


def key_name(key: str) -> str:
    """Return the usual name of a control character, such as Ctrl-C."""
    names = {"\x1b": "an escape sequence (such as an arrow key)", "\t": "the tab key", "\x08": "backspace"}
    return names.get(key) or (f"Ctrl-{chr(ord(key) + 64)}" if ord(key) < 32 else f"U+{ord(key):04X}")


def new_events(before: Transcript, after: Transcript) -> Iterator[InputEvent]:
    """Return the input events that the last write to the process added."""
    return iter(after.events[len(before.events) :])
