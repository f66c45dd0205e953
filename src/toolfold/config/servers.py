"""The settings of MCP servers: how each is started or reached, what it may bring, how far it is trusted.

Reads nothing and starts nothing. References such as `${TOKEN}` stay as they are written: what they stand
for is looked up when the server is started, and kept nowhere.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from toolfold.config.kinds import USER_ONLY, Integer, Number, PathValue, Section, Text, lower_text
from toolfold.model import FrozenDict

Transport = Annotated[Literal["auto", "stdio", "http", "sse"], BeforeValidator(lower_text)]
Protocol = Annotated[Literal["auto", "legacy"], BeforeValidator(lower_text)]
Trust = Annotated[
    Literal["pin", "warn", "off"],
    BeforeValidator(lambda value: "off" if value is False else lower_text(value)),
]
Elicitation = Annotated[Literal["ask", "decline"], BeforeValidator(lower_text)]
Sampling = Annotated[
    Literal["ask", "allow", "deny"],
    BeforeValidator(lambda value: "deny" if value is False else lower_text(value)),
]
Isolation = Annotated[Literal["auto", "shared", "per-client"], BeforeValidator(lower_text)]
ServerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9_-]{0,38}[A-Za-z0-9])?$")]
GATEWAY_WAIT_S = 2.0
TextMap = Annotated[dict[Text, Text], AfterValidator(FrozenDict)]


class OAuthSettings(Section):
    """How a person's login at a server is done, where the server's own word is not enough."""

    client_id: Text = Field(default="", description="The client that was registered there by hand.")
    client_secret: Text = Field(default="", description="Its secret, as a reference such as `${SECRET}`.")
    client_metadata_url: Text = Field(
        default="", description="An https address that describes this client, for servers that ask for one."
    )
    scopes: tuple[Text, ...] = Field(
        default=(), description="What is asked for; empty for what the server names."
    )
    redirect_port: Integer = Field(
        default=0, ge=0, le=65_535, description="The local port the browser comes back to; 0 for a free one."
    )


class McpServerSettings(Section):
    """One server."""

    enabled: bool = Field(default=True, description="Whether the server is used.")
    transport: Transport = Field(
        default="auto",
        description="How it is reached: `stdio` for a command, `http` or the older `sse` for an address.",
    )
    protocol: Protocol = Field(
        default="auto",
        description="Which revision is spoken: the newest that both know, or `legacy`, with a handshake.",
    )
    command: Text = Field(default="", description="The program that is started.")
    args: tuple[Text, ...] = Field(default=(), description="Its arguments.")
    env: TextMap = Field(
        default_factory=FrozenDict,
        description="Variables it is given; `${NAME}` and `${keyring:service/name}` are looked up.",
    )
    pass_env: tuple[Text, ...] = Field(
        default=(), description="Variables of the runtime's own environment it is given, by name."
    )
    cwd: PathValue | None = Field(default=None, description="The folder it is started in.")
    url: Text = Field(default="", description="The address of a server that runs already.")
    headers: TextMap = Field(
        default_factory=FrozenDict, description="Headers of every request; references are looked up."
    )
    oauth: OAuthSettings = Field(default_factory=OAuthSettings, description="How a login is done there.")
    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{0,40}$")] | None = Field(
        default=None,
        description="What stands before the names of its tools behind a gateway; empty for nothing.",
    )
    include: tuple[Text, ...] = Field(default=("*",), description="Which of its tools are used, as globs.")
    exclude: tuple[Text, ...] = Field(default=(), description="Which of those are left out, as globs.")
    resources: bool = Field(default=True, description="Whether its resources can be listed and read.")
    prompts: bool = Field(default=True, description="Whether its prompts can be listed and used.")
    trust: Trust = Field(
        default="pin",
        description="What happens to a tool that is new or has changed: held until you accept it, told of,"
        " or nothing.",
    )
    elicitation: Elicitation = Field(
        default="ask", description="Whether its questions reach a person or are declined."
    )
    sampling: Sampling = Field(
        default="ask", description="Whether it may use the model: after asking, always or never."
    )
    isolation: Isolation = Field(
        default="auto", description="Whether clients of a gateway share it or have one each."
    )
    connect_timeout_seconds: Number = Field(
        default=30.0, ge=0.1, le=600, description="How long it may take to start and answer."
    )
    call_timeout_seconds: Number = Field(
        default=120.0, ge=0.1, le=3_600, description="How long a call may go without an answer or progress."
    )
    max_call_seconds: Number = Field(
        default=900.0, ge=0.1, le=86_400, description="How long a call may take, whatever its progress."
    )
    keepalive_seconds: Number = Field(
        default=60.0, ge=0, le=3_600, description="How often an idle server is asked for a sign; 0 for never."
    )

    @model_validator(mode="after")
    def _check_transport(self) -> McpServerSettings:
        if bool(self.command) == bool(self.url):
            raise ValueError("give it a command that starts it, or the url of one that runs: one of the two")
        if self.command and self.transport in ("http", "sse"):
            raise ValueError(f"a command is reached over stdio, not {self.transport}")
        if self.url and self.transport == "stdio":
            raise ValueError("a url is reached over http or sse, not stdio")
        if self.url and urlsplit(self.url).scheme not in ("http", "https"):
            raise ValueError("a url begins with http:// or https://")
        return self

    @property
    def effective_transport(self) -> Literal["stdio", "http", "sse"]:
        """The transport, decided."""
        if self.command:
            return "stdio"
        return "sse" if self.transport == "sse" else "http"

    def name_prefix(self, name: str) -> str:
        """What stands before the names of its tools and prompts behind a gateway, if `name` is its own."""
        return f"{name}_" if self.prefix is None else self.prefix


class McpSettings(Section):
    """All servers."""

    enabled: bool = Field(
        default=True, description="Whether MCP servers are used.", json_schema_extra=USER_ONLY
    )
    scan: Literal["default", "strict"] = Field(
        default="default",
        description="Which suspicious tools are held: those the scanner is sure about, or (`strict`) also"
        " those with doubtful wording, which are only shown otherwise.",
        json_schema_extra=USER_ONLY,
    )
    wait_seconds: Number = Field(
        default=5.0,
        ge=0,
        le=60,
        description="How long opening waits for servers whose tools nobody has seen yet; a gateway waits for"
        " two seconds, unless this is set.",
        json_schema_extra={"in_project": "lowers"},
    )
    servers: Annotated[dict[ServerName, McpServerSettings], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict,
        description="The servers, by name.",
        json_schema_extra={"grants": True},
    )

    def listing_wait(self, *, behind_gateway: bool) -> float:
        """Return how long to wait for a list that was never seen. MCP clients give up after a few seconds."""
        if behind_gateway and "wait_seconds" not in self.model_fields_set:
            return min(self.wait_seconds, GATEWAY_WAIT_S)
        return self.wait_seconds


def parse_server_settings(value: Any) -> McpServerSettings:
    """A server's settings from plain data, as a file would have them. Raises pydantic's ValidationError."""
    return McpServerSettings.model_validate(value)
