"""`toolfold audit`: check that the audit log of approval decisions is unchanged."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from toolfold.cli.app import EXIT_FAILED, Invocation, json_option
from toolfold.cli.output import escape_text, format_count, print_json, print_line, print_note
from toolfold.cli.shared_database import use_database

if TYPE_CHECKING:
    from toolfold.safety.approval.hash_chain import ChainReport


@click.group("audit")
def command() -> None:
    """Check the audit log of approval decisions (read it with `toolfold approvals log`)."""


@command.command("verify")
@click.option(
    "--known",
    metavar="HASH",
    default="",
    help="Hash that an earlier `audit verify` printed; fail if no entry with this hash exists.",
)
@json_option
@click.pass_obj
def verify(invocation: Invocation, known: str, as_json: bool) -> int:
    """Check that no entry of the audit log was changed, removed or added later.

    Note the printed hash elsewhere: with --known, a later check also detects that the newest entries were
    removed, or that the whole log was replaced.
    """
    from toolfold.safety.approval.approval_factory import build_audit

    config = invocation.load_config()
    audit = build_audit(config, use_database(config))
    try:
        report = audit.verify(known.strip().lower())
    except OSError as error:
        raise click.ClickException(f"the audit log in {audit.place} cannot be read: {error}") from None
    if as_json:
        print_json({"intact": report.is_intact, "place": audit.place, **asdict(report)})
    else:
        _print_report(report, audit.place)
    return 0 if report.is_intact else EXIT_FAILED


def _print_report(report: ChainReport, place: str) -> None:
    for problem in report.problems:
        print_line(f"problem: {escape_text(problem)}")
    count = "1 entry" if report.entries == 1 else f"{report.entries:,} entries"
    state = "is intact" if report.is_intact else "is NOT intact"
    print_line(f"the audit log in {escape_text(place)} {state}: {count} checked")
    if report.first > 1:
        print_note(f"The log begins with entry {report.first:,}; older entries were removed to save space.")
    if report.older:
        print_note(f"Entries of an older version of Toolfold, which cannot be checked: {report.older:,}")
    if report.incomplete:
        print_note(f"{format_count(report.incomplete, 'line')} cannot be read, perhaps because of a crash.")
    if report.head:
        print_note(f"Hash of the newest entry: {report.head}")
