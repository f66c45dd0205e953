"""Define all settings with their defaults, ranges and descriptions.

Reads neither files nor the environment. A value outside of its range is invalid here; the loader clamps it
and warns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import unquote

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    SkipValidation,
    Strict,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from toolfold.config.agent_settings import AgentSettings, ProviderSettings
from toolfold.config.allowed_tool_entries import AllowedToolEntry
from toolfold.config.apis_settings import Apis
from toolfold.config.credentials_settings import CredentialSettings
from toolfold.config.cron_settings import CronSettings
from toolfold.config.dashboard_settings import DashboardSettings
from toolfold.config.field_types import (
    USER_ONLY,
    Integer,
    Number,
    PathValue,
    Section,
    StoreAddress,
    Switch,
    Text,
    check_text,
    lower_text,
    parse_switch,
)
from toolfold.config.gateway_settings import GatewaySettings
from toolfold.config.homeassistant_settings import HomeAssistantSettings
from toolfold.config.images_settings import ImagesSettings
from toolfold.config.model_tool_settings import MixtureSettings, VisionSettings
from toolfold.config.proxy_settings import ProxySettings
from toolfold.config.servers_settings import McpSettings
from toolfold.config.speech_settings import SpeechSettings
from toolfold.config.telemetry_settings import TelemetrySettings
from toolfold.config.training_settings import TrainingSettings
from toolfold.config.web_settings import BrowserSettings, MessagesSettings, WebSettings
from toolfold.core.errors import closest_names, did_you_mean
from toolfold.core.types import FrozenDict

# Does not match PWD, SSH_AUTH_SOCK and GIT_ASKPASS, which contain paths.
_SECRET_NAME = re.compile(
    "KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE"
    "|(?<!ASK)PASS$|_PWD$|(?:^|_)(?:AUTH|DSN|PAT)$",
    re.IGNORECASE,
)
_PASSWORD_IN_URL = re.compile(r"://[^\s/?#:@]*:([^\s/?#]+)@")
_MIN_SECRET_CHARS = 8

# Missing a needed tool is the worse error: on catalogs that the classifier was not trained on, 2% of the
# messages that need a tool are below the first threshold and 5% below the second. With the bridge tools in a
# request, a missed tool costs one search. See the curves in `training/README.md`.
DEFAULT_NEED_THRESHOLD = 0.17
SEARCH_NEED_THRESHOLD = 0.28

GATEWAY_MAX_TOOLS = 30

BUILTIN_MODELS = ("embedded", "light", "auxiliary")
"""Values of `rag_embed_model` that have a special meaning and are not the name of a model."""


def expand_tool_search(value: Any) -> Any:
    """Expand the setting `tool_search` from one word to a mapping; return a mapping unchanged.

    `on` means on, while `true` only asks for a search and means auto.
    """
    if not isinstance(value, (bool, int, float, str)):
        return value
    word = parse_switch(value)
    return {"enabled": "auto" if word == "on" and lower_text(value) != "on" else word}


def _parse_threshold(value: Any) -> Any:
    """Convert a threshold: the word `off` to 0, the word `on` to the default; numbers stay unchanged."""
    if not isinstance(value, (bool, str)):
        return value
    return {"on": DEFAULT_NEED_THRESHOLD, "off": 0.0}.get(parse_switch(value), value)


Threshold = Annotated[
    float,
    Strict(),
    BeforeValidator(_parse_threshold),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"enum": ["on", "off", True, False]}]}
    ),
]
ToolsetName = Annotated[str, StringConstraints(pattern=r"^[\w-]{1,64}$")]
Selection = Annotated[Literal["auto", "eager", "hybrid", "semantic", "keyword"], BeforeValidator(lower_text)]
Placement = Annotated[Literal["auto", "replace", "append", "tail"], BeforeValidator(lower_text)]
SearchMode = Annotated[Literal["keyword", "semantic", "hybrid", "rerank"], BeforeValidator(lower_text)]
Phrase = Annotated[str, StringConstraints(min_length=1, max_length=100), AfterValidator(check_text)]
Phrases = Annotated[tuple[Phrase, ...], Field(max_length=50)]
ApprovalMode = Annotated[
    Literal["manual", "smart", "off"],
    BeforeValidator(lambda value: "off" if value is False else lower_text(value)),
    WithJsonSchema({"enum": ["manual", "smart", "off", False]}),
]
Clearance = Annotated[Literal["low", "medium"], BeforeValidator(lower_text)]
ConfinableCategory = Literal["fs-delete", "data-loss", "overwrite", "permissions", "process"]

BuiltinBackend = Literal[
    "local", "sandbox", "docker", "podman", "ssh", "apptainer", "singularity", "modal", "daytona"
]
_PLUGIN_BACKEND = re.compile(r"plugin:[a-z0-9][a-z0-9_.-]{0,63}")


def _check_backend(value: str) -> str:
    known = get_args(BuiltinBackend)
    if value in known or _PLUGIN_BACKEND.fullmatch(value):
        return value
    hint = did_you_mean(closest_names(value, known)) or f" Use one of {', '.join(known)} or plugin:NAME."
    raise ValueError(f"unknown backend {value[:60]!r}.{hint}")


BackendName = Annotated[str, BeforeValidator(lower_text), AfterValidator(_check_backend)]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lower_text)]


class RerankerSettings(Section):
    """Settings of the embedding service that reorders the results of a tool search."""

    enabled: bool = Field(
        default=False,
        description="Send the results of a tool search to an embedding service that reorders them.",
        json_schema_extra={"grants": True},
    )
    endpoint: Text = Field(
        default="http://localhost:11434/v1/embeddings",
        description="URL of the embedding service.",
        json_schema_extra={"grants": True},
    )
    mode: SearchMode = Field(
        default="rerank",
        description="Search mode when the embedding service is enabled. Only `rerank` uses the service, to "
        "reorder the best tools.",
    )
    model: Text = Field(
        default="nomic-embed-text-v2-moe", description="Name of the embedding model that the service runs."
    )


class ToolSearchSettings(Section):
    """Settings of tool search, with which the model finds tools that it was not sent."""

    enabled: Switch = Field(
        default="auto",
        description="Hide tools behind a search: `on` always, `off` never, `auto` if the "
        "tools exceed one of the limits in this section.",
    )
    threshold_pct: Number = Field(
        default=10.0,
        ge=0,
        le=100,
        description="Percentage of the context window that tools may use before `enabled: auto` hides them.",
    )
    threshold_tokens: Integer = Field(
        default=20_000,
        ge=0,
        le=10_000_000,
        description="Number of tokens that tools may use before `enabled: auto` hides them, "
        "regardless of the size of the context window.",
    )
    threshold_tools: Integer = Field(
        default=0,
        ge=0,
        le=100_000,
        description="Number of tools that may be shown before `enabled: auto` hides them; 0 "
        "for no limit. If it is not set, a gateway uses 30.",
    )
    always_load: tuple[Text, ...] = Field(
        default=(), description="Tools and toolsets that are never hidden behind the search."
    )
    defer: tuple[Text, ...] = Field(
        default=(),
        description="Built-in tools and toolsets that may be hidden behind the search; all "
        "other built-in tools are always shown.",
    )
    listing: Switch = Field(
        default="off",
        description="Tell the model the sources of hidden tools: `on` as many as fit into "
        "`listing_max_tokens`, `auto` all sources if all of them fit, and "
        "otherwise none, `off` none.",
    )
    listing_max_tokens: Integer = Field(
        default=300, ge=20, le=5_000, description="Token limit of the list of sources that `listing` shows."
    )
    max_search_limit: Integer = Field(
        default=20,
        ge=1,
        le=50,
        description="Maximum number of results that the model may request from one tool search.",
    )
    search_default_limit: Integer = Field(
        default=5,
        ge=1,
        le=50,
        validate_default=True,
        description="Number of search results if the model does not ask for a certain number.",
    )
    reranker: RerankerSettings = Field(
        default_factory=RerankerSettings,
        description="Embedding service that reorders the results of a tool search.",
    )

    @field_validator("search_default_limit")
    @classmethod
    def _cap_default_limit(cls, value: int, info: ValidationInfo) -> int:
        return min(value, int(info.data.get("max_search_limit", value)))

    def max_shown_tools(self, *, behind_gateway: bool) -> int | None:
        """Return the number of tools above which tools are hidden behind tool search; None for no limit."""
        if behind_gateway and "threshold_tools" not in self.model_fields_set:
            return GATEWAY_MAX_TOOLS
        return self.threshold_tools or None

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "boolean"}, {"enum": ["auto", "on", "off"]}, handler(core)]}


class ToolsSettings(Section):
    """Settings of tools: which are selected for a message, and the limits of their calls."""

    selection: Selection = Field(
        default="auto",
        description="How the tools that a model sees are selected: `auto` shows all tools until "
        "`tool_search` hides some, then selects with `hybrid` and keeps all built-in tools; `eager` shows "
        "all tools; `hybrid`, `semantic` and `keyword` search for tools that fit the message.",
    )
    rag_top_k: Integer = Field(
        default=8, ge=1, le=50, description="Number of tools to select if tools are selected."
    )
    rag_max_k: Integer | None = Field(
        default=None,
        ge=1,
        le=100,
        description="Number of tools to select if `hybrid` is uncertain which tools the "
        "message needs; if not set, twice `rag_top_k`. Set it to the value of "
        "`rag_top_k` to always select the same number.",
    )
    rag_max_tokens: Integer = Field(
        default=6_000,
        ge=100,
        le=1_000_000,
        description="Token limit of the selected tools; a tool that the message names is always shown.",
    )
    rag_need: Threshold = Field(
        default=DEFAULT_NEED_THRESHOLD,
        ge=0,
        le=1,
        description="Minimum probability, from 0 to 1, that a message needs a tool: for "
        "other messages, no tools are selected. `off` selects tools for every "
        "message. If it is not set, and `tool_search` is `on` or `selection` is `auto`, 0.28 is used.",
    )
    rag_placement: Placement = Field(
        default="auto",
        description="Where the selected tools are put: `replace` and `append` in the tools array, "
        "`tail` next to the user's message, `auto` where they cost least with the "
        "model, and next to the message if `selection` is `auto`.",
    )
    rag_append_max: Integer = Field(
        default=48,
        ge=1,
        le=1_000,
        description="Maximum number of selected tools that the placement `append` keeps in "
        "the tools array; with more, the array is reduced to the tools selected "
        "for the last message.",
    )
    rag_native: bool = Field(
        default=False,
        description="Use the provider's own way of loading tools on demand, if the provider has one.",
    )
    pinned: tuple[Text, ...] = Field(
        default=("terminal", "read_file", "search_files"),
        description="Tools that are shown for every message, whatever `selection` is.",
    )
    rag_embed_model: Text = Field(
        default="embedded",
        description="Embedding model: `embedded` (shipped with Toolfold), `light` (shipped, smaller and "
        "faster), `auxiliary` or `auxiliary:MODEL` (of the provider of `agent.auxiliary_model`), or the "
        "name of a model of an embedding service.",
        json_schema_extra={"grants": True},
    )
    synonyms: Annotated[dict[Text, Phrases], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict,
        description="Additional search terms for tools, by the name of the tool, toolset or server.",
    )
    example_messages: bool = Field(
        default=True,
        description="Use example messages of tools for search: those shipped for well-known servers, "
        "and those that `toolfold enrich` wrote.",
    )
    patience_seconds: Number = Field(
        default=1.0,
        ge=0,
        le=3_600,
        description="Total time that all messages together wait for the embeddings of new "
        "tools; a tool without an embedding is found only by keywords.",
    )
    learn_from_use: bool = Field(
        default=True,
        description="Learn on this machine which tools are called after a message or a tool search, and find "
        "them for similar messages.",
        json_schema_extra=USER_ONLY,
    )
    learn_half_life_days: Integer = Field(
        default=60,
        ge=1,
        le=3_650,
        description="Days without use after which the weight of a learned message in the "
        "ranking is halved. The message is removed after four times as many days.",
        json_schema_extra=USER_ONLY,
    )
    tool_search: Annotated[ToolSearchSettings, BeforeValidator(expand_tool_search)] = Field(
        default_factory=ToolSearchSettings,
        description="Tool search, with which the model finds tools that it was not shown.",
    )
    disabled: tuple[Text, ...] = Field(
        default=(),
        description="Tools and toolsets that are disabled in every session.",
        json_schema_extra={"in_project": "adds"},
    )
    enabled_toolsets: tuple[Text, ...] | None = Field(
        default=None,
        description="The only toolsets that sessions may use; null for all toolsets.",
        json_schema_extra={"in_project": "narrows"},
    )
    disabled_toolsets: tuple[Text, ...] = Field(
        default=(),
        description="Toolsets that no session may use.",
        json_schema_extra={"in_project": "adds"},
    )
    timeout_seconds: Number = Field(
        default=120.0,
        ge=0.1,
        le=3600,
        description="Time limit of one call.",
        json_schema_extra={"in_project": "lowers"},
    )
    max_parallel: Integer = Field(
        default=8,
        ge=1,
        le=64,
        description="Maximum number of calls of one model reply that run at the same time.",
        json_schema_extra={"in_project": "lowers"},
    )
    result_max_chars: Integer = Field(
        default=50_000,
        ge=1_000,
        le=10_000_000,
        description="Maximum length, in characters, of a tool result that is sent to the model.",
        json_schema_extra={"in_project": "lowers"},
    )

    @property
    def max_selected(self) -> int:
        """Return the maximum number of tools to select for a message."""
        return max(self.rag_top_k, 2 * self.rag_top_k if self.rag_max_k is None else self.rag_max_k)

    def count_selected(self, probable: int) -> int:
        """Return the number of tools to select: `probable`, but from `rag_top_k` to `max_selected`."""
        return min(max(self.rag_top_k, probable), self.max_selected)

    @property
    def need_threshold(self) -> float:
        """Return the minimum probability that a message needs any tool, below which none is selected."""
        has_search = self.tool_search.enabled == "on" or self.selection == "auto"
        if has_search and "rag_need" not in self.model_fields_set:
            return SEARCH_NEED_THRESHOLD
        return self.rag_need


class RetrievalSettings(Section):
    """Settings of the search index."""

    index: Literal["auto", "memory", "database"] = Field(
        default="auto",
        description="Where tools are searched: in the `memory` of each process, in the "
        "`database` that `store` names, or `auto`: in memory or, if there are "
        "more than 100,000 tools and a database, in the database.",
    )


class ToolsetSettings(Section):
    """Settings of a toolset, a named group of tools."""

    description: Text = Field(default="", description="Purpose of the toolset.")
    tools: tuple[Text, ...] = Field(default=(), description="Tools of the toolset.")
    includes: tuple[Text, ...] = Field(
        default=(), description="Other toolsets whose tools this toolset includes."
    )


class PluginsSettings(Section):
    """Settings of plugins that provide tools."""

    enabled: bool = Field(
        default=True,
        description="Load plugins.",
        json_schema_extra=USER_ONLY,
    )
    disabled: tuple[Text, ...] = Field(
        default=(),
        description="Plugins that are not loaded.",
        json_schema_extra=USER_ONLY,
    )
    folder: PathValue | None = Field(
        default=None,
        description="Directory of your own plugins; null for `plugins` in the configuration directory.",
        json_schema_extra=USER_ONLY,
    )


class SkillsSettings(Section):
    """Settings of skills: instructions for tasks that the model reads when it needs them."""

    directories: tuple[PathValue, ...] = Field(
        default=(),
        max_length=50,
        description="More directories with your own skills, besides `skills` in the configuration directory.",
        json_schema_extra=USER_ONLY,
    )


class FilesSettings(Section):
    """Settings of the file tools: the directories they may use."""

    workspace: PathValue | None = Field(
        default=None,
        description="Directory that the file tools work in; null for the working directory.",
        json_schema_extra={"grants": True, "in_project": "inside"},
    )
    extra_roots: tuple[PathValue, ...] = Field(
        default=(),
        description="More directories that the file tools may read and write.",
        json_schema_extra={"grants": True, "in_project": "inside"},
    )


class AvailabilitySettings(Section):
    """Settings of the checks that find out whether a tool can be used."""

    timeout_seconds: Number = Field(
        default=5.0,
        ge=0.01,
        le=60,
        description="Time limit of a tool's availability check.",
        json_schema_extra={"in_project": "lowers"},
    )
    grace_seconds: Number = Field(
        default=30.0,
        ge=0,
        le=3600,
        description="How long a tool stays listed, but cannot be called, after its availability check "
        "starts to fail.",
        json_schema_extra={"in_project": "lowers"},
    )


class ApprovalSettings(Section):
    """Settings of approval: which calls need it, and how it is requested."""

    mode: ApprovalMode = Field(
        default="manual",
        description="Who decides about dangerous calls: `manual` a person, `smart` a model for low "
        "risks and a person for the rest, `off` nobody. Catastrophic commands and calls that match "
        "`deny` are refused in every mode.",
        json_schema_extra=USER_ONLY,
    )
    timeout_seconds: Number = Field(
        default=300.0,
        ge=1,
        le=86_400,
        description="How long an approval question waits for an answer before the call is refused.",
        json_schema_extra={"in_project": "lowers"},
    )
    ask_by: Text = Field(
        default="",
        description="Name of a target in `messages.targets` to which approval questions are also sent; empty"
        " for none. They can be answered there if its `answers_from` is set.",
        json_schema_extra=USER_ONLY,
    )
    deny: tuple[Text, ...] = Field(
        default=(),
        description="Calls that are always refused: commands as glob patterns, `tool:NAME`, "
        "`rule:NAME` or `category:NAME`.",
        json_schema_extra={"in_project": "adds"},
    )
    rules: tuple[dict[str, Any], ...] = Field(
        default=(),
        description="Your own rules for calls that need approval, in addition to the built-in rules.",
        json_schema_extra={"in_project": "adds"},
    )
    isolated: tuple[ConfinableCategory, ...] = Field(
        default=(),
        description="Categories of dangerous commands that run without approval, but are "
        "logged, if a sandbox or container confines them. Calls that affect "
        "anything outside of the sandbox or container, or shared with it, still "
        "need approval.",
        json_schema_extra=USER_ONLY,
    )
    trusted_servers: tuple[Text, ...] = Field(
        default=(),
        description="MCP servers whose read-only and non-destructive annotations are trusted.",
        json_schema_extra=USER_ONLY,
    )
    allowed_tools: tuple[AllowedToolEntry, ...] = Field(
        default=(),
        description="Tools whose declared effects need no approval: `tool:NAME` or `server:NAME`, then "
        "`:destructive` (the default), `:spend` (they cost money) or `:control` (they operate devices), "
        "optionally followed by `client=NAME` or `project=/DIRECTORY`. Written by "
        "`toolfold approvals allow`.",
        json_schema_extra=USER_ONLY,
    )
    smart_model: Text = Field(
        default="",
        description="Model that `mode: smart` asks; if it is empty, a person is asked.",
        json_schema_extra=USER_ONLY,
    )
    smart_endpoint: Text = Field(
        default="",
        description="OpenAI-compatible chat URL of the model `smart_model`; empty for OPENAI_BASE_URL with "
        "OPENAI_API_KEY.",
        json_schema_extra=USER_ONLY,
    )
    smart_clears: Clearance = Field(
        default="low",
        description="Highest severity of a finding that `smart_model` may approve without a person.",
        json_schema_extra=USER_ONLY,
    )
    smart_timeout_seconds: Number = Field(
        default=20.0,
        ge=0.1,
        le=300,
        description="How long to wait for `smart_model` before a person is asked.",
        json_schema_extra={"in_project": "lowers"},
    )


class SshSettings(Section):
    """Settings of the `ssh` backend. Empty values are left to the configuration of the ssh client."""

    host: Text = Field(
        default="",
        description="Host name or address of the ssh server, or a host alias in the ssh "
        "client configuration.",
        json_schema_extra=USER_ONLY,
    )
    port: Integer = Field(
        default=0,
        ge=0,
        le=65_535,
        description="Port of the ssh server; 0 for the port in the ssh client configuration.",
        json_schema_extra=USER_ONLY,
    )
    user: Text = Field(
        default="",
        description="User name on the host.",
        json_schema_extra=USER_ONLY,
    )
    identity: Text = Field(
        default="",
        description="File with a private key.",
        json_schema_extra=USER_ONLY,
    )
    known_hosts: Text = Field(
        default="",
        description="File with known ssh host keys; empty for the known_hosts file of the user.",
        json_schema_extra=USER_ONLY,
    )
    home: Text = Field(
        default="",
        description="Directory on the host in which tasks start; empty for the user's home directory.",
        json_schema_extra=USER_ONLY,
    )


class SandboxSettings(Section):
    """Settings of the `sandbox` backend: additional files that commands in the sandbox can read."""

    visible: tuple[PathValue, ...] = Field(
        default=(),
        max_length=200,
        description="More files and directories that commands in the sandbox may read, such "
        "as `~/.config/tool`. Credential files below an added directory stay "
        "hidden unless their own paths are listed.",
        json_schema_extra=USER_ONLY,
    )


class TerminalSettings(Section):
    """Settings of the terminal tool: where commands run, and their limits."""

    backend: BackendName = Field(
        default="local",
        description="Where commands run: on this machine (`local`), in a sandbox on this "
        "machine (`sandbox`), in a container, over ssh, in a cloud sandbox, or "
        "in a backend of an installed package (`plugin:NAME`).",
        json_schema_extra=USER_ONLY,
    )
    environment: tuple[Text, ...] = Field(
        default=(),
        description="Names of environment variables that commands inherit from Toolfold.",
        json_schema_extra=USER_ONLY,
    )
    network: bool = Field(
        default=False,
        description="Let commands in a sandbox or container use the network.",
        json_schema_extra=USER_ONLY,
    )
    image: Text = Field(
        default="",
        description="Image of a container or cloud sandbox; empty for a plain Debian image.",
        json_schema_extra=USER_ONLY,
    )
    memory_mb: Integer = Field(
        default=4_096,
        ge=64,
        le=1_048_576,
        description="Memory limit of a container or cloud sandbox, in MiB.",
        json_schema_extra=USER_ONLY,
    )
    cpus: Number = Field(
        default=0.0,
        ge=0,
        le=1_024,
        description="Number of processors of a container or cloud sandbox; 0 for the default of the backend.",
        json_schema_extra=USER_ONLY,
    )
    keep: bool = Field(
        default=True,
        description="Keep a container or cloud sandbox, with its files, for the next runtime.",
        json_schema_extra=USER_ONLY,
    )
    ssh: SshSettings = Field(default_factory=SshSettings, description="Host of the `ssh` backend.")
    sandbox: SandboxSettings = Field(
        default_factory=SandboxSettings,
        description="Files of this machine that commands in the `sandbox` backend may read.",
    )
    timeout_seconds: Number = Field(
        default=120.0,
        ge=1,
        le=86_400,
        description="Default time limit of a command in the foreground.",
        json_schema_extra={"in_project": "lowers"},
    )
    max_timeout_seconds: Number = Field(
        default=1_800.0,
        ge=1,
        le=86_400,
        description="Highest time limit that a call may request for a command in the foreground.",
        json_schema_extra={"in_project": "lowers"},
    )
    max_processes: Integer = Field(
        default=64,
        ge=1,
        le=64,
        description="Maximum number of background processes of all sessions at the same time.",
        json_schema_extra={"in_project": "lowers"},
    )


class Settings(Section):
    """All settings of a configuration file."""

    tools: ToolsSettings = Field(
        default_factory=ToolsSettings,
        description="Settings of tools: which are shown to the model, and the limits of calls.",
    )
    toolsets: Annotated[dict[ToolsetName, ToolsetSettings], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict,
        description="Your own toolsets, by name.",
        json_schema_extra={"grants": True},
    )
    retrieval: RetrievalSettings = Field(
        default_factory=RetrievalSettings, description="The search index of tools."
    )
    plugins: PluginsSettings = Field(
        default_factory=PluginsSettings, description="Plugins that provide tools."
    )
    skills: SkillsSettings = Field(default_factory=SkillsSettings, description="Directories with skills.")
    files: FilesSettings = Field(
        default_factory=FilesSettings, description="Directories that the file tools may use."
    )
    availability: AvailabilitySettings = Field(
        default_factory=AvailabilitySettings, description="Availability checks of tools."
    )
    approval: ApprovalSettings = Field(
        default_factory=ApprovalSettings,
        description="Which calls need approval, and how approval is requested.",
    )
    terminal: TerminalSettings = Field(
        default_factory=TerminalSettings, description="Where commands run, and their limits."
    )
    web: WebSettings = Field(
        default_factory=WebSettings, description="Web search, and the addresses that web tools may use."
    )
    browser: BrowserSettings = Field(
        default_factory=BrowserSettings, description="The browser, and its limits."
    )
    messages: MessagesSettings = Field(
        default_factory=MessagesSettings, description="People and channels that tools can send messages to."
    )
    images: ImagesSettings = Field(
        default_factory=ImagesSettings, description="Service that makes images from descriptions."
    )
    speech: SpeechSettings = Field(
        default_factory=SpeechSettings, description="Program or service that turns text into speech."
    )
    vision: VisionSettings = Field(
        default_factory=VisionSettings, description="Model that answers questions about images."
    )
    mixture: MixtureSettings = Field(
        default_factory=MixtureSettings,
        description="Models that each answer a hard question, and the model that combines their answers.",
    )
    training: TrainingSettings = Field(
        default_factory=TrainingSettings, description="Training runs of an external trainer."
    )
    homeassistant: HomeAssistantSettings = Field(
        default_factory=HomeAssistantSettings, description="Home Assistant server with your devices."
    )
    cron: CronSettings = Field(default_factory=CronSettings, description="Scheduled jobs and their limits.")
    mcp: McpSettings = Field(default_factory=McpSettings, description="MCP servers that provide tools.")
    apis: Apis = Field(
        default_factory=FrozenDict,
        description="APIs, by name, whose operations become tools.",
        json_schema_extra=USER_ONLY,
    )
    gateway: GatewaySettings = Field(
        default_factory=GatewaySettings,
        description="The gateway: one MCP server in front of all configured MCP servers.",
    )
    credentials: CredentialSettings = Field(
        default_factory=CredentialSettings,
        description="Keys that encrypt the credentials of users for MCP servers.",
    )
    proxy: ProxySettings = Field(
        default_factory=ProxySettings,
        description="The model proxy, which reduces the tools in model requests.",
    )
    dashboard: DashboardSettings = Field(
        default_factory=DashboardSettings, description="The dashboard and its usage history."
    )
    agent: AgentSettings = Field(
        default_factory=AgentSettings, description="The agent's model and its limits."
    )
    providers: Annotated[dict[Text, ProviderSettings], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict,
        description="Model providers by name, in addition to the built-in providers.",
        json_schema_extra=USER_ONLY,
    )
    telemetry: TelemetrySettings = Field(
        default_factory=TelemetrySettings, description="Logs, traces and metrics of sessions."
    )
    command_allowlist: tuple[Text, ...] = Field(
        default=(),
        description="Commands that run without approval: exact commands, `rule:NAME` or `kind:NAME`.",
        json_schema_extra=USER_ONLY,
    )
    store: StoreAddress = Field(
        default="sqlite",
        description="Where state is stored: `sqlite` for files on this machine, or the URL of a PostgreSQL "
        "database that several replicas share, such as postgresql://toolfold@db.example.com/toolfold.",
        json_schema_extra=USER_ONLY,
    )
    log_level: LogLevel = Field(
        default="warning",
        description="Minimum level of log messages.",
        json_schema_extra={"grants": True},
    )


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths of Toolfold's files and directories on this machine."""

    config_dir: Path
    state_dir: Path
    cache_dir: Path
    user_file: Path
    project_file: Path | None
    project_dir: Path
    current_dir: Path
    user_paths: tuple[Path, ...] = ()
    """The user's own settings and state, if this configuration does not use them."""


@dataclass(frozen=True, slots=True)
class LoadArguments:
    """The arguments that `load_config` was called with, so that the configuration can be reloaded."""

    overrides: Mapping[str, object] | tuple[str, ...]
    user_file: Path | None
    trusted: bool | None
    trusted_fingerprint: str = ""
    """Fingerprint of the project for which `trusted=True` was passed; it does not apply to other content."""


class Config(Settings):
    """The effective settings, and the origin of each setting."""

    paths: Paths = Field(exclude=True)
    project_trusted: bool = Field(default=False, exclude=True)
    project_vouched_for: bool = Field(default=False, exclude=True)
    loaded_with: Annotated[LoadArguments | None, SkipValidation] = Field(
        default=None, exclude=True, repr=False
    )
    """Arguments of `load_config`; None if the user's settings were not read."""
    warnings: tuple[str, ...] = Field(default=(), exclude=True)
    origins: Annotated[Mapping[str, str], SkipValidation] = Field(
        default_factory=dict, exclude=True, repr=False
    )
    environment: Annotated[Mapping[str, str], SkipValidation] = Field(
        default_factory=dict, exclude=True, repr=False
    )

    @property
    def workspace(self) -> Path:
        """Return the directory that the file tools work in."""
        return self.files.workspace or self.paths.current_dir

    @property
    def plugins_folder(self) -> Path:
        """Return the directory of the user's own plugins."""
        return self.plugins.folder or self.paths.config_dir / "plugins"

    @property
    def own_paths(self) -> tuple[Path, ...]:
        """Return the directories and files with Toolfold's settings, state, cache and plugins."""
        paths = self.paths
        own = (paths.config_dir, paths.state_dir, paths.cache_dir, paths.user_file, self.plugins_folder)
        return (*own, *paths.user_paths)

    def missing_env(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return which of the named environment variables are empty or not set."""
        return tuple(name for name in names if not self.environment.get(name))

    def secret_values(self) -> tuple[str, ...]:
        """Return the secrets in environment variables and in the setting `store`.

        The longest come first, so that no part of one stays visible.
        """
        secrets = {value for name, value in self.environment.items() if _SECRET_NAME.search(name)}
        secrets |= {self.environment.get(name, "") for name in self.messages.url_variables()}
        for value in (*self.environment.values(), self.store):
            for password in _PASSWORD_IN_URL.findall(value):
                secrets |= {password, unquote(password)}
        return tuple(sorted((s for s in secrets if len(s) >= _MIN_SECRET_CHARS), key=lambda s: (-len(s), s)))
