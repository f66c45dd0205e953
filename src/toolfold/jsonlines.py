"""Files with one JSON value a line, gzipped or not, written by anyone.

Read a line at a time and never more of one than is sane: a small file may unpack to a line without end.
Every error names its file and line. Knows nothing of what the values mean.
"""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from toolfold.errors import SourceError, ToolfoldError, shorten

T = TypeVar("T")

LARGEST_LINE = 8_000_000


def read_file(file: Path, read: Callable[[Any], T], *, what: str) -> list[T]:
    """What `read` makes of each line's value. Raises SourceError."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            return list(read_stream(stream, read, where=str(file)))
    except OSError as error:
        raise SourceError(f"{file} cannot be read as {what}: {error}") from None


def read_stream(stream: IO[bytes] | gzip.GzipFile, read: Callable[[Any], T], *, where: str) -> Iterator[T]:
    """The same, of something open. Blank lines are passed over; `read` refuses with ValueError or ours."""
    for number in itertools.count(1):
        try:
            line = _line(stream)
            if not line:
                return
            if line.strip():
                yield read(json.loads(line.decode("utf-8-sig")))
        except (ValueError, RecursionError, EOFError, zlib.error, ToolfoldError) as error:
            raise SourceError(f"{where}, line {number}: {shorten(str(error))}") from None


def _line(stream: IO[bytes] | gzip.GzipFile) -> bytes:
    line = stream.readline(LARGEST_LINE + 1)
    if len(line) > LARGEST_LINE:
        raise ValueError(f"longer than {LARGEST_LINE:,} bytes")
    return line
