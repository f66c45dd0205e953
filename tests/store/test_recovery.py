"""A full disk or a damaged file of the store gives a clear error, and the file can be recovered."""

from __future__ import annotations

import contextlib
import io
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from toolfold.cli.app import run
from toolfold.core.errors import ToolfoldError
from toolfold.state.credentials.credential_store import SqliteCredentialStore
from toolfold.state.store.jobs import SqliteJobStore
from toolfold.state.store.records import MessageRecord, SessionRecord
from toolfold.state.store.recovery import find_damage, recover_file
from toolfold.state.store.sqlite import SqliteSessionStore
from toolfold.state.store.sqlite_file import StoreFileError, connect
from toolfold.state.store.usage import SqliteUsageStore
from toolfold.state.users.quotas import SqliteQuotaStore, Window

SESSIONS = 40
PAGE_BYTES = 4096
STORES: dict[str, Callable[[Path], object]] = {
    "sessions": SqliteSessionStore,
    "usage": SqliteUsageStore,
    "jobs": lambda file: SqliteJobStore(file).list_jobs(),
    "quotas": lambda file: SqliteQuotaStore(file).lease(Window("ann", "calls_per_minute", 0), 1, 1),
    "credentials": lambda file: SqliteCredentialStore(file, lambda: pytest.fail("no key is needed")),
}


def fill(file: Path) -> None:
    store = SqliteSessionStore(file)
    for number in range(SESSIONS):
        session = f"session-{number:03}"
        store.create_session(SessionRecord(id=session, model="m", dialect="d", system="s" * 2000))
        store.append_messages(session, [MessageRecord(role="user", body={}, text=f"boat {number}")])
    store.close()


def damage_page(file: Path, number: int) -> None:
    with file.open("r+b") as stream:
        stream.seek(number * PAGE_BYTES)
        stream.write(b"\xff" * PAGE_BYTES)


def find_session_pages(file: Path) -> list[int]:
    """Return the pages of the table of sessions, without the first one, which points to the others."""
    content = file.read_bytes()
    pages = (content[start : start + PAGE_BYTES] for start in range(0, len(content), PAGE_BYTES))
    return [number for number, page in enumerate(pages) if b"ssss" in page]


@pytest.mark.parametrize("content", [b"this is no database" * 400, b"SQLite format 3\0" + b"\xff" * 9000])
@pytest.mark.parametrize("kind", STORES)
def test_opening_a_damaged_file_names_the_file_and_the_command_that_recovers_it(
    tmp_path: Path, kind: str, content: bytes
) -> None:
    file = tmp_path / f"{kind}.db"
    file.write_bytes(content)
    with pytest.raises((ToolfoldError, OSError)) as raised:
        STORES[kind](file)
    assert str(file) in str(raised.value)
    assert "toolfold store recover" in str(raised.value)


def test_damage_found_while_rows_are_read_names_the_command_that_recovers_the_file(tmp_path: Path) -> None:
    file = tmp_path / "sessions.db"
    fill(file)
    damage_page(file, find_session_pages(file)[1])
    store = SqliteSessionStore(file)
    with pytest.raises(StoreFileError, match="toolfold store recover"):
        store.list_sessions(limit=SESSIONS)
    store.close()


def test_full_disk_is_reported_as_such_and_nothing_of_the_transaction_is_kept(tmp_path: Path) -> None:
    store = SqliteSessionStore(tmp_path / "sessions.db")
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreFileError, match=r"the disk is full\. Free some space"):
        store.create_session(SessionRecord(id="some", model="m", dialect="d", system="s" * 200_000))
    assert store.list_sessions() == []
    store.close()


def test_any_fault_of_a_full_disk_is_reported_as_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    assert "the disk is full" not in str(StoreFileError(str(tmp_path / "some.db"), error))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    assert "the disk is full" in str(StoreFileError(str(tmp_path / "some.db"), error))


def test_recovery_keeps_readable_rows_and_sets_the_damaged_file_aside(tmp_path: Path) -> None:
    file = tmp_path / "sessions.db"
    fill(file)
    pages = find_session_pages(file)
    damage_page(file, pages[len(pages) // 2])
    assert find_damage(file)
    found = recover_file(file)
    assert found.damaged.exists()
    assert find_damage(file) == ""
    assert file.stat().st_mode & 0o777 == 0o600
    store = SqliteSessionStore(file)
    kept = store.list_sessions(limit=SESSIONS)
    assert SESSIONS - 4 <= len(kept) < SESSIONS
    assert store.load_messages(kept[0].id)[0].text.startswith("boat")
    assert store.search_messages("boat", limit=SESSIONS)
    store.create_session(SessionRecord(id="new", model="m", dialect="d", system=""))
    store.close()


def test_rows_between_damaged_places_are_recovered_with_their_ids(tmp_path: Path) -> None:
    file = tmp_path / "some.db"
    with contextlib.closing(connect(file)) as db:
        db.execute("CREATE TABLE some (text TEXT)")
        db.executemany("INSERT INTO some VALUES (?)", [(f"{n:04}" + "s" * 1500,) for n in range(1, 121)])
        db.execute("DELETE FROM some WHERE rowid % 7 = 0")
    pages = find_session_pages(file)
    damaged = [pages[0], pages[9], pages[12], pages[-1]]
    content = file.read_bytes()
    lost = {
        int(each)
        for number in damaged
        for each in re.findall(rb"(\d{4})ssss", content[number * PAGE_BYTES : (number + 1) * PAGE_BYTES])
    }
    for number in damaged:
        damage_page(file, number)
    recover_file(file)
    with contextlib.closing(connect(file)) as db:
        kept = {(row[0], int(row[1][:4])) for row in db.execute("SELECT rowid, text FROM some")}
    assert kept == {(n, n) for n in range(1, 121) if n % 7 and n not in lost}


def test_table_with_a_damaged_definition_does_not_prevent_recovery_of_the_others(tmp_path: Path) -> None:
    file = tmp_path / "some.db"
    with contextlib.closing(connect(file)) as db:
        db.execute("CREATE TABLE bad (text TEXT)")
        db.execute("CREATE TABLE good (text TEXT)")
        db.execute("INSERT INTO good VALUES ('kept')")
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_master SET sql = 'CREATE TABLE bad (' WHERE name = 'bad'")
    assert find_damage(file)
    recover_file(file)
    with contextlib.closing(connect(file)) as db:
        assert db.execute("SELECT text FROM good").fetchone()[0] == "kept"


def test_recovery_of_an_undamaged_file_loses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "sessions.db"
    fill(file)
    recover_file(file)
    store = SqliteSessionStore(file)
    assert len(store.list_sessions(limit=100)) == SESSIONS
    store.close()


@pytest.mark.parametrize(
    "command",
    [
        ("sessions", "list"),
        ("run", "hello", "--model", "scripted:none.json"),
        ("chat", "--model", "scripted:none.json"),
        ("doctor",),
    ],
)
def test_commands_report_a_damaged_file_without_a_traceback_and_work_after_its_recovery(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    command: tuple[str, ...],
) -> None:
    monkeypatch.setenv("TOOLFOLD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    (tmp_path / "none.json").write_text('{"steps": ["Done."]}')
    file = tmp_path / "home" / "state" / "sessions.db"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"this is no database" * 400)
    assert run(command) == 1
    shown = "".join(capfd.readouterr())
    assert "Traceback" not in shown
    assert "toolfold store recover" in shown
    assert run(("store", "recover")) == 0
    assert "was damaged" in capfd.readouterr().out
    assert run(command) == 0
    (aside,) = file.parent.glob("sessions.db.damaged-*")
    assert aside.read_bytes().startswith(b"this is no database")


def test_file_that_cannot_be_read_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOOLFOLD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("toolfold.state.store.sqlite_file.BUSY_TIMEOUT_S", 0)
    file = tmp_path / "home" / "state" / "jobs.db"
    file.parent.mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("CREATE TABLE some (name)")
        other.execute("BEGIN EXCLUSIVE")
        assert run(("store", "recover")) == 1
    assert "locked" in capfd.readouterr().err
    assert [each.name for each in file.parent.glob("jobs*")] == ["jobs.db"]


def test_nothing_is_changed_if_the_disk_is_full_during_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sessions.db"
    fill(file)
    damage_page(file, find_session_pages(file)[1])

    def connect_with_limit(opened: Path) -> sqlite3.Connection:
        db = connect(opened)
        if opened != file:
            db.execute("PRAGMA max_page_count = 4")
        return db

    monkeypatch.setattr("toolfold.state.store.recovery.connect", connect_with_limit)
    before = file.read_bytes()
    with pytest.raises(StoreFileError, match="the disk is full"):
        recover_file(file)
    assert file.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir() if not each.name.endswith(("-wal", "-shm"))] == [
        file.name
    ]


def test_recovery_reports_undamaged_files_and_leaves_them_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOOLFOLD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "300")
    file = tmp_path / "home" / "state" / "sessions.db"
    fill(file)
    assert run(("store", "recover")) == 0
    assert "is not damaged" in capfd.readouterr().out
    assert not list(file.parent.glob("*.damaged-*"))
    with sqlite3.connect(file) as db:
        assert db.execute("SELECT count(*) FROM sessions").fetchone()[0] == SESSIONS
