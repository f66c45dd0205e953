"""What an embedding model reads of a tool and of a message. Standard library only.

One function for tools and one for messages, the same in training and in the product: a model
is only as good as the likeness of what it reads to what it was taught on. The order matters,
since models read a bounded number of tokens: the name in words, the server, the description's
beginning, then parameters with the first words of what they mean. A tool that hardly describes
itself is told by its parameters at more length, those inside them included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from toolfold.retrieval.schemas import listed_values, nested, variants

DESCRIPTION_CHARS = 360
DESCRIPTION_READ = 8_000
PARAMETERS_CHARS = 240
PARAMETER_DESCRIPTION_CHARS = 48
PARAMETERS_SHOWN = 12
THIN = 40  # bytes: a Chinese word says as much as three times its letters would
NESTED_CHARS = 480
NESTED_SHOWN = 24
NESTED_DEPTH = 2
SCHEMAS_READ = 200
ENUM_VALUES = 6
SYNONYMS_CHARS = 120
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
    """A tool as one short paragraph, the telling parts first."""
    label, own = in_words(server), in_words(_VERSION.sub("", name))
    if label and label.lower() not in own.lower():
        own = f"{label} {own}"
    said = cut(clean(_LINK.sub(" ", description[:DESCRIPTION_READ])), DESCRIPTION_CHARS)
    also = cut(clean(", ".join(synonyms)), SYNONYMS_CHARS)
    takes = (
        cut(parameters_text(parameters), PARAMETERS_CHARS)
        if len(said.encode()) >= THIN
        else cut(parameters_text(parameters, NESTED_DEPTH, NESTED_SHOWN), NESTED_CHARS)
    )
    return ". ".join(part.rstrip(". ") for part in (own, also, said, takes) if part)


def query_text(message: str) -> str:
    """A message as one line; of a long one the beginning and the end, where the wish usually stands."""
    rough = message[:4000] + (" " + message[-4000:] if len(message) > 8000 else message[4000:])
    text = clean(rough)
    if len(text) <= QUERY_HEAD_CHARS + QUERY_TAIL_CHARS:
        return text
    return f"{cut(text, QUERY_HEAD_CHARS)} {text[-QUERY_TAIL_CHARS:]}"


def parameters_text(
    parameters: Mapping[str, Any] | None, depth: int = 0, most: int = PARAMETERS_SHOWN
) -> str:
    """Names of parameters in words, each with the first words of its description and some of its values."""
    every = nested(parameters, depth=depth, most=SCHEMAS_READ)
    shown: list[str] = []
    for name, schema in islice((each for each in every if each[0]), most):
        facts = [in_words(name), *_facts(schema, parameters)]
        shown.append(": ".join(fact for fact in facts if fact))
    return ", ".join(shown)


def in_words(name: str) -> str:
    """`getUserByID`, `get_user-by.id` and `get user by id` read alike but for their capitals."""
    return _NAME_BREAKS.sub(" ", _CAMEL.sub(" ", _CONTROL.sub(" ", name[:200]))).strip()


def clean(text: str) -> str:
    """Without control characters, markup and runs of white space."""
    return _SPACE.sub(" ", _MARKUP.sub(" ", _CONTROL.sub(" ", text))).strip()


def cut(text: str, room: int) -> str:
    """At most `room` characters, ending with a whole word where there is one."""
    if len(text) <= room:
        return text
    head, _, _ = text[: room + 1].rpartition(" ")
    return head if len(head) > room // 2 else text[:room]


def _facts(schema: Mapping[str, Any], root: Mapping[str, Any] | None) -> list[str]:
    """What a parameter means and which values it lists, itself or in what it may be or refers to."""
    every = list(variants(schema, root))
    described = next((said for each in every if isinstance(said := each.get("description"), str)), "")
    values = [value for each in every for value in listed_values(each)]
    said = cut(clean(described[:400]), PARAMETER_DESCRIPTION_CHARS)
    return [said, " ".join(map(in_words, values[:ENUM_VALUES]))]
