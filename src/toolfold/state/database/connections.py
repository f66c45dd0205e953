"""Connections to one PostgreSQL database, with limits on time and number; lost connections are reopened.

All work is done by functions that run in one transaction. If the connection breaks before the commit was
sent, nothing has happened and the function runs once more on a new connection.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from toolfold.core.errors import ConfigError, ToolfoldError, shorten
from toolfold.core.types import make_encodable

if TYPE_CHECKING:
    import psycopg

    from toolfold.state.database.change_notices import ChangeListener

Value = TypeVar("Value")
Row: TypeAlias = dict[str, Any]
RowCursor: TypeAlias = "psycopg.Cursor[Row]"

MAX_CONNECTIONS = 8
"""Most connections of one process at a time, without the one that listens for changes."""
CONNECT_TIMEOUT_S = 5
WAIT_TIMEOUT_S = 10.0
"""How long a thread waits for a connection while all are in use."""
STATEMENT_TIMEOUT_S = 10.0
LOCK_TIMEOUT_S = 5.0
NETWORK_TIMEOUT_S = 10
"""Time without an acknowledgement after which a TCP connection is considered broken."""
SCHEMA = "toolfold"
_MISSING_DRIVER = "the setting `store` names a PostgreSQL database, but its driver is not installed"


class DatabaseError(ToolfoldError, OSError):
    """The shared database refused an SQL statement, or aborted it because of a limit."""


class DatabaseUnavailable(DatabaseError):
    """The shared database cannot be used now; the same operation may succeed later."""


def clean_text(text: str) -> str:
    """Remove NUL characters and lone surrogates, which PostgreSQL refuses, from a text."""
    return make_encodable(text).replace("\0", "\ufffd")


class Database:
    """Connections to one PostgreSQL database. Thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        max_connections: int = MAX_CONNECTIONS,
        statement_timeout_s: float = STATEMENT_TIMEOUT_S,
    ) -> None:
        """Prepare connections to a `postgresql://` URL, which are opened on first use.

        Raises ConfigError if the driver is not installed.
        """
        self._url, self._statement_timeout_s = url, statement_timeout_s
        self._driver = _load_driver()
        self._free = threading.Semaphore(max_connections)
        self._lock = threading.Lock()
        self._idle: list[psycopg.Connection[Row]] = []
        self._is_closed = False
        self._listener: ChangeListener | None = None

    def with_limits(self, *, max_connections: int, statement_timeout_s: float) -> Database:
        """Return separate connections to the same database with different limits; the caller closes them."""
        return Database(self._url, max_connections=max_connections, statement_timeout_s=statement_timeout_s)

    @property
    def address(self) -> str:
        """Return the host, port and name of the database, without user and password."""
        return describe_address(self._url)

    def run(self, work: Callable[[RowCursor], Value]) -> Value:
        """Run a function with a cursor in one transaction, and return its result.

        The function may run twice, and must have no other effects than its statements. Raises
        DatabaseUnavailable if the database cannot be reached, and DatabaseError if it refuses a statement.
        """
        with self._errors(), self._slot():
            with contextlib.suppress(_NotCommitted):
                return self._run_on(self._take_idle() or self.connect(), work)
            # The server was restarted, has closed an idle connection, or has ended a deadlock: once more.
            try:
                return self._run_on(self.connect(), work)
            except _NotCommitted as failed:
                raise failed.error from None

    def query(self, statement: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[Row]:
        """Return the rows selected by one SQL statement."""
        return self.run(lambda cursor: cursor.execute(statement.encode(), values).fetchall())

    def execute(self, statement: str, values: Sequence[object] | Mapping[str, object] = ()) -> int:
        """Run one SQL statement in a transaction; return the number of changed rows."""
        return self.run(lambda cursor: cursor.execute(statement.encode(), values).rowcount)

    def connect(self, *, autocommit: bool = False) -> psycopg.Connection[Row]:
        """Open a new connection with the configured limits. Raises errors of the driver."""
        from psycopg.rows import dict_row

        connection: psycopg.Connection[Row] = self._driver.connect(
            self._url,
            autocommit=True,
            row_factory=dict_row,
            connect_timeout=CONNECT_TIMEOUT_S,
            application_name="toolfold",
            keepalives_idle=NETWORK_TIMEOUT_S,
            tcp_user_timeout=NETWORK_TIMEOUT_S * 1000,
            prepare_threshold=None,  # prepared statements do not work behind every connection pooler
        )
        limits = {
            "statement_timeout": self._statement_timeout_s,
            "lock_timeout": LOCK_TIMEOUT_S,
            "idle_in_transaction_session_timeout": 3 * STATEMENT_TIMEOUT_S,
        }
        settings = {name: f"{int(seconds * 1000)}ms" for name, seconds in limits.items()}
        settings["search_path"] = f"{SCHEMA}, public"
        for name, value in settings.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.autocommit = autocommit
        return connection

    def on_change(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call a function in a separate thread when any process has changed the data called `topic`.

        It is also called after every reconnection, because changes may have been missed, and again after it
        has raised an error. Returns a function that ends the subscription.
        """
        return self._start_listener().subscribe(topic, callback)

    def seconds_since_contact(self, topic: str = "") -> float:
        """Return the seconds since the database last responded on the connection for notifications.

        With a topic: since when its state may be out of date, because a change of it could not be read.
        """
        return self._start_listener().seconds_since_contact(topic)

    def check(self) -> None:
        """Raise DatabaseError if the database does not respond."""
        self.query("SELECT 1 AS one")

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            if self._listener is not None:
                self._listener.end()
            self._is_closed, listener, self._listener = True, self._listener, None
            idle, self._idle = self._idle, []
        if listener is not None:
            listener.close()
        for connection in idle:
            connection.close()

    def _start_listener(self) -> ChangeListener:
        from toolfold.state.database.change_notices import ChangeListener

        with self._lock:
            if self._is_closed:
                raise DatabaseUnavailable("the database was closed")
            if self._listener is None:
                self._listener = ChangeListener(lambda: self.connect(autocommit=True), self.address)
            return self._listener

    def _run_on(self, connection: psycopg.Connection[Row], work: Callable[[RowCursor], Value]) -> Value:
        """Run a function in a transaction. Raises _NotCommitted if it failed but can be repeated."""
        error_class = self._driver.OperationalError
        try:
            with connection.cursor() as cursor:
                result = work(cursor)
        except error_class as error:
            can_repeat = connection.broken or isinstance(error, self._driver.errors.DeadlockDetected)
            self._discard(connection)
            if can_repeat:
                raise _NotCommitted(error) from None
            raise
        except BaseException:
            self._discard(connection)
            raise
        try:
            connection.commit()
        except BaseException:  # whether the database has committed is not known
            self._discard(connection)
            raise
        self._give_back(connection)
        return result

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        if self._is_closed:
            raise DatabaseUnavailable("the database was closed")
        if not self._free.acquire(timeout=WAIT_TIMEOUT_S):
            raise DatabaseUnavailable(
                f"all connections to the database {self.address} were in use for {WAIT_TIMEOUT_S:g} s"
            )
        try:
            yield
        finally:
            self._free.release()

    def _take_idle(self) -> psycopg.Connection[Row] | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _give_back(self, connection: psycopg.Connection[Row]) -> None:
        with self._lock:
            if not self._is_closed and not connection.closed:
                self._idle.append(connection)
                return
        connection.close()

    def _discard(self, connection: psycopg.Connection[Row]) -> None:
        with contextlib.suppress(Exception):
            connection.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert exceptions of the database driver to DatabaseError or DatabaseUnavailable."""
        driver = self._driver
        try:
            yield
        except (driver.errors.QueryCanceled, driver.errors.LockNotAvailable) as error:
            raise DatabaseError(
                f"the database {self.address} stopped a statement at its time limit: {_first_line(error)}"
            ) from None
        except driver.errors.DeadlockDetected:
            raise DatabaseUnavailable(
                f"the database {self.address} stopped a statement twice because it and other processes"
                " waited for each other (deadlock). Try again; if it happens often, report it as an error."
            ) from None
        except (driver.OperationalError, driver.InterfaceError) as error:
            raise DatabaseUnavailable(
                f"the database {self.address} cannot be used now: {_first_line(error)}. {_advise(error)}"
            ) from None
        except (driver.errors.InsufficientPrivilege, driver.errors.ReadOnlySqlTransaction) as error:
            raise DatabaseError(
                f"the database {self.address} refused a statement: {_first_line(error)}. The role in the"
                f" setting `store` must be able to read and change all tables of the schema `{SCHEMA}`."
            ) from None
        except driver.Error as error:
            raise DatabaseError(
                f"the database {self.address} refused a statement: {_first_line(error)}"
            ) from None


class _NotCommitted(Exception):
    """A broken connection or a deadlock ended a transaction before the commit."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def describe_address(url: str) -> str:
    """Return the host, port and database name in a URL, without user and password."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or "on this machine"
        where = f"{host}:{parts.port}" if parts.port else host
    except ValueError:
        return "(invalid URL)"
    return f"{parts.path.strip('/') or 'postgres'} ({where})"


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return shorten(text[0] if text else type(error).__name__, 300).rstrip(".")


def _advise(error: Exception) -> str:
    """Return advice for the user on a failed database connection."""
    # A failed connection has no error code, only the server's text.
    if re.search(r'FATAL: +database ".*" does not exist', str(error)):
        return "Create the database first (createdb), or correct the setting `store`."
    return "Check that it runs and that the setting `store` is right."


def _load_driver() -> Any:
    try:
        import psycopg
    except ImportError:
        raise ConfigError(
            _MISSING_DRIVER,
            key="store",
            hint="install the PostgreSQL driver: pip install 'toolfold[postgres]'",
        ) from None
    return psycopg
