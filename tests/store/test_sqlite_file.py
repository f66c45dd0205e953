"""Opening SQLite files that others change, and files that are damaged."""

from __future__ import annotations

import contextlib
import gc
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from toolfold.agent import agent
from toolfold.agent.agent import open_store
from toolfold.core.errors import ConfigError
from toolfold.runtime.runtime import Runtime
from toolfold.state.credentials.credential_store import SqliteCredentialStore
from toolfold.state.credentials.keys import CredentialKeys
from toolfold.state.store import SessionStore
from toolfold.state.store.jobs import SqliteJobStore
from toolfold.state.store.sqlite import SqliteSessionStore
from toolfold.state.store.sqlite_file import open_private_file
from toolfold.state.store.usage import SqliteUsageStore
from toolfold.state.users.quotas import SqliteQuotaStore, Window


def _load_no_keys() -> CredentialKeys:
    raise AssertionError("no key is needed to open the file")


STORES: dict[str, Callable[[Path], object]] = {
    "sessions": SqliteSessionStore,
    "usage": SqliteUsageStore,
    "credentials": lambda file: SqliteCredentialStore(file, _load_no_keys),
    "jobs": lambda file: SqliteJobStore(file).list_jobs(),
    "quotas": lambda file: SqliteQuotaStore(file).lease(Window("ann", "calls_per_minute", 0), 1, 1),
}


def test_new_file_that_another_process_is_changing_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "new.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr("time.sleep", lambda _: other.in_transaction and other.execute("COMMIT"))
        with closing(open_private_file(file)) as db:
            assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system does not list open files")
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("content", [b"not a database " * 400, None], ids=["damaged", "other schema"])
def test_file_that_a_store_refuses_is_closed(tmp_path: Path, kind: str, content: bytes | None) -> None:
    file = tmp_path / "store.db"
    if content is None:
        with closing(sqlite3.connect(file)) as db:
            db.execute("CREATE TABLE other (field)")
            for name in ("sessions", "usage", "credentials", "jobs", "quota_use"):
                db.execute(f"CREATE INDEX {name} ON other (field)")
    else:
        file.write_bytes(content)
    with pytest.raises((sqlite3.DatabaseError, ConfigError)) as caught:
        STORES[kind](file)
    assert caught.value.__traceback__  # keeps the store, whose connection must be closed nevertheless
    assert not [each for each in _list_open_files() if each.startswith(str(file))]


@pytest.mark.parametrize("model", ["ollama:sample", "no such model"])
def test_session_file_of_an_agent_that_is_not_closed_by_its_user_is_closed(
    runtime: Runtime, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[SessionStore] = []

    def record(*arguments: Any) -> SessionStore:
        opened.append(open_store(*arguments))
        return opened[-1]

    monkeypatch.setattr(agent, "open_store", record)
    with contextlib.suppress(ConfigError):
        agent.Agent(model, runtime=runtime)
    gc.collect()
    (store,) = opened
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        store.list_sessions()


def _list_open_files() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except FileNotFoundError:  # the one that lists the directory
            continue
    return found
