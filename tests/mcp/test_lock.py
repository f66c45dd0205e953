"""Lock file: deterministic content, and an unreadable file is an error."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfold.config import load_config
from toolfold.core.errors import ConfigError
from toolfold.mcp.lock import LOCK_FILE, LockFile, Pin, lock_path, serialize_pins
from toolfold.mcp.tool_listing import ListedTool, parse_tool


def make_tool(name: str = "read", description: str = "Reads a file.", **more: Any) -> ListedTool:
    return parse_tool({"name": name, "description": description, **more})


@pytest.fixture
def lock(tmp_path: Path) -> LockFile:
    return LockFile(tmp_path / LOCK_FILE)


def test_accepted_tool_is_read_unchanged_from_the_lock_file(lock: LockFile) -> None:
    lock.accept("files", [make_tool()])
    assert LockFile(lock.file).pins("files") == {"read": Pin(make_tool().fingerprint, make_tool())}


def test_lock_file_returns_none_for_an_unknown_server_but_not_for_a_server_without_tools(
    lock: LockFile,
) -> None:
    lock.pin_new_server("empty", [])
    assert lock.pins("empty") == {}
    assert lock.pins("unknown") is None


def test_lock_file_content_does_not_depend_on_the_order_in_which_tools_were_accepted(tmp_path: Path) -> None:
    one, other = LockFile(tmp_path / "one" / LOCK_FILE), LockFile(tmp_path / "other" / LOCK_FILE)
    tools = [make_tool("b", inputSchema={"type": "object", "x": 1, "a": 2}), make_tool("a")]
    swapped = [make_tool("a"), make_tool("b", inputSchema={"a": 2, "x": 1, "type": "object"})]
    one.accept("git", tools)
    one.accept("files", tools)
    other.accept("files", swapped)
    other.accept("git", swapped[:1])
    other.accept("git", swapped[1:])
    assert one.file.read_bytes() == other.file.read_bytes()


def test_invisible_characters_of_a_tool_description_are_escaped_in_the_lock_file(lock: LockFile) -> None:
    lock.accept("files", [make_tool(description="Reads\u200b a file.")])
    assert lock.file.read_bytes().isascii()
    assert b"\\u200b" in lock.file.read_bytes()


def test_tool_fingerprints_are_equal_if_and_only_if_their_schemas_are_equal_json_values() -> None:
    def fingerprint_of(schema: Any) -> str:
        return make_tool(inputSchema=schema).fingerprint

    assert fingerprint_of({"a": 1, "b": [2.0]}) == fingerprint_of({"b": [2], "a": 1.0})
    assert fingerprint_of({"a": 1}) != fingerprint_of({"a": True})
    assert fingerprint_of({"a": [1, 2]}) != fingerprint_of({"a": [2, 1]})
    assert fingerprint_of({"a": 9007199254740992}) != fingerprint_of({"a": 9007199254740993})
    assert fingerprint_of({"a": "caf\u00e9"}) != fingerprint_of({"a": "cafe\u0301"})


def test_accepting_a_tool_keeps_other_tools_and_servers_in_the_lock_file(lock: LockFile) -> None:
    lock.accept("files", [make_tool("read"), make_tool("write")])
    lock.accept("git", [make_tool("log")])
    lock.accept("files", [make_tool("read", "Reads more.")])
    assert set(lock.pins("files") or ()) == {"read", "write"}
    assert set(lock.pins("git") or ()) == {"log"}


def test_pinning_tools_of_a_server_again_keeps_the_accepted_tools_in_the_lock_file(
    lock: LockFile,
) -> None:
    LockFile(lock.file).pin_new_server("files", [make_tool("read")])
    pins = lock.pin_new_server("files", [make_tool("read", "Something else.")])
    assert pins["read"].tool == make_tool("read")


def test_lock_file_is_reloaded_after_another_process_changed_or_deleted_it(
    lock: LockFile,
) -> None:
    lock.accept("files", [make_tool()])
    other = LockFile(lock.file)
    assert other.pins("files")
    lock.accept("files", [make_tool("write")])
    assert set(other.pins("files") or ()) == {"read", "write"}
    lock.file.unlink()
    assert other.pins("files") is None


def test_removing_a_server_from_the_lock_file_returns_whether_the_file_contained_the_server(
    lock: LockFile,
) -> None:
    lock.accept("files", [make_tool()])
    assert lock.forget("files")
    assert lock.pins("files") is None
    assert not lock.forget("files")


def test_accepting_an_already_accepted_tool_does_not_write_the_lock_file(lock: LockFile) -> None:
    lock.accept("files", [make_tool()])
    before = lock.file.stat()
    lock.accept("files", [make_tool()])
    assert lock.file.stat().st_ino == before.st_ino


def test_lock_file_contains_the_hash_but_not_the_text_of_a_very_large_tool_definition(lock: LockFile) -> None:
    long = make_tool(description="word " * 25_000)
    lock.accept("files", [long])
    assert lock.pins("files") == {"read": Pin(long.fingerprint, None)}
    assert LockFile(lock.file).pins("files") == {"read": Pin(long.fingerprint, None)}


VALID_DOCUMENT = json.loads(serialize_pins({"files": {"read": Pin(make_tool().fingerprint, make_tool())}}))


def _change_pins(change: Any) -> bytes:
    changed = json.loads(json.dumps(VALID_DOCUMENT))
    change(changed)
    return json.dumps(changed).encode()


INVALID_FILES = {
    "empty file": b"",
    "invalid JSON": b"{",
    "invalid UTF-8": b"\xff\xfe",
    "merge conflict markers": b"<<<<<<< ours\n{}\n=======\n",
    "a list": b"[]",
    "no servers": b'{"version": 1}',
    "a duplicate key": b'{"version": 1, "servers": {"a": {"tools": {}}, "a": {"tools": {}}}}',
    "a server that is not a mapping": _change_pins(lambda it: it["servers"].update(files=[])),
    "a tool without a hash": _change_pins(lambda it: it["servers"]["files"]["tools"]["read"].pop("hash")),
    "a definition that is not a mapping": _change_pins(
        lambda it: it["servers"]["files"]["tools"]["read"].update(definition=1)
    ),
    "a definition of another name": _change_pins(
        lambda it: it["servers"]["files"]["tools"].update(write=it["servers"]["files"]["tools"]["read"])
    ),
    "a definition that does not match its hash": _change_pins(
        lambda it: it["servers"]["files"]["tools"]["read"]["definition"].update(description="Reads all.")
    ),
    "another version": _change_pins(lambda it: it.update(version=99)),
    "excessive nesting": b'{"version":1,"servers":' + b"[" * 100_000,
}


@pytest.mark.parametrize("content", INVALID_FILES.values(), ids=INVALID_FILES.keys())
def test_reading_or_changing_an_invalid_lock_file_raises_config_error_and_does_not_overwrite_it(
    lock: LockFile, content: bytes
) -> None:
    lock.file.write_bytes(content)
    uses: list[Callable[[], object]] = [
        lambda: lock.pins("files"),
        lambda: lock.pin_new_server("new", []),
        lambda: lock.accept("new", []),
    ]
    for use in uses:
        with pytest.raises(ConfigError, match="lock file") as raised:
            use()
        assert raised.value.file == str(lock.file)
        assert raised.value.hint
    assert lock.file.read_bytes() == content


def test_lock_file_that_becomes_invalid_after_it_was_read_raises_config_error(lock: LockFile) -> None:
    lock.accept("files", [make_tool()])
    assert lock.pins("files")
    lock.file.write_bytes(b"{}")
    with pytest.raises(ConfigError):
        lock.pins("files")
    with pytest.raises(ConfigError):
        lock.pins("files")


def test_lock_file_that_cannot_be_opened_raises_config_error(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        LockFile(tmp_path / LOCK_FILE).pins("files")


def _accept_tool(file: Path, name: str) -> None:
    LockFile(file).accept("files", [make_tool(name)])


def test_lock_file_contains_all_tools_accepted_concurrently_by_several_processes(lock: LockFile) -> None:
    names = [f"tool{number}" for number in range(6)]
    workers = [multiprocessing.Process(target=_accept_tool, args=(lock.file, name)) for name in names]
    for each in workers:
        each.start()
    for each in workers:
        each.join(120)
    assert sorted(lock.pins("files") or ()) == names


def test_lock_file_is_next_to_the_settings_file_that_defines_the_server(home: Path, tmp_path: Path) -> None:
    (home / "config.yaml").write_text("mcp: {servers: {mine: {command: one}}}\n")
    (tmp_path / "toolfold.yaml").write_text("mcp: {servers: {ours: {command: two}}}\n")
    env = {"TOOLFOLD_HOME": str(home), "HOME": str(home)}
    overrides = {"mcp": {"servers": {"given": {"command": "three"}}}}
    config = load_config(project=tmp_path, env=env, overrides=overrides, trusted=True)
    assert lock_path(config, "mine") == home / LOCK_FILE
    assert lock_path(config, "ours") == tmp_path / LOCK_FILE
    assert lock_path(config, "given") == home / LOCK_FILE


words = st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@given(
    name=st.text(min_size=1, max_size=20).filter(str.strip),
    description=words,
    schema=st.dictionaries(words, values, max_size=4),
    annotations=st.dictionaries(words, values, max_size=3),
)
def test_arbitrary_tools_are_unchanged_after_writing_and_reading_the_lock_file(
    tmp_path_factory: pytest.TempPathFactory, name: str, description: str, schema: Any, annotations: Any
) -> None:
    tool = {"name": name, "description": description, "inputSchema": schema, "annotations": annotations}
    listed = parse_tool(tool)
    lock = LockFile(tmp_path_factory.mktemp("lock") / LOCK_FILE)
    lock.accept(description, [listed])
    pins = LockFile(lock.file).pins(description)
    assert pins is not None
    assert pins[listed.name].fingerprint == listed.fingerprint
    assert pins[listed.name].tool == listed
