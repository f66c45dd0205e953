"""The question at a terminal: what would run, why it is asked about, and which answers there are.

Everything a model wrote is shown with its deceptive characters spelled out, and plainly: nothing in it can
move the cursor, change colours or pass for our own words. What matters most stands last, next to the answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading

import click

from toolfold.approval.visible import brief, visible
from toolfold.model import Answer, ApprovalRequest, Meaning

__all__ = ["Prompt"]

_TRIES = 3
_LOOK_SECONDS = 0.05
_MOST_REASONS = 8
_MEANS = {
    Answer.ONCE: "run it this once",
    Answer.SESSION: "run it, and {session_covers} in this session",
    Answer.KIND: "run it, and every other {kinds} in this session",
    Answer.ALWAYS: "run it, and never ask about {covers} again",
    Answer.ALWAYS_KIND: "run it, and never ask about any {kinds} again, in any session",
    Answer.DENY: "do not run it",
}


_YES_AND_NO = {Answer.ONCE: ("y", "yes"), Answer.DENY: ("n", "no")}
_KEYS = {answer: answer.value[0] for answer in Answer} | {Answer.ALWAYS_KIND: "ak"}


class Prompt:
    """An approver that asks on standard error and reads standard input, one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, request: ApprovalRequest, /) -> Answer:
        with self._lock:
            if request.withdrawn.is_set():  # while others were asked
                return Answer.DENY
            click.echo(question(request), err=True)
            return self._answer(request)

    def _answer(self, request: ApprovalRequest) -> Answer:
        for _ in range(_TRIES):
            click.echo("Your answer > ", nl=False, err=True)
            said = _line(request.withdrawn)
            if said is None:
                _end_line()
                return Answer.DENY
            word = said.strip().casefold()
            if not word:
                return Answer.DENY
            for answer in request.answers:
                if word in _words(answer):
                    return answer
            letters = ", ".join(_KEYS[answer] for answer in request.answers)
            click.echo(f"Please answer with one of {letters}.", err=True)
        return Answer.DENY


def _words(answer: Answer) -> tuple[str, ...]:
    return (answer.value, _KEYS[answer], *_YES_AND_NO.get(answer, ()))


def _line(withdrawn: threading.Event) -> str | None:
    """The next line of standard input, or None where it ends before one does or nobody waits any more.

    Not read through `sys.stdin`: a thread that waits in there holds a lock which Python wants when it ends,
    and Ctrl-C would crash it. Byte by byte, since what follows the line is for whoever asks next.
    """
    line = bytearray()
    try:
        keys = sys.stdin.fileno()
        while not line.endswith(b"\n"):
            while not select.select([keys], [], [], _LOOK_SECONDS)[0]:
                if withdrawn.is_set():
                    return None
            byte = os.read(keys, 1)
            if not byte:
                return None
            line += byte
    except (OSError, ValueError):  # the terminal is gone, or there was none
        return None
    return line.decode(errors="replace")


def _end_line() -> None:
    """Let nothing follow the question in its line; without the lock of `sys.stderr`, for the same reason."""
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), b"\n")


def question(request: ApprovalRequest) -> str:
    """The whole question, as it is printed."""
    what = f"{request.category}, {request.severity}" if request.category else ""
    lines = [
        "",
        click.style(
            f"{visible(request.tool.name)} needs your word" + (f" ({what})" if what else ""), bold=True
        ),
        "",
        _indented(visible(brief(request.command)) if request.command else _arguments(request)),
        "",
    ]
    if request.part and request.part.strip() != request.command.strip():
        lines.append(_labelled("part", visible(brief(request.part, 500))))
    if folder := _folder(request):
        lines.append(_labelled("in", visible(brief(folder, 200))))
    lines.append(_labelled("why", visible(request.reason)))
    lines += [_labelled("also", visible(reason)) for reason in request.also[:_MOST_REASONS]]
    if len(request.also) > _MOST_REASONS:
        lines.append(_labelled("also", f"and {len(request.also) - _MOST_REASONS} more"))
    lines.append("")
    lines += [
        f"  {click.style(_KEYS[answer].ljust(2), bold=True)} {_meaning(answer, request)}"
        for answer in request.answers
    ]
    return "\n".join(lines)


def _folder(request: ApprovalRequest) -> str:
    """Where the command would run, if the call says so."""
    meanings = request.tool.judged_as.items()
    named = (request.args.get(name) for name, meaning in meanings if meaning is Meaning.FOLDER)
    return next((each for each in named if request.command and isinstance(each, str)), "")


def _meaning(answer: Answer, request: ApprovalRequest) -> str:
    named = (" ".join(visible(brief(each, 80)).split()) for each in request.kinds)
    kinds = " or ".join(named) or "finding of the same rules"
    covers = " ".join(visible(brief(request.covers, 200)).split())
    session_covers = visible(request.session_covers) or "the same again"
    means = _MEANS[answer].format(kinds=kinds, covers=covers, session_covers=session_covers)
    return f"{answer.value}: {means}"


def _arguments(request: ApprovalRequest) -> str:
    return visible(brief(f"{request.tool.name} {json.dumps(request.args, ensure_ascii=False, default=str)}"))


def _indented(text: str) -> str:
    return "\n".join(f"  │ {line}" for line in text.split("\n"))


def _labelled(label: str, text: str) -> str:
    first, *rest = text.split("\n")
    return "\n".join((f"  {label + ':':<6}{first}", *(f"        {line}" for line in rest)))
