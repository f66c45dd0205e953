"""`toolfold sessions`: list, show, search, export and delete stored agent sessions."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolfold.cli.activity import clean_line
from toolfold.cli.agent_options import find_session
from toolfold.cli.app import EXIT_FAILED, Invocation, json_option
from toolfold.cli.output import escape_text, format_count, print_json, print_line, print_note, print_table
from toolfold.cli.server_commands import confirm
from toolfold.cli.transcripts import (
    describe_session,
    export_session,
    format_entry,
    format_markdown,
    format_time,
    read_transcript,
)
from toolfold.config.atomic import replace_file
from toolfold.core.errors import ConfigError

if TYPE_CHECKING:
    from toolfold.state.store import SessionStore

MAX_TITLE_CHARS = 60


@click.group("sessions")
def command() -> None:
    """List, show, search, export and delete stored agent sessions.

    ID is the id of a session, the beginning of one, or `last` for the session that was used last.
    """


def _open_store(invocation: Invocation) -> contextlib.closing[SessionStore]:
    from toolfold.agent.agent import open_store

    return contextlib.closing(open_store(invocation.load_config()))


@command.command("list")
@click.option(
    "-n", "--last", default=20, show_default=True, type=click.IntRange(1, 1_000), help="Maximum number."
)
@json_option
@click.pass_obj
def list_sessions(invocation: Invocation, last: int, as_json: bool) -> None:
    """List the most recently used sessions, newest first."""
    with _open_store(invocation) as store:
        records = store.list_sessions(limit=last)
    if as_json:
        print_json([describe_session(record) for record in records])
        return
    if not records:
        print_line('no sessions are stored yet. Start one: toolfold chat, or toolfold run "…"')
        return
    print_table(
        format_count(len(records), "session"),
        ("id", "last used", "#turns", "model", "first message"),
        (
            (
                record.id,
                format_time(record.updated),
                str(record.turns),
                clean_line(record.model, 40),
                clean_line(record.title, MAX_TITLE_CHARS),
            )
            for record in records
        ),
        no_wrap="id",
    )
    print_line("continue one: toolfold chat --session ID")


@command.command("show")
@click.argument("session", metavar="ID")
@click.option(
    "--all", "show_all", is_flag=True, help="Include messages that were undone, summarised or never sent."
)
@json_option
@click.pass_obj
def show_session(invocation: Invocation, session: str, show_all: bool, as_json: bool) -> None:
    """Show the conversation of a session. Long tool results are shortened; `export` writes them in full."""
    with _open_store(invocation) as store:
        record = find_session(store, session)
        messages = store.load_messages(record.id, active_only=not show_all)
    entries = read_transcript(record, messages)
    if as_json:
        print_json({**describe_session(record), "transcript": [asdict(entry) for entry in entries]})
        return
    print_line(f"[bold]{escape_text(clean_line(record.title, 200) or 'no messages yet')}[/bold]")
    facts = f"session {record.id} · {record.model} · {format_time(record.created)}"
    print_line(f"[dim]{escape_text(clean_line(facts, 300))}[/dim]")
    for entry in entries:
        gap = "" if entry.role in ("call", "result") else "\n"
        print_line(gap + escape_text(format_entry(entry)))


@command.command("search")
@click.argument("words", nargs=-1, required=True)
@click.option(
    "-n", "--last", default=10, show_default=True, type=click.IntRange(1, 200), help="Maximum number."
)
@json_option
@click.pass_obj
def search_sessions(invocation: Invocation, words: tuple[str, ...], last: int, as_json: bool) -> None:
    """Search the messages and tool results of all sessions for WORDS, best match first."""
    with _open_store(invocation) as store:
        matches = store.search_messages(" ".join(words), limit=last)
    if as_json:
        print_json([asdict(match) for match in matches])
        return
    if not matches:
        print_line("no message of a stored session has these words.")
        return
    print_table(
        format_count(len(matches), "message"),
        ("session", "date", "role", "text"),
        (
            (match.session_id, format_time(match.created), match.role, clean_line(match.snippet, 300))
            for match in matches
        ),
        no_wrap="session",
    )


@command.command("export")
@click.argument("session", metavar="ID")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write. Default: standard output.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["markdown", "json"]),
    help="Format of the output. Default: json for a file whose name ends with .json, otherwise markdown.",
)
@click.pass_obj
def export(invocation: Invocation, session: str, output: Path | None, form: str | None) -> None:
    """Write a whole session: the conversation as Markdown, or everything that is stored as JSON.

    Tool results are written as they are: read the file before you share it.
    """
    with _open_store(invocation) as store:
        record = find_session(store, session)
        messages = store.load_messages(record.id, active_only=form == "markdown")
    active = [message for message in messages if message.state == "active"]
    entries = read_transcript(record, active)
    is_json = form == "json" or (form is None and output is not None and output.suffix == ".json")
    text = (
        _format_json(export_session(record, messages, entries))
        if is_json
        else format_markdown(record, entries)
    )
    if output is None:
        click.echo(text)
        return
    _write_private_file(output, text)
    print_note(f"written: {escape_text(str(output))}")


def _format_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, indent=2)


def _write_private_file(file: Path, text: str) -> None:
    """Write an exported session to a file that only its owner can read."""
    try:
        if file.exists() and not file.is_file():  # such as /dev/stdout, which cannot be replaced
            file.write_text(f"{text}\n", encoding="utf-8")
            return
        replace_file(file.resolve(), f"{text}\n".encode(), mode=0o600)
    except ConfigError as error:
        raise click.ClickException(f"{file}: {error.problem}") from None
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}") from None


@command.command("delete")
@click.argument("sessions", metavar="ID…", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def delete(invocation: Invocation, sessions: tuple[str, ...], yes: bool) -> int:
    """Delete sessions with all their messages. This cannot be undone."""
    owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    with _open_store(invocation) as store:
        records = [find_session(store, each) for each in dict.fromkeys(sessions)]
        for record in records:
            title = clean_line(record.title, MAX_TITLE_CHARS) or "no messages"
            print_note(f"{record.id}  {escape_text(title)}")
        if not confirm(f"Delete {format_count(len(records), 'session')}?", yes):
            print_line("nothing was deleted.")
            return EXIT_FAILED
        for record in records:
            store.claim_session(record.id, owner)  # raises if another process uses it
            store.delete_session(record.id)
    print_line(f"deleted {format_count(len(records), 'session')}")
    return 0
