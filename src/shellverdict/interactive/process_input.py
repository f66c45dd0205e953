"""The input of a running process: the command that started it, what it was given, what it is given now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["SIGNAL", "WRITE", "ProcessInput", "deliverable"]

WRITE, SIGNAL = "write", "signal"
MAX_SHOWN_HISTORY_CHARS = 2_000

NO_CONTEXT = "nobody knows which process this is for and what it was given before"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInput:
    """One write to a process, with its context."""

    command: str = ""
    """The command line that started the process."""
    workdir: str | None = None
    pty: bool = False
    """Whether the process reads from a terminal, which edits lines and has control characters."""
    before: tuple[tuple[str, str], ...] = ()
    """Earlier writes and signals in order, as (kind, text or name of the signal)."""
    text: str = ""
    closes: bool = False
    """Whether the input ends with this write."""
    unknown: str = ""
    """Why the earlier input is not known; empty where it is."""

    @classmethod
    def from_arguments(cls, context: object, text: str) -> ProcessInput:
        """Read the context that the runtime adds to a call. Without a valid one, the state is unknown."""
        text = deliverable(text)
        if not isinstance(context, Mapping) or not isinstance(context.get("command"), str):
            return cls(text=text, unknown=NO_CONTEXT)
        workdir = context.get("workdir")
        return cls(
            command=context["command"],
            workdir=workdir if isinstance(workdir, str) and workdir else None,
            pty=bool(context.get("pty")),
            before=_entries(context.get("before") or ()),
            text=text,
            closes=bool(context.get("closes")),
            unknown=str(context.get("unknown") or ""),
        )

    @property
    def written_before(self) -> str:
        return "".join(text for kind, text in self.before if kind == WRITE)

    @property
    def description(self) -> str:
        """The write for a person's eyes: the process, the new text, the end of what it was given before."""
        lines = [f"# input of: {self.command or '(unknown)'}", *_marked("> ", self.text)]
        lines += ["# end of input"] if self.closes else []
        if earlier := self.written_before:
            cut = " (the end of it)" if len(earlier) > MAX_SHOWN_HISTORY_CHARS else ""
            lines += [f"# given before{cut}:", *_marked("| ", earlier[-MAX_SHOWN_HISTORY_CHARS:])]
        return "\n".join(lines)


def _marked(sign: str, text: str) -> list[str]:
    """The lines of a text, marked so that none of them can pass for one of ours."""
    return [sign + line for line in text.removesuffix("\n").split("\n")] if text else []


def deliverable(text: str) -> str:
    """The text as it is delivered: lone surrogates cannot be encoded and arrive as question marks."""
    return text.encode(errors="replace").decode()


def _entries(value: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    return tuple((str(kind), deliverable(str(text))) for kind, text in value)
