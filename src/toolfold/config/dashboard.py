"""Settings of the dashboard, the web page of `toolfold serve` and `toolfold ui`, and of its usage history."""

from __future__ import annotations

from pydantic import Field

from toolfold.config.field_types import USER_ONLY, Integer, Section


class DashboardSettings(Section):
    """Settings of the dashboard and of the usage history that it shows."""

    enabled: bool = Field(
        default=True,
        description="Serve the dashboard beside the gateway, at /ui/.",
        json_schema_extra=USER_ONLY,
    )
    port: Integer = Field(
        default=8_766,
        ge=0,
        le=65_535,
        description="Port that `toolfold ui` listens on; 0 for a free one.",
        json_schema_extra=USER_ONLY,
    )
    history: bool = Field(
        default=True,
        description="Store when which tool was called, its duration and its outcome; if false, the dashboard"
        " shows only what happened since it was started.",
        json_schema_extra=USER_ONLY,
    )
    history_days: Integer = Field(
        default=30,
        ge=1,
        le=365,
        description="Days after which entries of the history are deleted.",
        json_schema_extra=USER_ONLY,
    )
    history_content: bool = Field(
        default=False,
        description="Also store arguments, results and search queries, with secrets removed.",
        json_schema_extra=USER_ONLY,
    )
