"""Limit model requests that are sent with a key of the proxy, which all its users share.

For the provider all of them are one account. So only what a model needs to reply is sent with such a key:
known paths, headers and query parameters, and no reference to something stored at the provider, except for
replies that the proxy has recorded as the user's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from toolfold.core.errors import shorten
from toolfold.models.wire import COUNTING_WIRES
from toolfold.serving.gateway.request_bodies import RequestRefused
from toolfold.serving.proxy.json_bodies import Pairs, has_body, has_json_type, read_pairs
from toolfold.serving.proxy.proxy_access import KEY_HEADERS
from toolfold.serving.proxy.spending import COUNTED_PATHS

Headers = list[tuple[bytes, bytes]]

CHECKED_PATHS = frozenset({*COUNTED_PATHS, *COUNTING_WIRES})
"""Paths for inference whose body is read."""
_JSON_PATHS = frozenset({"images/generations", "audio/speech", "moderations", "rerank"})
"""Paths for inference whose body cannot refer to anything stored."""
_FORM_PATHS = frozenset({"images/edits", "audio/transcriptions", "audio/translations"})
_REPLY_PATH = re.compile(r"responses/([\w-]{1,200})(/input_items|/cancel)?", re.ASCII)
_REPLY_METHODS = {None: frozenset({"GET", "DELETE"}), "/input_items": {"GET"}, "/cancel": {"POST"}}

_HEADERS = frozenset(
    {
        *("accept", "accept-encoding", "accept-language", "content-type", "user-agent"),
        *("anthropic-beta", "anthropic-version", "openai-beta", "traceparent", "tracestate"),
    }
)
_ACCOUNT_HEADERS = KEY_HEADERS | {"idempotency-key", "openai-organization", "openai-project"}
"""Headers that identify a client to its own provider."""
_PARAMETERS = frozenset(
    {
        *("api-version", "beta", "include", "include[]", "include_obfuscation", "stream", "starting_after"),
        *("limit", "order", "after", "before", "after_id", "before_id"),
    }
)
_PARAMETER_VALUE = re.compile(r"[\w.~:,-]*", re.ASCII)
_FILE_KEYS = frozenset({"file_id", "file_ids", "vector_store_id", "vector_store_ids"})
_OBJECT_KEYS = frozenset({"conversation", "container", "prompt", "audio"})
"""Keys with the id of a stored object, or an object that contains the id."""
_FREE_KEYS = frozenset(
    {
        *("arguments", "parameters", "input_schema", "schema", "json_schema", "metadata"),
        *("annotations", "citations", "results", "output_schema"),
    }
)
"""Keys whose content belongs to the client's tools, or quotes an earlier reply."""


def select_known_headers(sent: Iterable[tuple[bytes, bytes]], *, uses_client_key: bool) -> Headers:
    """Return the headers that a model needs to reply, and those with the client's key if it is used."""
    known = _HEADERS | _ACCOUNT_HEADERS if uses_client_key else _HEADERS
    return [(name, value) for name, value in sent if name.decode("latin-1").lower() in known]


def select_known_parameters(parameters: Iterable[str]) -> list[str]:
    """Return the query parameters (`name=value`) that a model needs to reply."""
    split = [(each, *each.partition("=")[::2]) for each in parameters]
    return [
        each
        for each, name, value in split
        if unquote(name) in _PARAMETERS and _PARAMETER_VALUE.fullmatch(value)
    ]


def require_shared_path(method: str, path: str, headers: Sequence[tuple[bytes, bytes]]) -> str:
    """Return the id of the stored reply that a request is about; empty if it is about none.

    Raises RequestRefused for a method and path that need a key of the client.
    """
    is_form = any(
        name.lower() == b"content-type" and value.lower().startswith(b"multipart/form-data")
        for name, value in headers
    )
    if method == "POST" and (path in CHECKED_PATHS or path in _JSON_PATHS):
        if has_json_type(headers):
            return ""
        raise RequestRefused(400, "The request must be JSON with the type application/json.")
    if method == "POST" and path in _FORM_PATHS and is_form:
        return ""
    if method in ("GET", "HEAD") and (path == "models" or path.startswith("models/")):
        if not has_body(headers):
            return ""
    elif (found := _REPLY_PATH.fullmatch(path)) and method in _REPLY_METHODS[found[2]]:
        return found[1]
    raise RequestRefused(
        403,
        f"{method} {shorten('/v1/' + path)} is not possible with a key that users of this proxy share: only"
        " requests for replies of models are, and GET /v1/models. Files, batches and other stored data need"
        " a key of your own (`key: client` in proxy.upstreams).",
    )


def list_continued_replies(body: bytes) -> set[str]:
    """Return the ids of the stored replies that a request continues. Slow for a large body.

    Raises RequestRefused if the request cannot be read, or refers to other data stored at the provider.
    """
    try:
        return set(_find_replies(read_pairs(body)))
    except (ValueError, RecursionError):
        raise RequestRefused(400, "The body of the request cannot be read as JSON.") from None


def refuse_unknown_reply(reply_id: str) -> RequestRefused:
    """Return the refusal of a request for a stored reply that is not recorded as the user's own."""
    return RequestRefused(
        404,
        f"The reply {shorten(reply_id)!r} is not known as one of yours. Replies are known for some time, and"
        " until the proxy is restarted; send the messages of the conversation instead of the reply's id.",
    )


def _find_replies(value: Any) -> Iterator[str]:
    """Yield the ids of continued replies in a part of a request. Raises RequestRefused."""
    for key, each in value if isinstance(value, Pairs) else ():
        name = key.casefold()
        if name == "previous_response_id":
            if each is not None:
                yield each if isinstance(each, str) else ""
        elif _refers_to_stored(name, each):
            raise RequestRefused(
                403,
                f"The request refers to data stored at the provider ({name}), which is not possible with a"
                " key that users of this proxy share. Send the data itself.",
            )
        elif name not in _FREE_KEYS and not (name == "input" and isinstance(each, Pairs)):
            yield from _find_replies(each)
    if isinstance(value, list) and not isinstance(value, Pairs):
        for each in value:
            yield from _find_replies(each)


def _refers_to_stored(name: str, value: Any) -> bool:
    """Return True if a key of a request names data stored at the provider."""
    if name in _FILE_KEYS:
        return isinstance(value, str) or (isinstance(value, list) and bool(value))
    if name in _OBJECT_KEYS:
        is_named = name in ("conversation", "container") and isinstance(value, str)
        return is_named or (isinstance(value, Pairs) and _has_text(value, "id"))
    return name == "input" and isinstance(value, list) and any(map(_is_reference, value))


def _is_reference(item: Any) -> bool:
    """Return True if an item of a conversation consists of its id, so that the provider inserts the rest."""
    if not isinstance(item, Pairs) or not _has_text(item, "id"):
        return False
    if {key.casefold() for key, _ in item} <= {"id", "type"} or "item_reference" in item.select("type"):
        return True
    return "image_generation_call" in item.select("type") and not _has_text(item, "result")


def _has_text(value: Pairs, key: str) -> bool:
    return any(isinstance(each, str) for each in value.select(key))
