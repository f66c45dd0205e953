"""Tools read from a catalog file: definitions without anything behind them.

One JSON object a line, `{"type": "function", "function": {…}, "meta": {"server": …}}`, gzipped or not.
They can be shown, searched and counted; a call of one says that nothing is behind it.
"""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

from toolfold.authoring import build_tool
from toolfold.errors import CallError, InvalidTool, SourceError, shown
from toolfold.model import CallContext, Json, Source, Tool

LARGEST_LINE = 1_000_000


def load_catalog(file: Path) -> list[Tool]:
    """The tools of a catalog file. Raises SourceError that names the line."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            return list(_tools(stream, str(file)))
    except OSError as error:
        raise SourceError(f"{file} cannot be read as a catalog: {error}") from None


def sample_catalog() -> list[Tool]:
    """The catalog that comes with the package: imagined services, for trying things out."""
    with files("toolfold").joinpath("sample/catalog.jsonl").open("rb") as stream:
        return list(_tools(stream, "the sample catalog"))


def _tools(stream: IO[bytes] | gzip.GzipFile, where: str) -> Iterator[Tool]:
    for number in itertools.count(1):
        try:
            line = _line(stream)
            if not line:
                return
            if line.strip():
                yield _tool(_parsed(line))
        except (ValueError, RecursionError, InvalidTool, EOFError, zlib.error) as error:
            raise SourceError(f"{where}, line {number}: {shown(str(error))}") from None


def _line(stream: IO[bytes] | gzip.GzipFile) -> bytes:
    line = stream.readline(LARGEST_LINE + 1)  # never more: a small file may unpack to a line without end
    if len(line) > LARGEST_LINE:
        raise ValueError(f"longer than {LARGEST_LINE:,} bytes")
    return line


def _parsed(line: bytes) -> Json:
    entry = json.loads(line.decode("utf-8-sig"))
    if not isinstance(entry, dict) or not isinstance(entry.get("function"), dict):
        raise ValueError('expected {"type": "function", "function": {…}}')
    return entry


def _tool(entry: Json) -> Tool:
    meta = entry.get("meta")
    server = meta.get("server") if isinstance(meta, dict) else None
    server = server if isinstance(server, str) and server else "catalog"
    return build_tool(
        name=entry["function"].get("name", ""),
        toolset=f"mcp-{server}",
        schema=entry,
        handler=_nothing_behind,
        source=Source("catalog", server),
    )


def _nothing_behind(_args: Json, _context: CallContext) -> Any:
    raise CallError("this tool comes from a catalog file: it can be shown and searched, but not run.")
