"""Define the input of a running process: the command that started it, earlier input, and new text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["SIGNAL", "WRITE", "ProcessInput", "replace_surrogates"]

WRITE, SIGNAL = "write", "signal"
MAX_SHOWN_HISTORY_CHARS = 2_000

NO_CONTEXT = "the process and its earlier input are unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInput:
    """Text to be written to a running process, with the command that started it and its earlier input."""

    command: str = ""
    """The command line that started the process."""
    workdir: str | None = None
    pty: bool = False
    """True if the process reads from a terminal, which edits lines and handles control characters."""
    history: tuple[tuple[str, str], ...] = ()
    """Earlier writes and signals in order, as (kind, text or signal name)."""
    text: str = ""
    closes_input: bool = False
    """True if the input of the process is closed after this text."""
    unknown_reason: str = ""
    """Why the earlier input is unknown; empty if it is known."""

    @classmethod
    def from_arguments(cls, context: object, text: str) -> ProcessInput:
        """Create a `ProcessInput` from the text of a tool call and `context`, which describes the process.

        If the process data is invalid, the earlier input is unknown.
        """
        text = replace_surrogates(text)
        if not isinstance(context, Mapping) or not isinstance(context.get("command"), str):
            return cls(text=text, unknown_reason=NO_CONTEXT)
        workdir = context.get("workdir")
        return cls(
            command=context["command"],
            workdir=workdir if isinstance(workdir, str) and workdir else None,
            pty=bool(context.get("pty")),
            history=_read_history(context.get("before") or ()),
            text=text,
            closes_input=bool(context.get("closes")),
            unknown_reason=str(context.get("unknown") or ""),
        )

    @property
    def earlier_text(self) -> str:
        return "".join(text for kind, text in self.history if kind == WRITE)

    @property
    def description(self) -> str:
        """Return a readable description: the process, the new input and the end of the earlier input."""
        lines = [f"# input of: {self.command or '(unknown)'}", *_prefix_lines("> ", self.text)]
        lines += ["# end of input"] if self.closes_input else []
        if earlier := self.earlier_text:
            cut = " (the end of it)" if len(earlier) > MAX_SHOWN_HISTORY_CHARS else ""
            lines += [f"# earlier input{cut}:", *_prefix_lines("| ", earlier[-MAX_SHOWN_HISTORY_CHARS:])]
        return "\n".join(lines)


def _prefix_lines(sign: str, text: str) -> list[str]:
    """Put `sign` before every line of `text`, to distinguish input from headings of the description."""
    return [sign + line for line in text.removesuffix("\n").split("\n")] if text else []


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates by question marks, as is done when text is written to a process."""
    return text.encode(errors="replace").decode()


def _read_history(value: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    return tuple((str(kind), replace_surrogates(str(text))) for kind, text in value)
