"""Published sizes of models' context windows and replies, from the shipped table `models.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

UNKNOWN_MODEL_OUTPUT_TOKENS = 8_192
"""Output limit for a model that is not in the table, where a provider requires a limit."""
_MAX_OUTPUT_SHARE = 3
"""A reply may take at most this part (a third) of the context window; the rest is for the input."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Maximum sizes of a model's context window and replies, in tokens."""

    context: int
    output: int


@cache
def _read_table() -> tuple[str, Mapping[str, ModelLimits]]:
    data = tomllib.loads(files(__package__).joinpath("models.toml").read_text(encoding="utf-8"))
    return data["date"], {name: ModelLimits(**each) for name, each in data["models"].items()}


def table_date() -> str:
    """Return the date of the shipped model table."""
    return _read_table()[0]


def find_limits(model: str) -> ModelLimits | None:
    """Return a model's limits from the shipped model table; None if the model is unknown."""
    lowered = model.lower()
    table = _read_table()[1]
    names = sorted((name for name in table if _contains_name(lowered, name)), key=len)
    return table[names[-1]] if names else None


def _contains_name(model: str, name: str) -> bool:
    """Return True if a model name contains another name at the start of a word."""
    start = model.find(name)
    while start > 0 and model[start - 1].isalnum():
        start = model.find(name, start + 1)
    return start >= 0


def default_output_tokens(model: str, context_tokens: int | None = None) -> int:
    """Return the output limit of a request that sets none: the model's own, at most a third of its window."""
    limits = find_limits(model)
    context = context_tokens or (limits.context if limits else None)
    output = limits.output if limits else UNKNOWN_MODEL_OUTPUT_TOKENS
    return min(output, context // _MAX_OUTPUT_SHARE) if context else output
