"""Parse untrusted JSON Lines files, gzipped or not.

Reads line by line with a size limit: a small gzip file may expand to an endless line. Every error names its
file and line. Does not interpret the values.
"""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from toolfold.core.errors import SourceError, ToolfoldError, shorten

T = TypeVar("T")

MAX_LINE_BYTES = 8_000_000


def read_json_lines(file: Path, read: Callable[[Any], T], *, what: str) -> list[T]:
    """Parse each line of a file as JSON and convert it with `read`. Raises SourceError."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            return list(parse_json_lines(stream, read, where=str(file)))
    except OSError as error:
        raise SourceError(f"{file} cannot be read as {what}: {error}") from None


def parse_json_lines(
    stream: IO[bytes] | gzip.GzipFile, read: Callable[[Any], T], *, where: str
) -> Iterator[T]:
    """Parse each line of an open stream as JSON and yield `read(value)`. Raises SourceError.

    Blank lines are skipped. `read` reports an invalid value by ValueError or ToolfoldError.
    """
    for number in itertools.count(1):
        try:
            line = _read_line(stream)
            if not line:
                return
            if line.strip():
                yield read(json.loads(line.decode("utf-8-sig")))
        except (ValueError, RecursionError, EOFError, zlib.error, ToolfoldError) as error:
            raise SourceError(f"{where}, line {number}: {shorten(str(error))}") from None


def _read_line(stream: IO[bytes] | gzip.GzipFile) -> bytes:
    line = stream.readline(MAX_LINE_BYTES + 1)
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"longer than {MAX_LINE_BYTES:,} bytes")
    return line
