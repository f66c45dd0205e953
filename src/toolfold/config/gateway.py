"""The settings of the gateway that serves all MCP servers as one. Reads nothing and opens no port."""

from __future__ import annotations

from pydantic import Field

from toolfold.config.kinds import USER_ONLY, Integer, Section, Text


class GatewaySettings(Section):
    """Where the gateway is reached, and what clients without a token may use."""

    toolsets: tuple[Text, ...] | None = Field(
        default=None,
        description="What clients without a token may use; null for all but files and the terminal.",
        json_schema_extra=USER_ONLY,
    )
    allow_anonymous: bool = Field(
        default=False,
        description="Let local programs connect without a token even if tokens exist.",
        json_schema_extra=USER_ONLY,
    )
    trust_client_approval: bool = Field(
        default=False,
        description="Whether tools that declare themselves destructive run without a question, because every"
        " client asks its own user before each call. Counts over stdio and on loopback only.",
        json_schema_extra=USER_ONLY,
    )
    host: Text = Field(
        default="127.0.0.1",
        description="The address `toolfold serve` listens on; beyond this machine clients need tokens.",
        json_schema_extra=USER_ONLY,
    )
    port: Integer = Field(
        default=8_765,
        ge=0,
        le=65_535,
        description="Its port; 0 for a free one.",
        json_schema_extra=USER_ONLY,
    )
    hosts: tuple[Text, ...] = Field(
        default=(),
        description="Names the gateway goes by beyond this machine, as clients write them.",
        json_schema_extra=USER_ONLY,
    )
    origins: tuple[Text, ...] = Field(
        default=(),
        description="Web pages whose requests are taken, such as https://example.com.",
        json_schema_extra=USER_ONLY,
    )
