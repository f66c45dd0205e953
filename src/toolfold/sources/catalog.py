"""Tools read from a catalog file: definitions without anything behind them.

One JSON object a line, `{"type": "function", "function": {…}, "meta": {"server": …}}`, gzipped or not.
They can be shown, searched and counted; a call of one says that nothing is behind it.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from toolfold.authoring import build_tool
from toolfold.errors import CallError
from toolfold.jsonlines import read_file, read_stream
from toolfold.model import CallContext, Json, Source, Tool


def load_catalog(file: Path) -> list[Tool]:
    """The tools of a catalog file. Raises SourceError that names the line."""
    return read_file(file, _tool, what="a catalog")


def sample_catalog() -> list[Tool]:
    """The catalog that comes with the package: imagined services, for trying things out."""
    with files("toolfold").joinpath("sample/catalog.jsonl").open("rb") as stream:
        return list(read_stream(stream, _tool, where="the sample catalog"))


def _tool(entry: Any) -> Tool:
    if not isinstance(entry, dict) or not isinstance(entry.get("function"), dict):
        raise ValueError('expected {"type": "function", "function": {…}}')
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
