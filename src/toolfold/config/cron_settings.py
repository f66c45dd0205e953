"""Settings of scheduled jobs."""

from __future__ import annotations

from pydantic import Field

from toolfold.config.field_types import USER_ONLY, Integer, Number, Section, Text


class CronSettings(Section):
    """Settings of scheduled jobs: their time zone, their model and their limits."""

    time_zone: Text = Field(
        default="",
        description="Time zone of new jobs, such as Europe/Berlin; empty for the time zone of this machine.",
        json_schema_extra=USER_ONLY,
    )
    model: Text = Field(
        default="",
        description="Model that runs jobs, as PROVIDER:MODEL; empty for `agent.model`.",
        json_schema_extra=USER_ONLY,
    )
    max_jobs: Integer = Field(
        default=50, ge=0, le=10_000, description="Maximum number of jobs.", json_schema_extra=USER_ONLY
    )
    max_parallel: Integer = Field(
        default=2,
        ge=1,
        le=32,
        description="Maximum number of jobs that run at the same time.",
        json_schema_extra=USER_ONLY,
    )
    max_run_seconds: Number = Field(
        default=900.0, gt=0, le=86_400, description="Time limit of one run.", json_schema_extra=USER_ONLY
    )
    max_steps: Integer = Field(
        default=30,
        ge=1,
        le=1_000,
        description="Maximum number of model calls in one run of a job.",
        json_schema_extra=USER_ONLY,
    )
    missed_after_seconds: Number = Field(
        default=300.0,
        ge=1,
        le=86_400,
        description="How late a run of a job may start before it is treated as missed.",
        json_schema_extra=USER_ONLY,
    )
    stop_seconds: Number = Field(
        default=30.0,
        ge=0,
        le=3_600,
        description="How long `toolfold cron run` waits for jobs that are running when it is stopped.",
        json_schema_extra=USER_ONLY,
    )
