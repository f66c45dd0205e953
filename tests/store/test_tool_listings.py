"""Stored tool lists of MCP servers: one contract, checked with files and with a PostgreSQL database."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from toolfold.config.servers_settings import McpServerSettings, parse_server_settings
from toolfold.mcp import listing_cache, shared_listings
from toolfold.mcp.listing_cache import ListingCache, serialize_listing
from toolfold.mcp.shared_listings import SharedListings, compute_listing_key
from toolfold.mcp.tool_listing import Listing, parse_tools
from toolfold.state.database import Database, open_database

SETTINGS = parse_server_settings({"command": "serve", "args": ["notes"]})
Store = ListingCache | SharedListings
Pair = tuple[Store, Store]


def make_listing(*names: str, description: str = "Reads a note.") -> Listing:
    schema = {"type": "object", "properties": {"n": {"type": "number", "minimum": 1.5}}}
    tools, _ = parse_tools(
        {"name": each, "description": description, "inputSchema": schema, "annotations": {"title": "N"}}
        for each in names
    )
    return Listing(
        tools=tools, instructions="be brief", has_prompts=True, protocol="2025-11-25", problems=("a problem",)
    )


@pytest.fixture(params=["files", "postgres"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Two stores over the same state, as two processes have."""
    if request.param == "files":
        yield ListingCache(tmp_path), ListingCache(tmp_path)
        return
    url = request.getfixturevalue("database_url")
    with ExitStack() as stack:
        opened = [open_database(url) for _ in range(2)]
        for each in opened:
            assert each is not None
            stack.callback(each.close)
        yield SharedListings(opened[0]), SharedListings(opened[1])  # type: ignore[arg-type]


def read_listing(store: Store, settings: McpServerSettings = SETTINGS) -> Listing | None:
    found = store.read("notes", settings)
    return found[0] if found else None


class TestContract:
    def test_tool_listing_stored_by_one_process_is_read_by_another_with_its_age(self, stores: Pair) -> None:
        one, other = stores
        assert other.read("notes", SETTINGS) is None
        one.write("notes", SETTINGS, make_listing("read", "write"), age_s=100.0)
        found = other.read("notes", SETTINGS)
        assert found is not None
        assert found[0] == make_listing("read", "write")
        assert [each.fingerprint for each in found[0].tools] == [
            each.fingerprint for each in make_listing("read", "write").tools
        ]
        assert 100.0 <= found[1] < 200.0

    def test_newer_tool_listing_of_a_server_replaces_the_stored_listing(self, stores: Pair) -> None:
        one, other = stores
        one.write("notes", SETTINGS, make_listing("read"), age_s=10.0)
        other.write("notes", SETTINGS, make_listing("write"))
        assert read_listing(one) == make_listing("write")

    def test_storing_an_unchanged_tool_listing_again_resets_its_age(self, stores: Pair) -> None:
        one, other = stores
        one.write("notes", SETTINGS, make_listing("read"), age_s=1_000.0)
        one.write("notes", SETTINGS, make_listing("read"))
        found = other.read("notes", SETTINGS)
        assert found is not None
        assert found[1] < 500.0

    @pytest.mark.parametrize(
        "other",
        [
            {"command": "serve", "args": ["mail"]},
            {"command": "serve", "args": ["notes"], "env": {"MODE": "fast"}},
            {"command": "serve", "args": ["notes"], "cwd": "/tmp"},
            {"url": "https://notes.example/mcp"},
            {"command": "serve", "args": ["notes"], "credentials": "per-user"},
            {"command": "serve", "args": ["notes"], "protocol": "legacy"},
        ],
    )
    def test_tool_listing_is_not_used_for_a_server_with_different_settings(
        self, stores: Pair, other: dict[str, object]
    ) -> None:
        stores[0].write("notes", SETTINGS, make_listing("read"))
        settings = parse_server_settings(other)
        assert read_listing(stores[1], settings) is None
        assert stores[1].read("mail", SETTINGS) is None
        stores[1].write("notes", settings, make_listing("send"))
        assert read_listing(stores[0]) == make_listing("read")
        assert read_listing(stores[0], settings) == make_listing("send")

    def test_deleting_a_server_deletes_the_tool_listing_files_for_all_its_settings(
        self, tmp_path: Path
    ) -> None:
        one, other = ListingCache(tmp_path), ListingCache(tmp_path)
        settings = parse_server_settings({"command": "serve"})
        one.write("notes", SETTINGS, make_listing("read"))
        one.write("notes", settings, make_listing("read"))
        one.write("mail", SETTINGS, make_listing("send"))
        other.delete("notes")
        assert read_listing(one) is None
        assert read_listing(one, settings) is None
        assert one.read("mail", SETTINGS) is not None

    def test_tool_listing_with_nul_and_unicode_control_characters_is_stored_unchanged(
        self, stores: Pair
    ) -> None:
        listing = make_listing("read", description="nul \0 and \u202e and 漢字 \U0001f600")
        stores[0].write("notes", SETTINGS, listing)
        assert read_listing(stores[1]) == listing

    def test_tool_listing_above_the_size_limit_is_not_read(
        self, stores: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stores[0].write("notes", SETTINGS, make_listing("read", description="x" * 2_000))
        monkeypatch.setattr(listing_cache, "MAX_CACHE_FILE_BYTES", 1_000)
        monkeypatch.setattr(shared_listings, "MAX_LISTING_BYTES", 1_000)
        assert read_listing(stores[1]) is None


class TestListingCache:
    def test_deleting_the_files_of_the_server_mail_keeps_the_files_of_the_server_mail_eu(
        self, tmp_path: Path
    ) -> None:
        cache = ListingCache(tmp_path)
        for name in ("mail", "mail-eu", "mail-0123456789abcdef"):
            cache.record_failure(name, SETTINGS)
            cache.clear_failure("mail")
            assert cache.has_failed(name, SETTINGS) is (name != "mail")
            cache.write(name, SETTINGS, make_listing("send"))
            cache.write_item_lists(name, SETTINGS, {"prompts/list": [{"name": "x"}]})
        cache.delete("mail")
        assert cache.read("mail", SETTINGS) is None
        assert cache.read_item_lists("mail", SETTINGS) == {}
        for name in ("mail-eu", "mail-0123456789abcdef"):
            assert cache.read(name, SETTINGS) is not None
            assert cache.read_item_lists(name, SETTINGS)


class TestSharedListings:
    def test_older_tool_listing_does_not_replace_a_newer_listing(self, database: Database) -> None:
        store = SharedListings(database)
        store.write("notes", SETTINGS, make_listing("new"), age_s=5.0)
        store.write("notes", SETTINGS, make_listing("old"), age_s=50.0)
        assert read_listing(store) == make_listing("new")

    def test_tool_listing_with_a_time_in_the_future_is_replaced_by_the_next_listing(
        self, database: Database
    ) -> None:
        store = SharedListings(database)
        for names in (["new"], ["old"]):
            store.write("notes", SETTINGS, make_listing("old"))
            database.execute("UPDATE tool_listings SET listed = clock_timestamp() + interval '1 day'")
            store.write("notes", SETTINGS, make_listing(*names), age_s=5.0)
            assert read_listing(store) == make_listing(*names)
            (row,) = database.query("SELECT listed <= clock_timestamp() AS is_past FROM tool_listings")
            assert row["is_past"]

    def test_literal_secrets_in_server_settings_do_not_affect_the_storage_key_of_the_tool_listing(
        self,
    ) -> None:
        def key(token: str, **others: object) -> tuple[str, str]:
            entry = {"command": "serve", "env": {"API_TOKEN": token}, "args": ["--api-key", token], **others}
            return compute_listing_key("notes", parse_server_settings(entry))

        assert key("sk-live-aaaaaaaaaaaaaaaaaaaa") == key("sk-live-bbbbbbbbbbbbbbbbbbbb")
        assert key("sk-live-aaaaaaaaaaaaaaaaaaaa") != key("sk-live-aaaaaaaaaaaaaaaaaaaa", cwd="/tmp")

    def test_tool_listing_fetched_with_shared_credentials_is_not_used_with_per_user_credentials(self) -> None:
        entry = {"command": "serve", "env": {"TOKEN": "${TOKEN}"}}
        shared = compute_listing_key("notes", parse_server_settings(entry))
        assert shared != compute_listing_key(
            "notes", parse_server_settings({**entry, "credentials": "per-user"})
        )

    @pytest.mark.parametrize(
        "damage",
        [
            "{",
            "[]",
            '{"format": 1}',
            serialize_listing(make_listing("read")).replace("read", "wipe"),
            '{"format": 3, "tools": 5}',
            "[" * 100_000,
        ],
    )
    def test_damaged_tool_listing_row_is_skipped_with_one_warning_and_replaced_by_the_next_listing(
        self, database: Database, damage: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = SharedListings(database)
        store.write("notes", SETTINGS, make_listing("read"))
        database.execute("UPDATE tool_listings SET content = %s", (damage,))
        with caplog.at_level(logging.WARNING):
            assert read_listing(store) is None
            assert read_listing(store) is None
        assert [each.getMessage()[:53] for each in caplog.records] == [
            "the shared tool list of MCP server 'notes' is not use"
        ]
        store.write("notes", SETTINGS, make_listing("read"))
        assert read_listing(store) == make_listing("read")

    def test_invalid_tool_listing_row_with_a_matching_checksum_is_skipped(self, database: Database) -> None:
        store = SharedListings(database)
        store.write("notes", SETTINGS, make_listing("read"))
        for content in ('{"format": 3}', "[" * 100_000, "null"):
            checksum = hashlib.sha256(content.encode()).hexdigest()
            database.execute("UPDATE tool_listings SET content = %s, checksum = %s", (content, checksum))
            assert read_listing(store) is None

    def test_oversized_tool_listing_is_not_stored_and_logs_a_warning(
        self, database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(shared_listings, "MAX_LISTING_BYTES", 1_000)
        SharedListings(database).write("notes", SETTINGS, make_listing("read", description="x" * 2_000))
        assert database.query("SELECT * FROM tool_listings") == []
        assert "more than 1,000 bytes" in caplog.text

    def test_unused_tool_listings_and_the_oldest_listings_above_the_limits_are_deleted(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shared_listings, "MAX_LISTINGS_PER_SERVER", 2)
        monkeypatch.setattr(shared_listings, "MAX_LISTINGS", 3)
        store = SharedListings(database)
        configurations = [parse_server_settings({"command": "serve", "args": [str(n)]}) for n in range(4)]
        for age, each in zip((40.0, 30.0, 20.0, 10.0), configurations, strict=True):
            store.write("notes", each, make_listing("read"), age_s=age)
        assert [read_listing(store, each) is not None for each in configurations] == [
            False,
            False,
            True,
            True,
        ]
        store.write("mail", SETTINGS, make_listing("send"))
        store.write("git", SETTINGS, make_listing("log"))
        assert len(database.query("SELECT * FROM tool_listings")) == 3
        database.execute("UPDATE tool_listings SET used = CURRENT_DATE - 31 WHERE server = 'mail'")
        store.write("wiki", SETTINGS, make_listing("page"))
        assert store.read("mail", SETTINGS) is None

    def test_reading_a_tool_listing_updates_its_last_used_date(self, database: Database) -> None:
        store = SharedListings(database)
        store.write("notes", SETTINGS, make_listing("read"))
        database.execute("UPDATE tool_listings SET used = CURRENT_DATE - 29")
        assert read_listing(store) is not None
        assert database.query("SELECT used = CURRENT_DATE AS today FROM tool_listings") == [{"today": True}]
