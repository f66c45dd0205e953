"""Settings of the tools that use models: `vision_analyze` and `mixture_of_agents`."""

from __future__ import annotations

from pydantic import Field

from toolfold.config.field_types import USER_ONLY, Integer, Number, Section, Text


class VisionSettings(Section):
    """Settings of the model that looks at images."""

    model: Text = Field(
        default="",
        description="Model that answers questions about images, as PROVIDER:MODEL; empty for `agent.model`.",
        json_schema_extra=USER_ONLY,
    )
    timeout_seconds: Number = Field(
        default=120.0,
        gt=0,
        le=1_800,
        description="Time limit of one question about an image.",
        json_schema_extra=USER_ONLY,
    )
    max_output_tokens: Integer = Field(
        default=2_048,
        ge=16,
        le=100_000,
        description="Maximum number of tokens of an answer about an image.",
        json_schema_extra=USER_ONLY,
    )


class MixtureSettings(Section):
    """Settings of the models that answer a hard question together."""

    models: tuple[Text, ...] = Field(
        default=(),
        max_length=8,
        description="Models that answer at the same time, as PROVIDER:MODEL.",
        json_schema_extra=USER_ONLY,
    )
    aggregator: Text = Field(
        default="",
        description="Model that combines the answers, as PROVIDER:MODEL; empty for the first of `models`.",
        json_schema_extra=USER_ONLY,
    )
    timeout_seconds: Number = Field(
        default=180.0,
        gt=0,
        le=1_800,
        description="Time limit until all models have answered; combining the answers has "
        "the same limit again.",
        json_schema_extra=USER_ONLY,
    )
    max_output_tokens: Integer = Field(
        default=4_096,
        ge=16,
        le=100_000,
        description="Maximum number of tokens of each answer and of the combined answer.",
        json_schema_extra=USER_ONLY,
    )
