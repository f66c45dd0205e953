"""`toolfold config accept` and `restore`: decide on settings that were changed during a tool call."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolfold.approval.visible import visible
from toolfold.cli.app import Invocation
from toolfold.cli.show import out, plain
from toolfold.redaction import Redaction

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
        shown = _show(change)
        if _agreed("Was that you, and should it take effect?", yes):
            record.accept(Path(change.path), shown)
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
        raise click.ClickException("This needs a terminal. Look at the above, then repeat it with --yes.")
    return click.confirm(question, default=False, err=True)


def _show(change: PendingChange) -> str:
    """Show what has changed, without secrets. Returns the fingerprint of what was shown."""
    out(f"[bold]{plain(visible(str(change)))}[/bold]")
    fingerprint, lines = _difference(change)
    redact = Redaction(longest=MAX_LINE_CHARS)
    for line in lines[:MAX_DIFF_LINES]:
        colour = _COLOURS.get(line[:1], "")
        text = plain(visible(line[:1] + redact(line[1:].rstrip("\n"))))
        out(f"  [{colour}]{text}[/{colour}]" if colour else f"  {text}")
    if len(lines) > MAX_DIFF_LINES:
        out(f"  … {len(lines) - MAX_DIFF_LINES} more lines are not shown")
    return fingerprint


def _difference(change: PendingChange) -> tuple[str, list[str]]:
    """Return the fingerprint of the file as it is now, and the lines to show."""
    from toolfold.config.fingerprints import ABSENT, fingerprint, fingerprint_of

    path = Path(change.path)
    if path.is_dir() or (change.before is None and not change.restorable):
        return fingerprint(path), ["(what was there before is not known)"]
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content, found = b"", ABSENT
    except OSError as error:
        return fingerprint(path), [f"(it cannot be read: {error.strerror})"]
    else:
        found = fingerprint_of(content)
    before = (change.before or "").splitlines()
    now = content.decode("utf-8", "surrogateescape").splitlines()
    return found, list(difflib.unified_diff(before, now, "before", "now", lineterm=""))[2:]
