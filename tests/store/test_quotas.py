"""Limits on what users and teams use: one contract, with a file and with a PostgreSQL database."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from toolfold.state.database import open_database
from toolfold.state.users import FileUserStore
from toolfold.state.users.directory import Meter
from toolfold.state.users.quotas import (
    CALL_METERS,
    MAX_LEASE,
    MODEL_METERS,
    SEARCH_METERS,
    SYNC_INTERVAL_S,
    QuotaExceeded,
    Quotas,
    QuotaStore,
    SharedQuotaStore,
    SqliteQuotaStore,
    Window,
    team_account,
    user_account,
)


class Clock:
    """Clock that is set by the test."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class CountingStore(QuotaStore):
    """A store that counts how often it is asked for a lease."""

    def __init__(self, store: QuotaStore) -> None:
        self._store, self.leases = store, 0

    def lease(self, window: Window, wanted: float, limit: float) -> float:
        self.leases += 1
        return self._store.lease(window, wanted, limit)

    def add(self, window: Window, amount: float) -> float:
        return self._store.add(window, amount)

    def list_used(self, windows: Iterable[Window]) -> dict[Window, float]:
        return self._store.list_used(windows)

    def remove(self, account: str) -> None:
        self._store.remove(account)

    def close(self) -> None:
        self._store.close()


class Replicas:
    """Two replicas that share users and what they have used."""

    def __init__(self, users: FileUserStore, stores: list[QuotaStore]) -> None:
        self.users, self.clock = users, Clock()
        self.stores = [CountingStore(each) for each in stores]
        self.one, self.other = (Quotas(each, users.directory, self.clock) for each in self.stores)

    def add_user(self, name: str, **limits: float) -> str:
        user = self.users.add_user(name)
        self.users.change_user(name, lambda each: replace(each, limits=limits))  # type: ignore[arg-type]
        return user.id

    def add_team(self, name: str, *members: str, **limits: float) -> None:
        self.users.add_team(name)
        self.users.change_team(name, lambda each: replace(each, limits=limits))  # type: ignore[arg-type]
        for each in members:
            self.users.join_team(name, each)


@pytest.fixture(params=["file", "postgres"])
def replicas(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Replicas]:
    users = FileUserStore(tmp_path / "users.json")
    with ExitStack() as stack:
        stores: list[QuotaStore] = []
        for _ in range(2):
            if request.param == "file":
                stores.append(SqliteQuotaStore(tmp_path / "quotas.db"))
            else:
                database = open_database(request.getfixturevalue("database_url"))
                assert database is not None
                stack.callback(database.close)
                stores.append(SharedQuotaStore(database))
            stack.callback(stores[-1].close)
        found = Replicas(users, stores)
        stack.callback(found.one.close)
        stack.callback(found.other.close)
        yield found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def count_accepted(
    quotas: Quotas, user: str, meters: tuple[Meter, ...] = CALL_METERS, tries: int = 200
) -> int:
    accepted = 0
    for _ in range(tries):
        try:
            quotas.require(user, meters)
            accepted += 1
        except QuotaExceeded:
            break
    return accepted


def test_calls_of_a_user_without_limits_are_accepted_and_not_counted(replicas: Replicas) -> None:
    user = replicas.add_user("ann")
    assert count_accepted(replicas.one, user) == 200
    assert replicas.one.try_require(user, CALL_METERS)
    assert replicas.one.try_require("unknown", CALL_METERS)
    assert replicas.stores[0].leases == 0


@pytest.mark.parametrize("limit", [0, 1, 7, 60])
def test_calls_accepted_by_two_replicas_together_do_not_exceed_the_limit_of_a_user(
    replicas: Replicas, limit: int
) -> None:
    user = replicas.add_user("ann", calls_per_minute=limit)
    accepted = 0
    for number in range(200):
        quotas = replicas.one if number % 2 else replicas.other
        try:
            quotas.require(user, CALL_METERS)
            accepted += 1
        except QuotaExceeded as error:
            assert error.retry_after_s in range(1, 61)  # noqa: PT017
    assert accepted == limit


def test_replica_reserves_3_of_60_allowed_calls_and_leaves_57_for_other_replicas(replicas: Replicas) -> None:
    user = replicas.add_user("ann", calls_per_minute=60)
    replicas.other.require(user, CALL_METERS)  # leases 3, uses 1
    assert count_accepted(replicas.one, user) == 57
    assert count_accepted(replicas.other, user) == 2


def test_replica_queries_the_database_only_once_per_reserved_batch_of_calls(
    replicas: Replicas,
) -> None:
    user = replicas.add_user("ann", calls_per_day=10_000)
    assert count_accepted(replicas.one, user, tries=500) == 500
    assert replicas.stores[0].leases == 500 / MAX_LEASE
    assert not replicas.one.try_require(user, CALL_METERS)  # the lease is used up
    replicas.one.require(user, CALL_METERS)
    assert replicas.one.try_require(user, CALL_METERS)


def test_user_can_make_calls_again_in_the_minute_or_day_after_reaching_a_limit(
    replicas: Replicas,
) -> None:
    user = replicas.add_user("ann", calls_per_minute=2, calls_per_day=5)
    assert count_accepted(replicas.one, user) == 2
    replicas.clock.now += 60
    assert count_accepted(replicas.one, user) == 2
    replicas.clock.now += 60
    replicas.one.require(user, CALL_METERS)
    with pytest.raises(QuotaExceeded, match="5 calls per day for you is reached") as caught:
        replicas.one.require(user, CALL_METERS)
    assert caught.value.retry_after_s > 3_600
    replicas.clock.now += 86_400
    assert count_accepted(replicas.one, user) == 2


def test_call_refused_by_the_limit_per_minute_does_not_count_towards_the_limit_per_day(
    replicas: Replicas,
) -> None:
    user = replicas.add_user("ann", calls_per_minute=1, calls_per_day=3)
    for _ in range(3):
        assert count_accepted(replicas.one, user, tries=5) == 1
        replicas.clock.now += 60
    assert count_accepted(replicas.one, user) == 0


def test_members_of_a_team_share_the_usage_limit_of_the_team(replicas: Replicas) -> None:
    ann, bob = replicas.add_user("ann"), replicas.add_user("bob", calls_per_minute=2)
    replicas.add_team("red", "ann", "bob", calls_per_minute=5)
    assert count_accepted(replicas.one, bob) == 2
    assert count_accepted(replicas.other, ann) == 3
    with pytest.raises(QuotaExceeded, match="for the team 'red'"):
        replicas.other.require(ann, CALL_METERS)


def test_searches_and_calls_of_a_user_count_towards_separate_limits(replicas: Replicas) -> None:
    user = replicas.add_user("ann", calls_per_minute=1, searches_per_minute=2)
    assert count_accepted(replicas.one, user, SEARCH_METERS) == 2
    assert count_accepted(replicas.one, user) == 1


def test_user_can_make_more_calls_immediately_after_the_usage_limit_was_raised(replicas: Replicas) -> None:
    user = replicas.add_user("ann", calls_per_minute=2)
    assert count_accepted(replicas.one, user) == 2
    replicas.users.change_user("ann", lambda each: replace(each, limits={"calls_per_minute": 4.0}))
    assert count_accepted(replicas.one, user) == 2
    replicas.users.change_user("ann", lambda each: replace(each, limits={}))
    assert count_accepted(replicas.one, user) == 200


def test_tokens_and_cost_spent_through_all_replicas_count_towards_the_daily_limits_of_a_user(
    replicas: Replicas,
) -> None:
    user = replicas.add_user("ann", tokens_per_day=1_000, cost_per_day=5.0)
    replicas.one.require(user, MODEL_METERS)
    replicas.one.spend(user, {"tokens_per_day": 600.0, "cost_per_day": 0.5})
    replicas.other.require(user, MODEL_METERS)  # the other replica does not know yet
    replicas.other.spend(user, {"tokens_per_day": 500.0, "cost_per_day": 0.5})
    replicas.clock.now += SYNC_INTERVAL_S
    replicas.one.require(user, MODEL_METERS)
    with pytest.raises(QuotaExceeded, match="1,000 tokens per day"):
        replicas.other.require(user, MODEL_METERS)
    assert replicas.other.refusals["tokens_per_day"] == 1
    replicas.clock.now += SYNC_INTERVAL_S
    with pytest.raises(QuotaExceeded):
        replicas.one.require(user, MODEL_METERS)


def test_usage_counted_by_a_stopped_replica_is_reported_by_other_replicas(
    replicas: Replicas,
) -> None:
    user = replicas.add_user("ann", calls_per_day=10, tokens_per_day=1_000)
    for _ in range(3):
        replicas.one.require(user, CALL_METERS)
    replicas.one.spend(user, {"tokens_per_day": 40.0})
    replicas.one.close()
    found = replicas.other.describe(user_account(user), replicas.users.directory().users[user].limits)
    assert found == [("calls_per_day", 3.0, 10.0), ("tokens_per_day", 40.0, 1_000.0)]
    assert replicas.other.describe(team_account("none"), {"calls_per_day": 1.0}) == [
        ("calls_per_day", 0.0, 1.0)
    ]


def test_concurrent_calls_do_not_exceed_a_usage_limit(replicas: Replicas) -> None:
    user = replicas.add_user("ann", calls_per_minute=40)

    def call(number: int) -> bool:
        try:
            (replicas.one if number % 2 else replicas.other).require(user, CALL_METERS)
        except QuotaExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        accepted = sum(pool.map(call, range(120)))
    accepted += count_accepted(replicas.one, user) + count_accepted(replicas.other, user)  # what was leased
    assert accepted == 40


def test_token_usage_of_all_users_is_stored_even_above_the_limit_of_users_held_in_memory(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolfold.state.users.quotas.MAX_TRACKED", 1)
    users = [replicas.add_user(name, tokens_per_day=1_000) for name in ("ann", "bob")]
    for user in users:
        replicas.one.spend(user, {"tokens_per_day": 40.0})
    replicas.one.close()
    for user in users:
        assert replicas.other.describe(user_account(user), {"tokens_per_day": 1.0})[0][1] == 40


def test_call_of_a_limited_user_is_refused_if_usage_counts_cannot_be_stored(tmp_path: Path) -> None:
    users = FileUserStore(tmp_path / "users.json")
    user = users.add_user("ann")
    users.change_user("ann", lambda each: replace(each, limits={"calls_per_day": 5.0}))
    (tmp_path / "quotas.db").write_text("damaged " * 1_000)
    quotas = Quotas(SqliteQuotaStore(tmp_path / "quotas.db"), users.directory)
    with pytest.raises(OSError, match="cannot be stored"):
        quotas.require(user.id, CALL_METERS)


class BrokenStore(SqliteQuotaStore):
    """A store that cannot store the usage of some users."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.broken: set[str] = set()

    def add(self, window: Window, amount: float) -> float:
        if window.account in self.broken:
            raise OSError("no space left on device")
        return super().add(window, amount)


def test_failed_write_of_usage_counts_is_retried_without_another_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("toolfold.state.users.quotas.SYNC_INTERVAL_S", 0.01)
    users, store = FileUserStore(tmp_path / "users.json"), BrokenStore(tmp_path / "quotas.db")
    user = users.add_user("ann")
    users.change_user("ann", lambda each: replace(each, limits={"tokens_per_day": 100.0}))
    store.broken.add(user_account(user.id))
    with closing(Quotas(store, users.directory)) as quotas:
        quotas.spend(user.id, {"tokens_per_day": 7.0})
        wait_until(lambda: "tried again" in caplog.text)
        store.broken.clear()
        wait_until(lambda: quotas.describe(user_account(user.id), {"tokens_per_day": 1.0})[0][1] == 7)
    assert caplog.text.count("tried again") == 1


def test_usage_of_other_users_is_stored_on_close_if_the_usage_of_one_user_cannot_be_stored(
    tmp_path: Path,
) -> None:
    users, store = FileUserStore(tmp_path / "users.json"), BrokenStore(tmp_path / "quotas.db")
    ids = [users.add_user(name).id for name in ("ann", "bob", "eve")]
    quotas = Quotas(store, users.directory)
    for name, user_id in zip(("ann", "bob", "eve"), ids, strict=True):
        users.change_user(name, lambda each: replace(each, limits={"tokens_per_day": 100.0}))
        quotas.spend(user_id, {"tokens_per_day": 7.0})
    store.broken = {user_account(ids[0])}
    with pytest.raises(OSError, match="no space"):
        quotas.close()
    used = [quotas.describe(user_account(each), {"tokens_per_day": 1.0})[0][1] for each in ids]
    store.close()
    assert used == [0, 7, 7]


def test_pending_token_usage_of_a_removed_user_is_not_stored(replicas: Replicas) -> None:
    user, other = (replicas.add_user(name, tokens_per_day=100) for name in ("ann", "bob"))
    for each in (user, other):
        replicas.one.spend(each, {"tokens_per_day": 7.0})
    replicas.users.remove_user("ann")
    replicas.one.write_pending()
    used = [
        replicas.other.describe(user_account(each), {"tokens_per_day": 1.0})[0][1] for each in (user, other)
    ]
    assert used == [0, 7]


def test_usage_of_a_removed_user_or_team_is_deleted(replicas: Replicas) -> None:
    user = replicas.add_user("ann", calls_per_day=5)
    replicas.add_team("red", "ann", calls_per_day=8)
    replicas.one.require(user, CALL_METERS)
    for account in (user_account(user), team_account("red")):
        assert replicas.other.describe(account, {"calls_per_day": 5.0})[0][1] == 1
        replicas.other.forget(account)
        assert replicas.one.describe(account, {"calls_per_day": 5.0})[0][1] == 0


@pytest.mark.parametrize(
    ("meter", "limit", "text"),
    [
        ("calls_per_minute", 1, "The limit of 1 call per minute of ann is reached. Try again in 9 s"),
        ("searches_per_minute", 1, "The limit of 1 tool search per minute of ann is reached."),
        ("calls_per_day", 2, "The limit of 2 calls per day of ann is reached."),
        ("calls_per_day", 0, "The limit of 0 calls per day of ann allows nothing. Ask your administrator"),
    ],
)
def test_quota_error_states_the_unit_and_suggests_no_retry_for_a_limit_of_zero(
    meter: Meter, limit: float, text: str
) -> None:
    assert str(QuotaExceeded(meter, limit, "of ann", 9)).startswith(text)
