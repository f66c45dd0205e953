"""Check the rules of users and teams for the use of a model and of its provider's key."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from toolfold.errors import shorten
from toolfold.gateway.request_bodies import RequestRefused
from toolfold.gateway.server import RETRY_AFTER_S
from toolfold.gateway.tokens import GatewayClient, TokenStore
from toolfold.proxy.upstreams import Upstream

log = logging.getLogger(__name__)

_MODEL_KEYS = frozenset({"model", "models", "fallbacks"})
"""Keys of request bodies that name a model, or models to be used if the first one is not available."""
_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def limits_models(tokens: TokenStore, client: GatewayClient) -> bool:
    """Return True if rules limit the models of a client. Raises RequestRefused if this is unknown."""
    try:
        return tokens.limits_models(client)
    except OSError as error:
        log.warning("the rules of the client %s cannot be checked: %s", client.name, error)
        raise RequestRefused(
            503,
            "Your rules cannot be checked now: the database cannot be reached.",
            retry_after_s=RETRY_AFTER_S,
        ) from None


async def require_allowed_model(
    tokens: TokenStore,
    client: GatewayClient,
    upstream: Upstream,
    *,
    method: str,
    model: str,
    body: bytes | None,
) -> None:
    """Raise RequestRefused if a rule of the client's user or teams forbids a model request.

    Requests that only read need no model, but permission to use the key of the provider. The log names the
    rule; the client learns only that the model or the key is not allowed.
    """
    if not limits_models(tokens, client):
        return
    provider = "" if upstream.uses_client_key else upstream.provider
    if not model and method in _READING_METHODS:
        _require_allowed_key(tokens, client, provider)
        return
    if not model or (body is not None and await asyncio.to_thread(_names_several_models, body)):
        raise RequestRefused(
            403,
            "You may use only some models, and this request names none that can be read, or several."
            " Name one model in an uncompressed JSON body.",
        )
    if reason := tokens.explain_model_refusal(client, model, provider):
        raise RequestRefused(
            403,
            f"You may not use the model {shorten(model)!r} here. Ask your administrator to allow it.",
            log_text=f"client {client.name}: the model {shorten(model)!r} is refused: {reason}",
        )


def _require_allowed_key(tokens: TokenStore, client: GatewayClient, provider: str) -> None:
    """Raise RequestRefused if a rule forbids a client the configured key; `provider` is empty without one."""
    if provider and (reason := tokens.explain_key_refusal(client, provider)):
        raise RequestRefused(
            403,
            f"You may not use the configured key of the provider {provider!r}. Ask your administrator to"
            " allow it.",
            log_text=f"client {client.name}: the key of the provider {provider!r} is refused: {reason}",
        )


def _names_several_models(body: bytes) -> bool:
    """Return True if a JSON object has several keys that name models.

    Providers differ in which one they read: the last of duplicate keys, keys in upper case, or lists of
    models that are tried one after the other.
    """
    count = 0

    def count_keys(pairs: list[tuple[str, Any]]) -> None:
        nonlocal count  # the outermost object comes last
        count = sum(key.casefold() in _MODEL_KEYS for key, _ in pairs)

    try:
        json.loads(body, object_pairs_hook=count_keys)
    except (ValueError, RecursionError):
        return True
    return count > 1
