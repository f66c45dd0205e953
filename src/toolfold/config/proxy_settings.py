"""Settings of the model proxy, which reduces the tools in model requests that pass through it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from toolfold.config.field_types import USER_ONLY, Integer, Number, Section, Switch, Text
from toolfold.core.types import FrozenDict


class UpstreamSettings(Section):
    """The provider to which the proxy sends requests for some models, and the API key for this provider."""

    provider: Text = Field(
        description="Name of the model provider: a built-in provider, or one of the setting `providers`.",
        json_schema_extra=USER_ONLY,
    )
    key: Literal["own", "client"] = Field(
        default="own",
        description="API key that the provider gets: `own` for the provider's configured "
        "key, `client` for the key that the client sends.",
        json_schema_extra=USER_ONLY,
    )


class PriceSettings(Section):
    """Price of a model in dollars per million tokens."""

    input: Number = Field(
        ge=0, le=1e6, description="Dollars per million input tokens.", json_schema_extra=USER_ONLY
    )
    output: Number = Field(
        ge=0, le=1e6, description="Dollars per million output tokens.", json_schema_extra=USER_ONLY
    )


class ProxySettings(Section):
    """Settings of the model proxy: where it sends model requests, and whether it reduces their tools."""

    enabled: bool = Field(
        default=True,
        description="Serve the model APIs below /v1 beside the gateway (`toolfold serve`).",
        json_schema_extra=USER_ONLY,
    )
    folding: Switch = Field(
        default="auto",
        description="Reduce the tools in model requests: `auto` as the settings of `tools` "
        "say, `on` always hides tools behind a search, `off` forwards requests "
        "unchanged.",
        json_schema_extra=USER_ONLY,
    )
    native: Switch = Field(
        default="auto",
        description="Use the provider's native deferred tools if the model supports them: `auto` only at the "
        "endpoints of OpenAI and Anthropic, `on` at every provider, `off` never.",
        json_schema_extra=USER_ONLY,
    )
    max_search_rounds: Integer = Field(
        default=4,
        ge=1,
        le=20,
        description="Maximum number of model replies that search for tools, per request; "
        "after that, the request is sent with all tools.",
        json_schema_extra=USER_ONLY,
    )
    toolsets: Annotated[tuple[Text, ...], Field(max_length=100)] = Field(
        default=(),
        description="Toolsets whose tools the proxy adds to model requests that contain "
        "tools, and runs itself. A client gets only the toolsets that its token "
        "allows.",
        json_schema_extra=USER_ONLY,
    )
    max_tool_rounds: Integer = Field(
        default=20,
        ge=1,
        le=100,
        description="Maximum number of model replies that search for tools or call tools of "
        "`proxy.toolsets`, per request.",
        json_schema_extra=USER_ONLY,
    )
    keep_alive_seconds: Number = Field(
        default=15,
        ge=0.05,
        le=600,
        description="Maximum time without output in a streamed reply, while the model "
        "searches or tools of `proxy.toolsets` run, before the proxy sends the "
        "client a comment or a `ping`.",
        json_schema_extra=USER_ONLY,
    )
    max_requests: Integer = Field(
        default=400,
        ge=1,
        le=10_000,
        description="Maximum number of model requests of all clients at the same time.",
        json_schema_extra=USER_ONLY,
    )
    upstreams: Annotated[dict[Text, UpstreamSettings], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict,
        description="Providers by model name, in which `*` matches anything and case does not "
        "matter; the first match is used. Requests for other models are sent to OpenAI or Anthropic, "
        "depending on the API that the client uses, with the client's key.",
        json_schema_extra=USER_ONLY,
    )
    prices: Annotated[dict[Text, PriceSettings], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict,
        description="Prices by model name, in which `*` matches anything and case does not "
        "matter; the first match is used. The cost limits of users are checked with 12 times the "
        "price of the provider's most expensive listed model if a model has no price here or "
        "in the list of known prices.",
        json_schema_extra=USER_ONLY,
    )
