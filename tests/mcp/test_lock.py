"""The lock file: the same pins give the same bytes, and a file that cannot be read accepts nothing."""

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
from toolfold.errors import ConfigError
from toolfold.sources.mcp.lock import LOCK_FILE, LockFile, Pin, lock_path, serialize_pins
from toolfold.sources.mcp.tool_listing import ListedTool, parse_tool


def offer(name: str = "read", description: str = "Reads a file.", **more: Any) -> ListedTool:
    return parse_tool({"name": name, "description": description, **more})


@pytest.fixture
def lock(tmp_path: Path) -> LockFile:
    return LockFile(tmp_path / LOCK_FILE)


def test_what_is_accepted_is_found_again_by_another_reader(lock: LockFile) -> None:
    lock.accept("files", [offer()])
    assert LockFile(lock.file).pins("files") == {"read": Pin(offer().fingerprint, offer())}


def test_a_server_nobody_accepted_has_no_pins_and_one_without_tools_has_none_of_them(lock: LockFile) -> None:
    lock.pin_new_server("empty", [])
    assert lock.pins("empty") == {}
    assert lock.pins("unknown") is None


def test_the_same_pins_give_the_same_bytes_in_whatever_order_they_came(tmp_path: Path) -> None:
    one, other = LockFile(tmp_path / "one" / LOCK_FILE), LockFile(tmp_path / "other" / LOCK_FILE)
    tools = [offer("b", inputSchema={"type": "object", "x": 1, "a": 2}), offer("a")]
    swapped = [offer("a"), offer("b", inputSchema={"a": 2, "x": 1, "type": "object"})]
    one.accept("git", tools)
    one.accept("files", tools)
    other.accept("files", swapped)
    other.accept("git", swapped[:1])
    other.accept("git", swapped[1:])
    assert one.file.read_bytes() == other.file.read_bytes()


def test_the_file_shows_hidden_characters_to_who_reviews_it(lock: LockFile) -> None:
    lock.accept("files", [offer(description="Reads\u200b a file.")])
    assert lock.file.read_bytes().isascii()
    assert b"\\u200b" in lock.file.read_bytes()


def test_a_tool_is_known_by_its_value_and_not_by_its_spelling() -> None:
    def known(schema: Any) -> str:
        return offer(inputSchema=schema).fingerprint

    assert known({"a": 1, "b": [2.0]}) == known({"b": [2], "a": 1.0})
    assert known({"a": 1}) != known({"a": True})
    assert known({"a": [1, 2]}) != known({"a": [2, 1]})
    assert known({"a": 9007199254740992}) != known({"a": 9007199254740993})
    assert known({"a": "caf\u00e9"}) != known({"a": "cafe\u0301"})


def test_accepting_keeps_the_other_tools_and_servers(lock: LockFile) -> None:
    lock.accept("files", [offer("read"), offer("write")])
    lock.accept("git", [offer("log")])
    lock.accept("files", [offer("read", "Reads more.")])
    assert set(lock.pins("files") or ()) == {"read", "write"}
    assert set(lock.pins("git") or ()) == {"log"}


def test_a_first_listing_never_replaces_pins_that_are_there_by_then(lock: LockFile) -> None:
    LockFile(lock.file).pin_new_server("files", [offer("read")])
    pins = lock.pin_new_server("files", [offer("read", "Something else.")])
    assert pins["read"].tool == offer("read")


def test_a_change_by_another_process_is_seen(lock: LockFile) -> None:
    lock.accept("files", [offer()])
    other = LockFile(lock.file)
    assert other.pins("files")
    lock.accept("files", [offer("write")])
    assert set(other.pins("files") or ()) == {"read", "write"}
    lock.file.unlink()
    assert other.pins("files") is None


def test_forgetting_a_server_says_whether_it_was_known(lock: LockFile) -> None:
    lock.accept("files", [offer()])
    assert lock.forget("files")
    assert lock.pins("files") is None
    assert not lock.forget("files")


def test_nothing_is_written_where_nothing_changes(lock: LockFile) -> None:
    lock.accept("files", [offer()])
    before = lock.file.stat()
    lock.accept("files", [offer()])
    assert lock.file.stat().st_ino == before.st_ino


def test_a_tool_too_long_to_keep_is_pinned_by_its_hash(lock: LockFile) -> None:
    long = offer(description="word " * 25_000)
    lock.accept("files", [long])
    assert lock.pins("files") == {"read": Pin(long.fingerprint, None)}
    assert LockFile(lock.file).pins("files") == {"read": Pin(long.fingerprint, None)}


GOOD = json.loads(serialize_pins({"files": {"read": Pin(offer().fingerprint, offer())}}))


def _with(change: Any) -> bytes:
    changed = json.loads(json.dumps(GOOD))
    change(changed)
    return json.dumps(changed).encode()


BROKEN = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b"\xff\xfe",
    "marks of a merge": b"<<<<<<< ours\n{}\n=======\n",
    "a list": b"[]",
    "no servers": b'{"version": 1}',
    "a key twice": b'{"version": 1, "servers": {"a": {"tools": {}}, "a": {"tools": {}}}}',
    "a server that is none": _with(lambda it: it["servers"].update(files=[])),
    "a tool without a hash": _with(lambda it: it["servers"]["files"]["tools"]["read"].pop("hash")),
    "a definition that is none": _with(
        lambda it: it["servers"]["files"]["tools"]["read"].update(definition=1)
    ),
    "a definition of another name": _with(
        lambda it: it["servers"]["files"]["tools"].update(write=it["servers"]["files"]["tools"]["read"])
    ),
    "a definition that is not the hash's": _with(
        lambda it: it["servers"]["files"]["tools"]["read"]["definition"].update(description="Reads all.")
    ),
    "another version": _with(lambda it: it.update(version=99)),
    "nesting without end": b'{"version":1,"servers":' + b"[" * 100_000,
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_lock_is_a_clear_error_and_never_an_empty_one(lock: LockFile, content: bytes) -> None:
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


def test_a_lock_that_was_good_and_breaks_is_an_error_too(lock: LockFile) -> None:
    lock.accept("files", [offer()])
    assert lock.pins("files")
    lock.file.write_bytes(b"{}")
    with pytest.raises(ConfigError):
        lock.pins("files")
    with pytest.raises(ConfigError):
        lock.pins("files")


def test_a_lock_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        LockFile(tmp_path / LOCK_FILE).pins("files")


def _accept(file: Path, name: str) -> None:
    LockFile(file).accept("files", [offer(name)])


def test_processes_that_accept_at_once_lose_nothing(lock: LockFile) -> None:
    names = [f"tool{number}" for number in range(6)]
    workers = [multiprocessing.Process(target=_accept, args=(lock.file, name)) for name in names]
    for each in workers:
        each.start()
    for each in workers:
        each.join(120)
    assert sorted(lock.pins("files") or ()) == names


def test_the_lock_lies_beside_the_file_that_declares_the_server(home: Path, tmp_path: Path) -> None:
    (home / "config.yaml").write_text("mcp: {servers: {mine: {command: one}}}\n")
    (tmp_path / "toolfold.yaml").write_text("mcp: {servers: {ours: {command: two}}}\n")
    env = {"TOOLFOLD_HOME": str(home), "HOME": str(home)}
    given_here = {"mcp": {"servers": {"given": {"command": "three"}}}}
    config = load_config(project=tmp_path, env=env, overrides=given_here, trusted=True)
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
def test_whatever_a_server_says_is_pinned_and_read_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, name: str, description: str, schema: Any, annotations: Any
) -> None:
    tool = {"name": name, "description": description, "inputSchema": schema, "annotations": annotations}
    said = parse_tool(tool)
    lock = LockFile(tmp_path_factory.mktemp("lock") / LOCK_FILE)
    lock.accept(description, [said])
    pins = LockFile(lock.file).pins(description)
    assert pins is not None
    assert pins[said.name].fingerprint == said.fingerprint
    assert pins[said.name].tool == said
