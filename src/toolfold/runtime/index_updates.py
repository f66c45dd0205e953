"""Build the search index in the background as soon as a runtime knows its tools, and again when they change.

Nothing is embedded while no session can search, because all tools together are few enough to be shown.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from toolfold.core.registry import Registry
from toolfold.selection.retrieval.tool_search import Retriever

log = logging.getLogger(__name__)

_SETTLE_S = 0.05
"""How long the tools must stay the same before an update: they are often registered one after another."""


class IndexUpdates:
    """Keeps the search index of a runtime up to date, in a thread that runs only during an update."""

    def __init__(self, registry: Registry, retriever: Retriever, may_search: Callable[[], bool]) -> None:
        """Create the updates; `may_search` returns False as long as no session can search the tools."""
        self._registry, self._retriever, self._may_search = registry, retriever, may_search
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._is_enabled = self._is_requested = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Update the index now, and after every change of the tools."""
        self._is_enabled = True
        self._registry.on_change(self.request)
        self.request()

    def request(self) -> None:
        """Update the index in a thread, if updates were started; returns immediately."""
        if not self._is_enabled:
            return
        with self._lock:
            self._is_requested = True
            if self._thread is None and not self._closed.is_set():
                # Not a daemon: the interpreter would stop it in the middle of an inference at exit.
                self._thread = threading.Thread(target=self._run, name="toolfold-index-start")
                self._thread.start()

    def stop(self) -> None:
        """Start no other updates; a running one ends when the retriever is closed."""
        self._closed.set()

    def wait(self) -> None:
        """Wait until the running update has ended."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while self._take_request():
            self._closed.wait(_SETTLE_S)
            if not self._is_requested and not self._closed.is_set():
                self._update()

    def _take_request(self) -> bool:
        """Return True if an update was requested since the last call; otherwise the thread ends."""
        with self._lock:
            requested = self._is_requested and not self._closed.is_set()
            self._is_requested = False
            if not requested:
                self._thread = None
            return requested

    def _update(self) -> None:
        try:
            if self._may_search():
                self._retriever.finish_index(self._registry.snapshot())
        except Exception:
            log.warning("the search index could not be built in the background", exc_info=True)
