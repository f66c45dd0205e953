"""Read tool definitions from a catalog file.

The file has one JSON object per line, `{"type": "function", "function": {…}, "meta": {"server": …}}`, and may
be gzipped. The tools can be listed, searched and counted, but not called; those of the sample catalog can be
called, on simulated services.
"""

from __future__ import annotations

import datetime
import io
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from toolfold.core.authoring import build_tool
from toolfold.core.errors import CallError
from toolfold.core.jsonlines import parse_json_lines, read_json_lines
from toolfold.core.types import CallContext, Json, Source, Tool
from toolfold.tools.sample.sample_services import SampleServices


def load_catalog(file: Path) -> list[Tool]:
    """Return the tools of a catalog file. Raises SourceError with the line number."""
    return read_json_lines(file, _parse_entry, what="a catalog")


def parse_catalog(content: bytes, *, where: str) -> list[Tool]:
    """Parse the tools in the bytes of a catalog file; `where` is the catalog's name in error messages."""
    return list(parse_json_lines(io.BytesIO(content), _parse_entry, where=where))


def sample_catalog(today: datetime.date | None = None) -> list[Tool]:
    """Return the sample catalog shipped with the package: fictional services for trying out tool search.

    The tools can be called. They work on sample data in memory, which starts anew with each catalog. `today`
    is the current date of the services; by default, that of the sample data.
    """
    services = SampleServices(today)

    def parse(entry: Any) -> Tool:
        tool = _parse_entry(entry)
        service, own_name = entry["meta"]["server"], entry["meta"]["tool"]
        return replace(tool, handler=lambda args, _: services.call(service, own_name, args))

    with files("toolfold").joinpath("tools/sample/catalog.jsonl").open("rb") as stream:
        return list(parse_json_lines(stream, parse, where="the sample catalog"))


def _parse_entry(entry: Any) -> Tool:
    if not isinstance(entry, dict) or not isinstance(entry.get("function"), dict):
        raise ValueError('expected {"type": "function", "function": {…}}')
    meta = entry.get("meta")
    server = meta.get("server") if isinstance(meta, dict) else None
    server = server if isinstance(server, str) and server else "catalog"
    return build_tool(
        name=entry["function"].get("name", ""),
        toolset=f"mcp-{server}",
        schema=entry,
        handler=_refuse_call,
        source=Source("catalog", server),
    )


def _refuse_call(_args: Json, _context: CallContext) -> Any:
    raise CallError("this tool comes from a catalog file: it can be shown and searched, but not run.")
