"""Settings of the Home Assistant tools."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from toolfold.config.field_types import USER_ONLY, Number, Section, Text, lower_text
from toolfold.config.web_settings import ServiceUrl

HomeInterface = Annotated[Literal["rest", "websocket"], BeforeValidator(lower_text)]


class HomeAssistantSettings(Section):
    """Settings of the Home Assistant server whose devices tools can read and control."""

    url: ServiceUrl = Field(
        default="http://homeassistant.local:8123",
        description="URL of the Home Assistant server, which may be in a private network.",
        json_schema_extra=USER_ONLY,
    )
    key_env: Text = Field(
        default="HASS_TOKEN",
        min_length=1,
        description="Environment variable with a long-lived access token of Home Assistant.",
        json_schema_extra=USER_ONLY,
    )
    interface: HomeInterface = Field(
        default="rest",
        description="Interface to use: rest, or websocket, which needs the extra `homeassistant`.",
        json_schema_extra=USER_ONLY,
    )
    allowed_domains: tuple[Text, ...] = Field(
        default=(),
        max_length=100,
        description="Service domains to allow although they run programs or send requests, such as "
        "shell_command.",
        json_schema_extra=USER_ONLY,
    )
    timeout_seconds: Number = Field(
        default=20.0,
        gt=0,
        le=300,
        description="Time limit of one request to the Home Assistant server.",
        json_schema_extra=USER_ONLY,
    )
