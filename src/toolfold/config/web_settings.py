"""Settings of the web, browser and message tools."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from toolfold.config.field_types import (
    USER_ONLY,
    Integer,
    Number,
    PathValue,
    Section,
    Switch,
    Text,
    lower_text,
)
from toolfold.core.types import FrozenDict

SearchBackendName = Annotated[
    Literal["auto", "searxng", "brave", "tavily", "duckduckgo"], BeforeValidator(lower_text)
]


def _check_url(value: str) -> str:
    if value and not value.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    if "@" in value:
        raise ValueError("must not contain a user name or password")
    return value


def _check_network(value: str) -> str:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise ValueError(f"{value[:60]!r} is not a network such as 192.168.1.0/24 or fd00::/8") from None
    return value


ServiceUrl = Annotated[Text, AfterValidator(_check_url)]
TargetName = Annotated[str, StringConstraints(pattern=r"^[\w-]{1,64}$")]
Network = Annotated[Text, AfterValidator(_check_network)]


class SearchSettings(Section):
    """Settings of the search service that the tool `web_search` uses."""

    backend: SearchBackendName = Field(
        default="auto",
        description="Search service: searxng, brave, tavily or duckduckgo. `auto` uses "
        "SearXNG if `url` is set, otherwise a service whose key is in the "
        "environment, otherwise DuckDuckGo, which needs no key.",
        json_schema_extra=USER_ONLY,
    )
    url: ServiceUrl = Field(
        default="",
        description="URL of the search service, for example of your SearXNG server; empty "
        "for the service's own URL.",
        json_schema_extra=USER_ONLY,
    )
    key_env: Text = Field(
        default="",
        description="Environment variable with the key of the search service; empty for "
        "BRAVE_API_KEY or TAVILY_API_KEY.",
        json_schema_extra=USER_ONLY,
    )
    max_results: Integer = Field(
        default=10,
        ge=1,
        le=50,
        description="Maximum number of results of one web search.",
        json_schema_extra={"in_project": "lowers"},
    )
    timeout_seconds: Number = Field(
        default=20.0,
        gt=0,
        le=300,
        description="Time limit of one web search.",
        json_schema_extra={"in_project": "lowers"},
    )


class WebSettings(Section):
    """Settings of the web tools: which addresses they may use, and their limits."""

    search: SearchSettings = Field(
        default_factory=SearchSettings, description="The search service of `web_search`."
    )
    private_networks: tuple[Network, ...] = Field(
        default=(),
        max_length=100,
        description="Networks that are not on the public internet and that `web_extract` and "
        "the browser may use, such as 127.0.0.0/8 or 192.168.1.0/24. Metadata "
        "services of cloud providers always stay blocked.",
        json_schema_extra=USER_ONLY,
    )
    timeout_seconds: Number = Field(
        default=30.0,
        gt=0,
        le=600,
        description="Time limit to fetch one document, including redirects.",
        json_schema_extra={"in_project": "lowers"},
    )
    max_bytes: Integer = Field(
        default=10_000_000,
        ge=1_000,
        le=100_000_000,
        description="Maximum size of a fetched document; longer documents are truncated.",
        json_schema_extra={"in_project": "lowers"},
    )


class BrowserSettings(Section):
    """Settings of the browser tools: which program they use, and their limits."""

    executable: PathValue | None = Field(
        default=None,
        description="Path of the Chromium or Chrome program; null to use the first one that is found.",
        json_schema_extra=USER_ONLY,
    )
    sandbox: Switch = Field(
        default="auto",
        description="Run pages in the browser's own sandbox. `auto` uses the sandbox unless "
        "Toolfold runs as root, because Chromium's sandbox does not work for "
        "root.",
        json_schema_extra=USER_ONLY,
    )
    timeout_seconds: Number = Field(
        default=30.0,
        gt=0,
        le=300,
        description="Time limit to open a page.",
        json_schema_extra={"in_project": "lowers"},
    )
    idle_seconds: Number = Field(
        default=600.0,
        gt=0,
        le=86_400,
        description="Time without a call after which the pages of a session are closed.",
        json_schema_extra={"in_project": "lowers"},
    )
    max_sessions: Integer = Field(
        default=8,
        ge=1,
        le=64,
        description="Maximum number of sessions with open pages. When one more session opens a page, the "
        "pages of the session that was idle longest are closed.",
        json_schema_extra={"in_project": "lowers"},
    )


class MessageTarget(Section):
    """A person or channel that `send_message` can send to."""

    url_env: Text = Field(
        min_length=1,
        description="Environment variable with the Apprise URL of the message target. Such a "
        "URL can contain passwords.",
        json_schema_extra=USER_ONLY,
    )
    description: Annotated[Text, Field(max_length=200)] = Field(
        default="",
        description="Description of the recipients, shown to the model.",
        json_schema_extra=USER_ONLY,
    )
    answers_from: Text = Field(
        default="",
        description="Who may answer approval questions in the chat (`approval.ask_by`): for Telegram, the"
        " number of your user; for ntfy, a protected topic in which only you can write, other than those of"
        " the URL. Empty if nobody may.",
        json_schema_extra=USER_ONLY,
    )


class MessagesSettings(Section):
    """Settings of the `send_message` tool: the people and channels that it can send to."""

    targets: Annotated[dict[TargetName, MessageTarget], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict,
        max_length=50,
        description="Message recipients, by the names that the model uses for them.",
        json_schema_extra=USER_ONLY,
    )
    timeout_seconds: Number = Field(
        default=30.0,
        gt=0,
        le=300,
        description="Time limit to send one message.",
        json_schema_extra={"in_project": "lowers"},
    )

    def url_variables(self) -> tuple[str, ...]:
        """Return the names of the environment variables that contain the URLs of message targets."""
        return tuple(target.url_env for target in self.targets.values())
