"""Remove secrets from log records and tracebacks of all libraries."""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType

__all__ = ["MAX_RECORD_CHARS", "JsonFormatter", "RedactingFormatter", "redact_uncaught_exceptions"]

MAX_RECORD_CHARS = 20_000


class RedactingFormatter(logging.Formatter):
    """A log formatter that removes secrets from the whole record: message, traceback and stack."""

    def __init__(self, format_: str, redact: Callable[[str], str]) -> None:
        super().__init__(format_)
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        return self._redact(super().format(record))


class JsonFormatter(logging.Formatter):
    """A log formatter that writes each record as one line of JSON, without secrets.

    A message that is itself a JSON object, such as an event of a session, becomes the field `event`.
    """

    def __init__(self, redact: Callable[[str], str]) -> None:
        super().__init__()
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
        }
        message = self._redact(record.getMessage())
        event = _parse_object(message)
        entry |= {"message": message} if event is None else {"event": event}
        if record.exc_info:
            entry["exception"] = self._redact(self.formatException(record.exc_info))
        if record.stack_info:
            entry["stack"] = self._redact(self.formatStack(record.stack_info))
        return json.dumps(entry, ensure_ascii=False)


def _parse_object(text: str) -> dict[str, object] | None:
    if not text.startswith("{"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def redact_uncaught_exceptions(redact: Callable[[str], str]) -> None:
    """Remove secrets from the printed tracebacks of uncaught exceptions in all threads."""

    def report(kind: type[BaseException], error: BaseException | None, where: TracebackType | None) -> None:
        print(redact("".join(traceback.format_exception(kind, error, where))), file=sys.stderr)  # noqa: T201

    def report_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            report(args.exc_type, args.exc_value, args.exc_traceback)

    sys.excepthook, threading.excepthook = report, report_thread
