"""Find the provider, client and context window for a model name.

A model is named PROVIDER:MODEL. Keys come from the environment or the system keyring and are never logged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolfold.config import Config
from toolfold.config.agent_settings import ProviderSettings
from toolfold.core.errors import ConfigError, closest_names, did_you_mean
from toolfold.core.types import Json
from toolfold.models import get_dialect
from toolfold.models import local_models as local
from toolfold.models.client import AnthropicClient, ModelClient, OpenAIClient
from toolfold.models.model_table import find_limits
from toolfold.models.scripted import load_script

KEYRING_SERVICE = "toolfold"
SCRIPTED_PROVIDER = "scripted"
OPENAI_BASE_URL = "https://api.openai.com/v1"

BUILTIN_PROVIDERS: Mapping[str, ProviderSettings] = {
    "openai": ProviderSettings(dialect="openai", key_env="OPENAI_API_KEY"),
    "responses": ProviderSettings(dialect="responses", key_env="OPENAI_API_KEY"),
    "anthropic": ProviderSettings(dialect="anthropic", key_env="ANTHROPIC_API_KEY"),
    "openrouter": ProviderSettings(
        dialect="openai", base_url="https://openrouter.ai/api/v1", key_env="OPENROUTER_API_KEY"
    ),
    "ollama": ProviderSettings(dialect="openai", base_url="http://127.0.0.1:11434/v1"),
    "vllm": ProviderSettings(dialect="openai", base_url="http://127.0.0.1:8000/v1"),
    "llamacpp": ProviderSettings(dialect="openai", base_url="http://127.0.0.1:8080/v1"),
    local.PROVIDER_NAME: ProviderSettings(dialect="openai"),
}
_BASE_URL_VARIABLES = {
    "openai": "OPENAI_BASE_URL",
    "responses": "OPENAI_BASE_URL",
    "anthropic": "ANTHROPIC_BASE_URL",
}
_LISTING_KEYS = (
    "context_length",
    "max_context_length",
    "context_window",
    "max_model_len",
    "max_input_tokens",
)
_MIN_LISTED_CONTEXT = 256


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model and the provider that serves it."""

    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}:{self.model}"


def parse_model_name(text: str, config: Config, *, key: str = "agent.model") -> ModelName:
    """Return the provider and model for a name such as PROVIDER:MODEL. Raises ConfigError if unknown.

    `key` is the setting that the name comes from, for the error.
    """
    provider, separator, model = text.strip().partition(":")
    known = known_providers(config)
    if provider == SCRIPTED_PROVIDER and model:
        return ModelName(provider, model)
    if separator and provider in known and model:
        return ModelName(provider, model)
    if not separator and (guessed := _guess_provider(provider)):
        return ModelName(guessed, provider)
    names = sorted({*known, SCRIPTED_PROVIDER})
    hint = did_you_mean(closest_names(provider, names)) if separator else " Write it as PROVIDER:MODEL."
    raise ConfigError(
        f"{text!r} names no known model provider.{hint} Known providers: {', '.join(names)}.",
        key=key,
    )


def known_providers(config: Config) -> dict[str, ProviderSettings]:
    """Return built-in and configured providers; a configured provider replaces a built-in one of its name."""
    return {**BUILTIN_PROVIDERS, **config.providers}


def list_variables(config: Config) -> list[str]:
    """Return the environment variables with keys and URLs of model providers."""
    keys = [each.key_env for each in known_providers(config).values() if each.key_env]
    return [*keys, *_BASE_URL_VARIABLES.values()]


def build_client(name: ModelName, config: Config) -> ModelClient:
    """Return a client for the model's provider. Raises ConfigError if its API key is missing."""
    if name.provider == SCRIPTED_PROVIDER:
        return load_script(Path(name.model).expanduser())
    settings = known_providers(config)[name.provider]
    dialect = get_dialect(settings.dialect)
    is_builtin = settings is BUILTIN_PROVIDERS.get(name.provider)
    if is_builtin and name.provider == local.PROVIDER_NAME:
        return local.LocalClient(name.model)
    base_url = _find_base_url(name.provider, settings, config) or None
    client = AnthropicClient if dialect.name == "anthropic" else OpenAIClient
    return client(
        name.provider,
        dialect,
        base_url=base_url,
        api_key=find_key(name.provider, settings, config),
        timeout_s=settings.timeout_seconds,
    )


def find_embeddings_service(config: Config) -> tuple[str, str]:
    """Return the URL and key of the embeddings endpoint of the auxiliary model's provider.

    Without an auxiliary model, it is the service in OPENAI_BASE_URL. Raises ConfigError if there is neither,
    so that no service is contacted that the user has not configured.
    """
    setting, environment = "tools.rag_embed_model", config.environment
    if not config.agent.auxiliary_model:
        base_url, key = environment.get("OPENAI_BASE_URL", ""), environment.get("OPENAI_API_KEY", "")
    else:
        provider = parse_model_name(
            config.agent.auxiliary_model, config, key="agent.auxiliary_model"
        ).provider
        settings = known_providers(config).get(provider, ProviderSettings(dialect="anthropic"))
        if settings.dialect == "anthropic" or provider == local.PROVIDER_NAME:
            raise ConfigError(
                f"the provider {provider!r} of agent.auxiliary_model offers no embeddings",
                key=setting,
                hint="use `embedded`, or another provider for agent.auxiliary_model",
            )
        base_url = _find_base_url(provider, settings, config) or OPENAI_BASE_URL
        key = find_key(provider, settings, config)
    if not base_url:
        raise ConfigError(
            "`auxiliary` means the provider of agent.auxiliary_model, which is not set",
            key=setting,
            hint="set agent.auxiliary_model or the environment variable OPENAI_BASE_URL",
        )
    return f"{base_url.rstrip('/')}/embeddings", key


def _find_base_url(provider: str, settings: ProviderSettings, config: Config) -> str:
    """Return the provider's base URL from its settings or the environment; empty for the default."""
    is_builtin = settings is BUILTIN_PROVIDERS.get(provider)
    variable = _BASE_URL_VARIABLES.get(provider, "") if is_builtin else ""
    return settings.base_url or config.environment.get(variable, "")


def find_key(provider: str, settings: ProviderSettings, config: Config) -> str:
    """Return the provider's API key from the environment or keyring; empty if none is required."""
    if settings.key_env and (key := config.environment.get(settings.key_env)):
        return key
    if settings.key_name and (key := _read_keyring(settings.key_name)):
        return key
    if settings.key_env or settings.key_name:
        places = [f"set the environment variable {settings.key_env}"] if settings.key_env else []
        places += [f"store it in the keyring as {settings.key_name!r}"] if settings.key_name else []
        raise ConfigError(
            f"there is no key for the model provider {provider!r}",
            key=f"providers.{provider}",
            hint=" or ".join(places),
        )
    return ""


def has_key(provider: str, config: Config) -> bool:
    """Return True if the provider's API key is available or not required."""
    try:
        find_key(provider, known_providers(config)[provider], config)
    except ConfigError:
        return False
    return True


def _read_keyring(name: str) -> str:
    try:
        import keyring
    except ImportError:
        return ""
    return keyring.get_password(KEYRING_SERVICE, name) or ""


def _guess_provider(model: str) -> str:
    lowered = model.lower()
    if lowered.startswith("claude"):
        return "anthropic"
    return "openai" if lowered.startswith(("gpt", "o1", "o3", "o4", "chatgpt")) else ""


async def find_context_tokens(name: ModelName, config: Config, client: ModelClient) -> int | None:
    """Return a model's context window: from the shipped table, the provider's model list or the settings."""
    return await find_published_context(name, client) or config.agent.context_tokens


async def find_published_context(name: ModelName, client: ModelClient) -> int | None:
    """Return a model's context window from the shipped table or the provider's model list."""
    if limits := find_limits(name.model):
        return limits.context
    try:
        listing = await client.list_models()
    except Exception:  # most compatible servers list no sizes, and some list no models
        listing = []
    return read_listed_context(listing, name.model)


def read_listed_context(listing: list[Json], model: str) -> int | None:
    """Return a model's context window from the provider's model list; None if it is not listed."""
    for entry in listing:
        if entry.get("id") != model:
            continue
        sources = [entry, entry.get("meta") or {}, entry.get("top_provider") or {}]
        for source in sources:
            for key in (*_LISTING_KEYS, "n_ctx_train", "n_ctx"):
                value = source.get(key) if isinstance(source, dict) else None
                if isinstance(value, int) and value >= _MIN_LISTED_CONTEXT:
                    return value
    return None
