"""Log file shared by all gateways of one user; records clients, calls, servers and problems, not secrets.

All gateways append to the same file, each line with the process id of its gateway. The file is readable by
the user only, and so is its one predecessor; together they have a maximum size.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from toolfold.config.atomic import make_private_directory
from toolfold.core.errors import ToolfoldError
from toolfold.safety.approval.safe_text import make_line_visible
from toolfold.safety.redaction import NO_SECRETS

__all__ = ["MAX_LOG_BYTES", "AppendOnlyFile", "gateway_log_path", "log_to_file"]

MAX_LOG_BYTES = 2 << 20
"""Size at which the file is renamed and a new one is started."""
MAX_RECORD_CHARS = 10_000
_LOGGER = "toolfold"


def gateway_log_path(state_dir: Path) -> Path:
    """Return the path of the log file below the state directory."""
    return state_dir / "gateway" / "gateway.log"


@contextlib.contextmanager
def log_to_file(file: Path, redact: Callable[[str], str]) -> Iterator[None]:
    """Log to a file in a `with` block: Toolfold's messages from level `info`, and other code's warnings.

    Handlers that exist already keep to the level that is configured now.
    """
    with contextlib.suppress(OSError, ToolfoldError):
        make_private_directory(file.parent)
    root, own = logging.getLogger(), logging.getLogger(_LOGGER)
    handler, before = _FileHandler(AppendOnlyFile(file), redact), own.level
    levels = [(each, each.level) for each in root.handlers]
    for each, _ in levels:
        each.setLevel(max(each.level, own.getEffectiveLevel()))
    own.setLevel(min(logging.INFO, own.getEffectiveLevel()))
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        own.setLevel(before)
        for each, level in levels:
            each.setLevel(level)
        handler.close()


class AppendOnlyFile:
    """File to which several processes append, and which is replaced when it has reached its maximum size."""

    def __init__(self, file: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._file, self._path, self._max_bytes = file, str(file), max_bytes
        self._descriptor = -1

    def append(self, text: str) -> None:
        """Append a line to the log file. Raises OSError."""
        line = text.encode("utf-8", "replace") + b"\n"
        opened = self._stat_current() or self._reopen()
        if opened.st_size + len(line) > self._max_bytes:
            self._replace()
            self._reopen()
        os.write(self._descriptor, line)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _stat_current(self) -> os.stat_result | None:
        """Return the metadata of the open log file; None if another process replaced or deleted it."""
        if self._descriptor < 0:
            return None
        try:
            at_path = os.lstat(self._path)
        except FileNotFoundError:
            return None
        opened = os.fstat(self._descriptor)
        return opened if os.path.samestat(opened, at_path) else None

    def _reopen(self) -> os.stat_result:
        self.close()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        self._descriptor = os.open(self._file, flags, 0o600)
        return os.fstat(self._descriptor)

    def _replace(self) -> None:
        """Rename the full log file under a lock, so that only one process renames it."""
        with contextlib.suppress(ImportError):
            import fcntl

            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        if self._stat_current():
            self._file.replace(self._file.with_suffix(".log.1"))


class _FileHandler(logging.Handler):
    """Log handler that writes each record as one line, without secrets; write errors are ignored."""

    def __init__(self, file: AppendOnlyFile, redact: Callable[[str], str]) -> None:
        super().__init__()
        self._output, self._redact = file, redact
        self._pid = os.getpid()

    def filter(self, record: logging.LogRecord) -> bool:
        is_own = record.name.partition(".")[0] == _LOGGER
        return record.levelno >= (logging.INFO if is_own else logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ToolfoldError, ValueError):
            self._output.append(self._format_line(record))

    def close(self) -> None:
        self._output.close()
        super().close()

    def _format_line(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        text = self.format(record)[:MAX_RECORD_CHARS]
        if not getattr(record, NO_SECRETS, False):
            text = self._redact(text)
        first, *others = text.splitlines() or [""]
        shown = [make_line_visible(first), *(f"    {make_line_visible(each)}" for each in others)]
        return f"{at} {self._pid} {record.levelname.lower()} " + "\n".join(shown)
