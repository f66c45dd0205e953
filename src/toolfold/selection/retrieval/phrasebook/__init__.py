"""Example messages for tools of well-known public MCP servers, shipped with the package.

`messages.jsonl` has one line per tool: the server, the tool's name, a checksum and a sketch of its
definition, and messages that were written from the definition alone. `docs/phrasebook.md` tells how to
contribute. Nothing is downloaded, and the file is read at the first search.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib.resources import files

from toolfold.core.jsonlines import parse_json_lines
from toolfold.selection.retrieval.example_messages import MessageRecord, MessageSource

FILE_NAME = "messages.jsonl"


class Phrasebook(MessageSource):
    """Example messages that are shipped with the package."""

    def load(self) -> Sequence[MessageRecord]:
        return _read_records()


@functools.cache
def _read_records() -> tuple[MessageRecord, ...]:
    """Read the shipped example messages, only once per process because it takes 40 ms."""
    with files(__package__).joinpath(FILE_NAME).open("rb") as stream:
        return tuple(parse_json_lines(stream, MessageRecord.parse, where="the phrasebook"))
