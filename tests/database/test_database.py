"""Connections to the shared PostgreSQL database, its migrations, and notices of changes."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.postgres import PostgresServer, run_postgres
from toolfold.core.errors import ConfigError
from toolfold.state.database import Database, DatabaseError, DatabaseUnavailable, RowCursor, open_database
from toolfold.state.database.connections import describe_address
from toolfold.state.database.migrations import LATEST, MIGRATIONS, Migration, find_version, migrate, upgrade

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.02)


def list_tables(database: Database) -> set[str]:
    rows = database.query("SELECT tablename FROM pg_tables WHERE schemaname = 'toolfold'")
    return {row["tablename"] for row in rows}


def test_no_database_is_opened_if_the_store_setting_is_local_files() -> None:
    assert open_database("sqlite") is None


def test_database_driver_is_imported_only_if_a_database_is_configured() -> None:
    script = (
        "import sys, toolfold.runtime.runtime; from toolfold.state.database import open_database\n"
        "open_database('sqlite'); assert 'psycopg' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=WAIT_S, cwd=ROOT)


class TestMigrations:
    def test_every_migration_can_be_undone_and_applied_again(self, database: Database) -> None:
        tables = list_tables(database)
        for target in range(LATEST - 1, -1, -1):
            assert migrate(database, target) == (target + 1,)
        assert list_tables(database) == {"migrations"}
        assert migrate(database, LATEST) == tuple(range(1, LATEST + 1))
        assert list_tables(database) == tables

    def test_migrating_an_up_to_date_database_applies_no_migration(self, database: Database) -> None:
        assert upgrade(database) == ()
        assert migrate(database, LATEST) == ()

    def test_concurrent_migrations_by_several_processes_apply_each_migration_once(
        self, database_url: str
    ) -> None:
        script = (
            "import sys; from toolfold.state.database import Database\n"
            "from toolfold.state.database.migrations import *\n"
            "print('ready', flush=True); sys.stdin.readline()\n"
            "print(len(upgrade(Database(sys.argv[1]))))\n"
        )
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", script, database_url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for _ in range(4)
        ]
        for each in processes:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        applied = []
        for each in processes:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        for each in processes:
            output, _ = each.communicate(timeout=WAIT_S)
            assert each.returncode == 0
            applied.append(int(output))
        assert sorted(applied) == [0, 0, 0, LATEST]

    def test_failed_database_migration_creates_no_tables_and_keeps_the_schema_version(
        self, database: Database
    ) -> None:
        broken = Migration(LATEST + 1, "broken", "CREATE TABLE half (a INTEGER); SELECT missing;", "")
        with pytest.raises(DatabaseError, match="missing"):
            migrate(database, LATEST + 1, (*MIGRATIONS, broken))
        assert find_version(database) == LATEST
        assert "half" not in list_tables(database)

    def test_database_with_tables_of_a_newer_version_is_refused(
        self, database: Database, database_url: str
    ) -> None:
        database.execute(
            "INSERT INTO migrations (number, name) VALUES (%s, 'from the future')", (LATEST + 1,)
        )
        with pytest.raises(ConfigError, match="supports versions up to"):
            open_database(database_url)


class TestConnections:
    def test_transaction_that_raises_is_rolled_back(self, database: Database) -> None:
        def add_and_fail(cursor: object) -> None:
            cursor.execute("INSERT INTO migrations (number, name) VALUES (99, 'x')")  # type: ignore[attr-defined]
            raise ValueError("stop")

        with pytest.raises(ValueError, match="stop"):
            database.run(add_and_fail)
        assert database.query("SELECT 1 AS one FROM migrations WHERE number = 99") == []

    def test_sql_statement_is_cancelled_at_its_time_limit(self, database_url: str) -> None:
        database = Database(database_url, statement_timeout_s=0.2)
        with pytest.raises(DatabaseError, match="time limit"):
            database.query("SELECT pg_sleep(60)")
        database.close()
        unlimited = Database(database_url)  # the limit above includes the time to set up a connection
        running = "SELECT 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'"
        assert unlimited.query(running) == []
        unlimited.close()

    def test_number_of_database_connections_used_by_many_threads_never_exceeds_the_limit(
        self, database_url: str
    ) -> None:
        database = Database(database_url, max_connections=2)
        name = f"toolfold test {secrets.token_hex(8)}"
        statement = (
            "SELECT count(*) AS n FROM pg_stat_activity"
            " WHERE application_name = %s AND backend_type = 'client backend'"
        )

        def count_connections(cursor: RowCursor) -> int:
            cursor.execute("SELECT set_config('application_name', %s, false)", (name,))
            (row,) = cursor.execute(statement, (name,)).fetchall()
            return int(row["n"])

        with ThreadPoolExecutor(8) as pool:
            counts = list(pool.map(lambda _: database.run(count_connections), range(24)))
        database.close()
        assert 1 <= max(counts) <= 2

    def test_connection_error_names_the_database_but_not_the_password(self) -> None:
        database = Database("postgresql://me:hunter2hunter2@127.0.0.1:1/nothing")
        with pytest.raises(DatabaseUnavailable, match=r"nothing \(127\.0\.0\.1:1\) cannot be used") as caught:
            database.check()
        assert "hunter2" not in str(caught.value)
        assert describe_address("postgresql://me:x@db.example.com/tools") == "tools (db.example.com)"

    def test_query_after_closing_the_database_raises_database_unavailable(self, database_url: str) -> None:
        database = Database(database_url)
        database.check()
        database.close()
        with pytest.raises(DatabaseUnavailable, match="closed"):
            database.check()


class TestChanges:
    def test_subscriber_is_notified_of_a_database_change_made_through_another_connection(
        self, database: Database, database_url: str
    ) -> None:
        called = threading.Semaphore(0)
        database.on_change("things", called.release)
        assert called.acquire(timeout=WAIT_S)  # after the listener has connected
        other = Database(database_url)
        other.execute("SELECT pg_notify('toolfold_changes', 'others')")
        other.execute("SELECT pg_notify('toolfold_changes', 'things')")
        assert called.acquire(timeout=WAIT_S)
        other.close()

    def test_subscriber_to_database_changes_is_notified_even_if_another_subscriber_raises(
        self, database: Database
    ) -> None:
        called = threading.Semaphore(0)

        def fail() -> None:
            raise ValueError("cannot read")

        database.on_change("things", fail)
        database.on_change("things", called.release)
        database.execute("SELECT pg_notify('toolfold_changes', 'things')")
        assert called.acquire(timeout=WAIT_S)

    def test_subscriber_to_database_changes_that_raises_is_retried_until_it_succeeds(
        self, database: Database
    ) -> None:
        connected, attempts, may_succeed = threading.Event(), threading.Semaphore(0), threading.Event()

        def read() -> None:
            if connected.is_set():
                attempts.release()
                if not may_succeed.is_set():
                    raise ValueError("cannot read")
            connected.set()

        database.on_change("things", read)
        assert connected.wait(WAIT_S)
        database.execute("SELECT pg_notify('toolfold_changes', 'things')")
        for _ in range(2):  # the second time without another notice
            assert attempts.acquire(timeout=WAIT_S)
        database.execute("SELECT pg_notify('toolfold_changes', 'others')")
        wait_until(lambda: database.seconds_since_contact("things") > database.seconds_since_contact())
        may_succeed.set()
        wait_until(lambda: database.seconds_since_contact("things") <= database.seconds_since_contact())

    def test_queries_and_change_notifications_resume_after_the_server_closed_all_connections(
        self, database: Database, postgres: PostgresServer
    ) -> None:
        called = threading.Semaphore(0)
        database.on_change("things", called.release)
        assert called.acquire(timeout=WAIT_S)
        terminator = Database(postgres.url("postgres"))
        terminator.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'toolfold' AND pid != pg_backend_pid()"
        )
        terminator.close()
        assert find_version(database) == LATEST  # on a new connection, without an error
        assert called.acquire(timeout=WAIT_S)  # notices may have been lost, so everything is read again
        database.execute("SELECT pg_notify('toolfold_changes', 'things')")
        assert called.acquire(timeout=WAIT_S)


def test_transaction_aborted_by_a_deadlock_is_retried(database: Database) -> None:
    database.execute("CREATE TABLE counters (name text PRIMARY KEY, value int)")
    database.execute("INSERT INTO counters VALUES ('a', 0), ('b', 0)")
    both_locked = threading.Barrier(2)

    def count_up(first: str, second: str) -> None:
        attempts = 0

        def run(cursor: RowCursor) -> None:
            nonlocal attempts
            attempts += 1
            cursor.execute("UPDATE counters SET value = value + 1 WHERE name = %s", (first,))
            if attempts == 1:
                both_locked.wait(60)
            cursor.execute("UPDATE counters SET value = value + 1 WHERE name = %s", (second,))

        database.run(run)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(count_up, "a", "b"), pool.submit(count_up, "b", "a")]:
            done.result(60)
    rows = database.query("SELECT value FROM counters")
    assert [row["value"] for row in rows] == [2, 2]


def test_error_of_a_transaction_that_deadlocks_twice_mentions_the_deadlock_not_the_settings(
    database: Database,
) -> None:
    database.execute("CREATE TABLE counters (name text PRIMARY KEY, value int)")
    database.execute("INSERT INTO counters VALUES ('a', 0), ('b', 0)")
    errors: list[DatabaseError] = []
    has_locked, can_continue = threading.Semaphore(0), threading.Semaphore(0)

    def update(cursor: RowCursor, name: str) -> None:
        cursor.execute("UPDATE counters SET value = value + 1 WHERE name = %s", (name,))

    def end_as_victim(cursor: RowCursor) -> None:
        cursor.execute("SET LOCAL deadlock_timeout = '10ms'")  # checks first, and is ended
        update(cursor, "a")
        has_locked.release()
        assert can_continue.acquire(timeout=WAIT_S)
        time.sleep(0.5)  # the other transaction waits for the first row by now
        update(cursor, "b")

    def run_victim() -> None:
        try:
            database.run(end_as_victim)
        except DatabaseError as error:
            errors.append(error)

    def run_other(cursor: RowCursor) -> None:
        cursor.execute("SET LOCAL deadlock_timeout = '60s'")
        assert has_locked.acquire(timeout=WAIT_S)
        update(cursor, "b")
        can_continue.release()
        update(cursor, "a")

    victim = threading.Thread(target=run_victim)
    victim.start()
    for _ in range(2):
        database.run(run_other)
    victim.join(WAIT_S)
    assert "(deadlock)" in str(errors[0])
    assert "`store`" not in str(errors[0])


@pytest.mark.thorough
def test_queries_succeed_again_after_a_restart_of_the_database_server() -> None:
    with run_postgres() as server:
        database = open_database(server.create_database())
        assert database is not None
        called = threading.Semaphore(0)
        database.on_change("things", called.release)
        assert called.acquire(timeout=WAIT_S)
        server.stop()
        with pytest.raises(DatabaseUnavailable, match="cannot be used now"):
            database.check()
        wait_until(lambda: database.seconds_since_contact() > 0.5)
        server.start()
        database.check()
        assert called.acquire(timeout=WAIT_S)
        wait_until(lambda: database.seconds_since_contact() < 5)
        database.close()
