"""Settings of the event log and of the export to OpenTelemetry, both off by default."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from toolfold.config.field_types import USER_ONLY, Section, Text


class TelemetrySettings(Section):
    """Settings of the destinations of session events: log, traces and metrics; all off by default."""

    log_events: bool = Field(
        default=False,
        description="Write the events of all sessions to the log, as one line of JSON each.",
        json_schema_extra=USER_ONLY,
    )
    log_format: Literal["text", "json"] = Field(
        default="text",
        description="Format of the log on standard error: `text` for people, `json` for one object per line.",
        json_schema_extra=USER_ONLY,
    )
    otel: bool = Field(
        default=False,
        description="Send traces and metrics to an OpenTelemetry collector; needs the extra `otel`.",
        json_schema_extra=USER_ONLY,
    )
    otlp_endpoint: Text = Field(
        default="",
        description="Base URL of the collector (OTLP over HTTP); empty for OTEL_EXPORTER_OTLP_ENDPOINT"
        " or http://127.0.0.1:4318.",
        json_schema_extra=USER_ONLY,
    )
    service_name: Text = Field(
        default="toolfold",
        min_length=1,
        description="Name of the service in traces and metrics.",
        json_schema_extra=USER_ONLY,
    )
    prometheus: bool = Field(
        default=False,
        description="Serve counters for Prometheus at /metrics of `toolfold serve`, without a token; they "
        "contain no names and no content.",
        json_schema_extra=USER_ONLY,
    )
    include_content: bool = Field(
        default=False,
        description="Include messages, arguments, results, commands and reasons in the log and in traces.",
        json_schema_extra=USER_ONLY,
    )
