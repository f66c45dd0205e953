"""Send spans and metrics to an OpenTelemetry collector over HTTP, in threads of the SDK.

Uses its own tracer and meter providers, not the global ones, which belong to the program that embeds
Toolfold. The SDK bounds the queues. A collector that does not answer delays only the closing of the runtime,
by at most `CLOSE_TIMEOUT_S`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from toolfold.config.telemetry_settings import TelemetrySettings
from toolfold.core.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

    from toolfold.runtime.telemetry.otel_reader import OtelReader

log = logging.getLogger(__name__)

DEFAULT_ENDPOINT = "http://127.0.0.1:4318"
EXPORT_TIMEOUT_S = 5
CLOSE_TIMEOUT_S = 3.0
METRICS_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True)
class OtlpExport:
    """The event listener of one runtime, with the exporters that send its spans and metrics."""

    reader: OtelReader
    traces: TracerProvider
    metrics: MeterProvider

    @classmethod
    def open(cls, settings: TelemetrySettings, environment: Mapping[str, str]) -> OtlpExport:
        """Start exporting spans and metrics. Raises ConfigError if the OpenTelemetry packages are missing."""
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            from toolfold.runtime.telemetry.otel_reader import OtelReader
        except ImportError:
            raise ConfigError(
                "telemetry.otel is on, but the OpenTelemetry packages are not installed",
                key="telemetry.otel",
                hint="install the packages: pip install 'toolfold[otel]'",
            ) from None
        base = settings.otlp_endpoint or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT") or DEFAULT_ENDPOINT
        base = base.rstrip("/")
        release = version("toolfold")
        resource = Resource.create({"service.name": settings.service_name, "service.version": release})
        traces = TracerProvider(resource=resource)
        traces.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(f"{base}/v1/traces", timeout=EXPORT_TIMEOUT_S))
        )
        exporter = OTLPMetricExporter(f"{base}/v1/metrics", timeout=EXPORT_TIMEOUT_S)
        periodic = PeriodicExportingMetricReader(exporter, METRICS_INTERVAL_S * 1000)
        metrics = MeterProvider([periodic], resource=resource)
        reader = OtelReader(
            traces.get_tracer("toolfold", release),
            metrics.get_meter("toolfold", release),
            include_content=settings.include_content,
        )
        return cls(reader, traces, metrics)

    def close(self) -> None:
        """End open spans and flush queued spans and metrics, within a time limit."""
        self.reader.close()
        # The SDK does not keep its own limits if a collector accepts a connection and never answers.
        sends = [
            threading.Thread(target=_shut_down, args=(each,), name="toolfold-otlp-close", daemon=True)
            for each in (self.traces, self.metrics)
        ]
        for send in sends:
            send.start()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for send in sends:
            send.join(max(0.0, deadline - time.monotonic()))


def _shut_down(provider: TracerProvider | MeterProvider) -> None:
    """Flush the queued spans or metrics and stop the exporter; log failures."""
    try:
        provider.shutdown()
    except Exception as error:
        log.warning("the last spans or metrics were not sent: %s", error)
