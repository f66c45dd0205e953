"""Write the usage history from a runtime's events, in a separate thread."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import sqlite3
import threading
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, TypeVar

from toolfold.core.events import Event, ModelReplied, ToolFinished, ToolsSearched, ToolsSelected, ToolStarted
from toolfold.state.store.usage import (
    MAX_CONTENT_CHARS,
    PostgresUsageStore,
    SqliteUsageStore,
    UsageEntry,
    UsageStore,
)
from toolfold.state.store.usage_journal import UsageJournal, open_journal

if TYPE_CHECKING:
    from toolfold.config import Config
    from toolfold.core.events import EventBus
    from toolfold.state.database import Database

log = logging.getLogger(__name__)

Value = TypeVar("Value")

HISTORY_FILE = "usage.db"
JOURNAL_DIRECTORY = "usage-journal"
WRITE_INTERVAL_S = 1.0
MAX_WAITING_ENTRIES = 20_000
MAX_SESSIONS = 500
"""Sessions whose latest searches and selections are remembered."""
MAX_FOUND_TOOLS = 200


def open_history(config: Config, database: Database | None = None) -> UsageStore:
    """Open the usage history: in the shared database or, without one, in a file.

    It is in memory if the settings turn it off or the file cannot be used.
    """
    settings = config.dashboard
    if settings.history:
        try:
            if database is not None:
                return PostgresUsageStore(database, max_days=settings.history_days)
            return SqliteUsageStore(config.paths.state_dir / HISTORY_FILE, max_days=settings.history_days)
        except (OSError, sqlite3.Error) as error:
            log.warning(
                "the usage history cannot be opened; the history of this process is not stored: %s", error
            )
    return SqliteUsageStore(None, max_days=settings.history_days)


def find_journal(config: Config) -> UsageJournal | None:
    """Return the journal of usage entries that are not stored yet; None if the history is turned off."""
    if not config.dashboard.history:
        return None
    return open_journal(config.paths.state_dir / JOURNAL_DIRECTORY)


class UsageRecorder:
    """Turns events of a runtime into entries of the usage history.

    Entries that cannot be stored are tried again. With a journal, they also survive the end of the process.
    """

    def __init__(
        self,
        bus: EventBus,
        store: UsageStore,
        *,
        with_content: bool = False,
        journal: UsageJournal | None = None,
    ) -> None:
        self._store, self._with_content, self._journal = store, with_content, journal
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._entries: deque[UsageEntry] = deque()
        self._dropped = 0
        """Number of entries that are no longer in memory because too many could not be stored."""
        self._is_repeated = False
        """True if the waiting entries contain some that could not be stored before."""
        self._used_searches: list[str] = []
        self._found: OrderedDict[str, dict[str, str]] = OrderedDict()
        """Session → tool that a search found → key of the search."""
        self._selected: OrderedDict[str, int] = OrderedDict()
        """Session → tokens that the selection saves: in the next model call of an agent or the proxy, or in
        every request that a client of the gateway makes with its list of tools."""
        self._running: OrderedDict[str, set[str]] = OrderedDict()
        """Session of a client → calls that have started and not ended."""
        self._credited: OrderedDict[str, int] = OrderedDict()
        """Session and call → tokens that were saved in the model request that led to the call."""
        self._arguments: OrderedDict[str, str] = OrderedDict()
        self._ended = threading.Event()
        self._unsubscribe = bus.subscribe(self._receive)
        self._thread = threading.Thread(target=self._run, name="toolfold-usage", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        """Store all usage entries received so far; if that fails, keep them for the next attempt."""
        with self._flushing:
            with self._lock:
                entries, used, is_repeated = list(self._entries), self._used_searches, self._is_repeated
                self._entries.clear()
                self._used_searches = []
                if self._journal:
                    self._journal.start_segment()
            if not (entries or used):
                return
            try:
                self._store_entries(entries, used)
            except (OSError, sqlite3.Error) as error:
                self._keep(entries, used, error)
                return
            if is_repeated:
                log.info("the usage history can be written again; %d entries were stored", len(entries))
            with self._lock:
                self._is_repeated = False
                if self._journal:
                    self._journal.remove_segment()

    def _store_entries(self, entries: list[UsageEntry], used: list[str]) -> None:
        """Store usage entries, including those that were dropped from memory but are still in the journal."""
        self._store.add(entries, used, may_exist=self._is_repeated)
        if self._dropped and self._journal:
            for found in self._journal.read_segments():
                self._store.add(found.entries, found.used_searches, may_exist=True)
            self._dropped = 0

    def close(self) -> None:
        """Stop listening to events, and store the usage entries received so far."""
        self._unsubscribe()
        self._ended.set()
        self._thread.join(2 * WRITE_INTERVAL_S)
        self.flush()
        if self._journal:
            self._journal.close()

    def _keep(self, entries: list[UsageEntry], used: list[str], error: Exception) -> None:
        """Put usage entries back at the front of the queue, because they could not be stored."""
        with self._lock:
            if not self._is_repeated:
                log.warning("the usage history cannot be written now; writing will be tried again: %s", error)
            self._is_repeated = True
            self._entries.extendleft(reversed(entries))
            self._used_searches = [*used, *self._used_searches][-MAX_WAITING_ENTRIES:]
            self._drop_excess()

    def _drop_excess(self) -> None:
        """Drop the oldest usage entries if too many are waiting to be stored."""
        while len(self._entries) > MAX_WAITING_ENTRIES:
            self._entries.popleft()
            if not self._dropped:
                where = "are only in its journal" if self._journal else "are dropped"
                log.warning(
                    "more than %d entries of the usage history wait to be stored; the oldest entries %s",
                    MAX_WAITING_ENTRIES,
                    where,
                )
            self._dropped += 1

    def _recover(self) -> None:
        """Store the usage entries of processes that ended before they could store them."""
        if self._journal is None:
            return
        with contextlib.closing(self._journal.recover()) as segments:
            for found in segments:
                self._store.add(found.entries, found.used_searches, may_exist=True)

    def _run(self) -> None:
        is_recovered = False
        while True:
            if not is_recovered:
                try:
                    self._recover()
                    is_recovered = True
                except (OSError, sqlite3.Error) as error:
                    log.debug("the journal of the usage history cannot be stored now: %s", error)
            if self._ended.wait(WRITE_INTERVAL_S):
                return
            self.flush()

    def _add(self, entry: UsageEntry) -> None:
        self._entries.append(entry)
        self._drop_excess()
        if self._journal:
            self._journal.append(entry)

    def _mark_used(self, key: str) -> None:
        self._used_searches.append(key)
        if self._journal:
            self._journal.append_used_search(key)

    def _receive(self, event: Event) -> None:
        with self._lock:
            match event:
                case ToolStarted():
                    self._start_call(event)
                case ToolFinished():
                    self._add_call(event)
                case ToolsSearched():
                    self._add_search(event)
                case ToolsSelected():
                    _remember(self._selected, event.session_id, event.tokens_saved)
                case ModelReplied():
                    self._add_model_call(event)

    def _start_call(self, event: ToolStarted) -> None:
        if self._with_content:
            _remember(self._arguments, event.call_id, json.dumps(event.arguments, default=str))
        saved = self._selected.get(event.session_id, 0)
        if not saved or event.parent_id:
            return
        running = self._running.get(event.session_id, set())
        if not running:  # calls at the same time belong to one request of the model
            _remember(self._credited, f"{event.session_id} {event.call_id}", saved)
        _remember(self._running, event.session_id, {*running, event.call_id})

    def _end_call(self, event: ToolFinished) -> int:
        """Record the end of a tool call; return the tokens saved in the model request before the call."""
        self._running.get(event.session_id, set()).discard(event.call_id)
        return self._credited.pop(f"{event.session_id} {event.call_id}", 0)

    def _add_call(self, event: ToolFinished) -> None:
        saved = self._end_call(event)
        if not event.registered:
            return
        key = self._found.get(event.session_id, {}).pop(event.tool, "")
        if key and not event.refused:
            self._mark_used(key)
        content = ""
        if self._with_content:
            arguments = self._arguments.pop(event.call_id, "")
            content = json.dumps({"arguments": arguments, "result": event.result, "error": event.error})
        self._add(
            UsageEntry(
                at=event.at,
                kind="call",
                name=event.tool,
                session=event.session_id,
                ok=event.ok,
                refused=event.refused,
                ms=event.duration_s * 1000,
                saved_tokens=saved,
                content=content[:MAX_CONTENT_CHARS],
                user_id=event.user_id,
            )
        )

    def _add_search(self, event: ToolsSearched) -> None:
        key = secrets.token_hex(8)
        found = self._found.get(event.session_id, {})
        found |= dict.fromkeys(event.found[:MAX_FOUND_TOOLS], key)
        _remember(self._found, event.session_id, found)
        content = json.dumps(event.queries) if self._with_content else ""
        self._add(
            UsageEntry(
                at=event.at,
                kind="search",
                session=event.session_id,
                key=key,
                ok=False,
                tokens=len(event.found),
                saved_tokens=self._selected.get(event.session_id, 0),
                content=content[:MAX_CONTENT_CHARS],
                user_id=event.user_id,
            )
        )

    def _add_model_call(self, event: ModelReplied) -> None:
        from toolfold.selection.turn.pricing import find_prices

        found = self._found.get(event.session_id, {})  # clients of the proxy run their tools themselves
        for name in event.calls:
            if key := found.pop(name, ""):
                self._mark_used(key)
        saved = self._selected.pop(event.session_id, 0) if event.purpose == "answer" else 0
        prices = find_prices(event.model)
        cached_share = event.usage.cached_tokens / event.usage.input_tokens if event.usage.input_tokens else 0
        saved_cost = 0.0
        if prices is not None:
            # Without Toolfold the definitions would be cached to the same extent as the rest of the request.
            price = prices.input * (1 - cached_share) + min(prices.cached_read, prices.input) * cached_share
            saved_cost = saved * prices.factor * price / 1_000_000
        self._add(
            UsageEntry(
                at=event.at,
                kind="model",
                name=event.model,
                session=event.session_id,
                ms=event.duration_s * 1000,
                tokens=event.usage.total_tokens,
                saved_tokens=saved,
                cost=event.cost or 0.0,
                saved_cost=saved_cost,
                user_id=event.user_id,
            )
        )


def _remember(memory: OrderedDict[str, Value], key: str, value: Value) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > MAX_SESSIONS:
        memory.popitem(last=False)
