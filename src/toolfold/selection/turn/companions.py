"""Find the look-up tools that a tool depends on: a tool that requires `channel_id` is of little use without
one that lists the channels.

Reads the schemas and names of tools of one toolset. Knows nothing of messages or limits.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping

from toolfold.core.types import Effect, Tool
from toolfold.selection.retrieval.text import COMMON_WORDS, words

MAX_COMPANIONS_PER_TOOL = 2

_LOOK_UP_VERBS = frozenset("list find search query enumerate lookup browse".split())  # noqa: SIM905
_READ_VERBS = frozenset({"get", "show", "read", "fetch"})
READING_VERBS = _LOOK_UP_VERBS | _READ_VERBS
_REFERENCE_WORDS = frozenset("id ids key keys number no token uri mrn locator code ref".split())  # noqa: SIM905
_REFERENCE = re.compile(r"\b(?:ids?|key|number|token)\b", re.IGNORECASE)


def find_companions(tool: Tool, others: Iterable[Tool]) -> list[str]:
    """Return tools of the same toolset that find the values of required parameters of a tool, best first.

    For each parameter that refers to something, such as `eventId`, this is the tool whose name says that it
    looks up such things. A tool that requires the same parameter finds nothing without it.
    """
    properties = tool.parameters.get("properties")
    look_ups = [other for other in others if other.name != tool.name and _verb_weight(other)]
    found: dict[str, None] = {}
    for parameter in _required_parameters(tool):
        schema = properties.get(parameter) if isinstance(properties, Mapping) else None
        description = schema.get("description") if isinstance(schema, Mapping) else None
        terms = _referred_terms(parameter, description if isinstance(description, str) else "")
        scores = {
            other.name: score
            for other in look_ups
            if parameter not in _required_parameters(other) and (score := _score(other, terms))
        }
        if scores:
            found[max(scores, key=lambda name: (scores[name], name))] = None
    return list(found)[:MAX_COMPANIONS_PER_TOOL]


def _referred_terms(parameter: str, description: str) -> dict[str, float]:
    """Return the weighted words for what a parameter refers to; none if it is no reference."""
    named = name_words(parameter)
    if named[-1:] and named[-1] not in _REFERENCE_WORDS and not _REFERENCE.search(description):
        return {}
    own = [word for word in named if word not in _REFERENCE_WORDS]
    described = (_singular(word) for word in words(description) if word not in COMMON_WORDS)
    return dict.fromkeys(described, 1.0) | dict.fromkeys(own, 2.0)


def _score(tool: Tool, terms: Mapping[str, float]) -> float:
    """Return how well a look-up tool fits the words for what is needed; 0 if its name has none of them."""
    named = name_words(tool.original_name or tool.name)
    matched = sum(terms.get(word, 0.0) for word in set(named))
    # Of two that fit, the one that is named for fewer other things.
    return matched * _verb_weight(tool) / (1 + 0.1 * len(named)) if matched else 0.0


def _verb_weight(tool: Tool) -> float:
    """Return 1 for a tool that lists or finds things, less for one that reads, 0 for other tools."""
    if tool.effects - {Effect.READ, Effect.NETWORK}:
        return 0.0
    named = name_words(tool.original_name or tool.name)
    if not _LOOK_UP_VERBS.isdisjoint(named):
        return 1.0
    return 0.5 if not _required_parameters(tool) and not _READ_VERBS.isdisjoint(named) else 0.0


def _required_parameters(tool: Tool) -> list[str]:
    required = tool.parameters.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, (list, tuple)) else []


@functools.lru_cache(maxsize=16_384)
def name_words(name: str) -> tuple[str, ...]:
    """Return the words of a name or a text, in the singular."""
    return tuple(_singular(word) for word in words(name))


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
