"""Exchange of tool lists between replicas: threads, subscriptions and failures, with a real PostgreSQL."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.mcp.test_pool import TIMEOUT_S, wait_until
from tests.store.test_tool_listings import SETTINGS, make_listing
from toolfold.config.servers_settings import McpServerSettings
from toolfold.mcp.listing_exchange import ListingExchange
from toolfold.mcp.shared_listings import TOPIC, SharedListings
from toolfold.mcp.tool_listing import Listing
from toolfold.state.database import Database, open_database


class Replica:
    """One process's exchange, with the lists that it was given by others."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.adopted: list[Listing] = []
        self.failures = 0
        """How often adopting a list shall still fail."""
        self.exchange = ListingExchange(database, lambda: {"notes": SETTINGS}, self.adopt)

    def adopt(self, _name: str, _settings: McpServerSettings, listing: Listing, _age_s: float) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the list cannot be used now")
        self.adopted.append(listing)


@pytest.fixture
def replica(database_url: str) -> Iterator[Replica]:
    with ExitStack() as stack:
        opened = open_database(database_url)
        assert opened is not None
        stack.callback(opened.close)
        made = Replica(opened)
        stack.callback(made.exchange.close)
        yield made


def test_loading_a_tool_list_shared_by_another_replica_is_retried_until_it_succeeds(
    replica: Replica, database: Database
) -> None:
    SharedListings(database).write("notes", SETTINGS, make_listing("read"))
    replica.failures = 2
    replica.exchange.follow()
    wait_until(lambda: replica.adopted == [make_listing("read")])
    assert replica.failures == 0


def test_tool_list_waiting_to_be_shared_is_stored_in_the_database_on_close(
    replica: Replica, database: Database
) -> None:
    replica.exchange.offer("notes", SETTINGS, make_listing("read"))
    replica.exchange.close()
    found = SharedListings(database).read("notes", SETTINGS)
    assert found is not None
    assert found[0] == make_listing("read")


def test_each_change_of_shared_tool_lists_is_read_once_and_changes_after_close_are_not_read(
    replica: Replica, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[object] = []
    read = SharedListings._read_checksums

    def read_and_count(listings: SharedListings) -> dict[tuple[str, str], str]:
        reads.append(listings)
        return read(listings)

    monkeypatch.setattr(SharedListings, "_read_checksums", read_and_count)
    others, changes = SharedListings(database), threading.Semaphore(0)
    others.write("notes", SETTINGS, make_listing("read"))
    replica.exchange.follow()
    wait_until(lambda: len(replica.adopted) == 1)
    # Called after the subscribers before it, so that its call tells that they are done.
    replica.database.on_change(TOPIC, changes.release)
    time.sleep(1.0)  # all subscribers are called after the connection too
    while changes.acquire(blocking=False):
        pass
    before = len(reads)
    others.write("notes", SETTINGS, make_listing("write"))
    assert changes.acquire(timeout=TIMEOUT_S)
    wait_until(lambda: len(replica.adopted) == 2)
    assert len(reads) - before == 1
    replica.exchange.close()
    others.write("notes", SETTINGS, make_listing("send"))
    assert changes.acquire(timeout=TIMEOUT_S)
    assert len(reads) - before == 1


@pytest.mark.parametrize(("age_of_shared_s", "is_adopted"), [(10.0, True), (1_000.0, False)])
def test_shared_tool_list_replaces_a_cached_list_only_if_the_shared_list_is_newer(
    replica: Replica, database: Database, age_of_shared_s: float, is_adopted: bool
) -> None:
    others = SharedListings(database)
    others.write("notes", SETTINGS, make_listing("read"), age_s=age_of_shared_s)
    replica.exchange.note_cached("notes", SETTINGS, make_listing("write"), 100.0)
    replica.exchange.follow()
    if not is_adopted:
        time.sleep(1.0)
        assert replica.adopted == []
        others.write("notes", SETTINGS, make_listing("send"))
    wait_until(lambda: replica.adopted)
    assert replica.adopted == [make_listing("read" if is_adopted else "send")]
