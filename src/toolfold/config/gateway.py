"""Settings of the gateway, a single MCP server through which clients reach all other servers."""

from __future__ import annotations

from pydantic import Field

from toolfold.config.field_types import USER_ONLY, Integer, Number, Section, Text


class GatewaySettings(Section):
    """Settings of the gateway: its address, and what clients without a token may use."""

    toolsets: tuple[Text, ...] | None = Field(
        default=None,
        description="Toolsets that clients without a token may use; "
        "null for all except file, terminal, code_execution, web, browser, messaging, skills, tts and "
        "image_gen.",
        json_schema_extra=USER_ONLY,
    )
    allow_anonymous: bool = Field(
        default=False,
        description="Let local programs connect without a token even if tokens exist.",
        json_schema_extra=USER_ONLY,
    )
    trust_client_approval: bool = Field(
        default=False,
        description="Run tools that declare themselves destructive without a question, because "
        "every client asks its own user before each call. Applies to stdio and loopback "
        "only.",
        json_schema_extra=USER_ONLY,
    )
    host: Text = Field(
        default="127.0.0.1",
        description="Address that `toolfold serve` listens on. On an address other than loopback, "
        "clients need tokens.",
        json_schema_extra=USER_ONLY,
    )
    port: Integer = Field(
        default=8_765,
        ge=0,
        le=65_535,
        description="Port that `toolfold serve` listens on; 0 for a free one.",
        json_schema_extra=USER_ONLY,
    )
    drain_seconds: Number = Field(
        default=0.0,
        ge=0,
        le=600,
        description="How long `toolfold serve` answers requests after SIGTERM while `/readyz` reports that "
        "it is about to stop, so that a load balancer can send new requests elsewhere.",
        json_schema_extra=USER_ONLY,
    )
    hosts: tuple[Text, ...] = Field(
        default=(),
        description="Host names, other than loopback, under which clients reach the gateway.",
        json_schema_extra=USER_ONLY,
    )
    origins: tuple[Text, ...] = Field(
        default=(),
        description="Origins of web pages whose requests are accepted, such as https://example.com.",
        json_schema_extra=USER_ONLY,
    )
