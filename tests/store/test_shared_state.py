"""Contracts of state that replicas share, each checked with files and with a PostgreSQL database.

Every contract gets two stores over the same state, as two processes have.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from toolfold.core.errors import ConfigError
from toolfold.mcp.lock import LOCK_FILE, LockFile, Pin, PinStore, SharedPins
from toolfold.mcp.tool_listing import ListedTool, parse_tool
from toolfold.mcp.trust import Trust
from toolfold.selection.retrieval.example_messages import MessageRecord
from toolfold.selection.retrieval.learned_store import (
    MAX_CLIENT_MESSAGES_PER_TOOL,
    LearnedMessage,
    LearnedMessageStore,
    open_learned,
)
from toolfold.selection.retrieval.message_store import EditableMessages, open_messages
from toolfold.serving.dashboard.shared_questions import SharedQuestions
from toolfold.serving.gateway.client_tokens import SharedTokens, Tokens, TokenStore
from toolfold.state.database import Database, open_database

WAIT_S = 60.0
Pair = tuple[Any, Any]


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(params=["files", "postgres"])
def databases(request: pytest.FixtureRequest) -> Iterator[tuple[Database, Database] | None]:
    """The databases of two replicas; None if state is in files."""
    if request.param == "files":
        yield None
        return
    url = request.getfixturevalue("database_url")
    with ExitStack() as stack:
        opened = [open_database(url) for _ in range(2)]
        for each in opened:
            assert each is not None
            stack.callback(each.close)
        yield opened[0], opened[1]  # type: ignore[misc]


class TestTokens:
    @pytest.fixture
    def stores(self, databases: tuple[Database, Database] | None, tmp_path: Path) -> Pair:
        if databases is None:
            return tuple(Tokens(tmp_path / "tokens.json") for _ in range(2))  # type: ignore[return-value]
        return tuple(map(SharedTokens, databases))  # type: ignore[return-value]

    def test_token_created_by_one_replica_is_accepted_by_the_other(self, stores: Pair) -> None:
        one, other = stores
        assert not other.are_in_use()
        token = one.add("bob", ["mcp-github"], may_use_keys=False)
        wait_until(lambda: other.find(token) is not None)
        found = other.find(token)
        assert (found.name, found.toolsets, found.may_use_keys) == ("bob", ("mcp-github",), False)
        assert other.is_valid(one.find(token))
        assert other.are_in_use()
        assert [each.name for each in other.list_clients()] == ["bob"]

    def test_token_revoked_by_one_replica_is_refused_by_the_other(self, stores: Pair) -> None:
        one, other = stores
        token = one.add("bob")
        wait_until(lambda: other.find(token) is not None)
        assert one.revoke("bob")
        assert one.find(token) is None
        wait_until(lambda: other.find(token) is None)
        assert not other.revoke("bob")
        assert other.are_in_use()  # clients still need a token

    def test_name_of_a_revoked_token_can_be_reused(self, stores: Pair) -> None:
        one, other = stores
        first = one.add("bob")
        one.revoke("bob")
        second = other.add("bob")
        assert other.find(first) is None
        assert other.find(second) is not None

    def test_only_one_of_two_replicas_can_create_a_token_with_the_same_name(self, stores: Pair) -> None:
        def add(store: TokenStore) -> bool:
            try:
                return bool(store.add("bob"))
            except ConfigError:
                return False

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(add, stores)) == [False, True]

    @pytest.mark.parametrize("wrong", ["", "tf_", "sha256:", "\ud800", "nul \0"])
    def test_looking_up_a_gateway_token_that_was_never_created_returns_nothing(
        self, stores: Pair, wrong: str
    ) -> None:
        stores[0].add("bob")
        assert stores[0].find(wrong) is None
        assert not stores[0].revoke(wrong)


def test_tokens_are_refused_if_revocations_were_not_read_from_the_database_recently(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = open_database(database_url)
    assert database is not None
    tokens = SharedTokens(database)
    token = tokens.add("bob")
    assert tokens.find(token)
    monkeypatch.setattr(tokens._copy, "max_stale_s", -1.0)
    with pytest.raises(OSError, match="tokens cannot be checked"):
        tokens.find(token)
    database.close()


def test_gateway_tokens_are_not_stored_in_clear_text_in_the_database(database_url: str) -> None:
    database = open_database(database_url)
    assert database is not None
    token = SharedTokens(database).add("bob")
    assert token.removeprefix("tf_") not in str(database.query("SELECT * FROM tokens"))
    database.close()


class TestPins:
    @pytest.fixture
    def stores(self, databases: tuple[Database, Database] | None, tmp_path: Path) -> Pair:
        if databases is None:
            return tuple(LockFile(tmp_path / LOCK_FILE) for _ in range(2))  # type: ignore[return-value]
        pins = [SharedPins(each) for each in databases]
        for database, store in zip(databases, pins, strict=True):
            database.on_change("pins", store.reload)
        return tuple(pins)  # type: ignore[return-value]

    def test_mcp_tool_accepted_by_one_replica_is_accepted_by_the_other(self, stores: Pair) -> None:
        one, other = stores
        assert other.pins("files") is None
        one.accept("files", [make_tool("read")])
        wait_until(
            lambda: other.pins("files") == {"read": Pin(make_tool("read").fingerprint, make_tool("read"))}
        )

    def test_tools_that_one_replica_accepted_for_a_new_mcp_server_are_used_by_the_other(
        self, stores: Pair
    ) -> None:
        one, other = stores
        one.pin_new_server("files", [make_tool("read")])
        found = other.pin_new_server("files", [make_tool("read", "Deletes files.")])
        assert found["read"].fingerprint == make_tool("read").fingerprint
        assert one.pin_new_server("empty", []) == {}
        wait_until(lambda: other.pins("empty") == {})
        assert other.pins("unknown") is None

    def test_harmless_update_of_an_mcp_tool_is_accepted_and_its_old_version_stays_accepted(
        self, stores: Pair
    ) -> None:
        one, other = stores
        one.accept("files", [make_tool("read")])
        compared = one.pins("files")
        newer = make_tool("read", "Reads one file.")
        one.record_updates("files", [newer], compared)
        wait_until(
            lambda: bool(other.pins("files")) and other.pins("files")["read"].accepts(newer.fingerprint)
        )
        assert other.pins("files")["read"].accepts(make_tool("read").fingerprint)

    def test_accepted_tools_of_an_mcp_server_removed_by_one_replica_are_removed_for_the_other(
        self, stores: Pair
    ) -> None:
        one, other = stores
        one.accept("files", [make_tool("read")])
        wait_until(lambda: other.pins("files") is not None)
        assert one.forget("files")
        assert not one.forget("files")
        wait_until(lambda: other.pins("files") is None)

    def test_mcp_tools_accepted_concurrently_by_two_replicas_are_all_stored(self, stores: Pair) -> None:
        def accept(number: int) -> None:
            stores[number % 2].accept("files", [make_tool(f"tool{number}")])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(accept, range(16)))
        for each in stores:
            store: PinStore = each
            wait_until(lambda: len(store.pins("files") or ()) == 16)  # noqa: B023 - called at once


def test_changed_mcp_tool_still_needs_review_after_one_replica_removed_its_server(
    database_url: str, tmp_path: Path
) -> None:
    database = open_database(database_url)
    assert database is not None
    one, other = (Trust(lambda _server: tmp_path / LOCK_FILE, shared=SharedPins(database)) for _ in range(2))
    assert one.check_tools("files", "pin", [make_tool("read")]).held == ()
    assert not one.forget("files")
    changed = make_tool("read", "Deletes files.")
    assert [each.tool.name for each in other.check_tools("files", "pin", [changed]).held] == ["read"]
    database.close()


def make_tool(name: str, description: str = "Reads a file.") -> ListedTool:
    return parse_tool({"name": name, "description": description})


class TestExampleMessages:
    @pytest.fixture
    def stores(self, databases: tuple[Database, Database] | None, tmp_path: Path) -> Pair:
        found = [open_messages(tmp_path, each) for each in databases or (None, None)]
        return found[0], found[1]

    def test_example_messages_added_by_one_replica_are_used_by_the_other(self, stores: Pair) -> None:
        one, other = stores
        before = other.version()
        one.add([make_record("a", "track"), make_record("b", "list")])
        wait_until(lambda: other.version() != before)
        assert sorted(other.load(), key=lambda each: each.checksum) == [
            make_record("a", "track"),
            make_record("b", "list"),
        ]

    def test_example_messages_of_a_new_tool_version_replace_messages_of_the_old_version(
        self, stores: Pair
    ) -> None:
        one, other = stores
        one.add([make_record("a", "track"), make_record("b", "list")])
        other.add([make_record("c", "track")])
        for each in stores:
            store: EditableMessages = each
            wait_until(lambda: {record.checksum for record in store.load()} == {"b" * 24, "c" * 24})  # noqa: B023

    def test_example_messages_removed_by_one_replica_are_removed_for_the_other(self, stores: Pair) -> None:
        one, other = stores
        one.add([make_record("a", "track"), make_record("b", "list")])
        assert other.remove(["a" * 24, "missing"]) == 1
        wait_until(lambda: [record.checksum for record in one.load()] == ["b" * 24])


class TestLearnedMessages:
    @pytest.fixture
    def stores(self, databases: tuple[Database, Database] | None, tmp_path: Path) -> Iterator[Pair]:
        found = [open_learned(tmp_path, each) for each in databases or (None, None)]
        yield found[0], found[1]
        for each in found:
            each.close()

    def test_message_learned_by_one_replica_is_used_by_the_other(self, stores: Pair) -> None:
        one, other = stores
        before = other.version()
        one.add(make_learned("where is my parcel"), expire_before=0)
        one.add(make_learned("where is my parcel", last_used=20.0), expire_before=0)
        wait_until(lambda: other.version() != before and [each.uses for each in other.load()] == [2])
        (message,) = other.load()
        assert (message.text, message.client, message.last_used) == ("where is my parcel", "desk", 20.0)
        assert other.load_totals() == {("desk", "shop", "track"): 2, ("desk", "", ""): 2}

    def test_replicas_share_the_vectors_and_miss_counts_of_learned_messages(self, stores: Pair) -> None:
        one, other = stores
        one.add(make_learned("where is my parcel"), expire_before=0)
        (message,) = one.load()
        one.add_misses([message.id])
        one.set_vectors("light", {message.id: b"\0\1\2"})
        wait_until(lambda: [(each.misses, each.model) for each in other.load()] == [(1, "light")])
        assert other.load()[0].vector == b"\0\1\2"

    def test_vector_of_a_learned_message_is_still_stored_after_another_message_was_learned(
        self, stores: Pair
    ) -> None:
        one, _ = stores
        one.add(make_learned("where is my parcel"), expire_before=0)
        (message,) = one.load()
        one.set_vectors("light", {message.id: b"\0\1\2"})
        one.add(make_learned("track the box"), expire_before=0)  # reads all messages again
        assert {each.text: each.vector for each in one.load()}["where is my parcel"] == b"\0\1\2"

    def test_expired_learned_messages_and_the_oldest_messages_above_the_limit_are_removed(
        self, stores: Pair
    ) -> None:
        one, _ = stores
        for number in range(MAX_CLIENT_MESSAGES_PER_TOOL + 3):
            one.add(make_learned(f"message {number}", last_used=float(number)), expire_before=2.0)
        texts = {each.text for each in one.load()}
        assert len(texts) == MAX_CLIENT_MESSAGES_PER_TOOL
        assert "message 0" not in texts

    def test_learned_messages_removed_by_one_replica_are_removed_for_the_other(self, stores: Pair) -> None:
        one, other = stores
        for text in ("where is my parcel", "track the box"):
            one.add(make_learned(text), expire_before=0)
        wait_until(lambda: len(other.load()) == 2)
        assert other.forget(lambda message: "box" in message.text) == 1
        wait_until(lambda: [each.text for each in one.load()] == ["where is my parcel"])
        store: LearnedMessageStore = one
        assert store.forget() == 1
        wait_until(lambda: other.load() == [] and other.load_totals() == {})


def test_replica_detects_dashboards_open_at_other_replicas_again_after_a_temporary_failure(
    database_url: str,
) -> None:
    with ExitStack() as stack:
        databases = [found for _ in range(2) if (found := open_database(database_url))]
        for each in databases:
            stack.callback(each.close)
        is_failing = threading.Event()

        def is_page_open() -> bool:
            if is_failing.is_set():
                raise ValueError("unknown")
            return False

        one, other = (
            SharedQuestions(database, is_page_open=is_open, answer_own=lambda _id, _answer: True)
            for database, is_open in zip(databases, (is_page_open, lambda: True), strict=True)
        )
        stack.callback(other.close)
        wait_until(one.has_other_pages)
        is_failing.set()
        one.update_page()
        wait_until(lambda: not one.has_other_pages())
        is_failing.clear()
        wait_until(one.has_other_pages)
        one.close()
        assert not one.has_other_pages()


def make_record(checksum: str, tool: str) -> MessageRecord:
    return MessageRecord(
        checksum=checksum * 24,
        sketch="0" * 64,
        server="shop",
        tool=tool,
        messages=("Where is the parcel of my mother?",),
    )


def make_learned(text: str, last_used: float = 10.0) -> LearnedMessage:
    return LearnedMessage(
        client="desk",
        server="shop",
        tool="track",
        name="shop_track",
        checksum="c",
        sketch="0" * 64,
        text=text,
        origin="message",
        first_used=10.0,
        last_used=last_used,
    )
