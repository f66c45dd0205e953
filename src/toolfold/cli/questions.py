"""What an MCP server asks a person, at a terminal: field by field, or an address to visit.

A server's words may claim to be anybody's, so its name stands first, and every character is shown for what it
is. Nothing is opened and nothing sent before the person has said so; no answer is a no.
"""

from __future__ import annotations

import threading
from typing import Any

import click

from toolfold.approval.visible import brief, visible, visible_line
from toolfold.sources.mcp.questions import Field, Question, Reply

__all__ = ["Questions"]

_ASKS = {
    "form": "asks you something",
    "url": "wants you to visit an address",
    "sampling": "wants to use your model",
}


class Questions:
    """Asks on standard error and reads standard input, one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, question: Question, /) -> Reply:
        with self._lock:
            if question.withdrawn.is_set():  # while another was asked
                return Reply("cancel")
            self._show(question)
            if not click.confirm(_leave(question), default=False, err=True):
                return Reply("decline")
            if question.mode != "form":
                return Reply("accept")
            return Reply("accept", _without_gaps({each.name: _asked(each) for each in question.fields}))

    def _show(self, question: Question) -> None:
        title = f"The MCP server {visible_line(question.server)} {_ASKS[question.mode]}"
        lines = ["", click.style(title, bold=True), "", *_quoted(question.message)]
        if question.url:
            lines += ["", f"  {visible_line(question.url)}", f"  (at {visible_line(question.host)})"]
        lines += [f"  careful: {visible_line(each)}" for each in question.warnings]
        if question.problem:
            lines.append(f"  your answer did not do: {visible_line(question.problem)}")
        click.echo("\n".join([*lines, ""]), err=True)


def _leave(question: Question) -> str:
    if question.mode == "form":
        names = ", ".join(visible_line(each.title or each.name) for each in question.fields)
        return f"Answer it? It would be told {names or 'that you agree'}"
    return "Agree? You would open the address yourself" if question.mode == "url" else "Let it"


def _asked(each: Field) -> Any:
    """One field; nothing typed means its default, or nothing."""
    click.echo(f"  {visible_line(each.title or each.name)}{_about(each)}", err=True)
    default = "" if each.default is None else _spoken(each.default)
    said = click.prompt("  ", default=default, err=True, prompt_suffix="> ", show_default=bool(default))
    if said == "" or (said == default and each.default is not None):
        return each.default
    return each.read(said)


def _about(each: Field) -> str:
    parts = [visible(brief(each.description, 300))] if each.description else []
    if each.choices:
        parts.append("one of " + ", ".join(visible_line(choice.value) for choice in each.choices))
    if not each.required:
        parts.append("may be left empty")
    return f" ({'; '.join(parts)})" if parts else ""


def _spoken(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _without_gaps(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _quoted(text: str) -> list[str]:
    return [f"  │ {line}" for line in visible(brief(text, 4_000)).split("\n")]
