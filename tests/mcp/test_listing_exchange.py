"""Exchange of tool lists between replicas: threads, subscriptions and failures, with a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.mcp.test_pool import wait_until
from tests.store.test_tool_listings import SETTINGS, make_listing
from toolfold.config.servers import McpServerSettings
from toolfold.database import Database, open_database
from toolfold.sources.mcp.listing_exchange import ListingExchange
from toolfold.sources.mcp.shared_listings import SharedListings, compute_listing_key
from toolfold.sources.mcp.tool_listing import Listing


class Replica:
    """One process's exchange, with the lists that it was given by others."""

    def __init__(self, database: Database) -> None:
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
def database(database_url: str) -> Iterator[Database]:
    opened = open_database(database_url)
    assert opened is not None
    yield opened
    opened.close()


@pytest.fixture
def replica(database_url: str) -> Iterator[Replica]:
    with ExitStack() as stack:
        opened = open_database(database_url)
        assert opened is not None
        stack.callback(opened.close)
        made = Replica(opened)
        stack.callback(made.exchange.close)
        yield made


def test_tool_list_that_could_not_be_adopted_is_adopted_at_the_next_attempt(
    replica: Replica, database: Database
) -> None:
    SharedListings(database).write("notes", SETTINGS, make_listing("read"))
    replica.failures = 2
    replica.exchange.follow()
    wait_until(lambda: replica.adopted == [make_listing("read")])
    assert replica.failures == 0


def test_queued_tool_list_is_stored_when_the_exchange_is_closed(replica: Replica, database: Database) -> None:
    replica.exchange.offer("notes", SETTINGS, make_listing("read"))
    replica.exchange.close()
    found = SharedListings(database).read("notes", SETTINGS)
    assert found is not None
    assert found[0] == make_listing("read")
