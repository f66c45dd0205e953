"""`toolfold config accept` and `restore`: decide on settings that were changed during a tool call."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolfold.approval.visible import brief, visible
from toolfold.cli.app import Invocation
from toolfold.cli.show import out, plain

if TYPE_CHECKING:
    from toolfold.config.record import PendingChange

MAX_DIFF_LINES = 200
MAX_LINE_CHARS = 300
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}

_yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@click.command("accept")
@_yes_option
@click.pass_obj
def accept(invocation: Invocation, yes: bool) -> None:
    """Accept settings that were changed during a tool call: show each change, ask, and use it from now on."""
    record = invocation.record()
    for change in _pending(invocation):
        _show(change)
        if _agreed("Was that you, and should it take effect?", yes):
            record.accept(Path(change.path))
            out(f"accepted: {plain(change.path)}")


@click.command("restore")
@_yes_option
@click.pass_obj
def restore(invocation: Invocation, yes: bool) -> None:
    """Undo settings that were changed during a tool call: show each change, ask, and put the file back."""
    record = invocation.record()
    for change in _pending(invocation):
        _show(change)
        if not change.restorable:
            out("what was there before is not known: look at it, then `toolfold config accept`")
        elif _agreed("Put it back as it was?", yes):
            record.restore(change)
            out(f"restored: {plain(change.path)}")


def _pending(invocation: Invocation) -> list[PendingChange]:
    found = list(invocation.record().pending().values())
    if not found:
        out("no settings were changed during a tool call, or all of it is settled.")
    return found


def _agreed(question: str, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.ClickException("nobody can be asked here. Look at the above, then repeat it with --yes.")
    return click.confirm(question, default=False, err=True)


def _show(change: PendingChange) -> None:
    out(f"[bold]{plain(visible(str(change)))}[/bold]")
    for count, line in enumerate(_difference(change)):
        if count >= MAX_DIFF_LINES:
            out("  …")
            return
        colour = _COLOURS.get(line[:1], "")
        text = plain(visible(brief(line.rstrip("\n"), MAX_LINE_CHARS)))
        out(f"  [{colour}]{text}[/{colour}]" if colour else f"  {text}")


def _difference(change: PendingChange) -> Iterator[str]:
    path = Path(change.path)
    if path.is_dir() or (change.before is None and not change.restorable):
        yield "(what was there before is not known)"
        return
    try:
        now = path.read_text("utf-8", "surrogateescape")
    except OSError:
        now = ""
    before = change.before or ""
    yield from list(
        difflib.unified_diff(before.splitlines(), now.splitlines(), "before", "now", lineterm="")
    )[2:]
