"""The usage history: what is recorded from events, its limits, and that content is stored only on request."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import wait_until
from toolfold.core.events import (
    EventBus,
    ModelReplied,
    ToolFinished,
    ToolsSearched,
    ToolsSelected,
    ToolStarted,
    Usage,
)
from toolfold.serving.dashboard.recorder import UsageRecorder
from toolfold.state.database import open_database
from toolfold.state.store.usage import PostgresUsageStore, SqliteUsageStore, UsageEntry, UsageStore
from toolfold.state.store.usage_journal import UsageJournal


@pytest.fixture(params=["sqlite", "postgres"])
def open_history(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., UsageStore]]:
    """Opens the history in a file or in a database; both must behave the same."""
    with ExitStack() as stack:

        def open_here(**limits: int) -> UsageStore:
            if request.param == "sqlite":
                store: UsageStore = SqliteUsageStore(tmp_path / "usage.db", **limits)
            else:
                database = open_database(request.getfixturevalue("database_url"))
                assert database is not None
                stack.callback(database.close)
                store = PostgresUsageStore(database, **limits)
            stack.callback(store.close)
            return store

        yield open_here


@pytest.fixture
def store(open_history: Callable[..., UsageStore]) -> UsageStore:
    return open_history()


def finish_call(tool: str, *, ok: bool = True, refused: bool = False) -> ToolFinished:
    return ToolFinished(
        session_id="s",
        call_id="1",
        tool=tool,
        ok=ok,
        refused=refused,
        duration_s=0.02,
        result="private result",
    )


def read_totals(store: UsageStore) -> dict[str, float]:
    return store.summarize(time.time() - 60, time.time() + 60)


def test_usage_history_counts_tool_calls_and_tool_searches_and_saved_tokens(store: UsageStore) -> None:
    bus = EventBus()
    recorder = UsageRecorder(bus, store)
    bus.publish(ToolsSearched(session_id="s", call_id="a", queries=("parcel",), found=("track", "list")))
    bus.publish(ToolsSearched(session_id="s", call_id="b", queries=("nothing",), found=()))
    bus.publish(finish_call("track"))
    bus.publish(finish_call("other", ok=False))
    bus.publish(finish_call("wipe", ok=False, refused=True))
    bus.publish(ToolsSelected(session_id="s", turn=1, shown=("track",), tokens=100, tokens_saved=5_000))
    usage = Usage(input_tokens=1_000, output_tokens=50)
    bus.publish(ModelReplied(session_id="s", turn=1, model="gpt-4.1", usage=usage, cost=0.01))
    recorder.close()
    totals = read_totals(store)
    assert (totals["calls"], totals["errors"], totals["refused"]) == (3, 1, 1)
    assert (totals["searches"], totals["hits"], totals["misses"]) == (2, 1, 1)
    assert (totals["requests"], totals["tokens"], totals["saved_tokens"]) == (1, 1_050, 5_000)
    assert totals["cost"] == pytest.approx(0.01)
    assert totals["saved_cost"] == pytest.approx(0.01)
    assert store.count_calls(0) == {"track": 1, "other": 1, "wipe": 1}
    series = store.list_series(time.time() - 60, time.time() + 60, 4)
    assert sum(each["calls"] for each in series) == 3


def test_usage_history_counts_saved_tokens_of_concurrent_calls_of_a_client_only_once(
    store: UsageStore,
) -> None:
    bus = EventBus()
    recorder = UsageRecorder(bus, store)
    bus.publish(ToolsSelected(session_id="g", turn=0, shown=(), tokens=100, tokens_saved=2_000))
    for call_id in ("1", "2"):
        bus.publish(ToolStarted(session_id="g", call_id=call_id, tool="add", arguments={}))
    for call_id in ("1", "2"):
        bus.publish(ToolFinished(session_id="g", call_id=call_id, tool="add", ok=True, duration_s=0.1))
    bus.publish(ToolsSearched(session_id="g", call_id="3", queries=("a",), found=()))
    bus.publish(ToolStarted(session_id="other", call_id="4", tool="add", arguments={}))
    bus.publish(ToolFinished(session_id="other", call_id="4", tool="add", ok=True, duration_s=0.1))
    recorder.close()
    totals = read_totals(store)
    assert (totals["saved_tokens"], totals["saved_by_lists"]) == (4_000, 4_000)
    assert totals["requests"] == 0


class StoppableStore(SqliteUsageStore):
    """A store that can refuse entries, like a database that was stopped, before or after it stores them."""

    is_stopped = False
    fails_late = False

    def add(self, *arguments: Any, **options: Any) -> None:
        if self.is_stopped:
            raise OSError("stopped")
        super().add(*arguments, **options)
        if self.fails_late:
            self.fails_late = False
            raise OSError("the connection was lost during the commit")


def test_usage_entries_are_stored_exactly_once_after_the_store_recovers_from_a_failure(
    tmp_path: Path,
) -> None:
    bus, store = EventBus(), StoppableStore(tmp_path / "usage.db")
    recorder = UsageRecorder(bus, store, journal=UsageJournal(tmp_path / "journal"))
    store.is_stopped = True
    for name in ("first", "second"):
        bus.publish(finish_call(name))
        recorder.flush()
    store.is_stopped, store.fails_late = False, True
    bus.publish(finish_call("third"))
    recorder.flush()
    bus.publish(finish_call("fourth"))
    recorder.close()
    assert store.count_calls(0) == {"first": 1, "second": 1, "third": 1, "fourth": 1}
    store.close()


def test_usage_entries_above_the_memory_limit_are_written_to_a_file_while_the_store_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolfold.serving.dashboard.recorder.MAX_WAITING_ENTRIES", 5)
    bus, store = EventBus(), StoppableStore(tmp_path / "usage.db")
    store.is_stopped = True
    recorder = UsageRecorder(bus, store, journal=UsageJournal(tmp_path / "journal"))
    for number in range(20):
        bus.publish(finish_call(f"tool{number}"))
        if number % 7 == 0:
            recorder.flush()
    store.is_stopped = False
    recorder.close()
    assert store.count_calls(0) == {f"tool{number}": 1 for number in range(20)}
    store.close()


def test_usage_entries_of_a_killed_process_are_stored_by_the_next_process(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    code = f"""
import os
from pathlib import Path
from toolfold.state.store.usage import UsageEntry
from toolfold.state.store.usage_journal import UsageJournal
journal = UsageJournal(Path({str(journal)!r}))
journal.append(UsageEntry(at=5e9, kind="search", key="k", ok=False))
journal.append(UsageEntry(at=5e9, kind="call", name="saved"))
journal.append_used_search("k")
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    (segment,) = journal.iterdir()
    assert segment.stat().st_mode & 0o077 == 0
    with segment.open("ab") as file:
        file.write(b'{"entry": {"at": 5')  # the process was killed while it wrote a line
    store = SqliteUsageStore(tmp_path / "usage.db")
    recorder = UsageRecorder(EventBus(), store, journal=UsageJournal(journal))
    wait_until(lambda: not list(journal.iterdir()))
    recorder.close()
    assert store.count_calls(0) == {"saved": 1}
    assert store.summarize(0, 6e9)["hits"] == 1
    store.close()


def test_usage_journal_of_another_running_process_is_not_recovered_or_deleted(tmp_path: Path) -> None:
    running, other = UsageJournal(tmp_path), UsageJournal(tmp_path)
    running.append(UsageEntry(at=1.0, kind="call", name="open"))
    assert list(other.recover()) == []
    running.close()
    ((entry,),) = [found.entries for found in other.recover()]
    assert entry.name == "open"
    assert list(tmp_path.iterdir()) == []


def test_usage_journal_entries_can_be_recovered_again_after_storing_them_failed(
    tmp_path: Path,
) -> None:
    ended, other = UsageJournal(tmp_path), UsageJournal(tmp_path)
    ended.append(UsageEntry(at=1.0, kind="call", name="saved"))
    ended.close()
    failed = other.recover()
    next(failed)
    failed.close()  # as if the store had failed
    assert [entry.name for found in other.recover() for entry in found.entries] == ["saved"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("with_content", [False, True])
def test_usage_history_contains_arguments_and_results_and_queries_only_if_with_content_is_true(
    tmp_path: Path, with_content: bool
) -> None:
    bus, file = EventBus(), tmp_path / "usage.db"
    store = SqliteUsageStore(file)
    recorder = UsageRecorder(bus, store, with_content=with_content)
    bus.publish(ToolStarted(session_id="s", call_id="1", tool="add", arguments={"text": "private words"}))
    bus.publish(finish_call("add"))
    bus.publish(ToolsSearched(session_id="s", call_id="a", queries=("private query",), found=()))
    recorder.close()
    store.close()
    content = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    for text in (b"private words", b"private result", b"private query"):
        assert (text in content) is with_content
    assert file.stat().st_mode & 0o077 == 0


def test_usage_entries_above_the_maximum_age_or_number_are_deleted(
    open_history: Callable[..., UsageStore],
) -> None:
    now = time.time()
    store = open_history(max_days=1, max_entries=10)
    store.add(UsageEntry(at=now - 2 * 86_400, kind="call", name="old") for _ in range(3))
    store.add(UsageEntry(at=now, kind="call", name=f"tool{number}") for number in range(30))
    store.prune()
    kept = store.count_calls(0)
    assert len(kept) == 10
    assert "old" not in kept
    assert json.dumps(sorted(kept)).count("tool2") == 10


def test_usage_history_lists_tools_with_error_counts_and_durations_sorted_by_call_count(
    store: UsageStore,
) -> None:
    now = time.time()
    calls = [("add", True), ("add", False), ("track", True), ("nul \0", True)]
    store.add(UsageEntry(at=now, kind="call", name=name, ok=ok, ms=10.0) for name, ok in calls)
    first = store.list_tools(now - 1, now + 1, 1)
    assert first == [{"name": "add", "calls": 2, "errors": 1, "ms": 10.0}]
    assert store.list_latencies(now - 1, now + 1) == [10.0] * 4
    assert [each["calls"] for each in store.list_series(now - 3, now + 1, 4)] == [0, 0, 0, 4]
    store.clear()
    assert store.count_calls(0) == {}


def test_usage_history_without_a_file_counts_calls_in_memory_and_writes_no_file(tmp_path: Path) -> None:
    store = SqliteUsageStore(None)
    store.add([UsageEntry(at=time.time(), kind="call", name="add", ms=5.0)])
    assert read_totals(store)["calls"] == 1
    assert store.list_latencies(0, time.time() + 1) == [5.0]
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_usage_history_of_a_user_contains_no_entries_of_other_users(store: UsageStore) -> None:
    now = time.time()
    store.add(
        UsageEntry(at=now + number, kind="call", name=f"tool_{number}", user_id=user, ok=number != 2)
        for number, user in enumerate(("ann", "bob", "ann", ""))
    )
    assert [each["name"] for each in store.list_of_user("ann", 10)] == ["tool_2", "tool_0"]
    assert [each["name"] for each in store.list_of_user("ann", 1)] == ["tool_2"]
    assert store.list_of_user("", 10) == []
    totals = store.summarize_user("ann", now)
    assert (totals["calls"], totals["errors"]) == (2, 1)
    assert store.summarize_user("", now)["calls"] == 0


def test_opening_a_usage_database_of_an_older_version_adds_the_user_column(tmp_path: Path) -> None:
    SqliteUsageStore(tmp_path / "usage.db").close()
    with closing(sqlite3.connect(tmp_path / "usage.db")) as old:
        old.executescript("DROP INDEX usage_user; ALTER TABLE usage DROP COLUMN user_id;")
    with closing(SqliteUsageStore(tmp_path / "usage.db")) as store:
        store.add([UsageEntry(at=time.time(), kind="call", name="tool", user_id="ann")])
        assert [each["name"] for each in store.list_of_user("ann", 10)] == ["tool"]
