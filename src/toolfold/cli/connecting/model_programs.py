"""Programs that can send their model requests through the proxy, and the settings for that.

Each program has one settings file with base URLs of model APIs. Only URLs and names of environment variables
are written, never keys or tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from toolfold.cli.connecting.client_file import ProgramName
from toolfold.core.errors import ConfigError
from toolfold.core.types import Json
from toolfold.mcp.importing import CLIENTS, user_config_file
from toolfold.mcp.importing.import_types import ClientName

ApiName = Literal["openai", "anthropic"]
TOKEN_HEADER = "X-Toolfold-Token"  # noqa: S105 - the name of a header
_OPENCODE_OPTIONS = ("provider.openai.options", "provider.anthropic.options")


@dataclass(frozen=True, slots=True)
class ProxyAccess:
    """A program's access to the proxy: URL, token variable, and whether the proxy shortens tool lists."""

    url: str
    """URL of the proxy without a path."""
    folds_tools: bool = True
    """True if the proxy shortens the tools of requests; False if it forwards all requests unchanged."""
    token_variable: str = ""
    """Name of the environment variable with the access token; the token itself is never stored."""


Locate = Callable[[Path, str, Mapping[str, str]], Path]
"""Returns a settings file, from the home directory, the platform and the environment."""


@dataclass(frozen=True, slots=True)
class ModelProgram:
    """A program that sends requests to models, and the settings that make it use the proxy."""

    title: str
    locate: Locate
    build_settings: Callable[[ProxyAccess], Json]
    """Function that returns the settings to write, by their dotted paths."""
    url_settings: Mapping[str, ApiName]
    """Paths of the settings that contain base URLs, and the model API at each URL."""
    suffixes: tuple[str, ...]
    """File name suffixes that its settings files can have."""
    key_note: str
    """Explanation for the user of which API key the program sends."""
    access_note: str = ""
    """Explanation of how to send a token, if the settings cannot name an environment variable for it."""


def _locate_client(client: ClientName) -> Locate:
    return lambda home, platform, environment: user_config_file(
        client, home=home, platform=platform, environment=environment
    )


def _locate_claude_code(home: Path, _platform: str, environment: Mapping[str, str]) -> Path:
    return Path(environment.get("CLAUDE_CONFIG_DIR") or home / ".claude") / "settings.json"


def _build_claude_code(access: ProxyAccess) -> Json:
    url: Json = {"env.ANTHROPIC_BASE_URL": access.url}
    # Tools that Claude Code defers itself are not folded.
    return {**url, "env.ENABLE_TOOL_SEARCH": "false"} if access.folds_tools else url


def _build_codex(access: ProxyAccess) -> Json:
    provider: Json = {
        "name": "Toolfold",
        "base_url": f"{access.url}/v1",
        "wire_api": "responses",
        "env_key": "OPENAI_API_KEY",
    }
    if access.token_variable:
        provider["env_http_headers"] = {TOKEN_HEADER: access.token_variable}
    return {"model_provider": "toolfold", "model_providers.toolfold": provider}


def _build_opencode(access: ProxyAccess) -> Json:
    settings: Json = {}
    for path in _OPENCODE_OPTIONS:
        settings[f"{path}.baseURL"] = f"{access.url}/v1"
        if access.token_variable:
            settings[f"{path}.headers"] = {TOKEN_HEADER: f"{{env:{access.token_variable}}}"}
    return settings


MODEL_PROGRAMS: Mapping[ProgramName, ModelProgram] = MappingProxyType(
    {
        "claude-code": ModelProgram(
            "Claude Code",
            _locate_claude_code,
            _build_claude_code,
            {"env.ANTHROPIC_BASE_URL": "anthropic"},
            (".json",),
            key_note="Claude Code sends the key or login that it uses now.",
            access_note=f'set ANTHROPIC_CUSTOM_HEADERS="{TOKEN_HEADER}: $NAME" in the environment of'
            " Claude Code",
        ),
        "codex": ModelProgram(
            "Codex",
            _locate_client("codex"),
            _build_codex,
            {"model_providers.toolfold.base_url": "openai"},
            (".toml",),
            key_note="Codex sends the key in OPENAI_API_KEY. A login with ChatGPT does not work through the"
            " proxy.",
        ),
        "opencode": ModelProgram(
            "opencode",
            _locate_client("opencode"),
            _build_opencode,
            {f"{path}.baseURL": api for path, api in zip(_OPENCODE_OPTIONS, get_args(ApiName), strict=True)},
            (".json", ".jsonc"),
            key_note="opencode sends the keys that it uses now. Its other providers are not changed.",
        ),
        "goose": ModelProgram(
            "Goose",
            _locate_client("goose"),
            lambda access: {"OPENAI_HOST": access.url, "ANTHROPIC_HOST": access.url},
            {"OPENAI_HOST": "openai", "ANTHROPIC_HOST": "anthropic"},
            (".yaml", ".yml"),
            key_note="Goose sends the keys that it uses now.",
            access_note="use the token as the API key of Goose, because it cannot send one beside a key",
        ),
        "aider": ModelProgram(
            "aider",
            lambda home, _platform, _environment: home / ".aider.conf.yml",
            lambda access: {"openai-api-base": f"{access.url}/v1"},
            {"openai-api-base": "openai"},
            (".yml", ".yaml"),
            key_note="aider sends the key that it uses now, for models of OpenAI's API only."
            " For Anthropic's, set ANTHROPIC_API_BASE in its environment.",
            access_note="use the token as the API key of aider, because it cannot send one beside a key",
        ),
    }
)


def find_program(name: ProgramName) -> ModelProgram:
    """Return the program with this name. Raises ConfigError if the program cannot use the proxy."""
    if name in MODEL_PROGRAMS:
        return MODEL_PROGRAMS[name]
    title = CLIENTS[name].title if name != "aider" else name
    if name == "gemini":
        problem = f"{title} uses Google's API, which the model proxy does not serve"
    else:
        problem = f"{title} has no settings file in which the URL of its model API can be set"
    raise ConfigError(problem, hint=f"Programs that can use the proxy: {', '.join(MODEL_PROGRAMS)}.")


def get_setting(document: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path in a parsed settings file; None if the path does not exist."""
    value: Any = document
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def find_token_variable(settings: Any) -> str:
    """Return the name of the environment variable from which settings take the token; empty if none."""
    if not isinstance(settings, Mapping):
        return ""
    if isinstance(reference := settings.get(TOKEN_HEADER), str):
        return reference.removeprefix("{env:").removesuffix("}")
    return next(filter(None, map(find_token_variable, settings.values())), "")
