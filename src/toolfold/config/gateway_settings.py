"""Settings of the gateway, a single MCP server through which clients reach all other servers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from toolfold.config.field_types import USER_ONLY, Integer, Number, Section, SecureUrl, Text


class OAuthResourceSettings(Section):
    """Settings of the gateway as an OAuth resource server: which issuer's access tokens it accepts."""

    issuer: SecureUrl = Field(
        default="",
        description="URL of the identity provider whose access tokens are accepted, exactly as its metadata"
        " names it; empty to accept only tokens of `toolfold token add`.",
        json_schema_extra=USER_ONLY,
    )
    resource: SecureUrl = Field(
        default="",
        description="URL of this gateway as clients know it, such as "
        "https://tools.example.com/mcp. Access tokens must be issued for this "
        "URL.",
        json_schema_extra=USER_ONLY,
    )
    audiences: tuple[Text, ...] = Field(
        default=(),
        description="Values of the claim `aud` that are accepted instead of `resource`, for providers that"
        " cannot issue tokens for a URL.",
        json_schema_extra=USER_ONLY,
    )
    required_scopes: tuple[Text, ...] = Field(
        default=(),
        description="OAuth scopes that every access token must have.",
        json_schema_extra=USER_ONLY,
    )
    create_users: bool = Field(
        default=False,
        description="Create a user for each identity that presents a valid access token for the first time."
        " If false, only users that `toolfold user add` has linked to an identity are accepted.",
        json_schema_extra=USER_ONLY,
    )
    default_team: Text = Field(
        default="",
        description="Team that automatically created users join. The team must exist; "
        "otherwise no user is created.",
        json_schema_extra=USER_ONLY,
    )
    toolsets: tuple[Text, ...] | None = Field(
        default=None,
        description="Toolsets that users with an access token may use; null for the same "
        "toolsets as with a token that `toolfold token add` created without "
        "--toolset.",
        json_schema_extra=USER_ONLY,
    )
    use_model_keys: bool = Field(
        default=False,
        description="Let model requests with an access token use the configured API keys of model providers.",
        json_schema_extra=USER_ONLY,
    )

    @model_validator(mode="after")
    def _check_resource(self) -> OAuthResourceSettings:
        if self.issuer and not self.resource:
            raise ValueError(
                "if issuer is set, resource must be set too: access tokens must be issued for this URL"
            )
        return self


class GatewaySettings(Section):
    """Settings of the gateway: its address, and what clients without a token may use."""

    toolsets: tuple[Text, ...] | None = Field(
        default=None,
        description="Toolsets that clients without a token may use; "
        "null for all except file, terminal, code_execution, web, browser, messaging, skills, tts and "
        "image_gen.",
        json_schema_extra=USER_ONLY,
    )
    default_access: Literal["allow", "deny"] = Field(
        default="allow",
        description="What a user may use if no rule allows the user anything: `allow` for "
        "everything that no rule denies, `deny` for nothing. Tokens that belong "
        "to no user are not affected.",
        json_schema_extra=USER_ONLY,
    )
    allow_anonymous: bool = Field(
        default=False,
        description="Let local programs connect without a token even if tokens exist.",
        json_schema_extra=USER_ONLY,
    )
    trust_client_approval: bool = Field(
        default=False,
        description="Run tools that declare themselves destructive without asking for approval. Only for "
        "clients that ask their own user before each call. Applies to stdio and loopback only.",
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
        description="Port that `toolfold serve` listens on; 0 for a free port.",
        json_schema_extra=USER_ONLY,
    )
    url: SecureUrl = Field(
        default="",
        description="Origin of the gateway as browsers know it, such as "
        "https://tools.example.com, for links with which users log in to MCP "
        "servers. If empty, the origin of `dashboard.oidc.url` or "
        "`gateway.oauth.resource` is used or, if neither is set, the address on "
        "this machine.",
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
    oauth: OAuthResourceSettings = Field(
        default_factory=OAuthResourceSettings,
        description="Access tokens of an identity provider, as the MCP specification describes them.",
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
