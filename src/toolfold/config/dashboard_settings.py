"""Settings of the dashboard, the web page of `toolfold serve` and `toolfold ui`, and of its usage history."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from toolfold.config.field_types import USER_ONLY, Integer, Section, SecureUrl, Text
from toolfold.core.types import FrozenDict


class OidcSettings(Section):
    """Settings of logins to the dashboard at an identity provider with OpenID Connect."""

    issuer: SecureUrl = Field(
        default="",
        description="Issuer URL of the identity provider, exactly as in its metadata; empty for none.",
        json_schema_extra=USER_ONLY,
    )
    client_id: Text = Field(
        default="",
        description="Identifier of the dashboard as a client of the provider.",
        json_schema_extra=USER_ONLY,
    )
    client_secret: Text = Field(
        default="",
        description="Client secret, as a reference such as `${OIDC_SECRET}`; empty for a public client.",
        json_schema_extra=USER_ONLY,
    )
    url: SecureUrl = Field(
        default="",
        description="URL of the dashboard as browsers know it, such as https://tools.example.com/ui/. The"
        " provider redirects to oidc/callback below it.",
        json_schema_extra=USER_ONLY,
    )
    scopes: tuple[Text, ...] = Field(
        default=("openid", "profile"),
        description="OAuth scopes to request; some providers send the groups of a person "
        "only if a further scope is requested.",
        json_schema_extra=USER_ONLY,
    )
    groups_claim: Text = Field(
        default="groups",
        description="Claim of the ID token that contains the groups of a person.",
        json_schema_extra=USER_ONLY,
    )
    admin_groups: tuple[Text, ...] = Field(
        default=(),
        description="Groups whose members are administrators, checked at every login. If "
        "empty, the users that `toolfold user add --admin` added are "
        "administrators.",
        json_schema_extra=USER_ONLY,
    )
    teams: Annotated[dict[Text, Text], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict,
        description="Team for each group of the identity provider. At every login, the user joins or leaves"
        " these teams.",
        json_schema_extra=USER_ONLY,
    )
    create_users: bool = Field(
        default=False,
        description="Create a user for each identity that logs in for the first time.",
        json_schema_extra=USER_ONLY,
    )

    @model_validator(mode="after")
    def _check_client(self) -> OidcSettings:
        if self.issuer and not (self.client_id and self.url):
            raise ValueError("if issuer is set, client_id and url must be set too")
        return self


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
        description="Port that `toolfold ui` listens on; 0 for a free port.",
        json_schema_extra=USER_ONLY,
    )
    history: bool = Field(
        default=True,
        description="Store the time, tool, duration and outcome of each call; if false, the "
        "dashboard shows only calls since it was started.",
        json_schema_extra=USER_ONLY,
    )
    history_days: Integer = Field(
        default=30,
        ge=1,
        le=365,
        description="Days after which entries of the usage history are deleted.",
        json_schema_extra=USER_ONLY,
    )
    history_content: bool = Field(
        default=False,
        description="Also store the arguments, results and search queries of calls in the "
        "usage history, with secrets removed.",
        json_schema_extra=USER_ONLY,
    )
    oidc: OidcSettings = Field(
        default_factory=OidcSettings,
        description="Login to the dashboard through an identity provider.",
    )
