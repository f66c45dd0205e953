"""Settings of APIs whose operations can be called as tools."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from toolfold.config.field_types import USER_ONLY, Integer, Number, Section, Text
from toolfold.config.web_settings import Network, ServiceUrl
from toolfold.core.types import FrozenDict

ApiName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]


class ApiSettings(Section):
    """Settings of one API that was added from an OpenAPI document."""

    url: ServiceUrl = Field(
        min_length=1, description="Base URL of all requests to the API.", json_schema_extra=USER_ONLY
    )
    checksum: Text = Field(
        min_length=1,
        description="Checksum of the stored operations of the API, which `toolfold tools "
        "from-openapi` writes.",
        json_schema_extra=USER_ONLY,
    )
    enabled: bool = Field(default=True, description="Use the API.", json_schema_extra=USER_ONLY)
    auth: Annotated[dict[Text, Text], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict,
        description="Environment variables with the credentials, by the name of the security scheme.",
        json_schema_extra=USER_ONLY,
    )
    private_networks: tuple[Network, ...] = Field(
        default=(),
        max_length=100,
        description="Networks that are not on the public internet and that requests to the API may use, "
        "in addition to `web.private_networks`.",
        json_schema_extra=USER_ONLY,
    )
    timeout_seconds: Number = Field(
        default=60.0,
        gt=0,
        le=600,
        description="Time limit of one request to the API.",
        json_schema_extra=USER_ONLY,
    )
    max_bytes: Integer = Field(
        default=2_000_000,
        ge=1_000,
        le=100_000_000,
        description="Maximum size of a response of the API; longer responses are truncated.",
        json_schema_extra=USER_ONLY,
    )


Apis = Annotated[dict[ApiName, ApiSettings], AfterValidator(FrozenDict)]
