"""`toolfold config accept` and `restore`: handle settings that were changed during a tool call."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import Invocation
from toolfold.cli.output import escape_text, print_line, print_note
from toolfold.cli.server_commands import confirm
from toolfold.safety.approval.safe_text import make_visible
from toolfold.safety.redaction import Redaction

if TYPE_CHECKING:
    from toolfold.config.record import PendingChange, SettingsRecord

MAX_DIFF_LINES = 200
MAX_LINE_CHARS = 300
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}

_QUESTION = "Did you make this change, and should it take effect?"

_yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.command("accept", short_help="Accept settings that a tool call changed.")
@_yes_option
@click.pass_obj
def accept(invocation: Invocation, yes: bool) -> None:
    """Show each settings file that was changed during a tool call; accept the change if you confirm it."""
    record = _open_record(invocation.paths().state_dir)
    for change in _list_changes(record):
        shown = _print_change(change)
        if confirm(_QUESTION, yes):
            record.accept(Path(change.path), shown)
            print_line(f"accepted: {escape_text(change.path)}")


@click.command("restore", short_help="Undo settings changes made by a tool call.")
@_yes_option
@click.pass_obj
def restore(invocation: Invocation, yes: bool) -> None:
    """Show each settings file that was changed during a tool call; undo the change if you confirm it."""
    record = _open_record(invocation.paths().state_dir)
    for change in _list_changes(record):
        _print_change(change)
        if not change.restorable:
            print_line("the previous content is unknown: review the file, then run `toolfold config accept`")
        elif confirm("Undo this change?", yes):
            record.restore(change)
            print_line(f"restored: {escape_text(change.path)}")


def review_changes(state_dir: Path) -> None:
    """Show the changes of the user's settings that are not accepted, and ask about each at the terminal.

    Without acceptance, the settings before the change are used.
    """
    record = _open_record(state_dir)
    for change in record.list_pending().values():
        if change.binding:
            shown = _print_change(change, print_note)
            if click.confirm(_QUESTION, default=False, err=True):
                record.accept(Path(change.path), shown)


def _open_record(state_dir: Path) -> SettingsRecord:
    """Return the record of changed settings, with the changes that were made up to now."""
    from toolfold.config.call_notes import record_changes
    from toolfold.config.record import SettingsRecord

    record = SettingsRecord(state_dir)
    record_changes(record)
    return record


def _list_changes(record: SettingsRecord) -> list[PendingChange]:
    found = list(record.list_pending().values())
    if not found:
        print_line("no settings changes from tool calls are waiting for a decision.")
    return found


def _print_change(change: PendingChange, show: Callable[[str], None] = print_line) -> str:
    """Print a diff of a changed settings file, secrets redacted; return a fingerprint of the shown file."""
    show(f"[bold]{escape_text(make_visible(str(change)))}[/bold]")
    fingerprint, lines = _diff_lines(change)
    redact = Redaction(max_chars=MAX_LINE_CHARS)
    for line in lines[:MAX_DIFF_LINES]:
        colour = _COLOURS.get(line[:1], "")
        text = escape_text(make_visible(line[:1] + redact(line[1:].rstrip("\n"))))
        show(f"  [{colour}]{text}[/{colour}]" if colour else f"  {text}")
    if len(lines) > MAX_DIFF_LINES:
        show(f"  … {len(lines) - MAX_DIFF_LINES} more lines are not shown")
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
