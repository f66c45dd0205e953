from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from toolfold import Runtime, sample_catalog
from toolfold.core.errors import SourceError
from toolfold.core.jsonlines import MAX_LINE_BYTES
from toolfold.tools.catalog import load_catalog

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def make_entry(name: Any = "get_weather", **more: Any) -> dict[str, Any]:
    function = {"name": name, "description": "Weather of a city.", "parameters": PARAMETERS}
    return {"type": "function", "function": function, "meta": {"server": "sky"}, **more}


def make_line(name: Any = "get_weather", **more: Any) -> str:
    return json.dumps(make_entry(name, **more), ensure_ascii=False)


def test_tools_of_a_catalog_file_are_loaded_in_file_order(tmp_path: Path) -> None:
    file = tmp_path / "catalog.jsonl"
    file.write_text(f"{make_line('b')}\n\n   \n{make_line('a')}")
    second, first = load_catalog(file)
    assert (second.name, first.name) == ("b", "a")
    assert first.toolset == "mcp-sky"
    assert str(first.source) == "catalog sky"
    assert first.description == "Weather of a city."
    assert first.parameters == PARAMETERS


def test_tools_of_a_gzip_compressed_catalog_file_are_loaded(tmp_path: Path) -> None:
    file = tmp_path / "catalog.jsonl.gz"
    file.write_bytes(gzip.compress(f"{make_line('a')}\n{make_line('b')}\n".encode()))
    assert [tool.name for tool in load_catalog(file)] == ["a", "b"]


def test_tools_of_a_catalog_file_with_byte_order_mark_and_crlf_line_endings_are_loaded(
    tmp_path: Path,
) -> None:
    file = tmp_path / "catalog.jsonl"
    described = make_entry()
    described["function"]["description"] = "one\u2028two\x85three"
    text = "\ufeff" + json.dumps(described, ensure_ascii=False) + "\r\n" + make_line("b") + "\r\n"
    file.write_bytes(text.encode())
    first, second = load_catalog(file)
    assert first.description == "one\u2028two\x85three"
    assert second.name == "b"


@pytest.mark.parametrize("meta", [None, "sky", {"server": ""}, {"server": 7}, {}])
def test_catalog_tool_without_a_server_name_belongs_to_the_toolset_named_mcp_catalog(
    tmp_path: Path, meta: Any
) -> None:
    file = tmp_path / "catalog.jsonl"
    file.write_text(make_line(meta=meta))
    (tool,) = load_catalog(file)
    assert tool.toolset == "mcp-catalog"


@pytest.mark.parametrize(
    ("broken", "expected_error"),
    [
        (b'{"type": "function", "function": {', "Expecting property name"),
        (b"[]", "expected"),
        (b'"text"', "expected"),
        (b'{"function": []}', "expected"),
        (b"{}", "expected"),
        (b'{"function": {}}', "needs a name"),
        (b'{"function": {"name": 5}}', "needs a name"),
        (b'{"function": {"name": "  "}}', "needs a name"),
        (b'{"function": {"name": "x", "parameters": []}}', "JSON Schema object"),
        (b'{"function": {"name": "x", "parameters": {"type": "array"}}}', "'object'"),
        (b'{"function": {"name": "x", "parameters": {"a": NaN}}}', "not JSON"),
        (b'{"function": {"name": "x", "parameters": {"a": 1e999}}}', "not JSON"),
        (b'{"function": {"name": "x", "parameters": {"a": ' + b"9" * 5000 + b"}}}", "digit"),
        (b'{"function": ' * 50_000, "recursion"),
        (b'{"function": {"name": "\xff\xfe"}}', "utf-8"),
        (b'{"function": {"name": "' + b"x" * MAX_LINE_BYTES + b'"}}', "longer than 8,000,000"),
        (b"\x00\x01\x02", "Expecting value"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_error_for_an_invalid_catalog_line_contains_the_line_number(
    tmp_path: Path, broken: bytes, expected_error: str
) -> None:
    file = tmp_path / "catalog.jsonl"
    file.write_bytes(make_line("fine").encode() + b"\n\n" + broken + b"\n" + make_line("more").encode())
    with pytest.raises(SourceError) as raised:
        load_catalog(file)
    message = str(raised.value)
    assert message.startswith(f"{file}, line 3: ")
    assert expected_error in message
    assert len(message) < 500


def test_error_for_a_truncated_gzip_catalog_contains_the_line_number(tmp_path: Path) -> None:
    file = tmp_path / "catalog.jsonl.gz"
    whole = gzip.compress((make_line("a") + "\n" + make_line("b") + "\n").encode(), mtime=0)
    file.write_bytes(whole[:-12])
    with pytest.raises(SourceError, match=r"catalog\.jsonl\.gz, line \d: .*ended before"):
        load_catalog(file)


def test_error_for_a_damaged_gzip_catalog_contains_the_line_number(tmp_path: Path) -> None:
    file = tmp_path / "catalog.jsonl.gz"
    damaged = bytearray(gzip.compress(make_line().encode(), mtime=0))
    damaged[10] = 0b111  # the first byte after the header: a block of a kind that does not exist
    file.write_bytes(damaged)
    with pytest.raises(SourceError, match=r"catalog\.jsonl\.gz, line 1: .*invalid block type"):
        load_catalog(file)


def test_gzip_bomb_as_catalog_file_is_rejected_without_high_memory_use(tmp_path: Path) -> None:
    file = tmp_path / "bomb.jsonl.gz"
    with gzip.open(file, "wb", compresslevel=1) as stream:
        for _ in range(20):
            stream.write(b" " * MAX_LINE_BYTES)
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match="line 1: longer than"):
            load_catalog(file)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10 * MAX_LINE_BYTES


@pytest.mark.parametrize("name", ["missing.jsonl", "missing.jsonl.gz", "folder", "plain.gz"])
def test_error_for_an_unreadable_catalog_contains_the_file_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain.gz").write_text(make_line())
    with pytest.raises(SourceError) as raised:
        load_catalog(tmp_path / name)
    assert str(raised.value).startswith(f"{tmp_path / name} cannot be read as a catalog: ")


def test_catalog_tool_can_be_listed_but_not_called(tmp_path: Path, runtime: Runtime) -> None:
    file = tmp_path / "catalog.jsonl"
    file.write_text(make_line())
    runtime.registry.add_all(load_catalog(file))
    session = runtime.session(["mcp-sky"])
    (definition,) = session.definitions()
    assert definition["function"]["parameters"] == PARAMETERS
    result = session.call_sync("get_weather", {"city": "Oslo"})
    assert result.error == "this tool comes from a catalog file: it can be shown and searched, but not run."


def test_sample_catalog_contains_at_least_226_tools_of_15_services(runtime: Runtime) -> None:
    tools = runtime.registry.add_all(sample_catalog())
    assert len({tool.name for tool in tools}) == len(tools) >= 226
    assert len({tool.toolset for tool in tools}) >= 15
    assert all(tool.description and tool.parameters["properties"] is not None for tool in tools)
