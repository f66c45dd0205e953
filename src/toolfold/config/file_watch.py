"""Detect changes, replacement, creation and deletion of small files."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.3
_CLOSE_TIMEOUT_S = 5.0


def watch_files(files: Sequence[Path], on_change: Callable[[], None]) -> Callable[[], None]:
    """Call a function, in a thread, within a second after one of the files has changed.

    Returns a function that ends the thread.
    """
    paths = [str(each) for each in files]
    ended = threading.Event()
    known = [_read_signature(each) for each in paths]

    def run() -> None:
        nonlocal known
        while not ended.wait(POLL_INTERVAL_S):
            found = [_read_signature(each) for each in paths]
            if found != known:
                known = found
                try:
                    on_change()
                except Exception:
                    log.exception("a change of %s could not be applied", ", ".join(paths))

    thread = threading.Thread(target=run, name="toolfold-file-watch", daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        if threading.current_thread() is not thread:
            thread.join(_CLOSE_TIMEOUT_S)

    return end


def _read_signature(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)  # noqa: PTH116 - as text, because it is done several times a second
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ino, found.st_size
