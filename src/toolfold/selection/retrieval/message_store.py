"""File with the example messages that `toolfold enrich` has generated for the user's tools.

One JSON line per tool definition, with the model and the date. The file is replaced atomically under a lock,
so several processes can use it; an open runtime notices the change at its next search.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from toolfold.config.atomic import lock_directory, make_private_directory, replace_file
from toolfold.core.errors import SourceError
from toolfold.selection.retrieval.example_messages import MessageRecord, MessageSource, find_text_problem
from toolfold.state.database import Database

log = logging.getLogger(__name__)

MESSAGES_DIRECTORY = "messages"
"""Subdirectory of the state directory."""
FILE_NAME = "messages.jsonl"
MAX_RECORDS = 50_000
MAX_FILE_BYTES = 256 << 20


class EditableMessages(MessageSource, ABC):
    """Interface of a store to which example messages can be added, and from which they can be removed."""

    def add(self, new: Iterable[MessageRecord]) -> None:
        """Add example messages for tools, replacing earlier example messages of the same tools."""
        records = list(new)
        replaced = {(record.server, record.tool) for record in records}
        checksums = {record.checksum for record in records}
        self._rewrite(
            lambda old: [
                *(
                    each
                    for each in old
                    if each.checksum not in checksums and (each.server, each.tool) not in replaced
                ),
                *records,
            ]
        )

    def remove(self, checksums: Iterable[str]) -> int:
        """Remove the example messages for these tool definitions; return the number of removed records."""
        unwanted, removed = set(checksums), 0

        def keep_others(old: list[MessageRecord]) -> list[MessageRecord]:
            nonlocal removed
            kept = [record for record in old if record.checksum not in unwanted]
            removed = len(old) - len(kept)
            return kept

        self._rewrite(keep_others)
        return removed

    @abstractmethod
    def load(self) -> list[MessageRecord]:
        """Return all example messages, checked again because another program may have changed them."""

    @abstractmethod
    def _rewrite(self, change: Callable[[list[MessageRecord]], list[MessageRecord]]) -> None:
        """Replace all example messages by the result of `change`. Raises SourceError if they are too many."""


class MessageStore(EditableMessages):
    """Store of example messages, in a file in the state directory."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / FILE_NAME

    def version(self) -> object:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_ino, found.st_size)

    def load(self) -> list[MessageRecord]:
        """Return all example messages, checked again because another program may have changed the file.

        Invalid lines and messages are skipped with a warning, so that search still works.
        """
        try:
            if self._file.stat().st_size > MAX_FILE_BYTES:
                raise SourceError(
                    f"the file of example messages is larger than {MAX_FILE_BYTES:,} bytes, which is the "
                    "limit"
                )
            lines = self._file.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except (OSError, SourceError) as error:
            log.warning("the example messages in %s cannot be read: %s", self._file, error)
            return []
        return parse_lines([line for line in lines[:MAX_RECORDS] if line.strip()], str(self._file))

    def _rewrite(self, change: Callable[[list[MessageRecord]], list[MessageRecord]]) -> None:
        make_private_directory(self._file.parent)
        with lock_directory(self._file.parent):
            records = change(self.load())
            require_few(records)
            text = "".join(f"{format_record(record)}\n" for record in records)
            replace_file(self._file, text.encode(), mode=0o600)


def parse_lines(lines: Sequence[bytes | str], place: str) -> list[MessageRecord]:
    """Parse stored lines with example messages; skip invalid lines and messages with a warning."""
    records = [_parse_line(line) for line in lines]
    if invalid := records.count(None):
        log.warning("%d lines of %s are not valid and are ignored", invalid, place)
    checked = [_drop_unusable(record) for record in records if record]
    if dropped := sum(len(record.messages) for record in records if record) - sum(
        len(record.messages) for record in checked
    ):
        log.warning(
            "%d messages in %s are too long or contain instructions for a model, and are ignored",
            dropped,
            place,
        )
    return [record for record in checked if record.messages]


def require_few(records: Sequence[MessageRecord]) -> None:
    """Raise SourceError if the example messages are for more tools than can be stored."""
    if len(records) > MAX_RECORDS:
        raise SourceError(
            f"example messages can be stored for at most {MAX_RECORDS:,} tools; remove those of some "
            "tools with `toolfold enrich --remove`"
        )


def open_messages(state_directory: Path, database: Database | None) -> EditableMessages:
    """Open the store of example messages: in the database shared by replicas or, without one, in a file."""
    if database is None:
        return MessageStore(state_directory / MESSAGES_DIRECTORY)
    from toolfold.selection.retrieval.shared_messages import SharedMessageStore

    return SharedMessageStore(database)


def format_record(record: MessageRecord) -> str:
    """Return a record with a tool's example messages as one line of JSON."""
    return json.dumps(record.to_json(), ensure_ascii=False, separators=(",", ":"))


def _drop_unusable(record: MessageRecord) -> MessageRecord:
    """Remove messages from a tool's record that are too long or contain instructions for a model."""
    return replace(record, messages=tuple(each for each in record.messages if not find_text_problem(each)))


def _parse_line(line: bytes | str) -> MessageRecord | None:
    try:
        return MessageRecord.parse(json.loads(line))
    except (ValueError, RecursionError):
        return None
