"""Settings of MCP servers: start command or URL, tools to use, limits and trust.

Reads nothing and starts nothing. References such as `${TOKEN}` are not expanded here, but when the server is
started, and their values are never stored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from toolfold.config.field_types import (
    USER_ONLY,
    Integer,
    Number,
    PathValue,
    Section,
    SecureUrl,
    Text,
    lower_text,
)
from toolfold.core.types import FrozenDict

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
Credentials = Annotated[
    Literal["shared", "per-user"],
    BeforeValidator(lambda value: lower_text(value).replace("_", "-") if isinstance(value, str) else value),
]
ServerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9_-]{0,38}[A-Za-z0-9])?$")]
TextMap = Annotated[dict[Text, Text], AfterValidator(FrozenDict)]


class OAuthSettings(Section):
    """Settings for the OAuth login to a server, needed if the server does not publish them."""

    client_id: Text = Field(
        default="", description="Client id, if the client was registered with the server by hand."
    )
    client_secret: Text = Field(default="", description="Client secret, as a reference such as `${SECRET}`.")
    issuer: SecureUrl = Field(
        default="",
        description="Issuer at which `client_id` is registered. Client id and secret are sent to no other "
        "issuer. If empty, users log in at the issuer at which the administrator has logged in.",
    )
    client_metadata_url: Text = Field(
        default="",
        description="https URL of the OAuth client metadata document, for servers that "
        "require such a document.",
    )
    scopes: tuple[Text, ...] = Field(
        default=(), description="OAuth scopes to request; empty for the scopes that the server names."
    )
    redirect_port: Integer = Field(
        default=0,
        ge=0,
        le=65_535,
        description="Local port that the browser is redirected to after the login; 0 for a free port.",
    )


class McpServerSettings(Section):
    """Settings of one MCP server."""

    enabled: bool = Field(default=True, description="Use this server.")
    transport: Transport = Field(
        default="auto",
        description="Transport: `stdio` for a command; `http` or the older `sse` for a URL; `auto` chooses.",
    )
    protocol: Protocol = Field(
        default="auto",
        description="MCP protocol revision: `auto` for the newest revision that both sides "
        "support, `legacy` for a revision that starts with an `initialize` "
        "handshake.",
    )
    command: Text = Field(default="", description="Program that starts the server.")
    args: tuple[Text, ...] = Field(default=(), description="Arguments of the command that starts the server.")
    env: TextMap = Field(
        default_factory=FrozenDict,
        description="Environment variables of the server; `${NAME}` and `${keyring:service/name}` "
        "are expanded.",
    )
    pass_env: tuple[Text, ...] = Field(
        default=(), description="Names of environment variables that the server inherits from Toolfold."
    )
    cwd: PathValue | None = Field(default=None, description="Working directory of the server.")
    url: Text = Field(default="", description="URL of a server that is already running.")
    headers: TextMap = Field(
        default_factory=FrozenDict,
        description="HTTP headers of every request; `${NAME}` and `${keyring:service/name}` are expanded.",
    )
    oauth: OAuthSettings = Field(
        default_factory=OAuthSettings, description="Settings of the OAuth login at the server."
    )
    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{0,40}$")] | None = Field(
        default=None,
        description="Prefix of the server's tool names behind a gateway; empty for none, null for "
        "the name of the server.",
    )
    include: tuple[Text, ...] = Field(default=("*",), description="Tools to use, as glob patterns.")
    exclude: tuple[Text, ...] = Field(default=(), description="Tools to leave out, as glob patterns.")
    resources: bool = Field(default=True, description="Let sessions list and read the server's resources.")
    prompts: bool = Field(default=True, description="Let sessions list and use the server's prompts.")
    trust: Trust = Field(
        default="pin",
        description="What happens to a tool that is new or has changed: `pin` disables it until you "
        "accept it, `warn` logs a warning, `off` accepts it.",
    )
    elicitation: Elicitation = Field(
        default="ask",
        description="Questions of the server to the user (elicitation): `ask` shows "
        "them, `decline` declines them.",
    )
    sampling: Sampling = Field(
        default="ask",
        description="Requests of the server to use the model (sampling): `ask` asks for approval, `allow` "
        "and `deny` decide without asking.",
    )
    isolation: Isolation = Field(
        default="auto",
        description="Whether clients of a gateway share one process of the server (`shared`) "
        "or get a process each (`per-client`).",
    )
    credentials: Credentials = Field(
        default="shared",
        description="Whose credentials the server gets: `shared` for the same credentials "
        "for all clients, `per-user` for the credentials that are stored for the "
        "calling user and to which `${user:NAME}` in `env` and `headers` refers.",
    )
    connect_timeout_seconds: Number = Field(
        default=30.0, ge=0.1, le=600, description="Time limit for starting the server and connecting to it."
    )
    call_timeout_seconds: Number = Field(
        default=120.0,
        ge=0.1,
        le=3_600,
        description="How long a call may wait for a response or a progress notification.",
    )
    max_call_seconds: Number = Field(
        default=900.0, ge=0.1, le=86_400, description="Time limit of a call, regardless of progress."
    )
    keepalive_seconds: Number = Field(
        default=60.0, ge=0, le=3_600, description="Interval of pings to an idle server; 0 for no pings."
    )

    @model_validator(mode="after")
    def _check_transport(self) -> McpServerSettings:
        if bool(self.command) == bool(self.url):
            raise ValueError(
                "set either command, to start the server, or url, to connect to a running server"
            )
        if self.command and self.transport in ("http", "sse"):
            raise ValueError(f"a server with a command uses the stdio transport, not {self.transport}")
        if self.url and self.transport == "stdio":
            raise ValueError("a server with a url uses the http or sse transport, not stdio")
        if self.url and urlsplit(self.url).scheme not in ("http", "https"):
            raise ValueError("url must start with http:// or https://")
        return self

    @property
    def effective_transport(self) -> Literal["stdio", "http", "sse"]:
        """Return the transport, with `auto` resolved to stdio or HTTP."""
        if self.command:
            return "stdio"
        return "sse" if self.transport == "sse" else "http"

    def name_prefix(self, name: str) -> str:
        """Return the prefix that the gateway adds to the names of the server's tools and prompts."""
        return f"{name}_" if self.prefix is None else self.prefix


class McpSettings(Section):
    """Settings of all MCP servers."""

    enabled: bool = Field(default=True, description="Use MCP servers.", json_schema_extra=USER_ONLY)
    scan: Literal["default", "strict"] = Field(
        default="default",
        description="Which tools with suspicious descriptions are disabled until you accept "
        "them: `default` disables tools that the scanner is sure about, and "
        "reports tools with doubtful wording; `strict` disables both.",
        json_schema_extra=USER_ONLY,
    )
    wait_seconds: Number = Field(
        default=8.0,  # clients give a gateway ten seconds or more for its first answers
        ge=0,
        le=60,
        description="How long opening a runtime, and a client's call, wait for servers whose tools were "
        "never listed before.",
        json_schema_extra={"in_project": "lowers"},
    )
    servers: Annotated[dict[ServerName, McpServerSettings], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict,
        description="MCP servers, by name.",
        json_schema_extra={"grants": True},
    )


def parse_server_settings(value: Any) -> McpServerSettings:
    """Validate a server's settings from plain data. Raises pydantic's ValidationError."""
    return McpServerSettings.model_validate(value)
