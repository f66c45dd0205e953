"""Readers of the event stream that report to operators: the log and OpenTelemetry.

Off by default. They only read: nothing here can influence a session.
"""

from __future__ import annotations

from collections.abc import Callable

from toolfold.config import Config
from toolfold.events import EventBus
from toolfold.telemetry.event_log import EventLog

__all__ = ["EventLog", "open_readers"]


def open_readers(config: Config, bus: EventBus) -> Callable[[], None]:
    """Start the configured readers. Returns a function that ends them and sends what is left.

    Raises ConfigError if OpenTelemetry is configured and its packages are missing.
    """
    settings = config.telemetry
    closers: list[Callable[[], None]] = []
    if settings.log_events:
        closers.append(bus.subscribe(EventLog(include_content=settings.include_content)))
    if settings.otel:
        from toolfold.telemetry.otlp import OtlpExport

        export = OtlpExport.open(settings, config.environment)
        closers += [bus.subscribe(export.reader), export.close]

    def close() -> None:
        while closers:
            closers.pop(0)()

    return close
