"""`toolfold learned`: list and forget what tool search has learned from use, and turn learning off or on."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.output import (
    NotFound,
    escape_text,
    format_count,
    print_json,
    print_line,
    print_note,
    print_table,
)
from toolfold.cli.shared_database import use_database

if TYPE_CHECKING:
    from toolfold.core.types import Tool
    from toolfold.runtime.runtime import Runtime
    from toolfold.selection.retrieval.learned_store import LearnedMessage, LearnedMessageStore

_KEY = "tools.learn_from_use"


@click.group("learned")
def command() -> None:
    """List and forget the messages that tool search has learned from use; turn learning off.

    When a tool is called successfully after a message or a tool search, similar messages find it more easily.
    What was learned stays on this machine.
    """


@command.command("list", short_help="List the learned messages of all tools, or of some.")
@click.argument("names", nargs=-1, metavar="[TOOL]...")
@json_option
@click.pass_obj
def list_messages(invocation: Invocation, names: tuple[str, ...], as_json: bool) -> None:
    """List the learned messages with their numbers, clients, uses and dates, the most recently used first."""
    with closing(open_learned_store(invocation)) as store:
        rows = [each for each in _load(store) if not names or _is_named(each, names)]
    if as_json:
        print_json([_describe_message(each) for each in rows])
        return
    if not invocation.load_config().tools.learn_from_use:
        print_note("Learning is off; `toolfold learned on` turns it on.")
    if not rows:
        print_note("nothing was learned yet" if not names else "nothing was learned for these tools")
        return
    print_table(
        format_count(len(rows), "learned message"),
        ("#no.", "tool", "message", "from", "#uses", "#misses", "last used"),
        (
            (
                str(each.id),
                each.name,
                each.shown_text,
                _format_origin(each),
                str(each.uses),
                str(each.misses),
                _format_date(each.last_used),
            )
            for each in rows
        ),
        no_wrap="tool",
    )


@command.command("forget", short_help="Forget messages, all messages of a tool, or everything.")
@click.argument("entries", nargs=-1, metavar="[NUMBER|TOOL]...")
@click.option("--client", metavar="NAME", help="Forget all messages learned from this client.")
@click.option("--all", "all_", is_flag=True, help="Forget everything.")
@click.pass_obj
def forget(invocation: Invocation, entries: tuple[str, ...], client: str | None, all_: bool) -> None:
    """Forget messages by their number in `list`, all messages of a tool by its name, or everything.

    The texts are also overwritten in the file. An open gateway uses the change at its next search.
    """
    if all_ + bool(entries) + (client is not None) != 1:
        raise click.UsageError("name the learned messages or the tools to forget, or use --client or --all")
    with closing(open_learned_store(invocation)) as store:
        if all_:
            removed = _forget_all(store)
        elif client is not None:
            removed = _change(store, lambda each: each.client == client)
        else:
            _require_known(store, entries)
            removed = _change(store, lambda each: _is_named(each, entries))
    print_line(f"forgot {format_count(removed, 'message')}")


@command.command("off")
@click.pass_obj
def turn_off(invocation: Invocation) -> None:
    """Turn off learning from use and ignore learned messages; `toolfold learned forget` deletes them."""
    _set_learning(invocation, enabled=False)
    print_line("learning from use is off; `toolfold learned forget --all` also removes what was learned")


@command.command("on")
@click.pass_obj
def turn_on(invocation: Invocation) -> None:
    """Turn on learning from use; messages learned before are used again."""
    _set_learning(invocation, enabled=True)
    print_line("learning from use is on")


def describe_learned(tool: Tool, runtime: Runtime) -> dict[str, Any]:
    """Return how many messages were learned for a tool, from how many clients, and when one was last used.

    The messages are not included: tool calls may run the commands that show this.
    """
    return runtime.retriever.learned.summarize(tool).to_json()


def _set_learning(invocation: Invocation, *, enabled: bool) -> None:
    from toolfold.config import set_value

    file = invocation.paths().user_file
    set_value(file, _KEY, "true" if enabled else "false", record=invocation.settings_record())


def open_learned_store(invocation: Invocation) -> LearnedMessageStore:
    """Open the store of learned messages, in the shared database or in a local file."""
    from toolfold.selection.retrieval.learned_store import open_learned

    config = invocation.load_config(quiet=True)
    return open_learned(config.paths.state_dir, use_database(config))


def _load(store: LearnedMessageStore) -> list[LearnedMessage]:
    try:
        return store.load()
    except (sqlite3.Error, OSError) as error:
        raise click.ClickException(
            f"what was learned cannot be read: {error}. `toolfold learned forget --all` starts anew"
        ) from None


def _change(store: LearnedMessageStore, wanted: Callable[[LearnedMessage], bool]) -> int:
    try:
        return store.forget(wanted)
    except (sqlite3.Error, OSError) as error:
        raise click.ClickException(f"what was learned cannot be changed: {error}") from None


def _require_known(store: LearnedMessageStore, entries: tuple[str, ...]) -> None:
    """Raise NotFound if an argument is neither the number nor the tool of a learned message."""
    known = _load(store)
    for entry in entries:
        if not any(_is_named(each, (entry,)) for each in known):
            raise NotFound(
                f"there is no learned message with the number or tool {entry!r}."
                " `toolfold learned list` lists all of them."
            )


def _forget_all(store: LearnedMessageStore) -> int:
    """Forget all learned messages; if their file is not readable, delete it."""
    from toolfold.selection.retrieval.learned_store import LearnedStore

    try:
        return store.forget()
    except sqlite3.OperationalError as error:  # such as a lock: the file is good
        raise click.ClickException(f"what was learned cannot be changed: {error}") from None
    except (sqlite3.DatabaseError, OSError) as error:
        if not isinstance(store, LearnedStore):
            raise click.ClickException(f"what was learned cannot be changed: {error}") from None
        store.delete_file()
        print_note(f"the file of learned messages was damaged ({escape_text(str(error))}) and is deleted")
        return 0


def _is_named(message: LearnedMessage, names: tuple[str, ...]) -> bool:
    return any(name in (str(message.id), message.name, message.tool) for name in names)


def _describe_message(message: LearnedMessage) -> dict[str, Any]:
    return {
        "number": message.id,
        "tool": message.name,
        "message": message.shown_text,
        "origin": message.origin,
        "client": message.client,
        "uses": message.uses,
        "misses": message.misses,
        "first_used": _format_date(message.first_used),
        "last_used": _format_date(message.last_used),
    }


def _format_origin(message: LearnedMessage) -> str:
    who = f" of {message.client}" if message.client else ""
    return f"{message.origin}{escape_text(who)}"


def _format_date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))
