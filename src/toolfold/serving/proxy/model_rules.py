"""Check the rules of users and teams for the use of a model and of its provider's key."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

from toolfold.core.errors import shorten
from toolfold.core.types import GrantLimit
from toolfold.serving.gateway.client_tokens import GatewayClient, TokenStore
from toolfold.serving.gateway.request_bodies import RequestRefused
from toolfold.serving.gateway.server import RETRY_AFTER_S
from toolfold.serving.proxy.json_bodies import Pairs, has_body, has_json_type, read_pairs
from toolfold.serving.proxy.upstreams import Upstream
from toolfold.state.users.directory import MODEL_RULE

log = logging.getLogger(__name__)

_MODEL_KEY = re.compile(r".*(?:model|fallback).*|engine|deployment(?:_id)?|preset|route", re.DOTALL)
"""Keys of request bodies that may name a model, or models to be used if the first one is not available."""
_CONVERSATION_KEYS = frozenset(
    {"input", "messages", "metadata", "prompt", "response_format", "system", "text"}
)
"""Keys of request bodies whose content names no model."""
_SCHEMA_KEYS = frozenset({"function", "input_examples", "input_schema", "parameters"})
_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def limits_models(tokens: TokenStore, client: GatewayClient) -> bool:
    """Return True if rules limit the models of a client. Raises RequestRefused if rules cannot be read."""
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
    path: str,
    headers: Sequence[tuple[bytes, bytes]],
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
    models = [model]
    if method in _READING_METHODS:
        _require_readable_path(tokens, client, path, headers)
        if not model:
            _require_allowed_key(tokens, client, provider)
            return
    elif not model or body is None or not has_json_type(headers):
        raise _refuse_unclear_model()
    else:
        models += await asyncio.to_thread(_list_tool_models, body)
    for each in models:
        if "," in each or not each.isprintable() or each != each.strip():
            raise _refuse_unclear_model()
        if reason := tokens.explain_model_refusal(client, each, provider):
            raise RequestRefused(
                403,
                f"You may not use the model {shorten(each)!r} here. Ask your administrator to allow it.",
                log_text=f"client {client.name}: the model {shorten(each)!r} is refused: {reason}",
            )


def _refuse_unclear_model() -> RequestRefused:
    return RequestRefused(
        403,
        "You may use only some models, and this request names none that can be read, or several."
        " Name one model in an uncompressed JSON body of the type application/json.",
    )


def _require_readable_path(
    tokens: TokenStore, client: GatewayClient, path: str, headers: Sequence[tuple[bytes, bytes]]
) -> None:
    """Raise RequestRefused if a read-only request has a body or a path that model rules do not cover."""
    if has_body(headers):
        raise RequestRefused(403, "You may use only some models, so requests that read must have no body.")
    is_covered = path == "models" or path.startswith("models/")
    rules = tokens.users.directory().find_model_rules(client.user_id, MODEL_RULE)
    if not is_covered and rules != GrantLimit():
        raise RequestRefused(403, "You may use only some models, so you may read only /v1/models.")


def _require_allowed_key(tokens: TokenStore, client: GatewayClient, provider: str) -> None:
    """Raise RequestRefused if a rule forbids the client to use the configured API key of `provider`."""
    if provider and (reason := tokens.explain_key_refusal(client, provider)):
        raise RequestRefused(
            403,
            f"You may not use the configured key of the provider {provider!r}. Ask your administrator to"
            " allow it.",
            log_text=f"client {client.name}: the key of the provider {provider!r} is refused: {reason}",
        )


def _list_tool_models(body: bytes) -> list[str]:
    """Return the models that a request's tools use. Raises RequestRefused if its main model is ambiguous.

    Providers differ in which of several keys they read: the last of duplicate keys, keys in upper case, or
    lists of models that are tried one after the other.
    """
    try:
        content = read_pairs(body)
    except (ValueError, RecursionError):
        raise _refuse_unclear_model() from None
    if sum(_MODEL_KEY.fullmatch(key.casefold()) is not None for key, _ in content) != 1:
        raise _refuse_unclear_model()
    rest = [value for key, value in content if key.casefold() not in {"model", *_CONVERSATION_KEYS}]
    found = list(_find_models(rest))
    for tool in (tool for array in content.select("tools") if isinstance(array, list) for tool in array):
        parameters = tool.select("parameters") if isinstance(tool, Pairs) else []
        found += [name for each in parameters if isinstance(each, Pairs) for name in each.select("model")]
    return [each for each in found if isinstance(each, str)]  # others are parts of a JSON schema


def _find_models(value: Any) -> Iterator[str]:
    """Yield the models named in a part of a request. Raises RequestRefused if a name is not a text."""
    for key, each in value if isinstance(value, Pairs) else ():
        name = key.casefold()
        if name == "model" and isinstance(each, str | None):
            if each is not None:
                yield each
        elif _MODEL_KEY.fullmatch(name):
            raise _refuse_unclear_model()
        elif name not in _SCHEMA_KEYS:
            yield from _find_models(each)
    if isinstance(value, list) and not isinstance(value, Pairs):
        for each in value:
            yield from _find_models(each)
