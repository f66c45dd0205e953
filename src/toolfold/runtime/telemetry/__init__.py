"""Event listeners that report a runtime's activity to its operators, by log lines and OpenTelemetry.

All are off by default. A listener only reads events and cannot influence a session.
"""

from __future__ import annotations

from collections.abc import Callable

from toolfold.config import Config
from toolfold.core.events import EventBus
from toolfold.runtime.telemetry.event_log import EventLog

__all__ = ["EventLog", "open_readers"]


def open_readers(config: Config, bus: EventBus) -> Callable[[], None]:
    """Subscribe the configured listeners to events. Return a function that closes them.

    Raises ConfigError if OpenTelemetry is configured and its packages are missing.
    """
    settings = config.telemetry
    closers: list[Callable[[], None]] = []
    if settings.log_events:
        closers.append(bus.subscribe(EventLog(include_content=settings.include_content)))
    if settings.otel:
        from toolfold.runtime.telemetry.otlp import OtlpExport

        export = OtlpExport.open(settings, config.environment)
        closers += [bus.subscribe(export.reader), export.close]

    def close() -> None:
        while closers:
            closers.pop(0)()

    return close
