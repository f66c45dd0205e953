"""Settings of the `image_generate` tool."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from toolfold.config.field_types import USER_ONLY, Number, Section, Text, lower_text
from toolfold.config.web_settings import ServiceUrl

ImageInterface = Annotated[Literal["openai", "fal"], BeforeValidator(lower_text)]


class ImagesSettings(Section):
    """Settings of the service that makes images from descriptions."""

    interface: ImageInterface = Field(
        default="openai",
        description="API of the image service: openai (images/generations) or fal.",
        json_schema_extra=USER_ONLY,
    )
    url: ServiceUrl = Field(
        default="",
        description="URL of the image service; empty for the URL of OpenAI or fal.",
        json_schema_extra=USER_ONLY,
    )
    key_env: Text = Field(
        default="",
        description="Environment variable with the API key of the image service; empty for "
        "OPENAI_API_KEY or FAL_KEY.",
        json_schema_extra=USER_ONLY,
    )
    model: Text = Field(
        default="",
        description="Model of the image service; empty for gpt-image-1 or fal-ai/flux/schnell.",
        json_schema_extra=USER_ONLY,
    )
    timeout_seconds: Number = Field(
        default=180.0,
        gt=0,
        le=1_800,
        description="Time limit of one request to the image service.",
        json_schema_extra=USER_ONLY,
    )
