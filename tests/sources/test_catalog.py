from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from toolfold import Runtime, SourceError, load_catalog, sample_catalog
from toolfold.jsonlines import LARGEST_LINE

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def entry(name: Any = "get_weather", **more: Any) -> dict[str, Any]:
    function = {"name": name, "description": "Weather of a city.", "parameters": PARAMETERS}
    return {"type": "function", "function": function, "meta": {"server": "sky"}, **more}


def line(name: Any = "get_weather", **more: Any) -> str:
    return json.dumps(entry(name, **more), ensure_ascii=False)


def test_a_catalog_file_gives_its_tools_in_order(tmp_path: Path) -> None:
    file = tmp_path / "catalog.jsonl"
    file.write_text(f"{line('b')}\n\n   \n{line('a')}")
    second, first = load_catalog(file)
    assert (second.name, first.name) == ("b", "a")
    assert first.toolset == "mcp-sky"
    assert str(first.source) == "catalog sky"
    assert first.description == "Weather of a city."
    assert first.parameters == PARAMETERS


def test_a_gzipped_catalog_reads_the_same(tmp_path: Path) -> None:
    file = tmp_path / "catalog.jsonl.gz"
    file.write_bytes(gzip.compress(f"{line('a')}\n{line('b')}\n".encode()))
    assert [tool.name for tool in load_catalog(file)] == ["a", "b"]


def test_a_catalog_written_on_another_system_reads_the_same(tmp_path: Path) -> None:
    file = tmp_path / "catalog.jsonl"
    described = entry()
    described["function"]["description"] = "one\u2028two\x85three"
    text = "\ufeff" + json.dumps(described, ensure_ascii=False) + "\r\n" + line("b") + "\r\n"
    file.write_bytes(text.encode())
    first, second = load_catalog(file)
    assert first.description == "one\u2028two\x85three"
    assert second.name == "b"


@pytest.mark.parametrize("meta", [None, "sky", {"server": ""}, {"server": 7}, {}])
def test_an_entry_that_names_no_server_belongs_to_the_catalog_itself(tmp_path: Path, meta: Any) -> None:
    file = tmp_path / "catalog.jsonl"
    file.write_text(line(meta=meta))
    (tool,) = load_catalog(file)
    assert tool.toolset == "mcp-catalog"


@pytest.mark.parametrize(
    ("broken", "said"),
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
        (b'{"function": {"name": "' + b"x" * LARGEST_LINE + b'"}}', "longer than 8,000,000"),
        (b"\x00\x01\x02", "Expecting value"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_a_broken_line_is_named_by_its_number(tmp_path: Path, broken: bytes, said: str) -> None:
    file = tmp_path / "catalog.jsonl"
    file.write_bytes(line("fine").encode() + b"\n\n" + broken + b"\n" + line("more").encode())
    with pytest.raises(SourceError) as refused:
        load_catalog(file)
    message = str(refused.value)
    assert message.startswith(f"{file}, line 3: ")
    assert said in message
    assert len(message) < 500


def test_a_gzipped_catalog_that_ends_too_early_says_at_which_line(tmp_path: Path) -> None:
    file = tmp_path / "catalog.jsonl.gz"
    whole = gzip.compress((line("a") + "\n" + line("b") + "\n").encode(), mtime=0)
    file.write_bytes(whole[:-12])
    with pytest.raises(SourceError, match=r"catalog\.jsonl\.gz, line \d: .*ended before"):
        load_catalog(file)


def test_a_gzipped_catalog_that_was_damaged_says_at_which_line(tmp_path: Path) -> None:
    file = tmp_path / "catalog.jsonl.gz"
    damaged = bytearray(gzip.compress(line().encode(), mtime=0))
    damaged[10] = 0b111  # the first byte after the header: a block of a kind that does not exist
    file.write_bytes(damaged)
    with pytest.raises(SourceError, match=r"catalog\.jsonl\.gz, line 1: .*invalid block type"):
        load_catalog(file)


def test_a_line_that_unpacks_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    file = tmp_path / "bomb.jsonl.gz"
    with gzip.open(file, "wb", compresslevel=1) as stream:
        for _ in range(20):
            stream.write(b" " * LARGEST_LINE)
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match="line 1: longer than"):
            load_catalog(file)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10 * LARGEST_LINE


@pytest.mark.parametrize("name", ["missing.jsonl", "missing.jsonl.gz", "folder", "plain.gz"])
def test_a_file_that_is_no_catalog_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain.gz").write_text(line())
    with pytest.raises(SourceError) as refused:
        load_catalog(tmp_path / name)
    assert str(refused.value).startswith(f"{tmp_path / name} cannot be read as a catalog: ")


def test_a_tool_of_a_catalog_can_be_shown_and_says_that_it_cannot_run(
    tmp_path: Path, runtime: Runtime
) -> None:
    file = tmp_path / "catalog.jsonl"
    file.write_text(line())
    runtime.registry.add_all(load_catalog(file))
    session = runtime.session(["mcp-sky"])
    (definition,) = session.definitions()
    assert definition["function"]["parameters"] == PARAMETERS
    result = session.call_sync("get_weather", {"city": "Oslo"})
    assert result.error == "this tool comes from a catalog file: it can be shown and searched, but not run."


def test_the_sample_catalog_holds_many_tools_of_many_services(runtime: Runtime) -> None:
    tools = runtime.registry.add_all(sample_catalog())
    assert len({tool.name for tool in tools}) == len(tools) >= 226
    assert len({tool.toolset for tool in tools}) >= 15
    assert all(tool.description and tool.parameters["properties"] is not None for tool in tools)
