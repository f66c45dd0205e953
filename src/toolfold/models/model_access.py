"""Send a single question to a configured model, for tools that use models.

Each question opens and closes a client of its own. Problems become errors that a model can act on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from toolfold.config import Config
from toolfold.core.errors import CallError, ConfigError, shorten
from toolfold.core.types import Media
from toolfold.models.client import ModelClient, RetryPolicy, call_model
from toolfold.models.model_names import (
    SCRIPTED_PROVIDER,
    ModelName,
    build_client,
    has_key,
    known_providers,
    parse_model_name,
)
from toolfold.models.provider_errors import ProviderError
from toolfold.models.reply import ModelRequest, Reply

MAX_ATTEMPTS = 2
MAX_ERROR_CHARS = 300


class ModelFailed(CallError):
    """A model is not configured, cannot be reached, or did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelQuestion:
    """A question to a model, without history and tools."""

    text: str
    system: str = ""
    images: Sequence[Media] = ()
    max_output_tokens: int = 4_096
    timeout_s: float = 120.0


class ModelAccess:
    """Sends questions to configured models, which are named PROVIDER:MODEL."""

    def __init__(self, config: Config) -> None:
        self._config = config

    @property
    def default_model(self) -> str:
        """Return the model configured for the agent; empty if there is none."""
        return self._config.agent.model

    def check(self, model: str, key: str) -> None:
        """Raise ModelFailed if the provider of a model is unknown or its API key is missing."""
        if not model:
            raise ModelFailed(f"No model is configured: set {key}, for example to openai:gpt-5-mini.")
        name = self._parse(model, key)
        if name.provider != SCRIPTED_PROVIDER and not has_key(name.provider, self._config):
            settings = known_providers(self._config)[name.provider]
            where = settings.key_env or f"the keyring entry {settings.key_name!r}"
            raise ModelFailed(f"The key of the model provider {name.provider!r} is missing: set {where}.")

    def is_paid(self, model: str) -> bool:
        """Return True if calls of a model may cost money because its provider requires an API key."""
        try:
            name = self._parse(model, "")
        except ModelFailed:
            return True
        settings = known_providers(self._config).get(name.provider)
        return settings is not None and bool(settings.key_env or settings.key_name)

    async def ask(self, model: str, question: ModelQuestion) -> Reply:
        """Return a model's reply to one question. Raises ModelFailed."""
        name = self._parse(model, "")
        try:
            client = build_client(name, self._config)
        except (ConfigError, ProviderError) as error:
            raise ModelFailed(f"{name} cannot be used: {error}") from None
        try:
            async with asyncio.timeout(question.timeout_s):
                reply = await _send(client, name, question)
        except TimeoutError:
            raise ModelFailed(f"{name} did not answer within {question.timeout_s:g} s.") from None
        except ProviderError as error:
            raise ModelFailed(f"{name} failed: {shorten(str(error), MAX_ERROR_CHARS)}") from None
        finally:
            await client.close()
        if not reply.text.strip():
            raise ModelFailed(f"{name} gave an empty answer ({reply.finish_reason}).")
        return reply

    def _parse(self, model: str, key: str) -> ModelName:
        try:
            return parse_model_name(model, self._config, key=key)
        except ConfigError as error:
            raise ModelFailed(error.problem) from None


async def _send(client: ModelClient, name: ModelName, question: ModelQuestion) -> Reply:
    dialect = client.dialect
    message = (
        dialect.user_message_with_images(question.text, question.images)
        if question.images
        else dialect.user_message(question.text)
    )
    return await call_model(
        client,
        ModelRequest(
            model=name.model,
            system=question.system,
            messages=[message],
            max_output_tokens=question.max_output_tokens,
        ),
        on_delta=lambda _: None,
        on_retry=lambda *_: None,
        on_stream=lambda _: None,
        retries=RetryPolicy(max_attempts=MAX_ATTEMPTS),
    )
