"""Ask for approval at a terminal: show the call, the reason for asking, and the possible answers.

Text written by a model is printed with deceptive characters escaped, so that it cannot move the cursor,
change colours or imitate Toolfold's own output. The most important information is printed last, next to
the answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading

import click

from toolfold.core.types import Answer, ApprovalRequest, Meaning
from toolfold.safety.approval.answer_texts import explain_answer
from toolfold.safety.approval.safe_text import make_visible, shorten_middle

__all__ = ["ApprovalPrompt", "end_line", "read_line"]

_MAX_ATTEMPTS = 3
_POLL_INTERVAL_S = 0.05
_MAX_REASONS_SHOWN = 8
_ALIASES = {Answer.ONCE: ("y", "yes"), Answer.DENY: ("n", "no")}
_KEYS = {answer: answer.value[0] for answer in Answer} | {Answer.ALWAYS_KIND: "ak"}


class ApprovalPrompt:
    """Approver that asks on standard error and reads standard input, one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, request: ApprovalRequest, /) -> Answer:
        with self._lock:
            if request.withdrawn.is_set():  # while another question was open
                return Answer.DENY
            click.echo(format_question(request), err=True)
            return self._read_answer(request)

    def _read_answer(self, request: ApprovalRequest) -> Answer:
        for _ in range(_MAX_ATTEMPTS):
            click.echo("Your answer > ", nl=False, err=True)
            line = read_line(request.withdrawn)
            if line is None:
                end_line()
                return Answer.DENY
            word = line.strip().casefold()
            if not word:
                return Answer.DENY
            for answer in request.answers:
                if word in _accepted_words(answer):
                    return answer
            letters = ", ".join(_KEYS[answer] for answer in request.answers)
            click.echo(f"Please answer with one of {letters}.", err=True)
        return Answer.DENY


def _accepted_words(answer: Answer) -> tuple[str, ...]:
    return (answer.value, _KEYS[answer], *_ALIASES.get(answer, ()))


def read_line(withdrawn: threading.Event) -> str | None:
    """Return the next line of standard input; None if the input ends or the question is withdrawn.

    Does not use `sys.stdin`: a thread that blocks in it holds a lock that Python needs at exit, so Ctrl-C
    would crash. Reads byte by byte, because input after the line belongs to the next question.
    """
    line = bytearray()
    try:
        keys = sys.stdin.fileno()
        while not line.endswith(b"\n"):
            while not select.select([keys], [], [], _POLL_INTERVAL_S)[0]:
                if withdrawn.is_set():
                    return None
            byte = os.read(keys, 1)
            if not byte:
                return None
            line += byte
    except (OSError, ValueError):  # the terminal has closed, or there is none
        return None
    return line.decode(errors="replace")


def end_line() -> None:
    """End the line of a question with a direct write; the lock of `sys.stderr` could block the exit."""
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), b"\n")


def format_question(request: ApprovalRequest) -> str:
    """Return the text of an approval question as it is printed."""
    what = f"{request.category}, {request.severity}" if request.category else ""
    lines = [
        "",
        click.style(
            f"{make_visible(request.tool.name)} needs your approval" + (f" ({what})" if what else ""),
            bold=True,
        ),
        "",
        _indent_lines(
            make_visible(shorten_middle(request.command)) if request.command else _format_arguments(request)
        ),
        "",
    ]
    if request.part and request.part.strip() != request.command.strip():
        lines.append(_labelled_text("part", make_visible(shorten_middle(request.part, 500))))
    if directory := _working_directory(request):
        lines.append(_labelled_text("in", make_visible(shorten_middle(directory, 200))))
    lines.append(_labelled_text("why", make_visible(request.reason)))
    lines += [_labelled_text("also", make_visible(reason)) for reason in request.also[:_MAX_REASONS_SHOWN]]
    if len(request.also) > _MAX_REASONS_SHOWN:
        lines.append(_labelled_text("also", f"and {len(request.also) - _MAX_REASONS_SHOWN} more"))
    lines.append("")
    for answer in request.answers:
        key = click.style(_KEYS[answer].ljust(2), bold=True)
        lines.append(f"  {key} {answer.value}: {explain_answer(answer, request)}")
    return "\n".join(lines)


def _working_directory(request: ApprovalRequest) -> str:
    """Return the working directory that a tool call names for its command; empty if it names none."""
    meanings = request.tool.judged_as.items()
    named = (request.args.get(name) for name, meaning in meanings if meaning is Meaning.FOLDER)
    return next((each for each in named if request.command and isinstance(each, str)), "")


def _format_arguments(request: ApprovalRequest) -> str:
    return make_visible(
        shorten_middle(f"{request.tool.name} {json.dumps(request.args, ensure_ascii=False, default=str)}")
    )


def _indent_lines(text: str) -> str:
    return "\n".join(f"  │ {line}" for line in text.split("\n"))


def _labelled_text(label: str, text: str) -> str:
    first, *rest = text.split("\n")
    return "\n".join((f"  {label + ':':<6}{first}", *(f"        {line}" for line in rest)))
