"""The typed tree of settings: names, defaults, ranges, and what each one is for.

Reads nothing: no file, no environment. A value outside its range is invalid here; it is the loader
that clamps it and says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
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

from toolfold.config.agent import AgentSettings, ProviderSettings
from toolfold.config.allowed_tools import AllowedToolEntry
from toolfold.config.gateway import GatewaySettings
from toolfold.config.kinds import (
    USER_ONLY,
    Integer,
    Number,
    PathValue,
    Section,
    Text,
    check_text,
    lower_text,
    parse_switch,
)
from toolfold.config.servers import McpSettings
from toolfold.model import FrozenDict

# Not PWD, SSH_AUTH_SOCK and GIT_ASKPASS, which hold paths.
_SECRET_NAME = re.compile(
    "KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE"
    "|(?<!ASK)PASS$|_PWD$|(?:^|_)(?:AUTH|DSN|PAT)$",
    re.IGNORECASE,
)
_PASSWORD_IN_URL = re.compile(r"://[^\s/?#:@]*:([^\s/?#]+)@")
_MIN_SECRET_CHARS = 8

# Refusing a wish is the worse error, and sets differ: half a percent of one unseen set's are below this, so
# that another's may be four times as many. `training/README.md` has the curve.
DEFAULT_NEED_THRESHOLD = 0.025

GATEWAY_MAX_TOOLS = 30

BUILTIN_MODELS = ("embedded", "light", "auxiliary")
"""What `rag_embed_model` may be beside the name of a service's model."""


def expand_tool_search(value: Any) -> Any:
    """`tool_search` as one word in its long form; a map as it is.

    The word `on` means on. What says no more than that there shall be one, `true`, means auto.
    """
    if not isinstance(value, (bool, int, float, str)):
        return value
    word = parse_switch(value)
    return {"enabled": "auto" if word == "on" and lower_text(value) != "on" else word}


def _parse_threshold(value: Any) -> Any:
    """`off` asks for nothing, `on` for what is usual."""
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
Switch = Annotated[
    Literal["auto", "on", "off"],
    BeforeValidator(parse_switch),
    WithJsonSchema({"enum": ["auto", "on", "off", True, False]}),
]
Selection = Annotated[Literal["eager", "hybrid", "semantic", "keyword"], BeforeValidator(lower_text)]
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

BackendName = Annotated[
    Literal[
        "local",
        "sandbox",
        "docker",
        "podman",
        "ssh",
        "apptainer",
        "singularity",
        "modal",
        "daytona",
    ],
    BeforeValidator(lower_text),
]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lower_text)]


class RerankerSettings(Section):
    """An embedding service that puts the hits of a search into a better order."""

    enabled: bool = Field(
        default=False,
        description="Whether the hits of a tool search are sent to a service that reorders them.",
        json_schema_extra={"grants": True},
    )
    endpoint: Text = Field(
        default="http://localhost:11434/v1/embeddings",
        description="The address of that service.",
        json_schema_extra={"grants": True},
    )
    mode: SearchMode = Field(
        default="rerank",
        description="How a tool search orders its hits when the service is enabled: `rerank` asks it.",
    )
    model: Text = Field(
        default="nomic-embed-text-v2-moe", description="The name of the model the service runs."
    )


class ToolSearchSettings(Section):
    """Bridge tools that let the model find tools it was not shown."""

    enabled: Switch = Field(
        default="auto",
        description="Whether tools are hidden behind a search: always, never, or once they are too many.",
    )
    threshold_pct: Number = Field(
        default=10.0,
        ge=0,
        le=100,
        description="How much of the context window, in percent, tools may take before `auto` hides them.",
    )
    threshold_tokens: Integer = Field(
        default=20_000,
        ge=0,
        le=10_000_000,
        description="How many tokens tools may take before `auto` hides them, however large the window.",
    )
    threshold_tools: Integer = Field(
        default=0,
        ge=0,
        le=100_000,
        description="How many tools may be shown before `auto` hides them; 0 for any number. A gateway hides"
        " more than 30, unless this is set.",
    )
    always_load: tuple[Text, ...] = Field(
        default=(), description="Tools and toolsets that are never hidden behind the search."
    )
    defer: tuple[Text, ...] = Field(
        default=(),
        description="Tools and toolsets that may be hidden although they are the runtime's own.",
    )
    listing: Switch = Field(
        default="off",
        description="Whether the model is told the sources: `on`, as many as fit; `auto`, if all of them do.",
    )
    listing_max_tokens: Integer = Field(
        default=300, ge=20, le=5_000, description="How many tokens that list may take."
    )
    max_search_limit: Integer = Field(
        default=20, ge=1, le=50, description="The most hits the model may ask one search for."
    )
    search_default_limit: Integer = Field(
        default=5,
        ge=1,
        le=50,
        validate_default=True,
        description="How many hits a search returns when the model does not say.",
    )
    reranker: RerankerSettings = Field(
        default_factory=RerankerSettings, description="An embedding service that reorders the hits."
    )

    @field_validator("search_default_limit")
    @classmethod
    def _cap_default_limit(cls, value: int, info: ValidationInfo) -> int:
        return min(value, int(info.data.get("max_search_limit", value)))

    def max_shown_tools(self, *, behind_gateway: bool) -> int | None:
        """Return how many deferrable tools are shown at most; None for any number."""
        if behind_gateway and "threshold_tools" not in self.model_fields_set:
            return GATEWAY_MAX_TOOLS
        return self.threshold_tools or None

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "boolean"}, {"enum": ["auto", "on", "off"]}, handler(core)]}


class ToolsSettings(Section):
    """Which tools there are, which of them a model sees, and how a call is bounded."""

    selection: Selection = Field(
        default="eager",
        description="How the tools a model sees are chosen: all of them, or those that fit its task.",
    )
    rag_top_k: Integer = Field(
        default=8, ge=1, le=50, description="How many tools are chosen when `selection` is not eager."
    )
    rag_max_tokens: Integer = Field(
        default=6_000,
        ge=100,
        le=1_000_000,
        description="How many tokens the chosen tools may take; one that a message names is shown anyway.",
    )
    rag_need: Threshold = Field(
        default=DEFAULT_NEED_THRESHOLD,
        ge=0,
        le=1,
        description="How likely it must be that a message needs a tool; `off` chooses for every message.",
    )
    rag_placement: Placement = Field(
        default="auto",
        description="Where the chosen tools stand: in the tools array, anew or at the end of one that grows,"
        " or beside the user's message; `auto`, where they cost least with the model.",
    )
    rag_append_max: Integer = Field(
        default=48,
        ge=1,
        le=1_000,
        description="How many chosen tools an array that grows may hold before it begins anew.",
    )
    rag_native: bool = Field(
        default=False,
        description="Whether a provider's own form for tools that come late is used where it has one.",
    )
    pinned: tuple[Text, ...] = Field(
        default=("terminal", "read_file", "search_files"),
        description="Tools that are shown for every message, whatever `selection` says.",
    )
    rag_embed_model: Text = Field(
        default="embedded",
        description="What turns text into vectors: `embedded`, `light`, `auxiliary`, or a model's name.",
        json_schema_extra={"grants": True},
    )
    synonyms: Annotated[dict[Text, Phrases], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict,
        description="Words that people use for a tool, or for all tools of a toolset or server, by its name.",
    )
    tool_search: Annotated[ToolSearchSettings, BeforeValidator(expand_tool_search)] = Field(
        default_factory=ToolSearchSettings,
        description="A search the model uses to find tools it was not shown.",
    )
    disabled: tuple[Text, ...] = Field(
        default=(),
        description="Tools and toolsets that are switched off for every session.",
        json_schema_extra={"in_project": "adds"},
    )
    enabled_toolsets: tuple[Text, ...] | None = Field(
        default=None,
        description="The only toolsets a session may use, or null for all of them.",
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
        description="How long one call may take.",
        json_schema_extra={"in_project": "lowers"},
    )
    max_parallel: Integer = Field(
        default=8,
        ge=1,
        le=64,
        description="How many calls of one reply may run at the same time.",
        json_schema_extra={"in_project": "lowers"},
    )
    result_max_chars: Integer = Field(
        default=50_000,
        ge=1_000,
        le=10_000_000,
        description="How many characters of a result the model is given.",
        json_schema_extra={"in_project": "lowers"},
    )


class ToolsetSettings(Section):
    """A bundle of tools under one name."""

    description: Text = Field(default="", description="What the bundle is for.")
    tools: tuple[Text, ...] = Field(default=(), description="The tools in it.")
    includes: tuple[Text, ...] = Field(
        default=(), description="Other toolsets whose tools belong to it as well."
    )


class PluginsSettings(Section):
    """Code from elsewhere that brings tools."""

    enabled: bool = Field(
        default=True,
        description="Whether plugins are loaded.",
        json_schema_extra=USER_ONLY,
    )
    disabled: tuple[Text, ...] = Field(
        default=(),
        description="Plugins that are not loaded.",
        json_schema_extra=USER_ONLY,
    )
    folder: PathValue | None = Field(
        default=None,
        description="Where your own plugins lie, or null for `plugins` in the configuration folder.",
        json_schema_extra=USER_ONLY,
    )


class FilesSettings(Section):
    """Where the file tools may work."""

    workspace: PathValue | None = Field(
        default=None,
        description="The folder the file tools work in, or null for the current one.",
        json_schema_extra={"grants": True, "in_project": "inside"},
    )
    extra_roots: tuple[PathValue, ...] = Field(
        default=(),
        description="More folders the file tools may read and write.",
        json_schema_extra={"grants": True, "in_project": "inside"},
    )


class AvailabilitySettings(Section):
    """How it is found out whether a tool can be used."""

    timeout_seconds: Number = Field(
        default=5.0,
        ge=0.01,
        le=60,
        description="How long a tool's check may take.",
        json_schema_extra={"in_project": "lowers"},
    )
    grace_seconds: Number = Field(
        default=30.0,
        ge=0,
        le=3600,
        description="How long a tool stays listed, but not callable, after its check begins to fail.",
        json_schema_extra={"in_project": "lowers"},
    )


class ApprovalSettings(Section):
    """What is asked about before it runs, and how a person is asked."""

    mode: ApprovalMode = Field(
        default="manual",
        description="Who decides about a dangerous call: a person; a model first, for what is of low risk;"
        " or, with `off`, nobody. The hard floor and `deny` hold in every mode.",
        json_schema_extra=USER_ONLY,
    )
    timeout_seconds: Number = Field(
        default=300.0,
        ge=1,
        le=86_400,
        description="How long a question waits for an answer before it counts as a no.",
        json_schema_extra={"in_project": "lowers"},
    )
    deny: tuple[Text, ...] = Field(
        default=(),
        description="What is never run: commands as globs, `tool:NAME`, `rule:NAME` or `category:NAME`.",
        json_schema_extra={"in_project": "adds"},
    )
    rules: tuple[dict[str, Any], ...] = Field(
        default=(),
        description="Your own rules for what somebody must see, beside those that come with the package.",
        json_schema_extra={"in_project": "adds"},
    )
    isolated: tuple[ConfinableCategory, ...] = Field(
        default=(),
        description="Categories that run unasked, on record, where a sandbox or a container keeps them in."
        " What leaves such a place, or reaches what is shared with it, is asked about.",
        json_schema_extra=USER_ONLY,
    )
    trusted_servers: tuple[Text, ...] = Field(
        default=(),
        description="MCP servers that are believed when they call a tool of theirs harmless.",
        json_schema_extra=USER_ONLY,
    )
    allowed_tools: tuple[AllowedToolEntry, ...] = Field(
        default=(),
        description="Tools that may destroy data without a question, as `toolfold approvals allow` writes"
        " them: `tool:NAME` or `server:NAME`, with `client=NAME` or `project=/DIRECTORY` behind it.",
        json_schema_extra=USER_ONLY,
    )
    smart_model: Text = Field(
        default="",
        description="The model that `mode: smart` asks; without one, a person is asked.",
        json_schema_extra=USER_ONLY,
    )
    smart_endpoint: Text = Field(
        default="",
        description="Its OpenAI-compatible chat address; empty for OPENAI_BASE_URL with OPENAI_API_KEY.",
        json_schema_extra=USER_ONLY,
    )
    smart_clears: Clearance = Field(
        default="low",
        description="The highest severity that the model may clear in a person's place.",
        json_schema_extra=USER_ONLY,
    )
    smart_timeout_seconds: Number = Field(
        default=20.0,
        ge=0.1,
        le=300,
        description="How long the model may take before a person is asked instead.",
        json_schema_extra={"in_project": "lowers"},
    )


class SshSettings(Section):
    """Which machine `ssh` goes to. What is empty is for the ssh client's own settings to say."""

    host: Text = Field(
        default="",
        description="The machine, or its name in the settings of the ssh client.",
        json_schema_extra=USER_ONLY,
    )
    port: Integer = Field(
        default=0,
        ge=0,
        le=65_535,
        description="Its port.",
        json_schema_extra=USER_ONLY,
    )
    user: Text = Field(
        default="",
        description="As whom commands run there.",
        json_schema_extra=USER_ONLY,
    )
    identity: Text = Field(
        default="",
        description="A file with a private key.",
        json_schema_extra=USER_ONLY,
    )
    known_hosts: Text = Field(
        default="",
        description="A file with the keys of hosts; the user's own where it is empty.",
        json_schema_extra=USER_ONLY,
    )
    home: Text = Field(
        default="",
        description="The folder there in which tasks begin; the user's home where it is empty.",
        json_schema_extra=USER_ONLY,
    )


class SandboxSettings(Section):
    """What a sandbox on this machine shows beside the project and the system."""

    visible: tuple[PathValue, ...] = Field(
        default=(),
        max_length=200,
        description="More files and folders that commands in the sandbox may read, such as `~/.config/tool`."
        " Credentials below an added folder stay hidden unless they are named themselves.",
        json_schema_extra=USER_ONLY,
    )


class TerminalSettings(Section):
    """Where commands run, and how they are bounded."""

    backend: BackendName = Field(
        default="local",
        description="Where commands run: on this machine, in a sandbox on it, or in another place.",
        json_schema_extra=USER_ONLY,
    )
    environment: tuple[Text, ...] = Field(
        default=(),
        description="Variables of the runtime's own environment that commands are given, by name.",
        json_schema_extra=USER_ONLY,
    )
    network: bool = Field(
        default=False,
        description="Whether commands in a sandbox or a container may use the network.",
        json_schema_extra=USER_ONLY,
    )
    image: Text = Field(
        default="",
        description="The image of a container or of a sandbox elsewhere; empty for a plain Debian.",
        json_schema_extra=USER_ONLY,
    )
    memory_mb: Integer = Field(
        default=4_096,
        ge=64,
        le=1_048_576,
        description="How much memory a container or a sandbox elsewhere may use, in MiB.",
        json_schema_extra=USER_ONLY,
    )
    cpus: Number = Field(
        default=0.0,
        ge=0,
        le=1_024,
        description="How many processors it may use; 0 for what is usual there.",
        json_schema_extra=USER_ONLY,
    )
    keep: bool = Field(
        default=True,
        description="Whether a container or a sandbox elsewhere stays for the next runtime, with its files.",
        json_schema_extra=USER_ONLY,
    )
    ssh: SshSettings = Field(default_factory=SshSettings, description="Which machine `ssh` goes to.")
    sandbox: SandboxSettings = Field(
        default_factory=SandboxSettings, description="What a sandbox on this machine shows of its files."
    )
    timeout_seconds: Number = Field(
        default=120.0,
        ge=1,
        le=86_400,
        description="How long a command in the foreground may take where nobody says otherwise.",
        json_schema_extra={"in_project": "lowers"},
    )
    max_timeout_seconds: Number = Field(
        default=1_800.0,
        ge=1,
        le=86_400,
        description="How long it may take at most, whoever says otherwise.",
        json_schema_extra={"in_project": "lowers"},
    )
    max_processes: Integer = Field(
        default=64,
        ge=1,
        le=64,
        description="How many background processes may run at the same time.",
        json_schema_extra={"in_project": "lowers"},
    )


class Settings(Section):
    """Everything a configuration file may say."""

    tools: ToolsSettings = Field(
        default_factory=ToolsSettings, description="Which tools there are and how calls are bounded."
    )
    toolsets: Annotated[dict[ToolsetName, ToolsetSettings], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict,
        description="Your own bundles of tools, by name.",
        json_schema_extra={"grants": True},
    )
    plugins: PluginsSettings = Field(
        default_factory=PluginsSettings, description="Code from elsewhere that brings tools."
    )
    files: FilesSettings = Field(default_factory=FilesSettings, description="Where the file tools may work.")
    availability: AvailabilitySettings = Field(
        default_factory=AvailabilitySettings, description="How it is found out whether a tool can be used."
    )
    approval: ApprovalSettings = Field(
        default_factory=ApprovalSettings, description="What is asked about before it runs, and how."
    )
    terminal: TerminalSettings = Field(
        default_factory=TerminalSettings, description="Where commands run, and how they are bounded."
    )
    mcp: McpSettings = Field(
        default_factory=McpSettings, description="Servers that bring tools over the MCP protocol."
    )
    gateway: GatewaySettings = Field(
        default_factory=GatewaySettings, description="One MCP server in front of all, for every client."
    )
    agent: AgentSettings = Field(
        default_factory=AgentSettings, description="The agent's model, and how far it may go."
    )
    providers: Annotated[dict[Text, ProviderSettings], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict,
        description="Model providers by name, beside the built-in ones.",
        json_schema_extra=USER_ONLY,
    )
    command_allowlist: tuple[Text, ...] = Field(
        default=(),
        description="What is never asked about again: exact commands, rule:NAME or kind:NAME.",
        json_schema_extra=USER_ONLY,
    )
    log_level: LogLevel = Field(
        default="warning",
        description="How much is written to the log.",
        json_schema_extra={"grants": True},
    )


@dataclass(frozen=True, slots=True)
class Paths:
    """Where everything lies on this machine."""

    config_dir: Path
    state_dir: Path
    cache_dir: Path
    user_file: Path
    project_file: Path | None
    project_dir: Path
    current_dir: Path


class Config(Settings):
    """The settings in force, and how they came to be."""

    paths: Paths = Field(exclude=True)
    project_trusted: bool = Field(default=False, exclude=True)
    project_vouched_for: bool = Field(default=False, exclude=True)
    warnings: tuple[str, ...] = Field(default=(), exclude=True)
    origins: Annotated[Mapping[str, str], SkipValidation] = Field(
        default_factory=dict, exclude=True, repr=False
    )
    environment: Annotated[Mapping[str, str], SkipValidation] = Field(
        default_factory=dict, exclude=True, repr=False
    )

    @property
    def workspace(self) -> Path:
        """The folder the file tools work in."""
        return self.files.workspace or self.paths.current_dir

    @property
    def plugins_folder(self) -> Path:
        """Where the user's own plugins lie."""
        return self.plugins.folder or self.paths.config_dir / "plugins"

    def missing_env(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the variables that are not set, or set to nothing."""
        return tuple(name for name in names if not self.environment.get(name))

    def secret_values(self) -> tuple[str, ...]:
        """What must never be shown: longest first, so that no part of one survives redaction."""
        secrets = {value for name, value in self.environment.items() if _SECRET_NAME.search(name)}
        for value in self.environment.values():
            for password in _PASSWORD_IN_URL.findall(value):
                secrets |= {password, unquote(password)}
        return tuple(sorted((s for s in secrets if len(s) >= _MIN_SECRET_CHARS), key=lambda s: (-len(s), s)))
