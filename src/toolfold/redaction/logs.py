"""Remove secrets from log records and tracebacks of all libraries."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType

__all__ = ["MAX_RECORD_CHARS", "RedactingFormatter", "redact_uncaught_exceptions"]

MAX_RECORD_CHARS = 20_000


class RedactingFormatter(logging.Formatter):
    """A log formatter that removes secrets from the whole record: message, traceback and stack."""

    def __init__(self, format_: str, redact: Callable[[str], str]) -> None:
        super().__init__(format_)
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        return self._redact(super().format(record))


def redact_uncaught_exceptions(redact: Callable[[str], str]) -> None:
    """Remove secrets from the printed tracebacks of uncaught exceptions in all threads."""

    def report(kind: type[BaseException], error: BaseException | None, where: TracebackType | None) -> None:
        print(redact("".join(traceback.format_exception(kind, error, where))), file=sys.stderr)  # noqa: T201

    def report_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            report(args.exc_type, args.exc_value, args.exc_traceback)

    sys.excepthook, threading.excepthook = report, report_thread
