"""Limit the usage of users and teams: calls, searches, and tokens and cost of the model proxy.

Use is counted in windows of a minute or a day (UTC), in the store that replicas share. A replica takes a
small share of what is left, a lease, and counts against it in memory, so that most calls need no input or
output. What is leased is counted as used: a limit is never exceeded, and what one replica has leased and not
used is not available to others until the window ends. Tokens and cost are known only afterwards: they are
added up and written every SYNC_INTERVAL_S, so that a limit can be exceeded by what is used in that time.
"""

from __future__ import annotations

import logging
import math
import re
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from toolfold.core.errors import ToolfoldError
from toolfold.state.store.sqlite_file import close_on_error, open_private_file, write_transaction
from toolfold.state.users.directory import METERS, Directory, Meter

if TYPE_CHECKING:
    from toolfold.state.database import Database, RowCursor

log = logging.getLogger(__name__)

MINUTE_S, DAY_S = 60, 86_400
LEASES_PER_LIMIT = 20
"""A lease is at most this fraction of the limit."""
MAX_LEASE = 50
SYNC_INTERVAL_S = 2.0
"""How often the tokens and cost of a replica are written, and those of others are read."""
RETRY_INTERVAL_S = 1.0
"""How long a limit that is reached is taken to be so without asking the store."""
MAX_ATTEMPTS = 100
"""How often a lease is requested for one call, while other threads use up those that were granted."""
MAX_TRACKED = 20_000
"""Most windows that are in the memory of a replica."""
WRITE_TIMEOUT_S = 10.0
"""How long other amounts are still written after one could not be stored."""
KEPT_DAYS: Final = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS quota_use (
    account TEXT NOT NULL, meter TEXT NOT NULL, window_start INTEGER NOT NULL, used REAL NOT NULL,
    PRIMARY KEY (account, meter, window_start)
)
"""
_PLURAL = re.compile(r"((?<=ch)es|s)(?= per )")
_INDEX = "CREATE INDEX IF NOT EXISTS quota_use_by_start ON quota_use (window_start)"


class QuotaExceeded(ToolfoldError):
    """Raised if a limit of a user or team is reached."""

    def __init__(self, meter: Meter, limit: float, of: str, retry_after_s: int) -> None:
        self.meter, self.retry_after_s = meter, retry_after_s
        what = f"The limit of {format_limit(limit, meter)} {of}"
        later = f"is reached. Try again in {retry_after_s} s, or ask" if limit else "allows nothing. Ask"
        super().__init__(f"{what} {later} your administrator for a higher limit.")


@dataclass(frozen=True, slots=True)
class Window:
    """Counting period of a minute or a day for one quantity (calls, cost …) of one user or team."""

    account: str
    meter: Meter
    start: int
    """Start of the period in seconds since 1970."""

    @property
    def end(self) -> int:
        return self.start + find_window_length(self.meter)

    @classmethod
    def at(cls, account: str, meter: Meter, now: float) -> Window:
        """Return the counting period that contains the given time."""
        length = find_window_length(meter)
        return cls(account, meter, int(now // length) * length)


def find_window_length(meter: Meter) -> int:
    """Return the length in seconds of the counting period of a quantity: a minute or a day."""
    return MINUTE_S if meter.endswith("_per_minute") else DAY_S


class QuotaStore(ABC):
    """Interface of a store that counts the usage of users and teams. Thread-safe; methods may block."""

    @abstractmethod
    def lease(self, window: Window, wanted: float, limit: float) -> float:
        """Reserve up to `wanted` units within the limit; return the number of reserved units."""

    @abstractmethod
    def add(self, window: Window, amount: float) -> float:
        """Add an amount to the usage in a period, and return the new total."""

    @abstractmethod
    def list_used(self, windows: Iterable[Window]) -> dict[Window, float]:
        """Return the usage in each of the given periods."""

    @abstractmethod
    def remove(self, account: str) -> None:
        """Delete the usage of a user or team."""

    @abstractmethod
    def close(self) -> None:
        """Close the store's file, if it has one."""


class SqliteQuotaStore(QuotaStore):
    """Usage of the users and teams of one machine, in an SQLite file."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.Lock()
        self._file = file
        self._db: sqlite3.Connection | None = None

    def lease(self, window: Window, wanted: float, limit: float) -> float:
        with self._lock, write_transaction(db := self._open()):
            used = self._read_used(db, window)
            granted = max(0.0, min(wanted, limit - used))
            self._write_used(db, window, used + granted)
        return granted

    def add(self, window: Window, amount: float) -> float:
        with self._lock, write_transaction(db := self._open()):
            used = self._read_used(db, window) + amount
            self._write_used(db, window, used)
        return used

    def list_used(self, windows: Iterable[Window]) -> dict[Window, float]:
        if not self._file.exists():
            return dict.fromkeys(windows, 0.0)
        with self._lock:
            return {each: self._read_used(self._open(), each) for each in windows}

    def remove(self, account: str) -> None:
        if not self._file.exists():
            return
        with self._lock, write_transaction(db := self._open()):
            db.execute("DELETE FROM quota_use WHERE account = ?", (account,))

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            db = open_private_file(self._file)
            with close_on_error(db):
                db.execute(_SCHEMA)
                db.execute(_INDEX)
            self._db = db
        return self._db

    @staticmethod
    def _read_used(db: sqlite3.Connection, window: Window) -> float:
        row = db.execute(
            "SELECT used FROM quota_use WHERE account = ? AND meter = ? AND window_start = ?", _key(window)
        ).fetchone()
        return float(row[0]) if row else 0.0

    @staticmethod
    def _write_used(db: sqlite3.Connection, window: Window, used: float) -> None:
        changed = db.execute(
            "UPDATE quota_use SET used = ? WHERE account = ? AND meter = ? AND window_start = ?",
            (used, *_key(window)),
        ).rowcount
        if not changed:  # the first use of a window: remove windows that ended long ago
            db.execute("INSERT INTO quota_use VALUES (?, ?, ?, ?)", (*_key(window), used))
            db.execute("DELETE FROM quota_use WHERE window_start < ?", (window.start - KEPT_DAYS * DAY_S,))


class SharedQuotaStore(QuotaStore):
    """Usage of the users and teams of all replicas, in their shared database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def lease(self, window: Window, wanted: float, limit: float) -> float:
        def run(cursor: RowCursor) -> float:
            used = _lock_row(cursor, window)
            granted = max(0.0, min(wanted, limit - used))
            if granted:
                _write_row(cursor, window, used + granted)
            return granted

        return self._database.run(run)

    def add(self, window: Window, amount: float) -> float:
        def run(cursor: RowCursor) -> float:
            used = _lock_row(cursor, window) + amount
            _write_row(cursor, window, used)
            return used

        return self._database.run(run)

    def list_used(self, windows: Iterable[Window]) -> dict[Window, float]:
        wanted = list(windows)
        rows = self._database.query(
            "SELECT account, meter, window_start, used FROM quota_use WHERE account = ANY(%s)",
            ([each.account for each in wanted],),
        )
        used = {(row["account"], row["meter"], row["window_start"]): row["used"] for row in rows}
        return {each: float(used.get(_key(each), 0.0)) for each in wanted}

    def remove(self, account: str) -> None:
        self._database.execute("DELETE FROM quota_use WHERE account = %s", (account,))

    def close(self) -> None:
        """Do nothing, because the caller closes the database."""


def _key(window: Window) -> tuple[str, str, int]:
    return window.account, window.meter, window.start


def _lock_row(cursor: RowCursor, window: Window) -> float:
    """Return the usage in a period, and lock its row until the end of the transaction."""
    cursor.execute(
        "INSERT INTO quota_use (account, meter, window_start, used) VALUES (%s, %s, %s, 0)"
        " ON CONFLICT DO NOTHING",
        _key(window),
    )
    if cursor.rowcount:  # the first use of a window: remove windows that ended long ago
        cursor.execute(
            "DELETE FROM quota_use WHERE account = %s AND window_start < %s",
            (window.account, window.start - KEPT_DAYS * DAY_S),
        )
    cursor.execute(
        "SELECT used FROM quota_use WHERE account = %s AND meter = %s AND window_start = %s FOR UPDATE",
        _key(window),
    )
    row = cursor.fetchone()
    return float(row["used"]) if row else 0.0


def _write_row(cursor: RowCursor, window: Window, used: float) -> None:
    cursor.execute(
        "UPDATE quota_use SET used = %s WHERE account = %s AND meter = %s AND window_start = %s",
        (used, *_key(window)),
    )


@dataclass(slots=True)
class _Balance:
    """Usage of a user or team in one counting period, as known to this replica."""

    lease: float = 0.0
    """Number of calls or searches that are reserved and not used yet."""
    pending: float = 0.0
    """Tokens or cost that are not written to the store yet."""
    total: float = 0.0
    """Tokens or cost of all replicas, when they were last written to the store."""
    checked: float = -math.inf
    """When the limit was last found to be reached, or the total was last read."""
    refused_limit: float = -1.0
    """The limit that was reached."""
    refilling: threading.Lock = field(default_factory=threading.Lock)
    """Lock that is held while the store is queried."""


@dataclass(frozen=True, slots=True)
class _Limit:
    """Limit that currently applies to a user, with its period and its owner (the user or a team)."""

    window: Window
    limit: float
    of: str
    """The user or team that has the limit, as text."""


class Quotas:
    """Decides by the limits of users and teams whether a call or search is allowed. Thread-safe."""

    def __init__(
        self,
        store: QuotaStore,
        directory: Callable[[], Directory],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the quotas; `directory` returns the users and teams with their limits."""
        self._store, self._directory, self._clock = store, directory, clock
        self._lock = threading.Lock()
        """Never held while the store is asked."""
        self._balances: dict[Window, _Balance] = {}
        self.refusals: Counter[Meter] = Counter(dict.fromkeys(METERS, 0))
        """How often each kind of limit was reached in this replica."""
        self._writing: threading.Timer | None = None
        """Will write what was spent."""
        self._is_failing = False
        """True if what was spent could not be stored when it was last written."""
        self._is_closed = False

    def try_require(self, user_id: str, meters: Sequence[Meter]) -> bool:
        """Count one call or search if the limits can be checked without the store; otherwise return False.

        Nothing is counted then. Raises QuotaExceeded if a limit is reached.
        """
        limits = self._list_limits(user_id, meters)
        with self._lock:
            balances = [self._find_balance(each.window) for each in limits]
            pairs = list(zip(limits, balances, strict=True))
            for limit, balance in pairs:
                if self._is_known(limit, balance) and not _is_free(limit, balance):
                    self.refusals[limit.window.meter] += 1
                    wait = max(1, math.ceil(limit.window.end - self._clock()))
                    raise QuotaExceeded(limit.window.meter, limit.limit, limit.of, wait)
            if not all(self._is_known(limit, balance) for limit, balance in pairs):
                return False
            for limit, balance in pairs:
                balance.lease -= limit.window.meter not in SPENT_METERS
        return True

    def require(self, user_id: str, meters: Sequence[Meter]) -> None:
        """Count one call or search of a user towards its limits. May block.

        Raises QuotaExceeded if a limit is reached, and OSError if the store cannot be asked.
        """
        for _ in range(MAX_ATTEMPTS):
            if self.try_require(user_id, meters):
                return
            for limit in self._list_limits(user_id, meters):
                if not self._refill(limit):
                    break  # the call is refused: it needs no leases of the other limits
        raise OSError("the limits of a user changed repeatedly while they were checked; try again")

    def spend(self, user_id: str, amounts: Mapping[Meter, float]) -> None:
        """Count tokens or cost used by a user, without blocking."""
        limits = self._list_limits(user_id, tuple(amounts))
        with self._lock:
            for each in limits:
                self._find_balance(each.window).pending += amounts[each.window.meter]
            if limits:  # other replicas must know, even if this one gets no more
                self._schedule_writing()

    def _schedule_writing(self) -> None:
        """Start the timer that writes counted usage, unless it is running. The lock must be held."""
        if self._writing is None and not self._is_closed:
            self._writing = threading.Timer(SYNC_INTERVAL_S, self._write_in_background)
            self._writing.daemon = True
            self._writing.start()

    def write_pending(self) -> None:
        """Write counted tokens and costs to the store; after a failure, still try to write the others.

        Raises OSError if something could not be stored; that is kept in memory.
        """
        self._drop_removed()
        with self._lock:
            balances = [each for each in self._balances.items() if each[1].pending]
        problem, started = None, time.monotonic()
        for window, balance in balances:
            try:
                with balance.refilling, _sqlite_errors():
                    self._sync_total(window, balance)
            except OSError as error:
                problem = problem or error
                if time.monotonic() - started > WRITE_TIMEOUT_S:  # each may wait long for the database
                    break
        if problem is not None:
            raise problem

    def _drop_removed(self) -> None:
        """Drop the amounts of users and teams that were removed by any process."""
        try:
            directory = self._directory()
        except (OSError, ToolfoldError):  # whoever may have been removed is not known now
            return
        with self._lock:
            for window in [each for each in self._balances if not _has_account(directory, each.account)]:
                del self._balances[window]

    def forget(self, account: str) -> None:
        """Delete the usage of a removed user or team. Raises OSError if the store cannot be written."""
        with self._lock:
            self._balances = {
                each: found for each, found in self._balances.items() if each.account != account
            }
        with _sqlite_errors():
            self._store.remove(account)

    def limits_spending(self, user_id: str) -> bool:
        """Return True if tokens or cost are limited for a user or its teams."""
        return bool(user_id and self._list_limits(user_id, tuple(SPENT_METERS)))

    def describe(self, account: str, limits: Mapping[Meter, float]) -> list[tuple[Meter, float, float]]:
        """Return each limit of a user or team, with the usage in the current period."""
        now = self._clock()
        windows = {meter: Window.at(account, meter, now) for meter in limits}
        used = self._store.list_used(windows.values())
        return [(meter, used[window], limits[meter]) for meter, window in windows.items()]

    def close(self) -> None:
        """Write usage that is not stored yet, and close the store."""
        with self._lock:
            self._is_closed = True
            if self._writing is not None:
                self._writing.cancel()
        try:
            self.write_pending()
        finally:
            self._store.close()

    def _write_in_background(self) -> None:
        with self._lock:
            self._writing = None
        try:
            self.write_pending()
        except OSError as error:
            if not self._is_failing:
                log.warning("the usage of users cannot be stored now; storing will be tried again: %s", error)
            self._is_failing = True
            with self._lock:
                self._schedule_writing()
        else:
            if self._is_failing:
                log.info("the usage of users can be stored again")
            self._is_failing = False

    def _list_limits(self, user_id: str, meters: Sequence[Meter]) -> list[_Limit]:
        """Return the limits of a user and its teams for the given quantities, with their current periods."""
        directory, now = self._directory(), self._clock()
        user = directory.users.get(user_id)
        if user is None:
            return []
        owners: list[tuple[str, Mapping[Meter, float], str]] = [
            (user_account(user_id), user.limits, "for you"),
            *(
                (team_account(each.name), each.limits, f"for the team {each.name!r}")
                for each in directory.list_teams(user_id)
            ),
        ]
        return [
            _Limit(Window.at(account, meter, now), limits[meter], of)
            for account, limits, of in owners
            for meter in meters
            if meter in limits
        ]

    def _find_balance(self, window: Window) -> _Balance:
        balance = self._balances.get(window)
        if balance is None:
            if len(self._balances) >= MAX_TRACKED:
                self._remove_ended()
            balance = self._balances[window] = _Balance()
        return balance

    def _remove_ended(self) -> None:
        """Forget ended counting periods; if too many remain, forget all that are completely stored.

        Amounts that are not written to the store yet are never forgotten.
        """
        now = self._clock()
        unwritten = {each: found for each, found in self._balances.items() if _is_unwritten(found)}
        current = {each: found for each, found in self._balances.items() if each.end > now}
        self._balances = current | unwritten
        if len(self._balances) >= MAX_TRACKED:
            self._balances = unwritten

    def _is_known(self, limit: _Limit, balance: _Balance) -> bool:
        """Return True if this replica can tell without querying the store whether a limit is reached."""
        age = self._clock() - balance.checked
        if limit.window.meter in SPENT_METERS:
            return age < SYNC_INTERVAL_S
        return balance.lease >= 1 or (balance.refused_limit == limit.limit and age < RETRY_INTERVAL_S)

    def _refill(self, limit: _Limit) -> bool:
        """Reserve more calls in the store, or read the total usage; return False if the limit is reached."""
        with self._lock:
            balance = self._find_balance(limit.window)
        with balance.refilling, _sqlite_errors():
            if self._is_known(limit, balance):
                return _is_free(limit, balance)
            if limit.window.meter in SPENT_METERS:
                self._sync_total(limit.window, balance)
                return _is_free(limit, balance)
            wanted = max(1, min(MAX_LEASE, int(limit.limit) // LEASES_PER_LIMIT))
            granted = self._store.lease(limit.window, wanted, limit.limit)
            with self._lock:
                balance.lease += granted
                if balance.lease < 1:
                    balance.checked, balance.refused_limit = self._clock(), limit.limit
                return _is_free(limit, balance)

    def _sync_total(self, window: Window, balance: _Balance) -> None:
        """Write the usage of this replica to the store, and read the usage of all replicas."""
        with self._lock:
            pending, balance.pending = balance.pending, 0.0
        try:
            total = self._store.add(window, pending)
        except BaseException:
            with self._lock:
                balance.pending += pending
            raise
        with self._lock:
            balance.total, balance.checked = total, self._clock()


@contextmanager
def _sqlite_errors() -> Iterator[None]:
    """Convert SQLite errors, such as a full disk, to OSError."""
    try:
        yield
    except sqlite3.Error as error:
        raise OSError(f"the usage of users cannot be stored: {error}") from error


def _is_unwritten(balance: _Balance) -> bool:
    """Return True if some usage in a balance is not written to the store yet."""
    return bool(balance.pending) or balance.refilling.locked()


def _is_free(limit: _Limit, balance: _Balance) -> bool:
    if limit.window.meter in SPENT_METERS:
        return balance.total + balance.pending < limit.limit
    return balance.lease >= 1


SPENT_METERS: frozenset[Meter] = frozenset({"tokens_per_day", "cost_per_day"})
"""Meters whose amounts are known only afterwards."""
CALL_METERS: tuple[Meter, ...] = ("calls_per_minute", "calls_per_day")
SEARCH_METERS: tuple[Meter, ...] = ("searches_per_minute",)
MODEL_METERS: tuple[Meter, ...] = (*CALL_METERS, "tokens_per_day", "cost_per_day")


def format_amount(amount: float) -> str:
    """Format a limit or a usage as text, such as `5,000,000` or `0.25`."""
    return f"{amount:,.12g}"


def format_limit(limit: float, meter: Meter) -> str:
    """Format a limit with its unit, such as `1 call per minute`."""
    unit = METERS[meter]
    return f"{format_amount(limit)} {_PLURAL.sub('', unit) if limit == 1 else unit}"


def user_account(user_id: str) -> str:
    """Return the name under which the usage of a user is counted."""
    return f"user:{user_id}"


def team_account(name: str) -> str:
    """Return the name under which the usage of a team is counted."""
    return f"team:{name}"


def _has_account(directory: Directory, account: str) -> bool:
    """Return False if the user or team whose usage is counted was removed."""
    kind, _, name = account.partition(":")
    return name in (directory.users if kind == "user" else directory.teams)


def open_quotas(state_dir: Path, database: Database | None, directory: Callable[[], Directory]) -> Quotas:
    """Create the quotas, with a store in the replicas' shared database or, without a database, in a file."""
    if database is not None:
        return Quotas(SharedQuotaStore(database), directory)
    return Quotas(SqliteQuotaStore(state_dir / "gateway" / "quotas.db"), directory)
