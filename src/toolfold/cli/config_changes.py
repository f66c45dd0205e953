"""`toolfold config accept` and `restore`: handle settings that were changed during a tool call."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolfold.approval.safe_text import make_visible
from toolfold.cli.app import Invocation
from toolfold.cli.output import escape_text, print_line
from toolfold.cli.server_commands import confirm
from toolfold.redaction import Redaction

if TYPE_CHECKING:
    from toolfold.config.record import PendingChange

MAX_DIFF_LINES = 200
MAX_LINE_CHARS = 300
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}

_yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.command("accept", short_help="Accept settings that a tool call changed.")
@_yes_option
@click.pass_obj
def accept(invocation: Invocation, yes: bool) -> None:
    """Show each settings file that was changed during a tool call; accept the change if you confirm it."""
    record = invocation.settings_record()
    for change in _pending_changes(invocation):
        shown = _print_change(change)
        if confirm("Did you make this change, and should it take effect?", yes):
            record.accept(Path(change.path), shown)
            print_line(f"accepted: {escape_text(change.path)}")


@click.command("restore", short_help="Undo settings changes made by a tool call.")
@_yes_option
@click.pass_obj
def restore(invocation: Invocation, yes: bool) -> None:
    """Show each settings file that was changed during a tool call; undo the change if you confirm it."""
    record = invocation.settings_record()
    for change in _pending_changes(invocation):
        _print_change(change)
        if not change.restorable:
            print_line("the previous content is unknown: review the file, then run `toolfold config accept`")
        elif confirm("Undo this change?", yes):
            record.restore(change)
            print_line(f"restored: {escape_text(change.path)}")


def _pending_changes(invocation: Invocation) -> list[PendingChange]:
    found = list(invocation.settings_record().list_pending().values())
    if not found:
        print_line("no settings changes from tool calls are waiting for a decision.")
    return found


def _print_change(change: PendingChange) -> str:
    """Print a diff of a changed settings file, secrets redacted; return a fingerprint of the shown file."""
    print_line(f"[bold]{escape_text(make_visible(str(change)))}[/bold]")
    fingerprint, lines = _diff_lines(change)
    redact = Redaction(max_chars=MAX_LINE_CHARS)
    for line in lines[:MAX_DIFF_LINES]:
        colour = _COLOURS.get(line[:1], "")
        text = escape_text(make_visible(line[:1] + redact(line[1:].rstrip("\n"))))
        print_line(f"  [{colour}]{text}[/{colour}]" if colour else f"  {text}")
    if len(lines) > MAX_DIFF_LINES:
        print_line(f"  … {len(lines) - MAX_DIFF_LINES} more lines are not shown")
    return fingerprint


def _diff_lines(change: PendingChange) -> tuple[str, list[str]]:
    """Return a changed settings file's current fingerprint, and the diff from its previous content."""
    from toolfold.config.fingerprints import ABSENT, fingerprint_bytes, fingerprint_path

    path = Path(change.path)
    if path.is_dir() or (change.before is None and not change.restorable):
        return fingerprint_path(path), ["(the previous content is unknown)"]
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content, found = b"", ABSENT
    except OSError as error:
        return fingerprint_path(path), [f"(the file cannot be read: {error.strerror})"]
    else:
        found = fingerprint_bytes(content)
    before = (change.before or "").splitlines()
    now = content.decode("utf-8", "surrogateescape").splitlines()
    return found, list(difflib.unified_diff(before, now, "before", "now", lineterm=""))[2:]
