"""Build the text that an embedding model reads for a tool or a message.

Training and the product use the same two functions, because a model works best on text that looks like its
training data. Models read a limited number of tokens, so the order matters: the name split into words, the
server, the start of the description, then the parameters with the first words of their descriptions. If a
tool has hardly any description, more of its parameters are included, nested ones too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from toolfold.selection.retrieval.schemas import iterate_schemas, listed_values, schema_variants

MAX_DESCRIPTION_CHARS = 360
MAX_RAW_DESCRIPTION_CHARS = 8_000
MAX_PARAMETERS_CHARS = 240
MAX_PARAMETER_DESCRIPTION_CHARS = 48
MAX_PARAMETERS = 12
SHORT_DESCRIPTION_BYTES = 40  # bytes, because a Chinese character carries more meaning
MAX_NESTED_CHARS = 480
MAX_NESTED_PARAMETERS = 24
MAX_NESTED_DEPTH = 2
MAX_SCHEMAS = 200
MAX_ENUM_VALUES = 6
MAX_SYNONYMS_CHARS = 120
QUERY_HEAD_CHARS = 420
QUERY_TAIL_CHARS = 180

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NAME_BREAKS = re.compile(r"[\W_]+")
_VERSION = re.compile(r"__v\d+$")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]+")
_SPACE = re.compile(r"\s+")
_MARKUP = re.compile(r"<[a-zA-Z/][^<>]{0,200}>|[`*#|]+|\]\([^)\s]{0,300}\)")
_LINK = re.compile(r"https?://\S+")


def tool_text(
    name: str,
    description: str = "",
    parameters: Mapping[str, Any] | None = None,
    server: str = "",
    synonyms: Iterable[str] = (),
) -> str:
    """Return a tool's name, description and parameters as one short text, most informative parts first."""
    server_words, identifier = split_identifier(server), split_identifier(_VERSION.sub("", name))
    if server_words and server_words.lower() not in identifier.lower():
        identifier = f"{server_words} {identifier}"
    description_text = truncate_text(
        clean_text(_LINK.sub(" ", description[:MAX_RAW_DESCRIPTION_CHARS])), MAX_DESCRIPTION_CHARS
    )
    synonym_text = truncate_text(clean_text(", ".join(synonyms)), MAX_SYNONYMS_CHARS)
    parameter_text = (
        truncate_text(parameters_text(parameters), MAX_PARAMETERS_CHARS)
        if len(description_text.encode()) >= SHORT_DESCRIPTION_BYTES
        else truncate_text(
            parameters_text(parameters, MAX_NESTED_DEPTH, MAX_NESTED_PARAMETERS), MAX_NESTED_CHARS
        )
    )
    return ". ".join(
        part.rstrip(". ") for part in (identifier, synonym_text, description_text, parameter_text) if part
    )


def query_text(message: str) -> str:
    """Return a message as one line; a long message is shortened to its beginning and end."""
    raw = message[:4000] + (" " + message[-4000:] if len(message) > 8000 else message[4000:])
    text = clean_text(raw)
    if len(text) <= QUERY_HEAD_CHARS + QUERY_TAIL_CHARS:
        return text
    return f"{truncate_text(text, QUERY_HEAD_CHARS)} {text[-QUERY_TAIL_CHARS:]}"


def parameters_text(parameters: Mapping[str, Any] | None, depth: int = 0, limit: int = MAX_PARAMETERS) -> str:
    """List parameter names as words, each with the start of its description and some of its enum values."""
    schemas = iterate_schemas(parameters, depth=depth, limit=MAX_SCHEMAS)
    rendered: list[str] = []
    for name, schema in islice((each for each in schemas if each[0]), limit):
        facts = [split_identifier(name), *_parameter_facts(schema, parameters)]
        rendered.append(": ".join(fact for fact in facts if fact))
    return ", ".join(rendered)


def split_identifier(name: str) -> str:
    """Split an identifier into words: `getUserByID` and `get_user-by.id` become four words each."""
    return _NAME_BREAKS.sub(" ", _CAMEL.sub(" ", _CONTROL.sub(" ", name[:200]))).strip()


def clean_text(text: str) -> str:
    """Remove control characters and markup, and collapse white space."""
    return _SPACE.sub(" ", _MARKUP.sub(" ", _CONTROL.sub(" ", text))).strip()


def truncate_text(text: str, limit: int) -> str:
    """Truncate a text to `limit` characters, at a word boundary if there is one in the second half."""
    if len(text) <= limit:
        return text
    head, _, _ = text[: limit + 1].rpartition(" ")
    return head if len(head) > limit // 2 else text[:limit]


def _parameter_facts(schema: Mapping[str, Any], root: Mapping[str, Any] | None) -> list[str]:
    """Return a parameter's description and enum values, also from variants and referenced schemas."""
    schemas = list(schema_variants(schema, root))
    described = next(
        (
            description_text
            for each in schemas
            if isinstance(description_text := each.get("description"), str)
        ),
        "",
    )
    values = [value for each in schemas for value in listed_values(each)]
    description_text = truncate_text(clean_text(described[:400]), MAX_PARAMETER_DESCRIPTION_CHARS)
    return [description_text, " ".join(map(split_identifier, values[:MAX_ENUM_VALUES]))]
