"""The question at a terminal: what would run, why it is asked about, and which answers there are.

Everything a model wrote is shown with its deceptive characters spelled out, and plainly: nothing in it can
move the cursor, change colours or pass for our own words. What matters most stands last, next to the answer.
"""

from __future__ import annotations

import json
import threading

import click

from toolfold.approval.visible import brief, visible
from toolfold.model import Answer, ApprovalRequest, Meaning

__all__ = ["Prompt"]

_TRIES = 3
_MOST_REASONS = 8
_MEANS = {
    Answer.ONCE: "run it this once",
    Answer.SESSION: "run it, and the same again in this session",
    Answer.KIND: "run it, and whatever else is found by {rules} in this session",
    Answer.ALWAYS: "run it, and never ask about {covers} again",
    Answer.DENY: "do not run it",
}


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
        letters = {answer.value[0]: answer for answer in request.answers}
        for _ in range(_TRIES):
            said = click.prompt("Your answer", default="d", err=True, prompt_suffix=" > ", show_default=False)
            word = said.strip().casefold()
            for answer in request.answers:
                if word in (answer.value, answer.value[0]):
                    return answer
            click.echo(f"Please answer with one of {', '.join(letters)}.", err=True)
        return Answer.DENY


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
        f"  {click.style(answer.value[0], bold=True)}  {_meaning(answer, request)}"
        for answer in request.answers
    ]
    return "\n".join(lines)


def _folder(request: ApprovalRequest) -> str:
    """Where the command would run, if the call says so."""
    meanings = request.tool.judged_as.items()
    named = (request.args.get(name) for name, meaning in meanings if meaning is Meaning.FOLDER)
    return next((each for each in named if request.command and isinstance(each, str)), "")


def _meaning(answer: Answer, request: ApprovalRequest) -> str:
    rules = ", ".join(request.rules[:3]) + (" and others" if len(request.rules) > 3 else "")
    covers = " ".join(visible(brief(request.covers, 200)).split())
    return f"{answer.value}: {_MEANS[answer].format(rules=rules, covers=covers)}"


def _arguments(request: ApprovalRequest) -> str:
    return visible(brief(f"{request.tool.name} {json.dumps(request.args, ensure_ascii=False, default=str)}"))


def _indented(text: str) -> str:
    return "\n".join(f"  │ {line}" for line in text.split("\n"))


def _labelled(label: str, text: str) -> str:
    first, *rest = text.split("\n")
    return "\n".join((f"  {label + ':':<6}{first}", *(f"        {line}" for line in rest)))
